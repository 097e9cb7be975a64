//! Sends and receives whole frames through a descriptor. Frames to be sent lie in a [`FrameBatch`];
//! a device implements how a batch is flushed.
//!
//! Rule: no function here waits, retries or logs. The caller counts.

use std::fmt;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;

use base::limits::{BURST_FRAMES, FRAME_BATCH_BYTES};

/// Alignment of the frames of a batch, in bytes.
const CACHE_LINE: usize = 64;

/// The result of sending or receiving one frame. The tests of [`super::tap_io`] check the results
/// that the kernel gives for a TAP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transfer {
    /// The frame was moved: its length in bytes, the 12-byte header included.
    Done(usize),
    /// No frame to read, or no room to write.
    WouldBlock,
    /// The interface is down; an event reports when the interface is up.
    Down,
    /// The interface was deleted, or the descriptor is no TAP, or the connection has ended. The
    /// descriptor reports an event for ever: stop watching it, close it, and open another.
    Gone,
    /// The kernel lacks memory at the moment.
    NoBuffers,
    /// The kernel refused this frame, with this errno.
    Rejected(i32),
    /// A piece lies in memory that no longer exists: its file was shortened.
    Fault,
    /// Zero bytes. A TAP never reads zero bytes, so treat a read like [`Transfer::Gone`] to avoid a
    /// loop; a write returns zero only for empty pieces.
    Eof,
}

impl Transfer {
    /// Converts the result of `readv` or `writev`; `errno` counts if the result is negative.
    pub fn from_result(result: isize, errno: i32) -> Transfer {
        match usize::try_from(result) {
            Ok(0) => Transfer::Eof,
            Ok(len) => Transfer::Done(len),
            Err(_) => Transfer::from_errno(errno),
        }
    }

    /// Converts the result of writing `len` bytes: a partial write is an error, because a device
    /// must take a whole frame or refuse it.
    #[inline]
    pub fn whole(self, len: usize) -> Transfer {
        match self {
            Transfer::Done(written) if written != len => Transfer::Rejected(libc::EIO),
            result => result,
        }
    }

    /// Converts a length, or a negative errno.
    pub(crate) fn from_answer(answer: i32) -> Transfer {
        Transfer::from_result(answer as isize, answer.wrapping_neg())
    }

    /// Converts an errno.
    pub(crate) fn from_errno(errno: i32) -> Transfer {
        match errno {
            // A non-blocking call is not interrupted; if it were, trying again later would be
            // right.
            libc::EAGAIN | libc::EINTR => Transfer::WouldBlock,
            libc::EIO | libc::ENETDOWN => Transfer::Down,
            libc::EBADFD | libc::ENODEV | libc::EBADF | libc::ENXIO => Transfer::Gone,
            libc::ENOBUFS | libc::ENOMEM => Transfer::NoBuffers,
            libc::EFAULT => Transfer::Fault,
            errno => Transfer::Rejected(errno),
        }
    }
}

/// A device that sends and receives whole frames, each behind its 12-byte virtio-net header. A
/// trait, so that tests can make every call end in every way. `as_raw_fd` is for epoll only.
pub trait FrameIo: Send + Sync + AsRawFd {
    /// Writes all frames of a batch in their order, and notes the result of each frame in the
    /// batch.
    fn flush(&self, batch: &mut FrameBatch);

    /// Returns true if the device can write a frame from several pieces, without a copy.
    fn gathers(&self) -> bool {
        false
    }

    /// Writes one frame and its header from at most 1,024 pieces, if the device
    /// [`gathers`](FrameIo::gathers).
    ///
    /// # Safety
    ///
    /// Every piece lies in memory that is mapped, or was mapped until another process shortened its
    /// file, and to which no `&mut` exists. The bytes may change during the call, as guest memory
    /// does.
    unsafe fn write_pieces(&self, pieces: &[libc::iovec]) -> Transfer {
        let _ = pieces;
        Transfer::Rejected(libc::EOPNOTSUPP)
    }

    /// Returns the reason why each frame takes a system call although the configuration asks for
    /// batches.
    fn failure(&self) -> Option<String> {
        None
    }

    /// Returns the received frames in memory of the device; `None` if [`FrameIo::read`] reads each
    /// frame.
    fn inbox(&self) -> Option<&dyn FrameInbox> {
        None
    }

    /// Returns true if the interface was deleted and its descriptor reports no event for that. The
    /// caller closes the device.
    fn is_gone(&self) -> bool {
        false
    }

    /// Returns true if an interface with this MTU has frames too long for the open device, but not
    /// for a reopened device.
    fn is_outgrown(&self, mtu: u32) -> bool {
        let _ = mtu;
        false
    }

    /// Reads one frame. If `buffer` is too short for the frame, the rest is lost without an error.
    fn read(&self, buffer: &mut [u8]) -> Transfer;
}

/// The result of taking frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// More frames may be there, and no event reports them.
    pub more: bool,
    /// Frames that the kernel dropped for lack of room, newly reported.
    pub lost: u64,
}

/// Received frames in memory that the kernel writes, and writes again after the memory is given
/// back.
pub trait FrameInbox {
    /// Gives the frames of the last call back to the kernel, and calls `each` with address and
    /// length of the next frames, until there are none or `each` returns false. The frames belong
    /// to the caller until the next call, or until the device is closed.
    fn take(&self, each: &mut dyn FnMut(*mut u8, u32) -> bool) -> Taken;
}

/// Frames to one device in private memory, each behind its header. No guest can change or unmap the
/// frames of a batch, and no device waits for a guest's memory.
pub struct FrameBatch {
    id: u64,
    bytes: Box<[u8]>,
    /// Offset and length of each frame.
    places: [(usize, usize); BURST_FRAMES],
    /// Result of each frame.
    answers: [Option<Transfer>; BURST_FRAMES],
    len: usize,
    /// Offset of the next frame.
    end: usize,
}

impl Default for FrameBatch {
    fn default() -> FrameBatch {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        FrameBatch {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
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
    /// Returns the number of the batch; no other batch of the process ever has this number.
    #[inline]
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Returns the memory in which all frames of the batch lie, at one address for as long as the
    /// batch lives.
    pub(crate) fn memory(&self) -> &[u8] {
        &self.bytes
    }

    /// Removes all frames.
    #[inline]
    pub fn clear(&mut self) {
        (self.len, self.end) = (0, 0);
    }

    /// Returns the number of frames in the batch.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the batch has no frame.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns all remaining memory, for the next frame and its header; `None` if less than `len`
    /// bytes remain. An empty batch has room for the longest frame.
    #[inline]
    pub fn room(&mut self, len: usize) -> Option<&mut [u8]> {
        let room = self.bytes.get_mut(self.end..)?;
        (self.len < BURST_FRAMES && len <= room.len()).then_some(room)
    }

    /// Adds the frame in the first `len` bytes of the room.
    #[inline]
    pub fn add(&mut self, len: usize) {
        if let Some(place) = self.places.get_mut(self.len) {
            *place = (self.end, len);
            self.answers[self.len] = None;
            self.len += 1;
            self.end += len.next_multiple_of(CACHE_LINE);
        }
    }

    /// Returns the `index`-th frame with its header; empty if there is none.
    #[inline]
    pub fn frame(&self, index: usize) -> &[u8] {
        let place = self.places[..self.len].get(index);
        place.and_then(|&(at, len)| self.bytes.get(at..at + len)).unwrap_or_default()
    }

    /// Notes the result of the `index`-th frame.
    #[inline]
    pub fn answer(&mut self, index: usize, answer: Transfer) {
        if let (Some(noted), Some((_, len))) = (self.answers.get_mut(index), self.places.get(index))
        {
            *noted = Some(answer.whole(*len));
        }
    }

    /// Returns the result of the `index`-th frame; [`Transfer::WouldBlock`] if none was noted.
    #[inline]
    pub fn answered(&self, index: usize) -> Transfer {
        self.answers.get(index).copied().flatten().unwrap_or(Transfer::WouldBlock)
    }

    /// Calls `write` for each frame without a result. After a result of [`Transfer::Down`] or
    /// [`Transfer::Gone`] all later frames get this result without a call.
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
    /// Flushes frames, each behind its header, as one batch; returns the device's results.
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
