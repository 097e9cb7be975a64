//! TCP and UDP packets over IPv4 and IPv6, as a sender hands them to its device and as receivers of
//! any ability must get them.
//!
//! [`Packet`] is what the sender means; [`Ask`] is what it leaves to the device. Checksums and
//! lengths are those of the crate `etherparse`: the tests' second opinion, next to the sums of a
//! driver that finishes a packet itself ([`finish`]).

use std::net::Ipv4Addr;

use etherparse::{
    IpFragOffset, IpHeaders, IpNumber, Ipv4Extensions, Ipv4Header, Ipv6Extensions, Ipv6Header,
    Ipv6RawExtHeader, NetSlice, PacketBuilder, SlicedPacket, TcpHeader, TransportSlice, VlanId,
};

use super::frontend::feat;
use super::vnet::{
    DATA_VALID, GSO_ECN, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, Header, NEEDS_CSUM, network_offset,
};

/// Longest Ethernet frame of an ordinary path.
pub const MTU_FRAME: usize = 1514;
/// Longest frame that a receive buffer of 65,562 bytes holds, with an IP packet of 65,535 bytes.
pub const LONG_FRAME: usize = 65_549;
const TCP_CSUM: usize = 16;
const UDP_CSUM: usize = 6;
/// Sequence number and IPv4 identification, which wrap within a large packet.
const FIRST_SEQ: u32 = u32::MAX - 3000;
pub const FIRST_ID: u16 = u16::MAX - 5;

/// What a packet is made of.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Kind {
    /// VLAN tags, at most 2.
    pub tags: u8,
    pub v6: bool,
    pub udp: bool,
    /// With options in the TCP header, and IPv4 options or IPv6 extension headers.
    pub options: bool,
    /// With Congestion Window Reduced and ECN-Echo, which is for TCP only.
    pub cwr: bool,
}

impl Kind {
    /// All without ECN.
    pub fn all() -> impl Iterator<Item = Kind> {
        (0..24).map(|n| Kind {
            tags: n / 8,
            v6: n & 4 != 0,
            udp: n & 2 != 0,
            options: n & 1 != 0,
            cwr: false,
        })
    }

    /// Those without tags and options.
    pub fn plain() -> impl Iterator<Item = Kind> {
        Kind::all().filter(|kind| kind.tags == 0 && !kind.options)
    }

    /// The segmentation type that fits.
    pub fn gso_type(self) -> u8 {
        let ecn = if self.cwr { GSO_ECN } else { 0 };
        match (self.udp, self.v6) {
            (true, _) => GSO_UDP_L4,
            (false, false) => GSO_TCPV4 | ecn,
            (false, true) => GSO_TCPV6 | ecn,
        }
    }

    /// What a guest must have acknowledged to send a packet of this kind to be segmented.
    pub fn host_features(self) -> u64 {
        let ecn = if self.cwr { feat::HOST_ECN } else { 0 };
        feat::CSUM
            | match (self.udp, self.v6) {
                (true, _) => feat::HOST_USO,
                (false, false) => feat::HOST_TSO4 | ecn,
                (false, true) => feat::HOST_TSO6 | ecn,
            }
    }

    /// What a guest must have acknowledged to receive it in one piece.
    pub fn guest_features(self) -> u64 {
        let ecn = if self.cwr { feat::GUEST_ECN } else { 0 };
        feat::GUEST_CSUM
            | match (self.udp, self.v6) {
                (true, false) => feat::GUEST_USO4,
                (true, true) => feat::GUEST_USO6,
                (false, false) => feat::GUEST_TSO4 | ecn,
                (false, true) => feat::GUEST_TSO6 | ecn,
            }
    }

    /// Bytes of all headers.
    pub fn headers_len(self) -> usize {
        Packet::new(self, [0; 6], [0; 6], &[0]).headers_len()
    }

    /// Payload of a segment for which its frame has just the length of an ordinary path's.
    pub fn mss(self) -> u16 {
        (MTU_FRAME - self.headers_len()) as u16
    }

    /// Payload of the longest packet.
    pub fn longest(self) -> usize {
        LONG_FRAME - self.headers_len()
    }
}

/// What a sender leaves to its device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ask {
    /// Nothing.
    Nothing,
    /// The checksum.
    Sum,
    /// The checksum, and segments with this much payload.
    Segments(u16),
}

/// Which part of a packet to build: payload from here to there, of so many bytes in all.
#[derive(Clone, Copy)]
struct Part {
    index: usize,
    from: usize,
    to: usize,
    of: usize,
}

/// One packet, complete.
#[derive(Clone, Debug)]
pub struct Packet {
    pub kind: Kind,
    dst: [u8; 6],
    src: [u8; 6],
    pub payload: Vec<u8>,
    /// Of the transport header.
    pub start: usize,
    /// The frame with all checksums right.
    pub bytes: Vec<u8>,
}

/// Datagrams that Linux takes in one packet since its release 6.8 (`UDP_MAX_SEGMENTS`, checked by
/// `virtio_net_hdr_to_skb` in guests and TAPs alike).
pub const MAX_DATAGRAMS: usize = 128;

impl Packet {
    pub fn new(kind: Kind, src: [u8; 6], dst: [u8; 6], payload: &[u8]) -> Packet {
        let payload = payload.to_vec();
        let mut packet = Packet { kind, dst, src, payload, start: 0, bytes: Vec::new() };
        let len = packet.payload.len();
        packet.bytes = packet.build(Part { index: 0, from: 0, to: len, of: len });
        packet.start = verify(&packet.bytes).expect("a packet of our own").start;
        packet
    }

    pub fn headers_len(&self) -> usize {
        self.bytes.len() - self.payload.len()
    }

    pub fn csum_offset(&self) -> usize {
        if self.kind.udp { UDP_CSUM } else { TCP_CSUM }
    }

    /// What a sender puts into its ring: the virtio-net header and the frame.
    pub fn sent(&self, ask: Ask) -> (Header, Vec<u8>) {
        if ask == Ask::Nothing {
            return (Header::default(), self.bytes.clone());
        }
        let mut header = self.sum_header();
        if let Ask::Segments(size) = ask {
            header.gso_type = self.kind.gso_type();
            header.gso_size = size;
            header.hdr_len = self.headers_len() as u16;
        }
        (header, self.partial(self.bytes.clone()))
    }

    /// A segment of this packet whose checksum is left to the kernel.
    pub fn unfinished(&self, segment: Vec<u8>) -> (Header, Vec<u8>) {
        (self.sum_header(), self.partial(segment))
    }

    fn sum_header(&self) -> Header {
        Header {
            flags: NEEDS_CSUM,
            csum_start: self.start as u16,
            csum_offset: self.csum_offset() as u16,
            ..Header::default()
        }
    }

    /// The frame, or a segment, with the sum of the pseudo-header where its checksum will be.
    fn partial(&self, mut frame: Vec<u8>) -> Vec<u8> {
        let l3 = network_offset(&frame);
        let len = (frame.len() - self.start) as u32;
        let addresses = if self.kind.v6 { l3 + 8..l3 + 40 } else { l3 + 12..l3 + 20 };
        let mut pseudo = frame[addresses].to_vec();
        pseudo.extend(len.to_be_bytes());
        pseudo.extend([0, if self.kind.udp { 17 } else { 6 }]);
        let at = self.start + self.csum_offset();
        frame[at..at + 2].copy_from_slice(&sum(&pseudo).to_be_bytes());
        frame
    }

    /// What a receiver with these features must get for it: header (without the number of buffers)
    /// and bytes of each frame.
    pub fn received(&self, ask: Ask, features: u64) -> Vec<(Header, Vec<u8>)> {
        let whole = || vec![(Header::default(), self.bytes.clone())];
        match ask {
            Ask::Nothing => whole(),
            Ask::Segments(size) if self.payload.len() > size.into() => {
                let need = self.kind.guest_features();
                let long = self.kind.udp && self.payload.len() > MAX_DATAGRAMS * usize::from(size);
                if features & need == need && !long {
                    return vec![self.sent(ask)];
                }
                self.segments(size, features & feat::GUEST_CSUM != 0)
            }
            _ if features & feat::GUEST_CSUM == 0 => whole(),
            _ => vec![self.sent(Ask::Sum)],
        }
    }

    /// The packet cut into segments; `told` if the receiver is told that their checksums are right.
    fn segments(&self, size: u16, told: bool) -> Vec<(Header, Vec<u8>)> {
        let (size, of) = (usize::from(size), self.payload.len());
        let part =
            |index: usize| Part { index, from: index * size, to: ((index + 1) * size).min(of), of };
        let header = Header { flags: if told { DATA_VALID } else { 0 }, ..Header::default() };
        (0..of.div_ceil(size)).map(|i| (header, self.build(part(i)))).collect()
    }

    /// One segment, or all of it: the identification counts up, the sequence number counts bytes,
    /// PSH and FIN are the last one's and CWR is the first one's (RFC 3168 section 6.1.2).
    fn build(&self, part: Part) -> Vec<u8> {
        let Kind { tags, udp, .. } = self.kind;
        let link = PacketBuilder::ethernet2(self.src, self.dst);
        let ip = self.network(part);
        let id = |n| VlanId::try_new(n).expect("12 bits");
        let step = match tags {
            0 => link.ip(ip),
            1 => link.single_vlan(id(5)).ip(ip),
            _ => link.double_vlan(id(7), id(5)).ip(ip),
        };
        let mut out = Vec::new();
        let payload = &self.payload[part.from..part.to];
        let done = if udp {
            step.udp(4000, 5000).write_to_vec(&mut out, payload)
        } else {
            step.tcp_header(self.tcp(part)).write_to_vec(&mut out, payload)
        };
        done.expect("lengths that fit");
        out
    }

    fn network(&self, part: Part) -> IpHeaders {
        if self.kind.v6 {
            let (mut header, mut extensions) = (Ipv6Header::default(), Ipv6Extensions::default());
            header.hop_limit = 64;
            (header.source, header.destination) = ([0xfd; 16], [0xfd; 16]);
            (header.source[15], header.destination[15]) = (self.src[5] | 0x20, self.dst[5] | 0x40);
            if self.kind.options {
                // Padding (PadN), of different lengths.
                let pad = |len: usize| {
                    let mut bytes = vec![0; len];
                    bytes[..2].copy_from_slice(&[1, len as u8 - 2]);
                    Ipv6RawExtHeader::new_raw(IpNumber::TCP, &bytes).expect("8 n + 6 bytes")
                };
                extensions.hop_by_hop_options = Some(pad(6));
                extensions.destination_options = Some(pad(22));
            }
            return IpHeaders::Ipv6(header, extensions);
        }
        let mut header = Ipv4Header {
            identification: FIRST_ID.wrapping_add(part.index as u16),
            dont_fragment: true,
            fragment_offset: IpFragOffset::ZERO,
            time_to_live: 64,
            source: Ipv4Addr::new(10, 0, 0, self.src[5] | 0x20).octets(),
            destination: Ipv4Addr::new(10, 0, 0, self.dst[5] | 0x40).octets(),
            ..Ipv4Header::default()
        };
        if self.kind.options {
            // No operation, twelve times.
            header.options = [1; 12].into();
        }
        IpHeaders::Ipv4(header, Ipv4Extensions::default())
    }

    fn tcp(&self, part: Part) -> TcpHeader {
        let last = part.to == part.of;
        let seq = FIRST_SEQ.wrapping_add(part.from as u32);
        let mut tcp = TcpHeader::new(4000, 5000, seq, 502);
        (tcp.acknowledgment_number, tcp.ack) = (0x0102_0304, true);
        (tcp.psh, tcp.fin) = (last, last);
        (tcp.ece, tcp.cwr) = (self.kind.cwr, self.kind.cwr && part.from == 0);
        if self.kind.options {
            // No operation twice, time stamps.
            let options = [1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8];
            tcp.set_options_raw(&options).expect("12 bytes of options");
        }
        tcp
    }
}

/// A packet that was found in order.
#[derive(Clone, Copy, Debug)]
pub struct Verified<'a> {
    /// Of the transport header.
    pub start: usize,
    pub payload: &'a [u8],
}

/// Reads a frame with TCP or UDP and checks all lengths and checksums.
pub fn verify(frame: &[u8]) -> Result<Verified<'_>, String> {
    let sliced = SlicedPacket::from_ethernet(frame).map_err(|e| e.to_string())?;
    let (net, end) = (sliced.net.ok_or("no IP")?, frame.as_ptr_range().end);
    let (transport, payload) = match sliced.transport.ok_or("no transport header")? {
        TransportSlice::Tcp(tcp) => {
            let want = match &net {
                NetSlice::Ipv4(ip) => {
                    let (from, to) = (ip.header().source(), ip.header().destination());
                    tcp.calc_checksum_ipv4(from, to).map_err(|e| e.to_string())?
                }
                NetSlice::Ipv6(ip) => {
                    let (from, to) = (ip.header().source(), ip.header().destination());
                    tcp.calc_checksum_ipv6(from, to).map_err(|e| e.to_string())?
                }
                NetSlice::Arp(_) => return Err("ARP".into()),
            };
            // Both are zero in ones' complement; only UDP tells them apart.
            let zero = |sum: u16| if sum == 0xffff { 0 } else { sum };
            if zero(want) != zero(tcp.checksum()) {
                return Err(format!("TCP checksum {:#x}, should be {want:#x}", tcp.checksum()));
            }
            (tcp.slice(), tcp.payload())
        }
        TransportSlice::Udp(udp) => {
            let header = udp.to_header();
            let want = match &net {
                NetSlice::Ipv4(ip) => {
                    let ip = ip.header().to_header();
                    header.calc_checksum_ipv4(&ip, udp.payload()).map_err(|e| e.to_string())?
                }
                NetSlice::Ipv6(ip) => {
                    let ip = ip.header().to_header();
                    header.calc_checksum_ipv6(&ip, udp.payload()).map_err(|e| e.to_string())?
                }
                NetSlice::Arp(_) => return Err("ARP".into()),
            };
            if want != udp.checksum() {
                return Err(format!("UDP checksum {:#x}, should be {want:#x}", udp.checksum()));
            }
            (udp.slice(), udp.payload())
        }
        other => return Err(format!("neither TCP nor UDP: {other:?}")),
    };
    if let NetSlice::Ipv4(ip) = &net {
        // Over the bytes themselves: the crate's own view of a header lacks the reserved bit.
        if sum(ip.header().slice()) != 0xffff {
            return Err("IPv4 header checksum".into());
        }
    }
    if payload.as_ptr_range().end != end {
        return Err(format!("a packet shorter than its frame of {} bytes", frame.len()));
    }
    let start = transport.as_ptr() as usize - frame.as_ptr() as usize;
    Ok(Verified { start, payload })
}

/// The frame as a driver completes it that was told where the checksum is missing.
pub fn finish(header: &Header, frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    if header.flags & NEEDS_CSUM != 0 {
        let start = usize::from(header.csum_start);
        let at = start + usize::from(header.csum_offset);
        let value = match !sum(&frame[start..]) {
            0 if usize::from(header.csum_offset) == UDP_CSUM => 0xffff,
            value => value,
        };
        frame[at..at + 2].copy_from_slice(&value.to_be_bytes());
    }
    frame
}

/// Finishes a received frame and checks it.
pub fn verify_received(header: &Header, frame: &[u8]) -> Result<(), String> {
    let whole = finish(header, frame);
    let start = verify(&whole)?.start;
    let placed = header.flags & NEEDS_CSUM == 0 || usize::from(header.csum_start) == start;
    if placed { Ok(()) } else { Err(format!("csum_start {}, is {start}", header.csum_start)) }
}

/// Ones' complement sum of 16-bit words (RFC 1071), not complemented.
fn sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|c| u64::from(c[0]) << 8 | u64::from(*c.get(1).unwrap_or(&0)));
    let mut total: u64 = words.sum();
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    total as u16
}

/// Bytes that tell where they belong.
pub fn payload(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = super::Rng::new(seed);
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        out.extend(rng.next().to_le_bytes());
    }
    out.truncate(len);
    out
}
