//! The memory table of one guest, and the per-ring translator.
//!
//! A front-end describes memory by regions: guest-physical start, length, address of the region in
//! the front-end's own process (ring addresses are such addresses), and a file. [`MemTable`] is
//! immutable. [`Translator`] pairs an `Arc` of the table with a copy of the window used last, so
//! that the common lookup is one subtraction and two comparisons without following a pointer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::mapping::{Mapping, Size};
use base::limits::{MAX_MEM_SLOTS, MAX_PORT_MAPPED_BYTES, MAX_PORT_ROUNDED_BYTES};

/// One region of guest memory.
#[derive(Debug, Clone)]
pub struct Region {
    /// Guest-physical address of the first byte.
    pub gpa: u64,
    /// Address of the first byte in the front-end's process.
    pub uva: u64,
    /// Offset in the front-end's file; part of the region's identity.
    pub offset: u64,
    /// The mapped bytes of the region.
    pub mapping: Arc<Mapping>,
}

/// Why a set of regions is not a memory table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// Guest-physical or user address plus length overflows.
    #[error("region wraps around the end of the address space")]
    Wraps,
    /// Two regions share a guest-physical address.
    #[error("regions overlap")]
    Overlap,
    /// More than [`MAX_MEM_SLOTS`] regions.
    #[error("more than {MAX_MEM_SLOTS} regions")]
    TooMany,
    /// More than [`MAX_PORT_MAPPED_BYTES`] in all.
    #[error("more than {MAX_PORT_MAPPED_BYTES} bytes of memory")]
    TooLarge,
    /// The regions, rounded up to whole huge pages, exceed [`MAX_PORT_MAPPED_BYTES`] by more than
    /// [`MAX_PORT_ROUNDED_BYTES`].
    #[error("regions that begin or end inside huge pages are {0} bytes of these")]
    TooRounded(u64),
    /// No region has these addresses and this length.
    #[error("no such region")]
    Unknown,
}

/// A range of guest-physical addresses and its address in this process.
#[derive(Debug, Clone, Copy)]
struct Window {
    gpa: u64,
    len: u64,
    host: *mut u8,
}

impl Window {
    const EMPTY: Window = Window { gpa: 0, len: 0, host: std::ptr::null_mut() };

    /// Returns the address of the byte at `gpa` and the number of bytes to the end of the window;
    /// `None` outside of the window.
    #[inline(always)]
    fn at(&self, gpa: u64) -> Option<(*mut u8, u64)> {
        let offset = gpa.wrapping_sub(self.gpa);
        if offset < self.len {
            // Inside the mapping, by the comparison above.
            Some((self.host.wrapping_add(offset as usize), self.len - offset))
        } else {
            None
        }
    }
}

/// The immutable memory of one guest.
#[derive(Debug, Default)]
pub struct MemTable {
    /// Sorted by guest-physical address; parallel to `windows`.
    regions: Vec<Region>,
    windows: Vec<Window>,
    /// The windows sorted by their address in this process.
    by_host: Vec<Window>,
    /// Set by the SIGBUS guard of any mapping of this guest.
    truncated: Arc<AtomicBool>,
}

// SAFETY: the raw pointers in `windows` point into mappings owned by `regions` of the same value;
// they are only handed out as raw pointers, and every access through them is volatile, atomic or a
// raw copy, as the module rules of `memory` demand of all users.
unsafe impl Send for MemTable {}
// SAFETY: as above; the table itself is never mutated after construction.
unsafe impl Sync for MemTable {}

impl MemTable {
    /// Makes a table of these regions, after checking that they are disjoint and within the limits.
    /// `truncated` is the flag with which the regions were mapped.
    pub fn new(
        mut regions: Vec<Region>,
        truncated: &Arc<AtomicBool>,
    ) -> Result<MemTable, TableError> {
        MemTable::check_sizes(regions.iter().map(|r| r.mapping.size()))?;
        regions.sort_by_key(|r| r.gpa);
        let mut end = 0u64;
        for (i, region) in regions.iter().enumerate() {
            let len = region.mapping.len() as u64;
            region.uva.checked_add(len).ok_or(TableError::Wraps)?;
            if i > 0 && region.gpa < end {
                return Err(TableError::Overlap);
            }
            end = region.gpa.checked_add(len).ok_or(TableError::Wraps)?;
        }
        let window = |r: &Region| Window {
            gpa: r.gpa,
            len: r.mapping.len() as u64,
            host: r.mapping.as_ptr(),
        };
        let windows: Vec<Window> = regions.iter().map(window).collect();
        let mut by_host = windows.clone();
        by_host.sort_by_key(|w| w.host as usize);
        Ok(MemTable { regions, windows, by_host, truncated: Arc::clone(truncated) })
    }

    /// Makes a table without regions, for [`MemTable::with`]. Rings look at `truncated`.
    pub(crate) fn empty(truncated: &Arc<AtomicBool>) -> MemTable {
        MemTable { truncated: Arc::clone(truncated), ..MemTable::default() }
    }

    /// Checks that regions of these sizes are neither too many nor too large for a port. The caller
    /// checks before mapping the regions; [`MemTable::new`] checks again.
    pub(crate) fn check_sizes(sizes: impl Iterator<Item = Size>) -> Result<(), TableError> {
        let (mut count, mut asked, mut mapped) = (0, 0u64, 0u64);
        for size in sizes {
            count += 1;
            asked = asked.checked_add(size.asked).ok_or(TableError::TooLarge)?;
            mapped = mapped.checked_add(size.mapped).ok_or(TableError::TooLarge)?;
        }
        if count > MAX_MEM_SLOTS {
            return Err(TableError::TooMany);
        }
        if asked > MAX_PORT_MAPPED_BYTES {
            return Err(TableError::TooLarge);
        }
        let rounded = mapped > MAX_PORT_MAPPED_BYTES + MAX_PORT_ROUNDED_BYTES;
        if rounded { Err(TableError::TooRounded(mapped)) } else { Ok(()) }
    }

    /// Returns a copy of the table with one more region.
    pub(crate) fn with(&self, region: Region) -> Result<MemTable, TableError> {
        let mut regions = self.regions.clone();
        regions.push(region);
        MemTable::new(regions, &self.truncated)
    }

    /// Returns a copy of the table without the region at these addresses (`REM_MEM_REG` names a
    /// region by guest address, user address and size).
    pub(crate) fn without(&self, gpa: u64, uva: u64, len: u64) -> Result<MemTable, TableError> {
        let mut regions = self.regions.clone();
        let same = |r: &Region| r.gpa == gpa && r.uva == uva && r.mapping.len() as u64 == len;
        let at = regions.iter().position(same).ok_or(TableError::Unknown)?;
        regions.remove(at);
        MemTable::new(regions, &self.truncated)
    }

    /// True if the table has an equal region: equal addresses and length, and the bytes of one
    /// file.
    pub(crate) fn holds(&self, region: &Region) -> bool {
        let same = |r: &Region| {
            (r.gpa, r.uva, r.offset) == (region.gpa, region.uva, region.offset)
                && r.mapping.len() == region.mapping.len()
                && r.mapping.identity() == region.mapping.identity()
        };
        self.regions.iter().any(same)
    }

    /// Returns the guest-physical address and the mapping of each region.
    pub(crate) fn facts(&self) -> impl Iterator<Item = (u64, &Mapping)> {
        self.regions.iter().map(|region| (region.gpa, &*region.mapping))
    }

    /// True for a table without regions.
    pub(crate) fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// True if the front-end shortened one of the files after it was mapped.
    pub(crate) fn is_truncated(&self) -> bool {
        self.truncated.load(Ordering::Relaxed)
    }

    /// Returns the address in this process of `len` bytes at the front-end's address `uva`, if one
    /// region holds all of the bytes.
    pub fn at_user_address(&self, uva: u64, len: u64) -> Option<*mut u8> {
        self.regions.iter().find_map(|r| {
            let offset = uva.checked_sub(r.uva)?;
            let left = (r.mapping.len() as u64).checked_sub(offset)?;
            (len <= left).then(|| r.mapping.as_ptr().wrapping_add(offset as usize))
        })
    }

    /// Returns the guest-physical address of a pointer that this table returned.
    pub(crate) fn gpa_of(&self, host: *const u8) -> Option<u64> {
        let after = self.by_host.partition_point(|w| w.host.cast_const() <= host);
        let window = self.by_host.get(after.checked_sub(1)?)?;
        let offset = (host as usize - window.host as usize) as u64;
        (offset < window.len).then(|| window.gpa + offset)
    }

    fn window_of(&self, gpa: u64) -> Option<&Window> {
        let after = self.windows.partition_point(|w| w.gpa <= gpa);
        let window = self.windows.get(after.checked_sub(1)?)?;
        (gpa - window.gpa < window.len).then_some(window)
    }
}

/// A ring's view of its guest's memory.
#[derive(Debug)]
pub(crate) struct Translator {
    hot: Window,
    table: Arc<MemTable>,
}

// SAFETY: `hot` is a copy of a window of `table`, which is Send and keeps the mapping alive.
unsafe impl Send for Translator {}

impl Translator {
    /// Makes a view of `table`.
    pub(crate) fn new(table: Arc<MemTable>) -> Translator {
        Translator { hot: Window::EMPTY, table }
    }

    /// Returns the table behind this view.
    pub(crate) fn table(&self) -> &Arc<MemTable> {
        &self.table
    }

    /// Returns the address in this process of `len` bytes at guest-physical `gpa`, if one region
    /// holds all of the bytes. The pointer is valid as long as this translator, which holds the
    /// table.
    #[inline(always)]
    pub(crate) fn contiguous(&mut self, gpa: u64, len: u32) -> Option<*mut u8> {
        let (host, left) = self.run_at(gpa)?;
        (u64::from(len) <= left).then_some(host)
    }

    /// Returns the address of the byte at `gpa` and the number of bytes to the end of its region.
    #[inline(always)]
    pub(crate) fn run_at(&mut self, gpa: u64) -> Option<(*mut u8, u64)> {
        match self.hot.at(gpa) {
            Some(found) => Some(found),
            None => self.look_up(gpa),
        }
    }

    #[cold]
    #[inline(never)]
    fn look_up(&mut self, gpa: u64) -> Option<(*mut u8, u64)> {
        self.hot = *self.table.window_of(gpa)?;
        self.hot.at(gpa)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sys::fs::memfd;

    fn region(gpa: u64, uva: u64, len: u64) -> Region {
        let mapping = Mapping::new(memfd("t", len).unwrap(), 0, len, &Arc::default()).unwrap();
        Region { gpa, uva, offset: 0, mapping: Arc::new(mapping) }
    }

    fn table(regions: &[(u64, u64, u64)]) -> Result<MemTable, TableError> {
        MemTable::new(regions.iter().map(|&(g, u, l)| region(g, u, l)).collect(), &Arc::default())
    }

    #[test]
    fn regions_added_one_by_one_share_the_flag_of_their_guest() {
        let flag = Arc::new(AtomicBool::new(false));
        let one = MemTable::empty(&flag).with(region(0, 0, 0x1000)).unwrap();
        let two = one.with(region(0x1000, 0x1000, 0x1000)).unwrap().without(0, 0, 0x1000).unwrap();
        flag.store(true, Ordering::Relaxed);
        assert!(one.is_truncated() && two.is_truncated());
    }

    #[test]
    fn first_and_last_byte_translate_and_neighbours_do_not() {
        let table = Arc::new(table(&[(0x1000, 0x7000_0000, 0x2000)]).unwrap());
        let mut tr = Translator::new(Arc::clone(&table));
        let base = table.at_user_address(0x7000_0000, 1).unwrap();
        assert_eq!(tr.contiguous(0x1000, 1), Some(base));
        assert_eq!(tr.contiguous(0x2fff, 1), Some(base.wrapping_add(0x1fff)));
        assert_eq!(tr.contiguous(0x1000, 0x2000), Some(base));
        for (gpa, len) in [(0xfff, 1), (0x3000, 1), (0x2fff, 2), (u64::MAX, 1), (u64::MAX, 2)] {
            assert_eq!(tr.contiguous(gpa, len), None, "{gpa:#x} {len}");
        }
    }

    #[test]
    fn a_hole_is_no_memory_and_the_hint_moves_between_regions() {
        let table = Arc::new(table(&[(0, 0x1000, 0x1000), (0x2000, 0x9000, 0x1000)]).unwrap());
        let mut tr = Translator::new(Arc::clone(&table));
        for _ in 0..2 {
            assert!(tr.contiguous(0, 0x1000).is_some());
            assert!(tr.contiguous(0x1000, 1).is_none());
            assert!(tr.contiguous(0x2000, 0x1000).is_some());
        }
        assert_eq!(table.gpa_of(tr.contiguous(0x2abc, 1).unwrap()), Some(0x2abc));
    }

    #[test]
    fn a_pointer_leads_back_to_its_address_in_any_order_of_mappings() {
        let specs: Vec<_> = (0..40u64).map(|i| (i * 37 % 40 * 0x3000, i << 32, 0x2000)).collect();
        let table = Arc::new(table(&specs).unwrap());
        let mut tr = Translator::new(Arc::clone(&table));
        for (gpa, ..) in specs {
            for at in [gpa, gpa + 0xfff, gpa + 0x1fff] {
                assert_eq!(table.gpa_of(tr.contiguous(at, 1).unwrap()), Some(at));
            }
        }
        assert_eq!(table.gpa_of(std::ptr::null()), None);
        assert_eq!(table.gpa_of(std::ptr::without_provenance(usize::MAX)), None);
    }

    #[test]
    fn user_addresses_do_not_wrap() {
        let table = table(&[(0, 0x1000, 0x1000)]).unwrap();
        assert!(table.at_user_address(0x1000, 0x1000).is_some());
        for (uva, len) in [(0xfff, 1), (0x1fff, 2), (0x2000, 1), (0x1800, u64::MAX)] {
            assert!(table.at_user_address(uva, len).is_none(), "{uva:#x}");
        }
    }

    #[test]
    fn overlap_and_wrap_are_refused() {
        assert_eq!(table(&[(0, 0, 0x2000), (0x1000, 0, 0x1000)]).unwrap_err(), TableError::Overlap);
        assert_eq!(table(&[(u64::MAX - 10, 0, 0x1000)]).unwrap_err(), TableError::Wraps);
        assert_eq!(table(&[(0, u64::MAX - 10, 0x1000)]).unwrap_err(), TableError::Wraps);
    }

    #[test]
    fn whole_pages_count_where_huge_pages_are_rounded_up_to() {
        let pages = |mapped| Size { asked: mapped, mapped };
        let over_a_border = Size { asked: 2, mapped: 2 << 30 };
        let check = |sizes: &[Size]| MemTable::check_sizes(sizes.iter().copied());
        let (most, half) = (pages(MAX_PORT_MAPPED_BYTES), pages(MAX_PORT_MAPPED_BYTES / 2));
        // The largest guest, whose regions begin and end inside pages of 1 GiB.
        assert_eq!(check(&[Size { mapped: most.mapped + (8 << 30), ..most }]), Ok(()));
        assert_eq!(check(&[most, pages(4096)]), Err(TableError::TooLarge));
        let tiny = [&[half][..], &[over_a_border; 300]].concat();
        assert_eq!(check(&tiny), Err(TableError::TooRounded(half.mapped + (600 << 30))));
        assert_eq!(check(&[over_a_border; 510]), Err(TableError::TooMany));
    }

    #[test]
    fn a_region_is_removed_by_its_coordinates_only() {
        let table = table(&[(0, 0x1000, 0x1000), (0x2000, 0x9000, 0x1000)]).unwrap();
        assert_eq!(table.without(0, 0x9000, 0x1000).unwrap_err(), TableError::Unknown);
        let less = table.without(0, 0x1000, 0x1000).unwrap();
        let starts = |table: &MemTable| table.facts().map(|(gpa, _)| gpa).collect::<Vec<_>>();
        assert_eq!(starts(&less), [0x2000]);
        let again = less.with(region(0, 0x1000, 0x1000)).unwrap();
        assert_eq!(starts(&again), [0, 0x2000]);
    }

    #[test]
    fn a_region_is_held_only_with_the_same_bytes_of_the_same_file() {
        let fd = memfd("t", 0x2000).unwrap();
        let region = |fd: &std::os::fd::OwnedFd, offset| {
            let file = fd.try_clone().unwrap();
            let mapping = Arc::new(Mapping::new(file, offset, 0x1000, &Arc::default()).unwrap());
            Region { gpa: 0, uva: 0x1000, offset, mapping }
        };
        let table = MemTable::new(vec![region(&fd, 0)], &Arc::default()).unwrap();
        assert!(table.holds(&region(&fd, 0)));
        assert!(!table.holds(&region(&fd, 0x1000)), "other bytes");
        assert!(!table.holds(&region(&memfd("u", 0x2000).unwrap(), 0)), "another file");
        assert!(!table.holds(&Region { gpa: 0x1000, ..region(&fd, 0) }), "another address");
    }
}
