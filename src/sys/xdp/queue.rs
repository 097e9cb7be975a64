//! One queue of an interface by sockets of AF_XDP: frames come and go in [`Memory`] of ours, and
//! the kernel copies them.
//!
//! As Linux answers `sendto`, which has the kernel take frames from the transmit ring
//! (net/xdp/xsk.c), and what is made of it:
//!
//! | answer | meaning | frames |
//! |---|---|---|
//! | 0 | all, or the 32 of one call, were taken | sent |
//! | EAGAIN, ENOBUFS | so many for one call, or no room | the rest is tried again, then left |
//! | EBUSY | the interface dropped the frame that was taken last | [`Transfer::WouldBlock`] |
//! | ENETDOWN | the interface is down, nothing was looked at | [`Transfer::Down`], taken back |
//! | ENXIO | the interface was deleted | [`Transfer::Gone`] |
//!
//! What is left in the ring goes with the next frames, or when the queue is read the next time.
//!
//! Frames come to one socket and leave by another. When a frame was sent the kernel calls each
//! waiter of its socket, also one that waits for frames only; the sending socket has none.
//!
//! When the interface is deleted a socket has an error (SO_ERROR), and reports no event: its
//! `poll` says nothing of one that is bound to nothing.
//!
//! The sockets are bound without XDP_USE_NEED_WAKEUP: with copies it saves no call.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use libc::xdp_desc;
use rustix::io::Errno;
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, SocketAddrXdpWithSharedUmem, XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, sockopt};

use super::memory::Memory;
use super::ring::{Consumer, Producer, Ring};
use super::{Attachment, XdpError};
use crate::clock;
use crate::frame_io::{FrameBatch, FrameInbox, FrameIo, Taken, Transfer};
use crate::netlink::Link;
use crate::prefetch;
use crate::threads::lock;
use base::frame::VNET_HDR_LEN;
use base::limits::{
    BURST_FRAMES, MAX_XDP_MTU, XDP_FETCH_AHEAD, XDP_FETCH_BYTES, XDP_IDLE_CALLS,
    XDP_RECEIVE_FRAMES, XDP_SEND_FRAMES,
};

/// One attached queue; detached on drop.
#[derive(Debug)]
pub struct XdpQueue {
    /// The socket that frames come to.
    receiver: OwnedFd,
    shared: Shared,
    inbox: Mutex<Inbox>,
    /// The program that gives us the frames, for as long as a queue is there.
    attachment: Option<Arc<Attachment>>,
}

/// What sending workers share.
#[derive(Debug)]
struct Shared {
    /// The socket that frames leave by.
    sender: OwnedFd,
    memory: Arc<Memory>,
    /// Locked for a short time, and while the kernel copies; never while a guest's memory is
    /// touched.
    outlet: Mutex<Outlet>,
    /// The kernel left frames in the ring.
    left: AtomicBool,
}

/// An option of the socket that is a struct of numbers.
fn option<T: Default>(socket: &OwnedFd, name: libc::c_int) -> io::Result<T> {
    let (mut value, mut len) = (T::default(), size_of::<T>() as libc::socklen_t);
    let fd = socket.as_raw_fd();
    // By libc: rustix has the first of these only with its own system calls, and mixes up counts of
    // the second.
    // SAFETY: the kernel writes at most `len` bytes of `value`, which any bytes are valid for.
    let done =
        unsafe { libc::getsockopt(fd, libc::SOL_XDP, name, (&raw mut value).cast(), &raw mut len) };
    if done == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

impl XdpQueue {
    /// Sockets for queue `queue` of an interface, whose frames are no longer than its MTU says. No
    /// frame comes before the program has the descriptor.
    pub(super) fn open(link: &Link, queue: u32) -> Result<XdpQueue, XdpError> {
        let socket = || {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            rustix::net::socket_with(AddressFamily::XDP, SocketType::RAW, flags, None)
                .map_err(XdpError::of("socket"))
        };
        let (receiver, sender) = (socket()?, socket()?);
        let memory = Memory::new(XDP_RECEIVE_FRAMES + XDP_SEND_FRAMES, link.mtu)
            .map_err(|source| XdpError::Io { call: "mmap", source })?;
        let memory = Arc::new(memory);
        register(&receiver, &memory)?;
        sockopt::set_xdp_tx_ring_size(&sender, XDP_SEND_FRAMES)
            .map_err(XdpError::of("ring size"))?;
        let (inbox, outlet) = rings(&receiver, &sender, &memory)?;
        let address = |flags| SocketAddrXdp::new(flags, link.index, queue);
        rustix::net::bind(&receiver, &address(SocketAddrXdpFlags::XDP_COPY))
            .map_err(XdpError::of("bind"))?;
        // The same memory, and the same rings for filling and completing.
        let addr = address(SocketAddrXdpFlags::XDP_SHARED_UMEM);
        let address = SocketAddrXdpWithSharedUmem { addr, shared_umem_fd: receiver.as_fd() };
        rustix::net::bind(&sender, &address).map_err(XdpError::of("bind"))?;
        let outlet = Mutex::new(outlet);
        let shared = Shared { sender, memory, outlet, left: AtomicBool::new(false) };
        Ok(XdpQueue { receiver, shared, inbox: Mutex::new(inbox), attachment: None })
    }

    /// Frames come as long as this is held.
    pub(super) fn hold(&mut self, attachment: &Arc<Attachment>) {
        self.attachment = Some(Arc::clone(attachment));
    }
}

/// Tells the kernel of the memory and of the sizes of the rings, but for that to send from.
fn register(socket: &OwnedFd, memory: &Memory) -> Result<(), XdpError> {
    let (addr, len) = memory.place();
    let registration = XdpUmemReg {
        addr,
        len,
        chunk_size: memory.chunk_bytes() as u32,
        headroom: 0,
        flags: XdpUmemRegFlags::empty(),
        tx_metadata_len: 0,
    };
    sockopt::set_xdp_umem_reg(socket, registration).map_err(|errno| match errno {
        Errno::NOBUFS => XdpError::Locked,
        errno => XdpError::of("XDP_UMEM_REG")(errno),
    })?;
    let sizes = [
        sockopt::set_xdp_umem_fill_ring_size(socket, XDP_RECEIVE_FRAMES),
        sockopt::set_xdp_rx_ring_size(socket, XDP_RECEIVE_FRAMES),
        sockopt::set_xdp_umem_completion_ring_size(socket, XDP_SEND_FRAMES),
    ];
    sizes.into_iter().collect::<Result<(), Errno>>().map_err(XdpError::of("ring size"))
}

/// The four rings, with all chunks for receiving in the kernel's hands.
fn rings(
    receiver: &OwnedFd,
    sender: &OwnedFd,
    memory: &Arc<Memory>,
) -> Result<(Inbox, Outlet), XdpError> {
    let failed = |source| XdpError::Io { call: "rings", source };
    let offsets: Offsets = option(receiver, libc::XDP_MMAP_OFFSETS).map_err(failed)?;
    let Offsets([rx, tx, fr, cr]) = &offsets;
    let (fd, receive, send) = (receiver.as_fd(), XDP_RECEIVE_FRAMES, XDP_SEND_FRAMES);
    let (rx_at, tx_at) = (libc::XDP_PGOFF_RX_RING as u64, libc::XDP_PGOFF_TX_RING as u64);
    let (fill_at, done_at) = (libc::XDP_UMEM_PGOFF_FILL_RING, libc::XDP_UMEM_PGOFF_COMPLETION_RING);
    let mut inbox = Inbox {
        memory: Arc::clone(memory),
        received: Consumer(Ring::map(fd, rx_at, rx, receive).map_err(failed)?),
        fill: Producer(Ring::map(fd, fill_at, fr, receive).map_err(failed)?),
        lent: (0..receive).collect(),
        lost: 0,
        asked: clock::coarse_seconds(),
    };
    inbox.give_back();
    inbox.lent.shrink_to(BURST_FRAMES);
    let outlet = Outlet {
        memory: Arc::clone(memory),
        transmit: Producer(Ring::map(sender.as_fd(), tx_at, tx, send).map_err(failed)?),
        done: Consumer(Ring::map(fd, done_at, cr, send).map_err(failed)?),
        free: (receive..receive + send).collect(),
        frames: Vec::with_capacity(BURST_FRAMES),
    };
    Ok((inbox, outlet))
}

/// `struct xdp_mmap_offsets`: of the rings for receiving, sending, filling and completing.
#[repr(C)]
struct Offsets([libc::xdp_ring_offset; 4]);

impl Default for Offsets {
    fn default() -> Offsets {
        const NONE: libc::xdp_ring_offset =
            libc::xdp_ring_offset { producer: 0, consumer: 0, desc: 0, flags: 0 };
        Offsets([NONE; 4])
    }
}

/// `struct xdp_statistics`.
#[repr(C)]
#[derive(Default)]
struct Statistics {
    /// There was no chunk, or the frame is longer than one.
    dropped: u64,
    invalid_descriptors: [u64; 2],
    ring_full: u64,
    others: [u64; 2],
}

/// What receiving needs.
#[derive(Debug)]
struct Inbox {
    memory: Arc<Memory>,
    received: Consumer<xdp_desc>,
    fill: Producer<u64>,
    /// Chunks of the frames that were taken last.
    lent: Vec<u32>,
    /// Frames that the kernel had no room for, as far as they are reported.
    lost: u64,
    /// The second in which the kernel was asked.
    asked: u32,
}

impl Inbox {
    /// Gives the kernel the chunks of the frames that were taken last.
    fn give_back(&mut self) {
        for chunk in self.lent.drain(..) {
            // There is room: the ring is as long as there are chunks.
            self.fill.push(self.memory.address(chunk));
        }
        self.fill.publish();
    }

    /// Has the processor fetch a frame that will be taken soon: the kernel wrote it on another CPU,
    /// or so long ago that it is in no near cache.
    #[inline]
    fn fetch_ahead(&self) {
        let Some(desc) = self.received.peek(XDP_FETCH_AHEAD - 1) else { return };
        if let Some((at, _)) = self.memory.frame(&desc) {
            for offset in (0..desc.len.min(XDP_FETCH_BYTES) as usize).step_by(64) {
                prefetch::read(at.as_ptr().wrapping_add(offset));
            }
        }
    }

    /// Frames that the kernel has dropped since the last time. It is asked once in a second.
    fn newly_lost(&mut self, socket: &OwnedFd) -> u64 {
        let now = clock::coarse_seconds();
        if std::mem::replace(&mut self.asked, now) == now {
            return 0;
        }
        let Ok(statistics) = option::<Statistics>(socket, libc::XDP_STATISTICS) else { return 0 };
        let all = statistics.dropped.wrapping_add(statistics.ring_full);
        all.wrapping_sub(std::mem::replace(&mut self.lost, all))
    }
}

impl FrameInbox for XdpQueue {
    fn take(&self, each: &mut dyn FnMut(*mut u8, u32) -> bool) -> Taken {
        let inbox = &mut *lock(&self.inbox);
        inbox.give_back();
        self.shared.send_left();
        let mut more = false;
        while let Some(desc) = inbox.received.pop() {
            inbox.fetch_ahead();
            let wants_more = match inbox.memory.frame(&desc) {
                Some((at, chunk)) => {
                    inbox.lent.push(chunk);
                    each(at.as_ptr(), desc.len)
                }
                // Never, of this kernel: it counts as a frame without a byte.
                None => each(NonNull::dangling().as_ptr(), 0),
            };
            if !wants_more || inbox.lent.len() == BURST_FRAMES {
                more = true;
                break;
            }
        }
        inbox.received.release();
        Taken { more, lost: inbox.newly_lost(&self.receiver) }
    }
}

/// What sending needs.
#[derive(Debug)]
struct Outlet {
    memory: Arc<Memory>,
    transmit: Producer<xdp_desc>,
    done: Consumer<u64>,
    /// Chunks without a frame.
    free: Vec<u32>,
    /// Frames in chunks that the kernel is about to be told of.
    frames: Vec<xdp_desc>,
}

/// What came of frames.
#[derive(Debug)]
struct Outcome {
    /// A bit for each that the interface dropped.
    dropped: u64,
    /// Of all the others.
    others: Option<Transfer>,
}

impl Outcome {
    /// Of the `index`-th, of so many bytes with the header.
    fn of(&self, index: usize, len: usize) -> Transfer {
        match self.others {
            Some(other) => other,
            None if self.dropped >> index & 1 != 0 => Transfer::WouldBlock,
            None => Transfer::Done(len),
        }
    }
}

impl Outlet {
    /// Takes the chunks of frames that were sent, if there are not `count` without a frame.
    fn reclaim(&mut self, count: usize) {
        if self.free.len() >= count {
            return;
        }
        let ours = XDP_RECEIVE_FRAMES..XDP_RECEIVE_FRAMES + XDP_SEND_FRAMES;
        while let Some(addr) = self.done.pop() {
            let chunk = self.memory.number(addr);
            if ours.contains(&chunk) && self.free.len() < XDP_SEND_FRAMES as usize {
                self.free.push(chunk);
            }
        }
        self.done.release();
    }

    /// Copies frames to chunks, from the `first`-th on as many as fit and have a chunk.
    fn fill(&mut self, batch: &FrameBatch, first: usize) {
        self.reclaim(batch.len() - first);
        self.frames.clear();
        for index in first..batch.len() {
            let frame = batch.frame(index).get(VNET_HDR_LEN..).unwrap_or_default();
            if !self.fits(frame.len()) {
                break;
            }
            let Some(chunk) = self.free.pop() else { break };
            let to = self.memory.chunk(chunk).as_ptr();
            // SAFETY: the chunk is as long, and ours until its descriptor is in the ring.
            unsafe { std::ptr::copy_nonoverlapping(frame.as_ptr(), to, frame.len()) };
            let addr = self.memory.address(chunk);
            self.frames.push(xdp_desc { addr, len: frame.len() as u32, options: 0 });
        }
    }

    /// True of the length of a frame that fits a chunk, its header included.
    fn fits(&self, len: usize) -> bool {
        (1..=self.memory.chunk_bytes() - VNET_HDR_LEN).contains(&len)
    }

    /// Has the kernel send the frames in chunks, and what an earlier call left before them.
    fn send(&mut self, socket: BorrowedFd<'_>) -> Outcome {
        let mut outcome = Outcome { dropped: 0, others: None };
        let before = self.transmit.pending() as usize;
        // There is room for all: the ring is as long as there are chunks.
        let pushed = self.frames.iter().filter(|frame| self.transmit.push(**frame)).count();
        self.transmit.publish();
        let all = before + pushed;
        let (mut left, mut dropped, mut taken, mut idle) = (all, 0, 0, 0);
        let mut looked = false;
        while left > 0 && idle < XDP_IDLE_CALLS && dropped <= all {
            let answer = rustix::net::send(socket, &[], SendFlags::DONTWAIT);
            let now = self.transmit.pending() as usize;
            idle = if now < left { 0 } else { idle + 1 };
            left = now;
            match answer {
                Ok(_) | Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS | Errno::NOMEM) => {}
                Err(Errno::BUSY) => {
                    // The kernel may show that it took the frame only later.
                    (dropped, idle) = (dropped + 1, 0);
                    taken = all.saturating_sub(left).max(taken + 1);
                    if let Some(index) = taken.checked_sub(before + 1).filter(|at| *at < pushed) {
                        outcome.dropped |= 1 << index;
                    }
                }
                Err(Errno::NETDOWN) => {
                    if !looked {
                        self.transmit.take_back(pushed as u32);
                        let frames = self.frames.iter();
                        self.free.extend(frames.map(|frame| self.memory.number(frame.addr)));
                        outcome.others = Some(Transfer::Down);
                    }
                    break;
                }
                Err(errno) => {
                    outcome.others = Some(Transfer::from_errno(errno.raw_os_error()));
                    break;
                }
            }
            taken = taken.max(all.saturating_sub(left));
            looked = true;
        }
        outcome
    }
}

impl Shared {
    /// Has the kernel send frames; what came of them.
    fn send(&self, outlet: &mut Outlet) -> Outcome {
        let outcome = outlet.send(self.sender.as_fd());
        self.left.store(outlet.transmit.pending() > 0, Ordering::Relaxed);
        outcome
    }

    /// Has the kernel send what it left in the ring, unless another thread is at it.
    fn send_left(&self) {
        if self.left.load(Ordering::Relaxed)
            && let Ok(mut outlet) = self.outlet.try_lock()
        {
            outlet.frames.clear();
            self.send(&mut outlet);
        }
    }

    /// Sends frames of a batch, from the `first`-th on; where it goes on.
    fn send_from(&self, outlet: &mut Outlet, batch: &mut FrameBatch, first: usize) -> usize {
        if !outlet.fits(batch.frame(first).len().saturating_sub(VNET_HDR_LEN)) {
            batch.answer(first, Transfer::Rejected(libc::EMSGSIZE));
            return first + 1;
        }
        outlet.fill(batch, first);
        let (outcome, sent) = (self.send(outlet), outlet.frames.len());
        for index in 0..sent {
            batch.answer(first + index, outcome.of(index, batch.frame(first + index).len()));
        }
        // Without a chunk nothing more goes.
        if sent == 0 { batch.len() } else { first + sent }
    }
}

impl AsRawFd for XdpQueue {
    fn as_raw_fd(&self) -> RawFd {
        self.receiver.as_raw_fd()
    }
}

impl AsFd for XdpQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.receiver.as_fd()
    }
}

impl FrameIo for XdpQueue {
    fn flush(&self, batch: &mut FrameBatch) {
        let (mut outlet, mut at) = (lock(&self.shared.outlet), 0);
        while at < batch.len() {
            at = self.shared.send_from(&mut outlet, batch, at);
        }
    }

    fn inbox(&self) -> Option<&dyn FrameInbox> {
        Some(self)
    }

    fn is_gone(&self) -> bool {
        !matches!(sockopt::socket_error(&self.receiver), Ok(Ok(())))
    }

    fn is_outgrown(&self, mtu: u32) -> bool {
        mtu > self.shared.memory.mtu() && u64::from(mtu) <= MAX_XDP_MTU
    }

    fn read(&self, buffer: &mut [u8]) -> Transfer {
        let mut len = None;
        self.take(&mut |at, bytes| {
            if let Some((header, rest)) = buffer.split_first_chunk_mut::<VNET_HDR_LEN>() {
                *header = [0; VNET_HDR_LEN];
                let bytes = rest.len().min(bytes as usize);
                // SAFETY: the frame is ours until the next call of `take`.
                unsafe { std::ptr::copy_nonoverlapping(at, rest.as_mut_ptr(), bytes) };
                len = Some(VNET_HDR_LEN + bytes);
            }
            false
        });
        len.map_or(Transfer::WouldBlock, Transfer::Done)
    }
}
