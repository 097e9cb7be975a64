//! All counters as log lines, a line per queue that ever did something.

use crate::port::{Endpoint, Port};
use crate::stats::QueueStats;
use crate::switch::Fdb;
use crate::worker::Workers;

/// Writes all counters at level info.
pub fn log(ports: &[Port], workers: &Workers, fdb: &Fdb) {
    for port in ports {
        log_port(port, fdb);
    }
    for (index, handle) in workers.handles().iter().enumerate() {
        let s = &handle.stats;
        log::info!(
            "worker {index} turns {} bursts {} frames {} wakeups {} empty_wakeups {} signals {} \
             signals_failed {} lock_misses {} lock_parks {}",
            s.turns.get(),
            s.bursts.get(),
            s.frames.get(),
            s.wakeups.get(),
            s.empty_wakeups.get(),
            s.signals.get(),
            s.signals_failed.get(),
            s.lock_misses.get(),
            s.lock_parks.get()
        );
    }
    log::info!("addresses {}", fdb.len());
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
         signals_suppressed {} bad_buffers {}{}",
        port.name,
        s.frames.get(),
        s.bytes.get(),
        s.copies.get(),
        s.kicks.get(),
        s.signals.get(),
        s.signals_suppressed.get(),
        s.bad_buffers.get(),
        s.drops
    );
}
