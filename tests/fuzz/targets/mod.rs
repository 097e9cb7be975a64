//! The fuzz targets: each a function of bytes that panics when a promise is broken.
//!
//! Shared by libFuzzer's entries in `bin/` and by `tests/fuzz_corpus.rs`, which replays the corpus
//! with the stable toolchain. Rules: a target does the same for the same bytes, as far as threads
//! allow; it takes a few milliseconds at most; whatever the bytes, only a broken promise of the
//! crate makes it panic. Expectations are computed in the plainest way and not by the code under
//! test.

pub mod config;
pub mod control;
pub mod fdb;
pub mod filters;
pub mod frames;
pub mod input;
pub mod packet;
pub mod protocol;
pub mod rings;
pub mod streams;
pub mod vduse;
