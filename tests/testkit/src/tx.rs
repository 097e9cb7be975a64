//! The transmit side of the test driver: puts a header and a frame into chains of any shape and
//! takes the buffers back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Rng;
use super::mem::{GuestMem, Span};
use super::ring::{Ring, Seg};

/// Own bytes between two descriptors of one chain: a reader that runs over takes poison along,
/// which the receiver's CRC catches.
const GAP: u32 = 8;
/// Longest chain made here.
pub const MAX_CHAIN: usize = 64;

/// How header and frame, seen as one string of bytes, are cut into descriptors.
#[derive(Clone, Debug)]
pub enum Layout {
    /// One descriptor.
    One,
    /// The header has its own, as drivers without ANY_LAYOUT do.
    HeaderApart,
    /// About equal pieces; the header falls where it may.
    Pieces(u16),
    /// The header in `header` descriptors (1 to 12), the frame in `frame`.
    HeaderPieces { header: u16, frame: u16 },
    /// Cut positions counted from the first byte of the header, ascending.
    Cuts(Vec<u32>),
    /// 1 to `max` pieces, cut anywhere.
    Random { max: u16 },
}

impl Layout {
    /// Appends the descriptor lengths for `total` bytes of which `header` are the header.
    fn cut(&self, rng: &mut Rng, header: u32, total: u32, out: &mut Vec<u32>) {
        out.clear();
        match self {
            Layout::One => out.push(total),
            Layout::HeaderApart => out.extend([header, total - header]),
            Layout::Pieces(n) => even(u32::from(*n), total, out),
            Layout::HeaderPieces { header: h, frame: f } => {
                even(u32::from(*h), header, out);
                even(u32::from(*f), total - header, out);
            }
            Layout::Cuts(at) => lengths(at.iter().copied().filter(|&c| c < total), total, out),
            Layout::Random { max } => {
                let n = rng.below(u64::from((*max).max(1))) as usize;
                let mut at = [0u32; MAX_CHAIN];
                let at = &mut at[..n];
                at.fill_with(|| 1 + rng.below(u64::from(total - 1)) as u32);
                at.sort_unstable();
                let mut last = 0;
                let fresh = at.iter().copied().filter(|&c| std::mem::replace(&mut last, c) != c);
                lengths(fresh, total, out);
            }
        }
    }
}

/// `n` pieces of `total` bytes, none empty.
fn even(n: u32, total: u32, out: &mut Vec<u32>) {
    let n = n.clamp(1, total);
    out.extend((0..n).map(|i| total / n + u32::from(i < total % n)));
}

/// Lengths between ascending cut positions.
fn lengths(cuts: impl Iterator<Item = u32>, total: u32, out: &mut Vec<u32>) {
    let mut last = 0;
    for c in cuts.chain([total]) {
        out.push(c - last);
        last = c;
    }
}

#[derive(Clone, Debug)]
pub struct TxConfig {
    /// Layouts taken in turn.
    pub layouts: Vec<Layout>,
    /// Frames in flight at most.
    pub buffers: u16,
    pub max_frame: u32,
    /// Chains of more than one descriptor go through an indirect table.
    pub indirect: bool,
}

struct Slot {
    span: Span,
    table: Option<Span>,
}

pub struct TxRing {
    pub ring: Ring,
    layouts: Vec<Layout>,
    turn: usize,
    rng: Rng,
    /// The virtio-net header put before each frame.
    pub header: Vec<u8>,
    slots: Vec<Slot>,
    free: Vec<u16>,
    lens: Vec<u32>,
    segs: Vec<Seg>,
    bytes: Vec<u8>,
    pub frames: u64,
}

impl TxRing {
    pub fn new(
        mem: &Arc<GuestMem>,
        ring: Ring,
        cfg: &TxConfig,
        header_len: usize,
        tag: u64,
    ) -> TxRing {
        let room = header_len as u64 + u64::from(cfg.max_frame) + (MAX_CHAIN as u64 + 1) * 8;
        let count = cfg.buffers.min(ring.size);
        let slots: Vec<Slot> = (0..count as usize)
            .map(|i| {
                let span = mem.alloc_in(i, room, 1);
                span.poison(0, span.len(), tag);
                let table = cfg.indirect.then(|| mem.alloc_in(i, 16 * MAX_CHAIN as u64, 16));
                Slot { span, table }
            })
            .collect();
        TxRing {
            rng: Rng::new(u64::from(ring.index) + tag),
            ring,
            layouts: cfg.layouts.clone(),
            turn: 0,
            header: vec![0; header_len],
            slots,
            free: (0..count).rev().collect(),
            lens: Vec::new(),
            segs: Vec::new(),
            bytes: Vec::new(),
            frames: 0,
        }
    }

    pub fn set_layouts(&mut self, layouts: Vec<Layout>) {
        self.layouts = layouts;
        self.turn = 0;
    }

    /// Queues one frame without showing it; false if the ring is full even after reclaiming.
    pub fn queue(&mut self, frame: &[u8]) -> bool {
        self.bytes.clear();
        self.bytes.extend_from_slice(&self.header);
        self.bytes.extend_from_slice(frame);
        let (header, total) = (self.header.len() as u32, self.bytes.len() as u32);
        let layout = &self.layouts[self.turn % self.layouts.len()];
        layout.cut(&mut self.rng, header, total, &mut self.lens);
        if self.free.is_empty() || self.ring.free_descriptors() < self.lens.len() {
            self.reclaim();
        }
        let Some(&slot) = self.free.last() else { return false };
        let Slot { span, table } = &self.slots[slot as usize];
        let (mut from, mut at) = (0, 0);
        self.segs.clear();
        for &len in &self.lens {
            span.write(at, &self.bytes[from..from + len as usize]);
            self.segs.push(Seg { gpa: span.gpa() + at as u64, len });
            from += len as usize;
            at += (len + GAP) as usize;
        }
        let table = table.as_ref().filter(|_| self.segs.len() > 1);
        if !self.ring.add(&self.segs, false, table, slot) {
            return false;
        }
        self.free.pop();
        self.turn += 1;
        self.frames += 1;
        true
    }

    /// One frame, shown at once; true if it went out.
    pub fn send(&mut self, frame: &[u8]) -> bool {
        let ok = self.queue(frame);
        self.ring.publish();
        ok
    }

    /// One frame, for which room is waited for by the call fd (which is what a TX completion
    /// signal is for); panics when none comes within `limit`.
    pub fn send_waiting(&mut self, frame: &[u8], limit: Duration) {
        while !self.send(frame) {
            let ahead = (self.ring.in_flight() / 2) as u16;
            assert!(self.ring.wait_after(ahead, limit), "ring {}: TX stalled", self.ring.index);
        }
    }

    /// Takes completed buffers back. The device writes nothing on TX, so used.len is 0.
    pub fn reclaim(&mut self) -> usize {
        let mut n = 0;
        while let Some((slot, len)) = self.ring.pop_used() {
            assert_eq!(len, 0, "ring {}: used.len of a TX buffer", self.ring.index);
            self.free.push(slot);
            n += 1;
        }
        n
    }

    /// Waits until the device gave everything back, and for a moment until it asks for the next
    /// kick: what it floods it delivers after it gave the buffers back, and before it looks again.
    pub fn drain(&mut self, limit: Duration) {
        self.reclaim();
        while self.ring.in_flight() > 0 {
            assert!(self.ring.wait(limit), "ring {}: TX not completed (I5)", self.ring.index);
            self.reclaim();
        }
        // A device that polls never asks.
        let end = Instant::now() + Duration::from_millis(20).min(limit);
        while !self.ring.is_kick_wanted() && Instant::now() < end {
            std::thread::sleep(Duration::from_micros(20));
        }
    }

    /// Starts again from an empty ring. The device must be stopped.
    pub fn reclaim_all(&mut self) {
        self.free = (0..self.slots.len() as u16).rev().collect();
        self.ring.reset();
    }
}
