//! Any memory of sender and receivers: changed between and within bursts; frames, rejects and bytes
//! are those of a second reading of the specification, nothing is written outside writable buffers,
//! and used lengths, signals and dirty marks are right.
//!
//! Expectations come from a copy of the memory and a second reading of the specification
//! (`model`). Of a transmit ring: which heads are frames, with which bytes and headers, and why the
//! others are none; nothing but used elements is written. Of a receive ring: see `receive`.

mod driver;
mod memory;
mod model;
mod receive;

use base::frame::VnetHdr;
use base::frame::offload;
use base::limits::{
    BURST_FRAMES, BURST_PIECES, MAX_FRAME_LEN, MAX_HEADERS_LEN, MIN_FRAME_LEN, SNAPSHOT_LEN,
};
use base::stats::DropReason;
use datapath::ring::{Burst, Frame, RingError, RxScratch};

use self::driver::Driver;
use self::memory::Memory;
use self::receive::{Receiver, deliver};
use super::input::Input;

/// Bursts of one input at most: each compares whole memories.
const BURSTS: usize = 12;
const STEPS: usize = 400;

/// What is expensive to make: used again by the next input of this thread.
struct Lab {
    memories: [Memory; 4],
    logs: [receive::Log; 3],
    burst: Burst,
    scratch: RxScratch,
}

thread_local! {
    static LAB: std::cell::RefCell<Lab> = std::cell::RefCell::new(Lab {
        memories: std::array::from_fn(|_| Memory::new()),
        logs: std::array::from_fn(|_| receive::Log::new()),
        burst: Burst::default(),
        scratch: RxScratch::default(),
    });
}

/// The target.
pub fn run(data: &[u8]) {
    LAB.with_borrow_mut(|lab| converse(lab, &mut Input::new(data)));
}

fn converse(lab: &mut Lab, input: &mut Input<'_>) {
    let Lab { memories, logs, burst, scratch } = lab;
    let [first, rest @ ..] = memories;
    let count = 1 + input.below(3);
    let mut sender = Driver::start(first, input, false);
    let mut receivers: Vec<Receiver<'_>> = rest[..count]
        .iter()
        .zip(logs)
        .map(|(memory, log)| Receiver::start(memory, log, input))
        .collect();
    let mut bursts = 0;
    for _ in 0..STEPS {
        if input.is_empty() || bursts == BURSTS {
            break;
        }
        let code = input.u8();
        let receiver = &mut receivers[usize::from(code >> 6) % count];
        match code & 0x3f {
            0..=9 => sender.packet(input),
            10..=15 => sender.any_frame(input),
            16..=25 => receiver.driver.post(input),
            26..=33 => sender.poke(input),
            34..=40 => receiver.driver.poke(input),
            41 => sleep(&mut sender),
            42 => sleep(&mut receiver.driver),
            43 => move_memory(&mut sender),
            _ => {
                bursts += 1;
                one_burst(&mut sender, &mut receivers, burst, scratch, input);
            }
        }
    }
    one_burst(&mut sender, &mut receivers, burst, scratch, input);
}

/// A worker that goes to sleep, and one that comes back.
fn sleep(driver: &mut Driver<'_>) {
    let before = driver.memory.image();
    let waiting = driver.place.avail_idx(&before) != driver.ring.base();
    assert_eq!(driver.ring.has_work(), waiting);
    // An event index that happens to be avail.idx itself can not be told apart; the ring's parts
    // never overlap.
    assert_eq!(driver.ring.enable_kicks(), waiting);
    driver.ring.suppress_kicks();
    let after = driver.memory.image();
    let allowed = driver.place.parts()[2];
    assert_only(&before, &after, &[allowed]);
}

/// The same memory as another table, as after `SET_MEM_TABLE`.
fn move_memory(driver: &mut Driver<'_>) {
    let base = driver.ring.base();
    let table = std::sync::Arc::clone(&driver.memory.table);
    driver.ring.rebase(table, &driver.config).expect("as before");
    assert_eq!(driver.ring.base(), base);
}

fn one_burst(
    sender: &mut Driver<'_>,
    receivers: &mut [Receiver<'_>],
    burst: &mut Burst,
    scratch: &mut RxScratch,
    input: &mut Input<'_>,
) {
    let limit = input.choose(&[BURST_FRAMES, 1, 3, usize::MAX]);
    let Some(rejected) = take(sender, burst, limit) else {
        sender.restart();
        return;
    };
    let way = input.u8();
    if way & 1 != 0 {
        // The guest goes on writing while its frames are on their way.
        for _ in 0..input.below(4) {
            sender.poke(input);
        }
    }
    if way & 2 != 0 {
        burst.give_back_from(input.below(BURST_FRAMES));
        let left = rejected.iter().filter(|&&position| position < burst.taken()).count();
        assert_eq!(burst.rejected().count(), left);
        assert_eq!(burst.frames().len() + left, burst.taken());
    }
    for receiver in receivers {
        let mask = input.choose(&[u64::MAX, 0x5555_5555_5555_5555, 1, 0xff00, 0]);
        let run: Vec<u8> =
            (0..burst.frames().len() as u8).filter(|&i| mask >> i & 1 != 0).collect();
        deliver(receiver, burst, &run, scratch, input);
    }
    complete(sender, burst);
}

/// Takes a burst; none if the ring is broken, as it then has to be. Answers with the positions of
/// the heads that are no frames.
fn take(sender: &mut Driver<'_>, burst: &mut Burst, limit: usize) -> Option<Vec<usize>> {
    let Driver { place, config, ring, memory, .. } = sender;
    let image = memory.image();
    let next = ring.base();
    let ahead = place.avail_idx(&image).wrapping_sub(next);
    let most = usize::from(ahead).min(limit).min(BURST_FRAMES);
    let head = |i: usize| place.head(&image, next.wrapping_add(i as u16));
    let answer = ring.take(burst, limit);
    assert!(memory.image() == image, "taking writes nothing");
    assert_eq!(ring.base(), next);
    if ahead > place.size {
        assert_eq!(answer, Err(RingError::AvailIndex { ahead, size: place.size }));
        return None;
    }
    if let Some(head) = (0..most).map(head).find(|&head| head >= place.size) {
        assert_eq!(answer, Err(RingError::Head { head, size: place.size }));
        return None;
    }
    let count = answer.expect("a sound ring");
    assert_eq!(count, burst.taken());
    assert!(count <= most && (count > 0 || most == 0), "{count} of {most}");
    let mut frames = burst.frames().iter().peekable();
    let mut rejected = burst.rejected();
    let mut no_frames = Vec::new();
    for position in 0..count {
        // As many pieces as there is room for, with headers of each frame apart.
        let room = BURST_PIECES + BURST_FRAMES;
        let expected = place
            .chain(&image, head(position), false, room)
            .and_then(|chain| frame(&image, &chain, config));
        match expected {
            Ok(expected) => {
                let frame = frames.next_if(|frame| usize::from(frame.position) == position);
                let frame = frame.unwrap_or_else(|| panic!("{position} is a frame"));
                expected.compare(burst, frame);
            }
            Err(reason) => {
                assert_eq!(rejected.next(), Some(reason), "position {position}");
                no_frames.push(position);
            }
        }
    }
    assert!(frames.next().is_none() && rejected.next().is_none());
    Some(no_frames)
}

/// What a chain is to become.
struct Expected {
    header: VnetHdr,
    bytes: Vec<u8>,
    request: offload::Request,
}

fn frame(
    image: &[u8],
    chain: &model::Chain,
    config: &datapath::ring::RingConfig,
) -> Result<Expected, DropReason> {
    let header_len = usize::from(config.header_len);
    if chain.len < header_len + MIN_FRAME_LEN as usize {
        return Err(DropReason::TooShort);
    }
    if chain.len > header_len + MAX_FRAME_LEN as usize {
        return Err(DropReason::TooLong);
    }
    let mut bytes = chain.bytes(image, chain.len);
    let rest = bytes.split_off(header_len);
    bytes.resize(12, 0);
    let header = VnetHdr::from_bytes(bytes.try_into().expect("twelve"));
    let first = &rest[..rest.len().min(MAX_HEADERS_LEN)];
    let request = offload::check(header, first, rest.len() as u32, config.offloads)
        .map_err(|_| DropReason::BadOffload)?;
    Ok(Expected { header, bytes: rest, request })
}

impl Expected {
    fn compare(&self, burst: &Burst, frame: &Frame) {
        assert_eq!(frame.len as usize, self.bytes.len());
        assert!(gathered(burst, frame) == self.bytes, "other bytes");
        if burst.needs_offloads() {
            assert_eq!((frame.header, frame.needs), (self.request.header, self.request.needs));
            assert!(self.request.needs.is_empty() || frame.l3 == self.request.l3);
        } else {
            assert_eq!(frame.header, self.header);
            assert!(self.header.is_plain());
        }
    }
}

/// All bytes of a frame as they are now.
fn gathered(burst: &Burst, frame: &Frame) -> Vec<u8> {
    let len = frame.len as usize;
    let mut bytes = frame.snapshot[..len.min(SNAPSHOT_LEN)].to_vec();
    for piece in std::iter::once(&frame.rest).chain(burst.more(frame)) {
        if piece.len > 0 {
            // SAFETY: a piece lies in the sender's memory, mapped for as long as the thread lives,
            // or in the burst; nobody writes there now.
            let part = unsafe { std::slice::from_raw_parts(piece.at, piece.len as usize) };
            bytes.extend_from_slice(part);
        }
    }
    bytes
}

/// Gives the burst back: each head once, in order, and a signal if the driver wants one.
fn complete(sender: &mut Driver<'_>, burst: &Burst) {
    let before = sender.memory.image();
    let (first, count) = (sender.ring.base(), burst.taken() as u16);
    let signal = sender.ring.complete(burst);
    let after = sender.memory.image();
    let last = first.wrapping_add(count);
    assert_eq!(sender.ring.base(), last);
    let place = &sender.place;
    assert_only(&before, &after, &[place.parts()[2]]);
    if count == 0 {
        assert!(!signal && before == after);
        return;
    }
    assert_eq!(place.used_idx(&after), last);
    for i in 0..count {
        let position = first.wrapping_add(i);
        // The head as it was taken: the ring may say something else by now.
        let (head, len) = place.used(&after, position);
        assert_eq!(len, 0);
        assert!(head < u32::from(place.size));
    }
    let wanted = place.wants_signal(&after, sender.config.event_idx, first, last);
    assert_eq!(signal, std::mem::take(&mut sender.fresh) || wanted);
}

/// Fails if `after` differs from `before` outside of these ranges.
fn assert_only(before: &[u8], after: &[u8], allowed: &[(usize, usize)]) {
    let mut range = 0..0;
    for at in changes(before, after) {
        if !range.contains(&at) {
            let ranges = allowed.iter().map(|&(start, len)| start..start + len);
            let found = ranges.into_iter().find(|range| range.contains(&at));
            range = found.unwrap_or_else(|| panic!("{:x?} was written", memory::address(at)));
        }
    }
}

/// Where the images differ. Most of them does not: whole blocks are passed over.
fn changes<'a>(before: &'a [u8], after: &'a [u8]) -> impl Iterator<Item = usize> + 'a {
    const BLOCK: usize = 256;
    let blocks = before.chunks(BLOCK).zip(after.chunks(BLOCK)).enumerate();
    blocks
        .filter(|(_, (a, b))| a != b)
        .flat_map(|(n, (a, b))| (0..a.len()).filter(|&i| a[i] != b[i]).map(move |i| n * BLOCK + i))
}
