//! On which receive queue a guest wants a flow: on the one of the pair it last sent that flow on.
//!
//! A guest with several queue pairs gives each of its CPUs one and sends on the pair of the CPU
//! that runs the sender. Answers that come on the same pair find their socket in that CPU's cache
//! and need no inter-processor interrupt. Linux's tun driver, and so vhost-net, learns the pair
//! from what a guest sends (`tun_flow_update`, `tun_automq_select_queue`), and drivers count on it.
//!
//! A port has one table, written by its own transmit rings and read by all that send to it. It is
//! made when the port first has two receive queues to choose from; a port with one pays nothing.
//!
//! * A set of four flows is one atomic word: found by one load, changed by one store, and stored to
//!   only if it changes, so that its cache line stays shared between the workers while flows stay
//!   where they are. Load and store are not one step. Of two workers that enter flows in one set at
//!   the same moment one loses, and is entered with its next frame.
//! * A flow is ten bits of its hash, ten more choose the set. Two flows that are equal in both are
//!   steered as one.
//! * A new flow takes the place of the one at the end of its set. A known one that stands there
//!   when it is sent goes to the front first, so those that are silent are displaced and those that
//!   are not stay, as long as no more than four of a set are alive.
//! * Nothing ages. What an old entry can do is to steer to some receive queue of the same guest,
//!   which is all that the hash could do, and only while that queue takes frames. So there is no
//!   time here and nobody who sweeps; tun has both to keep its list short, which here is a table.
//! * What a guest sends changes its own table and no other.

use std::sync::atomic::{AtomicU64, Ordering};

use base::limits::{MAX_QUEUE_PAIRS, STEERING_FLOWS};

/// Flows of a set: a lane of 16 bits each.
const WAYS: usize = 4;
const SETS: usize = STEERING_FLOWS / WAYS;
/// A lane's lower bits: the queue plus one, zero in a lane that was never used.
const QUEUE_BITS: u32 = 6;
const QUEUE: u64 = (1 << QUEUE_BITS) - 1;
/// Where the last lane begins.
const LAST: u32 = 16 * (WAYS as u32 - 1);
/// The lowest bit of each lane.
const ONES: u64 = 0x0001_0001_0001_0001;

const _: () = assert!(SETS.is_power_of_two() && SETS.trailing_zeros() + 16 - QUEUE_BITS <= 32);
// A port has twice its pairs, and zero is no queue.
const _: () = assert!(2 * (MAX_QUEUE_PAIRS as u64) < QUEUE);

/// The flows that one guest lately sent.
#[derive(Debug)]
pub struct Steering {
    sets: Box<[AtomicU64]>,
}

impl Default for Steering {
    fn default() -> Steering {
        Steering { sets: (0..SETS).map(|_| AtomicU64::new(0)).collect() }
    }
}

impl Steering {
    /// Records that the guest sent the flow of this hash on pair `queue`.
    #[inline]
    pub fn note(&self, hash: u32, queue: usize) {
        let set = self.set(hash);
        let lanes = set.load(Ordering::Relaxed);
        let lane = tag(hash) | (queue as u64 + 1) & QUEUE;
        let next = match find(lanes, hash) {
            Some(at) if at < LAST => lanes & !(0xffff << at) | lane << at,
            // New, or the next to be displaced: to the front, and the last lane falls out.
            _ => lanes << 16 | lane,
        };
        if next != lanes {
            set.store(next, Ordering::Relaxed);
        }
    }

    /// The pair on which the guest last sent the flow of this hash, if it is known.
    #[inline]
    pub fn queue(&self, hash: u32) -> Option<usize> {
        let lanes = self.set(hash).load(Ordering::Relaxed);
        let found = lanes >> find(lanes, hash)? & QUEUE;
        (found as usize).checked_sub(1)
    }

    /// Forgets all flows: another guest comes, which shall not find its predecessor's.
    pub fn clear(&self) {
        self.sets.iter().for_each(|set| set.store(0, Ordering::Relaxed));
    }

    #[inline(always)]
    fn set(&self, hash: u32) -> &AtomicU64 {
        &self.sets[hash as usize % SETS]
    }
}

/// The bits of a hash that a lane keeps, in their place.
#[inline(always)]
fn tag(hash: u32) -> u64 {
    u64::from(hash >> SETS.trailing_zeros()) << QUEUE_BITS & 0xffff
}

/// Where the lane of this hash begins. Lanes are filled from the lowest, so one that was never
/// used and looks like tag 0 comes after all that were.
#[inline(always)]
fn find(lanes: u64, hash: u32) -> Option<u32> {
    let other = (lanes ^ (tag(hash) * ONES)) & !(QUEUE * ONES);
    // Lanes that are zero, as their highest bits; exact up to the first, and only that is used.
    let zero = other.wrapping_sub(ONES) & !other & ONES << 15;
    (zero != 0).then(|| zero.trailing_zeros() & !15)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hashes of one set that differ in their tags.
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
        // Not the flow's hash above the tag, where queues are chosen without the table.
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

    /// A flow that goes on is not displaced by any number of short ones.
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

    /// The promise to the other workers: a stream does not write.
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
