//! Reads `/proc` and `/sys`: the switch's process, front-ends, and huge pages.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use super::facts::{Daemon, Ended, Facts, Port, Process};
use super::proc::{Reader, User, View};
use super::unit;
use crate::qemu::{self, Item};
use crate::tool;

/// Time for which the doctor watches the workers.
const LOOK: Duration = Duration::from_millis(300);
/// Beginning of the name of the switch's process.
const SWITCH: &str = "vioswitch";
/// Directory of the devices that are connected with the kernel's driver.
pub(crate) const VDPA: &str = "/sys/bus/vdpa/devices";
/// Beginning of the vendor of a device of a switch.
const MARK: &str = "0x5653";
/// Beginning of the names of the data path's threads.
const WORKER: &str = "worker-";
/// Most processes in the line from a front-end to the first process that the doctor looks at.
const MAX_GENERATIONS: usize = 64;
/// Most processes that the doctor lists as others for a port.
const MAX_OTHERS: usize = 8;
/// Most options about KVM that the doctor keeps of a command line.
const MAX_ACCELERATORS: usize = 8;
/// Most running switches that the doctor names if no switch answers.
const MAX_SWITCHES: usize = 4;
/// Beginnings of the mappings of devices, which are no memory of a guest.
const DEVICES: [&str; 3] = ["/dev/", "anon_inode:", "/SYSV"];
/// Returns `said`, the number that the switch gives for its own process, if the number names the
/// switch here too; otherwise 0, which no process has.
pub fn of_switch(said: i64, skipped: &mut Vec<String>) -> i64 {
    if fs::read_to_string(format!("/proc/{said}/comm")).is_ok_and(|name| name.starts_with(SWITCH)) {
        return said;
    }
    skipped.push("the switch's process: it is in another PID namespace".to_owned());
    0
}

/// Returns the facts where no switch answers: the unit, and switches that have another control
/// socket.
pub fn ended() -> Ended {
    let mut reader = Reader::new();
    let mut others = Vec::new();
    for pid in reader.processes() {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        // Any user may give a program this name.
        let own = [0, rustix::process::geteuid().as_raw()];
        let is_own = |user: User| own.contains(&user.uid);
        if name.starts_with(SWITCH)
            && others.len() < MAX_SWITCHES
            && reader.user(pid).is_some_and(is_own)
        {
            others.extend(control_socket(&reader.words(pid)));
        }
    }
    let devices = vduse_devices(Path::new(VDPA));
    Ended { others, devices, ..unit::ended() }
}

/// Returns the control socket that a command line of the switch names, if the socket exists.
fn control_socket(words: &[String]) -> Option<String> {
    let after = |word: &&[String]| word[0] == "--control";
    let apart = words.windows(2).find(after).map(|pair| pair[1].clone());
    let joined = words.iter().find_map(|word| word.strip_prefix("--control=").map(str::to_owned));
    let printable = |path: &String| !path.contains(|c: char| c.is_whitespace() || c.is_control());
    apart.or(joined).filter(|path| printable(path) && Path::new(path).exists())
}

/// Returns the facts of the switch's own process.
pub fn daemon(pid: i64, skipped: &mut Vec<String>) -> Daemon {
    if pid == 0 {
        return Daemon::default();
    }
    let before = run_queue(pid);
    let began = Instant::now();
    let program = fs::read_link(format!("/proc/{pid}/exe"));
    if program.is_err() {
        skipped.push("the switch's program: not root".to_owned());
    }
    let replaced = program.is_ok_and(|path| path.to_string_lossy().ends_with(" (deleted)"));
    let unit = unit::of(pid);
    std::thread::sleep(LOOK.saturating_sub(began.elapsed()));
    let (after, looked) = (run_queue(pid), began.elapsed());
    let waits = after.into_iter().filter_map(|(thread, (name, waited))| {
        let (_, before) = before.get(&thread)?;
        Some((name, waited.saturating_sub(*before)))
    });
    let looked = u64::try_from(looked.as_nanos()).unwrap_or(u64::MAX);
    Daemon { replaced, unit, looked, waits: waits.collect() }
}

/// Returns the name of each worker by the thread's number, and for how long the worker was ready
/// and had no CPU, in nanoseconds.
fn run_queue(pid: i64) -> BTreeMap<String, (String, u64)> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let known = tasks.filter_map(|task| {
        let name = fs::read_to_string(task.path().join("comm")).ok()?;
        let times = fs::read_to_string(task.path().join("schedstat")).ok()?;
        let waited = times.split_whitespace().nth(1)?.parse().ok()?;
        let number = task.file_name().to_string_lossy().into_owned();
        name.starts_with(WORKER).then(|| (number, (name.trim().to_owned(), waited)))
    });
    known.collect()
}

/// Finds the front-end of each port, other processes that want to be the front-end, and the
/// directories on their way to the socket.
pub fn front_ends(daemon: i64, facts: &mut Facts) {
    let mut reader = Reader::new();
    // If the doctor may not look at the daemon's view, this program's view stands in.
    let view = View::of(daemon).or_else(View::own);
    for port in facts.ports.iter_mut().filter(|port| !port.is_uplink()) {
        let path = port.socket().to_owned();
        if port.is_silent() {
            let why = match port.is_looked_at() {
                true => "its file system does not answer",
                false => "not examined: the switch waits for other file systems",
            };
            facts.skipped.push(format!("{path}: {why}"));
            continue;
        }
        port.path = view.as_ref().map(|view| view.steps(Path::new(&path))).unwrap_or_default();
    }
    let wanting = wanting(daemon, &facts.ports, &mut reader);
    let (mut unread, mut unseen) = (false, false);
    for (at, port) in facts.ports.iter_mut().enumerate().filter(|(_, port)| !port.is_uplink()) {
        let pid = port.pid().map_or(0, i64::from);
        if pid > 0 {
            port.front_end = process(pid, port.socket(), &mut reader);
            if port.memory("hugetlb").next().is_some() {
                port.huge = reader.whole(pid, "smaps_rollup").as_deref().and_then(huge_bytes);
            }
            unread |= port.front_end.as_ref().is_none_or(|process| process.shared.is_none());
        }
        let Some(wanting) = wanting.get(&at).filter(|_| !port.is_silent()) else { continue };
        let path = Path::new(port.socket());
        let socket = view.as_ref().and_then(|view| view.identity(path));
        let line = ancestors(pid, &mut reader);
        let mut others = Vec::new();
        // An ancestor that started the front-end, with the same words, is no second front-end.
        for other in wanting.iter().filter(|other| !line.contains(other)) {
            let Some(theirs) = View::of(*other) else {
                unseen = true;
                continue;
            };
            // The path may lead to another socket in the view of the process, as in a container.
            if socket.is_some() && theirs.identity(path) == socket {
                let found = process(*other, port.socket(), &mut reader);
                others.extend(found.map(|found| Process { way: theirs.steps(path), ..found }));
            }
        }
        port.others = others;
    }
    if unread {
        facts.skipped.push("the memory of front-ends: not root".to_owned());
    }
    if unseen {
        facts.skipped.push("processes that name a socket: not root".to_owned());
    }
    facts.skipped.extend(reader.missed.map(str::to_owned));
}

/// Returns the processes that have a port's socket in their command line, by the port's index,
/// without this process and the switch. Any user may write any path in a command line, so only the
/// processes of users for whom the socket is count: its owner, its group, and root.
fn wanting(daemon: i64, ports: &[Port], reader: &mut Reader) -> BTreeMap<usize, Vec<i64>> {
    let of_port = |port: &Port| {
        let path = port.socket();
        let socket = port.path.last().filter(|step| step.path == path)?;
        Some((path.to_owned(), (socket.uid, socket.gid)))
    };
    let sockets: BTreeMap<String, (usize, (u32, u32))> = ports
        .iter()
        .enumerate()
        .filter_map(|(at, port)| of_port(port).map(|(path, ids)| (path, (at, ids))))
        .collect();
    let ids: BTreeSet<(u32, u32)> = sockets.values().map(|(_, ids)| *ids).collect();
    let is_for = |user: &User, (uid, gid): &(u32, u32)| {
        user.uid == 0 || user.uid == *uid || user.groups.contains(gid)
    };
    let own = i64::from(std::process::id());
    let mut found: BTreeMap<usize, Vec<i64>> = BTreeMap::new();
    for pid in reader.processes().into_iter().filter(|pid| *pid != own && *pid != daemon) {
        let Some(user) = reader.user(pid).filter(|user| ids.iter().any(|ids| is_for(user, ids)))
        else {
            continue;
        };
        for path in reader.words(pid).iter().flat_map(|word| sockets_named(word)) {
            if let Some((at, ids)) = sockets.get(&path)
                && is_for(&user, ids)
            {
                let others = found.entry(*at).or_default();
                if others.len() < MAX_OTHERS && others.last() != Some(&pid) {
                    others.push(pid);
                }
            }
        }
    }
    found
}

/// Returns the sockets that a word of a front-end's command line names.
fn sockets_named(word: &str) -> Vec<String> {
    let keys = ["path=", "socket=", "\"path\":\""];
    let all = keys.iter().flat_map(|key| word.match_indices(key));
    let values = all.map(|(at, key)| &word[at + key.len()..]);
    values.map(|value| value.split([',', '"']).next().unwrap_or_default().to_owned()).collect()
}

/// Returns a process and its ancestors.
fn ancestors(pid: i64, reader: &mut Reader) -> Vec<i64> {
    let line = std::iter::successors(Some(pid).filter(|pid| *pid > 0), |pid| reader.parent(*pid));
    line.take(MAX_GENERATIONS).collect()
}

/// Returns the facts of a process that names the port's socket.
fn process(pid: i64, socket: &str, reader: &mut Reader) -> Option<Process> {
    let User { uid, groups } = reader.user(pid)?;
    let maps = reader.whole(pid, "maps").filter(|maps| !maps.is_empty());
    Some(Process {
        pid,
        name: reader.whole(pid, "comm")?.trim().to_owned(),
        uid,
        groups,
        items: judged(&reader.words(pid), socket),
        shared: maps.map(|maps| shared_bytes(&maps)),
        way: Vec::new(),
    })
}

/// Returns the options of a command line that are judged: the port's card, and KVM.
fn judged(words: &[String], socket: &str) -> Vec<Item> {
    let items = &qemu::items(words);
    let Some(card) = qemu::card(items, socket) else { return of_cloud_hypervisor(words, socket) };
    let says_kvm =
        |item: &&Item| ["enable-kvm", "accel", "machine", "M"].contains(&item.option.as_str());
    let accelerators = items.iter().filter(says_kvm).take(MAX_ACCELERATORS);
    let card = [Some(card.chardev), card.netdev, card.device];
    card.into_iter().flatten().chain(accelerators).cloned().collect()
}

/// Returns the value of cloud-hypervisor's `--net` that is about a port.
fn of_cloud_hypervisor(words: &[String], socket: &str) -> Vec<Item> {
    let value = words.iter().map(|word| word.strip_prefix("--net=").unwrap_or(word));
    let net = value.map(|value| Item::new("net", value));
    let is_it = |item: &Item| item.is_on("vhost_user") && item.get("socket") == Some(socket);
    net.filter(is_it).take(1).collect()
}

/// Returns the bytes that a process maps writable and that other processes can map too.
fn shared_bytes(maps: &str) -> u64 {
    let length = |line: &str| -> Option<u64> {
        let mut fields = line.split_whitespace();
        let (from, to) = fields.next()?.split_once('-')?;
        let flags = fields.next()?;
        let name = fields.nth(3).unwrap_or_default();
        let counts = flags.starts_with("rw") && flags.ends_with('s');
        let device = DEVICES.iter().any(|begin| name.starts_with(begin))
            && !name.starts_with("/dev/shm/")
            && !name.starts_with("/dev/hugepages");
        let [from, to] = [from, to].map(|digits| u64::from_str_radix(digits, 16).ok());
        (counts && !device).then_some(to?.saturating_sub(from?))
    };
    maps.lines().filter_map(length).sum()
}

/// Returns the bytes on huge pages that a process has touched, from the process's `smaps_rollup`;
/// `None` if `smaps_rollup` does not tell.
fn huge_bytes(smaps: &str) -> Option<u64> {
    let kib = |line: &str| -> Option<u64> {
        let (key, rest) = line.split_once(':')?;
        let counts = key == "Shared_Hugetlb" || key == "Private_Hugetlb";
        rest.split_whitespace().next().filter(|_| counts)?.parse().ok()
    };
    let mut found = smaps.lines().filter_map(kib).peekable();
    found.peek()?;
    Some(found.sum::<u64>() << 10)
}

/// Returns a process that stands for a user who is to connect.
pub fn of_user(user: &str) -> Option<Process> {
    if user.starts_with('-') {
        return None;
    }
    let ask = |option: &str| tool::output(&["id", option, user]);
    let groups = ask("-G")?.split_whitespace().filter_map(|id| id.parse().ok()).collect();
    let uid = ask("-u")?.trim().parse().ok()?;
    Some(Process { name: user.to_owned(), uid, groups, ..Process::default() })
}

/// Returns the number of free huge pages, by their size in bytes.
pub(crate) fn free_huge_pages() -> BTreeMap<u64, u64> {
    let sizes = fs::read_dir("/sys/kernel/mm/hugepages").into_iter().flatten().flatten();
    let known = sizes.filter_map(|size| {
        let name = size.file_name().to_string_lossy().into_owned();
        let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        let free = fs::read_to_string(size.path().join("free_hugepages")).ok()?;
        Some((kib << 10, free.trim().parse().ok()?))
    });
    known.collect()
}

/// Returns the names of the VDUSE devices of all switches in a directory of vdpa devices. The
/// vendor of the virtio device below has a switch's mark (`sys::vduse::mark`).
pub(crate) fn vduse_devices(directory: &Path) -> Vec<String> {
    let named = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    let entries = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten();
    let is_marked = |device: &fs::DirEntry| {
        entries(&device.path()).any(|below| {
            let vendor = fs::read_to_string(below.path().join("vendor")).unwrap_or_default();
            vendor.trim_start().starts_with(MARK)
        })
    };
    let mut names: Vec<String> = entries(directory).filter(is_marked).map(named).collect();
    names.sort();
    names
}

/// Returns the command that enters the switch's network; empty if this program is in the switch's
/// network.
pub(crate) fn other_network(pid: i64) -> Vec<String> {
    let network = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/net")).ok();
    match (network(&pid.to_string()), network("self")) {
        (Some(theirs), Some(own)) if theirs != own => {
            vec!["nsenter".to_owned(), format!("--net=/proc/{pid}/ns/net")]
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_is_what_others_can_map() {
        let maps = "7f0000000000-7f0000400000 rw-s 00000000 00:01 5 /memfd:mem (deleted)\n\
                    7f0000400000-7f0000500000 rw-s 00000000 00:01 5 /dev/shm/x\n\
                    7f0001000000-7f0001400000 rw-p 00000000 00:00 0\n\
                    7f0002000000-7f0002003000 rw-s 00000000 00:0e 7 anon_inode:kvm-vcpu:0\n\
                    7f0003000000-7f0004000000 rw-s 00000000 00:05 9 /dev/vfio/1\n\
                    7f0005000000-7f0006000000 r--s 00000000 00:05 9 /usr/lib/x\nnonsense\n";
        assert_eq!(shared_bytes(maps), 5 << 20);
    }

    #[test]
    fn a_switchs_devices_are_told_from_those_of_others_by_their_vendor() {
        let directory = std::env::temp_dir().join(format!("vdpa-{}", std::process::id()));
        for (device, vendor) in [("web", "0x56530017\n"), ("dpdk", "0x0000\n")] {
            let below = directory.join(device).join("virtio0");
            fs::create_dir_all(&below).unwrap();
            fs::write(below.join("vendor"), vendor).unwrap();
        }
        fs::create_dir(directory.join("unconnected")).unwrap();
        let found = vduse_devices(&directory);
        fs::remove_dir_all(&directory).unwrap();
        assert_eq!(found, ["web"]);
        assert!(vduse_devices(&directory).is_empty());
    }

    #[test]
    fn huge_pages_are_those_that_were_touched() {
        let smaps = "7f00-7f40 ---p 0 00:00 0 [rollup]\nRss:  4096 kB\n\
                     Shared_Hugetlb:  2048 kB\nPrivate_Hugetlb:  4096 kB\nSwap:  0 kB\n";
        assert_eq!(huge_bytes(smaps), Some(6 << 20));
        assert_eq!(huge_bytes("Rss:  4096 kB\n"), None);
    }

    #[test]
    fn a_socket_is_found_in_a_command_line() {
        for (word, socket) in [
            ("socket,id=c,path=/run/vm1.sock,reconnect=1", "/run/vm1.sock"),
            ("vhost_user=on,socket=/run/vm1.sock", "/run/vm1.sock"),
            ("{\"addr\":{\"type\":\"unix\",\"path\":\"/run/vm1.sock\"}}", "/run/vm1.sock"),
            ("socket,path=/run/vm1.sock2", "/run/vm1.sock2"),
            ("path=", ""),
        ] {
            assert_eq!(sockets_named(word), [socket], "{word}");
        }
        assert!(sockets_named("/run/vm1.sock").is_empty());
    }

    #[test]
    fn of_a_command_line_the_card_is_kept() {
        let line = "-name x -chardev socket,id=c,path=/s -chardev socket,id=d,path=/t -netdev \
                    vhost-user,id=n,chardev=c -device virtio-net-pci,netdev=n -accel kvm -m 1G";
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let kept = judged(&words, "/s");
        let options: Vec<&str> = kept.iter().map(|item| item.option.as_str()).collect();
        assert_eq!(options, ["chardev", "netdev", "device", "accel"]);
        assert!(judged(&words, "/u").is_empty());
        let line = "cloud-hypervisor --memory size=1G,shared=on --net tap=t \
                    vhost_user=on,socket=/s,num_queues=2 \
                    --net=vhost_user=true,socket=/t,vhost_mode=server";
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let mode = |socket: &str| {
            let kept = judged(&words, socket);
            kept.first().map(|item| item.get("vhost_mode").unwrap_or("").to_owned())
        };
        assert_eq!(
            (mode("/s"), mode("/t"), mode("/u")),
            (Some("".into()), Some("server".into()), None)
        );
    }

    #[test]
    fn a_switch_names_its_control_socket() {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(
            control_socket(&words("vioswitchd --control=/dev/null")).as_deref(),
            Some("/dev/null")
        );
        assert_eq!(
            control_socket(&words("x --control /dev/null --poll")).as_deref(),
            Some("/dev/null")
        );
        assert_eq!(control_socket(&words("vioswitchd --control=/no/such/socket")), None);
        assert_eq!(control_socket(&words("vioswitchd --control")), None);
    }
}
