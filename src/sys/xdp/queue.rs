//! One queue of an interface by AF_XDP sockets: the kernel copies received and sent frames to and
//! from [`Memory`].
//!
//! The results of `sendto`, which makes Linux take frames from the transmit ring (net/xdp/xsk.c):
//!
//! | result | meaning | frames |
//! |---|---|---|
//! | 0 | the kernel took all frames, or the 32 of one call | sent |
//! | EAGAIN, ENOBUFS | the limit of one call, or no room | the rest is tried again, then left |
//! | EBUSY | the interface dropped the frame taken last | [`Transfer::WouldBlock`] |
//! | ENETDOWN | the interface is down, no frame was examined | [`Transfer::Down`], taken back |
//! | ENXIO | the interface was deleted | [`Transfer::Gone`] |
//!
//! Frames left in the ring are sent with the next frames, or when the queue is read the next time.
//!
//! One socket receives frames, another socket sends frames. After sending a frame the kernel wakes
//! every waiter of the sending socket, also a waiter for received frames only; the sending socket
//! has no waiter.
//!
//! When the interface is deleted, a socket has an error (SO_ERROR) but reports no event: `poll` of
//! an unbound AF_XDP socket returns nothing.
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

use super::Attachment;
use super::error::XdpError;
use super::memory::Memory;
use super::ring::{Consumer, Producer, Ring};
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

/// An attached queue; detached on drop.
#[derive(Debug)]
pub struct XdpQueue {
    /// The receiving socket.
    receiver: OwnedFd,
    shared: Shared,
    inbox: Mutex<Inbox>,
    /// The redirection of frames to this queue, shared by all queues of the interface.
    attachment: Option<Arc<Attachment>>,
}

/// The sending side, which workers share.
#[derive(Debug)]
struct Shared {
    /// The sending socket.
    sender: OwnedFd,
    memory: Arc<Memory>,
    /// Locked for short times and while the kernel copies; never while guest memory is accessed.
    outlet: Mutex<Outlet>,
    /// True if the kernel left frames in the transmit ring.
    left: AtomicBool,
}

/// Reads a socket option that is a struct of numbers.
fn option<T: Default>(socket: &OwnedFd, name: libc::c_int) -> io::Result<T> {
    let (mut value, mut len) = (T::default(), size_of::<T>() as libc::socklen_t);
    let fd = socket.as_raw_fd();
    // Uses libc: rustix has XDP_MMAP_OFFSETS only with its own system calls, and mixes up the
    // counts of XDP_STATISTICS.
    // SAFETY: the kernel writes at most `len` bytes of `value`, for which any bytes are valid.
    let done =
        unsafe { libc::getsockopt(fd, libc::SOL_XDP, name, (&raw mut value).cast(), &raw mut len) };
    if done == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

impl XdpQueue {
    /// Opens the sockets for queue `queue` of an interface, whose frames are limited by its MTU. No
    /// frame comes before the program's map has the receiving socket.
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
        // The sending socket shares memory, fill ring and completion ring with the receiving
        // socket.
        let addr = address(SocketAddrXdpFlags::XDP_SHARED_UMEM);
        let address = SocketAddrXdpWithSharedUmem { addr, shared_umem_fd: receiver.as_fd() };
        rustix::net::bind(&sender, &address).map_err(XdpError::of("bind"))?;
        let outlet = Mutex::new(outlet);
        let shared = Shared { sender, memory, outlet, left: AtomicBool::new(false) };
        Ok(XdpQueue { receiver, shared, inbox: Mutex::new(inbox), attachment: None })
    }

    /// Keeps the redirection of frames for as long as the queue exists.
    pub(super) fn hold(&mut self, attachment: &Arc<Attachment>) {
        self.attachment = Some(Arc::clone(attachment));
    }
}

/// Registers the memory and the sizes of all rings except the transmit ring.
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

/// Maps the four rings, and gives all receive chunks to the kernel.
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
        rx_in_use: (0..receive).collect(),
        lost: 0,
        asked: clock::coarse_seconds(),
    };
    inbox.give_back();
    inbox.rx_in_use.shrink_to(BURST_FRAMES);
    let outlet = Outlet {
        memory: Arc::clone(memory),
        transmit: Producer(Ring::map(sender.as_fd(), tx_at, tx, send).map_err(failed)?),
        done: Consumer(Ring::map(fd, done_at, cr, send).map_err(failed)?),
        free: (receive..receive + send).collect(),
        frames: Vec::with_capacity(BURST_FRAMES),
    };
    Ok((inbox, outlet))
}

/// `struct xdp_mmap_offsets`: the layouts of the receive, transmit, fill and completion rings.
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
    /// Frames dropped because there was no chunk, or because the frame exceeds a chunk.
    dropped: u64,
    invalid_descriptors: [u64; 2],
    ring_full: u64,
    others: [u64; 2],
}

/// The receiving side.
#[derive(Debug)]
struct Inbox {
    memory: Arc<Memory>,
    received: Consumer<xdp_desc>,
    fill: Producer<u64>,
    /// Chunks of the frames that the last call of `take` returned.
    rx_in_use: Vec<u32>,
    /// Frames that the kernel had no room for and that were reported.
    lost: u64,
    /// The second of the last statistics query.
    asked: u32,
}

impl Inbox {
    /// Gives the chunks of the frames that were taken last to the kernel.
    fn give_back(&mut self) {
        for chunk in self.rx_in_use.drain(..) {
            // The ring has room: it has an entry for each receive chunk.
            self.fill.push(self.memory.address(chunk));
        }
        self.fill.publish();
    }

    /// Prefetches a frame that will be taken soon: the kernel wrote the frame on another CPU, or so
    /// long ago that no near cache holds it.
    #[inline]
    fn fetch_ahead(&self) {
        let Some(desc) = self.received.peek(XDP_FETCH_AHEAD - 1) else { return };
        if let Some((at, _)) = self.memory.frame(&desc) {
            for offset in (0..desc.len.min(XDP_FETCH_BYTES) as usize).step_by(64) {
                prefetch::read(at.as_ptr().wrapping_add(offset));
            }
        }
    }

    /// Returns the frames that the kernel has dropped since the last report; queries the kernel at
    /// most once a second.
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
                    inbox.rx_in_use.push(chunk);
                    each(at.as_ptr(), desc.len)
                }
                // The kernel never writes a descriptor outside one chunk; the descriptor counts as
                // an empty frame.
                None => each(NonNull::dangling().as_ptr(), 0),
            };
            if !wants_more || inbox.rx_in_use.len() == BURST_FRAMES {
                more = true;
                break;
            }
        }
        inbox.received.release();
        Taken { more, lost: inbox.newly_lost(&self.receiver) }
    }
}

/// The state of sending.
#[derive(Debug)]
struct Outlet {
    memory: Arc<Memory>,
    transmit: Producer<xdp_desc>,
    done: Consumer<u64>,
    /// Free send chunks.
    free: Vec<u32>,
    /// Descriptors of filled chunks, to be pushed to the transmit ring.
    frames: Vec<xdp_desc>,
}

/// The result of sending frames.
#[derive(Debug)]
struct Outcome {
    /// Bit n: the interface dropped the n-th frame.
    dropped: u64,
    /// Result of all frames, if sending failed.
    others: Option<Transfer>,
}

impl Outcome {
    /// Returns the result of the `index`-th frame, of `len` bytes with its header.
    fn of(&self, index: usize, len: usize) -> Transfer {
        match self.others {
            Some(other) => other,
            None if self.dropped >> index & 1 != 0 => Transfer::WouldBlock,
            None => Transfer::Done(len),
        }
    }
}

impl Outlet {
    /// Takes back the chunks of sent frames, if fewer than `count` chunks are free.
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

    /// Copies frames to chunks, from the `first`-th frame, while frames fit a chunk and chunks are
    /// free.
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
            // SAFETY: the frame fits the chunk, which this process owns until the descriptor is in
            // the ring.
            unsafe { std::ptr::copy_nonoverlapping(frame.as_ptr(), to, frame.len()) };
            let addr = self.memory.address(chunk);
            self.frames.push(xdp_desc { addr, len: frame.len() as u32, options: 0 });
        }
    }

    /// Returns true if a frame of `len` bytes, plus a virtio-net header, fits a chunk.
    fn fits(&self, len: usize) -> bool {
        (1..=self.memory.chunk_bytes() - VNET_HDR_LEN).contains(&len)
    }

    /// Has the kernel send the filled chunks, and the frames that an earlier call left before them.
    fn send(&mut self, socket: BorrowedFd<'_>) -> Outcome {
        let mut outcome = Outcome { dropped: 0, others: None };
        let before = self.transmit.pending() as usize;
        // The ring has room for all frames: it has an entry for each send chunk.
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
                    // The kernel may move its index for the taken frame only later.
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
    /// Has the kernel send frames; returns their result.
    fn send(&self, outlet: &mut Outlet) -> Outcome {
        let outcome = outlet.send(self.sender.as_fd());
        self.left.store(outlet.transmit.pending() > 0, Ordering::Relaxed);
        outcome
    }

    /// Has the kernel send the frames left in the ring, unless another thread is sending.
    fn send_left(&self) {
        if self.left.load(Ordering::Relaxed)
            && let Ok(mut outlet) = self.outlet.try_lock()
        {
            outlet.frames.clear();
            self.send(&mut outlet);
        }
    }

    /// Sends frames of a batch from the `first`-th frame; returns the index of the next frame.
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
        // Without a free chunk no further frame is sent.
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
                // SAFETY: the frame belongs to this process until the next call of `take`.
                unsafe { std::ptr::copy_nonoverlapping(at, rest.as_mut_ptr(), bytes) };
                len = Some(VNET_HDR_LEN + bytes);
            }
            false
        });
        len.map_or(Transfer::WouldBlock, Transfer::Done)
    }
}
