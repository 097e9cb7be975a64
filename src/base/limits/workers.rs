//! Limits of the workers: turns, waiting, notifications, spinning, shares of scarce buffers.

use super::{BURST_BYTES, BURST_FRAMES};

/// Time after which a turn (one pass over a worker's ready rings) ends even if rings are ready, so
/// that pending signals leave in time.
pub const TURN_NANOS: u64 = 50_000;

/// Receivers of a flood that are served in one turn; the worker serves the other receivers in its
/// next turns. Each receiver takes 0.1 to 0.4 µs, so all together take about a turn.
pub const FLOOD_RECEIVERS: usize = 128;

/// Bytes that a burst copies for its floods: 50 to 100 µs.
pub const BURST_FLOOD_BYTES: usize = 1 << 20;

/// Time after which an unfinished part of a flood counts as held by a stuck thread; the next long
/// flood of the source is dropped.
pub const FLOOD_WAIT_NANOS: u64 = 10_000_000;

/// Tuning: bytes that are copied in the time that one receiver takes.
pub const FLOOD_RECEIVER_BYTES: usize = 4096;

/// A transmit ring's quantum, which is the ring's part of a turn while other rings have work: the
/// time of 64 short frames on the fastest machine, up to the time of [`BURST_BYTES`] between warm
/// caches on a slow machine.
pub const QUANTUM_NANOS: std::ops::RangeInclusive<u64> = 400..=2_500;

/// Time after a turn in which several sources had work. Within this time a burst from a device ends
/// after a quantum, so that other sources do not wait for 64 system calls.
pub const SHARED_NANOS: u64 = 1_000_000;

/// Largest time that a ring can owe for long bursts, longer than any burst takes. A worker that
/// lost its CPU in a burst charges an innocent guest with at most this time, one slice of a
/// scheduler.
pub const MAX_DEFICIT_NANOS: u64 = 4_000_000;

/// Time that a worker spins for a contended receive ring: one maximal hold time (64 frames), so a
/// worker spins in vain only if the holder was preempted or waits for a page.
pub const LOCK_SPIN_NANOS: u64 = 2_000;

/// Time that a burst waits for contended receive rings altogether, in its sender's ring or, if the
/// burst cannot go back there, beside its worker: two or three slices of a scheduler, within which
/// a preempted holder mostly runs again. After this time the burst's frames are dropped, and no
/// worker waits for the receive ring again before the ring's lock was free.
pub const LOCK_WAIT_NANOS: u64 = 8_000_000;

/// Pause between two looks at the lock of a contended receive ring. With the kernel's overhead
/// about 0.1 ms.
pub const LOCK_WAIT_STEP: std::time::Duration = std::time::Duration::from_micros(50);

/// Pause between two checks whether all workers use a new table of ports; the turn of a worker that
/// is awake takes some microseconds.
pub const ADOPTION_STEP: std::time::Duration = std::time::Duration::from_micros(200);

/// Consecutive empty looks after which a polling worker waits for a ring's kick: silent guests must
/// not cost cache misses in every turn.
pub const IDLE_LOOKS_BEFORE_ARM: u32 = 4096;

/// Consecutive empty looks after which a busy worker that does not poll waits for a ring's kick.
/// With turns of 5 to 10 µs, a guest that sends more often than every half millisecond needs no
/// kicks, and the looks at a hundred other rings, 60 ns each, take as long as a turn.
pub const BUSY_LOOKS_BEFORE_ARM: u32 = 64;

/// Time between two looks for kernel events (kicks, TAPs, notes) by a worker with ready rings: the
/// latency that a busy guest adds to a silent guest, at 0.4 µs a look.
pub const EVENT_CHECK_NANOS: u64 = 20_000;

/// Longest time that frames wait in their sender's ring for a receiver that has no buffers and
/// takes no frame meanwhile.
pub const BACKPRESSURE_NANOS: u64 = 1_000_000;

/// Frames that a receiver must take of a sender to earn the whole [`BACKPRESSURE_NANOS`]: a sender
/// waits without end for a receiver that takes 16,000 frames a second of each sender.
pub const BACKPRESSURE_FRAMES: u64 = 16;

/// Time for which all bursts of a ring must have gone to one receiver before the ring counts as
/// sending to this receiver alone. Frames of such a ring hardly ever wait behind frames for
/// another receiver.
pub const BACKPRESSURE_ALONE_NANOS: u64 = 10 * BACKPRESSURE_NANOS;

/// Tuning: time for which frames of a ring with several receivers do not wait after another of the
/// receivers had room. *Measured* in a mesh of four overloaded ports: 10 ms gained nothing, as a
/// receiver runs empty while all its senders wait for others.
pub const BACKPRESSURE_ROOM_NANOS: u64 = 100_000;

/// Tuning: number of times that a receiver pays for the waiting of a ring with several receivers. A
/// frame for another receiver waits at most an eighth of a millisecond, unless the receiver takes
/// 128,000 frames a second of the sender.
pub const BACKPRESSURE_MIXED_PRICE: u64 = 8;

/// Bytes of a frame that earn as much waiting time as a short frame.
pub const BACKPRESSURE_FRAME_BYTES: u64 = 4096;

/// Time after which a sleeping worker tries again to do work that waits for another thread: to
/// deliver frames for a full receiver, whose kick may belong to another worker, to write to a TAP
/// for which the kernel had no memory, or to serve a ring that was kicked while the ring's lock was
/// held.
pub const RETRY_NANOS: u64 = 1_000_000;

/// Shortest sleep of a worker, one tick of `epoll_wait`. A worker stays awake for a signal that is
/// due before the end of this time.
pub const SHORTEST_SLEEP_NANOS: u64 = 1_000_000;

/// Descriptors of a transmit ring whose completion may wait for another signal of the ring's guest;
/// the driver stops at a full ring.
pub const TX_COALESCED_SLOTS: u32 = 32;

/// Bytes of frames whose completion may wait for another signal: four packets of 64 KiB. Linux lets
/// TCP have as many bytes under way as TCP sends in a millisecond; receivers acknowledge every
/// second to fifth packet.
pub const TX_COALESCED_BYTES: u64 = 4 * BURST_BYTES as u64;

/// Longest time that a worker holds a completion's signal: one tick of `epoll_wait`;
/// acknowledgements of a TCP stream come sooner.
pub const TX_COALESCED_NANOS: u64 = 1_000_000;

/// Signals that a worker holds; further signals do not wait.
pub const MAX_HELD_SIGNALS: usize = 64;

/// Signals of one port that a worker holds, so that one guest's signals do not fill the list.
pub const MAX_HELD_SIGNALS_OF_PORT: usize = 16;

/// Senders that a receive ring distinguishes when the ring has too few buffers for all senders; 40
/// bytes each. Ports whose numbers are equal modulo this number share a part.
pub const SHARE_PLACES: usize = 64;

/// Visits per known sender after which a sender that did not come is forgotten. Two workers whose
/// turns differ by a factor of four still know each other's senders.
pub const SHARE_IDLE_VISITS: u32 = 4;

/// Visits per known sender for which a receive ring that ran out of buffers is scarce. Under
/// lasting overload one round in 17 is first come, first served; the account evens out this round.
pub const SHARE_ROUNDS: u32 = 16;

/// Buffers of a scarce ring that a sender may get ahead of waiting senders: a burst. Turns of 8
/// buffers cost eight senders eight times the cache misses of turns of 64.
pub const SHARE_LEAD_BUFFERS: u64 = BURST_FRAMES as u64;

/// Buffers that a sender may catch up after the sender got fewer than other senders: a few times
/// the lead, as a larger lag could not be made good.
pub const SHARE_LAG_BUFFERS: u64 = 4 * BURST_FRAMES as u64;

/// Flows of a guest with several queue pairs whose receive queue is kept: as many as Linux's tun
/// driver keeps (`MAX_TAP_FLOWS`), in 8 KiB. Further flows displace silent flows.
pub const STEERING_FLOWS: usize = 4096;

/// Longest spin of a worker that found no frame. A sleep and wake-up cost the sender a kick (1 to 5
/// µs of VM exit) and the worker about 10 µs; a spin of more than a few times this cost wastes
/// more. KVM's halt polling takes 200 µs.
pub const SPIN_MAX_NANOS: u64 = 50_000;

/// Shortest spin, and the first spin after none: a spin shorter than a guest's answer to a frame
/// finds no frame.
pub const SPIN_MIN_NANOS: u64 = 4_000;

/// Part of the time that a worker may spin (one in so many), unless [`SPIN_WORK_THIRDS`] permits
/// more.
pub const SPIN_SHARE: u64 = 10;

/// Thirds of its working time that a worker may spin, if this is more than [`SPIN_SHARE`]. Under
/// load a worker is awake through most gaps between bursts, and sleeps a quarter of the time.
pub const SPIN_WORK_THIRDS: u64 = 2;

/// Largest time that a worker can save up for spinning: some dozens of requests and answers, and no
/// more than a scheduler's tick.
pub const SPIN_CREDIT_NANOS: u64 = 1_000_000;

/// Time between two looks for kernel events by a spinning worker: about the cost of a wake-up, so
/// spinning for one guest delays no other guest.
pub const SPIN_EVENT_CHECK_NANOS: u64 = 5_000;

/// Time for which a worker's run-queue delay counts: a worker with a delay of more than a
/// millisecond in this time does not spin. A worker that competes for its CPU waits half of the
/// time; a kernel, or a monitor that wakes a hundred times a second, causes far less delay.
pub const SPIN_WAIT_NANOS: u64 = 10_000_000;

/// Time that a worker does not spin after a run-queue delay, before the worker looks at the delay
/// again.
pub const SPIN_OFF_NANOS: u64 = 100_000_000;

/// Tuning: a worker that works for a smaller part of the time, one in so many, is not busy: no ring
/// leaves the worker. A ring that takes no time counts as this part when a worker is chosen.
pub const BALANCE_IDLE_PARTS: u64 = 100;

/// Tuning: time for which a noted load counts when a ring starts; the balancer notes the loads once
/// a second.
pub const BALANCE_RECENT_NANOS: u64 = 2_500_000_000;

/// Rings that may move to another worker in a second because of their load: enough to spread a
/// worker's share in the time in which the load becomes known, too few to help an attacker.
pub const BALANCE_MOVES: usize = 4;

/// Time that a ring stays at a worker after a move for its load. An alternating load moves each
/// ring six times a minute at most, at some microseconds each.
pub const BALANCE_REST_SECONDS: u64 = 10;

/// Time within which a worker that is to get a ring must make a turn: a sleeping worker makes a
/// turn in a fraction of a millisecond, a busy worker in [`TURN_NANOS`].
pub const BALANCE_ANSWER_MILLIS: u64 = 20;

/// Threads that take over from workers that stand still: so many standing workers cost other ports
/// no service. A port whose memory stops a worker is left alone meanwhile, so each standing worker
/// needs a hostile port.
pub const RESERVES: usize = 3;

/// Events taken from epoll at once.
pub const EPOLL_BATCH: usize = 64;

/// Time that a worker waits for memory in one turn before the worker watches for slow memory. A run
/// that waits as long while the worker watches makes the run's receiver pause.
pub const SLOW_TURN_NANOS: u64 = super::TOUCH_NANOS;

/// Time that a worker watches for slow memory, as a multiple of the wait.
pub const WATCH_PARTS: u64 = 100;

/// Shortest and longest time that a worker watches for slow memory. Watching costs a burst about 2
/// µs and a copy.
pub const WATCH_NANOS: std::ops::RangeInclusive<u64> = 100_000_000..=60_000_000_000;

/// Time after which memory that blocks a worker is harmful and not merely slow: clearing a huge
/// page takes less than a millisecond of processor time. Punching a hole of 100 MiB takes as long
/// as this limit.
pub const HARMFUL_STALL_NANOS: u64 = 20_000_000;

/// Time within which a second block by a front-end's memory drops the front-end. A single block may
/// be an accident of the kernel.
pub const SUSPICION: std::time::Duration = std::time::Duration::from_secs(60);

/// Front-ends remembered whose memory blocked a worker once.
pub const MAX_SUSPECTS: usize = 16;

/// Tuning: threads of one stream that open sockets of peers, one for each path. Only threads whose
/// file system never answers stay for long; with all of them the stream has no further peer.
pub const PEER_OPEN_THREADS: usize = 4;

/// Tuning: time between two looks whether the peer of a `type=dgram` stream has left. The kernel
/// reports a peer that has left only to a sender, and refuses a VM that starts again meanwhile. A
/// look takes some 10 µs.
pub const DATAGRAM_PEER_LOOK: std::time::Duration = std::time::Duration::from_millis(250);
