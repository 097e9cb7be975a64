//! Packets for tests, and a checksum verifier that shares no code with `checksum`.

use std::net::Ipv6Addr;

use super::offload::{GSO_TCPV4, GSO_TCPV6, NEEDS_CSUM};
use super::{Sum, VnetHdr, multicast};

/// Adds the ones' complement sum of `bytes` to `sum`.
pub fn ones(mut sum: u32, bytes: &[u8]) -> u32 {
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum
}

/// Offset of the TCP header in the packets of this file.
pub fn l4(v6: bool) -> usize {
    14 + if v6 { 40 } else { 20 }
}

/// Returns the sum of a packet's pseudo-header.
pub fn pseudo(packet: &[u8], v6: bool) -> u32 {
    let addresses = if v6 { 22..54 } else { 26..34 };
    let len = (packet.len() - l4(v6)) as u32;
    ones(ones(6, &len.to_be_bytes()), &packet[addresses])
}

/// Returns a TCP packet with 12 bytes of options, whose checksum is left to the receiver.
pub fn tcp(v6: bool, payload: usize) -> Vec<u8> {
    let mut p = vec![2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 1];
    let len = payload + 32;
    if v6 {
        p.extend([0x86, 0xdd, 0x60, 0, 0, 0, (len >> 8) as u8, len as u8, 6, 64]);
        p.extend((0..32).map(|i| 0xfd ^ (i * 7)));
    } else {
        let total = len + 20;
        p.extend([8, 0, 0x45, 0, (total >> 8) as u8, total as u8, 0xff, 0xfe, 0x40, 0, 64, 6]);
        p.extend([0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        let sum = !ones(0, &p[14..34]) as u16;
        p[24..26].copy_from_slice(&sum.to_be_bytes());
    }
    p.extend([0x12, 0x34, 0x56, 0x78, 0xff, 0xff, 0xff, 0x00, 1, 2, 3, 4, 0x80, 0x18, 1, 0, 0, 0]);
    p.extend([0, 0, 1, 1, 8, 10, 5, 5, 5, 5, 6, 6, 6, 6]);
    p.extend((0..payload).map(|i| (i as u8).wrapping_mul(7).wrapping_add(3)));
    let at = l4(v6) + 16;
    let sum = pseudo(&p, v6) as u16;
    p[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    p
}

/// Returns the complete segments of a TCP stream over IPv4 to `port`, each of the given length.
pub fn segments(port: u16, count: u16, payload: usize) -> Vec<Vec<u8>> {
    let segment = |index: u16| {
        let mut p = tcp(false, payload);
        p[18..20].copy_from_slice(&index.to_be_bytes());
        p[24..26].fill(0);
        let sum = !ones(0, &p[14..34]) as u16;
        p[24..26].copy_from_slice(&sum.to_be_bytes());
        p[36..38].copy_from_slice(&port.to_be_bytes());
        let sequence = u32::from(index) * payload as u32;
        p[38..42].copy_from_slice(&sequence.to_be_bytes());
        // The flags: ACK only.
        p[47] = 0x10;
        let sum = !ones(0, &p[34..]) as u16;
        p[50..52].copy_from_slice(&sum.to_be_bytes());
        p
    };
    (0..count).map(segment).collect()
}

/// Returns a header that requests the checksum, and segments of `mss` bytes if `mss` is not 0.
pub fn asking(v6: bool, mss: u16) -> VnetHdr {
    let kind = if v6 { GSO_TCPV6 } else { GSO_TCPV4 };
    VnetHdr {
        flags: NEEDS_CSUM,
        gso_type: if mss == 0 { 0 } else { kind },
        gso_size: mss.to_le_bytes(),
        csum_start: (l4(v6) as u16).to_le_bytes(),
        csum_offset: [16, 0],
        ..VnetHdr::plain(0)
    }
}

/// Asserts that a complete packet has the right checksums and lengths.
pub fn check_whole(packet: &[u8], v6: bool) {
    let len = packet.len() - 14;
    if v6 {
        assert_eq!(usize::from(u16::from_be_bytes([packet[18], packet[19]])), len - 40);
    } else {
        assert_eq!(usize::from(u16::from_be_bytes([packet[16], packet[17]])), len);
        assert_eq!(ones(0, &packet[14..34]), 0xffff, "IPv4 header");
    }
    assert_eq!(ones(pseudo(packet, v6), &packet[l4(v6)..]), 0xffff, "TCP");
}

/// Writes the checksum of `bytes` and of the sum `before` at offset `at`.
pub fn put_sum(bytes: &mut [u8], at: usize, before: Sum) {
    bytes[at..at + 2].fill(0);
    let sum = !before.plus(Sum::of(bytes)).fold();
    bytes[at..at + 2].copy_from_slice(&sum.to_ne_bytes());
}

/// Returns an IGMP frame with a router alert.
pub fn igmp(from: [u8; 4], to: [u8; 4], message: &[u8]) -> Vec<u8> {
    let mut message = message.to_vec();
    put_sum(&mut message, 2, Sum::ZERO);
    let [high, low] = (24 + message.len() as u16).to_be_bytes();
    let mut head = vec![0x46, 0xc0, high, low, 0, 0, 0x40, 0, 1, 2, 0, 0];
    head.extend([from, to].concat());
    head.extend([0x94, 4, 0, 0]);
    put_sum(&mut head, 10, Sum::ZERO);
    [&multicast::mac(to.into())[..], &[2, 0, 0, 0, 0, 1, 8, 0], &head, &message].concat()
}

/// Returns an MLD frame.
pub fn mld(from: Ipv6Addr, to: Ipv6Addr, message: &[u8]) -> Vec<u8> {
    let mut message = message.to_vec();
    let len = message.len() as u16 + 8;
    let mut head = vec![0x60, 0, 0, 0, (len >> 8) as u8, len as u8, 0, 1];
    head.extend(from.octets());
    head.extend(to.octets());
    let pseudo = Sum::of(&head[8..]).word(message.len() as u16).word(58);
    put_sum(&mut message, 2, pseudo);
    head.extend([58, 0, 5, 2, 0, 0, 1, 0]);
    [&multicast::mac(to.into())[..], &[2, 0, 0, 0, 0, 1, 0x86, 0xdd], &head, &message].concat()
}
