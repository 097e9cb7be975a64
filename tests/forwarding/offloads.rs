//! Checksum and segmentation offloads: what a sender leaves to its device, a receiver of any
//! ability gets right, for each destination as it is, with its checksum finished, or in segments.
//!
//! `lab` has the guests, and what must become of each packet; `matrix` is guests among each other,
//! `tap` the way to and from the kernel, `xdp` the way past it, `options` ports and TAPs with fewer
//! offloads, `scarce` receivers too small for what is sent to them, `hostile` what a guest must not
//! get out of it, `guarded` what it must not get past a guard, `segments` what it must not cost
//! others.

mod guarded;
mod hostile;
mod lab;
mod matrix;
mod options;
mod scarce;
mod segments;
mod tap;
mod xdp;
