//! A port with devices that take and give whole frames: the queues of a TAP interface, the queues
//! of an interface reached by XDP, or a [`stream`].
//!
//! Workers copy frames to a [`FrameBatch`] (`writer`), which the device takes. Frames are read into
//! a worker's own staging memory, because the destination is unknown before the read, and no system
//! call may run under a receive lock. XDP frames are delivered from the device's memory. Every
//! result of the kernel has a counter: a TAP that is down, full or deleted costs frames, never
//! time. A queue whose interface is gone is emptied, and reported to the thread that reattaches the
//! interface.

mod backend;
pub mod datagrams;
pub mod link;
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
use super::{FrontEnd, Polled};
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

pub use backend::{Backend, IoMode, Reasons};

/// Bytes of staging for a frame: header and longest frame, in whole cache lines.
const SLOT: usize = (VNET_HDR_LEN + MAX_FRAME_LEN as usize).next_multiple_of(64);

/// An attached queue.
pub type Device = Arc<dyn FrameIo>;

/// State for reading a queue, used by the worker that owns the queue.
#[derive(Debug, Default)]
pub struct Reading {
    /// The source address that the queue last taught the switch.
    pub(crate) source: SourceMemo,
    /// Time that the queue's bursts took beyond its quantum.
    pub(crate) deficit: Deficit,
    /// Booking of the queue, which waits for the rate of its port.
    pub(crate) booked: Option<Booking>,
    /// Load of the last frame, which is the estimate for the next frame.
    pub(crate) last: Load,
}

/// Bounds of a read.
#[derive(Debug, Clone, Copy, Default)]
pub struct Bounds {
    /// Cycle at which reading stops.
    pub(crate) end: Option<u64>,
    /// Room at the port's rate, and the load of the last frame, which is the estimate for the next.
    pub(crate) room: Option<(Room, Load)>,
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

    /// True if the time for reading is over.
    fn are_over(&self) -> bool {
        self.end.is_some_and(|end| clock::cycles() >= end)
    }
}

/// One queue of a port.
#[derive(Default)]
pub struct DeviceQueue {
    device: ArcSwapOption<Device>,
    reading: Mutex<Reading>,
    /// The queue's events are not watched, because its worker polls the queue.
    unwatched: AtomicBool,
    /// The slot for floods of the queue.
    pub(crate) floods: Arc<FloodSlot>,
    /// Frames into the switch; written by the worker that owns the queue.
    pub input: QueueStats,
    /// Frames out of the switch; written by all workers.
    pub output: QueueStats,
}

impl std::fmt::Debug for DeviceQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeviceQueue").field("attached", &self.is_attached()).finish()
    }
}

/// Why queues lost their devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lost {
    /// The interface was deleted, or the connection ended.
    Gone,
    /// The interface has a larger MTU than the device was opened for.
    Outgrown,
}

/// Losses that are not handled yet.
#[derive(Default)]
struct Loss {
    /// A queue has lost its device.
    lost: Option<Lost>,
    /// Devices out of service that are to be closed.
    dead: Vec<Arc<Device>>,
}

impl std::fmt::Debug for Loss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loss").field("lost", &self.lost).field("dead", &self.dead.len()).finish()
    }
}

/// A port with one or several devices.
#[derive(Debug)]
pub struct DevicePort {
    /// The other end of the devices.
    pub backend: Backend,
    queues: Box<[DeviceQueue]>,
    /// The process at the other end of a stream.
    peer: Mutex<Option<FrontEnd>>,
    /// Cost that the port's peers have caused.
    pub cost: Arc<SignalCost>,
    /// How an administrator wants frames to be written to a TAP.
    pub io: Io,
    /// TCP segments are sent to a TAP as one packet.
    pub(crate) coalesce: bool,
    /// Why the slower way is in use: why the kernel refuses io_uring for a TAP, or why the driver
    /// of an XDP uplink refuses a program. None if nothing was refused.
    refused: Mutex<Option<String>>,
    /// Offloads that the devices take, as bits of [`Offloads`].
    takes: AtomicU8,
    /// Locked before a queue's device, so that a late loss of old devices and the attachment of new
    /// devices do not mix: only an attached device can be lost.
    loss: Mutex<Loss>,
    wake: Condvar,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl DeviceQueue {
    /// Returns why the device no longer writes several frames at once.
    fn failure(&self) -> Option<String> {
        self.attached().as_deref()?.failure()
    }

    /// Returns the attached device, without waiting for another thread. The device stays open while
    /// the guard is held.
    #[inline]
    pub(crate) fn attached(&self) -> Guard<Option<Arc<Device>>> {
        self.device.load()
    }

    /// Returns the attached device as a shared pointer.
    pub fn device(&self) -> Option<Device> {
        self.attached().as_deref().cloned()
    }

    /// True if a device is attached.
    pub(crate) fn is_attached(&self) -> bool {
        self.attached().is_some()
    }

    /// True if the attached device has its frames in memory of its own, so that a look needs no
    /// system call.
    pub(crate) fn is_polled(&self) -> bool {
        self.attached().as_deref().is_some_and(|device| device.inbox().is_some())
    }

    /// True if the queue's worker does not watch the queue's events.
    pub(crate) fn is_unwatched(&self) -> bool {
        self.unwatched.load(Ordering::Relaxed)
    }

    /// Records whether the queue's events are unwatched. Called by the queue's worker.
    pub(crate) fn set_unwatched(&self, unwatched: bool) {
        self.unwatched.store(unwatched, Ordering::Relaxed);
    }

    /// Returns the reading state, which a thread holds while it reads a burst and has not delivered
    /// the burst. None while another thread, which is stuck, holds the state.
    pub(crate) fn reading(&self) -> Option<MutexGuard<'_, Reading>> {
        match self.reading.try_lock() {
            Ok(reading) => Some(reading),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Reads frames into `reader`, within `bounds`, and lists the frames in `burst`, which is
    /// emptied first. The burst refers to the reader's memory until the next use of the reader.
    /// Returns whether there may be more frames: `Again` if no event reports them, `Empty` if the
    /// next event does.
    pub(crate) fn receive(
        &self,
        reader: &mut FrameReader,
        burst: &mut Burst,
        port: &DevicePort,
        mut bounds: Bounds,
    ) -> Polled {
        burst.clear();
        reader.release();
        let attached = self.attached();
        let Some(device) = attached.as_deref() else {
            return Polled::Unavailable;
        };
        if let Some(inbox) = device.inbox() {
            let next = self.take(inbox, burst, port, bounds);
            // A burst without frames is not completed, and completing is what releases the device.
            reader.frames_owner = (burst.taken() > 0).then(|| Arc::clone(device));
            return next;
        }
        let (mut bytes, mut refused) = (0u32, 0);
        let rejected = port.backend.reasons().rejected;
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
                Transfer::WouldBlock => return Polled::Empty,
                Transfer::Gone | Transfer::Eof => {
                    port.lose(self, device, Lost::Gone);
                    return Polled::Unavailable;
                }
                // The refused frame is off the kernel's queue. Frames behind it bring no event of
                // their own, and a full queue brings no later event.
                Transfer::Rejected(_) | Transfer::Fault => {
                    burst.refuse(rejected);
                    refused += 1;
                }
                // The next event tells when the interface is up again.
                Transfer::Down => return Polled::Empty,
                Transfer::NoBuffers => return Polled::RetryNow,
            }
        }
        if refused == BURST_FRAMES {
            // If each read took a frame off the queue, the queue has room for a frame that brings
            // an event. If the kernel refuses every read, the loop must end.
            return Polled::Empty;
        }
        Polled::More
    }

    /// Takes frames from a device with memory of its own. The frames stay in the device's memory
    /// until the next call.
    fn take(
        &self,
        inbox: &dyn FrameInbox,
        burst: &mut Burst,
        port: &DevicePort,
        mut bounds: Bounds,
    ) -> Polled {
        if bounds.are_reached() {
            return Polled::More;
        }
        let mut bytes = 0;
        let taken = inbox.take(&mut |at, len| {
            let header = VnetHdr::plain(0);
            bounds.count(header, len);
            bytes += len;
            // SAFETY: the frame stays until the next `take`: the caller holds the reading state of
            // this queue until the burst is done, and the caller's reader holds the device.
            unsafe { add(header, at, len, burst) };
            let full = burst.taken() == BURST_FRAMES || bytes >= BURST_BYTES;
            !(full || bounds.are_over() || bounds.are_reached())
        });
        if taken.lost > 0 {
            // Only the number of these frames is known.
            self.input.frames.add(taken.lost);
            self.input.drops.add(port.backend.reasons().full, taken.lost);
        }
        if taken.more { Polled::More } else { Polled::Empty }
    }
}

/// Adds a frame that the kernel returned to the burst. Returns the frame's length.
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

/// Adds a frame to the burst.
///
/// # Safety
///
/// `at` is valid for reads of `len` bytes until the burst is cleared.
unsafe fn add(header: VnetHdr, at: *mut u8, len: u32, burst: &mut Burst) {
    if len > MAX_FRAME_LEN {
        // The frame may have been longer: the kernel truncates silently.
        return burst.refuse(DropReason::TooLong);
    }
    // SAFETY: as this function's caller promises.
    if !unsafe { burst.push_private(header, at, len) } {
        burst.refuse(DropReason::TooShort);
    }
}

impl DevicePort {
    /// Creates a port for a TAP with `queues` queues, without devices.
    pub fn tap(ifname: &str, queues: u16) -> DevicePort {
        DevicePort::new(Backend::Tap(ifname.to_owned()), queues)
    }

    /// Creates a port for an interface that bypasses the host's network stack, with `queues`
    /// queues, without devices.
    pub fn xdp(ifname: &str, queues: u16, mode: Mode) -> DevicePort {
        DevicePort::new(Backend::Xdp(ifname.to_owned(), mode), queues)
    }

    /// Creates a port for a stream, without a peer.
    pub fn stream() -> DevicePort {
        DevicePort::new(Backend::Stream, 1)
    }

    fn new(backend: Backend, queues: u16) -> DevicePort {
        DevicePort {
            backend,
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

    /// Returns the port with settings for writing frames.
    pub fn writing_by(self, io: Io, coalesce: bool) -> DevicePort {
        DevicePort { io, coalesce, ..self }
    }

    /// Records why the kernel permits no ring for a TAP, or no XDP program in the driver; none if
    /// it does.
    pub fn set_refused(&self, why: Option<String>) {
        *lock(&self.refused) = why;
    }

    /// Returns the way in which frames go to an interface, and why the better way is not in use;
    /// none for a stream.
    pub fn writes(&self) -> Option<IoMode> {
        let refused = || lock(&self.refused).clone();
        let failure = || self.queues.iter().find_map(DeviceQueue::failure);
        self.backend.writes(self.io, self.is_up(), || refused().or_else(failure))
    }

    /// Returns the interface's name, if there is an interface.
    pub fn ifname(&self) -> Option<&str> {
        self.backend.ifname()
    }

    /// Returns the port's kind, for the switch's policy.
    pub(crate) fn kind(&self) -> PortKind {
        match self.backend {
            Backend::Tap(_) | Backend::Xdp(..) => PortKind::Uplink,
            // A VM or a router: frames pass between a stream and an uplink.
            Backend::Stream => PortKind::Guest,
        }
    }

    /// Returns the process that is connected to a stream.
    pub(crate) fn peer(&self) -> Option<FrontEnd> {
        *lock(&self.peer)
    }

    /// Records the process that is connected to a stream, or none.
    pub fn set_peer(&self, peer: Option<FrontEnd>) {
        *lock(&self.peer) = peer;
    }

    /// Returns the queues.
    pub fn queues(&self) -> &[DeviceQueue] {
        &self.queues
    }

    /// True while a queue is attached.
    pub fn is_up(&self) -> bool {
        self.queues.iter().any(DeviceQueue::is_attached)
    }

    /// Attaches freshly opened devices to the queues. Frames to the devices may use the offloads
    /// `takes`.
    pub fn attach(&self, devices: Vec<Device>, takes: Offloads) {
        let mut loss = lock(&self.loss);
        loss.lost = None;
        self.takes.store(takes.to_bits(), Ordering::Relaxed);
        for (queue, device) in self.queues.iter().zip(devices) {
            loss.dead.extend(queue.device.swap(Some(Arc::new(device))));
        }
    }

    /// Takes a queue out of service if its device is still `failed`, and wakes the thread that
    /// waits in [`DevicePort::wait_lost`].
    fn lose(&self, queue: &DeviceQueue, failed: &Device, why: Lost) {
        let mut loss = lock(&self.loss);
        // Under the lock of `loss`, which every thread that changes the device holds.
        let is_attached = queue.attached().as_deref().is_some_and(|it| Arc::ptr_eq(it, failed));
        if is_attached {
            loss.dead.extend(queue.device.swap(None));
            loss.lost = Some(why);
            self.wake.notify_all();
        }
    }

    /// Takes every queue out of service for a thread that opens the interface again: while a queue
    /// is attached, the interface looks in use.
    pub fn give_up(&self) {
        let mut loss = lock(&self.loss);
        for queue in &self.queues {
            loss.dead.extend(queue.device.swap(None));
        }
        loss.lost.get_or_insert(Lost::Gone);
    }

    /// Drops the lost devices, which another thread closes.
    pub fn let_go(&self) {
        drop(std::mem::take(&mut lock(&self.loss).dead));
    }

    /// Closes the lost devices. Not for workers: closing waits for the lock of the host's network
    /// configuration, which is held long while interfaces are deleted.
    pub fn close_lost(&self) {
        let mut dead = std::mem::take(&mut lock(&self.loss).dead);
        // A worker's burst may hold a device, and must not be the last holder.
        for _ in 0..CLOSE_TIMEOUT_MILLIS {
            dead.retain(|device| Arc::strong_count(device) + Arc::strong_count(&**device) > 2);
            if dead.is_empty() {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until a queue is lost, or until [`DevicePort::wake`] is called. `stopped` is called
    /// under the lock that `wake` takes: a flag that is set before `wake` is seen here, or ends the
    /// wait.
    pub fn wait_lost(&self, stopped: impl Fn() -> bool) {
        self.wait_lost_for(None, stopped);
    }

    /// Waits as [`DevicePort::wait_lost`] does, at most for the given time.
    pub fn wait_lost_for(&self, time: Option<Duration>, stopped: impl Fn() -> bool) {
        let loss = lock(&self.loss);
        if loss.lost.is_some() || stopped() {
            return;
        }
        match time {
            None => drop(self.wake.wait(loss).unwrap_or_else(PoisonError::into_inner)),
            Some(time) => {
                drop(self.wake.wait_timeout(loss, time).unwrap_or_else(PoisonError::into_inner));
            }
        }
    }

    /// Checks whether the interface was deleted, which workers without frames do not notice, or has
    /// an MTU that is too large for the queues.
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

    /// Returns why a queue was lost and is not attached again; none if no queue is lost.
    pub fn lost(&self) -> Option<Lost> {
        lock(&self.loss).lost
    }

    /// True if a queue was lost and is not attached again.
    pub fn is_lost(&self) -> bool {
        self.lost().is_some()
    }

    /// Wakes the thread that waits in [`DevicePort::wait_lost`].
    pub fn wake(&self) {
        // The lock orders the wake-up after a waiter's last check of the stop flag.
        drop(lock(&self.loss));
        self.wake.notify_all();
    }
}

/// A worker's staging memory for frames from devices: one slot a frame. Untouched pages cost
/// nothing.
pub struct FrameReader {
    staging: Box<[u8]>,
    /// The device in whose memory the frames of the last burst are.
    frames_owner: Option<Device>,
}

impl std::fmt::Debug for FrameReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FrameReader").field("frames_in_use", &self.frames_owner.is_some()).finish()
    }
}

impl Default for FrameReader {
    fn default() -> FrameReader {
        let staging = vec![0; SLOT * BURST_FRAMES].into_boxed_slice();
        FrameReader { staging, frames_owner: None }
    }
}

impl FrameReader {
    /// Records that the frames of the last burst are no longer used.
    #[inline]
    pub(crate) fn release(&mut self) {
        self.frames_owner = None;
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
