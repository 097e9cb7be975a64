//! No notification is lost: none comes from a timer, and an idle switch costs nothing.
//!
//! Both guests sleep on their call fds between frames, so that the daemon sleeps too and each frame
//! crosses every suppression window: kick wanted or not, call wanted or not, look again after
//! asking. A frame that needs more than 100 ms has met a lost wake-up, for nothing else takes that
//! long, except a machine without a free CPU: only the time that the threads stood ready in the
//! kernel's run queues is taken off. `VIOSWITCH_LONG=1` makes the runs four times as long.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::alone;
use testkit::Rng;
use testkit::frontend::feat;
use testkit::net::{Job, Net, Sizes};
use testkit::proc::Daemon;
use testkit::rx::RxConfig;
use testkit::traffic::{self, Checker, Stream, To};
use testkit::vm::{MODERN, Vm, VmConfig, mac_of};

const LIMIT: Duration = Duration::from_millis(100);
/// After this nothing comes any more, on a machine however busy.
const LOST: Duration = Duration::from_secs(3);
/// Rounds between two looks at the run queues.
const LOOK: u64 = 512;
const NO_EVENT_IDX: u64 = MODERN & !feat::EVENT_IDX;

fn guests(d: &Daemon, features: u64) -> (Vm, Vm) {
    let config = |id| {
        let mut c = VmConfig::new(id);
        c.features = features;
        c.rx = RxConfig::plain(64, 1526);
        c.tx.buffers = 64;
        c
    };
    let mut a = Vm::connect(&d.socket(0), config(0));
    let mut b = Vm::connect(&d.socket(1), config(1));
    for vm in [&mut a, &mut b] {
        vm.tx[0].ring.disarm();
    }
    // Both addresses are learned before the clock counts.
    let _ = one_way(&mut a, &mut b, 0);
    let _ = one_way(&mut b, &mut a, 0);
    (a, b)
}

/// One frame from one guest to the other, both asleep before it. Answers whether it was in time.
#[must_use]
fn one_way(from: &mut Vm, to: &mut Vm, seq: u64) -> bool {
    let mut frame = [0u8; 60];
    frame[..6].copy_from_slice(&to.mac());
    frame[6..12].copy_from_slice(&from.mac());
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame[14..22].copy_from_slice(&seq.to_le_bytes());
    assert!(from.tx[0].send(&frame), "TX ring full: completions are missing");
    let in_time = to.rx[0].wait(LIMIT);
    if !in_time && !to.rx[0].wait(LOST) {
        let (tx, rx) = (&from.tx[0].ring, &to.rx[0].ring);
        let (avail, used) = (tx.avail_idx(), tx.used_idx());
        panic!("frame {seq} lost: TX avail {avail} used {used} {:?}; RX {:?}", tx.stats, rx.stats);
    }
    let n = to.rx[0].recv(2, |_, got| assert_eq!(got, frame));
    assert_eq!(n, 1, "frame {seq}: duplicated");
    in_time
}

fn ping_pong(workers: &str, features: u64) {
    let _alone = alone();
    let d = Daemon::with(2, &["--workers", workers]);
    let (mut a, mut b) = guests(&d, features);
    let rounds = testkit::rounds(25_000, 100_000, 1_000_000);
    let mut rng = Rng::new(features ^ u64::from(workers == "2"));
    let start = Instant::now();
    let mut excused = 0;
    let mut look = (d.run_queue_wait(), Instant::now());
    for seq in 1..=rounds {
        if !(one_way(&mut a, &mut b, seq) && one_way(&mut b, &mut a, seq)) {
            let (ready, took) = (d.run_queue_wait().saturating_sub(look.0), look.1.elapsed());
            assert!(ready > LIMIT / 2, "frame {seq} took more than {LIMIT:?} on a free CPU");
            excused += 1;
            println!("frame {seq} was late: ready for {ready:.1?} in {took:.1?} without a CPU");
        }
        if seq % LOOK == 0 {
            look = (d.run_queue_wait(), Instant::now());
        }
        // A pause of varying length meets the daemon at every point of its way to sleep.
        pause(rng.below(4) * rng.below(500));
    }
    let (took, calls) = (start.elapsed(), a.rx[0].ring.stats.calls);
    println!("{rounds} ping-pongs in {took:.1?}, {calls} calls, {excused} late, {workers} workers");
    a.tx[0].drain(LIMIT);
    b.tx[0].drain(LIMIT);
    drop((a, b));
    d.stop();
}

#[test]
fn ping_pong_with_event_idx() {
    ping_pong("1", MODERN);
}

#[test]
fn ping_pong_without_event_idx() {
    ping_pong("1", NO_EVENT_IDX);
}

#[test]
fn ping_pong_with_event_idx_two_workers() {
    ping_pong("2", MODERN);
}

#[test]
fn ping_pong_without_event_idx_two_workers() {
    ping_pong("2", NO_EVENT_IDX);
}

/// Spins for about `n` nanoseconds, without a look at the clock, which would cost as much.
fn pause(n: u64) {
    for i in 0..n {
        black_box(i);
    }
}

/// Feels its way to the moment at which two threads meet: later after "too early", earlier after
/// "too late", and a little to each side at random.
struct Aim {
    at: u64,
    rng: Rng,
}

impl Aim {
    fn new() -> Aim {
        Aim { at: 500, rng: Rng::new(3) }
    }

    fn pause(&mut self) {
        let spread = 16 + self.at / 4;
        pause(self.at + self.rng.below(spread));
    }

    fn hit(&mut self, too_early: bool) {
        let step = 1 + self.rng.below(8);
        self.at =
            if too_early { (self.at + step).min(50_000) } else { self.at.saturating_sub(step) };
    }
}

/// Frames shown at every moment of the daemon's way to sleep: right after a completion, and then a
/// few nanoseconds later or earlier. The window between the last look at the ring and the wish for
/// a kick is some 10 ns wide; a daemon that does not look again after asking loses one of these.
fn at_every_moment(features: u64) {
    let _alone = alone();
    let d = Daemon::with(2, &[]);
    let (mut a, b) = guests(&d, features);
    let frame = [&a.mac()[..], &a.mac(), &[0x88, 0xb5], &[0; 46]].concat();
    let rounds = testkit::rounds(20_000, 200_000, 3_000_000);
    let mut aim = Aim::new();
    let apart = d.run_apart();
    if apart.is_none() {
        println!("one CPU: nothing happens at the same moment here");
    }
    for round in 0..rounds {
        let kicks = a.tx[0].ring.stats.kicks;
        assert!(a.tx[0].send(&frame));
        // A kick was wanted: the daemon was past its last look already.
        aim.hit(a.tx[0].ring.stats.kicks == kicks);
        let start = Instant::now();
        let mut looks = 0;
        while a.tx[0].reclaim() == 0 {
            looks += 1;
            if looks % 1024 == 0 {
                assert!(start.elapsed() < LOST, "frame {round} lost: {:?}", a.tx[0].ring.stats);
                // On one CPU the daemon needs this one.
                std::thread::yield_now();
            }
        }
        aim.pause();
    }
    println!("{:?}, pause {}", a.tx[0].ring.stats, aim.at);
    drop((a, b));
    d.stop();
}

/// A frame is shown at every moment of the way on which the daemon goes to sleep (the second look).
#[test]
fn at_every_moment_with_event_idx() {
    at_every_moment(MODERN);
}

#[test]
fn at_every_moment_without_event_idx() {
    at_every_moment(NO_EVENT_IDX);
}

/// The same for calls: the receiver goes to sleep at every moment of a frame's way. Between the
/// daemon's used index and its look at what the driver wants lies a store-load pair that a CPU may
/// turn round; the call is then lost.
fn asleep_at_every_moment(features: u64) {
    let _alone = alone();
    let d = Daemon::with(2, &[]);
    let (mut a, mut b) = guests(&d, features);
    // A long frame: the index waits in the CPU's store buffer behind its payload, which is what
    // gives the later load the time to overtake.
    let frame = [&b.mac()[..], &a.mac(), &[0x88, 0xb5], &[0; 1500]].concat();
    let rounds = testkit::rounds(10_000, 100_000, 2_000_000);
    let mut aim = Aim::new();
    let apart = d.run_apart();
    if apart.is_none() {
        println!("one CPU: nothing happens at the same moment here");
    }
    for round in 0..rounds {
        assert!(a.tx[0].send(&frame));
        aim.pause();
        let sleeps = b.rx[0].ring.stats.sleeps;
        assert!(b.rx[0].wait(LOST), "frame {round} lost");
        aim.hit(b.rx[0].ring.stats.sleeps > sleeps);
        assert_eq!(b.rx[0].recv(2, |_, f| assert_eq!(f.len(), 1514)), 1);
    }
    println!("{:?}, pause {}", b.rx[0].ring.stats, aim.at);
    drop((a, b));
    d.stop();
}

/// The receiver goes to sleep at every moment of a frame's way (the index before the look at what
/// the driver wants).
#[test]
fn asleep_at_every_moment_with_event_idx() {
    asleep_at_every_moment(MODERN);
}

#[test]
fn asleep_at_every_moment_without_event_idx() {
    asleep_at_every_moment(NO_EVENT_IDX);
}

/// Bursts of any length, so that indices leap over event indices.
fn bursts(features: u64) {
    let _alone = alone();
    let d = Daemon::with(2, &["--workers", "2"]);
    let (mut a, mut b) = guests(&d, features);
    let mut rng = Rng::new(7);
    let frame = [&b.mac()[..], &a.mac(), &[0x88, 0xb5], &[0; 46]].concat();
    for round in 0..testkit::rounds(4_000, 20_000, 20_000) {
        let burst = 1 + rng.below(32) as usize;
        for _ in 0..burst {
            assert!(a.tx[0].queue(&frame), "completions are missing");
            // Some are shown one by one, so that a kick meets a worker at work.
            if rng.below(3) == 0 {
                a.tx[0].ring.publish();
            }
        }
        a.tx[0].ring.publish();
        let mut got = 0;
        while got < burst {
            assert!(b.rx[0].wait(LOST), "round {round}: {got} of {burst}");
            got += b.rx[0].recv(64, |_, f| assert_eq!(f.len(), 60));
        }
        assert_eq!(got, burst);
    }
    drop((a, b));
    d.stop();
}

/// Bursts that leap over event indices.
#[test]
fn bursts_with_event_idx() {
    bursts(MODERN);
}

#[test]
fn bursts_without_event_idx() {
    bursts(NO_EVENT_IDX);
}

/// hvisor-tool's stall: a guest that only sends, and sleeps for room when its ring is full, gets
/// its completions signalled. What its receiver cannot keep up with is dropped, never reordered.
fn one_way_stream(features: u64, ring: u16) {
    let _alone = alone();
    let d = Daemon::with(2, &[]);
    let (mut a, mut b) = guests(&d, features);
    drop(a);
    let mut c = VmConfig::new(0);
    (c.features, c.tx_size, c.tx.buffers) = (features, ring, ring);
    a = Vm::connect(&d.socket(0), c);
    let frames = testkit::rounds(60_000, 300_000, 2_000_000);
    let done = AtomicBool::new(false);
    let received = std::thread::scope(|s| {
        let receiver = s.spawn(|| {
            let mut checker = Checker::new(1, 1);
            while b.rx[0].wait(LIMIT) || !done.load(Ordering::Acquire) {
                b.rx[0].recv(64, |_, f| {
                    checker.accept(0, f);
                });
            }
            checker.frames
        });
        send_stream(&mut a, frames);
        done.store(true, Ordering::Release);
        receiver.join().expect("receiver")
    });
    println!("{received} of {frames} received, sender: {:?}", a.tx[0].ring.stats);
    // What did not arrive was dropped by name, to the frame (I1). One frame each way taught the
    // addresses before.
    let counters = d.counters();
    counters.balance();
    assert_eq!(counters.sum(Some("p0"), "in", "frames"), u64::from(frames) + 1);
    assert_eq!(counters.sum(Some("p1"), "out", "frames"), received + 1);
    let dropped = counters.drops(Some("p1"), "out") + counters.drops(Some("p1"), "");
    assert_eq!(u64::from(frames), received + dropped, "{counters:#?}");
    drop((a, b));
    d.stop();
}

fn send_stream(a: &mut Vm, frames: u32) {
    let stream = Stream { sender: 0, queue: 0, to: To::Vm(1), flow: 0 };
    let mut frame = Vec::new();
    for seq in 0..frames {
        traffic::build(&stream, seq, 60, &mut frame);
        a.tx[0].send_waiting(&frame, Duration::from_secs(1));
    }
    a.tx[0].drain(Duration::from_secs(1));
}

/// A guest that only sends gets its completions, also with a ring of 4; every frame is received or
/// counted.
#[test]
fn one_way_with_event_idx() {
    one_way_stream(MODERN, 256);
    one_way_stream(MODERN, 4);
}

#[test]
fn one_way_without_event_idx() {
    one_way_stream(NO_EVENT_IDX, 256);
    one_way_stream(NO_EVENT_IDX, 4);
}

/// Nobody listens: frames to an empty switch are completed and signalled like any others.
#[test]
fn one_way_to_nobody() {
    let _alone = alone();
    let d = Daemon::with(1, &[]);
    let mut a = Vm::connect(&d.socket(0), VmConfig::new(0));
    send_stream(&mut a, 100_000);
    drop(a);
    d.stop();
}

/// A driver that wants to hear of each frame it sent, as Linux does for TCP, and is answered after
/// every fourth: it is told once, with the answer. Without one it is told all the same.
fn told_with_the_answer(features: u64) {
    let _alone = alone();
    let d = Daemon::with(2, &[]);
    let (mut a, mut b) = guests(&d, features);
    let mut seq = 0;
    let mut send = |a: &mut Vm, b: &mut Vm| {
        seq += 1;
        a.tx[0].reclaim();
        a.tx[0].ring.arm();
        assert!(one_way(a, b, seq), "late");
    };
    let signals = || d.counters().sum(Some("p0"), "in", "signals");
    // A machine that is busy elsewhere may need more than the millisecond for an answer.
    let held = (0..10).any(|_| {
        let (rounds, before) = (200, signals());
        for _ in 0..rounds {
            (0..4).for_each(|_| send(&mut a, &mut b));
            let _ = one_way(&mut b, &mut a, 0);
            assert!(a.tx[0].ring.call.wait(LIMIT), "not told with the answer");
        }
        signals() - before < 2 * rounds
    });
    assert!(held, "told of each frame");
    for _ in 0..20 {
        // Told of the frames before, whatever was still on its way.
        while a.tx[0].ring.call.wait(Duration::from_millis(5)) {}
        send(&mut a, &mut b);
        assert!(a.tx[0].ring.call.wait(LIMIT), "never told");
        let _ = one_way(&mut b, &mut a, 0);
    }
    drop((a, b));
    d.stop();
}

/// TX interrupt coalescing: a driver that wants to be notified of each frame it sent is, with the
/// next frame it receives, and within 100 ms if it receives none.
#[test]
fn told_with_the_answer_with_event_idx() {
    told_with_the_answer(MODERN);
}

#[test]
fn told_with_the_answer_without_event_idx() {
    told_with_the_answer(NO_EVENT_IDX);
}

/// An idle daemon makes no wake-up at all: no timer hides a lost one. In two seconds it uses no
/// CPU.
#[test]
fn idle_means_idle() {
    let _alone = alone();
    let switches = ["1", "2"].map(|workers| {
        let d = Daemon::with(4, &["--workers", workers]);
        let mut net = Net::connect(&d, 3, |c| c);
        net.run(&[Job::new(0, To::Vm(1), 1000, Sizes::Fixed(60))]);
        (d, net)
    });
    let spent = || switches.each_ref().map(|(d, _)| (d.voluntary_switches(), d.cpu_ticks()));
    // Ageing may look at a busy table now and then; give it its second.
    std::thread::sleep(Duration::from_millis(1500));
    let before = spent();
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(before, spent(), "(wake-ups, CPU ticks) of idle daemons, with 1 worker and 2");
    for (d, mut net) in switches {
        // And it still wakes up for a frame.
        net.run(&[Job::new(1, To::Vm(2), 1, Sizes::Fixed(60))]);
        drop(net);
        d.stop();
    }
}

/// The other way round: a kick on an RX ring is wanted only by those who wait for buffers.
#[test]
fn refilling_a_full_ring_needs_no_kick() {
    let _alone = alone();
    let d = Daemon::with(2, &[]);
    let (mut a, mut b) = guests(&d, MODERN);
    let before = b.rx[0].ring.stats.kicks;
    for seq in 1..1000 {
        let _ = one_way(&mut a, &mut b, seq);
    }
    let kicks = b.rx[0].ring.stats.kicks - before;
    assert!(kicks < 20, "{kicks} kicks for 1000 refills of a ring that never ran dry");
    assert_eq!(a.mac(), mac_of(0));
    drop((a, b));
    d.stop();
}
