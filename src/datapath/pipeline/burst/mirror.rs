//! Copies of a burst's frames for the ports of mirrors.
//!
//! Frames are copied when the burst is delivered and not yet given back to its source. At that time
//! the received frames and the outcome of each copy are known, so both directions are one list of
//! frames for one port, and a frame that was dropped at a port is not mirrored as sent there.
//! Nothing waits for a mirrored copy: the copy is delivered in one attempt, to a ring that is free
//! at once or after a short spin.
//!
//! For a burst that no mirror wants, a mirror costs one check of the destinations.

use super::{BurstContext, Pipeline};
use crate::capture::outcomes::{Outcome, Outcomes};
use crate::pipeline::screen::{Passage, admit};
use crate::port::{Port, PortTable};
use crate::ring::Burst;
use base::limits::{BURST_FRAMES, SNAPSHOT_LEN};
use base::stats::WorkerStats;
use switch::PortId;
use switch::mirror::Watch;

/// Indices of frames in their burst, each at most once.
struct Places {
    all: [u8; BURST_FRAMES],
    count: usize,
}

impl Pipeline {
    /// Leaves copies of a burst that `port` sent with captures, and delivers copies to mirror
    /// ports, which count as copies of the sender.
    #[cold]
    pub(super) fn observe(
        &mut self,
        ports: &PortTable,
        port: &Port,
        context: &mut BurstContext,
        stats: &WorkerStats,
    ) {
        let from = port.id;
        let mut outcomes = std::mem::take(&mut context.outcomes);
        let may_look = outcomes.may_look;
        let (all, lost) = outcomes.end();
        if ports.is_captured() {
            self.capture(ports, from, (all, lost, may_look), context);
        }
        let mut places = Places { all: [0; BURST_FRAMES], count: 0 };
        for watch in ports.watches() {
            if watch.takes_in(from) && !context.flood.is_continued {
                places.of_all(ports, from, watch, &context.burst);
                context.burst.keep_tags();
                self.mirror(ports, port, (watch, &places), context, stats);
            }
            if places.of_delivered(ports, from, watch, (&context.burst, all)) {
                if !ports.is_plain() {
                    Passage::new(ports, from, watch.from).tag(&mut context.burst, places.get());
                }
                self.mirror(ports, port, (watch, &places), context, stats);
            }
        }
        context.burst.keep_tags();
        context.outcomes = outcomes;
    }

    /// Delivers the listed frames to the port of a mirror.
    fn mirror(
        &mut self,
        ports: &PortTable,
        from: &Port,
        (watch, places): (&Watch, &Places),
        context: &mut BurstContext,
        stats: &WorkerStats,
    ) {
        let BurstContext { burst, plan, room, wait_until, .. } = context;
        let mut excerpts = room.excerpts.take();
        let (mut places, mut burst) = (places.get(), &*burst);
        let all: [u8; BURST_FRAMES] = std::array::from_fn(|at| at as u8);
        if let Some(most) = watch.frames.snaplen {
            let excerpt = excerpts.get_or_insert_default();
            excerpt.excerpt(burst, places, most as usize);
            (places, burst) = (&all[..excerpt.frames().len()], excerpt);
        }
        // Outcomes of mirrored copies are counted here, and hidden from other mirrors.
        let mut outcomes = Outcomes::default();
        let mut delivery =
            self.delivery((ports, from.id), (room, wait_until), &mut outcomes, stats);
        let copies = delivery.mirror(burst, places, &ports[watch.to], plan.spare_run());
        let slow = delivery.slow;
        self.account.forgive(slow);
        if let Some(excerpt) = &mut excerpts {
            excerpt.clear();
        }
        context.room.excerpts = excerpts;
        from.stats.copies.add_shared(copies as u64);
        let counted = &ports.mirror_stats()[watch.place];
        counted.copies.add_shared((copies as u64).saturating_sub(outcomes.drops()));
        counted.lost.add_shared(outcomes.drops());
    }
}

impl BurstContext {
    /// Returns the frames of a planned burst from port `from` of which a capture or a mirror reads
    /// more than the snapshot, as bits of their indices. These frames become private, so that
    /// observers and receivers get equal bytes. Ends the recording of outcomes if no observer wants
    /// a frame.
    #[cold]
    pub(super) fn frames_for_observers(&mut self, ports: &PortTable, from: PortId) -> u64 {
        let is_captured = ports.is_captured();
        if is_captured && self.outcomes.may_look {
            return u64::MAX;
        }
        let watches = ports.watches();
        let comes_in = watches.iter().any(|watch| watch.takes_in(from));
        let goes_out = |port| watches.iter().any(|watch| watch.takes_out(port));
        if !comes_in && self.plan.frames_to(goes_out) == 0 {
            if !is_captured {
                self.outcomes.end();
            }
            return 0;
        }
        let reads =
            |watch: &Watch| watch.frames.snaplen.is_none_or(|most| most as usize > SNAPSHOT_LEN);
        if watches.iter().any(|watch| watch.takes_in(from) && reads(watch)) {
            return u64::MAX;
        }
        // Removing a tag moves bytes from behind the snapshot into the frame's head.
        let is_open = |port| Passage::new(ports, from, port).is_open();
        self.plan.frames_to(|port| {
            watches.iter().any(|watch| watch.takes_out(port) && (reads(watch) || !is_open(port)))
        })
    }
}

impl Places {
    /// Lists the received frames of a burst that a mirror wants.
    fn of_all(&mut self, ports: &PortTable, from: PortId, watch: &Watch, burst: &Burst) {
        let all = 0..burst.frames().len() as u8;
        self.set(all.filter(|at| is_in_vlan(ports, from, watch, burst, *at)));
    }

    /// Lists the frames that were delivered to the mirrored port; false if there are none.
    fn of_delivered(
        &mut self,
        ports: &PortTable,
        from: PortId,
        watch: &Watch,
        (burst, outcomes): (&Burst, &[Outcome]),
    ) -> bool {
        let here = |copy: &&Outcome| copy.dropped.is_none() && watch.takes_out(copy.port);
        let delivered = outcomes.iter().filter(here).map(|copy| copy.frame);
        self.set(delivered.filter(|at| is_in_vlan(ports, from, watch, burst, *at)));
        self.count > 0
    }

    fn set(&mut self, places: impl Iterator<Item = u8>) {
        self.count = 0;
        for (to, place) in self.all.iter_mut().zip(places) {
            *to = place;
            self.count += 1;
        }
    }

    fn get(&self) -> &[u8] {
        &self.all[..self.count]
    }
}

/// True if a frame is in the VLAN that a mirror is limited to, or if the mirror has no VLAN.
fn is_in_vlan(ports: &PortTable, from: PortId, watch: &Watch, burst: &Burst, at: u8) -> bool {
    let frame = &burst.frames()[usize::from(at)];
    watch.frames.vlan.is_none_or(|vlan| admit(ports.policy(from), frame) == Ok(vlan))
}
