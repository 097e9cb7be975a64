//! Addresses with the length of their network's prefix.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Address of the host, with the length of its network's prefix, such as 10.77.0.1/24.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cidr {
    pub(crate) address: IpAddr,
    pub(crate) len: u8,
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.len)
    }
}

/// Lengths of IPv4 prefixes that a network may have: 2 to 65,534 hosts. DHCP servers keep a record
/// of each host.
const IPV4_LENGTHS: std::ops::RangeInclusive<u8> = 16..=30;
/// Length of IPv6 prefixes in which hosts configure themselves (RFC 4862).
const IPV6_LENGTH: u8 = 64;

impl Cidr {
    /// Reads `ADDRESS/LENGTH`, with any address.
    pub(crate) fn parse(text: &str) -> Option<Cidr> {
        let (address, len) = text.split_once('/')?;
        let address: IpAddr = address.parse().ok()?;
        let len = len.parse().ok().filter(|len| *len <= bits(address))?;
        Some(Cidr { address, len })
    }

    pub(crate) fn is_ipv4(self) -> bool {
        self.address.is_ipv4()
    }

    /// Returns the address as a number of 128 bits that begins with the first bit of the address.
    fn number(self) -> u128 {
        match self.address {
            IpAddr::V4(address) => u128::from(address.to_bits()) << 96,
            IpAddr::V6(address) => address.to_bits(),
        }
    }

    /// True if all addresses of `other` are in this network too.
    pub(crate) fn covers(self, other: Cidr) -> bool {
        let shift = 128 - u32::from(self.len);
        let same = |number: u128| number.checked_shr(shift).unwrap_or(0);
        self.is_ipv4() == other.is_ipv4()
            && self.len <= other.len
            && same(self.number()) == same(other.number())
    }

    pub(crate) fn overlaps(self, other: Cidr) -> bool {
        self.covers(other) || other.covers(self)
    }

    /// Returns the network: its first address, with the length of the prefix.
    pub(crate) fn network(self) -> Cidr {
        let host = u128::MAX.checked_shr(u32::from(self.len)).unwrap_or(0);
        self.with(self.number() & !host)
    }

    fn with(self, number: u128) -> Cidr {
        let address = match self.address {
            IpAddr::V4(_) => Ipv4Addr::from_bits((number >> 96) as u32).into(),
            IpAddr::V6(_) => Ipv6Addr::from_bits(number).into(),
        };
        Cidr { address, len: self.len }
    }

    /// Returns the first and the last address that a host may have. Callers ask for IPv4 only.
    pub(crate) fn hosts(self) -> (IpAddr, IpAddr) {
        let first = self.network().number();
        let all = u128::MAX.checked_shr(u32::from(self.len)).unwrap_or(0);
        let one = 1 << 96;
        (self.with(first + one).address, self.with((first | all) - one).address)
    }

    /// Returns the prefix as a mask. Callers ask for IPv4 only.
    pub(crate) fn mask(self) -> IpAddr {
        let mask = !u128::MAX.checked_shr(u32::from(self.len)).unwrap_or(0);
        self.with(mask).address
    }

    /// True if the address is in a range whose addresses no host outside a site has.
    pub(crate) fn is_private(self) -> bool {
        match self.address {
            IpAddr::V4(address) => {
                let [a, b, ..] = address.octets();
                address.is_private() || (a == 100 && b & 0xc0 == 64)
            }
            IpAddr::V6(address) => address.segments()[0] & 0xfe00 == 0xfc00,
        }
    }
}

fn bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// Reads an address that a host may have in a network of guests.
pub(crate) fn of_host(text: &str) -> Result<Cidr, String> {
    let wanted = || "an address with its prefix such as 10.77.0.1/24, or fd77::1/64".to_owned();
    let cidr = Cidr::parse(text).ok_or_else(wanted)?;
    let (address, len) = (cidr.address, cidr.len);
    if address.is_loopback() || address.is_multicast() || address.is_unspecified() {
        return Err(wanted());
    }
    if !cidr.is_ipv4() {
        let link_local = cidr.number() >> 118 == 0xfe80 >> 6;
        return match len {
            _ if link_local => Err(wanted()),
            IPV6_LENGTH if cidr.network() == cidr => {
                Err(format!("the host's address there, such as {address}1/64"))
            }
            IPV6_LENGTH => Ok(cidr),
            _ => Err("the prefix of an IPv6 network is /64".to_owned()),
        };
    }
    if !IPV4_LENGTHS.contains(&len) {
        let (first, last) = (IPV4_LENGTHS.start(), IPV4_LENGTHS.end());
        return Err(format!("the prefix of an IPv4 network is /{first} to /{last}"));
    }
    let (first, last) = cidr.hosts();
    if !(first..=last).contains(&address) {
        return Err(format!("the host's address there, such as {first}/{len}"));
    }
    Ok(cidr)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cidr(text: &str) -> Cidr {
        Cidr::parse(text).expect(text)
    }

    #[test]
    fn only_addresses_that_a_host_may_have_are_taken() {
        for good in
            ["10.77.0.1/24", "192.168.1.254/24", "172.16.0.1/16", "10.0.0.2/30", "fd77::1/64"]
        {
            assert_eq!(of_host(good).map(|cidr| cidr.to_string()), Ok(good.to_owned()));
        }
        for bad in [
            "",
            "10.77.0.1",
            "10.77.0.1/",
            "10.77.0.1/33",
            "10.77.0.1/8",
            "10.77.0.1/31",
            "/24",
            "10.77.0.0/24",
            "10.77.0.255/24",
            "127.0.0.1/24",
            "224.0.0.1/24",
            "0.0.0.0/24",
            "fd77::/64",
            "fd77::1/48",
            "fe80::1/64",
            "::1/64",
            "10.77.0.1/24/1",
            "10.77.0.1/-1",
            "010.77.0.1/24",
            "a/24",
        ] {
            assert!(of_host(bad).is_err(), "{bad}");
        }
        assert!(of_host("10.77.0.0/24").unwrap_err().contains("10.77.0.1/24"));
        assert!(of_host("fd77::/64").unwrap_err().contains("fd77::1/64"));
    }

    #[test]
    fn networks_contain_each_other_by_their_prefix() {
        assert!(cidr("10.0.0.0/8").covers(cidr("10.77.0.1/24")));
        assert!(!cidr("10.77.0.1/24").covers(cidr("10.0.0.0/8")));
        assert!(cidr("10.77.0.1/24").overlaps(cidr("10.0.0.0/8")));
        assert!(!cidr("10.77.0.1/24").overlaps(cidr("10.77.1.1/24")));
        assert!(cidr("0.0.0.0/0").covers(cidr("10.77.0.1/24")));
        assert!(!cidr("::/0").covers(cidr("10.77.0.1/24")));
        assert!(cidr("fd77::1/64").overlaps(cidr("fd77::2/128")));
    }

    #[test]
    fn a_network_knows_its_ends() {
        let lan = cidr("10.77.3.9/22");
        assert_eq!(lan.network().to_string(), "10.77.0.0/22");
        let (first, last) = lan.hosts();
        assert_eq!(
            (first.to_string(), last.to_string()),
            ("10.77.0.1".into(), "10.77.3.254".into())
        );
        assert_eq!(lan.mask().to_string(), "255.255.252.0");
        assert_eq!(cidr("fd77:0:0:1::9/64").network().to_string(), "fd77:0:0:1::/64");
        assert!(lan.is_private() && cidr("100.64.0.1/24").is_private());
        assert!(!cidr("8.8.8.8/24").is_private() && !cidr("2001:db8::1/64").is_private());
    }
}
