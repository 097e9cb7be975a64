//! Copies of frames for clients that inspect traffic.
//!
//! A [`Capture`] names the ports whose frames are copied, and keeps the copies that workers leave
//! until a client collects them. Workers never wait: if a batch is full or is being collected, the
//! worker loses the copy and counts the loss; so it does if the capture's time is used up. The
//! table of ports lists the captures, so that a burst costs one test while there is no capture.
//!
//! * `allowance` bounds the time that a capture takes from a worker;
//! * [`outcomes`] records the outcome of each copy of a burst's frames;
//! * [`observer`] names receivers of copies: captures and mirrors;
//! * [`filter`] runs the classic BPF programs that choose frames.

mod allowance;
pub mod filter;
pub mod observer;
pub(crate) mod outcomes;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use allowance::Allowance;
use base::limits::{CAPTURE_BATCH_BYTES, CAPTURE_BATCH_PACKETS, CAPTURE_FILTER_BYTES, MAX_PORTS};
use base::stats::{Direction, DropReason};
use filter::Filter;
use outcomes::Sighting;
use switch::PortId;

/// One copy of a frame, without its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// Time at which the frame's burst was forwarded: nanoseconds since 1970.
    pub time: u64,
    /// The port at which the frame was seen.
    pub port: PortId,
    /// Whether the port sent or received the frame.
    pub direction: Direction,
    /// Why the frame was dropped; `None` if it was forwarded.
    pub dropped: Option<DropReason>,
    /// Bytes of the whole frame; 0 for something that was no frame.
    pub len: u32,
}

/// Copies that wait for a client to collect them.
#[derive(Debug, Default)]
pub struct Batch {
    /// Each copy with the offset behind its bytes.
    packets: Vec<(Packet, usize)>,
    bytes: Vec<u8>,
}

impl Batch {
    /// Returns the number of copies.
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// True without copies.
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Returns copy number `index`, in the order of arrival, with the bytes that were kept.
    pub fn get(&self, index: usize) -> Option<(Packet, &[u8])> {
        let start = index.checked_sub(1).map_or(0, |before| self.packets[before].1);
        self.packets.get(index).map(|&(packet, end)| (packet, &self.bytes[start..end]))
    }

    /// Forgets all copies and keeps the allocated memory.
    fn clear(&mut self) {
        self.packets.clear();
        self.bytes.clear();
    }

    /// Adds a copy; false if the batch is full.
    fn push(&mut self, packet: Packet, bytes: &[u8]) -> bool {
        let full = self.packets.len() == CAPTURE_BATCH_PACKETS
            || self.bytes.len() + bytes.len() > CAPTURE_BATCH_BYTES;
        if !full {
            self.bytes.extend_from_slice(bytes);
            self.packets.push((packet, self.bytes.len()));
        }
        !full
    }
}

/// The frames that a client wants copies of.
#[derive(Debug)]
pub struct Wanted {
    /// The ports; an empty list means all present and future ports.
    pub ports: Vec<PortId>,
    /// Only dropped frames.
    pub drops_only: bool,
    /// Only frames that this filter accepts.
    pub filter: Option<Filter>,
    /// Bytes kept of each frame.
    pub snaplen: usize,
}

/// Copies of frames on their way from workers to the client that collects them.
#[derive(Debug)]
pub struct Capture {
    /// A bit for each port.
    ports: [AtomicU64; MAX_PORTS.div_ceil(64)],
    wanted: Wanted,
    /// One batch for each worker.
    batches: Box<[Mutex<Batch>]>,
    /// One allowance for each worker; only that worker locks it.
    allowances: Box<[Mutex<Allowance>]>,
    lost: AtomicU64,
}

impl Capture {
    /// Makes an empty capture of the `wanted` frames, for so many workers.
    pub fn new(wanted: Wanted, workers: usize) -> Capture {
        let capture = Capture {
            ports: [const { AtomicU64::new(0) }; MAX_PORTS.div_ceil(64)],
            wanted,
            batches: (0..workers).map(|_| Mutex::default()).collect(),
            allowances: (0..workers).map(|_| Mutex::default()).collect(),
            lost: AtomicU64::new(0),
        };
        for &port in &capture.wanted.ports {
            capture.ports[usize::from(port) / 64].fetch_or(1 << (port % 64), Ordering::Relaxed);
        }
        capture
    }

    /// True if the capture is of all present and future ports.
    fn is_of_all(&self) -> bool {
        self.wanted.ports.is_empty()
    }

    /// Removes a port that is gone: its number may soon be another port's.
    pub(crate) fn forget(&self, port: PortId) {
        if let Some(bits) = self.ports.get(usize::from(port) / 64) {
            bits.fetch_and(!(1 << (port % 64)), Ordering::Relaxed);
        }
    }

    /// True if no port is left that the capture could have copies of.
    pub fn is_over(&self) -> bool {
        !self.is_of_all() && self.ports.iter().all(|bits| bits.load(Ordering::Relaxed) == 0)
    }

    /// True if the capture wants frames of this port that were dropped for this reason, or not
    /// dropped.
    pub(crate) fn wants(&self, port: PortId, dropped: Option<DropReason>) -> bool {
        let bits = || self.ports.get(usize::from(port) / 64);
        let bit = |bits: &AtomicU64| bits.load(Ordering::Relaxed) >> (port % 64) & 1 != 0;
        (!self.wanted.drops_only || dropped.is_some())
            && (self.is_of_all() || bits().is_some_and(bit))
    }

    /// Returns the number of the sightings that the capture wants.
    pub(crate) fn count_wanted(&self, seen: &[Sighting]) -> usize {
        if self.is_of_all() && !self.wanted.drops_only {
            return seen.len();
        }
        seen.iter().filter(|one| self.wants(one.port, one.dropped)).count()
    }

    /// Returns the bytes at the beginning of a frame that the capture uses.
    pub(crate) fn reads(&self) -> usize {
        let filtered = if self.wanted.filter.is_some() { CAPTURE_FILTER_BYTES } else { 0 };
        self.wanted.snaplen.max(filtered)
    }

    /// Returns true if worker number `worker` has time for a frame at `now`, in nanoseconds, as one
    /// of so many captures.
    pub(crate) fn may_look(&self, worker: usize, now: u64, captures: usize) -> bool {
        let mut allowance = self.allowances.get(worker).and_then(try_lock);
        allowance.as_mut().is_some_and(|allowance| {
            allowance.earn(now, captures);
            allowance.is_left()
        })
    }

    /// Opens the batch of worker number `worker` for one burst at `now`, in nanoseconds, as one of
    /// so many captures.
    pub(crate) fn open(&self, worker: usize, now: u64, captures: usize) -> Leaving<'_> {
        // Without the batch's lock the batch is being collected.
        let batch = self.batches.get(worker).and_then(try_lock);
        let mut allowance = self.allowances.get(worker).and_then(try_lock);
        if let Some(allowance) = &mut allowance {
            allowance.earn(now, captures);
        }
        Leaving { capture: self, batch, allowance }
    }

    /// Takes all waiting copies: one batch for each worker, in order. Forgets the content of
    /// `batches` and gives their memory to the workers: a worker whose batch began small again
    /// after each collection would spend time on allocation each time.
    pub fn collect(&self, batches: &mut Vec<Batch>) {
        batches.resize_with(self.batches.len(), Batch::default);
        for (waiting, batch) in self.batches.iter().zip(batches) {
            batch.clear();
            std::mem::swap(&mut *waiting.lock().unwrap_or_else(PoisonError::into_inner), batch);
        }
    }

    /// Returns the number of copies lost since the last call.
    pub fn take_lost(&self) -> u64 {
        self.lost.swap(0, Ordering::Relaxed)
    }
}

fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(guard)) => Some(guard.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// A worker's access to a capture for one burst.
pub struct Leaving<'a> {
    capture: &'a Capture,
    batch: Option<MutexGuard<'a, Batch>>,
    allowance: Option<MutexGuard<'a, Allowance>>,
}

impl Leaving<'_> {
    /// False if the capture has used up its time on this worker.
    pub(crate) fn may_look(&self) -> bool {
        self.allowance.as_ref().is_some_and(|allowance| allowance.is_left())
    }

    /// True if a frame of `len` bytes that begins with `bytes` passes the filter.
    pub(crate) fn accepts(&mut self, bytes: &[u8], len: u32) -> bool {
        let mut count = 0;
        let filter = self.capture.wanted.filter.as_ref();
        let accepts = filter.is_none_or(|filter| filter.accepts(bytes, len, &mut count));
        self.spend(count, bytes.len());
        accepts
    }

    fn spend(&mut self, instructions: u64, bytes: usize) {
        if let Some(allowance) = &mut self.allowance {
            allowance.spend(instructions, bytes);
        }
    }

    /// Counts copies that cannot be kept.
    pub(crate) fn lose(&self, copies: u64) {
        self.capture.lost.fetch_add(copies, Ordering::Relaxed);
    }

    /// Keeps a copy, or counts it as lost. `bytes` is the frame's beginning.
    pub(crate) fn leave(&mut self, packet: Packet, bytes: &[u8]) {
        let kept = &bytes[..bytes.len().min(self.capture.wanted.snaplen)];
        self.spend(0, kept.len());
        if !self.batch.as_mut().is_some_and(|batch| batch.push(packet, kept)) {
            self.lose(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKET: Packet =
        Packet { time: 1, port: 3, direction: Direction::Out, dropped: None, len: 60 };

    fn capture(ports: &[PortId], drops_only: bool) -> Capture {
        let ports = ports.to_vec();
        Capture::new(Wanted { ports, drops_only, filter: None, snaplen: 20 }, 2)
    }

    #[test]
    fn copies_are_collected_in_order_and_no_longer_than_wanted() {
        let capture = capture(&[3], false);
        for (worker, byte) in [(1, 7), (1, 8), (0, 9)] {
            capture.open(worker, 1, 1).leave(PACKET, &[byte; 60]);
        }
        capture.open(1, 1, 1).leave(Packet { len: 5, ..PACKET }, &[6; 5]);
        let mut batches = Vec::new();
        capture.collect(&mut batches);
        let kept = |batch: &Batch| -> Vec<(u8, usize)> {
            let copies = (0..batch.len()).map(|at| batch.get(at).unwrap().1);
            copies.map(|bytes| (bytes[0], bytes.len())).collect()
        };
        assert_eq!(kept(&batches[0]), [(9, 20)]);
        assert_eq!(kept(&batches[1]), [(7, 20), (8, 20), (6, 5)]);
        capture.collect(&mut batches);
        assert!(batches.iter().all(|batch| batch.is_empty() && batch.get(0).is_none()));
        assert_eq!((batches.len(), capture.take_lost()), (2, 0));
    }

    /// Two batches of a worker take turns, so the third round needs no allocation.
    #[test]
    fn a_batch_keeps_its_room() {
        let (capture, mut batches) = (capture(&[3], false), Vec::new());
        let room = |batch: &Batch| (batch.packets.capacity(), batch.bytes.capacity());
        let mut rooms = Vec::new();
        for _ in 0..4 {
            rooms.push(room(&capture.batches[0].lock().unwrap()));
            (0..1000).for_each(|_| capture.open(0, 1, 1).leave(PACKET, &[7; 60]));
            capture.collect(&mut batches);
            assert_eq!(batches[0].len(), 1000);
        }
        assert_eq!(rooms[..2], [(0, 0), (0, 0)]);
        assert!(rooms[2..].iter().all(|room| room.0 >= 1000 && room.1 >= 20_000), "{rooms:?}");
    }

    #[test]
    fn what_finds_no_room_is_counted() {
        let capture = capture(&[3], false);
        for _ in 0..CAPTURE_BATCH_PACKETS + 5 {
            capture.open(0, 1, 1).leave(PACKET, &[]);
        }
        assert_eq!((capture.take_lost(), capture.take_lost()), (5, 0));
        let held = capture.batches[1].lock().unwrap();
        capture.open(1, 1, 1).leave(PACKET, &[1]);
        drop(held);
        // No worker has this number.
        capture.open(2, 1, 1).leave(PACKET, &[1]);
        assert_eq!(capture.take_lost(), 2);
    }

    #[test]
    fn ports_and_drops_are_chosen() {
        let some = capture(&[0, 3, 1023], false);
        let wants = |port| some.wants(port, None);
        assert!(wants(0) && wants(3) && wants(1023) && !wants(1) && !wants(67) && !wants(u16::MAX));
        for port in [0, 3, 1023, 9, u16::MAX] {
            assert!(!some.is_over());
            some.forget(port);
            assert!(!wants(port));
            if port == 1023 {
                break;
            }
        }
        assert!(some.is_over());
        let drops = capture(&[], true);
        assert!(drops.wants(5, Some(DropReason::NoBuffer)) && !drops.wants(5, None));
        drops.forget(5);
        assert!(!drops.is_over() && drops.wants(5, Some(DropReason::TooBig)));
    }
}
