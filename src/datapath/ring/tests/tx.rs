//! Taking bursts: every shape of chain, and chains that are no frames.

use super::*;
use crate::ring::{Burst, Frame, RingError};
use base::limits::{MAX_FRAME_LEN, SNAPSHOT_LEN};
use base::stats::DropReason;

/// Returns the bytes of a taken frame, its pieces joined.
fn bytes(burst: &Burst, frame: &Frame) -> Vec<u8> {
    let first = (frame.len as usize).min(SNAPSHOT_LEN);
    let mut all = frame.snapshot[..first].to_vec();
    for piece in std::iter::once(&frame.rest).chain(burst.more(frame)) {
        // SAFETY: the piece lies in the guest's memory, which the test holds.
        all.extend((0..piece.len as usize).map(|i| unsafe { *piece.at.add(i) }));
    }
    all
}

fn with_header(frame: &[u8]) -> Vec<u8> {
    let mut all = vec![0; 12];
    all.extend(frame);
    all
}

/// Splits `data` at `at` into a chain of direct descriptors from `first` on.
fn chain(guest: &Guest, queue: &Queue<'_>, first: u16, data: &[u8], pieces: &[usize]) {
    let mut at = DATA + u64::from(first) * 0x1_0000;
    let mut rest = data;
    for (i, &len) in pieces.iter().enumerate() {
        let (piece, tail) = rest.split_at(len);
        guest.write(at, piece);
        let flags = if i + 1 < pieces.len() { NEXT } else { 0 };
        describe(queue, first + i as u16, &[desc(at, len as u32, flags, first + i as u16 + 1)]);
        rest = tail;
        at += len as u64 + 3;
    }
    assert!(rest.is_empty());
}

#[test]
fn one_descriptor_of_any_size_arrives_whole_and_goes_back_once() {
    for len in [14, 15, 31, 32, 59, 60, 63, 64, 65, 128, 1514, 9000] {
        let guest = Guest::new();
        let queue = guest.queue();
        let mut ring = guest.start(&queue);
        let sent = frame(len as u8, len);
        chain(&guest, &queue, 0, &with_header(&sent), &[len + 12]);
        offer(&queue, &[0]);
        let mut burst = Burst::default();
        assert_eq!(ring.take(&mut burst, 64), Ok(1));
        assert_eq!(bytes(&burst, &burst.frames()[0]), sent, "{len}");
        assert!(used(&queue).is_empty(), "nothing goes back before the burst is complete");
        ring.complete(&burst);
        assert_eq!(used(&queue), [(0, 0)]);
        assert_eq!(ring.take(&mut burst, 64), Ok(0));
    }
}

#[test]
fn the_header_may_be_split_at_every_offset_and_into_single_bytes() {
    let sent = frame(3, 200);
    let data = with_header(&sent);
    let mut shapes: Vec<Vec<usize>> = (1..12).map(|at| vec![at, data.len() - at]).collect();
    shapes.push([vec![1; 12], vec![200]].concat());
    shapes.push([vec![1; 30], vec![data.len() - 30]].concat());
    shapes.push(vec![0, 12, 0, 100, 0, 100]);
    for shape in shapes {
        let guest = Guest::new();
        let queue = guest.queue();
        let mut ring = guest.start(&queue);
        chain(&guest, &queue, 0, &data, &shape);
        offer(&queue, &[0]);
        let mut burst = Burst::default();
        assert_eq!(ring.take(&mut burst, 64), Ok(1));
        assert_eq!(bytes(&burst, &burst.frames()[0]), sent, "{shape:?}");
        ring.complete(&burst);
        assert_eq!(used(&queue), [(0, 0)]);
    }
}

#[test]
fn an_indirect_table_is_followed_at_any_alignment_and_after_direct_descriptors() {
    for table in [DATA + 0x8000, DATA + 0x8008, DATA + 0x8003] {
        let guest = Guest::new();
        let queue = guest.queue();
        let mut ring = guest.start(&queue);
        let sent = frame(9, 300);
        let data = with_header(&sent);
        guest.write(DATA, &data);
        guest.indirect(
            table,
            &[desc(DATA + 12, 100, NEXT, 2), desc(0, 0, 0, 0), desc(DATA + 112, 200, 0, 0)],
        );
        describe(&queue, 5, &[desc(DATA, 12, NEXT, 6), desc(table, 48, INDIRECT, 0)]);
        offer(&queue, &[5]);
        let mut burst = Burst::default();
        assert_eq!(ring.take(&mut burst, 64), Ok(1));
        assert_eq!(bytes(&burst, &burst.frames()[0]), sent);
    }
}

#[test]
fn a_buffer_across_two_regions_is_one_frame() {
    let guest = Guest::new();
    let queue = guest.queue();
    let mut ring = guest.start(&queue);
    let sent = frame(1, 1000);
    let at = MEMORY / 2 - 500;
    guest.write(at, &with_header(&sent));
    describe(&queue, 0, &[desc(at, 1012, 0, 0)]);
    offer(&queue, &[0]);
    let mut burst = Burst::default();
    assert_eq!(ring.take(&mut burst, 64), Ok(1));
    assert_eq!(bytes(&burst, &burst.frames()[0]), sent);
}

#[test]
fn what_is_no_frame_is_rejected_by_name_and_its_head_goes_back() {
    let table = DATA + 0x8000;
    let cases: Vec<(&str, Vec<Descriptor>, Vec<Descriptor>, DropReason)> = vec![
        (
            "loop",
            vec![desc(DATA, 8, NEXT, 1), desc(DATA, 8, NEXT, 0)],
            vec![],
            DropReason::BadChain,
        ),
        ("next beyond the table", vec![desc(DATA, 100, NEXT, SIZE)], vec![], DropReason::BadChain),
        ("outside memory", vec![desc(MEMORY, 100, 0, 0)], vec![], DropReason::BadAddress),
        ("last byte outside", vec![desc(MEMORY - 99, 100, 0, 0)], vec![], DropReason::BadAddress),
        ("wraps", vec![desc(u64::MAX - 10, 100, 0, 0)], vec![], DropReason::BadAddress),
        ("writable", vec![desc(DATA, 100, WRITE, 0)], vec![], DropReason::BadDirection),
        ("empty", vec![desc(DATA, 0, 0, 0)], vec![], DropReason::TooShort),
        ("header only", vec![desc(DATA, 12, 0, 0)], vec![], DropReason::TooShort),
        ("13 bytes of frame", vec![desc(DATA, 25, 0, 0)], vec![], DropReason::TooShort),
        ("too long", vec![desc(DATA, MAX_FRAME_LEN + 13, 0, 0)], vec![], DropReason::TooLong),
        ("4 GiB", vec![desc(DATA, u32::MAX, 0, 0)], vec![], DropReason::BadAddress),
        ("odd table", vec![desc(table, 24, INDIRECT, 0)], vec![], DropReason::BadChain),
        ("empty table", vec![desc(table, 0, INDIRECT, 0)], vec![], DropReason::BadChain),
        ("table outside", vec![desc(MEMORY, 16, INDIRECT, 0)], vec![], DropReason::BadAddress),
        ("table and next", vec![desc(table, 16, INDIRECT | NEXT, 1)], vec![], DropReason::BadChain),
        (
            "nested table",
            vec![desc(table, 16, INDIRECT, 0)],
            vec![desc(table, 16, INDIRECT, 0)],
            DropReason::BadChain,
        ),
        (
            "loop in a table",
            vec![desc(table, 16, INDIRECT, 0)],
            vec![desc(DATA, 1, NEXT, 0)],
            DropReason::BadChain,
        ),
        (
            "next beyond its table",
            vec![desc(table, 16, INDIRECT, 0)],
            vec![desc(DATA, 100, NEXT, 1)],
            DropReason::BadChain,
        ),
    ];
    for (name, direct, indirect, reason) in cases {
        let guest = Guest::new();
        let queue = guest.queue();
        let mut ring = guest.start(&queue);
        guest.indirect(table, &indirect);
        describe(&queue, 0, &direct);
        describe(&queue, 20, &[desc(DATA, 100, 0, 0)]);
        offer(&queue, &[0, 20]);
        let mut burst = Burst::default();
        // A chain that claims 64 KiB or more is a burst of its own.
        ring.take(&mut burst, 64).unwrap();
        assert_eq!(burst.rejected().collect::<Vec<_>>(), [reason], "{name}");
        let mut frames = burst.frames().len();
        ring.complete(&burst);
        ring.take(&mut burst, 64).unwrap();
        frames += burst.frames().len();
        ring.complete(&burst);
        assert_eq!(frames, 1, "{name}: the good frame behind it is taken");
        assert_eq!(used(&queue), [(0, 0), (20, 0)], "{name}");
    }
}

#[test]
fn a_table_of_65535_descriptors_ends_at_the_limit() {
    let guest = Guest::new();
    let queue = guest.queue();
    let mut ring = guest.start(&queue);
    let table = 0x8_0000;
    let count = (MEMORY / 2 - table) / 16;
    let entries: Vec<_> = (0..count).map(|i| desc(DATA, 1, NEXT, (i + 1) as u16)).collect();
    guest.indirect(table, &entries);
    describe(&queue, 0, &[desc(table, (16 * count) as u32, INDIRECT, 0)]);
    offer(&queue, &[0]);
    let mut burst = Burst::default();
    assert_eq!(ring.take(&mut burst, 64), Ok(1));
    assert_eq!(burst.rejected().collect::<Vec<_>>(), [DropReason::BadChain]);
}

#[test]
fn an_index_that_ran_ahead_or_a_head_that_does_not_exist_breaks_the_ring() {
    let guest = Guest::new();
    let queue = guest.queue();
    let mut ring = guest.start(&queue);
    let mut burst = Burst::default();
    queue.avail().idx().store((SIZE + 1).to_le());
    let error = ring.take(&mut burst, 64);
    assert_eq!(error, Err(RingError::AvailIndex { ahead: SIZE + 1, size: SIZE }));
    queue.avail().idx().store(0);
    offer(&queue, &[SIZE]);
    assert_eq!(ring.take(&mut burst, 64), Err(RingError::Head { head: SIZE, size: SIZE }));
    assert!(used(&queue).is_empty());
}

#[test]
fn a_burst_ends_at_64_frames_and_at_64_kib() {
    let guest = Guest::new();
    let queue = guest.queue();
    let mut ring = guest.start(&queue);
    describe(&queue, 0, &[desc(DATA, 100, 0, 0), desc(DATA, 40_000, 0, 0)]);
    offer(&queue, &[0; SIZE as usize]);
    let mut burst = Burst::default();
    assert_eq!(ring.take(&mut burst, 10), Ok(10));
    ring.complete(&burst);
    assert_eq!(ring.take(&mut burst, 1000), Ok(SIZE as usize - 10));
    ring.complete(&burst);
    offer(&queue, &[1, 1, 1]);
    assert_eq!(ring.take(&mut burst, 64), Ok(2));
    ring.complete(&burst);
    assert_eq!(ring.take(&mut burst, 64), Ok(1));
}

/// Frames whose bytes lie mostly behind their first descriptor, as Linux sends them.
#[test]
fn a_burst_of_chains_ends_at_64_kib_too() {
    let guest = Guest::new();
    let queue = guest.queue();
    let mut ring = guest.start(&queue);
    describe(&queue, 0, &[desc(DATA, 100, NEXT, 1), desc(DATA, 30_000, 0, 0)]);
    offer(&queue, &[0; 10]);
    let mut burst = Burst::default();
    // The third frame crosses the limit.
    for left in [10, 7, 4, 1] {
        assert_eq!(ring.take(&mut burst, 64), Ok(left.min(3)));
        ring.complete(&burst);
    }
}

#[test]
fn rejected_chains_count_the_descriptors_they_made_us_read() {
    let guest = Guest::new();
    let queue = guest.queue();
    let mut ring = guest.start(&queue);
    // Empty descriptors, which make no pieces, and a last descriptor that points outside of memory.
    let mut table: Vec<_> = (1..1000).map(|next| desc(DATA, 0, NEXT, next)).collect();
    table.push(desc(u64::MAX, 1, 0, 0));
    guest.indirect(DATA, &table);
    describe(&queue, 0, &[desc(DATA, 16_000, INDIRECT, 0)]);
    offer(&queue, &[0; SIZE as usize]);
    let mut burst = Burst::default();
    let mut bursts = 0;
    while ring.take(&mut burst, 64) != Ok(0) {
        assert_eq!(burst.frames().len(), 0);
        assert!(burst.taken() <= 5, "{} in one burst", burst.taken());
        ring.complete(&burst);
        bursts += 1;
    }
    assert!(bursts >= 15, "{bursts}");
}

#[test]
fn what_is_cut_from_a_burst_is_taken_again() {
    let guest = Guest::new();
    let queue = guest.queue();
    let mut ring = guest.start(&queue);
    describe(&queue, 0, &[desc(DATA, 100, 0, 0), desc(DATA, 4, 0, 0)]);
    offer(&queue, &[0, 1, 0, 1, 0]);
    let mut burst = Burst::default();
    assert_eq!(ring.take(&mut burst, 64), Ok(5));
    burst.give_back_from(1);
    assert_eq!((burst.frames().len(), burst.taken()), (1, 2));
    assert_eq!(burst.rejected().count(), 1, "the reject behind the cut is not counted twice");
    ring.complete(&burst);
    assert_eq!(used(&queue), [(0, 0), (1, 0)]);
    assert_eq!(ring.take(&mut burst, 64), Ok(3));
    assert_eq!(burst.frames().len(), 2);
}

#[test]
fn the_ring_wraps_around_its_size_and_its_index() {
    let guest = Guest::new();
    let queue = guest.queue();
    // A ring that has been running for long: both indices are just before the wrap.
    let at = u16::MAX - 20;
    queue.used().idx().store(at.to_le());
    queue.avail().idx().store(at.to_le());
    let mut ring = guest.start(&queue);
    assert_eq!(ring.base(), at);
    describe(&queue, 0, &[desc(DATA, 100, 0, 0)]);
    let mut burst = Burst::default();
    for _ in 0..50 {
        offer(&queue, &[0]);
        assert_eq!(ring.take(&mut burst, 64), Ok(1));
        ring.complete(&burst);
    }
    assert_eq!(u16::from_le(queue.used().idx().load()), at.wrapping_add(50));
}

/// The guest's memory, with its upper half split into regions of one page.
fn in_slivers(guest: &Guest) -> Arc<MemTable> {
    let fd = memfd("slivers", MEMORY).unwrap();
    let truncated = Arc::default();
    let region = |gpa: u64, len: u64| {
        let mapping = Mapping::new(fd.try_clone().unwrap(), gpa, len, &truncated).unwrap();
        Region { gpa, uva: gpa, offset: gpa, mapping: Arc::new(mapping) }
    };
    let half = MEMORY / 2;
    let mut table = guest.table.without(half, half, half).unwrap();
    for page in 0..half / 4096 {
        table = table.with(region(half + page * 4096, 4096)).unwrap();
    }
    Arc::new(table)
}

#[test]
fn each_region_that_a_descriptor_reaches_into_is_paid_for() {
    let guest = Guest::new();
    let queue = guest.queue();
    let mut ring = SplitRing::start(in_slivers(&guest), &guest.config(&queue)).unwrap();
    // A buffer in 256 regions is no frame, but costs 256 searches.
    for head in 0..SIZE {
        describe(&queue, head, &[desc(MEMORY / 2, (MEMORY / 2) as u32, 8, 0)]);
    }
    offer(&queue, &(0..SIZE).collect::<Vec<_>>());
    let mut burst = Burst::default();
    assert_eq!(ring.take(&mut burst, 64), Ok(1));
    assert_eq!(burst.rejected().collect::<Vec<_>>(), [DropReason::TooLong]);
    ring.complete(&burst);
    // The length of an indirect table is unknown before it is walked.
    guest.indirect(DATA, &[desc(MEMORY / 2, (MEMORY / 2) as u32, 0, 0)]);
    for head in 0..SIZE {
        describe(&queue, head, &[desc(DATA, 16, INDIRECT, 0)]);
    }
    assert_eq!(ring.take(&mut burst, 64), Ok(2));
}

#[test]
fn what_is_discarded_goes_back_unread_a_burst_at_a_time() {
    let guest = Guest::new();
    let queue = Queue::create(&guest.driver, 0x1000, 256);
    let mut ring = guest.start(&queue);
    // Addresses outside of guest memory: a device that read the descriptors would report them.
    for head in 0..256 {
        describe(&queue, head, &[desc(u64::MAX, u32::MAX, 0xffff, 0xffff)]);
    }
    offer(&queue, &(0..100).map(|i| i * 2).collect::<Vec<_>>());
    // Heads are counted before the driver sees one.
    let mut back = 0;
    let mut discard = |limit| {
        let before = used(&queue).len();
        let discarded = ring.discard(limit, |taken| {
            assert_eq!(used(&queue).len(), before, "{taken}");
            back += taken;
        });
        assert_eq!(used(&queue).len(), back);
        discarded
    };
    assert_eq!(discard(10), Ok((10, true)));
    assert_eq!(discard(256), Ok((64, true)));
    assert_eq!(discard(256), Ok((26, true)));
    assert_eq!(discard(256), Ok((0, false)));
    let back: Vec<_> = (0..100).map(|i| (i * 2, 0)).collect();
    assert_eq!(used(&queue), back);
    offer(&queue, &[3, 256]);
    let counted = |taken| panic!("{taken} counted");
    assert_eq!(ring.discard(256, counted), Err(RingError::Head { head: 256, size: 256 }));
    assert_eq!(used(&queue), back, "nothing is half done");
    assert_eq!(ring.base(), 100);
}

/// A ring that is resumed ignores used.idx; a ring that starts takes its indices from used.idx.
#[test]
fn a_ring_that_lost_its_memory_goes_on_where_it_stood() {
    let guest = Guest::new();
    let queue = guest.queue();
    let mut ring = guest.start(&queue);
    let mut burst = Burst::default();
    chain(&guest, &queue, 0, &with_header(&frame(1, 100)), &[112]);
    offer(&queue, &[0, 0, 0]);
    assert_eq!(ring.take(&mut burst, 2), Ok(2));
    ring.complete(&burst);
    assert!(!ring.never_moved());
    let at = ring.position();
    drop(ring);
    queue.used().idx().store(1u16.to_le());
    let table = Arc::clone(&guest.table);
    let mut ring = SplitRing::resume(table, &guest.config(&queue), at).unwrap();
    assert_eq!((at.base(), ring.base(), ring.position()), (2, 2, at));
    assert!(!ring.never_moved());
    assert_eq!(ring.take(&mut burst, 64), Ok(1));
    ring.complete(&burst);
    assert_eq!(used(&queue).len(), 3);
    queue.used().idx().store(1u16.to_le());
    ring.begin_at_used();
    assert_eq!(ring.base(), 1);
}

/// A driver that kicks at first with an empty ring writes other memory than the device reads. After
/// 65,536 buffers the indices are those of an empty ring again.
#[test]
fn a_ring_that_moved_once_has_moved() {
    let guest = Guest::new();
    let queue = guest.queue();
    assert!(guest.start(&queue).never_moved());
    let mut ring = guest.start(&queue);
    let mut burst = Burst::default();
    chain(&guest, &queue, 0, &with_header(&frame(1, 100)), &[112]);
    offer(&queue, &[0; 64]);
    assert!(!ring.never_moved());
    for _ in 0..65_536 / 64 - 1 {
        assert_eq!(ring.take(&mut burst, 64), Ok(64));
        ring.complete(&burst);
        offer(&queue, &[0; 64]);
    }
    assert_eq!(ring.take(&mut burst, 64), Ok(64));
    ring.complete(&burst);
    assert_eq!((ring.base(), used(&queue).len()), (0, 0));
    assert!(!ring.never_moved());
}
