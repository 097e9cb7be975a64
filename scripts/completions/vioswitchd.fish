complete -c vioswitchd -l config -d 'Read a TOML file and conf.d/*.toml beside it; options take precedence' -r -F
complete -c vioswitchd -l port -d 'Add a port for a virtual machine; repeatable' -r
complete -c vioswitchd -l tap -d 'Add a TAP interface as an uplink; repeatable' -r
complete -c vioswitchd -l xdp -d 'Add an interface of the host as an uplink that bypasses the host\'s network stack (AF_XDP); repeatable' -r
complete -c vioswitchd -l stream -d 'Add a port for a process that speaks QEMU\'s -netdev stream over a Unix socket, such as passt; repeatable' -r
complete -c vioswitchd -l vduse -d 'Add an interface of the host or a container, whose rings the switch serves like a virtual machine\'s (VDUSE); repeatable' -r
complete -c vioswitchd -l mirror -d 'Add a mirror, which copies frames of one port to another; repeatable' -r
complete -c vioswitchd -l filter -d 'Add a filter: rules about the packets of ports that name the filter in filter=; repeatable' -r
complete -c vioswitchd -l group -d 'Add a group: addresses that rules of filters name as group:NAME; repeatable' -r
complete -c vioswitchd -l socket-path -d 'Add one port, named port0, that listens on PATH' -r
complete -c vioswitchd -l fd -d 'Add one port, named port0, on the inherited socket N' -r
complete -c vioswitchd -l state-dir -d 'Keep changes made while the switch runs in this directory [default: $STATE_DIRECTORY]' -r -F
complete -c vioswitchd -l workers -d 'Threads that forward frames: 1 to 256, or auto: one for each CPU, at most 4 [default: 1]' -r
complete -c vioswitchd -l cpus -d 'Bind worker i to the i-th of these CPUs, such as 0,2-3' -r
complete -c vioswitchd -l poll -d 'Spin instead of sleeping: lowest latency, and a whole CPU for each worker [default: false]' -r
complete -c vioswitchd -l latency -d 'Wake-up time of CPUs while frames come: low, N microseconds, or normal [default: normal]' -r
complete -c vioswitchd -l age -d 'Seconds, 1 to 1000000, after which a silent address is forgotten [default: 300]' -r
complete -c vioswitchd -l control -d 'Path of the control socket, where vioswitchctl shows and changes the switch' -r
complete -c vioswitchd -l control-group -d 'Group of the control socket, whose members may look at the switch [default: the daemon\'s]' -r
complete -c vioswitchd -l control-admin-group -d 'Group whose members may change the switch too, beside root and the daemon\'s user' -r
complete -c vioswitchd -l capture-group -d 'Group whose members may capture frames too, beside root and the daemon\'s user' -r
complete -c vioswitchd -l metrics -d 'Answer GET /metrics of Prometheus at IP:PORT, unix:PATH, or fd (inherited)' -r
complete -c vioswitchd -l log-level -d 'Log level: off, error, warn, info, debug or trace; RUST_LOG has precedence [default: info]' -r
complete -c vioswitchd -l uplink-to-uplink -d 'Forward frames between uplinks; two uplinks in one bridge form a loop [default: false]' -r
complete -c vioswitchd -l mac-flap-damping -d 'Hold an address that moves between ports five times in a second [default: true]' -r
complete -c vioswitchd -l multicast-snooping -d 'Send group frames only to members of the group, while a querier is heard [default: false]' -r
complete -c vioswitchd -l sandbox -d 'Confine the running switch by Landlock and seccomp [default: on]' -r
complete -c vioswitchd -l plug -d 'Make a port for each listening socket in this directory (libvirt\'s mode=\'server\')' -r
complete -c vioswitchd -l strict -d 'Refuse to start with a bad file, even if --state-dir has the last good one'
complete -c vioswitchd -l check -d 'Report errors of the configuration and obstacles on this machine, and exit'
complete -c vioswitchd -l print-capabilities -d 'Print the type of the back-end as JSON for management software, and exit'
complete -c vioswitchd -s h -l help -d 'Print help (see more with \'--help\')'
complete -c vioswitchd -s V -l version -d 'Print version'
