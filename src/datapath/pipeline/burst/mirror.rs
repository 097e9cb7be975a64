//! Copies of a burst's frames for the ports of mirrors.
//!
//! A frame is copied when the burst is delivered and not yet given back to its source, from what
//! is known then: what came from its port, and which copies reached which ports. So both
//! directions are one list of frames for one port, and what was dropped on its way out is not
//! mirrored as delivered. Whatever becomes of a copy, nothing waits for it: it is delivered in one
//! try, into a ring that is free at once or after a short spin.
//!
//! A burst that no mirror wants pays for one look at where its frames go.

use super::{BurstContext, Pipeline};
use crate::capture::outcomes::{Outcome, Outcomes};
use crate::pipeline::screen::{Passage, admit};
use crate::port::{Port, PortTable};
use crate::ring::Burst;
use base::limits::{BURST_FRAMES, SNAPSHOT_LEN};
use base::stats::WorkerStats;
use switch::PortId;
use switch::mirror::Watch;

/// Places of frames in their burst, each once at most.
struct Places {
    all: [u8; BURST_FRAMES],
    count: usize,
}

impl Pipeline {
    /// Leaves copies of a burst that came from port `from` with captures, and delivers those of
    /// mirrors, which count as its source's.
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
        // What becomes of a copy is counted, and of no interest to another mirror.
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
    /// more than their snapshots, as bits of their indices: private frames reach observers and
    /// receivers alike. If no observer wants a frame, no outcomes are noted.
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
        // Where a tag comes out, what is behind the snapshot moves into the head.
        let is_open = |port| Passage::new(ports, from, port).is_open();
        self.plan.frames_to(|port| {
            watches.iter().any(|watch| watch.takes_out(port) && (reads(watch) || !is_open(port)))
        })
    }
}

impl Places {
    /// All frames of a burst that a mirror wants of those that came in.
    fn of_all(&mut self, ports: &PortTable, from: PortId, watch: &Watch, burst: &Burst) {
        let all = 0..burst.frames().len() as u8;
        self.set(all.filter(|at| is_in_vlan(ports, from, watch, burst, *at)));
    }

    /// Those that were delivered to the port that it watches; false if there are none.
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

/// Whether a frame is in the VLAN that a mirror is of, if it is of one.
fn is_in_vlan(ports: &PortTable, from: PortId, watch: &Watch, burst: &Burst, at: u8) -> bool {
    let frame = &burst.frames()[usize::from(at)];
    watch.frames.vlan.is_none_or(|vlan| admit(ports.policy(from), frame) == Ok(vlan))
}
