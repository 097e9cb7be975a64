//! The last source addresses of a port that are worth a look: one that is tied to another port,
//! one that was behind another port before, one that is held at another port, and one that the
//! port's guard refused.
//!
//! Workers write them where such an address is counted, which the frames of a stream do not reach;
//! the diagnosis reads them. An address and a port's number are one word, so neither is torn; what
//! the guard refused has a lock, which a worker only tries.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use base::frame::MacAddr;
use switch::{PortId, Violation};

/// Bits of an address; those above are a port's number.
const MAC_BITS: u32 = 48;

/// The last such addresses; zero, which is no station's, before the first.
#[derive(Debug, Default)]
pub struct LastSeen {
    foreign: AtomicU64,
    moved: AtomicU64,
    held: AtomicU64,
    violation: Mutex<Option<Violation>>,
}

impl LastSeen {
    /// A source address is tied to another port.
    #[cold]
    pub fn note_foreign(&self, mac: MacAddr) {
        self.foreign.store(mac.to_bits(), Ordering::Relaxed);
    }

    /// A source address was learned that had been behind port `from`.
    #[cold]
    pub fn note_moved(&self, mac: MacAddr, from: PortId) {
        self.moved.store(word(mac, from), Ordering::Relaxed);
    }

    /// A source address flaps, and is held at port `at`.
    #[cold]
    pub fn note_held(&self, mac: MacAddr, at: PortId) {
        self.held.store(word(mac, at), Ordering::Relaxed);
    }

    /// A frame broke a rule of the port's guard.
    #[cold]
    pub fn note_violation(&self, violation: Violation) {
        if let Ok(mut last) = self.violation.try_lock() {
            *last = Some(violation);
        }
    }

    /// What the port's guard refused last.
    pub fn violation(&self) -> Option<Violation> {
        *self.violation.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last address that is, or was then, tied to another port.
    pub fn foreign(&self) -> Option<MacAddr> {
        let mac = MacAddr::from_bits(self.foreign.load(Ordering::Relaxed));
        mac.is_station().then_some(mac)
    }

    /// The last address that moved here, and the number of the port it came from.
    pub fn moved(&self) -> Option<(MacAddr, PortId)> {
        parts(self.moved.load(Ordering::Relaxed))
    }

    /// The last address that was held elsewhere, and the number of the port that has it.
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
