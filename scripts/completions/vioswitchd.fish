complete -c vioswitchd -l config -d 'Read settings from a TOML file and conf.d/*.toml beside it; the command line wins' -r -F
complete -c vioswitchd -l port -d 'Add a port for a virtual machine; repeatable' -r
complete -c vioswitchd -l tap -d 'Add a TAP interface as an uplink; repeatable' -r
complete -c vioswitchd -l stream -d 'Add a port for a process that speaks QEMU\'s -netdev stream over a Unix socket, such as passt; repeatable' -r
complete -c vioswitchd -l socket-path -d 'Add one port, named port0, that listens on PATH' -r
complete -c vioswitchd -l fd -d 'Add one port, named port0, on a socket left open by the parent as descriptor N' -r
complete -c vioswitchd -l state-dir -d 'Keep here what is changed while it runs, for the next start [default: $STATE_DIRECTORY]' -r -F
complete -c vioswitchd -l workers -d 'Threads that forward frames, or auto: one for each CPU, at most 4 [default: 1]' -r
complete -c vioswitchd -l cpus -d 'Bind worker i to the i-th of these CPUs, in turn, such as 0,2-3' -r
complete -c vioswitchd -l poll -d 'Spin instead of sleeping: lowest latency, and a whole CPU for each worker' -r
complete -c vioswitchd -l age -d 'Seconds after which a silent address is forgotten [default: 300]' -r
complete -c vioswitchd -l control -d 'Listen here for vioswitchctl, which shows and changes the switch while it runs' -r
complete -c vioswitchd -l control-group -d 'Who may connect there and look: group of the control socket' -r
complete -c vioswitchd -l control-admin-group -d 'Who of them may change the switch, beside root and the daemon\'s user' -r
complete -c vioswitchd -l capture-group -d 'Who of them may look at frames, beside root and the daemon\'s user' -r
complete -c vioswitchd -l metrics -d 'Answer GET /metrics here, for Prometheus: ADDRESS:PORT, unix:PATH, or fd (inherited)' -r
complete -c vioswitchd -l log-level -d 'Log off, error, warn, info, debug or trace; RUST_LOG wins [default: info]' -r
complete -c vioswitchd -l uplink-to-uplink -d 'Forward between two TAPs as well; two TAPs in one bridge are then a loop' -r
complete -c vioswitchd -l plug -d 'Make ports of the sockets that turn up here, as libvirt\'s mode=\'server\' makes them' -r
complete -c vioswitchd -l strict -d 'Refuse to start with a bad file; else the last good one runs, if --state-dir has it'
complete -c vioswitchd -l check -d 'Say what is wrong with the configuration or would keep it from starting here, and exit'
complete -c vioswitchd -l print-capabilities -d 'Print what this back-end is, as JSON for management software, and exit'
complete -c vioswitchd -s h -l help -d 'Print help (see more with \'--help\')'
complete -c vioswitchd -s V -l version -d 'Print version'
