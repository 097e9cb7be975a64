//! Limit of a port's `rate-in`: frames beyond the rate stay in the guest's ring or in the kernel's
//! queue until the rate permits them.

use super::{BurstContext, Pipeline, Source};
use crate::port::device::{Bounds, Reading};
use crate::port::{Polled, Port, Queue, Tx, TxState};
use crate::ring::Burst;
use base::frame::Load;
use base::limits::{BURST_FRAMES, RATE_LOOK_NANOS};
use sys::clock;

impl Pipeline {
    /// Returns when to look again at frames that wait for a rate until cycle `until`.
    fn rate_look(&self, until: u64) -> Polled {
        let now = self.time.cycle;
        Polled::RetryAt(until.min(now.saturating_add(clock::cycles_in(RATE_LOOK_NANOS))))
    }

    /// Returns what the worker does instead of taking frames of a ring that waits for its port's
    /// rate; none if the ring does not wait.
    #[cold]
    pub(super) fn waits_for_rate(
        &mut self,
        port: &Port,
        queue: &Queue<Tx>,
        state: &mut TxState,
    ) -> Option<Polled> {
        let booked = state.side.gate.booked?;
        let input = &port.rates.input;
        if !input.is_on() {
            return None;
        }
        let Some(metered) = input.lock() else { return Some(Polled::RetryNow) };
        let until = metered.meter.waits(&booked, self.time.cycle)?;
        drop(metered);
        if state.side.gate.drain_to.is_some() {
            // A session waits for the end of the drain; frames that wait for the rate stay in the
            // ring.
            state.end_drain(queue);
            return Some(Polled::Unavailable);
        }
        Some(self.rate_look(until))
    }

    /// Gives the part of a ring's burst that exceeds the rate back to the ring. Rejected chains
    /// count as well. Returns the part that passed; an error says what the worker does if nothing
    /// passed.
    #[cold]
    pub(super) fn limit_input<'p>(
        &mut self,
        source: &mut impl Source<'p>,
        context: &mut BurstContext,
    ) -> Result<Passed, Polled> {
        let port = source.origin().port;
        let Some((state, queue)) = source.ring().filter(|_| port.rates.input.is_on()) else {
            return Ok(Passed::default());
        };
        let now = self.time.cycle;
        let (passed, next) = match port.rates.input.lock() {
            Some(mut metered) => {
                let burst = &context.burst;
                let booked = state.side.gate.booked.take();
                let passed = metered.meter.admit(burst.loads(), booked, true, now);
                let Some(first) = burst.loads().nth(passed) else {
                    return Ok(Passed::of(burst));
                };
                let until = if state.side.gate.drain_to.is_some() {
                    drop(metered);
                    state.end_drain(queue);
                    None
                } else {
                    let booking = metered.meter.book(first, burst.loads().sum(), now);
                    state.side.gate.booked = Some(booking);
                    if booked.is_none() {
                        port.stats.rate_waits.add_shared(1);
                    }
                    metered.meter.waits(&booking, now)
                };
                (passed, until.map_or(Polled::Unavailable, |until| self.rate_look(until)))
            }
            None => (0, Polled::RetryNow),
        };
        context.burst.give_back_heads(passed);
        if passed > 0 {
            return Ok(Passed::of(&context.burst));
        }
        // The hashes belong to this burst, which is given back.
        let _ = context.flows.take();
        Err(next)
    }

    /// Returns how much may be read from a device now. An error says what the worker does instead.
    #[cold]
    pub(super) fn limit_device(
        &mut self,
        port: &Port,
        reading: &mut Reading,
    ) -> Result<Bounds, Polled> {
        let (now, last) = (self.time.cycle, reading.last);
        let Some(mut metered) = port.rates.input.lock() else { return Err(self.retry()) };
        let waits = reading.booked.and_then(|booked| metered.meter.waits(&booked, now));
        if let Some(until) = waits {
            return Err(self.rate_look(until));
        }
        let booked = reading.booked.take();
        let room = metered.meter.room(booked, true, now);
        if room.fits(last) {
            return Ok(Bounds { end: None, room: Some((room, last)) });
        }
        metered.meter.spend(&room);
        let as_many = BURST_FRAMES as u64;
        let all = Load { packets: last.packets * as_many, bytes: last.bytes * as_many };
        let booking = metered.meter.book(last, all, now);
        reading.booked = Some(booking);
        if booked.is_none() {
            port.stats.rate_waits.add_shared(1);
        }
        Err(self.rate_look(metered.meter.waits(&booking, now).unwrap_or(now)))
    }

    /// Charges a port for frames that were read from its device within `bounds`.
    #[cold]
    pub(super) fn charge_device(
        &self,
        port: &Port,
        bounds: Bounds,
        reading: &mut Reading,
        burst: &Burst,
    ) {
        let Some((mut room, _)) = bounds.room else { return };
        burst.loads().for_each(|load| room.take(load));
        reading.last = burst.loads().last().unwrap_or(reading.last);
        if let Some(mut metered) = port.rates.input.lock() {
            metered.meter.spend(&room);
        }
    }
}

/// Numbers of frames and rejected chains of a burst that passed the rate of their port.
#[derive(Clone, Copy, Default)]
pub struct Passed {
    frames: usize,
    rejects: usize,
}

impl Passed {
    fn of(burst: &Burst) -> Passed {
        Passed { frames: burst.frames().len(), rejects: burst.rejected().count() }
    }

    /// Returns the load of frames that were given back to the ring since to the port's rate: these
    /// frames are taken again.
    #[cold]
    pub(crate) fn refund_cut(&self, port: &Port, burst: &Burst) {
        if self.frames > burst.frames().len() {
            port.rates.input.refund(burst.given_back_load(self.frames, self.rejects));
        }
    }
}
