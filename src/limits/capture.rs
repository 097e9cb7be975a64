//! Limits of looking at frames: what a capture can cost.

// --- Captures -----------------------------------------------------------------------------

/// Captures at a time. Each has memory for every worker, and is asked about each burst.
pub const MAX_CAPTURES: usize = 4;

/// Bytes of frames that wait in one capture to be collected from one worker; what comes on top is
/// lost, with a count. They are collected [`CAPTURE_STEP`] apart: this is 4 Gbit/s of whole frames,
/// or 40 of their headers.
pub const CAPTURE_BATCH_BYTES: usize = 4 << 20;

/// Likewise copies, whose description takes 32 bytes: 6 million a second.
pub const CAPTURE_BATCH_PACKETS: usize = 48 << 10;

/// How often copies are collected.
pub const CAPTURE_STEP: std::time::Duration = std::time::Duration::from_millis(8);

/// Copies of the frames of one burst of which it is remembered what became of them: 64 frames to
/// 128 ports. There are more only if thousands of broadcasts meet hundreds of ports.
pub const CAPTURE_OUTCOMES: usize = 8192;

/// Filters and copies of all captures together may take one part in so many of a worker's time; the
/// frames for which there is no time are lost to them, with a count. Finding and counting these
/// comes on top: with four captures of all ports about 40 ns a frame.
pub const CAPTURE_SHARE: u64 = 10;

/// Nanoseconds of a worker that captures may take at once: a burst of frames waits so long for them
/// at most, but for the last frame of each.
pub const CAPTURE_NANOS: u64 = 100_000;

/// Nanoseconds that an instruction of a filter is taken for. On a CPU of 2023 a load took 3.
pub const CAPTURE_INSTRUCTION_NANOS: u64 = 4;

/// Likewise looking at a frame, and keeping a copy of one, beside instructions and bytes.
pub const CAPTURE_STEP_NANOS: u64 = 20;

/// Bytes that are read or kept in a nanosecond.
pub const CAPTURE_BYTES_A_NANO: u64 = 4;

/// Bytes of each frame that are kept if nothing else is said: all of it.
pub const CAPTURE_SNAPLEN: usize = super::MAX_FRAME_LEN as usize;

/// Instructions of a filter, each of which runs at most once for a frame: a long expression has
/// 100. The kernel takes 4096. What they cost is bounded by [`CAPTURE_SHARE`].
pub const CAPTURE_FILTER_INSTRUCTIONS: usize = 512;

/// Bytes of a frame that a filter may look at: all headers there are.
pub const CAPTURE_FILTER_BYTES: usize = 512;

/// Bytes of frames in one part of a reply, but for the frame that crosses the line; base64 makes
/// four of three.
pub const CAPTURE_BYTES_A_REPLY: usize = 32 << 10;

/// Copies in one part of a reply, each of which has about 100 bytes beside the frame's.
pub const CAPTURE_PACKETS_A_REPLY: usize = 256;
