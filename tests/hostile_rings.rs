//! Rings, chains and buffers as no driver would write them: each case by name, with what must come
//! of it.
//!
//! `lab` has the guests and what is checked after each case; `shapes` says what a case is, `tx` and
//! `rx` list them for both directions, `translation` those about addresses, `headers` those about
//! lengths, `overlap` those where rings and buffers lie on top of each other. `fetch` changes
//! fields while they are read, `work` measures what a turn costs at worst, `lost` counts buffers
//! over many errors.

mod common;
#[path = "hostile_rings/duo.rs"]
mod duo;
#[path = "hostile_rings/fetch.rs"]
mod fetch;
#[path = "hostile_rings/headers.rs"]
mod headers;
#[path = "hostile_rings/lab.rs"]
mod lab;
#[path = "hostile_rings/lost.rs"]
mod lost;
#[path = "hostile_rings/overlap.rs"]
mod overlap;
#[path = "hostile_rings/rx.rs"]
mod rx;
#[path = "hostile_rings/shapes.rs"]
mod shapes;
#[path = "hostile_rings/translation.rs"]
mod translation;
#[path = "hostile_rings/tx.rs"]
mod tx;
#[path = "hostile_rings/work.rs"]
mod work;
