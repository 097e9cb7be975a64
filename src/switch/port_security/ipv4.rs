//! IPv4 (RFC 791), and the protocols by which routers announce themselves.

use core::net::Ipv4Addr;

use super::dhcp::{self, Datagram};
use super::{Refused, Rule, Sent};
use base::frame::protocol::UDP;

const SHORTEST_HEADER: usize = 20;

const ICMP: u8 = 1;
const IGMP: u8 = 2;
/// VRRP (RFC 9568) and CARP.
pub(super) const VRRP: u8 = 112;

/// ICMP messages of a router (RFC 792, 1256).
const REDIRECT: u8 = 5;
const ROUTER_ADVERTISEMENT: u8 = 9;

/// IGMP messages of a station: reports of each version (RFC 1112, 2236, 3376) and a leave.
const REPORTS: [u8; 4] = [0x12, 0x16, 0x22, 0x17];
/// Messages of multicast router discovery (RFC 4286): a router announces itself to snooping
/// switches, and withdraws the announcement.
const MULTICAST_ROUTER: [u8; 2] = [0x30, 0x32];

/// UDP ports to which virtual routers send to groups: HSRP (RFC 2281), HSRP over IPv6, GLBP.
const VIRTUAL_ROUTERS: [u16; 3] = [1985, 2029, 3222];

/// Checks a packet: the source address must be the port's. A station without an address may ask all
/// DHCP servers for one, and may report its groups (RFC 3376 section 4.2.13).
#[inline]
pub fn check(frame: &Sent<'_>, at: usize) -> Result<(), Refused> {
    let first = frame.u8(at)?;
    let header = usize::from(first & 0xf) * 4;
    if first >> 4 != 4 || header < SHORTEST_HEADER {
        return Err(Rule::Headers.alone());
    }
    let from = frame.v4(at + 12)?;
    let protocol = frame.u8(at + 9)?;
    let mut may_lack_address = false;
    if matches!(protocol, UDP | ICMP | IGMP | VRRP) {
        let fragment = frame.u16(at + 6)?;
        // Only the first fragment has the header of the protocol.
        let is_first = fragment & 0x1fff == 0;
        if protocol == UDP && is_first {
            let datagram = Datagram { at: at + header, whole: fragment & 0x3fff == 0 };
            let asks = dhcp::check(frame, datagram)?;
            let to = frame.v4(at + 16)?;
            check_redundancy(frame, datagram.at, to.is_multicast())?;
            may_lack_address = asks && to == Ipv4Addr::BROADCAST;
        } else if is_first {
            may_lack_address = check_routing(frame, protocol, at, header)?;
        }
    }
    let is_excused = may_lack_address && from.is_unspecified() && frame.rules.ips.has_v4();
    match is_excused || frame.rules.ips.allow_v4(from) {
        true => Ok(()),
        false => Err(frame.rules.ips.refuse_v4(from, Rule::Ip)),
    }
}

/// Checks a message of ICMP, IGMP, VRRP or CARP in the packet at `at`, whose header has `header`
/// bytes. Returns true if the message is from a station that may have no address yet.
#[inline(never)]
fn check_routing(
    frame: &Sent<'_>,
    protocol: u8,
    at: usize,
    header: usize,
) -> Result<bool, Refused> {
    let servers = frame.rules.servers;
    let kind = frame.u8(at + header)?;
    let is_routers = match protocol {
        ICMP => matches!(kind, REDIRECT | ROUTER_ADVERTISEMENT) && !servers.ra,
        IGMP => MULTICAST_ROUTER.contains(&kind) && !servers.ra,
        _ => !frame.may_have_virtual_router(),
    };
    if is_routers {
        return Err(Rule::Server.alone());
    }
    let is_report = protocol == IGMP && REPORTS.contains(&kind);
    Ok(is_report && frame.v4(at + 16)?.is_multicast())
}

/// Checks a UDP datagram, to a group or not: virtual routers' messages need a virtual router.
#[inline]
pub(super) fn check_redundancy(
    frame: &Sent<'_>,
    datagram: usize,
    to_group: bool,
) -> Result<(), Refused> {
    let is_virtual_router = to_group && VIRTUAL_ROUTERS.contains(&frame.u16(datagram + 2)?);
    match is_virtual_router && !frame.may_have_virtual_router() {
        true => Err(Rule::Server.alone()),
        false => Ok(()),
    }
}
