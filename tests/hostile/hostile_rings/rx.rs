//! Buffers on a receive ring: what is wrong for a transmit ring is wrong here, too, with the
//! direction turned round; and what only a receiver can do wrong.

use super::lab::{AFTER, Lab, PORT, SOON, counters, used_since};
use super::shapes::{Case, D, Piece, Want};
use super::tx;
use testkit::hostile::{raw_avail, raw_avail_idx, raw_desc};
use testkit::net::{Job, Sizes};
use testkit::proc::wait_for;
use testkit::ring::{DESC_INDIRECT, DESC_WRITE, Seg};
use testkit::traffic::To;
use testkit::vm::{MODERN, Vm};

/// What the last descriptor of the ring leads to when a case is refused: a good buffer.
const GOOD: u32 = 2048;

/// The same case on a receive ring.
pub fn turned(mut case: Case) -> Case {
    // Buffers are for the other direction; tables are for either.
    let turn = |d: &mut D| {
        if d.flags & DESC_INDIRECT == 0 || d.flags >= 1 << 3 {
            d.flags ^= DESC_WRITE;
        }
    };
    case.ring.iter_mut().for_each(|(_, d)| turn(d));
    case.tables.iter_mut().flat_map(|t| &mut t.1).for_each(turn);
    case.want = match case.want {
        Want::Dropped(_) => Want::Refused,
        Want::Forwarded => Want::Received(vec![case.total() as u32]),
        want => want,
    };
    if case.want == Want::Broken && case.idx.is_none() {
        // Good ones before it would be filled first.
        case.heads.retain(|&head| head >= tx::SIZE);
    }
    // One head is kept for a good buffer.
    case.heads.truncate(200);
    case
}

/// Writes a case to memory and to the stopped RX ring, and starts it: so the first frame finds it.
fn start(lab: &mut Lab, case: &Case) {
    lab.evil.fe.get_vring_base(0).expect("base");
    lab.evil.guest.rx[0].ring.reset();
    lab.rx().err.take();
    for (at, table) in &case.tables {
        for (i, d) in table.iter().enumerate() {
            lab.write(at.wrapping_add(16 * i as u64), &d.to_bytes());
        }
    }
    let ring = lab.rx();
    raw_desc(ring, ring.size - 1, Seg { gpa: AFTER, len: GOOD }, DESC_WRITE, 0);
    for &(i, d) in &case.ring {
        raw_desc(ring, i, Seg { gpa: d.at, len: d.len }, d.flags, d.next);
    }
    let mut heads = case.heads.clone();
    if case.want == Want::Refused {
        heads.push(ring.size - 1);
    }
    for (i, &head) in heads.iter().enumerate() {
        raw_avail(ring, i as u16, head);
    }
    raw_avail_idx(ring, case.idx.unwrap_or(heads.len() as u16));
    let Vm { fe, guest } = &mut lab.evil;
    guest.start_ring(fe, &guest.rx[0].ring).expect("start");
    lab.evil.settle();
}

/// The first `len` bytes of these pieces.
fn prefix(pieces: &[Piece], len: u32) -> Vec<Piece> {
    let mut left = len;
    let cut = |&(at, len): &Piece| {
        let len = len.min(left);
        left -= len;
        (at, len)
    };
    pieces.iter().map(cut).filter(|p| p.1 > 0).collect()
}

/// One case on a fresh RX ring, and everything that is asked after it.
pub fn run(lab: &mut Lab, case: &Case) {
    let name = &case.name;
    start(lab, case);
    let (before, memory) = (counters(&lab.d), lab.memory());
    let header = lab.evil.guest.cfg.header_len() as u32;
    let len = match &case.want {
        Want::Received(lens) => (lens.iter().sum::<u32>() - header) as usize,
        _ => case.sent.unwrap_or(200),
    };
    lab.net.run(&[Job::new(0, To::Broadcast, 1, Sizes::Fixed(len))]);
    let ring = lab.rx();
    let last = u32::from(ring.size - 1);
    let mut back: Vec<_> = case.heads.iter().map(|&head| (u32::from(head), 0)).collect();
    let mut pieces = Vec::new();
    match &case.want {
        Want::Refused => {
            back.push((last, len as u32 + header));
            pieces.push((AFTER, len as u32 + header));
        }
        Want::Received(lens) => {
            back.iter_mut().zip(lens).for_each(|(back, &len)| back.1 = len);
            back.truncate(lens.len());
            pieces = prefix(&case.bytes, lens.iter().sum());
        }
        _ => back.clear(),
    }
    let done = wait_for(SOON, || {
        let broken = Lab::is_broken(ring) == (case.want == Want::Broken);
        broken && usize::from(ring.used_idx()) == back.len()
    });
    let used = used_since(ring, 0);
    assert!(done && used == back, "{name}: {used:?}, not {back:?} (I5)");
    lab.check_written(&memory, &pieces, name);
    if !pieces.is_empty() {
        let bytes: Vec<u8> = pieces.iter().flat_map(|&(at, len)| lab.read(at, len)).collect();
        let count = if header == 12 { vec![case.buffers(), 0] } else { Vec::new() };
        assert_eq!(bytes[..header as usize], [vec![0; 10], count].concat(), "{name}: header");
        lab.checker.accept(0, &bytes[header as usize..]);
    }
    check_counters(lab, case, before);
    if matches!(case.want, Want::Broken | Want::NoFit) {
        start(lab, &Case { heads: Vec::new(), idx: None, want: Want::Refused, ..case.clone() });
        lab.net.run(&[Job::new(0, To::Broadcast, 1, Sizes::Fixed(200))]);
        let (len, at) = (200 + header, AFTER);
        assert_eq!(used_since(lab.rx(), 0), [(last, len)], "{name}: afterwards (I5)");
        lab.checker.accept(0, &lab.read(at, len)[header as usize..]);
    }
    lab.receives_well(name);
}

fn check_counters(lab: &Lab, case: &Case, before: testkit::counters::Counters) {
    let after = counters(&lab.d);
    after.balance();
    let of =
        |side: &'static str, key: &str| after.sum(PORT, side, key) - before.sum(PORT, side, key);
    let name = &case.name;
    let drops = after.drops(PORT, "out") - before.drops(PORT, "out");
    let (frames, refused, lost) = match case.want {
        Want::Refused => (1, case.heads.len() as u64, None),
        Want::Received(_) => (1, 0, None),
        Want::NoFit => (0, 0, Some("drop.no_fit")),
        _ => (0, 0, Some("drop.ring_broken")),
    };
    assert_eq!(of("out", "frames"), frames, "{name}: {after:#?}");
    assert_eq!(of("out", "bad_buffers"), refused, "{name}: {after:#?}");
    assert_eq!(drops, u64::from(lost.is_some()), "{name}: {after:#?}");
    if let Some(reason) = lost {
        assert_eq!(of("out", reason), 1, "{name}: {after:#?}");
    }
    assert_eq!(of("", "rings_broken"), u64::from(case.want == Want::Broken), "{name}");
}

/// More than 150 named cases. The reason is counted, each head comes back once, nothing else is
/// written, honest frames go on, and so does the ring, after a restart if it was broken.
#[test]
fn ring_corruption_of_receive_rings() {
    // Those that take the whole table leave no descriptor for a good buffer.
    let cases: Vec<Case> =
        tx::cases().into_iter().map(turned).filter(|c| c.ring.len() < 256).collect();
    assert!(cases.len() >= 150, "{} cases", cases.len());
    let mut lab = Lab::new(MODERN);
    for case in &cases {
        run(&mut lab, case);
    }
    println!("{} cases", cases.len());
    lab.finish();
}
