//! The receive queue that a guest wants for a flow: the queue of the pair on which the guest last
//! sent the flow.
//!
//! A guest with several queue pairs gives a pair to each of its CPUs, and sends on the pair of the
//! CPU that runs the sender. Replies on the same pair find their socket in the cache of that CPU,
//! and need no inter-processor interrupt. Linux's tun driver, and so vhost-net, learns the pair
//! from the guest's frames (`tun_flow_update`, `tun_automq_select_queue`), and drivers rely on it.
//!
//! A port has one table, which its own transmit rings write and all senders to the port read. The
//! table is allocated when the port first has two receive queues to choose from; a port with one
//! receive queue pays nothing.
//!
//! * A set of four flows is one atomic word, found by one load and changed by one store. The word
//!   is stored only if it changes, so workers share its cache line while flows stay on their pairs.
//!   Load and store are not one step: if two workers enter flows in one set at one moment, one
//!   entry is lost until the next frame of its flow.
//! * Ten bits of a flow's hash choose the set, and ten more identify the flow. Two flows with equal
//!   bits are steered as one flow.
//! * A new flow replaces the flow at the end of its set. A known flow at the end moves to the front
//!   when it is sent. So silent flows are displaced and active flows stay, as long as a set has no
//!   more than four active flows.
//! * Entries do not age. An old entry can only steer to some receive queue of the same guest, as
//!   the hash does, and only while this queue takes frames. Tun ages entries to keep its lists
//!   short; this table has a fixed size.
//! * A guest's frames change only the guest's own table.

use std::sync::atomic::{AtomicU64, Ordering};

use base::limits::{MAX_QUEUE_PAIRS, STEERING_FLOWS};

/// Flows of a set: a lane of 16 bits each.
const WAYS: usize = 4;
const SETS: usize = STEERING_FLOWS / WAYS;
/// Lower bits of a lane: the queue plus one; zero if the lane was never used.
const QUEUE_BITS: u32 = 6;
const QUEUE: u64 = (1 << QUEUE_BITS) - 1;
/// Lowest bit of the last lane.
const LAST: u32 = 16 * (WAYS as u32 - 1);
/// The lowest bit of each lane.
const ONES: u64 = 0x0001_0001_0001_0001;

const _: () = assert!(SETS.is_power_of_two() && SETS.trailing_zeros() + 16 - QUEUE_BITS <= 32);
// A port has two rings for each pair, and zero is no queue.
const _: () = assert!(2 * (MAX_QUEUE_PAIRS as u64) < QUEUE);

/// The flows that one guest lately sent.
#[derive(Debug)]
pub(crate) struct Steering {
    sets: Box<[AtomicU64]>,
}

impl Default for Steering {
    fn default() -> Steering {
        Steering { sets: (0..SETS).map(|_| AtomicU64::new(0)).collect() }
    }
}

impl Steering {
    /// Records that the guest sent the flow with hash `hash` on pair `queue`.
    #[inline]
    pub(crate) fn note(&self, hash: u32, queue: usize) {
        let set = self.set(hash);
        let lanes = set.load(Ordering::Relaxed);
        let lane = tag(hash) | (queue as u64 + 1) & QUEUE;
        let next = match find(lanes, hash) {
            Some(at) if at < LAST => lanes & !(0xffff << at) | lane << at,
            // A new flow, or the flow at the end: moves to the front; the last lane falls out.
            _ => lanes << 16 | lane,
        };
        if next != lanes {
            set.store(next, Ordering::Relaxed);
        }
    }

    /// Returns the pair on which the guest last sent the flow with hash `hash`, if the flow is
    /// known.
    #[inline]
    pub(crate) fn queue(&self, hash: u32) -> Option<usize> {
        let lanes = self.set(hash).load(Ordering::Relaxed);
        let found = lanes >> find(lanes, hash)? & QUEUE;
        (found as usize).checked_sub(1)
    }

    /// Removes all flows, so that the next guest does not meet its predecessor's flows.
    pub(crate) fn clear(&self) {
        self.sets.iter().for_each(|set| set.store(0, Ordering::Relaxed));
    }

    #[inline(always)]
    fn set(&self, hash: u32) -> &AtomicU64 {
        &self.sets[hash as usize % SETS]
    }
}

/// Returns the bits of a hash that a lane stores, at their position in the lane.
#[inline(always)]
fn tag(hash: u32) -> u64 {
    u64::from(hash >> SETS.trailing_zeros()) << QUEUE_BITS & 0xffff
}

/// Returns the lowest bit of the lane of a hash. Lanes fill from the lowest, so an unused lane,
/// which looks like tag 0, comes behind all used lanes.
#[inline(always)]
fn find(lanes: u64, hash: u32) -> Option<u32> {
    let other = (lanes ^ (tag(hash) * ONES)) & !(QUEUE * ONES);
    // Highest bits of the lanes that are zero; exact up to the first zero lane, and only this lane
    // is used.
    let zero = other.wrapping_sub(ONES) & !other & ONES << 15;
    (zero != 0).then(|| zero.trailing_zeros() & !15)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns hashes of one set with different tags.
    fn hashes(set: u32) -> impl Iterator<Item = u32> {
        (0..1 << (16 - QUEUE_BITS)).map(move |tag| tag << SETS.trailing_zeros() | set)
    }

    #[test]
    fn a_flow_is_steered_to_where_it_was_last_sent() {
        let flows = Steering::default();
        for set in [0, 1, SETS as u32 - 1] {
            for hash in hashes(set) {
                assert_eq!(flows.queue(hash), None, "{hash:#x}");
                for queue in [0, 31, 7, 7, 1] {
                    flows.note(hash, queue);
                    assert_eq!(flows.queue(hash), Some(queue), "{hash:#x}");
                }
            }
        }
        // The hash's bits above the tag do not choose the entry; they choose the queue without the
        // table.
        assert_eq!(flows.queue(0x3ff << 10), flows.queue(0xffff_fc00));
        flows.clear();
        assert!((0..3).flat_map(hashes).all(|hash| flows.queue(hash).is_none()));
    }

    #[test]
    fn flows_of_a_set_do_not_disturb_each_other() {
        let flows = Steering::default();
        let four: Vec<u32> = hashes(5).take(WAYS).collect();
        for round in 0..100 {
            for (i, &hash) in four.iter().enumerate() {
                flows.note(hash, (round + i) % 32);
            }
            for (i, &hash) in four.iter().enumerate() {
                assert_eq!(flows.queue(hash), Some((round + i) % 32), "round {round}, flow {i}");
            }
        }
    }

    /// An active flow is not displaced by any number of short flows.
    #[test]
    fn the_silent_are_displaced() {
        let flows = Steering::default();
        let live = hashes(9).last().unwrap();
        for short in hashes(9) {
            flows.note(live, 3);
            flows.note(short, 1);
            assert_eq!(flows.queue(live), Some(if short == live { 1 } else { 3 }));
        }
        let known = hashes(9).filter(|&hash| flows.queue(hash).is_some()).count();
        assert_eq!(known, WAYS);
    }

    /// A known flow does not write to the table, so the workers share the cache line.
    #[test]
    fn what_is_known_is_not_stored_again() {
        let flows = Steering::default();
        for hash in hashes(0).take(3) {
            flows.note(hash, 2);
        }
        let before = flows.set(0).load(Ordering::Relaxed);
        for hash in hashes(0).take(3).chain(hashes(0).take(3)) {
            flows.note(hash, 2);
            assert_eq!(flows.set(0).load(Ordering::Relaxed), before, "{hash:#x}");
        }
    }

    #[test]
    fn any_hash_and_any_lanes_will_do() {
        let flows = Steering::default();
        let mut seed = 1u64;
        for _ in 0..100_000 {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
            let hash = (seed >> 32) as u32;
            flows.set(hash).store(seed ^ seed << 17, Ordering::Relaxed);
            flows.queue(hash);
            flows.note(hash, 31);
            assert_eq!(flows.queue(hash), Some(31));
        }
    }
}
