//! A network, and the files that make the network. No function here looks at the host.

use std::fmt::Write;
use std::net::IpAddr;
use std::path::PathBuf;

use clap::ValueEnum;

use super::address::Cidr;
use crate::values;

/// Who gives the interface its address, and the guests theirs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Manager {
    /// systemd-networkd
    Networkd,
    /// ip(8), nft(8) and dnsmasq(8), started by systemd
    Dnsmasq,
    /// NetworkManager, for --bridge
    Networkmanager,
    /// /etc/network/interfaces, for --bridge
    Ifupdown,
}

/// Directory of links to the units that systemd starts with the machine.
const WANTS: &str = "/etc/systemd/system/multi-user.target.wants";
/// Directory of the package's units.
const UNITS: &str = "/usr/lib/systemd/system";

/// Checks that interfaces, units and files can have this name.
pub fn name(text: &str) -> Result<String, String> {
    let good = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let fits = (1..=MAX_NAME).contains(&text.len()) && text.chars().all(good);
    match fits && text.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        true => Ok(text.to_owned()),
        false => Err(format!("at most {MAX_NAME} letters, digits, \"_\" and \"-\"")),
    }
}

/// Longest name of a network: `vio-NAME` is the name of an interface, 15 bytes at most.
const MAX_NAME: usize = 11;

/// Content of a file or link.
#[derive(Debug, PartialEq, Eq)]
pub enum Content {
    Text(String),
    /// A symbolic link to this path.
    Link(String),
}

/// A file of a network.
#[derive(Debug, PartialEq, Eq)]
pub struct File {
    pub(crate) path: PathBuf,
    pub(crate) content: Content,
}

/// A network behind NAT.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    pub(crate) name: String,
    /// At most one address for each version of IP.
    pub(crate) addresses: Vec<Cidr>,
    pub(crate) dhcp: bool,
    /// Name servers for guests; empty stands for the host's name servers.
    pub(crate) dns: Vec<IpAddr>,
    pub(crate) queues: u16,
    pub(crate) manager: Manager,
}

/// Returns the interface of the network of this name.
pub fn interface(name: &str) -> String {
    format!("vio-{name}")
}

/// Returns the beginning of each text that is written for a network. The beginning marks a file as
/// a file of vioswitchctl.
pub fn mark(name: &str) -> String {
    format!("# Written by vioswitchctl network {name}; ")
}

/// Mark of the line that records the requested settings, in the network's file for the switch.
pub const WANTED: &str = "# network: ";

impl Plan {
    pub(crate) fn interface(&self) -> String {
        interface(&self.name)
    }

    pub(crate) fn ipv4(&self) -> Option<Cidr> {
        self.addresses.iter().copied().find(|cidr| cidr.is_ipv4())
    }

    pub(crate) fn ipv6(&self) -> Option<Cidr> {
        self.addresses.iter().copied().find(|cidr| !cidr.is_ipv4())
    }

    /// Returns the head of a text.
    fn head(&self) -> String {
        format!("{}--remove takes it away.\n", mark(&self.name))
    }

    /// Returns a file whose text begins with the head.
    pub(crate) fn file(&self, path: &str, text: &str) -> File {
        File { path: path.into(), content: Content::Text(self.head() + text) }
    }

    /// Returns the link by which systemd starts a unit of the package with the machine.
    pub fn wanted(instance: &str) -> File {
        let template = instance.split('@').next().unwrap_or_default();
        File {
            path: format!("{WANTS}/{instance}.service").into(),
            content: Content::Link(format!("{UNITS}/{template}@.service")),
        }
    }

    /// Returns the instances of the package's units, in the order to start them.
    pub(crate) fn units(&self) -> Vec<String> {
        let interface = self.interface();
        let mut units = Vec::new();
        if self.manager == Manager::Dnsmasq {
            units.push(format!("vioswitch-tap@{interface}"));
        }
        units.push(format!("vioswitch-forward@{interface}"));
        if self.manager == Manager::Dnsmasq && self.serves() {
            units.push(format!("vioswitch-dnsmasq@{}", self.name));
        }
        units
    }

    /// True if a server must answer guests: with DHCP, or with router advertisements.
    pub(crate) fn serves(&self) -> bool {
        self.dhcp || self.ipv6().is_some()
    }

    /// Returns the file that the switch reads.
    pub fn switch(&self) -> String {
        let mut text = format!("{WANTED}{}\n", self.words());
        let (name, interface) = (&self.name, self.interface());
        let _ = write!(text, "[[tap]]\nname = \"{name}\"\nifname = \"{interface}\"\n");
        if self.queues > 1 {
            let _ = writeln!(text, "queues = {}", self.queues);
        }
        text
    }

    /// Returns the requested settings, for the list of networks.
    fn words(&self) -> String {
        let addresses: Vec<String> = self.addresses.iter().map(Cidr::to_string).collect();
        let dhcp = if self.dhcp { "yes" } else { "no" };
        format!("nat={} dhcp={dhcp} manager={}", addresses.join(","), values::word(&self.manager))
    }
}

/// Returns the path of the network's file that the switch reads.
pub fn of_switch(name: &str) -> String {
    format!("/etc/vioswitch/conf.d/{name}.toml")
}
