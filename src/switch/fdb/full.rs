//! A bucket without an empty slot: chooses the entry that is displaced.
//!
//! A port with fewer entries than are reserved for it displaces an entry of a port with more than
//! are reserved. Otherwise networks of thousands of VLANs, each with its reserved entries, would
//! fill the buckets, and a quiet guest's traffic would flood. All other ports displace their own
//! entries only; otherwise a guest that sends from many addresses would displace its neighbours.

use super::super::sync::Ordering;
use super::{Fdb, Found, Home, Learn, Moves, PortId, Station, Tick, Word};

impl Fdb {
    /// Inserts an entry in place of another entry, under the shard's lock.
    #[cold]
    pub(super) fn insert_in_full(
        &self,
        home: Home,
        station: Station,
        port: PortId,
        now: Tick,
    ) -> Learn {
        let own = || self.oldest_learned(home, |word| word.port() == port);
        let of_many = || self.oldest_learned(home, |word| !self.quota.is_reserved(word.port()));
        let kept = self.quota.has_reserve(port);
        let Some(victim) = kept.then(of_many).flatten().or_else(own) else {
            return Learn::BucketFull;
        };
        let (from, before) = (victim.word.port(), self.slots.segment(victim));
        let refusal = if from == port {
            self.quota.change_segment(before, station.segment)
        } else {
            self.quota.take(port, station.segment)
        };
        if let Err(refusal) = refusal {
            return refusal;
        }
        if from != port {
            self.quota.give_back(from, before, false);
        }
        self.slots.set_moves(victim.slot, Moves::NONE);
        self.write(victim.slot, station.segment, Word::learned(station, port), now.to_bits());
        self.count_generation();
        Learn::Inserted
    }

    pub(super) fn oldest_learned(
        &self,
        home: Home,
        eligible: impl Fn(Word) -> bool,
    ) -> Option<Found> {
        self.slots
            .bucket(home)
            .filter(|slot| slot.word != Word::EMPTY && !slot.word.is_static())
            .filter(|slot| eligible(slot.word))
            .min_by_key(|slot| self.slots.stamp(slot.slot).load(Ordering::Relaxed))
    }
}
