//! Limits of XDP uplinks.

/// Memory for a frame of AF_XDP, as the kernel divides it: a page. In front of a frame that comes
/// the kernel leaves 256 bytes.
pub const XDP_CHUNK: usize = 4_096;

/// Tuning: the same where the MTU permits it. To receive 1,514 bytes takes the kernel 15 % less CPU
/// time, and the worker 10 %: fewer pages, and frames that begin at more places of a page compete
/// for more of the caches.
pub const XDP_SHORT_CHUNK: usize = 2_048;

/// Tuning: while a frame is taken out of an XDP queue, that many frames further on one is fetched
/// from memory.
pub const XDP_FETCH_AHEAD: u32 = 6;

/// Tuning: bytes of it; the processor itself fetches what follows.
pub const XDP_FETCH_BYTES: u32 = 256;

/// Tuning: frames of an XDP queue that the kernel may have received before they are taken; a power
/// of two. A worker that was away for a millisecond finds 2 million frames a second.
pub const XDP_RECEIVE_FRAMES: u32 = 2_048;

/// Tuning: frames of an XDP queue on their way out; a power of two. They and those above are 5 or
/// 10 MiB of locked memory for a queue (`RLIMIT_MEMLOCK`).
pub const XDP_SEND_FRAMES: u32 = 512;

/// Tuning: calls after which the kernel has sent nothing more of what is in an XDP queue's ring;
/// the rest waits there.
pub const XDP_IDLE_CALLS: u32 = 4;

/// Tuning: time for the kernel to be done with an XDP queue that was closed; so long one that is in
/// use is tried again.
pub const XDP_CLOSE_MILLIS: u32 = 100;

/// Largest MTU of an XDP uplink: a chunk less what the kernel leaves free, an Ethernet header and
/// two tags.
pub const MAX_XDP_MTU: u64 = XDP_CHUNK as u64 - 256 - 14 - 8;

/// Queues of one XDP uplink, each with locked memory of its own.
pub const MAX_XDP_QUEUES: u16 = 16;

/// XDP uplinks, as TAPs.
pub const MAX_XDPS: usize = 16;
