//! Answers of filters that a worker may remember between frames.
//!
//! An answer is "packets with these addresses and ports pass by this rule, and the connection's
//! time-out is that of this tick". So the answer holds for one tick, one generation of the port's
//! rules, and one generation of the table of connections. Segments of TCP with another flag than
//! ACK and PSH are never covered: these change the state of a connection. A connection that ends
//! otherwise meanwhile, or makes room for another, may pass frames until the tick ends.
//!
//! Only IPv4 packets without options, tags and fragments are covered. Their headers are in a
//! snapshot. A frame that is too short for its headers has zeros behind its end; ports and flags of
//! what is remembered are not zero.

use super::compiled::{Compiled, RuleNumber};
use super::packet::{Content, Packet, Part};
use super::{Direction, Gate};
use crate::fdb::Tick;
use base::frame::ethernet::Snapshot;
use base::limits::REMEMBERED_FLOWS;

/// Offset of a word whose last byte has the flags of TCP.
const FLAGS_AT: usize = 44;
/// Flags of TCP that begin or end something, and ACK.
const FLAGS: u32 = u32::from_ne_bytes([0, 0, 0, 0x17]);
const ACK: u32 = u32::from_ne_bytes([0, 0, 0, 0x10]);

/// Type, version and header length in the word at offset 12.
const TYPE: u32 = u32::from_ne_bytes([0xff, 0xff, 0xff, 0]);
/// Fragment bits without DF, and the protocol, in the word at offset 20.
const FRAGMENT: u32 = u32::from_ne_bytes([0xbf, 0xff, 0, 0xff]);

/// The bytes of a frame that decide about a packet, in the machine's byte order: only equality has
/// a meaning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Flow {
    kind: u32,
    fragment: u32,
    addresses: u64,
    ports: u32,
}

impl Flow {
    #[inline(always)]
    fn of(snapshot: &Snapshot) -> Flow {
        let [addresses, more] = [26, 30].map(|at| u64::from(u32_at(snapshot, at)));
        Flow {
            kind: u32_at(snapshot, 12) & TYPE,
            fragment: u32_at(snapshot, 20) & FRAGMENT,
            addresses: addresses | more << 32,
            ports: u32_at(snapshot, 34),
        }
    }

    #[inline(always)]
    fn slot(&self) -> usize {
        let mixed = self.addresses ^ u64::from(self.ports) << 21;
        let shift = 64 - REMEMBERED_FLOWS.trailing_zeros();
        (mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> shift) as usize % REMEMBERED_FLOWS
    }
}

#[inline(always)]
fn u32_at(snapshot: &Snapshot, at: usize) -> u32 {
    snapshot.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}

const _: () = assert!(REMEMBERED_FLOWS.is_power_of_two());

/// For what an answer holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Epoch {
    rules: u32,
    direction: Direction,
    /// VLAN of packets without a tag.
    vlan: u16,
    tick: Tick,
    /// The table's [`super::Connections::generation`], read before the packets.
    table: u64,
}

impl Epoch {
    /// Makes the present epoch of a gate, for packets in a VLAN.
    pub fn new(gate: &Gate<'_>, direction: Direction, vlan: u16, tick: Tick) -> Epoch {
        let table = gate.connections.generation();
        Epoch { rules: gate.rules.generation(), direction, vlan, tick, table }
    }
}

/// A flow whose packets pass.
#[derive(Clone, Copy, Debug)]
struct Entry {
    flow: Flow,
    /// Flags that a segment may not change, and their value; 0 for UDP.
    flags: (u32, u32),
    rule: RuleNumber,
    epoch: Option<Epoch>,
}

/// Matches no frame: no IPv4 packet is of this type.
const NONE: Entry = Entry {
    flow: Flow { kind: u32::MAX, fragment: 0, addresses: 0, ports: 0 },
    flags: (0, 0),
    rule: 0,
    epoch: None,
};

/// Remembers the flows that a worker has seen.
pub struct FlowMemo {
    /// The flow of the frame before, in the present epoch.
    last: Entry,
    epoch: Option<Epoch>,
    /// Frames and bytes of `last` that are not counted yet.
    frames: u64,
    bytes: u64,
    flows: Box<[Entry; REMEMBERED_FLOWS]>,
}

impl Default for FlowMemo {
    fn default() -> FlowMemo {
        let flows = Box::new([NONE; REMEMBERED_FLOWS]);
        FlowMemo { last: NONE, epoch: None, frames: 0, bytes: 0, flows }
    }
}

impl FlowMemo {
    /// Begins the frames of a port. [`FlowMemo::end`] has counted the frames before.
    #[inline]
    pub fn begin(&mut self, epoch: Epoch) {
        if self.epoch != Some(epoch) {
            self.last = NONE;
            self.epoch = Some(epoch);
        }
    }

    /// True if a frame passes by a remembered answer; the frame is counted then.
    #[inline(always)]
    pub fn covers(&mut self, snapshot: &Snapshot, len: u32, rules: &Compiled) -> bool {
        let Entry { flow: last, flags: (mask, value), .. } = &self.last;
        let flow = Flow::of(snapshot);
        // One branch, not five.
        let differs = (flow.kind ^ last.kind)
            | (flow.fragment ^ last.fragment)
            | (flow.ports ^ last.ports)
            | (u32_at(snapshot, FLAGS_AT) & mask ^ value);
        if u64::from(differs) | (flow.addresses ^ last.addresses) != 0
            && !self.turn_to(snapshot, rules)
        {
            return false;
        }
        self.frames += 1;
        self.bytes += u64::from(len);
        true
    }

    /// Finds a frame's flow among all; false if it is not known or the frame changes its state.
    #[inline(never)]
    fn turn_to(&mut self, snapshot: &Snapshot, rules: &Compiled) -> bool {
        let flow = Flow::of(snapshot);
        let entry = &self.flows[flow.slot()];
        let (mask, value) = entry.flags;
        let is_known = entry.flow == flow && entry.epoch == self.epoch;
        if !is_known || u32_at(snapshot, FLAGS_AT) & mask != value {
            return false;
        }
        let entry = *entry;
        self.end(rules);
        self.last = entry;
        true
    }

    /// Remembers that packets like this one pass by a rule, if [`super::Answer::settled`] is true
    /// of the answer.
    pub fn note(&mut self, packet: &Packet, snapshot: &Snapshot, rule: RuleNumber) {
        let (ends, flags) = match packet.content {
            Content::Tcp(ends, super::packet::Segment::Ack) => (ends, (FLAGS, ACK)),
            Content::Udp(ends) => (ends, (0, 0)),
            _ => return,
        };
        let is_plain =
            !packet.v6 && packet.part == Part::Whole && (packet.l3, packet.l4) == (14, 34);
        if is_plain && ends.from != 0 && ends.to != 0 {
            let flow = Flow::of(snapshot);
            self.flows[flow.slot()] = Entry { flow, flags, rule, epoch: self.epoch };
        }
    }

    /// Counts the frames that were covered. The caller calls this at the end of a port's frames.
    #[inline]
    pub fn end(&mut self, rules: &Compiled) {
        if self.frames > 0
            && let Some(counts) = rules.counts(self.last.rule)
        {
            counts.add(self.frames, self.bytes);
        }
        (self.frames, self.bytes) = (0, 0);
    }
}
