//! Filters: the packets of a burst that the rules and the connections of a port do not let pass.
//!
//! The sender's filter sees a frame when the frame comes in, behind port security and before
//! learning; the receiver's filter when the frame's destination is known. Checked bytes are the
//! delivered bytes, as for port security ([`super::guard`]).
//!
//! A burst may be given back to its ring, in part, and taken again. Its frames are then judged
//! again, with equal results: each packet that a connection lets pass may be repeated. Rules count
//! a frame once ([`super::tallies`]).

use super::answers::Answers;
use super::plan::Plan;
use super::screen::admit;
use super::tallies::{Tallies, bits};
use crate::capture::outcomes::Outcomes;
use crate::port::{Port, PortTable};
use crate::ring::{Burst, Frame};
use base::frame::offload::NEEDS_CSUM;
use base::limits::BURST_FRAMES;
use base::stats::DropReason;
use switch::filter::memo::{Epoch, FlowMemo};
use switch::filter::packet::{self, Parsed, Unread};
use switch::filter::{Cause, Direction, Gate, LoggedPacket, PortFilter};
use switch::port_security::Headers;
use switch::{Membership, PortId, PortPolicy, Tick};

/// Judges the frames of a worker's bursts.
#[derive(Default)]
pub struct Filters {
    memo: FlowMemo,
    /// Frames of the present burst that are like the frame before, as bits of their indices: a
    /// remembered answer that covers the frame before covers these too.
    alike: u64,
    /// Decisions about the frames of the present burst.
    tallies: Tallies,
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
    now: Tick,
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
        let (direction, from) = (Direction::Out, port.id);
        let (gate, may_answer) = (filter.at(port.id), true);
        let judge = Judge { gate, direction, from, may_answer, sender, now };
        self.begin(&judge);
        let (mut found, mut at) = (0, 0);
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
        let (direction, sender) = (Direction::In, ports.policy(from));
        let judge = Judge { gate: filter.at(to.id), direction, from, may_answer, sender, now };
        self.begin(&judge);
        let (mut at, mut dropped) = (0, 0);
        while let Some(&index) = frames.get(at) {
            let count = self.stretch(burst, &frames[at..], &judge);
            if count > 0 {
                if dropped > 0 {
                    kept[at - dropped..][..count].copy_from_slice(&frames[at..at + count]);
                }
                at += count;
                continue;
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

    /// Returns the number of frames, from the first of `frames` on, that pass by one remembered
    /// answer.
    #[inline(always)]
    fn stretch(&mut self, burst: &Burst, frames: &[u8], judge: &Judge<'_>) -> usize {
        let all = burst.frames();
        let rest = frames.iter().filter_map(|&index| all.get(usize::from(index)));
        let rest = rest.map(|frame| (&frame.snapshot, frame.len));
        let Some(&first) = frames.first() else { return 0 };
        // The sender's filter has compared these frames.
        let alike = (self.alike >> first >> 1).trailing_ones() as usize;
        let last = alike.min(frames.len() - 1);
        let are_known = last > 0 && usize::from(frames[last]) == usize::from(first) + last;
        let compared = if are_known { 1 } else { frames.len() };
        let connections = judge.gate.connections;
        let answer = self.memo.stretch(connections, rest.take(compared));
        let Some((rule, count)) = answer else { return 0 };
        let count = if are_known { 1 + last } else { count };
        let first = usize::from(first);
        let frames = match usize::from(frames[count - 1]) == first + count - 1 {
            true => bits(first, count),
            false => frames[..count].iter().fold(0, |bits, index| bits | 1 << index),
        };
        self.tallies.add(judge.gate.port, rule, frames);
        count
    }

    /// Ends a burst of so many bytes: counts and logs the frames at the rules that have decided
    /// about the frames.
    #[inline(never)]
    pub(crate) fn settle(&mut self, ports: &PortTable, burst: &Burst, bytes: u64, now: Tick) {
        self.tallies.settle(ports, (burst, bytes), now);
        self.alike = 0;
    }

    /// True if [`Filters::settle`] is due.
    #[inline(always)]
    pub(crate) fn is_due(&self) -> bool {
        !self.tallies.are_empty()
    }

    /// Begins a burst. Forgets the decisions about an earlier burst, which a panic may have left.
    #[inline(always)]
    pub(crate) fn begin_burst(&mut self) {
        if self.is_due() {
            self.alike = 0;
            self.tallies.clear();
            self.answers.clear();
        }
    }

    fn begin(&mut self, judge: &Judge<'_>) {
        let Judge { gate, direction, sender, now, .. } = judge;
        let vlan = sender.vlans.untagged().unwrap_or(0);
        self.memo.begin(Epoch::new(gate, *direction, vlan, *now));
    }

    /// True if a frame passes that the memo does not cover.
    #[inline(never)]
    fn judge(&mut self, burst: &mut Burst, index: usize, judge: &Judge<'_>) -> bool {
        let Judge { gate, direction, from, may_answer, sender, now } = judge;
        let Ok(mut parsed) = read(burst, index) else { return false };
        let frame = &burst.frames()[index];
        if let Parsed::Packet(packet) = &mut parsed
            && sender.vlans != Membership::Opaque
        {
            // The tag may differ at the receiver, the VLAN does not. A frame of another VLAN is
            // dropped, and counted, where the sender's VLANs are checked.
            let Ok(vlan) = admit(sender, frame) else { return *direction == Direction::Out };
            packet.vlan = vlan;
        }
        let answer = gate.judge(&parsed, *direction, *now);
        if let Parsed::Packet(packet) = &parsed {
            self.memo.note(packet, &frame.snapshot, &answer);
            if let (true, Some(rule)) = (answer.log, answer.rule) {
                let (direction, passed) = (*direction, answer.refused.is_none());
                let packet = LoggedPacket { rule, direction, passed, fields: packet.fields() };
                self.tallies.log(gate.port, index as u8, packet);
            }
            if answer.refused == Some(Cause::Reject) && *may_answer {
                self.answers.add((burst, index), packet, *from, *now);
            }
        }
        if let Some(rule) = answer.rule {
            self.tallies.add(gate.port, rule, 1 << index);
        }
        answer.refused.is_none()
    }
}

/// Reads the packet of frame `index`: its snapshot, or its headers if these are longer.
fn read(burst: &mut Burst, index: usize) -> Result<Parsed, Unread> {
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
