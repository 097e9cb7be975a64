//! A front-end whose memory is not what it says: files that are no memory, ranges that wrap, more
//! than anybody has, pages that vanish. Its port refuses or is given up; the others map and forward
//! as before.
//!
//! `regions` what is refused, `appetite` those who take all they can get, `vanish` memory and logs
//! that are shortened while they are used.

mod common;

#[path = "hostile_memory/appetite.rs"]
mod appetite;
#[path = "hostile_protocol/lab.rs"]
mod lab;
#[path = "hostile_memory/regions.rs"]
mod regions;
#[path = "hostile_memory/vanish.rs"]
mod vanish;
