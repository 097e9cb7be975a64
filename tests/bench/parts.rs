//! Micro-benchmarks of the parts of the data path, on the library's public interface.
//!
//! ```sh
//! cargo bench -p benchmarks --bench parts                # all, in about a minute
//! cargo bench -p benchmarks --bench parts -- fdb/lookup  # some, by a regular expression
//! cargo bench -p benchmarks --bench parts -- --test      # each once, as a smoke test
//! ```
//!
//! One thread plays driver and device, so rings and buffers stay in its caches: the figures are
//! the cost of instructions and of this core's misses, without the traffic between cores that a
//! guest causes. They serve to compare a part before and after a change.
//!
//! A line's time is that of one burst, its throughput that of single frames or addresses. A burst
//! also ends after 64 KiB: 43 frames of 1,514 bytes or 2 of 65,000.

use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};

#[path = "parts/drain.rs"]
mod drain;
#[path = "parts/fdb.rs"]
mod fdb;
#[path = "parts/fill.rs"]
mod fill;
#[path = "parts/filter.rs"]
mod filter;
#[path = "parts/frame.rs"]
mod frame;
#[path = "parts/guest.rs"]
#[allow(dead_code)]
mod guest;
#[path = "parts/memo.rs"]
mod memo;
#[path = "parts/offload.rs"]
mod offload;

/// Frames or addresses of one iteration where the part itself knows no bursts.
const BURST: usize = base::limits::BURST_FRAMES;

/// Short runs: some ninety lines are to take about a minute. What a longer run would gain in
/// precision, the machine's drift takes away.
fn settings() -> Criterion {
    Criterion::default()
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(400))
        .sample_size(20)
        .nresamples(2_000)
}

criterion_group! {
    name = parts;
    config = settings();
    targets = drain::all, fill::all, fdb::all, filter::all, memo::all, frame::all,
        offload::all
}
criterion_main!(parts);
