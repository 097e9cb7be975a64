//! The workers among themselves: what they count, where they run, how rings are spread over them
//! and move, and that no guest has a worker to itself.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::alone;
use testkit::frontend::feat;
use testkit::hostile::raw_avail_idx;
use testkit::neighbours::{in_one_of_a_few_tries, not_judged};
use testkit::net::{Job, Net, Sizes};
use testkit::proc::{Daemon, wait_for};
use testkit::traffic::To;
use testkit::vm::{Vm, VmConfig};
use testkit::{Rng, long, sys};

/// After this nothing comes any more, on a machine however busy.
const LOST: Duration = Duration::from_secs(5);

fn both_ways(frames: u32) -> [Job; 2] {
    [
        Job::new(0, To::Vm(1), frames, Sizes::Fixed(60)),
        Job::new(1, To::Vm(0), frames, Sizes::Fixed(60)),
    ]
}

/// A worker's cycles are those of the time it was there, and its other counters agree with each
/// other and with those of the queues.
#[test]
fn what_a_worker_counts_adds_up() {
    let _alone = alone();
    for workers in [1, 2] {
        let start = Instant::now();
        let d = Daemon::with(2, &["--workers", &workers.to_string()]);
        let mut net = Net::connect(&d, 2, |c| c);
        net.run(&both_ways(20_000));
        let c = d.counters();
        let elapsed = start.elapsed().as_secs_f64();
        assert_eq!(c.workers(), workers);
        for w in 0..workers {
            let rate = c.worker(w, "cycles_per_second");
            let awake = c.worker(w, "busy_cycles") + c.worker(w, "idle_cycles");
            assert!(c.worker(w, "busy_cycles") > 0.0, "{c:#?}");
            assert!(awake <= elapsed * rate, "awake for {awake} of {elapsed} s at {rate} Hz");
            let frames = c.worker(w, "frames");
            let (turns, busy) = (c.worker(w, "turns"), c.worker(w, "busy_turns"));
            assert!(busy > 0.0 && busy <= turns && busy <= c.worker(w, "bursts"), "{c:#?}");
            let shown = (c.worker(w, "cycles_per_frame"), c.worker(w, "frames_per_busy_turn"));
            let wanted = (c.worker(w, "busy_cycles") / frames, frames / busy);
            assert!((shown.0 - wanted.0).abs() < 0.1 && (shown.1 - wanted.1).abs() < 0.1);
            // Between what no code can reach and what an unoptimised one under load never needs.
            assert!((20.0..1e7).contains(&shown.0), "{} cycles per frame", shown.0);
            assert!(shown.1 >= 1.0, "{} frames per busy turn", shown.1);
        }
        let sum = |key| (0..workers).map(|w| c.worker(w, key)).sum::<f64>();
        let queues = |key| (c.sum(None, "in", key) + c.sum(None, "out", key)) as f64;
        assert_eq!(sum("frames"), c.sum(None, "in", "frames") as f64, "{c:#?}");
        assert_eq!(sum("signals") + sum("signals_failed"), queues("signals"), "{c:#?}");
        assert_eq!(sum("signals_suppressed"), queues("signals_suppressed"), "{c:#?}");
        assert!(sum("wakeups") > 0.0, "{c:#?}");
        drop(net);
        d.stop();
    }
}

/// A worker that never sleeps is busy or idle all the time, to the cycle: nothing is missing
/// between two reports, and nothing is counted twice.
#[test]
fn a_polling_worker_accounts_for_all_its_time() {
    let _alone = alone();
    let d = Daemon::with(2, &["--poll"]);
    let mut net = Net::connect(&d, 2, |c| c);
    let awake = || {
        let (before, c, after) = (Instant::now(), d.counters(), Instant::now());
        let cycles = c.worker(0, "busy_cycles") + c.worker(0, "idle_cycles");
        (before, cycles / c.worker(0, "cycles_per_second"), after)
    };
    let first = awake();
    net.run(&both_ways(20_000));
    let second = awake();
    let passed = second.1 - first.1;
    let least = second.0.duration_since(first.2).as_secs_f64();
    let most = second.2.duration_since(first.0).as_secs_f64();
    // An iteration in which the worker lost its CPU is booked at its end only.
    assert!(passed > 0.9 * least - 0.1 && passed < most + 0.1, "{least} {passed} {most}");
    drop(net);
    d.stop();
}

/// `Cpus_allowed_list` by thread name.
fn bindings(d: &Daemon) -> BTreeMap<String, String> {
    let tasks = fs::read_dir(format!("/proc/{}/task", d.pid())).expect("tasks");
    let threads = tasks.flatten().filter_map(|task| {
        let name = fs::read_to_string(task.path().join("comm")).ok()?;
        let status = fs::read_to_string(task.path().join("status")).ok()?;
        let list = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:"))?;
        Some((name.trim().to_owned(), list.trim().to_owned()))
    });
    threads.collect()
}

/// `--cpus` binds worker by worker, in the list's order, and nobody else.
#[test]
fn workers_run_where_they_are_told() {
    let _alone = alone();
    let cpus = sys::cpus();
    let [first, second, ..] = cpus[..] else {
        println!("SKIPPED workers_run_where_they_are_told: one CPU");
        return;
    };
    let free = {
        let d = Daemon::with(1, &["--workers", "2"]);
        let seen = bindings(&d);
        assert_eq!(seen["worker-0"], seen["vioswitchd"], "bound without being told: {seen:?}");
        d.stop();
        seen["vioswitchd"].clone()
    };
    for (list, wanted) in [
        (format!("{second},{first}"), [second, first]),
        (first.to_string(), [first, first]),
        (format!("{first}-{first},{second}"), [first, second]),
    ] {
        let d = Daemon::with(1, &["--workers", "2", "--cpus", &list]);
        let seen = bindings(&d);
        for (worker, cpu) in wanted.iter().enumerate() {
            assert_eq!(seen[&format!("worker-{worker}")], cpu.to_string(), "{list}: {seen:?}");
        }
        for (name, allowed) in seen.iter().filter(|(name, _)| !name.starts_with("worker-")) {
            assert_eq!(*allowed, free, "{list}: {name} is bound too");
        }
        d.stop();
    }
}

/// A CPU that the process may not use is refused before anything is started.
#[test]
fn only_cpus_of_the_process_are_taken() {
    let _alone = alone();
    let highest = *sys::cpus().last().expect("a CPU");
    let (inside, outside) = (highest.to_string(), (highest + 1).to_string());
    let run = |cpus: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vioswitchd"));
        command.args(["--socket-path", "/nonexistent/s", "--cpus", cpus]).output().expect("run")
    };
    let refused = run(&outside);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.starts_with(&format!("vioswitchd: --cpus {outside}: ")), "{said}");
    assert!(said.contains("not one this process may use"), "{said}");
    // The good one fails later, for want of the directory.
    assert_eq!(run(&inside).status.code(), Some(1));
}

fn connect(d: &Daemon, id: u8) -> Vm {
    Vm::connect(&d.socket(usize::from(id)), VmConfig::new(id))
}

/// Frames that each worker took in while `run` ran.
fn shares(d: &Daemon, run: impl FnOnce()) -> [u64; 2] {
    let frames = || [0, 1].map(|w| d.counters().worker(w, "frames") as u64);
    let before = frames();
    run();
    let after = frames();
    [after[0] - before[0], after[1] - before[1]]
}

/// So many frames that the time to read counters between them counts little: nobody moves for a
/// worker that is busy for less than a hundredth of the time.
const MANY: u32 = 100_000;

/// Runs two jobs of [`MANY`] frames until each worker takes one of them; how long it took until
/// then.
fn until_apart(d: &Daemon, net: &mut Net, jobs: &[Job; 2]) -> Duration {
    let (start, mut took, mut last) = (Instant::now(), Duration::ZERO, [0; 2]);
    let apart = wait_for(Duration::from_secs(20), || {
        took = start.elapsed();
        last = shares(d, || net.run(jobs));
        last == [MANY.into(); 2]
    });
    assert!(apart, "{last:?} frames of two senders alike");
    took
}

/// Two guests on one worker talk, after the two on the other left: one of those moves over for its
/// load, and no frame of theirs is lost, doubled or overtaken on the way. Both workers then carry
/// one each.
#[test]
fn a_ring_moves_when_others_leave() {
    let _alone = alone();
    for round in 0..testkit::rounds(1, 3, 30) {
        let d = Daemon::with(4, &["--workers", "2"]);
        // Idle rings are spread by their number, so in this order every other one shares one.
        let first = connect(&d, 0);
        let mut others = vec![connect(&d, 2)];
        let mut net = Net::new(vec![first, connect(&d, 1)]);
        others.push(connect(&d, 3));
        net.announce();
        let together = shares(&d, || net.run(&both_ways(1000)));
        assert_eq!(together, [2000, 0], "frames of two guests on one worker");
        drop(others);
        until_apart(&d, &mut net, &both_ways(MANY));
        // Newcomers find them in balance and move nobody.
        let others = [connect(&d, 2), connect(&d, 3)];
        let still = shares(&d, || net.run(&both_ways(1000)));
        assert_eq!(still, [1000, 1000], "round {round}");
        drop((net, others));
        d.stop();
    }
}

/// Two guests that only send share a worker, and their receivers, which cost nothing, have the
/// other: nobody knew that when their rings started. By their load one of them moves over, no frame
/// is lost, doubled or overtaken on the way, and while the load stays as it is nothing moves any
/// more. It moves within 4 s, each worker takes two fifths of the frames or more, and in the 15 s
/// after that (60 s with `VIOSWITCH_LONG=1`) nothing moves.
#[test]
#[ignore = "full"]
fn senders_are_spread_by_their_load() {
    let _alone = alone();
    let d = Daemon::with(4, &["--workers", "2"]);
    let mut net = Net::connect(&d, 4, |c| c);
    let one_way =
        |frames| [0, 2].map(|i| Job::new(i, To::Vm(i as u8 + 1), frames, Sizes::Fixed(60)));
    let together = shares(&d, || net.run(&one_way(1000)));
    assert_eq!(together, [2000, 0], "frames of two senders on one worker");
    let waited = d.run_queue_wait();
    let took = until_apart(&d, &mut net, &one_way(MANY));
    let waited = d.run_queue_wait().saturating_sub(waited);
    println!("apart after {took:.1?} ({waited:.1?} without a CPU)");
    // A busy machine may keep the thread that looks at the loads waiting.
    assert!(took <= Duration::from_secs(4) + waited, "apart after {took:.1?} ({waited:.1?})");
    let moves = || [0, 1].map(|w| d.counters().worker(w, "moves"));
    assert_eq!(moves(), [0.0, 1.0]);
    let stable = Duration::from_secs(if long() { 60 } else { 15 });
    let counts = |key| [0, 1].map(|w| d.counters().worker(w, key));
    in_one_of_a_few_tries("two workers under a stable load", || {
        let (start, moved) = (Instant::now(), moves());
        let before = ["frames", "busy_cycles"].map(counts);
        while start.elapsed() < stable {
            net.run(&one_way(MANY));
        }
        let after = ["frames", "busy_cycles"].map(counts);
        let [frames, busy] = [0, 1].map(|key| [0, 1].map(|w| after[key][w] - before[key][w]));
        // Not by cycles: this thread shares the CPU of one of them, and a worker that loses its
        // CPU in the middle of a burst seems to be busy.
        let least = frames[0].min(frames[1]) / (frames[0] + frames[1]);
        let seen = format!("frames {frames:?} busy cycles {busy:?} {:?} moves", moves());
        println!("{seen} in {stable:.0?}");
        if least >= 0.4 && moves() == moved { Ok(()) } else { Err(seen) }
    });
    drop(net);
    d.stop();
}

/// Ports attach and detach in all orders while two guests with two queue pairs each talk. The ones
/// that come and go send to themselves and sleep until their frames come back, so a kick that is
/// lost when a ring starts or moves is seen on both sides.
#[test]
fn ports_come_and_go_while_others_talk() {
    let _alone = alone();
    let d = Daemon::with_ports(
        &[",queues=2", ",queues=2", "", "", "", "", "", ""],
        &["--workers", "2"],
    );
    let several = |c: VmConfig| VmConfig { pairs: 2, features: c.features | feat::MQ, ..c };
    let mut net = Net::connect(&d, 2, several);
    let rounds = testkit::rounds(20, 60, 1000);
    let over = AtomicBool::new(false);
    std::thread::scope(|s| {
        let others: Vec<_> = (2..8)
            .map(|id| {
                let d = &d;
                s.spawn(move || visit(d, id, rounds))
            })
            .collect();
        let watcher = s.spawn(|| {
            let panicked = others.into_iter().filter_map(|v| v.join().err()).count();
            over.store(true, Ordering::Release);
            assert_eq!(panicked, 0, "others that failed");
        });
        while !over.load(Ordering::Acquire) {
            let [a, b] = both_ways(2000);
            net.run(&[a.clone(), b.clone(), a.queue(1).flow(1), b.queue(1).flow(2)]);
        }
        watcher.join().expect("others");
    });
    net.run(&both_ways(2000));
    drop(net);
    d.stop();
}

/// Attaches, sends frames to itself, detaches; again and again.
fn visit(d: &Daemon, id: u8, rounds: u32) {
    let mut rng = Rng::new(u64::from(id));
    for _ in 0..rounds {
        let mut vm = connect(d, id);
        let frame = [&vm.mac()[..], &vm.mac(), &[0x88, 0xb5], &[0; 46]].concat();
        for _ in 0..rng.below(20) {
            vm.tx[0].send_waiting(&frame, LOST);
            vm.tx[0].drain(LOST);
            std::thread::sleep(Duration::from_micros(rng.below(300)));
        }
        if rng.below(2) == 0 {
            vm.stop();
        }
    }
}

/// Two guests that poll, so that what is measured is the daemon.
fn pollers(d: &Daemon) -> (Vm, Vm) {
    let (mut a, mut b) = (connect(d, 0), connect(d, 1));
    for vm in [&mut a, &mut b] {
        vm.tx[0].ring.disarm();
        vm.rx[0].ring.disarm();
    }
    (a, b)
}

/// One frame from one guest to another; how long it took.
fn one_way(from: &mut Vm, to: &mut Vm) -> Duration {
    let frame = [&to.mac()[..], &from.mac(), &[0x88, 0xb5], &[0; 46]].concat();
    let start = Instant::now();
    assert!(from.tx[0].send(&frame), "completions are missing");
    let mut looks = 0;
    while to.rx[0].recv(1, |_, got| assert_eq!(got, frame)) == 0 {
        looks += 1;
        if looks % 256 == 0 {
            assert!(start.elapsed() < LOST, "a frame is lost");
            // On one CPU the daemon needs this one.
            std::thread::yield_now();
        }
    }
    start.elapsed()
}

/// A value that so many percent of the times stay below.
fn percentile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort();
    times[(times.len() - 1) * percent / 100]
}

/// A frame every 10 µs: the worker spins for some of them, and for not more than a tenth of the
/// time. Cycles go on while another process has the CPU, and a worker that has to wait for one does
/// not spin.
#[test]
#[ignore = "full"]
fn spinning_pays_and_stays_within_its_budget() {
    let _alone = alone();
    in_one_of_a_few_tries("spins beside a frame every 10 µs", beside_a_trickle);
}

/// Whether a worker spins, and how long it is awake with nothing to do, beside a frame every 10 µs.
fn beside_a_trickle() -> Result<(), String> {
    let d = Daemon::with(2, &[]);
    let (mut a, mut b) = pollers(&d);
    one_way(&mut a, &mut b);
    one_way(&mut b, &mut a);
    let _apart = d.run_apart();
    let gap = Duration::from_micros(10);
    let cycles = |key| d.counters().worker(0, key);
    let idle = cycles("idle_cycles");
    let (first, ticks, waited) = (Instant::now(), d.cpu_ticks(), d.run_queue_wait());
    let mut times = Vec::new();
    let mut next = Instant::now();
    for _ in 0..50_000 {
        times.push(one_way(&mut a, &mut b));
        next = (next + gap).max(Instant::now());
        while Instant::now() < next {}
    }
    let took = first.elapsed().as_secs_f64();
    let used = (d.cpu_ticks() - ticks) as f64 / took;
    let idle = (cycles("idle_cycles") - idle) / cycles("cycles_per_second") / took;
    let (found, empty) = (cycles("spins_found"), cycles("spins_empty"));
    let (p50, p99) = (percentile(&mut times, 50), percentile(&mut times, 99));
    let waited = d.run_queue_wait().saturating_sub(waited).as_secs_f64() / took;
    let seen = format!(
        "{:.0} frames/s: p50 {p50:.1?} p99 {p99:.1?}, {used:.0} % of a CPU, {:.1} % idle, {:.1} % \
         without a CPU, spins {found} found {empty} not",
        5e4 / took,
        100.0 * idle,
        100.0 * waited
    );
    println!("{seen}");
    drop((a, b));
    d.stop();
    // The spins, and the looks before each sleep.
    match found > 0.0 && idle < 0.2 {
        true => Ok(()),
        false if waited > 0.05 => Err(not_judged(&seen)),
        false => Err(seen),
    }
}

/// A guest whose ring is never empty; a quiet pair on the same worker still gets each frame through
/// at once. A switch that starves them does so each time, a busy machine does not. 99 % of its
/// frames are served within 5 ms.
#[test]
#[ignore = "full"]
fn a_flood_does_not_starve_a_quiet_pair() {
    let _alone = alone();
    let limit = Duration::from_millis(5);
    let slow: Vec<Duration> =
        (0..3).map(|_| quiet_pair_beside_a_flood()).take_while(|p99| *p99 >= limit).collect();
    assert!(slow.len() < 3, "99 % of the frames took up to {slow:?}");
}

/// What 99 % of the quiet pair's frames take at most.
fn quiet_pair_beside_a_flood() -> Duration {
    let rounds = if long() { 20_000 } else { 2_000 };
    let d = Daemon::with(4, &[]);
    let (mut a, mut b) = pollers(&d);
    // All four are known before it begins, so that nothing is flooded to all.
    one_way(&mut a, &mut b);
    one_way(&mut b, &mut a);
    let (mut from, mut to) = (connect(&d, 2), connect(&d, 3));
    one_way(&mut from, &mut to);
    one_way(&mut to, &mut from);
    for vm in [&mut a, &mut b] {
        vm.rx[0].recv(64, |_, _| {});
    }
    // The worker has a CPU, and the flood has the other one while the quiet pair sleeps.
    let _apart = d.run_apart();
    let over = AtomicBool::new(false);
    let (mut times, flood) = std::thread::scope(|s| {
        let over = &over;
        let flood = s.spawn(move || flood(&mut from, &to.mac(), over));
        let end = SetOnDrop(over);
        std::thread::sleep(Duration::from_millis(50));
        let times = (0..rounds).map(|_| {
            std::thread::sleep(Duration::from_micros(200));
            (one_way_asleep(&mut a, &mut b) + one_way_asleep(&mut b, &mut a)) / 2
        });
        let times: Vec<Duration> = times.collect();
        drop(end);
        (times, flood.join().expect("flood"))
    });
    let (p50, p99) = (percentile(&mut times, 50), percentile(&mut times, 99));
    println!("p50 {p50:.1?} p99 {p99:.1?} beside {flood} frames");
    assert!(flood > 100 * rounds, "that was no flood: {flood} frames");
    drop((a, b));
    d.stop();
    p99
}

/// One frame between guests that sleep until they are called.
pub fn one_way_asleep(from: &mut Vm, to: &mut Vm) -> Duration {
    let frame = [&to.mac()[..], &from.mac(), &[0x88, 0xb5], &[0; 46]].concat();
    let start = Instant::now();
    assert!(from.tx[0].send(&frame), "completions are missing");
    assert!(to.rx[0].wait(LOST), "a frame is lost");
    let took = start.elapsed();
    assert_eq!(to.rx[0].recv(2, |_, got| assert_eq!(got, frame)), 1);
    took
}

/// Ends the others' loop, also when its thread panics.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Keeps a ring full until `over`: each chain that came back is made available again as it is, by
/// the index alone, which is faster than any switch can forward. Answers the frames sent.
fn flood(from: &mut Vm, to: &[u8; 6], over: &AtomicBool) -> u64 {
    let frame = [&to[..], &from.mac(), &[0x88, 0xb5], &[0; 46]].concat();
    let tx = &mut from.tx[0];
    tx.drain(LOST);
    tx.ring.disarm();
    while tx.queue(&frame) {}
    let ring = &mut tx.ring;
    assert_eq!(ring.in_flight(), usize::from(ring.size), "a gap in the available ring");
    let (mut used, mut sent, mut still) = (ring.used_idx(), 0, 0);
    ring.publish();
    while !over.load(Ordering::Acquire) {
        let now = ring.used_idx();
        raw_avail_idx(ring, now.wrapping_add(ring.size));
        sent += u64::from(now.wrapping_sub(used));
        still = if now == used { still + 1 } else { 0 };
        used = now;
        if still == 1000 {
            // It may have gone to sleep before it saw the index.
            ring.kick.write(1);
            still = 0;
        }
        // The quiet pair, when it is called, has this CPU; the ring lasts until it sleeps again.
        std::thread::yield_now();
    }
    sent
}
