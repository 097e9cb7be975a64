//! A range of IP addresses, as rules and groups have them.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::fmt;
use std::str::FromStr;

use base::frame::Prefix;

/// All IP addresses from `first` to `last`, of one version of IP.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Span {
    first: IpAddr,
    last: IpAddr,
}

/// The reason why a text is not accepted as a range of addresses.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SpanError {
    /// The text has another form.
    #[error("an address, a prefix such as 10.0.0.0/24, or a range such as 10.0.0.5-10.0.0.9")]
    Malformed,
    /// The address has bits set behind the prefix.
    #[error("no bits set behind the prefix: {0}")]
    HostBits(Span),
    /// The range ends before it begins, or its ends are of two versions of IP.
    #[error("a range from a lower to a higher address")]
    Backwards,
}

/// Returns an address as a number, and the number of its bits.
fn bits(address: IpAddr) -> (u128, u32) {
    match address {
        IpAddr::V4(address) => (address.to_bits().into(), 32),
        IpAddr::V6(address) => (address.to_bits(), 128),
    }
}

/// Returns the address of `width` bits with this number.
fn address(bits: u128, width: u32) -> IpAddr {
    match width {
        32 => Ipv4Addr::from_bits(bits as u32).into(),
        _ => Ipv6Addr::from_bits(bits).into(),
    }
}

/// Returns a number of `len` low bits that are set.
fn low_bits(len: u32) -> u128 {
    u128::MAX.checked_shr(128 - len).unwrap_or(0)
}

impl Span {
    /// Makes a range; `None` if the range is empty or its ends are of two versions of IP.
    pub fn new(first: IpAddr, last: IpAddr) -> Option<Span> {
        (first.is_ipv4() == last.is_ipv4() && first <= last).then_some(Span { first, last })
    }

    /// True for IPv6 addresses.
    pub fn is_v6(self) -> bool {
        self.first.is_ipv6()
    }

    /// Returns the first and the last address as numbers.
    pub fn bits(self) -> (u128, u128) {
        (bits(self.first).0, bits(self.last).0)
    }

    /// True if all addresses of `other` are in the range.
    pub fn contains(self, other: Span) -> bool {
        self.is_v6() == other.is_v6() && self.first <= other.first && other.last <= self.last
    }

    fn of_prefix(text: &str, len: &str) -> Result<Span, SpanError> {
        let given: IpAddr = text.parse().map_err(|_| SpanError::Malformed)?;
        let (given, width) = bits(given);
        let is_decimal = !len.is_empty() && len.bytes().all(|byte| byte.is_ascii_digit());
        let len: Option<u32> = len.parse().ok().filter(|len| is_decimal && *len <= width);
        let host = low_bits(width - len.ok_or(SpanError::Malformed)?);
        let span =
            Span { first: address(given & !host, width), last: address(given | host, width) };
        if given & host != 0 { Err(SpanError::HostBits(span)) } else { Ok(span) }
    }
}

impl From<IpAddr> for Span {
    fn from(address: IpAddr) -> Span {
        Span { first: address, last: address }
    }
}

impl From<Prefix> for Span {
    fn from(prefix: Prefix) -> Span {
        let v4 = prefix.v4().map(|(first, mask)| (u128::from(first), u128::from(!mask), 32));
        let v6 = prefix.v6().map(|(first, mask)| (first, !mask, 128));
        let (first, host, width) = v4.or(v6).unwrap_or((0, u128::MAX, 128));
        Span { first: address(first, width), last: address(first | host, width) }
    }
}

impl FromStr for Span {
    type Err = SpanError;

    fn from_str(text: &str) -> Result<Span, SpanError> {
        if let Some((address, len)) = text.split_once('/') {
            return Span::of_prefix(address, len);
        }
        let one = |text: &str| text.parse::<IpAddr>().map_err(|_| SpanError::Malformed);
        match text.split_once('-') {
            None => one(text).map(Span::from),
            Some((first, last)) => Span::new(one(first)?, one(last)?).ok_or(SpanError::Backwards),
        }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ((first, width), (last, _)) = (bits(self.first), bits(self.last));
        let host = first ^ last;
        // A prefix is a block of a power of two at a multiple of its size.
        if first == last {
            write!(f, "{}", self.first)
        } else if host & host.wrapping_add(1) == 0 && first & host == 0 {
            write!(f, "{}/{}", self.first, width - (128 - host.leading_zeros()))
        } else {
            write!(f, "{}-{}", self.first, self.last)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_reads_the_same() {
        for text in [
            "10.0.0.5",
            "10.0.0.0/24",
            "0.0.0.0/0",
            "10.0.0.5-10.0.0.9",
            "255.255.255.255",
            "224.0.0.0/4",
            "fd00::1",
            "fd00::/64",
            "::/0",
            "ff02::1",
            "fd00::1-fd00::9",
        ] {
            assert_eq!(text.parse::<Span>().unwrap().to_string(), text);
        }
        let shorter = [("10.0.0.5/32", "10.0.0.5"), ("10.0.0.4-10.0.0.7", "10.0.0.4/30")];
        for (text, short) in shorter {
            assert_eq!(text.parse::<Span>().unwrap().to_string(), short);
        }
    }

    #[test]
    fn the_ends_are_part_of_the_range() {
        let span = |text: &str| text.parse::<Span>().unwrap();
        assert_eq!(span("10.0.0.0/30").bits(), (0x0a00_0000, 0x0a00_0003));
        assert_eq!(span("::/0").bits(), (0, u128::MAX));
        assert!(span("10.0.0.0/8").contains(span("10.0.0.0-10.0.0.3")));
        assert!(!span("10.0.0.0/30").contains(span("10.0.0.3-10.0.0.4")));
        assert!(!span("::/0").contains(span("10.0.0.1")));
    }

    #[test]
    fn what_is_no_range_is_refused_with_what_is_expected() {
        for text in ["", "x", "10.0.0", "10.0.0.0/", "10.0.0.0/33", "::/129", "10.0.0.0/+8", "-"] {
            assert_eq!(text.parse::<Span>(), Err(SpanError::Malformed), "{text}");
        }
        for text in ["10.0.0.9-10.0.0.5", "10.0.0.1-fd00::1"] {
            assert_eq!(text.parse::<Span>(), Err(SpanError::Backwards), "{text}");
        }
        let error = "10.0.0.1/24".parse::<Span>().unwrap_err().to_string();
        assert_eq!(error, "no bits set behind the prefix: 10.0.0.0/24");
    }

    #[test]
    fn a_prefix_is_a_range() {
        for text in ["10.0.0.0/24", "10.0.0.5", "fd00::/64", "::/0", "0.0.0.0/0"] {
            let prefix: Prefix = text.parse().unwrap();
            assert_eq!(Span::from(prefix), text.parse().unwrap(), "{text}");
        }
    }
}
