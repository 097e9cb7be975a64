//! Sending and receiving whole frames through a descriptor.
//!
//! Rule: nothing here waits, retries or logs. The caller counts.

use std::os::fd::AsRawFd;
use std::sync::Mutex;

use rustix::io::Errno;

/// What sending or receiving one frame came to. Where the word is the kernel's of a TAP, the tests
/// of [`super::tap_io`] keep it true.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transfer {
    /// Bytes moved, the 12-byte header included.
    Done(usize),
    /// Nothing to read, or no room to write.
    WouldBlock,
    /// The interface is down; an event says when that has changed.
    Down,
    /// The interface was deleted, or the descriptor is none of a TAP, or the connection has ended.
    /// It reports an event for good: stop watching it, close it, open another.
    Gone,
    /// The kernel has no memory at the moment.
    NoBuffers,
    /// The kernel refused this very frame, as errno.
    Rejected(i32),
    /// A piece lies in memory that is not there any more: its file was shortened.
    Fault,
    /// Zero bytes: from a read not something a TAP does, so treat it as [`Transfer::Gone`] to avoid
    /// a loop; from a write only for pieces without a byte.
    Eof,
}

impl Transfer {
    /// The result of `readv` or `writev`, of which a negative one comes with `errno`.
    pub fn from_result(result: isize, errno: i32) -> Transfer {
        match usize::try_from(result) {
            Ok(0) => Transfer::Eof,
            Ok(len) => Transfer::Done(len),
            Err(_) => Transfer::from_errno(errno),
        }
    }

    /// What came of writing `len` bytes. A device takes a frame or refuses it; a part that was
    /// taken is some other frame.
    #[inline(always)]
    pub fn whole(self, len: usize) -> Transfer {
        match self {
            Transfer::Done(written) if written != len => Transfer::Rejected(libc::EIO),
            result => result,
        }
    }

    /// A length, or an errno below zero.
    pub fn from_answer(answer: i32) -> Transfer {
        Transfer::from_result(answer as isize, answer.wrapping_neg())
    }

    /// The meaning of an errno.
    pub fn from_errno(errno: i32) -> Transfer {
        match errno {
            // A non-blocking call does not get as far as being interrupted; if it did, coming
            // back later is right.
            libc::EAGAIN | libc::EINTR => Transfer::WouldBlock,
            libc::EIO | libc::ENETDOWN => Transfer::Down,
            libc::EBADFD | libc::ENODEV | libc::EBADF | libc::ENXIO => Transfer::Gone,
            libc::ENOBUFS | libc::ENOMEM => Transfer::NoBuffers,
            libc::EFAULT => Transfer::Fault,
            errno => Transfer::Rejected(errno),
        }
    }
}

/// Sending and receiving whole frames, each behind its 12-byte virtio-net header. A trait so that
/// tests can let every call end in every way. `as_raw_fd` is for epoll only.
pub trait FrameIo: Send + Sync + AsRawFd {
    /// False if a frame must lie in private memory when it is written: others wait meanwhile, and
    /// a thread that touches a guest's memory may wait.
    fn gathers(&self) -> bool {
        true
    }

    /// Where this worker collects frames that go out together, if it has about so many; none if
    /// each goes by itself. Frames written meanwhile by the functions below overtake those
    /// collected.
    fn batch(&self, worker: usize, frames: usize) -> Option<&Mutex<dyn FrameBatch>> {
        let _ = (worker, frames);
        None
    }

    /// Where frames are that have come, in memory of the device; none if each is read by itself.
    fn inbox(&self) -> Option<&dyn FrameInbox> {
        None
    }

    /// True if the interface was deleted, of which its descriptor reports no event. Once: the
    /// device is to be closed.
    fn is_gone(&self) -> bool {
        false
    }

    /// True if frames of an interface that has this MTU by now are too long, and are not if it is
    /// opened again.
    fn is_outgrown(&self, mtu: u32) -> bool {
        let _ = mtu;
        false
    }

    /// Writes one frame that lies in one piece, its header included.
    fn write(&self, bytes: &[u8]) -> Transfer;

    /// Writes one frame, gathered from at most 1,024 pieces.
    ///
    /// # Safety
    ///
    /// Every piece lies in memory that is mapped, or was until another process shortened its file,
    /// and to which there is no `&mut`. Its bytes may change meanwhile: guest memory does.
    unsafe fn write_pieces(&self, pieces: &[libc::iovec]) -> Transfer;

    /// Reads one frame. If `buffer` is too short for it the rest is lost without a sign.
    fn read(&self, buffer: &mut [u8]) -> Transfer;
}

/// What taking frames came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// There may be more, of which no event tells.
    pub more: bool,
    /// Frames that the kernel has dropped for want of room, as far as that is known by now.
    pub lost: u64,
}

/// Frames in memory that the kernel wrote, and writes again when it is given back.
pub trait FrameInbox {
    /// Gives back the frames that were taken before, and calls `each` with place and length of the
    /// next ones, until there are none or it returns false. They are the caller's until the next
    /// call, or until the device is closed.
    fn take(&self, each: &mut dyn FnMut(*mut u8, u32) -> bool) -> Taken;
}

/// Frames that go to a device together, at the latest when the burst ends that they are part of.
pub trait FrameBatch: Send {
    /// Begins a batch. What a thread that panicked left is forgotten.
    fn begin(&mut self);

    /// Private memory for the next frame and the header before it, at least
    /// [`TAP_BATCH_ROOM`](base::limits::TAP_BATCH_ROOM) bytes; none if the batch is full.
    fn room(&mut self) -> Option<&mut [u8]>;

    /// Adds the frame that lies in the first `len` bytes of the room.
    fn add(&mut self, len: usize);

    /// Writes all frames in the order in which they were added, and calls `done` with the result
    /// of each.
    fn flush(&mut self, done: &mut dyn FnMut(Transfer));

    /// Why frames go by a system call each nevertheless.
    fn failure(&self) -> Option<String>;
}

impl From<Result<usize, Errno>> for Transfer {
    fn from(result: Result<usize, Errno>) -> Transfer {
        match result {
            Ok(0) => Transfer::Eof,
            Ok(len) => Transfer::Done(len),
            Err(error) => Transfer::from_errno(error.raw_os_error()),
        }
    }
}
