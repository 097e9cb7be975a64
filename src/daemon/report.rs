//! Writes all counters to the log: a line for each queue that was ever used.

use std::fmt::Write;

use base::stats::{Counter, QueueStats, WorkerStats};
use datapath::port::{Port, PortTable};
use datapath::worker::Workers;
use switch::Fdb;
use sys::clock;
use sys::footprint::Footprint;

/// Writes all counters at level info.
pub fn log(ports: &PortTable, workers: &Workers, fdb: &Fdb) {
    for port in ports.iter() {
        log_port(port, fdb);
    }
    for (index, handle) in workers.handles().iter().enumerate() {
        log_worker(index, &handle.stats);
    }
    if let Some(Footprint { shared_kib, huge_kib, page_tables_kib }) = Footprint::now() {
        log::info!(
            "memory of guests: shared_kib {shared_kib} huge_kib {huge_kib} \
             page_tables_kib {page_tables_kib}"
        );
    }
    log::info!("addresses {}", fdb.len());
}

fn log_worker(index: usize, stats: &WorkerStats) {
    let mut line = format!("worker {index}");
    stats.each(&mut |name, count| say(&mut line, name, count));
    let frames = stats.frames.get();
    log::info!(
        "{line} frames_per_busy_turn {:.1} cycles_per_frame {:.1} cycles_per_second {}",
        ratio(frames, stats.busy_turns.get()),
        ratio(stats.busy_cycles.get(), frames),
        clock::cycles_per_second(),
    );
}

/// Returns `a / b`, or 0 if `b` is 0.
fn ratio(a: u64, b: u64) -> f64 {
    if b == 0 { 0.0 } else { a as f64 / b as f64 }
}

fn say(line: &mut String, name: &str, count: u64) {
    // Writing to a string cannot fail.
    let _ = write!(line, " {name} {count}");
}

/// Writes a counter to the line; leaves out drops and violations of a guard's rules that are 0.
fn say_counter(line: &mut String, name: &str, counter: &Counter) {
    let is_rare = name.starts_with("drop.") || name.starts_with("guard.");
    if counter.get() > 0 || !is_rare {
        say(line, name, counter.get());
    }
}

fn log_port(port: &Port, fdb: &Fdb) {
    let mut line = format!("port {} addresses {}", port.name, fdb.port_len(port.id));
    port.stats.each(&mut |name, counter| say_counter(&mut line, name, counter));
    say(&mut line, "log_suppressed", port.reports.log.suppressed.get());
    log::info!("{line}");
    log_queue(port, "announced", 0, &port.stats.announced);
    port.each_queue(&mut |direction, index, stats| {
        log_queue(port, direction.name(), index, stats);
    });
}

fn log_queue(port: &Port, direction: &str, index: usize, stats: &QueueStats) {
    if stats.is_untouched() {
        return;
    }
    let mut line = format!("port {} queue {index} {direction}", port.name);
    stats.each(&mut |name, counter| say_counter(&mut line, name, counter));
    log::info!("{line}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::stats::{DropReason, PortStats};

    const PAGE: &str = include_str!("../../docs/counters.md");

    #[test]
    fn the_page_of_counters_has_each_of_them() {
        let mut names = vec!["addresses".to_owned(), "log_suppressed".to_owned()];
        names.extend(
            ["shared_kib", "huge_kib", "page_tables_kib", "cycles_per_second", "cycles_per_frame"]
                .map(str::to_owned),
        );
        let mut note = |name: &str, _: &Counter| {
            names.push(name.strip_prefix("drop.").unwrap_or(name).to_owned());
        };
        QueueStats::default().each(&mut note);
        PortStats::default().each(&mut note);
        WorkerStats::default().each(&mut |name, _| names.push(name.to_owned()));
        assert!(names.len() > 35 + DropReason::ALL.len(), "the scan is broken: {names:?}");
        let has = |text: &str| PAGE.contains(text);
        for name in names {
            let metric = |of| format!("`vioswitch_{of}_{name}_total`");
            let is_metric = ["port", "worker"].iter().any(|of| has(&metric(of)));
            assert!(is_metric || has(&format!("`{name}`")), "docs/counters.md lacks {name}");
        }
    }

    #[test]
    fn drops_are_told_only_if_they_happened() {
        let stats = QueueStats::default();
        stats.frames.add(7);
        stats.drops.add(DropReason::NoBuffer, 3);
        let mut line = String::new();
        stats.each(&mut |name, counter| say_counter(&mut line, name, counter));
        assert!(line.starts_with(" frames 7 bytes 0 copies 0 kicks 0 "), "{line}");
        assert!(line.ends_with(" coalesced 0 drop.no_buffer 3"), "{line}");
    }
}
