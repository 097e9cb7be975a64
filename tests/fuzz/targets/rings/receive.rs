//! Delivering: what a receive ring and its guest's memory must look like afterwards.
//!
//! Always: nothing outside the guest's regions is written. Unless buffers lie over the ring or its
//! tables: nothing outside of offered buffers and the used ring; each buffer taken comes back once,
//! in order, with a length it has; every page that changed is in the dirty log and no other.
//! Unless buffers lie over each other as well: what arrives are the frames of the run, in order,
//! each whole, or finished, or as its segments; nothing behind a used length is written, and a
//! frame waits only for want of buffers.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use base::frame::offload::{DATA_VALID, NEEDS_CSUM, Offloads};
use base::frame::{Segmenter, Sum, VnetHdr};
use base::limits::{MAX_CHAIN_DESCRIPTORS, MAX_HEADERS_LEN};
use datapath::memory::{DirtyLog, Extent};
use datapath::ring::split::RingLog;
use datapath::ring::{Burst, Delivered, Frame, RingError, RxScratch, Segmentation};
use sys::fs::memfd;

use super::super::input::Input;
use super::super::packet::ones;
use super::driver::Driver;
use super::memory::{Memory, address};
use super::model::{Chain, Spans};
use super::{assert_only, changes, gathered};

const LOG_BYTES: usize = 32;
const PAGE: u64 = 4096;

/// A dirty log and its other side.
pub struct Log {
    log: Arc<DirtyLog>,
    file: File,
}

impl Log {
    pub fn new() -> Log {
        let fd = memfd("log", LOG_BYTES as u64).expect("memfd");
        let file = File::from(fd.try_clone().expect("descriptor"));
        let extent = Extent::new(fd, 0, LOG_BYTES as u64).expect("extent");
        let log = DirtyLog::new(extent, &Arc::default()).expect("log");
        Log { log: Arc::new(log), file }
    }

    /// The marked pages; none are from now on.
    fn take(&self) -> Vec<u64> {
        let mut bytes = [0; LOG_BYTES];
        self.file.read_exact_at(&mut bytes, 0).expect("memfd");
        self.file.write_all_at(&[0; LOG_BYTES], 0).expect("memfd");
        (0..8 * LOG_BYTES as u64).filter(|n| bytes[*n as usize / 8] >> (n % 8) & 1 != 0).collect()
    }
}

pub struct Receiver<'m> {
    pub driver: Driver<'m>,
    log: &'m Log,
    logged: bool,
}

impl<'m> Receiver<'m> {
    pub fn start(memory: &'m Memory, log: &'m Log, input: &mut Input<'_>) -> Receiver<'m> {
        let mut receiver =
            Receiver { driver: Driver::start(memory, input, true), log, logged: input.flag() };
        receiver.set_log();
        receiver
    }

    fn set_log(&mut self) {
        self.log.take();
        let used_gpa = Some(self.driver.place.used);
        let log = RingLog { log: Arc::clone(&self.log.log), used_gpa };
        self.driver.ring.set_log(self.logged.then_some(log));
    }

    fn restart(&mut self) {
        self.driver.restart();
        self.set_log();
    }
}

/// The buffers offered, as the memory had them before.
struct Offer {
    /// Head and chain of each, none of a chain that is none.
    buffers: Vec<(u16, Option<Chain>)>,
    /// The driver has not taken any of them back, nor shown more than there can be.
    certain: bool,
    /// Some lie over the ring or its tables.
    over_ring: bool,
    /// Some lie over each other.
    over_each_other: bool,
}

fn offer(driver: &Driver<'_>, image: &[u8]) -> Offer {
    let place = &driver.place;
    let base = driver.ring.base();
    let now = place.avail_idx(image).wrapping_sub(base);
    let seen = Some(driver.seen.wrapping_sub(base)).filter(|&seen| seen <= place.size);
    // More than the ring holds is found out when what was seen before is used up, if it still is
    // more by then.
    let ahead = seen.unwrap_or(0).max(now.min(2 * place.size));
    let mut buffers = Vec::new();
    let mut structures = place.parts();
    for i in 0..ahead {
        let head = place.head(image, base.wrapping_add(i));
        if head >= place.size {
            break;
        }
        let chain = place.chain(image, head, true, 2 * MAX_CHAIN_DESCRIPTORS).ok();
        structures.extend(chain.iter().flat_map(|chain| chain.tables.clone()));
        buffers.push((head, chain));
    }
    // What stands over what shows where the next begins before one ends. Also of chains that end
    // badly: they are walked, though not written.
    let spans = buffers.iter().filter_map(|b| b.1.as_ref()).flat_map(|c| c.spans.clone());
    let mut all: Vec<(usize, usize, bool)> = structures.iter().map(|s| (s.0, s.1, true)).collect();
    all.extend(spans.map(|(at, len)| (at, len, false)));
    all.retain(|span| span.1 > 0);
    all.sort_unstable();
    let (mut over_ring, mut over_each_other) = (false, false);
    // Ends of the structures and of the buffers so far.
    let (mut structure_end, mut buffer_end) = (0, 0);
    for (at, len, is_structure) in all {
        over_ring |= at < if is_structure { buffer_end } else { structure_end };
        over_each_other |= !is_structure && at < buffer_end;
        let end = if is_structure { &mut structure_end } else { &mut buffer_end };
        *end = (at + len).max(*end);
    }
    Offer { buffers, certain: ahead == now && now <= place.size, over_ring, over_each_other }
}

/// A frame as a receiver should see it: headers and bytes, one or several.
type Packets = Vec<(VnetHdr, Vec<u8>)>;

/// What becomes of a frame for a receiver; none if it cannot be cut.
fn packets(burst: &Burst, frame: &Frame, may: Offloads) -> Option<Packets> {
    let mut bytes = gathered(burst, frame);
    if !burst.needs_offloads() {
        return Some(vec![(VnetHdr::plain(1), bytes)]);
    }
    if may.has(frame.needs) {
        return Some(vec![(frame.header, bytes)]);
    }
    let request = frame.request();
    if !request.is_gso() {
        assert_ne!(frame.header.flags & NEEDS_CSUM, 0, "a guest's frame needs nothing else");
        let (start, at) = (request.csum_start(), request.csum_at());
        let sum = match !(ones(0, &bytes[start..]) as u16) {
            0 => 0xffff,
            sum => sum,
        };
        bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        return Some(vec![(VnetHdr::plain(1), bytes)]);
    }
    let first = &bytes[..bytes.len().min(MAX_HEADERS_LEN)];
    let mut segmenter = Segmenter::new(&request, first, frame.len)?;
    let flags = if may.has(Offloads::CSUM) { DATA_VALID } else { 0 };
    let header = VnetHdr { flags, ..VnetHdr::plain(1) };
    let count = segmenter.segments();
    let segment = |index| {
        let (from, len) = segmenter.payload(index);
        let part = &bytes[from as usize..][..len as usize];
        (header, [segmenter.complete(index, Sum::of(part)), part].concat())
    };
    Some((0..count).map(segment).collect())
}

/// Delivers `run` and checks everything.
pub fn deliver(
    receiver: &mut Receiver<'_>,
    burst: &Burst,
    run: &[u8],
    scratch: &mut RxScratch,
    input: &mut Input<'_>,
) {
    let cut = input.choose(&[
        Segmentation::Whole,
        Segmentation::Part(1024),
        Segmentation::Part(64),
        Segmentation::Part(2),
    ]);
    let driver = &mut receiver.driver;
    let before = driver.memory.image();
    let base = driver.ring.base();
    let offer = offer(driver, &before);
    receiver.log.take();
    let done = driver.ring.deliver(burst, run, scratch, cut);
    let after = driver.memory.image();
    let marked = receiver.log.take();
    let place = driver.place;
    let taken = driver.ring.base().wrapping_sub(base);

    assert!(done.settled <= run.len());
    // Bits of places in the run: none is dropped for both.
    assert_eq!(done.no_fit & done.bad_offload, 0);
    let dropped = u64::from((done.no_fit | done.bad_offload).count_ones());
    assert_eq!(done.frames + dropped, done.settled as u64);
    let wanted = place.wants_signal(&after, driver.config.event_idx, base, driver.ring.base());
    let signal = taken > 0 && (driver.fresh || wanted);
    // Payload over the ring may have changed the wish, but nothing wrote after it was read.
    assert_eq!(done.signal, signal);
    driver.fresh &= taken == 0;
    let nobody: Spans =
        super::memory::REGIONS.iter().map(|r| (r.2 as usize, r.1 as usize)).collect();
    assert_only(&before, &after, &nobody);
    if let Some(error) = done.broken {
        let ahead = place.avail_idx(&before).wrapping_sub(base);
        let sound = match error {
            // Or the driver has taken buffers back that were seen, and used since, if only for the
            // segments of a packet that then found no room.
            RingError::AvailIndex { .. } => ahead > place.size || !offer.certain,
            RingError::Head { head, .. } => head >= place.size,
            _ => false,
        };
        assert!(sound || offer.over_ring, "{error}");
    }
    if !offer.over_ring {
        let mut allowed = vec![place.parts()[2]];
        allowed.extend(
            offer.buffers.iter().filter_map(|b| b.1.as_ref()).flat_map(|c| c.spans.clone()),
        );
        assert_only(&before, &after, &allowed);
        if receiver.logged {
            // Elements behind used.idx mean nothing, and are written again before they do: those
            // of a packet whose segments found too few buffers are not marked.
            let unpublished: Vec<std::ops::Range<usize>> = (taken..place.size)
                .map(|i| place.used_element(base.wrapping_add(i)))
                .map(|at| at..at + 8)
                .collect();
            check_log(&before, &after, &allowed, &unpublished, &marked);
        }
        let used = check_used(driver, &offer, &after, base, taken, &done);
        if !offer.over_each_other {
            check_content(driver, burst, run, &offer, &used, &before, &after, &done);
        }
    }
    // The index is not read again while buffers seen before are left. With payload over the ring
    // nobody can tell what was seen.
    let ahead = |idx: u16| idx.wrapping_sub(driver.ring.base());
    let most = driver.ring.base().wrapping_add(place.size);
    let seen = [driver.seen, place.avail_idx(&after)].into_iter();
    let seen = seen.filter(|&idx| ahead(idx) <= place.size).max_by_key(|&idx| ahead(idx));
    driver.seen = if offer.over_ring { most } else { seen.unwrap_or(driver.ring.base()) };
    if done.broken.is_some() {
        receiver.restart();
    }
}

/// Every page that changed is marked, and every page marked was written to or could have been.
fn check_log(
    before: &[u8],
    after: &[u8],
    allowed: &[(usize, usize)],
    except: &[std::ops::Range<usize>],
    marked: &[u64],
) {
    let page = |at: usize| address(at).map(|gpa| gpa / PAGE);
    let mut known = None;
    for at in changes(before, after) {
        let page = page(at);
        if page != known && !except.iter().any(|range| range.contains(&at)) {
            assert!(page.is_some_and(|page| marked.contains(&page)), "{page:x?} is not marked");
            known = page;
        }
    }
    for page_marked in marked {
        let could = allowed.iter().any(|&(at, len)| {
            len > 0 && page(at) <= Some(*page_marked) && page(at + len - 1) >= Some(*page_marked)
        });
        assert!(could, "page {page_marked:#x} is marked");
    }
}

/// Each buffer taken comes back once, in order; returns their lengths.
fn check_used(
    driver: &Driver<'_>,
    offer: &Offer,
    after: &[u8],
    base: u16,
    taken: u16,
    done: &Delivered,
) -> Vec<usize> {
    let place = &driver.place;
    assert!(usize::from(taken) <= offer.buffers.len(), "{taken} of {}", offer.buffers.len());
    if taken > 0 {
        assert_eq!(place.used_idx(after), base.wrapping_add(taken));
    }
    let mut lengths = Vec::new();
    for (i, (head, chain)) in (0..taken).zip(&offer.buffers) {
        let (id, len) = place.used(after, base.wrapping_add(i));
        assert_eq!(id, u32::from(*head));
        let room = chain.as_ref().map_or(0, |chain| chain.len);
        assert!(len as usize <= room, "{len} in {room}");
        lengths.push(len as usize);
    }
    let unused = lengths.iter().filter(|&&len| len == 0).count();
    assert_eq!(unused as u64, done.bad_buffers);
    lengths
}

/// What arrived is what was sent.
#[allow(clippy::too_many_arguments, reason = "one look at everything there is")]
fn check_content(
    driver: &Driver<'_>,
    burst: &Burst,
    run: &[u8],
    offer: &Offer,
    used: &[usize],
    before: &[u8],
    after: &[u8],
    done: &Delivered,
) {
    // Of a packet whose segments found too few buffers bytes may stay, in buffers still offered.
    let may = driver.config.offloads;
    let frames: Vec<&Frame> =
        run.iter().map(|&index| &burst.frames()[usize::from(index)]).collect();
    let cut = |frame: &&&Frame| {
        burst.needs_offloads() && frame.request().is_gso() && !may.has(frame.needs)
    };
    if frames.iter().filter(cut).count() == 0 {
        for (i, (_, chain)) in offer.buffers.iter().enumerate() {
            let mut skip = used.get(i).copied().unwrap_or(0);
            for &(at, len) in chain.iter().flat_map(|chain| &chain.spans) {
                let written = skip.min(len);
                skip -= written;
                assert!(before[at + written..at + len] == after[at + written..at + len]);
            }
        }
    }
    let mut arrived = arrived(driver, offer, used, after).into_iter().peekable();
    let (mut delivered, mut bytes) = (0, 0);
    for frame in &frames[..done.settled] {
        let Some(packets) = packets(burst, frame, may) else { continue };
        let mut some = false;
        for packet in packets {
            if arrived.next_if_eq(&packet).is_none() {
                break;
            }
            some = true;
        }
        delivered += u64::from(some);
        bytes += if some { u64::from(frame.len) } else { 0 };
    }
    assert!(arrived.next().is_none(), "something arrived that was not sent");
    // Segments of one packet may look like those of the next if some are missing.
    if done.fallbacks.segments_lost == 0 {
        assert_eq!((delivered, bytes), (done.frames, done.bytes));
    }
    if let (Some(frame), None) = (frames.get(done.settled), done.broken) {
        check_want(driver, frame, offer, used.len(), &packets(burst, frame, may));
    }
}

/// The packets in the used buffers: headers with the count of buffers put back to 1.
fn arrived(driver: &Driver<'_>, offer: &Offer, used: &[usize], after: &[u8]) -> Packets {
    let header_len = usize::from(driver.config.header_len);
    let mut filled = used.iter().zip(&offer.buffers).filter_map(|(&len, (_, chain))| {
        let chain = chain.as_ref().filter(|_| len > 0)?;
        Some(chain.bytes(after, len))
    });
    let mut packets = Vec::new();
    while let Some(mut bytes) = filled.next() {
        let mut header = [0; 12];
        header[10] = 1;
        header[..header_len].copy_from_slice(&bytes[..header_len]);
        let mut header = VnetHdr::from_bytes(header);
        let count = u16::from_le_bytes(header.num_buffers);
        assert!(count == 1 || driver.config.mergeable && count > 1, "{count} buffers");
        header.num_buffers = [1, 0];
        bytes.drain(..header_len);
        for _ in 1..count {
            bytes.extend(filled.next().expect("as many buffers as it says"));
        }
        packets.push((header, bytes));
    }
    packets
}

/// A frame that has to wait waits for buffers, not for anything else.
fn check_want(
    driver: &Driver<'_>,
    frame: &Frame,
    offer: &Offer,
    used: usize,
    packets: &Option<Packets>,
) {
    let left = &offer.buffers[used..];
    // What is left behind a chain that is none is not looked at; nor is a packet to be cut, which
    // waits for all of its segments.
    let whole = packets.as_ref().is_some_and(|packets| packets.len() == 1);
    if left.iter().any(|(_, chain)| chain.is_none()) || !whole || !offer.certain {
        return;
    }
    let need = usize::from(driver.config.header_len) + frame.len as usize;
    let room = left.iter().filter_map(|b| b.1.as_ref()).map(|chain| chain.len).sum::<usize>();
    assert!(left.is_empty() || driver.config.mergeable && room < need, "{room} for {need}");
}
