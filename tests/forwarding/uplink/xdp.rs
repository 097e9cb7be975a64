//! Frames past the host's network stack: the real daemon at one end of a veth pair, by a program in
//! the interface's driver and by one in the kernel, and a packet socket at the other end.

use std::time::{Duration, Instant};

use testkit::host::{HEADER_LEN, Host, in_namespace, index_of, ip, veth_up};
use testkit::proc::{Daemon, wait_for};
use testkit::traffic::To;
use testkit::vnet::Header;

use super::trouble::bursts_while_down;
use super::*;

/// A frame that fills the kernel's part of a chunk.
const LONGEST: usize = 3_840;
/// In which the kernel is asked what it dropped: a second, a tick of the coarse clock, and a frame.
const ASKED: Duration = Duration::from_millis(1_100);

/// A veth pair: `wire`, which is the switch's, and `peer`, each with so many queues and this MTU.
fn pair(queues: u16, mtu: u32) {
    let each = format!("mtu {mtu} numrxqueues {queues} numtxqueues {queues}");
    ip(&format!("link add wire {each} type veth peer name peer {each}"));
    veth_up(["wire", "peer"]);
}

/// A switch with so many guests, and `wire` as uplink `up` with these keys.
fn switch(guests: usize, keys: &str, extra: &[&str]) -> Daemon {
    let xdp = format!("up,ifname=wire{keys}");
    let args = ["--xdp", &xdp].into_iter().chain(extra.iter().copied());
    let d = Daemon::with(guests, &args.collect::<Vec<_>>());
    assert!(wait_for(SOON, || d.log().contains("ready: ")), "{}", d.log());
    d
}

fn program() -> bool {
    ip("link show wire").contains(" xdp ")
}

fn dropped(d: &Daemon, way: &str, reason: &str) -> u64 {
    d.counters().sum(Some("up"), way, &format!("drop.{reason}"))
}

/// Nothing was dropped, and the books balance.
fn nothing_lost(d: &Daemon) {
    let c = d.counters();
    c.balance();
    assert_eq!(c.drops(None, "in") + c.drops(None, "out") + c.drops(None, ""), 0, "{c:?}");
}

/// Frames of every length, in order.
#[test]
fn frames_pass_both_ways_unchanged() {
    in_namespace(|| {
        for (mode, workers) in [("native", "1"), ("generic", "1"), ("native", "2"), ("auto", "2")] {
            pair(1, 1500);
            let d = switch(2, &format!(",mode={mode}"), &["--workers", workers]);
            assert!(d.log().contains("xdp up: attached to interface wire"), "{}", d.log());
            let host = Host::open("peer");
            let (mut one, mut two) = (connect(&d, 0), connect(&d, 1));
            introduce(&mut [&mut one, &mut two], &host);
            let sizes: Vec<usize> = (14..=1514).collect();
            to_host(&mut one, &host, &sizes);
            from_host(&host, &mut two, &sizes);
            nothing_lost(&d);
            assert_eq!(d.counters().sum(Some("up"), "out", "frames"), 2 + 1501);
            d.stop();
            ip("link del wire");
        }
    });
}

/// As long as a chunk holds, and not one byte more; what the kernel drops is counted.
#[test]
fn frames_of_a_chunk_and_longer_ones() {
    in_namespace(|| {
        pair(1, 3818);
        let d = switch(1, ",mode=generic", &[]);
        let (mut vm, host) = (connect(&d, 0), Host::open("peer"));
        introduce(&mut [&mut vm], &host);
        let sizes: Vec<usize> = (1514..3_832).step_by(61).chain([2048, 2049, 3_832]).collect();
        to_host(&mut vm, &host, &sizes);
        from_host(&host, &mut vm, &sizes);
        nothing_lost(&d);
        // Later the MTUs are made larger, against advice.
        ip("link set wire mtu 9000");
        ip("link set peer mtu 9000");
        std::thread::sleep(FOLLOWED);
        to_host(&mut vm, &host, &[3_833, LONGEST, 4_084]);
        from_host(&host, &mut vm, &[3_833, LONGEST]);
        for len in [LONGEST + 1, 4_096, 4_097, 9_014] {
            host.send(&traced(HOST, To::Vm(0), 0, 0, len));
        }
        for len in [4_085, 4_096, 9_014] {
            vm.tx[0].send_waiting(&traced(0, To::Vm(HOST), 0, 0, len), SOON);
        }
        std::thread::sleep(ASKED);
        from_host(&host, &mut vm, &[60]);
        to_host(&mut vm, &host, &[60]);
        assert!(wait_for(SOON, || dropped(&d, "in", "xdp_full") == 4), "{:?}", d.counters());
        assert!(wait_for(SOON, || dropped(&d, "out", "xdp_rejected") == 3), "{:?}", d.counters());
        d.counters().balance();
        d.stop();
    });
}

/// A larger MTU has the interface opened anew, with room for longer frames; one that is too large
/// leaves it in service as it is.
#[test]
fn an_mtu_that_grows() {
    in_namespace(|| {
        pair(1, 1500);
        let d = switch(1, ",mode=generic", &[]);
        let (mut vm, host) = (connect(&d, 0), Host::open("peer"));
        introduce(&mut [&mut vm], &host);
        let mut pass = |sizes: &[usize]| {
            to_host(&mut vm, &host, sizes);
            from_host(&host, &mut vm, sizes);
        };
        let set = |mtu: u32| {
            ["wire", "peer"].iter().for_each(|end| drop(ip(&format!("link set {end} mtu {mtu}"))));
        };
        for mtu in [1770, 9000, 1500] {
            set(mtu);
            std::thread::sleep(FOLLOWED);
            pass(&[60, 1514]);
        }
        assert!(!d.log().contains("again"), "{}", d.log());
        set(3818);
        assert!(wait_for(SOON, || d.log().contains("attached to interface wire again")));
        pass(&[60, 1514, 1785, 2048, 3_832]);
        assert!(!d.log().contains("is gone"), "{}", d.log());
        nothing_lost(&d);
        d.stop();
    });
}

/// Packets of many segments come in one piece where a peer leaves segmentation to others: none is
/// delivered in part, each is counted, and frames behind them pass.
#[test]
fn packets_larger_than_any_chunk_are_dropped_by_name() {
    in_namespace(|| {
        pair(1, 1500);
        let d = switch(1, ",mode=generic", &[]);
        let (mut vm, host) = (connect(&d, 0), Host::open_with_headers("peer"));
        let plain_host = Host::open("peer");
        introduce(&mut [&mut vm], &plain_host);
        let mut tcp = [&vm.mac()[..], &mac_of(HOST), &[8, 0, 0x45, 0]].concat();
        tcp.extend(60_000u16.to_be_bytes());
        tcp.extend([0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        tcp.extend([0; 12]);
        tcp.extend([0x50, 0x10]);
        tcp.resize(14 + 60_000, 0);
        let header = Header {
            flags: 1,
            gso_type: 1,
            hdr_len: 54,
            gso_size: 1446,
            csum_start: 34,
            csum_offset: 16,
            ..Header::default()
        };
        for _ in 0..5 {
            let bytes = [&header.bytes(HEADER_LEN)[..], &tcp].concat();
            host.try_send(&bytes).expect("send");
        }
        std::thread::sleep(ASKED);
        from_host(&plain_host, &mut vm, &[60, 1514]);
        assert!(wait_for(SOON, || dropped(&d, "in", "xdp_full") == 5), "{:?}", d.counters());
        d.counters().balance();
        d.stop();
    });
}

#[test]
fn several_queues_and_workers() {
    in_namespace(|| {
        for mode in ["native", "generic"] {
            pair(2, 1500);
            let d = switch(2, &format!(",queues=2,mode={mode}"), &["--workers", "2"]);
            let host = Host::open("peer");
            let (mut one, mut two) = (connect(&d, 0), connect(&d, 1));
            introduce(&mut [&mut one, &mut two], &host);
            for round in 0..4 {
                many_flows(&host, if round % 2 == 0 { &mut one } else { &mut two }, 128);
            }
            to_host(&mut one, &host, &[60; 100]);
            to_host(&mut two, &host, &[1514; 100]);
            let sent = || d.counters().sum(Some("up"), "out", "frames");
            assert!(wait_for(SOON, || sent() >= 2 + 200), "{:?}", d.counters());
            nothing_lost(&d);
            assert_eq!(d.counters().sum(Some("up"), "in", "frames"), 1 + 4 * 128);
            for queue in 0..2 {
                let frames = |side| queue_frames(&d, "up", queue, side);
                // A veth pair has all frames come by the first queue where the kernel runs the
                // program.
                let used = mode == "generic" || frames("in") > 50;
                assert!(used, "queue {queue} is not used\n{}", d.log());
                assert!(frames("out") >= 100, "queue {queue} is not written to\n{}", d.log());
            }
            d.stop();
            ip("link del wire");
        }
    });
}

/// More workers than queues: each collects its frames by itself.
#[test]
fn several_workers_at_one_queue() {
    in_namespace(|| {
        pair(1, 1500);
        let d = switch(2, "", &["--workers", "2"]);
        let host = Host::open("peer");
        let (mut one, mut two) = (connect(&d, 0), connect(&d, 1));
        introduce(&mut [&mut one, &mut two], &host);
        let frame = |id: u8, seq| traced(id, To::Vm(HOST), 0, seq, 200);
        for round in 0..64 {
            for n in 0..WINDOW {
                assert!(one.tx[0].queue(&frame(0, round * WINDOW + n)));
                assert!(two.tx[0].queue(&frame(1, round * WINDOW + n)));
            }
            one.tx[0].ring.publish();
            two.tx[0].ring.publish();
            let mut next = [round * WINDOW; 2];
            for _ in 0..2 * WINDOW {
                let got = host.receive(SOON).expect("a frame");
                let id = if got[6..12] == mac_of(0) { 0u8 } else { 1 };
                assert_eq!(got, frame(id, next[usize::from(id)]), "in order");
                next[usize::from(id)] += 1;
            }
            one.tx[0].drain(SOON);
            two.tx[0].drain(SOON);
        }
        nothing_lost(&d);
        d.stop();
    });
}

/// Frames for an interface that is down are counted, and do not come later.
#[test]
fn down_and_up() {
    in_namespace(|| {
        for mode in ["native", "generic"] {
            pair(1, 1500);
            let d = switch(1, &format!(",mode={mode}"), &[]);
            let (mut vm, host) = (connect(&d, 0), Host::open("peer"));
            introduce(&mut [&mut vm], &host);
            let mut lost = 0;
            for round in 0..4 {
                ip("link set wire down");
                for n in 0..=WINDOW {
                    assert!(vm.tx[0].queue(&traced(0, To::Vm(HOST), 0, n, 100)));
                    if n == 0 {
                        // One alone, then many together.
                        vm.tx[0].ring.publish();
                        vm.tx[0].drain(SOON);
                    }
                }
                vm.tx[0].ring.publish();
                vm.tx[0].drain(SOON);
                lost += 1 + WINDOW as u64;
                veth_up(["wire", "peer"]);
                host.drain();
                assert!(wait_for(SOON, || {
                    let frame = traced(0, To::Vm(HOST), 1, round, 100);
                    vm.tx[0].send_waiting(&frame, SOON);
                    host.receive(QUIET) == Some(frame)
                }));
                to_host(&mut vm, &host, &[60; 40]);
                from_host(&host, &mut vm, &[60; 40]);
            }
            let counted = || dropped(&d, "out", "xdp_down");
            assert!(wait_for(SOON, || counted() == lost), "{} of {lost}", counted());
            // A peer that is down takes no frame either.
            ip("link set peer down");
            let before = dropped(&d, "out", "xdp_full");
            for n in 0..WINDOW {
                assert!(vm.tx[0].queue(&traced(0, To::Vm(HOST), 0, n, 100)));
            }
            vm.tx[0].ring.publish();
            vm.tx[0].drain(SOON);
            let full = || dropped(&d, "out", "xdp_full") - before;
            assert!(wait_for(SOON, || full() == WINDOW as u64), "{} of {WINDOW}", full());
            d.counters().balance();
            d.stop();
            ip("link del wire");
        }
    });
}

/// Bursts of frames while the interface goes down and comes up: each frame arrives, in its place
/// and once, or is counted.
#[test]
fn down_in_the_middle_of_bursts() {
    in_namespace(|| {
        pair(1, 1500);
        let d = switch(1, "", &[]);
        let (mut vm, host) = (connect(&d, 0), Host::open("peer"));
        introduce(&mut [&mut vm], &host);
        let (sent, _) = bursts_while_down(&mut vm, &host, "wire");
        let count = 1 + sent.len() as u64;
        let all = || {
            let c = d.counters();
            c.sum(Some("up"), "out", "frames") + c.drops(Some("up"), "out")
        };
        assert!(wait_for(SOON, || all() == count), "{} of {count}: {:?}", all(), d.counters());
        d.counters().balance();
        d.stop();
    });
}

/// It is attached again within a second, and takes no CPU while it is missing. The thread that
/// attaches it sleeps until then.
#[test]
fn deleted_and_made_again() {
    in_namespace(|| {
        for queues in [1, 2] {
            pair(queues, 1500);
            let keys = format!(",queues={queues}");
            let d = switch(1, &keys, &["--workers", &queues.to_string()]);
            let (mut vm, mut host) = (connect(&d, 0), Host::open("peer"));
            introduce(&mut [&mut vm], &host);
            let woken = d.voluntary_switches_of("xdp-");
            std::thread::sleep(Duration::from_secs(1));
            assert_eq!(d.voluntary_switches_of("xdp-"), woken, "it looks for what is not there");
            for _ in 0..3 {
                ip("link del wire");
                assert!(wait_for(SOON, || d.log().contains("interface wire is gone")));
                vm.tx[0].send_waiting(&traced(0, To::Vm(HOST), 0, 0, 100), SOON);
                vm.tx[0].drain(SOON);
                let before = d.cpu_ticks();
                std::thread::sleep(Duration::from_millis(500));
                assert!(d.cpu_ticks() - before < IDLE_TICKS, "CPU without an interface");
                pair(queues, 1500);
                let (start, waited) = (Instant::now(), d.run_queue_wait());
                host = Host::open("peer");
                assert!(wait_for(SOON, || {
                    let frame = traced(0, To::Vm(HOST), 1, 1, 100);
                    vm.tx[0].send_waiting(&frame, SOON);
                    host.receive(QUIET) == Some(frame)
                }));
                let cpu = d.run_queue_wait().saturating_sub(waited);
                let took = start.elapsed().saturating_sub(cpu);
                assert!(took < 2 * BACK_LIMIT, "back after {took:?}");
                std::thread::sleep(QUIET);
                host.drain();
                to_host(&mut vm, &host, &[60; 40]);
                from_host(&host, &mut vm, &[60; 1]);
            }
            assert!(d.counters().drops(Some("up"), "") + d.counters().drops(Some("up"), "out") > 0);
            d.counters().balance();
            drop(host);
            d.stop();
            ip("link del wire");
        }
    });
}

/// Nothing is left at the interface, however the process ends.
#[test]
fn the_interface_is_the_hosts_again_afterwards() {
    in_namespace(|| {
        pair(1, 1500);
        let before = ip("-d link show wire");
        let index = index_of("wire");
        let mut d = switch(1, "", &[]);
        assert!(program() && ip("-d link show wire").contains("promiscuity 1"));
        d.kill();
        assert!(wait_for(SOON, || !program()), "{}", ip("-d link show wire"));
        d.restart();
        assert!(wait_for(SOON, program), "{}", d.log());
        let (mut vm, host) = (connect(&d, 0), Host::open("peer"));
        introduce(&mut [&mut vm], &host);
        from_host(&host, &mut vm, &[60]);
        d.stop();
        assert!(!program());
        assert_eq!((ip("-d link show wire"), index_of("wire")), (before, index));
    });
}

/// Status 1 and a line that names port, interface and reason.
#[test]
fn interfaces_that_cannot_serve_are_refused() {
    in_namespace(|| {
        let refusal = |xdp: &str, status: i32| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_vioswitchd"));
            let output = command.args(["--xdp", xdp]).output().expect("run");
            assert_eq!(output.status.code(), Some(status), "{output:?}");
            String::from_utf8(output.stderr).expect("UTF-8")
        };
        pair(1, 1500);
        ip("link add br0 type bridge");
        ip("link add long mtu 9000 type veth peer name other");
        for (xdp, status, expected) in [
            ("up,ifname=none", 1, "xdp up: interface none: no such interface"),
            ("up,ifname=wire,queues=2", 1, "xdp up: interface wire: queues=2, and it has 1"),
            ("up,ifname=long", 1, "xdp up: interface long: its MTU of 9000 exceeds 3818"),
            ("up,ifname=br0,mode=native", 1, "its driver runs no XDP program (mode=native)"),
            ("up,ifname=wire,mtu=3819", 2, "mtu must be a number from 68 to 3818"),
            ("up,ifname=wire,queues=17", 2, "queues must be a number from 1 to 16"),
            ("up,ifname=wire,mode=server", 2, "mode must be auto, native or generic, not 'server'"),
            ("up,ifname=wire,offload=on", 2, "'offload' is a key of port, tap,"),
        ] {
            let text = refusal(xdp, status);
            assert!(text.contains(expected) && text.lines().count() == 1, "{text}");
        }
        let d = switch(1, "", &[]);
        let text = refusal("up,ifname=wire", 1);
        assert!(text.contains("interface wire: in use by another XDP program or socket"), "{text}");
        d.stop();
    });
}
