//! A front-end whose memory is not what it says: files that are no memory, ranges that wrap, more
//! than there is, pages that vanish. Its port refuses or is given up; the others map and forward as
//! before.
//!
//! `regions` what is refused, `on_disk` what is left out, `appetite` those who take all they can
//! get, `sparse` memory that is not there yet, `vanish` memory and logs that are shortened while
//! they are used.

mod appetite;
mod on_disk;
mod regions;
mod sparse;
mod vanish;

use crate::hostile_protocol::lab;
