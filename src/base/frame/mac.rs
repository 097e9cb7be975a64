//! A 48-bit IEEE 802 MAC address.
//!
//! [`MacAddr`] holds six bytes in transmission order; [`MacAddr::to_bits`] returns the big-endian
//! 48-bit number that the forwarding table packs into its words.

use std::fmt;
use std::str::FromStr;

/// A 48-bit MAC address, IEEE Std 802-2014 section 8.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// The all-ones broadcast address.
    pub const BROADCAST: MacAddr = MacAddr([0xff; 6]);

    /// Returns the address as a number below 2^48, first octet most significant.
    #[inline]
    pub const fn to_bits(self) -> u64 {
        let [a, b, c, d, e, f] = self.0;
        // Two byte swaps: LLVM does not recognize a byte swap of six bytes and shifts each byte.
        (u32::from_be_bytes([a, b, c, d]) as u64) << 16 | u16::from_be_bytes([e, f]) as u64
    }

    /// Returns the address of a number that [`MacAddr::to_bits`] made; ignores the upper 16 bits.
    #[inline]
    pub const fn from_bits(bits: u64) -> MacAddr {
        let [_, _, a, b, c, d, e, f] = bits.to_be_bytes();
        MacAddr([a, b, c, d, e, f])
    }

    /// Returns true for a group (multicast or broadcast) address: the I/G bit is set.
    #[inline]
    pub const fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Returns true for 00:00:00:00:00:00.
    #[inline]
    pub const fn is_zero(self) -> bool {
        self.to_bits() == 0
    }

    /// Returns true for an address that a station may use as its source: neither zero nor a group
    /// address.
    #[inline]
    pub const fn is_station(self) -> bool {
        !self.is_group() && !self.is_zero()
    }

    /// Returns true for 01:80:c2:00:00:00 to 01:80:c2:00:00:0f, which an IEEE 802.1Q bridge must
    /// not forward (table 8-1 of IEEE Std 802.1Q-2018).
    #[inline]
    pub const fn is_bridge_reserved(self) -> bool {
        self.to_bits() & !0xf == 0x0180_c200_0000
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not six two-digit hexadecimal octets, separated by colons or hyphens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a MAC address (expected six hexadecimal octets such as 52:54:00:12:34:56)")]
pub struct ParseMacError;

impl FromStr for MacAddr {
    type Err = ParseMacError;

    fn from_str(text: &str) -> Result<MacAddr, ParseMacError> {
        let mut octets = [0u8; 6];
        let mut parts = text.split([':', '-']);
        for octet in &mut octets {
            let part = parts.next().ok_or(ParseMacError)?;
            let hex = part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit());
            if !hex {
                return Err(ParseMacError);
            }
            *octet = u8::from_str_radix(part, 16).map_err(|_| ParseMacError)?;
        }
        if parts.next().is_some() {
            return Err(ParseMacError);
        }
        Ok(MacAddr(octets))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_bits_round_trip() {
        let mac: MacAddr = "52:54:00:12:34:56".parse().unwrap();
        assert_eq!(mac.to_bits(), 0x5254_0012_3456);
        assert_eq!(MacAddr::from_bits(mac.to_bits()), mac);
        assert_eq!(mac.to_string(), "52:54:00:12:34:56");
        assert_eq!("52-54-00-12-34-56".parse(), Ok(mac));
    }

    #[test]
    fn malformed_text_is_refused() {
        for text in [
            "",
            "52:54:00:12:34",
            "52:54:00:12:34:56:78",
            "5:54:00:12:34:56",
            "+2:54:00:12:34:56",
            "zz:54:00:12:34:56",
        ] {
            assert_eq!(text.parse::<MacAddr>(), Err(ParseMacError), "{text}");
        }
    }

    #[test]
    fn reserved_block_is_sixteen_addresses() {
        assert!(MacAddr([0x01, 0x80, 0xc2, 0, 0, 0x0f]).is_bridge_reserved());
        assert!(!MacAddr([0x01, 0x80, 0xc2, 0, 0, 0x10]).is_bridge_reserved());
    }
}
