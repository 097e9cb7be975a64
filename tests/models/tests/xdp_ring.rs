//! Frames that come by AF_XDP: the kernel takes a chunk from the fill ring, writes the frame, and
//! enters it in the receive ring; a worker reads it and gives the chunk back. On both sides of both
//! rings is the code of this crate (`src/sys/xdp/ring.rs`), as the kernel does the same
//! (net/xdp/xsk_queue.h). No chunk is touched by both at once, and frames keep their order, also
//! where the indices pass 2^32.

use std::ptr::NonNull;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use vioswitch_models::loomed::AtomicU32;
use vioswitch_models::sys::xdp::{Consumer, Producer, ring};

/// Entries of each ring, and chunks.
const SIZE: usize = 2;
const FRAMES: u64 = 3;

/// A ring's memory.
struct Shared {
    indices: [AtomicU32; 2],
    entries: std::cell::UnsafeCell<[u64; SIZE]>,
}

impl Shared {
    fn new(start: u32) -> Shared {
        let indices = [(); 2].map(|()| AtomicU32::new(start));
        Shared { indices, entries: std::cell::UnsafeCell::new([0; SIZE]) }
    }

    fn sides(&self, start: u32) -> (Producer, Consumer) {
        let [producer, consumer] = &self.indices;
        let entries = NonNull::new(self.entries.get().cast()).unwrap();
        ring([producer, consumer], entries, (start, SIZE as u32))
    }
}

/// What the kernel and the worker share.
struct Memory {
    fill: Shared,
    received: Shared,
    chunks: [UnsafeCell<u64>; SIZE],
}

// SAFETY: each chunk is one side's at a time; loom panics where it is not.
unsafe impl Sync for Memory {}
// SAFETY: plain numbers.
unsafe impl Send for Memory {}

fn next(ring: &mut Consumer) -> usize {
    loop {
        match ring.pop() {
            Some(chunk) => return chunk as usize,
            None => thread::yield_now(),
        }
    }
}

fn kernel(memory: &Memory, mut fill: Consumer, mut received: Producer) {
    for n in 0..FRAMES {
        let chunk = next(&mut fill);
        fill.release();
        // SAFETY: loom watches.
        memory.chunks[chunk].with_mut(|frame| unsafe { *frame = n });
        assert!(received.push(chunk as u64));
        received.publish();
    }
}

fn worker(memory: &Memory, mut received: Consumer, mut fill: Producer) {
    for n in 0..FRAMES {
        let chunk = next(&mut received);
        // SAFETY: loom watches.
        assert_eq!(memory.chunks[chunk].with(|frame| unsafe { *frame }), n);
        received.release();
        assert!(fill.push(chunk as u64));
        fill.publish();
    }
}

fn frames_come_whole(start: u32) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let chunks = [(); SIZE].map(|()| UnsafeCell::new(0));
        let memory =
            Arc::new(Memory { fill: Shared::new(start), received: Shared::new(start), chunks });
        let (mut fill, emptied) = memory.fill.sides(start);
        let (filled, received) = memory.received.sides(start);
        (0..SIZE).for_each(|chunk| assert!(fill.push(chunk as u64)));
        fill.publish();
        let other = thread::spawn({
            let memory = Arc::clone(&memory);
            move || kernel(&memory, emptied, filled)
        });
        worker(&memory, received, fill);
        other.join().unwrap();
    });
}

#[test]
fn frames_come_whole_from_the_start() {
    frames_come_whole(0);
}

#[test]
fn frames_come_whole_where_the_indices_wrap() {
    frames_come_whole(u32::MAX);
}
