//! A port behind descriptors that take and give whole frames: the queues of a TAP interface, or a
//! [`stream`].
//!
//! Writing goes straight from the guests' buffers ([`writer`]), one system call a frame, by any
//! worker; the kernel serializes. Reading goes into a worker's own staging, as the destination is
//! unknown before and no system call may run under a receive lock. Every result of the kernel is
//! an outcome with a counter: a TAP that is down, full or deleted costs frames, never time. A queue
//! whose interface is gone is emptied and reported to the thread that reattaches it.

pub mod stream;
mod together;
pub mod writer;

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use super::quantum::Deficit;
use super::{FrontEnd, Next};
use crate::frame::vnet::VnetHdr;
use crate::frame::{Load, Offloads, VNET_HDR_LEN};
use crate::guard::SignalCost;
use crate::limits::{BURST_BYTES, BURST_FRAMES, CLOSE_TIMEOUT_MILLIS, MAX_FRAME_LEN};
use crate::ring::Burst;
use crate::stats::{DropReason, QueueStats};
use crate::switch::{Booking, PortKind, Room, SourceMemo};
use crate::sys::clock;
use crate::sys::frame_io::{FrameIo, Transfer};
use crate::sys::tap_ring::{Io, Refused};

pub use writer::FrameWriter;

/// Bytes of staging per frame: header and longest frame, in whole cache lines.
const SLOT: usize = (VNET_HDR_LEN + MAX_FRAME_LEN as usize).next_multiple_of(64);

/// An attached queue.
pub type Device = Arc<dyn FrameIo>;

/// What the worker that owns a queue knows of reading it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Reading {
    /// The source that the queue last taught the switch.
    pub source: SourceMemo,
    /// What its bursts took beyond its quantum of the worker's time.
    pub deficit: Deficit,
    /// It waits for the rate of its port.
    pub booked: Option<Booking>,
    /// The last frame, as long as which the next one is taken for.
    pub last: Load,
}

/// How much is read at once at most.
#[derive(Debug, Clone, Copy, Default)]
pub struct Bounds {
    /// Nothing from this cycle on.
    pub end: Option<u64>,
    /// What passes by the port's rate, behind a last frame like this.
    pub room: Option<(Room, Load)>,
}

impl Bounds {
    fn are_reached(&self) -> bool {
        self.room.is_some_and(|(room, last)| !room.fits(last))
    }

    fn count(&mut self, bytes: &[u8]) {
        let Some((room, last)) = &mut self.room else { return };
        if let Some((header, frame)) = bytes.split_first_chunk::<VNET_HDR_LEN>() {
            *last = Load::of(VnetHdr::from_bytes(*header), frame.len() as u32);
            room.take(*last);
        }
    }
}

/// One queue of a port.
#[derive(Default)]
pub struct DeviceQueue {
    device: Mutex<Option<Device>>,
    reading: Mutex<Reading>,
    /// Into the switch; written by the worker that owns the queue.
    pub input: QueueStats,
    /// Out of it; written by all workers.
    pub output: QueueStats,
}

impl std::fmt::Debug for DeviceQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeviceQueue").field("attached", &self.device().is_some()).finish()
    }
}

/// What was lost and is not dealt with yet.
#[derive(Default)]
struct Loss {
    /// A queue is without its device.
    lost: bool,
    /// Devices out of service, yet to be closed.
    dead: Vec<Device>,
}

impl std::fmt::Debug for Loss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loss").field("lost", &self.lost).field("dead", &self.dead.len()).finish()
    }
}

/// What is at the other end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Behind {
    /// The host, by this interface.
    Tap(String),
    /// Another process, by a connection.
    Stream,
}

/// By which names frames are dropped that do not pass a device.
struct Reasons {
    /// There is no room, or no memory.
    full: DropReason,
    /// The administrator has shut it.
    down: DropReason,
    /// There is none now.
    gone: DropReason,
    /// It refused the frame.
    rejected: DropReason,
}

impl Behind {
    fn reasons(&self) -> Reasons {
        match self {
            Behind::Tap(_) => Reasons {
                full: DropReason::TapFull,
                down: DropReason::TapDown,
                gone: DropReason::TapGone,
                rejected: DropReason::TapRejected,
            },
            Behind::Stream => Reasons {
                full: DropReason::StreamFull,
                down: DropReason::StreamGone,
                gone: DropReason::StreamGone,
                rejected: DropReason::TooLong,
            },
        }
    }
}

/// The port of one or several devices.
#[derive(Debug)]
pub struct DevicePort {
    /// What is at the other end.
    pub behind: Behind,
    queues: Box<[DeviceQueue]>,
    /// The process at the other end of a stream.
    peer: Mutex<Option<FrontEnd>>,
    /// What its peers made us pay.
    pub cost: Arc<SignalCost>,
    /// How the administrator wants frames written to a TAP.
    pub io: Io,
    /// TCP segments go to a TAP as one packet.
    pub coalesce: bool,
    /// Why the kernel permits no ring for that.
    refused: Mutex<Option<Refused>>,
    /// What the devices take, as bits of [`Offloads`].
    takes: AtomicU8,
    /// Taken before a queue's device, so that a late loss of the old devices and the attaching of
    /// new ones cannot mix: what is lost is always what is attached.
    loss: Mutex<Loss>,
    wake: Condvar,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How frames are written to a TAP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Writes {
    /// Several by one call.
    pub uring: bool,
    /// Why not, if that is not what the administrator wants.
    pub why: Option<String>,
}

impl DeviceQueue {
    /// Why frames are not written together any more. A batch that is in use works.
    fn batch_failure(&self) -> Option<String> {
        self.device()?.batch()?.try_lock().ok()?.failure()
    }

    /// The attached device.
    pub fn device(&self) -> Option<Device> {
        lock(&self.device).clone()
    }

    /// What is known of reading it, for a thread that reads a burst of it and has not delivered
    /// that yet; none if another one does, which stands still.
    pub fn reading(&self) -> Option<MutexGuard<'_, Reading>> {
        match self.reading.try_lock() {
            Ok(reading) => Some(reading),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Reads frames into `reader` and lists them in the emptied `burst`, which refers to the
    /// reader's memory until the reader is used again, within `bounds`. Whether there may be more:
    /// `Again` if no event tells of it, `Empty` if its next event will.
    pub fn receive(
        &self,
        reader: &mut FrameReader,
        burst: &mut Burst,
        port: &DevicePort,
        mut bounds: Bounds,
    ) -> Next {
        burst.clear();
        let Some(device) = self.device() else {
            return Next::Gone;
        };
        let (mut bytes, mut refused) = (0u32, 0);
        let rejected = port.behind.reasons().rejected;
        for slot in reader.staging.chunks_exact_mut(SLOT) {
            if bounds.are_reached() {
                break;
            }
            match device.read(slot) {
                Transfer::Done(len) => {
                    bounds.count(&slot[..len]);
                    bytes += take(&mut slot[..len], burst);
                    let over = bounds.end.is_some_and(|end| clock::cycles() >= end);
                    if over || bytes >= BURST_BYTES {
                        break;
                    }
                }
                Transfer::WouldBlock => return Next::Empty,
                Transfer::Gone | Transfer::Eof => {
                    port.lose(self, &device);
                    return Next::Gone;
                }
                // The frame is off the kernel's queue. Those behind it bring no event of their own,
                // and if the queue is full, none that comes later does.
                Transfer::Rejected(_) | Transfer::Fault => {
                    burst.refuse(rejected);
                    refused += 1;
                }
                // Its next event tells when that has changed.
                Transfer::Down => return Next::Empty,
                Transfer::NoBuffers => return Next::Again,
            }
        }
        if refused == BURST_FRAMES {
            // Either each was a frame, and there is room in the queue for one that brings an event,
            // or the kernel refuses to be read, and asking on would never end.
            return Next::Empty;
        }
        Next::More
    }
}

/// Adds one frame as the kernel gave it to the burst; returns its length.
fn take(bytes: &mut [u8], burst: &mut Burst) -> u32 {
    let Some((header, frame)) = bytes.split_first_chunk_mut::<VNET_HDR_LEN>() else {
        burst.refuse(DropReason::TooShort);
        return 0;
    };
    let len = frame.len() as u32;
    if len > MAX_FRAME_LEN {
        // It may have been longer still: the kernel cuts what does not fit without a sign.
        burst.refuse(DropReason::TooLong);
        return len;
    }
    // SAFETY: the frame lies in the reader's staging, which lives as long as the worker and
    // is not written again before the next `receive`, which clears the burst.
    let taken =
        unsafe { burst.push_private(VnetHdr::from_bytes(*header), frame.as_mut_ptr(), len) };
    if !taken {
        burst.refuse(DropReason::TooShort);
    }
    len
}

impl DevicePort {
    /// A TAP with `queues` queues, none attached yet.
    pub fn tap(ifname: &str, queues: u16) -> DevicePort {
        DevicePort::new(Behind::Tap(ifname.to_owned()), queues)
    }

    /// A stream that no peer is connected to yet.
    pub fn stream() -> DevicePort {
        DevicePort::new(Behind::Stream, 1)
    }

    fn new(behind: Behind, queues: u16) -> DevicePort {
        DevicePort {
            behind,
            peer: Mutex::default(),
            cost: Arc::default(),
            queues: (0..queues).map(|_| DeviceQueue::default()).collect(),
            io: Io::default(),
            coalesce: true,
            refused: Mutex::default(),
            takes: AtomicU8::new(0),
            loss: Mutex::default(),
            wake: Condvar::new(),
        }
    }

    /// The same, to which frames are written so.
    pub fn writing_by(self, io: Io, coalesce: bool) -> DevicePort {
        DevicePort { io, coalesce, ..self }
    }

    /// The kernel permits no ring, or does.
    pub fn set_refused(&self, why: Option<Refused>) {
        *lock(&self.refused) = why;
    }

    /// How frames are written to a TAP now, and why not by a ring.
    pub fn writes(&self) -> Option<Writes> {
        self.ifname()?;
        if self.io == Io::Write {
            return Some(Writes { uring: false, why: None });
        }
        let refused = lock(&self.refused).map(|why| why.to_string());
        let why = refused.or_else(|| self.queues.iter().find_map(DeviceQueue::batch_failure));
        Some(Writes { uring: why.is_none() && self.is_up(), why })
    }

    /// The interface's name, if it is a TAP's port.
    pub fn ifname(&self) -> Option<&str> {
        match &self.behind {
            Behind::Tap(ifname) => Some(ifname),
            Behind::Stream => None,
        }
    }

    /// What the switch's policy needs to know.
    pub fn kind(&self) -> PortKind {
        match self.behind {
            Behind::Tap(_) => PortKind::Uplink,
            // One VM, or a router: frames pass between it and an uplink.
            Behind::Stream => PortKind::Guest,
        }
    }

    /// The process that is connected to a stream.
    pub fn peer(&self) -> Option<FrontEnd> {
        *lock(&self.peer)
    }

    /// It is this one now.
    pub fn set_peer(&self, peer: Option<FrontEnd>) {
        *lock(&self.peer) = peer;
    }

    /// The queues.
    pub fn queues(&self) -> &[DeviceQueue] {
        &self.queues
    }

    /// True while a queue is attached.
    pub fn is_up(&self) -> bool {
        self.queues.iter().any(|queue| lock(&queue.device).is_some())
    }

    /// Puts freshly opened queues into service, whose frames may come with `takes`.
    pub fn attach(&self, devices: Vec<Device>, takes: Offloads) {
        let mut loss = lock(&self.loss);
        loss.lost = false;
        self.takes.store(takes.to_bits(), Ordering::Relaxed);
        for (queue, device) in self.queues.iter().zip(devices) {
            let old = lock(&queue.device).replace(device);
            loss.dead.extend(old);
        }
    }

    /// Takes a queue out of service, if it still is the one that failed, and wakes the thread that
    /// waits in [`DevicePort::wait_lost`].
    fn lose(&self, queue: &DeviceQueue, failed: &Device) {
        let mut loss = lock(&self.loss);
        let mut device = lock(&queue.device);
        if device.as_ref().is_some_and(|device| Arc::ptr_eq(device, failed)) {
            loss.dead.extend(device.take());
            loss.lost = true;
            self.wake.notify_all();
        }
    }

    /// Takes every queue out of service, for a thread that is about to open the interface again: it
    /// is one, and while a queue of ours is attached it looks taken.
    pub fn give_up(&self) {
        let mut loss = lock(&self.loss);
        for queue in &self.queues {
            loss.dead.extend(lock(&queue.device).take());
        }
        loss.lost = true;
    }

    /// Lets go of what was lost, which another thread closes.
    pub fn let_go(&self) {
        drop(std::mem::take(&mut lock(&self.loss).dead));
    }

    /// Closes what was lost. Not for workers: closing waits for the lock of the host's network
    /// configuration, which is held for a long time where interfaces are deleted.
    pub fn close_lost(&self) {
        let mut dead = std::mem::take(&mut lock(&self.loss).dead);
        // A worker in the middle of a burst may hold one, and must not be the last to.
        for _ in 0..CLOSE_TIMEOUT_MILLIS {
            dead.retain(|device| Arc::strong_count(device) > 1);
            if dead.is_empty() {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until a queue is lost; also returns when [`DevicePort::wake`] is called. `stopped` is
    /// asked under the lock that `wake` takes: set before that, it is seen here or cuts the wait.
    pub fn wait_lost(&self, stopped: impl Fn() -> bool) {
        let loss = lock(&self.loss);
        if !loss.lost && !stopped() {
            drop(self.wake.wait(loss).unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// True if a queue was lost and not attached again.
    pub fn is_lost(&self) -> bool {
        lock(&self.loss).lost
    }

    /// Wakes the thread that waits in [`DevicePort::wait_lost`].
    pub fn wake(&self) {
        // The lock orders this after a waiter's last look at its stop flag.
        drop(lock(&self.loss));
        self.wake.notify_all();
    }
}

/// A worker's room for frames read from devices: one slot each, untouched pages cost nothing.
#[derive(Debug)]
pub struct FrameReader {
    staging: Box<[u8]>,
}

impl Default for FrameReader {
    fn default() -> FrameReader {
        FrameReader { staging: vec![0; SLOT * BURST_FRAMES].into_boxed_slice() }
    }
}

#[cfg(test)]
mod batch_tests;
#[cfg(test)]
pub(crate) mod fake;
#[cfg(test)]
mod packet_tests;
#[cfg(test)]
mod tests;
