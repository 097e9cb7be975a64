//! What a panic in the middle of a burst leaves behind: counters that reconcile and no scratch
//! state.
//!
//! The worker goes on with the next port. Until then each frame of the burst must be counted, and
//! nothing of it may be left where the next burst, another guest's, could meet it: a header that
//! was to be taken back after a write, hashes, segments to be charged.

use super::{Endpoint, Pipeline, PortId, PortTable};
use crate::limits::BURST_FRAMES;
use crate::pipeline::plan::{Plan, Run};
use crate::port::tap::TapWriter;
use crate::ring::{Burst, RxScratch};
use crate::stats::{DropReason, QueueStats};
use crate::switch::BurstMemo;

impl Pipeline {
    /// Counts the burst that a panic ended, as taken from `from` (not at all if it was not planned
    /// yet), and starts from scratch. The caller is the only writer of `from`'s counters.
    #[cold]
    pub fn abandon(&mut self, ports: &PortTable, from: Option<&QueueStats>) {
        if let Some(stats) = from.filter(|_| self.planned) {
            let lens = self.burst.frames().iter().map(|frame| u64::from(frame.len));
            stats.frames.add(self.burst.taken() as u64);
            stats.bytes.add(lens.sum());
            stats.copies.add(self.copies);
            self.burst.rejected().for_each(|reason| stats.drops.add(reason, 1));
            self.count_lost(ports);
        }
        // The reader's room is written before it is read, and what signals are owed is still owed.
        self.burst = Burst::default();
        self.hashes = [0; BURST_FRAMES];
        self.hashed = false;
        self.plan = Plan::default();
        self.memo = BurstMemo::new();
        self.flood_run = Run::EMPTY;
        self.flooded = Default::default();
        self.targets.clear();
        self.scratch = RxScratch::default();
        self.writer = TapWriter::default();
        self.extra = 0;
        self.planned = false;
    }

    /// Counts the copies that no port has counted.
    fn count_lost(&mut self, ports: &PortTable) {
        let lost = |id: PortId, count: usize| {
            if count > 0 {
                let drops = &ports[id].stats.drops;
                drops.add_shared(DropReason::Panicked, count as u64);
            }
        };
        for run in self.plan.runs() {
            lost(run.port, run.left().len());
        }
        let floods = self.plan.floods().len();
        for (place, &target) in self.targets.iter().enumerate() {
            if place == self.flooded.targets {
                lost(target, floods.saturating_sub(self.flooded.frames));
            } else if place > self.flooded.targets {
                lost(target, floods);
            }
        }
    }

    /// Signals every guest on its rings that worker `worker` serves or not: which signals were owed
    /// when a turn's end panicked is not known, and one too many does no harm.
    #[cold]
    pub fn signal_everyone(&mut self, ports: &PortTable) {
        for port in ports.iter() {
            let Endpoint::Guest(guest) = &port.endpoint else { continue };
            for queue in guest.rx.iter().chain(&guest.tx) {
                let mut state = queue.lock();
                if state.running().is_some() {
                    self.signals.note(port.id, true, &mut state, &queue.stats);
                }
            }
        }
    }
}
