//! Well-formed packets from an input, and the slow arithmetic they are judged by.
//!
//! Written from the RFCs, two bytes at a time; nothing here is the crate's.

use base::frame::VnetHdr;

use super::input::Input;

/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`.
pub const NEEDS_CSUM: u8 = 1;

/// A packet and where its parts are.
#[derive(Debug, Clone)]
pub struct Packet {
    pub frame: Vec<u8>,
    pub l3: usize,
    pub l4: usize,
    /// Bytes of all headers.
    pub headers: usize,
    pub v4: bool,
    pub tcp: bool,
}

impl Packet {
    /// A TCP or UDP packet with up to two tags, options or extension headers, and up to
    /// `most` bytes of payload; its checksum field holds the pseudo-header's sum.
    pub fn from_input(input: &mut Input<'_>, most: usize) -> Packet {
        let (v4, tcp) = (input.flag(), input.flag());
        let mut frame = vec![2, 0, 0, 0, 0, input.u8(), 2, 0, 0, 0, 1, input.u8()];
        for _ in 0..input.below(3) {
            frame.extend(input.choose(&[[0x81, 0], [0x88, 0xa8]]));
            frame.extend(input.u16().to_be_bytes());
        }
        frame.extend(if v4 { [8, 0] } else { [0x86, 0xdd] });
        let l3 = frame.len();
        let proto = if tcp { 6 } else { 17 };
        if v4 {
            ipv4(input, &mut frame, proto)
        } else {
            ipv6(input, &mut frame, proto)
        }
        let l4 = frame.len();
        if tcp {
            let options = input.below(11);
            frame.extend([0x12, input.u8(), 0x56, 0x78]);
            frame.extend(input.u32().to_be_bytes());
            frame.extend([1, 2, 3, 4, ((5 + options) << 4) as u8, input.u8(), 1, 0]);
            frame.extend([0, 0, 0, 0]);
            frame.extend(padded(input, 4 * options));
        } else {
            frame.extend([0x12, input.u8(), 0x56, 0x78, 0, 0, 0, 0]);
        }
        let headers = frame.len();
        let payload = input.below(most + 1);
        let (seed, step) = (input.u8(), input.u8());
        frame.extend((0..payload).map(|i| (i as u8).wrapping_mul(step).wrapping_add(seed)));
        let mut packet = Packet { frame, l3, l4, headers, v4, tcp };
        packet.set_lengths();
        let sum = packet.pseudo() as u16;
        let at = packet.csum_at();
        packet.frame[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        packet
    }

    fn set_lengths(&mut self) {
        let (len, l3, l4) = (self.frame.len(), self.l3, self.l4);
        if self.v4 {
            self.put(l3 + 2, len - l3);
            self.put(l3 + 10, 0);
            let sum = !(ones(0, &self.frame[l3..l4]) as u16);
            self.put(l3 + 10, sum.into());
        } else {
            self.put(l3 + 4, len - l3 - 40);
        }
        if !self.tcp {
            self.put(l4 + 4, len - l4);
        }
    }

    fn put(&mut self, at: usize, value: usize) {
        self.frame[at..at + 2].copy_from_slice(&(value as u16).to_be_bytes());
    }

    /// Where the transport checksum stands.
    pub fn csum_at(&self) -> usize {
        self.l4 + if self.tcp { 16 } else { 6 }
    }

    /// Sum of the pseudo-header: addresses, length, protocol.
    pub fn pseudo(&self) -> u32 {
        let addresses =
            if self.v4 { self.l3 + 12..self.l3 + 20 } else { self.l3 + 8..self.l3 + 40 };
        let len = (self.frame.len() - self.l4) as u32;
        let proto = if self.tcp { 6 } else { 17 };
        ones(ones(proto, &len.to_be_bytes()), &self.frame[addresses])
    }

    /// The header of a driver that leaves the checksum, and segments of `size` bytes unless 0.
    pub fn asking(&self, size: u16) -> VnetHdr {
        let kind = match (self.v4, self.tcp) {
            _ if size == 0 => 0,
            (true, true) => 1,
            (false, true) => 4,
            (_, false) => 5,
        };
        // CWR asks for care with ECN, which is a type of its own.
        let ecn = if self.tcp && size != 0 { self.frame[self.l4 + 13] & 0x80 } else { 0 };
        VnetHdr {
            flags: NEEDS_CSUM,
            gso_type: kind | ecn,
            hdr_len: (self.headers as u16).to_le_bytes(),
            gso_size: size.to_le_bytes(),
            csum_start: (self.l4 as u16).to_le_bytes(),
            csum_offset: ((self.csum_at() - self.l4) as u16).to_le_bytes(),
            num_buffers: [0; 2],
        }
    }

    /// Fails unless lengths and checksums are those of a complete packet.
    pub fn assert_whole(&self) {
        let (len, l3, l4) = (self.frame.len(), self.l3, self.l4);
        let number =
            |at: usize| usize::from(u16::from_be_bytes([self.frame[at], self.frame[at + 1]]));
        if self.v4 {
            assert_eq!(number(l3 + 2), len - l3, "IPv4 length");
            assert_eq!(ones(0, &self.frame[l3..l4]), 0xffff, "IPv4 checksum");
        } else {
            assert_eq!(number(l3 + 4), len - l3 - 40, "IPv6 length");
        }
        if !self.tcp {
            assert_eq!(number(l4 + 4), len - l4, "UDP length");
        }
        assert_ne!(number(self.csum_at()), 0, "a checksum of zero says there is none");
        assert_eq!(ones(self.pseudo(), &self.frame[l4..]), 0xffff, "transport checksum");
    }
}

fn ipv4(input: &mut Input<'_>, frame: &mut Vec<u8>, proto: u8) {
    let options = input.below(11);
    let [high, low] = input.u16().to_be_bytes();
    frame.extend([0x45 + options as u8, input.u8(), 0, 0, high, low, 0x40, 0, 64, proto, 0, 0]);
    frame.extend([10, 0, 0, input.u8(), 10, 0, 0, input.u8()]);
    frame.extend(padded(input, 4 * options));
}

fn ipv6(input: &mut Input<'_>, frame: &mut Vec<u8>, proto: u8) {
    // Hop-by-hop, routing, destination options: those that another header follows.
    // The first only in front (RFC 8200 section 4.1).
    let count = input.below(4);
    let extensions: Vec<u8> = (0..count)
        .map(|i| if i == 0 { input.choose(&[0, 43, 60]) } else { input.choose(&[43, 60]) })
        .collect();
    let first = extensions.first().copied().unwrap_or(proto);
    frame.extend([0x60, input.u8(), 0, 0, 0, 0, first, 64]);
    frame.extend(padded(input, 32));
    for i in 0..extensions.len() {
        let words = input.below(3);
        frame.extend([extensions.get(i + 1).copied().unwrap_or(proto), words as u8]);
        frame.extend(padded(input, 6 + 8 * words));
    }
}

/// `len` bytes, zeros behind the input's end.
fn padded(input: &mut Input<'_>, len: usize) -> Vec<u8> {
    let mut bytes = input.bytes(len).to_vec();
    bytes.resize(len, 0);
    bytes
}

/// Ones' complement sum of `bytes`, added to `sum`, folded (RFC 1071 section 4.1).
pub fn ones(sum: u32, bytes: &[u8]) -> u32 {
    let fold = |sum: u32| (sum & 0xffff) + (sum >> 16);
    bytes.chunks(2).fold(fold(fold(sum)), |sum, pair| {
        fold(sum + (u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0))))
    })
}
