//! The last source addresses of a port that may explain a fault: an address tied to another port,
//! an address that moved from another port, an address that is held at another port, and an address
//! that the port's guard refused.
//!
//! Workers record an address when they count it, which a stream of frames does only once; the
//! diagnosis reads the record. An address and a port's number are one word, so both are read
//! together. A violation has a lock, which a worker only tries.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use base::frame::MacAddr;
use switch::{PortId, Violation};

/// Bits of an address; the higher bits are a port's number.
const MAC_BITS: u32 = 48;

/// The last addresses of each kind. Zero, which is no station's address, before the first.
#[derive(Debug, Default)]
pub struct LastSeen {
    foreign: AtomicU64,
    moved: AtomicU64,
    held: AtomicU64,
    violation: Mutex<Option<Violation>>,
}

impl LastSeen {
    /// Records a source address that is tied to another port.
    #[cold]
    pub(crate) fn note_foreign(&self, mac: MacAddr) {
        self.foreign.store(mac.to_bits(), Ordering::Relaxed);
    }

    /// Records a source address that moved from port `from`.
    #[cold]
    pub fn note_moved(&self, mac: MacAddr, from: PortId) {
        self.moved.store(word(mac, from), Ordering::Relaxed);
    }

    /// Records a source address that flaps, and is held at port `at`.
    #[cold]
    pub fn note_held(&self, mac: MacAddr, at: PortId) {
        self.held.store(word(mac, at), Ordering::Relaxed);
    }

    /// Records that a frame broke a rule of the port's guard.
    #[cold]
    pub fn note_violation(&self, violation: Violation) {
        if let Ok(mut last) = self.violation.try_lock() {
            *last = Some(violation);
        }
    }

    /// Returns the last violation of the port's guard.
    pub fn violation(&self) -> Option<Violation> {
        *self.violation.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the last address that was tied to another port at the time of the record.
    pub fn foreign(&self) -> Option<MacAddr> {
        let mac = MacAddr::from_bits(self.foreign.load(Ordering::Relaxed));
        mac.is_station().then_some(mac)
    }

    /// Returns the last address that moved to this port, and the number of the port from which it
    /// came.
    pub fn moved(&self) -> Option<(MacAddr, PortId)> {
        parts(self.moved.load(Ordering::Relaxed))
    }

    /// Returns the last address that is held at another port, and the number of that port.
    pub fn held(&self) -> Option<(MacAddr, PortId)> {
        parts(self.held.load(Ordering::Relaxed))
    }
}

fn word(mac: MacAddr, port: PortId) -> u64 {
    mac.to_bits() | u64::from(port) << MAC_BITS
}

fn parts(word: u64) -> Option<(MacAddr, PortId)> {
    let mac = MacAddr::from_bits(word);
    mac.is_station().then_some((mac, (word >> MAC_BITS) as PortId))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_comes_back_with_its_port() {
        let seen = LastSeen::default();
        assert_eq!((seen.foreign(), seen.moved()), (None, None));
        let mac: MacAddr = "fe:dc:ba:98:76:54".parse().unwrap();
        seen.note_foreign(mac);
        seen.note_moved(mac, 0x7fff);
        assert_eq!((seen.foreign(), seen.moved()), (Some(mac), Some((mac, 0x7fff))));
        assert_eq!(seen.held(), None);
        seen.note_held(mac, 3);
        assert_eq!((seen.held(), seen.moved()), (Some((mac, 3)), Some((mac, 0x7fff))));
    }
}
