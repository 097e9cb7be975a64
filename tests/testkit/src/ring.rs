//! The driver's half of one split virtqueue (virtio 1.2, 2.7), with the books that prove I5: each
//! head made available comes back exactly once, and in order where order is promised.
//!
//! Nothing is read back from what the device could have changed but the used ring; a broken rule
//! panics with what was seen, which is how a test fails.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use super::frontend::VringAddr;
use super::mem::{GuestMem, Span};
use super::sys::EventFd;

pub const DESC_NEXT: u16 = 1;
pub const DESC_WRITE: u16 = 2;
pub const DESC_INDIRECT: u16 = 4;
/// In avail.flags: the driver wants no calls. In used.flags: the device wants no kicks.
pub const RING_NO_EVENT: u16 = 1;

/// A signal may be under way when the wait ends; longer than this, it is lost.
const LATE_SIGNAL: Duration = Duration::from_millis(200);

/// One piece of a buffer.
#[derive(Clone, Copy, Debug)]
pub struct Seg {
    pub gpa: u64,
    pub len: u32,
}

/// What a ring may use.
#[derive(Clone, Copy, Debug)]
pub struct RingMode {
    pub event_idx: bool,
    /// VIRTIO_F_IN_ORDER: descriptors are used in table order.
    pub in_order: bool,
    /// The device promises to complete in the order taken, IN_ORDER or not (restarts rely on it).
    pub strict_order: bool,
}

/// How often the ring spoke to the device and was spoken to.
#[derive(Clone, Copy, Debug, Default)]
pub struct RingStats {
    pub posted: u64,
    pub returned: u64,
    pub kicks: u64,
    pub kicks_spared: u64,
    pub sleeps: u64,
    pub calls: u64,
}

pub struct Ring {
    /// Number of this vring in the protocol: 2 × pair for RX, +1 for TX.
    pub index: u32,
    pub size: u16,
    pub mode: RingMode,
    pub desc: Span,
    pub avail: Span,
    pub used: Span,
    pub kick: EventFd,
    pub call: EventFd,
    pub err: EventFd,
    pub stats: RingStats,
    free: VecDeque<u16>,
    /// Shadow of the chains, so that freeing never reads guest memory.
    next: Vec<u16>,
    /// Descriptors of the chain that starts here; 0 if the head is not with the device.
    chain: Vec<u16>,
    token: Vec<u16>,
    order: VecDeque<u16>,
    /// Next avail.idx; published up to `avail_shown`.
    avail_next: u16,
    avail_shown: u16,
    used_seen: u16,
}

impl Ring {
    /// Lays the three parts out in one region, each on a page of its own.
    pub fn new(mem: &Arc<GuestMem>, region: usize, index: u32, size: u16, mode: RingMode) -> Ring {
        assert!(size.is_power_of_two());
        let n = u64::from(size);
        // A driver without IN_ORDER hands out descriptors in any order: make it a strange one.
        let order = |i: u16| if mode.in_order { i } else { i.wrapping_mul(7) & (size - 1) };
        Ring {
            index,
            size,
            mode,
            desc: mem.alloc_in(region, 16 * n, 4096),
            avail: mem.alloc_in(region, 6 + 2 * n, 4096),
            used: mem.alloc_in(region, 6 + 8 * n, 4096),
            kick: EventFd::new(),
            call: EventFd::new(),
            err: EventFd::new(),
            stats: RingStats::default(),
            free: (0..size).map(order).collect(),
            next: vec![0; size as usize],
            chain: vec![0; size as usize],
            token: vec![0; size as usize],
            order: VecDeque::with_capacity(size as usize),
            avail_next: 0,
            avail_shown: 0,
            used_seen: 0,
        }
    }

    /// The body of SET_VRING_ADDR; the log address is the used ring's own.
    pub fn addr(&self, mem: &GuestMem, flags: u32) -> VringAddr {
        VringAddr {
            index: self.index,
            flags,
            desc: mem.uva(self.desc.gpa()),
            used: mem.uva(self.used.gpa()),
            avail: mem.uva(self.avail.gpa()),
            log: self.used.gpa(),
        }
    }

    pub fn free_descriptors(&self) -> usize {
        self.free.len()
    }

    /// Heads the device holds.
    pub fn in_flight(&self) -> usize {
        (self.stats.posted - self.stats.returned) as usize
    }

    /// The next used index this driver expects to move.
    pub fn used_seen(&self) -> u16 {
        self.used_seen
    }

    pub fn avail_idx(&self) -> u16 {
        self.avail_shown
    }

    /// The device's index as it stands now.
    pub fn used_idx(&self) -> u16 {
        self.used.index(2).load(Ordering::Acquire)
    }

    /// Queues one chain, not yet visible. `table` makes it indirect. `token` comes back with it.
    /// False if descriptors are short.
    pub fn add(&mut self, segs: &[Seg], write: bool, table: Option<&Span>, token: u16) -> bool {
        let need = if table.is_some() { 1 } else { segs.len() };
        assert!(!segs.is_empty() && need <= self.size as usize);
        if self.free.len() < need {
            return false;
        }
        let flag = if write { DESC_WRITE } else { 0 };
        let head = self.free[0];
        match table {
            Some(t) => {
                for (i, s) in segs.iter().enumerate() {
                    let more = i + 1 < segs.len();
                    put_desc(t, i, *s, flag | if more { DESC_NEXT } else { 0 }, i as u16 + 1);
                }
                let whole = Seg { gpa: t.gpa(), len: 16 * segs.len() as u32 };
                let d = self.free.pop_front().expect("counted");
                put_desc(&self.desc, d as usize, whole, DESC_INDIRECT, 0);
            }
            None => self.add_direct(segs, flag),
        }
        self.chain[head as usize] = need as u16;
        self.token[head as usize] = token;
        if self.mode.strict_order {
            self.order.push_back(head);
        }
        self.push_head(head);
        true
    }

    fn add_direct(&mut self, segs: &[Seg], flag: u16) {
        for (i, s) in segs.iter().enumerate() {
            let d = self.free.pop_front().expect("counted");
            let more = i + 1 < segs.len();
            let next = if more { self.free[0] } else { 0 };
            self.next[d as usize] = next;
            let flags = flag | if more { DESC_NEXT } else { 0 };
            put_desc(&self.desc, d as usize, *s, flags, next);
        }
    }

    fn push_head(&mut self, head: u16) {
        let slot = (self.avail_next & (self.size - 1)) as usize;
        self.avail.set16(4 + 2 * slot, head);
        self.avail_next = self.avail_next.wrapping_add(1);
        self.stats.posted += 1;
    }

    /// Shows the queued chains to the device and kicks if it asked for that (2.7.10, 2.7.13).
    pub fn publish(&mut self) -> bool {
        if self.avail_shown == self.avail_next {
            return false;
        }
        let old = self.show();
        // The device may go to sleep between our index and our look at its wishes; both sides
        // store, fence, then load, so that one of them sees the other.
        fence(Ordering::SeqCst);
        let kick = if self.mode.event_idx {
            let event = self.used.index(4 + 8 * self.size as usize).load(Ordering::Relaxed);
            // 2.7.10: kick if `event` lies in old .. new.
            let (new, span) = (self.avail_shown, self.avail_shown.wrapping_sub(old));
            new.wrapping_sub(event).wrapping_sub(1) < span
        } else {
            self.used.index(0).load(Ordering::Relaxed) & RING_NO_EVENT == 0
        };
        if kick {
            self.kick.write(1);
            self.stats.kicks += 1;
        } else {
            self.stats.kicks_spared += 1;
        }
        kick
    }

    /// True if the device asks for a kick at the next chain: it has seen that no more are there.
    pub fn is_kick_wanted(&self) -> bool {
        if self.mode.event_idx {
            let event = self.used.index(4 + 8 * self.size as usize).load(Ordering::Acquire);
            return event == self.avail_shown;
        }
        self.used.index(0).load(Ordering::Acquire) & RING_NO_EVENT == 0
    }

    /// Shows the queued chains without a kick; answers the index before.
    pub fn show(&mut self) -> u16 {
        let old = self.avail_shown;
        self.avail.index(2).store(self.avail_next, Ordering::Release);
        self.avail_shown = self.avail_next;
        old
    }

    pub fn has_used(&self) -> bool {
        self.used_idx() != self.used_seen
    }

    /// Number of used elements not yet taken.
    pub fn used_ready(&self) -> u16 {
        self.used_idx().wrapping_sub(self.used_seen)
    }

    /// Takes one used element: its token and used.len.
    pub fn pop_used(&mut self) -> Option<(u16, u32)> {
        let ready = self.used_ready();
        if ready == 0 {
            return None;
        }
        let held = self.in_flight();
        assert!(ready as usize <= held, "ring {}: {ready} used, {held} posted (I5)", self.index);
        let at = 4 + 8 * (self.used_seen & (self.size - 1)) as usize;
        let (id, len) = (self.used.get32(at), self.used.get32(at + 4));
        assert!(id < u32::from(self.size), "ring {}: used id {id} (I5)", self.index);
        let head = id as u16;
        if self.mode.strict_order {
            let want = self.order.pop_front();
            assert_eq!(want, Some(head), "ring {}: not in order (I5)", self.index);
        }
        let n = std::mem::take(&mut self.chain[head as usize]);
        assert_ne!(n, 0, "ring {}: head {head} came back, but was not out (I5)", self.index);
        self.release(head, n);
        self.used_seen = self.used_seen.wrapping_add(1);
        self.stats.returned += 1;
        Some((self.token[head as usize], len))
    }

    /// In order the table is used round and round, else as a stack, so that heads vary.
    fn release(&mut self, head: u16, n: u16) {
        let mut d = head;
        for _ in 0..n {
            if self.mode.in_order {
                self.free.push_back(d)
            } else {
                self.free.push_front(d)
            }
            d = self.next[d as usize];
        }
    }

    /// Asks for a call at the next used element; true if there is one already (2.7.7).
    pub fn arm(&mut self) -> bool {
        self.arm_after(0)
    }

    /// Asks for a call only after `ahead` further elements, as drivers do for TX completions.
    /// True if there are more than that already.
    pub fn arm_after(&mut self, ahead: u16) -> bool {
        if self.mode.event_idx {
            let event = self.used_seen.wrapping_add(ahead);
            self.avail.index(4 + 2 * self.size as usize).store(event, Ordering::Relaxed);
        } else {
            self.avail.index(0).store(0, Ordering::Relaxed);
        }
        // Look again after asking: what was used before the wish became visible has no call.
        fence(Ordering::SeqCst);
        self.used_ready() > if self.mode.event_idx { ahead } else { 0 }
    }

    /// Wants no calls (a hint only: with EVENT_IDX the index is left behind).
    pub fn disarm(&mut self) {
        if !self.mode.event_idx {
            self.avail.index(0).store(RING_NO_EVENT, Ordering::Relaxed);
        }
    }

    /// Sleeps on the call fd until something is used. False if nothing was by the limit; panics
    /// if something was used and the call never came.
    pub fn wait(&mut self, limit: Duration) -> bool {
        self.wait_after(0, limit)
    }

    /// The same until more than `ahead` elements are used (or any, without EVENT_IDX).
    pub fn wait_after(&mut self, ahead: u16, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        loop {
            if self.arm_after(ahead) {
                self.disarm();
                return true;
            }
            self.stats.sleeps += 1;
            if self.call.wait(end.saturating_duration_since(Instant::now())) {
                self.stats.calls += 1;
            } else if self.used_ready() <= if self.mode.event_idx { ahead } else { 0 } {
                return false;
            } else {
                assert!(self.call.wait(LATE_SIGNAL), "ring {}: lost notification", self.index);
            }
        }
    }

    /// Starts again from empty rings, as a driver reset does. The device must be stopped.
    pub fn reset(&mut self) {
        let order = |i: u16| {
            if self.mode.in_order { i } else { i.wrapping_mul(7) & (self.size - 1) }
        };
        self.free = (0..self.size).map(order).collect();
        self.chain.fill(0);
        self.order.clear();
        for (span, off) in [(&self.avail, 0), (&self.avail, 2), (&self.used, 0), (&self.used, 2)] {
            span.index(off).store(0, Ordering::Release);
        }
        (self.avail_next, self.avail_shown, self.used_seen) = (0, 0, 0);
        self.stats.returned = self.stats.posted;
    }
}

/// Writes `struct virtq_desc` number `i` of a table.
pub fn put_desc(table: &Span, i: usize, seg: Seg, flags: u16, next: u16) {
    table.set64(16 * i, seg.gpa);
    table.set32(16 * i + 8, seg.len);
    table.set16(16 * i + 12, flags);
    table.set16(16 * i + 14, next);
}
