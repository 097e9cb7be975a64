//! One burst and all that is known of it, and where it is counted.
//!
//! A worker has one [`BurstContext`] and uses it again for each burst; one in which a panic ended a
//! burst is thrown away, so that nothing of it can meet the next one, another guest's: a header
//! that was to be taken back after a write, flow hashes, segments to be charged.
//!
//! [`BurstGuard`] is the one place where a burst is counted at its source: by
//! [`BurstGuard::finish`] when it is complete, and in a panic when the guard is dropped. Then the
//! source counts the copies that ports have counted, and as lost the frames that have others. Its
//! lock is still held.

use std::iter::repeat_n;
use std::ops::{Deref, DerefMut};
use std::time::Instant;

use super::deliver::Room;
use super::plan::Plan;
use crate::capture::outcomes::Outcomes;
use crate::frame::flow_hash;
use crate::limits::BURST_FRAMES;
use crate::port::steering::Steering;
use crate::ring::Burst;
use crate::stats::{DropReason, QueueStats};
use crate::switch::BurstMemo;

/// One burst and all that is known of it.
#[derive(Default)]
pub struct BurstContext {
    /// Its frames.
    pub burst: Burst,
    /// What hashing their flows gave.
    pub flows: FlowHashes,
    /// Decisions about its destinations.
    pub memo: BurstMemo,
    /// Where its frames go.
    pub plan: Plan,
    /// Bytes of the frames that were classified.
    pub bytes: u64,
    /// Until when it may wait for rings that another worker holds, once it does.
    pub wait_until: Option<Instant>,
    /// What became of its copies, if somebody wants to know.
    pub outcomes: Outcomes,
    /// Room for delivering.
    pub room: Room,
    /// Room for the beginning of a frame that somebody looks at.
    pub beginning: Vec<u8>,
}

/// Flow hashes of a burst's frames, where its source needed them.
pub struct FlowHashes {
    hashes: [u32; BURST_FRAMES],
    known: bool,
}

impl Default for FlowHashes {
    fn default() -> FlowHashes {
        FlowHashes { hashes: [0; BURST_FRAMES], known: false }
    }
}

impl FlowHashes {
    /// Records that a guest sends the flows of a burst on pair `queue`. The hashes are kept for the
    /// receivers' sake.
    #[inline(never)]
    pub fn note(&mut self, burst: &Burst, flows: &Steering, queue: usize) {
        let mut last = None;
        for (frame, place) in burst.frames().iter().zip(&mut self.hashes) {
            *place = flow_hash(&frame.snapshot);
            if last.replace(*place) != Some(*place) {
                flows.note(*place, queue);
            }
        }
        self.known = true;
    }

    /// The hashes, if they are known; for the burst that is being classified.
    #[inline(always)]
    pub fn take(&mut self) -> Option<&[u32; BURST_FRAMES]> {
        std::mem::take(&mut self.known).then_some(&self.hashes)
    }
}

impl BurstContext {
    /// Gives frame `at` and what is behind it back to the source.
    pub fn give_back(&mut self, at: u8) {
        self.plan.truncate(at);
        self.burst.cut(usize::from(at));
        self.bytes = bytes_of(&self.burst);
    }
}

/// Counts a burst, whatever becomes of it.
pub struct BurstGuard<'a> {
    context: &'a mut BurstContext,
    from: &'a QueueStats,
}

impl<'a> BurstGuard<'a> {
    /// For the burst that `context` is used for from here on. Its counters at its source are
    /// `from`, and the caller is their only writer.
    #[inline(always)]
    pub fn new(context: &'a mut BurstContext, from: &'a QueueStats) -> BurstGuard<'a> {
        (context.bytes, context.wait_until) = (0, None);
        BurstGuard { context, from }
    }

    /// Nothing was taken, so nothing is counted.
    #[inline(always)]
    pub fn nothing(self) {
        std::mem::forget(self);
    }

    /// Counts the burst, which is complete, or waits as a whole.
    #[inline(always)]
    pub fn finish(mut self) {
        let BurstContext { plan, bytes, .. } = &*self.context;
        self.count(*bytes, plan.copies(), 0);
        self.context.plan.clear();
        std::mem::forget(self);
    }

    /// Counts a burst that a panic ended.
    #[cold]
    fn count_lost(&mut self) {
        let BurstContext { burst, plan, .. } = &*self.context;
        let (frames, copies) = plan.settled();
        let lost = burst.frames().len().saturating_sub(frames);
        self.count(bytes_of(burst), copies, lost);
    }

    /// Counts the frames, `lost` of which have copies that nothing has counted; `copies` were.
    #[inline(always)]
    fn count(&mut self, bytes: u64, copies: usize, lost: usize) {
        let (BurstContext { burst, plan, .. }, from) = (&*self.context, self.from);
        let planned = plan.drops().map(|(_, reason)| reason);
        let lost = repeat_n(DropReason::Panicked, lost);
        for reason in burst.rejected().chain(planned).chain(lost) {
            from.drops.add(reason, 1);
        }
        from.frames.add(burst.taken() as u64);
        from.bytes.add(bytes);
        from.copies.add(copies as u64);
    }
}

/// Bytes of a burst's frames.
pub fn bytes_of(burst: &Burst) -> u64 {
    burst.frames().iter().map(|frame| u64::from(frame.len)).sum()
}

impl Deref for BurstGuard<'_> {
    type Target = BurstContext;

    #[inline(always)]
    fn deref(&self) -> &BurstContext {
        self.context
    }
}

impl DerefMut for BurstGuard<'_> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut BurstContext {
        self.context
    }
}

/// Dropped only by a panic; see [`BurstGuard::finish`].
impl Drop for BurstGuard<'_> {
    fn drop(&mut self) {
        self.count_lost();
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::frame::VnetHdr;

    /// A burst of four frames, of which `classified` were planned: one is dropped, one floods to
    /// two ports, the others go to port 0.
    fn burst(context: &mut BurstContext, classified: usize) {
        for _ in 0..4 {
            assert!(context.burst.push_small(VnetHdr::plain(0), &[0; 60]));
        }
        for frame in 0..classified as u8 {
            match frame {
                0 => context.plan.drop(frame, DropReason::BadSource),
                1 => context.plan.fan(0, |targets| targets.extend([0, 1])).push(1),
                _ => context.plan.unicast(frame, 0, 0),
            }
        }
        context.plan.close();
    }

    /// Each frame is dropped, lost or has all its copies; the source counts those that ports have
    /// counted, however far a burst came.
    #[test]
    fn a_burst_that_ends_in_a_panic_is_counted_to_the_last_frame() {
        for (classified, settled, flooded, lost) in
            [(0, 0, 0, 4), (2, 0, 0, 3), (4, 0, 0, 3), (4, 1, 0, 2), (4, 2, 1, 1), (4, 2, 2, 0)]
        {
            let from = QueueStats::default();
            let mut context = BurstContext::default();
            let ended = catch_unwind(AssertUnwindSafe(|| {
                let mut guard = BurstGuard::new(&mut context, &from);
                burst(&mut guard, classified);
                if classified == 4 {
                    guard.plan.runs()[0].advance(settled);
                }
                *guard.plan.floods_left().2 += flooded;
                panic!("injected: in the middle of a burst");
            }));
            assert!(ended.is_err());
            let case = (classified, settled, flooded);
            assert_eq!((from.frames.get(), from.bytes.get()), (4, 240));
            assert_eq!(from.copies.get(), (settled + flooded) as u64, "{case:?}");
            assert_eq!(from.drops.get(DropReason::BadSource), u64::from(classified > 0));
            assert_eq!(from.drops.get(DropReason::Panicked), lost, "{case:?}");
        }
    }

    #[test]
    fn a_burst_that_is_complete_is_counted_once() {
        let from = QueueStats::default();
        let mut context = BurstContext::default();
        for round in 1..3 {
            let mut guard = BurstGuard::new(&mut context, &from);
            guard.burst.clear();
            burst(&mut guard, 4);
            guard.bytes = 240;
            guard.finish();
            assert_eq!((from.frames.get(), from.bytes.get()), (4 * round, 240 * round));
            assert_eq!((from.copies.get(), from.drops.total()), (4 * round, round));
            BurstGuard::new(&mut context, &from).nothing();
        }
        assert_eq!((context.plan.copies(), context.plan.drops().count()), (0, 0));
    }
}
