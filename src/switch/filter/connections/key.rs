//! What identifies a connection of a port: both ends, protocol and VLAN.
//!
//! The ends are sorted by place, not by who began: the local end is behind the port. So packets of
//! both directions have one key.

/// One end of a connection: address, and port or identifier.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Place {
    /// The address as a number.
    pub address: u128,
    /// The port. For ICMP the identifier at the local end, and type (upper byte) and code (lower
    /// byte) of the request at the other.
    pub port: u16,
}

/// The parts of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Parts {
    /// Port of the switch.
    pub port: u16,
    /// VLAN of the packets' outer tag, or 0.
    pub vlan: u16,
    /// The packets are of IPv6.
    pub v6: bool,
    /// IP protocol number.
    pub protocol: u8,
    /// True for an ICMP request from the VM and for its reply; a request to the VM with an equal
    /// identifier is another connection.
    pub asks: bool,
    /// The end behind the port.
    pub local: Place,
    /// The other end.
    pub remote: Place,
}

/// Words of a key.
pub const KEY_WORDS: usize = 5;

/// A key, as the table stores it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Key(pub(super) [u64; KEY_WORDS]);

const VLAN_SHIFT: u32 = 10;
const PROTOCOL_SHIFT: u32 = 22;
const V6_BIT: u64 = 1 << 30;
const ASKS_BIT: u64 = 1 << 31;
const PORT_MASK: u64 = (1 << VLAN_SHIFT) - 1;
const _: () = assert!(base::limits::MAX_PORTS as u64 <= PORT_MASK + 1);

impl Key {
    /// Fills an array before packets are read.
    pub(super) const NONE: Key = Key([0; KEY_WORDS]);

    /// Makes the key of these parts.
    #[inline]
    pub fn new(parts: &Parts) -> Key {
        let Parts { port, vlan, v6, protocol, asks, local, remote } = *parts;
        let flags = if v6 { V6_BIT } else { 0 } | if asks { ASKS_BIT } else { 0 };
        let about = u64::from(port) & PORT_MASK
            | u64::from(vlan & 0xfff) << VLAN_SHIFT
            | u64::from(protocol) << PROTOCOL_SHIFT
            | flags;
        let ports = u64::from(local.port) << 16 | u64::from(remote.port);
        let [local, remote] = [local.address, remote.address];
        Key([
            (local >> 64) as u64,
            local as u64,
            (remote >> 64) as u64,
            remote as u64,
            ports << 32 | about,
        ])
    }

    /// Returns the parts.
    pub fn parts(&self) -> Parts {
        let Key([local_high, local_low, remote_high, remote_low, last]) = *self;
        let address = |high: u64, low: u64| u128::from(high) << 64 | u128::from(low);
        Parts {
            port: (last & PORT_MASK) as u16,
            vlan: (last >> VLAN_SHIFT) as u16 & 0xfff,
            v6: last & V6_BIT != 0,
            protocol: self.protocol(),
            asks: last & ASKS_BIT != 0,
            local: Place { address: address(local_high, local_low), port: (last >> 48) as u16 },
            remote: Place { address: address(remote_high, remote_low), port: (last >> 32) as u16 },
        }
    }

    /// Returns the port of the switch.
    #[inline]
    pub fn port(&self) -> u16 {
        (self.0[4] & PORT_MASK) as u16
    }

    /// Returns the IP protocol number.
    #[inline]
    pub fn protocol(&self) -> u8 {
        (self.0[4] >> PROTOCOL_SHIFT) as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_all_parts() {
        let parts = Parts {
            port: 1023,
            vlan: 0xabc,
            v6: true,
            protocol: 0xfe,
            asks: true,
            local: Place { address: u128::MAX - 1, port: 0x1234 },
            remote: Place { address: 7 << 100, port: 0xfedc },
        };
        assert_eq!(Key::new(&parts).parts(), parts);
        assert_eq!((Key::new(&parts).port(), Key::new(&parts).protocol()), (1023, 0xfe));
        let other = Parts { v6: false, asks: false, protocol: 1, port: 0, ..parts };
        assert_eq!(Key::new(&other).parts(), other);
    }
}
