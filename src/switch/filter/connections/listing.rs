//! All connections: to list them, to remove those that have timed out, and to remove some.

use super::super::super::fdb::Tick;
use super::key::Parts;
use super::slots::BUCKET_SLOTS;
use super::state::{Ending, State};
use super::{Connections, Key};
use base::limits::CONNECTION_SWEEP_BUCKETS;

/// A connection at the moment of a look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Connection {
    /// Both ends, protocol and VLAN.
    pub parts: Parts,
    /// State.
    pub state: State,
    /// Seconds until the connection times out without further packets.
    pub seconds: u32,
    /// The VM behind the port sent the first packet.
    pub out: bool,
    /// Both ends have sent packets.
    pub replied: bool,
    /// The connection does not make room for others.
    pub assured: bool,
    /// Which end has ended the connection, and how far the connection had come.
    pub ending: Ending,
    /// The rule by which the connection began …
    pub rule: u16,
    /// … among the rules of this generation.
    pub generation: u32,
}

impl Connections {
    /// Returns the connections of one port, or of all, that have not timed out, unsorted.
    pub fn entries(&self, port: Option<u16>, now: Tick) -> Vec<Connection> {
        self.page(port, (0, usize::MAX, usize::MAX), now).0
    }

    /// Returns the connection of a slot, unless the connection has timed out.
    pub(super) fn entry(&self, slot: usize, now: Tick) -> Option<Connection> {
        if !self.slots.has_tag(slot) {
            return None;
        }
        let word = self.slots.word(slot);
        if !word.is_used() || word.is_expired(now) {
            return None;
        }
        let (key, owner) = self.slots.entry(slot, word)?;
        let left = word.deadline().to_bits().saturating_sub(now.to_bits());
        Some(Connection {
            parts: key.parts(),
            state: word.state(),
            seconds: left.div_ceil(Tick::ticks(1)),
            out: word.is_out(),
            replied: word.is_replied(),
            assured: word.is_assured(),
            ending: word.ending(),
            rule: owner.rule,
            generation: owner.generation,
        })
    }

    /// Removes connections that have timed out, in one step of a sweep over the table: `step`
    /// counts up. Returns their number. The caller makes [`Connections::sweep_steps`] steps in each
    /// round.
    pub fn sweep(&self, step: usize, now: Tick) -> usize {
        let slots = CONNECTION_SWEEP_BUCKETS * BUCKET_SLOTS;
        let first = step % self.sweep_steps() * slots;
        let doomed = first..(first + slots).min(self.slots.len());
        doomed.filter(|slot| self.remove_if(*slot, |_| true, |expired| expired(now))).count()
    }

    /// Returns the number of steps of a sweep.
    pub fn sweep_steps(&self) -> usize {
        self.slots.len().div_ceil(CONNECTION_SWEEP_BUCKETS * BUCKET_SLOTS)
    }

    /// Removes all connections for which `wanted` is true. Returns their number.
    pub fn flush(&self, wanted: impl Fn(&Parts) -> bool) -> usize {
        let all = 0..self.slots.len();
        all.filter(|slot| self.remove_if(*slot, |key| wanted(&key.parts()), |_| true)).count()
    }

    /// Removes all connections of a port that is gone, has moved to another bridge, or has no
    /// filter any more.
    pub fn close_port(&self, port: u16) -> usize {
        match self.port_len(port) {
            0 => 0,
            _ => self.flush(|parts| parts.port == port),
        }
    }

    /// Removes the connection of a slot if its key and its time are wanted.
    fn remove_if(
        &self,
        slot: usize,
        wanted: impl Fn(&Key) -> bool,
        when: impl Fn(&dyn Fn(Tick) -> bool) -> bool,
    ) -> bool {
        while self.slots.has_tag(slot) {
            let word = self.slots.word(slot);
            if !word.is_used() || !when(&|now| word.is_expired(now)) {
                return false;
            }
            let Some((key, _)) = self.slots.entry(slot, word) else { continue };
            if !wanted(&key) {
                return false;
            }
            if self.remove(key.port(), slot, word) {
                return true;
            }
        }
        false
    }
}
