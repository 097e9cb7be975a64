//! The workers among themselves: what they count, where they run, how rings are spread over them
//! and move, and that no guest has a worker to itself.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::time::Instant;

use common::net::{Job, Net, Sizes};
use common::proc::Daemon;
use common::sys;
use common::traffic::To;

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
