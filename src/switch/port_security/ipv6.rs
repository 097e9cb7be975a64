//! IPv6 (RFC 8200) with its extension headers, and neighbour discovery (RFC 4861).

use core::net::Ipv6Addr;

use super::dhcp::Datagram;
use super::dhcpv6;
use super::ipv4::{self, VRRP};
use super::{Headers, Refused, Rule, Sent};
use base::frame::MacAddr;
use base::frame::protocol::{DESTINATION_OPTIONS, FRAGMENT, HOP_BY_HOP, ICMPV6, ROUTING, UDP};

const HEADER: usize = 40;
/// Bytes of the UDP header, the shortest header that is examined behind the IPv6 headers.
const SHORTEST_UPPER: usize = 8;

/// Further extension headers, each followed by another header.
const AUTHENTICATION: u8 = 51;
const MOBILITY: u8 = 135;
const HOST_IDENTITY: u8 = 139;
const SHIM6: u8 = 140;

/// Messages of ICMPv6: multicast listener discovery (RFC 2710, 3810), neighbour discovery, and
/// inverse neighbour discovery (RFC 3122).
const LISTENER_REPORT: u8 = 131;
const LISTENER_DONE: u8 = 132;
const ROUTER_SOLICITATION: u8 = 133;
const ROUTER_ADVERTISEMENT: u8 = 134;
const NEIGHBOUR_SOLICITATION: u8 = 135;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;
const INVERSE_SOLICITATION: u8 = 141;
const INVERSE_ADVERTISEMENT: u8 = 142;
const LISTENER_REPORT_2: u8 = 143;
/// Messages of multicast router discovery (RFC 4286): a router announces itself to snooping
/// switches, and withdraws the announcement.
const MULTICAST_ROUTER_ADVERTISEMENT: u8 = 151;
const MULTICAST_ROUTER_TERMINATION: u8 = 153;

/// Options with the link-layer address of the source, and of the target.
const SOURCE_MAC: u8 = 1;
const TARGET_MAC: u8 = 2;

/// The upper-layer header of a packet.
struct Upper {
    /// Protocol of the header; `None` in a fragment that is not the first.
    protocol: Option<u8>,
    at: usize,
    /// A fragment header precedes the upper-layer header.
    fragment: bool,
}

/// Checks a packet: the source address must be the port's. A station without an address may send to
/// groups: to probe whether an address of the port is free, to look for routers, and to report its
/// groups.
#[inline]
pub fn check(frame: &Sent<'_>, at: usize) -> Result<(), Refused> {
    if frame.u8(at)? >> 4 != 6 {
        return Err(Rule::Headers.alone());
    }
    let from = frame.v6(at + 8)?;
    let upper = upper(frame, at)?;
    if upper.fragment && upper.protocol.is_some() {
        // RFC 7112: all headers are in the first fragment. Bytes behind the fragment's end are
        // padding that may look like a header while the next fragment has the real header.
        let end = at + HEADER + usize::from(frame.u16(at + 4)?);
        if upper.at + SHORTEST_UPPER > end {
            return Err(Rule::Headers.alone());
        }
    }
    let begins = match upper.protocol {
        Some(UDP) => {
            let datagram = Datagram { at: upper.at, whole: !upper.fragment };
            dhcpv6::check(frame, datagram)?;
            ipv4::check_redundancy(frame, upper.at, frame.v6(at + 24)?.is_multicast())?;
            false
        }
        Some(ICMPV6) => icmp(frame, at, &upper, from)?,
        Some(VRRP) if !frame.may_have_virtual_router() => return Err(Rule::Server.alone()),
        _ => false,
    };
    let begins = begins && from.is_unspecified() && frame.rules.ips.has_v6();
    let excused = begins && frame.v6(at + 24)?.is_multicast();
    match frame.rules.ips.allow_v6(from) || excused {
        true => Ok(()),
        false => Err(frame.rules.ips.refuse_v6(from, Rule::Ip)),
    }
}

/// Follows the extension headers of the packet at `at`. The loop ends: each header has at least
/// eight bytes.
#[inline]
fn upper(frame: &Headers<'_>, at: usize) -> Result<Upper, Refused> {
    let mut next = frame.u8(at + 6)?;
    let mut upper = Upper { protocol: None, at: at + HEADER, fragment: false };
    loop {
        let at = upper.at;
        match next {
            HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS | MOBILITY | HOST_IDENTITY | SHIM6 => {
                next = frame.u8(at)?;
                upper.at += 8 + 8 * usize::from(frame.u8(at + 1)?);
            }
            AUTHENTICATION => {
                next = frame.u8(at)?;
                upper.at += 8 + 4 * usize::from(frame.u8(at + 1)?);
            }
            FRAGMENT => {
                next = frame.u8(at)?;
                upper.at += 8;
                upper.fragment = true;
                if frame.u16(at + 2)? & 0xfff8 != 0 {
                    return Ok(upper);
                }
            }
            protocol => return Ok(Upper { protocol: Some(protocol), ..upper }),
        }
    }
}

/// Checks an ICMPv6 message of the packet at `packet`. Returns true if the source address of the
/// packet may be unspecified.
#[inline(never)]
fn icmp(frame: &Sent<'_>, packet: usize, upper: &Upper, from: Ipv6Addr) -> Result<bool, Refused> {
    let at = upper.at;
    let kind = frame.u8(at)?;
    // Offset of the message's options.
    let options = match kind {
        LISTENER_REPORT | LISTENER_DONE | LISTENER_REPORT_2 => return Ok(true),
        ROUTER_ADVERTISEMENT
        | REDIRECT
        | MULTICAST_ROUTER_ADVERTISEMENT
        | MULTICAST_ROUTER_TERMINATION
            if !frame.rules.servers.ra =>
        {
            return Err(Rule::Server.alone());
        }
        ROUTER_SOLICITATION | INVERSE_SOLICITATION | INVERSE_ADVERTISEMENT => at + 8,
        ROUTER_ADVERTISEMENT => at + 16,
        NEIGHBOUR_SOLICITATION | NEIGHBOUR_ADVERTISEMENT => at + 24,
        REDIRECT => at + 40,
        _ => return Ok(false),
    };
    let end = packet + HEADER + usize::from(frame.u16(packet + 4)?);
    // RFC 6980: neighbour discovery must not use fragments, not even a single one.
    if upper.fragment || options > end || end > frame.len {
        return Err(Rule::Headers.alone());
    }
    let named = macs(frame, options, end, |option, mac| {
        // A redirect names the address of the router that it points to.
        let is_own = frame.rules.macs.allow_inside(mac, frame.source);
        match is_own || (kind == REDIRECT && option == TARGET_MAC) {
            true => Ok(()),
            false => Err(Rule::Nd.of_mac(mac)),
        }
    })?;
    let is_probe = kind == NEIGHBOUR_SOLICITATION && from.is_unspecified();
    if kind == NEIGHBOUR_ADVERTISEMENT || is_probe {
        let target = frame.v6(at + 8)?;
        if !frame.rules.ips.allow_v6(target) {
            return Err(frame.rules.ips.refuse_v6(target, Rule::Nd));
        }
    }
    // RFC 4861 sections 4.1 and 4.3: a solicitation from the unspecified address carries no option
    // with a link-layer address.
    Ok(!named && matches!(kind, ROUTER_SOLICITATION | NEIGHBOUR_SOLICITATION))
}

/// Calls `each` for all options from `at` to `end` that have a link-layer address. Returns true if
/// there is one.
fn macs(
    frame: &Headers<'_>,
    mut at: usize,
    end: usize,
    mut each: impl FnMut(u8, MacAddr) -> Result<(), Refused>,
) -> Result<bool, Refused> {
    let mut any = false;
    while at < end {
        let (option, len) = (frame.u8(at)?, 8 * usize::from(frame.u8(at + 1)?));
        if len == 0 || at + len > end {
            return Err(Rule::Headers.alone());
        }
        if matches!(option, SOURCE_MAC | TARGET_MAC) {
            each(option, frame.mac(at + 2)?)?;
            any = true;
        }
        at += len;
    }
    Ok(any)
}
