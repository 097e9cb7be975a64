//! The files of a network.

use super::address::Cidr;
use super::plan::{File, Manager, Plan, of_switch};
use super::{dnsmasq, networkd};

impl Plan {
    /// Returns all files. The switch's file is the last, so that the other files exist before the
    /// switch's file.
    pub fn files(&self) -> Vec<File> {
        let mut files = match self.manager {
            Manager::Dnsmasq => dnsmasq::files(self),
            _ => networkd::files(self),
        };
        files.extend(self.units().iter().map(|unit| Plan::wanted(unit)));
        files.push(self.file(&of_switch(&self.name), &self.switch()));
        files
    }
}

/// Returns all files that a network of this name may have, with any manager.
pub fn possible(name: &str) -> Vec<File> {
    let of = |manager| Plan {
        name: name.to_owned(),
        addresses: ["10.0.0.1/24", "fd00::1/64"]
            .iter()
            .filter_map(|one| Cidr::parse(one))
            .collect(),
        dhcp: true,
        dns: Vec::new(),
        queues: 1,
        manager,
    };
    let mut files = of(Manager::Networkd).files();
    for file in of(Manager::Dnsmasq).files() {
        if files.iter().all(|other| other.path != file.path) {
            files.push(file);
        }
    }
    files
}
