//! What stands around a message: all that a sender can put between the link and the message
//! without the message changing its meaning, and a little more.

use testkit::Rng;
use testkit::vnet::{GSO_UDP_L4, Header, NEEDS_CSUM};

use super::host::HOST_MAC;
use super::messages::{Packet, checksum};

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION: u8 = 60;
const MOBILITY: u8 = 135;
const HOST_IDENTITY: u8 = 139;
const SHIM6: u8 = 140;
/// Nobody's (RFC 3692).
const UNKNOWN: u8 = 254;

/// An extension header: its number, and its length in eight bytes.
type Extension = (u8, usize);

/// What the frame's type says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Link {
    Ethernet,
    Snap,
    /// RFC 948.
    Llc,
    /// That of the other version of IP.
    Wrong,
}

/// How a packet is cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cut {
    /// Not.
    Whole,
    /// The only fragment.
    Atomic,
    /// Two fragments, the first of which has so many times eight bytes; or as many fragments of
    /// this length as there are.
    Parts { eights: usize, all: bool, reversed: bool, overlaps: bool },
    /// Two fragment headers.
    Nested,
    /// Fragments of two packets with one number, the first of which has so many times eight bytes.
    Forged { eights: usize, pieces: &'static [Piece] },
}

/// A fragment of a packet, or of an innocent one of the same length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Piece {
    First,
    InnocentFirst,
    Rest,
    /// All but the first eight bytes, over other pieces.
    Over,
}

const FORGERIES: [&[Piece]; 8] = [
    &[Piece::InnocentFirst, Piece::Rest],
    &[Piece::InnocentFirst, Piece::First, Piece::Rest],
    &[Piece::First, Piece::InnocentFirst, Piece::Rest],
    &[Piece::Rest, Piece::First, Piece::InnocentFirst],
    &[Piece::Rest, Piece::InnocentFirst, Piece::First],
    &[Piece::InnocentFirst, Piece::Over],
    &[Piece::Over, Piece::InnocentFirst],
    &[Piece::InnocentFirst, Piece::Rest, Piece::Over],
];

/// What IP says of the packet's length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Length {
    Right,
    /// So much less: the end of the message is padding to IP.
    Less(u16),
    More(u16),
    None,
}

/// What the sender leaves to its device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Offload {
    Nothing,
    /// The message's own checksum.
    Sum,
    /// A checksum somewhere: begin and place behind it.
    AnySum(u16, u16),
    /// The message's own checksum, and datagrams of this length.
    Datagrams(u16),
}

/// Everything around a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Envelope {
    pub destination: Option<[u8; 6]>,
    pub tags: Vec<[u8; 4]>,
    pub link: Link,
    /// Options of IPv4, a multiple of four bytes.
    pub options: Vec<u8>,
    /// Extension headers of IPv6.
    pub headers: Vec<Extension>,
    pub cut: Cut,
    pub length: Length,
    pub padding: usize,
    /// Behind a fragment stands what an innocent message would have next.
    pub decoy: bool,
    pub wrong_sum: bool,
    pub offload: Offload,
    /// The number of routers that may pass the packet on.
    pub hops: u8,
}

pub const PLAIN: Envelope = Envelope {
    destination: None,
    tags: Vec::new(),
    link: Link::Ethernet,
    options: Vec::new(),
    headers: Vec::new(),
    cut: Cut::Whole,
    length: Length::Right,
    padding: 0,
    decoy: false,
    wrong_sum: false,
    offload: Offload::Nothing,
    hops: 255,
};

/// What a message of IGMP or MLD is in: a router alert, for the link alone.
pub fn alert() -> Envelope {
    Envelope { options: OPTIONS[2].to_vec(), headers: vec![(HOP_BY_HOP, 1)], hops: 1, ..PLAIN }
}

const DESTINATIONS: [[u8; 6]; 9] = [
    HOST_MAC,
    [0xff; 6],
    [0x33, 0x33, 0, 0, 0, 1],
    [1, 0, 0x5e, 0, 0, 1],
    [3, 0, 0, 0, 0, 1],
    [1, 0x80, 0xc2, 0, 0, 0x21],
    [1, 0x80, 0xc2, 0, 0, 0x0e],
    [1, 0, 0x0c, 0xcc, 0xcc, 0xcd],
    [0x52, 0x54, 0, 0x77, 0, 0x99],
];

/// Priority tags, which a host takes as none, VLAN tags, and tags that some receivers know.
const TAGS: [[u8; 4]; 8] = [
    [0x81, 0, 0, 0],
    [0x81, 0, 0xe0, 0],
    [0x81, 0, 0x10, 0],
    [0x81, 0, 0, 5],
    [0x88, 0xa8, 0, 0],
    [0x88, 0xa8, 0, 5],
    [0x91, 0, 0, 0],
    [0x92, 0, 0, 0],
];

/// No operation, router alert, a source route that is at its end, time stamp, unknown ones, an
/// early end.
const OPTIONS: [&[u8]; 7] = [
    &[1; 4],
    &[1; 40],
    &[0x94, 4, 0, 0],
    &[0x83, 7, 8, 10, 77, 0, 9, 0],
    &[0x44, 8, 9, 0, 0, 0, 0, 0],
    &[0x9e, 4, 0, 0],
    &[0, 0, 0, 0],
];

const HEADERS: [u8; 9] = [
    HOP_BY_HOP,
    ROUTING,
    DESTINATION,
    FRAGMENT,
    AUTHENTICATION,
    MOBILITY,
    HOST_IDENTITY,
    SHIM6,
    UNKNOWN,
];

/// Envelopes that differ from this one in one way.
pub fn singles(base: &Envelope) -> Vec<Envelope> {
    let mut all = vec![base.clone()];
    let mut add = |change: &dyn Fn(&mut Envelope)| {
        let mut envelope = base.clone();
        change(&mut envelope);
        all.push(envelope);
    };
    for to in DESTINATIONS {
        add(&|one| one.destination = Some(to));
    }
    for tag in TAGS {
        (1..=3).for_each(|count| add(&|one| one.tags = vec![tag; count]));
    }
    for link in [Link::Snap, Link::Llc, Link::Wrong] {
        add(&|one| one.link = link);
    }
    for options in OPTIONS {
        add(&|one| one.options = options.to_vec());
    }
    for header in HEADERS {
        (1..=3).for_each(|eights| add(&|one| one.headers.push((header, eights))));
    }
    for count in [2, 8, 30] {
        add(&|one| one.headers.extend(vec![(DESTINATION, 1); count]));
    }
    for reversed in [false, true] {
        for (eights, all, overlaps) in [
            (1, false, false),
            (2, false, false),
            (3, false, false),
            (1, true, false),
            (3, true, false),
            (2, false, true),
        ] {
            let cut = Cut::Parts { eights, all, reversed, overlaps };
            add(&|one| one.cut = cut);
            add(&|one| (one.cut, one.decoy) = (cut, true));
            // The first fragment may have the headers of IP alone.
            add(&|one| {
                one.headers.push((DESTINATION, 1));
                one.cut = cut;
            });
        }
    }
    for pieces in FORGERIES {
        for (eights, count) in [(1, 0), (2, 0), (2, 1), (3, 1), (4, 2)] {
            add(&|one| {
                one.headers.extend(vec![(DESTINATION, 1); count]);
                one.cut = Cut::Forged { eights, pieces };
            });
        }
    }
    for hops in [0, 1, 2, 64, 255] {
        add(&|one| one.hops = hops);
    }
    add(&|one| one.cut = Cut::Atomic);
    add(&|one| one.cut = Cut::Nested);
    for length in [Length::Less(1), Length::Less(8), Length::More(1), Length::More(8), Length::None]
    {
        add(&|one| one.length = length);
    }
    for padding in [1, 8, 300, 1200] {
        add(&|one| one.padding = padding);
    }
    add(&|one| one.wrong_sum = true);
    for offload in [Offload::Sum, Offload::AnySum(34, 6), Offload::Datagrams(24)] {
        add(&|one| one.offload = offload);
        add(&|one| (one.offload, one.wrong_sum) = (offload, true));
        add(&|one| (one.offload, one.tags) = (offload, vec![TAGS[0]]));
    }
    all
}

/// Any envelope: each part of it differs now and then from this one.
pub fn any(rng: &mut Rng, base: &Envelope) -> Envelope {
    fn of<T: Clone>(rng: &mut Rng, list: &[T]) -> T {
        list[rng.below(list.len() as u64) as usize].clone()
    }
    let mut one = base.clone();
    let mut differs = |n| rng.below(n) == 0;
    let [to, tags, link, options] = [differs(3), differs(3), differs(12), differs(4)];
    let [headers, cut, length] = [differs(2), differs(3), differs(8)];
    let [padding, wrong_sum, offload] = [differs(4), differs(16), differs(8)];
    one.destination = to.then(|| of(rng, &DESTINATIONS));
    if tags {
        // Mostly those that a host takes as none.
        let few = rng.below(3) > 0;
        let list = if few { &TAGS[..3] } else { &TAGS[..] };
        one.tags = (0..1 + rng.below(3)).map(|_| of(rng, list)).collect();
    }
    if link {
        one.link = of(rng, &[Link::Snap, Link::Llc, Link::Wrong]);
    }
    if options {
        one.options = of(rng, &OPTIONS).to_vec();
    }
    if headers {
        let list = if rng.below(3) > 0 { &HEADERS[..5] } else { &HEADERS[..] };
        let most = if rng.below(8) == 0 { 24 } else { 4 };
        let count = 1 + rng.below(most);
        if rng.below(2) == 0 {
            one.headers.clear();
        }
        one.headers.extend((0..count).map(|_| (of(rng, list), 1 + rng.below(3) as usize)));
        if rng.below(2) == 0 {
            // In the order that hosts want (RFC 8200 section 4.1).
            let place = |header: &Extension| HEADERS.iter().position(|one| *one == header.0);
            one.headers.sort_by_key(place);
        }
    }
    if cut {
        let eights = 1 + rng.below(6) as usize;
        let [all, reversed, overlaps] = [2, 2, 6].map(|n| rng.below(n) == 0);
        one.decoy = rng.below(2) == 0;
        one.cut = match rng.below(8) {
            0 => Cut::Atomic,
            1 => Cut::Nested,
            2 | 3 => Cut::Forged { eights, pieces: of(rng, &FORGERIES) },
            _ => Cut::Parts { eights, all, reversed, overlaps },
        };
    }
    if length {
        let by = 1 + rng.below(16) as u16;
        one.length = of(rng, &[Length::Less(by), Length::More(by), Length::None]);
    }
    if rng.below(16) == 0 {
        one.hops = of(rng, &[0, 1, 2, 64, 255]);
    }
    one.padding = if padding { rng.below(400) as usize } else { 0 };
    one.wrong_sum = wrong_sum;
    if offload {
        let (start, offset) = (14 + rng.below(100) as u16, rng.below(24) as u16);
        let size = 8 + rng.below(200) as u16;
        let all = [Offload::Sum, Offload::AnySum(start, offset), Offload::Datagrams(size)];
        one.offload = of(rng, &all);
    }
    one
}

impl Envelope {
    /// The frames of a message from this address, with what is left to the sender's device; `id`
    /// is that of its fragments. The decoy is the innocent message.
    pub fn seal(
        &self,
        source: [u8; 6],
        [packet, innocent]: [&Packet; 2],
        id: u32,
    ) -> Vec<(Header, Vec<u8>)> {
        let (ethertype, wrong, fitting, packets) = match packet {
            Packet::Arp(bytes) => (0x0806, 0x0800, [0xff; 6], vec![(bytes.clone(), bytes.len())]),
            Packet::V4 { to, .. } => {
                let [_, a, b, c] = to.octets();
                let to = match to {
                    _ if to.is_broadcast() => [0xff; 6],
                    _ if to.is_multicast() => [1, 0, 0x5e, a & 0x7f, b, c],
                    _ => HOST_MAC,
                };
                (0x0800, 0x86dd, to, self.packets_4([packet, innocent], id as u16))
            }
            Packet::V6 { to, .. } => {
                let [.., a, b, c, d] = to.octets();
                let to = if to.is_multicast() { [0x33, 0x33, a, b, c, d] } else { HOST_MAC };
                (0x86dd, 0x0800, to, self.packets_6([packet, innocent], id))
            }
        };
        let (protocol, len) = match packet {
            Packet::Arp(bytes) => (0, bytes.len()),
            Packet::V4 { protocol, rest, .. } | Packet::V6 { protocol, rest, .. } => {
                (*protocol, rest.len())
            }
        };
        let decoy = if self.decoy { self.inside(innocent) } else { Vec::new() };
        let to = self.destination.unwrap_or(fitting);
        let frame = |(packet, end): (Vec<u8>, usize)| {
            let kind: u16 = if self.link == Link::Wrong { wrong } else { ethertype };
            let behind = match self.link {
                Link::Ethernet | Link::Wrong => [&kind.to_be_bytes()[..], &packet].concat(),
                Link::Snap => {
                    let llc =
                        [&[0xaa, 0xaa, 3, 0, 0, 0][..], &kind.to_be_bytes(), &packet].concat();
                    [&(llc.len() as u16).to_be_bytes()[..], &llc].concat()
                }
                Link::Llc => {
                    let llc = [&[6, 6, 3][..], &packet].concat();
                    [&(llc.len() as u16).to_be_bytes()[..], &llc].concat()
                }
            };
            let mut frame = [&to[..], &source, &self.tags.concat(), &behind].concat();
            let header = self.header(len, frame.len(), protocol);
            frame.extend(decoy.get(end..).unwrap_or_default());
            // Most guests' devices have no longer frames.
            let padded = (frame.len() + self.padding).min(1514);
            frame.resize(padded.max(60).max(frame.len()), 0);
            (header, frame)
        };
        packets.into_iter().map(frame).collect()
    }

    /// The virtio-net header of a frame of `len` bytes that ends with a message of `rest` bytes.
    fn header(&self, rest: usize, len: usize, protocol: u8) -> Header {
        let start = len.saturating_sub(rest) as u16;
        let offset = if matches!(protocol, 1 | 2 | 58) { 2 } else { 6 };
        let sum = Header {
            flags: NEEDS_CSUM,
            csum_start: start,
            csum_offset: offset,
            ..Header::default()
        };
        match self.offload {
            Offload::Nothing => Header::default(),
            Offload::Sum => sum,
            Offload::AnySum(start, offset) => {
                Header { csum_start: start, csum_offset: offset, ..sum }
            }
            Offload::Datagrams(gso_size) => {
                Header { gso_type: GSO_UDP_L4, hdr_len: start + 8, gso_size, ..sum }
            }
        }
    }

    /// The parts of these bytes: whether each is of the innocent packet, where it begins and ends.
    fn parts(&self, len: usize) -> Vec<(bool, usize, usize)> {
        if let Cut::Forged { eights, pieces } = self.cut {
            let size = (8 * eights).min(len);
            let part = |piece: &Piece| match piece {
                Piece::First => (false, 0, size),
                Piece::InnocentFirst => (true, 0, size),
                Piece::Rest => (false, size, len),
                Piece::Over => (false, 8.min(len), len),
            };
            return pieces.iter().map(part).filter(|(_, begin, end)| begin < end).collect();
        }
        let Cut::Parts { eights, all, reversed, overlaps } = self.cut else {
            return vec![(false, 0, len)];
        };
        let size = 8 * eights;
        let ends = (size..len).step_by(size).take(if all { usize::MAX } else { 1 });
        let ends: Vec<usize> = ends.chain([len]).collect();
        let back = 8 * usize::from(overlaps);
        let begins = [0].into_iter().chain(ends.iter().map(|end| end - back));
        let mut parts: Vec<_> =
            begins.zip(&ends).map(|(begin, end)| (false, begin, *end)).collect();
        if reversed {
            parts.reverse();
        }
        parts
    }

    fn told(&self, len: usize) -> u16 {
        match self.length {
            Length::Right => len as u16,
            Length::Less(by) => (len as u16).saturating_sub(by),
            Length::More(by) => len as u16 + by,
            Length::None => 0,
        }
    }

    /// The extension headers in front of a fragment header, of which only the hop-by-hop header is
    /// one, and those behind it.
    fn split(&self) -> (&[Extension], &[Extension]) {
        let outer = self.headers.first().is_some_and(|(kind, _)| *kind == HOP_BY_HOP);
        self.headers.split_at(usize::from(outer))
    }

    /// The bytes that fragments are made of.
    fn inside(&self, packet: &Packet) -> Vec<u8> {
        match packet {
            Packet::Arp(bytes) => bytes.clone(),
            Packet::V4 { rest, .. } => rest.clone(),
            Packet::V6 { protocol, rest, .. } => chain(self.split().1, *protocol, rest.clone()).1,
        }
    }

    /// The bytes of an innocent packet, as many as the other one has.
    fn other(&self, innocent: &Packet, len: usize) -> Vec<u8> {
        let mut bytes = self.inside(innocent);
        bytes.resize(len, 0);
        bytes
    }

    /// The packets of a message, and how much of the message has come with each.
    fn packets_4(&self, [packet, innocent]: [&Packet; 2], id: u16) -> Vec<(Vec<u8>, usize)> {
        let Packet::V4 { from, to, protocol, rest } = packet else { unreachable!() };
        let other = self.other(innocent, rest.len());
        let one = |(is_innocent, begin, end): (bool, usize, usize)| {
            let bytes = if is_innocent { &other } else { rest };
            let header = 20 + self.options.len();
            let more = if end < rest.len() { 0x2000 } else { 0 };
            let mut packet = vec![0x40 | (header / 4) as u8, 0];
            packet.extend(self.told(header + end - begin).to_be_bytes());
            packet.extend([id, (begin / 8) as u16 | more].map(u16::to_be_bytes).concat());
            packet.extend([self.hops, *protocol, 0, 0]);
            packet.extend([from.octets(), to.octets()].concat());
            packet.extend(&self.options);
            let sum = checksum(&[&packet]) ^ u16::from(self.wrong_sum);
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
            packet.extend(&bytes[begin..end]);
            (packet, end)
        };
        self.parts(rest.len()).into_iter().map(one).collect()
    }

    /// See [`Envelope::packets_4`].
    fn packets_6(&self, [packet, innocent]: [&Packet; 2], id: u32) -> Vec<(Vec<u8>, usize)> {
        let Packet::V6 { from, to, protocol, rest } = packet else { unreachable!() };
        let mut rest = rest.clone();
        rest[2] ^= u8::from(self.wrong_sum);
        let (before, behind) = self.split();
        let (inner, rest) = chain(behind, *protocol, rest);
        let other = self.other(innocent, rest.len());
        let fragment = |next: u8, offset: usize, more: bool, bytes: &[u8]| {
            let field = (offset as u16 | u16::from(more)).to_be_bytes();
            [&[next, 0][..], &field, &id.to_be_bytes(), bytes].concat()
        };
        let one = |(is_innocent, begin, end): (bool, usize, usize)| {
            let bytes = if is_innocent { &other } else { &rest };
            let (mut next, mut bytes) = (inner, bytes[begin..end].to_vec());
            if self.cut == Cut::Nested {
                (next, bytes) = (FRAGMENT, fragment(next, 0, false, &bytes));
            }
            if self.cut != Cut::Whole {
                (next, bytes) = (FRAGMENT, fragment(next, begin, end < rest.len(), &bytes));
            }
            let (next, bytes) = chain(before, next, bytes);
            let head =
                [&[0x60, 0, 0, 0][..], &self.told(bytes.len()).to_be_bytes(), &[next, self.hops]];
            ([&head.concat()[..], &from.octets(), &to.octets(), &bytes].concat(), end)
        };
        self.parts(rest.len()).into_iter().map(one).collect()
    }
}

/// The bytes behind these headers, and the number of the first header.
fn chain(headers: &[Extension], protocol: u8, rest: Vec<u8>) -> (u8, Vec<u8>) {
    headers.iter().rfold((protocol, rest), |(next, rest), (kind, eights)| {
        let mut header = vec![0; 8 * eights];
        header[0] = next;
        header[1] = *eights as u8 - 1;
        match *kind {
            FRAGMENT => {
                header.truncate(8);
                header[1] = 0;
            }
            AUTHENTICATION => {
                header.resize(8 * (eights + 1), 0);
                // In words of four bytes, less two.
                header[1] = (2 * (eights + 1) - 2) as u8;
            }
            // Without segments left each host passes over it, whatever its type.
            ROUTING => header[2..4].copy_from_slice(&[2, 0]),
            // A router alert, about MLD.
            HOP_BY_HOP if *eights == 1 => header[2..].copy_from_slice(&[5, 2, 0, 0, 1, 0]),
            // PadN.
            HOP_BY_HOP | DESTINATION => {
                header[2..4].copy_from_slice(&[1, (8 * eights - 4) as u8]);
            }
            _ => {}
        }
        (*kind, [header, rest].concat())
    })
}
