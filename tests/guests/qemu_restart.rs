//! The daemon is killed, and restarted by systemd, under a TCP stream: two guests reach each other
//! and the host again, the stream goes on, no guest reboots. After a kill they meet again within
//! 2.5 s. As a service no answer to the host's pings comes twice or is away for 1.5 s, the TAP
//! stays, and counters go on; a stop keeps nothing, and the next start serves the same names.
//!
//! Needs systemd.
//! `VIOSWITCH_LONG=1` kills 200 times and restarts 100 times instead of 3.

use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::lab::{HOST_IP4, Lab, TAP_MAC};
use crate::pair::{Pair, all_ping, arguments, boot, tidy, what_each_knows};
use crate::service::{self, Service};
use crate::talk::try_pings;
use crate::vm::{Qemu, SOON, Vm};
use crate::{alone, can_make_network, need_program, progress, skip, wait_for};
use testkit::counters::at_rest;

/// From the end of a daemon that was killed to an answer of one guest to the other: a front-end
/// that came too early tries again a second later. Every other round may be longer, when the
/// machine has no CPU to spare.
const BACK_AFTER_KILL: Duration = Duration::from_millis(2500);

/// Longest silence of a guest around a restart, as the host hears it: QEMU 7.2 connects again a
/// second after it was disconnected, and finds somebody to connect to whenever that is.
const SILENT_AT_RESTART: Duration = Duration::from_millis(1500);

/// What a guest has received so far, in bytes.
fn received(vm: &mut Vm) -> u64 {
    let said = vm.ok("cat /sys/class/net/eth0/statistics/rx_bytes");
    said.trim().parse().expect("a number of bytes")
}

/// The daemon is renewed under a stream, `rounds` times. Returns the times from the end of one
/// daemon until the guests met again, the shortest first.
fn renew(p: &mut Pair, rounds: u64, mut once: impl FnMut(&mut Pair)) -> Vec<Duration> {
    let (ip1, ip2) = (p.vm1.spec.ip4(), p.vm2.spec.ip4());
    let boot = "cat /proc/sys/kernel/random/boot_id";
    let boots = [p.vm1.ok(boot), p.vm2.ok(boot)];
    p.vm1.serve();
    p.vm2.ok(&format!("iperf3 -c {ip1} -t 86400 >/tmp/iperf 2>&1 & echo $! >/tmp/pid; sleep 0.5"));
    let started = || (received(&mut p.vm1) > 1_000_000).then_some(());
    wait_for("the stream to begin", Duration::from_secs(10), started);
    let mut silences = Vec::new();
    for round in 1..=rounds {
        // Another moment of the stream each time.
        std::thread::sleep(Duration::from_millis(37 * round % 400));
        let start = Instant::now();
        once(p);
        wait_for("the guests to meet again", Duration::from_secs(20), || {
            let (status, _) = p.vm2.run(&format!("ping -c 1 -W 1 {ip1}"), SOON);
            (status == 0).then_some(())
        });
        silences.push(start.elapsed());
        let before = received(&mut p.vm1);
        wait_for("the stream to go on", Duration::from_secs(20), || {
            (received(&mut p.vm1) > before + 1_000_000).then_some(())
        });
        let lost = [(&mut p.vm1, ip2.as_str()), (&mut p.vm2, HOST_IP4)]
            .into_iter()
            .find_map(|(vm, address)| try_pings(vm, address).err());
        if let Some(said) = lost {
            progress(&format!("round {round}: {said}\n{}", what_each_knows(p)));
            all_ping(p);
        }
    }
    p.vm2.ok("kill -0 $(cat /tmp/pid) && kill $(cat /tmp/pid)");
    assert_eq!([p.vm1.ok(boot), p.vm2.ok(boot)], boots, "a guest has rebooted");
    silences.sort();
    silences
}

/// The daemon dies and is started again: a case of `qemu`.
pub fn kills(p: &mut Pair) {
    let rounds = testkit::rounds(2, 3, 200);
    let back = renew(p, rounds, |p| {
        p.lab.kill_daemon();
        p.lab.start_daemon(&p.args);
        p.lab.configure_tap();
    });
    progress(&format!("killed {rounds} times; back after {back:.1?}"));
    assert!(back[(back.len() - 1) / 2] < BACK_AFTER_KILL, "back after {back:.1?}");
    tidy(p);
}

/// The host's pings to a guest, 20 a second, for the whole of a test.
struct Pings(Child);

/// What came of them.
struct Heard {
    answers: usize,
    duplicates: usize,
    silence: Duration,
}

impl Pings {
    fn start(lab: &Lab, ip: &str) -> Pings {
        let mut ping = lab.in_netns("ping");
        // Each line with the time at which its answer came.
        ping.args(["-D", "-i", "0.05", "-W", "10", ip]).stdout(Stdio::piped());
        Pings(ping.spawn().expect("start ping"))
    }

    fn finish(self, lab: &Lab) -> Heard {
        lab.sh(&format!("kill -INT {}", self.0.id()));
        let out = self.0.wait_with_output().expect("wait for ping");
        let said = String::from_utf8_lossy(&out.stdout);
        let answers: Vec<&str> = said.lines().filter(|line| line.contains("bytes from")).collect();
        let duplicates = answers.iter().filter(|line| line.contains("DUP!")).count();
        let time = |line: &&str| {
            let text = line.strip_prefix('[').and_then(|line| line.split(']').next());
            text.and_then(|text| text.parse::<f64>().ok()).expect("a time")
        };
        let times: Vec<f64> = answers.iter().map(time).collect();
        assert!(times.len() > 20, "{said}");
        let gaps = times.windows(2).map(|pair| pair[1] - pair[0]);
        let silence = Duration::from_secs_f64(gaps.fold(0.0, f64::max));
        Heard { answers: answers.len(), duplicates, silence }
    }
}

/// `systemctl restart`, with the unit as it is installed.
fn restarts(name: &str, qemu: Result<Qemu, String>) {
    let _alone = alone();
    let ready = can_make_network().and(need_program("iperf3")).and(service::can_run()).and(qemu);
    let qemu = match ready {
        Ok(qemu) => qemu,
        Err(missing) => {
            skip(&missing);
            return;
        }
    };
    let lab = Lab::new(name);
    let inside = ["vm1.sock", "vm2.sock"].map(|name| Path::new("/run/vioswitch").join(name));
    let args = arguments([&inside[0], &inside[1]], 1, false);
    let service = Service::start(&lab, &args);
    lab.configure_tap();
    let sockets = ["vm1.sock", "vm2.sock"].map(|name| service.socket(name));
    let mut p = boot(lab, qemu, args, sockets, 1, false);
    // Before the lab, at the end: what it said is in there.
    let service = service;
    all_ping(&mut p);
    // A guest asked in the very moment in which its link comes up forgets whom to answer, asks for
    // the host's address on a link that is not up yet, and does so again a second later.
    for vm in [&mut p.vm1, &mut p.vm2] {
        vm.ok(&format!("arp -s {HOST_IP4} {TAP_MAC}"));
    }
    let [ip1, ip2] = [&p.vm1, &p.vm2].map(|vm| vm.spec.ip4());
    let heard = [Pings::start(&p.lab, &ip1), Pings::start(&p.lab, &ip2)];
    let rounds = testkit::rounds(1, 3, 100);
    // Nobody configures the TAP again: it stays.
    let met = renew(&mut p, rounds, |_| drop(service.systemctl(&["restart", "vioswitchd"])));
    progress(&format!("restarted {rounds} times; the guests met after {met:.1?}"));
    for pings in heard {
        let Heard { answers, duplicates, silence } = pings.finish(&p.lab);
        progress(&format!("{answers} answers, {duplicates} twice, {silence:.2?} silence"));
        assert_eq!(duplicates, 0);
        assert!(silence < SILENT_AT_RESTART, "silent for {silence:?}");
    }
    let counters = at_rest(|| service.counters());
    counters.assert_balanced();
    // Counted on from process to process.
    assert_eq!(counters.get("vm1", "attaches"), rounds + 1);
    assert_eq!(service.show("NRestarts"), "0", "a restart by systemd");
    drop((p.vm1, p.vm2));
    service.systemctl(&["stop", "vioswitchd"]);
    assert_eq!(service.show("NFileDescriptorStore"), "0");
    // The directory outlives a stop, for the sockets that QEMU listens on in it; ours are names
    // without anybody behind them, which the next start replaces.
    let connect = || UnixStream::connect(service.socket("vm1.sock")).map_err(|error| error.kind());
    assert_eq!(connect().expect_err("nobody listens"), ErrorKind::ConnectionRefused);
    service.systemctl(&["start", "vioswitchd"]);
    connect().expect("somebody listens again");
    service.systemctl(&["stop", "vioswitchd"]);
}

#[test]
#[ignore = "full"]
fn service_restarted_qemu_7() {
    restarts("restart7", Qemu::system());
}

#[test]
#[ignore = "full"]
fn service_restarted_qemu_10() {
    restarts("restart10", Qemu::backported());
}
