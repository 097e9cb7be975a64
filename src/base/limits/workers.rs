//! Limits of the workers: turns, waiting, notifications, spinning, who gets scarce buffers.

use super::{BURST_BYTES, BURST_FRAMES};

/// A turn (one pass over a worker's ready rings) ends after this long even if rings are ready, so
/// that pending signals leave in time.
pub const TURN_NANOS: u64 = 50_000;

/// Receivers of a flood that are served at once; the others are in the worker's next turns. Each
/// takes 0.1 to 0.4 µs, so that these take about a turn.
pub const FLOOD_RECEIVERS: usize = 128;

/// Bytes that a burst copies for its floods: 50 to 100 µs.
pub const BURST_FLOOD_BYTES: usize = 1 << 20;

/// A flood of which a part lasts for so long is in the hands of a thread that is stuck; the next
/// long flood of its source is dropped.
pub const FLOOD_WAIT_NANOS: u64 = 10_000_000;

/// Tuning: bytes that are copied in the time that a receiver takes.
pub const FLOOD_RECEIVER_BYTES: usize = 4096;

/// A transmit ring's quantum, its part of a turn while others have work too: what 64 short frames
/// take on the fastest machine, and [`BURST_BYTES`] between warm caches on a slow one.
pub const QUANTUM_NANOS: std::ops::RangeInclusive<u64> = 400..=2_500;

/// For so long after a turn in which several sources had work, a burst from a device ends after a
/// quantum: others have pauses, and shall not meet 64 system calls.
pub const SHARED_NANOS: u64 = 1_000_000;

/// Time that a ring can owe for long bursts, more than any burst takes. A worker that lost
/// its CPU in a burst charges an innocent guest: this is one slice of a scheduler.
pub const MAX_DEFICIT_NANOS: u64 = 4_000_000;

/// How long a worker spins for a contended RX ring: one maximal hold time (64 frames), so in vain
/// only if the holder was preempted or waits for a page.
pub const LOCK_SPIN_NANOS: u64 = 2_000;

/// How long a burst waits for such locks altogether, in its sender's ring or, if it cannot go back
/// there, beside its worker: two or three slices of a scheduler, within which a preempted holder
/// mostly runs again. Its frames are dropped then, and no worker waits for that ring again before
/// its lock was free.
pub const LOCK_WAIT_NANOS: u64 = 8_000_000;

/// Pause between two looks at such a lock. With what the kernel adds about 0.1 ms.
pub const LOCK_WAIT_STEP: std::time::Duration = std::time::Duration::from_micros(50);

/// Pause between two looks whether all workers use a new table of ports; a worker that is awake
/// takes a turn of some microseconds.
pub const ADOPTION_STEP: std::time::Duration = std::time::Duration::from_micros(200);

/// Consecutive empty looks after which a polling worker waits for a ring's kick: silent guests
/// must not cost cache misses in every turn.
pub const IDLE_LOOKS_BEFORE_ARM: u32 = 4096;

/// The same for a worker that does not poll and is busy: at 5 to 10 µs a turn, a guest that sends
/// more often than every half millisecond is spared its kicks, and a hundred others, 60 ns a
/// look, cost a turn's worth.
pub const BUSY_LOOKS_BEFORE_ARM: u32 = 64;

/// Time between two looks for kernel events (kicks, TAPs, notes) by a worker with ready rings:
/// what a busy guest adds to the latency of a silent one, at 0.4 µs a look.
pub const EVENT_CHECK_NANOS: u64 = 20_000;

/// How long frames wait at most in their sender's ring for a receiver without buffers that takes
/// none meanwhile.
pub const BACKPRESSURE_NANOS: u64 = 1_000_000;

/// Frames that a receiver takes of a sender to earn all of that time: one that takes 16,000 frames
/// a second of each sender is waited for without end.
pub const BACKPRESSURE_FRAMES: u64 = 16;

/// Frames wait only in a ring whose bursts all went to the same receiver for so long: after a frame
/// for somebody else, which may have come behind them, nothing waits for this time.
pub const BACKPRESSURE_ALONE_NANOS: u64 = 10 * BACKPRESSURE_NANOS;

/// So many bytes of a frame earn as much waiting as a short frame does.
pub const BACKPRESSURE_FRAME_BYTES: u64 = 4096;

/// A worker that sleeps tries again after so long what waits for another thread: frames for a full
/// receiver, whose kick may be another worker's, a TAP that the kernel has no memory for, a ring
/// that was kicked while its lock was held.
pub const RETRY_NANOS: u64 = 1_000_000;

/// A worker stays awake for a signal that is due before the end of the shortest sleep, one tick
/// of `epoll_wait`.
pub const SHORTEST_SLEEP_NANOS: u64 = 1_000_000;

/// Descriptors of a transmit ring whose completion may wait for another signal of its guest; the
/// driver stops at a full ring.
pub const TX_COALESCED_SLOTS: u32 = 32;

/// Bytes likewise: four packets of 64 KiB. Linux lets TCP have under way what it sends in a
/// millisecond; its receivers acknowledge every second to fifth packet.
pub const TX_COALESCED_BYTES: u64 = 4 * BURST_BYTES as u64;

/// How long a worker holds such a signal: one tick of `epoll_wait`; acknowledgements of a TCP
/// stream come sooner.
pub const TX_COALESCED_NANOS: u64 = 1_000_000;

/// Signals that a worker holds; the next ones do not wait.
pub const MAX_HELD_SIGNALS: usize = 64;

/// Signals of one port among them, so that one guest's do not fill the list.
pub const MAX_HELD_SIGNALS_OF_PORT: usize = 16;

/// Senders a receive ring tells apart when it has too few buffers for all; 40 bytes each. Ports
/// whose numbers are equal modulo it share a part.
pub const SHARE_PLACES: usize = 64;

/// Visits per known sender after which one that did not come is forgotten. Two workers whose
/// turns differ by a factor of four still know each other's senders.
pub const SHARE_IDLE_VISITS: u32 = 4;

/// Visits per known sender for which a receive ring that ran out of buffers is scarce. Under
/// lasting overload one round in 17 is first come, first served, and the account evens it out.
pub const SHARE_ROUNDS: u32 = 16;

/// Buffers of a scarce ring that a sender may be given ahead of others that wait: a burst. Turns
/// of 8 buffers cost eight senders eight times the cache misses of 64.
pub const SHARE_LEAD_BUFFERS: u64 = BURST_FRAMES as u64;

/// Buffers a sender may catch up, having got less than others: a few times the lead, as more
/// could not be made good.
pub const SHARE_LAG_BUFFERS: u64 = 4 * BURST_FRAMES as u64;

/// Flows of a guest with several queue pairs whose receive queue is kept: as Linux's tun driver
/// (`MAX_TAP_FLOWS`), in 8 KiB. Those beyond displace silent ones.
pub const STEERING_FLOWS: usize = 4096;

/// Longest spin of a worker that found nothing. A sleep and wake-up cost the sender a kick (1 to
/// 5 µs of VM exit) and the worker about 10 µs; beyond a few times that, spinning wastes more.
/// KVM's halt polling has 200 µs.
pub const SPIN_MAX_NANOS: u64 = 50_000;

/// Shortest spin, and the first after none: less than a guest needs to answer a frame finds
/// nothing.
pub const SPIN_MIN_NANOS: u64 = 4_000;

/// A worker may spin for one part in so many of the time …
pub const SPIN_SHARE: u64 = 10;

/// … or for so many thirds of the time it works, if that is more: under load it is awake through
/// most gaps between bursts, and sleeps a quarter of the time.
pub const SPIN_WORK_THIRDS: u64 = 2;

/// Time that a worker can save up for spinning: some dozens of requests and answers, and no more
/// than a scheduler's tick.
pub const SPIN_CREDIT_NANOS: u64 = 1_000_000;

/// As [`EVENT_CHECK_NANOS`] while spinning: about what a wake-up costs, so spinning for one guest
/// delays no other one.
pub const SPIN_EVENT_CHECK_NANOS: u64 = 5_000;

/// A worker whose run-queue delay was more than a millisecond in this time does not spin. One
/// that competes for its CPU waits half of the time; a kernel, or a monitor that wakes a hundred
/// times a second, causes far less.
pub const SPIN_WAIT_NANOS: u64 = 10_000_000;

/// How long it does not, until it looks again.
pub const SPIN_OFF_NANOS: u64 = 100_000_000;

/// Tuning: a worker that works for a smaller part of the time, one in so many, is not busy: no ring
/// leaves it. A ring that takes nothing counts as such a part when workers are chosen.
pub const BALANCE_IDLE_PARTS: u64 = 100;

/// Tuning: a ring that starts is placed by loads that were noted in this time; the balancer notes
/// the loads once a second.
pub const BALANCE_RECENT_NANOS: u64 = 2_500_000_000;

/// Rings that may move to another worker in a second for their load: enough to spread a worker's
/// share in the time its load is known, too few to help an attacker.
pub const BALANCE_MOVES: usize = 4;

/// How long a ring that moved for its load stays. An alternating load moves each ring six times a
/// minute at most, at some microseconds each.
pub const BALANCE_REST_SECONDS: u64 = 10;

/// A worker that is to get a ring must make a turn within this time: a sleeping one does in a
/// fraction of a millisecond, a busy one in [`TURN_NANOS`].
pub const BALANCE_ANSWER_MILLIS: u64 = 20;

/// Threads that work for workers which stand still: as many of these at once cost others nothing. A
/// port whose memory makes one wait is left alone meanwhile, so it takes as many hostile ports.
pub const RESERVES: usize = 3;

/// Events taken from epoll at once.
pub const EPOLL_BATCH: usize = 64;

/// A turn in which a worker waited longer for memory makes it watch whose that is, and a run that
/// does then makes its receiver pay.
pub const SLOW_TURN_NANOS: u64 = super::TOUCH_NANOS;

/// It watches for so many times as long as it waited, …
pub const WATCH_PARTS: u64 = 100;

/// … at least and at most. Watching costs a burst about 2 µs and a copy.
pub const WATCH_NANOS: std::ops::RangeInclusive<u64> = 100_000_000..=60_000_000_000;

/// Memory that blocks a worker for so long is not merely slow: to clear a huge page takes less than
/// a millisecond, and processor time. A hole of 100 MiB being punched takes as long.
pub const HARMFUL_STALL_NANOS: u64 = 20_000_000;

/// A front-end whose memory does that again so soon is dropped. Once may be an accident of the
/// kernel's.
pub const SUSPICION: std::time::Duration = std::time::Duration::from_secs(60);

/// Front-ends remembered as having done it once.
pub const MAX_SUSPECTS: usize = 16;
