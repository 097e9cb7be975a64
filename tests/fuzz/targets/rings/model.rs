//! What the specification makes of a ring's memory (virtio 1.2 section 2.7), read from a copy.

use base::limits::MAX_CHAIN_DESCRIPTORS;
use base::stats::DropReason;

use super::memory::{place, u16_at, user};
use datapath::ring::RingConfig;

/// Where a ring is, in guest-physical addresses.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub size: u16,
    pub desc: u64,
    pub avail: u64,
    pub used: u64,
}

/// Bytes of a chain, in the image: offset and length of each piece.
pub type Spans = Vec<(usize, usize)>;

/// A chain that is one.
pub struct Chain {
    pub spans: Spans,
    /// Indirect tables that were read.
    pub tables: Spans,
    pub len: usize,
}

impl Chain {
    /// The first `len` bytes.
    pub fn bytes(&self, image: &[u8], len: usize) -> Vec<u8> {
        let all = self.spans.iter().flat_map(|&(at, len)| &image[at..at + len]);
        all.copied().take(len).collect()
    }
}

struct Descriptor {
    addr: u64,
    len: u32,
    flags: u16,
    next: u16,
}

fn descriptor(image: &[u8], at: usize) -> Descriptor {
    let bytes = &image[at..at + 16];
    let number = |range: std::ops::Range<usize>| {
        bytes[range].iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte))
    };
    Descriptor {
        addr: number(0..8),
        len: number(8..12) as u32,
        flags: number(12..14) as u16,
        next: number(14..16) as u16,
    }
}

impl Place {
    pub fn config(&self) -> RingConfig {
        RingConfig {
            size: self.size,
            desc: user(self.desc),
            avail: user(self.avail),
            used: user(self.used),
            ..RingConfig::default()
        }
    }

    pub fn avail_idx(&self, image: &[u8]) -> u16 {
        u16_at(image, self.avail + 2)
    }

    pub fn head(&self, image: &[u8], position: u16) -> u16 {
        u16_at(image, self.avail + 4 + 2 * u64::from(position % self.size))
    }

    pub fn used_idx(&self, image: &[u8]) -> u16 {
        u16_at(image, self.used + 2)
    }

    /// Head and length of a used element.
    pub fn used(&self, image: &[u8], position: u16) -> (u32, u32) {
        let at = self.used_element(position);
        let word = |at: usize| u32::from_le_bytes(image[at..at + 4].try_into().expect("four"));
        (word(at), word(at + 4))
    }

    /// Where a used element is in the image.
    pub fn used_element(&self, position: u16) -> usize {
        place(self.used + 4 + 8 * u64::from(position % self.size)).expect("inside").0
    }

    /// Whether the driver wants to be signalled for elements `old` to `new`, exclusive.
    pub fn wants_signal(&self, image: &[u8], event_idx: bool, old: u16, new: u16) -> bool {
        if !event_idx {
            return u16_at(image, self.avail) & 1 == 0;
        }
        let event = u16_at(image, self.avail + 4 + 2 * u64::from(self.size));
        (0..new.wrapping_sub(old)).any(|i| old.wrapping_add(i) == event)
    }

    /// The ring's three parts.
    pub fn parts(&self) -> Spans {
        let size = usize::from(self.size);
        [(self.desc, 16 * size), (self.avail, 6 + 2 * size), (self.used, 6 + 8 * size)]
            .map(|(gpa, len)| (place(gpa).expect("inside").0, len))
            .to_vec()
    }

    /// The chain at `head`, at most `most` pieces long.
    pub fn chain(
        &self,
        image: &[u8],
        head: u16,
        writable: bool,
        most: usize,
    ) -> Result<Chain, DropReason> {
        let mut chain = Chain { spans: Vec::new(), tables: Vec::new(), len: 0 };
        let at = |index: u16| place(self.desc).expect("inside").0 + 16 * usize::from(index);
        let mut next = head;
        for _ in 0..usize::from(self.size).min(MAX_CHAIN_DESCRIPTORS) {
            let desc = descriptor(image, at(next));
            if desc.flags & 4 != 0 {
                if desc.flags & 1 != 0 {
                    return Err(DropReason::BadChain);
                }
                chain.table(image, &desc, writable, most)?;
                return Ok(chain);
            }
            chain.add(&desc, writable, most)?;
            if desc.flags & 1 == 0 {
                return Ok(chain);
            }
            if desc.next >= self.size {
                return Err(DropReason::BadChain);
            }
            next = desc.next;
        }
        Err(DropReason::BadChain)
    }
}

impl Chain {
    fn table(
        &mut self,
        image: &[u8],
        table: &Descriptor,
        writable: bool,
        most: usize,
    ) -> Result<(), DropReason> {
        let len = table.len as usize;
        let count = len / 16;
        if count == 0 || !len.is_multiple_of(16) {
            return Err(DropReason::BadChain);
        }
        let found = place(table.addr).filter(|&(_, room)| len <= room);
        let (at, _) = found.ok_or(DropReason::BadAddress)?;
        self.tables.push((at, len));
        let mut index = 0;
        for _ in 0..count.min(MAX_CHAIN_DESCRIPTORS) {
            let desc = descriptor(image, at + 16 * index);
            if desc.flags & 4 != 0 {
                return Err(DropReason::BadChain);
            }
            self.add(&desc, writable, most)?;
            if desc.flags & 1 == 0 {
                return Ok(());
            }
            index = usize::from(desc.next);
            if index >= count {
                return Err(DropReason::BadChain);
            }
        }
        Err(DropReason::BadChain)
    }

    fn add(&mut self, desc: &Descriptor, writable: bool, most: usize) -> Result<(), DropReason> {
        if (desc.flags & 2 != 0) != writable {
            return Err(DropReason::BadDirection);
        }
        let (mut gpa, mut left) = (desc.addr, desc.len as usize);
        while left > 0 {
            let (at, room) = place(gpa).ok_or(DropReason::BadAddress)?;
            let len = left.min(room);
            if self.spans.len() == most {
                return Err(DropReason::BadChain);
            }
            self.spans.push((at, len));
            self.len += len;
            left -= len;
            gpa += len as u64;
        }
        Ok(())
    }
}
