//! What costly rings cost two other guests in latency: at most twice what honest ones cost who keep
//! the worker as busy. On a machine with other work a worker that never sleeps waits longer for its
//! CPU than one that mostly does, which is not the attacker's doing.

use std::time::Duration;

use super::shares::{LONGEST, table};
use crate::alone;
use testkit::hostile::{one_buffer, refill, restart_with};
use testkit::neighbours::{Lab, While};
use testkit::ring::{DESC_INDIRECT, DESC_WRITE, Seg, put_desc};
use testkit::shares::{SIZE, frame, receive, whole};
use testkit::vm::Vm;

/// The attackers' ports.
const EVIL: u8 = 2;
const SINK: u8 = 3;
/// The first of two honest guests that send as much as they can.
const HONEST: u8 = 4;
/// How often the attacker offers what came back.
const PAUSE: Duration = Duration::from_micros(150);

/// Both rings of two guests are kept full.
fn keep_full<'a>(from: &'a Vm, to: &'a Vm) -> impl FnMut(&While<'_>) + Send + 'a {
    move |phase: &While<'_>| {
        phase.every(PAUSE, || {
            refill(&to.guest.rx[0].ring);
            refill(&from.guest.tx[0].ring);
        });
    }
}

/// Guests `id` and the next, the first of which sends to the second without end.
pub fn honest(lab: &mut Lab, id: u8) -> (Vm, Vm) {
    let mut from = lab.guest(id, |cfg| cfg.tx_size = SIZE);
    let mut to = lab.guest(id + 1, |cfg| cfg.size = SIZE);
    let bytes = frame(&from, to.mac(), 1514);
    restart_with(&mut from, 1, |ring| one_buffer(ring, whole(&bytes), 0));
    receive(&mut to);
    (from, to)
}

/// A receiver whose buffers are tables of 1,024 descriptors, the last of which makes them useless,
/// or which hold a byte each.
fn rx_tables_delay_nobody(useless: bool) {
    let _alone = alone();
    let mut lab = Lab::new(4, &[]);
    let mut evil = lab.guest(EVIL, |cfg| cfg.tx_size = SIZE);
    let mut sink = lab.guest(SINK, |cfg| cfg.size = SIZE);
    let bytes = frame(&evil, sink.mac(), 1514);
    restart_with(&mut evil, 1, |ring| one_buffer(ring, whole(&bytes), 0));
    let crumb = sink.guest.mem.alloc_in(0, 4096, 16);
    let buffer = table(&sink, LONGEST, &crumb, 1, DESC_WRITE);
    if useless {
        let last = sink.guest.mem.span(buffer.gpa, u64::from(buffer.len));
        put_desc(&last, LONGEST - 1, Seg { gpa: crumb.gpa(), len: 1 }, 0, 0);
    }
    restart_with(&mut sink, 0, |ring| one_buffer(ring, buffer, DESC_INDIRECT));
    let (from, to) = honest(&mut lab, HONEST);
    let what = format!("RX tables of 1,024, useless {useless}");
    lab.unharmed(&what, keep_full(&from, &to), keep_full(&evil, &sink));
    drop((evil, sink, from, to));
    lab.finish();
}

#[test]
#[ignore = "full"]
fn useless_rx_tables_delay_nobody() {
    rx_tables_delay_nobody(true);
}

#[test]
#[ignore = "full"]
fn rx_tables_of_a_byte_each_delay_nobody() {
    rx_tables_delay_nobody(false);
}

/// A sender of tables of 1,024 empty descriptors.
#[test]
#[ignore = "full"]
fn rejected_tx_tables_delay_nobody() {
    let _alone = alone();
    let mut lab = Lab::new(4, &[]);
    let mut evil = lab.guest(EVIL, |cfg| cfg.tx_size = SIZE);
    let sink = lab.guest(SINK, |_| ());
    let bytes = frame(&evil, sink.mac(), 60);
    let buffer = table(&evil, LONGEST, &bytes, 0, 0);
    restart_with(&mut evil, 1, |ring| one_buffer(ring, buffer, DESC_INDIRECT));
    let (from, to) = honest(&mut lab, HONEST);
    lab.unharmed("rejected TX tables", keep_full(&from, &to), keep_full(&evil, &sink));
    drop((evil, sink, from, to));
    lab.finish();
}
