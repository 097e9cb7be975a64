#!/bin/bash
# What a frame of the host's stack costs by a TAP (io=uring) and by a VDUSE device, switch and
# kernel: a line for each kind of traffic, and the factor from the TAP to the device. Run by
# `scripts/bench --cases vduse`: in a guest of scripts/linux-selftests, where all times are
# instructions, or as root where Linux has VDUSE devices.
#
# usage: vduse-cost.sh [BIN]
#   BIN  directory of vioswitchd and examples/hostpath; without it they are in the guest's /bin
set -eu

if [ -d /mod ]; then
    # Not the commands that stand for vioswitchd here.
    PATH=/bin
    for module in $(cat /mod/vduse); do insmod "/mod/$module.ko"; done
fi
bin=${1:-/bin}
hostpath=$bin/hostpath
[ ! -d "$bin/examples" ] || hostpath=$bin/examples/hostpath
work=$(mktemp -d)
near=vscost0
far=vscost1
# Of another network (RFC 5737) than that of the tests.
here=198.51.100.1
guest=198.51.100.2
there=198.51.100.3
daemon=

end() {
    [ -z "$daemon" ] || kill "$daemon" 2>/dev/null || true
    wait
    ip netns del vscost 2>/dev/null || true
    rm -rf "$work"
}
trap end EXIT

# start KIND: a switch with two interfaces of this kind, and a socket for a guest.
start() {
    local options=()
    case $1 in
    tap) options=("--tap=host,ifname=$near,io=uring" "--tap=far,ifname=$far,io=uring") ;;
    vduse) options=("--vduse=host,ifname=$near" "--vduse=far,ifname=$far,netns=vscost") ;;
    esac
    "$bin/vioswitchd" --control="$work/control" --port="guest,socket=$work/guest" \
        --uplink-to-uplink "${options[@]}" 2>"$work/log" &
    daemon=$!
    until grep -q ready: "$work/log"; do
        kill -0 "$daemon" || { cat "$work/log"; exit 1; }
        sleep 0.1
    done
    [ "$1" = vduse ] || ip link set "$far" netns vscost
    ip netns exec vscost ip link set "$far" up
    ip netns exec vscost ip addr add "$there/24" dev "$far"
    ip link set "$near" up
    ip addr add "$here/24" dev "$near"
    ip neigh replace "$guest" lladdr 02:56:53:00:00:01 dev "$near"
}

stop() {
    local port
    for port in host far; do
        [ "$1" = tap ] || "$bin/vioswitchctl" --control "$work/control" vduse del "$port"
    done
    kill "$daemon"
    wait "$daemon" || true
    daemon=
}

# cost WHAT…: prints the figures of hostpath.
cost() {
    echo "measuring: $*" >&2
    "$hostpath" --pid "$daemon" "$@" || { cat "$work/log" >&2; exit 1; }
}

# measure KIND: writes a line for each kind of traffic.
measure() {
    local feature
    start "$1"
    {
        cost udp "$work/guest" "$guest" 60 20000
        cost udp "$work/guest" "$guest" 1514 20000
        cost tcp vscost "$there" 200000
        for feature in tso gso; do
            ethtool -K "$near" $feature off >/dev/null
            ip netns exec vscost ethtool -K "$far" $feature off >/dev/null
        done
        cost tcp vscost "$there" 40000
        cost ping "$work/guest" "$guest" 200
    } >"$work/$1"
    stop "$1"
}

# Prints the figures of both kinds and the factors.
table() {
    local what tap_switch tap_all tap_wakes switch all wakes
    printf '%-30s %27s %27s %17s\n' 'a frame' 'TAP: switch, all, sleeps' \
        'VDUSE: switch, all, sleeps' 'TAP / VDUSE'
    for what in "60 B to a guest and back" "1514 B to a guest and back" \
        "1448 B of TCP with GSO" "1448 B of TCP without GSO" "a ping"; do
        read -r tap_switch tap_all tap_wakes <&3
        read -r switch all wakes <&4
        printf '%-30s %10d %9d %6s %10d %9d %6s' "$what" "$tap_switch" "$tap_all" "$tap_wakes" \
            "$switch" "$all" "$wakes"
        awk -v a="$tap_switch" -v b="$switch" -v c="$tap_all" -v d="$all" \
            'BEGIN { printf " %8.2f %8.2f\n", a / b, c / d }'
    done 3<"$work/tap" 4<"$work/vduse"
}

ip netns add vscost
measure tap
measure vduse
table
