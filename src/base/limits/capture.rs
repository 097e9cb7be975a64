//! Limits of captures and mirrors: the cost of looking at frames.

// --- Captures -----------------------------------------------------------------------------

/// Captures at a time. Each capture has memory for every worker, and costs each burst a check.
pub const MAX_CAPTURES: usize = 4;

/// Bytes that wait in one capture and worker; further bytes are lost, with a count. The thread
/// `control` collects the bytes each [`CAPTURE_STEP`]: 4 Gbit/s of whole frames, or 40 Gbit/s of
/// headers.
pub const CAPTURE_BATCH_BYTES: usize = 4 << 20;

/// Copies that wait in one capture and worker. The description of a copy takes 32 bytes: 6 million
/// copies a second.
pub const CAPTURE_BATCH_PACKETS: usize = 48 << 10;

/// Tuning: pause between two collections of copies.
pub const CAPTURE_STEP: std::time::Duration = std::time::Duration::from_millis(8);

/// Tuning: copies of one burst whose outcome is kept: 64 frames to 128 ports. More copies come only
/// from thousands of broadcasts to hundreds of ports.
pub const CAPTURE_OUTCOMES: usize = 8192;

/// Captures' part of a worker's time (one in so many), for filters and copies of all captures;
/// captures lose frames beyond this part, with a count. Counting takes further time: some
/// nanoseconds a frame with four captures of all ports.
pub const CAPTURE_SHARE: u64 = 10;

/// Tuning: largest time that captures use at once: the wait of a burst, except for the last frame
/// of each capture.
pub const CAPTURE_NANOS: u64 = 100_000;

/// Tuning: nanoseconds charged for an instruction of a filter. On a CPU of 2023 a load took 3.
pub const CAPTURE_INSTRUCTION_NANOS: u64 = 4;

/// Tuning: nanoseconds charged for looking at a frame, and for keeping a copy, beside instructions
/// and bytes.
pub const CAPTURE_STEP_NANOS: u64 = 20;

/// Tuning: bytes read or kept in a nanosecond.
pub const CAPTURE_BYTES_A_NANO: u64 = 4;

/// Bytes kept of each frame by default: the whole frame.
pub const CAPTURE_SNAPLEN: usize = super::MAX_FRAME_LEN as usize;

/// Instructions of a filter, each of which runs at most once for a frame: a long expression has
/// 100, the kernel takes 4096. [`CAPTURE_SHARE`] bounds their cost.
pub const CAPTURE_FILTER_INSTRUCTIONS: usize = 512;

/// Bytes of a frame for a filter: all headers of the frame.
pub const CAPTURE_FILTER_BYTES: usize = 512;

/// Tuning: bytes of frames in one part of a reply, not counting the frame that exceeds the limit;
/// base64 makes four bytes of three.
pub const CAPTURE_BYTES_A_REPLY: usize = 32 << 10;

/// Tuning: copies in one part of a reply. Each copy has about 100 bytes beside the frame.
pub const CAPTURE_PACKETS_A_REPLY: usize = 256;

/// Mirrors. The switch compares each frame of a mirrored burst with all mirrors.
pub const MAX_MIRRORS: usize = 16;

/// Least `snaplen` of a mirror: Ethernet's and the network's headers.
pub const MIN_SNAPLEN: u32 = 64;
