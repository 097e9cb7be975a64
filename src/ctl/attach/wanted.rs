//! A virtual machine that is to be attached: its port, its memory and its version of QEMU.

use std::fs;

use api::config::Kind;
use api::wire::{ConfigKey, GetConfig, GetPort, GetStatus, value};

use crate::client::Client;
use crate::failure::Failure;
use crate::qemu::Version;

/// File with the identifier of this machine; a missing file counts as an empty file.
const MACHINE_ID: &str = "/etc/machine-id";

/// Bytes of memory, in whole MiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size(u64);

impl Size {
    pub(crate) fn of_mib(mib: u64) -> Size {
        Size(mib << 20)
    }

    pub fn mib(self) -> u64 {
        self.0 >> 20
    }

    /// Returns the size as QEMU and others take it: 1G, 1536M.
    pub fn word(self) -> String {
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

/// Settings of a port that the start of a virtual machine needs.
#[derive(Debug, Clone)]
pub(crate) struct VmPort {
    pub name: String,
    pub socket: String,
    /// True if the front-end listens and the switch connects.
    pub(crate) front_end_listens: bool,
    pub queues: u64,
    /// First of the port's static addresses.
    pub mac: Option<String>,
    /// Address of the card. QEMU's own default is one address for all machines, and libvirt chooses
    /// another address each time that a user defines the domain without an address.
    pub(crate) card_mac: String,
    pub mtu: Option<u64>,
    /// True if the guest's memory must be there from the beginning.
    pub prealloc: bool,
    /// True if the card has `iommu_platform`.
    pub platform: bool,
}

impl VmPort {
    /// Returns the settings of the port of this name.
    pub fn ask(client: &mut Client, name: &str) -> Result<VmPort, Failure> {
        let entries = client.list(&GetConfig {}, |part| part.entries)?;
        let Some(entry) = entries.iter().find(|entry| entry.name == name) else {
            // The error names the port that was perhaps meant.
            client.call(&GetPort { name: name.to_owned() })?;
            return Err(Failure::refused(format!("port '{name}' is being removed")));
        };
        if entry.kind != Kind::Port.name() {
            let what = match entry.kind.as_str() {
                "stream" => "a stream: QEMU's -netdev stream takes its socket",
                "vduse" => "a VDUSE device: the kernel's driver is behind it",
                "xdp" => "an XDP uplink: no virtual machine's port",
                _ => "a TAP: no virtual machine's port",
            };
            return Err(Failure::refused(format!("'{name}' is {what}")));
        }
        let socket = value(&entry.keys, "socket");
        socket
            .map(|socket| VmPort::from_keys(name, socket, &entry.keys))
            .ok_or_else(|| Failure::refused(format!("port '{name}' has no socket of its own")))
    }

    /// Returns the settings that the port gets when its virtual machine makes the socket.
    pub(crate) fn to_come(client: &mut Client, name: &str) -> Result<VmPort, Failure> {
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
        let port = VmPort::from_keys(name, &format!("{}/{name}", plug.directory), &plug.keys);
        Ok(VmPort { front_end_listens: true, ..port })
    }

    fn from_keys(name: &str, socket: &str, keys: &[ConfigKey]) -> VmPort {
        let values = |key: &str| value(keys, key);
        let own = || own_address(&fs::read_to_string(MACHINE_ID).unwrap_or_default(), name);
        VmPort {
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
    pub fn id(&self) -> String {
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
pub struct AttachRequest {
    pub port: VmPort,
    pub mem: Size,
    /// Version of QEMU.
    pub version: Version,
    /// True if a guest of QEMU would run without KVM.
    pub emulated: bool,
    /// MiB of huge pages that no process uses.
    pub(crate) free_huge_mib: u64,
}

/// Answer of a form: words of a command line, or a text.
pub(crate) struct VmArguments {
    pub arguments: Vec<String>,
    pub text: String,
    pub notes: Vec<String>,
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
