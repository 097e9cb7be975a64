//! Frames between guests and a TAP: the real daemon on a real TAP in a network namespace of the
//! test's own. Guests on one side, a packet socket on the other.
//!
//! Needs root and `/dev/net/tun`; otherwise each test says that it was skipped.

use std::process::Command;
use std::time::Duration;

use testkit::SOON;
use testkit::host::{Host, in_namespace, index_of, ip};
use testkit::proc::{Daemon, wait_for};
use testkit::traffic::{self, Stream, To};
use testkit::vm::{Vm, VmConfig, mac_of};

mod trouble;
mod xdp;
mod xdp_load;

/// The station on the host's side, and another.
const HOST: u8 = 9;
const HOST2: u8 = 10;
const BROADCAST: [u8; 6] = [0xff; 6];
/// How long nothing may come where nothing must: hundreds of times what a frame takes.
const QUIET: Duration = Duration::from_millis(30);
/// Frames under way at once, far less than the queue of a TAP (500) holds.
const WINDOW: usize = 32;
/// The promise for a TAP that is up, or there, again.
const BACK_LIMIT: Duration = Duration::from_secs(1);
/// After so long the daemon knows a new MTU: a second, and a tick of the coarse clock.
const FOLLOWED: Duration = Duration::from_millis(1050);
/// Clock ticks (of 10 ms) the daemon may use in a second in which its TAP is gone: 5 %.
const IDLE_TICKS: u64 = 5;

fn daemon(ports: usize, taps: &[&str], extra: &[&str]) -> Daemon {
    let taps = taps.iter().flat_map(|&tap| ["--tap", tap]);
    let args: Vec<&str> = taps.chain(extra.iter().copied()).collect();
    Daemon::with(ports, &args)
}

fn connect(d: &Daemon, id: u8) -> Vm {
    let mut cfg = VmConfig::new(id);
    cfg.tx.max_frame = 9014;
    Vm::connect(&d.socket(id.into()), cfg)
}

/// Frame `seq` from one station to another, `len` bytes.
fn traced(sender: u8, to: To, flow: u8, seq: usize, len: usize) -> Vec<u8> {
    let mut frame = Vec::new();
    traffic::build(&Stream { sender, queue: 0, to, flow }, seq as u32, len, &mut frame);
    frame
}

fn plain(dst: [u8; 6], src: [u8; 6], mark: u8) -> Vec<u8> {
    let mut frame = [&dst[..], &src, &[0x88, 0xb5, mark]].concat();
    frame.resize(60 + usize::from(mark), mark);
    frame
}

/// Frames of these sizes from a guest to the station on the host's side, in order and unchanged.
fn to_host(vm: &mut Vm, host: &Host, sizes: &[usize]) {
    for (n, window) in sizes.chunks(WINDOW).enumerate() {
        let frame = |i: usize| traced(vm.cfg.id, To::Vm(HOST), (i % 2) as u8, n, window[i]);
        let frames: Vec<Vec<u8>> = (0..window.len()).map(frame).collect();
        frames.iter().for_each(|frame| vm.tx[0].send_waiting(frame, SOON));
        for frame in &frames {
            let got = host.receive(SOON);
            let got = got.unwrap_or_else(|| panic!("host missed {} bytes", frame.len()));
            assert!(got == *frame, "host: {} bytes differ, {} came", frame.len(), got.len());
        }
    }
}

/// The other way.
fn from_host(host: &Host, vm: &mut Vm, sizes: &[usize]) {
    let id = vm.cfg.id;
    for (n, window) in sizes.chunks(WINDOW).enumerate() {
        let frame = |i: usize| traced(HOST, To::Vm(id), (i % 2) as u8, n, window[i]);
        let frames: Vec<Vec<u8>> = (0..window.len()).map(frame).collect();
        frames.iter().for_each(|frame| host.send(frame));
        let mut expected = frames.iter();
        while expected.len() > 0 {
            let next = expected.as_slice()[0].len();
            assert!(vm.rx[0].wait(SOON), "guest {id} missed {next} bytes");
            vm.rx[0].recv(WINDOW, |_, got| {
                let frame = expected.next().expect("no more than was sent");
                assert!(got == frame, "guest {id}: {} bytes, {} came", frame.len(), got.len());
            });
        }
    }
}

/// All sides tell the switch where they are.
fn introduce(vms: &mut [&mut Vm], host: &Host) {
    for (i, vm) in vms.iter_mut().enumerate() {
        let hello = plain(BROADCAST, vm.mac(), i as u8);
        vm.tx[0].send_waiting(&hello, SOON);
        assert_eq!(host.receive(SOON), Some(hello), "the guest's broadcast");
        vm.tx[0].drain(SOON);
    }
    host.send(&plain(BROADCAST, mac_of(HOST), 99));
    for vm in vms {
        let mut came = false;
        while !came {
            assert!(vm.rx[0].wait(SOON), "the host's broadcast");
            vm.rx[0].recv(16, |_, frame| came = frame[14] == 99);
        }
    }
}

/// Frames of every length, between guests, the host and the TAP.
#[test]
fn frames_pass_both_ways_unchanged() {
    in_namespace(|| {
        for (workers, io) in [("1", "write"), ("1", "uring"), ("2", "write"), ("2", "uring")] {
            let d = daemon(2, &[&format!("up,ifname=tap0,io={io}")], &["--workers", workers]);
            assert!(!d.log().contains("no io_uring"), "{}", d.log());
            let host = Host::open("tap0");
            let (mut one, mut two) = (connect(&d, 0), connect(&d, 1));
            introduce(&mut [&mut one, &mut two], &host);
            let sizes: Vec<usize> = (14..=1514).collect();
            to_host(&mut one, &host, &sizes);
            from_host(&host, &mut two, &sizes);
            ip("link set tap0 mtu 9000");
            std::thread::sleep(FOLLOWED);
            let mut sizes: Vec<usize> = (1515..=9014).step_by(61).collect();
            sizes.extend([1518, 2047, 2048, 2049, 4095, 4096, 4097, 8191, 8192, 9013, 9014]);
            to_host(&mut two, &host, &sizes);
            from_host(&host, &mut one, &sizes);
            let c = d.counters();
            c.balance();
            assert_eq!(c.drops(None, "in") + c.drops(None, "out") + c.drops(None, ""), 0, "{c:?}");
            assert_eq!(c.sum(Some("up"), "out", "frames"), 2 + 1501 + sizes.len() as u64);
            d.stop();
        }
    });
}

/// A switch with guests and host stations, and who gets what.
struct Lan {
    d: Daemon,
    vms: Vec<Vm>,
    hosts: Vec<Host>,
    mark: u8,
}

/// A place on the switch.
#[derive(Clone, Copy)]
enum At {
    Guest(usize),
    Tap(usize),
}

impl Lan {
    fn new(guests: u8, taps: &[&str], extra: &[&str]) -> Lan {
        let names: Vec<String> = taps.iter().map(|name| format!("{name},ifname={name}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let d = daemon(guests.into(), &names, extra);
        assert!(wait_for(SOON, || d.log().contains("ready: ")), "{}", d.log());
        let hosts = taps.iter().map(|name| Host::open(name)).collect();
        let vms = (0..guests).map(|id| connect(&d, id)).collect();
        Lan { d, vms, hosts, mark: 0 }
    }

    /// Sends one frame and checks that exactly these receive it, unchanged and once.
    fn expect(&mut self, from: At, dst: [u8; 6], src: [u8; 6], guests: &[usize], taps: &[usize]) {
        self.mark = self.mark.wrapping_add(1);
        let frame = plain(dst, src, self.mark);
        match from {
            At::Guest(i) => self.vms[i].tx[0].send_waiting(&frame, SOON),
            At::Tap(i) => self.hosts[i].send(&frame),
        }
        for &i in guests {
            assert!(self.vms[i].rx[0].wait(SOON), "guest {i} missed {:02x?}", &frame[..15]);
            self.vms[i].rx[0].recv(1, |_, got| assert_eq!(got, frame, "guest {i}"));
        }
        for &i in taps {
            assert_eq!(self.hosts[i].receive(SOON).as_ref(), Some(&frame), "tap {i}");
        }
        std::thread::sleep(QUIET);
        for (i, vm) in self.vms.iter_mut().enumerate() {
            vm.rx[0].recv(1, |_, got| panic!("guest {i} got {:02x?}", &got[..15]));
        }
        for (i, host) in self.hosts.iter().enumerate() {
            assert_eq!(host.receive(Duration::ZERO), None, "tap {i}");
        }
    }
}

#[test]
fn addresses_are_learned_on_both_sides() {
    in_namespace(|| {
        let mut lan = Lan::new(3, &["tap0"], &[]);
        let (guest, host) = (mac_of(0), mac_of(HOST));
        // Nobody is known: to all others, the TAP among them.
        lan.expect(At::Guest(0), host, guest, &[1, 2], &[0]);
        // The flood taught where the guest is, the answer teaches where the host is.
        lan.expect(At::Tap(0), guest, host, &[0], &[]);
        lan.expect(At::Guest(0), host, guest, &[], &[0]);
        lan.expect(At::Guest(1), host, mac_of(1), &[], &[0]);
        lan.expect(At::Tap(0), mac_of(1), mac_of(HOST2), &[1], &[]);
        lan.expect(At::Tap(0), mac_of(2), host, &[0, 1, 2], &[]);
        // Two stations behind the TAP find each other there.
        lan.expect(At::Tap(0), host, mac_of(HOST2), &[], &[]);
        // A station moves from behind the TAP into a guest, and back.
        lan.expect(At::Guest(2), BROADCAST, mac_of(HOST2), &[0, 1], &[0]);
        lan.expect(At::Guest(1), mac_of(HOST2), mac_of(1), &[2], &[]);
        lan.expect(At::Tap(0), BROADCAST, mac_of(HOST2), &[0, 1, 2], &[]);
        lan.expect(At::Guest(1), mac_of(HOST2), mac_of(1), &[], &[0]);
        let c = lan.d.counters();
        assert_eq!(c.sum(Some("up"), "in", "drop.hairpin"), 0);
        assert_eq!(c.sum(Some("tap0"), "in", "drop.hairpin"), 1);
        lan.d.stop();
    });
}

#[test]
fn broadcast_and_multicast_reach_guests_and_host() {
    in_namespace(|| {
        let mut lan = Lan::new(3, &["tap0"], &[]);
        for dst in [BROADCAST, [1, 0, 0x5e, 0, 0, 1], [0x33, 0x33, 0, 0, 0, 1]] {
            lan.expect(At::Guest(1), dst, mac_of(1), &[0, 2], &[0]);
            lan.expect(At::Tap(0), dst, mac_of(HOST), &[0, 1, 2], &[]);
        }
        // What no bridge forwards, and what no station sends, from the TAP too.
        lan.expect(At::Tap(0), [1, 0x80, 0xc2, 0, 0, 0], mac_of(HOST), &[], &[]);
        lan.expect(At::Tap(0), mac_of(0), BROADCAST, &[], &[]);
        lan.expect(At::Tap(0), mac_of(0), [0; 6], &[], &[]);
        lan.d.counters().balance();
        lan.d.stop();
    });
}

/// Two TAPs may end in the same bridge: forwarding between them would be a loop.
#[test]
fn uplinks_are_kept_apart() {
    in_namespace(|| {
        let mut lan = Lan::new(2, &["tap0", "tap1"], &[]);
        lan.expect(At::Tap(0), BROADCAST, mac_of(HOST), &[0, 1], &[]);
        lan.expect(At::Tap(1), BROADCAST, mac_of(HOST2), &[0, 1], &[]);
        lan.expect(At::Tap(0), mac_of(HOST2), mac_of(HOST), &[], &[]);
        lan.expect(At::Tap(0), To::Unknown.mac(), mac_of(HOST), &[0, 1], &[]);
        lan.expect(At::Guest(0), BROADCAST, mac_of(0), &[1], &[0, 1]);
        lan.expect(At::Guest(0), mac_of(HOST2), mac_of(0), &[], &[1]);
        let c = lan.d.counters();
        assert_eq!(c.sum(Some("tap0"), "in", "drop.uplink_to_uplink"), 1, "{c:?}");
        lan.d.stop();
    });
}

#[test]
fn uplinks_are_joined_when_asked() {
    in_namespace(|| {
        let mut lan = Lan::new(2, &["tap0", "tap1"], &["--uplink-to-uplink"]);
        lan.expect(At::Tap(0), BROADCAST, mac_of(HOST), &[0, 1], &[1]);
        lan.expect(At::Tap(1), BROADCAST, mac_of(HOST2), &[0, 1], &[0]);
        lan.expect(At::Tap(0), mac_of(HOST2), mac_of(HOST), &[], &[1]);
        lan.expect(At::Tap(1), mac_of(HOST), mac_of(HOST2), &[], &[0]);
        lan.d.stop();
    });
}

/// An uplink alone, guests or none, is a valid switch.
#[test]
fn taps_without_ports() {
    in_namespace(|| {
        let mut lan = Lan::new(0, &["tap0", "tap1"], &["--uplink-to-uplink"]);
        lan.expect(At::Tap(0), BROADCAST, mac_of(HOST), &[], &[1]);
        lan.d.stop();
    });
}

/// `frames` of one queue of a port, as last logged.
fn queue_frames(d: &Daemon, port: &str, queue: usize, side: &str) -> u64 {
    let head = format!("] port {port} queue {queue} {side} frames ");
    let log = d.log();
    let last = log.lines().rev().find_map(|line| line.split_once(&head));
    last.map_or(0, |(_, tail)| tail.split(' ').next().unwrap_or("").parse().expect("number"))
}

/// Frames of many flows, so that the kernel spreads them over the TAP's queues.
fn many_flows(host: &Host, vm: &mut Vm, count: u16) {
    let frame = |i: u16| {
        let mut frame = traced(HOST, To::Vm(vm.cfg.id), 1, i.into(), 200);
        // The UDP source port, behind Ethernet and IPv4.
        frame[34..36].copy_from_slice(&(10_000 + i).to_be_bytes());
        frame
    };
    let frames: Vec<Vec<u8>> = (0..count).map(frame).collect();
    for window in frames.chunks(WINDOW) {
        window.iter().for_each(|frame| host.send(frame));
        // Queues are read side by side: nothing is said of the order of flows.
        let mut missing: Vec<&Vec<u8>> = window.iter().collect();
        while !missing.is_empty() {
            assert!(vm.rx[0].wait(SOON), "{} frames missing", missing.len());
            vm.rx[0].recv(WINDOW, |_, got| {
                let found = missing.iter().position(|frame| *frame == got);
                missing.remove(found.expect("a frame that was sent"));
            });
        }
    }
}

#[test]
fn several_queues_and_workers() {
    queues_and_workers("up,ifname=tap0,queues=2");
}

#[test]
fn several_queues_and_workers_with_a_call_for_each_frame() {
    queues_and_workers("up,ifname=tap0,queues=2,io=write");
}

fn queues_and_workers(tap: &str) {
    in_namespace(|| {
        let d = daemon(2, &[tap], &["--workers", "2"]);
        let host = Host::open("tap0");
        let (mut one, mut two) = (connect(&d, 0), connect(&d, 1));
        introduce(&mut [&mut one, &mut two], &host);
        for round in 0..4 {
            many_flows(&host, if round % 2 == 0 { &mut one } else { &mut two }, 128);
        }
        to_host(&mut one, &host, &[60; 100]);
        to_host(&mut two, &host, &[1514; 100]);
        // A worker counts a burst after it has delivered it, and may lose its CPU in between.
        let mut c = d.counters();
        wait_for(SOON, || {
            c = d.counters();
            c.sum(Some("up"), "out", "frames") >= 2 + 200
        });
        c.balance();
        assert_eq!(c.drops(None, "in") + c.drops(None, "out") + c.drops(None, ""), 0, "{c:?}");
        assert_eq!(c.sum(Some("up"), "in", "frames"), 1 + 4 * 128);
        assert_eq!(c.sum(Some("up"), "out", "frames"), 2 + 200);
        for queue in 0..2 {
            let frames = |side| queue_frames(&d, "up", queue, side);
            assert!(frames("in") > 100, "queue {queue} is not used\n{}", d.log());
            // Each worker writes to a queue of its own: both have a guest to serve.
            assert!(frames("out") >= 100, "queue {queue} is not written to\n{}", d.log());
        }
        d.stop();
    });
}

/// An interface of the administrator is attached to, left as it is, and there when we are gone.
#[test]
fn a_persistent_interface_stays() {
    in_namespace(|| {
        for (multi, queues) in [("", 1), (" multi_queue", 1), (" multi_queue", 2)] {
            ip(&format!("tuntap add dev tap0 mode tap{multi}"));
            let index = index_of("tap0");
            let d = daemon(1, &[&format!("up,ifname=tap0,queues={queues}")], &["--workers", "2"]);
            assert!(d.log().contains("attached to interface tap0"), "{}", d.log());
            // Whether it is up is the administrator's affair.
            assert!(!ip("-o link show tap0").contains(",UP"));
            ip("link set tap0 up");
            assert!(ip("-o link show tap0").contains("qdisc noqueue"));
            let (host, mut vm) = (Host::open("tap0"), connect(&d, 0));
            introduce(&mut [&mut vm], &host);
            to_host(&mut vm, &host, &[60, 1514]);
            if queues == 1 {
                from_host(&host, &mut vm, &[60, 1514]);
            } else {
                many_flows(&host, &mut vm, 64);
            }
            d.stop();
            assert_eq!(index_of("tap0"), index, "still there");
            ip("link del tap0");
        }
    });
}

/// The kernel closes the rings of a process that was killed at a time of its own; the next one
/// has the interface all the same.
#[test]
fn a_killed_switch_leaves_the_interface_to_the_next() {
    in_namespace(|| {
        ip("tuntap add dev tap0 mode tap");
        ip("link set tap0 up");
        let mut d = daemon(1, &["up,ifname=tap0,io=uring"], &[]);
        for killed in 1..=10 {
            let (host, mut vm) = (Host::open("tap0"), connect(&d, 0));
            introduce(&mut [&mut vm], &host);
            to_host(&mut vm, &host, &[60; 64]);
            drop(vm);
            d.kill();
            d.restart();
            let attached = || d.log().matches("attached to interface tap0").count();
            assert!(wait_for(BACK_LIMIT, || attached() > killed), "{}", d.log());
        }
        d.stop();
    });
}

#[test]
fn an_interface_of_our_own_goes_with_us() {
    in_namespace(|| {
        for queues in [1, 4] {
            let d = daemon(1, &[&format!("up,ifname=tap0,queues={queues}")], &[]);
            let shown = ip("-o link show tap0");
            assert!(shown.contains(",UP") && shown.contains("qdisc noqueue"), "{shown}");
            assert!(d.log().contains("created interface tap0"), "{}", d.log());
            d.stop();
            assert_eq!(index_of("tap0"), None);
        }
    });
}

/// Status 1 and a line that names port, interface and reason.
#[test]
fn interfaces_that_cannot_serve_are_refused() {
    in_namespace(|| {
        let refusal = |tap: &str| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_vioswitchd"));
            let output = command.args(["--tap", tap]).output().expect("run");
            assert_eq!(output.status.code(), Some(1), "{output:?}");
            String::from_utf8(output.stderr).expect("UTF-8")
        };
        ip("tuntap add dev tun0 mode tun");
        ip("tuntap add dev tap0 mode tap");
        let cases = [
            ("up,ifname=lo", "tap up: interface lo: exists and is not a TAP"),
            ("up,ifname=tun0", "tap up: interface tun0: exists and is not a TAP"),
            ("up,ifname=tap0,queues=2", "tap up: interface tap0: exists with a single queue"),
        ];
        for (tap, expected) in cases {
            let text = refusal(tap);
            assert!(text.contains(expected) && text.lines().count() == 1, "{text}");
        }
        for queues in ["", ",queues=2"] {
            let d = daemon(1, &[&format!("up,ifname=own{queues}")], &[]);
            let text = refusal(&format!("up,ifname=own{queues}"));
            let holder = format!("interface own: in use by vioswitchd (pid {}): ", d.pid());
            assert!(text.contains(&holder), "{text}");
            d.stop();
        }
    });
}
