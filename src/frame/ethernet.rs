//! Ethernet view of a frame's first bytes: its addresses, and the flow hash that keeps a flow on
//! one queue.
//!
//! Every function takes the snapshot of a frame (private memory) and its valid length; nothing
//! here panics on any content.

use super::MacAddr;
use crate::limits::SNAPSHOT_LEN;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_VLAN: u16 = 0x8100;
const ETHERTYPE_QINQ: u16 = 0x88a8;

/// First bytes of a frame, zero beyond the frame's end.
pub type Snapshot = [u8; SNAPSHOT_LEN];

/// Destination address of a frame of at least 14 bytes.
#[inline(always)]
pub fn destination(snapshot: &Snapshot) -> MacAddr {
    MacAddr([snapshot[0], snapshot[1], snapshot[2], snapshot[3], snapshot[4], snapshot[5]])
}

/// Source address of a frame of at least 14 bytes.
#[inline(always)]
pub fn source(snapshot: &Snapshot) -> MacAddr {
    MacAddr([snapshot[6], snapshot[7], snapshot[8], snapshot[9], snapshot[10], snapshot[11]])
}

/// Both addresses of a frame as two words, for asking "the same as the frame before?": bursts are
/// mostly one stream, and the question costs 6 instructions where comparing the
/// [`MacAddr::to_bits`] of both costs 22. The words keep the machine's byte order, so equality is
/// all they offer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Addresses {
    /// Octets 0 to 7: the destination and two of the source.
    first: u64,
    /// Octets 8 to 11: the rest of the source. Above 2^32 only for [`Addresses::NONE`].
    last: u64,
}

/// The destination's octets of [`Addresses`]' first word, on either byte order.
const DESTINATION: u64 = u64::from_ne_bytes([0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0]);

/// Addresses of a frame of at least 14 bytes.
#[inline(always)]
pub fn addresses(snapshot: &Snapshot) -> Addresses {
    let [a, b, c, d, e, f, g, h, i, j, k, l, ..] = *snapshot;
    Addresses {
        first: u64::from_ne_bytes([a, b, c, d, e, f, g, h]),
        last: u64::from(u32::from_ne_bytes([i, j, k, l])),
    }
}

impl Addresses {
    /// Those of no frame: whatever a sender writes, neither of its addresses is the same as here.
    pub const NONE: Addresses = Addresses { first: u64::MAX, last: u64::MAX };

    /// True if both are of frames with the same source.
    #[inline(always)]
    pub const fn same_source(self, other: Addresses) -> bool {
        ((self.first ^ other.first) & !DESTINATION) | (self.last ^ other.last) == 0
    }

    /// True if both are of frames with the same destination.
    #[inline(always)]
    pub const fn same_destination(self, other: Addresses) -> bool {
        // The upper half of the last word tells frames from none.
        ((self.first ^ other.first) & DESTINATION) | ((self.last ^ other.last) >> 32) == 0
    }
}

fn u16_at(snapshot: &Snapshot, at: usize) -> u16 {
    match snapshot.get(at..at + 2) {
        Some(&[a, b]) => u16::from_be_bytes([a, b]),
        _ => 0,
    }
}

fn mix(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// A hash that is equal for all frames of one flow: addresses and, for unfragmented TCP and UDP,
/// ports; MAC addresses for everything else. FNV-1a: only spreads flows over at most 16 queues, and
/// a guest that makes its flows collide slows only its own queue.
pub fn flow_hash(snapshot: &Snapshot) -> u32 {
    let mut at = 12;
    let mut ethertype = u16_at(snapshot, at);
    for _ in 0..2 {
        if ethertype == ETHERTYPE_VLAN || ethertype == ETHERTYPE_QINQ {
            at += 4;
            ethertype = u16_at(snapshot, at);
        }
    }
    let l3 = at + 2;
    let seed = 0xcbf2_9ce4_8422_2325;
    let hash = match ethertype {
        ETHERTYPE_IPV4 => ipv4_hash(snapshot, l3, seed),
        ETHERTYPE_IPV6 => ipv6_hash(snapshot, l3, seed),
        _ => mix(seed, &snapshot[..12]),
    };
    (hash ^ (hash >> 32)) as u32
}

fn ipv4_hash(snapshot: &Snapshot, l3: usize, seed: u64) -> u64 {
    let header_len = usize::from(snapshot[l3] & 0xf) * 4;
    // Later fragments carry no ports; all fragments of a datagram must take one queue.
    let fragment = u16_at(snapshot, l3 + 6) & 0x3fff != 0;
    let hash = mix(seed, snapshot.get(l3 + 12..l3 + 20).unwrap_or(&[]));
    let ports = l3 + header_len;
    match snapshot.get(l3 + 9) {
        Some(6 | 17) if !fragment => mix(hash, snapshot.get(ports..ports + 4).unwrap_or(&[])),
        _ => hash,
    }
}

fn ipv6_hash(snapshot: &Snapshot, l3: usize, seed: u64) -> u64 {
    let hash = mix(seed, snapshot.get(l3 + 8..l3 + 40).unwrap_or(&[]));
    match snapshot.get(l3 + 6) {
        Some(6 | 17) => mix(hash, snapshot.get(l3 + 40..l3 + 44).unwrap_or(&[])),
        _ => hash,
    }
}

#[cfg(test)]
mod tests {
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

    /// Every octet decides about the address it belongs to and about nothing else.
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

    /// A sender must not find octets that pass for those of a frame that was looked at.
    #[test]
    fn no_frame_has_the_addresses_of_none() {
        for octet in [0, 0xff] {
            let now = addresses(&[octet; SNAPSHOT_LEN]);
            assert!(now != Addresses::NONE);
            assert!(!now.same_source(Addresses::NONE));
            assert!(!now.same_destination(Addresses::NONE));
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
