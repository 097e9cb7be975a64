//! What `/proc` and `/sys` tell of the switch's process, of front-ends, and of huge pages.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use super::facts::{Daemon, Facts, Process, Step, Unit};
use crate::qemu;
use crate::tool;

/// For how long the workers are watched.
const LOOK: Duration = Duration::from_millis(300);
/// What the switch's program calls itself, at its beginning.
const SWITCH: &str = "vioswitch";
/// Names of the data path's threads begin so.
const WORKER: &str = "worker-";
/// Processes between a front-end and the first one of all that are looked at.
const MAX_GENERATIONS: usize = 64;
/// Mappings of devices, which are no memory of a guest.
const DEVICES: [&str; 3] = ["/dev/", "anon_inode:", "/SYSV"];
/// Where units are that packages install.
const PACKAGED: [&str; 2] = ["/usr/lib/systemd/", "/lib/systemd/"];
/// The drop-in that docs/network.md has people install, who need it: to take it away would cut the
/// host off.
const MAKE_TAPS: &str = include_str!("../../../../scripts/systemd/make-taps.conf");

fn read(pid: i64, name: &str) -> Option<String> {
    fs::read(format!("/proc/{pid}/{name}"))
        .ok()
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// The switch's process by its own number, if that is its number here too; else 0, which no process
/// has.
pub fn of_switch(said: Option<i64>, skipped: &mut Vec<String>) -> i64 {
    let said = said.unwrap_or(0);
    if read(said, "comm").is_some_and(|name| name.starts_with(SWITCH)) {
        return said;
    }
    skipped.push("the switch's process: it is in another PID namespace".to_owned());
    0
}

/// What is known of the switch's own process.
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
    let unit = unit(pid);
    std::thread::sleep(LOOK.saturating_sub(began.elapsed()));
    let (after, looked) = (run_queue(pid), began.elapsed());
    let waits = after.into_iter().filter_map(|(thread, (name, waited))| {
        let (_, before) = before.get(&thread)?;
        Some((name, waited.saturating_sub(*before)))
    });
    let looked = u64::try_from(looked.as_nanos()).unwrap_or(u64::MAX);
    Daemon { replaced, unit, looked, waits: waits.collect() }
}

/// Name of each worker by its number, and how long it was ready and had no CPU, in nanoseconds.
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

/// The unit that a process belongs to, and what was made of it.
fn unit(pid: i64) -> Option<Unit> {
    let cgroup = read(pid, "cgroup")?;
    let name = cgroup.trim_end().rsplit('/').next()?;
    if !name.ends_with(".service") {
        return None;
    }
    let wanted = ["FragmentPath", "DropInPaths", "NeedDaemonReload", "MainPID"];
    let properties = wanted.map(|key| format!("--property={key}"));
    let mut words = vec!["systemctl", "show", name];
    words.extend(properties.iter().map(String::as_str));
    let said = tool::output(&words)?;
    let value = |key: &str| {
        let line = said.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        line.unwrap_or_default().to_owned()
    };
    // One who was started by a service is not the service.
    if value("MainPID") != pid.to_string() {
        return None;
    }
    let local = |path: &&str| !PACKAGED.iter().any(|begin| path.starts_with(begin));
    let fragment = value("FragmentPath");
    let mut overrides: Vec<String> =
        value("DropInPaths").split_whitespace().filter(local).map(str::to_owned).collect();
    overrides.retain(|path| !fs::read_to_string(path).is_ok_and(|text| says_make_taps(&text)));
    let packaged = || PACKAGED.iter().any(|dir| Path::new(dir).join("system").join(name).exists());
    if !fragment.is_empty() && local(&fragment.as_str()) && packaged() {
        overrides.push(fragment);
    }
    let stale = value("NeedDaemonReload") == "yes";
    Some(Unit { name: name.to_owned(), overrides, stale })
}

/// True if a drop-in says what the documented one does, whatever its comments.
fn says_make_taps(text: &str) -> bool {
    let settings = |text| {
        let lines = str::lines(text).map(str::trim);
        lines.filter(|line| !line.is_empty() && !line.starts_with(['#', ';'])).collect::<Vec<_>>()
    };
    settings(text) == settings(MAKE_TAPS)
}

/// The front-end of each port, who else wants to be it, and what is in their way.
pub fn front_ends(daemon: i64, facts: &mut Facts) {
    let mut unread = false;
    let candidates = candidates(daemon);
    for port in facts.ports.iter_mut().filter(|port| !port.is_tap()) {
        let pid = port.shown()["front_end"]["pid"].as_i64().unwrap_or(0);
        if pid > 0 {
            port.front_end = process(pid);
            if port.regions().iter().any(|region| region["backing"] == "hugetlb") {
                port.huge = read(pid, "smaps").as_deref().and_then(huge_bytes);
            }
            unread |= port.front_end.as_ref().is_none_or(|process| process.shared.is_none());
        }
        let path = port.socket().to_owned();
        port.path = steps(Path::new(&path));
        let wants = |words: &[String]| words.iter().any(|word| names_socket(word, &path));
        let wanting = candidates.iter().filter(|(other, words)| *other != pid && wants(words));
        // Who started it, with the same words, is no second one.
        let wanting = wanting.filter(|(other, _)| !is_ancestor(*other, pid));
        port.others = wanting.filter_map(|(other, _)| process(*other)).collect();
    }
    if unread {
        facts.skipped.push("the memory of front-ends: not root".to_owned());
    }
}

/// Processes with their command lines, without this one and the switch.
fn candidates(daemon: i64) -> Vec<(i64, Vec<String>)> {
    let own = i64::from(std::process::id());
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let all = all.filter_map(|entry| entry.file_name().to_string_lossy().parse::<i64>().ok());
    let others = all.filter(|pid| *pid != own && *pid != daemon);
    others.map(|pid| (pid, words(pid))).filter(|(_, words)| !words.is_empty()).collect()
}

fn words(pid: i64) -> Vec<String> {
    let line = read(pid, "cmdline").unwrap_or_default();
    line.split_terminator('\0').map(str::to_owned).collect()
}

/// True if a word is of a front-end's that is to connect to this socket.
fn names_socket(word: &str, path: &str) -> bool {
    let keys = ["path=", "socket=", "\"path\":\""];
    !path.is_empty()
        && keys.iter().any(|key| {
            word.match_indices(key).any(|(at, _)| {
                let rest = word[at + key.len()..].strip_prefix(path);
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([',', '"']))
            })
        })
}

/// True if `pid` descends from `above`.
fn is_ancestor(above: i64, pid: i64) -> bool {
    let parent = |pid: &i64| -> Option<i64> {
        let stat = read(*pid, "stat")?;
        // The name before may hold anything.
        stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse().ok()
    };
    let line = std::iter::successors(Some(pid).filter(|pid| *pid > 0), parent);
    line.take(MAX_GENERATIONS).any(|one| one == above)
}

fn process(pid: i64) -> Option<Process> {
    let status = read(pid, "status")?;
    let numbers = |key: &str| -> Vec<u32> {
        let line = status.lines().find_map(|line| line.strip_prefix(key));
        line.into_iter().flat_map(str::split_whitespace).filter_map(|n| n.parse().ok()).collect()
    };
    let mut groups = numbers("Groups:");
    groups.extend(numbers("Gid:").get(1));
    Some(Process {
        pid,
        name: read(pid, "comm")?.trim().to_owned(),
        uid: *numbers("Uid:").get(1)?,
        groups,
        items: qemu::items(&words(pid)),
        shared: read(pid, "maps").filter(|maps| !maps.is_empty()).map(|maps| shared_bytes(&maps)),
    })
}

/// Bytes that a process maps writable and others can map too.
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

/// Bytes on huge pages that a process has touched, by its `smaps`; none if that has nothing of it.
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

/// A user as one who is to connect.
pub fn of_user(user: &str) -> Option<Process> {
    if user.starts_with('-') {
        return None;
    }
    let ask = |option: &str| tool::output(&["id", option, user]);
    let groups = ask("-G")?.split_whitespace().filter_map(|id| id.parse().ok()).collect();
    let uid = ask("-u")?.trim().parse().ok()?;
    Some(Process { name: user.to_owned(), uid, groups, ..Process::default() })
}

/// What leads to a path, itself at the end, as far as it is there.
fn steps(path: &Path) -> Vec<Step> {
    let mut all: Vec<&Path> = path.ancestors().collect();
    all.reverse();
    let known = all.into_iter().map_while(|path| {
        let facts = fs::metadata(path).ok()?;
        let path = path.to_string_lossy().into_owned();
        Some(Step { path, mode: facts.mode(), uid: facts.uid(), gid: facts.gid() })
    });
    known.collect()
}

/// Huge pages that nobody has, by their size in bytes.
pub fn free_huge_pages() -> BTreeMap<u64, u64> {
    let sizes = fs::read_dir("/sys/kernel/mm/hugepages").into_iter().flatten().flatten();
    let known = sizes.filter_map(|size| {
        let name = size.file_name().to_string_lossy().into_owned();
        let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        let free = fs::read_to_string(size.path().join("free_hugepages")).ok()?;
        Some((kib << 10, free.trim().parse().ok()?))
    });
    known.collect()
}

/// What runs a program in the switch's network, where that is another one than this program's.
pub fn other_network(pid: i64) -> Vec<String> {
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
    fn the_documented_drop_in_is_no_override() {
        let by_hand = "[Service]\nAmbientCapabilities=CAP_NET_ADMIN\n\n\
            CapabilityBoundingSet=CAP_NET_ADMIN\n";
        assert!(says_make_taps(MAKE_TAPS) && says_make_taps(by_hand));
        assert!(!says_make_taps(&format!("{MAKE_TAPS}User=root\n")));
        assert!(!says_make_taps("") && !says_make_taps("[Service]\nLimitNOFILE=5\n"));
    }

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
    fn huge_pages_are_those_that_were_touched() {
        let smaps = "7f00-7f40 rw-s 0 00:01 5 /memfd:mem (deleted)\nSize:  4096 kB\n\
                     Shared_Hugetlb:  2048 kB\nPrivate_Hugetlb:  4096 kB\nVmFlags: rd wr\n\
                     7f50-7f60 rw-p 0 00:00 0\nShared_Hugetlb:  0 kB\nPrivate_Hugetlb:  0 kB\n";
        assert_eq!(huge_bytes(smaps), Some(6 << 20));
        assert_eq!(huge_bytes("Size:  4096 kB\n"), None);
    }

    #[test]
    fn a_socket_is_found_in_a_command_line() {
        for (word, found) in [
            ("socket,id=c,path=/run/vm1.sock,reconnect=1", true),
            ("vhost_user=on,socket=/run/vm1.sock", true),
            ("{\"addr\":{\"type\":\"unix\",\"path\":\"/run/vm1.sock\"}}", true),
            ("socket,path=/run/vm1.sock2", false),
            ("/run/vm1.sock", false),
        ] {
            assert_eq!(names_socket(word, "/run/vm1.sock"), found, "{word}");
        }
        assert!(!names_socket("path=", ""));
    }
}
