//! The rates of one port: limits, and the meters of passing frames.
//!
//! A worker, or the thread that changes the rate, holds the lock for the arithmetic of a burst, and
//! takes no other lock meanwhile. A worker does not park on the lock: if another thread holds the
//! meter, frames wait for the next look or are dropped.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use base::frame::Load;
use switch::{FloodClass, FloodLimits, Limit, Meter};
use sys::clock;

/// Number of attempts for a lock that is held for some hundred instructions.
const LOCK_TRIES: usize = 1024;

/// Meters of a port.
#[derive(Debug, Default)]
pub struct Rates {
    /// Frames from the port into the switch.
    pub input: Metered,
    /// Frames from the switch to the port.
    pub output: Metered,
    /// Flooded frames from the port, by [`FloodClass`].
    pub floods: [Metered; FloodClass::ALL.len()],
}

impl Rates {
    /// Sets the limits of frames from the port and to the port, and of floods.
    pub fn set(&self, [input, output]: [Limit; 2], floods: FloodLimits) {
        self.input.set(input);
        self.output.set(output);
        self.floods.iter().zip(floods).for_each(|(metered, limit)| metered.set(limit));
    }

    /// True if a rate other than that of floods is limited.
    pub(crate) fn are_on(&self) -> bool {
        self.input.is_on() || self.output.is_on()
    }
}

/// Meter of one direction.
#[derive(Debug, Default)]
pub struct Metered {
    on: AtomicBool,
    state: Mutex<State>,
    /// Packets and bytes that are returned to the meter at the next lock.
    returned: [AtomicU64; 2],
}

/// State under the lock of a meter.
#[derive(Debug, Default)]
pub struct State {
    limit: Limit,
    /// The token buckets.
    pub(crate) meter: Meter,
}

impl Metered {
    /// True if a limit is set.
    #[inline(always)]
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Returns the limit, if a limit is set.
    pub fn limit(&self) -> Option<Limit> {
        let limit = self.state.lock().unwrap_or_else(PoisonError::into_inner).limit;
        limit.is_on().then_some(limit)
    }

    /// Sets the limit. An equal limit keeps the state of the meter.
    pub(crate) fn set(&self, limit: Limit) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.limit == limit {
            return;
        }
        if !state.limit.is_on() {
            state.meter = Meter::new(clock::cycles_per_second());
        }
        state.limit = limit;
        state.meter.set(limit, clock::cycles());
        // Discards refunds that were made under the old limit.
        self.take_returned();
        self.on.store(limit.is_on(), Ordering::Relaxed);
    }

    /// Locks the meter, and credits returned packets and bytes. None if another thread holds the
    /// lock and does not run.
    pub(crate) fn lock(&self) -> Option<MutexGuard<'_, State>> {
        let mut state = self.try_lock()?;
        if self.returned[0].load(Ordering::Relaxed) != 0 {
            state.meter.refund(self.take_returned());
        }
        Some(state)
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, State>> {
        for _ in 0..LOCK_TRIES {
            match self.state.try_lock() {
                Ok(state) => return Some(state),
                Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => std::hint::spin_loop(),
            }
        }
        None
    }

    /// Returns tokens for frames that did not pass. Takes no lock; the next [`Metered::lock`]
    /// credits the tokens.
    pub(crate) fn refund(&self, load: Load) {
        let [packets, bytes] = &self.returned;
        bytes.fetch_add(load.bytes, Ordering::Relaxed);
        packets.fetch_add(load.packets, Ordering::Relaxed);
    }

    fn take_returned(&self) -> Load {
        let [packets, bytes] = self.returned.each_ref().map(|n| n.swap(0, Ordering::Relaxed));
        Load { packets, bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use switch::{Rate, Size};

    /// Another thread is stuck in the middle of its arithmetic.
    #[test]
    fn a_refund_counts_although_the_lock_is_held() {
        let rates = Metered::default();
        let rate = Rate { bits: 0, packets: 1 };
        rates.set(Limit { rate, burst: Size { bytes: 0, packets: 10 } });
        let packets = |count| (0..count).map(|_| Load { packets: 1, bytes: 60 });
        let now = clock::cycles();
        let admit = |state: &mut State| state.meter.admit(packets(64), None, true, now);
        let mut held = rates.lock().unwrap();
        let all = admit(&mut held);
        assert!((10..64).contains(&all) && admit(&mut held) == 0, "{all}");
        rates.refund(packets(3).sum());
        drop(held);
        assert_eq!(rates.lock().map(|mut state| admit(&mut state)), Some(3));
        assert_eq!(rates.lock().map(|mut state| admit(&mut state)), Some(0), "it counts once");
    }
}
