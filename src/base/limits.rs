//! Every limit and default in one place, each with its reason: all numbers that bound the requests
//! of a guest, a front-end or a configuration, and all numbers that tune the data path. A file in
//! `limits/` has the limits of one part of the switch.

mod capture;
mod connection_timeouts;
mod control;
mod devices;
mod diagnosis;
mod events;
mod files;
mod filter;
mod guard;
mod holder;
mod latency;
mod metrics;
mod multicast;
mod plug;
mod rates;
mod retry;
mod sandbox;
#[cfg(test)]
mod tests;
mod vduse;
mod workers;
mod xdp;

pub use capture::*;
pub use connection_timeouts::*;
pub use control::*;
pub use devices::*;
pub use diagnosis::*;
pub use events::*;
pub use files::*;
pub use filter::*;
pub use guard::*;
pub use holder::*;
pub use latency::*;
pub use metrics::*;
pub use multicast::*;
pub use plug::*;
pub use rates::*;
pub use retry::*;
pub use sandbox::*;
pub use vduse::*;
pub use workers::*;
pub use xdp::*;

// --- Frames -------------------------------------------------------------------------------

/// Shortest Ethernet frame: destination, source, type. Guests do not pad frames to the 60 bytes of
/// the wire.
pub const MIN_FRAME_LEN: u32 = 14;

/// Longest Ethernet frame carried, without the virtio-net header: a 65,535-byte IP packet, the
/// Ethernet header and two VLAN tags (virtio 1.2 section 5.1.6.3.1).
pub const MAX_FRAME_LEN: u32 = 65_535 + 14 + 8;

/// Tuning: first bytes of each frame that are copied to private memory and delivered from this
/// copy: a cache line, which holds Ethernet, one VLAN tag, IPv4 and TCP without options.
pub const SNAPSHOT_LEN: usize = 64;

/// Headers of a frame with an offload. Two VLAN tags, IPv6 and TCP with all options are 122 bytes;
/// the rest is for extension headers.
pub const MAX_HEADERS_LEN: usize = 256;

/// Tuning: headers of a frame with an offload that leaves with an additional VLAN tag.
pub const MAX_EGRESS_HEADERS_LEN: usize = MAX_HEADERS_LEN + 4;

/// Least payload of a TCP segment: Linux's `TCP_MIN_GSO_SIZE`, its smallest MSS of 48 less 40
/// bytes of options.
pub const MIN_TCP_GSO_SIZE: u16 = 8;

/// Datagrams that receivers take in one packet: Linux drops packets with more (`UDP_MAX_SEGMENTS`,
/// since 6.8), in guests and behind a TAP. Linux never sends more; Windows comes close.
pub const MAX_DATAGRAMS: usize = 128;

/// Segments that one frame is cut into; further segments are lost and counted. 64 KiB for a path of
/// 576 bytes are 125 segments; more than the limit would hold a receive ring for long.
pub const MAX_SEGMENTS: u32 = 1024;

/// Segments of each flooded copy: 64 KiB for a path of 1,500 bytes are 46. With this limit cutting
/// a flood costs no more than copying the flood.
pub const MAX_FLOOD_SEGMENTS: u32 = 64;

// --- Rings --------------------------------------------------------------------------------

/// Largest ring, virtio 1.2 section 2.7.
pub const MAX_RING_SIZE: u16 = 32_768;

/// Queue pairs per port; `SET_VRING_*` indices stay below four times this plus one control queue,
/// as some front-ends count rings and others count pairs.
pub const MAX_QUEUE_PAIRS: u16 = 16;

/// Frames of one burst: four cache lines of heads and 16 of descriptors.
/// Larger bursts gain nothing in VPP's and DPDK's published curves.
pub const BURST_FRAMES: usize = 64;

/// Bytes after which a burst ends: the burst includes the frame that reaches the limit. One maximal
/// GSO frame. Bounds how long a sender holds a receiver's ring.
pub const BURST_BYTES: u32 = 65_536;

/// Flooded copies of a burst; further copies wait for the sender's next turn.
pub const BURST_FLOOD_COPIES: usize = 512;

/// Tuning: ports that a flood examines in the time of one copy.
pub const LOOKS_PER_COPY: usize = 16;

/// Descriptors in one chain, direct and indirect together. Linux sends at most 19; 64 KiB in pieces
/// of 64 bytes need 1,024.
pub const MAX_CHAIN_DESCRIPTORS: usize = 1024;

/// Descriptors included in a frame or segment: more than the 19 of Linux. Excess descriptors count
/// one by one against a burst, and a receiver's excess descriptors are bounded.
pub const FRAME_DESCRIPTORS: u32 = 32;

/// Descriptors walked for one run: 200 µs. 64 KiB for a path of 576 bytes take 2,300 in the chains
/// of 19 that Linux posts.
pub const MAX_RUN_DESCRIPTORS: u32 = 8192;

/// Tuning: pieces that receive buffers for one frame may have without being touched before the
/// copy. Linux posts 19 pieces for 64 KiB, and at most 47 with a special kernel configuration
/// (`MAX_SKB_FRAGS`).
pub const FEW_PIECES: usize = 48;

/// Time for touching the pages of a run, before the frames of the run are dropped. A thousand
/// present pages take 0.1 ms, a thousand pages that the kernel has to find 1 to 3 ms; a huge page
/// that the kernel has to clear takes 0.1 to 0.9 ms.
pub const TOUCH_NANOS: u64 = 4_000_000;

/// Tuning: largest time that counts for one piece. A thread without a CPU, or a thread that waits
/// until a hole is punched, is delayed longer, but once; missing pages are many.
pub const TOUCH_PIECE_NANOS: u64 = 500_000;

/// Tuning: pause of a receiver with slow memory, as a multiple of the time that the receiver's
/// pages took.
pub const SLOW_PAUSE_PARTS: u64 = 100;

/// Longest pause of a receiver with slow memory. If the memory blocks a worker for a tenth of a
/// second twice, the front-end is dropped anyway.
pub const MAX_PAUSE_NANOS: u64 = 10_000_000_000;

/// Bytes that an excess descriptor counts as: walking to the descriptor and copying a byte takes 20
/// to 25 ns, a quarter of a frame of 1 KiB.
pub const EXCESS_DESCRIPTOR_BYTES: u32 = 256;

/// Tuning: memory pieces of one burst; the burst ends before a chain that might not fit.
pub const BURST_PIECES: usize = 2 * MAX_CHAIN_DESCRIPTORS;

/// Receive buffers merged for one frame. 64 KiB in 512-byte buffers need 129; a receiver with
/// smaller buffers loses frames.
pub const MAX_MERGED_BUFFERS: usize = 256;

// --- Guest memory -------------------------------------------------------------------------

/// Memory slots offered (`GET_MAX_MEM_SLOTS`): QEMU uses up to 509 with hotplug. The number never
/// shrinks, or running guests would be stranded.
pub const MAX_MEM_SLOTS: usize = 509;

/// Address space one port may map: larger than most VMs, and small enough that 100 hostile ports
/// leave a victim room in the 128 TiB of a process.
pub const MAX_PORT_MAPPED_BYTES: u64 = 1 << 40;

/// Further bytes of a port for huge pages at borders: thirty-two borders inside pages of 1 GiB.
/// QEMU's memory has two to four.
pub const MAX_PORT_ROUNDED_BYTES: u64 = 32 << 30;

/// Guests' memory that the process maps, of 128 TiB of addresses on x86-64; the process keeps the
/// other addresses for its heap and stacks.
pub const MAX_MAPPED_BYTES: u64 = 112 << 40;

/// Guests' memory reserved for each port: a VM of 32 GiB and the VM's next memory table.
/// [`MAX_PORTS`] reservations are 64 of the 112 TiB.
pub const GUARANTEED_MAPPED_BYTES: u64 = 64 << 30;

/// Mappings reserved for each port. QEMU without hotplug has two to eight regions, twice as many
/// while QEMU replaces its table, and a dirty log. [`MAX_PORTS`] reservations are 24,576 of the
/// default `vm.max_map_count` of 65,530.
pub const GUARANTEED_MAPPINGS: u64 = 24;

/// Tuning: mappings reserved for the process itself: libraries, heap, workers, and two for each of
/// a burst's [`BURST_PIECES`] in memory that vanished while the process can get no other memory.
pub const OWN_MAPPINGS: u64 = 8_192;

/// Tuning: mappings reserved for each port's thread: its stack and guard page, its alternate stack,
/// its heap arena.
pub const OWN_MAPPINGS_PER_PORT: u64 = 8;

/// Bytes of dirty log: one bit per 4 KiB page of [`MAX_PORT_MAPPED_BYTES`], doubled for holes in
/// the guest's physical address space.
pub const MAX_LOG_BYTES: u64 = MAX_PORT_MAPPED_BYTES / 4096 / 8 * 2;

// --- Sessions -----------------------------------------------------------------------------

/// Time for posted frames to leave at `SET_VRING_ENABLE 0`. A full ring of 64 KiB frames takes a
/// few ms; the limit allows for a busy machine.
pub const DRAIN_MILLIS: u64 = 500;

/// Time that a disabled ring keeps frames: cloud-hypervisor lets a paused guest run for a few ms
/// before cloud-hypervisor enables the rings.
pub const DISCARD_MILLIS: u64 = 100;

/// Pause between log lines about a port and its front-end, in the long run.
pub const PORT_LOG_EVERY: std::time::Duration = std::time::Duration::from_secs(1);

/// Log lines of a port at once: a connection, a refused message, and the end of the connection.
pub const PORT_LOG_BURST: u32 = 4;

// --- Forwarding database ------------------------------------------------------------------

/// Addresses one table learns. 128 VMs need hundreds; the network behind the uplink needs most. The
/// table reserves 12 MiB of address space.
pub const FDB_MAX_ENTRIES: u32 = 65_536;

/// Largest configured table: 192 MiB of address space.
pub const FDB_MAX_ENTRIES_LIMIT: u32 = 1 << 20;

/// Addresses learned from one port: far more than a VM's containers have. Only 16 hostile ports
/// together can fill the table.
pub const FDB_MAX_PER_PORT: u32 = 4_096;

/// Addresses reserved for each port in a full table, so that hostile ports cannot make a quiet
/// guest's traffic flood.
pub const FDB_RESERVED_PER_PORT: u32 = 16;

/// Ageing time of an idle address: IEEE Std 802.1Q-2018, table 8-6.
pub const FDB_AGE_SECONDS: u32 = 300;

/// Moves in a second of an address that flaps. A machine that migrates and comes back makes two
/// moves; RFC 7432, section 15.1, treats five moves in three minutes as a duplicate.
pub const FDB_FLAPS: u32 = 5;

/// Time that a flapping address is held, at most a second longer: the address can flap for one of
/// eleven seconds, and a mistaken hold ends soon.
pub const FDB_HOLD_SECONDS: u32 = 10;

/// Silence of the holding port that ends a hold. A router that lost its virtual address sends no
/// more frames from the address; a router that has the address answers all the time.
pub const FDB_SILENCE_SECONDS: u32 = 1;

/// Tuning: ports that the table distinguishes: 10 bits of a word.
pub const FDB_MAX_PORTS: usize = MAX_PORTS;

/// Tuning: bridges that the table distinguishes: each port may be in a bridge of its own, and a
/// worker may still know earlier bridges of the port.
pub const FDB_MAX_BRIDGES: usize = 4 * MAX_PORTS;

/// Highest VLAN identifier of a frame: IEEE Std 802.1Q-2018, table 9-2.
pub const MAX_VLAN: u16 = 4094;

/// Tuning: identifiers of VLANs, with an identifier for frames in no VLAN.
pub const FDB_VLANS: usize = 4096;

/// Addresses learned in one VLAN, or in a bridge other than the default bridge: a quarter of the
/// table, so that no tenant's network fills the table.
pub const FDB_MAX_PER_SEGMENT: u32 = FDB_MAX_ENTRIES / 4;

/// Addresses reserved for each VLAN in a full table: stations of a small network.
pub const FDB_RESERVED_PER_SEGMENT: u32 = 64;

/// Tuning: locks for writers, each for an equal range of buckets. Two workers learn in one shard at
/// the same time with a chance of 1 in 64.
pub const FDB_SHARDS: usize = 64;

/// Tuning: addresses beyond which a burst prefetches. Each address takes two cache lines, and a
/// core's first cache has 512 to 768 lines. Cycles a frame without and with prefetching, EPYC: 238
/// and 229 with 2,048 addresses, 261 and 238 with 8,192, 388 and 307 with 65,536. With 1,024
/// addresses prefetching lost 6 % of the rate.
pub const FDB_PREFETCH_ENTRIES: u32 = 1_536;

/// Tuning: buckets that ageing, flush and listing visit under one lock: 0.8 µs in a full table, so
/// that a worker hardly ever waits.
pub const FDB_SWEEP_BUCKETS: usize = 64;

/// Tuning: attempts at a shard's lock, 10 to 50 ns each, before a worker leaves learning to the
/// next frame. The attempts outlast a holder that runs, and give up on a holder that was preempted.
pub const FDB_LOCK_ATTEMPTS: u32 = 128;

// --- MTU ----------------------------------------------------------------------------------

/// Least MTU acknowledged (`NET_SET_MTU`) and configured (`mtu=`): IPv4's (RFC 791).
pub const MIN_MTU: u64 = 68;
/// Largest MTU of a VM or stream: the packet of the longest frame. A NACK would leave QEMU's guest
/// with a dead device.
pub const MAX_CARRIED_MTU: u64 = 65_535;

/// Largest MTU of a TAP: the driver includes the Ethernet header (`tun_net_initialize`,
/// drivers/net/tun.c).
pub const MAX_TAP_MTU: u64 = MAX_CARRIED_MTU - 14;

// --- vhost-user messages and sockets ------------------------------------------------------

/// Bytes of a message's body. The largest served message is `SET_MEM_TABLE` with
/// [`MAX_MESSAGE_FILES`] regions (1,032 bytes). The limit allows the switch to read and refuse
/// larger messages: a device configuration space is 4 KiB.
pub const MAX_MESSAGE_BODY: usize = 4096;

/// Descriptors with one message, and so regions in one `SET_MEM_TABLE`. QEMU and DPDK send at most
/// 8, the `vhost` crate's front-end 32; front-ends add further regions one by one
/// (`CONFIGURE_MEM_SLOTS`).
pub const MAX_MESSAGE_FILES: usize = 32;

/// Tuning: threads that close useless descriptors, as a close may take hours. A hostile descriptor
/// makes one thread for its port; as many threads again are for deleted ports.
pub const MAX_CLOSERS: usize = 2 * MAX_PORTS;

/// Files of one thread that may wait to be closed. With more, a port serves no front-end, and the
/// control socket accepts no client. Honest peers send no file whose closing lasts.
pub const MAX_HELD_FILES: usize = 64;

/// Tuning: time that a session itself waits for a close. Closing takes microseconds; the limit
/// allows for a busy machine.
pub const CLOSE_PATIENCE_MILLIS: u32 = 20;

/// Tuning: pause between looks at a port with more than [`MAX_HELD_FILES`] waiting files.
pub const HELD_PAUSE: std::time::Duration = std::time::Duration::from_millis(100);

/// Tuning: time before a signal interrupts a close. Closing takes microseconds.
pub const CLOSE_TIME: std::time::Duration = std::time::Duration::from_millis(20);

/// Time for a whole message. Front-ends send a message in one system call; the limit allows for a
/// front-end that is stopped or swapped out.
pub const MESSAGE_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(2);

/// Time that a reply waits for room. Only a front-end that never reads can fill 200 KiB with
/// 20-byte replies.
pub const REPLY_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(2);

/// Front-ends in a socket's queue. Usually one waits (a restarted QEMU); further front-ends get an
/// error at once instead of a hang.
pub const SOCKET_BACKLOG: i32 = 8;

/// Tuning: silence after which a connection counts as a front-end. A front-end sends a message at
/// once; a daemon that checks whether the socket is in use closes the connection at once.
pub const FIRST_WORD: std::time::Duration = std::time::Duration::from_secs(1);

/// Tuning: first and longest pause after a failed `accept`, for want of descriptors or memory. The
/// pending connection keeps the listener readable: without a pause the thread would spin.
pub const ACCEPT_RETRY_MIN: std::time::Duration = std::time::Duration::from_millis(50);
/// Tuning: see [`ACCEPT_RETRY_MIN`].
pub const ACCEPT_RETRY_MAX: std::time::Duration = std::time::Duration::from_secs(1);

/// First pause between attempts to connect; doubles up to [`CONNECT_RETRY_MAX`].
pub const CONNECT_RETRY_MIN: std::time::Duration = std::time::Duration::from_millis(100);
/// Longest pause between attempts to connect: a VM that starts waits at most this time for its
/// network.
pub const CONNECT_RETRY_MAX: std::time::Duration = std::time::Duration::from_secs(2);

/// Time for opening an added port's socket, whose path may lead to a file system that never
/// answers. Longer than [`SOCKET_LOCK_WAIT`].
pub const SOCKET_OPEN_TIMEOUT: std::time::Duration = std::time::Duration::from_millis(1500);

/// Tuning: threads that open sockets of added ports, one for each path. Only threads that never end
/// accumulate.
pub const SOCKET_OPENS: usize = 16;

/// Tuning: time that daemons wait for each other to create sockets in one directory. Creating a
/// socket takes well under a millisecond.
pub const SOCKET_LOCK_WAIT: std::time::Duration = std::time::Duration::from_secs(1);

/// Bytes of a socket's path: `sun_path` less its terminating NUL, unix(7).
pub const MAX_SOCKET_PATH: usize = 107;

// --- Announcements ------------------------------------------------------------------------

/// Announcements (`SEND_RARP`) of a front-end at once. Each announcement is a frame to every port;
/// QEMU sends five in a second for each migrated guest.
pub const ANNOUNCEMENTS: u32 = 32;
/// Pause after which a front-end may make another announcement.
pub const ANNOUNCEMENT_EVERY: std::time::Duration = std::time::Duration::from_millis(50);

/// Tuning: announcements waiting for a worker; QEMU sends five per migrated guest.
pub const MAX_NOTES: usize = 256;

// --- The process --------------------------------------------------------------------------

/// Descriptors from a service manager: [`MAX_PORTS`] sockets and the queues of [`MAX_TAPS`] TAPs.
pub const MAX_PASSED_FDS: usize = 8192;

/// Time for handing descriptors to the service manager. The manager reads within microseconds
/// unless the manager hangs.
pub const KEEP_TIMEOUT: std::time::Duration = std::time::Duration::from_millis(300);

/// Bytes that one process hands to the next: 65,536 addresses and the counters of [`MAX_PORTS`]
/// ports are ten million bytes.
pub const MAX_HANDOVER_BYTES: u64 = 64 << 20;

/// Time that removing a port waits: for the port's session, then for the workers. Both take
/// microseconds, unless a guest's memory delays a worker.
pub const REMOVE_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(2);

/// Time that a reload waits for sessions: of all ports that the reload removes or makes anew, which
/// may be hundreds, on a busy machine. The rest of the switch does not wait for the reload.
pub const RELOAD_REMOVE_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);

/// Tuning: pause between looks at a removal.
pub const REMOVE_STEP: std::time::Duration = std::time::Duration::from_millis(1);

/// Time for stopping; the service manager expects at most a second.
pub const STOP_TIMEOUT: std::time::Duration = std::time::Duration::from_millis(800);

/// Tuning: stack of a port's thread, which maps memory and answers messages of 4 KiB. 1,000 stacks
/// of the default 2 MiB would show in every tool.
pub const SESSION_STACK_BYTES: usize = 256 << 10;

/// Log lines that wait for their reader: all counters of some hundred ports.
pub const LOG_QUEUE_BYTES: usize = 256 << 10;

/// Tuning: time that threads other than workers wait for the log: microseconds, if the reader is
/// alive.
pub const LOG_TIMEOUT: std::time::Duration = std::time::Duration::from_millis(100);

/// Tuning: first pause of a thread after a panic; [`RESTART_PAUSE_MAX`] is the longest. A first
/// panic costs other threads no more than a lost interrupt; repeated panics do not keep a CPU busy.
pub const RESTART_PAUSE_MIN: std::time::Duration = std::time::Duration::from_millis(10);
/// Tuning: see [`RESTART_PAUSE_MIN`].
pub const RESTART_PAUSE_MAX: std::time::Duration = std::time::Duration::from_secs(1);

/// Panics logged in full each second. A guest that found a panic can repeat the panic.
pub const PANIC_LINES_PER_SECOND: u32 = 5;

/// Tuning: largest lag of the kernel's coarse clock behind the precise clock: a tick of 100 Hz.
pub const COARSE_CLOCK_TICK: std::time::Duration = std::time::Duration::from_millis(10);

// --- System layer -------------------------------------------------------------------------

/// Tuning: guarded mappings of guests' memory: 128 ports with every memory slot and a dirty log.
/// The kernel's own limit (`vm.max_map_count`, 65,530) is reached first.
pub const MAX_GUARDED_MAPPINGS: usize = 65_536;

/// Tuning: slots by which the registry of guarded mappings grows: one large guest, about 20 KiB.
pub const GUARD_SEGMENT_SLOTS: usize = 512;

/// Tuning: pause between looks of the watchdog at workers and pending signals. A reserve thread
/// relieves a worker that stands still between two looks, and the watchdog interrupts a write that
/// is pending at two looks. Each delay so lasts at most two pauses: 20 ms of the 30 ms that other
/// ports may wait.
pub const WATCH_TICK_MILLIS: u64 = 10;

/// CPU time of an expensive notification, for which the port pays by a pause. Waking a guest takes
/// about 10 µs, and several times as much through a hypervisor. After an expensive write, or
/// several writes of one port in one turn, the port is measured for [`SIGNALS_MEASURED_MILLIS`].
pub const EXPENSIVE_SIGNAL_MICROS: u64 = 100;

/// CPU time of a slow write, which counts towards dropping the front-end. Through two hypervisors,
/// or under strace, a write takes 100 to 200 µs.
pub const SIGNAL_MICROS: u64 = 1_000;

/// Slow writes that drop a front-end; a write of 5 ms counts twice, a write of 50 ms four times.
pub const SLOW_WRITES: u32 = 16;

/// Tuning: time after which a slow write is forgotten. Fast writes in between do not count, as a
/// front-end can make each fourth write fast. An honest front-end on a crowded host may cause five
/// slow writes in each second.
pub const SLOW_WRITE_LEAK_MILLIS: u64 = 200;

/// Tuning: time of measuring after an expensive write, at 0.6 µs a write. The limit is a time, as a
/// front-end could make a number of writes fast.
pub const SIGNALS_MEASURED_MILLIS: u64 = 1_000;

/// Tuning: pause after a slow write as a multiple of the write's time: the port takes at most a
/// quarter of a worker's time until the front-end is dropped. The pause after an expensive write is
/// as long while two other ports send.
pub const SIGNAL_PAUSE_PARTS: u64 = 3;

/// Tuning: longest pause after an expensive write while more ports send, as a multiple of the
/// write's time: one part for each port.
pub const SIGNAL_PAUSE_MOST_PARTS: u64 = 16;

/// Tuning: time for which a port counts as a sender, and at most twice this time.
pub const SENDERS_NANOS: u64 = 1_000_000;

/// Longest pause after a slow write, for an honest guest whose host was stopped for seconds in the
/// middle of a signal.
pub const SIGNAL_PAUSE_MILLIS: u64 = 100;

/// Time that a port stays closed: after its front-end was dropped for costing other ports time. An
/// attacker can take 40 ms for a call descriptor that blocks, and five times 0.2 s to wake two
/// million waiters, so 8 % of the time.
pub const DROPPED_PAUSE: std::time::Duration = std::time::Duration::from_secs(10);

/// Tuning: looks with more care after a blocked write, 10 s: further attackers then cost a system
/// call each, and not two pauses each.
pub const WATCH_ALERT_TICKS: u32 = 1_000;

/// Tuning: time for a netlink request. The kernel answers in microseconds unless another process
/// holds the network configuration's lock.
pub const NETLINK_TIMEOUT_MILLIS: u64 = 1_000;

/// Tuning: messages read for one netlink request: queueing disciplines of 256 devices of 256 queues
/// each.
pub const NETLINK_MAX_MESSAGES: usize = 65_536;

/// Tuning: pause of the link monitor after lost changes, or after a failed subscription. The
/// monitor then queries each TAP.
pub const LINK_RETRY_MILLIS: u64 = 250;

/// Queues of one TAP. The kernel allows 256; more queues than workers are useless.
pub const MAX_TAP_QUEUES: u16 = 64;

// --- Configuration ------------------------------------------------------------------------

/// Ports and TAPs together. Port numbers have 16 bits in the forwarding table, and a flood makes
/// one copy for each port; the largest known hosts run a few hundred VMs.
pub const MAX_PORTS: usize = 1024;

/// TAP uplinks: each uplink gets one more copy of every flooded frame.
pub const MAX_TAPS: usize = 64;

/// Ports on streams: each frame for a stream is a system call of the sender's worker, so a flood
/// makes as many calls.
pub const MAX_STREAMS: usize = 64;

/// Static MAC addresses of one port, which the table never evicts.
pub const MAX_STATIC_MACS: usize = 64;

/// Source addresses of a port with a guard, and as many IP addresses and prefixes: the guard
/// compares each frame with the addresses one after another.
pub const MAX_ALLOWED: usize = 64;

/// Characters of a port's name, which is part of its log lines and counters.
pub const MAX_NAME_LEN: usize = 64;

/// Characters of a port's label, which is in every list, event and scrape.
pub const MAX_LABEL_CHARS: usize = 64;

/// Tuning: bytes of an interface name: `IFNAMSIZ` without its terminating zero (netdevice(7)).
pub const MAX_IFNAME_LEN: usize = 16 - 1;

/// Worker threads unless configured: one core is all a small host gives away by default.
pub const DEFAULT_WORKERS: usize = 1;

/// Worker threads with `workers = "auto"`, at most: one worker forwards 28 million short frames a
/// second (docs/performance.md), and a host with many CPUs has guests to run.
pub const AUTO_WORKERS: usize = 4;

/// Worker threads at most. Each worker has some MiB of private memory.
pub const MAX_WORKERS: usize = 256;

/// Queues or pairs of a port unless configured.
pub const DEFAULT_QUEUES: u16 = 1;

/// Longest ageing time, IEEE Std 802.1Q-2018 table 8-6. The switch does not enforce the shortest
/// time of this table, 10 s, for tests and fast-moving VMs.
pub const MAX_AGE_SECONDS: u32 = 1_000_000;

/// Mode of a socket unless configured: owner and group. A process that can connect is the VM.
pub const DEFAULT_SOCKET_MODE: u32 = 0o660;
