//! Filters: the packets of a burst that the rules and the connections of a port do not let pass.
//!
//! The sender's filter sees a frame when the frame comes in, behind port security and before
//! learning; the receiver's filter when the frame's destination is known. Checked bytes are the
//! delivered bytes, as for port security ([`super::guard`]).
//!
//! A burst may be given back to its ring, in part, and taken again. Its frames are then judged
//! again: a connection lets pass what it let pass before, but for packets behind the one that
//! ended it. Rules count a frame once ([`super::tallies`]).

use super::answers::Answers;
use super::plan::Plan;
use super::screen::admit;
use super::tallies::{Tallies, bits};
use crate::capture::outcomes::Outcomes;
use crate::port::{Port, PortTable};
use crate::ring::{Burst, Frame};
use base::frame::offload::NEEDS_CSUM;
use base::limits::{BURST_FRAMES, FILTER_AHEAD};
use base::stats::DropReason;
use switch::filter::connections::Sought;
use switch::filter::memo::{Epoch, FlowMemo};
use switch::filter::packet::{self, Packet, Parsed, Plain, Unread};
use switch::filter::{Answer, Cause, Direction, Gate, LoggedPacket, PortFilter};
use switch::port_security::Headers;
use switch::{Membership, PortId, PortPolicy, Tick, VlanId};
use sys::prefetch;

/// Judges the frames of a worker's bursts.
#[derive(Default)]
pub struct Filters {
    memo: FlowMemo,
    /// Frames of the present burst that are like the frame before, as bits of their indices: a
    /// remembered answer that covers the frame before covers these too.
    alike: u64,
    /// Packets of the present burst that a filter has read, by the frames' indices.
    packets: Packets,
    /// Plain packets of the present burst that the present filter has read.
    plain: PlainPackets,
    /// Decisions about the frames of the present burst.
    tallies: Tallies,
    /// A filter has seen frames of the present burst.
    is_due: bool,
    /// Answers to rejected packets, for the burst's sender.
    pub(crate) answers: Answers,
}

/// One end of the frames that are judged.
#[derive(Clone, Copy)]
struct Judge<'a> {
    gate: Gate<'a>,
    direction: Direction,
    /// Port that sent the frames.
    from: PortId,
    /// A rejected packet is answered.
    may_answer: bool,
    /// Policy of the port that sent the frames, which says what their tags mean.
    sender: &'a PortPolicy,
    /// VLAN of frames without a tag; none if the sender may not send these.
    vlan: Option<VlanId>,
    now: Tick,
}

impl<'a> Judge<'a> {
    fn new(
        gate: Gate<'a>,
        (direction, may_answer): (Direction, bool),
        (from, sender): (PortId, &'a PortPolicy),
        now: Tick,
    ) -> Judge<'a> {
        let vlan = sender.vlans.untagged().filter(|_| !sender.observes);
        Judge { gate, direction, from, may_answer, sender, vlan, now }
    }
}

impl Filters {
    /// Judges the frames from `port`, whose policy is `sender`, except the frames whose bits are
    /// set in `refused`. Returns the frames to drop, as bits of their indices.
    #[inline(never)]
    pub fn find(
        &mut self,
        burst: &mut Burst,
        (filter, sender): (&PortFilter, &PortPolicy),
        port: &Port,
        refused: u64,
        now: Tick,
    ) -> u64 {
        let judge = Judge::new(filter.at(port.id), (Direction::Out, true), (port.id, sender), now);
        self.begin(&judge);
        let (mut found, mut at, mut ahead) = (0, 0, 0);
        while at < burst.frames().len() {
            if refused >> at & 1 != 0 {
                at += 1;
                continue;
            }
            // Frames that are refused for another reason end a stretch.
            let end = (refused >> at).trailing_zeros() as usize;
            let rest = &burst.frames()[at..];
            let frames = rest[..end.min(rest.len())].iter();
            let frames = frames.map(|frame| (&frame.snapshot, frame.len));
            if let Some((rule, count)) = self.memo.stretch(judge.gate.connections, frames) {
                self.tallies.add(port.id, rule, bits(at, count));
                self.alike |= bits(at + 1, count - 1);
                at += count;
            } else {
                ahead = ahead.max(at);
                while ahead < burst.frames().len().min(at + FILTER_AHEAD) {
                    if refused >> ahead & 1 == 0 {
                        self.fetch(burst, ahead, &judge);
                    }
                    ahead += 1;
                }
                found |= u64::from(!self.judge(burst, at, &judge)) << at;
                at += 1;
            }
        }
        found
    }

    /// Judges the frames of each run to a port with a filter; drops and counts those that do not
    /// pass.
    #[inline(never)]
    pub fn limit_runs(
        &mut self,
        burst: &mut Burst,
        plan: &mut Plan,
        (from, ports): (PortId, &PortTable),
        now: Tick,
        outcomes: &mut Outcomes,
    ) {
        let mut kept = [0; BURST_FRAMES];
        for run in plan.runs() {
            let to = (from, ports, &ports[run.port], true);
            let count = self.that_pass(burst, run.left(), to, now, &mut kept, outcomes).len();
            if count < run.left().len() {
                run.settle_all_but(&kept[..count]);
            }
        }
    }

    /// Returns the frames from port `from` that pass the filter of port `to`; drops and counts the
    /// others. `may_answer`: rejected packets are answered. `kept` is a buffer for the returned
    /// frames.
    pub fn that_pass<'k>(
        &mut self,
        burst: &mut Burst,
        frames: &'k [u8],
        (from, ports, to, may_answer): (PortId, &PortTable, &Port, bool),
        now: Tick,
        kept: &'k mut [u8; BURST_FRAMES],
        outcomes: &mut Outcomes,
    ) -> &'k [u8] {
        let Some(filter) = &ports.policy(to.id).filter else { return frames };
        let sender = ports.policy(from);
        let judge = Judge::new(filter.at(to.id), (Direction::In, may_answer), (from, sender), now);
        self.begin(&judge);
        let (mut at, mut ahead, mut dropped) = (0, 0, 0);
        while let Some(&index) = frames.get(at) {
            let count = self.stretch(burst, &frames[at..], &judge);
            if count > 0 {
                if dropped > 0 {
                    kept[at - dropped..][..count].copy_from_slice(&frames[at..at + count]);
                }
                at += count;
                continue;
            }
            ahead = ahead.max(at);
            while ahead < frames.len().min(at + FILTER_AHEAD) {
                self.fetch(burst, usize::from(frames[ahead]), &judge);
                ahead += 1;
            }
            if !self.judge(burst, usize::from(index), &judge) {
                if dropped == 0 {
                    kept[..at].copy_from_slice(&frames[..at]);
                }
                dropped += 1;
                let refused = (from, &[index][..]);
                to.drop_copies(&to.stats.drops, refused, DropReason::Filter, outcomes);
            } else if dropped > 0 {
                kept[at - dropped] = index;
            }
            at += 1;
        }
        // `kept` is written from the first frame on that does not pass.
        if dropped == 0 { frames } else { &kept[..frames.len() - dropped] }
    }

    /// Returns the number of frames, from the first of `frames` on, that follow each other in the
    /// burst and pass by one remembered answer. `frames` are ascending indices.
    #[inline(always)]
    fn stretch(&mut self, burst: &Burst, frames: &[u8], judge: &Judge<'_>) -> usize {
        let Some(&first) = frames.first() else { return 0 };
        let first = usize::from(first);
        let Some(frame) = burst.frames().get(first) else { return 0 };
        if !self.memo.covers(judge.gate.connections, (&frame.snapshot, frame.len)) {
            return 0;
        }
        let together = together(frames);
        // The sender's filter has compared these frames.
        let known = together.min(1 + (self.alike >> first >> 1).trailing_ones() as usize);
        let compared = if known > 1 { 1 } else { together };
        let Some(compared) = burst.frames().get(first..first + compared) else { return 0 };
        let rest = compared.get(1..).unwrap_or_default().iter();
        let rest = rest.map(|frame| (&frame.snapshot, frame.len));
        let (rule, count) = self.memo.extend((&frame.snapshot, frame.len), rest);
        let count = count.max(known);
        self.tallies.add(judge.gate.port, rule, bits(first, count));
        count
    }

    /// Ends a burst of so many bytes: counts and logs the frames at the rules that have decided
    /// about the frames.
    #[inline(never)]
    pub(crate) fn settle(&mut self, ports: &PortTable, burst: &Burst, bytes: u64, now: Tick) {
        self.tallies.settle(ports, (burst, bytes), now);
        (self.alike, self.packets.known, self.is_due) = (0, 0, false);
    }

    /// True if [`Filters::settle`] is due.
    #[inline(always)]
    pub(crate) fn is_due(&self) -> bool {
        self.is_due
    }

    fn begin(&mut self, judge: &Judge<'_>) {
        let Judge { gate, direction, vlan, now, .. } = judge;
        (self.is_due, self.plain.known) = (true, 0);
        self.memo.begin(Epoch::new(gate, *direction, vlan.unwrap_or(0), *now));
    }

    /// Reads frame `index`, and keeps the packet.
    fn read(
        &mut self,
        burst: &mut Burst,
        index: usize,
        sender: &PortPolicy,
    ) -> Result<Parsed, Unusable> {
        let mut parsed = parse(burst, index).map_err(|_| Unusable::Unread)?;
        if let Parsed::Packet(packet) = &mut parsed {
            if sender.vlans != Membership::Opaque {
                // The tag may differ at the receiver, the VLAN does not.
                let vlan = admit(sender, &burst.frames()[index]);
                packet.vlan = vlan.map_err(|_| Unusable::OtherVlan)?;
            }
            self.packets.note(index, packet);
        }
        Ok(parsed)
    }

    /// Reads a frame, and prefetches the place of its connection: the frames behind a frame that
    /// begins a connection often begin connections too.
    #[inline(always)]
    fn fetch(&mut self, burst: &mut Burst, index: usize, judge: &Judge<'_>) {
        let Judge { gate, direction, vlan, .. } = judge;
        let frame = &burst.frames()[index];
        let sum_at = sum_at(burst, frame);
        if let Some(vlan) = *vlan
            && let Some(plain) = Plain::read(&frame.snapshot, frame.len as usize, sum_at)
        {
            let key = plain.key(gate.port, vlan, *direction);
            let mut sought = gate.connections.seek(key, plain.event);
            gate.connections.prefetch(&mut sought, prefetch::read);
            self.plain.note(index, &sought);
        } else {
            self.fetch_other(burst, index, judge);
        }
    }

    /// Reads a frame whose packet is not plain.
    #[inline(never)]
    fn fetch_other(&mut self, burst: &mut Burst, index: usize, judge: &Judge<'_>) {
        let Judge { gate, direction, sender, .. } = judge;
        let is_read = self.packets.get(index).is_some();
        if (is_read || self.read(burst, index, sender).is_ok())
            && let Some(packet) = self.packets.get(index)
            && let Some((key, event)) = packet.key(gate.port, *direction)
        {
            gate.connections.prefetch(&mut gate.connections.seek(key, event), prefetch::read);
        }
    }

    /// Judges a frame that the memo does not cover and that [`Filters::fetch`] has read. True if
    /// the frame passes.
    #[inline(always)]
    fn judge(&mut self, burst: &mut Burst, index: usize, judge: &Judge<'_>) -> bool {
        let Judge { gate, direction, now, .. } = judge;
        let Some(sought) = self.plain.get(index) else {
            return self.judge_other(burst, index, judge);
        };
        let answer = gate.judge_plain(sought, *direction, *now);
        let event = sought.event;
        if answer.log || answer.refused == Some(Cause::Reject) {
            // The log and the answer need the whole packet.
            if let Ok(Parsed::Packet(packet)) = self.read(burst, index, judge.sender) {
                self.tell(burst, index, (&packet, &answer), judge);
            }
        }
        self.memo.note_plain(event, &burst.frames()[index].snapshot, &answer);
        if let Some(rule) = answer.rule {
            self.tallies.add(gate.port, rule, 1 << index);
        }
        answer.refused.is_none()
    }

    /// Judges a frame whose packet is not plain.
    #[inline(never)]
    fn judge_other(&mut self, burst: &mut Burst, index: usize, judge: &Judge<'_>) -> bool {
        let Judge { gate, direction, sender, now, .. } = judge;
        let parsed = match self.packets.get(index) {
            Some(packet) => Parsed::Packet(*packet),
            None => match self.read(burst, index, sender) {
                Ok(parsed) => parsed,
                // A frame of another VLAN is dropped, and counted, where the sender's VLANs are
                // checked.
                Err(Unusable::OtherVlan) => return *direction == Direction::Out,
                Err(Unusable::Unread) => return false,
            },
        };
        let answer = gate.judge(&parsed, *direction, *now);
        if let Parsed::Packet(packet) = &parsed {
            self.memo.note(packet, &burst.frames()[index].snapshot, &answer);
            self.tell(burst, index, (packet, &answer), judge);
        }
        if let Some(rule) = answer.rule {
            self.tallies.add(gate.port, rule, 1 << index);
        }
        answer.refused.is_none()
    }

    /// Logs a packet, and answers the packet if it is rejected, as its rule wants.
    fn tell(
        &mut self,
        burst: &mut Burst,
        index: usize,
        (packet, answer): (&Packet, &Answer),
        judge: &Judge<'_>,
    ) {
        let Judge { gate, direction, from, may_answer, now, .. } = *judge;
        if let (true, Some(rule)) = (answer.log, answer.rule) {
            let passed = answer.refused.is_none();
            let packet = LoggedPacket { rule, direction, passed, fields: packet.fields() };
            self.tallies.log(gate.port, index as u8, packet);
        }
        if answer.refused == Some(Cause::Reject) && may_answer {
            self.answers.add((burst, index), packet, from, now);
        }
    }
}

/// Why a frame is no packet that a filter judges.
enum Unusable {
    Unread,
    /// The sender's VLANs do not admit the frame.
    OtherVlan,
}

/// Plain packets of a burst that one filter has read.
struct PlainPackets {
    /// Bits of the frames' indices.
    known: u64,
    sought: Box<[Sought]>,
}

impl Default for PlainPackets {
    fn default() -> PlainPackets {
        PlainPackets { known: 0, sought: vec![Sought::NONE; BURST_FRAMES].into() }
    }
}

impl PlainPackets {
    #[inline(always)]
    fn get(&self, frame: usize) -> Option<&Sought> {
        self.sought.get(frame).filter(|_| self.known >> frame & 1 != 0)
    }

    #[inline(always)]
    fn note(&mut self, frame: usize, sought: &Sought) {
        if let Some(place) = self.sought.get_mut(frame) {
            *place = *sought;
            self.known |= 1 << frame;
        }
    }
}

/// Packets of a burst that were read.
struct Packets {
    /// Bits of the frames' indices.
    known: u64,
    packets: Box<[Packet]>,
}

impl Default for Packets {
    fn default() -> Packets {
        Packets { known: 0, packets: vec![Packet::NONE; BURST_FRAMES].into() }
    }
}

impl Packets {
    #[inline(always)]
    fn get(&self, frame: usize) -> Option<&Packet> {
        self.packets.get(frame).filter(|_| self.known >> frame & 1 != 0)
    }

    #[inline(always)]
    fn note(&mut self, frame: usize, packet: &Packet) {
        if let Some(place) = self.packets.get_mut(frame) {
            *place = *packet;
            self.known |= 1 << frame;
        }
    }
}

/// Returns the number of ascending indices, from the first on, without a gap.
#[inline(always)]
fn together(frames: &[u8]) -> usize {
    match frames {
        [first, .., last] if usize::from(last - first) == frames.len() - 1 => frames.len(),
        [first, ..] => (*first..).zip(frames).take_while(|(index, frame)| index == *frame).count(),
        [] => 0,
    }
}

/// Reads the packet of frame `index`: its snapshot, or its headers if these are longer.
fn parse(burst: &mut Burst, index: usize) -> Result<Parsed, Unread> {
    let frame = &burst.frames()[index];
    let (len, sum_at) = (frame.len as usize, sum_at(burst, frame));
    let none = Headers { bytes: &[], whole: &[], len, sum_at, is_cut: false };
    match packet::parse(&Headers { bytes: frame.head(), ..none }) {
        Err(Unread::Short) => {
            let bytes = burst.headers(index).ok_or(Unread::Bad)?;
            packet::parse(&Headers { bytes, ..none })
        }
        answer => answer,
    }
}

/// Returns the offset at which a checksum is written on the frame's way.
fn sum_at(burst: &Burst, frame: &Frame) -> Option<usize> {
    let request = frame.request();
    let asks = burst.needs_offloads() && request.header.flags & NEEDS_CSUM != 0;
    asks.then(|| request.csum_at())
}
