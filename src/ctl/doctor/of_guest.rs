//! Faults of a virtual machine's port: its socket, its front-end, its memory, its rings.

use api::wire::{Finding, State};
use base::words::counted;

use super::facts::{Facts, Port, Process};
use super::findings::Findings;
use crate::attach::forms;
use crate::qemu;
use crate::show::maybe;
use api::wire::Level;

/// Code of a finding that the switch makes too, once the driver has begun.
const NOT_SHARED: &str = "memory-not-shared";
/// Less shared memory than any guest has.
const LEAST_SHARED: u64 = 4 << 20;

pub fn judge(port: &Port, facts: &Facts, findings: &mut Findings) {
    socket(port, facts, findings);
    if port.shown().front_end.is_some() {
        let shares = memory(port, facts, findings);
        huge_pages(port, facts, findings);
        rings(port, shares, findings);
        if let Some(process) = &port.front_end {
            command_line(port, process, findings);
        }
    }
}

/// Finds faults of a stream, which has a socket, and no guest whose memory or rings could be wrong.
pub(crate) fn judge_stream(port: &Port, facts: &Facts, findings: &mut Findings) {
    socket(port, facts, findings);
}

/// True if a process has the right `wanted` to a directory or socket: 1 to enter, 2 to write.
fn may(process: &Process, step: &super::facts::Step, wanted: u32) -> bool {
    let shift = match () {
        () if process.uid == 0 => return true,
        () if process.uid == step.uid => 6,
        () if process.groups.contains(&step.gid) => 3,
        () => 0,
    };
    step.mode >> shift & wanted != 0
}

fn socket(port: &Port, facts: &Facts, findings: &mut Findings) {
    let (name, path) = (port.name(), port.socket());
    if port.is_client() || path.is_empty() || port.is_silent() {
        return;
    }
    let complete = port.path.last().is_some_and(|step| step.path == path);
    if !complete && port.details.socket.as_ref().is_none_or(|one| one.mode.is_none()) {
        let cause = format!("its socket {path} is gone: no front-end can connect");
        let noun = if port.shown().kind == "stream" { "stream" } else { "port" };
        let command = format!(
            "vioswitchctl {noun} del {name} && vioswitchctl {noun} add {name} KEY=VALUE, with the \
             keys of vioswitchctl config show; or {}",
            facts.restart()
        );
        findings.fail("socket-missing", name, cause, &command);
        return;
    }
    for process in port.others.iter().filter(|_| complete) {
        let way = if process.way.is_empty() { &port.path } else { &process.way };
        let Some((socket, directories)) = way.split_last() else { continue };
        // The caller names the user of `--user`; a process's own command line proves less.
        let (who, level) = match process.pid {
            0 => (process.name.clone(), Level::Fail),
            pid => (format!("{} (pid {pid}, uid {})", process.name, process.uid), Level::Warn),
        };
        if let Some(closed) = directories.iter().find(|step| !may(process, step, 1)) {
            let (at, mode) = (&closed.path, closed.mode & 0o7777);
            let cause = format!("{who} may not search {at}, which has mode {mode:04o}");
            let command = format!(
                "socket=/run/vioswitch/{name}.sock on the port, or another directory that this \
                 user may enter"
            );
            findings.add(level, "socket-directory", name, cause, &command);
        } else if !may(process, socket, 2) {
            let (mode, gid) = (socket.mode & 0o7777, socket.gid);
            let cause = format!("{who} may not connect to {path}: mode {mode:04o}, group {gid}");
            let command = match process.groups.contains(&gid) {
                true => "socket-mode=0660 on the port",
                false => "socket-group= on the port, with a group of that user such as kvm",
            };
            findings.add(level, "socket-permission", name, cause, command);
        } else if port.front_end.is_some() && process.pid != 0 {
            second(port, &who, findings);
        }
    }
}

fn second(port: &Port, who: &str, findings: &mut Findings) {
    let pid = maybe(port.pid());
    let cause = format!("{who} waits for its socket, which serves pid {pid}");
    let command = "vioswitchctl port add NAME, and attach one of the two machines to this port";
    findings.warn("socket-shared", port.name(), cause, command);
}

/// Finds memory that the switch cannot map. Returns false if no driver can be served. Once the
/// driver has begun, the switch makes the finding itself.
fn memory(port: &Port, facts: &Facts, findings: &mut Findings) -> bool {
    let is_found =
        |one: &Finding| one.code == NOT_SHARED && one.port.as_deref() == Some(port.name());
    if facts.findings.iter().any(is_found) {
        return false;
    }
    let private = port.front_end.as_ref().and_then(|process| process.shared);
    let shares = !port.regions().is_empty() || private.is_none_or(|bytes| bytes >= LEAST_SHARED);
    if !shares {
        let cause = "its front-end has no memory that others can map".to_owned();
        let name = port.name();
        let command =
            format!("vioswitchctl attach {name} --qemu; others: vioswitchctl attach {name} --help");
        findings.fail(NOT_SHARED, name, cause, &command);
    }
    shares
}

/// Finds a lack of huge pages: a page that the guest has not touched yet must be free when the
/// guest, or a frame, gets to the page.
fn huge_pages(port: &Port, facts: &Facts, findings: &mut Findings) {
    let huge = || port.memory("hugetlb");
    let all: u64 = huge().map(|region| region.bytes).sum();
    // Without the number of touched bytes the doctor makes no finding: all pages may be there.
    let missing = port.huge.map_or(0, |there| all.saturating_sub(there));
    // A guest has one size of pages, as a rule; the smallest size tells the least.
    let page = huge().map(|region| region.page).filter(|page| *page > 0).min();
    let Some(page) = page.filter(|_| missing > 0) else { return };
    let free = facts.host.free_huge.get(&page).copied().unwrap_or(0).saturating_mul(page);
    if free >= missing {
        return;
    }
    let (missing, free, kib) = (missing >> 20, free >> 20, page >> 10);
    let cause = format!(
        "its guest has not touched {missing} MiB of its huge pages yet, and {free} MiB are free: \
         a missing page causes SIGBUS, and frames are dropped"
    );
    let command = format!("echo NUMBER > /sys/kernel/mm/hugepages/hugepages-{kib}kB/nr_hugepages");
    findings.warn("huge-pages-short", port.name(), cause, &command);
}

fn rings(port: &Port, shares: bool, findings: &mut Findings) {
    let name = port.name();
    let started = port.details.rings.iter().any(|ring| ring.started == Some(true));
    if port.shown().state == State::Negotiating && !started && shares {
        let cause = "its front-end is connected, and the guest's driver has started no ring: the \
                     guest boots, has no virtio-net driver, or its firmware waits";
        let command = "in the guest: modprobe virtio_net; ip link set eth0 up";
        findings.warn("ring-never-started", name, cause.to_owned(), command);
    }
}

/// Finds faults of QEMU's command line.
fn command_line(port: &Port, process: &Process, findings: &mut Findings) {
    cloud_hypervisor(port, process, findings);
    let Some(card) = qemu::card(&process.items, port.socket()) else { return };
    let name = port.name();
    let attach = format!("vioswitchctl attach {name} --qemu");
    let listens = card.chardev.is_on("server");
    let again = ["reconnect", "reconnect-ms"].iter().filter_map(|key| card.chardev.get(key));
    if !listens && !again.into_iter().any(|time| time != "0") {
        let cause = format!(
            "its front-end (pid {}) does not reconnect: after a restart of the switch the guest \
             has no network until QEMU is restarted",
            process.pid
        );
        findings.warn("no-reconnect", name, cause, &attach);
    }
    let count = |item: &qemu::Item, key: &str| item.get(key).and_then(|word| word.parse().ok());
    let (Some(netdev), Some(device)) = (card.netdev, card.device) else { return };
    let pairs: u64 = count(netdev, "queues").unwrap_or(1);
    let wanted = port.number("queues").unwrap_or(1);
    if pairs > 1 && !device.is_on("mq") {
        let cause = format!("QEMU has {pairs} queue pairs and no mq=on: the guest uses one");
        findings.warn("queues-unused", name, cause, &attach);
    } else if pairs < wanted {
        let cause = format!("the port has {wanted} queue pairs, QEMU {pairs}");
        findings.warn("queues-unused", name, cause, &attach);
    }
    let vectors: Option<u64> = count(device, "vectors");
    // vectors=0 turns MSI-X off on purpose: QEMU 7 without KVM must do so.
    let on_purpose = vectors == Some(0) && !process.items.iter().any(says_kvm);
    if let Some(vectors) = vectors.filter(|vectors| *vectors < 2 * pairs + 2 && !on_purpose) {
        let cause = format!(
            "QEMU has vectors={vectors} of {} for {}",
            2 * pairs + 2,
            counted(pairs, "queue pair")
        );
        findings.warn("vectors-few", name, cause, &attach);
    }
}

/// Finds cloud-hypervisor as a client, which tries to connect again for a minute and then gives up.
fn cloud_hypervisor(port: &Port, process: &Process, findings: &mut Findings) {
    let net = process.items.iter().find(|item| item.option == "net");
    if net.is_none_or(|net| net.get("vhost_mode") == Some("server")) {
        return;
    }
    let (name, pid) = (port.name(), process.pid);
    let cause = format!(
        "its front-end (pid {pid}), cloud-hypervisor with vhost_mode=client, gives the port up \
         for good after 60 s without the switch"
    );
    let command = format!(
        "vioswitchctl port del {name}; vioswitchctl port add {name} mode=client; start \
         cloud-hypervisor with vhost_mode=server: vioswitchctl attach {name} --cloud-hypervisor"
    );
    findings.warn("no-reconnect", name, cause, &command);
}

/// True if this option of QEMU's command line makes the guest run under KVM. `accel` and `machine`
/// may list KVM and TCG, so they count only if this machine has a usable /dev/kvm.
fn says_kvm(item: &qemu::Item) -> bool {
    item.option == "enable-kvm"
        || (["accel", "machine", "M"].contains(&item.option.as_str()) && item.value.contains("kvm"))
            && forms::kvm()
}
