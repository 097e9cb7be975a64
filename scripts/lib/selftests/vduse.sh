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
    vioswitchd --control="$CONTROL" --state-dir=/run/vioswitch/state 2>>"$LOG" &
    local tries=0
    until ctl status >/tmp/said 2>&1; do
        tries=$((tries + 1))
        [ "$tries" -lt 300 ] || return 1
        sleep 0.2
    done
}

# kill_daemon SIGNAL
kill_daemon() {
    kill "-$1" "$(pidof vioswitchd)"
    while pidof vioswitchd >/dev/null; do sleep 0.1; done
}

add_both() {
    ctl vduse add host ifname=sw0 mac=52:54:00:00:00:01 mtu=1500 \
        && ctl vduse add web ifname=eth7 netns=web mtu=1500 \
        && ip link show sw0 && web ip link show eth7
}

# Addresses of the documentation, in the root namespace and in the container's.
give_addresses() {
    give_host_address && web ip addr add 192.0.2.2/24 dev eth7 \
        && web ip link set lo up
}

give_host_address() {
    ip addr add 192.0.2.1/24 dev sw0
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

# Prints the virtio device of port host.
virtio_device() {
    basename /sys/bus/vdpa/devices/host/virtio*
}

# The driver makes a new interface, which has no name and was never up.
restart_driver() {
    local device drivers=/sys/bus/virtio/drivers/virtio_net
    device=$(virtio_device)
    echo "$device" >$drivers/unbind && echo "$device" >$drivers/bind && ! ip link show sw0
}

# The driver starts again on the same device, and the kernel tells no bounce area until it sends.
rebinds() {
    restart_driver && ip link set "$(ls /sys/bus/vdpa/devices/host/virtio*/net)" name sw0 up \
        && give_host_address && pings
}

# A daemon that was killed has left an interface without its name and place.
finishes_an_interface() {
    restart_driver && kill_daemon KILL && start_daemon && wait_until ip link show sw0 \
        && give_host_address && wait_until pings
}

# The kernel gives a device up that does not answer in time; nobody need wait for 30 s here.
break_device() {
    echo 1 >/sys/class/vduse/host/msg_timeout \
        && virtio_device >/sys/bus/virtio/drivers/virtio_net/unbind
}

# wait_until COMMAND…
wait_until() {
    local tries=0
    until "$@" >/dev/null 2>&1; do
        tries=$((tries + 1))
        [ "$tries" -lt 100 ] || return 1
        sleep 0.2
    done
}

replaced_at_start() {
    kill_daemon KILL && break_device && start_daemon && wait_until ip link show sw0 \
        && give_host_address && wait_until pings
}

replaced_while_it_runs() {
    local daemon
    daemon=$(pidof vioswitchd)
    kill -STOP "$daemon" && break_device
    kill -CONT "$daemon" && wait_until ip link show sw0 && give_host_address && wait_until pings
}

# A new device does not take another interface of its address.
keeps_an_interface_of_the_same_address() {
    local index mac=52:54:00:00:00:07
    index=$(cat /sys/class/net/sw0/ifindex)
    ip link set sw0 address $mac && ctl vduse add third ifname=sw3 mac=$mac \
        && [ "$(cat /sys/class/net/sw0/ifindex)" = "$index" ] && ip link show sw3 \
        && ctl vduse del third && ip link set sw0 address 52:54:00:00:00:01
}

leaves_nothing_after_an_error() {
    ! ctl vduse add bad ifname=lo && [ ! -e /dev/vduse/bad ] && [ ! -e /sys/bus/vdpa/devices/bad ]
}

is_gone() {
    [ ! -e /dev/vduse/web ] && ! web ip link show eth7
}

# Another process has the device, so nothing serves the port that is deleted.
deleted_without_a_thread() {
    kill_daemon KILL
    exec 9<>/dev/vduse/web
    start_daemon 9>&- || return 1
    ctl vduse del web 9>&- &
    sleep 1
    exec 9>&-
    wait_until is_gone && start_anew web ifname=eth7 netns=web mtu=1500
}

start_anew() {
    wait_until ctl vduse add "$@" && web ip addr add 192.0.2.2/24 dev eth7 && wait_until pings
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
check "the driver starts again" rebinds
check "an interface without its name is finished" finishes_an_interface
check "an interface of the same address stays" keeps_an_interface_of_the_same_address
check "a device is replaced that the kernel gave up" replaced_while_it_runs
check "a device is replaced at the start" replaced_at_start
check "an error leaves no device" leaves_nothing_after_an_error
check "a deleted port without a thread leaves no device" deleted_without_a_thread
check "a deleted port takes its interface along" is_deleted
[ "$status" -eq 0 ] || cat "$LOG"
exit "$status"
