//! Reads interfaces and their queueing disciplines from ip(8) and tc(8) in the switch's network,
//! and reads from sysfs how frames spread over CPUs.

use std::fs;
use std::path::Path;

use super::facts::Facts;
use crate::links;

/// Directory in which the kernel describes interfaces.
const SYSFS: &str = "/sys/class/net";
/// Most interfaces of an uplink's bridge that the doctor looks at.
const MAX_NEIGHBOURS: usize = 256;
/// Most receive queues of one interface that the doctor looks at; large NICs have 128.
const MAX_RX_QUEUES: usize = 1024;

/// Reads the interfaces. `namespace` runs a program in the switch's network; `namespace` is empty
/// if this program is in the switch's network.
pub fn look(namespace: &[String], facts: &mut Facts) {
    let inside = |words: &[&'static str]| -> Vec<&str> {
        namespace.iter().map(String::as_str).chain(words.iter().copied()).collect()
    };
    let links = links::ask(&inside(&["ip", "-json", "-details", "address", "show"]));
    let Some(links) = links else {
        facts.skipped.push("interfaces: ip(8) does not answer".to_owned());
        return;
    };
    facts.host.links = links;
    for name in interesting(facts) {
        let mut words = inside(&["tc", "-json", "qdisc", "show", "dev"]);
        words.push(&name);
        match links::ask(&words) {
            Some(qdiscs) => drop(facts.host.qdiscs.insert(name.clone(), qdiscs)),
            None => facts.skipped.push(format!("the queues of {name}: tc(8) does not answer")),
        }
        if namespace.is_empty()
            && let Some(spread) = spread(Path::new(SYSFS), &name)
        {
            facts.host.spread.insert(name, spread);
        }
    }
    if !namespace.is_empty() {
        facts.skipped.push("how frames spread over CPUs: another network namespace".to_owned());
    }
}

/// Returns the uplinks, and the interfaces beside the uplinks in their bridges.
fn interesting(facts: &Facts) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for uplink in facts.ports.iter().filter_map(|port| port.shown().interface.as_ref()) {
        names.push(uplink.clone());
        let bridge = facts.host.link(uplink).and_then(|link| link.master.as_ref());
        let beside = bridge.into_iter().flat_map(|bridge| facts.host.members(bridge));
        names.extend(beside.map(|link| link.ifname.clone()).take(MAX_NEIGHBOURS));
    }
    names.sort();
    names.dedup();
    // A name may have come from a client of the switch, and must not be an option.
    names.retain(|name| !name.starts_with('-') && facts.host.link(name).is_some());
    names
}

/// Returns the mechanism that spreads received frames over CPUs: receive packet steering, in
/// software, or several receive queues of a NIC.
fn spread(sysfs: &Path, name: &str) -> Option<&'static str> {
    let interface = sysfs.join(name);
    let queues = interface.join("queues");
    let entries = fs::read_dir(&queues).into_iter().flatten().flatten();
    let receive = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let receive: Vec<String> =
        receive.filter(|name| name.starts_with("rx-")).take(MAX_RX_QUEUES).collect();
    let steered = |name: &String| {
        // Hexadecimal words with commas between; any digit but zero is a CPU.
        let mask = fs::read_to_string(queues.join(name).join("rps_cpus")).unwrap_or_default();
        mask.chars().any(|c| c.is_ascii_hexdigit() && c != '0')
    };
    if receive.iter().any(steered) {
        return Some("RPS");
    }
    // Only hardware has a device; the sender fills the queues of a virtual interface.
    (receive.len() > 1 && interface.join("device").exists()).then_some("RSS")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steering_and_queues_of_a_nic_spread_frames() {
        let sysfs = std::env::temp_dir().join(format!("vioswitchctl-{}", std::process::id()));
        let interface = |name: &str, masks: &[&str]| {
            for (at, mask) in masks.iter().enumerate() {
                let queue = sysfs.join(format!("{name}/queues/rx-{at}"));
                fs::create_dir_all(&queue).expect("directory");
                fs::write(queue.join("rps_cpus"), mask).expect("mask");
            }
        };
        interface("t0", &["00000000,00000000\n"]);
        interface("t1", &["0", "00000000,00000002\n"]);
        interface("nic0", &["0", "0"]);
        fs::create_dir_all(sysfs.join("nic0/device")).expect("device");
        interface("t2", &["0", "0"]);
        let found = ["t0", "t1", "nic0", "t2", "none"].map(|name| spread(&sysfs, name));
        let _ = fs::remove_dir_all(&sysfs);
        assert_eq!(found, [None, Some("RPS"), Some("RSS"), None, None]);
        assert!(Path::new(SYSFS).join("lo/queues/rx-0/rps_cpus").exists());
    }
}
