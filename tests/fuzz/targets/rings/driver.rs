//! A driver that writes its ring by the input: as it should, or anything anywhere.

use std::sync::Arc;

use base::frame::VnetHdr;
use base::frame::offload::Offloads;
use datapath::ring::{RingConfig, SplitRing};

use super::super::input::Input;
use super::super::packet::Packet;
use super::memory::{DATA, Memory, REGIONS};
use super::model::Place;

pub const NEXT: u16 = 1;
pub const WRITE: u16 = 2;
pub const INDIRECT: u16 = 4;

/// One ring of a guest, from both sides.
pub struct Driver<'m> {
    pub memory: &'m Memory,
    pub place: Place,
    pub config: RingConfig,
    pub ring: SplitRing,
    /// The ring has not signalled since its start, so that it must the first time.
    pub fresh: bool,
    /// avail.idx as the device may have seen it: a driver that takes it back is too late.
    pub seen: u16,
    /// Flag of this ring's buffers.
    direction: u16,
    descriptor: u16,
    data: u64,
}

impl<'m> Driver<'m> {
    /// A ring at one of a few places, the last bytes of a region among them.
    pub fn start(memory: &'m Memory, input: &mut Input<'_>, receive: bool) -> Driver<'m> {
        memory.clear();
        let size = 1u16 << input.choose(&[4, 0, 1, 3, 6, 8]);
        let [_, second, third] = REGIONS.map(|(gpa, len, _)| gpa + len);
        let avail = [0x1_2000, second - 6 - 2 * u64::from(size)];
        let used = [0x1_3000, third - 8 - 8 * u64::from(size.min(256))];
        let place = Place {
            size,
            desc: input.choose(&[0x1_0000, 0x1_1000]),
            avail: input.choose(&avail),
            used: if size <= 256 { input.choose(&used) } else { used[0] },
        };
        let flags = input.u8();
        let modern = flags & 3 != 3;
        let config = RingConfig {
            event_idx: flags & 4 != 0,
            header_len: if modern { 12 } else { 10 },
            mergeable: receive && modern && flags & 1 == 0,
            offloads: Offloads::from_bits(input.u8()),
            ..place.config()
        };
        let at = input.choose(&[0, 0xfffe, 0x7fff]);
        memory.write_u16(place.used + 2, at);
        memory.write_u16(place.avail + 2, at);
        let ring = SplitRing::start(Arc::clone(&memory.table), &config).expect("a good place");
        let direction = if receive { WRITE } else { 0 };
        Driver {
            memory,
            place,
            config,
            ring,
            fresh: true,
            seen: at,
            direction,
            descriptor: 0,
            // Soon across the border of two regions, or at the end of the second.
            data: input.choose(&[DATA.start, REGIONS[1].0 - 300, DATA.end - 3000]),
        }
    }

    /// As after a reset: positions are those of the used ring.
    pub fn restart(&mut self) {
        self.ring =
            SplitRing::start(Arc::clone(&self.memory.table), &self.config).expect("as before");
        self.fresh = true;
        self.seen = self.ring.base();
        self.memory.write_u16(self.place.avail + 2, self.ring.base());
    }

    /// One change that no honest driver need make.
    pub fn poke(&mut self, input: &mut Input<'_>) {
        match input.below(6) {
            0 => {
                let desc = self.any_descriptor(input);
                let index = u64::from(input.u8());
                self.memory.write(self.place.desc + 16 * index, &desc);
            }
            1 => {
                let head = match input.u8() {
                    0..=7 => input.u16(),
                    other => u16::from(other) % self.place.size,
                };
                self.offer(head);
            }
            // Mostly a little ahead or behind: a ring with an index far away is broken.
            2 if input.u8() > 20 => {
                let idx = self.ring.base().wrapping_add(input.u16() % 8).wrapping_sub(1);
                self.memory.write_u16(self.place.avail + 2, idx);
            }
            2 => self.memory.write_u16(self.place.avail + 2, input.u16()),
            3 => {
                let at = address(input);
                let len = 1 + input.below(32);
                self.memory.write(at, input.bytes(len));
            }
            4 => self.any_table(input),
            _ => {
                let event = self.place.avail + 4 + 2 * u64::from(self.place.size);
                let at = if input.flag() { self.place.avail } else { event };
                self.memory.write_u16(at, input.u16());
            }
        }
    }

    /// A table that is wrong in some way, or not, and a head that leads to it.
    fn any_table(&mut self, input: &mut Input<'_>) {
        let at = address(input);
        let count = 1 + input.below(5);
        for entry in 0..count as u64 {
            let (from, len) = (address(input), u32::from(input.u8()));
            let flags = self.direction | input.choose(&[NEXT, NEXT, 0, INDIRECT, WRITE]);
            // Forwards, back, or one too far.
            let next = (entry as u16 + input.choose(&[1, 1, 1, 0, 2])) & 7;
            self.memory.write(at.wrapping_add(16 * entry), &bytes(from, len, flags, next));
        }
        let len = 16 * count as u32 + input.choose(&[0, 0, 0, 8, 16]);
        let flags = INDIRECT | input.choose(&[0, 0, self.direction, NEXT, NEXT | self.direction]);
        let head = self.descriptor % self.place.size;
        let desc = bytes(at, len, flags, input.u8().into());
        self.memory.write(self.place.desc + 16 * u64::from(head), &desc);
        self.descriptor = head + 1;
        self.offer(head);
    }

    /// Mostly plausible fields.
    fn any_descriptor(&self, input: &mut Input<'_>) -> [u8; 16] {
        let len = match input.below(6) {
            0 => input.u32(),
            1 => 16 * u32::from(input.u8()),
            2 => 0,
            3 => u32::from(input.u16()),
            _ => u32::from(input.u8()),
        };
        let flags = input.choose(&[0, NEXT, INDIRECT, WRITE, NEXT | WRITE, NEXT | INDIRECT, 8]);
        let flags = if input.flag() { flags | self.direction } else { flags };
        bytes(address(input), len, flags, input.u8().into())
    }

    /// Makes a head available.
    fn offer(&mut self, head: u16) {
        let image = self.memory.image();
        let idx = self.place.avail_idx(&image);
        let slot = self.place.avail + 4 + 2 * u64::from(idx % self.place.size);
        self.memory.write_u16(slot, head);
        self.memory.write_u16(self.place.avail + 2, idx.wrapping_add(1));
    }

    /// Room for `len` bytes of data; used again when all has been.
    fn room(&mut self, len: u64) -> u64 {
        if self.data + len > DATA.end {
            self.data = DATA.start;
        }
        let at = self.data;
        self.data += len;
        at
    }

    /// Offers `len` bytes at `at` in several descriptors, as a chain or in a table.
    fn chain(&mut self, input: &mut Input<'_>, at: u64, len: usize) {
        let mut pieces = Vec::new();
        let (mut from, mut left) = (at, len as u64);
        let cuts = input.below(4) + usize::from(input.u8() == 255) * 60;
        for _ in 0..cuts {
            let n = u64::from(input.u8()).min(left);
            pieces.push((from, n));
            (from, left) = (from + n, left - n);
        }
        pieces.push((from, left));
        let indirect = input.below(3) == 1;
        let size = self.place.size;
        let first = if indirect { 0 } else { self.descriptor % size };
        let table = self.room(16 * 64 + 8) + u64::from(input.choose(&[0u8, 8, 3]));
        let last = pieces.len() - 1;
        for (i, &(from, n)) in pieces.iter().enumerate() {
            let index = if indirect { i as u16 } else { (first + i as u16) % size };
            let next = if indirect { index + 1 } else { (index + 1) % size };
            let flags = self.direction | if i == last { 0 } else { NEXT };
            let base = if indirect { table } else { self.place.desc };
            let desc = bytes(from, n as u32, flags, next);
            self.memory.write(base + 16 * u64::from(index), &desc);
        }
        let head = self.descriptor % size;
        if indirect {
            let desc = bytes(table, 16 * pieces.len() as u32, INDIRECT, 0);
            self.memory.write(self.place.desc + 16 * u64::from(head), &desc);
        }
        self.descriptor = head + if indirect { 1 } else { pieces.len() as u16 };
        self.offer(head);
    }

    /// Offers a sound packet.
    pub fn packet(&mut self, input: &mut Input<'_>) {
        let size = input.choose(&[0, 100, 1448, 8, 1]);
        let plain = input.flag();
        let most = input.choose(&[200, 3000, 20_000]);
        let packet = Packet::from_input(input, most);
        let header = if plain { VnetHdr::plain(0) } else { packet.asking(size) };
        self.frame(input, header, &packet.frame);
    }

    /// Offers any bytes with any header.
    pub fn any_frame(&mut self, input: &mut Input<'_>) {
        let mut header = [0; 12];
        match input.below(3) {
            0 => {
                let given = input.bytes(12);
                header[..given.len()].copy_from_slice(given);
            }
            // A checksum anywhere, as of protocols that are not looked into.
            1 => (header[0], header[6], header[8]) = (1, input.u8(), input.u8() % 20),
            _ => {}
        }
        let (len, seed) = (input.below(0x1_0000), input.u8());
        let len = if input.flag() { len } else { len % 200 };
        let frame: Vec<u8> = (0..len).map(|i| (i as u8) ^ seed).collect();
        self.frame(input, VnetHdr::from_bytes(header), &frame);
    }

    fn frame(&mut self, input: &mut Input<'_>, header: VnetHdr, frame: &[u8]) {
        let header = header.to_bytes();
        let bytes = [&header[..usize::from(self.config.header_len)], frame].concat();
        let at = self.room(bytes.len() as u64);
        // Across two regions in one or two parts: what does not fit is not written.
        self.memory.write(at, &bytes);
        let first = REGIONS[0].0 + REGIONS[0].1;
        if (at..at + bytes.len() as u64).contains(&first) {
            self.memory.write(first, &bytes[(first - at) as usize..]);
        }
        self.chain(input, at, bytes.len());
    }

    /// Posts receive buffers of one kind.
    pub fn post(&mut self, input: &mut Input<'_>) {
        let len = match input.below(5) {
            0 => input.below(64),
            1 => input.choose(&[65_600, 5, 11, 1]),
            2 => 12 + input.below(3000),
            3 => 128,
            _ => 1526,
        };
        for _ in 0..1 + input.below(usize::from(self.place.size)).min(40) {
            let at = self.room(len as u64);
            self.chain(input, at, len);
        }
    }
}

/// Addresses in and around the regions, or any.
fn address(input: &mut Input<'_>) -> u64 {
    let offset = u64::from(input.u16());
    match input.below(8) {
        0 => input.u64(),
        1 => REGIONS[1].0 - offset % 64,
        2 => REGIONS[2].0 + offset % 0x1200,
        3 => REGIONS[1].0 + REGIONS[1].1 - offset % 64,
        4 => 0u64.wrapping_sub(offset),
        5 => 0x1_0000 + offset % 0x4000,
        _ => DATA.start + offset,
    }
}

fn bytes(addr: u64, len: u32, flags: u16, next: u16) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&addr.to_le_bytes());
    bytes[8..12].copy_from_slice(&len.to_le_bytes());
    bytes[12..14].copy_from_slice(&flags.to_le_bytes());
    bytes[14..].copy_from_slice(&next.to_le_bytes());
    bytes
}
