//! Atomics and locks of the table: the standard library's, or those of `tests/models`, which runs
//! it under every interleaving and every reordering that the orderings allow.

#[cfg(loom)]
pub(super) use crate::loomed::{AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering, spin_loop};
#[cfg(not(loom))]
pub(super) use std::{
    hint::spin_loop,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    sync::{Mutex, MutexGuard},
};
