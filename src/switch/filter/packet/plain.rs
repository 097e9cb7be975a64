//! The short way for most packets: untagged IPv4 without options and fragments, of TCP or UDP,
//! read from the snapshot of a frame.
//!
//! [`Plain::read`] answers as [`packet::parse`](super::parse) does, or leaves the frame to
//! [`packet::parse`](super::parse): frames of other kinds, and packets that could be unreadable.

use super::upper::{TCP_HEADER, UDP_HEADER, segment};
use crate::PortId;
use crate::filter::Direction;
use crate::filter::connections::{Event, Key, Parts, Place};
use base::frame::ethernet::Snapshot;
use base::frame::protocol::{ETHERTYPE_IPV4, TCP, UDP};

/// Offsets of the IPv4 header and of the header behind it.
const L3: usize = 14;
const L4: usize = 34;

/// Type, version and header length, in the upper bits of the octets from 12 on.
const KIND: u64 = (ETHERTYPE_IPV4 as u64) << 8 | 0x45;
/// Fragment bits without DF and the reserved bit.
const FRAGMENT: u64 = 0x3fff;

/// End of the octets that are read, of TCP and of UDP.
const TCP_END: usize = 48;
const UDP_END: usize = 38;

/// A packet whose headers are where most packets have them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plain {
    from: Place,
    to: Place,
    protocol: u8,
    /// What the packet does to the state of its connection.
    pub event: Event,
}

impl Plain {
    /// Reads the packet of a frame of `len` bytes. `sum_at`: the offset at which a checksum is
    /// written on the frame's way. `None`: the caller reads the frame by
    /// [`packet::parse`](super::parse).
    #[inline(always)]
    pub fn read(snapshot: &Snapshot, len: usize, sum_at: Option<usize>) -> Option<Plain> {
        let (kind, middle) = (word(snapshot, 12), word(snapshot, 20));
        if kind >> 40 != KIND || middle >> 48 & FRAGMENT != 0 {
            return None;
        }
        let end = L3 + (kind >> 16 & 0xffff) as usize;
        let protocol = (middle >> 32) as u8;
        let (event, header, read) = match protocol {
            TCP => {
                let header = usize::from(snapshot[46] >> 4) * 4;
                let segment = segment(snapshot[47], L4 + header < end)?;
                (Event::Tcp(segment), header.max(TCP_HEADER), TCP_END)
            }
            UDP => (Event::Datagram, UDP_HEADER, UDP_END),
            _ => return None,
        };
        // A shorter header of TCP is refused by the long way.
        let is_short = protocol == TCP && snapshot[46] < (TCP_HEADER as u8 / 4) << 4;
        let is_overwritten = sum_at.is_some_and(|at| at < read);
        if is_short || L4 + header > end || end > len || is_overwritten {
            return None;
        }
        let (ends, ports) = (word(snapshot, 26), word(snapshot, 34));
        let from = Place { address: (ends >> 32).into(), port: (ports >> 48) as u16 };
        let to = Place { address: (ends as u32).into(), port: (ports >> 32) as u16 };
        Some(Plain { from, to, protocol, event })
    }

    /// Returns the key of the packet's connection at a port, in a VLAN.
    #[inline(always)]
    pub fn key(&self, port: PortId, vlan: u16, direction: Direction) -> Key {
        let Plain { from, to, protocol, .. } = *self;
        let (local, remote) = match direction {
            Direction::In => (to, from),
            Direction::Out => (from, to),
        };
        Key::new(&Parts { port, vlan, v6: false, protocol, asks: false, local, remote })
    }
}

#[inline(always)]
fn word(snapshot: &Snapshot, at: usize) -> u64 {
    snapshot.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u64::from_be_bytes(*bytes))
}
