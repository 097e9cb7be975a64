//! Several workers at an XDP uplink that is never idle, while rings move between workers and the
//! interface goes down, is opened anew for a larger MTU, or is deleted: no frame comes twice, late
//! or changed, none reaches another bridge, each is counted, and guests of another bridge lose
//! nothing.

use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use testkit::bystanders::Bystanders;
use testkit::host::{Host, in_namespace, index_of, ip, veth_up};
use testkit::proc::{Daemon, Dir, wait_for};
use testkit::traffic::{self, Checker, Stream, To};
use testkit::vm::{Vm, VmConfig};

use super::*;

const SPAN: Duration = Duration::from_millis(60);
const FLOWS: u8 = 4;
const BURST: u32 = 16;

fn pair(queues: u16) {
    let each = format!("mtu 1500 numrxqueues {queues} numtxqueues {queues}");
    ip(&format!("link add wire {each} type veth peer name peer {each}"));
    veth_up(["wire", "peer"]);
}

/// What happens meanwhile.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Trouble {
    Moves,
    Down,
    Mtu,
    Deleted,
}

/// Sends bursts of four flows until it is told to end, taking what comes in between.
fn talk(
    stop: &AtomicBool,
    stream: impl Fn(u8) -> Stream,
    mut send: impl FnMut(&[u8]),
    mut receive: impl FnMut(),
) {
    let mut frame = Vec::new();
    for seq in 0.. {
        if seq % BURST == 0 {
            receive();
            if stop.load(Ordering::Relaxed) {
                return;
            }
        }
        let flow = (seq % u32::from(FLOWS)) as u8;
        let len = 100 + (seq * 37 % 1400) as usize;
        traffic::build(&stream(flow), seq / u32::from(FLOWS), len, &mut frame);
        send(&frame);
    }
}

/// A guest that sends to the wire as much as its ring takes; frames that it got.
fn guest(stop: &AtomicBool, vm: Vm) -> u64 {
    let (id, vm) = (vm.cfg.id, Mutex::new(vm));
    let lock = || vm.lock().expect("no panic");
    let mut checker = Checker::new(id, 1);
    let stream = |flow| Stream { sender: id, queue: 0, to: To::Vm(HOST), flow };
    let send = |frame: &[u8]| {
        let tx = &mut lock().tx[0];
        if !tx.queue(frame) {
            tx.ring.publish();
            tx.send_waiting(frame, SOON);
        }
    };
    let receive = || {
        let vm = &mut *lock();
        vm.tx[0].ring.publish();
        vm.rx[0].recv(256, |_, frame| _ = checker.accept(0, frame));
    };
    talk(stop, stream, send, receive);
    let vm = &mut *lock();
    vm.tx[0].ring.publish();
    vm.tx[0].drain(SOON);
    thread::sleep(10 * QUIET);
    vm.rx[0].recv(usize::MAX, |_, frame| _ = checker.accept(0, frame));
    checker.frames
}

/// A station behind the wire, which sees all that comes there; frames that it got.
fn station(stop: &AtomicBool, to: u8) -> u64 {
    let mut checker = Checker::new(HOST, 1);
    let stream = |flow| Stream { sender: HOST, queue: 0, to: To::Vm(to), flow };
    let host = Mutex::new(Host::open("peer"));
    let lock = || host.lock().expect("no panic");
    // An interface that is down, or away, takes none.
    let send = |frame: &[u8]| drop(lock().try_send(frame));
    let receive = || {
        let host = &mut *lock();
        if index_of("peer").is_some_and(|index| index != host.index()) {
            *host = Host::open("peer");
        }
        for frame in (0..4 * BURST).map_while(|_| host.receive(Duration::ZERO)) {
            checker.accept(0, &frame);
        }
        thread::sleep(Duration::from_micros(100));
    };
    talk(stop, stream, send, receive);
    checker.frames
}

fn make_trouble(dir: &Path, trouble: Trouble, round: usize, queues: u16) {
    match trouble {
        Trouble::Moves => {
            let worker = format!("worker={}", round % 3);
            for port in ["p0", "p1"] {
                let mut set = Command::new(env!("CARGO_BIN_EXE_vioswitchctl"));
                set.arg("--control").arg(dir.join("control"));
                let done = set.args(["port", "set", port, &worker]).output().expect("run");
                assert!(done.status.success(), "{done:?}");
            }
        }
        Trouble::Down => {
            ip("link set wire down");
            thread::sleep(SPAN / 2);
            ip("link set wire up");
        }
        Trouble::Mtu => drop(ip(&format!("link set wire mtu {}", [3000, 1500][round % 2]))),
        Trouble::Deleted => {
            ip("link del wire");
            pair(queues);
        }
    }
    thread::sleep(if trouble == Trouble::Moves { SPAN / 4 } else { SPAN });
}

/// The wire learns where the guests are, and they where it is; no guest hears another.
fn introduce_all(vms: &mut [Vm], host: &Host) {
    for vm in vms.iter_mut() {
        introduce(&mut [vm], host);
    }
    host.drain();
    for vm in vms {
        vm.rx[0].take(usize::MAX, QUIET);
    }
}

fn under_load(trouble: Trouble, queues: u16, rounds: usize) {
    pair(queues);
    // Isolated: what is for the wire is flooded while the wire's address is not known.
    let (alone, other) = (",isolated=on", ",bridge=other");
    let dir = Dir::new();
    let control = format!("--control={}", dir.path().join("control").display());
    let xdp = format!("--xdp=up,ifname=wire,queues={queues}");
    let options = [xdp.as_str(), &control, "--workers=3"];
    let d = Daemon::with_ports(&[alone, alone, ",bridge=third", other, other], &options);
    let bystander = |id: u8| Vm::connect(&d.socket(3 + usize::from(id)), VmConfig::new(id));
    let bystanders = Bystanders::begin([0, 1].map(bystander));
    let (mut vms, mut apart) = ([0, 1].map(|id| connect(&d, id)), connect(&d, 2));
    let host = Host::open("peer");
    introduce_all(&mut vms, &host);
    let before = d.counters();
    drop(host);
    let stop = AtomicBool::new(false);
    let got = thread::scope(|scope| {
        let stop = &stop;
        let guests: Vec<_> =
            vms.into_iter().map(|vm| scope.spawn(move || guest(stop, vm))).collect();
        let stations = [0, 1].map(|to| scope.spawn(move || station(stop, to)));
        for round in 0..rounds {
            make_trouble(dir.path(), trouble, round, queues);
        }
        // It goes on, each way.
        let moved = |port: &str| {
            let start = before.sum(Some(port), "out", "frames");
            d.counters().sum(Some(port), "out", "frames") > start + 100
        };
        let passes = wait_for(SOON, || ["p0", "p1", "up"].into_iter().all(moved));
        stop.store(true, Ordering::Relaxed);
        assert!(passes, "{trouble:?}: {:?}", d.counters());
        let at_wire = stations.map(|one| one.join().expect("a station"))[0];
        let at_guests: Vec<u64> =
            guests.into_iter().map(|one| one.join().expect("a guest")).collect();
        (at_wire, at_guests)
    });
    bystanders.finish();
    let count = |port: &str| {
        d.counters().sum(Some(port), "out", "frames") - before.sum(Some(port), "out", "frames")
    };
    for (port, got) in ["p0", "p1"].iter().zip(&got.1) {
        assert_eq!(count(port), *got, "{port}");
    }
    assert!(apart.rx[0].take(1, QUIET).is_empty(), "a frame in another bridge");
    let (c, lost) = (d.counters(), count("up").saturating_sub(got.0));
    println!("{trouble:?}, {queues} queues: {got:?}, {lost} that the station did not take in time");
    c.balance();
    d.stop();
    ip("link del wire");
}

#[test]
fn rings_move_between_workers() {
    in_namespace(|| {
        [1, 2].iter().for_each(|queues| under_load(Trouble::Moves, *queues, rounds(30)))
    });
}

#[test]
fn down_and_up_under_load() {
    in_namespace(|| under_load(Trouble::Down, 2, rounds(8)));
}

#[test]
#[ignore = "full"]
fn opened_anew_for_a_larger_mtu_under_load() {
    in_namespace(|| under_load(Trouble::Mtu, 2, rounds(8)));
}

#[test]
#[ignore = "full"]
fn deleted_and_made_again_under_load() {
    in_namespace(|| under_load(Trouble::Deleted, 2, rounds(4)));
}

fn rounds(quick: usize) -> usize {
    testkit::rounds(quick, 4 * quick, 100 * quick)
}
