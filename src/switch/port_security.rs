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
mod rules;
#[cfg(test)]
mod tests;

pub use clients::DhcpClients;
pub use headers::Headers;
use headers::Sent;
pub use rules::{
    Address, AllowedIps, AllowedMacs, LLC, PortSecurity, Refused, Rule, Servers, Violation,
};

use base::frame::protocol::{
    ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_QINQ, ETHERTYPE_RARP, ETHERTYPE_VLAN,
};

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
