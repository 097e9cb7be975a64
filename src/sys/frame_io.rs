//! Sending and receiving whole frames through a descriptor. Those that are sent lie in a
//! [`FrameBatch`] before; a device says how one is flushed.
//!
//! Rule: nothing here waits, retries or logs. The caller counts.

use std::fmt;
use std::os::fd::AsRawFd;

use rustix::io::Errno;

use base::limits::{BURST_FRAMES, FRAME_BATCH_BYTES};

/// Frames of a batch begin at multiples of it.
const CACHE_LINE: usize = 64;

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
    #[inline]
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
    /// Writes all frames of a batch, in their order, and notes in the batch what came of each.
    fn flush(&self, batch: &mut FrameBatch);

    /// True if a long frame is written from where it lies.
    fn gathers(&self) -> bool {
        false
    }

    /// Writes one frame and its header from at most 1,024 pieces, if the device
    /// [`gathers`](FrameIo::gathers).
    ///
    /// # Safety
    ///
    /// Every piece lies in memory that is mapped, or was until another process shortened its file,
    /// and to which there is no `&mut`. Its bytes may change meanwhile: guest memory does.
    unsafe fn write_pieces(&self, pieces: &[libc::iovec]) -> Transfer {
        let _ = pieces;
        Transfer::Rejected(libc::EOPNOTSUPP)
    }

    /// Why frames go by a system call each, although the administrator wants them to go together.
    fn failure(&self) -> Option<String> {
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

/// Frames on their way to one device, in private memory, each behind its header: no guest changes
/// or takes away what the device is given, and no device waits for a guest's memory.
pub struct FrameBatch {
    bytes: Box<[u8]>,
    /// Where each frame begins, and its length.
    places: [(usize, usize); BURST_FRAMES],
    /// What came of each.
    answers: [Option<Transfer>; BURST_FRAMES],
    len: usize,
    /// Where the next frame begins.
    end: usize,
}

impl Default for FrameBatch {
    fn default() -> FrameBatch {
        FrameBatch {
            bytes: vec![0; FRAME_BATCH_BYTES].into_boxed_slice(),
            places: [(0, 0); BURST_FRAMES],
            answers: [None; BURST_FRAMES],
            len: 0,
            end: 0,
        }
    }
}

impl fmt::Debug for FrameBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrameBatch").field("len", &self.len).finish()
    }
}

impl FrameBatch {
    /// Forgets all frames.
    #[inline]
    pub fn clear(&mut self) {
        (self.len, self.end) = (0, 0);
    }

    /// Frames in the batch.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True without a frame.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Memory for the next frame and the header before it: all that is left, and none if that is
    /// less than `len` bytes. An empty batch has room for the longest frame.
    #[inline]
    pub fn room(&mut self, len: usize) -> Option<&mut [u8]> {
        let room = self.bytes.get_mut(self.end..)?;
        (self.len < BURST_FRAMES && len <= room.len()).then_some(room)
    }

    /// Adds the frame that lies in the first `len` bytes of the room.
    #[inline]
    pub fn add(&mut self, len: usize) {
        if let Some(place) = self.places.get_mut(self.len) {
            *place = (self.end, len);
            self.answers[self.len] = None;
            self.len += 1;
            self.end += len.next_multiple_of(CACHE_LINE);
        }
    }

    /// The `index`-th frame and its header; without a byte if there is none.
    #[inline]
    pub fn frame(&self, index: usize) -> &[u8] {
        let place = self.places[..self.len].get(index);
        place.and_then(|&(at, len)| self.bytes.get(at..at + len)).unwrap_or_default()
    }

    /// Notes what came of the `index`-th frame.
    #[inline]
    pub fn answer(&mut self, index: usize, answer: Transfer) {
        if let (Some(noted), Some((_, len))) = (self.answers.get_mut(index), self.places.get(index))
        {
            *noted = Some(answer.whole(*len));
        }
    }

    /// What came of the `index`-th frame.
    #[inline]
    pub fn answered(&self, index: usize) -> Transfer {
        self.answers.get(index).copied().flatten().unwrap_or(Transfer::WouldBlock)
    }

    /// Has `write` write each frame that has no answer yet. What is down or gone for one is so for
    /// those behind it.
    pub fn write_each(&mut self, mut write: impl FnMut(&[u8]) -> Transfer) {
        let mut end = None;
        for index in 0..self.len {
            if self.answers[index].is_none() {
                let answer = end.unwrap_or_else(|| write(self.frame(index)));
                end = Some(answer).filter(|end| matches!(end, Transfer::Down | Transfer::Gone));
                self.answer(index, answer);
            }
        }
    }
}

#[cfg(any(test, feature = "test-utils"))]
impl FrameBatch {
    /// What `device` answers to frames, each behind its header, that it is given together.
    pub fn flushed(device: &dyn FrameIo, frames: &[Vec<u8>]) -> Vec<Transfer> {
        let mut batch = FrameBatch::default();
        for frame in frames {
            batch.room(frame.len()).unwrap()[..frame.len()].copy_from_slice(frame);
            batch.add(frame.len());
        }
        device.flush(&mut batch);
        (0..frames.len()).map(|index| batch.answered(index)).collect()
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use base::frame::VNET_HDR_LEN;
    use base::frame::ethernet::VLAN_TAG_LEN;
    use base::limits::MAX_FRAME_LEN;

    #[test]
    fn a_batch_has_room_for_a_burst_or_the_longest_frame() {
        let mut batch = FrameBatch::default();
        let longest = VNET_HDR_LEN + MAX_FRAME_LEN as usize + VLAN_TAG_LEN;
        assert!(batch.room(longest).is_some());
        for _ in 0..BURST_FRAMES {
            assert!(batch.room(VNET_HDR_LEN + 1_518).is_some());
            batch.add(VNET_HDR_LEN + 1_518);
        }
        assert!(batch.room(0).is_none());
        batch.add(60);
        assert_eq!(batch.len(), BURST_FRAMES);
        batch.clear();
        batch.add(longest);
        assert!(batch.room(FRAME_BATCH_BYTES - longest).is_none());
        assert!(batch.frame(0).len() == longest && batch.frame(1).is_empty());
    }

    #[test]
    fn what_is_not_answered_is_written_until_the_device_is_gone() {
        let mut batch = FrameBatch::default();
        (0..5).for_each(|_| batch.add(72));
        batch.answer(1, Transfer::Done(72));
        assert_eq!(batch.answered(0), Transfer::WouldBlock);
        let answers = [Transfer::Done(71), Transfer::Fault, Transfer::Down];
        let mut next = answers.into_iter();
        batch.write_each(|_| next.next().unwrap());
        let answered: Vec<_> = (0..5).map(|index| batch.answered(index)).collect();
        let (short, done) = (Transfer::Rejected(libc::EIO), Transfer::Done(72));
        assert_eq!(answered, [short, done, Transfer::Fault, Transfer::Down, Transfer::Down]);
    }
}
