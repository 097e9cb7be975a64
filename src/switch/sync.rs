//! Atomics and locks of the tables: the standard library's, or loom's in `tests/models`, which runs
//! the tables under every interleaving and every reordering that the memory orderings allow.

#[cfg(loom)]
pub(super) use crate::loomed::{
    AtomicU16, AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering, RandomState, fence, spin_loop,
};
#[cfg(not(loom))]
pub(super) use std::{
    hash::RandomState,
    hint::spin_loop,
    sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering, fence},
    sync::{Mutex, MutexGuard},
};
