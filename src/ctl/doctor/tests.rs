//! The doctor finds each fault of a healthy host by the fault's own code, and by no other code.

use api::diagnosis;
use api::wire::{Region, State, Status};
use serde_json::json;

use super::facts::{Daemon, Ended, Facts, Forward, Found, Host, Peer, Port, Process, Step, Unit};
use super::findings::word;
use super::*;
use crate::filters::check;
use crate::links::Link;
use crate::qemu;

const SOCKET: &str = "/run/vioswitch/vm1.sock";

fn step(path: &str, mode: u32, uid: u32, gid: u32) -> Step {
    Step { path: path.to_owned(), mode, uid, gid }
}

fn qemu(more: &str, netdev: &str, device: &str) -> Process {
    let line = format!(
        "-chardev socket,id=c,path={SOCKET}{more} -netdev vhost-user,id=n,chardev=c{netdev} \
         -device virtio-net-pci,netdev=n{device} -accel kvm"
    );
    let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    Process {
        pid: 4711,
        name: "qemu".to_owned(),
        uid: 64055,
        groups: vec![103],
        items: qemu::items(&words),
        shared: Some(1 << 30),
        way: Vec::new(),
    }
}

fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("as the switch says it")
}

fn guest() -> Port {
    let shown = json!({
        "name": "vm1", "kind": "port", "origin": "config", "state": "attached", "queues": 2,
        "mtu": 1500, "front_end": {"pid": 4711, "uid": 64055}, "learn_refused": 0,
        "in": {"frames": 10, "drops": {}}, "out": {"frames": 10, "drops": {"no_buffer": 1}},
    });
    let memory = [("memfd", "0x0", 4096), ("hugetlb", "0x100000000", 2 << 20)];
    let memory = memory.map(|(backing, address, page)| {
        json!({"address": address, "bytes": 1 << 30, "backing": backing, "page": page})
    });
    Port {
        details: read(json!({
            "port": shown,
            "socket": {"path": SOCKET, "mode": "0660", "uid": 999, "gid": 103},
            "session": {"features": ["version_1"], "protocol_features": [], "memory": memory},
            "rings": [{"index": 0, "started": true}, {"index": 1, "started": true}],
        })),
        keys: [("queues", "2"), ("mtu", "1500"), ("mode", "server")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        found: None,
        front_end: Some(qemu(",reconnect=1", ",queues=2", ",mq=on,vectors=6")),
        others: Vec::new(),
        huge: None,
        path: vec![
            step("/", 0o40755, 0, 0),
            step("/run/vioswitch", 0o40755, 999, 999),
            step(SOCKET, 0o140660, 999, 103),
        ],
    }
}

fn uplink() -> Port {
    let shown = json!({
        "name": "up", "kind": "tap", "origin": "config", "state": "attached", "interface": "vio0",
        "out": {"frames": 0, "drops": {}}, "in": {"frames": 0, "drops": {}},
    });
    Port { details: read(json!({"port": shown, "rings": []})), ..Port::default() }
}

fn link(name: &str, master: Option<&str>) -> Link {
    read(json!({
        "ifname": name, "master": master, "flags": ["UP"], "mtu": 1500, "qdisc": "noqueue",
        "addr_info": [],
    }))
}

/// Returns the facts of a host without a fault, on which faults are possible.
fn healthy() -> Facts {
    Facts {
        client_version: "1.0".to_owned(),
        status: Status { version: "1.0".to_owned(), pid: 1, ..Status::default() },
        ports: vec![guest(), uplink()],
        reload: Some(Ok(Vec::new())),
        daemon: Daemon {
            looked: 100,
            waits: vec![("worker-0".to_owned(), 10)],
            unit: Some(Unit { name: "vioswitchd.service".to_owned(), ..Unit::default() }),
            ..Daemon::default()
        },
        host: Host {
            links: vec![link("vio0", Some("br0")), link("br0", None), link("eth1", Some("br0"))],
            qdiscs: [("eth1", "fq_codel"), ("vio0", "noqueue")]
                .map(|(name, kind)| {
                    (name.to_owned(), vec![read(json!({"kind": kind, "root": true}))])
                })
                .into(),
            bridge_filtered: true,
            forward: Some(Forward { drops: true, docker: true, accepts: vec!["br0".to_owned()] }),
            free_huge: [(2 << 20, 1)].into(),
            ..Host::default()
        },
        ..Facts::default()
    }
}

fn codes(facts: &Facts) -> Vec<String> {
    judge(facts).into_iter().map(|finding| finding.code).collect()
}

fn memory(facts: &mut Facts) -> &mut Vec<Region> {
    &mut facts.ports[0].details.session.as_mut().expect("a session").memory
}

type Fault = (&'static str, fn(&mut Facts));

const OF_SWITCH: [Fault; 11] = [
    ("version-differs", |facts| facts.status.version = "0.9".to_owned()),
    ("program-replaced", |facts| facts.daemon.replaced = true),
    ("config-bad", |facts| facts.reload = Some(Err("line 3".to_owned()))),
    ("config-differs", |facts| {
        facts.reload = Some(Ok(vec![read(json!({"sign": "+", "kind": "port", "name": "vm2"}))]));
    }),
    ("reload-unconfirmed", |facts| {
        facts.status.unconfirmed = read(json!({"seconds": 9, "pid": 4711, "uid": 0}));
    }),
    ("unit-stale", |facts| facts.daemon.unit.as_mut().expect("a unit").stale = true),
    ("unit-overridden", |facts| {
        facts.daemon.unit.as_mut().expect("a unit").overrides.push("/etc/x.conf".to_owned());
    }),
    ("worker-starved", |facts| facts.daemon.waits[0].1 = 30),
    ("interface-elsewhere", |facts| {
        let found = Some(Found { ifname: "eth1".to_owned(), netns: String::new() });
        let mut port = Port { found, ..Port::default() };
        port.details.port.kind = "vduse".to_owned();
        facts.ports.push(port);
    }),
    ("device-left", |facts| facts.host.devices = vec!["vm1".to_owned(), "gone".to_owned()]),
    ("filter-at-odds", |facts| {
        facts.filters.push(check::FilterFault {
            name: "web".to_owned(),
            ports: vec!["vm1".to_owned()],
            drops: false,
            cause: "rule 2 never matches".to_owned(),
            command: "vioswitchctl filter show web".to_owned(),
        });
    }),
];

const OF_GUEST: [Fault; 12] = [
    ("socket-missing", |facts| {
        facts.ports[0].path.pop();
        facts.ports[0].details.socket.as_mut().expect("a socket").mode = None;
    }),
    ("socket-directory", |facts| {
        facts.ports[0].path[1].mode = 0o40750;
        facts.ports[0].others.push(Process { pid: 0, uid: 7, ..Process::default() });
    }),
    ("socket-permission", |facts| {
        facts.ports[0].others.push(Process { pid: 0, uid: 7, ..Process::default() });
    }),
    ("socket-shared", |facts| {
        facts.ports[0].others.push(Process { pid: 4712, ..qemu("", "", "") });
    }),
    ("memory-not-shared", |facts| {
        memory(facts).clear();
        facts.ports[0].front_end.as_mut().expect("a process").shared = Some(0);
    }),
    ("huge-pages-short", |facts| {
        facts.ports[0].huge = Some(1 << 29);
    }),
    ("ring-never-started", |facts| {
        facts.ports[0].details.rings = read(json!([{"index": 0, "started": false}]));
        facts.ports[0].details.port.state = State::Negotiating;
    }),
    ("no-reconnect", |facts| {
        facts.ports[0].front_end = Some(qemu("", ",queues=2", ",mq=on"));
    }),
    ("no-reconnect", |facts| {
        let net = format!("vhost_user=on,socket={SOCKET}");
        let items = vec![qemu::Item::new("net", &net)];
        facts.ports[0].front_end.as_mut().expect("a process").items = items;
    }),
    ("queues-unused", |facts| {
        facts.ports[0].front_end = Some(qemu(",reconnect-ms=9", ",queues=2", ",vectors=6"));
    }),
    ("queues-unused", |facts| {
        facts.ports[0].front_end = Some(qemu(",reconnect-ms=9", "", ""));
    }),
    ("vectors-few", |facts| {
        facts.ports[0].front_end = Some(qemu(",reconnect=1", ",queues=2", ",mq=on,vectors=3"));
    }),
];

const OF_UPLINK: [Fault; 9] = [
    ("bridge-down", |facts| facts.host.links[1].flags.clear()),
    ("tap-alone", |facts| {
        facts.host.links[0] = link("vio0", None);
        facts.host.links[0].addr_info = read(json!([{"scope": "link"}]));
    }),
    ("mtu-differs", |facts| facts.host.links[2].mtu = 1400),
    ("mtu-differs", |facts| drop(facts.ports[0].keys.insert("mtu".to_owned(), "9000".to_owned()))),
    ("tap-queues", |facts| facts.host.links[0].qdisc = "fq_codel".to_owned()),
    ("checksums-unfinished", |facts| {
        let peer = Peer { leaves_sums: true, peer_has_program: true, ..Peer::default() };
        facts.host.peers.insert("eth1".to_owned(), peer);
    }),
    ("checksums-unfinished", |facts| {
        facts.ports[1].details.port.kind = "xdp".to_owned();
        let peer = Peer { peer_leaves_sums: true, ..Peer::default() };
        facts.host.peers.insert("vio0".to_owned(), peer);
    }),
    ("tap-lock", |facts| {
        facts.host.spread.insert("eth1".to_owned(), "RSS");
    }),
    ("forward-drop", |facts| {
        facts.host.forward.as_mut().expect("a firewall").accepts.clear();
    }),
];

#[test]
fn a_healthy_host_has_no_finding() {
    let facts = healthy();
    assert_eq!(codes(&facts), Vec::<String>::new());
    assert_eq!(lines(&facts, &[]), "OK    the switch\nOK    vm1\nOK    up\n");
    assert_eq!(as_value(&facts, &[])["result"], "ok");
}

#[test]
fn each_fault_is_found_by_its_own_code() {
    for (code, fault) in OF_SWITCH.into_iter().chain(OF_GUEST).chain(OF_UPLINK) {
        let mut facts = healthy();
        fault(&mut facts);
        assert_eq!(codes(&facts), [code]);
        let findings = judge(&facts);
        assert!(!findings[0].cause.is_empty() && !findings[0].command.is_empty(), "{code}");
        assert!(lines(&facts, &findings).contains(code));
    }
}

/// Root of a container names the container's end of a veth pair as he likes.
#[test]
fn a_name_of_the_other_end_is_never_a_command() {
    let mut facts = healthy();
    facts.ports[1].details.port.kind = "xdp".to_owned();
    let enter_peer = ["nsenter", "--net=/proc/7/ns/net"].map(str::to_owned).to_vec();
    let peer = ";reboot;".to_owned();
    let peer = Peer { peer_leaves_sums: true, peer, enter_peer, ..Peer::default() };
    facts.host.peers.insert("vio0".to_owned(), peer);
    let command = "nsenter --net=/proc/7/ns/net ethtool -K ';reboot;' tx off txvlan off";
    assert_eq!(judge(&facts)[0].command, command);
}

/// A state that only looks like a fault has no finding.
#[test]
fn what_is_meant_so_is_no_finding() {
    let harmless: [fn(&mut Facts); 10] = [
        // No huge page is free, and the guest has all of its huge pages.
        |facts| {
            facts.host.free_huge.clear();
            facts.ports[0].huge = Some(1 << 30);
        },
        // As many huge pages are free as the guest may yet want.
        |facts| {
            facts.host.free_huge.insert(2 << 20, 256);
            facts.ports[0].huge = Some(1 << 29);
        },
        // cloud-hypervisor listens.
        |facts| {
            let net = format!("vhost_user=on,socket={SOCKET},vhost_mode=server");
            let items = vec![qemu::Item::new("net", &net)];
            facts.ports[0].front_end.as_mut().expect("a process").items = items;
        },
        // A stack of the kernel is at the other end, and finishes checksums itself.
        |facts| {
            let peer = Peer { leaves_sums: true, peer_leaves_sums: true, ..Peer::default() };
            facts.host.peers.insert("eth1".to_owned(), peer);
        },
        // A stream has no memory, nor a ring.
        |facts| {
            let port = &mut facts.ports[0];
            port.details.port.kind = "stream".to_owned();
            port.details.session = None;
            port.details.rings = read(json!([{"index": 0}]));
            port.front_end.as_mut().expect("a process").shared = Some(0);
        },
        // QEMU listens, so QEMU need not connect again.
        |facts| {
            facts.ports[0].front_end = Some(qemu(",server=on,wait=off", ",queues=2", ",mq=on"));
        },
        // No front-end is connected yet.
        |facts| {
            facts.ports[0].front_end = None;
            facts.ports[0].details.port.front_end = None;
            facts.ports[0].details.port.state = State::Listening;
        },
        // Root may enter every directory.
        |facts| {
            facts.ports[0].path[1].mode = 0o40700;
            facts.ports[0].others.push(Process::default());
        },
        // A TAP with an address leads to the host.
        |facts| {
            facts.host.links[0] = link("vio0", None);
            facts.host.links[0].addr_info = read(json!([{"scope": "global"}]));
        },
        // The front-end is another program than QEMU, so the doctor knows less of the front-end.
        |facts| facts.ports[0].front_end.as_mut().expect("a process").items.clear(),
    ];
    for change in harmless {
        let mut facts = healthy();
        change(&mut facts);
        assert_eq!(codes(&facts), Vec::<String>::new());
    }
}

/// The doctor does not repeat the switch's finding about a guest's memory. The finding also
/// explains that no ring is started.
#[test]
fn memory_that_the_switch_misses_is_told_once() {
    let mut facts = healthy();
    memory(&mut facts).clear();
    let port = &mut facts.ports[0];
    port.front_end.as_mut().expect("a process").shared = Some(0);
    port.details.rings = read(json!([{"index": 0, "started": false}]));
    port.details.port.state = State::Negotiating;
    facts.findings = vec![read(json!({
        "level": "fail", "code": "memory-not-shared", "port": "vm1", "with": [], "cause": "c",
        "command": "d",
    }))];
    assert_eq!(codes(&facts), ["memory-not-shared"]);
}

/// The doctor lists the switch's own findings among the rest, as the switch tells them.
#[test]
fn findings_of_the_switch_are_among_the_rest() {
    let mut facts = healthy();
    OF_SWITCH[0].1(&mut facts);
    facts.findings = vec![read(json!({
        "level": "fail", "code": "of-later", "port": "vm1", "with": ["up"], "cause": "c",
        "command": "d",
    }))];
    assert_eq!(codes(&facts), ["of-later", "version-differs"]);
    let findings = judge(&facts);
    assert!(lines(&facts, &findings).starts_with("FAIL  of-later  vm1: c\n      d\nWARN"));
    let told = as_value(&facts, &findings);
    assert_eq!(
        (&told["findings"][0]["with"], &told["healthy_ports"]),
        (&json!(["up"]), &json!([]))
    );
}

#[test]
fn the_worst_comes_first() {
    let mut facts = healthy();
    for (_, fault) in [OF_SWITCH[0], OF_SWITCH[2]] {
        fault(&mut facts);
    }
    assert_eq!(codes(&facts), ["config-bad", "version-differs"]);
    let told = as_value(&facts, &judge(&facts));
    assert_eq!((&told["result"], &told["findings"][0]["level"]), (&json!("fail"), &json!("fail")));
    assert_eq!(told["healthy_ports"], json!(["vm1", "up"]));
}

/// A process's own words lead to a warning, and no command opens a directory to all.
#[test]
fn a_process_that_names_a_socket_fails_nothing() {
    let mut facts = healthy();
    let other = |way| Process { pid: 9, uid: 7, groups: vec![103], way, ..qemu("", "", "") };
    let way =
        |directory, socket| vec![step("/run", directory, 0, 0), step(SOCKET, socket, 999, 103)];
    for (way, code) in [
        (way(0o40750, 0o140660), "socket-directory"),
        (way(0o40755, 0o140600), "socket-permission"),
        (way(0o40755, 0o140660), "socket-shared"),
    ] {
        facts.ports[0].others = vec![other(way)];
        let findings = judge(&facts);
        assert_eq!((&*findings[0].code, findings[0].level, findings.len()), (code, Level::Warn, 1));
        assert!(!findings[0].command.contains("chmod"), "{findings:?}");
    }
    // The name of a process is no line of the doctor.
    facts.ports[0].others[0].name = "x\nFAIL  degraded  all is lost".to_owned();
    let text = lines(&facts, &judge(&facts));
    assert!(text.lines().all(|line| !line.starts_with("FAIL")), "{text}");
}

/// If no switch answers, the finding tells how the switch's unit ended.
#[test]
fn a_switch_that_ended_is_told_of_with_its_end() {
    let failure = Failure::connect(Path::new("/x"), &std::io::ErrorKind::NotFound.into());
    let told = |ended: &Ended| judge_ended(&failure, ended, Path::new("/x")).remove(0);
    let failed = Ended {
        unit: "vioswitchd.service".to_owned(),
        state: "failed (failed)".to_owned(),
        result: "exit-code".to_owned(),
        status: "2".to_owned(),
        said: vec!["bad line 3".to_owned()],
        others: Vec::new(),
        devices: Vec::new(),
    };
    let finding = told(&failed);
    let cause = "no switch at /x; vioswitchd.service is failed (failed), exit-code, status 2; its \
                 log ends with: bad line 3";
    assert_eq!((&*finding.code, &*finding.cause), ("switch-absent", cause));
    assert!(finding.command.contains("systemctl status vioswitchd.service"), "{finding:?}");
    let active = Ended { state: "active (running)".to_owned(), ..failed };
    assert!(told(&active).command.contains("--control PATH"));
    let inactive = Ended { state: "inactive (dead)".to_owned(), ..active };
    assert_eq!(told(&inactive).command, "systemctl start vioswitchd.service");
    // Without a unit the command is a start by hand, or names the switch that runs with another
    // socket.
    assert_eq!(told(&Ended::default()).command, "vioswitchd --control /x");
    let others = vec!["/run/other".to_owned()];
    let elsewhere = Ended { others, ..Ended::default() };
    assert_eq!(told(&elsewhere).command, "vioswitchctl --control /run/other doctor");
    // Any user chooses the command line of a process.
    let elsewhere = Ended { others: vec!["/tmp/;reboot;".to_owned()], ..elsewhere };
    assert_eq!(told(&elsewhere).command, "vioswitchctl --control '/tmp/;reboot;' doctor");
}

/// Devices outlive their switch.
#[test]
fn the_devices_of_an_ended_switch_are_listed_with_their_removal() {
    let failure = Failure::connect(Path::new("/x"), &std::io::ErrorKind::NotFound.into());
    let ended = Ended { devices: vec!["web".to_owned()], ..Ended::default() };
    let findings = judge_ended(&failure, &ended, Path::new("/x"));
    let told: Vec<_> = findings.iter().map(|one| (&*one.code, &*one.command)).collect();
    assert_eq!(told[1..], [("device-left", "vdpa dev del web")]);
}

/// Returns the codes in the first column of a page's tables, from a heading on, and the first word
/// of the second column.
fn first_column<'p>(page: &'p str, from: &str) -> Vec<(&'p str, String)> {
    let part = &page[page.find(from).expect("a heading")..];
    let rows = part.lines().filter_map(|line| line.strip_prefix('`')?.split_once("` | "));
    let mut told: Vec<_> = rows
        .map(|(code, rest)| (code, rest.split(' ').next().unwrap_or_default().to_owned()))
        .collect();
    told.sort_unstable();
    told
}

/// Returns all codes with their levels.
fn all_codes() -> Vec<(&'static str, String)> {
    let all = OF_SWITCH.into_iter().chain(OF_GUEST).chain(OF_UPLINK);
    let found = all.map(|(code, fault)| {
        let mut facts = healthy();
        fault(&mut facts);
        (code, word(judge(&facts)[0].level))
    });
    // The finding `switch-absent` needs no facts of a switch.
    let found = found.chain([("switch-absent", "FAIL".to_owned())]);
    // The switch itself makes the findings with these codes.
    let own = diagnosis::CODES.iter().map(|code| (code.name, word(code.level)));
    let mut found: Vec<_> = found.chain(own).collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// The page that programs and people rely on has all codes, and no other codes. The page has a code
/// once, even if both a guest and an uplink may have the code.
#[test]
fn every_code_is_documented() {
    let page = include_str!("../../../docs/doctor.md");
    let told = first_column(page, "## The switch");
    assert_eq!(told, all_codes());
}

/// A test makes a fault of each code for real, and expects the code.
#[test]
fn every_code_has_a_fault_that_is_made() {
    let tests = [
        include_str!("../../../tests/process/control/doctor.rs"),
        include_str!("../../../tests/process/control/doctor_peers.rs"),
        include_str!("../../../tests/process/control/filters.rs"),
        include_str!("../../../tests/process/control/findings.rs"),
        include_str!("../../../tests/process/control/kept.rs"),
        include_str!("../../../tests/process/control/tenants.rs"),
        include_str!("../../../tests/process/control/unconfirmed.rs"),
        include_str!("../../../tests/process/control/why.rs"),
        include_str!("../../../tests/process/sandbox/told.rs"),
        include_str!("../../../tests/guests/attach.rs"),
        include_str!("../../../scripts/lib/selftests/vduse.sh"),
    ];
    for (code, _) in all_codes() {
        let expected = [format!("\"{code}\""), format!("\"{code}\\\"")];
        let made = |test: &str| expected.iter().any(|word| test.contains(word));
        assert!(tests.into_iter().any(made), "no test expects {code}");
    }
}
