//! `vioswitchctl attach`: prints the arguments with which a port's virtual machine starts.

pub mod forms;
mod mac;
pub mod wanted;

use api::wire::{GetConfig, GetStatus};
use base::frame::MacAddr;
use base::words::counted;
use clap::Args;
use serde_json::json;

use crate::client::Client;
use crate::failure::Failure;
use crate::output::{self, say};
use crate::qemu::Version;
use wanted::{AttachRequest, Size, VmPort, size};

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

fn version(text: &str) -> Result<Version, String> {
    Version::parse(text).ok_or_else(|| "a version such as 7.2 or 10.0".to_owned())
}

impl Attach {
    /// Returns the arguments, as JSON and for people. Prints notes unless `as_json` is true.
    pub fn run(&self, client: &mut Client, as_json: bool) -> Result<output::Output, Failure> {
        let mut port = match self.plug {
            true => VmPort::to_come(client, &self.name)?,
            false => VmPort::ask(client, &self.name)?,
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
                notes.push("there is no QEMU on this machine: give --qemu-version".to_owned());
            }
            Version { major: 10, minor: 0 }
        });
        let wanted = AttachRequest {
            port,
            mem: self.mem,
            version,
            emulated: self.emulated || !forms::kvm(),
            free_huge_mib: forms::free_huge_mib(),
        };
        let (kind, mut printed) = match () {
            () if qemu => ("qemu", forms::qemu(&wanted)),
            () if libvirt => ("libvirt", forms::libvirt(&wanted)),
            () if cloud_hypervisor => ("cloud-hypervisor", forms::cloud_hypervisor(&wanted)),
            () => ("dpdk", forms::dpdk(&wanted)),
        };
        notes.append(&mut printed.notes);
        if !as_json {
            notes.iter().for_each(|note| say(note));
        }
        let mut answer = json!({"form": kind, "text": printed.text, "notes": notes});
        if !printed.arguments.is_empty() {
            answer["arguments"] = printed.arguments.into();
        }
        if qemu {
            answer["qemu_version"] = version.to_string().into();
        }
        Ok((answer, printed.text))
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
