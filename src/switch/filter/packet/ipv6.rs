//! IPv6 (RFC 8200) with its extension headers.

use super::upper::{self, Network};
use super::{Parsed, Part, Unread};
use crate::port_security::Headers;
use base::frame::protocol::{DESTINATION_OPTIONS, FRAGMENT, HOP_BY_HOP, ROUTING};

const HEADER: usize = 40;

/// An extension header too. Mobility, Host Identity Protocol and Shim6 are protocols here, as for
/// nftables and Open vSwitch, so that rules can name them.
const AUTHENTICATION: u8 = 51;

/// Reads the headers at `at`, of the frame's packet or of a quoted one. The loop ends: each header
/// has at least eight bytes.
#[inline]
pub(super) fn headers(headers: &Headers<'_>, at: usize, vlan: u16) -> Result<Network, Unread> {
    if headers.u8(at)? >> 4 != 6 {
        return Err(Unread::Bad);
    }
    let mut network = Network {
        v6: true,
        vlan,
        l3: at,
        l4: at + HEADER,
        protocol: headers.u8(at + 6)?,
        from: headers.v6(at + 8)?.to_bits(),
        to: headers.v6(at + 24)?.to_bits(),
        part: Part::Whole,
        data: at + HEADER,
        has_fragment_header: false,
        hops: headers.u8(at + 7)?,
    };
    loop {
        let at = network.l4;
        let len = match network.protocol {
            HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS => 8 + 8 * usize::from(headers.u8(at + 1)?),
            AUTHENTICATION => 8 + 4 * usize::from(headers.u8(at + 1)?),
            FRAGMENT => 8,
            _ => return Ok(network),
        };
        let is_fragment = network.protocol == FRAGMENT;
        network.protocol = headers.u8(at)?;
        network.l4 += len;
        if is_fragment {
            // A fragment of a fragment is no packet.
            if network.has_fragment_header {
                return Err(Unread::Bad);
            }
            (network.has_fragment_header, network.data) = (true, network.l4);
            let word = headers.u16(at + 2)?;
            let id = u32::from(headers.u16(at + 4)?) << 16 | u32::from(headers.u16(at + 6)?);
            match (word >> 3, word & 1 != 0) {
                (0, false) => {}
                (0, true) => network.part = Part::First { id, header_end: 0 },
                (offset, _) => {
                    network.part = Part::Later { id, begin: offset * 8 };
                    return Ok(network);
                }
            }
        }
    }
}

/// Reads a packet at `at`.
#[inline]
pub(super) fn parse(frame: &Headers<'_>, at: usize, vlan: u16) -> Result<Parsed, Unread> {
    let end = at + HEADER + usize::from(frame.u16(at + 4)?);
    if end > frame.len {
        return Err(Unread::Bad);
    }
    let frame = frame.until(end);
    let network = headers(&frame, at, vlan)?;
    match network.l4 <= end {
        true => upper::parse(&frame, &network),
        false => Err(Unread::Bad),
    }
}
