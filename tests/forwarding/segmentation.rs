//! Software checksums and segmentation against an independent implementation: random packets with
//! tags, IP options and extension headers, cut by [`Segmenter`], are byte by byte what the packet
//! crate `etherparse` builds from each segment's fields.
//!
//! Lengths, checksums and the layout of all headers are etherparse's. What a segment's fields have
//! to be (identification, sequence number, flags) and the sum of the pseudo-header, which has a
//! final destination where there is a routing header, are stated here, in the plainest way.
//!
//! The packets are the same in every run. `PROPTEST_RNG_SEED` and `PROPTEST_CASES` give others.

use base::frame::offload::{
    self, GSO_ECN, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, NEEDS_CSUM, Offloads, Request,
};
use base::frame::{Segmenter, Sum, VnetHdr};
use base::limits::{MAX_HEADERS_LEN, MAX_SEGMENTS};
use etherparse::{
    EtherType, Ethernet2Header, IpFragOffset, IpNumber, Ipv4Header, Ipv4Options, Ipv6Extensions,
    Ipv6FlowLabel, Ipv6Header, Ipv6RawExtHeader, Ipv6RoutingExtensions, PacketHeaders,
    SingleVlanHeader, TcpHeader, TransportHeader, UdpHeader, VlanId, ether_type, ip_number,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};

/// A packet as its sender's stack has it.
#[derive(Debug, Clone)]
struct Packet {
    ethernet: Ethernet2Header,
    /// Tags with their EtherTypes; none is told what follows it.
    tags: Vec<(EtherType, SingleVlanHeader)>,
    network: Network,
    transport: Transport,
    /// What the payload is made from.
    seed: u64,
    payload_len: usize,
    /// Payload bytes of a segment.
    size: usize,
}

#[derive(Debug, Clone)]
enum Network {
    V4(Ipv4Header),
    /// With the address of the packet's final destination, which the pseudo-header has.
    V6(Box<(Ipv6Header, Ipv6Extensions, [u8; 16])>),
}

#[derive(Debug, Clone)]
enum Transport {
    Tcp(Box<TcpHeader>),
    Udp(UdpHeader),
}

/// What stands in a TCP or UDP checksum field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Checksum,
    PseudoHeader,
}

impl Packet {
    fn payload(&self) -> Vec<u8> {
        let mut state = self.seed;
        let next = |_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 56) as u8
        };
        (0..self.payload_len).map(next).collect()
    }

    fn protocol(&self) -> IpNumber {
        match self.transport {
            Transport::Tcp(_) => ip_number::TCP,
            Transport::Udp(_) => ip_number::UDP,
        }
    }

    /// The sum a sender leaves in the checksum field: RFC 9293 section 3.1, RFC 8200 section 8.1.
    fn pseudo_header(&self, transport_len: usize) -> u16 {
        let mut bytes = match &self.network {
            Network::V4(ip) => [ip.source, ip.destination].concat(),
            Network::V6(ip) => [ip.0.source, ip.2].concat(),
        };
        bytes.extend((transport_len as u32).to_be_bytes());
        bytes.extend([0, self.protocol().0]);
        let sum: u32 =
            bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
        let sum = (sum >> 16) + (sum & 0xffff);
        ((sum >> 16) + (sum & 0xffff)) as u16
    }

    /// The transport header for `payload`.
    fn transport(&self, payload: &[u8], field: Field) -> TransportHeader {
        let mut header = match &self.transport {
            Transport::Tcp(tcp) => TransportHeader::Tcp(TcpHeader::clone(tcp)),
            Transport::Udp(udp) => {
                let length = (8 + payload.len()) as u16;
                TransportHeader::Udp(UdpHeader { length, ..udp.clone() })
            }
        };
        match &self.network {
            Network::V4(ip) => header.update_checksum_ipv4(ip, payload).expect("fits"),
            Network::V6(ip) => {
                let ip = Ipv6Header { destination: ip.2, ..ip.0.clone() };
                header.update_checksum_ipv6(&ip, payload).expect("fits");
            }
        }
        let sum = self.pseudo_header(header.header_len() + payload.len());
        match (&mut header, field) {
            // The one difference: zero is sent as the other zero, see `Sum::checksum`.
            (TransportHeader::Tcp(tcp), Field::Checksum) if tcp.checksum == 0 => {
                tcp.checksum = 0xffff;
            }
            (TransportHeader::Tcp(tcp), Field::PseudoHeader) => tcp.checksum = sum,
            (TransportHeader::Udp(udp), Field::PseudoHeader) => udp.checksum = sum,
            _ => {}
        }
        header
    }

    /// The frame with `payload`, which may be a part of the packet's own.
    fn frame(&self, payload: &[u8], field: Field) -> Vec<u8> {
        let transport = self.transport(payload, field);
        let len = transport.header_len() + payload.len();
        let ethertype = match self.network {
            Network::V4(_) => ether_type::IPV4,
            Network::V6(_) => ether_type::IPV6,
        };
        let types: Vec<EtherType> = self.tags.iter().map(|t| t.0).chain([ethertype]).collect();
        let mut frame = Vec::with_capacity(MAX_HEADERS_LEN + payload.len());
        Ethernet2Header { ether_type: types[0], ..self.ethernet.clone() }
            .write(&mut frame)
            .expect("a vector");
        for ((_, tag), &ether_type) in self.tags.iter().zip(&types[1..]) {
            let tag = SingleVlanHeader { ether_type, ..tag.clone() };
            tag.write(&mut frame).expect("a vector");
        }
        match &self.network {
            Network::V4(ip) => {
                let mut ip = ip.clone();
                ip.protocol = self.protocol();
                ip.set_payload_len(len).expect("fits");
                // Computes the header's checksum.
                ip.write(&mut frame).expect("a vector");
            }
            Network::V6(ip) => {
                let (mut ip, mut extensions) = (ip.0.clone(), ip.1.clone());
                ip.next_header = extensions.set_next_headers(self.protocol());
                ip.set_payload_length(extensions.header_len() + len).expect("fits");
                ip.write(&mut frame).expect("a vector");
                extensions.write(&mut frame, ip.next_header).expect("a vector");
            }
        }
        transport.write(&mut frame).expect("a vector");
        frame.extend(payload);
        frame
    }

    /// The packet whose frame the segment `index` is, but for the payload.
    fn segment(&self, index: usize, last: bool) -> Packet {
        let mut packet = self.clone();
        if let Network::V4(ip) = &mut packet.network {
            ip.identification = ip.identification.wrapping_add(index as u16);
        }
        if let Transport::Tcp(tcp) = &mut packet.transport {
            tcp.sequence_number = tcp.sequence_number.wrapping_add((index * self.size) as u32);
            tcp.cwr &= index == 0;
            tcp.fin &= last;
            tcp.psh &= last;
        }
        packet
    }

    /// Bytes of all headers, and of those before the transport header.
    fn header_lens(&self) -> (usize, usize) {
        let transport = match &self.transport {
            Transport::Tcp(tcp) => tcp.header_len(),
            Transport::Udp(_) => 8,
        };
        let network = match &self.network {
            Network::V4(ip) => ip.header_len(),
            Network::V6(ip) => 40 + ip.1.header_len(),
        };
        let l4 = 14 + 4 * self.tags.len() + network;
        (l4 + transport, l4)
    }

    /// What the sender's driver writes in front of the frame.
    fn header(&self) -> VnetHdr {
        let gso_type = match (&self.transport, &self.network) {
            (Transport::Tcp(tcp), Network::V4(_)) => GSO_TCPV4 | if tcp.cwr { GSO_ECN } else { 0 },
            (Transport::Tcp(tcp), Network::V6(_)) => GSO_TCPV6 | if tcp.cwr { GSO_ECN } else { 0 },
            (Transport::Udp(_), _) => GSO_UDP_L4,
        };
        let (headers, l4) = self.header_lens();
        let csum_offset: u16 = if gso_type == GSO_UDP_L4 { 6 } else { 16 };
        VnetHdr {
            flags: NEEDS_CSUM,
            gso_type,
            hdr_len: (headers as u16).to_le_bytes(),
            gso_size: (self.size as u16).to_le_bytes(),
            csum_start: (l4 as u16).to_le_bytes(),
            csum_offset: csum_offset.to_le_bytes(),
            num_buffers: [0; 2],
        }
    }
}

// --- Packets of all kinds -----------------------------------------------------------------

fn ethernet() -> impl Strategy<Value = Ethernet2Header> {
    any::<([u8; 6], [u8; 6])>().prop_map(|(source, destination)| Ethernet2Header {
        source,
        destination,
        ether_type: ether_type::IPV4,
    })
}

fn tag() -> impl Strategy<Value = (EtherType, SingleVlanHeader)> {
    (any::<(bool, bool)>(), 0..4096u16).prop_map(|((service, drop), id)| {
        let tag = SingleVlanHeader {
            drop_eligible_indicator: drop,
            vlan_id: VlanId::try_new(id).expect("12 bits"),
            ..SingleVlanHeader::default()
        };
        let types = [ether_type::VLAN_TAGGED_FRAME, ether_type::PROVIDER_BRIDGING];
        (types[usize::from(service)], tag)
    })
}

fn ipv4() -> impl Strategy<Value = Network> {
    let options = vec(any::<[u8; 4]>(), 0..=10);
    (any::<(u16, u8, bool, [u8; 4], [u8; 4])>(), options).prop_map(|(fields, options)| {
        let (identification, time_to_live, dont_fragment, source, destination) = fields;
        let options = Ipv4Options::try_from(&*options.concat()).expect("up to 40 bytes");
        Network::V4(Ipv4Header {
            identification,
            time_to_live,
            dont_fragment,
            fragment_offset: IpFragOffset::ZERO,
            source,
            destination,
            options,
            ..Ipv4Header::default()
        })
    })
}

/// An extension header of 8 to 32 bytes.
fn extension() -> impl Strategy<Value = Ipv6RawExtHeader> {
    (any::<[u8; 6]>(), vec(any::<[u8; 8]>(), 0..=3)).prop_map(|(first, rest)| {
        let payload = [&first[..], &rest.concat()].concat();
        Ipv6RawExtHeader::new_raw(ip_number::TCP, &payload).expect("whole words")
    })
}

fn ipv6() -> impl Strategy<Value = Network> {
    let fields = any::<(u8, u8, [u8; 16], [u8; 16], [u8; 16])>();
    let routing = option::weighted(0.3, (extension(), option::weighted(0.3, extension())));
    let others = (option::weighted(0.3, extension()), option::weighted(0.3, extension()));
    (fields, 0..1u32 << 20, others, routing).prop_map(|(fields, label, others, routing)| {
        let (traffic_class, hop_limit, source, destination, last) = fields;
        let last = if routing.is_some() { last } else { destination };
        let extensions = Ipv6Extensions {
            hop_by_hop_options: others.0,
            destination_options: others.1,
            routing: routing.map(|(routing, final_destination_options)| Ipv6RoutingExtensions {
                routing,
                final_destination_options,
            }),
            ..Ipv6Extensions::default()
        };
        let header = Ipv6Header {
            traffic_class,
            flow_label: Ipv6FlowLabel::try_new(label).expect("20 bits"),
            hop_limit,
            source,
            destination,
            ..Ipv6Header::default()
        };
        Network::V6(Box::new((header, extensions, last)))
    })
}

fn tcp() -> impl Strategy<Value = Transport> {
    let numbers = any::<(u16, u16, u32, u32, u16, u16)>();
    (numbers, any::<[bool; 9]>(), vec(any::<[u8; 4]>(), 0..=10)).prop_map(
        |((source, destination, sequence, acknowledgment, window, urgent), flags, options)| {
            let mut tcp = TcpHeader::new(source, destination, sequence, window);
            tcp.acknowledgment_number = acknowledgment;
            tcp.urgent_pointer = urgent;
            [tcp.ns, tcp.fin, tcp.syn, tcp.rst, tcp.psh, tcp.ack, tcp.urg, tcp.ece, tcp.cwr] =
                flags;
            tcp.set_options_raw(&options.concat()).expect("up to 40 bytes");
            Transport::Tcp(Box::new(tcp))
        },
    )
}

fn udp() -> impl Strategy<Value = Transport> {
    any::<(u16, u16)>().prop_map(|(source_port, destination_port)| {
        Transport::Udp(UdpHeader { source_port, destination_port, length: 0, checksum: 0 })
    })
}

fn packet() -> impl Strategy<Value = Packet> {
    let size = prop_oneof![8..=100usize, 500..=1500usize, 8..=9000usize];
    let payload_len = prop_oneof![1..=3000usize, 1..=65_000usize, 60_000..=65_000usize];
    let tags = vec(tag(), 0..=2);
    let network = prop_oneof![ipv4(), ipv6()];
    let transport = prop_oneof![tcp(), udp()];
    (ethernet(), tags, network, transport, any::<u64>(), payload_len, size).prop_map(
        |(ethernet, tags, network, transport, seed, payload_len, size)| Packet {
            ethernet,
            tags,
            network,
            transport,
            seed,
            payload_len,
            size,
        },
    )
}

/// Tries `test` on packets of all kinds.
fn for_packets(cases: u32, test: impl Fn(&Packet)) {
    let mut config = Config { failure_persistence: None, ..Config::default() };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = cases;
    }
    if std::env::var_os("PROPTEST_RNG_SEED").is_none() {
        config.rng_seed = RngSeed::Fixed(1071);
    }
    let outcome = TestRunner::new(config).run(&packet(), |packet| {
        test(&packet);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

// --- Tests --------------------------------------------------------------------------------

fn request(packet: &Packet, frame: &[u8]) -> Request {
    let first = &frame[..frame.len().min(MAX_HEADERS_LEN)];
    let request = offload::check(packet.header(), first, frame.len() as u32, Offloads::ALL);
    request.expect("a sound frame")
}

#[test]
fn segments_are_those_of_an_independent_implementation() {
    for_packets(4000, |packet| {
        let payload = packet.payload();
        let frame = packet.frame(&payload, Field::PseudoHeader);
        let request = request(packet, &frame);
        let (headers_len, _) = packet.header_lens();
        if payload.len() <= packet.size {
            assert!(!request.is_gso(), "one segment's worth");
            assert!(Segmenter::new(&request, &frame, frame.len() as u32).is_none());
            return;
        }
        let mut segmenter =
            Segmenter::new(&request, &frame[..headers_len], frame.len() as u32).expect("sound");
        assert_eq!(segmenter.headers_len(), headers_len);
        let parts: Vec<&[u8]> = payload.chunks(packet.size).collect();
        assert_eq!((segmenter.segments() + segmenter.surplus()) as usize, parts.len());
        assert_eq!(segmenter.segments() as usize, parts.len().min(MAX_SEGMENTS as usize));
        for index in 0..segmenter.segments() {
            let (from, len) = segmenter.payload(index);
            let part = &frame[from as usize..][..len as usize];
            assert_eq!(part, parts[index as usize], "payload of segment {index}");

            let last = index as usize + 1 == parts.len();
            let segment = packet.segment(index as usize, last);
            let expected = segment.frame(part, Field::Checksum);
            let headers = segmenter.complete(index, Sum::of(part));
            assert_eq!(headers, &expected[..headers_len], "segment {index}");
            let headers = segmenter.partial(index);
            let partial = segment.frame(part, Field::PseudoHeader);
            assert_eq!(headers, &partial[..headers_len], "segment {index}, sum left");
            if index == 0 || last {
                let parsed = PacketHeaders::from_ethernet_slice(&expected).expect("well formed");
                assert_eq!(parsed.payload.slice(), part);
            }
        }
        // Segments may be asked for in any order: nothing is carried from one to the next.
        let headers = segmenter.complete(0, Sum::of(parts[0]));
        let first = packet.segment(0, false).frame(parts[0], Field::Checksum);
        assert_eq!(headers, &first[..headers_len]);
    });
}

/// What a receiver gets that takes segments but finishes checksums itself: finishing them yields
/// the complete segments.
#[test]
fn a_checksum_left_over_is_finished_like_one_that_was_computed() {
    for_packets(1000, |packet| {
        let payload = packet.payload();
        let mut frame = packet.frame(&payload, Field::PseudoHeader);
        let request = request(packet, &frame);
        let (start, at) = (request.csum_start(), request.csum_at());
        let sum = Sum::of(&frame[start..]);
        frame[at..at + 2].copy_from_slice(&sum.checksum());
        assert!(frame == packet.frame(&payload, Field::Checksum), "the whole packet");

        let frame = packet.frame(&payload, Field::PseudoHeader);
        let Some(mut segmenter) = Segmenter::new(&request, &frame, frame.len() as u32) else {
            assert!(!request.is_gso());
            return;
        };
        let header = segmenter.partial_header();
        for index in 0..segmenter.segments().min(3) {
            let (from, len) = segmenter.payload(index);
            let part = &frame[from as usize..][..len as usize];
            let mut partial = [segmenter.partial(index), part].concat();
            // A receiver's own checker has to find it sound.
            let asked = offload::check(header, &partial, partial.len() as u32, Offloads::CSUM);
            let asked = asked.expect("sound");
            assert_eq!((asked.needs, asked.header), (Offloads::CSUM, header));
            let sum = Sum::of(&partial[asked.csum_start()..]);
            let at = asked.csum_at();
            partial[at..at + 2].copy_from_slice(&sum.checksum());
            assert_eq!(partial, [segmenter.complete(index, Sum::of(part)), part].concat());
        }
    });
}
