//! The rates of one port: what is set, and what may pass now.
//!
//! The lock is held for a burst's worth of arithmetic, by a worker or by the thread that changes
//! the rate, with no other lock taken inside. A worker does not park on it: what cannot be asked
//! waits for the next look, or is dropped.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use base::frame::Load;
use switch::{FloodClass, FloodLimits, Limit, Meter};
use sys::clock;

/// Tries to get a lock that is held for some hundred instructions.
const LOCK_TRIES: usize = 1024;

/// Both directions.
#[derive(Debug, Default)]
pub struct Rates {
    /// From the port into the switch.
    pub input: Metered,
    /// From the switch to the port.
    pub output: Metered,
    /// From the port to all that a flood reaches, by [`FloodClass`].
    pub floods: [Metered; FloodClass::ALL.len()],
}

impl Rates {
    /// Goes by these limits from now on, for frames from the port and to it, and for floods.
    pub fn set(&self, [input, output]: [Limit; 2], floods: FloodLimits) {
        self.input.set(input);
        self.output.set(output);
        self.floods.iter().zip(floods).for_each(|(metered, limit)| metered.set(limit));
    }

    /// True if something is limited that is not flooded.
    pub fn are_on(&self) -> bool {
        self.input.is_on() || self.output.is_on()
    }
}

/// One direction.
#[derive(Debug, Default)]
pub struct Metered {
    on: AtomicBool,
    state: Mutex<State>,
    /// Packets and bytes that passed and did not, after all.
    returned: [AtomicU64; 2],
}

/// What its lock protects.
#[derive(Debug, Default)]
pub struct State {
    limit: Limit,
    /// What may pass.
    pub meter: Meter,
}

impl Metered {
    /// True if something is limited.
    #[inline(always)]
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// What is set, if something is.
    pub fn limit(&self) -> Option<Limit> {
        let limit = self.state.lock().unwrap_or_else(PoisonError::into_inner).limit;
        limit.is_on().then_some(limit)
    }

    /// Goes by another limit from now on; one that is in force goes on.
    pub fn set(&self, limit: Limit) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.limit == limit {
            return;
        }
        if !state.limit.is_on() {
            state.meter = Meter::new(clock::cycles_per_second());
        }
        state.limit = limit;
        state.meter.set(limit, clock::cycles());
        self.take_returned();
        self.on.store(limit.is_on(), Ordering::Relaxed);
    }

    /// What may pass now; none if another thread has it, which does not run.
    pub fn lock(&self) -> Option<MutexGuard<'_, State>> {
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

    /// What passed did not, after all; the next to look finds so, whoever has the lock now.
    pub fn refund(&self, load: Load) {
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

    /// Another thread stands still in the middle of its arithmetic.
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
