//! A bounded list of connections, the oldest first, without a lock: workers add connections and
//! take the oldest.
//!
//! A list has two counters that only go up: of connections that were added, and of those that were
//! taken. An added connection belongs to the thread that has counted it up, and its place to that
//! thread until the counter has gone around the ring; a taken connection belongs to the thread that
//! has exchanged the counter. A place has the lap of its connection too: a thread that stood still
//! between counting and writing, or reading, meets another lap, and that connection is in the list
//! no more. Such a connection makes no room for others, and times out.

use std::sync::OnceLock;

use super::super::super::sync::{AtomicU64, Ordering};
use super::slots::{SlotRef, zeroed};
use base::limits::{CONNECTION_LOCK_ATTEMPTS, CONNECTIONS_EVICTED, MAX_HALF_OPEN_PER_PORT};

/// Places of a ring: those of a full list, and some for workers that add at once.
const PLACES: usize = MAX_HALF_OPEN_PER_PORT + 4 * CONNECTIONS_EVICTED;
const _: () = assert!(CONNECTIONS_EVICTED < MAX_HALF_OPEN_PER_PORT);

/// The oldest connections of a full list; none where a place has another lap.
pub(super) type Oldest = [Option<SlotRef>; CONNECTIONS_EVICTED];

/// A list of connections.
#[derive(Default)]
pub(super) struct Ring(OnceLock<Places>);

struct Places {
    places: Vec<AtomicU64>,
    /// Connections that were added.
    added: AtomicU64,
    /// Connections that were taken.
    taken: AtomicU64,
}

impl Ring {
    /// Allocates the list.
    pub(super) fn prepare(&self) {
        self.0.get_or_init(|| Places {
            places: zeroed(PLACES),
            added: AtomicU64::new(0),
            taken: AtomicU64::new(0),
        });
    }

    /// Adds a connection. If the list is full, takes its oldest connections. The outer `None`: the
    /// list is not allocated.
    #[inline(always)]
    pub(super) fn push(&self, slot: SlotRef) -> Option<Option<Oldest>> {
        let ring = self.0.get()?;
        let n = ring.added.fetch_add(1, Ordering::Relaxed);
        ring.place(n)?.store(slot.in_lap(lap(n)), Ordering::Release);
        let taken = ring.taken.load(Ordering::Relaxed);
        let is_full = n.saturating_sub(taken) >= MAX_HALF_OPEN_PER_PORT as u64;
        Some(is_full.then(|| ring.take_oldest(taken)).flatten())
    }

    /// Takes the oldest connection; tries so for a bounded time.
    pub(super) fn pop(&self) -> Option<SlotRef> {
        let ring = self.0.get()?;
        for _ in 0..CONNECTION_LOCK_ATTEMPTS {
            let taken = ring.taken.load(Ordering::Relaxed);
            if taken >= ring.added.load(Ordering::Relaxed) {
                return None;
            }
            // If the exchange fails, another thread has taken a connection.
            if ring.take(taken, 1)
                && let Some(slot) = ring.get(taken)
            {
                return Some(slot);
            }
        }
        None
    }
}

impl Places {
    #[inline(always)]
    fn place(&self, n: u64) -> Option<&AtomicU64> {
        self.places.get(n as usize % PLACES)
    }

    /// Returns the connection that was added as number `n`.
    #[inline(always)]
    fn get(&self, n: u64) -> Option<SlotRef> {
        SlotRef::of_lap(self.place(n)?.load(Ordering::Acquire), lap(n))
    }

    /// Takes so many connections from number `taken` on; false if another thread has taken some.
    fn take(&self, taken: u64, count: usize) -> bool {
        let (success, failure) = (Ordering::Relaxed, Ordering::Relaxed);
        self.taken.compare_exchange(taken, taken + count as u64, success, failure).is_ok()
    }

    #[inline(never)]
    fn take_oldest(&self, taken: u64) -> Option<Oldest> {
        let is_mine = self.take(taken, CONNECTIONS_EVICTED);
        is_mine.then(|| std::array::from_fn(|n| self.get(taken + n as u64)))
    }
}

/// Returns the lap of connection number `n`; not 0, as untouched places have.
#[inline(always)]
fn lap(n: u64) -> u64 {
    1 + n / PLACES as u64 % (SlotRef::LAPS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(numbers: std::ops::Range<usize>) -> Vec<SlotRef> {
        numbers.map(|n| SlotRef::new(n % 5, n as u64)).collect()
    }

    #[test]
    fn the_oldest_are_taken_first() {
        let ring = Ring::default();
        assert_eq!((ring.push(SlotRef::new(1, 1)), ring.pop()), (None, None));
        ring.prepare();
        assert_eq!(ring.pop(), None);
        for slot in slots(0..3) {
            assert_eq!(ring.push(slot), Some(None));
        }
        let popped: Vec<_> = std::iter::from_fn(|| ring.pop()).collect();
        assert_eq!(popped, slots(0..3));
    }

    #[test]
    fn a_full_list_gives_up_its_oldest_in_each_lap() {
        let ring = Ring::default();
        ring.prepare();
        let (mut taken, count) = (Vec::new(), 3 * PLACES);
        for slot in slots(0..count) {
            taken.extend(ring.push(slot).unwrap().into_iter().flatten().flatten());
        }
        assert_eq!(taken, slots(0..taken.len()));
        let left = count - taken.len();
        assert!(
            (MAX_HALF_OPEN_PER_PORT - CONNECTIONS_EVICTED..=MAX_HALF_OPEN_PER_PORT).contains(&left)
        );
        taken.extend(std::iter::from_fn(|| ring.pop()));
        assert_eq!(taken, slots(0..count));
    }

    /// A thread that has counted a connection and not written it.
    #[test]
    fn a_place_of_another_lap_is_no_connection() {
        let ring = Ring::default();
        ring.prepare();
        for slot in slots(0..PLACES) {
            ring.push(slot);
        }
        while ring.pop().is_some() {}
        ring.0.get().unwrap().added.fetch_add(1, Ordering::Relaxed);
        ring.push(SlotRef::new(7, 7));
        assert_eq!((ring.pop(), ring.pop()), (Some(SlotRef::new(7, 7)), None));
    }
}
