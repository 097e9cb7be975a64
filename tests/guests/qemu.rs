//! Linux guests under QEMU 7.2 and 10.0 talk through the switch: and go on after what may happen to
//! a guest, to its QEMU and to the daemon. Ping and iperf3 between guests and to the host; the
//! cable is pulled, an interface set down and up, the number of queue pairs changed; a guest is
//! paused, saved and restored, its memory grows and shrinks, it loses its driver and its card and
//! reboots (`qemu_machine`). QEMU is killed and started again under load: a bystander loses at most
//! one ping in a hundred. The daemon is killed (`qemu_restart`), and leaves in good order. With
//! QEMU 10.0 the switch is also the client.
//!
//! Each QEMU has one pair of guests, with IPv4 and IPv6, and the host behind a TAP.
//! `VIOSWITCH_LONG=1` kills QEMU 50 times and the daemon 200 times instead of 3 times each.

use std::process::{Child, Stdio};
use std::time::Duration;

use crate::cases::Case;
use crate::lab::{HOST_IP4, Lab, port};
use crate::pair::{Pair, all_ping, finish, pair, tidy};
use crate::talk::{Iperf, answers, iperf, pings};
use crate::vm::{Attach, BOOT_LIMIT, LISTENING, Qemu, SOON, Vm, VmSpec};
use crate::{beside_another, cases, progress, qemu_machine, qemu_restart, skip, wait_for};

/// Bytes in each direction that iperf3 must add to the counters: far below an emulated guest's
/// 20 MB/s, and below the bare acknowledgements of a second, of which a busy machine needs fewer
/// (7,500 were seen).
const IPERF_FLOOR_BYTES: u64 = 2_000;

fn talk(p: &mut Pair) {
    all_ping(p);
    let (ip1, ip2) = (p.vm1.spec.ip4(), p.vm2.spec.ip4());
    let before = p.lab.counters();
    p.vm1.serve();
    p.vm2.serve();
    let there = iperf(&mut p.vm1, &ip2, "-t 1").rate;
    let back = iperf(&mut p.vm1, &ip2, "-t 1 -R").rate;
    let other = iperf(&mut p.vm2, &ip1, "-t 1").rate;
    // A guest that lacks CPU sends less, and loses nothing; a stall would last.
    let is_steady = |udp: &Iperf| udp.rate > 4000.0 && udp.lost.is_some_and(|lost| lost < 20.0);
    let mut udp = || iperf(&mut p.vm2, &ip1, "-t 2 -u -b 5M -l 1400");
    let first = udp();
    let udp = if is_steady(&first) { first } else { udp() };
    let serve = format!("iperf3 -s -1 -D; {LISTENING}");
    let _server = p.lab.in_netns("timeout").args(["20", "sh", "-c", &serve]).status().expect("sh");
    let up = iperf(&mut p.vm1, HOST_IP4, "-t 1").rate;
    progress(&format!(
        "iperf3 TCP {there:.0}, reverse {back:.0}, other way {other:.0}, to the host {up:.0} \
         kbit/s; UDP {:.0} kbit/s, lost {:?} %",
        udp.rate, udp.lost
    ));
    for rate in [there, back, other, up] {
        assert!(rate > 1000.0, "TCP crawls at {rate} kbit/s");
    }
    // 5 Mbit/s is 450 frames a second; a loss of more than a fifth is a stall, not noise.
    assert!(is_steady(&udp), "{udp:?}");
    let counters = p.lab.counters();
    for port in ["vm1", "vm2", "uplink"] {
        for direction in ["in bytes", "out bytes"] {
            let bytes = counters.get(port, direction) - before.get(port, direction);
            assert!(bytes > IPERF_FLOOR_BYTES, "{port} {direction} {bytes}: {counters:#?}");
        }
    }
    tidy(p);
}

/// Pulls and plugs the second guest's cable, and lets the guest shut its own interface.
fn cable(p: &mut Pair) {
    let ip1 = p.vm1.spec.ip4();
    let set = |up| format!(r#""execute":"set_link","arguments":{{"name":"net","up":{up}}}"#);
    for _ in 0..2 {
        p.vm2.qmp(&set(false));
        wait_carrier(&mut p.vm2, "0");
        assert!(!answers(&mut p.vm2, &ip1), "frames pass a pulled cable");
        p.vm2.qmp(&set(true));
        wait_carrier(&mut p.vm2, "1");
        // The ARP entry may still be waiting for answers to questions that the guest's kernel threw
        // away while the cable was out, and for a second after (linkwatch). With the last of these
        // it throws away what waits, all of three close pings.
        let plugged = || answers(&mut p.vm2, &ip1).then_some(());
        wait_for("an answer through the cable", Duration::from_secs(20), plugged);
        pings(&mut p.vm2, &ip1);
    }
    // With its interface down a guest forgets its addresses of IPv6.
    let ip6 = p.vm2.spec.ip6();
    p.vm2.ok(&format!(
        "ip link set eth0 down && sleep 1 && ip link set eth0 up && \
         ip -6 addr add {ip6}/64 dev eth0"
    ));
    pings(&mut p.vm2, &ip1);
    pings(&mut p.vm1, &p.vm2.spec.ip4());
    tidy(p);
}

fn wait_carrier(vm: &mut Vm, wanted: &str) {
    wait_for("the carrier", Duration::from_secs(20), || {
        let (_, carrier) = vm.run("cat /sys/class/net/eth0/carrier", SOON);
        (carrier.trim() == wanted).then_some(())
    });
}

/// Frames that the second guest has sent on one of its queues.
fn sent_on(p: &mut Pair, queue: u16) -> u64 {
    p.lab.counters().get("vm2", &format!("in {queue} frames"))
}

/// The second guest gives up its second queue pair, takes it back and uses both.
fn queues(p: &mut Pair) {
    let ip1 = p.vm1.spec.ip4();
    for pairs in [1, 2, 1, 2] {
        p.vm2.ok(&format!("ethtool -L eth0 combined {pairs}"));
        let said = p.vm2.ok("ethtool -l eth0");
        let current = said.lines().rfind(|line| line.starts_with("Combined:")).unwrap_or("");
        assert!(current.ends_with(&pairs.to_string()), "{said}");
        pings(&mut p.vm2, &ip1);
    }
    // The kernel gives each CPU a TX queue of its own.
    for queue in 0..2 {
        let before = sent_on(p, queue);
        let mask = 1 << queue;
        let said = p.vm2.ok(&format!("taskset {mask} ping -c 10 -i 0.1 -W 8 {ip1}"));
        assert!(said.contains("10 packets received"), "from CPU {queue}: {said}");
        let sent = sent_on(p, queue) - before;
        assert!(sent >= 10, "queue {queue} sent only {sent} frames");
    }
    tidy(p);
}

/// A host's ping to the guest that stays, for as long as the other one dies and returns.
struct Bystander(Child);

impl Bystander {
    fn start(p: &Pair) -> Bystander {
        let mut ping = p.lab.in_netns("ping");
        ping.args(["-q", "-i", "0.1", "-W", "10", &p.vm1.spec.ip4()]).stdout(Stdio::piped());
        Bystander(ping.spawn().expect("start ping"))
    }

    /// Fails if more than one question in a hundred went unanswered.
    fn finish(self, lab: &Lab) {
        lab.sh(&format!("kill -INT {}", self.0.id()));
        let out = self.0.wait_with_output().expect("wait for ping");
        let said = String::from_utf8_lossy(&out.stdout);
        let numbers: Vec<u64> = said
            .lines()
            .filter(|line| line.contains("packets transmitted"))
            .flat_map(|line| line.split_whitespace().filter_map(|word| word.parse().ok()))
            .collect();
        let [sent, received, ..] = numbers[..] else { panic!("ping says no numbers: {said}") };
        assert!(sent > 10 && (sent - received) * 100 <= sent, "bystander: {said}");
        progress(&format!("the bystander lost {} of {sent}", sent - received));
    }
}

/// QEMU dies under load and starts again on the same port, time after time.
fn kills(p: &mut Pair) {
    let (ip1, ip2) = (p.vm1.spec.ip4(), p.vm2.spec.ip4());
    let bystander = Bystander::start(p);
    p.vm1.ok(&format!("ping -s 1400 -i 0.01 {ip2} >/dev/null 2>&1 &"));
    let rounds = testkit::rounds(1, 3, 50);
    for round in 1..=rounds {
        p.vm2.ok(&format!("ping -s 1400 -i 0.01 {ip1} >/dev/null 2>&1 & sleep 0.5"));
        p.vm2.power_cycle(&p.lab, &p.qemu);
        p.vm2.wait_ready();
        // Guest 1 has asked for the one that was gone all the time. Until it knows where that is
        // again, its kernel keeps a few packets and drops the others, answers among them.
        let met = (0..5).any(|_| answers(&mut p.vm2, &ip1));
        assert!(met, "no answer from {ip1}");
        pings(&mut p.vm2, &ip1);
        pings(&mut p.vm1, &ip2);
        progress(&format!("QEMU killed and back, {round} of {rounds}"));
    }
    bystander.finish(&p.lab);
    tidy(p);
}

/// The daemon leaves in good order while both guests send; they lose their cable, no more. They
/// have it back with the next daemon.
fn leave_first(p: &mut Pair) {
    let (ip1, ip2) = (p.vm1.spec.ip4(), p.vm2.spec.ip4());
    for (vm, other) in [(&mut p.vm1, &ip2), (&mut p.vm2, &ip1)] {
        vm.ok(&format!("ping -s 1400 -i 0.01 {other} >/dev/null 2>&1 & sleep 0.5"));
    }
    p.lab.stop_daemon();
    p.vm1.ok("true");
    p.vm2.ok("true");
    p.lab.start_daemon(&p.args);
    p.lab.configure_tap();
    wait_for("an answer", BOOT_LIMIT, || answers(&mut p.vm2, &ip1).then_some(()));
    tidy(p);
}

/// What two guests and the switch between them go through. First what leaves them as they are.
const CASES: [Case<Pair>; 13] = [
    ("talking", talk),
    ("cable pulled", cable),
    ("queue pairs changed", queues),
    ("memory in another shape", qemu_machine::shapes),
    ("paused and resumed", qemu_machine::pauses),
    ("saved and restored", qemu_machine::snapshots),
    ("memory plugged and unplugged", qemu_machine::memory),
    ("without its driver", qemu_machine::drivers),
    ("without its network card", qemu_machine::network_cards),
    ("reset and rebooted", qemu_machine::reboots),
    ("QEMU killed", kills),
    ("daemon killed", qemu_restart::kills),
    ("daemon leaves first", leave_first),
];

/// With `listens` the daemon is the client of the second guest's socket. The short run has one case
/// of each QEMU.
fn cases(name: &str, qemu: Result<Qemu, String>, listens: bool, short: &str) {
    let _beside = beside_another();
    let all = testkit::rounds(false, true, true);
    let chosen: Vec<_> = CASES.into_iter().filter(|case| all || case.0 == short).collect();
    assert!(!chosen.is_empty(), "no case of that name");
    cases::run(|| pair(name, qemu.clone(), 2, listens), &chosen, finish);
}

#[test]
fn two_guests_qemu_7() {
    cases("pair7", Qemu::system(), false, "talking");
}

#[test]
fn two_guests_qemu_10() {
    cases("pair10", Qemu::backported(), true, "daemon killed");
}

/// `-m 256` and nothing else, which most have tried first; and more queue pairs than the port has.
/// QEMU runs on, or leaves with a line of its own: the switch says what is missing.
fn mistaken(name: &str, qemu: Result<Qemu, String>) {
    let _beside = beside_another();
    let qemu = match qemu {
        Ok(qemu) => qemu,
        Err(missing) => return skip(&missing),
    };
    let mut lab = Lab::without_network(name);
    let socket = lab.path("vm1.sock");
    lab.start_daemon(&port("vm1", &socket, ""));
    let card = |pairs| VmSpec {
        name: "vm1",
        number: 1,
        socket: socket.clone(),
        attach: Attach::Connects,
        pairs,
        device: "",
    };
    let cases = [
        (1, "", "has sent no guest memory: it is not shared. QEMU: -object memory-backend-memfd"),
        (3, ",queues=3", "offered 2 queue pairs at most, and left without a ring"),
    ];
    for (pairs, netdev, line) in cases {
        let nic = card(pairs).nic(&qemu);
        let mut machine = qemu.unshared(&socket, netdev, &nic).spawn().expect("start QEMU");
        wait_for(line, BOOT_LIMIT, || lab.complaints().contains(line).then_some(()));
        let _ = machine.kill();
        let _ = machine.wait();
    }
    let complaints = lab.complaints();
    assert_eq!(complaints.matches(cases[0].2).count(), 1, "{complaints}");
    progress(complaints.trim_end());
}

#[test]
#[ignore = "full"]
fn mistakes_with_qemu_7_are_named() {
    mistaken("mistaken-7", Qemu::system());
}

#[test]
#[ignore = "full"]
fn mistakes_with_qemu_10_are_named() {
    mistaken("mistaken-10", Qemu::backported());
}
