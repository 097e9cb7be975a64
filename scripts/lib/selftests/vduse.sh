#!/bin/bash
# VDUSE ports in a guest with Linux 6.12: an interface of the host and one of a container on the
# switch, their traffic, changes, the end and the restart of the daemon, and deletion. Run in a
# guest by scripts/linux-selftests.
set -u

# shellcheck source=check.sh
. ./check.sh

CONTROL=/run/vioswitch/control.sock
LOG=/tmp/log

ctl() { vioswitchctl --control "$CONTROL" "$@"; }
web() { ip netns exec web "$@"; }

load() {
    local module
    for module in $(cat /mod/vduse); do
        insmod "/mod/$module.ko" || return 1
    done
}

# The error of a kernel without the module names the module and the kernel.
names_the_module() {
    ! ctl vduse add host ifname=sw0 2>/tmp/error && cat /tmp/error \
        && grep -q 'modprobe -a vduse virtio_vdpa' /tmp/error && grep -q "$(uname -r)" /tmp/error
}

start_daemon() {
    vioswitchd --control="$CONTROL" --state-dir=/run/vioswitch/state "$@" 2>>"$LOG" &
    local tries=0
    until ctl status >/tmp/said 2>&1; do
        tries=$((tries + 1))
        [ "$tries" -lt 300 ] || return 1
        sleep 0.2
    done
}

# kill_daemon SIGNAL
kill_daemon() {
    kill "-$1" $(pidof vioswitchd)
    while pidof vioswitchd >/dev/null; do sleep 0.1; done
}

add_both() {
    ctl vduse add host ifname=sw0 mac=52:54:00:00:00:01 mtu=1500 \
        && ctl vduse add web ifname=eth7 netns=web mtu=1500 \
        && ip link show sw0 && web ip link show eth7
}

# Addresses of the documentation, in the root namespace and in the container's.
give_addresses() {
    ip addr add 192.0.2.1/24 dev sw0 && web ip addr add 192.0.2.2/24 dev eth7 \
        && web ip link set lo up
}

pings() {
    ping -c 3 -i 0.2 -W 5 192.0.2.2 && web ping -c 3 -i 0.2 -W 5 192.0.2.1
}

# Kilobits a second, from the last line about the receiver.
transfers() {
    web iperf3 -s -1 -D
    sleep 0.5
    iperf3 -c 192.0.2.2 -t 2 "$@" || return 1
}

is_attached() {
    ctl vduse show "$1" && ctl --json vduse show "$1" | grep -q '"state": "attached"'
}

link_follows_admin() {
    ctl vduse set host admin=down && wait_for carrier 0 && ctl vduse set host admin=up \
        && wait_for carrier 1
}

wait_for() {
    local tries=0
    until [ "$(cat "/sys/class/net/sw0/$1")" = "$2" ]; do
        tries=$((tries + 1))
        [ "$tries" -lt 50 ] || return 1
        sleep 0.1
    done
}

has_mac() {
    ip link show sw0 | grep -q 52:54:00:00:00:01
}

# A daemon that is killed leaves the interfaces, and the next daemon goes on with their rings.
restarts() {
    local index
    index=$(cat /sys/class/net/sw0/ifindex)
    kill_daemon "$1" && ip link show sw0 && start_daemon && pings \
        && [ "$(cat /sys/class/net/sw0/ifindex)" = "$index" ]
}

is_deleted() {
    ctl vduse del web && ! web ip link show eth7 && [ ! -e /dev/vduse/web ] && ip link show sw0
}

echo >"$LOG"
ip netns add web
# The daemon of the init is in the way.
kill_daemon TERM
start_daemon || { cat "$LOG"; exit 1; }
check "a missing module is named" names_the_module
load || exit 1
kill_daemon TERM
start_daemon || { cat "$LOG"; exit 1; }
check "the host and a container get interfaces" add_both
check "the interface has the port's address" has_mac
give_addresses
check "they reach each other" pings
check "the ports are attached" is_attached host
check "TCP from the host to the container" transfers
check "TCP from the container to the host" transfers -R
check "the link follows admin" link_follows_admin
check "they reach each other then" pings
check "a daemon that ends leaves the interfaces" restarts TERM
check "a killed daemon leaves the interfaces" restarts KILL
check "TCP after the restarts" transfers
check "a deleted port takes its interface along" is_deleted
[ "$status" -eq 0 ] || cat "$LOG"
exit "$status"
