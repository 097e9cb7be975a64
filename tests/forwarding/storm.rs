//! `storm=`: what of a port's frames is flooded is limited by class, and nothing else is.

use std::time::{Duration, Instant};

use testkit::SOON;
use testkit::host::{Host, in_namespace, index_of, ip};
use testkit::proc::{Daemon, wait_for};
use testkit::vm::{Vm, VmConfig, mac_of};

const QUIET: Duration = Duration::from_millis(50);
const BROADCAST: [u8; 6] = [0xff; 6];
const MULTICAST: [u8; 6] = [0x33, 0x33, 0, 0, 0, 1];
const UNKNOWN: [u8; 6] = [2, 0x56, 0x53, 0xee, 0, 0];
const CLASSES: [[u8; 6]; 3] = [BROADCAST, MULTICAST, UNKNOWN];
/// What passes at once by a limit in packets, and what workers may be late, at 1 kpps.
const AT_ONCE: u64 = 64;
const LATE: u64 = 20;
const RATE: u64 = 1_000;

fn frame(dst: [u8; 6], src: [u8; 6], number: u32) -> Vec<u8> {
    let mut frame = [&dst[..], &src, &[0x88, 0xb5], &number.to_be_bytes()].concat();
    frame.resize(60, 0);
    frame
}

fn guests(d: &Daemon, count: u8) -> Vec<Vm> {
    let guest = |id: u8| Vm::connect(&d.socket(id.into()), VmConfig::new(id));
    let mut vms: Vec<Vm> = (0..count).map(guest).collect();
    for (id, vm) in vms.iter_mut().enumerate().skip(1) {
        vm.tx[0].send_waiting(&frame(MULTICAST, mac_of(id as u8), 0), SOON);
        vm.tx[0].drain(SOON);
    }
    std::thread::sleep(QUIET);
    vms.iter_mut().for_each(|vm| _ = vm.rx[0].recv(1024, |_, _| {}));
    vms
}

/// Takes what came of guest 0, by class; what is for one station last.
fn took(vm: &mut Vm) -> [u64; 4] {
    let mut count = [0; 4];
    vm.rx[0].recv(4096, |_, got| {
        if got[6..12] == mac_of(0) {
            let class = CLASSES.iter().position(|class| got[..6] == class[..]);
            count[class.unwrap_or(3)] += 1;
        }
    });
    count
}

/// Guest 0 sends so many frames of each class and as many to guest 1, mixed, for guests 1 and 2 to
/// take: what each of these got.
fn storm(vms: &mut [Vm], rounds: u32) -> [[u64; 4]; 2] {
    let mut got = [[0; 4]; 2];
    let mut take = |vms: &mut [Vm]| {
        for (sum, vm) in got.iter_mut().zip(&mut vms[1..3]) {
            sum.iter_mut().zip(took(vm)).for_each(|(sum, more)| *sum += more);
        }
    };
    for number in 0..rounds {
        for dst in CLASSES.into_iter().chain([mac_of(1)]) {
            vms[0].tx[0].send_waiting(&frame(dst, mac_of(0), number), SOON);
        }
        // No receiver is ever full.
        if number % 16 == 15 {
            vms[0].tx[0].drain(SOON);
            take(vms);
        }
    }
    vms[0].tx[0].drain(SOON);
    std::thread::sleep(QUIET);
    take(vms);
    got
}

/// Each class by its own limit, and none for what has one receiver.
#[test]
fn each_class_is_limited_apart() {
    let d = Daemon::with_ports(&[",storm=bcast:1kpps,unknown:1kpps", "", ""], &[]);
    let mut vms = guests(&d, 3);
    let rounds = 2_000;
    let start = Instant::now();
    let got = storm(&mut vms, rounds);
    let most = AT_ONCE + LATE + RATE * start.elapsed().as_millis() as u64 / 1000 + 1;
    let all = u64::from(rounds);
    let counters = d.counters();
    let dropped = counters.get("p0", "in drop.storm");
    assert_eq!((got[0][3], got[1][3]), (all, 0), "frames for one station");
    for [bcast, mcast, unknown, _] in got {
        assert_eq!(mcast, all, "a class without a limit");
        for passed in [bcast, unknown] {
            assert!((AT_ONCE..=most).contains(&passed), "{passed} of {all}, {most} at most");
        }
    }
    assert_eq!(got[0][..3], got[1][..3], "each flood reaches all or none");
    assert_eq!(dropped, 2 * all - got[0][0] - got[0][2], "{counters:#?}");
    assert_eq!(counters.drops(Some("p0"), "in"), dropped);
    counters.balance();

    // What another port floods is not limited.
    for number in 0..500 {
        vms[1].tx[0].send_waiting(&frame(BROADCAST, mac_of(1), number), SOON);
        vms[1].tx[0].drain(SOON);
        if number % 64 == 0 {
            vms.iter_mut().for_each(|vm| _ = vm.rx[0].recv(4096, |_, _| {}));
        }
    }
    assert_eq!(d.counters().drops(Some("p1"), "in"), 0);
    d.stop();
}

/// Bits as well as packets, of what comes in by a TAP.
#[test]
fn floods_of_a_tap_are_limited_by_bits() {
    in_namespace(|| {
        let tap = "--tap=up,ifname=v0,storm=bcast:8kbit";
        let d = Daemon::with_ports(&[""], &[tap]);
        let mut vms = [Vm::connect(&d.socket(0), VmConfig::new(1))];
        assert!(wait_for(SOON, || index_of("v0").is_some()));
        ip("link set v0 up");
        assert!(wait_for(SOON, || d.log().contains("came up")), "{}", d.log());
        let host = Host::open("v0");
        let mut got = 0;
        let mut long = frame(BROADCAST, mac_of(0), 7);
        long.resize(1_000, 0);
        for _ in 0..20 {
            for _ in 0..10 {
                host.send(&long);
            }
            std::thread::sleep(QUIET / 10);
            got += took(&mut vms[0])[0];
        }
        std::thread::sleep(QUIET);
        got += took(&mut vms[0])[0];
        // 64 KiB at once, and a frame a second after that.
        assert!((64..=75).contains(&got), "{got} of 200");
        let c = d.counters();
        assert_eq!(c.get("up", "in drop.storm"), 200 - got, "{c:#?}");
        c.balance();
        d.stop();
    });
}

/// What passes by `pass` is a flood for a group; frames of other protocols for the same address
/// spend nothing of the limit.
#[test]
fn what_passes_by_its_protocol_is_limited_as_a_group() {
    let d = Daemon::with_ports(&[",pass=lldp,storm=mcast:1kpps", ",pass=lldp", ",pass=lldp"], &[]);
    let mut vms = guests(&d, 3);
    let of = |protocol: [u8; 2], number: u32| {
        let mut frame = frame([1, 0x80, 0xc2, 0, 0, 0x0e], mac_of(0), number);
        frame[12..14].copy_from_slice(&protocol);
        frame
    };
    let (rounds, start) = (1_000, Instant::now());
    let mut got = [0; 2];
    let mut take = |vms: &mut [Vm]| {
        for (sum, vm) in got.iter_mut().zip(&mut vms[1..]) {
            vm.rx[0].recv(4096, |_, frame| *sum += u64::from(frame[12..14] == [0x88, 0xcc]));
        }
    };
    for number in 0..rounds {
        vms[0].tx[0].send_waiting(&of([0x88, 0xcc], number), SOON);
        vms[0].tx[0].send_waiting(&of([0x88, 0xf7], number), SOON);
        if number % 16 == 15 {
            vms[0].tx[0].drain(SOON);
            take(&mut vms);
        }
    }
    vms[0].tx[0].drain(SOON);
    take(&mut vms);
    let most = AT_ONCE + LATE + RATE * start.elapsed().as_millis() as u64 / 1000 + 1;
    let (all, c) = (u64::from(rounds), d.counters());
    assert!((AT_ONCE..=most.min(all)).contains(&got[0]), "{} of {all}, {most} at most", got[0]);
    assert_eq!(got[0], got[1], "each flood reaches all or none");
    let dropped = (c.get("p0", "in drop.storm"), c.get("p0", "in drop.reserved"));
    assert_eq!(dropped, (all - got[0], all), "{c:#?}");
    c.balance();
    d.stop();
}
