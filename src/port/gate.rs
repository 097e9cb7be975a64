//! What keeps the frames of a transmit ring from being taken, and what comes of looking at a source
//! of frames.

use super::credit::{Allowance, Behind, Wait, WaitLimits, Waiting};
use super::queue::{Queue, Tx, TxState};
use crate::limits::{BURST_FRAMES, MAX_PAUSE_NANOS, SLOW_PAUSE_PARTS};
use crate::sys::clock;

/// What came of looking at a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// A burst was forwarded; there may be more.
    More,
    /// A burst was forwarded, and the source is known to be empty now.
    Last,
    /// Nothing there.
    Empty,
    /// Stopped, disabled or broken: somebody will say when to look again.
    Gone,
    /// Somebody else has the ring, or the one that its frames wait for: look again next turn.
    Locked,
    /// Others have to have as much of the worker's time first: it skips turns.
    Throttled,
    /// There may be more, or what its frames wait for came in this moment, and no event tells: look
    /// again next turn.
    Again,
    /// Nothing can be forwarded before this cycle, as far as is known: look again in each turn, and
    /// then at the latest.
    At(u64),
    /// The same, and what comes before is buffers of a receiver that takes frames.
    Receiver(u64),
}

/// What becomes of frames that are sent on a disabled ring.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Discard {
    /// They are kept for the time it is enabled, which it never was.
    #[default]
    Never,
    /// They are kept, until a kick.
    OnKick,
    /// After a kick: they are kept until this cycle, for the case that it is enabled again.
    From(u64),
}

/// What keeps the frames of a transmit ring from being taken.
#[derive(Debug, Default)]
pub struct Gate {
    /// The ring is being disabled: forward up to this index, then stop.
    pub drain_to: Option<u16>,
    /// What a disabled ring's frames come to.
    pub discard: Discard,
    /// Its first frames wait for their receiver.
    pub receiver: Option<Waiting>,
    /// For how long they may in front of others'.
    pub allowance: Allowance,
}

impl TxState {
    /// How many frames may be taken at cycle `now`, or what there is to do instead. Whether others
    /// are to be served first, or the receiver has no buffers, is not asked here.
    #[inline(always)]
    pub fn may_take(&mut self, queue: &Queue<Tx>, now: u64) -> Result<usize, Next> {
        let limit = match self.drain_left(queue) {
            Some(0) => return Err(Next::Gone),
            Some(left) => left.into(),
            None => BURST_FRAMES,
        };
        if self.vring.running().is_none() {
            return Err(Next::Gone);
        }
        if self.memory.until > now { Err(Next::At(self.memory.until)) } else { Ok(limit) }
    }

    /// How frames may wait that `behind` is behind: not at all if a session waits for the ring.
    /// Reckons for how long they have.
    #[cold]
    pub fn wait(&mut self, now: u64, behind: Behind, limits: &WaitLimits) -> Option<Wait> {
        let (ring, gate) = (self.vring.ring.as_ref()?, &mut self.side.gate);
        let waiting = gate.receiver.as_ref();
        let waited = waiting.map_or(0, |waiting| clock::since(waiting.charged_until, now));
        let holds = waiting.is_some_and(|waiting| waiting.behind != Behind::Short);
        let in_front = gate.allowance.allows(now, holds, limits);
        let wait = Wait { now, waited, ring_size: ring.size(), behind, in_front };
        gate.drain_to.is_none().then_some(wait)
    }

    /// Frames that a ring that is being disabled still has to forward; none if it is not. Disables
    /// it and tells the waiting session when there are none left.
    #[inline(always)]
    pub fn drain_left(&mut self, queue: &Queue<Tx>) -> Option<u16> {
        self.side.gate.drain_to.map(|target| self.drain(target, queue))
    }

    #[cold]
    fn drain(&mut self, target: u16, queue: &Queue<Tx>) -> u16 {
        let left = match self.vring.running() {
            Some(ring) => target.wrapping_sub(ring.base()),
            None => 0,
        };
        if left == 0 {
            self.side.gate.drain_to = None;
            self.vring.enabled = false;
            if let Some(ring) = &mut self.vring.ring {
                // Later frames are discarded on a kick; whether some are there already is the
                // driver's affair until it kicks again.
                let _ = ring.enable_kicks();
            }
            queue.notify_drained();
        }
        left
    }
}

/// What a ring's memory made workers wait, which the guest pays for.
#[derive(Debug, Clone, Copy, Default)]
pub struct Pause {
    /// The cycle from which on the ring gets or sends frames again; 0 if it does.
    until: u64,
}

impl Pause {
    /// True while the ring gets or sends nothing.
    #[inline(always)]
    pub fn is_paused(&mut self, now: impl FnOnce() -> u64) -> bool {
        self.until != 0 && self.lasts(now())
    }

    #[cold]
    fn lasts(&mut self, now: u64) -> bool {
        if now >= self.until {
            self.until = 0;
        }
        self.until != 0
    }

    /// Makes the guest pay `slow` cycles, up to cycle `now`, with a pause many times as long, up to
    /// [`MAX_PAUSE_NANOS`]: a worker that a debugger stops in a page fault looks slow too.
    #[cold]
    pub fn charge(&mut self, slow: u64, now: u64) {
        let long = slow.saturating_mul(SLOW_PAUSE_PARTS).min(clock::cycles_in(MAX_PAUSE_NANOS));
        self.until = now.saturating_add(long).max(1);
    }
}
