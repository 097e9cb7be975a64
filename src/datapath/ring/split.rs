//! The split ring in guest memory: all loads and stores of the ring's fields.
//!
//! Layout (virtio 1.2 sections 2.7.5, 2.7.6, 2.7.8), little-endian:
//! ```text
//! descriptor[size]: addr u64, len u32, flags u16, next u16       aligned 16
//! avail: flags u16, idx u16, ring[size] u16, used_event u16      aligned 2
//! used:  flags u16, idx u16, ring[size] (id u32, len u32), avail_event u16   aligned 4
//! ```
//! A [`SplitRing`] exists only while the ring is started. The ring's pointers are resolved once and
//! stay valid because the [`SplitRing`] owns the [`Translator`], which holds the memory table.
//!
//! Notifications (virtio 1.2 sections 2.7.7 and 2.7.10). The worker suppresses kicks while it polls
//! a ring. Before a worker sleeps, it enables kicks, executes a full fence and reads avail.idx
//! again. Without this second read a frame that the driver made available between the last read and
//! the enabling would wait for ever: the driver saw kicks disabled, the worker saw the ring empty.
//! The ring decides about a signal once per published burst, and the worker sends at most one
//! signal per turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use virtio_queue::desc::split::Descriptor;

use crate::memory::{DirtyLog, MemTable, Translator};
use base::frame::Offloads;
use base::limits::MAX_RING_SIZE;
use sys::prefetch;

// `load_descriptor_words` reads a descriptor as two words, so the layout must be the
// specification's.
const _: () = assert!(std::mem::size_of::<Descriptor>() == 16);

/// `VIRTQ_USED_F_NO_NOTIFY`
const USED_F_NO_NOTIFY: u16 = 1;
/// `VIRTQ_AVAIL_F_NO_INTERRUPT`
const AVAIL_F_NO_INTERRUPT: u16 = 1;

/// True if an index that moved from `old` to `new` passed `event` (section 2.7.10).
#[inline(always)]
pub(super) fn passed(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

/// Bytes of the available and the used ring beside their elements: flags, idx and an event index.
const AVAIL_FIXED: u64 = 6;
const USED_FIXED: u64 = 6;

/// Addresses of a ring and the features that the driver acknowledged for the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RingConfig {
    /// Number of descriptors; a power of two.
    pub size: u16,
    /// Address of the descriptor table in the front-end's process.
    pub desc: u64,
    /// Address of the driver area (available ring) in the front-end's process.
    pub avail: u64,
    /// Address of the device area (used ring) in the front-end's process.
    pub used: u64,
    /// `VIRTIO_F_EVENT_IDX` was acknowledged.
    pub event_idx: bool,
    /// Bytes of the virtio-net header on this ring: 10 or 12.
    pub header_len: u8,
    /// `VIRTIO_NET_F_MRG_RXBUF` was acknowledged.
    pub mergeable: bool,
    /// Acknowledged offloads: those that frames of a transmit ring may ask for
    /// (`VIRTIO_NET_F_CSUM`, `_HOST_*`), or those that frames of a receive ring may be delivered
    /// with (`_GUEST_*`).
    pub offloads: Offloads,
}

/// Why a ring cannot start, or broke while it ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// The size is zero, too large or not a power of two.
    #[error("ring size {0} is not a power of two up to {MAX_RING_SIZE}")]
    Size(u16),
    /// Part of the ring lies outside the memory regions.
    #[error(
        "the {part} at {address:#x} lies in no memory region (is the guest memory shared, \
         share=on?)"
    )]
    NotMapped {
        /// Name of the part.
        part: &'static str,
        /// Address that the front-end gave.
        address: u64,
    },
    /// Part of the ring is not aligned as the specification demands.
    #[error("the {0} is not aligned")]
    Misaligned(&'static str),
    /// avail.idx is further ahead than the ring is long.
    #[error("avail.idx is {ahead} ahead in a ring of {size}")]
    AvailIndex {
        /// Distance from the next head to take to avail.idx.
        ahead: u16,
        /// Ring size.
        size: u16,
    },
    /// The front-end truncated a file of the guest's memory after the file was mapped.
    #[error("the guest's memory was truncated")]
    Truncated,
    /// A head in the available ring is not below the ring size.
    #[error("head {head} in a ring of {size}")]
    Head {
        /// The head.
        head: u16,
        /// Ring size.
        size: u16,
    },
}

/// Checks a ring size (virtio 1.2 section 2.7).
pub(crate) fn check_size(size: u32) -> Result<u16, RingError> {
    let clipped = u16::try_from(size).unwrap_or(u16::MAX);
    if clipped <= MAX_RING_SIZE && clipped.is_power_of_two() {
        Ok(clipped)
    } else {
        Err(RingError::Size(clipped))
    }
}

/// Dirty logging of one ring.
#[derive(Debug, Clone)]
pub struct RingLog {
    /// The log.
    pub log: Arc<DirtyLog>,
    /// Guest-physical address of the used ring, if the front-end wants writes of the used ring
    /// logged (`VHOST_VRING_F_LOG`).
    pub used_gpa: Option<u64>,
}

/// Position of a ring that lost its memory, for [`SplitRing::resume`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    next: u16,
    started_at: u16,
    asked_if_moved: bool,
}

impl Position {
    /// Returns the index of the next head to take, as [`SplitRing::base`] does.
    pub(crate) fn base(&self) -> u16 {
        self.next
    }
}

/// A started ring.
#[derive(Debug)]
pub struct SplitRing {
    parts: Parts,
    pub(super) memory: Translator,
    pub(super) features: RingFeatures,
    /// The first publication after a start signals the driver unconditionally: the driver may wait
    /// at an index that a killed predecessor of this process had passed.
    pub(super) force_signal: bool,
    pub(super) indices: Indices,
    /// used.idx when the ring started; tells a ring that never moved.
    started_at: u16,
    asked_if_moved: bool,
    pub(super) log: Option<RingLog>,
}

/// Features that the driver acknowledged for a ring; [`RingConfig`] documents the fields.
#[derive(Debug)]
pub(super) struct RingFeatures {
    pub(crate) header_len: u8,
    pub(crate) mergeable: bool,
    pub(crate) offloads: Offloads,
    pub(crate) event_idx: bool,
}

/// How far a ring is; each index runs modulo 2^16.
#[derive(Debug, Default)]
pub(super) struct Indices {
    /// Index of the next head to take; every chain before it is completed.
    pub(crate) next_avail: u16,
    /// avail.idx as last read: heads before this index may be read.
    pub(crate) avail_seen: u16,
    /// Index of the next used element to write.
    pub(crate) next_used: u16,
    /// used.idx as last written.
    pub(crate) published: u16,
}

// SAFETY: the pointers refer to guest memory kept alive by `memory`; they are only used through
// `&mut self` or volatile reads, and a SplitRing is always owned by one lock.
unsafe impl Send for SplitRing {}

/// The three parts of a ring resolved in a memory table.
#[derive(Debug)]
struct Parts {
    desc: *const u8,
    avail: *const u8,
    used: *mut u8,
    /// Number of descriptors.
    size: u16,
}

fn resolve(table: &MemTable, config: &RingConfig) -> Result<Parts, RingError> {
    let size = u64::from(config.size);
    let part = |part, address, len, align: usize| {
        let at =
            table.at_user_address(address, len).ok_or(RingError::NotMapped { part, address })?;
        if (at as usize).is_multiple_of(align) { Ok(at) } else { Err(RingError::Misaligned(part)) }
    };
    Ok(Parts {
        desc: part("descriptor table", config.desc, 16 * size, 16)?,
        avail: part("available ring", config.avail, AVAIL_FIXED + 2 * size, 2)?,
        used: part("used ring", config.used, USED_FIXED + 8 * size, 4)?,
        size: config.size,
    })
}

impl SplitRing {
    /// Starts a ring: resolves the ring's addresses and takes both indices from used.idx. This
    /// back-end completes chains strictly in order and leaves none half done, so every chain that
    /// the driver made available beyond used.idx is still to be served, also after a restart of the
    /// driver or of this process.
    pub fn start(table: Arc<MemTable>, config: &RingConfig) -> Result<SplitRing, RingError> {
        check_size(u32::from(config.size))?;
        let parts = resolve(&table, config)?;
        let &RingConfig { header_len, mergeable, offloads, event_idx, .. } = config;
        let mut ring = SplitRing {
            parts,
            memory: Translator::new(table),
            features: RingFeatures { header_len, mergeable, offloads, event_idx },
            force_signal: true,
            indices: Indices::default(),
            started_at: 0,
            asked_if_moved: false,
            log: None,
        };
        ring.begin_at_used();
        Ok(ring)
    }

    /// Restarts a ring that lost its memory, at the position at which the ring stood.
    pub(crate) fn resume(
        table: Arc<MemTable>,
        config: &RingConfig,
        at: Position,
    ) -> Result<SplitRing, RingError> {
        let mut ring = SplitRing::start(table, config)?;
        ring.begin_at(at.next);
        ring.started_at = at.started_at;
        ring.asked_if_moved = at.asked_if_moved;
        Ok(ring)
    }

    /// Returns the ring's position. The caller calls this only while no chain is half done.
    pub(crate) fn position(&self) -> Position {
        Position {
            next: self.indices.next_avail,
            started_at: self.started_at,
            asked_if_moved: self.asked_if_moved,
        }
    }

    /// Takes both indices from used.idx, as [`SplitRing::start`] does: the front-end moved the
    /// ring.
    pub(crate) fn begin_at_used(&mut self) {
        let at = self.load_used_idx();
        self.begin_at(at);
        self.started_at = at;
        self.force_signal = true;
    }

    fn begin_at(&mut self, at: u16) {
        self.indices.next_avail = at;
        self.indices.avail_seen = at;
        self.indices.next_used = at;
        self.indices.published = at;
    }

    /// Checks that all parts of the ring lie in the memory table, aligned.
    pub(crate) fn check_place(table: &MemTable, config: &RingConfig) -> Result<(), RingError> {
        resolve(table, config).map(drop)
    }

    /// Returns the number of chains that the driver made available and this process has not given
    /// back: avail.idx minus used.idx, whichever worker serves the ring. `None` if the ring is not
    /// mapped or its indices make no sense.
    pub(crate) fn outstanding(table: &MemTable, config: &RingConfig) -> Option<u16> {
        let Parts { avail, used, .. } = resolve(table, config).ok()?;
        if table.is_truncated() {
            return None;
        }
        // SAFETY: both parts were resolved, aligned, in memory that `table` keeps mapped for as
        // long as it is borrowed; both sides access the indices atomically.
        let [used, available] = unsafe {
            [used.cast_const().add(2), avail.add(2)]
                .map(|at| u16::from_le((*at.cast::<AtomicU16>()).load(Ordering::Acquire)))
        };
        // Between the two loads chains may have been given back and made available again.
        let count = available.wrapping_sub(used);
        (count <= config.size.saturating_mul(2)).then_some(count.min(config.size))
    }

    /// Moves a running ring to another memory table or other addresses; the ring's position stays.
    pub fn rebase(&mut self, table: Arc<MemTable>, config: &RingConfig) -> Result<(), RingError> {
        let size = self.parts.size;
        self.parts = Parts { size, ..resolve(&table, config)? };
        self.memory = Translator::new(table);
        Ok(())
    }

    /// Undoes all that was taken and not published, for a ring whose lock a panicking thread
    /// released. Heads go back in the order in which they were taken, one element each, so all
    /// three positions are equal while the lock is free.
    #[cold]
    pub(crate) fn roll_back(&mut self) {
        self.indices.next_avail = self.indices.published;
        self.indices.next_used = self.indices.published;
    }

    /// Sets the offloads that frames may ask for, or be delivered with, from now on.
    pub(crate) fn set_offloads(&mut self, offloads: Offloads) {
        self.features.offloads = offloads;
    }

    /// Switches dirty logging of this ring on, off or to another log.
    pub fn set_log(&mut self, log: Option<RingLog>) {
        self.log = log;
    }

    /// Ends dirty logging and returns the previous log.
    pub(crate) fn take_log(&mut self) -> Option<RingLog> {
        self.log.take()
    }

    /// Number of descriptors.
    pub(crate) fn size(&self) -> u16 {
        self.parts.size
    }

    /// Returns the index of the next head to take, which `GET_VRING_BASE` reports.
    pub fn base(&self) -> u16 {
        self.indices.next_avail
    }

    /// True if the driver has never made a buffer available. The caller asks at the driver's first
    /// kick: if the driver kicked and avail.idx is 0, this process does not read the memory that
    /// the driver writes. A restored or restarted ring has an index that is not 0. Returns false at
    /// every later call, when the indices may have wrapped to 0.
    pub(crate) fn never_moved(&mut self) -> bool {
        let asked = std::mem::replace(&mut self.asked_if_moved, true);
        !asked && self.started_at == 0 && self.indices.next_avail == 0 && self.load_avail_idx() == 0
    }

    /// Fails once the front-end has truncated a file of guest memory: the SIGBUS handler has put
    /// zero pages in place of the lost ones.
    #[inline(always)]
    pub(super) fn check_memory(&self) -> Result<(), RingError> {
        if self.memory.table().is_truncated() { Err(RingError::Truncated) } else { Ok(()) }
    }

    /// Returns why the ring is broken: [`RingError::Truncated`] if the front-end truncated the
    /// memory, since `found` was derived from zero pages then; otherwise `found`.
    #[cold]
    pub(crate) fn cause(&self, found: RingError) -> RingError {
        self.check_memory().err().unwrap_or(found)
    }

    /// Loads avail.idx with Acquire, so that heads and descriptors before avail.idx are read after
    /// it.
    #[inline(always)]
    pub(super) fn load_avail_idx(&self) -> u16 {
        // SAFETY: `avail` was resolved for AVAIL_FIXED + 2 * size bytes, 2-aligned, in memory that
        // `self.memory` keeps mapped; the driver accesses the field atomically too.
        u16::from_le(
            unsafe { &*self.parts.avail.add(2).cast::<AtomicU16>() }.load(Ordering::Acquire),
        )
    }

    #[inline(always)]
    pub(super) fn load_avail_flags(&self) -> u16 {
        // SAFETY: as in `load_avail_idx`.
        u16::from_le(unsafe { &*self.parts.avail.cast::<AtomicU16>() }.load(Ordering::Relaxed))
    }

    /// Loads used_event, which lies behind the available ring.
    #[inline(always)]
    pub(super) fn load_used_event(&self) -> u16 {
        let offset = 4 + 2 * usize::from(self.parts.size);
        // SAFETY: as in `load_avail_idx`; the offset is the last of the resolved fields.
        u16::from_le(
            unsafe { &*self.parts.avail.add(offset).cast::<AtomicU16>() }.load(Ordering::Relaxed),
        )
    }

    /// Loads the head at index `position` of the available ring.
    #[inline(always)]
    pub(super) fn load_head(&self, position: u16) -> u16 {
        let offset = 4 + 2 * usize::from(position & (self.parts.size - 1));
        // SAFETY: the masked position is below size, so the field is inside the resolved range.
        u16::from_le(unsafe { self.parts.avail.add(offset).cast::<u16>().read_volatile() })
    }

    /// Prefetches descriptor `index`.
    #[inline(always)]
    pub(super) fn prefetch_descriptor(&self, index: u16) {
        prefetch::read(self.parts.desc.wrapping_add(16 * usize::from(index)));
    }

    /// Loads descriptor `index`, which the caller checked to be below size; each word is read once.
    #[inline(always)]
    pub(super) fn load_descriptor(&self, index: u16) -> Descriptor {
        debug_assert!(index < self.parts.size);
        let at = self.parts.desc.wrapping_add(16 * usize::from(index & (self.parts.size - 1)));
        // SAFETY: the masked index is below size, so 16 bytes at `at` are inside the resolved
        // table, which is 16-aligned.
        unsafe { load_descriptor_words(at) }
    }

    /// Loads used.idx, which only this process writes.
    fn load_used_idx(&self) -> u16 {
        // SAFETY: `used` was resolved for USED_FIXED + 8 * size bytes, 4-aligned, in memory that
        // `self.memory` keeps mapped.
        u16::from_le(
            unsafe { &*self.parts.used.add(2).cast::<AtomicU16>() }.load(Ordering::Relaxed),
        )
    }

    /// Writes one used element at `next_used` and advances `next_used`; the driver cannot see the
    /// element before [`SplitRing::publish`].
    #[inline(always)]
    pub(super) fn push_used(&mut self, head: u16, len: u32) {
        self.store_used(self.indices.next_used, head, len);
        self.indices.next_used = self.indices.next_used.wrapping_add(1);
    }

    /// Writes the used element at `position`, which the driver cannot see yet.
    #[inline(always)]
    pub(super) fn store_used(&mut self, position: u16, head: u16, len: u32) {
        let slot = 4 + 8 * usize::from(position & (self.parts.size - 1));
        let element = u64::from(head) | u64::from(len) << 32;
        let at = self.parts.used.wrapping_add(slot).cast::<u64>();
        // SAFETY: the masked position is below size, so the 8 bytes are inside the resolved used
        // ring, 4-aligned; the driver reads them only after used.idx is published, before which
        // the release store of that index keeps this one.
        unsafe { at.write_unaligned(element.to_le()) };
    }

    /// Stores used.idx after everything written before, followed by a full fence: the driver's
    /// request for a signal must be read after the driver could see the index.
    #[inline(always)]
    pub(super) fn store_used_idx(&mut self, idx: u16) {
        // SAFETY: as in `load_used_idx`.
        let field = unsafe { &*self.parts.used.add(2).cast::<AtomicU16>() };
        full_store(field, idx.to_le());
    }

    #[inline]
    pub(super) fn store_used_flags(&mut self, flags: u16) {
        // SAFETY: as in `load_used_idx`; the field is the first of the used ring.
        let field = unsafe { &*self.parts.used.cast::<AtomicU16>() };
        full_store(field, flags.to_le());
        self.mark_used(0, 2);
    }

    /// Stores avail_event, which lies behind the used ring.
    #[inline]
    pub(super) fn store_avail_event(&mut self, event: u16) {
        let offset = 4 + 8 * usize::from(self.parts.size);
        // SAFETY: as in `load_used_idx`; the offset is the last of the resolved fields.
        let field = unsafe { &*self.parts.used.add(offset).cast::<AtomicU16>() };
        full_store(field, event.to_le());
        self.mark_used(offset as u64, 2);
    }

    /// Marks the used elements from index `from` to `next_used` in the dirty log.
    #[cold]
    pub(super) fn mark_used_elements(&self, from: u16) {
        for i in 0..self.indices.next_used.wrapping_sub(from) {
            let slot = u64::from(from.wrapping_add(i) & (self.parts.size - 1));
            self.mark_used(4 + 8 * slot, 8);
        }
    }

    /// Marks `len` bytes at `offset` of the used ring in the dirty log, if used-ring writes are
    /// logged.
    pub(super) fn mark_used(&self, offset: u64, len: u64) {
        if let Some(RingLog { log, used_gpa: Some(gpa) }) = &self.log {
            log.mark(gpa.wrapping_add(offset), len);
        }
    }

    /// Marks `len` bytes at `at` in the dirty log; `at` is a pointer that this ring's memory
    /// returned.
    pub(super) fn mark_payload(&self, at: *const u8, len: u64) {
        if let (Some(log), Some(gpa)) = (&self.log, self.memory.table().gpa_of(at)) {
            log.log.mark(gpa, len);
        }
    }
}

impl SplitRing {
    /// Tells the driver not to kick. With EVENT_IDX nothing needs to be written: avail_event stays
    /// behind, so the driver's index does not pass avail_event again for 65,535 buffers.
    pub fn suppress_kicks(&mut self) {
        if !self.features.event_idx {
            self.store_used_flags(USED_F_NO_NOTIFY);
        }
    }

    /// Asks for a kick at the next buffer and reads avail.idx again. True if a buffer is available
    /// already; the caller must not sleep then.
    #[must_use]
    pub fn enable_kicks(&mut self) -> bool {
        // Both stores end in a full fence, so the load below cannot be satisfied before the driver
        // can see the request: either the driver sees the request and kicks, or this load sees the
        // buffer.
        if self.features.event_idx {
            self.store_avail_event(self.indices.next_avail);
        } else {
            self.store_used_flags(0);
        }
        self.load_avail_idx() != self.indices.next_avail
    }

    /// Asks for a kick at the next buffer behind all buffers seen so far, and reads avail.idx
    /// again. True if such a buffer is available already; the caller must not sleep then.
    #[must_use]
    pub(crate) fn enable_kicks_behind(&mut self) -> bool {
        let seen = self.indices.avail_seen;
        if self.features.event_idx {
            self.store_avail_event(seen);
        } else {
            self.store_used_flags(0);
        }
        self.load_avail_idx() != seen
    }

    /// Makes all used elements pushed since the last call visible to the driver. True if the driver
    /// asks to be signalled.
    pub(crate) fn publish(&mut self) -> bool {
        let (old, new) = (self.indices.published, self.indices.next_used);
        if old == new {
            return false;
        }
        if self.log.is_some() {
            self.mark_used_elements(old);
        }
        self.store_used_idx(new);
        self.indices.published = new;
        if self.log.is_some() {
            // After the store: a mark set before the store would let the old index migrate.
            self.mark_used(2, 2);
        }
        if self.force_signal {
            self.force_signal = false;
            return true;
        }
        if self.features.event_idx {
            passed(self.load_used_event(), new, old)
        } else {
            self.load_avail_flags() & AVAIL_F_NO_INTERRUPT == 0
        }
    }
}

/// Loads a descriptor in two volatile 8-byte loads.
///
/// # Safety
/// `at` is valid for reads of 16 bytes and 8-aligned.
#[inline(always)]
pub(super) unsafe fn load_descriptor_words(at: *const u8) -> Descriptor {
    // SAFETY: the caller's promise.
    let (addr, rest) =
        unsafe { (at.cast::<u64>().read_volatile(), at.add(8).cast::<u64>().read_volatile()) };
    let rest = u64::from_le(rest);
    Descriptor::new(u64::from_le(addr), rest as u32, (rest >> 32) as u16, (rest >> 48) as u16)
}

/// Stores with Release, followed by a full fence. On x86 one `xchg` does both and costs less than
/// `mfence`, which drains the load queue.
#[inline(always)]
fn full_store(field: &AtomicU16, value: u16) {
    if cfg!(target_arch = "x86_64") {
        field.swap(value, Ordering::SeqCst);
    } else {
        field.store(value, Ordering::Release);
        std::sync::atomic::fence(Ordering::SeqCst);
    }
}
