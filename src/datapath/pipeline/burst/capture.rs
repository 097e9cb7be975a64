//! Copies of a burst's frames for captures: received, sent and dropped frames.

use std::iter::once;

use super::{BurstContext, Pipeline};
use crate::capture::outcomes::Outcome;
use crate::capture::{Capture, Leaving, Packet};
use crate::pipeline::plan::Plan;
use crate::port::PortTable;
use crate::ring::Burst;
use base::stats::{Direction, DropReason};
use switch::PortId;
use sys::clock;

impl Pipeline {
    /// Returns true if a capture has time to look at frames now.
    #[cold]
    pub(super) fn may_capture(&self, ports: &PortTable) -> bool {
        let (now, captures) = (clock::monotonic_nanos(), ports.captures().count());
        ports.captures().any(|capture| capture.may_look(self.worker, now, captures))
    }

    /// Leaves copies of a burst from port `from` with the captures. The burst is delivered and not
    /// yet given back to its source; frames that wait in the source's ring are not part of the
    /// burst.
    #[cold]
    pub(super) fn capture(
        &self,
        ports: &PortTable,
        from: PortId,
        (outcomes, lost, may_look): (&[Outcome], u64, bool),
        context: &mut BurstContext,
    ) {
        let BurstContext { burst, plan, room, flood, .. } = context;
        let (time, direction) = (clock::wall_nanos(), Direction::In);
        let (now, captures) = (clock::monotonic_nanos(), ports.captures().count());
        let longest = ports.captures().map(Capture::reads).max().unwrap_or(0);
        room.beginning.resize(room.beginning.len().max(longest), 0);
        let bytes = &mut room.beginning[..longest];
        for capture in ports.captures() {
            let mut leaving = capture.open(self.worker, now, captures);
            leaving.lose(lost);
            if !(may_look && leaving.may_look()) {
                leaving.lose(wanted(capture, from, outcomes, (burst, plan, flood.is_continued)));
                continue;
            }
            let (mut drops, mut behind) = (plan.drops().peekable(), outcomes);
            for (at, frame) in burst.frames().iter().enumerate() {
                let dropped = drops.next_if(|&(place, _)| usize::from(place) == at);
                let dropped = dropped.map(|(_, reason)| reason);
                let copies = behind.partition_point(|copy| usize::from(copy.frame) <= at);
                let (copies, rest) = behind.split_at(copies);
                behind = rest;
                let came = Packet { time, port: from, direction, dropped, len: frame.len };
                let went = copies.iter().map(|copy| Packet {
                    port: copy.port,
                    direction: Direction::Out,
                    dropped: copy.dropped,
                    ..came
                });
                let wants = |packet: &Packet| capture.wants(packet.port, packet.dropped);
                let came = once(came).filter(|_| !flood.is_continued);
                let mut wanted = came.chain(went).filter(wants).peekable();
                if wanted.peek().is_none() {
                    continue;
                }
                if !leaving.may_look() {
                    leaving.lose(wanted.count() as u64);
                    continue;
                }
                let read = burst.egress(at as u8).copy_beginning(bytes);
                if leaving.accepts(&bytes[..read], frame.len) {
                    wanted.for_each(|packet| leaving.leave(packet, &bytes[..read]));
                }
            }
            if !flood.is_continued {
                let chain = Packet { time, port: from, direction, dropped: None, len: 0 };
                leave_rejected(capture, &mut leaving, burst, chain);
            }
        }
    }
}

/// Leaves the rejected chains of a burst with a capture: packets like `chain`, without bytes.
fn leave_rejected(capture: &Capture, leaving: &mut Leaving<'_>, burst: &Burst, chain: Packet) {
    for reason in burst.rejected() {
        let dropped = Some(reason);
        if !capture.wants(chain.port, dropped) {
            continue;
        }
        if !leaving.may_look() {
            leaving.lose(1);
        } else if leaving.accepts(&[], 0) {
            leaving.leave(Packet { dropped, ..chain }, &[]);
        }
    }
}

/// Counts the packets of a burst from port `from` that a capture wants and has no time for:
/// received frames, unless the burst continues a flood, and copies to ports.
fn wanted(
    capture: &Capture,
    from: PortId,
    outcomes: &[Outcome],
    (burst, plan, is_continued): (&Burst, &Plan, bool),
) -> u64 {
    let went = match capture.is_of_everything() {
        true => outcomes.len(),
        false => outcomes.iter().filter(|copy| capture.wants(copy.port, copy.dropped)).count(),
    };
    let frames = burst.frames().len();
    let came = match () {
        () if is_continued => 0,
        () if capture.wants(from, None) => frames + burst.rejected().count(),
        () if capture.wants(from, Some(DropReason::BadSource)) => {
            let drops = plan.drops().filter(|&(place, _)| usize::from(place) < frames);
            drops.count() + burst.rejected().count()
        }
        () => 0,
    };
    (went + came) as u64
}
