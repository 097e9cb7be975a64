//! Limits of VDUSE devices.

use std::time::Duration;

/// VDUSE devices. Each has a bounce area of [`BOUNCE_BYTES`] of the kernel's memory at most.
pub const MAX_VDUSES: usize = 64;

/// Bytes of the bounce area of a VDUSE device, from address 0 on: the kernel's default, which
/// nobody changes between the making of a device and its connection with the driver.
pub const BOUNCE_BYTES: u64 = 64 << 20;

/// Time for opening an added VDUSE device: the driver starts, and the kernel's lock of the network
/// configuration may be held for a while.
pub const VDUSE_OPEN_TIMEOUT: Duration = Duration::from_secs(5);

/// Attempts to remove the device of a deleted port, and the pause between them.
pub const REMOVE_ATTEMPTS: u32 = 10;
/// Pause between attempts to remove a device.
pub const REMOVE_PAUSE: Duration = Duration::from_secs(1);

/// Tuning: pause after a failed answer while the kernel connects a device or separates it.
pub const ANSWER_RETRY: Duration = Duration::from_millis(100);

/// Pause before the rings are started again that could not be started: memory or descriptors may
/// be had by then.
pub const START_RETRY: Duration = Duration::from_secs(1);

/// Descriptors of a ring of a VDUSE device unless configured: a burst of 64 frames fills a quarter.
pub const DEFAULT_RING_SIZE: u16 = 256;

/// Descriptors of a ring of a VDUSE device, at least and at most; a power of two. The driver posts
/// that many buffers, for which the bounce area has to suffice.
pub const RING_SIZES: [u16; 2] = [64, 1024];

/// Tuning: pause before the first attempt of an interrupt that the kernel refuses until the kernel
/// knows that the driver is ready. The pause doubles with each attempt.
pub const FIRST_INTERRUPT_PAUSE: Duration = Duration::from_millis(1);
/// Tuning: longest pause between attempts of an interrupt; see [`FIRST_INTERRUPT_PAUSE`].
pub const LAST_INTERRUPT_PAUSE: Duration = Duration::from_millis(500);
