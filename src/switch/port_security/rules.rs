//! The rules of port security, and the refusal of a frame that breaks a rule.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::fmt;

use base::frame::MacAddr;
use base::frame::prefix::Prefix;
#[cfg(doc)]
use base::limits::{MAX_HEADERS_LEN, MAX_MESSAGE_LEN};

/// The addresses and servers that a port may have.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortSecurity {
    /// Frames that break a rule are dropped; if false, they are only counted.
    pub enforced: bool,
    /// Link-layer addresses of the port.
    pub macs: AllowedMacs,
    /// IP addresses of the port.
    pub ips: AllowedIps,
    /// Servers that may be behind the port.
    pub servers: Servers,
    /// Further types of frames that may be sent, beside IPv4, IPv6, ARP and RARP. [`LLC`] stands
    /// for frames with a length in place of the type.
    pub ethertypes: Box<[u16]>,
}

/// Stands for IEEE 802.2 frames in [`PortSecurity::ethertypes`].
pub const LLC: u16 = 0;

/// Link-layer addresses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AllowedMacs {
    /// Any address; an address inside a frame must be the frame's source address.
    Any,
    /// Only these addresses.
    Only {
        /// The addresses.
        list: Box<[MacAddr]>,
        /// Addresses of virtual routers are allowed too (RFC 9568 section 7.3).
        vrrp: bool,
    },
}

impl AllowedMacs {
    /// True if a frame may have this source address.
    #[inline]
    pub(crate) fn allow(&self, mac: MacAddr) -> bool {
        match self {
            AllowedMacs::Any => true,
            AllowedMacs::Only { list, vrrp } => list.contains(&mac) || (*vrrp && is_vrrp(mac)),
        }
    }

    /// True if a frame from `source` may have this link-layer address of the sender inside.
    pub(super) fn allow_inside(&self, mac: MacAddr, source: MacAddr) -> bool {
        match self {
            AllowedMacs::Any => mac == source,
            only => only.allow(mac),
        }
    }
}

/// True for addresses of virtual routers, for IPv4 and for IPv6.
fn is_vrrp(mac: MacAddr) -> bool {
    matches!(mac.0, [0, 0, 0x5e, 0, 1 | 2, router] if router != 0)
}

/// IP addresses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AllowedIps {
    /// No list was given: any address is allowed.
    any: bool,
    /// First address and mask of each prefix.
    v4: Box<[(u32, u32)]>,
    v6: Box<[(u128, u128)]>,
    /// The list names link-local addresses, so that no others are allowed.
    names_link_local: bool,
}

/// fe80::/10 (RFC 4291 section 2.5.6).
const LINK_LOCAL: (u128, u128) = (0xfe80 << 112, 0xffc0 << 112);

impl AllowedIps {
    /// Allows the addresses of a list; an empty list allows any. A list with IPv6 addresses allows
    /// all link-local addresses too, unless it names link-local ones.
    pub fn new(list: &[Prefix]) -> AllowedIps {
        let v6: Box<[_]> = list.iter().filter_map(|prefix| prefix.v6()).collect();
        AllowedIps {
            any: list.is_empty(),
            v4: list.iter().filter_map(|prefix| prefix.v4()).collect(),
            names_link_local: v6.iter().any(|(first, _)| is_in(*first, LINK_LOCAL)),
            v6,
        }
    }

    pub(super) fn allow_v4(&self, address: Ipv4Addr) -> bool {
        let address = address.to_bits();
        let is_station = address != 0 && address < 0xe000_0000;
        let listed = || self.v4.iter().any(|(first, mask)| address & mask == *first);
        self.any || (is_station && listed())
    }

    pub(super) fn allow_v6(&self, address: Ipv6Addr) -> bool {
        if self.any {
            return true;
        }
        let bits = address.to_bits();
        let is_station = bits != 0 && !address.is_multicast();
        let link_local = is_in(bits, LINK_LOCAL);
        is_station && if link_local { self.allow_link_local(bits) } else { self.lists_v6(bits) }
    }

    fn allow_link_local(&self, bits: u128) -> bool {
        let others = !self.v6.is_empty() && !self.names_link_local;
        others || self.lists_v6(bits)
    }

    fn lists_v6(&self, bits: u128) -> bool {
        self.v6.iter().any(|prefix| is_in(bits, *prefix))
    }

    /// True if the port may have an IPv4 address.
    pub(super) fn has_v4(&self) -> bool {
        self.any || !self.v4.is_empty()
    }

    /// True if the port may have an IPv6 address.
    pub(super) fn has_v6(&self) -> bool {
        self.any || !self.v6.is_empty()
    }

    /// Returns the refusal of an IPv4 address that is not the port's: `rule`, or [`Rule::Version`]
    /// if the port has no IPv4 address.
    pub(super) fn refuse_v4(&self, address: Ipv4Addr, rule: Rule) -> Refused {
        if self.has_v4() { rule } else { Rule::Version }.of_ip(address)
    }

    /// Returns the refusal of an IPv6 address; see [`AllowedIps::refuse_v4`].
    pub(super) fn refuse_v6(&self, address: Ipv6Addr, rule: Rule) -> Refused {
        if self.has_v6() { rule } else { Rule::Version }.of_ip(address)
    }
}

fn is_in(address: u128, (first, mask): (u128, u128)) -> bool {
    address & mask == first
}

/// Kinds of servers that may be behind a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Servers {
    /// A DHCP server or relay.
    pub dhcp: bool,
    /// A DHCPv6 server or relay.
    pub dhcpv6: bool,
    /// A router that advertises itself or redirects, of IPv6 or IPv4, or to snooping switches.
    pub ra: bool,
    /// A virtual router: VRRP, CARP, HSRP or GLBP.
    pub vrrp: bool,
}

impl Servers {
    /// Returns the names of the servers in `allow-server`.
    pub(crate) fn names(self) -> Vec<&'static str> {
        let all =
            [(self.dhcp, "dhcp"), (self.dhcpv6, "dhcpv6"), (self.ra, "ra"), (self.vrrp, "vrrp")];
        all.into_iter().filter(|(has, _)| *has).map(|(_, name)| name).collect()
    }
}

/// A broken rule, and the address that broke it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Violation {
    /// The broken rule.
    pub rule: Rule,
    /// The address that is not the port's; [`Address::None`] if the rule is not about an address.
    pub address: Address,
}

/// Prints the violation as a sentence, for traces, findings and events.
impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Violation { rule, address } = self;
        match rule {
            Rule::Mac | Rule::Ip => write!(f, "{address} is not allowed as a source address"),
            Rule::Server => f.write_str("the frame is a server's or router's"),
            Rule::Headers => f.write_str("the headers cannot be read to their end"),
            Rule::Ethertype => f.write_str("the frame's type is not in ethertypes"),
            Rule::Version => write!(f, "allowed-ips has no address of the IP version of {address}"),
            Rule::Dhcp if *address == Address::None => {
                f.write_str("the port has had too many DHCP clients")
            }
            rule => {
                let rule = rule.name().to_uppercase();
                write!(f, "{address} is not allowed inside {rule}")
            }
        }
    }
}

base::words! {
    /// Rules, named after the part of a frame that breaks them; the names are those of counters and
    /// events.
    Rule {
        /// The source address.
        Mac "mac",
        /// The source address of IPv4 or IPv6.
        Ip "ip",
        /// The sender of an ARP packet.
        Arp "arp",
        /// The sender of a RARP packet.
        Rarp "rarp",
        /// Target or link-layer address of neighbour discovery.
        Nd "nd",
        /// The identity, addresses or number of DHCP clients.
        Dhcp "dhcp",
        /// A frame of a server, relay or router.
        Server "server",
        /// Headers that cannot be read.
        Headers "headers",
        /// Type of the frame.
        Ethertype "ethertype",
        /// IP version of which the port has no address. A guest sends such frames by itself, for
        /// example when it gives itself a link-local address.
        Version "version",
    }
}

/// An address in a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Address {
    /// No address.
    None,
    /// A link-layer address.
    Mac(MacAddr),
    /// An IP address.
    Ip(IpAddr),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::None => Ok(()),
            Address::Mac(mac) => mac.fmt(f),
            Address::Ip(ip) => ip.fmt(f),
        }
    }
}

/// Why a frame may not be sent, or which bytes the check needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// The check needs the first [`MAX_HEADERS_LEN`] bytes of the frame.
    Short,
    /// The check needs all bytes of the frame, at most [`MAX_MESSAGE_LEN`].
    Whole,
    /// The frame breaks a rule.
    Broken(Violation),
}

impl Rule {
    pub(super) fn of_mac(self, mac: MacAddr) -> Refused {
        Refused::Broken(Violation { rule: self, address: Address::Mac(mac) })
    }

    pub(super) fn of_ip(self, ip: impl Into<IpAddr>) -> Refused {
        Refused::Broken(Violation { rule: self, address: Address::Ip(ip.into()) })
    }

    pub(super) const fn alone(self) -> Refused {
        Refused::Broken(Violation { rule: self, address: Address::None })
    }
}
