//! A port behind descriptors that take and give whole frames: the queues of a TAP interface, or of
//! one that is reached by XDP, or a [`stream`].
//!
//! Frames that leave are copied to the [`FrameBatch`] of any worker (`writer`), and the device
//! takes that. Reading goes into a worker's own staging, as the destination is
//! unknown before and no system call may run under a receive lock; frames of XDP lie in memory of
//! the device, and are delivered from there. Every result of the kernel is
//! an outcome with a counter: a TAP that is down, full or deleted costs frames, never time. A queue
//! whose interface is gone is emptied and reported to the thread that reattaches it.

mod behind;
mod segments;
pub mod stream;
mod together;
mod writer;

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use arc_swap::{ArcSwapOption, Guard};

use super::flood::FloodSlot;
use super::quantum::Deficit;
use super::{FrontEnd, Next};
use crate::guard::SignalCost;
use crate::ring::Burst;
use base::frame::vnet::VnetHdr;
use base::frame::{Load, Offloads, VNET_HDR_LEN};
use base::limits::{BURST_BYTES, BURST_FRAMES, CLOSE_TIMEOUT_MILLIS, MAX_FRAME_LEN};
use base::stats::{DropReason, QueueStats};
use switch::{Booking, PortKind, Room, SourceMemo};
use sys::clock;
#[cfg(doc)]
use sys::frame_io::FrameBatch;
use sys::frame_io::{FrameInbox, FrameIo, Transfer};
use sys::tap_ring::Io;
use sys::xdp::Mode;

pub use behind::{Behind, Writes};

use behind::Reasons;

/// Bytes of staging per frame: header and longest frame, in whole cache lines.
const SLOT: usize = (VNET_HDR_LEN + MAX_FRAME_LEN as usize).next_multiple_of(64);

/// An attached queue.
pub type Device = Arc<dyn FrameIo>;

/// What the worker that owns a queue knows of reading it.
#[derive(Debug, Default)]
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

    fn count(&mut self, header: VnetHdr, len: u32) {
        let Some((room, last)) = &mut self.room else { return };
        *last = Load::of(header, len);
        room.take(*last);
    }

    /// True if the time is over.
    fn are_over(&self) -> bool {
        self.end.is_some_and(|end| clock::cycles() >= end)
    }
}

/// One queue of a port.
#[derive(Default)]
pub struct DeviceQueue {
    device: ArcSwapOption<Device>,
    reading: Mutex<Reading>,
    /// Its events are not watched, as its worker looks at it anyway.
    unwatched: AtomicBool,
    /// Its floods.
    pub floods: Arc<FloodSlot>,
    /// Into the switch; written by the worker that owns the queue.
    pub input: QueueStats,
    /// Out of it; written by all workers.
    pub output: QueueStats,
}

impl std::fmt::Debug for DeviceQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeviceQueue").field("attached", &self.is_attached()).finish()
    }
}

/// Why queues are without their devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lost {
    /// The interface was deleted, or the connection ended.
    Gone,
    /// The interface has a larger MTU than it was opened for.
    Outgrown,
}

/// What was lost and is not dealt with yet.
#[derive(Default)]
struct Loss {
    /// A queue is without its device.
    lost: Option<Lost>,
    /// Devices out of service, yet to be closed.
    dead: Vec<Arc<Device>>,
}

impl std::fmt::Debug for Loss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loss").field("lost", &self.lost).field("dead", &self.dead.len()).finish()
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
    /// Why the kernel permits no ring for that; for XDP, why the program is not in the driver.
    refused: Mutex<Option<String>>,
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

impl DeviceQueue {
    /// Why frames are not written together any more.
    fn failure(&self) -> Option<String> {
        self.attached().as_deref()?.failure()
    }

    /// The attached device. Nobody waits for another thread here, and the device stays open while
    /// the guard is held.
    #[inline]
    pub fn attached(&self) -> Guard<Option<Arc<Device>>> {
        self.device.load()
    }

    /// The attached device, to be kept.
    pub fn device(&self) -> Option<Device> {
        self.attached().as_deref().cloned()
    }

    /// True if a device is attached.
    pub fn is_attached(&self) -> bool {
        self.attached().is_some()
    }

    /// True if a look at the attached device is no system call, as its frames come in memory of its
    /// own.
    pub fn is_polled(&self) -> bool {
        self.attached().as_deref().is_some_and(|device| device.inbox().is_some())
    }

    /// True if the worker that reads it watches no events of it.
    pub fn is_unwatched(&self) -> bool {
        self.unwatched.load(Ordering::Relaxed)
    }

    /// Notes whether it does; for that worker.
    pub fn set_unwatched(&self, unwatched: bool) {
        self.unwatched.store(unwatched, Ordering::Relaxed);
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
        reader.release();
        let attached = self.attached();
        let Some(device) = attached.as_deref() else {
            return Next::Gone;
        };
        if let Some(inbox) = device.inbox() {
            let next = self.take(inbox, burst, port, bounds);
            // A burst without a frame is not completed, which would release the device.
            reader.lender = (burst.taken() > 0).then(|| Arc::clone(device));
            return next;
        }
        let (mut bytes, mut refused) = (0u32, 0);
        let rejected = port.behind.reasons().rejected;
        for slot in reader.staging.chunks_exact_mut(SLOT) {
            if bounds.are_reached() {
                break;
            }
            match device.read(slot) {
                Transfer::Done(len) => {
                    bytes += add_read(&mut slot[..len], burst, &mut bounds);
                    if bounds.are_over() || bytes >= BURST_BYTES {
                        break;
                    }
                }
                Transfer::WouldBlock => return Next::Empty,
                Transfer::Gone | Transfer::Eof => {
                    port.lose(self, device, Lost::Gone);
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

    /// The same from a device that has the frames in memory of its own, where they stay until it is
    /// next asked for some.
    fn take(
        &self,
        inbox: &dyn FrameInbox,
        burst: &mut Burst,
        port: &DevicePort,
        mut bounds: Bounds,
    ) -> Next {
        if bounds.are_reached() {
            return Next::More;
        }
        let mut bytes = 0;
        let taken = inbox.take(&mut |at, len| {
            let header = VnetHdr::plain(0);
            bounds.count(header, len);
            bytes += len;
            // SAFETY: the frame stays until the next `take`: the caller holds what is known of
            // reading this queue until the burst is done with, and its reader the device.
            unsafe { add(header, at, len, burst) };
            let full = burst.taken() == BURST_FRAMES || bytes >= BURST_BYTES;
            !(full || bounds.are_over() || bounds.are_reached())
        });
        if taken.lost > 0 {
            // Nothing is known of them but their number.
            self.input.frames.add(taken.lost);
            self.input.drops.add(port.behind.reasons().full, taken.lost);
        }
        if taken.more { Next::More } else { Next::Empty }
    }
}

/// Adds one frame as the kernel gave it to the burst; returns its length.
fn add_read(bytes: &mut [u8], burst: &mut Burst, bounds: &mut Bounds) -> u32 {
    let Some((header, frame)) = bytes.split_first_chunk_mut::<VNET_HDR_LEN>() else {
        burst.refuse(DropReason::TooShort);
        return 0;
    };
    let (header, len) = (VnetHdr::from_bytes(*header), frame.len() as u32);
    bounds.count(header, len);
    // SAFETY: the frame lies in the reader's staging, which lives as long as the worker and
    // is not written again before the next `receive`, which clears the burst.
    unsafe { add(header, frame.as_mut_ptr(), len, burst) }
    len
}

/// Adds one frame to the burst.
///
/// # Safety
///
/// `at` is valid for reads of `len` bytes until the burst is cleared.
unsafe fn add(header: VnetHdr, at: *mut u8, len: u32, burst: &mut Burst) {
    if len > MAX_FRAME_LEN {
        // It may have been longer still: the kernel cuts what does not fit without a sign.
        return burst.refuse(DropReason::TooLong);
    }
    // SAFETY: the caller's promise.
    if !unsafe { burst.push_private(header, at, len) } {
        burst.refuse(DropReason::TooShort);
    }
}

impl DevicePort {
    /// A TAP with `queues` queues, none attached yet.
    pub fn tap(ifname: &str, queues: u16) -> DevicePort {
        DevicePort::new(Behind::Tap(ifname.to_owned()), queues)
    }

    /// An interface past the host's network stack, with `queues` queues, none attached yet.
    pub fn xdp(ifname: &str, queues: u16, mode: Mode) -> DevicePort {
        DevicePort::new(Behind::Xdp(ifname.to_owned(), mode), queues)
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

    /// The kernel permits no ring, or no program in the driver, or does.
    pub fn set_refused(&self, why: Option<String>) {
        *lock(&self.refused) = why;
    }

    /// How frames go to an interface, or come and go, and why not in the better way; none of a
    /// stream.
    pub fn writes(&self) -> Option<Writes> {
        let refused = || lock(&self.refused).clone();
        let failure = || self.queues.iter().find_map(DeviceQueue::failure);
        self.behind.writes(self.io, self.is_up(), || refused().or_else(failure))
    }

    /// The interface's name, if there is one.
    pub fn ifname(&self) -> Option<&str> {
        self.behind.ifname()
    }

    /// What the switch's policy needs to know.
    pub fn kind(&self) -> PortKind {
        match self.behind {
            Behind::Tap(_) | Behind::Xdp(..) => PortKind::Uplink,
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
        self.queues.iter().any(DeviceQueue::is_attached)
    }

    /// Puts freshly opened queues into service, whose frames may come with `takes`.
    pub fn attach(&self, devices: Vec<Device>, takes: Offloads) {
        let mut loss = lock(&self.loss);
        loss.lost = None;
        self.takes.store(takes.to_bits(), Ordering::Relaxed);
        for (queue, device) in self.queues.iter().zip(devices) {
            loss.dead.extend(queue.device.swap(Some(Arc::new(device))));
        }
    }

    /// Takes a queue out of service, if it still is the one that failed, and wakes the thread that
    /// waits in [`DevicePort::wait_lost`].
    fn lose(&self, queue: &DeviceQueue, failed: &Device, why: Lost) {
        let mut loss = lock(&self.loss);
        // Under the lock of `loss`, which all that change the device have.
        let is_attached = queue.attached().as_deref().is_some_and(|it| Arc::ptr_eq(it, failed));
        if is_attached {
            loss.dead.extend(queue.device.swap(None));
            loss.lost = Some(why);
            self.wake.notify_all();
        }
    }

    /// Takes every queue out of service, for a thread that is about to open the interface again: it
    /// is one, and while a queue of ours is attached it looks taken.
    pub fn give_up(&self) {
        let mut loss = lock(&self.loss);
        for queue in &self.queues {
            loss.dead.extend(queue.device.swap(None));
        }
        loss.lost.get_or_insert(Lost::Gone);
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
            dead.retain(|device| Arc::strong_count(device) + Arc::strong_count(&**device) > 2);
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
        if loss.lost.is_none() && !stopped() {
            drop(self.wake.wait(loss).unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Looks whether the interface was deleted, which workers that have no frames for it miss, or
    /// has an MTU by now that the queues are too small for.
    pub fn look(&self, mtu: Option<u32>) {
        for queue in &self.queues {
            let Some(device) = queue.device() else { continue };
            if device.is_gone() {
                self.lose(queue, &device, Lost::Gone);
            } else if mtu.is_some_and(|mtu| device.is_outgrown(mtu)) {
                self.lose(queue, &device, Lost::Outgrown);
            }
        }
    }

    /// Why a queue was lost, if it was and is not attached again.
    pub fn lost(&self) -> Option<Lost> {
        lock(&self.loss).lost
    }

    /// True if a queue was lost and not attached again.
    pub fn is_lost(&self) -> bool {
        self.lost().is_some()
    }

    /// Wakes the thread that waits in [`DevicePort::wait_lost`].
    pub fn wake(&self) {
        // The lock orders this after a waiter's last look at its stop flag.
        drop(lock(&self.loss));
        self.wake.notify_all();
    }
}

/// A worker's room for frames read from devices: one slot each, untouched pages cost nothing.
pub struct FrameReader {
    staging: Box<[u8]>,
    /// In whose memory the frames of the last burst are.
    lender: Option<Device>,
}

impl std::fmt::Debug for FrameReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FrameReader").field("lends", &self.lender.is_some()).finish()
    }
}

impl Default for FrameReader {
    fn default() -> FrameReader {
        let staging = vec![0; SLOT * BURST_FRAMES].into_boxed_slice();
        FrameReader { staging, lender: None }
    }
}

impl FrameReader {
    /// The frames of the last burst are used no more.
    #[inline]
    pub fn release(&mut self) {
        self.lender = None;
    }
}

#[cfg(test)]
mod batch_tests;
#[cfg(any(test, feature = "test-utils"))]
pub mod fake;
#[cfg(test)]
mod lent_tests;
#[cfg(test)]
mod offload_tests;
#[cfg(test)]
mod packet_tests;
#[cfg(test)]
mod tests;
