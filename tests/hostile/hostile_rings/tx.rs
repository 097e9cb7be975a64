//! Chains on a transmit ring: flags, links, loops, heads, indices and tables, good and bad.

use super::lab::{
    DATA, HIGH, HIGH_END, LOW_END, Lab, NEXT_END, PORT, SOON, TABLE, TOP_END, chat, counters,
    restart, used_since,
};
use super::shapes::{Case, D, Piece, Want, chain};
use testkit::frontend::feat;
use testkit::hostile::{raw_avail_idx, raw_desc};
use testkit::proc::wait_for;
use testkit::ring::{DESC_INDIRECT, DESC_NEXT, DESC_WRITE, Seg, put_desc};
use testkit::vm::MODERN;

/// Size of the rings.
pub const SIZE: u16 = 256;
/// Header and frame.
const LEN: u32 = 12 + 80;
const BAD_CHAIN: Want = Want::Dropped("bad_chain");
const BAD_ADDRESS: Want = Want::Dropped("bad_address");
const BAD_DIRECTION: Want = Want::Dropped("bad_direction");

fn good() -> D {
    D { at: DATA, len: LEN, flags: 0, next: 0 }
}

/// Each flag alone and with each other, known to the specification or not.
fn flags() -> Vec<Case> {
    let mut cases = Vec::new();
    for bit in 3..16 {
        let d = D { flags: 1 << bit, ..good() };
        cases.push(Case::of(format!("reserved flag {bit}"), vec![d], Want::Forwarded));
        let d = D { flags: 1 << bit, ..good() };
        let name = format!("reserved flag {bit} in a table");
        cases.push(Case::in_table(name, vec![d], Want::Forwarded));
    }
    let two = |flags: [u16; 2]| {
        let pieces = [(DATA, 40), (DATA + 100, 52)];
        let mut descs = chain(&pieces, 0, 0);
        descs[0].flags ^= flags[0];
        descs[1].flags ^= flags[1];
        descs
    };
    for (name, flags, want) in [
        ("writable", [DESC_WRITE, 0], &BAD_DIRECTION),
        ("writable at the end", [0, DESC_WRITE], &BAD_DIRECTION),
        ("all writable", [DESC_WRITE; 2], &BAD_DIRECTION),
    ] {
        cases.push(Case::of(name, two(flags), want.clone()).times(9));
        let name = format!("{name}, in a table");
        cases.push(Case::in_table(name, two(flags), want.clone()).times(9));
    }
    // What follows a table, and what a table leads to.
    let mut case = Case::in_table("a table with a next", vec![good()], BAD_CHAIN);
    case.ring[0].1.flags |= DESC_NEXT;
    case.ring.push((1, good()));
    cases.push(case.times(9));
    // Section 2.7.5.3.2: the flag WRITE of a descriptor with INDIRECT is ignored.
    let mut case = Case::in_table("a writable table", vec![good()], Want::Forwarded);
    case.ring[0].1.flags |= DESC_WRITE;
    cases.push(case);
    let mut case = Case::in_table("all three flags", vec![good()], BAD_CHAIN);
    case.ring[0].1.flags = DESC_NEXT | DESC_WRITE | DESC_INDIRECT;
    cases.push(case.times(9));
    let table = vec![D { at: TABLE, len: 16, flags: DESC_INDIRECT, next: 0 }];
    cases.push(Case::in_table("a table that leads to itself", table, BAD_CHAIN).times(9));
    let mut table = chain(&[(DATA, 40), (TABLE, 16)], 0, 0);
    table[1].flags = DESC_INDIRECT;
    cases.push(Case::in_table("a table at the end of a table", table, BAD_CHAIN).times(9));
    let whole = D { at: TABLE, len: 32, flags: DESC_INDIRECT, next: 0 };
    let pieces = [(DATA, 40), (DATA + 100, 30), (DATA + 200, 22)];
    let mut case = Case::of("a table behind direct descriptors", vec![], Want::Forwarded);
    case.ring = vec![(0, D { at: DATA, len: 40, flags: DESC_NEXT, next: 7 }), (7, whole)];
    case.tables = vec![(TABLE, chain(&pieces[1..], 0, 0))];
    case.bytes = pieces.to_vec();
    cases.push(case);
    cases
}

/// `next` beyond the table, at every place of a chain, used or not.
fn links() -> Vec<Case> {
    let mut cases = Vec::new();
    for next in [SIZE, SIZE + 1, 0x7fff, 0x8000, 0xffff] {
        for depth in 1..=3usize {
            let pieces: Vec<Piece> = (0..depth as u64).map(|i| (DATA + 64 * i, 40)).collect();
            let mut descs = chain(&pieces, 0, 0);
            let end = &mut descs[depth - 1];
            (end.flags, end.next) = (DESC_NEXT, next);
            let name = format!("next {next:#x} at depth {depth}");
            cases.push(Case::of(&name, descs.clone(), BAD_CHAIN).times(9));
            cases.push(Case::in_table(format!("{name} of a table"), descs, BAD_CHAIN).times(9));
        }
        // Without the flag it means nothing.
        let d = D { next, ..good() };
        cases.push(Case::of(format!("an unused next {next:#x}"), vec![d], Want::Forwarded));
    }
    for (count, next) in [(1, 1), (2, 2), (3, 3), (3, 255)] {
        let pieces: Vec<Piece> = (0..count).map(|i| (DATA + 64 * i, 40)).collect();
        let mut table = chain(&pieces, 0, 0);
        let end = table.last_mut().expect("not empty");
        (end.flags, end.next) = (DESC_NEXT, next);
        let name = format!("next {next} in a table of {count}");
        cases.push(Case::in_table(name, table, BAD_CHAIN).times(9));
    }
    cases
}

/// Loops that begin at the head or behind `tail` descriptors. Their pieces would add up to a
/// plausible frame if counting the ring's size were taken for the end of a chain (P12).
fn loops() -> Vec<Case> {
    let mut cases = Vec::new();
    for (tail, len) in
        [(0, 1), (0, 2), (0, 3), (0, 255), (0, 256), (1, 1), (1, 2), (5, 1), (5, 7), (254, 2)]
    {
        let pieces: Vec<Piece> = (0..tail + len).map(|i| (DATA + 8 * i, 4)).collect();
        let mut descs = chain(&pieces, 0, 0);
        let end = descs.last_mut().expect("not empty");
        (end.flags, end.next) = (DESC_NEXT, tail as u16);
        let name = format!("a loop of {len} behind {tail}");
        cases.push(Case::of(&name, descs.clone(), BAD_CHAIN).times(3));
        cases.push(Case::in_table(format!("{name}, in a table"), descs, BAD_CHAIN).times(3));
    }
    // No loop, and as long as the ring; one more is possible in a table only.
    let pieces: Vec<Piece> = (0..256).map(|i| (DATA + 8 * i, 1)).collect();
    cases.push(Case::of("a chain as long as the ring", chain(&pieces, 0, 0), Want::Forwarded));
    for (count, want) in [(1024, Want::Forwarded), (1025, BAD_CHAIN), (4000, BAD_CHAIN)] {
        let pieces: Vec<Piece> = (0..count).map(|i| (DATA + 8 * i, 1)).collect();
        let name = format!("a chain of {count} in a table");
        cases.push(Case::in_table(name, chain(&pieces, 0, 0), want));
    }
    cases
}

/// Heads that are no descriptors break the ring before any head of the burst is taken.
fn heads() -> Vec<Case> {
    let mut cases = Vec::new();
    for head in [SIZE, SIZE + 1, 0x7fff, 0x8000, 0xffff] {
        for (name, before) in [("first", 0), ("behind good ones", 5)] {
            let mut case = Case::of(format!("head {head:#x} {name}"), vec![good()], Want::Broken);
            case.heads = vec![0; before];
            case.heads.extend([head, 0]);
            cases.push(case);
        }
    }
    for n in [2, 64, 256] {
        let d = D { flags: DESC_WRITE, ..good() };
        let name = format!("a bad head {n} times");
        cases.push(Case::of(name, vec![d], BAD_DIRECTION).times(n));
    }
    // Heads in the middle of another chain are chains of their own.
    let pieces: Vec<Piece> = (0..3).map(|i| (DATA + 64 * i, 40)).collect();
    let mut descs = chain(&pieces, 0, 0);
    (descs[2].flags, descs[2].next) = (DESC_NEXT, 0);
    let mut case = Case::of("heads inside a loop", descs, BAD_CHAIN);
    case.heads = vec![2, 0, 1];
    cases.push(case);
    cases
}

/// avail.idx that claims more than the ring holds (P2), or nothing new.
fn indices() -> Vec<Case> {
    let jump = |idx: u16, want| {
        let mut case = Case::of(format!("avail.idx {idx:#x}"), vec![good()], want);
        case.idx = Some(idx);
        case
    };
    let beyond = [SIZE + 1, SIZE + 2, 0x7fff, 0x8000, 0x8001, 0xfffe, 0xffff];
    beyond.into_iter().map(|idx| jump(idx, Want::Broken)).collect()
}

/// Tables of impossible lengths and at impossible places.
fn tables() -> Vec<Case> {
    let mut cases = Vec::new();
    let table = |name: String, at: u64, len: u32, want: Want| {
        let mut case = Case::in_table(name, vec![good()], want);
        case.ring[0].1.at = at;
        case.ring[0].1.len = len;
        case.tables[0].0 = at;
        case
    };
    let lens = [0, 1, 8, 15, 17, 24, 31, 33, 4095, 4097, 0x7fff_ffff, 0xffff_ffff];
    for len in lens {
        let name = format!("a table of {len} bytes");
        cases.push(table(name, TABLE, len, BAD_CHAIN).times(9));
    }
    for len in [0xffff_fff0, 0x8000_0000, 0x0010_0000] {
        let name = format!("a table of {len} bytes, beyond its region");
        cases.push(table(name, TABLE, len, BAD_ADDRESS).times(9));
    }
    for (name, at, want) in [
        ("at the end of a region", HIGH_END - 16, Want::Forwarded),
        ("at the first byte of a region", HIGH, Want::Forwarded),
        ("at the end of memory", TOP_END - 16, Want::Forwarded),
        ("a byte over the end of a region", HIGH_END - 15, BAD_ADDRESS),
        ("a byte over the end of memory", TOP_END - 15, BAD_ADDRESS),
        // The specification says nothing of tables in two regions; no driver has any.
        ("across two regions", LOW_END - 8, BAD_ADDRESS),
        ("in the first half before a region", HIGH - 8, BAD_ADDRESS),
        ("in a hole", NEXT_END + 4096, BAD_ADDRESS),
        ("behind a region", NEXT_END, BAD_ADDRESS),
        ("in the page before addresses wrap", TOP_END, BAD_ADDRESS),
        ("at the last address", u64::MAX, BAD_ADDRESS),
        ("at the last 16 bytes", u64::MAX - 15, BAD_ADDRESS),
        ("far away", 1 << 63, BAD_ADDRESS),
        ("unaligned by 1", TABLE + 1, Want::Forwarded),
        ("unaligned by 4", TABLE + 4, Want::Forwarded),
        ("unaligned by 8", TABLE + 8, Want::Forwarded),
        ("unaligned by 15", TABLE + 15, Want::Forwarded),
    ] {
        cases.push(table(format!("a table {name}"), at, 16, want));
    }
    cases
}

/// All of them.
pub fn cases() -> Vec<Case> {
    [flags(), links(), loops(), heads(), indices(), tables()].concat()
}

/// Writes a case to memory and to the TX ring.
fn write(lab: &Lab, case: &Case) {
    let header = lab.evil.guest.cfg.header_len();
    let frame = lab.next_frame((case.total() as usize).saturating_sub(header).clamp(14, 4096));
    let mut from = 0;
    for &(at, len) in &case.bytes {
        let end = (from + len as usize).min(frame.len());
        lab.write(at, &frame[from..end]);
        from = end;
    }
    for (at, table) in &case.tables {
        for (i, d) in table.iter().enumerate() {
            lab.write(at.wrapping_add(16 * i as u64), &d.to_bytes());
        }
    }
    let ring = lab.tx();
    for &(i, d) in &case.ring {
        raw_desc(ring, i, Seg { gpa: d.at, len: d.len }, d.flags, d.next);
    }
}

impl D {
    /// As it stands in memory.
    pub fn to_bytes(self) -> Vec<u8> {
        let D { at, len, flags, next } = self;
        let mut bytes = at.to_le_bytes().to_vec();
        bytes.extend(len.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(next.to_le_bytes());
        bytes
    }
}

/// One case on a fresh TX ring, and everything that is asked after it.
pub fn run(lab: &mut Lab, case: &Case) {
    let name = &case.name;
    restart(&mut lab.evil, true);
    let before = counters(&lab.d);
    let count = case.heads.len() as u16;
    write(lab, case);
    let written = lab.memory();
    let ring = lab.tx();
    match case.idx {
        None => lab.offer(ring, &case.heads),
        Some(idx) => {
            raw_avail_idx(ring, idx);
            ring.kick.write(1);
        }
    }
    let done = wait_for(SOON, || {
        if case.want == Want::Broken { Lab::is_broken(ring) } else { ring.used_idx() == count }
    });
    assert!(done, "{name}: {} of {count} came back (I5)", ring.used_idx());
    let back: Vec<_> = case.heads.iter().map(|&head| (u32::from(head), 0)).collect();
    let forwarded = case.want == Want::Forwarded;
    if case.want == Want::Broken {
        assert_eq!(ring.used_idx(), 0, "{name}: heads of a broken ring came back");
    } else {
        assert_eq!(used_since(ring, 0), back, "{name} (I5)");
        assert!(!Lab::is_broken(ring), "{name}: reported broken");
    }
    if forwarded {
        lab.arrives(case.total() as usize - lab.evil.guest.cfg.header_len(), name);
    }
    check_counters(lab, case, before);
    // A device reads what it sends: nothing but the ring has changed (I4).
    lab.check_written(&written, &[], name);
    chat(&mut lab.net, 4);
    if case.want == Want::Broken {
        restart(&mut lab.evil, true);
    }
    lab.sends_well(name);
}

fn check_counters(lab: &Lab, case: &Case, before: testkit::counters::Counters) {
    let after = counters(&lab.d);
    let of =
        |side: &'static str, key: &str| after.sum(PORT, side, key) - before.sum(PORT, side, key);
    let name = &case.name;
    let (heads, broken) = (case.heads.len() as u64, case.want == Want::Broken);
    let taken = if broken { 0 } else { heads };
    let drops = after.drops(PORT, "in") - before.drops(PORT, "in");
    assert_eq!(of("in", "frames"), taken, "{name}: frames (I1)");
    assert_eq!(of("", "rings_broken"), u64::from(broken), "{name}: rings_broken");
    match &case.want {
        Want::Dropped(reason) => {
            assert_eq!(of("in", &format!("drop.{reason}")), heads, "{name}: {reason}: {after:#?}");
            assert_eq!((drops, of("in", "copies")), (heads, 0), "{name}: {after:#?}");
        }
        Want::Forwarded => assert_eq!((drops, of("in", "copies")), (0, 2), "{name}: {after:#?}"),
        _ => assert_eq!((drops, of("in", "copies")), (0, 0), "{name}: {after:#?}"),
    }
}

/// 154 named cases: flags, links, loops, heads, indices, tables. The reason is counted, each head
/// comes back once, nothing else is written, honest frames go on, and so does the ring, after a
/// restart if it was broken.
#[test]
fn ring_corruption_of_transmit_rings() {
    let cases = cases();
    assert!(cases.len() >= 150, "{} cases", cases.len());
    let mut lab = Lab::new(MODERN);
    for case in &cases {
        run(&mut lab, case);
    }
    println!("{} cases", cases.len());
    lab.finish();
}

/// P12: a loop of every length there can be, alone and behind a tail. From 1 to 256 descriptors,
/// direct and in a table.
#[test]
fn loops_of_all_lengths_are_never_forwarded() {
    let mut lab = Lab::new(MODERN & !feat::EVENT_IDX);
    restart(&mut lab.evil, true);
    let before = counters(&lab.d);
    let mut offered = 0u16;
    for len in 1..=SIZE {
        for table in [false, true] {
            let ring = lab.tx();
            let seg = |i: u16| Seg { gpa: DATA + 8 * u64::from(i), len: 4 };
            let span = lab.evil.guest.mem.span(TABLE, 16 * u64::from(SIZE));
            for i in 0..len {
                let next = (i + 1) % len;
                if table {
                    put_desc(&span, i.into(), seg(i), DESC_NEXT, next)
                } else {
                    raw_desc(ring, i, seg(i), DESC_NEXT, next)
                }
            }
            if table {
                let whole = Seg { gpa: TABLE, len: 16 * u32::from(len) };
                raw_desc(ring, 0, whole, DESC_INDIRECT, 0);
            }
            lab.offer(ring, &[0]);
            offered += 1;
            assert!(wait_for(SOON, || ring.used_idx() == offered), "length {len} (I5)");
        }
    }
    let after = counters(&lab.d);
    let of = |key| after.sum(PORT, "in", key) - before.sum(PORT, "in", key);
    assert_eq!((of("drop.bad_chain"), of("copies")), (offered.into(), 0), "{after:#?}");
    lab.sends_well("after loops");
    lab.finish();
}
