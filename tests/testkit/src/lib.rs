//! What the tests share: a vhost-user front-end and virtio-net driver, able to misbehave on
//! purpose, and what starts and watches the daemon.
//!
//! # Where does my test go?
//!
//! | what it shows | place |
//! |---|---|
//! | a part by itself, without a daemon | a `tests` module beside the part, in `src` |
//! | what becomes of frames; the host behind a TAP | `tests/forwarding` |
//! | messages, states, memory, reconnects of front-ends; migration | `tests/sessions` |
//! | arguments, signals, log, start and end, handing over | `tests/process` |
//! | rates, shares, latencies, wake-ups: all that must be alone | `tests/timing` |
//! | hostile guests and front-ends | `tests/hostile` |
//! | what the system refuses, panics, death of a front-end | `tests/hostile_faults` |
//! | everything at once, for long | `tests/soak`, or an operation of `tests/forwarding/model` |
//! | any bytes at all | a target of `tests/fuzz`, replayed by `tests/fuzz_corpus.rs` |
//! | every interleaving of threads | `tests/models`, under loom |
//! | Linux under QEMU, DPDK | `tests/guests` |
//! | the shape of the source | `tests/layering/` |
//!
//! A new file, not a new program: each links all of this again. Tests of one program share a
//! process and run side by side: a test that counts the process's own descriptors, lowers its
//! limits or sets its environment starts the program once more for itself (`wire_descriptors`).
//!
//! # The driver
//!
//! From the bottom up: [`sys`], [`mem`], [`frontend`] (messages), [`ring`], [`vnet`], [`rx`] and
//! [`tx`], [`vm`] (a whole guest), [`traffic`] (frames that prove I1 to I4), [`net`] (several
//! guests). It shares no code with the crate under test (docs/testing.md).

pub mod bystanders;
pub mod counters;
pub mod dgram;
pub mod end;
pub mod frontend;
pub mod host;
pub mod hostile;
pub mod huge_pages;
pub mod manager;
pub mod manual;
pub mod mem;
pub mod mounts;
pub mod neighbours;
pub mod net;
pub mod openvswitch;
pub mod packet;
pub mod proc;
pub mod relay;
pub mod ring;
pub mod rx;
pub mod shares;
pub mod silent;
pub mod stream;
mod surroundings;
pub mod sys;
pub mod traffic;
pub mod transcript;
pub mod tx;
pub mod vm;
pub mod vnet;

use std::io::Write;
use std::time::Duration;

/// Longest wait for what must come. Only a test that fails waits for so long, so that no machine is
/// too busy for one that passes.
pub const SOON: Duration = Duration::from_secs(30);

/// A small generator (xorshift64*): the same numbers in each run, so a failure repeats.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// 0 to `n` - 1 (0 if `n` is 0).
    pub fn below(&mut self, n: u64) -> u64 {
        if n == 0 { 0 } else { self.next() % n }
    }

    /// Puts `items` into random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}

/// True if the long runs were asked for (hours of confidence instead of minutes).
pub fn long() -> bool {
    std::env::var_os("VIOSWITCH_LONG").is_some_and(|v| v == "1")
}

/// One of three by how much is to be run: `scripts/test`, `--full`, `--long`. A test that only
/// repeats takes its rounds from here. One that is too long for the first, or judges times in a way
/// that a busy machine does not stand, is `#[ignore = "full"]`.
pub fn rounds<T>(quick: T, full: T, longest: T) -> T {
    let is_full = std::env::var_os("VIOSWITCH_FULL").is_some_and(|v| v == "1");
    match (long(), is_full) {
        (true, _) => longest,
        (false, true) => full,
        (false, false) => quick,
    }
}

/// True where this process cannot have mounts of its own, and then says that the test is skipped:
/// without root, and in most containers.
pub fn skips_without_mounts() -> bool {
    let unshare = std::process::Command::new("unshare").args(["--mount", "true"]).output();
    let mounts = unshare.is_ok_and(|output| output.status.success());
    if !mounts {
        skip("mounts of its own need root, and a root directory that is a mount");
    }
    !mounts
}

/// Says that this test is skipped, which fails it if `VIOSWITCH_REQUIRE=1`.
pub fn skip(reason: &str) {
    let required = std::env::var_os("VIOSWITCH_REQUIRE").is_some_and(|value| value == "1");
    assert!(!required, "{reason}");
    let thread = std::thread::current();
    let line = format!("SKIPPED {}: {reason}\n", thread.name().unwrap_or("?"));
    // Not `eprintln`, which the test harness swallows for a test that passes.
    let _ = std::io::stderr().write_all(line.as_bytes());
}
