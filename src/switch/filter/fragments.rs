//! The fragmented packets of a port: the later fragments of a packet pass if the first fragment
//! passed.
//!
//! A fragment that comes before the first one is dropped. Of one packet more than one "first"
//! fragment may come, each with other ports: the rules judge each of these by its own header; later
//! fragments pass if one first fragment passed. A receiver that puts together what overlaps could
//! read a header that no rule saw, so a later fragment that overlaps the headers of a first
//! fragment is refused, as RFC 5722 and RFC 3128 ask for.

use std::sync::TryLockError;

use super::{Direction, Packet};
use crate::fdb::Tick;
use crate::sync::{Mutex, MutexGuard, spin_loop};
use base::limits::{CONNECTION_LOCK_ATTEMPTS, FRAGMENT_SECONDS, MAX_FRAGMENTED_PACKETS};

/// What the fragments of a packet have in common at a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Id {
    vlan: u16,
    v6: bool,
    /// The protocol; 0 for IPv6, of which each fragment may have another (RFC 8200 section 4.5).
    protocol: u8,
    from: u128,
    to: u128,
    id: u32,
}

/// A packet whose first fragment passed.
#[derive(Clone, Copy, Debug)]
struct Passed {
    id: Id,
    /// Last tick at which later fragments pass.
    until: Tick,
    /// The rule by which the first fragment passed.
    rule: u16,
    /// End of the first fragment's headers, in bytes of the data that was split into fragments.
    header_end: u16,
}

/// The fragmented packets of one port whose first fragment passed, by direction: packets to the VM
/// push out no packets from the VM.
#[derive(Debug)]
pub struct Fragments([Mutex<Ring>; 2]);

/// The latest packets.
#[derive(Debug)]
struct Ring {
    packets: Vec<Passed>,
    next: usize,
}

fn id_of(packet: &Packet, id: u32) -> Id {
    let Packet { v6, protocol, vlan, from, to, .. } = *packet;
    Id { vlan, v6, protocol: if v6 { 0 } else { protocol }, from, to, id }
}

impl Default for Fragments {
    /// Makes empty lists. The memory is allocated here: a frame never allocates.
    fn default() -> Fragments {
        let packets = || Vec::with_capacity(MAX_FRAGMENTED_PACKETS);
        Fragments([(); 2].map(|()| Mutex::new(Ring { packets: packets(), next: 0 })))
    }
}

impl Fragments {
    /// Notes that the first fragment of packet `id`, whose headers end at `header_end`, passed by
    /// `rule`; forgets the oldest packet if the list is full. Does nothing while another thread
    /// keeps the list: later fragments will be dropped.
    pub fn pass(
        &self,
        packet: &Packet,
        (id, header_end): (u32, u16),
        direction: Direction,
        rule: u16,
        now: Tick,
    ) {
        let until = super::connections::after(now, FRAGMENT_SECONDS);
        let mut entry = Passed { id: id_of(packet, id), until, rule, header_end };
        let Some(mut ring) = self.lock_briefly(direction) else { return };
        let Ring { packets, next } = &mut *ring;
        if let Some(known) = packets.iter_mut().find(|known| known.id == entry.id) {
            entry.header_end = entry.header_end.max(known.header_end);
            *known = entry;
        } else if packets.len() < MAX_FRAGMENTED_PACKETS {
            packets.push(entry);
        } else {
            packets[*next] = entry;
            *next = (*next + 1) % MAX_FRAGMENTED_PACKETS;
        }
    }

    /// Returns the rule by which the first fragment of packet `id` passed; `None` if the first
    /// fragment did not pass or is forgotten, or if the fragment at `begin` overlaps its headers.
    pub fn rule_of(
        &self,
        packet: &Packet,
        (id, begin): (u32, u16),
        direction: Direction,
        now: Tick,
    ) -> Option<u16> {
        let id = id_of(packet, id);
        let ring = self.lock_briefly(direction)?;
        let is_it = |known: &&Passed| known.id == id && now <= known.until;
        let known = ring.packets.iter().find(is_it)?;
        (begin >= known.header_end).then_some(known.rule)
    }

    fn lock_briefly(&self, direction: Direction) -> Option<MutexGuard<'_, Ring>> {
        let ring = &self.0[direction as usize];
        for _ in 0..CONNECTION_LOCK_ATTEMPTS {
            match ring.try_lock() {
                Ok(guard) => return Some(guard),
                // A poisoned lock is usable: each packet of the list is whole at any moment.
                Err(TryLockError::Poisoned(poison)) => return Some(poison.into_inner()),
                Err(TryLockError::WouldBlock) => spin_loop(),
            }
        }
        None
    }
}
