//! Writes several frames to one queue of a TAP by one system call, io_uring_enter(2).
//!
//! * Each queue has a ring. The TAP's file is registered, so that the ring can be restricted to
//!   writing to that file. Any thread may use the ring, under its owner's lock.
//! * [`TapRing::submit`] returns when the kernel has completed each frame. The kernel writes to a
//!   TAP within the submitting call ([`TapRing::new`] tests that), so no write is pending between
//!   two calls.
//! * The memory of a batch is registered when the batch first comes ([`RegisteredBatches`]): the
//!   kernel holds its pages, and a write saves the checks of an address of the process.
//! * If the kernel refuses the call itself, the frames that it did not take are written by `write`,
//!   in order, and so are all later frames.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use io_uring::register::Restriction;
use io_uring::{IoUring, opcode, squeue, types};

use super::frame_io::{FrameBatch, Transfer};
use base::limits::{BURST_FRAMES, TAP_RING_BATCHES};

/// `IORING_UNREGISTER_FILES` and `IORING_REGISTER_BUFFERS_UPDATE`: the io_uring_register(2) calls
/// that stay allowed.
const UNREGISTER_FILES: u8 = 3;
const UPDATE_BUFFERS: u8 = 16;
/// Bytes that are too short for a frame.
static NO_FRAME: [u8; 1] = [0];

base::words! {
    /// How frames are written to a TAP.
    Io {
        /// By io_uring if the kernel permits it.
        Auto "auto",
        /// By io_uring, with a warning if the kernel does not permit it.
        Uring "uring",
        /// By one system call for each frame.
        Write "write",
    }
}

/// The reason why there is no ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The kernel refuses this call with this errno.
    #[error("{0}: {error}", error = io::Error::from_raw_os_error(*.1))]
    Call(&'static str, i32),
    /// The kernel hands writes to kernel threads, or returns other results than `write`.
    #[error("this kernel does not write to a TAP at once")]
    SelfTest,
}

fn refused(call: &'static str) -> impl Fn(io::Error) -> Refused {
    move |error| Refused::Call(call, error.raw_os_error().unwrap_or(libc::EIO))
}

/// The ring of one queue.
pub(crate) struct TapRing {
    /// `None` after the kernel refused a call.
    ring: Option<IoUring>,
    batches: RegisteredBatches,
    why: Option<Refused>,
}

impl fmt::Debug for TapRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TapRing").field("why", &self.why).finish()
    }
}

impl TapRing {
    /// Makes a ring that can only write to `tap`; an error if the kernel does not permit the ring,
    /// or does not write within the call.
    pub(crate) fn new(tap: BorrowedFd<'_>) -> Result<TapRing, Refused> {
        let ring = IoUring::builder()
            .dontfork()
            .setup_r_disabled()
            .setup_submit_all()
            .build(BURST_FRAMES as u32)
            .map_err(refused("io_uring_setup"))?;
        let submitter = ring.submitter();
        submitter.register_files(&[tap.as_raw_fd()]).map_err(refused("register files"))?;
        let batches = RegisteredBatches::new(&ring);
        submitter
            .register_restrictions(&mut [
                Restriction::sqe_op(opcode::Write::CODE),
                Restriction::sqe_op(opcode::WriteFixed::CODE),
                Restriction::sqe_flags_required(squeue::Flags::FIXED_FILE.bits()),
                Restriction::register_op(UNREGISTER_FILES),
                Restriction::register_op(UPDATE_BUFFERS),
            ])
            .map_err(refused("register restrictions"))?;
        submitter.register_enable_rings().map_err(refused("enable"))?;
        let mut made = TapRing { ring: Some(ring), batches, why: None };
        made.try_out()?;
        Ok(made)
    }

    /// Writes bytes too short for a frame. The kernel must refuse them before the submitting call
    /// returns, which does not wait.
    fn try_out(&mut self) -> Result<(), Refused> {
        let Some(ring) = &mut self.ring else { return Err(Refused::SelfTest) };
        // SAFETY: the byte is static.
        unsafe { push(ring, [&NO_FRAME[..]].into_iter(), None) };
        ring.submit().map_err(refused("io_uring_enter"))?;
        let answer = ring.completion().next().map(|done| done.result());
        match answer.map(Transfer::from_answer) {
            Some(Transfer::Rejected(libc::EINVAL) | Transfer::Down | Transfer::Gone) => Ok(()),
            _ => Err(Refused::SelfTest),
        }
    }

    /// Submits all frames and notes the kernel's results; frames that the kernel did not take get
    /// none.
    pub(crate) fn submit(&mut self, batch: &mut FrameBatch) {
        let Some(ring) = &mut self.ring else { return };
        let registered = self.batches.index_of(ring, batch);
        // SAFETY: the frames stay in the batch until all are completed, or the ring is dropped.
        unsafe { push(ring, (0..batch.len()).map(|index| batch.frame(index)), registered) };
        let mut missing = batch.len();
        while missing > 0 {
            let submitted = ring.submit_and_wait(missing);
            for done in ring.completion() {
                batch.answer(done.user_data() as usize, Transfer::from_answer(done.result()));
                missing = missing.saturating_sub(1);
            }
            match submitted {
                Err(error) if error.raw_os_error() != Some(libc::EINTR) => {
                    return self.retire(refused("io_uring_enter")(error));
                }
                _ => {}
            }
        }
    }

    /// Returns the reason why each frame takes a system call although the ring was made.
    pub(crate) fn failure(&self) -> Option<String> {
        self.why.map(|why| why.to_string())
    }

    /// Stops using the ring.
    #[cold]
    fn retire(&mut self, why: Refused) {
        self.why = Some(why);
        if let Some(ring) = self.ring.take() {
            let _ = ring.submitter().unregister_files();
        }
    }
}

/// The batches whose memory is registered with a ring.
struct RegisteredBatches {
    /// [`FrameBatch::id`] of each registered batch, by index of its memory. Not the address of each
    /// batch: the memory of a later batch may have the same address, and other pages.
    ids: Vec<u64>,
    /// Batches that may be registered: 0 if the kernel permits none (before Linux 5.19), and not
    /// more than are registered after the kernel refused one (`RLIMIT_MEMLOCK`).
    most: usize,
}

impl RegisteredBatches {
    fn new(ring: &IoUring) -> RegisteredBatches {
        let made = ring.submitter().register_buffers_sparse(TAP_RING_BATCHES as u32);
        RegisteredBatches { ids: vec![], most: if made.is_ok() { TAP_RING_BATCHES } else { 0 } }
    }

    /// Returns the index of a batch's memory, which is registered if it was not. `None` if the
    /// memory cannot be registered.
    #[inline]
    fn index_of(&mut self, ring: &IoUring, batch: &FrameBatch) -> Option<u16> {
        let known = self.ids.iter().position(|&id| id == batch.id());
        known.or_else(|| self.register(ring, batch)).map(|index| index as u16)
    }

    #[cold]
    fn register(&mut self, ring: &IoUring, batch: &FrameBatch) -> Option<usize> {
        let (index, memory) = (self.ids.len(), batch.memory());
        if index >= self.most {
            return None;
        }
        let memory =
            libc::iovec { iov_base: memory.as_ptr().cast_mut().cast(), iov_len: memory.len() };
        // SAFETY: the memory is mapped now, and the kernel holds its pages from now on. Entries of
        // this ring read the memory and do not write, and name it only while the batch exists: no
        // later batch has this id.
        let made =
            unsafe { ring.submitter().register_buffers_update(index as u32, &[memory], None) };
        match made {
            Ok(()) => self.ids.push(batch.id()),
            Err(_) => self.most = index,
        }
        made.ok().map(|()| index)
    }
}

/// Queues a write of each frame. `registered` is the index of the registered memory in which the
/// frames lie.
///
/// # Safety
/// The frames' bytes stay until the kernel has completed the writes.
unsafe fn push<'a>(
    ring: &mut IoUring,
    frames: impl Iterator<Item = &'a [u8]>,
    registered: Option<u16>,
) {
    let mut submission = ring.submission();
    for (number, frame) in frames.enumerate() {
        let (tap, at, len) = (types::Fixed(0), frame.as_ptr(), frame.len() as u32);
        let entry = match registered {
            Some(index) => opcode::WriteFixed::new(tap, at, len, index).build(),
            None => opcode::Write::new(tap, at, len).build(),
        };
        // SAFETY: the caller keeps the bytes. The queue has room: it is as long as a batch, and
        // empty before.
        let _ = unsafe { submission.push(&entry.user_data(number as u64)) };
    }
}

/// Unregisters the file, so that the kernel releases the file now and not some time after the ring
/// is closed: an interface with an open queue counts as busy.
impl Drop for TapRing {
    fn drop(&mut self) {
        if let Some(ring) = &self.ring {
            let _ = ring.submitter().unregister_files();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsFd, OwnedFd};
    use std::time::Duration;

    use crate::frame_io::FrameIo;
    use crate::netlink::modify;
    use crate::tap::{self, Missing, TapQueue};
    use crate::testns::{self, Packets};
    use base::frame::Offloads;
    use base::limits::TAP_BATCH_LEAST;

    /// IEEE Std 802 local experimental EtherType 2.
    const TYPE: u16 = 0x88b6;

    /// Returns header and frame, filled with `mark`.
    fn frame(mark: u8, len: usize) -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame.extend([0xff; 6]);
        frame.extend([2, 0, 0, 0, 0, 1]);
        frame.extend(TYPE.to_be_bytes());
        frame.resize(12 + len, mark);
        frame
    }

    /// Makes an interface, up if `up`, with one queue that writes by a ring.
    fn open(up: bool) -> (u32, TapQueue) {
        with_ring(tap::open("t0", 1, Offloads::NONE, Missing::Create).unwrap(), up)
    }

    fn with_ring(mut tap: tap::Tap, up: bool) -> (u32, TapQueue) {
        modify(libc::RTM_NEWLINK, tap.link.index, Some(up), &[]).unwrap();
        let mut queue = tap.queues.remove(0);
        queue.use_ring().unwrap();
        (tap.link.index, queue)
    }

    fn write(queue: &TapQueue, frames: &[Vec<u8>]) -> Vec<Transfer> {
        FrameBatch::flushed(queue, frames)
    }

    /// Returns the marks of the frames that the host received.
    fn marks(host: &Packets, count: usize) -> Vec<u8> {
        (0..count).map(|_| *host.receive().unwrap().last().unwrap()).collect()
    }

    #[test]
    fn a_batch_is_answered_as_its_frames_one_by_one() {
        testns::run(|| {
            let (index, queue) = open(true);
            let host = Packets::open(index, TYPE);
            for count in [1, TAP_BATCH_LEAST - 1, TAP_BATCH_LEAST, 17, BURST_FRAMES] {
                let mut frames: Vec<_> = (0..count as u8).map(|n| frame(n, 60)).collect();
                // The first frame is too short, the middle one has a header that contradicts it.
                frames[0].truncate(25);
                frames[count / 2][0] = 1;
                frames[count / 2][6..10].fill(0xff);
                frames[count - 1].resize(60_000, count as u8 - 1);
                let alone = |frame: &Vec<u8>| write(&queue, std::slice::from_ref(frame))[0];
                let one_by_one: Vec<_> = frames.iter().map(alone).collect();
                let alone = one_by_one.iter().filter(|of| matches!(of, Transfer::Done(_))).count();
                let first = marks(&host, alone);
                assert_eq!(write(&queue, &frames), one_by_one, "{count} frames");
                assert_eq!(marks(&host, alone), first);
                assert!(first.is_sorted(), "{first:?}");
            }
            assert_eq!(queue.failure(), None);
        });
    }

    #[test]
    fn an_interface_that_is_down_or_gone_says_so_for_each_frame() {
        testns::run(|| {
            let (index, queue) = open(false);
            let frames: Vec<_> = (0..9).map(|n| frame(n, 60)).collect();
            assert_eq!(write(&queue, &frames), [Transfer::Down; 9]);
            modify(libc::RTM_NEWLINK, index, Some(true), &[]).unwrap();
            assert_eq!(write(&queue, &frames), [Transfer::Done(72); 9]);
            modify(libc::RTM_DELLINK, index, None, &[]).unwrap();
            assert_eq!(write(&queue, &frames), [Transfer::Gone; 9]);
        });
    }

    /// A ring holds the file of its queue; an interface with one queue is free when that file is
    /// closed. A program that a concurrent test starts inherits the file too, until its exec(2).
    #[test]
    fn the_interface_is_free_when_its_queue_is_closed() {
        testns::run(|| {
            let is_busy = |_: &i32| {
                let mut waits = 0;
                let tap = loop {
                    match tap::open("t0", 1, Offloads::NONE, Missing::Create) {
                        Err(tap::TapError::Busy) if waits < 1000 => waits += 1,
                        opened => break opened.unwrap(),
                    }
                    std::thread::sleep(Duration::from_millis(1));
                };
                let (_, queue) = with_ring(tap, true);
                let frames: Vec<_> = (0..9).map(|n| frame(n, 60)).collect();
                assert_eq!(write(&queue, &frames), [Transfer::Done(72); 9]);
                waits > 0
            };
            let busy = (0..50).filter(is_busy).count();
            assert!(busy < 10, "{busy} of 50 times");
        });
    }

    #[test]
    fn any_thread_may_flush() {
        testns::run(|| {
            let (index, queue) = open(true);
            let host = Packets::open(index, TYPE);
            for mark in 0..4 {
                std::thread::scope(|scope| {
                    scope.spawn(|| write(&queue, &vec![frame(mark, 60); 9]));
                });
            }
            let expected: Vec<u8> = (0..4).flat_map(|mark| [mark; 9]).collect();
            assert_eq!(marks(&host, 36), expected);
        });
    }

    /// Each batch that is dropped leaves its address to the next one, which has other pages.
    #[test]
    fn each_batch_is_written_from_its_own_memory() {
        testns::run(|| {
            let (index, queue) = open(true);
            let host = Packets::open(index, TYPE);
            let marks_of = |mark| {
                assert_eq!(write(&queue, &vec![frame(mark, 60); 9]), [Transfer::Done(72); 9]);
                marks(&host, 9)
            };
            let registered = || queue.ring().batches.ids.len();
            for mark in 0..2 * TAP_RING_BATCHES {
                assert_eq!(registered(), mark.min(TAP_RING_BATCHES));
                assert_eq!(marks_of(mark as u8), [mark as u8; 9]);
            }
            // Kernels before 5.19, and a process that may lock no more memory.
            queue.ring().batches = RegisteredBatches { ids: vec![], most: 0 };
            assert_eq!((marks_of(99), registered()), (vec![99; 9], 0));
        });
    }

    #[test]
    fn the_ring_can_do_nothing_else() {
        testns::run(|| {
            let (_, queue) = open(true);
            let mut made = TapRing::new(queue.as_fd()).unwrap();
            let memory = [0; 72];
            let ring = made.ring.as_mut().unwrap();
            let plain = types::Fd(queue.as_raw_fd());
            for entry in [
                opcode::Nop::new().build().flags(squeue::Flags::FIXED_FILE),
                opcode::Close::new(plain).build(),
                opcode::WriteFixed::new(plain, memory.as_ptr(), 72, 0).build(),
                opcode::Write::new(plain, memory.as_ptr(), 72).build(),
                opcode::ReadFixed::new(types::Fixed(0), memory.as_ptr().cast_mut(), 72, 0).build(),
            ] {
                // SAFETY: the memory lives here.
                unsafe { ring.submission().push(&entry) }.unwrap();
                ring.submit_and_wait(1).unwrap();
                assert_eq!(ring.completion().next().unwrap().result(), -libc::EACCES);
            }
            let error = ring.submitter().register_files_update(0, &[0]).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EACCES));
        });
    }

    /// Makes the kernel refuse system call `number` to this thread.
    fn refuse(number: libc::c_long) {
        let statement = |code, jf, k| libc::sock_filter { code, jt: 0, jf, k };
        let filter = [
            // Loads the call's number; EPERM for `number`, else allow.
            statement((libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, 0, 0),
            statement((libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, 1, number as u32),
            statement(libc::BPF_RET as u16, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
            statement(libc::BPF_RET as u16, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog { len: 4, filter: filter.as_ptr().cast_mut() };
        // SAFETY: the kernel reads the program, which lives here; only this thread is affected,
        // which was made for the test.
        unsafe {
            assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
            let filter = libc::SECCOMP_MODE_FILTER;
            assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, filter, &program), 0);
        }
    }

    #[test]
    fn a_kernel_that_permits_no_ring_says_why() {
        testns::run(|| {
            let (_, mut queue) = open(true);
            refuse(libc::SYS_io_uring_setup);
            let why = queue.use_ring().unwrap_err();
            assert_eq!(why, Refused::Call("io_uring_setup", libc::EPERM));
            assert_eq!(why.to_string(), "io_uring_setup: Operation not permitted (os error 1)");
        });
        testns::run(|| {
            let mut tap = tap::open("t0", 1, Offloads::NONE, Missing::Create).unwrap();
            refuse(libc::SYS_io_uring_register);
            let why = tap.queues[0].use_ring().unwrap_err();
            assert_eq!(why, Refused::Call("register files", libc::EPERM));
        });
    }

    /// The kernel permits making the ring, but not using it.
    #[test]
    fn what_the_kernel_does_not_take_goes_by_write() {
        testns::run(|| {
            let (index, queue) = open(true);
            let host = Packets::open(index, TYPE);
            refuse(libc::SYS_io_uring_enter);
            for _ in 0..2 {
                let frames: Vec<_> = (0..9).map(|n| frame(n, 60)).collect();
                assert_eq!(write(&queue, &frames), [Transfer::Done(72); 9]);
                assert_eq!(marks(&host, 9), (0..9).collect::<Vec<u8>>());
                assert_eq!(
                    queue.failure().unwrap(),
                    "io_uring_enter: Operation not permitted (os error 1)"
                );
            }
        });
    }

    #[test]
    fn a_file_that_answers_otherwise_is_refused() {
        let null = std::fs::OpenOptions::new().write(true).open("/dev/null").unwrap();
        let refused = TapRing::new(null.as_fd()).unwrap_err();
        assert_eq!(refused, Refused::SelfTest);
        // The pipe is full, so a write to it waits.
        let (_reader, writer) = io::pipe().unwrap();
        let writer = OwnedFd::from(writer);
        crate::descriptor::set_nonblocking(writer.as_fd()).unwrap();
        while rustix::io::write(&writer, &[0; 4096]).is_ok() {}
        rustix::fs::fcntl_setfl(&writer, rustix::fs::OFlags::empty()).unwrap();
        assert_eq!(TapRing::new(writer.as_fd()).unwrap_err(), Refused::SelfTest);
    }
}
