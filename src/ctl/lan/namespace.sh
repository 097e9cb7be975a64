# Makes the network in a new namespace, says "namespace" and then "ready", and stays until standard
# input ends.
# Arguments: the TAP, pasta's interface, the network's addresses for IPv4 and IPv6, the MTU.
set -e
inner=$1 outer=$2 ipv4=$3 ipv6=$4 mtu=$5

ip link set lo up
echo namespace
ip tuntap add "$inner" mode tap vnet_hdr
# In front of a TAP a queue only adds delay.
tc qdisc replace dev "$inner" root noqueue || :
ip link set "$inner" mtu "$mtu"
ip addr add "$ipv4" dev "$inner"
# A host may have no IPv6.
if [ -d "/proc/sys/net/ipv6/conf/$inner" ]; then
    # Guests must not tell the namespace where its router is.
    echo 0 >"/proc/sys/net/ipv6/conf/$inner/accept_ra"
    echo 0 >"/proc/sys/net/ipv6/conf/$inner/disable_ipv6"
    ip -6 addr add "$ipv6" dev "$inner" nodad
    echo 1 >/proc/sys/net/ipv6/conf/all/forwarding
fi
ip link set "$inner" up
echo 1 >/proc/sys/net/ipv4/ip_forward
# Guests reach DHCP and DNS of the namespace and nothing else there.
nft -f - <<END
table inet vioswitch {
    chain input {
        type filter hook input priority 0
        iifname "$inner" udp dport { 53, 67, 547 } accept
        iifname "$inner" tcp dport 53 accept
        iifname "$inner" meta l4proto { icmp, icmpv6 } accept
        iifname "$inner" ct state established,related accept
        iifname "$inner" drop
    }
    chain forward {
        type filter hook forward priority 0; policy drop
        iifname "$inner" oifname "$outer" accept
        oifname "$inner" ct state established,related accept
    }
    chain out {
        type nat hook postrouting priority 100
        iifname "$inner" oifname "$outer" masquerade
    }
}
END
echo ready
exec cat >/dev/null
