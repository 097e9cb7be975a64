//! A guest behind a port with a guard rewrites its frame while the switch looks at it: no frame
//! arrives that breaks a rule, wherever in the frame the field is and however it lies in buffers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::duo::{Stop, settled};
use super::lab::counters;
use testkit::hostile::{raw_avail, raw_desc, refill, restart_with};
use testkit::proc::Daemon;
use testkit::ring::{DESC_NEXT, Seg};
use testkit::vm::{Vm, VmConfig, mac_of};

const LEN: usize = 300;

/// Where the fields are that are changed, and the value that is not the port's.
struct Case {
    name: &'static str,
    frame: Vec<u8>,
    at: usize,
    spoofed: u8,
}

/// Where the client identifier in that message has its last byte, behind the first 256.
const IDENTIFIER_END: usize = 290;

/// A DHCP client's message, with its hardware address behind the first 64 bytes.
fn discover() -> Vec<u8> {
    let mut frame = vec![0; LEN];
    frame[..6].fill(0xff);
    frame[6..12].copy_from_slice(&mac_of(0));
    frame[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
    (frame[23], frame[35], frame[37]) = (17, 68, 67);
    frame[30..34].fill(0xff);
    frame[38..40].copy_from_slice(&((LEN - 34) as u16).to_be_bytes());
    frame[42..45].copy_from_slice(&[1, 1, 6]);
    frame[70..76].copy_from_slice(&mac_of(0));
    frame[278..285].copy_from_slice(&[99, 130, 83, 99, 61, 7, 1]);
    frame[285..=IDENTIFIER_END].copy_from_slice(&mac_of(0));
    frame[IDENTIFIER_END + 1] = 255;
    frame
}

/// A neighbour's advertisement behind so many bytes of options, and its link-layer address.
fn advertisement(options: usize) -> Vec<u8> {
    let mut frame = vec![0; LEN];
    frame[..6].fill(0xff);
    frame[6..12].copy_from_slice(&mac_of(0));
    frame[12..15].copy_from_slice(&[0x86, 0xdd, 0x60]);
    let rest = options + 32;
    (frame[19], frame[20], frame[21]) = (rest as u8, 60, 255);
    frame[22..24].copy_from_slice(&[0xfe, 0x80]);
    (frame[54], frame[55]) = (58, (options / 8 - 1) as u8);
    let at = 54 + options;
    frame[at] = 136;
    frame[at + 8..at + 10].copy_from_slice(&[0xfe, 0x80]);
    frame[at + 24..at + 26].copy_from_slice(&[2, 1]);
    frame[at + 26..at + 32].copy_from_slice(&mac_of(0));
    frame
}

fn cases() -> Vec<Case> {
    let case = |name, frame: Vec<u8>, at| Case { name, spoofed: frame[at] ^ 9, frame, at };
    vec![
        case("the source address", discover(), 11),
        case("the client's address of DHCP", discover(), 75),
        case("the client's identifier of DHCP", discover(), IDENTIFIER_END),
        case("the option of an advertisement", advertisement(8), 54 + 8 + 31),
        case("the same behind long headers", advertisement(160), 54 + 160 + 31),
    ]
}

/// Puts one frame, in pieces that end where `cuts` say, behind each head of the ring.
fn lay(vm: &mut Vm, gpa: u64, cuts: &[usize]) {
    restart_with(vm, 1, |ring| {
        let (mut from, mut index) = (0, 0);
        for &to in cuts.iter().chain([&(12 + LEN)]) {
            let seg = Seg { gpa: gpa + from as u64, len: (to - from) as u32 };
            let flags = if to < 12 + LEN { DESC_NEXT } else { 0 };
            raw_desc(ring, index, seg, flags, index + 1);
            (from, index) = (to, index + 1);
        }
        (0..ring.size).for_each(|slot| raw_avail(ring, slot, 0));
    });
}

#[test]
fn what_a_guard_checked_is_what_arrives() {
    let keys = ",mac=02:56:53:00:00:00,guard=on";
    let d = Daemon::with_ports(&[keys, ""], &["--workers", "2"]);
    let [mut sender, mut sink] =
        [0, 1].map(|id| Vm::connect(&d.socket(id.into()), VmConfig::new(id)));
    let memory = sender.guest.mem.alloc_in(0, 4096, 4096);
    let span = Duration::from_millis(if testkit::long() { 10_000 } else { 250 });
    for Case { name, frame, at, spoofed } in cases() {
        for cuts in [&[][..], &[12], &[12, 12 + 70], &[12 + 80, 12 + 90, 12 + 260]] {
            memory.write(0, &[0; 12]);
            memory.write(12, &frame);
            lay(&mut sender, memory.gpa(), cuts);
            let before = counters(&d).sum(Some("p0"), "in", "drop.guard");
            let (stop, end) = (&AtomicBool::new(false), Instant::now() + span);
            let (mut arrived, mut rounds) = (0, 0);
            std::thread::scope(|scope| {
                let (memory, honest) = (&memory, frame[at]);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        for value in [spoofed, honest] {
                            memory.write(12 + at, &[value]);
                            (0..30).for_each(|_| std::hint::spin_loop());
                        }
                    }
                });
                let _stop = Stop(stop);
                while Instant::now() < end || rounds < 10 {
                    rounds += 1;
                    refill(&sender.guest.tx[0].ring);
                    assert!(!settled(&sender.guest.tx[0].ring, name), "{name}: broken");
                    for (_, got) in sink.rx[0].take(usize::MAX, Duration::ZERO) {
                        assert_eq!(got, frame, "{name}, cut at {cuts:?}: it was changed");
                        arrived += 1;
                    }
                }
            });
            let dropped = counters(&d).sum(Some("p0"), "in", "drop.guard") - before;
            println!("{name}, {cuts:?}: {rounds} rounds, {arrived} arrived, {dropped} dropped");
            assert!(arrived > 0 && dropped > 0, "{name}: no race: {arrived}, {dropped}");
        }
    }
    drop([sender, sink]);
    d.stop();
}
