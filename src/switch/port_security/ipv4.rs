//! IPv4 (RFC 791).

use core::net::Ipv4Addr;

use super::dhcp::{self, Datagram};
use super::{Refused, Rule, Sent};
use crate::frame::ethernet::UDP;

const SHORTEST_HEADER: usize = 20;

/// A packet: its source is the port's. A DHCP client without an address may ask all for one.
#[inline]
pub fn check(frame: &Sent<'_>, at: usize) -> Result<(), Refused> {
    let first = frame.u8(at)?;
    let header = usize::from(first & 0xf) * 4;
    if first >> 4 != 4 || header < SHORTEST_HEADER {
        return Err(Rule::Headers.alone());
    }
    let from = frame.v4(at + 12)?;
    let mut asks = false;
    if frame.u8(at + 9)? == UDP {
        // What follows the first fragment of a datagram has no ports.
        let fragment = frame.u16(at + 6)?;
        if fragment & 0x1fff == 0 {
            let whole = fragment & 0x3fff == 0;
            let datagram = Datagram { at: at + header, whole };
            asks = dhcp::check(frame, datagram)?;
        }
    }
    if frame.rules.ips.allow_v4(from) {
        return Ok(());
    }
    let to_all = frame.v4(at + 16)? == Ipv4Addr::BROADCAST;
    match asks && from.is_unspecified() && to_all && frame.rules.ips.has_v4() {
        true => Ok(()),
        false => Err(Rule::Ip.of_ip(from)),
    }
}
