#!/bin/bash
# VDUSE ports in a guest with Linux 6.12: an interface of the host and one of a container on the
# switch, their traffic with the keys of ports, changes, the end and the restart of the daemon, whose
# device is whose, and deletion. Run in a guest by scripts/linux-selftests.
set -u

# shellcheck source=check.sh
. ./check.sh

CONTROL=/run/vioswitch/control.sock
OTHER=/run/vioswitch/other.sock
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

# start_daemon OPTION…
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

# A frame of the least and of the largest MTU passes whole.
has_mtu() {
    local mtu=$1 status=0
    # In a bridge of their own: Linux answers for an address on all its interfaces.
    ctl vduse add m1 ifname=sw5 mtu="$mtu" bridge=m \
        && ctl vduse add m2 ifname=eth8 netns=web mtu="$mtu" bridge=m \
        && ip addr add 198.51.100.1/24 dev sw5 && web ip addr add 198.51.100.2/24 dev eth8 \
        && [ "$(cat /sys/class/net/sw5/mtu)" = "$mtu" ] \
        && wait_until ping -c 1 -W 2 -M "do" -s $((mtu - 28)) 198.51.100.2 || status=1
    ctl vduse del m1 && ctl vduse del m2 && return $status
}

has_ring_size() {
    ctl vduse del web && start_anew web ifname=eth7 netns=web mtu=1500 ring-size="$1" \
        && ctl --json vduse show web | grep -q "\"size\": $1" && transfers -t 1
}

# Two access ports of a VLAN, then a trunk and an access port.
knows_vlans() {
    local module status=0
    for module in $(cat /mod/vlan); do insmod "/mod/$module.ko" || return 1; done
    ctl vduse set web vlan=10 && ! ping -c 1 -W 1 192.0.2.2 && ctl vduse set host vlan=10 && pings \
        && ctl vduse set host vlan= trunk=10 && ip link add link sw0 name sw0.10 type vlan id 10 \
        && ip addr del 192.0.2.1/24 dev sw0 && ip addr add 192.0.2.1/24 dev sw0.10 \
        && ip link set sw0.10 up && wait_until pings || status=1
    ip link del sw0.10
    give_host_address
    ctl vduse set host trunk= && ctl vduse set web vlan= && wait_until pings && return $status
}

# A guarded container cannot take another address.
is_guarded() {
    local status=0
    ctl vduse set web guard=on allowed-ips=192.0.2.2 && pings || status=1
    web ip addr add 192.0.2.9/24 dev eth7
    ! ping -c 1 -W 1 192.0.2.9 || status=1
    ctl --json vduse show web | grep -q '"guard": [1-9]' || status=1
    web ip addr del 192.0.2.9/24 dev eth7
    ctl vduse set web guard=off allowed-ips= && pings && return $status
}

# A container that has no named namespace.
is_placed_by_process() {
    local pid status=0
    web sleep 600 &
    sleep 0.5
    pid=$(pidof sleep | tr ' ' '\n' | sort -n | tail -1)
    ctl vduse add byp ifname=eth9 netns="$pid" && web ip link show eth9 && ctl vduse del byp \
        || status=1
    kill "$pid"
    return $status
}

# A stream goes on over a restart. vduse-restart.sh counts time-outs.
restarts_under_a_stream() {
    local stream
    web iperf3 -s -1 -D
    sleep 0.5
    iperf3 -c 192.0.2.2 -t 5 &
    stream=$!
    sleep 2
    kill_daemon TERM && start_daemon && wait "$stream" && pings
}

deleted_under_a_stream() {
    local stream status=0
    web iperf3 -s -1 -D
    sleep 0.5
    iperf3 -c 192.0.2.2 -t 4 &
    stream=$!
    sleep 1
    ctl vduse del web && is_gone || status=1
    # shellcheck disable=SC2046 # a list of numbers
    kill $(pidof iperf3)
    wait "$stream"
    start_anew web ifname=eth7 netns=web mtu=1500 && return $status
}

# Keys of a command line or a file that change while no daemon runs.
takes_changed_keys() {
    kill_daemon TERM && start_daemon --vduse=cfg,ifname=sw6,mtu=1400 \
        && [ "$(cat /sys/class/net/sw6/mtu)" = 1400 ] && kill_daemon TERM \
        && start_daemon --vduse=cfg,ifname=sw6,mtu=1300,mac=52:54:00:00:00:06 \
        && [ "$(cat /sys/class/net/sw6/mtu)" = 1300 ] \
        && ip link show sw6 | grep -q 52:54:00:00:00:06
}

# What does not change keeps the interface, and a port that is left out takes its interface along.
removes_what_is_left_out() {
    local index
    index=$(cat /sys/class/net/sw6/ifindex)
    kill_daemon TERM && start_daemon --vduse=cfg,ifname=sw6,mtu=1300,mac=52:54:00:00:00:06 \
        && [ "$(cat /sys/class/net/sw6/ifindex)" = "$index" ] && kill_daemon TERM && start_daemon \
        && wait_until test ! -e /sys/class/net/sw6 && [ ! -e /dev/vduse/cfg ] && pings
}

# The device of another switch, or of another program, is not taken, and doctor names the device.
leaves_the_devices_of_others() {
    local other status=0
    vioswitchd --control="$OTHER" --vduse=other,ifname=sw7 2>>"$LOG" &
    other=$!
    wait_until ip link show sw7
    kill -KILL "$other"
    wait "$other"
    ! ctl vduse add other ifname=sw8 2>/tmp/error && grep -q 'vdpa dev del other' /tmp/error \
        && ip link show sw7 || status=1
    ctl doctor >/tmp/doctor
    grep -A1 "device-left" /tmp/doctor | grep -q 'vdpa dev del other' || status=1
    cat /tmp/error /tmp/doctor
    vioswitchd --control="$OTHER" 2>>"$LOG" &
    other=$!
    wait_until test ! -e /sys/class/net/sw7 || status=1
    kill "$other"
    wait "$other"
    return $status
}

# A module in use stays. Without virtio_vdpa the interfaces go, and a start of the switch finishes the
# interfaces that the module makes when it is back.
outlives_its_modules() {
    ! rmmod vduse && pings && rmmod virtio_vdpa && ! ip link show sw0 && ctl status \
        && insmod /mod/virtio_vdpa.ko && kill_daemon TERM && start_daemon \
        && wait_until ip link show sw0 && give_host_address \
        && wait_until web ip addr add 192.0.2.2/24 dev eth7 && wait_until pings
}

# Another program has made the device, and not connected it with the driver yet.
leaves_an_unconnected_device() {
    vduse-device theirs && ! ctl vduse add theirs ifname=sw8 2>/tmp/error
    cat /tmp/error
    grep -q 'is a device of another program' /tmp/error && [ -e /dev/vduse/theirs ] \
        && ! ip link show sw8
}

# Somebody renames and moves the interface, and doctor names the way back.
leads_back_a_moved_interface() {
    local command
    ip link set sw0 down && ip link set sw0 netns web name sw9 && web ip link show sw9 || return 1
    ctl --json doctor >/tmp/doctor
    cat /tmp/doctor
    grep -q '"interface-elsewhere"' /tmp/doctor || return 1
    command=$(ctl doctor | sed -n '/interface-elsewhere/{n;s/^ *//p}')
    eval "$command" && give_host_address && wait_until pings && ! ctl doctor | grep elsewhere
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
check "rings of 64 descriptors" has_ring_size 64
check "rings of 1,024 descriptors" has_ring_size 1024
check "an MTU of 68" has_mtu 68
check "an MTU of 9,000" has_mtu 9000
check "VLANs, untagged and tagged" knows_vlans
check "guard stops a foreign address" is_guarded
check "a container is named by its process" is_placed_by_process
check "a stream goes on over a restart" restarts_under_a_stream
check "a moved interface is named with the way back" leads_back_a_moved_interface
check "a port is deleted under a stream" deleted_under_a_stream
check "changed keys are in force after a start" takes_changed_keys
check "an unchanged port stays, a port left out goes" removes_what_is_left_out
check "devices of others are left alone and named" leaves_the_devices_of_others
check "modules are kept, or come back" outlives_its_modules
check "an unconnected device of others is left alone" leaves_an_unconnected_device
check "a deleted port without a thread leaves no device" deleted_without_a_thread
check "a deleted port takes its interface along" is_deleted
[ "$status" -eq 0 ] || cat "$LOG"
exit "$status"
