//! Bounds the number of DHCP client identifiers in the messages of a port.
//!
//! A server keeps a lease for each identifier, so a guest with one link-layer address and many
//! identifiers would take all addresses of a network. A port keeps the identifiers that its
//! messages had in the last [`GUARD_DHCP_HOURS`]; a message with one more identifier is refused.
//!
//! Workers note identifiers without a lock. Two workers that note one identifier at the same time
//! may take two places for the identifier, which lowers the limit of this port only.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use base::limits::{GUARD_DHCP_CLIENTS, GUARD_DHCP_HOURS};

/// Bits of a place that hold the hour of the identifier's last message, counted from 1; the other
/// bits are the identifier's hash.
const HOUR_BITS: u32 = 24;
const HOUR: u64 = (1 << HOUR_BITS) - 1;

/// Identifiers of the DHCP clients behind one port.
#[derive(Debug, Default)]
pub struct DhcpClients {
    /// Secret key of the hash: without it a guest cannot find two identifiers with one hash.
    key: RandomState,
    places: [AtomicU64; GUARD_DHCP_CLIENTS],
}

impl DhcpClients {
    /// Notes a client's identifier in second `now`. Returns false if the port has had too many
    /// other identifiers lately.
    pub fn note(&self, identifier: &[&[u8]], now: u32) -> bool {
        let hour = u64::from(now / 3600) + 1;
        let place = self.key.hash_one(identifier) & !HOUR | hour;
        // Another worker may take the free place first; then the next round finds another place.
        for _ in 0..=GUARD_DHCP_CLIENTS {
            let mut free = None;
            for slot in &self.places {
                let seen = slot.load(Ordering::Relaxed);
                if seen & !HOUR == place & !HOUR && seen != 0 {
                    slot.store(place, Ordering::Relaxed);
                    return true;
                }
                let is_free = seen == 0 || (seen & HOUR) + GUARD_DHCP_HOURS < hour;
                if is_free && free.is_none() {
                    free = Some((slot, seen));
                }
            }
            let Some((slot, seen)) = free else { return false };
            let taken = slot.compare_exchange(seen, place, Ordering::Relaxed, Ordering::Relaxed);
            if taken.is_ok() {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_IN_SECONDS: u32 = 3600;

    #[test]
    fn a_port_has_so_many_identifiers_and_no_more() {
        let clients = DhcpClients::default();
        for n in 0..GUARD_DHCP_CLIENTS as u8 {
            assert!(clients.note(&[&[n]], 7), "{n}");
        }
        assert!(!clients.note(&[&[99]], 8), "one too many");
        assert!(clients.note(&[&[0]], 8), "one that is known");
    }

    #[test]
    fn parts_of_an_identifier_count() {
        let clients = DhcpClients::default();
        let identifiers: [[&[u8]; 2]; 3] = [[&[1, 2], &[3]], [&[1], &[2, 3]], [&[1, 2, 3], &[]]];
        for identifier in identifiers {
            assert!(clients.note(&identifier, 7));
        }
        let taken = clients.places.iter().filter(|place| place.load(Ordering::Relaxed) != 0);
        assert_eq!(taken.count(), 3);
    }

    #[test]
    fn an_identifier_that_is_not_used_any_more_makes_room() {
        let clients = DhcpClients::default();
        for n in 0..GUARD_DHCP_CLIENTS as u8 {
            assert!(clients.note(&[&[n]], 0));
        }
        let last = GUARD_DHCP_HOURS as u32 * HOUR_IN_SECONDS + HOUR_IN_SECONDS - 1;
        assert!(clients.note(&[&[0]], last), "used all the time");
        assert!(!clients.note(&[&[99]], last));
        assert!(clients.note(&[&[99]], last + 1));
        let others = 1..GUARD_DHCP_CLIENTS as u8 - 1;
        assert!(others.into_iter().all(|n| clients.note(&[&[n]], last + 1)));
        assert!(!clients.note(&[&[100]], last + 1));
    }

    #[test]
    fn workers_that_meet_take_no_more_places_than_there_are() {
        let clients = DhcpClients::default();
        let passed: usize = std::thread::scope(|scope| {
            let note =
                |first: u8| (first..first + 30).filter(|n| clients.note(&[&[*n]], 7)).count();
            let threads = [0, 100].map(|first| scope.spawn(move || note(first)));
            threads.map(|thread| thread.join().unwrap()).iter().sum()
        });
        assert_eq!(passed, GUARD_DHCP_CLIENTS);
    }
}
