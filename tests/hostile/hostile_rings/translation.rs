//! Descriptor addresses at every border: the first and the last byte of each region and their
//! neighbours, holes, buffers over two regions, addresses that wrap, lengths of nothing and of too
//! much. More than 200 cases each way.

use super::lab::{DATA, HIGH, HIGH_END, LOW, LOW_END, Lab, NEXT_END, TOP, TOP_END, mapped};
use super::shapes::{Case, Piece, Want};
use super::{rx, tx};
use testkit::vm::MODERN;

/// A piece in front of those that are too short for a frame.
const FRONT: Piece = (DATA, 60);

/// What is wanted of these pieces follows from where they lie.
fn case(name: &str, pieces: &[Piece]) -> [Case; 2] {
    let good = pieces.iter().all(|&(at, len)| len == 0 || mapped(at, len.into()));
    let want = if good { Want::Forwarded } else { Want::Dropped("bad_address") };
    let n = if good { 1 } else { 3 };
    Case::both(name, pieces, 0, &want).map(|case| case.times(n))
}

/// `len` bytes there, behind others if they are too few.
fn at(name: &str, at: u64, len: u32) -> [Case; 2] {
    let alone = [(at, len)];
    let behind = [FRONT, (at, len)];
    let pieces: &[Piece] = if len < 26 { &behind } else { &alone };
    case(&format!("{len} bytes {name}"), pieces)
}

/// The edges of each region.
fn edges() -> Vec<Case> {
    let regions = [
        ("the low region", LOW, LOW_END),
        ("the one behind it", LOW_END, NEXT_END),
        ("the one behind the hole", HIGH, HIGH_END),
        ("the one at the top", TOP, TOP_END),
    ];
    let mut cases = Vec::new();
    for (name, start, end) in regions {
        for len in [1, 2, 42, 92, 1526] {
            let wide = u64::from(len);
            for (place, from) in [
                ("at the start of", start),
                ("at the end of", end - wide),
                ("a byte over the end of", end - wide + 1),
                ("a byte before the start of", start.wrapping_sub(1)),
                ("all before the start of", start.wrapping_sub(wide)),
                ("behind the end of", end),
            ] {
                // The lowest page holds rings; nothing is written there.
                if from >= LOW + 0x1_0000 || !mapped(from, wide) {
                    cases.extend(at(&format!("{place} {name}"), from, len));
                }
            }
        }
    }
    cases
}

/// A border of two regions at every offset of header and addresses.
fn borders() -> Vec<Case> {
    (1..=30)
        .flat_map(|n| {
            let from = LOW_END - n;
            case(&format!("a border after {n} bytes"), &[(from, 92)])
        })
        .collect()
}

/// Holes, wraps and impossible lengths.
fn wild() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, from) in [
        ("in the hole", NEXT_END + 0x1000),
        ("in the middle of the hole", 2 << 30),
        ("in the upper hole", 1 << 40),
        ("at 2^47", 1 << 47),
        ("at 2^48", 1 << 48),
        ("at 2^63", 1 << 63),
        ("before the last page", TOP_END + 0x800),
        ("from the last address", u64::MAX),
        ("up to the last address", u64::MAX - 91),
        ("over the last address", u64::MAX - 90),
        ("where a low 32-bit address is good", (1 << 32) * 7 + DATA),
    ] {
        cases.extend(at(name, from, 92));
    }
    for (name, from, len) in [
        ("low, 2^32 - 1", DATA, u32::MAX),
        ("low, 2^31", DATA, 1 << 31),
        ("low, to the hole and a byte more", LOW_END, (NEXT_END - LOW_END) as u32 + 1),
        ("at the top, 2^32 - 1", TOP, u32::MAX),
        ("at the top, wrapping to 0", TOP_END - 0x1000, 0x3000),
        ("behind the hole, 2^32 - 1", HIGH, u32::MAX),
    ] {
        cases.extend(case(&format!("{name} bytes"), &[(from, len)]));
    }
    // A second piece is no better than a first.
    for (name, from, len) in [("hole", NEXT_END, 32), ("wrap", u64::MAX, 2), ("end", TOP_END, 1)] {
        cases.extend(case(&format!("a good piece, then a {name}"), &[FRONT, (from, len)]));
        let pieces = [(from, len), FRONT];
        cases.extend(case(&format!("a {name}, then a good piece"), &pieces));
    }
    // Nothing lies nowhere.
    for from in [NEXT_END, u64::MAX, 1 << 63, TOP_END] {
        let pieces = [(from, 0), FRONT, (from, 0), (DATA + 100, 32), (from, 0)];
        cases.extend(case(&format!("no bytes at {from:#x}"), &pieces));
    }
    cases
}

fn cases() -> Vec<Case> {
    let cases = [edges(), borders(), wild()].concat();
    assert!(cases.len() >= 200, "{} cases", cases.len());
    cases
}

#[test]
fn range_translation_on_transmit_rings() {
    let mut lab = Lab::new(MODERN);
    for case in &cases() {
        tx::run(&mut lab, case);
    }
    lab.finish();
}

#[test]
#[ignore = "full"]
fn range_translation_on_receive_rings() {
    let mut lab = Lab::new(MODERN);
    for case in cases() {
        rx::run(&mut lab, &rx::turned(case));
    }
    lab.finish();
}
