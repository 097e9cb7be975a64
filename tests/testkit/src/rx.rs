//! The receive side of the test driver: posts buffers full of poison, takes frames out, and checks
//! every promise of 5.1.6.4 and of the used ring on the way: used.len within the buffer, nothing
//! written beyond it or between the descriptors, num_buffers right, a header that asks for no more
//! than was acknowledged: without offloads a plain one.

use std::sync::Arc;
use std::time::Duration;

use super::frontend::feat;
use super::mem::{GuestMem, Span};
use super::ring::{Ring, Seg};
use super::vnet::{self, Header};

/// Untouched bytes between two descriptors of one buffer.
const GUARD: u32 = 16;

/// How much of an unwritten tail is checked for each buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Poison {
    /// The first bytes behind used.len, and every guard.
    Tail(u32),
    /// All of it.
    Full,
}

#[derive(Clone, Debug)]
pub struct RxConfig {
    /// Descriptor lengths of one buffer; buffers take these layouts in turn.
    pub layouts: Vec<Vec<u32>>,
    /// Buffers posted at most (fewer if descriptors are short).
    pub buffers: u16,
    pub indirect: bool,
    pub poison: Poison,
}

impl RxConfig {
    /// `buffers` of one descriptor each.
    pub fn plain(buffers: u16, len: u32) -> RxConfig {
        let layouts = vec![vec![len]];
        RxConfig { layouts, buffers, indirect: false, poison: Poison::Tail(64) }
    }
}

struct Buffer {
    span: Span,
    segs: Vec<Seg>,
    capacity: u32,
    table: Option<Span>,
}

pub struct RxRing {
    pub ring: Ring,
    header_len: usize,
    /// Acknowledged virtio features.
    features: u64,
    poison: Poison,
    tag: u64,
    buffers: Vec<Buffer>,
    /// Buffers taken out of the used ring and not posted again.
    idle: Vec<u16>,
    /// While set, buffers stay idle: a guest that does not refill.
    pub hold: bool,
    scratch: Vec<u8>,
    pub frames: u64,
    /// While set, where the device wrote is noted here: guest-physical address and length.
    pub trace: Option<Vec<(u64, u32)>>,
    /// Buffers of a chain of several that were not filled, except the last.
    pub underfilled: u64,
}

impl RxRing {
    pub fn new(
        mem: &Arc<GuestMem>,
        ring: Ring,
        cfg: &RxConfig,
        features: u64,
        header_len: usize,
        tag: u64,
    ) -> RxRing {
        let mut room = ring.size as usize;
        let mut buffers = Vec::new();
        for i in 0..cfg.buffers {
            let layout = &cfg.layouts[i as usize % cfg.layouts.len()];
            let need = if cfg.indirect { 1 } else { layout.len() };
            if need > room {
                break;
            }
            room -= need;
            buffers.push(Buffer::new(mem, i as usize, layout, cfg.indirect, tag));
        }
        let idle = (0..buffers.len() as u16).rev().collect();
        RxRing {
            ring,
            header_len,
            features,
            poison: cfg.poison,
            tag,
            buffers,
            idle,
            hold: false,
            scratch: Vec::new(),
            frames: 0,
            trace: None,
            underfilled: 0,
        }
    }

    /// Capacity of the smallest buffer.
    pub fn min_capacity(&self) -> u32 {
        self.buffers.iter().map(|b| b.capacity).min().expect("buffers")
    }

    pub fn buffer_count(&self) -> usize {
        self.buffers.len()
    }

    /// Posts all idle buffers; kicks if asked for.
    pub fn refill(&mut self) {
        self.post(usize::MAX);
        self.ring.publish();
    }

    /// Queues up to `n` idle buffers without showing them.
    pub fn post(&mut self, n: usize) {
        for _ in 0..n.min(self.idle.len()) {
            let slot = self.idle[self.idle.len() - 1];
            let b = &self.buffers[slot as usize];
            if !self.ring.add(&b.segs, true, b.table.as_ref(), slot) {
                break;
            }
            self.idle.pop();
        }
    }

    /// Hands up to `max` frames to `f` as (header, frame), then posts their buffers again.
    pub fn recv(&mut self, max: usize, mut f: impl FnMut(&[u8], &[u8])) -> usize {
        let mut n = 0;
        while n < max && self.take_frame() {
            f(&self.scratch[..self.header_len], &self.scratch[self.header_len..]);
            n += 1;
        }
        self.frames += n as u64;
        if n > 0 && !self.hold {
            self.refill();
        }
        n
    }

    /// The next `n` frames with their headers; fewer if none comes within `limit`.
    pub fn take(&mut self, n: usize, limit: Duration) -> Vec<(Header, Vec<u8>)> {
        let mut frames = Vec::new();
        while frames.len() < n && (self.ring.has_used() || self.wait(limit)) {
            self.recv(n - frames.len(), |header, frame| {
                frames.push((Header::parse(header), frame.to_vec()));
            });
        }
        frames
    }

    /// Sleeps until a frame is there; false when the limit is over.
    pub fn wait(&mut self, limit: Duration) -> bool {
        self.ring.wait(limit)
    }

    /// Assembles the next frame, header first, in `scratch`.
    fn take_frame(&mut self) -> bool {
        let ready = self.ring.used_ready();
        if ready == 0 {
            return false;
        }
        self.scratch.clear();
        let (first_len, first_cap) = self.take_buffer();
        let index = self.ring.index;
        assert!(first_len as usize >= self.header_len, "ring {index}: used.len {first_len}");
        let buffers = self.buffer_number();
        assert!(buffers <= ready, "ring {index}: {buffers} buffers, {ready} published");
        let mut short = first_len < first_cap;
        for _ in 1..buffers {
            self.underfilled += u64::from(short);
            let (len, cap) = self.take_buffer();
            short = len < cap;
        }
        let (header, frame) = self.scratch.split_at(self.header_len);
        let header = Header::parse(header);
        if let Err(e) = vnet::check(self.features, &header, frame) {
            let shown = &frame[..frame.len().min(64)];
            panic!("ring {index}: {e}: {header:?}, {} bytes {shown:02x?} (5.1.6.4)", frame.len());
        }
        true
    }

    /// num_buffers: what was used with MRG_RXBUF, 1 without, absent in the 10-byte header.
    fn buffer_number(&self) -> u16 {
        if self.header_len == 10 {
            return 1;
        }
        let n = u16::from_le_bytes([self.scratch[10], self.scratch[11]]);
        assert!(n >= 1, "ring {}: num_buffers {n}", self.ring.index);
        let mergeable = self.features & feat::MRG_RXBUF != 0;
        assert!(mergeable || n == 1, "ring {}: num_buffers {n}", self.ring.index);
        n
    }

    /// Takes one used buffer: appends its bytes, checks the rest, poisons it again.
    fn take_buffer(&mut self) -> (u32, u32) {
        let (slot, len) = self.ring.pop_used().expect("counted as ready");
        let b = &self.buffers[slot as usize];
        let index = self.ring.index;
        assert!(len >= 1 && len <= b.capacity, "ring {index}: len {len} of {}", b.capacity);
        let mut left = len;
        let mut unchecked = match self.poison {
            Poison::Tail(n) => n,
            Poison::Full => u32::MAX,
        };
        for s in &b.segs {
            let off = (s.gpa - b.span.gpa()) as usize;
            let got = left.min(s.len);
            b.span.read_into(off, got as usize, &mut self.scratch);
            left -= got;
            if let Some(trace) = self.trace.as_mut().filter(|_| got > 0) {
                trace.push((s.gpa, got));
            }
            let tail = (s.len - got).min(unchecked);
            unchecked -= tail;
            let check = if tail == s.len - got { tail + GUARD } else { tail };
            let bad = b.span.find_unpoisoned(off + got as usize, check as usize, self.tag);
            assert!(bad.is_none(), "ring {index}: byte {bad:?} written beyond used.len {len} (I4)");
            b.span.poison(off, got as usize, self.tag);
        }
        self.idle.push(slot);
        (len, b.capacity)
    }

    /// Nothing is with the driver only when all buffers are idle: for after a stop.
    pub fn reclaim_all(&mut self) {
        for b in &self.buffers {
            b.span.poison(0, b.span.len(), self.tag);
        }
        self.idle = (0..self.buffers.len() as u16).rev().collect();
        self.ring.reset();
    }
}

impl Buffer {
    fn new(mem: &Arc<GuestMem>, n: usize, layout: &[u32], indirect: bool, tag: u64) -> Buffer {
        let len: u32 = layout.iter().map(|l| l + GUARD).sum();
        // Odd starts: nothing may rely on aligned buffers.
        let span = mem.alloc_in(n, u64::from(GUARD + len), 1);
        span.poison(0, span.len(), tag);
        let mut gpa = span.gpa() + u64::from(GUARD);
        let mut segs = Vec::with_capacity(layout.len());
        for &len in layout {
            segs.push(Seg { gpa, len });
            gpa += u64::from(len + GUARD);
        }
        let table = indirect.then(|| mem.alloc_in(n, 16 * segs.len() as u64, 16));
        Buffer { span, capacity: layout.iter().sum(), segs, table }
    }
}
