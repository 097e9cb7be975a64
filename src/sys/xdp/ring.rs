//! A ring of AF_XDP: entries in memory that the kernel shares, and two indices that only grow and
//! wrap at 2^32.
//!
//! * One side produces, the other side consumes. Each side writes its own index and reads the other
//!   index; [`Counts`] is the arithmetic of both indices, without memory.
//! * One thread at a time uses this process's side. The kernel may use its side at any moment.
//! * The kernel is trusted; still an impossible index of the kernel counts as no progress, so that
//!   no entry is used twice.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, Ordering};

// `tests/models` runs both sides in every interleaving.
#[cfg(loom)]
use crate::loomed::{AtomicU32, Ordering};
use crate::pages::Pages;

/// The indices of both sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Counts {
    /// This process's index: entries produced, or consumed.
    own: u32,
    /// The kernel's index, when it was last read.
    other: u32,
    /// Number of entries in the ring, a power of two.
    size: u32,
}

impl Counts {
    /// Returns the number of entries that a producer may write.
    fn room(self) -> u32 {
        self.size.saturating_sub(self.own.wrapping_sub(self.other))
    }

    /// Returns the number of entries that a consumer may read.
    fn ready(self) -> u32 {
        let ready = self.other.wrapping_sub(self.own);
        if ready <= self.size { ready } else { 0 }
    }

    /// Returns the position of an index in the ring.
    fn slot(self, index: u32) -> usize {
        (index & (self.size - 1)) as usize
    }
}

/// This process's side of a ring.
#[derive(Debug)]
pub(super) struct Ring<T> {
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    entries: NonNull<T>,
    counts: Counts,
    _memory: Option<Pages>,
}

// SAFETY: the pointers lead into the mapping, which this ring owns; `T` is plain data.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T: Copy> Ring<T> {
    /// Maps the ring of `size` entries at `offset` of the socket, with the kernel's layout.
    pub(super) fn map(
        fd: BorrowedFd<'_>,
        offset: u64,
        layout: &libc::xdp_ring_offset,
        size: u32,
    ) -> io::Result<Ring<T>> {
        debug_assert!(size.is_power_of_two());
        let len = layout.desc as usize + size as usize * size_of::<T>();
        let memory = Pages::of(fd, offset, len, libc::MAP_POPULATE)?;
        // SAFETY: in the kernel's layout indices and entries lie inside the mapping, each aligned
        // for its type.
        let (producer, consumer, entries) = unsafe {
            let at = |offset: u64| memory.at().add(offset as usize);
            (at(layout.producer).cast(), at(layout.consumer).cast(), at(layout.desc).cast())
        };
        let counts = Counts { own: 0, other: 0, size };
        Ok(Ring { producer, consumer, entries, counts, _memory: Some(memory) })
    }

    /// Makes a ring for a test, which owns the memory: both indices are at `start`, and `size` is a
    /// power of two.
    #[cfg(any(test, loom))]
    pub(super) fn of(
        [producer, consumer]: [&AtomicU32; 2],
        entries: NonNull<T>,
        (start, size): (u32, u32),
    ) -> Ring<T> {
        let counts = Counts { own: start, other: start, size };
        let (producer, consumer) = (NonNull::from(producer), NonNull::from(consumer));
        Ring { producer, consumer, entries, counts, _memory: None }
    }

    fn load(&self, index: NonNull<AtomicU32>) -> u32 {
        // SAFETY: the index lives as long as the ring.
        unsafe { index.as_ref() }.load(Ordering::Acquire)
    }

    fn store(&self, index: NonNull<AtomicU32>) {
        // SAFETY: the index lives as long as the ring.
        unsafe { index.as_ref() }.store(self.counts.own, Ordering::Release);
    }
}

/// A ring that this process writes: fill ring and transmit ring.
#[derive(Debug)]
pub(super) struct Producer<T>(pub(super) Ring<T>);

impl<T: Copy> Producer<T> {
    /// Writes an entry, which the kernel sees after [`Producer::publish`]. Returns false if the
    /// ring is full.
    pub(super) fn push(&mut self, entry: T) -> bool {
        if self.0.counts.room() == 0 {
            self.0.counts.other = self.0.load(self.0.consumer);
            if self.0.counts.room() == 0 {
                return false;
            }
        }
        let slot = self.0.counts.slot(self.0.counts.own);
        // SAFETY: the slot is below the ring's size, and the kernel does not read the slot before
        // the entry is published.
        unsafe { self.0.entries.add(slot).write_volatile(entry) };
        self.0.counts.own = self.0.counts.own.wrapping_add(1);
        true
    }

    /// Publishes the written entries to the kernel.
    pub(super) fn publish(&self) {
        self.0.store(self.0.producer);
    }

    /// Returns the number of entries that the kernel has not taken.
    pub(super) fn pending(&mut self) -> u32 {
        self.0.counts.other = self.0.load(self.0.consumer);
        self.0.counts.own.wrapping_sub(self.0.counts.other)
    }

    /// Takes back the last `count` entries, which the kernel has not read and does not read during
    /// the call.
    pub(super) fn take_back(&mut self, count: u32) {
        self.0.counts.own = self.0.counts.own.wrapping_sub(count);
        self.publish();
    }
}

/// A ring that this process reads: receive ring and completion ring.
#[derive(Debug)]
pub(super) struct Consumer<T>(pub(super) Ring<T>);

impl<T: Copy> Consumer<T> {
    /// Returns the next entry. The slot belongs to the kernel again after [`Consumer::release`].
    pub(super) fn pop(&mut self) -> Option<T> {
        if self.0.counts.ready() == 0 {
            self.0.counts.other = self.0.load(self.0.producer);
            if self.0.counts.ready() == 0 {
                return None;
            }
        }
        let slot = self.0.counts.slot(self.0.counts.own);
        // SAFETY: the slot is below the ring's size, and the kernel wrote it before its index.
        let entry = unsafe { self.0.entries.add(slot).read_volatile() };
        self.0.counts.own = self.0.counts.own.wrapping_add(1);
        Some(entry)
    }

    /// Returns the entry `behind` entries behind the next entry, if the kernel is known to have
    /// written it.
    pub(super) fn peek(&self, behind: u32) -> Option<T> {
        if self.0.counts.ready() <= behind {
            return None;
        }
        let slot = self.0.counts.slot(self.0.counts.own.wrapping_add(behind));
        // SAFETY: the slot is below the ring's size, and the kernel wrote the entry before its
        // index.
        Some(unsafe { self.0.entries.add(slot).read_volatile() })
    }

    /// Gives the slots of all read entries to the kernel.
    pub(super) fn release(&self) {
        self.0.store(self.0.consumer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u32 = 8;

    /// Memory in place of the kernel's, with both indices at `start`.
    struct Memory {
        producer: Box<AtomicU32>,
        consumer: Box<AtomicU32>,
        entries: Vec<u64>,
    }

    impl Memory {
        fn new(start: u32) -> Memory {
            let index = || Box::new(AtomicU32::new(start));
            Memory { producer: index(), consumer: index(), entries: vec![0; SIZE as usize] }
        }

        fn ring(&mut self, start: u32) -> Ring<u64> {
            let entries = NonNull::new(self.entries.as_mut_ptr()).unwrap();
            Ring::of([&self.producer, &self.consumer], entries, (start, SIZE))
        }
    }

    /// Start values from which the indices pass 2^32 at each position of the ring.
    fn starts() -> impl Iterator<Item = u32> {
        [0, 1, 1 << 31].into_iter().chain((0..=2 * SIZE).map(|back| 0u32.wrapping_sub(back)))
    }

    #[test]
    fn indices_wrap() {
        for start in starts() {
            for used in 0..=SIZE {
                let end = start.wrapping_add(used);
                let producer = Counts { own: end, other: start, size: SIZE };
                let consumer = Counts { own: start, other: end, size: SIZE };
                assert_eq!((producer.room(), consumer.ready()), (SIZE - used, used), "{start}");
                assert_eq!(producer.slot(end), end as usize % SIZE as usize);
            }
        }
    }

    #[test]
    fn an_index_that_cannot_be_is_no_progress() {
        for start in starts() {
            for wrong in [SIZE + 1, 1 << 31, u32::MAX - SIZE, u32::MAX] {
                let other = start.wrapping_add(wrong);
                assert_eq!(Counts { own: start, other, size: SIZE }.ready(), 0);
                let other = start.wrapping_sub(wrong);
                assert_eq!(Counts { own: start, other, size: SIZE }.room(), 0);
            }
        }
    }

    #[test]
    fn a_producer_fills_the_ring_and_no_more() {
        for start in starts() {
            let mut memory = Memory::new(start);
            let mut ring = Producer(memory.ring(start));
            for round in 0..4 {
                for n in 0..u64::from(SIZE) {
                    assert!(ring.push(round * 100 + n));
                }
                assert!(!ring.push(9), "it is full");
                let seen = memory.producer.load(Ordering::Relaxed);
                assert_eq!(ring.pending(), SIZE);
                ring.publish();
                let now = memory.producer.load(Ordering::Relaxed);
                assert_eq!(now.wrapping_sub(seen), SIZE, "nothing is seen before");
                // The kernel takes all entries, in order.
                let taken = memory.consumer.load(Ordering::Relaxed);
                for n in 0..SIZE {
                    let slot = (taken.wrapping_add(n) & (SIZE - 1)) as usize;
                    assert_eq!(memory.entries[slot], round * 100 + u64::from(n));
                }
                memory.consumer.store(taken.wrapping_add(SIZE), Ordering::Relaxed);
            }
        }
    }

    #[test]
    fn what_is_taken_back_was_not_written() {
        for start in starts() {
            let mut memory = Memory::new(start);
            let mut ring = Producer(memory.ring(start));
            (0..5).for_each(|n| assert!(ring.push(n)));
            ring.publish();
            ring.take_back(3);
            assert_eq!(memory.producer.load(Ordering::Relaxed), start.wrapping_add(2));
            assert_eq!(ring.pending(), 2);
        }
    }

    #[test]
    fn a_consumer_reads_what_was_produced_and_no_more() {
        for start in starts() {
            let mut memory = Memory::new(start);
            let mut ring = Consumer(memory.ring(start));
            for round in 0..4u64 {
                assert_eq!((ring.peek(0), ring.pop()), (None, None));
                let from = memory.producer.load(Ordering::Relaxed);
                for n in 0..SIZE {
                    memory.entries[(from.wrapping_add(n) & (SIZE - 1)) as usize] =
                        round * 100 + u64::from(n);
                }
                memory.producer.store(from.wrapping_add(SIZE), Ordering::Relaxed);
                for n in 0..u64::from(SIZE) {
                    assert_eq!(ring.pop(), Some(round * 100 + n));
                    for behind in 0..SIZE {
                        let at = n + 1 + u64::from(behind);
                        let there = at < u64::from(SIZE);
                        assert_eq!(ring.peek(behind), there.then_some(round * 100 + at));
                    }
                }
                assert_eq!(ring.pop(), None);
                assert_eq!(memory.consumer.load(Ordering::Relaxed), from, "nothing is given back");
                ring.release();
                assert_eq!(memory.consumer.load(Ordering::Relaxed), from.wrapping_add(SIZE));
            }
        }
    }

    /// Two threads, one on each side. Miri finds an entry that one thread reads while the other
    /// writes.
    #[test]
    fn two_threads_keep_the_order() {
        for start in [0, 0u32.wrapping_sub(SIZE)] {
            let mut memory = Memory::new(start);
            let mut producer = Producer(memory.ring(start));
            let mut consumer = Consumer(memory.ring(start));
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    for n in 0..100 {
                        while !producer.push(n) {
                            std::thread::yield_now();
                        }
                        producer.publish();
                    }
                });
                for n in 0..100 {
                    while consumer.0.counts.own == consumer.0.load(consumer.0.producer) {
                        std::thread::yield_now();
                    }
                    assert_eq!(consumer.pop(), Some(n));
                    consumer.release();
                }
            });
        }
    }
}
