//! Answers of filters that a worker remembers between frames.
//!
//! A remembered answer is "a packet with these addresses, ports and flags passes by this rule and
//! leaves its connection as it is". The answer is valid for one direction of one port, while the
//! connection's word in the table is the word that the answer left, and until the tick ends: the
//! first packet of each tick renews the connection's time-out. A packet of another worker that
//! changes the connection, a removal and a change of the rules therefore end the answer.
//!
//! Only IPv4 packets without options, tags and fragments are covered. Their headers are in a
//! snapshot.

use super::compiled::RuleNumber;
use super::connections::{Connections, Event, Moment};
use super::packet::{Content, Packet, Part, Segment};
use super::{Answer, Direction, Gate};
use crate::fdb::Tick;
use base::frame::ethernet::Snapshot;
use base::frame::protocol::TCP;
use base::limits::REMEMBERED_FLOWS;

/// Type, version and header length among the octets from 12 on.
const KIND: u64 = u64::from_ne_bytes([0xff, 0xff, 0xff, 0, 0, 0, 0, 0]);
/// Fragment bits without DF, protocol, and the first half of the source address, among the octets
/// from 20 on.
const FRAGMENT: u64 = u64::from_ne_bytes([0xbf, 0xff, 0, 0xff, 0, 0, 0xff, 0xff]);
/// The destination port among the octets from 36 on.
const PORT: u64 = u64::from_ne_bytes([0xff, 0xff, 0, 0, 0, 0, 0, 0]);
/// Both ports among the octets from 34 on.
const FROM_PORT: u64 = u64::from_ne_bytes([0xff, 0xff, 0, 0, 0, 0, 0, 0]);
const TO_PORT: u64 = u64::from_ne_bytes([0, 0, 0xff, 0xff, 0, 0, 0, 0]);
/// Flags of TCP that begin or end a connection, and ACK, among the octets from 40 on.
const FLAGS: u64 = u64::from_ne_bytes([0, 0, 0, 0, 0, 0, 0, 0x17]);
const ACK: u64 = u64::from_ne_bytes([0, 0, 0, 0, 0, 0, 0, 0x10]);

/// End of the octets that are compared, for UDP and TCP.
const UDP_END: u32 = 42;
const TCP_END: u32 = 48;

/// Offsets of the protocol's number and of the flags of TCP.
const PROTOCOL: usize = 23;
const TCP_FLAGS: usize = 47;

/// The octets of a frame that decide about the packet, in the machine's byte order: only equality
/// has a meaning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Flow {
    kind: u64,
    fragment: u64,
    /// The rest of the source address, the destination address, and the source port.
    ends: u64,
    port: u64,
}

impl Flow {
    #[inline(always)]
    fn of(snapshot: &Snapshot) -> Flow {
        Flow {
            kind: word(snapshot, 12) & KIND,
            fragment: word(snapshot, 20) & FRAGMENT,
            ends: word(snapshot, 28),
            port: word(snapshot, 36) & PORT,
        }
    }

    /// Returns the place of the flow among the remembered flows of a port.
    #[inline(always)]
    fn slot(&self, epoch: Epoch) -> usize {
        let port = u64::from(epoch.rules) << 1 | epoch.direction as u64;
        let mixed = self.ends ^ self.fragment.rotate_left(24) ^ self.port << 40 ^ port << 20;
        let shift = 64 - REMEMBERED_FLOWS.trailing_zeros();
        (mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> shift) as usize % REMEMBERED_FLOWS
    }
}

#[inline(always)]
fn word(snapshot: &Snapshot, at: usize) -> u64 {
    snapshot.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u64::from_ne_bytes(*bytes))
}

#[inline(always)]
fn half(snapshot: &Snapshot, at: usize) -> u32 {
    snapshot.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}

const _: () = assert!(REMEMBERED_FLOWS.is_power_of_two());

/// The circumstances in which a remembered answer is valid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Epoch {
    /// Generation of the port's rules, which no other port has.
    rules: u32,
    direction: Direction,
    /// VLAN of packets without a tag.
    vlan: u16,
    tick: Tick,
}

impl Epoch {
    /// Makes the present epoch of a gate, for packets in a VLAN.
    pub fn new(gate: &Gate<'_>, direction: Direction, vlan: u16, tick: Tick) -> Epoch {
        Epoch { rules: gate.rules.generation(), direction, vlan, tick }
    }
}

/// A flow whose packets pass.
#[derive(Clone, Copy, Debug)]
struct Entry {
    flow: Flow,
    /// Flags that a segment may not change, and their value; 0 for UDP.
    flags: (u64, u64),
    /// Shortest frame that has all octets that are compared.
    least: u32,
    rule: RuleNumber,
    moment: Moment,
    epoch: Option<Epoch>,
}

impl Entry {
    /// Matches no frame: no IPv4 packet is of this type.
    const NONE: Entry = Entry {
        flow: Flow { kind: u64::MAX, fragment: 0, ends: 0, port: 0 },
        flags: (0, 0),
        least: 0,
        rule: 0,
        moment: Moment::NONE,
        epoch: None,
    };

    /// True if a frame belongs to the flow and changes nothing.
    #[inline(always)]
    fn covers(&self, (snapshot, len): (&Snapshot, u32)) -> bool {
        let Entry { flow, flags: (mask, value), least, .. } = self;
        // Joins five comparisons, so that a frame costs one branch for them.
        let differs = (word(snapshot, 12) & KIND ^ flow.kind)
            | (word(snapshot, 20) & FRAGMENT ^ flow.fragment)
            | (word(snapshot, 28) ^ flow.ends)
            | (word(snapshot, 36) & PORT ^ flow.port)
            | (word(snapshot, 40) & mask ^ value);
        differs == 0 && len >= *least
    }

    #[inline(never)]
    fn covers_slowly(&self, frame: (&Snapshot, u32)) -> bool {
        self.covers(frame)
    }

    /// Returns the octets of a frame that the entry covers.
    #[inline(always)]
    fn like(&self, snapshot: &Snapshot) -> Like {
        let at = if self.least == TCP_END { TCP_FLAGS } else { PROTOCOL };
        Like {
            kind: half(snapshot, 12),
            protocol: half(snapshot, 20),
            addresses: word(snapshot, 26),
            ports: half(snapshot, 34),
            flags: (at, snapshot[at % snapshot.len()]),
            least: self.least,
        }
    }
}

/// A frame that an entry covers, with all octets that the entry compares and some more: a frame
/// with equal octets is compared without masks. Most frames of a flow have equal octets.
#[derive(Clone, Copy)]
struct Like {
    /// Type, version, header length, and type of service.
    kind: u32,
    /// Fragment bits, hop limit and protocol.
    protocol: u32,
    addresses: u64,
    ports: u32,
    /// Flags of TCP; for UDP the protocol again.
    flags: (usize, u8),
    least: u32,
}

impl Like {
    /// True if a frame has the octets.
    #[inline(always)]
    fn is_equal(&self, (snapshot, len): (&Snapshot, u32)) -> bool {
        let Like { kind, protocol, addresses, ports, flags: (at, flags), least } = *self;
        half(snapshot, 12) == kind
            && half(snapshot, 20) == protocol
            && word(snapshot, 26) == addresses
            && half(snapshot, 34) == ports
            && snapshot[at % snapshot.len()] == flags
            && len >= least
    }
}

/// Remembers the flows that a worker has seen.
pub struct FlowMemo {
    /// The flow of the frame before, in the present epoch.
    last: Entry,
    epoch: Option<Epoch>,
    flows: Box<[Entry; REMEMBERED_FLOWS]>,
}

impl Default for FlowMemo {
    fn default() -> FlowMemo {
        let flows = Box::new([Entry::NONE; REMEMBERED_FLOWS]);
        FlowMemo { last: Entry::NONE, epoch: None, flows }
    }
}

impl FlowMemo {
    /// Begins the frames of a burst.
    #[inline]
    pub fn begin(&mut self, epoch: Epoch) {
        (self.last, self.epoch) = (Entry::NONE, Some(epoch));
    }

    /// Returns the rule by which the first of `frames` passes, and the number of frames from the
    /// first one on that pass by the same remembered answer; `None` if no remembered answer covers
    /// the first frame. A frame is a snapshot and a length in bytes.
    ///
    /// These frames are alike: the answer of another gate that covers the first one of them covers
    /// all, since the compared octets depend on the protocol alone.
    #[inline(always)]
    pub fn stretch<'f>(
        &mut self,
        connections: &Connections,
        mut frames: impl Iterator<Item = (&'f Snapshot, u32)>,
    ) -> Option<(RuleNumber, usize)> {
        let first = frames.next()?;
        self.covers(connections, first).then(|| self.extend(first, frames))
    }

    /// Returns the rule by which a frame passes that [`FlowMemo::covers`] has just covered, and the
    /// number of frames that pass by the same answer: this frame, and those of the `rest` from the
    /// first one on.
    #[inline(always)]
    pub fn extend<'f>(
        &self,
        first: (&'f Snapshot, u32),
        rest: impl Iterator<Item = (&'f Snapshot, u32)>,
    ) -> (RuleNumber, usize) {
        let (mut like, mut count) = (self.last.like(first.0), 1);
        for frame in rest {
            if !like.is_equal(frame) {
                if !self.last.covers_slowly(frame) {
                    break;
                }
                like = self.last.like(frame.0);
            }
            count += 1;
        }
        (self.last.rule, count)
    }

    /// True if a remembered answer covers a frame.
    #[inline(always)]
    pub fn covers(&mut self, connections: &Connections, frame: (&Snapshot, u32)) -> bool {
        self.last.covers(frame) || self.turn_to(connections, frame)
    }

    /// Finds a frame's flow among all; false if no valid answer covers the frame.
    #[inline(never)]
    fn turn_to(&mut self, connections: &Connections, frame: (&Snapshot, u32)) -> bool {
        let Some(epoch) = self.epoch else { return false };
        // The first and the last segments of a connection are never remembered.
        if frame.0[PROTOCOL] == TCP && word(frame.0, 40) & FLAGS != ACK {
            return false;
        }
        let entry = &self.flows[Flow::of(frame.0).slot(epoch)];
        let is_valid = entry.covers(frame) && entry.epoch == self.epoch;
        if !is_valid || !connections.is_still(entry.moment) {
            return false;
        }
        self.last = *entry;
        true
    }

    /// Remembers the answer about a packet if the next packets get the same answer.
    #[inline]
    pub fn note(&mut self, packet: &Packet, snapshot: &Snapshot, answer: &Answer) {
        let is_plain =
            !packet.v6 && packet.part == Part::Whole && (packet.l3, packet.l4) == (14, 34);
        let event = match packet.content {
            Content::Tcp(_, segment) => Event::Tcp(segment),
            Content::Udp(_) => Event::Datagram,
            _ => Event::Request,
        };
        self.note_plain(if is_plain { event } else { Event::Request }, snapshot, answer);
    }

    /// Remembers the answer about a [`Plain`](super::packet::Plain) packet if the next packets get
    /// the same answer.
    #[inline]
    pub fn note_plain(&mut self, event: Event, snapshot: &Snapshot, answer: &Answer) {
        // The packet may have changed the connection of the last flow: the flow covers no frame
        // from now on.
        self.last.flow.kind = u64::MAX;
        if let (Some(moment), Some(rule)) = (answer.settled, answer.rule) {
            self.keep(event, snapshot, (moment, rule));
        }
    }

    #[inline(never)]
    fn keep(&mut self, event: Event, snapshot: &Snapshot, (moment, rule): (Moment, RuleNumber)) {
        let Some(epoch) = self.epoch else { return };
        let ports = word(snapshot, 34);
        let (flags, least) = match event {
            // Data leaves an open connection as it is, like an ACK without data.
            Event::Tcp(Segment::Ack | Segment::Data) => ((FLAGS, ACK), TCP_END),
            Event::Datagram => ((0, 0), UDP_END),
            _ => return,
        };
        if ports & FROM_PORT != 0 && ports & TO_PORT != 0 {
            let flow = Flow::of(snapshot);
            let entry = Entry { flow, flags, least, rule, moment, epoch: self.epoch };
            self.flows[flow.slot(epoch)] = entry;
        }
    }
}
