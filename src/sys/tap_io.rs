//! Sends and receives frames through one queue of a TAP, and maps the kernel's results to
//! [`Transfer`].
//!
//! The results of Linux 6.18, which the tests below check; results in brackets are from the
//! driver's source only:
//!
//! | situation | write | read | epoll |
//! |---|---|---|---|
//! | interface down | EIO | frames queued before, then EAGAIN | no EPOLLOUT; both come with "up" |
//! | nothing queued | | EAGAIN | |
//! | interface deleted | EBADFD | EBADFD | EPOLLERR, one edge |
//! | queue detached (TUNSETQUEUE) | goes through | EAGAIN | |
//! | MTU lowered below the frame | goes through: no check | | |
//! | header and frame below 12 + 14 bytes | EINVAL | | |
//! | frame of 1 MiB | goes through: the driver has no upper limit | | |
//! | header fields that contradict the frame | EINVAL | | |
//! | more than 1,024 pieces | EINVAL | | |
//! | a piece that cannot be read or written | EFAULT | EFAULT | |
//! | buffer shorter than 12 bytes | | EINVAL, and the frame is lost | |
//! | buffer shorter than the frame | | truncated without an error | |
//! | no piece, or only empty ones | 0 by `writev`, EINVAL by `write` | | |
//! | socket buffer full, after TUNSETSNDBUF | (EAGAIN) | | |
//! | no memory | [ENOMEM, ENOBUFS] | | |
//!
//! No function here waits, retries or logs. The caller counts, bounds the written frames, and reads
//! into a buffer for the longest frame. A frame read without offloads may still carry DATA_VALID.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError, TryLockError};

use super::frame_io::{FrameBatch, FrameIo, Transfer};
use super::tap_ring::{Refused, TapRing};
use base::limits::TAP_BATCH_LEAST;

/// One attached queue; detached on drop.
#[derive(Debug)]
pub struct TapQueue {
    fd: OwnedFd,
    ring: Option<Mutex<TapRing>>,
}

impl TapQueue {
    /// Makes a queue of an attached, non-blocking descriptor.
    pub(super) fn new(fd: OwnedFd) -> TapQueue {
        TapQueue { fd, ring: None }
    }

    /// Writes several frames by one system call (io_uring) from now on.
    pub fn use_ring(&mut self) -> Result<(), Refused> {
        self.ring = Some(Mutex::new(TapRing::new(self.fd.as_fd())?));
        Ok(())
    }

    /// Returns the ring, locked.
    #[cfg(test)]
    pub(super) fn ring(&self) -> std::sync::MutexGuard<'_, TapRing> {
        self.ring.as_ref().unwrap().lock().unwrap()
    }

    /// Writes each frame by its own system call again.
    pub fn use_no_ring(&mut self) {
        self.ring = None;
    }
}

impl AsRawFd for TapQueue {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl AsFd for TapQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl FrameIo for TapQueue {
    fn flush(&self, batch: &mut FrameBatch) {
        // A stuck thread keeps the ring's lock, and other threads write without the ring.
        if batch.len() >= TAP_BATCH_LEAST
            && let Some(mut ring) = self.ring.as_ref().and_then(|ring| ring.try_lock().ok())
        {
            ring.submit(batch);
        }
        batch.write_each(|frame| rustix::io::write(self, frame).into());
    }

    fn gathers(&self) -> bool {
        true
    }

    unsafe fn write_pieces(&self, pieces: &[libc::iovec]) -> Transfer {
        // A count that exceeds an int exceeds 1,024 pieces, which the kernel refuses.
        let count = i32::try_from(pieces.len()).unwrap_or(i32::MAX);
        // Uses libc: pieces of guest memory are not slices.
        // SAFETY: the kernel reads `count` entries of `pieces`, and the caller promises that their
        // memory may be read; where the memory is gone the kernel returns EFAULT.
        let result = unsafe { libc::writev(self.as_raw_fd(), pieces.as_ptr(), count) };
        let errno = if result < 0 { io::Error::last_os_error().raw_os_error() } else { None };
        Transfer::from_result(result, errno.unwrap_or(0))
    }

    fn failure(&self) -> Option<String> {
        // A ring in use works.
        match self.ring.as_ref()?.try_lock() {
            Ok(ring) => ring.failure(),
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Poisoned(error)) => Some(PoisonError::to_string(&error)),
        }
    }

    fn read(&self, buffer: &mut [u8]) -> Transfer {
        rustix::io::read(self, buffer).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
    use vmm_sys_util::ioctl::ioctl_with_ref;
    use vmm_sys_util::ioctl_iow_nr;

    use crate::fs::{memfd, page_size};
    use crate::netlink::{self, modify};
    use crate::tap::{self, Missing, Tap};
    use crate::testns::{self, Packets};
    use base::frame::Offloads;

    ioctl_iow_nr!(TUNSETQUEUE, b'T' as u32, 217, libc::c_int);

    /// IEEE Std 802 local experimental EtherType 1: nothing else on the interface uses it.
    const TYPE: u16 = 0x88b5;
    const HEADER: [u8; 12] = [0; 12];

    fn frame(len: usize) -> Vec<u8> {
        let mut frame = vec![0xff; 6];
        frame.extend([2, 0, 0, 0, 0, 1]);
        frame.extend(TYPE.to_be_bytes());
        frame.resize(len, 0x5a);
        frame
    }

    fn piece(bytes: &[u8]) -> libc::iovec {
        libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
    }

    fn write(queue: &TapQueue, header: &[u8], frame: &[u8]) -> Transfer {
        // SAFETY: both pieces are borrowed across the call.
        unsafe { queue.write_pieces(&[piece(header), piece(frame)]) }
    }

    fn alone(queue: &TapQueue, bytes: &[u8]) -> Transfer {
        FrameBatch::flushed(queue, &[bytes.to_vec()])[0]
    }

    /// Reads until no frame is left; returns the last result, and the frames of type `TYPE`.
    fn read_all(queue: &TapQueue) -> (Transfer, Vec<Vec<u8>>) {
        let (mut buffer, mut frames) = (vec![0; 70_000], Vec::new());
        loop {
            match queue.read(&mut buffer) {
                Transfer::Done(len) if buffer[24..26] == TYPE.to_be_bytes() => {
                    frames.push(buffer[12..len].to_vec());
                }
                Transfer::Done(_) => {}
                end => return (end, frames),
            }
        }
    }

    fn up(tap: &Tap, up: bool) {
        modify(libc::RTM_NEWLINK, tap.link.index, Some(up), &[]).unwrap();
    }

    fn new_tap(queues: u16) -> Tap {
        tap::open("t0", queues, Offloads::NONE, Missing::Create).unwrap()
    }

    #[test]
    fn frames_pass_both_ways_unchanged() {
        testns::run(|| {
            let tap = new_tap(1);
            up(&tap, true);
            let (queue, host) = (&tap.queues[0], Packets::open(tap.link.index, TYPE));
            for len in [14, 15, 60, 64, 1514] {
                let frame = frame(len);
                assert_eq!(write(queue, &HEADER, &frame), Transfer::Done(12 + len));
                assert_eq!(host.receive().unwrap(), frame);
                host.send(&frame);
                assert_eq!(read_all(queue), (Transfer::WouldBlock, vec![frame]));
            }
        });
    }

    #[test]
    fn one_piece_is_answered_as_several() {
        testns::run(|| {
            let tap = new_tap(1);
            let queue = &tap.queues[0];
            let both = |frame: &[u8]| {
                let one = alone(queue, &[&HEADER, frame].concat());
                assert_eq!(write(queue, &HEADER, frame), one, "{} bytes", frame.len());
                one
            };
            assert_eq!(both(&frame(60)), Transfer::Down);
            up(&tap, true);
            let host = Packets::open(tap.link.index, TYPE);
            for len in [14, 60, 1514] {
                assert_eq!(both(&frame(len)), Transfer::Done(12 + len));
                assert_eq!(host.receive().unwrap(), frame(len));
                assert_eq!(host.receive().unwrap(), frame(len));
            }
            assert_eq!(both(&frame(60)[..13]), Transfer::Rejected(libc::EINVAL));
            assert_eq!(alone(queue, &[0, 99]), Transfer::Rejected(libc::EINVAL));
            // Two empty pieces never reach the driver; one empty buffer does.
            assert_eq!(alone(queue, &[]), Transfer::Rejected(libc::EINVAL));
            modify(libc::RTM_DELLINK, tap.link.index, None, &[]).unwrap();
            assert_eq!(both(&frame(60)), Transfer::Gone);
        });
    }

    #[test]
    fn down_is_told_by_writes_and_its_end_by_an_event() {
        testns::run(|| {
            let tap = new_tap(1);
            let queue = &tap.queues[0];
            assert_eq!(write(queue, &HEADER, &frame(60)), Transfer::Down);
            assert_eq!(read_all(queue).0, Transfer::WouldBlock);
            let events = watch(queue);
            assert_eq!(next_event(&events), None);
            up(&tap, true);
            assert!(next_event(&events).unwrap().contains(EventSet::OUT));
            assert_eq!(write(queue, &HEADER, &frame(60)), Transfer::Done(72));
            // Frames that the kernel queued before "down" can still be read.
            Packets::open(tap.link.index, TYPE).send(&frame(100));
            up(&tap, false);
            assert_eq!(read_all(queue), (Transfer::WouldBlock, vec![frame(100)]));
            assert_eq!(write(queue, &HEADER, &frame(60)), Transfer::Down);
        });
    }

    fn watch(queue: &TapQueue) -> Epoll {
        let epoll = Epoll::new().unwrap();
        let events = EventSet::IN | EventSet::OUT | EventSet::EDGE_TRIGGERED;
        epoll.ctl(ControlOperation::Add, queue.as_raw_fd(), EpollEvent::new(events, 0)).unwrap();
        epoll
    }

    fn next_event(epoll: &Epoll) -> Option<EventSet> {
        let mut events = [EpollEvent::default()];
        (epoll.wait(100, &mut events).unwrap() == 1).then(|| events[0].event_set())
    }

    #[test]
    fn deletion_is_gone_for_both_directions_and_one_edge() {
        testns::run(|| {
            let tap = new_tap(2);
            up(&tap, true);
            let (one, two) = (&tap.queues[0], &tap.queues[1]);
            let events = watch(one);
            while next_event(&events).is_some() {}
            modify(libc::RTM_DELLINK, tap.link.index, None, &[]).unwrap();
            assert!(next_event(&events).unwrap().contains(EventSet::ERROR));
            assert_eq!(next_event(&events), None);
            for queue in [one, two] {
                assert_eq!(write(queue, &HEADER, &frame(60)), Transfer::Gone);
                assert_eq!(read_all(queue).0, Transfer::Gone);
            }
        });
    }

    #[test]
    fn a_detached_queue_still_writes_and_reads_nothing() {
        testns::run(|| {
            let tap = new_tap(2);
            up(&tap, true);
            // SAFETY: all-zero bytes are a valid `ifreq`; TUNSETQUEUE reads the flags of it.
            unsafe {
                let mut request: libc::ifreq = std::mem::zeroed();
                request.ifr_ifru.ifru_flags = libc::IFF_DETACH_QUEUE as libc::c_short;
                assert_eq!(ioctl_with_ref(&tap.queues[1], TUNSETQUEUE(), &request), 0);
            }
            assert_eq!(write(&tap.queues[1], &HEADER, &frame(60)), Transfer::Done(72));
            assert_eq!(read_all(&tap.queues[1]).0, Transfer::WouldBlock);
            assert_eq!(write(&tap.queues[0], &HEADER, &frame(60)), Transfer::Done(72));
        });
    }

    #[test]
    fn lengths_are_checked_from_below_only() {
        testns::run(|| {
            let tap = new_tap(1);
            up(&tap, true);
            let queue = &tap.queues[0];
            // The system call returns 0 for empty pieces, without the driver.
            assert_eq!(write(queue, &[], &[]), Transfer::Eof);
            for len in 1..12 {
                assert_eq!(write(queue, &HEADER[..len], &[]), Transfer::Rejected(libc::EINVAL));
            }
            for len in 0..14 {
                let refused = write(queue, &HEADER, &frame(60)[..len]);
                assert_eq!(refused, Transfer::Rejected(libc::EINVAL), "{len}");
            }
            let mtu = (libc::IFLA_MTU, &300u32.to_ne_bytes()[..]);
            modify(libc::RTM_NEWLINK, tap.link.index, None, &[mtu]).unwrap();
            for len in [14, 1514, 65_535, 65_557, 1 << 20] {
                assert_eq!(write(queue, &HEADER, &frame(len)), Transfer::Done(12 + len));
            }
        });
    }

    #[test]
    fn headers_that_contradict_the_frame_are_rejected() {
        testns::run(|| {
            let tap = new_tap(1);
            up(&tap, true);
            let refused = Transfer::Rejected(libc::EINVAL);
            // NEEDS_CSUM beyond the frame, unknown GSO type, TSO without a segment size.
            let bad: [&[u8]; 3] =
                [&[1, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff], &[0, 99], &[0, 1, 54, 0]];
            for bad in bad {
                let mut header = HEADER;
                header[..bad.len()].copy_from_slice(bad);
                assert_eq!(write(&tap.queues[0], &header, &frame(60)), refused, "{bad:?}");
            }
        });
    }

    #[test]
    fn as_many_pieces_as_the_kernel_takes() {
        testns::run(|| {
            let tap = new_tap(1);
            up(&tap, true);
            let frame = frame(1024);
            let mut pieces = vec![piece(&HEADER)];
            pieces.extend(frame.chunks(1).take(1023).map(piece));
            // SAFETY: all pieces are borrowed from here.
            let written = unsafe { tap.queues[0].write_pieces(&pieces) };
            assert_eq!(written, Transfer::Done(12 + 1023));
            pieces.push(piece(&frame[1023..]));
            // SAFETY: as above.
            let written = unsafe { tap.queues[0].write_pieces(&pieces) };
            assert_eq!(written, Transfer::Rejected(libc::EINVAL));
        });
    }

    #[test]
    fn memory_that_is_gone_is_a_fault_and_not_a_signal() {
        testns::run(|| {
            let tap = new_tap(1);
            up(&tap, true);
            let (len, prot) = (page_size() as usize, libc::PROT_READ | libc::PROT_WRITE);
            let file = std::fs::File::from(memfd("fault", len as u64).unwrap());
            let (shared, fd) = (libc::MAP_SHARED, file.as_raw_fd());
            // SAFETY: a fresh mapping, unmapped at the end, of which no reference is made.
            unsafe {
                let at = libc::mmap(std::ptr::null_mut(), len, prot, shared, fd, 0);
                assert_ne!(at, libc::MAP_FAILED);
                file.set_len(0).unwrap();
                let lost = libc::iovec { iov_base: at, iov_len: 60 };
                assert_eq!(tap.queues[0].write_pieces(&[piece(&HEADER), lost]), Transfer::Fault);
                libc::munmap(at, len);
            }
        });
    }

    #[test]
    fn short_buffers_lose_frames() {
        testns::run(|| {
            let tap = new_tap(1);
            up(&tap, true);
            let (queue, host) = (&tap.queues[0], Packets::open(tap.link.index, TYPE));
            read_all(queue);
            host.send(&frame(1000));
            assert_eq!(queue.read(&mut [0; 100]), Transfer::Done(100));
            host.send(&frame(1000));
            assert_eq!(queue.read(&mut [0; 11]), Transfer::Rejected(libc::EINVAL));
            assert_eq!(read_all(queue), (Transfer::WouldBlock, vec![]));
        });
    }

    #[test]
    fn errnos_have_the_meaning_of_the_table() {
        let table = [
            (libc::EAGAIN, Transfer::WouldBlock),
            (libc::EINTR, Transfer::WouldBlock),
            (libc::EIO, Transfer::Down),
            (libc::EBADFD, Transfer::Gone),
            (libc::ENODEV, Transfer::Gone),
            (libc::ENOBUFS, Transfer::NoBuffers),
            (libc::ENOMEM, Transfer::NoBuffers),
            (libc::EFAULT, Transfer::Fault),
            (libc::EINVAL, Transfer::Rejected(libc::EINVAL)),
        ];
        for (errno, meaning) in table {
            assert_eq!(Transfer::from_result(-1, errno), meaning);
        }
        assert_eq!(Transfer::from_result(0, 0), Transfer::Eof);
        assert_eq!(Transfer::from_result(72, libc::EIO), Transfer::Done(72), "errno is stale then");
    }

    /// A thread that keeps the ring, stuck or panicked, costs other threads system calls and no
    /// frame.
    #[test]
    fn frames_go_without_a_ring_that_another_thread_keeps() {
        testns::run(|| {
            let mut tap = new_tap(1);
            up(&tap, true);
            tap.queues[0].use_ring().unwrap();
            let (queue, host) = (&tap.queues[0], Packets::open(tap.link.index, TYPE));
            let frames = vec![[&HEADER[..], &frame(60)].concat(); 9];
            let sent = || {
                assert_eq!(FrameBatch::flushed(queue, &frames), [Transfer::Done(72); 9]);
                (0..9).for_each(|_| assert_eq!(host.receive().unwrap(), frame(60)));
            };
            let held = queue.ring.as_ref().unwrap().lock().unwrap();
            sent();
            assert_eq!(queue.failure(), None);
            drop(held);
            std::thread::scope(|scope| {
                let burst = scope.spawn(|| {
                    let _held = queue.ring.as_ref().unwrap().lock().unwrap();
                    panic!("injected: with the ring");
                });
                assert!(burst.join().is_err());
            });
            sent();
            assert!(queue.failure().is_some());
        });
    }

    #[test]
    fn noqueue_and_down_up_do_not_disturb_an_attached_queue() {
        testns::run(|| {
            let tap = new_tap(1);
            for _ in 0..100 {
                up(&tap, true);
                netlink::set_noqueue(tap.link.index).unwrap();
                Packets::open(tap.link.index, TYPE).send(&frame(60));
                assert_eq!(read_all(&tap.queues[0]).1, vec![frame(60)]);
                up(&tap, false);
                std::thread::sleep(Duration::from_micros(100));
            }
        });
    }
}
