//! What a driver must never do: raw writes into the rings, past the books of [`Ring`].
//!
//! Use it on a ring that no honest traffic runs on: the books know nothing of these heads.

use std::sync::atomic::{AtomicBool, Ordering};

use super::Rng;
use super::mem::Span;
use super::ring::{DESC_INDIRECT, DESC_NEXT, DESC_WRITE, Ring, Seg, put_desc};
use super::vm::Vm;

/// Writes descriptor `i` of the ring's table with any content.
pub fn raw_desc(ring: &Ring, i: u16, seg: Seg, flags: u16, next: u16) {
    put_desc(&ring.desc, i as usize, seg, flags, next);
}

/// Writes entry `slot` of the avail ring.
pub fn raw_avail(ring: &Ring, slot: u16, head: u16) {
    ring.avail.set16(4 + 2 * (slot & (ring.size - 1)) as usize, head);
}

/// Sets avail.idx to anything.
pub fn raw_avail_idx(ring: &Ring, idx: u16) {
    raw_idx(&ring.avail, idx);
}

/// Offers `head` as the next buffer after what the device has used so far, and kicks.
pub fn offer(ring: &Ring, head: u16) {
    let at = ring.avail.index(2).load(Ordering::Relaxed);
    raw_avail(ring, at, head);
    raw_avail_idx(ring, at.wrapping_add(1));
    ring.kick.write(1);
}

/// Makes all buffers of a ring the same, so that they can be offered again by moving an index.
pub fn one_buffer(ring: &Ring, seg: Seg, flags: u16) {
    for i in 0..ring.size {
        raw_desc(ring, i, seg, flags, 0);
        raw_avail(ring, i, i);
    }
}

/// Offers all buffers of a ring again, whatever they are, without any work to speak of.
pub fn refill(ring: &Ring) {
    raw_avail_idx(ring, ring.used_idx().wrapping_add(ring.size));
    ring.kick.write(1);
}

/// Starts a ring of a guest again (even numbers: RX, odd: TX), empty, after `fill` has written into
/// it.
pub fn restart_with(vm: &mut Vm, index: u32, fill: impl FnOnce(&Ring)) {
    vm.fe.get_vring_base(index).expect("base");
    let Vm { fe, guest } = vm;
    let pair = index as usize / 2;
    let receives = index.is_multiple_of(2);
    let ring = if receives { &mut guest.rx[pair].ring } else { &mut guest.tx[pair].ring };
    ring.reset();
    fill(ring);
    let ring = if receives { &guest.rx[pair].ring } else { &guest.tx[pair].ring };
    guest.start_ring(fe, ring).expect("start");
    vm.settle();
}

/// A chain whose last descriptor points back to its first.
pub fn loop_chain(ring: &Ring, len: u16, seg: Seg, flags: u16) {
    for i in 0..len {
        raw_desc(ring, i, seg, flags | DESC_NEXT, (i + 1) % len);
    }
}

/// The fields a device must read once: each is changed under its hands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    Addr,
    Len,
    Flags,
    Next,
    AvailIdx,
    Head,
    /// The virtio-net header, in the sender's buffer or in the receiver's.
    Header,
    /// An indirect table: its entry's address, length, flags and link.
    Table,
}

/// Every field once.
pub const FIELDS: [Field; 8] = [
    Field::Addr,
    Field::Len,
    Field::Flags,
    Field::Next,
    Field::AvailIdx,
    Field::Head,
    Field::Header,
    Field::Table,
];

/// What the flipper needs of a TX ring whose descriptor 0 heads a chain of two: 0 the header, 1 the
/// frame; or an indirect table in `table` with the same two.
#[derive(Clone)]
pub struct Target {
    pub desc: Span,
    pub avail: Span,
    pub table: Span,
    /// The virtio-net header that descriptor 0 points to.
    pub header: Span,
    pub size: u16,
}

/// Changes one field between its good value and bad ones until told to stop. The avail index is
/// left at a value that the ring cannot hold.
pub fn flip(t: &Target, field: Field, stop: &AtomicBool) {
    let mut rng = Rng::new(field as u64);
    while !stop.load(Ordering::Relaxed) {
        let bad = rng.next();
        match field {
            Field::Addr => toggle64(&t.desc, 0, bad | 1 << 50),
            Field::Len => toggle32(&t.desc, 8, bad as u32),
            Field::Flags => toggle16(&t.desc, 12, bad as u16),
            Field::Next => toggle16(&t.desc, 14, bad as u16),
            Field::AvailIdx => raw_idx(&t.avail, bad as u16),
            Field::Head => t.avail.set16(4 + 2 * (bad as u16 & (t.size - 1)) as usize, bad as u16),
            Field::Header => toggle64(&t.header, 0, bad),
            Field::Table => toggle64(&t.table, 16, bad | 1 << 50),
        }
    }
}

fn toggle64(s: &Span, off: usize, bad: u64) {
    let good = s.get64(off);
    s.set64(off, bad);
    std::hint::spin_loop();
    s.set64(off, good);
}

fn toggle32(s: &Span, off: usize, bad: u32) {
    let good = s.get32(off);
    s.set32(off, bad);
    std::hint::spin_loop();
    s.set32(off, good);
}

fn toggle16(s: &Span, off: usize, bad: u16) {
    let good = s.get16(off);
    s.set16(off, bad);
    std::hint::spin_loop();
    s.set16(off, good);
}

fn raw_idx(avail: &Span, idx: u16) {
    avail.index(2).store(idx, Ordering::Release);
}

/// One malformed chain of the classes that the field has seen; the head is descriptor 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadChain {
    /// Points to itself.
    SelfLoop,
    /// A ring of descriptors.
    Loop,
    /// `next` beyond the table.
    NextOutside,
    /// An address in no region.
    Hole,
    /// Starts inside a region, ends beyond it.
    PastEnd,
    /// Address plus length wraps.
    Wraps,
    /// Shorter than the virtio-net header.
    Short(u32),
    /// A writable descriptor on a TX ring.
    WrongDirection,
    /// An indirect table whose size is no multiple of 16.
    TableSize(u32),
    /// An indirect table in no region.
    TableHole,
    /// An indirect descriptor inside an indirect table.
    Nested,
    /// INDIRECT and NEXT together.
    IndirectNext,
}

/// Every class once.
pub const BAD_CHAINS: [BadChain; 15] = [
    BadChain::SelfLoop,
    BadChain::Loop,
    BadChain::NextOutside,
    BadChain::Hole,
    BadChain::PastEnd,
    BadChain::Wraps,
    BadChain::Short(0),
    BadChain::Short(1),
    BadChain::Short(13),
    BadChain::WrongDirection,
    BadChain::TableSize(0),
    BadChain::TableSize(17),
    BadChain::TableHole,
    BadChain::Nested,
    BadChain::IndirectNext,
];

/// Writes such a chain at descriptor 0 of a TX ring. `good` is memory of at least 64 bytes,
/// aligned to 16; `region_end` is the first address behind its region.
pub fn bad_chain(ring: &Ring, kind: BadChain, good: &Span, region_end: u64) {
    let seg = |gpa, len| Seg { gpa, len };
    let whole = seg(good.gpa(), 64);
    match kind {
        BadChain::SelfLoop => raw_desc(ring, 0, whole, DESC_NEXT, 0),
        BadChain::Loop => loop_chain(ring, ring.size.min(8), whole, 0),
        BadChain::NextOutside => raw_desc(ring, 0, whole, DESC_NEXT, ring.size),
        BadChain::Hole => raw_desc(ring, 0, seg(region_end + (1 << 40), 64), 0, 0),
        BadChain::PastEnd => raw_desc(ring, 0, seg(region_end - 32, 64), 0, 0),
        BadChain::Wraps => raw_desc(ring, 0, seg(u64::MAX - 31, 64), 0, 0),
        BadChain::Short(n) => raw_desc(ring, 0, seg(good.gpa(), n), 0, 0),
        BadChain::WrongDirection => raw_desc(ring, 0, whole, DESC_WRITE, 0),
        BadChain::TableSize(n) => raw_desc(ring, 0, seg(good.gpa(), n), DESC_INDIRECT, 0),
        BadChain::TableHole => {
            raw_desc(ring, 0, seg(region_end + (1 << 40), 64), DESC_INDIRECT, 0);
        }
        BadChain::Nested | BadChain::IndirectNext => {
            let next = if kind == BadChain::IndirectNext { DESC_NEXT } else { 0 };
            let inner = if kind == BadChain::Nested { DESC_INDIRECT } else { 0 };
            put_desc(good, 0, seg(good.gpa() + 16, 16), inner, 0);
            put_desc(good, 1, whole, 0, 0);
            raw_desc(ring, 0, seg(good.gpa(), 16), DESC_INDIRECT | next, 1);
            raw_desc(ring, 1, whole, 0, 0);
        }
    }
}
