//! Rings, chains and buffers as no driver would write them: each case by name, with what must come
//! of it.
//!
//! `lab` has the guests and what is checked after each case; `shapes` says what a case is, `tx` and
//! `rx` list them for both directions, `translation` those about addresses, `headers` those about
//! lengths, `overlap` those where rings and buffers lie on top of each other. `fetch` changes
//! fields while they are read, `work` measures what a turn costs at worst, `lost` counts buffers
//! over many errors.

mod duo;
mod fetch;
mod guard;
mod headers;
mod lab;
mod lost;
mod overlap;
mod rx;
mod shapes;
mod translation;
mod tx;
mod work;
