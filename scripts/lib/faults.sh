# Faults of a switch, its guests and its uplink, made one by one in a machine, found by
# `vioswitchctl doctor`, and mended.
#
# Sourced, after machine.sh, guest.sh and shown.sh. The machine has the package, a TAP `lan` with an
# address and the guests vm1 and vm2, whose addresses are in `guest_address`.
# shellcheck shell=bash disable=SC2016,SC2154 # expanded in the machine; set by others

faults_found=0
# Where files of the configuration go.
CONF_D=/etc/vioswitch/conf.d
DROP_IN=/etc/systemd/system/vioswitchd.service.d

# The doctor finds nothing, sooner or later: what it says is in `said`.
healthy() {
    local end=$((SECONDS + SOON_SECONDS))
    until said=$(on vioswitchctl doctor 2>&1) && ! grep -qE '^(FAIL|WARN)' <<<"$said"; do
        [ "$SECONDS" -le "$end" ] || fail "the doctor finds something: $said"
        sleep 0.2
    done
}

# found CODE PORT MAKE UNDO [ARGUMENT…]: makes a fault of a port ("" of the switch), waits until the
# doctor, asked with the arguments, has that code for it, and mends it: then the doctor finds nothing.
# With `true` for UNDO it stays.
found() {
    local code=$1 port=$2 make=$3 undo=$4 told end=$((SECONDS + SOON_SECONDS))
    shift 4
    typed "# $make"
    on bash -ec "$make" >"$run/fault" 2>&1 </dev/null || fail "\"$make\": $(cat "$run/fault")"
    until told=$(on vioswitchctl doctor "$@" 2>&1 || true) \
        && grep -qE "^(FAIL|WARN)  $code  ${port:+$port: }" <<<"$told"; do
        [ "$SECONDS" -le "$end" ] || fail "the doctor does not find $code: $told"
        sleep 0.2
    done
    say "    # vioswitchctl doctor${*:+ $*}"
    echo "# vioswitchctl doctor${*:+ $*}" >>"$run/typed"
    answered "$(grep -A 1 -E "^(FAIL|WARN)  $code  ${port:+$port: }" <<<"$told" | head -n 2)"
    faults_found=$((faults_found + 1))
    [ "$undo" != true ] || return 0
    on bash -ec "$undo" >"$run/fault" 2>&1 </dev/null || fail "\"$undo\": $(cat "$run/fault")"
    healthy
}

# --- the switch --------------------------------------------------------------------------------

faults_of_switch() {
    found config-bad '' "echo 'worker = 4' >$CONF_D/slip.toml" "rm $CONF_D/slip.toml"
    found config-differs '' \
        "printf '[[port]]\nname = \"vm9\"\nsocket = \"/run/vioswitch/vm9.sock\"\n' >$CONF_D/vm9.toml" \
        "rm $CONF_D/vm9.toml"
    found unit-overridden '' \
        "mkdir $DROP_IN && printf '[Service]\nTimeoutStopSec=1\n' >$DROP_IN/stop.conf && systemctl daemon-reload" \
        true
    found unit-stale '' "sed -i s/1/2/ $DROP_IN/stop.conf" \
        "rm -r $DROP_IN && systemctl daemon-reload"
    found program-replaced '' 'cp /usr/bin/vioswitchd /usr/bin/new && mv /usr/bin/new /usr/bin/vioswitchd' \
        'systemctl restart vioswitchd && vioswitchctl port wait vm1 && vioswitchctl port wait vm2'
    found degraded vm9 \
        "printf '[[port]]\nname = \"vm9\"\nsocket = \"/no/such/vm9.sock\"\n' >$CONF_D/vm9.toml
      systemctl restart vioswitchd" \
        "rm $CONF_D/vm9.toml && systemctl restart vioswitchd && vioswitchctl port wait vm1 &&
         vioswitchctl port wait vm2"
}

# --- ports and their machines ------------------------------------------------------------------

faults_of_sockets() {
    local add='vioswitchctl port add vm9 --wait=listening' del='vioswitchctl port del vm9'
    found socket-missing vm9 "$add && rm /run/vioswitch/vm9.sock" "$del"
    found socket-permission vm9 "$add" "$del" vm9 --user nobody
    found socket-directory vm9 "$add && chmod 0700 /run/vioswitch" "chmod 0755 /run/vioswitch && $del" \
        vm9 --user nobody
}

# mistaken CODE OPTIONS CHARDEV DEVICE: a QEMU that is started so, and stands still.
mistaken() {
    local code=$1 memory=$2 chardev=$3 device=$4
    found "$code" vm9 "vioswitchctl port add vm9 queues=2
      qemu-system-x86_64 -S -m 64 $memory -nodefaults -display none -daemonize -pidfile /run/vm9.pid \\
          -chardev socket,id=c,path=/run/vioswitch/vm9.sock$chardev \\
          -netdev vhost-user,id=n,chardev=c,queues=2 -device virtio-net-pci,netdev=n$device" \
        'kill $(cat /run/vm9.pid); vioswitchctl port del vm9' vm9
}

faults_of_machines() {
    local shared='-object memory-backend-memfd,id=m,size=64M,share=on -machine memory-backend=m'
    local again=,reconnect=1
    mistaken memory-not-shared '' "$again" ,mq=on
    mistaken no-reconnect "$shared" '' ,mq=on
    mistaken queues-unused "$shared" "$again" ''
    mistaken vectors-few "$shared" "$again" ,mq=on,vectors=3
    mistaken ring-never-started "$shared" "$again" ,mq=on
    found socket-shared vm1 \
        "qemu-system-x86_64 -S -nodefaults -display none -pidfile /run/vm9.pid \\
          -chardev socket,id=c,path=/run/vioswitch/vm1.sock,reconnect=1 &
      sleep 0.5" 'kill $(cat /run/vm9.pid)' vm1
}

# --- the uplink --------------------------------------------------------------------------------

# faults_of_uplink INTERFACE
faults_of_uplink() {
    local interface=$1 bridge
    bridge="ip link add br9 type bridge && ip link set $interface master br9"
    found tap-down lan "ip link set $interface down" "ip link set $interface up"
    found tap-queues lan "tc qdisc replace dev $interface root pfifo" \
        "tc qdisc replace dev $interface root noqueue"
    found mtu-differs lan 'vioswitchctl port set vm2 mtu=9000' 'vioswitchctl port set vm2 mtu='
    found bridge-down lan "$bridge" 'ip link del br9'
    found forward-drop lan \
        "$bridge && ip link set br9 up
      echo 1 >/proc/sys/net/bridge/bridge-nf-call-iptables && iptables -P FORWARD DROP" \
        'iptables -P FORWARD ACCEPT; echo 0 >/proc/sys/net/bridge/bridge-nf-call-iptables
         ip link del br9'
    found tap-alone lan "ip address flush dev $interface" "networkctl reconfigure $interface"
}

# all_faults INTERFACE
all_faults() {
    on mkdir -p "$CONF_D"
    faults_of_switch
    faults_of_sockets
    faults_of_machines
    faults_of_uplink "$1"
    # Last, as this is told for minutes after the last frame.
    shown vioswitchctl port set vm2 mtu=1000
    in_vm 1 "ping -c 2 -W 1 -s 1200 ${guest_address[2]} || true"
    found frames-too-long vm2 'vioswitchctl drops vm2' true
    shown vioswitchctl port set vm2 mtu=
}
