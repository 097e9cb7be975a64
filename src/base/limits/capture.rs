//! Limits of looking at frames: what a capture can cost.

// --- Captures -----------------------------------------------------------------------------

/// Captures at a time. Each has memory for every worker, and costs each burst a check.
pub const MAX_CAPTURES: usize = 4;

/// Bytes that wait in one capture and worker; the rest is lost, with a count. Collected each
/// [`CAPTURE_STEP`]: 4 Gbit/s of whole frames, or 40 of their headers.
pub const CAPTURE_BATCH_BYTES: usize = 4 << 20;

/// The same in copies, whose description takes 32 bytes: 6 million a second.
pub const CAPTURE_BATCH_PACKETS: usize = 48 << 10;

/// Tuning: pause between two collections of copies.
pub const CAPTURE_STEP: std::time::Duration = std::time::Duration::from_millis(8);

/// Tuning: copies of one burst whose outcome is kept: 64 frames to 128 ports. There are more only
/// if thousands of broadcasts meet hundreds of ports.
pub const CAPTURE_OUTCOMES: usize = 8192;

/// Captures' part of a worker's time (one in so many), for filters and copies of all captures;
/// frames beyond it are lost to them, with a count. Counting these comes on top: some nanoseconds a
/// frame with four captures of all ports.
pub const CAPTURE_SHARE: u64 = 10;

/// Tuning: the most of it at once: how long a burst waits for them, but for the last frame of each.
pub const CAPTURE_NANOS: u64 = 100_000;

/// Tuning: nanoseconds reckoned for an instruction of a filter. On a CPU of 2023 a load took 3.
pub const CAPTURE_INSTRUCTION_NANOS: u64 = 4;

/// Tuning: likewise for looking at a frame, and for keeping a copy, beside instructions and bytes.
pub const CAPTURE_STEP_NANOS: u64 = 20;

/// Tuning: bytes read or kept in a nanosecond.
pub const CAPTURE_BYTES_A_NANO: u64 = 4;

/// Bytes kept of each frame by default: all of it.
pub const CAPTURE_SNAPLEN: usize = super::MAX_FRAME_LEN as usize;

/// Instructions of a filter, each of which runs at most once for a frame: a long expression has
/// 100, the kernel takes 4096. [`CAPTURE_SHARE`] bounds their cost.
pub const CAPTURE_FILTER_INSTRUCTIONS: usize = 512;

/// Bytes of a frame for a filter: all headers there are.
pub const CAPTURE_FILTER_BYTES: usize = 512;

/// Tuning: bytes of frames in one part of a reply, but for the frame that crosses the line; base64
/// makes four of three.
pub const CAPTURE_BYTES_A_REPLY: usize = 32 << 10;

/// Tuning: copies in one part of a reply, each of which has about 100 bytes beside the frame's.
pub const CAPTURE_PACKETS_A_REPLY: usize = 256;

/// Mirrors. Each frame of a mirrored burst is compared with all of them.
pub const MAX_MIRRORS: usize = 16;

/// Least `snaplen` of a mirror: Ethernet's and the network's headers.
pub const MIN_SNAPLEN: u32 = 64;
