//! Limits of filters: rules, groups, tracked connections.

/// Filters of one configuration, and as many groups: one of each for every port.
pub const MAX_FILTERS: usize = super::MAX_PORTS;

/// Rules of one filter. The longest security groups of the clouds have some hundred.
pub const MAX_FILTER_RULES: usize = 1_024;

/// Filters of one port: a few shared ones in front of one of its own.
pub const MAX_PORT_FILTERS: usize = 8;

/// Bytes of a rule's text, so that an error can quote the rule.
pub const MAX_RULE_BYTES: usize = 1_024;

/// Bytes of all rules of a filter, so that a message and a reply can have a filter.
pub const MAX_FILTER_BYTES: usize = 192 << 10;

/// Items of one list in a rule. Longer lists of addresses are groups.
pub const MAX_RULE_ITEMS: usize = 64;

/// Addresses of one group: the members of a large cluster.
pub const MAX_GROUP_ADDRESSES: usize = 4_096;

/// Lines of a port's rules for one direction; a rule with types of ICMP has a line for each
/// protocol. One word summarises the 64 words of a bitmap, so no look-up reads more than 64 words.
pub const MAX_FILTER_LINES: usize = 64 * 64;

/// Words of the bitmaps of one field of a port's rules: 4 MiB. A thousand rules with two
/// addresses each need 64,000.
pub const MAX_FILTER_WORDS: usize = 1 << 19;

/// Tracked connections of all ports together; beyond, a port gets its reserved ones. Linux tracks
/// as many on a machine with 4 GiB.
pub const MAX_CONNECTIONS: u32 = 262_144;

/// Tracked connections of one port: a quarter of all. A busy web server has some ten thousand.
pub const MAX_CONNECTIONS_PER_PORT: u32 = 65_536;

/// Connections that a port may track although the table is full, so that hostile ports do not cut
/// off a quiet one.
pub const RESERVED_CONNECTIONS_PER_PORT: u32 = 256;

/// Half-open connections of one port, and as many that end: the newest ones; beyond, the oldest are
/// forgotten. A flood of SYN has to send as many within a round trip to push out an honest one.
pub const MAX_HALF_OPEN_PER_PORT: usize = 16_384;

/// Tuning: slots of the table for each connection: with two buckets to choose from, a bucket of
/// eight is then never full in practice.
pub const CONNECTION_SLOTS: u32 = 2;

/// Tuning: shards of the table, of which each has a lock for new connections.
pub const CONNECTION_SHARDS: usize = 64;

/// Tuning: attempts of a worker to take a shard's lock, as long as a running holder has it, or to
/// take from a list without a lock.
pub const CONNECTION_LOCK_ATTEMPTS: u32 = 256;

/// Tuning: connections that a full list of half-open or ended ones gives up at once, so that the
/// worker waits once for their memory.
pub const CONNECTIONS_EVICTED: usize = 16;

/// Tuning: packets that a filter reads ahead of the one that it judges, to prefetch the places of
/// their connections.
pub const FILTER_AHEAD: usize = 4;

/// Tuning: places that are looked at to make room for one connection.
pub const HALF_OPEN_LOOKS: usize = 8;

/// Tuning: pause of the thread that removes connections that have timed out.
pub const CONNECTION_SWEEP_PAUSE: std::time::Duration = std::time::Duration::from_secs(1);

/// Time for which connections of the process before wait for their port, such as a port that its
/// front-end makes by its own socket.
pub const ORPHAN_CONNECTIONS_KEPT: std::time::Duration = std::time::Duration::from_secs(60);

/// Tuning: parts of the table of which the thread looks at one after each pause.
pub const CONNECTION_SWEEP_PARTS: usize = 10;

/// Tuning: buckets that a sweep looks at in one step.
pub const CONNECTION_SWEEP_BUCKETS: usize = 64;

/// Fragmented packets of one port and direction that are remembered, each for
/// [`FRAGMENT_SECONDS`]. Linux reassembles 4 MiB, some thousand packets, for all peers.
pub const MAX_FRAGMENTED_PACKETS: usize = 256;

/// Time that a packet's first fragment lets the others pass: Linux's `ipfrag_time`.
pub const FRAGMENT_SECONDS: u32 = 30;

/// Answers to rejected frames that a port causes at one worker in a second: Linux limits ICMP
/// errors to 1,000 a second for all peers.
pub const REJECTS_PER_SECOND: u32 = 100;

/// Answers to rejected frames that a port causes at one worker at once: as Linux.
pub const REJECT_BURST: u32 = 50;

/// Packets that a port's rules with `log` may note at once; the others are counted.
pub const RULE_LOG_PACKETS: usize = 16;

/// Packets that a port's rules with `log` may note in a second, as other events of a port.
pub const RULE_LOG_PER_SECOND: u32 = 1;

/// Longest answer to a rejected frame: the headers of an ICMPv6 error with two VLAN tags, and
/// [`REJECT_QUOTE`] bytes of the packet.
pub const MAX_REJECT_LEN: usize = 22 + 40 + 8 + REJECT_QUOTE;

/// Bytes of a rejected packet that its answer quotes: an IPv6 header, and eight bytes of the
/// transport header behind 80 bytes of extension headers. RFC 792 asks for IPv4 header and eight
/// bytes.
pub const REJECT_QUOTE: usize = 128;

/// Tuning: flows that a worker remembers. A burst has up to 64.
pub const REMEMBERED_FLOWS: usize = 256;
