//! The virtio-net header (5.1.6.1) as a driver writes and reads it, and what section 5.1.6.4 and
//! the switch promise of the one before a received frame.

use super::frontend::feat;

pub const NEEDS_CSUM: u8 = 1;
pub const DATA_VALID: u8 = 2;
pub const GSO_NONE: u8 = 0;
pub const GSO_TCPV4: u8 = 1;
/// Fragmentation offload of old: never offered.
pub const GSO_UDP: u8 = 3;
pub const GSO_TCPV6: u8 = 4;
pub const GSO_UDP_L4: u8 = 5;
pub const GSO_ECN: u8 = 0x80;

const ETHER: usize = 14;
const IPV6_HEADER: usize = 40;
const UDP_HEADER: usize = 8;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Header {
    pub flags: u8,
    pub gso_type: u8,
    pub hdr_len: u16,
    pub gso_size: u16,
    pub csum_start: u16,
    pub csum_offset: u16,
    /// 0 in the legacy header, which lacks it.
    pub num_buffers: u16,
}

impl Header {
    /// From the 10 or 12 bytes of a ring.
    pub fn parse(bytes: &[u8]) -> Header {
        let word = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        Header {
            flags: bytes[0],
            gso_type: bytes[1],
            hdr_len: word(2),
            gso_size: word(4),
            csum_start: word(6),
            csum_offset: word(8),
            num_buffers: if bytes.len() > 10 { word(10) } else { 0 },
        }
    }

    /// Its first `len` bytes, 10 or 12.
    pub fn bytes(&self, len: usize) -> Vec<u8> {
        let words =
            [self.hdr_len, self.gso_size, self.csum_start, self.csum_offset, self.num_buffers];
        let mut out = vec![self.flags, self.gso_type];
        out.extend(words.iter().flat_map(|w| w.to_le_bytes()));
        out.truncate(len);
        out
    }

    /// The same but for the number of buffers, which is the receiver's affair.
    pub fn request(&self) -> Header {
        Header { num_buffers: 0, ..*self }
    }
}

/// The feature a receiver must have acknowledged for this segmentation type; none if no feature
/// allows it.
fn receiver_feature(gso_type: u8, v6: bool) -> Option<u64> {
    match (gso_type & !GSO_ECN, v6) {
        (GSO_TCPV4, false) => Some(feat::GUEST_TSO4),
        (GSO_TCPV6, true) => Some(feat::GUEST_TSO6),
        (GSO_UDP_L4, false) => Some(feat::GUEST_USO4),
        (GSO_UDP_L4, true) => Some(feat::GUEST_USO6),
        _ => None,
    }
}

/// Checks the header of a received frame against the receiver's features and the frame itself.
pub fn check(features: u64, header: &Header, frame: &[u8]) -> Result<(), &'static str> {
    let h = header;
    if h.flags & !(NEEDS_CSUM | DATA_VALID) != 0 || h.flags == NEEDS_CSUM | DATA_VALID {
        return Err("flags");
    }
    if h.flags != 0 && features & feat::GUEST_CSUM == 0 {
        return Err("flags without GUEST_CSUM");
    }
    if h.flags & NEEDS_CSUM == 0 {
        let rest = [h.gso_type.into(), h.hdr_len, h.gso_size, h.csum_start, h.csum_offset];
        return if rest == [0; 5] { Ok(()) } else { Err("fields of a request, but none flagged") };
    }
    let sum_at = usize::from(h.csum_start) + usize::from(h.csum_offset);
    if usize::from(h.csum_start) < ETHER || sum_at + 2 > frame.len() {
        return Err("checksum outside the packet");
    }
    if h.gso_type == GSO_NONE {
        let zero = h.hdr_len == 0 && h.gso_size == 0;
        return if zero { Ok(()) } else { Err("fields of segmentation, but no type") };
    }
    check_gso(features, h, frame)
}

fn check_gso(features: u64, h: &Header, frame: &[u8]) -> Result<(), &'static str> {
    let l3 = network_offset(frame);
    let v6 = frame[l3] >> 4 == 6;
    let feature = receiver_feature(h.gso_type, v6).ok_or("segmentation type")?;
    if features & feature == 0 {
        return Err("segmentation type was not acknowledged");
    }
    if h.gso_type & GSO_ECN != 0 && features & feat::GUEST_ECN == 0 {
        return Err("ECN was not acknowledged");
    }
    let start = usize::from(h.csum_start);
    let transport = match h.gso_type & !GSO_ECN {
        GSO_UDP_L4 => UDP_HEADER,
        _ => usize::from(frame[start + 12] >> 4) * 4,
    };
    if usize::from(h.hdr_len) != start + transport {
        return Err("hdr_len");
    }
    let size = usize::from(h.gso_size);
    if size == 0 || frame.len() <= usize::from(h.hdr_len) + size {
        return Err("gso_size");
    }
    let field = |at: usize| usize::from(u16::from_be_bytes([frame[at], frame[at + 1]]));
    let said = if v6 { IPV6_HEADER + field(l3 + 4) } else { field(l3 + 2) };
    if l3 + said != frame.len() { Err("the packet's own length") } else { Ok(()) }
}

/// Offset of the network header, behind at most two VLAN tags.
pub fn network_offset(frame: &[u8]) -> usize {
    let tagged = |at: usize| matches!(frame[at..at + 2], [0x81, 0x00] | [0x88, 0xa8]);
    match (tagged(12), tagged(16)) {
        (false, _) => ETHER,
        (true, false) => ETHER + 4,
        (true, true) => ETHER + 8,
    }
}
