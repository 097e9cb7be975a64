//! A vhost-user front-end and virtio-net driver for tests, able to misbehave on purpose.
//!
//! It talks to the real socket of the real daemon, needs no root, and shares no code with the
//! crate under test: rings, messages and headers are written anew from virtio 1.2 and the
//! vhost-user specification, so that a misreading cannot hide on both sides.
//!
//! From the bottom up: `sys` (system calls), `mem` (guest memory), `frontend` (messages), `ring`
//! (one split virtqueue and its books), `vnet` (the virtio-net header and what is promised of it),
//! `rx` and `tx` (the two sides of virtio-net), `vm` (a whole guest), `traffic` (frames that prove
//! I1 to I4), `net` (several guests and the traffic between them), `packet` (TCP and UDP packets,
//! and what becomes of them without offloads), `hostile` (what a driver must never do),
//! `neighbours` (two honest guests beside an attacker: loss and latency), `shares` (what part of a
//! worker a guest keeps beside one), `transcript` (recorded conversations), `huge_pages`, `proc`
//! (the daemon's process), `manager` (the one that starts it as a service), `counters` (what it
//! says it did).

// Each test binary uses its own part of this.
#![allow(dead_code)]

pub mod counters;
pub mod frontend;
pub mod hostile;
pub mod huge_pages;
pub mod manager;
pub mod mem;
pub mod neighbours;
pub mod net;
pub mod packet;
pub mod proc;
pub mod ring;
pub mod rx;
pub mod shares;
pub mod sys;
pub mod traffic;
pub mod transcript;
pub mod tx;
pub mod vm;
pub mod vnet;

use std::io::Write;

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
}

/// True if the long runs were asked for (hours of confidence instead of minutes).
pub fn long() -> bool {
    std::env::var_os("VIOSWITCH_LONG").is_some_and(|v| v == "1")
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
