//! A guest's memory: three regions of one file, two of which meet, with pages around them that
//! belong to no region and must never change.
//!
//! The driver reads and writes the file, the device its mappings. Everything a target looks at is
//! a copy of the whole file ([`Memory::image`]); places in it are offsets.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use datapath::memory::{Mapping, MemTable, Region};
use sys::fs::memfd;

/// Guest-physical address, length and place in the file of each region.
pub const REGIONS: [(u64, u64, u64); 3] =
    [(0x1_0000, 0x8000, 0x1000), (0x1_8000, 0x1_6000, 0xa000), (0x8_0000, 0x1000, 0x2_1000)];
/// Bytes of the file: a page behind each region is nobody's.
const FILE: u64 = 0x2_3000;
/// The front-end's addresses differ from the guest's.
const USER: u64 = 0x7f00_0000_0000;

/// Where frames and buffers usually lie: the upper part of the first region and the second.
pub const DATA: std::ops::Range<u64> = 0x1_4000..0x2_e000;

pub struct Memory {
    file: File,
    pub table: Arc<MemTable>,
}

impl Memory {
    pub fn new() -> Memory {
        let fd = memfd("guest", FILE).expect("memfd");
        let truncated: Arc<AtomicBool> = Arc::default();
        let region = |&(gpa, len, offset): &(u64, u64, u64)| {
            let fd: OwnedFd = fd.try_clone().expect("descriptor");
            let mapping = Mapping::new(fd, offset, len, &truncated).expect("mapping");
            Region { gpa, uva: user(gpa), offset, mapping: Arc::new(mapping) }
        };
        let regions = REGIONS.iter().map(region).collect();
        let table = Arc::new(MemTable::new(regions, &truncated).expect("disjoint"));
        Memory { file: File::from(fd), table }
    }

    /// All zeros again.
    pub fn clear(&self) {
        self.file.write_all_at(&[0; FILE as usize], 0).expect("memfd");
    }

    /// The whole file.
    pub fn image(&self) -> Vec<u8> {
        let mut image = vec![0; FILE as usize];
        self.file.read_exact_at(&mut image, 0).expect("memfd");
        image
    }

    /// Writes as many of `bytes` as the region at `gpa` has room for.
    pub fn write(&self, gpa: u64, bytes: &[u8]) {
        if let Some((at, room)) = place(gpa) {
            let len = bytes.len().min(room);
            self.file.write_all_at(&bytes[..len], at as u64).expect("memfd");
        }
    }

    pub fn write_u16(&self, gpa: u64, value: u16) {
        self.write(gpa, &value.to_le_bytes());
    }
}

/// The front-end's address of a guest-physical one.
pub const fn user(gpa: u64) -> u64 {
    gpa + USER
}

/// The offset of a guest-physical address, and how many bytes its region has from there.
pub fn place(gpa: u64) -> Option<(usize, usize)> {
    let inside = |&&(start, len, _): &&(u64, u64, u64)| (start..start + len).contains(&gpa);
    let (start, len, offset) = REGIONS.iter().find(inside)?;
    Some(((offset + gpa - start) as usize, (start + len - gpa) as usize))
}

/// The guest-physical address of an offset.
pub fn address(at: usize) -> Option<u64> {
    let inside =
        |&&(_, len, offset): &&(u64, u64, u64)| (offset..offset + len).contains(&(at as u64));
    let (start, _, offset) = REGIONS.iter().find(inside)?;
    Some(start + at as u64 - offset)
}

/// The number at a guest-physical address of an image.
pub fn u16_at(image: &[u8], gpa: u64) -> u16 {
    let (at, _) = place(gpa).expect("inside");
    u16::from_le_bytes([image[at], image[at + 1]])
}
