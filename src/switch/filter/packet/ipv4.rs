//! IPv4 (RFC 791).

use super::upper::{self, Network};
use super::{Parsed, Part, Unread};
use crate::port_security::Headers;

const SHORTEST_HEADER: usize = 20;

/// The header of a packet as far as it concerns what follows.
pub(super) struct Header {
    pub(super) network: Network,
    /// Offset of the packet's end in the frame, as the header has it.
    pub(super) end: usize,
}

/// Reads a header at `at`, of the frame's packet or of a quoted one.
#[inline(always)]
pub(super) fn header(headers: &Headers<'_>, at: usize, vlan: u16) -> Result<Header, Unread> {
    let first = headers.u8(at)?;
    let len = usize::from(first & 0xf) * 4;
    let total = usize::from(headers.u16(at + 2)?);
    if first >> 4 != 4 || len < SHORTEST_HEADER || total < len {
        return Err(Unread::Bad);
    }
    let word = headers.u16(at + 6)?;
    let id = u32::from(headers.u16(at + 4)?);
    let (offset, more) = (word & 0x1fff, word & 0x2000 != 0);
    let part = match (offset, more) {
        (0, false) => Part::Whole,
        (0, true) => Part::First { id, header_end: 0 },
        _ => Part::Later { id, begin: offset * 8 },
    };
    let network = Network {
        v6: false,
        vlan,
        l3: at,
        l4: at + len,
        protocol: headers.u8(at + 9)?,
        from: headers.v4(at + 12)?.to_bits().into(),
        to: headers.v4(at + 16)?.to_bits().into(),
        part,
        data: at + len,
        has_fragment_header: false,
        hops: headers.u8(at + 8)?,
    };
    Ok(Header { network, end: at + total })
}

/// Reads a packet at `at`.
#[inline]
pub(super) fn parse(headers: &Headers<'_>, at: usize, vlan: u16) -> Result<Parsed, Unread> {
    let Header { network, end } = header(headers, at, vlan)?;
    if end > headers.len {
        return Err(Unread::Bad);
    }
    upper::parse(&headers.until(end), &network)
}
