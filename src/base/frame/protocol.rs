//! Numbers of protocols: EtherTypes, and next headers of IP (IANA).

/// EtherType of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// EtherType of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;
/// EtherType of ARP.
pub const ETHERTYPE_ARP: u16 = 0x0806;
/// EtherType of RARP.
pub const ETHERTYPE_RARP: u16 = 0x8035;
/// EtherType of a VLAN tag (IEEE 802.1Q, C-TAG).
pub const ETHERTYPE_VLAN: u16 = 0x8100;
/// EtherType of an outer VLAN tag (IEEE 802.1ad, S-TAG).
pub const ETHERTYPE_QINQ: u16 = 0x88a8;

/// IP protocol number of TCP.
pub const TCP: u8 = 6;
/// IP protocol number of UDP.
pub const UDP: u8 = 17;
/// Next header of ICMPv6.
pub const ICMPV6: u8 = 58;
/// Next header of hop-by-hop options (RFC 8200, section 4).
pub const HOP_BY_HOP: u8 = 0;
/// Next header of a routing header.
pub const ROUTING: u8 = 43;
/// Next header of a fragment header.
pub const FRAGMENT: u8 = 44;
/// Next header of destination options.
pub const DESTINATION_OPTIONS: u8 = 60;
