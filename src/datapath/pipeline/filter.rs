//! Filters: the packets of a burst that the rules and the connections of a port do not let pass.
//!
//! The sender's filter sees a frame when the frame comes in, behind port security and before
//! learning; the receiver's filter when the frame's destination is known. Checked bytes are the
//! delivered bytes, as for port security ([`super::guard`]).
//!
//! A burst may be given back to its ring, in whole or in part, and taken again. Its frames are then
//! judged again, and counted again at their rules.

use super::answers::Answers;
use super::plan::Plan;
use super::screen::admit;
use crate::capture::outcomes::Outcomes;
use crate::port::{Port, PortTable};
use crate::ring::{Burst, Frame};
use base::frame::offload::NEEDS_CSUM;
use base::limits::BURST_FRAMES;
use base::stats::DropReason;
use switch::filter::memo::{Epoch, FlowMemo};
use switch::filter::packet::{self, Parsed, Unread};
use switch::filter::{Cause, Direction, Gate, LoggedPacket, PortFilter, RuleLog};
use switch::port_security::Headers;
use switch::{Membership, PortId, PortPolicy, Tick};

/// Judges the frames of a worker's bursts.
#[derive(Default)]
pub struct Filters {
    memo: FlowMemo,
    /// Answers to rejected packets, for the burst's sender.
    pub(crate) answers: Answers,
}

/// One end of the frames that are judged.
#[derive(Clone, Copy)]
struct Judge<'a> {
    gate: Gate<'a>,
    log: &'a RuleLog,
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
        let (gate, log) = (filter.at(port.id), &filter.log);
        let may_answer = true;
        let judge = Judge { gate, log, direction, from, may_answer, sender, now };
        self.begin(&judge);
        let (mut found, mut at) = (0, 0);
        while at < burst.frames().len() {
            if refused >> at & 1 != 0 {
                at += 1;
                continue;
            }
            // Frames that are refused for another reason end the prefix.
            let end = (refused >> at).trailing_zeros() as usize;
            let frames = burst.frames()[at..].iter().take(end);
            let passed =
                self.memo.prefix(&judge.gate, frames.map(|frame| (&frame.snapshot, frame.len)));
            at += passed;
            if passed < end && at < burst.frames().len() {
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
        let (gate, log) = (filter.at(to.id), &filter.log);
        let judge = Judge { gate, log, direction, from, may_answer, sender, now };
        self.begin(&judge);
        let (mut at, mut dropped) = (0, 0);
        loop {
            let all = burst.frames();
            let rest = frames[at..].iter().filter_map(|&index| all.get(usize::from(index)));
            let passed =
                self.memo.prefix(&judge.gate, rest.map(|frame| (&frame.snapshot, frame.len)));
            if dropped > 0 || at + passed < frames.len() {
                kept[at - dropped..][..passed].copy_from_slice(&frames[at..at + passed]);
            }
            at += passed;
            let Some(&index) = frames.get(at) else { break };
            if self.judge(burst, usize::from(index), &judge) {
                kept[at - dropped] = index;
            } else {
                dropped += 1;
                let refused = (from, &[index][..]);
                to.drop_copies(&to.stats.drops, refused, DropReason::Filter, outcomes);
            }
            at += 1;
        }
        // If the memo covers all frames, `kept` is not written.
        if dropped == 0 { frames } else { &kept[..frames.len() - dropped] }
    }

    fn begin(&mut self, judge: &Judge<'_>) {
        let Judge { gate, direction, sender, now, .. } = judge;
        let vlan = sender.vlans.untagged().unwrap_or(0);
        self.memo.begin(Epoch::new(gate, *direction, vlan, *now));
    }

    /// True if a frame passes that the memo does not cover.
    #[inline(never)]
    fn judge(&mut self, burst: &mut Burst, index: usize, judge: &Judge<'_>) -> bool {
        let Judge { gate, log, direction, from, may_answer, sender, now } = judge;
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
        let answer = gate.judge(&parsed, *direction, frame.len, *now);
        if let Parsed::Packet(packet) = &parsed {
            self.memo.note(packet, &frame.snapshot, &answer);
            if let (true, Some(rule)) = (answer.log, answer.rule) {
                let (direction, passed) = (*direction, answer.refused.is_none());
                let fields = packet.fields();
                log.note(LoggedPacket { rule, direction, passed, fields }, *now);
            }
            if answer.refused == Some(Cause::Reject) && *may_answer {
                self.answers.add((burst, index), packet, *from, *now);
            }
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
