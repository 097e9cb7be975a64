//! dnsmasq's file of leases: which address a virtual machine has.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

/// An address that a virtual machine has leased.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Lease {
    pub(super) mac: String,
    pub(super) address: IpAddr,
    /// Name of the machine; empty if the machine has no name.
    pub(super) name: String,
}

/// Returns the leases in the file; none if the file does not exist.
pub(super) fn read(path: &Path) -> Vec<Lease> {
    parse(&fs::read_to_string(path).unwrap_or_default())
}

/// Reads lines `EXPIRY MAC ADDRESS NAME CLIENT-ID`; `*` stands for no name.
fn parse(text: &str) -> Vec<Lease> {
    let lease = |line: &str| {
        let mut words = line.split(' ').skip(1);
        let (mac, address, name) = (words.next()?, words.next()?, words.next()?);
        let name = if name == "*" { "" } else { name };
        let address = address.parse().ok()?;
        Some(Lease { mac: mac.to_owned(), address, name: name.to_owned() })
    };
    text.lines().filter_map(lease).collect()
}

/// Returns the address of a virtual machine; an address stands for itself.
pub(super) fn address_of(vm: &str, leases: &Path) -> Option<IpAddr> {
    let of_name = || read(leases).into_iter().find(|lease| lease.name.eq_ignore_ascii_case(vm));
    vm.parse().ok().or_else(|| of_name().map(|lease| lease.address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_are_read_as_dnsmasq_writes_them() {
        let text = "1795955666 52:bb:36:8d:03:73 10.78.0.98 vm2 01:52:bb:36:8d:03:73\n\
                    1795955663 52:a6:e6:43:13:40 10.78.0.177 * *\nduid 00:01\nnonsense\n";
        let leases = parse(text);
        assert_eq!(leases.len(), 2);
        assert_eq!(
            (leases[0].name.as_str(), leases[0].address.to_string().as_str()),
            ("vm2", "10.78.0.98")
        );
        assert_eq!(leases[1].name, "");
        assert_eq!(address_of("10.78.0.9", Path::new("/")), "10.78.0.9".parse().ok());
        assert_eq!(address_of("vm2", Path::new("/")), None);
    }
}
