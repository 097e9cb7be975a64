//! Families of the Internet protocol by which a network namespace has a way out. pasta carries only
//! the families that the host has when pasta starts.

use std::fs;

/// A route that refuses packets (`RTF_REJECT`).
const REJECT: u64 = 0x200;

/// True for IPv4 and for IPv6 with a default route.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Families([bool; 2]);

impl Families {
    /// Returns the families of a process's network namespace; `process` is a directory of /proc.
    pub(super) fn of(process: &str) -> Families {
        let table = |name| fs::read_to_string(format!("/proc/{process}/net/{name}"));
        let [ipv4, ipv6] = ["route", "ipv6_route"].map(|name| table(name).unwrap_or_default());
        Families([ipv4.lines().any(is_ipv4_default), ipv6.lines().any(is_ipv6_default)])
    }

    /// True if the families have one that neither of the others has.
    pub(super) fn exceed(self, one: Families, other: Families) -> bool {
        (0..2).any(|family| self.0[family] && !one.0[family] && !other.0[family])
    }
}

/// Interface, destination, gateway, flags, three counts, mask.
fn is_ipv4_default(line: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    matches!(words[..], [_, "00000000", _, flags, _, _, _, "00000000", ..] if passes(flags))
}

/// Destination and length, source and length, next hop, metric, two counts, flags, interface.
fn is_ipv6_default(line: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    let ends = matches!(words[..], [_, "00", _, "00", .., "lo"]);
    matches!(words[..], [_, "00", _, _, _, _, _, _, flags, _] if !ends && passes(flags))
}

fn passes(flags: &str) -> bool {
    u64::from_str_radix(flags, 16).is_ok_and(|flags| flags & REJECT == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_routes_are_read_as_the_kernel_writes_them() {
        let ipv4 = "eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0";
        assert!(is_ipv4_default(ipv4) && !is_ipv4_default(&ipv4.replace("0003", "0203")));
        let network = "eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0";
        assert!(!is_ipv4_default(network) && !is_ipv4_default("Iface\tDestination\tGateway"));
        let none = "0".repeat(32);
        let ipv6 = format!("{none} 00 {none} 00 {none} 00000400 00000001 00000000 00000003 eth0");
        assert!(is_ipv6_default(&ipv6) && !is_ipv6_default(&ipv6.replace("eth0", "lo")));
        assert!(!is_ipv6_default(&ipv6.replace(" 00 ", " 40 ")));
    }

    #[test]
    fn a_family_that_is_new_and_lacking_is_noticed() {
        let [none, ipv4, both] = [[false; 2], [true, false], [true; 2]].map(Families);
        assert!(both.exceed(ipv4, ipv4) && both.exceed(none, ipv4));
        assert!(!both.exceed(both, none) && !both.exceed(none, both) && !ipv4.exceed(none, both));
    }
}
