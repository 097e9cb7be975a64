//! Frames for several ports: the receivers, and how many of these a worker serves in a turn.
//!
//! A burst is complete before its floods begin: its source has its buffers back, and the worker
//! holds no lock of the source. The frames are in private memory, so that a receiver whose memory
//! makes the worker wait does not make the sender wait, and the sender changes nothing that later
//! receivers get. A receiver costs the worker cache misses and a signal, each byte of a copy its
//! part of the memory's bandwidth. So a burst floods to so many receivers that the copies take
//! about a turn; [`PendingFlood`] has the others, which the worker serves in its next turns, in the
//! order of their numbers. Receivers are found anew for each part: a port that comes gets the
//! frames, a port that went gets none.
//!
//! Floods of a source keep their order among themselves: while one goes on, the source's next one
//! waits in the ring, and what is behind it in the ring waits too. A flood of which a part lasts
//! for [`FLOOD_WAIT_NANOS`] is in the hands of a thread that is stuck in a receiver's memory: then
//! the source's long floods are dropped, and its short ones go first. A short flood may also pass
//! another one while its ring moves to another worker. Frames for one port pass floods.
//!
//! [`FLOOD_WAIT_NANOS`]: base::limits::FLOOD_WAIT_NANOS

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::plan::{Plan, Scope};
use crate::port::quantum::Deficit;
use crate::port::{Endpoint, FloodPermit, FloodSlot, Port, PortTable};
use crate::ring::{Burst, KeptFrames};
use base::limits::{
    BURST_FLOOD_BYTES, BURST_FLOOD_COPIES, FLOOD_RECEIVER_BYTES, FLOOD_RECEIVERS, FLOOD_WAIT_NANOS,
    LOOKS_PER_COPY,
};
use base::stats::DropReason;
use switch::{Flood, Policy, PortId, Reach, Segment};
use sys::clock;
use sys::threads::lock;

/// Frames whose receivers are not all served.
#[derive(Debug)]
pub struct PendingFlood {
    /// The frames.
    pub frames: KeptFrames,
    /// What the receivers are found by.
    pub scope: Scope,
    /// The first port that is not served.
    pub next: PortId,
    /// Where the source is charged; none for frames of the switch itself.
    pub slot: Option<Arc<FloodSlot>>,
    /// Keeps the source's next flood waiting.
    pub permit: Option<Arc<FloodPermit>>,
    /// What its parts took beyond their quantum: floods compete for the worker as sources do.
    pub deficit: Deficit,
}

impl PendingFlood {
    /// True if the flood came from this port, and not from an earlier one of its number.
    pub fn is_of(&self, port: &Port) -> bool {
        let Some(slot) = &self.slot else { return true };
        match &port.endpoint {
            Endpoint::Guest(guest) => Arc::ptr_eq(slot, &guest.floods),
            Endpoint::Device(device) => {
                device.queues().iter().any(|queue| Arc::ptr_eq(slot, &queue.floods))
            }
        }
    }
}

/// The floods that go on at a worker. A thread takes a flood out while it serves a part: a thread
/// that is stuck in a receiver's memory keeps no other flood from the thread in its place.
#[derive(Debug, Default)]
pub struct FloodList {
    list: Mutex<VecDeque<PendingFlood>>,
    count: AtomicUsize,
}

impl FloodList {
    fn with<T>(&self, change: impl FnOnce(&mut VecDeque<PendingFlood>) -> T) -> T {
        let mut list = lock(&self.list);
        let result = change(&mut list);
        self.count.store(list.len(), Ordering::Relaxed);
        result
    }

    /// The number of floods.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// True if there is none.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends a flood.
    pub fn push(&self, flood: PendingFlood) {
        flood.permit.iter().for_each(|permit| permit.rest());
        self.with(|list| list.push_back(flood));
    }

    /// Takes the flood that waits longest.
    pub fn pop(&self) -> Option<PendingFlood> {
        self.with(VecDeque::pop_front)
    }

    /// The port whose flood waits longest.
    pub fn next_port(&self) -> Option<PortId> {
        self.with(|list| list.front().map(|flood| flood.scope.from.port))
    }

    /// Forgets the floods of ports that are gone from `ports`.
    pub fn forget_gone(&self, ports: &PortTable) {
        let stays = |flood: &PendingFlood| {
            ports.get(flood.scope.from.port).is_some_and(|port| flood.is_of(port))
        };
        self.with(|list| list.retain(stays));
    }

    /// True if a frame of the switch itself is flooded.
    pub fn has_own(&self) -> bool {
        self.with(|list| list.iter().any(|flood| flood.slot.is_none()))
    }
}

/// What becomes of a frame that is to be flooded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Added {
    /// The plan has the frame.
    Planned,
    /// The burst ends in front of the frame, which comes again.
    Waits,
}

/// Plans the floods of a burst.
pub struct Floods<'a> {
    /// The slot of the source; none for frames of the switch itself.
    slot: Option<&'a Arc<FloodSlot>>,
    /// Frames may wait in their ring.
    can_wait: bool,
    /// Held if the burst has more copies than are made at once.
    pub permit: Option<FloodPermit>,
    now: u64,
    receivers: usize,
    copies: usize,
    bytes: usize,
    /// Ports that were looked at.
    looks: usize,
    /// The key and segment of the last frame's receivers, and how many there are.
    last: ((u64, Segment), usize),
}

/// The key of no receivers: all others are smaller.
const NO_KEY: u64 = u64::MAX;

/// Ports that may be looked at for a burst.
const MAX_LOOKS: usize = BURST_FLOOD_COPIES * LOOKS_PER_COPY;

impl<'a> Floods<'a> {
    /// No floods so far of a burst from the source with this slot, at cycle `now`; its frames
    /// `can_wait` if it is a ring.
    pub fn new(slot: Option<&'a Arc<FloodSlot>>, can_wait: bool, now: u64) -> Floods<'a> {
        let (permit, last) = (None, ((NO_KEY, Segment::DEFAULT), 0));
        Floods { slot, can_wait, permit, now, receivers: 0, copies: 0, bytes: 0, looks: 0, last }
    }

    /// Plans a copy of frame `i` of the burst, of `len` bytes, for each port that `scope` finds.
    #[inline(never)]
    pub fn add(
        &mut self,
        policy: &Policy<'_, PortTable>,
        scope: Scope,
        (i, len): (u8, usize),
        plan: &mut Plan,
    ) -> Added {
        // Ports that ask for nothing take both kinds.
        let flood = if policy.ports.is_plain() { Flood::Group } else { scope.flood };
        let key = key(Scope { flood, ..scope });
        if (key, scope.segment) != self.last.0 {
            if i > 0 && self.can_wait && self.looks > MAX_LOOKS {
                return Added::Waits;
            }
            let looks = &mut self.looks;
            let fan = plan.fan(key, scope, |targets| {
                find(policy, (scope, 0), AT_ONCE, targets);
                // Of plain ports the first ones are found at once.
                let all = policy.ports.is_plain() && scope.reach == Reach::All;
                *looks += if all { 0 } else { policy.ports.numbers() };
            });
            self.last = ((key, scope.segment), fan.targets().len());
            if fan.frames().is_empty() {
                self.receivers += self.last.1;
                self.bytes += self.last.1 * FLOOD_RECEIVER_BYTES;
            }
        }
        let receivers = self.last.1;
        if receivers == 0 {
            plan.drop(i, DropReason::NoReceiver);
            return Added::Planned;
        }
        self.copies += receivers;
        self.bytes += receivers * len;
        // As `Share` reckons.
        let is_long = self.receivers > FLOOD_RECEIVERS
            || self.copies > BURST_FLOOD_COPIES
            || self.bytes > BURST_FLOOD_BYTES;
        match self.may_flood(is_long) {
            Ok(()) => plan.fan(key, scope, |_| {}).push(i),
            Err(Some(reason)) => plan.drop(i, reason),
            Err(None) => return Added::Waits,
        }
        Added::Planned
    }

    /// Takes the slot of the source if `is_long`.
    ///
    /// # Errors
    /// Another flood of the source goes on: why the frame is dropped, or none if the frame waits.
    fn may_flood(&mut self, is_long: bool) -> Result<(), Option<DropReason>> {
        let Some(slot) = self.slot.filter(|_| self.permit.is_none()) else { return Ok(()) };
        let taken_at = match is_long {
            true => match slot.take(self.now) {
                Ok(permit) => {
                    self.permit = Some(permit);
                    return Ok(());
                }
                Err(taken_at) => taken_at,
            },
            false => match slot.taken_at() {
                Some(taken_at) => taken_at,
                None => return Ok(()),
            },
        };
        match is_stuck(taken_at, self.now) {
            true if is_long => Err(Some(DropReason::FloodBusy)),
            true => Ok(()),
            false => Err(None),
        }
    }
}

/// True if the part of a flood that began at cycle `taken_at`, which [`FloodSlot::taken_at`] says,
/// does not end.
pub fn is_stuck(taken_at: u64, now: u64) -> bool {
    taken_at > FloodSlot::RESTS && clock::since(taken_at, now) > clock::cycles_in(FLOOD_WAIT_NANOS)
}

/// Leaves of each flood of a plan the receivers that are served at once.
pub fn limit_part(plan: &mut Plan, burst: &Burst) {
    let mut share = Share::default();
    for fan in plan.fans_mut() {
        let served = share.take(burst, fan.frames(), fan.targets().len());
        fan.limit(served);
    }
}

/// What the copies of a turn may still take.
struct Share {
    receivers: usize,
    copies: usize,
    bytes: usize,
}

impl Default for Share {
    fn default() -> Share {
        Share { receivers: FLOOD_RECEIVERS, copies: BURST_FLOOD_COPIES, bytes: BURST_FLOOD_BYTES }
    }
}

impl Share {
    /// Takes what frames of a burst cost at up to `wanted` receivers: how many of these are served.
    /// One at least of the first.
    fn take(&mut self, burst: &Burst, frames: &[u8], wanted: usize) -> usize {
        let len = |&at: &u8| burst.frames()[usize::from(at)].len as usize;
        let bytes = FLOOD_RECEIVER_BYTES + frames.iter().map(len).sum::<usize>();
        let is_first = self.receivers == FLOOD_RECEIVERS;
        let fits = (self.bytes / bytes).min(self.copies / frames.len().max(1)).min(self.receivers);
        let served = wanted.min(if is_first { fits.max(1) } else { fits });
        self.receivers -= served;
        self.copies = self.copies.saturating_sub(served * frames.len());
        self.bytes = self.bytes.saturating_sub(served * bytes);
        served
    }
}

/// A number for the ports that frames reach.
fn key(scope: Scope) -> u64 {
    let segment = u64::from(scope.segment.to_bits());
    match scope.reach {
        Reach::All => segment << Flood::BITS | u64::from(scope.flood.number()),
        Reach::Routers => 1 << 40 | segment,
        Reach::Members(of) => 2 << 40 | u64::from(of.serial),
    }
}

/// To find out whether receivers are left.
pub const AT_ONCE: usize = FLOOD_RECEIVERS + 1;

/// Finds the ports from number `start` on that a flood reaches and that are up, no more than `most`
/// before groups are looked at.
pub fn find(
    policy: &Policy<'_, PortTable>,
    (scope, start): (Scope, PortId),
    most: usize,
    targets: &mut Vec<PortId>,
) {
    let Policy { ports, rules, .. } = policy;
    let from = ports.policy(scope.from.port);
    let most = if scope.reach == Reach::All { most } else { usize::MAX };
    let receivers = ports.iter_from(start).filter(|port| {
        let up = match &port.endpoint {
            Endpoint::Guest(guest) => guest.active() != 0,
            Endpoint::Device(device) => device.is_up(),
        };
        let asked = ports.policy(port.id);
        up && rules.flood_reaches(scope.from, port.id, port.kind())
            && asked.takes(scope.flood)
            && asked.is_member(scope.segment)
            && from.reaches(asked)
    });
    targets.extend(receivers.take(most).map(|port| port.id));
    ports.keep_reached(scope.reach, targets);
}
