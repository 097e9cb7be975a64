# The network of an ordinary user, for scripts/demo --rootless: what docs/rootless.md has somebody
# type is typed here, with two guests.
#
# Sourced, after guest.sh, stages.sh and shown.sh. Callers set: run (a directory of the user's
# own), guest, accel, bin (directory of the programs), as_user (what makes a command the user's)
# and IPERF_SECONDS.
# shellcheck shell=bash disable=SC2154,SC2034

# The guests' lease comes within a second; a name for IPv6 once dnsmasq has found the address.
NAME_SECONDS=20
HTTP_PORT=8080

as_user=()

user() { "${as_user[@]}" env "XDG_RUNTIME_DIR=$run" "PATH=$bin:$PATH" "$@"; }

# typed LINE: what somebody types, with the page's port for that of this run.
typed() {
    printf '\n    %s\n' "$1"
    printf '%s\n' "${1/$http_port:/$HTTP_PORT:}" >>"$run/typed"
}

# shown COMMAND…: a command of the user that must succeed.
shown() {
    local text
    typed "$ $*"
    text=$(user "$@" 2>&1 </dev/null) || fail "$text"
    answered "$text"
}

# Each line of docs/rootless.md that is typed was typed here.
page_is_true() {
    local line
    while IFS= read -r line; do
        grep -qxF -- "$line" "$run/typed" || fail "docs/rootless.md: nobody typed \"$line\""
    done < <(grep -E '^((vm[0-9])?#|\$) [a-z]' "$repo/docs/rootless.md")
}

start_network() {
    # A port of the host that nobody has.
    http_port=$HTTP_PORT
    while (exec 3<>"/dev/tcp/127.0.0.1/$http_port") 2>/dev/null; do http_port=$((http_port + 1)); done
    say "    as user $user, files in $run:"
    shown vioswitchctl lan --host-loopback
    told 'outside: +connected'
}

# run_vm NUMBER: a guest as somebody starts one by hand. What the guest is told comes through its
# second serial port.
run_vm() {
    local number=$1 in=$run/vm$1.in out=$run/vm$1.out to from
    mkfifo "$in" "$out"
    exec {to}<>"$in" {from}<>"$out"
    vm_in[number]=$to
    vm_out[number]=$from
    typed "$ vioswitchctl lan run vm$number -- qemu-system-x86_64 -m $GUEST_MB …"
    "${as_user[@]}" setpriv --pdeathsig TERM env "XDG_RUNTIME_DIR=$run" "PATH=$bin:$PATH" \
        vioswitchctl lan run "vm$number" -- "$qemu" -accel "$accel" -m "$GUEST_MB" \
        -smp 1,maxcpus=2 -cpu max -nodefaults -no-user-config -display none -no-reboot \
        -kernel "$guest/vmlinux" -initrd "$guest/initrd.gz" \
        -append "console=ttyS0 panic=-1 quiet mitigations=off no_timer_check" \
        -serial "file:$run/vm$number.console" \
        -chardev stdio,id=commands,signal=off -serial chardev:commands "${vm_more[@]}" \
        <"$in" >"$out" 2>"$run/vm$number.qemu" &
    vm_pids[number]=$!
}

# What a distribution's image does by itself, the guest is told to do.
# shellcheck disable=SC2016 # expanded in the guest
DHCP='printf "#!/bin/sh\n[ \$1 = bound ] || exit 0\nip addr add \$ip/\$mask dev eth0\n
ip link set eth0 mtu \$mtu\nip route add default via \$router\n
echo nameserver \$dns >/etc/resolv.conf\necho search \$domain >>/etc/resolv.conf\n
" >/tmp/dhcp; chmod +x /tmp/dhcp; mkdir -p /etc; 
udhcpc -i eth0 -n -q -t 10 -T 1 -O mtu -s /tmp/dhcp'

boot_named_guests() {
    local number
    for number in 1 2; do run_vm "$number"; done
    for number in 1 2; do
        wait_vm "$number"
        [ -z "$keep" ] || give_console "$number"
        in_guest "$number" "${DHCP//$'\n'/}"
        note "vm$number, by DHCP" "$(sed -nE 's/.*lease of ([0-9.]+) obtained.*/\1/p' <<<"$answer")"
    done
}

ping_by_name() {
    in_vm 1 ping -4 -c 3 vm2.lan
    told '3 packets received'
    in_guest 1 "for i in \$(seq $NAME_SECONDS); do \
ping -6 -c 1 -W 1 vm2.lan >/dev/null 2>&1 && break; sleep 1; done"
    in_vm 1 ping -6 -c 3 vm2.lan
    told '3 packets received'
}

forward() {
    in_guest 2 'mkdir -p /www; echo hello from vm2 >/www/index.html; httpd -h /www'
    shown vioswitchctl lan forward "$http_port:vm2:80"
    typed "$ curl http://127.0.0.1:$http_port/"
    answered "$(curl --silent --show-error --max-time 10 "http://127.0.0.1:$http_port/" 2>&1)"
    told '^hello from vm2$'
}

speeds_by_name() {
    local port=$((20000 + $$ % 10000))
    in_guest 2 iperf3 -s -D
    show_iperf "vm1 to vm2, TCP" 1 vm2.lan
    setpriv --pdeathsig KILL iperf3 -s -B 127.0.0.1 -p "$port" >/dev/null 2>&1 &
    outside=$!
    sleep 0.3
    show_iperf "vm1 to the host through pasta, TCP" 1 host.lan -p "$port"
    show_iperf "the host through pasta to vm1, TCP" 1 host.lan -p "$port" -R
}

end_guests() {
    local number
    for number in "${!vm_pids[@]}"; do
        kill -TERM "${vm_pids[number]}" 2>/dev/null || true
        wait "${vm_pids[number]}" 2>/dev/null || true
    done
    vm_pids=()
}

stop_network() {
    local start
    shown vioswitchctl lan status
    told '^vm1 +10\.78\.0\.[0-9]+ .* attached '
    told "^$http_port:vm2:80 +running"
    end_guests
    start=$(now_ms)
    shown vioswitchctl lan stop
    note "the network stops" "$(since "$start")"
    [ ! -e "$run/vioswitch-lan" ] || fail "files are left: $(ls "$run/vioswitch-lan")"
    page_is_true
}

play_rootless() {
    local console=$repo/scripts/lib/console
    cat <<END
    a shell in a guest, which Ctrl-] leaves:
        $console $run/vm1.tty
        $console $run/vm2.tty
    in vm1:
        ping vm2.lan
    at the network:
        alias ctl='${as_user[*]} env XDG_RUNTIME_DIR=$run PATH=$bin:\$PATH vioswitchctl'
        ctl lan status
        ctl lan forward 8080:vm1:80
        ctl --control $run/vioswitch-lan/control.sock top
END
}
