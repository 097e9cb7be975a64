//! The end of filters' work for a delivered burst: counts at rules, answers to rejected packets.

use super::{BurstContext, Pipeline};
use crate::capture::outcomes::Outcomes;
use crate::port::{Port, PortTable};
use base::limits::BURST_FRAMES;
use base::stats::WorkerStats;

impl Pipeline {
    /// Ends the work of filters for a delivered burst: counts the frames at their rules, and
    /// answers rejected packets.
    #[inline(never)]
    pub(super) fn settle_filters(
        &mut self,
        ports: &PortTable,
        from: &Port,
        context: &mut BurstContext,
        stats: &WorkerStats,
    ) {
        let BurstContext { burst, filters, bytes, .. } = context;
        filters.settle(ports, burst, *bytes, self.time.tick);
        if filters.answers.are_some() {
            self.answer(ports, from, context, stats);
        }
    }

    /// Delivers the answers to rejected packets of a burst to the burst's sender.
    #[cold]
    #[inline(never)]
    fn answer(
        &mut self,
        ports: &PortTable,
        to: &Port,
        context: &mut BurstContext,
        stats: &WorkerStats,
    ) {
        let BurstContext { burst, filters, plan, room, wait_until, .. } = context;
        let mut list = [0; BURST_FRAMES];
        let kept = burst.frames().len();
        let Some((mut answers, count)) = filters.answers.take(kept, &mut list) else { return };
        answers.keep_tags();
        let mut outcomes = Outcomes::default();
        let mut delivery = self.delivery((ports, to.id), (room, wait_until), &mut outcomes, stats);
        if count > 0 {
            let run = plan.spare_run();
            let copies = delivery.copy_as_is(&answers, &list[..count], (to, None), run);
            to.stats.copies.add_shared(copies as u64);
        }
        filters.answers.put_back(answers);
        // The port pays for delays by its own memory.
        let _ = self.stalls.take_delay();
    }
}
