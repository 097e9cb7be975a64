//! Limits of VDUSE devices.

use std::time::Duration;

/// VDUSE devices. Each has a bounce area of 64 MiB of the kernel's memory at most, and two threads
/// of the kernel.
pub const MAX_VDUSES: usize = 64;

/// Descriptors of a ring of a VDUSE device unless configured: a burst of 64 frames fills a quarter.
pub const DEFAULT_RING_SIZE: u16 = 256;

/// Descriptors of a ring of a VDUSE device, at least and at most. The driver posts that many
/// buffers, for which the bounce area has to suffice.
pub const RING_SIZES: [u16; 2] = [64, 1024];

/// Tuning: pause before the first and the longest pause before a further attempt of an interrupt
/// that the kernel refuses, because it does not know yet that the driver is ready.
pub const FIRST_INTERRUPT_PAUSE: Duration = Duration::from_millis(1);
/// See [`FIRST_INTERRUPT_PAUSE`].
pub const LAST_INTERRUPT_PAUSE: Duration = Duration::from_millis(500);
