//! Reads Ethernet fields from a frame's first bytes: the addresses, the VLAN tag, and the flow hash
//! that keeps a flow on one queue and matches the flow's answers.
//!
//! Every function takes the snapshot of a frame (private memory), and its valid length where that
//! matters; no content of a frame makes a function panic.

use super::MacAddr;
use super::fold::{PI, fold};
use super::protocol::{
    ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_QINQ, ETHERTYPE_VLAN, TCP, UDP,
};
use crate::limits::SNAPSHOT_LEN;

/// The first bytes of a frame; zeros behind the frame's end.
pub type Snapshot = [u8; SNAPSHOT_LEN];

/// Returns the destination address of a frame of at least 14 bytes.
#[inline(always)]
pub fn destination(snapshot: &Snapshot) -> MacAddr {
    MacAddr([snapshot[0], snapshot[1], snapshot[2], snapshot[3], snapshot[4], snapshot[5]])
}

/// Returns the source address of a frame of at least 14 bytes.
#[inline(always)]
pub fn source(snapshot: &Snapshot) -> MacAddr {
    MacAddr([snapshot[6], snapshot[7], snapshot[8], snapshot[9], snapshot[10], snapshot[11]])
}

/// The source and destination of a frame as two words, to compare a frame with the frame before:
/// bursts are mostly one stream, and this comparison costs 6 instructions where comparing both
/// [`MacAddr::to_bits`] costs 22. The words keep the machine's byte order, so only equality has a
/// meaning.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Addresses {
    /// Octets 0 to 7: the destination, and two octets of the source.
    first: u64,
    /// Octets 8 to 11: the rest of the source. Above 2^32 only for [`Addresses::NONE`].
    last: u64,
}

/// The bits of the destination in the first word of [`Addresses`], for either byte order.
const DESTINATION: u64 = u64::from_ne_bytes([0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0]);

/// Returns the addresses of a frame of at least 14 bytes.
#[inline(always)]
pub fn addresses(snapshot: &Snapshot) -> Addresses {
    let [a, b, c, d, e, f, g, h, i, j, k, l, ..] = *snapshot;
    Addresses {
        first: u64::from_ne_bytes([a, b, c, d, e, f, g, h]),
        last: u64::from(u32::from_ne_bytes([i, j, k, l])),
    }
}

impl Addresses {
    /// The addresses of no frame: no frame's source or destination equals these.
    pub const NONE: Addresses = Addresses { first: u64::MAX, last: u64::MAX };

    /// Returns true if both frames have one source.
    #[inline(always)]
    pub const fn same_source(self, other: Addresses) -> bool {
        ((self.first ^ other.first) & !DESTINATION) | (self.last ^ other.last) == 0
    }

    /// Returns true if both frames have one destination.
    #[inline(always)]
    pub const fn same_destination(self, other: Addresses) -> bool {
        // The upper half of `last` distinguishes every frame from `NONE`.
        ((self.first ^ other.first) & DESTINATION) | ((self.last ^ other.last) >> 32) == 0
    }
}

/// Bytes of a VLAN tag, EtherType included.
pub const VLAN_TAG_LEN: usize = 4;

/// Returns the TCI of the VLAN tag of a frame that begins with `bytes`, at least 14 bytes; `None`
/// without a tag. A truncated tag gives VLAN ID 0xfff, which no VLAN has.
#[inline]
pub fn vlan_tag(bytes: &[u8]) -> Option<u16> {
    let word =
        |at: usize| bytes.get(at..).and_then(<[u8]>::first_chunk).map(|b| u16::from_be_bytes(*b));
    (word(12) == Some(ETHERTYPE_VLAN))
        .then(|| word(14).filter(|_| bytes.len() >= 18).unwrap_or(0x0fff))
}

/// The bytes of a frame that decide its VLAN and how the frame may leave: type and value of the
/// tag, and the type behind the tag. For two frames with equal tag bytes [`vlan_tag`] returns equal
/// values, and so does [`is_tagged`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TagBytes(u64);

impl TagBytes {
    /// The tag bytes of a frame without a tag.
    pub const NONE: TagBytes = TagBytes(0);
    /// The tag bytes of no frame.
    pub const UNKNOWN: TagBytes = TagBytes(u64::MAX);

    /// Returns the tag bytes of the frame that begins with `snapshot`. `len` is the length of the
    /// whole frame in bytes; the caller ensures that `len` is at least 14.
    #[inline(always)]
    pub fn of(snapshot: &Snapshot, len: u32) -> TagBytes {
        // `u64_at` puts the first byte lowest, whatever the machine's byte order.
        const TYPES: [u64; 2] =
            [ETHERTYPE_VLAN.swap_bytes() as u64, ETHERTYPE_QINQ.swap_bytes() as u64];
        let word = u64_at(snapshot, 12);
        if !TYPES.contains(&(word & 0xffff)) {
            return TagBytes::NONE;
        }
        // The snapshot's bytes after the end of the frame do not count: bit 48 marks a frame that
        // ends inside its tag, and no whole tag has bit 48.
        let is_cut_off = len < 14 + VLAN_TAG_LEN as u32;
        TagBytes(if is_cut_off { word & 0xffff | 1 << 48 } else { word & 0xffff_ffff_ffff })
    }
}

/// The change to the tag of a frame that leaves by a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagEdit {
    /// Leaves the frame as it is.
    Keep,
    /// Removes the tag.
    Pop,
    /// Inserts a tag with this TCI.
    Push(u16),
    /// Replaces the tag's TCI by this value.
    Rewrite(u16),
}

/// Returns true if a service tag (0x88a8) is at offset `at` of `bytes`.
pub fn is_service_tagged(bytes: &[u8], at: usize) -> bool {
    bytes.get(at..at + 2) == Some(&ETHERTYPE_QINQ.to_be_bytes())
}

/// Returns true if a VLAN tag of either type is at offset `at` of `bytes`.
pub fn is_tagged(bytes: &[u8], at: usize) -> bool {
    is_service_tagged(bytes, at) || bytes.get(at..at + 2) == Some(&ETHERTYPE_VLAN.to_be_bytes())
}

/// Returns the offset of the network header, behind Ethernet and up to two VLAN tags, in a frame
/// that begins with `bytes`: at least 14, at most 22, perhaps beyond the end of `bytes`.
#[inline]
pub fn l3_offset(bytes: &[u8]) -> usize {
    let tagged = |at: usize| match bytes.get(at..).and_then(<[u8]>::first_chunk) {
        Some(&tag) => matches!(u16::from_be_bytes(tag), ETHERTYPE_VLAN | ETHERTYPE_QINQ),
        None => false,
    };
    let tags = if !tagged(12) {
        0
    } else if !tagged(16) {
        1
    } else {
        2
    };
    14 + 4 * tags
}

/// Returns a hash of a frame's two ends, in either order: equal for all frames of a flow and for
/// all answers to them. An end is an IP address and, for unfragmented TCP and UDP, a port; for ARP
/// the protocol address of a station, since a request and its reply have only protocol addresses in
/// common; for other protocols a MAC address. Up to two VLAN tags are skipped; ports beyond the
/// snapshot's end (IPv6 behind two tags) do not count.
///
/// The hash has no key: it only spreads flows over the queues of a guest, and a guest that makes
/// flows collide slows only itself. Two or four folded multiplications over whole words are the
/// construction of wyhash and foldhash: the low bits are as good as the high bits, and the hash
/// takes half the instructions of a bytewise FNV-1a and few dependent multiplications. The smaller
/// end goes first; a sum or difference of both ends takes few values for ends that count alike
/// (ports 5000 to 5000, 5001 to 5001, …).
#[inline]
pub fn flow_hash(snapshot: &Snapshot) -> u32 {
    match u16_at(snapshot, 12) {
        ETHERTYPE_VLAN | ETHERTYPE_QINQ => tagged_flow_hash(snapshot),
        // A constant offset saves a dozen comparisons with the snapshot's end.
        ethertype => ends_hash(snapshot, ethertype, 14),
    }
}

#[inline(never)]
fn tagged_flow_hash(snapshot: &Snapshot) -> u32 {
    let second = matches!(u16_at(snapshot, 16), ETHERTYPE_VLAN | ETHERTYPE_QINQ);
    let at = if second { 20 } else { 16 };
    ends_hash(snapshot, u16_at(snapshot, at), at + 2)
}

/// Returns the flow hash of a frame whose network header is at `l3`.
#[inline(always)]
fn ends_hash(snapshot: &Snapshot, ethertype: u16, l3: usize) -> u32 {
    let (one, other) = match ethertype {
        ETHERTYPE_IPV4 => ipv4_ends(snapshot, l3),
        ETHERTYPE_IPV6 => ipv6_ends(snapshot, l3),
        ETHERTYPE_ARP if bytes_at(snapshot, l3 + 2) == ARP_OF_IPV4 => {
            (u32_at(snapshot, l3 + 14).into(), u32_at(snapshot, l3 + 24).into())
        }
        _ => ((u64_at(snapshot, 0) << 16) >> 16, u64_at(snapshot, 4) >> 16),
    };
    let (low, high) = if one < other { (one, other) } else { (other, one) };
    fold(fold(low ^ PI[0], PI[1]) ^ high, PI[2]) as u32
}

/// Protocol type and both address lengths of an ARP packet for IPv4 on Ethernet (RFC 826).
const ARP_OF_IPV4: [u8; 4] = [8, 0, 6, 4];

/// Returns both ends of an IPv4 packet, with ports if all frames of its flow have ports.
#[inline(always)]
fn ipv4_ends(snapshot: &Snapshot, l3: usize) -> (u64, u64) {
    // Later fragments have no ports, and all fragments of a datagram must take one queue.
    let fragment = u16_at(snapshot, l3 + 6) & 0x3fff != 0;
    let [header] = bytes_at(snapshot, l3);
    let ports = match bytes_at(snapshot, l3 + 9) {
        [TCP | UDP] if !fragment => u32_at(snapshot, l3 + usize::from(header & 0xf) * 4),
        _ => 0,
    };
    let end = |at, port| u64::from(u32_at(snapshot, at)) | u64::from(port) << 32;
    (end(l3 + 12, ports & 0xffff), end(l3 + 16, ports >> 16))
}

/// Returns both ends of an IPv6 packet, folded, with ports if TCP or UDP directly follows its
/// header.
#[inline(always)]
fn ipv6_ends(snapshot: &Snapshot, l3: usize) -> (u64, u64) {
    let ports = match bytes_at(snapshot, l3 + 6) {
        [TCP | UDP] => u32_at(snapshot, l3 + 40),
        _ => 0,
    };
    let end = |at, port| {
        let (network, host) = (u64_at(snapshot, at), u64_at(snapshot, at + 8));
        fold(network ^ PI[3], host ^ PI[4]) ^ u64::from(port)
    };
    (end(l3 + 8, ports & 0xffff), end(l3 + 24, ports >> 16))
}

/// Returns `N` bytes from `at`; zeros if the snapshot ends before the last byte.
#[inline(always)]
fn bytes_at<const N: usize>(snapshot: &Snapshot, at: usize) -> [u8; N] {
    snapshot.get(at..).and_then(<[u8]>::first_chunk).copied().unwrap_or([0; N])
}

#[inline(always)]
fn u16_at(snapshot: &Snapshot, at: usize) -> u16 {
    u16::from_be_bytes(bytes_at(snapshot, at))
}

#[inline(always)]
fn u32_at(snapshot: &Snapshot, at: usize) -> u32 {
    u32::from_le_bytes(bytes_at(snapshot, at))
}

#[inline(always)]
fn u64_at(snapshot: &Snapshot, at: usize) -> u64 {
    u64::from_le_bytes(bytes_at(snapshot, at))
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;

    fn ipv4(proto: u8, fragment: u16, port: u16) -> Snapshot {
        let mut s = [0u8; SNAPSHOT_LEN];
        s[12..14].copy_from_slice(&ETHERTYPE_IPV4.to_be_bytes());
        s[14] = 0x45;
        s[20..22].copy_from_slice(&fragment.to_be_bytes());
        s[23] = proto;
        s[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        s[34..36].copy_from_slice(&port.to_be_bytes());
        s
    }

    #[test]
    fn ports_separate_flows_unless_fragmented() {
        assert_ne!(flow_hash(&ipv4(6, 0, 1)), flow_hash(&ipv4(6, 0, 2)));
        assert_eq!(flow_hash(&ipv4(17, 0x2000, 1)), flow_hash(&ipv4(17, 0x0010, 2)));
        assert_eq!(flow_hash(&ipv4(1, 0, 1)), flow_hash(&ipv4(1, 0, 2)));
    }

    /// Each octet changes its own address and no other.
    #[test]
    fn addresses_are_compared_octet_by_octet() {
        let mut s = [0u8; SNAPSHOT_LEN];
        for (i, octet) in s.iter_mut().enumerate() {
            *octet = 0x80 | i as u8;
        }
        let (before, old_to, old_from) = (addresses(&s), destination(&s), source(&s));
        for at in 0..SNAPSHOT_LEN {
            for bit in 0..8 {
                s[at] ^= 1 << bit;
                let now = addresses(&s);
                let case = format!("octet {at}, bit {bit}");
                let (to, from) = (destination(&s), source(&s));
                assert_eq!(now == before, at >= 12, "{case}");
                assert_eq!(now.same_destination(before), to == old_to, "{case}");
                assert_eq!(now.same_source(before), from == old_from, "{case}");
                s[at] ^= 1 << bit;
            }
        }
    }

    /// A sender must not be able to write octets that equal `NONE`.
    #[test]
    fn no_frame_has_the_addresses_of_none() {
        for octet in [0, 0xff] {
            let now = addresses(&[octet; SNAPSHOT_LEN]);
            assert!(now != Addresses::NONE);
            assert!(!now.same_source(Addresses::NONE));
            assert!(!now.same_destination(Addresses::NONE));
        }
    }

    /// Returns a frame with different octets everywhere except in `middle`, which begins at the
    /// EtherType.
    fn frame(middle: &[u8]) -> Snapshot {
        let mut s = [0u8; SNAPSHOT_LEN];
        for (i, octet) in s.iter_mut().enumerate() {
            *octet = (i as u8).wrapping_mul(37) | 1;
        }
        s[12..12 + middle.len()].copy_from_slice(middle);
        s
    }

    /// One end of a flow: the octets of its address, and of its port.
    type End = (Range<usize>, Range<usize>);

    /// A kind of frame.
    struct Kind {
        name: &'static str,
        /// Octets from the EtherType to the end of the frame's structure.
        middle: &'static [u8],
        /// Both ends of the flow.
        ends: [End; 2],
    }

    const fn kind(name: &'static str, middle: &'static [u8], one: End, other: End) -> Kind {
        Kind { name, middle, ends: [one, other] }
    }

    const TCP4: Kind = kind(
        "TCP",
        &[8, 0, 0x45, 0, 0, 50, 0, 1, 0x40, 0, 64, 6],
        (26..30, 34..36),
        (30..34, 36..38),
    );
    const UDP6: Kind =
        kind("UDP6", &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 8, 17], (22..38, 54..56), (38..54, 56..58));
    const ICMP6: Kind =
        kind("ICMP6", &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 8, 58], (22..38, 0..0), (38..54, 0..0));
    const ARP: Kind = kind("ARP", &[8, 6, 0, 1, 8, 0, 6, 4], (28..32, 0..0), (38..42, 0..0));
    const OTHER: Kind = kind("other", &[0x88, 0xb5], (0..6, 0..0), (6..12, 0..0));
    const KINDS: [Kind; 12] = [
        TCP4,
        UDP6,
        ARP,
        OTHER,
        kind("ARP of another protocol", &[8, 6, 0, 1, 8, 6, 6, 4], (0..6, 0..0), (6..12, 0..0)),
        kind(
            "options",
            &[8, 0, 0x47, 0, 0, 50, 0, 1, 0x40, 0, 64, 17],
            (26..30, 42..44),
            (30..34, 44..46),
        ),
        kind(
            "fragment",
            &[8, 0, 0x45, 0, 0, 50, 0, 1, 0x20, 0, 64, 17],
            (26..30, 0..0),
            (30..34, 0..0),
        ),
        kind("ICMP", &[8, 0, 0x45, 0, 0, 50, 0, 1, 0, 0, 64, 1], (26..30, 0..0), (30..34, 0..0)),
        ICMP6,
        kind(
            "VLAN UDP",
            &[0x81, 0, 0, 5, 8, 0, 0x45, 0, 0, 50, 0, 1, 0x40, 0, 64, 17],
            (30..34, 38..40),
            (34..38, 40..42),
        ),
        kind(
            "QinQ TCP",
            &[0x88, 0xa8, 0, 7, 0x81, 0, 0, 5, 8, 0, 0x45, 0, 0, 50, 0, 1, 0x40, 0, 64, 6],
            (34..38, 42..44),
            (38..42, 44..46),
        ),
        kind(
            "QinQ UDP6",
            &[0x88, 0xa8, 0, 7, 0x81, 0, 0, 5, 0x86, 0xdd, 0x60, 0, 0, 0, 0, 8, 17],
            (30..46, 0..0),
            (46..62, 0..0),
        ),
    ];

    #[test]
    fn a_flow_is_its_addresses_and_ports_and_nothing_else() {
        for Kind { name, middle, ends } in &KINDS {
            let mut s = frame(middle);
            let hash = flow_hash(&s);
            for at in (0..12).chain(12 + middle.len()..SNAPSHOT_LEN) {
                s[at] ^= 0x40;
                let differs = ends.iter().any(|(a, p)| a.contains(&at) || p.contains(&at));
                assert_eq!(flow_hash(&s) != hash, differs, "{name}, octet {at}");
                s[at] ^= 0x40;
            }
        }
    }

    fn swap(s: &mut Snapshot, one: &Range<usize>, other: &Range<usize>) {
        for (a, b) in one.clone().zip(other.clone()) {
            s.swap(a, b);
        }
    }

    #[test]
    fn both_directions_of_a_flow_have_one_hash() {
        let mut seed = 1u64;
        for Kind { name, middle, ends: [one, other] } in &KINDS {
            for _ in 0..100 {
                let mut s = frame(middle);
                for octet in &mut s[12 + middle.len()..] {
                    seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
                    *octet = (seed >> 56) as u8;
                }
                let there = flow_hash(&s);
                swap(&mut s, &one.0, &other.0);
                // An address with the other end's port is another flow.
                assert_eq!(flow_hash(&s) != there, !one.1.is_empty(), "{name}, addresses");
                swap(&mut s, &one.1, &other.1);
                assert_eq!(flow_hash(&s), there, "{name}");
            }
        }
    }

    /// A request is broadcast, and its reply goes to the station that asked.
    #[test]
    fn an_arp_reply_belongs_to_its_request() {
        let (asks, answers) = ([10, 0, 0, 1], [10, 0, 0, 2]);
        let mut request = frame(ARP.middle);
        request[..6].fill(0xff);
        request[28..32].copy_from_slice(&asks);
        request[38..42].copy_from_slice(&answers);
        let mut reply = frame(ARP.middle);
        reply[28..32].copy_from_slice(&answers);
        reply[38..42].copy_from_slice(&asks);
        assert_eq!(flow_hash(&request), flow_hash(&reply));
    }

    #[test]
    fn tags_do_not_change_a_flow() {
        for Kind { name, middle, .. } in [TCP4, ICMP6] {
            let plain = frame(middle);
            let mut tagged = plain;
            for tag in [[0x81, 0, 0, 5], [0x88, 0xa8, 0, 7]] {
                tagged.copy_within(12..SNAPSHOT_LEN - 4, 16);
                tagged[12..16].copy_from_slice(&tag);
                assert_eq!(flow_hash(&tagged), flow_hash(&plain), "{name} {tag:x?}");
            }
            // A third tag is payload: only the MAC addresses count.
            tagged.copy_within(12..SNAPSHOT_LEN - 4, 16);
            let hash = flow_hash(&tagged);
            tagged[SNAPSHOT_LEN - 20] ^= 1;
            assert_eq!(flow_hash(&tagged), hash, "{name}");
            tagged[0] ^= 2;
            assert_ne!(flow_hash(&tagged), hash, "{name}");
        }
    }

    /// The chi-square of a random load equals its degrees of freedom on average; eight standard
    /// deviations more, and a margin for skew, are no chance.
    fn is_even(load: &[u32]) -> bool {
        let mean = f64::from(load.iter().sum::<u32>()) / load.len() as f64;
        let chi: f64 = load.iter().map(|&n| (f64::from(n) - mean).powi(2) / mean).sum();
        let freedom = (load.len() - 1) as f64;
        chi < freedom + 8.0 * (2.0 * freedom).sqrt() + 8.0
    }

    /// Hashes must be even in their upper bits, which choose a queue, and in their lower bits,
    /// which choose a slot in the table of flows.
    fn assert_even(name: &str, hashes: &[u32]) {
        for parts in (2..=16).chain([64]) {
            let (mut upper, mut lower) = (vec![0u32; parts], vec![0u32; parts]);
            for &hash in hashes {
                upper[((u64::from(hash) * parts as u64) >> 32) as usize] += 1;
                lower[hash as usize % parts] += 1;
            }
            assert!(is_even(&upper), "{name}, upper bits: {upper:?}");
            assert!(is_even(&lower), "{name}, lower bits: {lower:?}");
        }
    }

    /// Flows are numbered like real flows: clients count their ports, Linux in steps of two; hosts
    /// of a subnet and VMs of a host count their addresses.
    #[test]
    fn numbered_flows_spread_over_any_number_of_queues() {
        const FLOWS: u32 = 4096;
        let [tcp, udp6, arp, other] = [TCP4, UDP6, ARP, OTHER].map(|kind| kind.middle);
        // Frame, offset of a 32-bit number that counts the flows, and step of the number.
        let patterns = [
            ("source port", tcp, 32, 1),
            ("source port, even", tcp, 32, 2),
            ("destination port", tcp, 34, 1),
            ("both ports", tcp, 34, 0x1_0001),
            ("ports in steps of 16 and 1", tcp, 34, 0x10_0001),
            ("source address", tcp, 26, 1),
            ("destination network", tcp, 30, 256),
            ("IPv6 host", udp6, 34, 1),
            ("IPv6 other host", udp6, 50, 1),
            ("IPv6 network", udp6, 42, 256),
            ("IPv6 port", udp6, 52, 2),
            ("IPv6 both ports", udp6, 54, 0x1_0001),
            ("ARP target", arp, 38, 1),
            ("MAC address", other, 8, 1),
            ("MAC address, high", other, 0, 0x1_0000),
        ];
        for (name, middle, at, step) in patterns {
            let hashes: Vec<u32> = (0..FLOWS)
                .map(|i| {
                    let mut s = frame(middle);
                    let number = u32::from_be_bytes(bytes_at(&s, at));
                    let number = number.wrapping_add(i.wrapping_mul(step));
                    s[at..at + 4].copy_from_slice(&number.to_be_bytes());
                    flow_hash(&s)
                })
                .collect();
            assert_even(name, &hashes);
        }
    }

    /// The ends of these flows differ in a few bits only, so either end may be the smaller one:
    /// 10.0.0.1:5000 to 10.0.0.2:5001, and all flows that count from there.
    #[test]
    fn flows_between_neighbours_spread_over_any_number_of_queues() {
        let net4 = [10, 0, 0, 0];
        let net6 = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        for (Kind { middle, ends, .. }, net) in [(TCP4, &net4[..]), (UDP6, &net6[..])] {
            let between = |hosts: [u8; 2], ports: [u16; 2]| {
                let mut s = frame(middle);
                for ((address, port), (host, number)) in ends.iter().zip(hosts.iter().zip(ports)) {
                    s[address.clone()].copy_from_slice(net);
                    s[address.end - 1] = *host;
                    s[port.clone()].copy_from_slice(&number.to_be_bytes());
                }
                flow_hash(&s)
            };
            let grid = |edge: u16, flow: &dyn Fn(u16, u16) -> u32| -> Vec<u32> {
                (0..edge)
                    .flat_map(|a| (0..edge).map(move |b| (a, b)))
                    .map(|(a, b)| flow(a, b))
                    .collect()
            };
            let ports = grid(64, &|a, b| between([1, 2], [5000 + a, 5000 + b]));
            assert_even("two hosts, all ports to all", &ports);
            let same = grid(64, &|a, b| between([1, 2], [5000 + 64 * a + b; 2]));
            assert_even("two hosts, a port to itself", &same);
            let pairs = (0..240).flat_map(|a| (0..a).map(move |b| (a as u8, b as u8)));
            let hosts: Vec<u32> = pairs.map(|(a, b)| between([a, b], [4789, 4789])).collect();
            assert_even("all hosts of a network, one port", &hosts);
            let server = grid(64, &|a, b| between([a as u8, 200], [32768 + 2 * b, 443]));
            assert_even("a server and its clients", &server);
            // Different flows have different hashes, except by chance: among 4,096 of 2^32 values,
            // two collide once in 500 times.
            for mut set in [ports, same, server] {
                let all = set.len();
                set.sort_unstable();
                set.dedup();
                assert!(set.len() + 2 >= all, "{} of {all}", set.len());
            }
        }
    }

    #[test]
    fn any_content_is_hashed_without_panic() {
        let mut seed = 1u64;
        for _ in 0..20_000 {
            let mut s = [0u8; SNAPSHOT_LEN];
            for b in &mut s {
                seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
                *b = (seed >> 56) as u8;
            }
            for ethertype in [ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN, ETHERTYPE_QINQ] {
                s[12..14].copy_from_slice(&ethertype.to_be_bytes());
                s[16..18].copy_from_slice(&ethertype.to_be_bytes());
                flow_hash(&s);
            }
        }
    }
}
