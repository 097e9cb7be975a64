//! All counters as log lines, a line per queue that ever did something.

use crate::port::{Endpoint, Port, PortTable};
use crate::stats::{QueueStats, WorkerStats};
use crate::switch::Fdb;
use crate::sys::clock;
use crate::sys::footprint::Footprint;
use crate::worker::Workers;

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

fn log_worker(index: usize, s: &WorkerStats) {
    let frames = s.frames.get();
    log::info!(
        "worker {index} turns {} bursts {} frames {frames} wakeups {} empty_wakeups {} signals {} \
         signals_suppressed {} signals_failed {} lock_misses {} lock_parks {} moves {} \
         busy_turns {} frames_per_busy_turn {:.1} busy_cycles {} idle_cycles {} \
         cycles_per_frame {:.1} cycles_per_second {} spins_found {} spins_empty {}",
        s.turns.get(),
        s.bursts.get(),
        s.wakeups.get(),
        s.empty_wakeups.get(),
        s.signals.get(),
        s.signals_suppressed.get(),
        s.signals_failed.get(),
        s.lock_misses.get(),
        s.lock_parks.get(),
        s.moves.get(),
        s.busy_turns.get(),
        ratio(frames, s.busy_turns.get()),
        s.busy_cycles.get(),
        s.idle_cycles.get(),
        ratio(s.busy_cycles.get(), frames),
        clock::cycles_per_second(),
        s.spins_found.get(),
        s.spins_empty.get()
    );
}

/// `a / b`, 0 if there is no `b` yet.
fn ratio(a: u64, b: u64) -> f64 {
    if b == 0 { 0.0 } else { a as f64 / b as f64 }
}

fn log_port(port: &Port, fdb: &Fdb) {
    let s = &port.stats;
    log::info!(
        "port {} addresses {} attaches {} session_errors {} rings_broken {} learn_refused {} \
         learn_static {} panics {} log_suppressed {}{}",
        port.name,
        fdb.port_len(port.id),
        s.attaches.get(),
        s.session_errors.get(),
        s.rings_broken.get(),
        s.learn_refused.get(),
        s.learn_static.get(),
        s.panics.get(),
        port.log.suppressed.get(),
        s.drops
    );
    log_queue(port, "announced", 0, &s.announced);
    match &port.endpoint {
        Endpoint::Guest(guest) => {
            for (i, queue) in guest.tx.iter().enumerate() {
                log_queue(port, "in", i, &queue.stats);
            }
            for (i, queue) in guest.rx.iter().enumerate() {
                log_queue(port, "out", i, &queue.stats);
            }
        }
        Endpoint::Tap(tap) => {
            for (i, queue) in tap.queues().iter().enumerate() {
                log_queue(port, "in", i, &queue.input);
                log_queue(port, "out", i, &queue.output);
            }
        }
    }
}

fn log_queue(port: &Port, direction: &str, index: usize, s: &QueueStats) {
    let idle = s.frames.get() + s.drops.total() + s.kicks.get() + s.bad_buffers.get() == 0;
    if idle {
        return;
    }
    log::info!(
        "port {} queue {index} {direction} frames {} bytes {} copies {} kicks {} signals {} \
         signals_suppressed {} waits {} bad_buffers {} checksummed {} segmented {} segments {} \
         segments_lost {}{}",
        port.name,
        s.frames.get(),
        s.bytes.get(),
        s.copies.get(),
        s.kicks.get(),
        s.signals.get(),
        s.signals_suppressed.get(),
        s.waits.get(),
        s.bad_buffers.get(),
        s.fallbacks.checksummed.get(),
        s.fallbacks.segmented.get(),
        s.fallbacks.segments.get(),
        s.fallbacks.segments_lost.get(),
        s.drops
    );
}

#[cfg(test)]
mod tests {
    use crate::stats::DropReason;

    const PAGE: &str = include_str!("../../docs/counters.md");

    /// What the report says stands there as `name {value}`.
    #[test]
    fn the_page_of_counters_has_each_of_them() {
        let report = include_str!("report.rs").split("#[cfg(test)]").next().unwrap();
        let words: Vec<&str> = report.split_whitespace().collect();
        let told = words.windows(2).filter(|pair| pair[1].starts_with('{') && pair[1] != "{");
        let is_name = |c: char| c.is_ascii_lowercase() || c == '_';
        let names = told.map(|pair| pair[0].trim_start_matches('"'));
        let names: Vec<&str> = names.filter(|name| name.chars().all(is_name)).collect();
        assert!(names.len() > 35, "the scan is broken: {names:?}");
        let drops = DropReason::ALL.iter().map(|reason| reason.name());
        for name in names.into_iter().chain(drops) {
            let known = ["port", "queue", "worker"].contains(&name);
            assert!(known || PAGE.contains(&format!("`{name}`")), "docs/counters.md lacks {name}");
        }
    }
}
