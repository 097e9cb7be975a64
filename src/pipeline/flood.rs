//! Who receives a flood, and how many at once.
//!
//! A receiver costs the worker cache misses and a signal, each byte of a copy its part of the
//! memory's bandwidth. So a burst floods to so many receivers that it takes about a turn, and the
//! first frames of a burst with more of them go to the others in the next turns (`burst::rest`).

use super::plan::Plan;
use crate::limits::{
    BURST_FLOOD_BYTES, BURST_FLOOD_COPIES, FLOOD_RECEIVER_BYTES, FLOOD_RECEIVERS, LOOKS_PER_COPY,
};
use crate::port::{Endpoint, FloodPlace, PortTable, Scope};
use crate::stats::DropReason;
use crate::switch::{Flood, Policy, PortId, Reach};

/// Of no flood: keys are smaller.
const NO_KEY: u64 = u64::MAX;

/// What the floods of a burst ask for so far.
#[derive(Debug, Default)]
pub struct Floods {
    whole: bool,
    receivers: usize,
    copies: usize,
    bytes: usize,
    /// Which one the last frame belongs to, and how many ports that is for.
    last: (u64, usize),
}

impl Floods {
    /// Nothing so far; `whole` if each is served at once, however many receivers it has.
    pub fn new(whole: bool) -> Floods {
        Floods { whole, last: (NO_KEY, 0), ..Floods::default() }
    }

    /// Adds frame `i` of the burst, of `len` bytes, or drops it if it reaches no port; false if
    /// that would be more than a burst may ask for, or if further receivers are left and another
    /// flood of the port has its `place`.
    #[inline(never)]
    pub fn add(
        &mut self,
        policy: &Policy<'_, PortTable>,
        scope: Scope,
        (i, len): (usize, u32),
        (plan, place): (&mut Plan, &mut Option<FloodPlace>),
    ) -> bool {
        // Of a table that asks for nothing both kinds are one.
        let plain = policy.ports.is_plain();
        let flood = if plain { Flood::Group } else { scope.flood };
        let key = key(Scope { flood, ..scope });
        let (i, len) = (i as u8, len as usize);
        if key != self.last.0 {
            let Some(served) = self.begin(policy, (scope, key), (i, len), plan, place) else {
                return false;
            };
            self.last = (key, served);
        }
        let served = self.last.1;
        let (copies, bytes) = (self.copies + served, self.bytes + served * len);
        if i > 0 && (copies > BURST_FLOOD_COPIES || bytes > BURST_FLOOD_BYTES) {
            return false;
        }
        (self.copies, self.bytes) = (copies, bytes);
        match served {
            0 => plan.drop(i, DropReason::NoReceiver),
            _ => plan.fan(key, |_| {}).push(i),
        }
        true
    }

    /// A frame of `len` bytes goes elsewhere than the one before: how many ports are served with
    /// it; none if it is to come again.
    fn begin(
        &mut self,
        policy: &Policy<'_, PortTable>,
        (scope, key): (Scope, u64),
        (i, len): (u8, usize),
        plan: &mut Plan,
        place: &mut Option<FloodPlace>,
    ) -> Option<usize> {
        let (is_first, is_long) = (!plan.floods(), plan.unserved().is_some());
        let fan = plan.fan(key, |targets| {
            find(policy, (scope, 0), if self.whole { usize::MAX } else { AT_ONCE }, targets);
            // A frame to each of many VLANs has all ports looked at as often.
            let all = policy.ports.is_plain() && scope.reach == Reach::All;
            self.copies += if all { 0 } else { policy.ports.numbers() / LOOKS_PER_COPY };
        });
        match (self.whole, is_first) {
            (true, _) => {}
            (false, true) => fan.limit(receivers_of(len), scope),
            (false, false) => fan.limit(FLOOD_RECEIVERS, scope),
        }
        let (served, is_new) = (fan.targets().len(), fan.frames().is_empty());
        let (receivers, bytes) = match is_new {
            true => (self.receivers + served, self.bytes + served * FLOOD_RECEIVER_BYTES),
            false => (self.receivers, self.bytes),
        };
        // The rest of one flood can be kept.
        let is_second = !is_first && is_new && (is_long || fan.is_limited());
        if i > 0 && (receivers > FLOOD_RECEIVERS || is_second)
            || fan.is_limited() && !takes(place, policy, scope)
        {
            return None;
        }
        (self.receivers, self.bytes) = (receivers, bytes);
        Some(served)
    }
}

/// Takes the place for what is left of a flood, if it was not before and its port needs one.
fn takes(place: &mut Option<FloodPlace>, policy: &Policy<'_, PortTable>, scope: Scope) -> bool {
    let Some((_, guest)) = policy.ports.guest(scope.from.port) else { return true };
    if place.is_none() {
        *place = FloodPlace::take(&guest.floods);
    }
    place.is_some()
}

/// Receivers that are served at once with frames of so many bytes.
pub fn receivers_of(bytes: usize) -> usize {
    (BURST_FLOOD_BYTES / (FLOOD_RECEIVER_BYTES + bytes)).clamp(1, FLOOD_RECEIVERS)
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
