//! dnsmasq's file of leases: which address a virtual machine has.

use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

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

/// Reads lines `EXPIRY MAC ADDRESS NAME CLIENT-ID`; `*` stands for no name. dnsmasq writes the file
/// in place, so the last line may be a part of a line, with a part of a name.
fn parse(text: &str) -> Vec<Lease> {
    let lease = |line: &str| {
        let mut words = line.strip_suffix('\n')?.split(' ').skip(1);
        let (mac, address, name) = (words.next()?, words.next()?, words.next()?);
        let name = if name == "*" { "" } else { name };
        let address = address.parse().ok()?;
        Some(Lease { mac: mac.to_owned(), address, name: name.to_owned() })
    };
    text.split_inclusive('\n').filter_map(lease).collect()
}

/// The last known address of a virtual machine.
#[derive(Debug, Default)]
pub(super) struct Known(Mutex<Option<IpAddr>>);

impl Known {
    /// Returns the present address of a virtual machine. While dnsmasq writes the file, the file
    /// may lack the machine: the last address counts, unless another machine has that address.
    pub(super) fn address_of(&self, vm: &str, leases: &Path) -> Option<IpAddr> {
        if let Ok(address) = vm.parse() {
            return Some(address);
        }
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let leases = read(leases);
        let found = leases.iter().find(|lease| lease.name.eq_ignore_ascii_case(vm));
        let is_free = |address: &IpAddr| leases.iter().all(|lease| lease.address != *address);
        *known = found.map(|lease| lease.address).or_else(|| known.filter(is_free));
        *known
    }
}

/// Returns the address of a virtual machine; an address stands for itself.
pub(super) fn address_of(vm: &str, leases: &Path) -> Option<IpAddr> {
    Known::default().address_of(vm, leases)
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

    /// A connection during a write of the file gets to the machine, and to no other machine.
    #[test]
    fn an_address_outlives_a_file_that_is_being_written() {
        let path = std::env::temp_dir().join(format!("vioswitchctl-known-{}", std::process::id()));
        let (known, write) = (Known::default(), |text| fs::write(&path, text).unwrap());
        let now = || known.address_of("vm1", &path).map(|address| address.to_string());
        let full = "1 52:00:00:00:00:01 10.78.0.7 vm1 *\n";
        write("1 52:00:00:00:00:12 10.78.0.8 vm1");
        assert_eq!(now(), None, "a part of vm12's line");
        write(full);
        assert_eq!(now().as_deref(), Some("10.78.0.7"));
        for part in ["", &full[..20], &full[..full.len() - 1]] {
            write(part);
            assert_eq!(now().as_deref(), Some("10.78.0.7"), "{part}");
        }
        write("1 52:00:00:00:00:02 10.78.0.7 vm2 *\n");
        assert_eq!(now(), None);
        write("");
        assert_eq!(now(), None);
        fs::remove_file(&path).unwrap();
    }
}
