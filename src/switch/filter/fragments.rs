//! The fragmented packets of a port: what became of a packet's first fragment becomes of the
//! others.
//!
//! A fragment that comes before the first one is dropped. Of one packet more than one "first"
//! fragment may come, each with other ports: each is decided by its own header, and the others
//! follow if one of them passed. A receiver that puts together what overlaps could read a header
//! that no rule saw, so [`super::packet`] refuses a later fragment that overlaps the header.

use std::sync::{PoisonError, TryLockError};

use super::{Direction, Packet};
use crate::fdb::Tick;
use crate::sync::{Mutex, MutexGuard, spin_loop};
use base::limits::{CONNECTION_LOCK_ATTEMPTS, FRAGMENT_SECONDS, MAX_FRAGMENTED_PACKETS};

/// What the fragments of a packet have in common at a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Id {
    direction: Direction,
    vlan: u16,
    v6: bool,
    protocol: u8,
    from: u128,
    to: u128,
    id: u32,
}

/// The fragmented packets of one port whose first fragment passed.
#[derive(Debug, Default)]
pub struct Fragments {
    /// The latest, in a ring; each with the tick until which the others pass.
    packets: Mutex<Ring>,
}

#[derive(Debug, Default)]
struct Ring {
    packets: Vec<(Id, Tick, u16)>,
    next: usize,
}

fn id_of(packet: &Packet, id: u32, direction: Direction) -> Id {
    let Packet { v6, protocol, vlan, from, to, .. } = *packet;
    Id { direction, vlan, v6, protocol, from, to, id }
}

impl Fragments {
    /// Makes an empty list. The memory is allocated here: a frame never allocates.
    pub fn new() -> Fragments {
        let packets = Vec::with_capacity(MAX_FRAGMENTED_PACKETS);
        Fragments { packets: Mutex::new(Ring { packets, next: 0 }) }
    }

    /// Notes that the first fragment of packet `id` passed by `rule`; forgets the oldest packet if
    /// the list is full. False if another thread keeps the list: the others will be dropped.
    pub fn pass(
        &self,
        packet: &Packet,
        id: u32,
        direction: Direction,
        rule: u16,
        now: Tick,
    ) -> bool {
        let until = super::connections::after(now, FRAGMENT_SECONDS);
        let entry = (id_of(packet, id, direction), until, rule);
        let Some(mut ring) = self.lock_briefly() else { return false };
        let Ring { packets, next } = &mut *ring;
        if let Some(known) = packets.iter_mut().find(|known| known.0 == entry.0) {
            *known = entry;
        } else if packets.len() < MAX_FRAGMENTED_PACKETS {
            packets.push(entry);
        } else {
            packets[*next] = entry;
            *next = (*next + 1) % MAX_FRAGMENTED_PACKETS;
        }
        true
    }

    /// Returns the rule by which the first fragment of packet `id` passed; `None` if it did not, or
    /// is forgotten.
    pub fn rule_of(
        &self,
        packet: &Packet,
        id: u32,
        direction: Direction,
        now: Tick,
    ) -> Option<u16> {
        let id = id_of(packet, id, direction);
        let ring = self.lock_briefly()?;
        let found = ring.packets.iter().find(|known| known.0 == id && now <= known.1);
        found.map(|known| known.2)
    }

    /// Forgets all packets. For control threads, after a change of the rules.
    pub fn clear(&self) {
        let mut ring = self.packets.lock().unwrap_or_else(PoisonError::into_inner);
        ring.packets.clear();
        ring.next = 0;
    }

    fn lock_briefly(&self) -> Option<MutexGuard<'_, Ring>> {
        for _ in 0..CONNECTION_LOCK_ATTEMPTS {
            match self.packets.try_lock() {
                Ok(guard) => return Some(guard),
                // A poisoned lock is usable: each packet of the list is whole at any moment.
                Err(TryLockError::Poisoned(poison)) => return Some(poison.into_inner()),
                Err(TryLockError::WouldBlock) => spin_loop(),
            }
        }
        None
    }
}
