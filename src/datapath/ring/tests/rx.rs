//! Delivery: every shape of buffer, and no write beyond the reported bytes.

use super::*;
use crate::ring::{Burst, Delivered, RxScratch, Segmentation};
use base::frame::VnetHdr;
use base::limits::{FRAME_DESCRIPTORS, MAX_CHAIN_DESCRIPTORS, MAX_MERGED_BUFFERS};

const POISON: u8 = 0xa5;

/// A burst of frames in private memory.
struct Frames {
    // Kept alive: the burst points into this memory.
    data: Vec<Vec<u8>>,
    burst: Burst,
}

impl Frames {
    fn new(lens: &[usize]) -> Frames {
        let mut data: Vec<_> = lens.iter().enumerate().map(|(i, &n)| frame(i as u8, n)).collect();
        let mut burst = Burst::default();
        for frame in &mut data {
            // SAFETY: the frames live as long as the burst, in the same struct.
            let taken = unsafe {
                burst.push_private(VnetHdr::plain(9), frame.as_mut_ptr(), frame.len() as u32)
            };
            assert!(taken);
        }
        Frames { data, burst }
    }

    fn deliver(&self, ring: &mut SplitRing) -> Delivered {
        let run: Vec<u8> = (0..self.data.len() as u8).collect();
        ring.deliver(&self.burst, &run, &mut RxScratch::default(), Segmentation::Whole)
    }
}

/// Posts poisoned buffers of these sizes, one descriptor each, and returns the buffers' addresses.
fn post(guest: &Guest, queue: &Queue<'_>, sizes: &[u32]) -> Vec<u64> {
    let mut at = DATA;
    let mut addresses = Vec::new();
    for (i, &size) in sizes.iter().enumerate() {
        guest.write(at, &vec![POISON; size as usize + 8]);
        describe(queue, i as u16, &[desc(at, size, WRITE, 0)]);
        addresses.push(at);
        at += u64::from(size) + 8;
    }
    offer(queue, &(0..sizes.len() as u16).collect::<Vec<_>>());
    addresses
}

fn header(buffers: u16) -> Vec<u8> {
    VnetHdr::plain(buffers).to_bytes().to_vec()
}

#[test]
fn a_frame_that_fits_is_written_exactly() {
    for len in [14, 15, 16, 31, 32, 33, 60, 63, 64, 65, 100, 1514, 9000] {
        let guest = Guest::new();
        let queue = guest.queue();
        let mut ring = guest.start(&queue);
        let at = post(&guest, &queue, &[10_000])[0];
        let frames = Frames::new(&[len]);
        let done = frames.deliver(&mut ring);
        assert_eq!((done.frames, done.bytes, done.settled), (1, len as u64, 1));
        assert_eq!(used(&queue), [(0, len as u32 + 12)]);
        assert_eq!(guest.read(at, 12), header(1));
        assert_eq!(guest.read(at + 12, len), frames.data[0], "{len}");
        let beyond = guest.read(at + 12 + len as u64, 10_000 - 12 - len);
        assert!(beyond.iter().all(|&b| b == POISON), "nothing beyond used.len, {len}");
    }
}

#[test]
fn a_frame_is_merged_over_as_many_buffers_as_it_needs() {
    for (len, size, count) in [(100, 56, 2), (1000, 100, 11), (1012, 128, 8), (65_535, 1526, 43)] {
        let guest = Guest::new();
        let queue = guest.queue();
        let mut ring = guest.start(&queue);
        let at = post(&guest, &queue, &vec![size; count + 1]);
        let frames = Frames::new(&[len]);
        assert_eq!(frames.deliver(&mut ring).frames, 1);
        let used = used(&queue);
        assert_eq!(used.len(), count, "{len} in {size}");
        let lens: u32 = used.iter().map(|u| u.1).sum();
        assert_eq!(lens as usize, len + 12);
        let all: Vec<u8> =
            used.iter().flat_map(|&(id, n)| guest.read(at[id as usize], n as usize)).collect();
        assert_eq!(all[..12], header(count as u16));
        assert_eq!(all[12..], frames.data[0]);
    }
}

#[test]
fn without_mergeable_buffers_a_frame_takes_one_chain_or_is_dropped() {
    let guest = Guest::new();
    let queue = guest.queue();
    let config = RingConfig { mergeable: false, ..guest.config(&queue) };
    let mut ring = SplitRing::start(Arc::clone(&guest.table), &config).unwrap();
    // Linux without mergeable buffers: header and data in descriptors of their own.
    describe(&queue, 0, &[desc(DATA, 12, WRITE | NEXT, 1), desc(DATA + 64, 200, WRITE, 0)]);
    offer(&queue, &[0]);
    let frames = Frames::new(&[201, 200]);
    let done = frames.deliver(&mut ring);
    assert_eq!((done.settled, done.frames, done.no_fit.count_ones()), (2, 1, 1));
    assert_eq!(used(&queue), [(0, 212)]);
    assert_eq!(guest.read(DATA, 12), header(1));
    assert_eq!(guest.read(DATA + 64, 200), frames.data[1]);
}

#[test]
fn a_legacy_header_has_ten_bytes() {
    let guest = Guest::new();
    let queue = guest.queue();
    let config = RingConfig { mergeable: false, header_len: 10, ..guest.config(&queue) };
    let mut ring = SplitRing::start(Arc::clone(&guest.table), &config).unwrap();
    let at = post(&guest, &queue, &[70])[0];
    let frames = Frames::new(&[60]);
    assert_eq!(frames.deliver(&mut ring).frames, 1);
    assert_eq!(used(&queue), [(0, 70)]);
    assert_eq!(guest.read(at, 10), [0; 10]);
    assert_eq!(guest.read(at + 10, 60), frames.data[0]);
}

#[test]
fn a_header_split_over_descriptors_is_written_in_pieces() {
    for split in 1..12u32 {
        let guest = Guest::new();
        let queue = guest.queue();
        let mut ring = guest.start(&queue);
        guest.write(DATA, &[POISON; 512]);
        let rest = 12 - split + 100;
        describe(
            &queue,
            0,
            &[desc(DATA, split, WRITE | NEXT, 1), desc(DATA + 100, rest, WRITE, 0)],
        );
        offer(&queue, &[0]);
        let frames = Frames::new(&[100]);
        assert_eq!(frames.deliver(&mut ring).frames, 1);
        let mut all = guest.read(DATA, split as usize);
        all.extend(guest.read(DATA + 100, rest as usize));
        assert_eq!(all[..12], header(1));
        assert_eq!(all[12..], frames.data[0]);
        assert_eq!(guest.read(DATA + u64::from(split), 10), [POISON; 10]);
    }
}

#[test]
fn a_full_ring_keeps_what_does_not_fit_for_later() {
    let guest = Guest::new();
    let queue = guest.queue();
    let mut ring = guest.start(&queue);
    post(&guest, &queue, &[200, 200]);
    let frames = Frames::new(&[60, 60, 60]);
    let done = frames.deliver(&mut ring);
    assert_eq!((done.settled, done.frames), (2, 2));
    // A frame that needs more buffers than are left takes none.
    post(&guest, &queue, &[50]);
    let large = Frames::new(&[100]);
    assert_eq!(large.deliver(&mut ring), Delivered::default());
    assert_eq!(used(&queue).len(), 2);
    offer(&queue, &[1]);
    assert_eq!(large.deliver(&mut ring).frames, 1);
    assert_eq!(used(&queue)[2..], [(0, 50), (1, 62)]);
}

#[test]
fn an_invalid_buffer_goes_back_empty_and_the_frame_takes_the_next() {
    let bad = [
        desc(DATA, 2000, 0, 0),
        desc(MEMORY, 2000, WRITE, 0),
        desc(DATA, 11, WRITE, 0),
        desc(DATA, 0, WRITE, 0),
        desc(DATA, 2000, WRITE | NEXT, SIZE),
        desc(DATA, 2000, WRITE | NEXT, 0),
        desc(DATA, 16, WRITE | INDIRECT, 0),
    ];
    for (i, bad) in bad.into_iter().enumerate() {
        let guest = Guest::new();
        let queue = guest.queue();
        let mut ring = guest.start(&queue);
        describe(&queue, 0, &[bad, desc(DATA + 4096, 2000, WRITE, 0)]);
        offer(&queue, &[0, 1]);
        let frames = Frames::new(&[300]);
        let done = frames.deliver(&mut ring);
        assert_eq!((done.frames, done.bad_buffers), (1, 1), "case {i}");
        assert_eq!(used(&queue), [(0, 0), (1, 312)], "case {i}");
        assert_eq!(guest.read(DATA + 4096 + 12, 300), frames.data[0]);
    }
}

#[test]
fn excess_descriptors_cost_a_bounded_amount_and_no_buffer() {
    let guest = Guest::new();
    let queue = Queue::create(&guest.driver, 0x1000, 512);
    let mut ring = guest.start(&queue);
    describe(&queue, 0, &[desc(DATA, 12, WRITE, 0), desc(DATA + 64, 1, WRITE, 0)]);
    for i in 0..512 {
        let head: u16 = if i == 0 { 0 } else { 1 };
        queue.avail().ring().ref_at(i).unwrap().store(head.to_le());
    }
    queue.avail().idx().store(512u16.to_le());
    let frames = Frames::new(&[MAX_MERGED_BUFFERS, 60]);
    let done = frames.deliver(&mut ring);
    assert_eq!((done.settled, done.no_fit.count_ones(), done.frames), (2, 2, 0));
    assert_eq!(u16::from_le(queue.used().idx().load()), 0);
}

/// Posts `heads` times one chain of `pieces` bytes through an indirect table.
fn post_chains(guest: &Guest, queue: &Queue<'_>, heads: u16, pieces: u16, first: u32, last: u16) {
    let table: Vec<_> = (0..pieces)
        .map(|i| {
            let (at, len) = (DATA + u64::from(i), if i == 0 { first } else { 1 });
            let more = if i + 1 < pieces { NEXT } else { last };
            desc(at, len, WRITE ^ more, i + 1)
        })
        .collect();
    guest.indirect(0x18_0000, &table);
    for head in 0..heads {
        describe(queue, head, &[desc(0x18_0000, 16 * u32::from(pieces), INDIRECT, 0)]);
    }
    offer(queue, &(0..heads).collect::<Vec<_>>());
}

#[test]
fn long_chains_are_walked_for_a_run_as_often_as_is_paid_for() {
    let most = MAX_CHAIN_DESCRIPTORS as u32 + FRAME_DESCRIPTORS * u32::from(SIZE);
    // Valid buffers, buffers that are invalid at their end, buffers whose first one nearly
    // suffices.
    for (first, last) in [(100, 0), (100, WRITE), (12, 0)] {
        let guest = Guest::new();
        let queue = guest.queue();
        let mut ring = guest.start(&queue);
        post_chains(&guest, &queue, SIZE, MAX_CHAIN_DESCRIPTORS as u16, first, last);
        let done = Frames::new(&[60; SIZE as usize]).deliver(&mut ring);
        assert_eq!(done.settled, usize::from(SIZE));
        assert_eq!(done.frames + u64::from(done.no_fit.count_ones()), u64::from(SIZE));
        let walked = u64::from(most).div_ceil(MAX_CHAIN_DESCRIPTORS as u64);
        assert_eq!(done.frames + done.bad_buffers, walked, "{first} {last}");
        assert_eq!(used(&queue).len() as u64, walked);
    }
}

#[test]
fn chains_of_a_packet_s_pages_are_all_walked() {
    let guest = Guest::new();
    let queue = guest.queue();
    let mut ring = guest.start(&queue);
    // Linux without mergeable buffers posts 19 descriptors for each buffer.
    post_chains(&guest, &queue, SIZE, 19, 1600, 0);
    let done = Frames::new(&[1514; SIZE as usize]).deliver(&mut ring);
    assert_eq!(done.frames, u64::from(SIZE));
}

#[test]
fn a_head_that_does_not_exist_breaks_the_ring_after_what_was_delivered() {
    let guest = Guest::new();
    let queue = guest.queue();
    let mut ring = guest.start(&queue);
    post(&guest, &queue, &[200]);
    let frames = Frames::new(&[60]);
    assert_eq!(frames.deliver(&mut ring).frames, 1);
    offer(&queue, &[SIZE + 3]);
    let done = frames.deliver(&mut ring);
    assert!(done.broken.is_some());
    assert_eq!(done.settled, 0);
    assert_eq!(used(&queue).len(), 1);
}

/// A panic ends a run before the run is published: the next run fills the run's buffers, and the
/// driver sees each buffer once.
#[test]
fn what_a_panic_left_unpublished_is_undone() {
    let guest = Guest::new();
    let queue = guest.queue();
    let mut ring = guest.start(&queue);
    post(&guest, &queue, &[200; 4]);
    let frames = Frames::new(&[60]);
    assert_eq!(frames.deliver(&mut ring).frames, 1);
    ring.push_used(1, 112);
    ring.push_used(2, 112);
    ring.indices.next_avail = ring.indices.next_avail.wrapping_add(1);
    ring.roll_back();
    assert_eq!(used(&queue), [(0, 72)]);
    let frames = Frames::new(&[100, 101]);
    assert_eq!(frames.deliver(&mut ring).frames, 2);
    assert_eq!(used(&queue), [(0, 72), (1, 112), (2, 113)]);
}
