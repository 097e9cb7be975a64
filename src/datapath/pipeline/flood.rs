//! Floods: the receivers of a frame for several ports, and how many receivers a worker serves in a
//! turn.
//!
//! A burst is complete before its floods begin: the source has its buffers back, and the worker
//! holds no lock of the source. The frames are in private memory, so a receiver whose memory makes
//! the worker wait does not delay the sender, and the sender cannot change the bytes for later
//! receivers. Each receiver costs the worker cache misses and a signal, and each byte of a copy
//! costs memory bandwidth. So a burst floods to as many receivers as take about a turn.
//! [`PendingFlood`] keeps the flood for the other receivers, which the worker serves in its next
//! turns, in the order of their port numbers. Receivers are searched again for each part: a new
//! port gets the frames, and a removed port does not.
//!
//! Floods of a source keep their order: during a flood, the source's next flood waits in the ring,
//! and so do the frames behind it. If a part of a flood lasts for [`FLOOD_WAIT_NANOS`], its thread
//! is stuck in a receiver's memory; the source's long floods are then dropped, and its short floods
//! overtake the stuck flood. A short flood may also overtake another flood while the ring moves to
//! another worker. Unicast frames overtake floods.
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

/// Flooded frames with receivers that are not served yet.
#[derive(Debug)]
pub struct PendingFlood {
    /// The frames.
    pub(crate) frames: KeptFrames,
    /// Criteria that select the receivers.
    pub(crate) scope: Scope,
    /// The first port that is not served.
    pub(crate) next: PortId,
    /// Slot of the source, which is charged; none for frames of the switch itself.
    pub(crate) slot: Option<Arc<FloodSlot>>,
    /// Permit that makes the source's next flood wait.
    pub(crate) permit: Option<Arc<FloodPermit>>,
    /// Time that parts took beyond their quantum: floods compete for the worker like sources.
    pub(crate) deficit: Deficit,
}

impl PendingFlood {
    /// True if the flood came from `port`, and not from an earlier port with the same number.
    pub(crate) fn is_of(&self, port: &Port) -> bool {
        let Some(slot) = &self.slot else { return true };
        match &port.endpoint {
            Endpoint::Guest(guest) => Arc::ptr_eq(slot, &guest.floods),
            Endpoint::Device(device) => {
                device.queues().iter().any(|queue| Arc::ptr_eq(slot, &queue.floods))
            }
        }
    }
}

/// The unfinished floods of a worker. A thread removes a flood from the list while it serves a
/// part: the other floods stay available if the thread gets stuck in a receiver's memory.
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

    /// Returns the number of floods.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// True if there is no flood.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Appends a flood.
    pub(crate) fn push(&self, flood: PendingFlood) {
        flood.permit.iter().for_each(|permit| permit.rest());
        self.with(|list| list.push_back(flood));
    }

    /// Takes the flood that has waited longest.
    pub(crate) fn pop(&self) -> Option<PendingFlood> {
        self.with(VecDeque::pop_front)
    }

    /// Returns the port of the flood that has waited longest.
    pub(crate) fn next_port(&self) -> Option<PortId> {
        self.with(|list| list.front().map(|flood| flood.scope.from.port))
    }

    /// Removes the floods of ports that `ports` no longer has.
    pub(crate) fn forget_gone(&self, ports: &PortTable) {
        let stays = |flood: &PendingFlood| {
            ports.get(flood.scope.from.port).is_some_and(|port| flood.is_of(port))
        };
        self.with(|list| list.retain(stays));
    }

    /// True if a flood is of a frame of the switch itself.
    pub(crate) fn has_own(&self) -> bool {
        self.with(|list| list.iter().any(|flood| flood.slot.is_none()))
    }
}

/// Result of planning a flooded frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Added {
    /// The plan has the frame, as a flood or as a drop.
    Planned,
    /// The burst ends before the frame, which is taken again later.
    Waits,
}

/// Planner of the floods of a burst.
pub(crate) struct Floods<'a> {
    /// The slot of the source; none for frames of the switch itself.
    slot: Option<&'a Arc<FloodSlot>>,
    /// Frames may wait in the source's ring.
    can_wait: bool,
    /// Present if the burst has more copies than are made in one turn.
    pub(crate) permit: Option<FloodPermit>,
    now: u64,
    receivers: usize,
    copies: usize,
    bytes: usize,
    /// Number of ports that were examined.
    looks: usize,
    /// The key and segment of the last frame's receivers, and the number of these receivers.
    last: ((u64, Segment), usize),
}

/// Key of no set of ports; all other keys are smaller.
const NO_KEY: u64 = u64::MAX;

/// Number of ports that may be examined for a burst.
const MAX_LOOKS: usize = BURST_FLOOD_COPIES * LOOKS_PER_COPY;

impl<'a> Floods<'a> {
    /// Plans no flood yet, for a burst of the source with `slot` at cycle `now`. `can_wait`: frames
    /// may wait in the source's ring.
    pub(crate) fn new(slot: Option<&'a Arc<FloodSlot>>, can_wait: bool, now: u64) -> Floods<'a> {
        let (permit, last) = (None, ((NO_KEY, Segment::DEFAULT), 0));
        Floods { slot, can_wait, permit, now, receivers: 0, copies: 0, bytes: 0, looks: 0, last }
    }

    /// Plans a copy of frame `i` of the burst, of `len` bytes, for each port that `scope` selects.
    #[inline(never)]
    pub(crate) fn add(
        &mut self,
        policy: &Policy<'_, PortTable>,
        scope: Scope,
        (i, len): (u8, usize),
        plan: &mut Plan,
    ) -> Added {
        // Plain ports have no flood policy, so both kinds of floods have the same receivers.
        let flood = if policy.ports.is_plain() { Flood::Group } else { scope.flood };
        let key = key(Scope { flood, ..scope });
        if (key, scope.segment) != self.last.0 {
            if i > 0 && self.can_wait && self.looks > MAX_LOOKS {
                return Added::Waits;
            }
            let looks = &mut self.looks;
            let group = plan.flood_group(key, scope, |targets| {
                find(policy, (scope, 0), AT_ONCE, targets);
                // A search of plain ports stops after the first receivers; other searches examine
                // all ports.
                let all = policy.ports.is_plain() && scope.reach == Reach::All;
                *looks += if all { 0 } else { policy.ports.numbers() };
            });
            self.last = ((key, scope.segment), group.targets().len());
            if group.frames().is_empty() {
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
        // These limits equal those of `Share`.
        let is_long = self.receivers > FLOOD_RECEIVERS
            || self.copies > BURST_FLOOD_COPIES
            || self.bytes > BURST_FLOOD_BYTES;
        match self.may_flood(is_long) {
            Ok(()) => plan.flood_group(key, scope, |_| {}).push(i),
            Err(Some(reason)) => plan.drop(i, reason),
            Err(None) => return Added::Waits,
        }
        Added::Planned
    }

    /// Takes the slot of the source if `is_long`.
    ///
    /// # Errors
    /// Another flood of the source is unfinished. The error is the reason for dropping the frame,
    /// or none if the frame waits.
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

/// True if the part of a flood that began at cycle `taken_at` lasts too long;
/// [`FloodSlot::taken_at`] returns this cycle.
pub(crate) fn is_stuck(taken_at: u64, now: u64) -> bool {
    taken_at > FloodSlot::RESTS && clock::since(taken_at, now) > clock::cycles_in(FLOOD_WAIT_NANOS)
}

/// Limits the receivers of each flood of a plan to those that are served in this turn.
pub(crate) fn limit_part(plan: &mut Plan, burst: &Burst) {
    let mut share = Share::default();
    for group in plan.flood_groups_mut() {
        let served = share.take(burst, group.frames(), group.targets().len());
        group.limit(served);
    }
}

/// Copies that may still be made in a turn.
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
    /// Takes the cost of the copies of frames to up to `wanted` receivers. Returns the number of
    /// receivers to serve: at least one for the first frames.
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

/// Returns a number that stands for the set of ports that frames reach.
fn key(scope: Scope) -> u64 {
    let segment = u64::from(scope.segment.to_bits());
    match scope.reach {
        Reach::All => segment << Flood::BITS | u64::from(scope.flood.number()),
        Reach::Routers => 1 << 40 | segment,
        Reach::Members(of) => 2 << 40 | u64::from(of.serial),
    }
}

/// Number of receivers to search at once: one more than are served, which tells if receivers are
/// left.
pub const AT_ONCE: usize = FLOOD_RECEIVERS + 1;

/// Finds running ports, from number `start` on, that a flood reaches: at most `most` ports, or any
/// number if a multicast group limits the flood.
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
        let to = ports.policy(port.id);
        up && rules.flood_reaches(scope.from, port.id, port.kind())
            && to.takes(scope.flood)
            && to.is_member(scope.segment)
            && from.reaches(to)
    });
    targets.extend(receivers.take(most).map(|port| port.id));
    ports.keep_reached(scope.reach, targets);
}
