#!/bin/bash
# One VXLAN interface for several networks (docs/several-hosts.md): in a bridge with VLAN filtering
# each VLAN of the switch's trunk is a VNI. Two hosts, each a network namespace with a vioswitchd of
# its own; guests are TAPs of it. Run in a guest by scripts/linux-selftests.
set -u

UNDERLAY=192.0.2
VLANS="10 20"

# shellcheck source=check.sh
. ./check.sh

on() {
    local host=$1
    shift
    ip netns exec "host$host" "$@"
}

# The switch of a host: an uplink that carries the VLANs, and a guest in each.
switch() {
    local host=$1 control=/run/vioswitch/$1.sock vlan
    on "$host" vioswitchd --control="$control" --uplink-to-uplink 2>"/tmp/host$host" &
    until [ -S "$control" ]; do sleep 0.1; done
    export VIOSWITCH_CONTROL=$control
    vioswitchctl tap add up ifname=vio0 "trunk=${VLANS// /,}"
    for vlan in $VLANS; do
        vioswitchctl tap add "vm$vlan" "ifname=vm$vlan" "vlan=$vlan"
        on "$host" ip address add "10.0.$vlan.$host/24" dev "vm$vlan"
        on "$host" ip link set "vm$vlan" up
    done
    # A guest answers for its own address alone.
    on "$host" sh -c 'echo 1 >/proc/sys/net/ipv4/conf/all/arp_ignore'
}

# What an administrator does on each host.
network() {
    local host=$1 other=$2 vlan
    on "$host" ip link add br0 type bridge vlan_filtering 1 vlan_default_pvid 0
    on "$host" ip link add vxlan0 type vxlan dstport 4789 local "$UNDERLAY.$host" external vnifilter
    on "$host" ip link set vxlan0 mtu 1450 master br0
    on "$host" ip link set vio0 mtu 1450 master br0
    on "$host" bridge link set dev vxlan0 vlan_tunnel on neigh_suppress on learning off
    for vlan in $VLANS; do
        on "$host" bridge vlan add dev vio0 vid "$vlan"
        on "$host" bridge vlan add dev vxlan0 vid "$vlan"
        on "$host" bridge vlan add dev vxlan0 vid "$vlan" tunnel_info id "100$vlan"
        on "$host" bridge vni add dev vxlan0 vni "100$vlan"
        on "$host" bridge fdb append 00:00:00:00:00:00 dev vxlan0 dst "$UNDERLAY.$other" \
            src_vni "100$vlan"
    done
    for link in br0 vxlan0 vio0; do on "$host" ip link set "$link" up; done
}

reaches() {
    on 1 ping -c 3 -W 2 -I "vm$1" "10.0.$1.2"
}

# A neighbour by its address, in another network.
stranger_is_not_reached() {
    on 2 ip address add 10.0.10.9/32 dev vm20
    ! on 1 ping -c 3 -W 2 -I vm10 10.0.10.9
}

# Frames left the host with that VNI.
left_as() {
    on 1 bridge -s vni show dev vxlan0 | tee /tmp/vni | grep -A 3 -w "$1" | grep -q 'TX:.* pkts [1-9]'
}

ip netns add host1
ip netns add host2
ip link add under1 netns host1 type veth peer name under2 netns host2
for host in 1 2; do
    on "$host" ip address add "$UNDERLAY.$host/24" dev "under$host"
    on "$host" ip link set "under$host" up
    switch "$host"
    network "$host" $((3 - host))
done
for vlan in $VLANS; do
    check "guests of VLAN $vlan on two hosts reach each other" reaches "$vlan"
    check "their frames have VNI 100$vlan" left_as "100$vlan"
done
check "a guest does not reach another network" stranger_is_not_reached
[ $status = 0 ] || cat /tmp/vni /tmp/host1 /tmp/host2
exit $status
