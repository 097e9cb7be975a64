//! Devices whose kernel is a test.

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use vmm_sys_util::eventfd::EventFd;

use super::{Device, DevicePort, lock};
use base::frame::{Offloads, VNET_HDR_LEN};
use sys::frame_io::{FrameBatch, FrameInbox, FrameIo, Taken, Transfer};

/// The descriptor of the fakes, which no thread watches.
static NULL: LazyLock<File> = LazyLock::new(|| File::open("/dev/null").unwrap());

/// A TAP queue whose kernel is this test.
pub struct Fake {
    /// The result of each call; `Done` moves the frame.
    pub answer: Mutex<Transfer>,
    /// Frames or results for reads before `answer`.
    pub queued: Mutex<VecDeque<Result<Vec<u8>, Transfer>>>,
    /// Number of bytes by which the kernel's answer to a write is too small.
    pub short: AtomicU64,
    /// The last frame written, with its pieces joined.
    pub written: Mutex<Vec<u8>>,
    /// Lengths of the pieces of the last frame.
    pub pieces: Mutex<Vec<usize>>,
    /// Number of reads.
    pub reads: AtomicU64,
    /// Number of writes.
    pub writes: AtomicU64,
    /// Duration of a read.
    pub lasts: Mutex<Duration>,
    /// The device has its frames in memory of its own.
    lends: bool,
    lent: Mutex<Vec<Vec<u8>>>,
    /// Eventfd for the device's events; none without events.
    event: Option<EventFd>,
}

impl Fake {
    /// Creates a device that answers each write with `answer`.
    pub fn new(answer: Transfer) -> Arc<Fake> {
        Arc::new(Fake::answering(answer))
    }

    /// Creates a device with events, without a frame.
    pub fn with_events(lends: bool) -> Arc<Fake> {
        let event = EventFd::new(libc::EFD_NONBLOCK).unwrap();
        Arc::new(Fake { lends, event: Some(event), ..Fake::answering(Transfer::WouldBlock) })
    }

    fn answering(answer: Transfer) -> Fake {
        Fake {
            answer: Mutex::new(answer),
            queued: Mutex::default(),
            short: AtomicU64::new(0),
            written: Mutex::default(),
            pieces: Mutex::default(),
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            lasts: Mutex::default(),
            lends: false,
            lent: Mutex::default(),
            event: None,
        }
    }

    /// Creates a device whose writes fail with `errno`.
    pub fn errno(errno: i32) -> Arc<Fake> {
        Fake::new(Transfer::from_result(-1, errno))
    }

    /// Queues a frame to be read.
    pub fn queue(&self, frame: &[u8]) {
        lock(&self.queued).push_back(Ok(frame.to_vec()));
        if let Some(event) = &self.event {
            event.write(1).unwrap();
        }
    }

    /// Returns the numbers of reads and writes.
    pub fn counts(&self) -> (u64, u64) {
        (self.reads.load(Ordering::Relaxed), self.writes.load(Ordering::Relaxed))
    }
}

impl AsRawFd for Fake {
    fn as_raw_fd(&self) -> RawFd {
        self.event.as_ref().map_or(NULL.as_raw_fd(), EventFd::as_raw_fd)
    }
}

impl FrameInbox for Fake {
    fn take(&self, each: &mut dyn FnMut(*mut u8, u32) -> bool) -> Taken {
        let (mut queued, mut lent) = (lock(&self.queued), lock(&self.lent));
        lent.clear();
        let mut more = true;
        while more && let Some(Ok(frame)) = queued.pop_front() {
            let frame = frame[VNET_HDR_LEN..].to_vec();
            more = each(frame.as_ptr().cast_mut(), frame.len() as u32);
            lent.push(frame);
        }
        Taken { more: !queued.is_empty(), lost: 0 }
    }
}

impl FrameIo for Fake {
    fn inbox(&self) -> Option<&dyn FrameInbox> {
        self.lends.then_some(self)
    }

    fn flush(&self, batch: &mut FrameBatch) {
        batch.write_each(|frame| {
            let piece = frame.as_ptr().cast_mut().cast();
            // SAFETY: the piece is borrowed across the call.
            unsafe { self.write_pieces(&[libc::iovec { iov_base: piece, iov_len: frame.len() }]) }
        });
    }

    fn gathers(&self) -> bool {
        true
    }

    unsafe fn write_pieces(&self, pieces: &[libc::iovec]) -> Transfer {
        self.writes.fetch_add(1, Ordering::Relaxed);
        let (mut written, mut lens) = (lock(&self.written), lock(&self.pieces));
        written.clear();
        lens.clear();
        for piece in pieces {
            // SAFETY: the caller's promise for `pieces`.
            written.extend_from_slice(unsafe {
                std::slice::from_raw_parts(piece.iov_base.cast::<u8>(), piece.iov_len)
            });
            lens.push(piece.iov_len);
        }
        match *lock(&self.answer) {
            Transfer::Done(_) => {
                let short = self.short.load(Ordering::Relaxed) as usize;
                Transfer::Done(written.len().saturating_sub(short))
            }
            answer => answer,
        }
    }

    fn read(&self, buffer: &mut [u8]) -> Transfer {
        self.reads.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(*lock(&self.lasts));
        match lock(&self.queued).pop_front() {
            Some(Err(answer)) => answer,
            Some(Ok(frame)) => {
                let len = frame.len().min(buffer.len());
                buffer[..len].copy_from_slice(&frame[..len]);
                Transfer::Done(len)
            }
            None => *lock(&self.answer),
        }
    }
}

/// A device whose interface is gone, and whose closing may panic.
struct Lost {
    panics: bool,
    closed: Arc<AtomicU32>,
}

/// Attaches one lost queue for each element of `panics`, which says whether closing the queue
/// panics. `closed` counts the closed queues.
pub fn attach_lost(tap: &DevicePort, panics: &[bool], closed: &Arc<AtomicU32>) {
    let lost = |&panics| Arc::new(Lost { panics, closed: Arc::clone(closed) }) as Device;
    tap.attach(panics.iter().map(lost).collect(), Offloads::ALL);
}

impl AsRawFd for Lost {
    fn as_raw_fd(&self) -> RawFd {
        NULL.as_raw_fd()
    }
}

impl FrameIo for Lost {
    fn flush(&self, batch: &mut FrameBatch) {
        batch.write_each(|_| Transfer::Gone);
    }

    fn read(&self, _: &mut [u8]) -> Transfer {
        Transfer::Gone
    }
}

impl Drop for Lost {
    fn drop(&mut self) {
        self.closed.fetch_add(1, Ordering::SeqCst);
        assert!(!self.panics, "injected: closing");
    }
}
