//! Rings and buffers on top of each other: in one guest and in two that share their memory, 168
//! cases each. Such guests harm themselves alone; the others' memory and traffic stay as they are
//! (I4), and the pair works again once it keeps to the rules.

use std::time::Duration;

use super::duo::{Duo, start_at};
use super::lab::chat;
use testkit::mem::Span;
use testkit::ring::{DESC_NEXT, DESC_WRITE, Seg, put_desc};
use testkit::vm::{MODERN, tag_of};

/// Pages that rings and buffers are laid on.
const PAGES: u64 = 8;
const PAGE: u64 = 4096;
/// Rounds of one case, and heads offered in each.
const ROUNDS: u16 = 12;
const HEADS: u16 = 8;

/// Where the parts of a ring lie, in bytes from the first page: descriptors, available, used.
type Parts = [u64; 3];

/// Rings apart from each other.
const APART: Parts = [0, PAGE, 2 * PAGE];
const OTHER: Parts = [3 * PAGE, 4 * PAGE, 5 * PAGE];

const LAYOUTS: [(&str, Parts); 12] = [
    ("apart", APART),
    ("used on available", [0, PAGE, PAGE]),
    ("used on descriptors", [0, PAGE, 0]),
    ("available on descriptors", [0, 0, 2 * PAGE]),
    ("all three on each other", [0, 0, 0]),
    ("used.idx on the available ring", [0, PAGE, PAGE + 4]),
    ("available.idx on the used ring", [0, PAGE + 4, PAGE]),
    ("used behind available by a word", [0, PAGE, PAGE + 8]),
    ("avail_event on available", [0, 2 * PAGE + 8 * 256, 2 * PAGE]),
    ("used_event on used", [0, PAGE, PAGE + 2 * 256]),
    ("used in the middle of descriptors", [0, PAGE, 2048]),
    ("available in the last descriptor", [0, 16 * 255, 2 * PAGE]),
];

/// Where buffers lie.
const BUFFERS: [(&str, u64, u32); 7] = [
    ("a page of their own", 6 * PAGE, 2048),
    ("the descriptors", 0, 2048),
    ("the available ring", PAGE, 1526),
    ("the used ring", 2 * PAGE, 1526),
    ("one of the available ring's last words", PAGE + 500, 1526),
    ("the other ring's descriptors", 3 * PAGE, 4096),
    ("the other ring's available and used", 4 * PAGE, 8192),
];

/// Writes a ring's descriptors, each a chain of `segs`, and its heads.
fn fill(base: &Span, parts: Parts, segs: &[(Seg, u16)]) {
    let desc = base.sub(parts[0] as usize, 16 * 256);
    for head in (0..256).step_by(segs.len()) {
        for (i, &(seg, flags)) in segs.iter().enumerate() {
            let at = head + i;
            if at < 256 {
                let more = if i + 1 < segs.len() { DESC_NEXT } else { 0 };
                put_desc(&desc, at, seg, flags | more, at as u16 + 1);
            }
        }
    }
    let avail = base.sub(parts[1] as usize, 6 + 2 * 256);
    for slot in 0..256u16 {
        let head = slot.wrapping_mul(segs.len() as u16) & 255;
        avail.set16(4 + 2 * usize::from(slot), head);
    }
    avail.set16(0, 0);
    avail.set16(2, 0);
    base.sub(parts[2] as usize, 4).set16(2, 0);
}

/// Both guests' rings as they are given, the sink's buffers and the second half of each frame
/// there, some rounds of traffic.
fn case(duo: &mut Duo, bases: &[Span; 2], send: Parts, receive: Parts, buffer: (u64, u32)) {
    let [from, to] = bases;
    let frame = [&[0; 12][..], &duo.frame()].concat();
    from.write((7 * PAGE) as usize, &frame);
    // Header and addresses stay; the rest is what lies there.
    let front = Seg { gpa: from.gpa() + 7 * PAGE, len: 12 + 64 };
    let rest = Seg { gpa: from.gpa() + buffer.0, len: buffer.1.min(1400) };
    fill(to, receive, &[(Seg { gpa: to.gpa() + buffer.0, len: buffer.1 }, DESC_WRITE)]);
    to.sub(receive[1] as usize, 4).set16(2, 64);
    fill(from, send, &[(front, 0), (rest, 0)]);
    start_at(&mut duo.sink, false, receive.map(|at| to.gpa() + at));
    start_at(&mut duo.sender, true, send.map(|at| from.gpa() + at));
    for round in 1..=ROUNDS {
        to.sub(receive[1] as usize, 4).set16(2, round.wrapping_mul(HEADS).wrapping_add(64));
        duo.sink.rx[0].ring.kick.write(1);
        from.sub(send[1] as usize, 4).set16(2, round * HEADS);
        duo.sender.tx[0].ring.kick.write(1);
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Descriptors that were written over lead to other bytes: frames from anywhere to anywhere, which
/// are flooded. They are the pair's own bytes (I4), and honest guests drop them.
fn drop_junk(duo: &mut Duo, name: &str) {
    for vm in &mut duo.net.vms {
        vm.guest.rx[0].recv(usize::MAX, |_, frame| {
            for honest in 0..2 {
                let tag = tag_of(honest).to_le_bytes();
                assert!(!frame.windows(8).any(|w| w == tag), "{name}: bytes of {honest} (I4)");
            }
        });
    }
}

/// Each layout with each place of the buffers.
fn all(shared: bool) {
    let mut duo = Duo::new(MODERN, shared);
    let own = Duo::alloc(&duo.sender, PAGES * PAGE);
    let other = if shared { own.clone() } else { Duo::alloc(&duo.sink, PAGES * PAGE) };
    let bases = [own, other];
    let mut cases = 0;
    for (name, parts) in LAYOUTS {
        // With memory shared: the sink's ring beside the sender's, and on it.
        for receive in if shared { [OTHER, parts] } else { [APART, parts] } {
            for (place, at, len) in BUFFERS {
                let name = format!("{name}, {receive:?}, buffers on {place}");
                case(&mut duo, &bases, parts, receive, (at, len));
                duo.stop();
                drop_junk(&mut duo, &name);
                chat(&mut duo.net, 4);
                duo.works(&name);
                cases += 1;
            }
        }
    }
    assert!(cases >= 50);
    duo.finish();
}

#[test]
fn overlapping_buffers_and_rings_as_buffers() {
    all(false);
}

#[test]
fn same_memfd_in_two_vms() {
    all(true);
}
