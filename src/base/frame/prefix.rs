//! An IP prefix: an address, and the number of its leading bits that identify the range.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::fmt;
use std::str::FromStr;

/// The range of IP addresses with equal leading bits; a single address has a prefix of full length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Prefix {
    /// The first address of the range: all bits behind the prefix are zero.
    first: IpAddr,
    /// Length of the prefix in bits.
    len: u8,
}

impl Prefix {
    /// Returns first address and mask of an IPv4 prefix; `None` for IPv6.
    pub fn v4(self) -> Option<(u32, u32)> {
        match self.first {
            IpAddr::V4(first) => Some((first.to_bits(), mask(32, self.len) as u32)),
            IpAddr::V6(_) => None,
        }
    }

    /// Returns first address and mask of an IPv6 prefix; `None` for IPv4.
    pub fn v6(self) -> Option<(u128, u128)> {
        match self.first {
            IpAddr::V4(_) => None,
            IpAddr::V6(first) => Some((first.to_bits(), mask(128, self.len))),
        }
    }
}

/// Returns a mask of the first `len` of `width` bits.
fn mask(width: u32, len: u8) -> u128 {
    let all = if width == 128 { u128::MAX } else { (1 << width) - 1 };
    all & all.checked_shl(width - u32::from(len)).unwrap_or(0)
}

/// The reason why a text is not accepted as a prefix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParsePrefixError {
    /// The text is no IP address or prefix.
    #[error(
        "not an IP address or prefix (expected one such as 10.0.0.5, 10.0.0.0/24 or fd00::/64)"
    )]
    Malformed,
    /// The address has bits set behind the prefix. The field is the prefix with these bits cleared.
    #[error("has bits set behind its prefix: write {0}")]
    HostBits(Prefix),
    /// The prefix is a multicast, broadcast or unspecified address, which no station has.
    #[error("is no address of a station")]
    NoStation,
}

impl FromStr for Prefix {
    type Err = ParsePrefixError;

    fn from_str(text: &str) -> Result<Prefix, ParsePrefixError> {
        let (address, len) = text.split_once('/').map_or((text, None), |(a, l)| (a, Some(l)));
        let given: IpAddr = address.parse().map_err(|_| ParsePrefixError::Malformed)?;
        let width = if given.is_ipv4() { 32 } else { 128 };
        let is_decimal = |text: &&str| text.bytes().all(|byte| byte.is_ascii_digit());
        let len = match len {
            None => Some(width),
            Some(len) => Some(len).filter(is_decimal).and_then(|len| len.parse().ok()),
        };
        let len = len.filter(|len| *len <= width).ok_or(ParsePrefixError::Malformed)?;
        let mask = mask(width.into(), len);
        let first = match given {
            IpAddr::V4(given) => IpAddr::V4(Ipv4Addr::from_bits(given.to_bits() & mask as u32)),
            IpAddr::V6(given) => IpAddr::V6(Ipv6Addr::from_bits(given.to_bits() & mask)),
        };
        if first != given {
            return Err(ParsePrefixError::HostBits(Prefix { first, len }));
        }
        let nowhere = len == width && first.is_unspecified();
        if nowhere || first.is_multicast() || first == IpAddr::V4(Ipv4Addr::BROADCAST) {
            return Err(ParsePrefixError::NoStation);
        }
        Ok(Prefix { first, len })
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Prefix { first, len } = self;
        let single = *len == if first.is_ipv4() { 32 } else { 128 };
        if single { write!(f, "{first}") } else { write!(f, "{first}/{len}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Prefix, ParsePrefixError> {
        text.parse()
    }

    #[test]
    fn what_is_written_reads_the_same() {
        for text in ["10.0.0.5", "10.0.0.0/24", "0.0.0.0/0", "fd00::1", "fd00::/64", "::/0"] {
            assert_eq!(read(text).unwrap().to_string(), text);
        }
        assert_eq!(read("10.0.0.5/32").unwrap().to_string(), "10.0.0.5");
        assert_eq!(read("FD00:0::1/128").unwrap().to_string(), "fd00::1");
    }

    #[test]
    fn the_bits_that_count_are_the_first() {
        assert_eq!(read("10.0.0.0/24").unwrap().v4(), Some((0x0a00_0000, 0xffff_ff00)));
        assert_eq!(read("0.0.0.0/0").unwrap().v4(), Some((0, 0)));
        assert_eq!(read("10.0.0.5").unwrap().v4(), Some((0x0a00_0005, u32::MAX)));
        assert_eq!(read("::/0").unwrap().v6(), Some((0, 0)));
        assert_eq!(read("fd00::/64").unwrap().v6(), Some((0xfd00 << 112, u128::MAX << 64)));
        assert_eq!(read("fd00::1").unwrap().v6(), Some(((0xfd00 << 112) | 1, u128::MAX)));
        assert_eq!((read("10.0.0.5").unwrap().v6(), read("::1").unwrap().v4()), (None, None));
    }

    #[test]
    fn what_is_no_prefix_is_refused_with_what_it_wants() {
        for text in ["", "a", "10.0.0", "10.0.0.0/", "10.0.0.0/33", "10.0.0.0/+8", "::/129", "/8"] {
            assert_eq!(read(text), Err(ParsePrefixError::Malformed), "{text}");
        }
        for text in ["0.0.0.0", "::", "224.0.0.1", "ff02::1", "ff00::/8", "255.255.255.255"] {
            assert_eq!(read(text), Err(ParsePrefixError::NoStation), "{text}");
        }
        let text = read("10.0.0.1/24").unwrap_err().to_string();
        assert_eq!(text, "has bits set behind its prefix: write 10.0.0.0/24");
    }
}
