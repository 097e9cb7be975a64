//! Limits of devices: TAPs and streams. XDP has a file of its own.

/// Tuning: bytes of the frames that a worker has on their way to a device: 64 frames of 1,514
/// bytes, or the longest frame.
pub const FRAME_BATCH_BYTES: usize = 128 << 10;

/// Tuning: longer frames go to a TAP directly from their guest's memory, by `writev`: with a copy a
/// frame of 65,535 bytes cost 1.23 times the CPU time.
pub const TAP_LONG_FRAME: usize = 9_000;

/// Tuning: pieces of a long frame in its guest's memory; further pieces are copied together. Each
/// piece costs `writev` about 30 ns, and the limit of `writev` is 1,024 (`UIO_MAXIOV`).
pub const TAP_GATHER_PIECES: usize = 32;

/// Tuning: smallest batch for io_uring; frames of a smaller batch are written by a `write` each. By
/// io_uring a frame costs as much as by `write` in batches of 4, 100 ns more alone, and 50 ns less
/// in batches of 64.
pub const TAP_BATCH_LEAST: usize = 6;

/// Tuning: batches whose memory is registered with the io_uring of a TAP's queue; each takes
/// [`FRAME_BATCH_BYTES`] of locked memory. A queue has one batch for each worker that writes to the
/// queue. A write from registered memory costs 20 to 30 ns less.
pub const TAP_RING_BATCHES: usize = 8;

/// Tuning: headers of a packet to which segments are added: Ethernet with two tags, IPv6 and TCP
/// with all its options.
pub const TAP_PACKET_HEADERS: usize = 22 + 40 + 60;

/// Longest frame on a stream: QEMU's largest packet (`NET_BUFSIZE`). Frames longer than
/// [`MAX_FRAME_LEN`](super::MAX_FRAME_LEN) are dropped; a greater length ends the connection, as
/// bytes behind the length cannot be parsed.
pub const MAX_STREAM_FRAME_LEN: u32 = 4_096 + 65_536;

/// Bytes of a stream that wait for forwarding: nearly two of the longest frames, so that a frame
/// fits behind the beginning of another frame.
pub const STREAM_BUFFER_BYTES: usize = 128 << 10;

/// Tuning: reads of a stream for one frame. One read gets a whole frame; a hostile peer may send
/// one byte at a time.
pub const STREAM_READS: u32 = 3;

/// Tuning: rounds in which a stream's writer writes frames of other workers before the writer
/// returns to its own work.
pub const STREAM_ROUNDS: u32 = 16;

/// Tuning: time that a worker tries to become a stream's writer: a call takes at most some 20 µs.
/// After a longer time the present writer has lost its CPU, and the frame is dropped.
pub const STREAM_LOCK_NANOS: u64 = 20_000;

/// Tuning: time at the start that the switch waits for TAPs in use. The kernel closes TAPs of a
/// killed process that used io_uring some milliseconds after the end of the process.
pub const TAP_CLOSE_MILLIS: u64 = 500;

/// Tuning: pause between looks for a lost TAP, which is attached again within a second, at
/// negligible cost.
pub const TAP_RETRY_MILLIS: u64 = 250;

/// Tuning: time that closing a lost TAP waits for workers, which release the TAP at the end of a
/// burst.
pub const CLOSE_TIMEOUT_MILLIS: u32 = 1_000;
