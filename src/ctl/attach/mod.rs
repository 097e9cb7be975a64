//! `vioswitchctl attach`: prints the arguments with which a port's virtual machine starts.

pub mod forms;
mod mac;

use std::fs;

use api::config::Kind;
use api::wire::{ConfigKey, GetConfig, GetPort, GetStatus, value};
use base::frame::MacAddr;
use base::words::counted;
use clap::Args;
use serde_json::json;

use crate::client::Client;
use crate::failure::Failure;
use crate::qemu::Version;
use crate::say;

/// File with the identifier of this machine; a missing file counts as an empty file.
const MACHINE_ID: &str = "/etc/machine-id";

/// Print the arguments that attach a virtual machine to a port
///
/// The arguments fit the port and the installed version of QEMU. Notes go to standard error.
#[derive(Debug, Args)]
pub struct Attach {
    name: String,
    #[command(flatten)]
    form: Form,
    /// Memory of the virtual machine, such as 512M or 4G
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size)]
    mem: Size,
    /// Queue pairs; by default as many as the port has
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=16))]
    queues: Option<u64>,
    /// Address of the network card; by default the port's address
    #[arg(long, value_name = "MAC", value_parser = mac::station)]
    mac: Option<MacAddr>,
    /// For a port by plug: the virtual machine makes the socket
    #[arg(long)]
    plug: bool,
    /// Version of QEMU; by default the installed version
    #[arg(long, value_name = "VERSION", value_parser = version)]
    qemu_version: Option<Version>,
    /// The virtual machine runs without KVM
    #[arg(long)]
    emulated: bool,
}

/// Who starts the virtual machine.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
#[allow(clippy::struct_excessive_bools)]
struct Form {
    /// For QEMU's command line
    #[arg(long)]
    qemu: bool,
    /// For a libvirt domain's XML
    #[arg(long)]
    libvirt: bool,
    /// For cloud-hypervisor's command line
    #[arg(long)]
    cloud_hypervisor: bool,
    /// For DPDK's virtio-user
    #[arg(long)]
    dpdk: bool,
}

/// Bytes of memory, in whole MiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size(u64);

impl Size {
    pub(crate) fn of_mib(mib: u64) -> Size {
        Size(mib << 20)
    }

    pub(crate) fn mib(self) -> u64 {
        self.0 >> 20
    }

    /// Returns the size as QEMU and others take it: 1G, 1536M.
    pub(crate) fn word(self) -> String {
        match self.mib() {
            mib if mib % 1024 == 0 => format!("{}G", mib / 1024),
            mib => format!("{mib}M"),
        }
    }
}

/// Reads a size such as `512M` or `4G`; a number without a unit is MiB, as in QEMU's `-m`.
pub fn size(text: &str) -> Result<Size, String> {
    let wanted = || "a size such as 512M or 4G".to_owned();
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..end].parse().map_err(|_| wanted())?;
    let unit: u64 = match &text[end..] {
        "" | "M" | "m" | "MiB" => 1,
        "G" | "g" | "GiB" => 1 << 10,
        "T" | "t" | "TiB" => 1 << 20,
        _ => return Err(wanted()),
    };
    let mib = number.checked_mul(unit).filter(|mib| (1..=1 << 30).contains(mib));
    mib.map(Size::of_mib).ok_or_else(wanted)
}

fn version(text: &str) -> Result<Version, String> {
    Version::parse(text).ok_or_else(|| "a version such as 7.2 or 10.0".to_owned())
}

/// Settings of a port that the start of a virtual machine needs.
#[derive(Debug, Clone)]
pub struct Port {
    pub name: String,
    pub socket: String,
    /// True if the front-end listens and the switch connects.
    pub front_end_listens: bool,
    pub queues: u64,
    /// First of the port's static addresses.
    pub mac: Option<String>,
    /// Address of the card. QEMU's own default is one address for all machines, and libvirt chooses
    /// another address each time that a user defines the domain without an address.
    pub card_mac: String,
    pub mtu: Option<u64>,
    /// True if the guest's memory must be there from the beginning.
    pub prealloc: bool,
    /// True if the card has `iommu_platform`.
    pub platform: bool,
}

impl Port {
    /// Returns the settings of the port of this name.
    pub(crate) fn ask(client: &mut Client, name: &str) -> Result<Port, Failure> {
        let entries = client.list(&GetConfig {}, |part| part.entries)?;
        let Some(entry) = entries.iter().find(|entry| entry.name == name) else {
            // The error names the port that was perhaps meant.
            client.call(&GetPort { name: name.to_owned() })?;
            return Err(Failure::refused(format!("port '{name}' is going")));
        };
        if entry.kind != Kind::Port.word() {
            let what = match entry.kind.as_str() {
                "stream" => "a stream: QEMU's -netdev stream takes its socket",
                "xdp" => "an XDP uplink: no virtual machine's port",
                _ => "a TAP: no virtual machine's port",
            };
            return Err(Failure::refused(format!("'{name}' is {what}")));
        }
        let socket = value(&entry.keys, "socket");
        socket
            .map(|socket| Port::from_keys(name, socket, &entry.keys))
            .ok_or_else(|| Failure::refused(format!("port '{name}' has no socket of its own")))
    }

    /// Returns the settings that the port gets when its virtual machine makes the socket.
    fn to_come(client: &mut Client, name: &str) -> Result<Port, Failure> {
        let Some(plug) = client.call(&GetStatus {})?.plug else {
            let text = "the switch has no directory for that: plug = \"DIR\" in its configuration";
            return Err(Failure::refused(text.to_owned()));
        };
        let entries = client.list(&GetConfig {}, |part| part.entries)?;
        let mut same = entries.iter().filter(|entry| entry.name == name && entry.origin != "plug");
        if let Some(other) = same.next() {
            let origin = &other.origin;
            let text = format!("the name '{name}' is taken (origin {origin}): leave out --plug");
            return Err(Failure::refused(text));
        }
        let port = Port::from_keys(name, &format!("{}/{name}", plug.directory), &plug.keys);
        Ok(Port { front_end_listens: true, ..port })
    }

    fn from_keys(name: &str, socket: &str, keys: &[ConfigKey]) -> Port {
        let values = |key: &str| value(keys, key);
        let own = || own_address(&fs::read_to_string(MACHINE_ID).unwrap_or_default(), name);
        Port {
            card_mac: values("mac").map_or_else(own, str::to_owned),
            name: name.to_owned(),
            socket: socket.to_owned(),
            front_end_listens: values("mode") == Some("client"),
            queues: values("queues").and_then(|word| word.parse().ok()).unwrap_or(1),
            mac: values("mac").map(str::to_owned),
            mtu: values("mtu").and_then(|word| word.parse().ok()),
            prealloc: values("memory") == Some("prealloc"),
            platform: values("platform") == Some("on"),
        }
    }

    /// Returns a name that QEMU accepts as the identifier of an object.
    pub(crate) fn id(&self) -> String {
        match self.name.starts_with(|c: char| c.is_ascii_alphabetic()) {
            true => self.name.clone(),
            false => format!("port-{}", self.name),
        }
    }
}

/// Returns an address for the card of a port without an address: always the same address for a name
/// on a host, and not the address of another name or host. The address is locally administered, and
/// like QEMU's addresses.
fn own_address(host: &str, name: &str) -> String {
    // FNV-1a, and a mix that spreads the few bits of the last letters.
    let bytes = host.trim().bytes().chain([0]).chain(name.bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    let [_, _, _, a, b, c, d, e] =
        (hash ^ hash >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(32).to_be_bytes();
    format!("52:{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}")
}

/// Front-end to start, with its port and memory.
pub struct Wanted {
    pub port: Port,
    pub mem: Size,
    /// Version of QEMU.
    pub version: Version,
    /// True if a guest of QEMU would run without KVM.
    pub emulated: bool,
    /// MiB of huge pages that no process uses.
    pub free_huge_mib: u64,
}

/// Answer of a form: words of a command line, or a text.
pub struct Told {
    pub(crate) arguments: Vec<String>,
    pub(crate) text: String,
    pub(crate) notes: Vec<String>,
}

impl Attach {
    /// Returns the arguments, as JSON and for people. Prints notes unless `as_json` is true.
    pub(crate) fn run(&self, client: &mut Client, as_json: bool) -> Result<crate::Told, Failure> {
        let mut port = match self.plug {
            true => Port::to_come(client, &self.name)?,
            false => Port::ask(client, &self.name)?,
        };
        if let Some(queues) = self.queues {
            if queues > port.queues {
                let set = format!("vioswitchctl port set {} queues={queues}", port.name);
                let pairs = counted(port.queues, "queue pair");
                let text = format!("port '{}' has {pairs}: {set}", port.name);
                return Err(Failure::refused(text));
            }
            port.queues = queues;
        }
        let Form { qemu, libvirt, cloud_hypervisor, dpdk: _ } = self.form;
        let mut notes = Vec::new();
        if let Some(mac) = self.mac {
            notes.extend(self.check(mac, client)?);
            port.card_mac = mac.to_string();
            port.mac = Some(mac.to_string());
        }
        let installed = || if qemu || libvirt { Version::installed() } else { None };
        let version = self.qemu_version.or_else(installed).unwrap_or_else(|| {
            if qemu {
                notes.push("no QEMU is found here: for another one say --qemu-version".to_owned());
            }
            Version { major: 10, minor: 0 }
        });
        let wanted = Wanted {
            port,
            mem: self.mem,
            version,
            emulated: self.emulated || !forms::kvm(),
            free_huge_mib: forms::free_huge_mib(),
        };
        let (kind, mut told) = match () {
            () if qemu => ("qemu", forms::qemu(&wanted)),
            () if libvirt => ("libvirt", forms::libvirt(&wanted)),
            () if cloud_hypervisor => ("cloud-hypervisor", forms::cloud_hypervisor(&wanted)),
            () => ("dpdk", forms::dpdk(&wanted)),
        };
        notes.append(&mut told.notes);
        if !as_json {
            notes.iter().for_each(|note| say(note));
        }
        let mut answer = json!({"form": kind, "text": told.text, "notes": notes});
        if !told.arguments.is_empty() {
            answer["arguments"] = told.arguments.into();
        }
        if qemu {
            answer["qemu_version"] = version.to_string().into();
        }
        Ok((answer, told.text))
    }

    /// Returns a note about the address of `--mac`; an error if the switch would drop frames from
    /// the address.
    fn check(&self, mac: MacAddr, client: &mut Client) -> Result<Option<String>, Failure> {
        let entries = client.list(&GetConfig {}, |part| part.entries)?;
        let keys = match entries.iter().find(|entry| entry.name == self.name) {
            Some(entry) => entry.keys.clone(),
            None => client.call(&GetStatus {})?.plug.map(|plug| plug.keys).unwrap_or_default(),
        };
        mac::check(mac, &self.name, &keys, &entries).map_err(Failure::refused)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_card_has_the_same_address_each_time_and_no_other_ports() {
        let addresses = |host: &'static str| {
            let names = (0..1_000).map(move |n| own_address(host, &format!("vm{n}")));
            names.collect::<BTreeSet<String>>()
        };
        let (one, other) = (addresses("0123456789abcdef\n"), addresses("fedcba9876543210\n"));
        assert_eq!((one.len(), other.len()), (1_000, 1_000));
        assert!(one.is_disjoint(&other));
        assert_eq!(one, addresses("0123456789abcdef"));
        for address in one {
            let octets: Vec<&str> = address.split(':').collect();
            assert!(octets.len() == 6 && octets.iter().all(|octet| octet.len() == 2), "{address}");
        }
    }

    #[test]
    fn sizes_are_read_as_qemu_reads_them() {
        let word = |text| size(text).map(Size::word);
        assert_eq!(word("512").as_deref(), Ok("512M"));
        assert_eq!(word("2048M").as_deref(), Ok("2G"));
        assert_eq!(word("1g").as_deref(), Ok("1G"));
        for wrong in ["", "G", "0", "1K", "99999999999G", "18446744073709551615T", "-1"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
