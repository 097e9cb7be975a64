//! Port security: the addresses that a port's frames may give as their sender's, and the servers
//! that may be behind a port.
//!
//! [`check`] examines the source addresses of Ethernet and IP, the sender in ARP and RARP, targets
//! and link-layer addresses of neighbour discovery, and the identity that a DHCP client gives.
//!
//! * Each check is made independently of the others. An exception (a DHCP client without an
//!   address, duplicate address detection, an ARP probe, a report of IGMP) excuses one field of a
//!   frame only.
//! * A frame whose headers cannot be read to their end is refused: the frame's receiver may read
//!   the headers differently. Such are headers beyond the first [`MAX_HEADERS_LEN`] bytes,
//!   neighbour discovery and DHCP in fragments (RFC 6980, 7112, 7113), more than two VLAN tags, and
//!   a checksum offload that would overwrite bytes that were checked.
//! * Frames of other types than IPv4, IPv6, ARP and RARP are refused unless
//!   [`PortSecurity::ethertypes`] lists the type: some receivers find an IP packet behind a type
//!   that the guard does not know (MPLS, LLC, a provider's tag; CVE-2021-27853, -27854, -27861).
//! * Packets in an IP tunnel are not examined. The receiver of a tunnel is configured for one peer,
//!   whose address is checked in the outer header.
//!
//! [`check`] reads private bytes. For most frames the snapshot suffices; [`Refused::Short`] asks
//! for the rest of [`MAX_HEADERS_LEN`], [`Refused::Whole`] for the whole frame.
//!
//! [`MAX_HEADERS_LEN`]: base::limits::MAX_HEADERS_LEN

mod arp;
mod clients;
mod dhcp;
mod dhcpv6;
mod headers;
mod ipv4;
mod ipv6;
#[cfg(test)]
mod tests;

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::fmt;

pub use clients::DhcpClients;
use headers::Sent;
pub use headers::{Headers, Refused};

use base::frame::MacAddr;
use base::frame::prefix::Prefix;
use base::frame::protocol::{
    ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_QINQ, ETHERTYPE_RARP, ETHERTYPE_VLAN,
};

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
    fn allow_inside(&self, mac: MacAddr, source: MacAddr) -> bool {
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

    fn allow_v4(&self, address: Ipv4Addr) -> bool {
        let address = address.to_bits();
        let is_station = address != 0 && address < 0xe000_0000;
        let listed = || self.v4.iter().any(|(first, mask)| address & mask == *first);
        self.any || (is_station && listed())
    }

    fn allow_v6(&self, address: Ipv6Addr) -> bool {
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
    fn has_v4(&self) -> bool {
        self.any || !self.v4.is_empty()
    }

    /// True if the port may have an IPv6 address.
    fn has_v6(&self) -> bool {
        self.any || !self.v6.is_empty()
    }

    /// Returns the refusal of an IPv4 address that is not the port's: `rule`, or [`Rule::Version`]
    /// if the port has no IPv4 address.
    fn refuse_v4(&self, address: Ipv4Addr, rule: Rule) -> Refused {
        if self.has_v4() { rule } else { Rule::Version }.of_ip(address)
    }

    /// Returns the refusal of an IPv6 address; see [`AllowedIps::refuse_v4`].
    fn refuse_v6(&self, address: Ipv6Addr, rule: Rule) -> Refused {
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

/// Prints the violation as a sentence.
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

impl Rule {
    fn of_mac(self, mac: MacAddr) -> Refused {
        Refused::Broken(Violation { rule: self, address: Address::Mac(mac) })
    }

    fn of_ip(self, ip: impl Into<IpAddr>) -> Refused {
        Refused::Broken(Violation { rule: self, address: Address::Ip(ip.into()) })
    }

    const fn alone(self) -> Refused {
        Refused::Broken(Violation { rule: self, address: Address::None })
    }
}

/// Types of VLAN tags: 802.1Q, 802.1ad, and one in use before 802.1ad.
const TAGS: [u16; 3] = [ETHERTYPE_VLAN, ETHERTYPE_QINQ, 0x9100];
/// Smallest type; a smaller value is a length (IEEE Std 802.3 section 3.2.6).
pub const FIRST_ETHERTYPE: u16 = 0x600;

/// Checks whether a port with these rules may send the frame. The error is the first broken rule,
/// or a request for more bytes. `clients` notes the identifier of a DHCP client
/// ([`DhcpClients::note`]) and returns false if the port has had too many.
#[inline]
pub fn check(
    rules: &PortSecurity,
    frame: &Headers<'_>,
    clients: &dyn Fn(&[&[u8]]) -> bool,
) -> Result<(), Refused> {
    let source = frame.mac(6)?;
    if !rules.macs.allow(source) {
        return Err(Rule::Mac.of_mac(source));
    }
    let frame = &Sent { rules, headers: frame, source, clients };
    match frame.u16(12)? {
        ETHERTYPE_IPV4 => ipv4::check(frame, 14),
        ETHERTYPE_IPV6 => ipv6::check(frame, 14),
        other => check_other(frame, other),
    }
}

/// Checks a frame other than an untagged IP packet.
#[inline(never)]
fn check_other(frame: &Sent<'_>, mut ethertype: u16) -> Result<(), Refused> {
    let mut at = 14;
    while TAGS.contains(&ethertype) {
        if at == 22 {
            return Err(Rule::Headers.alone());
        }
        ethertype = frame.u16(at + 2)?;
        at += 4;
    }
    match ethertype {
        ETHERTYPE_IPV4 => ipv4::check(frame, at),
        ETHERTYPE_IPV6 => ipv6::check(frame, at),
        ETHERTYPE_ARP => arp::check(frame, at),
        ETHERTYPE_RARP => arp::check_reverse(frame, at),
        other => {
            let listed = if other < FIRST_ETHERTYPE { LLC } else { other };
            let is_listed = frame.rules.ethertypes.contains(&listed);
            // `ReservedSet` decides about protocols between neighbours.
            match is_listed || frame.mac(0)?.is_bridge_reserved() {
                true => Ok(()),
                false => Err(Rule::Ethertype.alone()),
            }
        }
    }
}
