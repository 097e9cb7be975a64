//! Limits of XDP uplinks.

/// Memory for a frame of AF_XDP, as the kernel divides the memory: a page. The kernel leaves 256
/// bytes in front of a received frame.
pub const XDP_CHUNK: usize = 4_096;

/// Tuning: memory for a frame of AF_XDP where the MTU permits short chunks. Receiving 1,514 bytes
/// takes the kernel 15 % less CPU time, and the worker 10 %: fewer pages, and frames that begin at
/// more places of a page use more of the caches.
pub const XDP_SHORT_CHUNK: usize = 2_048;

/// Tuning: distance in frames by which a frame of an XDP queue is prefetched.
pub const XDP_FETCH_AHEAD: u32 = 6;

/// Tuning: bytes of a frame that are prefetched; the processor itself fetches the bytes behind.
pub const XDP_FETCH_BYTES: u32 = 256;

/// Tuning: frames of an XDP queue that the kernel may receive before a worker takes them; a power
/// of two. The ring holds the frames of one millisecond at 2 million frames a second.
pub const XDP_RECEIVE_FRAMES: u32 = 2_048;

/// Tuning: frames of an XDP queue on their way out; a power of two. Together with
/// [`XDP_RECEIVE_FRAMES`] these are 5 or 10 MiB of locked memory for a queue (`RLIMIT_MEMLOCK`).
pub const XDP_SEND_FRAMES: u32 = 512;

/// Tuning: consecutive calls in which the kernel sends no frame of an XDP queue's ring, after which
/// the worker stops calling; the frames stay in the ring.
pub const XDP_IDLE_CALLS: u32 = 4;

/// Tuning: time for the kernel to release a closed XDP queue; the switch tries a queue in use again
/// for so long.
pub const XDP_CLOSE_MILLIS: u32 = 100;

/// Largest MTU of an XDP uplink: a chunk less the bytes that the kernel leaves free, an Ethernet
/// header and two tags.
pub const MAX_XDP_MTU: u64 = XDP_CHUNK as u64 - 256 - 14 - 8;

/// Queues of one XDP uplink, each with locked memory of its own.
pub const MAX_XDP_QUEUES: u16 = 16;

/// XDP uplinks, for the reason of [`MAX_TAPS`](super::MAX_TAPS).
pub const MAX_XDPS: usize = 16;
