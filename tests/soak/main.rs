//! Guests of all kinds come and go while two honest pairs talk: so do front-ends and peers of
//! streams, for as long as is wanted. The honest pairs' frames arrive in order, once and unchanged,
//! no longer than a second apart; no other guest's memory holds any of their bytes.
//! Every 15 seconds or so the others are sent away: then the daemon holds what it held before, and
//! its counters balance to the frame.
//!
//! Needs nothing; as root it also has an uplink, in a network namespace of its own. `scripts/soak`
//! runs it for long.
//!
//! - `VIOSWITCH_SOAK_MINUTES=20` instead of a third of one, or of a tenth.
//! - `VIOSWITCH_SEED=n` draws other guests.

mod guests;
mod honest;
mod peers;
mod shared;
mod watch;
mod wire;

use std::fs::File;
use std::path::PathBuf;
use std::process::Command;
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use guests::Other;
use honest::Pair;
use peers::{Peers, STREAMS};
use shared::{OTHERS, PAIRS, PORTS, Shared};
use testkit::hostile::raw_avail_idx;
use testkit::proc::{Daemon, Dir, wait_for};
use testkit::sys;
use testkit::vm::{Vm, VmConfig, mac_of, tag_of};
use watch::Watch;

/// Between two moments of silence.
const ROUND: Duration = Duration::from_secs(15);
const SOON: Duration = Duration::from_secs(10);
/// Longest silence of an honest pair, less what it and the workers waited for a CPU.
const GAP_LIMIT: Duration = Duration::from_secs(1);

fn from_env<T: FromStr>(name: &str, default: T) -> T {
    let Ok(text) = std::env::var(name) else { return default };
    text.parse().unwrap_or_else(|_| panic!("{name}={text}"))
}

#[test]
fn guests_come_and_go() {
    let done = AtomicBool::new(false);
    testkit::host::in_namespace(|| {
        done.store(true, Ordering::Relaxed);
        soak(true);
    });
    if !done.load(Ordering::Relaxed) {
        soak(false);
    }
}

/// Standard error that nobody reads, as of a log service that hangs: a hostile guest makes a worker
/// say something all the same, and the honest pair goes on.
#[test]
fn a_log_that_nobody_reads_delays_nobody() {
    let dir = Dir::new();
    let log = dir.path().join("log");
    let made = Command::new("mkfifo").arg(&log).status().expect("mkfifo (coreutils)");
    assert!(made.success());
    let pipe = File::options().read(true).write(true).open(&log).expect("pipe");
    let ports = ["p0", "p1", "p2"].iter().enumerate();
    let args = ports.flat_map(|(n, name)| {
        let path = dir.path().join(format!("s{n}"));
        ["--port".to_string(), format!("{name},socket={}", path.display())]
    });
    let args: Vec<String> = args.collect();
    let d = Daemon::spawn(dir, &args);
    assert!(wait_for(SOON, || d.socket(2).exists()), "no sockets");
    let mut pair = Pair::connect(0, |port| d.socket(port));
    let evil = Vm::connect(&d.socket(2), VmConfig::new(2));
    // Until the pipe is full: a report has some 2 KB, and a pipe of the kernel's 64.
    for _ in 0..100 {
        d.signal(libc::SIGUSR1);
        std::thread::sleep(Duration::from_millis(2));
    }
    std::thread::sleep(Duration::from_millis(1100));
    let ring = &evil.guest.tx[0].ring;
    raw_avail_idx(ring, ring.size + 1);
    ring.kick.write(1);
    let told = sys::poll_in(&[ring.err.raw()], SOON / 10);
    let shared = Shared::default();
    let came = || shared.honest_frames.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        scope.spawn(|| shared.guard("honest pair", || pair.run(&shared)));
        wait_for(SOON, || came() > 1000);
        shared.stop();
    });
    // An ordinary log for the end.
    std::fs::remove_file(&log).expect("pipe");
    std::fs::write(&log, "").expect("log");
    drop(pipe);
    assert!(told, "the ring was not found broken");
    assert!(came() > 1000, "{} frames beside a log that nobody reads", came());
}

/// Not a test: the process of a guest that will be killed (see `guests::process`).
#[test]
#[ignore]
fn a_guest_of_its_own() {
    guests::process();
}

fn daemon(uplink: bool, streams: &[PathBuf]) -> Daemon {
    let mac = |id: usize| mac_of(id as u8).map(|octet| format!("{octet:02x}")).join(":");
    let keys: Vec<String> = (0..PORTS)
        .map(|id| if id < 2 * PAIRS { format!(",mac={}", mac(id)) } else { String::new() })
        .collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let tap = format!("up,ifname={}", wire::TAP);
    let named = streams.iter().enumerate();
    let streams: Vec<String> =
        named.map(|(n, path)| format!("--stream=s{n},socket={}", path.display())).collect();
    let mut extra = vec!["--workers", "2"];
    extra.extend(streams.iter().map(String::as_str));
    if uplink {
        extra.extend(["--tap", &tap]);
    }
    Daemon::with_ports(&keys, &extra)
}

fn soak(uplink: bool) {
    let minutes: f64 = from_env("VIOSWITCH_SOAK_MINUTES", testkit::rounds(0.1, 0.33, 0.33));
    let seed: u64 = from_env("VIOSWITCH_SEED", 1);
    let uplinks = if uplink { "an uplink" } else { "no uplink" };
    println!(
        "soak: {minutes} min, seed {seed}, {PAIRS} honest pairs, {OTHERS} others, {STREAMS} \
         streams, {uplinks}"
    );
    let dir = Dir::new();
    let streams: Vec<_> = (0..STREAMS).map(|n| dir.path().join(format!("s{n}"))).collect();
    let mut d = daemon(uplink, &streams);
    let shared = Shared::default();
    let pairs: Vec<Mutex<Pair>> = (0..PAIRS as u8)
        .map(|pair| Mutex::new(Pair::connect(2 * pair, |port| d.socket(port))))
        .collect();
    let paths: Vec<_> = (0..PORTS).map(|port| d.socket(port)).collect();
    std::thread::scope(|scope| {
        let shared = &shared;
        let pid = d.pid();
        scope.spawn(move || watch::pause_of_machine(shared, pid));
        for pair in &pairs {
            scope.spawn(|| shared.guard("honest pair", || pair.lock().expect("one").run(shared)));
        }
        for (id, path) in paths.iter().enumerate().skip(2 * PAIRS) {
            let mut guest = Other::new(id as u8, path.clone(), seed, shared);
            scope.spawn(move || shared.guard(&format!("guest {id}"), || guest.run()));
        }
        for (n, path) in streams.iter().enumerate() {
            let mut peers = Peers::new(n, path.clone(), seed, shared);
            scope.spawn(move || shared.guard(&format!("stream {n}"), || peers.run()));
        }
        if uplink {
            scope.spawn(|| shared.guard("the host", || wire::run(shared, seed)));
        }
        let others = OTHERS + STREAMS + usize::from(uplink);
        // Whatever happens here, the others must hear that it is over.
        shared.guard("watch", || conduct(&mut d, shared, minutes, others));
        shared.stop();
    });
    let mut pairs: Vec<Pair> = pairs.into_iter().filter_map(|p| p.into_inner().ok()).collect();
    shared.guard("the end", || close_the_books(&d, &shared, &mut pairs));
    drop(pairs);
    shared.guard("the end", || d.stop());
    verdict(&shared, minutes, seed);
}

/// Rounds of everything, each ending in silence.
fn conduct(d: &mut Daemon, shared: &Shared, minutes: f64, others: usize) {
    let mut watch = Watch::new(d, shared, minutes);
    let end = Instant::now() + Duration::from_secs_f64(minutes * 60.0);
    let mut told = Instant::now();
    while Instant::now() < end && shared.failures().is_empty() {
        let round = Instant::now() + ROUND.min(end - Instant::now());
        while Instant::now() < round && shared.failures().is_empty() {
            std::thread::sleep(Duration::from_millis(200));
            watch.look();
        }
        shared.pause_others(others);
        shared.pause_honest();
        watch.quiet("between guests");
        shared.resume();
        if told.elapsed() > Duration::from_secs(45) || Instant::now() >= end {
            watch.tell();
            told = Instant::now();
        }
    }
    watch.look();
}

/// At the end, to the frame: what each honest guest sent and got is what was counted for its port,
/// and what it missed was counted there as dropped (I1). Nobody's words are in its memory (I4).
fn close_the_books(d: &Daemon, shared: &Shared, pairs: &mut [Pair]) {
    // The others' and the uplink's last frames may come in yet.
    let count = || d.report().sum(None, "out", "frames");
    let mut last = count();
    let still = wait_for(SOON, || {
        std::thread::sleep(Duration::from_millis(20));
        pairs.iter_mut().for_each(|pair| pair.settle(shared));
        let now = count();
        now == std::mem::replace(&mut last, now)
    });
    assert!(still, "frames come although nobody sends");
    pairs.iter_mut().for_each(|pair| pair.settle(shared));
    let c = d.report();
    c.balance();
    for (n, sent) in shared.stream_frames.iter().enumerate() {
        let (sent, came) =
            (sent.load(Ordering::Relaxed), c.sum(Some(&format!("s{n}")), "in", "frames"));
        assert!(came >= sent, "s{n}: {came} frames in of {sent} that were sent (I1)");
    }
    for pair in pairs {
        for (vm, lost) in pair.vms.iter().zip(pair.lost()) {
            let (id, port) = (vm.cfg.id, format!("p{}", vm.cfg.id));
            let sent = vm.tx[0].frames;
            assert_eq!(c.sum(Some(&port), "in", "frames"), sent, "{port}: frames in (I1)");
            assert_eq!(c.drops(Some(&port), "in"), 0, "{port}: drops of an honest sender");
            let received = vm.rx[0].frames;
            assert_eq!(c.sum(Some(&port), "out", "frames"), received, "{port}: frames out (I1)");
            let drops = c.drops(Some(&port), "out") + c.drops(Some(&port), "");
            assert!(lost <= drops, "{port}: {lost} frames missing, {drops} drops counted (I1)");
            assert!(vm.no_errors(), "{port}: an error was reported");
            for other in (0..PORTS as u8).filter(|&other| other != id) {
                let found = vm.mem.contains(&tag_of(other).to_le_bytes());
                assert!(!found, "memory of guest {id} holds bytes of {other} (I4)");
            }
        }
    }
}

fn verdict(shared: &Shared, minutes: f64, seed: u64) {
    let load = |of: &std::sync::atomic::AtomicU64| of.load(Ordering::Relaxed);
    let time = |of| Duration::from_micros(load(of));
    let (gap, net) = (time(&shared.longest_gap), time(&shared.longest_net));
    let machine = time(&shared.longest_of_machine);
    if net > GAP_LIMIT {
        shared.fail(format!("an honest guest heard nothing for {net:.1?} (I7)"));
    }
    let (frames, lost) = (load(&shared.honest_frames), load(&shared.honest_lost));
    println!("episodes: {:?}", shared.episodes.lock().expect("episodes"));
    println!("honest pairs: {frames} frames, {lost} lost and counted");
    println!("longest silence {gap:.1?}, less what was waited for a CPU {net:.1?}");
    println!("longest pause of a thread that only sleeps: {machine:.1?}");
    let failures = shared.failures();
    let verdict = if failures.is_empty() { "passed" } else { "FAILED" };
    println!("soak of {minutes} min with seed {seed}: {verdict}");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
