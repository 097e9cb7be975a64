//! What frames are sent to and received from: a port of a vhost-user back-end, or a TAP.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use super::mem::Memory;
use super::outer::Outer;
use super::ring::{Buffers, Ring, prefetch};
use testkit::frontend::{Frontend, VringAddr, feat, proto, req};
use testkit::sys::{self, EventFd};

/// Bytes of the virtio-net header with VERSION_1 or MRG_RXBUF.
const HEADER: usize = 12;
/// Where frames begin in a transmit buffer. The header before them is zero for ever, in a cache
/// line of its own that nobody writes, as a guest's driver has it in the headroom.
const TX_FRAME_AT: usize = 64;
/// Buffers ahead of the one at work whose lines are fetched.
const AHEAD: u16 = 8;
/// Receive buffers given back to the device at once, at most; one fence and two lines each time.
const REFILL: u16 = 64;

/// Where frames go in and out.
pub trait Port {
    /// How many frames can be sent now, as far as it is worth knowing: `want` or less.
    fn room(&mut self, want: u16) -> u16;
    /// Sends a frame of `len` bytes that `build` writes; there must be [`Port::room`].
    fn send(&mut self, len: u32, build: impl FnOnce(*mut u8));
    /// Shows what was sent, and buffers given back, to the other side.
    fn publish(&mut self);
    /// After a full fence: wakes the other side if it asked for that.
    fn kick(&mut self);
    /// Hands up to `max` received frames to `f`, with their lengths; answers how many.
    fn receive(&mut self, max: u16, f: impl FnMut(*const u8, usize)) -> u16;
    /// Why the port cannot go on, if so. Not for the fast path: it makes system calls.
    fn failure(&mut self) -> Option<String>;
    /// Kicks sent.
    fn kicks(&self) -> u64;
}

/// How a port of a back-end is set up.
#[derive(Clone, Copy)]
pub struct VirtioConfig {
    pub ring_size: u16,
    /// Longest frame, in bytes.
    pub frame_len: u32,
    pub event_idx: bool,
    /// The back-end marks what it writes.
    pub log: bool,
    pub huge_pages: bool,
    pub patience: Duration,
}

/// A virtio-net driver with one queue pair behind a vhost-user front-end.
pub struct VirtioPort {
    tx: Ring,
    rx: Ring,
    /// Frame length in each transmit descriptor.
    tx_lens: Vec<u32>,
    outer: Outer,
    tx_kick: EventFd,
    rx_kick: EventFd,
    _calls: [EventFd; 2],
    watch: UnixStream,
    _frontend: Frontend,
    // Last: the rings point into it.
    _memory: Memory,
}

impl VirtioPort {
    /// Connects to a back-end that listens, and starts both rings.
    pub fn connect(path: &Path, c: &VirtioConfig, outer: Outer) -> Result<VirtioPort, String> {
        let text =
            |what: &str, e: &dyn std::fmt::Debug| format!("{}: {what}: {e:?}", path.display());
        let stream = connect(path, c.patience).map_err(|e| text("connect", &e))?;
        let watch = stream.try_clone().map_err(|e| text("dup", &e))?;
        let mut frontend = Frontend::from_stream(stream);
        let event_idx = negotiate(&mut frontend, c).map_err(|e| text("features", &e))?;
        let stride = stride(c.frame_len);
        let bytes = 2 * Ring::footprint(c.ring_size, stride);
        let mut memory = Memory::new(bytes, c.huge_pages).map_err(|e| text("guest memory", &e))?;
        let rx_buffers = Buffers { stride, start: 0, len: stride as u32, device_writes: true };
        let start = (TX_FRAME_AT - HEADER) as u64;
        let tx_buffers = Buffers { stride, start, len: HEADER as u32, device_writes: false };
        let mut rx = Ring::new(&mut memory, c.ring_size, event_idx, rx_buffers);
        let tx = Ring::new(&mut memory, c.ring_size, event_idx, tx_buffers);
        rx.post_all();
        rx.publish();
        let (rx_kick, tx_kick) = (EventFd::new(), EventFd::new());
        let calls = [EventFd::new(), EventFd::new()];
        let mut start = || -> testkit::frontend::Result<()> {
            let region = memory.region();
            frontend.set_mem_table(&[region])?;
            if c.log {
                // A bit for each page (vhost-user, "Migration"); nobody reads them.
                let (spec, _) = region;
                let bytes = ((spec.gpa + spec.len) / 4096).div_ceil(8).next_multiple_of(4096);
                frontend.set_log_base(bytes, 0, sys::memfd(bytes).as_raw_fd())?;
            }
            let rings = [(&rx, &rx_kick, &calls[0]), (&tx, &tx_kick, &calls[1])];
            for (index, (ring, kick, call)) in (0..).zip(rings) {
                frontend.set_vring_num(index, u32::from(c.ring_size))?;
                frontend.set_vring_base(index, 0)?;
                let addr = VringAddr { flags: c.log.into(), ..ring.addr(&memory, index) };
                frontend.set_vring_addr(&addr)?;
                frontend.set_vring_fd(req::SET_VRING_CALL, index, Some(call.raw()))?;
                frontend.set_vring_fd(req::SET_VRING_KICK, index, Some(kick.raw()))?;
            }
            frontend.set_vring_enable(0, true)?;
            frontend.set_vring_enable(1, true)?;
            // Any request with an answer: when it comes, all before it were served.
            frontend.get_features().map(|_| ())
        };
        start().map_err(|e| text("start of the rings", &e))?;
        rx_kick.write(1);
        tx_kick.write(1);
        let (tx_lens, _calls) = (vec![0; usize::from(c.ring_size)], calls);
        let (_frontend, _memory) = (frontend, memory);
        Ok(VirtioPort {
            tx,
            rx,
            tx_lens,
            outer,
            tx_kick,
            rx_kick,
            _calls,
            watch,
            _frontend,
            _memory,
        })
    }

    /// Sends a frame of these bytes.
    pub fn send_first(&mut self, bytes: &[u8]) {
        let outer = std::mem::take(&mut self.outer);
        // SAFETY: buffers have room for 2 KiB at least, and are no part of `bytes`.
        self.send(bytes.len() as u32, |p| unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), p, bytes.len());
        });
        self.outer = outer;
        self.publish();
        self.kick();
    }

    /// Hands `n` frames that have arrived to `f`; fewer if the ring turns out to be at fault.
    #[inline(always)]
    fn receive_some(&mut self, n: u16, f: &mut impl FnMut(*const u8, usize)) -> u16 {
        let fetch = |rx: &Ring, ahead: u16| {
            let line = rx.buffer(rx.peek(ahead));
            prefetch(line);
            prefetch(line.wrapping_add(64));
        };
        for ahead in 0..n.min(AHEAD) {
            fetch(&self.rx, ahead);
        }
        for i in 0..n {
            if i + AHEAD < n {
                fetch(&self.rx, AHEAD);
            }
            let Some((id, len)) = self.rx.take() else { return i };
            let buffer = self.rx.buffer(id);
            let len = (len as usize).min(self.rx.stride()).saturating_sub(HEADER);
            // SAFETY: `num_buffers` lies in the header, within the buffer.
            let merged = unsafe { buffer.add(10).cast::<u16>().read() };
            // Each frame fits one buffer, so that a second one is a fault of the back-end. Length
            // zero makes the checker count it.
            let len = if merged == 1 { len } else { 0 };
            let frame = buffer.wrapping_add(HEADER);
            if self.outer.is_none() {
                f(frame, len);
                continue;
            }
            // SAFETY: buffers have room for 2 KiB at least.
            unsafe { self.outer.take_off(frame) };
            f(frame.wrapping_add(self.outer.len()), len.saturating_sub(self.outer.len()));
        }
        n
    }

    /// The line of the frame that is sent `ahead` of the next one.
    #[inline(always)]
    fn tx_line(&self, ahead: u16) -> *const u8 {
        self.tx.buffer(self.tx.next_id(ahead)).wrapping_add(TX_FRAME_AT)
    }
}

/// Bytes from buffer to buffer: an odd number of cache lines, so that the buffers spread over all
/// sets of the caches.
fn stride(frame_len: u32) -> u64 {
    let lines = (u64::from(frame_len.max(2048 - TX_FRAME_AT as u32)) + TX_FRAME_AT as u64) / 64 + 1;
    64 * (lines | 1)
}

fn connect(path: &Path, patience: Duration) -> io::Result<UnixStream> {
    let end = Instant::now() + patience;
    loop {
        match UnixStream::connect(path) {
            Ok(stream) => return Ok(stream),
            Err(e) if Instant::now() >= end => return Err(e),
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// Agrees on features; answers whether event indices are among them.
fn negotiate(fe: &mut Frontend, c: &VirtioConfig) -> testkit::frontend::Result<bool> {
    let offered = fe.get_features()?;
    let mut wanted = feat::VERSION_1 | feat::MRG_RXBUF | feat::PROTOCOL_FEATURES;
    if c.event_idx {
        wanted |= feat::EVENT_IDX;
    }
    if c.log {
        wanted |= feat::LOG_ALL;
    }
    let features = offered & wanted;
    if features & feat::VERSION_1 == 0 {
        return Err(testkit::frontend::Error::Bad("the back-end offers no VERSION_1".into()));
    }
    if features & feat::PROTOCOL_FEATURES != 0 {
        let log = if c.log { proto::LOG_SHMFD } else { 0 };
        let protocol = fe.get_protocol_features()? & (proto::MQ | proto::REPLY_ACK | log);
        fe.set_protocol_features(protocol)?;
        if protocol & log != log {
            return Err(testkit::frontend::Error::Bad("the back-end offers no LOG_SHMFD".into()));
        }
        if protocol & proto::MQ != 0 {
            fe.get_queue_num()?;
        }
    }
    fe.set_owner()?;
    fe.set_features(features)?;
    Ok(features & feat::EVENT_IDX != 0)
}

impl Port for VirtioPort {
    #[inline(always)]
    fn room(&mut self, want: u16) -> u16 {
        // Looking only when needed takes many back at once and leaves the device's lines alone.
        if self.tx.free() < want {
            for _ in 0..self.tx.returned() {
                if self.tx.take().is_none() {
                    break;
                }
            }
        }
        let room = self.tx.free().min(want);
        for ahead in 0..room.min(AHEAD) {
            prefetch(self.tx_line(ahead));
        }
        room
    }

    #[inline(always)]
    fn send(&mut self, len: u32, build: impl FnOnce(*mut u8)) {
        prefetch(self.tx_line(AHEAD));
        let id = self.tx.next_id(0);
        let frame = self.tx.buffer(id).wrapping_add(TX_FRAME_AT);
        build(frame.wrapping_add(self.outer.len()));
        if !self.outer.is_none() {
            // SAFETY: buffers are as long as the longest frame with these bytes.
            unsafe { self.outer.put_on(frame) };
        }
        let len = len + self.outer.len() as u32;
        // SAFETY: ids are below the ring's size, which is the vector's length.
        let known = unsafe { self.tx_lens.get_unchecked_mut(usize::from(id)) };
        if *known != len {
            *known = len;
            self.tx.set_len(id, len + HEADER as u32);
        }
        self.tx.post();
    }

    #[inline(always)]
    fn publish(&mut self) {
        if self.tx.unpublished() > 0 {
            self.tx.publish();
        }
        if self.rx.free() >= REFILL.min(self.rx.outstanding() / 2 + 1) {
            self.rx.post_all();
            self.rx.publish();
        }
    }

    #[inline(always)]
    fn kick(&mut self) {
        if self.tx.wants_kick() {
            self.tx_kick.write(1);
        }
        if self.rx.wants_kick() {
            self.rx_kick.write(1);
        }
    }

    #[inline(always)]
    fn receive(&mut self, max: u16, mut f: impl FnMut(*const u8, usize)) -> u16 {
        let mut taken = 0;
        while taken < max {
            let n = self.rx.returned().min(max - taken).min(REFILL);
            let done = self.receive_some(n, &mut f);
            taken += done;
            if done < REFILL {
                break;
            }
            // At once, or a fast back-end would run out of buffers while we look at the others.
            self.rx.post_all();
            self.rx.publish();
        }
        taken
    }

    fn failure(&mut self) -> Option<String> {
        if let Some(fault) = self.tx.fault.or(self.rx.fault) {
            return Some(format!("the back-end broke a ring: {fault}"));
        }
        // Nothing is to be read between requests but the end.
        let closed = sys::poll_in(&[self.watch.as_raw_fd()], Duration::ZERO);
        closed.then(|| "the back-end closed the connection".to_owned())
    }

    fn kicks(&self) -> u64 {
        self.tx.kicks + self.rx.kicks
    }
}

/// A TAP, one system call for each frame.
pub struct TapPort {
    file: OwnedFd,
    frame: Vec<u8>,
    error: Option<io::Error>,
}

impl TapPort {
    /// Attaches to an interface, which should exist and be up.
    pub fn open(name: &str, frame_len: u32) -> Result<TapPort, String> {
        let file = sys_tap::open(name).map_err(|e| format!("{name}: {e}"))?;
        Ok(TapPort { file, frame: vec![0; frame_len.max(2048) as usize], error: None })
    }

    fn note(&mut self) {
        let e = io::Error::last_os_error();
        if e.kind() != io::ErrorKind::WouldBlock && e.kind() != io::ErrorKind::Interrupted {
            self.error.get_or_insert(e);
        }
    }
}

impl Port for TapPort {
    fn room(&mut self, want: u16) -> u16 {
        want
    }

    fn send(&mut self, len: u32, build: impl FnOnce(*mut u8)) {
        build(self.frame.as_mut_ptr());
        // SAFETY: the buffer holds the longest frame.
        let n =
            unsafe { libc::write(self.file.as_raw_fd(), self.frame.as_ptr().cast(), len as usize) };
        if n < 0 {
            self.note();
        }
    }

    fn publish(&mut self) {}

    fn kick(&mut self) {}

    fn receive(&mut self, max: u16, mut f: impl FnMut(*const u8, usize)) -> u16 {
        for i in 0..max {
            // SAFETY: the buffer is writable for its length.
            let n = unsafe {
                libc::read(self.file.as_raw_fd(), self.frame.as_mut_ptr().cast(), self.frame.len())
            };
            if n < 0 {
                self.note();
                return i;
            }
            f(self.frame.as_ptr(), n as usize);
        }
        max
    }

    fn failure(&mut self) -> Option<String> {
        self.error.as_ref().map(|e| format!("the TAP failed: {e}"))
    }

    fn kicks(&self) -> u64 {
        0
    }
}

mod sys_tap {
    //! Opening a TAP.
    use std::fs::OpenOptions;
    use std::io;
    use std::os::fd::{AsRawFd, OwnedFd};
    use std::os::unix::fs::OpenOptionsExt;

    pub fn open(name: &str) -> io::Result<OwnedFd> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open("/dev/net/tun")?;
        // SAFETY: ifreq is plain data, all zero is its empty value.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        if name.len() >= request.ifr_name.len() {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
        // SAFETY: TUNSETIFF reads and writes one ifreq.
        let ret = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &mut request) };
        if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(file.into()) }
    }
}
