#!/bin/bash
# A TCP stream between two VDUSE ports goes on over a restart of the daemon, and its sender has one
# retransmission time-out at most: frames are late, and none is lost. Run in a guest by
# scripts/linux-selftests, whose clocks count instructions: a restart takes as long as on a machine
# of a billion instructions a second, however busy the machine below the emulator is.
set -u

# shellcheck source=check.sh
. ./check.sh

CONTROL=/run/vioswitch/control.sock
LOG=/tmp/log

ctl() { vioswitchctl --control "$CONTROL" "$@"; }
web() { ip netns exec web "$@"; }

start_daemon() {
    vioswitchd --control="$CONTROL" --state-dir=/run/vioswitch/state 2>>"$LOG" &
}

until_ready() {
    local tries=0
    until ctl status; do
        tries=$((tries + 1))
        [ "$tries" -lt 100 ] || return 1
        sleep 0.1
    done
}

has_interfaces() {
    ctl vduse add host ifname=sw0 mtu=1500 && ctl vduse add web ifname=eth7 netns=web mtu=1500 \
        && ip addr add 192.0.2.1/24 dev sw0 && web ip addr add 192.0.2.2/24 dev eth7 \
        && ping -c 1 192.0.2.2
}

# The time-outs of both namespaces' senders so far.
timeouts() {
    { cat /proc/net/netstat && web cat /proc/net/netstat; } | awk '$1 == "TcpExt:" {
        if ($2 ~ /^[0-9]/) sum += $column
        else for (field = 2; field <= NF; field++) if ($field == "TCPTimeouts") column = field
    } END { print sum }'
}

# timeouts_of EVENT OPTION…: the time-outs of a stream in whose middle EVENT happens are $seen.
timeouts_of() {
    local event=$1 sender before
    shift
    web iperf3 -s -1 -D
    sleep 0.2
    before=$(timeouts)
    iperf3 -c 192.0.2.2 -t 2 "$@" &
    sender=$!
    sleep 0.6
    $event "$(pidof vioswitchd)"
    wait "$sender" || return 1
    seen=$(($(timeouts) - before))
    echo "time-outs: $seen"
}

# replace SIGNAL PID
replace() {
    local start=${EPOCHREALTIME/./}
    kill "-$1" "$2"
    while [ -e "/proc/$2/exe" ]; do sleep 0.005; done
    start_daemon
    until_ready && echo "a daemon answers again after $((${EPOCHREALTIME/./} - start)) us"
}

pause() {
    kill -STOP "$1"
    sleep 1
    kill -CONT "$1"
}

outlives() { timeouts_of "$@" && [ "$seen" -le 1 ]; }
# Without this the other checks could not fail.
notices_a_pause() { timeouts_of pause && [ "$seen" -ge 2 ]; }

echo >"$LOG"
ip netns add web
web ip link set lo up
# The daemon of the init began before the module.
kill "$(pidof vioswitchd)"
for module in $(cat /mod/vduse); do insmod "/mod/$module.ko" || exit 1; done
while pidof vioswitchd >/dev/null; do sleep 0.1; done
start_daemon
until_ready >/dev/null 2>&1 || { cat "$LOG"; exit 1; }
check "two interfaces" has_interfaces
check "a second without the daemon costs two time-outs or more" notices_a_pause
check "a daemon that is replaced costs one time-out at most" outlives "replace TERM"
check "a killed daemon costs the way back one time-out at most" outlives "replace KILL" -R
check "the interfaces still reach each other" ping -c 1 192.0.2.2
[ "$status" -eq 0 ] || cat "$LOG"
exit "$status"
