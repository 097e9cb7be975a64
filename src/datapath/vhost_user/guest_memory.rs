//! Guest memory and dirty log of one session.
//!
//! Nothing here touches a ring: the session passes new tables and logs to the rings, and frees the
//! old ones when no ring uses them.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::message::{Passed, RegionSpec};
use super::refusal::Refusal;
use super::rings::facts;
use crate::memory::{Account, DirtyLog, Extent, MapError, MemTable, Region, TableError};
use crate::port::RegionFacts;
use base::limits::MAX_MEM_SLOTS;

/// Guest memory and dirty log of one session.
pub(crate) struct GuestMemory {
    /// Table of the mapped regions.
    pub(crate) table: Arc<MemTable>,
    /// Regions that lie on a disk and are therefore in no table.
    left_out: Vec<RegionSpec>,
    /// Account of the port, for mappings of the memory and the log.
    account: Arc<Account>,
    /// Set when an access finds a file of this guest shorter than it was when mapped.
    truncated: Arc<AtomicBool>,
    /// The front-end's dirty log, if there is one.
    pub(crate) log: Option<Arc<DirtyLog>>,
    /// The pages of the memory must exist when the memory is mapped.
    preallocated: bool,
    /// Memory was mapped at some time in this session.
    pub(crate) was_mapped: bool,
    /// All memory that the front-end sent lies on a disk.
    pub(crate) all_on_disk: bool,
}

impl GuestMemory {
    /// Creates the memory of a session that has sent no region. Mappings are charged to `account`.
    pub(crate) fn new(account: &Arc<Account>, preallocated: bool) -> GuestMemory {
        let truncated = Arc::default();
        GuestMemory {
            table: Arc::new(MemTable::empty(&truncated)),
            left_out: Vec::new(),
            account: Arc::clone(account),
            truncated,
            log: None,
            preallocated,
            was_mapped: false,
            all_on_disk: false,
        }
    }

    /// Returns all regions, by their addresses, for the diagnosis.
    pub(crate) fn facts(&self) -> Vec<RegionFacts> {
        let left_out = |spec: &RegionSpec| RegionFacts {
            gpa: spec.gpa,
            len: spec.len,
            backing: "disk",
            page: 0,
        };
        let mapped = self.table.facts().map(facts::region);
        let mut regions: Vec<RegionFacts> =
            mapped.chain(self.left_out.iter().map(left_out)).collect();
        regions.sort_by_key(|region| region.gpa);
        regions
    }

    /// Returns the bytes of the regions that are left out.
    pub(crate) fn bytes_left_out(&self) -> u64 {
        self.left_out.iter().map(|region| region.len).sum()
    }

    /// Replaces the table, and returns the old table.
    pub(crate) fn replace(&mut self, table: MemTable) -> Arc<MemTable> {
        self.was_mapped |= !table.is_empty();
        std::mem::replace(&mut self.table, Arc::new(table))
    }

    /// Replaces the table by one without regions, and returns the old table.
    pub(crate) fn forget(&mut self) -> Arc<MemTable> {
        std::mem::replace(&mut self.table, Arc::new(MemTable::empty(&self.truncated)))
    }

    /// Maps a dirty log.
    pub(crate) fn map_log(
        &self,
        file: OwnedFd,
        offset: u64,
        size: u64,
    ) -> Result<Arc<DirtyLog>, Refusal> {
        let extent = Extent::new(file, offset, size)?;
        let lease = self.account.lease(extent.size().mapped)?;
        Ok(Arc::new(DirtyLog::new(extent, &self.truncated)?.leased(lease)))
    }

    /// Maps the regions of a whole table. Returns the table, and the regions that lie on a disk.
    pub(crate) fn map_all(
        &self,
        regions: Vec<(RegionSpec, Passed)>,
    ) -> Result<(MemTable, Vec<RegionSpec>), Refusal> {
        let (mut checked, mut on_disk) = (Vec::with_capacity(regions.len()), Vec::new());
        for (spec, file) in regions {
            match file {
                Some(file) => checked.push((spec, self.extent(&spec, file)?)),
                None => on_disk.push(spec),
            }
        }
        if checked.is_empty() && !on_disk.is_empty() {
            return Err(Refusal::OnDisk);
        }
        MemTable::check_sizes(checked.iter().map(|(_, extent)| extent.size()))?;
        let mapped: Result<Vec<Region>, Refusal> =
            checked.into_iter().map(|(spec, extent)| self.map(spec, extent)).collect();
        Ok((MemTable::new(mapped?, &self.truncated)?, on_disk))
    }

    /// Maps the memory of a VDUSE device.
    pub(crate) fn map_vduse(
        &self,
        ranges: Vec<(RegionSpec, OwnedFd)>,
    ) -> Result<MemTable, Refusal> {
        let extent = |(spec, file): (RegionSpec, OwnedFd)| {
            Ok((spec, Extent::of_vduse(file, spec.offset, spec.len)?))
        };
        let all: Vec<_> = ranges.into_iter().map(extent).collect::<Result<_, MapError>>()?;
        MemTable::check_sizes(all.iter().map(|(_, extent)| extent.size()))?;
        let mapped: Result<Vec<Region>, Refusal> =
            all.into_iter().map(|(spec, extent)| self.map(spec, extent)).collect();
        Ok(MemTable::new(mapped?, &self.truncated)?)
    }

    /// Returns the table with a further region; none if the table has the region already.
    pub(crate) fn with(
        &self,
        spec: RegionSpec,
        file: OwnedFd,
    ) -> Result<Option<MemTable>, Refusal> {
        // Mapped before the table's limits are checked: the region may be in the table already.
        let region = self.map(spec, self.extent(&spec, file)?)?;
        if self.table.holds(&region) { Ok(None) } else { Ok(Some(self.table.with(region)?)) }
    }

    /// Returns the table without a region; none if the table does not have the region. Forgets that
    /// the region is left out.
    pub(crate) fn without(&mut self, spec: RegionSpec) -> Result<Option<MemTable>, Refusal> {
        let same = |r: &RegionSpec| (r.gpa, r.uva, r.len) == (spec.gpa, spec.uva, spec.len);
        self.keep_left_out(|region| !same(region));
        match self.table.without(spec.gpa, spec.uva, spec.len) {
            Ok(table) => Ok(Some(table)),
            Err(TableError::Unknown) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Leaves out a region in a disk file, whose pages could fault for as long as the disk likes.
    /// Beside other memory the region becomes a hole, and the guest keeps its network: frames
    /// seldom lie in such a region (persistent memory, a second kind of RAM). False if the region
    /// is left out already.
    pub(crate) fn leave_out(&mut self, spec: RegionSpec) -> Result<bool, Refusal> {
        if self.table.is_empty() {
            return Err(Refusal::OnDisk);
        }
        if self.left_out.contains(&spec) {
            return Ok(false);
        }
        if self.left_out.len() >= MAX_MEM_SLOTS {
            return Err(TableError::TooMany.into());
        }
        self.left_out.push(spec);
        Ok(true)
    }

    /// Forgets the regions that are left out and for which `stays` returns false.
    pub(crate) fn keep_left_out(&mut self, stays: impl FnMut(&RegionSpec) -> bool) {
        self.left_out.retain(stays);
    }

    /// Returns a region's range of its file; with `preallocated` all pages of the range must exist.
    fn extent(&self, spec: &RegionSpec, file: OwnedFd) -> Result<Extent, MapError> {
        let extent = Extent::new(file, spec.offset, spec.len)?;
        if self.preallocated { extent.preallocated() } else { Ok(extent) }
    }

    fn map(&self, spec: RegionSpec, extent: Extent) -> Result<Region, Refusal> {
        let lease = self.account.lease(extent.size().mapped)?;
        let mapping = extent.map(&self.truncated)?.leased(lease);
        let RegionSpec { gpa, uva, offset, .. } = spec;
        Ok(Region { gpa, uva, offset, mapping: Arc::new(mapping) })
    }
}
