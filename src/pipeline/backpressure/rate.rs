//! What passes of the frames for a port, by its `rate-out`: those at the end of a burst may wait in
//! their sender's ring, as for a receiver without buffers; others are dropped.

use super::Backpressure;
use crate::capture::outcomes::Outcomes;
use crate::frame::Load;
use crate::limits::BURST_FRAMES;
use crate::pipeline::plan::{Plan, Run};
use crate::port::gate::{Blocked, Wait, Waiting};
use crate::port::rate::State;
use crate::port::{Next, Port, PortTable};
use crate::ring::Burst;
use crate::stats::DropReason;
use crate::switch::PortId;

/// What frames of a burst are on a wire.
fn loads<'b>(burst: &'b Burst, frames: &'b [u8]) -> impl Iterator<Item = Load> + 'b {
    frames.iter().map(|&at| burst.frames()[usize::from(at)].load())
}

impl Backpressure<'_> {
    /// Takes out of the plan what may not pass now to ports with a rate: the first frame that is to
    /// be given back with what is behind it, if one waits; [`Backpressure::left`] is set then. The
    /// others are dropped.
    #[cold]
    pub fn limit(&mut self, burst: &Burst, plan: &mut Plan, outcomes: &mut Outcomes) -> Option<u8> {
        let ports = self.ports;
        let mut first = None;
        for run in plan.runs() {
            let port = &ports[run.port];
            if port.rates.output.is_on() {
                first = first.or(self.limit_run(burst, run, port, outcomes));
            }
        }
        first
    }

    /// The same of one run.
    fn limit_run(
        &mut self,
        burst: &Burst,
        run: &mut Run,
        port: &Port,
        outcomes: &mut Outcomes,
    ) -> Option<u8> {
        let left = run.left();
        let mut passed = 0;
        if let Some(mut metered) = port.rates.output.lock() {
            let booked = self.waiting_for(port.id).and_then(|waiting| waiting.booked.take());
            let may_wait = self.ring.is_some();
            passed = metered.meter.admit(loads(burst, left), booked, may_wait, self.now);
            let sent: Load = loads(burst, &left[..passed]).sum();
            let waits = metered.waits.get_or_insert_default();
            waits.took(self.from, (passed as u64, sent.bytes), 0, false);
            if passed == left.len() {
                return None;
            }
            let to = (run.port, run.queue);
            if let Some(at) = self.wait_for_rate(burst, to, (left, passed), &mut metered) {
                return Some(at);
            }
        }
        let (mut kept, dropped) = ([0; BURST_FRAMES], (self.from, &left[passed..]));
        port.drop_copies(&port.stats.drops, dropped, DropReason::Rate, outcomes);
        kept[..passed].copy_from_slice(&left[..passed]);
        run.settle_all_but(&kept[..passed]);
        None
    }

    /// What frames of the ring wait for, if that is this port.
    fn waiting_for(&mut self, port: PortId) -> Option<&mut Waiting> {
        let (state, _) = self.ring.as_mut()?;
        state.side.gate.receiver.as_mut().filter(|waiting| waiting.port == port)
    }

    /// How frames may wait for a rate.
    fn rate_wait(&mut self, behind: Blocked) -> Option<Wait> {
        let (state, _) = self.ring.as_mut()?;
        let wait = state.wait(self.now, behind)?;
        Some(Wait { sees_all: state.sees_all(), ..wait })
    }

    /// Lets those of `all` frames for `to` that did not pass wait, if they are the end of the burst
    /// and may: the first one.
    fn wait_for_rate(
        &mut self,
        burst: &Burst,
        to: (PortId, u8),
        (all, passed): (&[u8], usize),
        metered: &mut State,
    ) -> Option<u8> {
        let left = &all[passed..];
        let &at = left.first().filter(|_| self.is_tail(burst, left))?;
        let wait = self.rate_wait(Blocked::Unknown)?;
        let waits = metered.waits.get_or_insert_default();
        let answer = waits.may_wait(self.from, wait);
        if !answer.is_maybe() {
            return None;
        }
        let began = self.note(burst, at, to, Blocked::Unknown);
        if !self.allows(answer) {
            return None;
        }
        let first = loads(burst, left).next().unwrap_or_default();
        let all = loads(burst, all).sum();
        let booking = metered.meter.book(first, all, self.now);
        let until = metered.meter.waits(&booking, self.now).unwrap_or(self.now);
        self.waiting_for(to.0)?.booked = Some(booking);
        let next = self.rate_look(until);
        self.leave_from(at, began, next);
        Some(at)
    }

    /// When to look again at frames that wait until this cycle: how long they may is asked then
    /// too.
    fn rate_look(&self, until: u64) -> Next {
        Next::At(until.min(self.now.saturating_add(self.retry)))
    }

    /// What there is to do instead of taking the ring's first frames, if they wait for the rate of
    /// their receiver and may go on.
    #[cold]
    pub(super) fn look_at_rate(&mut self, waiting: Waiting) -> Option<Next> {
        let booking = waiting.booked?;
        let output = &self.ports.get(waiting.port)?.rates.output;
        if !output.is_on() {
            return None;
        }
        let Some(mut metered) = output.lock() else { return Some(Next::Again) };
        let until = metered.meter.waits(&booking, self.now)?;
        let wait = self.rate_wait(waiting.behind)?;
        let waits = metered.waits.get_or_insert_default();
        let answer = waits.may_wait(self.from, wait);
        drop(metered);
        if !self.allows(answer) {
            return None;
        }
        self.waiting_for(waiting.port)?.charged_until = self.now;
        Some(self.rate_look(until))
    }
}

/// Frames from `at` on are given back: those of them that had passed by a rate have not.
#[cold]
pub fn refund(ports: &PortTable, burst: &Burst, plan: &mut Plan, at: u8) {
    for run in plan.runs() {
        let output = &ports[run.port].rates.output;
        let first = run.left().partition_point(|&frame| frame < at);
        if output.is_on() {
            output.refund(loads(burst, &run.left()[first..]).sum());
        }
    }
}

/// Those of the listed frames, which cannot wait, that may pass to `port`; the others are counted.
#[cold]
pub fn keep_within_rate<'f>(
    burst: &Burst,
    (from, frames): (PortId, &'f [u8]),
    port: &Port,
    now: u64,
    outcomes: &mut Outcomes,
) -> &'f [u8] {
    let metered = port.rates.output.lock();
    let admit = |mut state: std::sync::MutexGuard<'_, State>| {
        state.meter.admit(loads(burst, frames), None, false, now)
    };
    let (kept, dropped) = frames.split_at(metered.map_or(0, admit));
    port.drop_copies(&port.stats.drops, (from, dropped), DropReason::Rate, outcomes);
    kept
}
