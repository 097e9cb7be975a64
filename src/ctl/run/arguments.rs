//! Completes QEMU's command line for a port. All functions are pure, except for the check for KVM.

use crate::attach::forms::{self, Bus};
use crate::attach::wanted::VmPort;
use crate::qemu::{self, Item, Version};

/// Identifier of the memory that the client adds.
const MEMORY: &str = "vioswitch-mem";
/// Memory that QEMU gives a machine without -m.
const DEFAULT_MEMORY: &str = "128M";

/// Returns the words to append to the given words, or why the command line cannot be completed.
pub fn missing(
    port: &VmPort,
    program: &str,
    version: Version,
    given: &[String],
) -> Result<Vec<String>, String> {
    let items = qemu::items(given);
    if items.iter().any(|item| item.option == "daemonize") {
        return Err("-daemonize would delete the port at once: leave the option out".to_owned());
    }
    let mut words = memory(&items, port)?;
    let card = qemu::card(&items, &port.socket);
    let free = free_id(&items, &port.id());
    let port = VmPort { name: free, ..port.clone() };
    let Some(card) = card else {
        let id = port.id();
        words.extend(["-chardev".to_owned(), forms::chardev(&port, version)]);
        words.extend(["-netdev".to_owned(), forms::netdev(&port, &id, port.queues)]);
        words.extend(device(&items, program, version, &port, &id, port.queues));
        return Ok(words);
    };
    let lacks = |what: &str| format!("-{what} for {} has no id=", port.socket);
    let Some(netdev) = card.netdev else {
        let chardev = card.chardev.get("id").ok_or_else(|| lacks("chardev"))?;
        words.extend(["-netdev".to_owned(), forms::netdev(&port, chardev, port.queues)]);
        words.extend(device(&items, program, version, &port, &port.id(), port.queues));
        return Ok(words);
    };
    if card.device.is_none() {
        let id = netdev.get("id").ok_or_else(|| lacks("netdev"))?;
        let queues = netdev.get("queues").and_then(|word| word.parse().ok()).unwrap_or(1);
        words.extend(device(&items, program, version, &port, id, queues));
    }
    Ok(words)
}

fn device(
    items: &[Item],
    program: &str,
    version: Version,
    port: &VmPort,
    netdev: &str,
    queues: u64,
) -> [String; 2] {
    let bus = match () {
        () if is_mmio(items) => Bus::Mmio,
        () if version.fears_msix() && !uses_kvm(items, program) => Bus::PciWithoutMsix,
        () => Bus::Pci,
    };
    ["-device".to_owned(), forms::device(port, netdev, queues, bus)]
}

fn machines(items: &[Item]) -> impl Iterator<Item = &Item> {
    items.iter().filter(|item| matches!(item.option.as_str(), "machine" | "M"))
}

fn is_mmio(items: &[Item]) -> bool {
    let microvm = machines(items).any(|item| item.kind() == "microvm");
    microvm && !machines(items).any(|item| item.is_on("pcie"))
}

fn uses_kvm(items: &[Item], program: &str) -> bool {
    let named = |word: &str| word.split(':').any(|one| one == "kvm");
    let wanted = program.ends_with("kvm")
        || items.iter().any(|item| match item.option.as_str() {
            "enable-kvm" => true,
            "accel" => named(item.kind()) || item.get("accel").is_some_and(named),
            "machine" | "M" => item.get("accel").is_some_and(named),
            _ => false,
        });
    wanted && forms::kvm()
}

/// Returns an identifier that no option of the command line has.
fn free_id(items: &[Item], wanted: &str) -> String {
    let taken = |id: &str| items.iter().any(|item| item.get("id") == Some(id));
    let more = (2..).map(|n| format!("{wanted}-{n}"));
    std::iter::once(wanted.to_owned()).chain(more).find(|id| !taken(id)).unwrap_or_default()
}

/// Returns the words that make the guest's memory shared; no words if the given words do so
/// already.
fn memory(items: &[Item], port: &VmPort) -> Result<Vec<String>, String> {
    let backends: Vec<&Item> = items
        .iter()
        .filter(|item| item.option == "object" && item.kind().starts_with("memory-backend-"))
        .collect();
    let named = |id: &str| backends.iter().find(|item| item.get("id") == Some(id));
    let nodes = || items.iter().filter(|item| item.option == "numa" && item.kind() == "node");
    let used: Vec<&str> = machines(items)
        .filter_map(|item| item.get("memory-backend"))
        .chain(nodes().filter_map(|item| item.get("memdev")))
        .collect();
    if !used.is_empty() {
        for (id, backend) in used.iter().filter_map(|id| Some((id, named(id)?))) {
            if !shares(backend) {
                let wanted = "memory-backend-memfd and share=on";
                return Err(format!("-object …,id={id}: the switch needs {wanted}"));
            }
        }
        return Ok(Vec::new());
    }
    if items.iter().any(|item| item.option == "mem-path") {
        return Err("-mem-path: write -object memory-backend-file,…,share=on instead".to_owned());
    }
    if nodes().any(|item| item.get("mem").is_some()) {
        return Err("-numa node,mem=: write memdev= and memory-backend-memfd instead".to_owned());
    }
    // Memory of a DIMM or of another device is not the machine's memory.
    let elsewhere = |id: &str| {
        items.iter().any(|item| item.option == "device" && item.get("memdev") == Some(id))
    };
    let own = backends.iter().filter(|item| shares(item)).filter_map(|item| item.get("id"));
    let own: Vec<&str> = own.filter(|id| !elsewhere(id)).collect();
    match own[..] {
        [] => {}
        [id] => return Ok(vec!["-machine".to_owned(), format!("memory-backend={id}")]),
        _ => return Err("name the guest's memory by -machine memory-backend=ID".to_owned()),
    }
    let mut words = Vec::new();
    let given = items.iter().rev().filter(|item| item.option == "m");
    let given = given.filter_map(|item| item.get("").or(item.get("size"))).next();
    let size = match given {
        // A number without a unit is MiB for `-m`, and bytes for `-object`.
        Some(size) if size.ends_with(|c: char| c.is_ascii_digit()) => format!("{size}M"),
        Some(size) => size.to_owned(),
        None => {
            words.extend(["-m", DEFAULT_MEMORY].map(str::to_owned));
            DEFAULT_MEMORY.to_owned()
        }
    };
    let id = free_id(items, MEMORY);
    words.extend(["-object".to_owned(), forms::memory(port, &id, &size)]);
    words.extend(["-machine".to_owned(), format!("memory-backend={id}")]);
    Ok(words)
}

/// True if other processes can map the memory.
fn shares(backend: &Item) -> bool {
    backend.is_on("share") && backend.kind() != "memory-backend-ram"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(queues: u64, line: &str) -> Result<String, String> {
        let port = VmPort {
            name: "vm1".to_owned(),
            socket: "/s".to_owned(),
            front_end_listens: false,
            queues,
            mac: None,
            card_mac: "52:54:00:00:00:01".to_owned(),
            mtu: None,
            prealloc: false,
            platform: false,
        };
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let version = Version { major: 10, minor: 0 };
        missing(&port, "qemu-system-x86_64", version, &words).map(|words| words.join(" "))
    }

    const MAC: &str = ",mac=52:54:00:00:00:01";
    const CARD: &str = "-chardev socket,id=vm1,path=/s,reconnect-ms=200 -netdev \
                        vhost-user,id=vm1,chardev=vm1 -device \
                        virtio-net-pci,netdev=vm1,mac=52:54:00:00:00:01";

    #[test]
    fn all_is_put_in_where_nothing_is() {
        let memory = |size: &str| {
            format!(
                "-object memory-backend-memfd,id=vioswitch-mem,size={size},share=on -machine \
                 memory-backend=vioswitch-mem {CARD}"
            )
        };
        assert_eq!(run(1, ""), Ok(format!("-m 128M {}", memory("128M"))));
        assert_eq!(run(1, "-m 256 -S disk.img"), Ok(memory("256M")));
        assert_eq!(run(1, "-m 256 -m size=1.5G,slots=2"), Ok(memory("1.5G")));
    }

    #[test]
    fn what_is_there_is_not_put_in_again() {
        let shared = "-object memory-backend-memfd,id=x,size=1G,share=on";
        let memory = format!("{shared} -machine q35,memory-backend=x");
        assert_eq!(run(1, &memory), Ok(CARD.to_owned()));
        assert_eq!(run(1, &format!("{shared} -numa node,memdev=x")), Ok(CARD.to_owned()));
        assert_eq!(run(1, shared), Ok(format!("-machine memory-backend=x {CARD}")));
        let chardev = format!("{memory} -chardev socket,id=c,path=/s");
        let device = "-device virtio-net-pci,netdev";
        let put = format!(
            "-netdev vhost-user,id=vm1,chardev=c,queues=2 {device}=vm1{MAC},mq=on,vectors=6"
        );
        assert_eq!(run(2, &chardev), Ok(put));
        let netdev = format!("{chardev} -netdev vhost-user,chardev=c,id=n,queues=4");
        assert_eq!(run(2, &netdev), Ok(format!("{device}=n{MAC},mq=on,vectors=10")));
        assert_eq!(run(2, &format!("{netdev} {device}=n")), Ok(String::new()));
        // Other cards stay, and keep their names.
        let other = format!("{memory} -netdev user,id=vm1 {device}=vm1");
        assert_eq!(run(1, &other), Ok(CARD.replace("=vm1", "=vm1-2")));
    }

    #[test]
    fn machines_without_pci_have_another_card() {
        let memory = "-object memory-backend-memfd,id=x,size=1G,share=on -M memory-backend=x";
        let put = run(2, &format!("{memory} -M microvm")).expect("arguments");
        assert!(
            put.ends_with("-device virtio-net-device,netdev=vm1,mac=52:54:00:00:00:01,mq=on"),
            "{put}"
        );
        let put = run(2, &format!("{memory} -M microvm,pcie=on")).expect("arguments");
        assert!(put.contains("virtio-net-pci"), "{put}");
    }

    #[test]
    fn what_cannot_be_mended_is_refused() {
        for (line, words) in [
            ("-daemonize", "-daemonize"),
            ("-mem-path /dev/hugepages", "memory-backend-file"),
            ("-numa node,mem=1G", "memdev="),
            ("-object memory-backend-memfd,id=x,size=1G -numa node,memdev=x", "share=on"),
            ("-object memory-backend-ram,id=x,share=on -M memory-backend=x", "memfd"),
            (
                "-object memory-backend-memfd,id=x,share=on -object \
                 memory-backend-memfd,id=y,share=on",
                "memory-backend=",
            ),
        ] {
            let refused = run(1, line).expect_err(line);
            assert!(refused.contains(words), "{line}: {refused}");
        }
    }
}
