//! The arguments that each front-end takes. All functions are pure, except `kvm` and
//! `free_huge_mib`, which look at the machine.

use super::wanted::{AttachRequest, VmArguments, VmPort};
use crate::qemu::{Version, escaped};

/// Identifier of the shared memory.
const MEMORY: &str = "mem";

/// Returns the value of `-object` for memory that the switch can map.
pub fn memory(port: &VmPort, id: &str, size: &str) -> String {
    let prealloc = if port.prealloc { ",prealloc=on" } else { "" };
    format!("memory-backend-memfd,id={id},size={size},share=on{prealloc}")
}

/// Returns the value of `-chardev`.
pub fn chardev(port: &VmPort, version: Version) -> String {
    let role = match port.front_end_listens {
        true => "server=on,wait=off",
        false => version.reconnect(),
    };
    format!("socket,id={},path={},{role}", port.id(), escaped(&port.socket))
}

/// Returns the value of `-netdev`.
pub fn netdev(port: &VmPort, chardev: &str, queues: u64) -> String {
    let queues = if queues > 1 { format!(",queues={queues}") } else { String::new() };
    format!("vhost-user,id={},chardev={chardev}{queues}", port.id())
}

/// Bus of a network card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bus {
    Pci,
    /// PCI without MSI-X, for a QEMU that MSI-X would end.
    PciWithoutMsix,
    /// A machine without PCI.
    Mmio,
}

/// Returns the value of `-device`.
pub fn device(port: &VmPort, netdev: &str, queues: u64, bus: Bus) -> String {
    let driver = if bus == Bus::Mmio { "virtio-net-device" } else { "virtio-net-pci" };
    let mut device = format!("{driver},netdev={netdev},mac={}", port.card_mac);
    if queues > 1 {
        device += ",mq=on";
    }
    match bus {
        Bus::Pci if queues > 1 => device += &format!(",vectors={}", 2 * queues + 2),
        Bus::PciWithoutMsix => device += ",vectors=0",
        Bus::Pci | Bus::Mmio => {}
    }
    if let Some(mtu) = port.mtu {
        device += &format!(",host_mtu={mtu}");
    }
    if port.platform {
        // Without PCI Express a card is also a card from before virtio 1.0, which knows no
        // platform.
        device += if bus == Bus::Mmio { "" } else { ",disable-legacy=on" };
        device += ",iommu_platform=on";
    }
    device
}

/// Returns QEMU's arguments for the port, without the arguments for memory.
fn card(wanted: &AttachRequest) -> Vec<String> {
    let AttachRequest { port, version, emulated, .. } = wanted;
    let id = port.id();
    let bus = if *emulated && version.fears_msix() { Bus::PciWithoutMsix } else { Bus::Pci };
    let pairs = [
        ("-chardev", chardev(port, *version)),
        ("-netdev", netdev(port, &id, port.queues)),
        ("-device", device(port, &id, port.queues, bus)),
    ];
    pairs.into_iter().flat_map(|(option, value)| [option.to_owned(), value]).collect()
}

fn notes(wanted: &AttachRequest) -> Vec<String> {
    let mut notes = Vec::new();
    if wanted.emulated && wanted.version.fears_msix() {
        let version = wanted.version;
        notes.push(format!(
            "vectors=0 because QEMU {version} without KVM fails with MSI-X here; with KVM write \
             vectors={}",
            2 * wanted.port.queues + 2
        ));
    }
    if wanted.port.front_end_listens {
        notes.push("QEMU listens, and starts the guest when the switch has connected".to_owned());
    }
    notes
}

/// Returns QEMU's options and values, a pair on each line, ready for a command line.
pub fn qemu(wanted: &AttachRequest) -> VmArguments {
    let mem = wanted.mem.word();
    let object = memory(&wanted.port, MEMORY, &mem);
    let mut arguments: Vec<String> =
        ["-m", &mem, "-object", &object, "-machine", "memory-backend=mem"]
            .map(str::to_owned)
            .into();
    arguments.append(&mut card(wanted));
    VmArguments { text: lines(&arguments), arguments, notes: notes(wanted) }
}

fn lines(arguments: &[String]) -> String {
    arguments.chunks(2).map(|pair| pair.join(" ") + "\n").collect()
}

/// Returns cloud-hypervisor's arguments, whose `num_queues` counts rings, not pairs.
pub(crate) fn cloud_hypervisor(wanted: &AttachRequest) -> VmArguments {
    let port = &wanted.port;
    let prealloc = if port.prealloc { ",prealloc=on" } else { "" };
    let mode = if port.front_end_listens { "server" } else { "client" };
    let mac = port.mac.as_ref().map(|mac| format!(",mac={mac}")).unwrap_or_default();
    let net = format!(
        "vhost_user=on,socket={},vhost_mode={mode},num_queues={}{mac}",
        port.socket,
        2 * port.queues
    );
    let mut arguments = vec![
        "--memory".to_owned(),
        format!("size={},shared=on{prealloc}", wanted.mem.word()),
        "--net".to_owned(),
        net,
    ];
    let mut notes = Vec::new();
    if port.queues > 1 {
        arguments.extend(["--cpus".to_owned(), format!("boot={}", port.queues)]);
        notes.push("give the guest a CPU for each queue pair".to_owned());
    }
    VmArguments { text: lines(&arguments), arguments, notes }
}

/// Returns the parts of a libvirt domain, each below a comment that names its place.
pub fn libvirt(wanted: &AttachRequest) -> VmArguments {
    let port = &wanted.port;
    let allocation = if port.prealloc { "\n  <allocation mode='immediate'/>" } else { "" };
    let mut interface = String::new();
    let mut line = |text: String| interface += &format!("  {text}\n");
    line(format!("<mac address='{}'/>", port.card_mac));
    let socket = xml(&port.socket);
    if port.front_end_listens {
        line(format!("<source type='unix' path='{socket}' mode='server'/>"));
    } else {
        line(format!("<source type='unix' path='{socket}' mode='client'>"));
        line("  <reconnect enabled='yes' timeout='1'/>".to_owned());
        line("</source>".to_owned());
    }
    line("<model type='virtio'/>".to_owned());
    let queues = if port.queues > 1 { format!(" queues='{}'", port.queues) } else { String::new() };
    let platform = if port.platform { " iommu='on'" } else { "" };
    if port.queues > 1 || port.platform {
        line(format!("<driver{queues}{platform}/>"));
    }
    if let Some(mtu) = port.mtu {
        line(format!("<mtu size='{mtu}'/>"));
    }
    let text = format!(
        "<!-- virsh edit DOMAIN, below <domain> -->\n<memoryBacking>\n  <source type='memfd'/>\n  \
         <access mode='shared'/>{allocation}\n</memoryBacking>\n<!-- below <devices> -->\n\
         <interface type='vhostuser'>\n{interface}</interface>\n"
    );
    let mut notes = Vec::new();
    if !port.front_end_listens {
        let note = "libvirt's QEMU has a user of its own, who needs access to the socket: \
            vioswitchctl \
                    doctor --user libvirt-qemu";
        notes.push(note.to_owned());
    }
    if wanted.emulated && wanted.version.fears_msix() {
        let version = wanted.version;
        notes.push(format!(
            "QEMU {version} without KVM fails with MSI-X here: boot the guest with pci=nomsi"
        ));
    }
    VmArguments { arguments: Vec::new(), text, notes }
}

fn xml(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('\'', "&apos;").replace('"', "&quot;")
}

/// Returns DPDK's arguments for virtio-user, on huge pages if enough huge pages are free.
pub fn dpdk(wanted: &AttachRequest) -> VmArguments {
    let port = &wanted.port;
    let mib = wanted.mem.mib();
    let mut arguments = vec!["--no-pci".to_owned()];
    let mut notes = Vec::new();
    if wanted.free_huge_mib >= mib {
        arguments.extend(["--in-memory", "--single-file-segments"].map(str::to_owned));
    } else {
        arguments.push("--no-huge".to_owned());
        let free = wanted.free_huge_mib;
        notes.push(format!("--no-huge because {free} MiB of huge pages are free, not {mib}"));
    }
    arguments.extend(["-m".to_owned(), mib.to_string()]);
    let role = if port.front_end_listens { ",server=1" } else { "" };
    let mac = port.mac.as_ref().map(|mac| format!(",mac={mac}")).unwrap_or_default();
    arguments.push(format!(
        "--vdev=net_virtio_user0,path={},queues={},queue_size=256{mac}{role}",
        port.socket, port.queues
    ));
    VmArguments { text: arguments.join(" ") + "\n", arguments, notes }
}

/// True if guests may run under KVM on this machine.
pub fn kvm() -> bool {
    std::fs::File::options().read(true).write(true).open("/dev/kvm").is_ok()
}

/// Returns the MiB of huge pages of the default size that no process uses or has reserved.
pub(crate) fn free_huge_mib() -> u64 {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let number = |key: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(key));
        line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    let free = number("HugePages_Free:").saturating_sub(number("HugePages_Rsvd:"));
    free * number("Hugepagesize:") / 1024
}

#[cfg(test)]
mod tests {
    use super::super::wanted::Size;
    use super::*;

    fn wanted(queues: u64, version: &str) -> AttachRequest {
        AttachRequest {
            port: VmPort {
                name: "9".to_owned(),
                socket: "/run/a,b/vm1.sock".to_owned(),
                front_end_listens: false,
                queues,
                mac: Some("52:54:00:00:00:01".to_owned()),
                card_mac: "52:54:00:00:00:01".to_owned(),
                mtu: Some(9000),
                prealloc: false,
                platform: false,
            },
            mem: Size::of_mib(1024),
            version: Version::parse(version).expect("a version"),
            emulated: true,
            free_huge_mib: 0,
        }
    }

    #[test]
    fn qemu_gets_what_its_version_knows() {
        let told = qemu(&wanted(4, "10.0"));
        assert_eq!(
            told.text,
            "-m 1G\n-object memory-backend-memfd,id=mem,size=1G,share=on\n\
             -machine memory-backend=mem\n\
             -chardev socket,id=port-9,path=/run/a,,b/vm1.sock,reconnect-ms=200\n\
             -netdev vhost-user,id=port-9,chardev=port-9,queues=4\n\
             -device virtio-net-pci,netdev=port-9,mac=52:54:00:00:00:01,mq=on,vectors=10,\
             host_mtu=9000\n"
        );
        assert!(told.notes.is_empty());
        let told = qemu(&wanted(1, "7.2"));
        assert!(told.text.contains(",reconnect=1\n"), "{}", told.text);
        assert!(told.text.contains(",vectors=0,") && !told.text.contains("mq="), "{}", told.text);
        assert_eq!(told.notes.len(), 1);
    }

    #[test]
    fn whoever_listens_is_told_so() {
        let mut wanted = wanted(1, "7.2");
        wanted.port.front_end_listens = true;
        assert!(qemu(&wanted).text.contains(",server=on,wait=off\n"));
        assert!(libvirt(&wanted).text.contains("mode='server'/>"));
        assert!(cloud_hypervisor(&wanted).text.contains("vhost_mode=server"));
        assert!(dpdk(&wanted).text.contains(",server=1\n"));
    }

    #[test]
    fn a_domain_whose_card_would_end_qemu_gets_a_note() {
        let mut wanted = wanted(1, "7.2");
        let notes = |wanted: &AttachRequest| libvirt(wanted).notes.join("\n");
        assert!(notes(&wanted).contains("pci=nomsi"), "{}", notes(&wanted));
        wanted.emulated = false;
        assert!(!notes(&wanted).contains("pci=nomsi"), "{}", notes(&wanted));
    }

    #[test]
    fn each_form_is_of_its_own_kind() {
        let mut wanted = wanted(2, "9.2");
        wanted.port.prealloc = true;
        wanted.port.platform = true;
        let text = cloud_hypervisor(&wanted).text;
        assert!(text.contains("num_queues=4") && text.contains("--cpus boot=2"), "{text}");
        wanted.free_huge_mib = 1024;
        let text = dpdk(&wanted).text;
        assert!(text.starts_with("--no-pci --in-memory --single-file-segments -m 1024"), "{text}");
        assert_eq!(xml("a'<&"), "a&apos;&lt;&amp;");
    }
}
