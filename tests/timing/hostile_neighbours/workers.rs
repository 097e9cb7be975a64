//! An attacker on another worker than the bystander: there no frame waits for longer than 20 ms.
//!
//! The first worker serves what guest 0 sends to guest 1, and nothing else with work; the second
//! one serves all rings of the attacker and of who sends to it, and has the last CPU. On two CPUs
//! the first worker shares its own with the test and with the thread that plays the attacker's
//! driver, so the control has that thread, too, doing the same to rings that nobody serves.

use std::time::{Duration, Instant};

use crate::alone;
use testkit::frontend::{Frontend, feat, req};
use testkit::hostile::{one_buffer, refill};
use testkit::neighbours::{Lab, Pair, TRIES, While};
use testkit::proc::Daemon;
use testkit::ring::{DESC_WRITE, Ring};
use testkit::shares::{SIZE, frame, whole};
use testkit::sys::{self, Crowd, EventFd};
use testkit::vm::{Guest, Vm, VmConfig, mac_of};

const EVIL: u8 = 2;
const HELPER: u8 = 3;
const IDLE: u8 = 4;
const PAIRS: usize = 16;
/// Waiters of each call descriptor of the attacker's.
const WAITERS: usize = 2_000;
const PAUSE: Duration = Duration::from_micros(150);
/// Longest silence while a frame is under way (I7).
const LONGEST_GAP: Duration = Duration::from_millis(20);

/// A guest with raw rings.
fn raw(id: u8, pairs: usize) -> VmConfig {
    let mut cfg = VmConfig::new(id);
    (cfg.pairs, cfg.size, cfg.tx_size) = (pairs, SIZE, SIZE);
    cfg.features &= !feat::EVENT_IDX;
    cfg
}

/// A guest that has said all but where its rings are.
fn meet(d: &Daemon, cfg: VmConfig) -> Vm {
    let fe = Frontend::connect(&d.socket(cfg.id.into()), Duration::from_secs(5));
    let mut vm = Vm { fe: fe.expect("connect"), guest: Guest::new(cfg) };
    vm.guest.negotiate(&mut vm.fe).expect("negotiate");
    vm.guest.share_memory(&mut vm.fe).expect("memory");
    let features = vm.guest.cfg.features | feat::PROTOCOL_FEATURES;
    vm.fe.set_features(features).expect("features");
    vm
}

/// Starts both rings of a pair.
fn start(vm: &mut Vm, pair: usize) {
    let Vm { fe, guest } = vm;
    for ring in [&guest.rx[pair].ring, &guest.tx[pair].ring] {
        guest.start_ring(fe, ring).expect("start");
        fe.set_vring_enable(ring.index, true).expect("enable");
    }
    vm.settle();
}

/// Makes a guest's transmit rings ready to send that frame for ever, and its first receive ring to
/// take frames for ever; before they start.
fn fill(vm: &mut Vm, to: [u8; 6]) {
    let bytes = frame(vm, to, 60);
    let room = vm.guest.mem.alloc_in(0, 12 + 1514, 16);
    for tx in &mut vm.guest.tx {
        tx.ring.reset();
        one_buffer(&tx.ring, whole(&bytes), 0);
    }
    let rx = &mut vm.guest.rx[0].ring;
    rx.reset();
    one_buffer(rx, whole(&room), DESC_WRITE);
}

/// The attacker's rings, and its helper's.
struct Loud {
    evil: Vm,
    helper: Vm,
    call: EventFd,
}

impl Loud {
    fn refill(&self) {
        let tx = |vm: &Vm| vm.guest.tx.iter().for_each(|tx| refill(&tx.ring));
        tx(&self.evil);
        refill(&self.evil.guest.rx[0].ring);
        tx(&self.helper);
    }
}

/// A ring goes to the worker with the fewest, so with each one of the attacker's comes one for the
/// other worker that has nothing to do.
fn lab() -> (Lab, Loud, Vm) {
    let pairs = format!(",queues={PAIRS}");
    let d = Daemon::with_ports(&["", "", &pairs, "", &pairs], &["--workers", "2"]);
    let connect = |id: u8| Vm::connect(&d.socket(id.into()), VmConfig::new(id));
    let from = connect(0);
    let mut helper = meet(&d, raw(HELPER, 1));
    fill(&mut helper, mac_of(EVIL));
    start(&mut helper, 0);
    let to = connect(1);
    let (mut evil, mut idle) = (meet(&d, raw(EVIL, PAIRS)), meet(&d, raw(IDLE, PAIRS)));
    let own = evil.mac();
    fill(&mut evil, own);
    for pair in 0..PAIRS {
        start(&mut evil, pair);
        start(&mut idle, pair);
    }
    let call = EventFd::new();
    for ring in 0..2 * PAIRS as u32 {
        evil.fe.set_vring_fd(req::SET_VRING_CALL, ring, Some(call.raw())).expect("call");
    }
    evil.settle();
    let lab = Lab::of(d, Pair::one_way([from, to]), &["worker-1"]);
    (lab, Loud { evil, helper, call }, idle)
}

/// Frames of each worker so far, and rings that moved.
fn seen(d: &Daemon) -> ([f64; 2], f64) {
    let c = d.counters();
    let of = |key| [0, 1].map(|worker| c.worker(worker, key));
    (of("frames"), of("moves").iter().sum())
}

/// What the attacker's notifications cost a bystander of another worker; `None` if a ring moved
/// meanwhile, or the attacker was dropped for writes that a busy machine made slow.
fn beside() -> Option<Result<(), String>> {
    let cpus = sys::cpus();
    let (mut lab, mut loud, idle) = lab();
    let _crowd = Crowd::around(&loud.call, WAITERS);
    let nobody = Guest::new(raw(EVIL, PAIRS));
    let untouched: Vec<&Ring> = nobody.tx.iter().map(|tx| &tx.ring).collect();
    let mut writes = [(); 15].map(|()| {
        let began = Instant::now();
        loud.call.write(1);
        began.elapsed()
    });
    writes.sort();
    let write = writes[7];
    let call = &loud.call;
    let control = |phase: &While<'_>| {
        std::thread::scope(|s| {
            s.spawn(|| {
                sys::pin(0, &cpus[cpus.len() - 1..]);
                phase.every(3 * write, || call.write(1));
            });
            phase.every(PAUSE, || untouched.iter().for_each(|ring| refill(ring)));
        });
    };
    let (before, _) = seen(&lab.d);
    loud.refill();
    std::thread::sleep(Duration::from_millis(20));
    let (after, _) = seen(&lab.d);
    assert_eq!(after[0], before[0], "the attacker's frames with the bystander's worker");
    assert!(after[1] > before[1] + 1000.0, "an attacker that sends nothing");
    let beside = lab.measure(control, |phase| phase.every(PAUSE, || loud.refill()));
    let dropped = loud.evil.fe.closed_within(Duration::from_millis(1));
    let (_, moves) = seen(&lab.d);
    println!(
        "32 rings of another worker, {write:.1?} a write: control {} | beside {}; {moves} moves",
        beside.alone, beside.attacked
    );
    drop((loud, idle));
    lab.finish();
    (moves == 0.0 && !dropped).then(|| {
        let (alone, attacked) = (beside.alone.gap, beside.attacked.gap);
        match attacked > LONGEST_GAP.max(2 * alone) {
            true => Err(format!("a gap of {attacked:.1?}, {alone:.1?} beside the control")),
            false => Ok(()),
        }
    })
}

#[test]
#[ignore = "full"]
fn expensive_notifications_of_another_worker() {
    let _alone = alone();
    let mut faults = Vec::new();
    for _ in 0..3 * TRIES {
        match beside() {
            None => continue,
            Some(Ok(())) => return,
            Some(Err(fault)) => faults.push(fault),
        }
        assert!(faults.len() < TRIES, "{faults:?} (I7)");
    }
    panic!("the attacker was dropped or moved each time");
}
