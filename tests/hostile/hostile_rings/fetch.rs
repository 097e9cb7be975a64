//! Fields that change while they are read: another CPU of the guest changes one field while the
//! switch works on the ring, for each of the eight fields and in both directions. What was checked
//! is what is used: no frame goes elsewhere, no byte is read from or written to memory that is not
//! the guest's (I4), and every head comes back once (I5) or the ring is given up.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::duo::{Duo, Stop, settled};
use super::lab::chat;
use testkit::frontend::feat;
use testkit::hostile::{Field, raw_avail, raw_avail_idx, raw_desc};
use testkit::mem::Span;
use testkit::ring::{DESC_INDIRECT, DESC_NEXT, DESC_WRITE, Ring, Seg, put_desc};
use testkit::vm::{MODERN, tag_of};
use testkit::{Rng, SOON};

/// The ring that is changed, and where its pieces lie.
struct Target {
    desc: Span,
    avail: Span,
    table: Span,
    header: Span,
    size: u16,
    /// Flags of a good piece, and where a good one is.
    flags: u16,
    good: Seg,
}

/// A good buffer's length.
const ROOM: u32 = 600;
/// How long one field is changed.
fn span() -> Duration {
    Duration::from_millis(if testkit::long() { 20_000 } else { 300 })
}

impl Target {
    /// The second piece of the chain, which is what changes: the first has header and addresses, so
    /// that every frame is for the accomplice.
    fn piece(&self, field: Field) -> (&Span, usize) {
        if field == Field::Table { (&self.table, 16) } else { (&self.desc, 16) }
    }

    /// One change and the way back.
    fn flip(&self, field: Field, rng: &mut Rng) {
        let bad = rng.next();
        let (span, at) = self.piece(field);
        let good = self.good;
        match field {
            Field::Addr | Field::Table if bad & 3 == 0 => {
                // Elsewhere in the guest's own memory: its rings.
                span.set64(at, self.avail.gpa());
                pause(rng);
                span.set64(at, good.gpa);
            }
            Field::Addr => {
                span.set64(at, bad | 1 << 50);
                pause(rng);
                span.set64(at, good.gpa);
            }
            Field::Len => {
                let len = if bad & 1 == 0 { (bad >> 8) as u32 } else { (bad >> 8) as u32 % 70_000 };
                span.set32(at + 8, len);
                pause(rng);
                span.set32(at + 8, good.len);
            }
            Field::Flags => {
                span.set16(at + 12, (bad >> 8) as u16);
                pause(rng);
                span.set16(at + 12, self.flags);
            }
            Field::Next => {
                self.desc.set16(14, (bad >> 8) as u16);
                pause(rng);
                self.desc.set16(14, 1);
            }
            Field::AvailIdx => self.avail.index(2).store((bad >> 8) as u16, Ordering::Release),
            Field::Head => {
                let slot = usize::from((bad >> 32) as u16 & (self.size - 1));
                // Sometimes one that is no head at all.
                let head = if bad & 7 == 0 { bad >> 8 } else { bad >> 8 & 1 };
                self.avail.set16(4 + 2 * slot, head as u16);
                pause(rng);
                self.avail.set16(4 + 2 * slot, 0);
            }
            Field::Header => {
                self.header.set64(0, bad);
                pause(rng);
                self.header.set64(0, 0);
            }
            Field::Table => {
                let [field, value] = [(bad >> 2) % 3, bad >> 8];
                match field {
                    0 => span.set32(at + 8, value as u32),
                    1 => span.set16(at + 12, value as u16),
                    _ => self.table.set16(14, value as u16),
                }
                pause(rng);
                span.set32(at + 8, good.len);
                span.set16(at + 12, self.flags);
                self.table.set16(14, 1);
            }
        }
    }
}

fn pause(rng: &mut Rng) {
    (0..rng.below(40)).for_each(|_| std::hint::spin_loop());
}

/// Descriptor 0 heads a chain of two, or leads to a table of the two.
fn prepare(ring: &Ring, memory: &Span, frame: &[u8], field: Field, write: u16) -> Target {
    let (table, buffer) = (memory.sub(0, 64), memory.sub(4096, 2 * ROOM as usize + 64));
    buffer.write(0, &[0; 12]);
    buffer.write(12, frame);
    // What is taken for a frame when its head is descriptor 1 is one, too.
    let (first, at) = (Seg { gpa: buffer.gpa(), len: 12 + 64 }, 12 + 64 + 36);
    buffer.write(at, &[0; 12]);
    buffer.write(at + 12, &frame[..64]);
    let good = Seg { gpa: buffer.gpa() + at as u64, len: ROOM };
    let descs = if field == Field::Table { &table } else { &ring.desc };
    put_desc(descs, 0, first, write | DESC_NEXT, 1);
    put_desc(descs, 1, good, write, 0);
    if field == Field::Table {
        raw_desc(ring, 0, Seg { gpa: table.gpa(), len: 32 }, DESC_INDIRECT, 0);
    }
    for slot in 0..ring.size {
        raw_avail(ring, slot, 0);
    }
    let (desc, avail, size) = (ring.desc.clone(), ring.avail.clone(), ring.size);
    let header = buffer.sub(0, 16);
    Target { desc, avail, table, header, size, flags: write, good }
}

/// Rounds that are made however long they take.
const ROUNDS: u64 = 10;

/// Changes one field of a transmit ring (`tx`) or of a receive ring under traffic.
fn changes(field: Field, tx: bool) {
    let mut duo = Duo::new(MODERN | if tx { feat::OFFLOADS } else { 0 }, false);
    let memory = Duo::alloc(if tx { &duo.sender } else { &duo.sink }, 1 << 16);
    let frame = duo.frame();
    let name = format!("{field:?}, tx {tx}");
    let (end, mut rounds, mut breaks) = (Instant::now() + span(), 0u64, 0u64);
    let mut seed = 1;
    // A busy machine has few in that time.
    while Instant::now() < end || rounds < ROUNDS {
        duo.restart();
        let (ring, write) = match tx {
            true => (&duo.sender.guest.tx[0].ring, 0),
            false => (&duo.sink.guest.rx[0].ring, DESC_WRITE),
        };
        // Behind what the driver posted by itself.
        let target = prepare(ring, &memory, &frame, field, write);
        let stop = &AtomicBool::new(false);
        seed += 1;
        std::thread::scope(|s| {
            let mut rng = Rng::new(seed);
            s.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    target.flip(field, &mut rng);
                }
            });
            let _stop = Stop(stop);
            for _ in 0..20 {
                rounds += 1;
                let broken = round(&mut duo, field, tx, &frame, &name);
                breaks += u64::from(broken);
                chat(&mut duo.net, 1);
                if broken || Instant::now() >= end && rounds >= ROUNDS {
                    break;
                }
            }
        });
        check_sink(&mut duo, tx, &frame, &name);
    }
    println!("{name}: {rounds} rounds, {breaks} rings given up");
    // A buffer that is laid on the receiver's own ring is written to as it says.
    let may_break = match field {
        Field::AvailIdx | Field::Head => true,
        Field::Addr | Field::Table => !tx,
        _ => false,
    };
    assert!(may_break || breaks == 0, "{name}: {breaks} rings given up");
    duo.works(&name);
    duo.finish();
}

/// Some heads for the switch to look at; true if the ring was given up.
fn round(duo: &mut Duo, field: Field, tx: bool, frame: &[u8], name: &str) -> bool {
    let ring = if tx { &duo.sender.guest.tx[0].ring } else { &duo.sink.guest.rx[0].ring };
    if field == Field::AvailIdx {
        ring.kick.write(1);
    } else {
        let at = ring.avail.index(2).load(Ordering::Relaxed);
        let ahead = ring.size.min(ring.used_idx().wrapping_sub(at).wrapping_add(ring.size)).min(32);
        raw_avail_idx(ring, at.wrapping_add(ahead));
        ring.kick.write(1);
    }
    if !tx {
        for _ in 0..32 {
            duo.sender.tx[0].send_waiting(frame, SOON);
        }
        duo.sender.tx[0].drain(SOON);
        return super::lab::Lab::is_broken(&duo.sink.guest.rx[0].ring);
    }
    if field == Field::AvailIdx {
        std::thread::sleep(Duration::from_micros(300));
        return super::lab::Lab::is_broken(ring);
    }
    settled(ring, name)
}

/// What arrived is in order: the header asks for nothing that was not acknowledged, nothing is
/// written beyond used.len, and all bytes are the sender's.
fn check_sink(duo: &mut Duo, tx: bool, frame: &[u8], name: &str) {
    if !tx {
        return;
    }
    for (_, got) in duo.sink.rx[0].take(usize::MAX, Duration::ZERO) {
        let n = got.len().min(14);
        assert_eq!(got[..n], frame[..n], "{name}: a frame for somebody else");
        for honest in 0..2 {
            let tag = tag_of(honest).to_le_bytes();
            assert!(!got.windows(8).any(|w| w == tag), "{name}: bytes of {honest} (I4)");
        }
    }
}

macro_rules! fields {
    ($($name:ident, $field:ident, $tx:literal;)*) => {
        $(#[test]
        fn $name() {
            changes(Field::$field, $tx);
        })*
    };
}

fields! {
    double_fetch_of_addr_when_sending, Addr, true;
    double_fetch_of_len_when_sending, Len, true;
    double_fetch_of_flags_when_sending, Flags, true;
    double_fetch_of_next_when_sending, Next, true;
    double_fetch_of_avail_idx_when_sending, AvailIdx, true;
    double_fetch_of_head_when_sending, Head, true;
    double_fetch_of_vnet_header_when_sending, Header, true;
    double_fetch_of_indirect_table_when_sending, Table, true;
    double_fetch_of_addr_when_receiving, Addr, false;
    double_fetch_of_len_when_receiving, Len, false;
    double_fetch_of_flags_when_receiving, Flags, false;
    double_fetch_of_next_when_receiving, Next, false;
    double_fetch_of_avail_idx_when_receiving, AvailIdx, false;
    double_fetch_of_head_when_receiving, Head, false;
    double_fetch_of_vnet_header_when_receiving, Header, false;
    double_fetch_of_indirect_table_when_receiving, Table, false;
}
