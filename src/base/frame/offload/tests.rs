//! Tests which frames [`check`] accepts and refuses: headers of good frames, each field changed to
//! its limits, and frames of which only the beginning is there.

use super::*;
use crate::frame::{Segmenter, Sum};

/// A frame with the header that its sender writes.
#[derive(Clone)]
struct Case {
    name: &'static str,
    header: VnetHdr,
    bytes: Vec<u8>,
    /// The offloads that the sender must have acknowledged for the frame.
    asks: Offloads,
}

/// Returns an Ethernet header with tags, and the bytes behind the header.
fn link(tags: usize, ethertype: u16) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    for tag in &[[0x88, 0xa8, 0, 7], [0x81, 0, 0, 5]][2 - tags..] {
        bytes.extend(tag);
    }
    bytes.extend(ethertype.to_be_bytes());
    bytes
}

/// Returns an IPv4 header for `len` bytes of payload.
fn ipv4(proto: u8, options: usize, len: usize) -> Vec<u8> {
    let total = ((20 + options + len) as u16).to_be_bytes();
    let first = 0x40 | (5 + options / 4) as u8;
    let mut bytes = vec![first, 0, total[0], total[1], 0, 1, 0x40, 0, 64, proto, 0, 0];
    bytes.extend([10, 0, 0, 1, 10, 0, 0, 2]);
    bytes.resize(20 + options, 1);
    bytes
}

/// Returns an IPv6 header with extension headers (number and length) for `len` bytes of payload.
fn ipv6(proto: u8, extensions: &[(u8, usize)], len: usize) -> Vec<u8> {
    let all: usize = extensions.iter().map(|e| e.1).sum();
    let length = ((all + len) as u16).to_be_bytes();
    let next = |i: usize| extensions.get(i).map_or(proto, |e| e.0);
    let mut bytes = vec![0x60, 0, 0, 0, length[0], length[1], next(0), 64];
    bytes.extend([0xfd; 32]);
    for (i, &(_, len)) in extensions.iter().enumerate() {
        bytes.extend([next(i + 1), (len / 8 - 1) as u8]);
        bytes.resize(bytes.len() + len - 2, 0);
    }
    bytes
}

/// Returns TCP with `options` bytes of options, or UDP, and a payload.
fn transport(proto: u8, options: usize, payload: usize) -> Vec<u8> {
    let mut bytes = vec![0x12, 0x34, 0, 80];
    if proto == TCP {
        bytes.extend([
            0,
            0,
            0,
            1,
            0,
            0,
            0,
            1,
            (5 + options / 4) as u8 * 16,
            0x18,
            1,
            0,
            0,
            0,
            0,
            0,
        ]);
        bytes.resize(20 + options, 1);
    } else {
        bytes.extend(((8 + payload) as u16).to_be_bytes());
        bytes.extend([0, 0]);
    }
    bytes.resize(bytes.len() + payload, 0x5a);
    bytes
}

fn header(gso_type: u8, size: usize, start: usize, offset: usize) -> VnetHdr {
    VnetHdr {
        flags: NEEDS_CSUM,
        gso_type,
        gso_size: (size as u16).to_le_bytes(),
        csum_start: (start as u16).to_le_bytes(),
        csum_offset: (offset as u16).to_le_bytes(),
        ..VnetHdr::plain(0)
    }
}

/// Bytes of payload in a frame of [`case`], and bytes of TCP options.
const PAYLOAD: usize = 3000;
const TCP_OPTIONS: usize = 12;
const TCP_LEN: usize = TCP_HEADER + TCP_OPTIONS + PAYLOAD;
const UDP_LEN: usize = UDP_HEADER + PAYLOAD;

/// Returns a frame of TCP, or of UDP if `gso` requests UDP. `gso` is type and size.
fn case(name: &'static str, link: Vec<u8>, ip: Vec<u8>, gso: (u8, usize), asks: Offloads) -> Case {
    let uso = !asks.and(Offloads::USO4.or(Offloads::USO6)).is_empty();
    let (proto, options, offset) =
        if uso { (UDP, 0, UDP_CSUM) } else { (TCP, TCP_OPTIONS, TCP_CSUM) };
    let header = header(gso.0, gso.1, link.len() + ip.len(), offset);
    let bytes = [link, ip, transport(proto, options, PAYLOAD)].concat();
    Case { name, header, bytes, asks: asks.or(Offloads::CSUM) }
}

impl Case {
    /// Moves the checksum.
    fn sum_at(self, start: usize, offset: usize) -> Case {
        let start = (start as u16).to_le_bytes();
        let header = VnetHdr {
            csum_start: start,
            csum_offset: (offset as u16).to_le_bytes(),
            ..self.header
        };
        Case { header, ..self }
    }

    fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Limits the frame's bytes to [`MAX_HEADERS_LEN`].
    fn check(&self, header: VnetHdr, may: Offloads) -> Result<Request, Refused> {
        check(header, &self.bytes[..self.len().min(MAX_HEADERS_LEN)], self.len() as u32, may)
    }

    /// Returns true if a receiver segments the frame, provided that its sender made it correctly.
    fn is_gso(&self) -> bool {
        self.header.gso_type != 0 && usize::from(u16::from_le_bytes(self.header.gso_size)) < PAYLOAD
    }

    fn start(&self) -> usize {
        usize::from(u16::from_le_bytes(self.header.csum_start))
    }
}

const EXTENSIONS: &[(u8, usize)] = &[(HOP_BY_HOP, 8), (DESTINATION_OPTIONS, 16), (ROUTING, 24)];

/// Returns frames whose request is legal and whose protocols are parsed.
fn good() -> Vec<Case> {
    let (v4, v6) = (|tags| link(tags, ETHERTYPE_IPV4), |tags| link(tags, ETHERTYPE_IPV6));
    let tcp4 = |options| ipv4(TCP, options, TCP_LEN);
    let tcp6 = |extensions| ipv6(TCP, extensions, TCP_LEN);
    let (sum, tso4, tso6) = (Offloads::CSUM, Offloads::TSO4, Offloads::TSO6);
    let (uso4, uso6, ecn) = (Offloads::USO4, Offloads::USO6, Offloads::ECN);
    vec![
        case("TCP", v4(0), tcp4(0), (0, 0), sum),
        case("TCP6", v6(0), tcp6(&[]), (0, 0), sum),
        case("TSO4", v4(0), tcp4(0), (GSO_TCPV4, 1448), tso4),
        case("TSO4, options", v4(1), tcp4(40), (GSO_TCPV4, 8), tso4),
        case("TSO4, ECN", v4(2), tcp4(4), (GSO_TCPV4 | GSO_ECN, 1448), tso4.or(ecn)),
        case("TSO6", v6(0), tcp6(&[]), (GSO_TCPV6, 1428), tso6),
        case("TSO6, ECN", v6(1), tcp6(&[]), (GSO_TCPV6 | GSO_ECN, 1428), tso6.or(ecn)),
        case("TSO6, extensions", v6(2), tcp6(EXTENSIONS), (GSO_TCPV6, 1400), tso6),
        case("USO4", v4(0), ipv4(UDP, 0, UDP_LEN), (GSO_UDP_L4, 1), uso4),
        case("USO6", v6(1), ipv6(UDP, EXTENSIONS, UDP_LEN), (GSO_UDP_L4, 1400), uso6),
        // A packet that fits one segment needs only a checksum.
        case("TSO4, short", v4(0), tcp4(0), (GSO_TCPV4, PAYLOAD), tso4),
        case("TSO6, short", v6(0), tcp6(&[]), (GSO_TCPV6, 9000), tso6),
    ]
}

/// Returns frames whose checksum is in a protocol that is not parsed.
fn opaque() -> Vec<Case> {
    let ipv4 = |proto| ipv4(proto, 0, TCP_LEN);
    let sum = Offloads::CSUM;
    let v4 = || link(0, ETHERTYPE_IPV4);
    vec![
        case("SCTP", v4(), ipv4(132), (0, 0), sum).sum_at(34, 8),
        case("PPPoE", link(1, 0x8864), ipv4(TCP), (0, 0), sum),
        case("in a UDP tunnel", v4(), ipv4(UDP), (0, 0), sum).sum_at(34 + 8 + 50, TCP_CSUM),
        case("odd", v4(), ipv4(132), (0, 0), sum).sum_at(35, 219),
    ]
}

/// Returns frames that no receiver may get, each with its fault.
fn bad() -> Vec<Case> {
    let mut cases = Vec::new();
    let good = good();
    let mut add = |name, like: &str, change: &dyn Fn(&mut Case)| {
        let mut case = good.iter().find(|c| c.name == like).expect("a good one").clone();
        case.name = name;
        change(&mut case);
        cases.push(case);
    };
    // Offset of IP in the frames without tags.
    const IP: usize = 14;
    add("not IPv4", "TCP", &|c| c.bytes[IP] = 0x65);
    add("not IPv6", "TCP6", &|c| c.bytes[IP] = 0x45);
    add("short IPv4 header", "TCP", &|c| {
        c.bytes[IP] = 0x44;
        c.header.csum_start[0] -= 4;
    });
    add("checksum behind its header", "TCP", &|c| c.header.csum_start[0] += 4);
    add("another IPv4 header", "TCP", &|c| c.bytes[IP] = 0x46);
    add("more fragments", "TCP", &|c| c.bytes[IP + 6] = 0x20);
    add("last fragment", "TCP", &|c| c.bytes[IP + 7] = 1);
    add("fragment of another protocol", "TCP", &|c| {
        c.bytes[IP + 9] = 132;
        c.bytes[IP + 7] = 1;
    });
    add("IPv6 fragment", "TCP6", &|c| c.bytes[IP + 6] = FRAGMENT);
    add("extension header beyond the frame", "TCP6", &|c| {
        c.bytes[IP + 6] = HOP_BY_HOP;
        c.bytes[IP + 40..IP + 42].copy_from_slice(&[DESTINATION_OPTIONS, 255]);
    });
    add("IPv4 length, less", "TSO4", &|c| c.bytes[IP + 3] -= 1);
    add("IPv4 length, more", "TSO4, short", &|c| c.bytes[IP + 3] += 1);
    add("IPv6 length, less", "TSO6", &|c| c.bytes[IP + 5] -= 1);
    add("IPv6 length, none", "TSO6", &|c| c.bytes[IP + 4..IP + 6].fill(0));
    add("UDP length, more", "USO4", &|c| c.bytes[IP + 25] += 1);
    add("UDP length, none", "USO4", &|c| c.bytes[IP + 24..IP + 26].fill(0));
    add("another protocol", "TSO4", &|c| c.bytes[IP + 9] = UDP);
    add("TCP header too short", "TSO4", &|c| c.bytes[IP + 32] = 0x4f);
    add("headers and no payload", "TSO4", &|c| {
        c.bytes.truncate(IP + 52);
        c.bytes[IP + 2..IP + 4].copy_from_slice(&52u16.to_be_bytes());
    });
    add("TCP header cut off", "TSO4", &|c| {
        c.bytes.truncate(IP + 51);
        c.bytes[IP + 2..IP + 4].copy_from_slice(&51u16.to_be_bytes());
    });
    add("nothing but Ethernet", "TCP", &|c| c.bytes.truncate(IP));
    add("nothing", "TCP", &|c| c.bytes.clear());
    add("no checksum", "TSO4", &|c| c.header.flags = DATA_VALID);
    add("type without a type", "TSO4", &|c| c.header.gso_type = GSO_ECN);
    add("fragmentation offload", "USO4", &|c| c.header.gso_type = 3);
    add("ECN of UDP", "USO4", &|c| c.header.gso_type |= GSO_ECN);
    add("TSO4 of IPv6", "TSO6", &|c| c.header.gso_type = GSO_TCPV4);
    add("TSO6 of IPv4", "TSO4", &|c| c.header.gso_type = GSO_TCPV6);
    add("segments without payload", "USO4", &|c| c.header.gso_size = [0, 0]);
    add("segments of 7 bytes", "TSO4", &|c| c.header.gso_size = [7, 0]);
    add("headers beyond the frame", "TCP", &|c| c.header.hdr_len = [0xff, 0xff]);
    // The TCP header ends beyond [`MAX_HEADERS_LEN`], the checksum field does not.
    let ip = ipv6(TCP, &[(HOP_BY_HOP, 176)], TCP_LEN);
    let (v6, gso) = (link(0, ETHERTYPE_IPV6), (GSO_TCPV6, 1448));
    cases.push(case("options beyond all headers", v6.clone(), ip, gso, Offloads::TSO6));
    let ip = ipv6(TCP, &[(51, 24)], TCP_LEN);
    cases.push(case("behind an authentication header", v6, ip, gso, Offloads::TSO6));
    cases.extend(opaque().into_iter().filter(|c| c.name == "SCTP").flat_map(|c| {
        let name = "checksum in the network header";
        let far = c.clone().sum_at(MAX_HEADERS_LEN - 9, 8);
        [Case { name, ..c.sum_at(33, 8) }, Case { name: "checksum beyond all headers", ..far }]
    }));
    let tunnel = opaque().into_iter().find(|c| c.name == "in a UDP tunnel").expect("there");
    cases.push(Case { name: "checksum in the outer UDP header", ..tunnel.sum_at(41, 8) });
    cases
}

/// Checks that an accepted frame is sound, by the known properties of the made frame.
fn assert_sound(case: &Case, header: VnetHdr, request: &Request) {
    let name = case.name;
    if header.is_plain() {
        assert_eq!(*request, Request::NONE, "{name}: {header:?}");
        return;
    }
    let (start, end) = (request.csum_start(), request.csum_at() + 2);
    assert!(end <= case.len() && end <= MAX_HEADERS_LEN, "{name}: {header:?}");
    assert_eq!(start, case.start(), "{name}: {header:?}");
    assert_eq!(request.header.csum_offset, case.header.csum_offset, "{name}: {header:?}");
    assert_eq!((request.header.flags, request.header.num_buffers), (NEEDS_CSUM, [1, 0]), "{name}");
    let train = header.gso_type == GSO_UDP_L4;
    let long = train && PAYLOAD > MAX_DATAGRAMS * usize::from(u16::from_le_bytes(header.gso_size));
    let never = if long { Offloads::NEVER } else { Offloads::NONE };
    assert_eq!(request.needs.and(Offloads::NEVER), never, "{name}: {header:?}");
    let needs = request.needs.without(never);
    assert!(case.asks.or(Offloads::ECN).has(needs), "{name}: {header:?}");
    assert!(request.needs.has(Offloads::CSUM), "{name}: {header:?}");
    let (size, payload) = (request.gso_size(), PAYLOAD);
    if !request.is_gso() {
        assert_eq!((request.header.hdr_len, size), ([0, 0], 0), "{name}: {header:?}");
        return;
    }
    assert!(request.needs != Offloads::CSUM, "{name}: {header:?}");
    assert_eq!(request.headers_len(), case.len() - payload, "{name}: {header:?}");
    assert!(size > 0 && size < payload, "{name}: {header:?}");
    let mut segmenter =
        Segmenter::new(request, &case.bytes, case.len() as u32).expect("what is sound is cut");
    let count = segmenter.segments() + segmenter.surplus();
    assert_eq!(count as usize, payload.div_ceil(size), "{name}: {header:?}");
    let (from, len) = segmenter.payload(count - 1);
    assert_eq!((from + len) as usize, case.len(), "{name}: {header:?}");
    assert_eq!(segmenter.complete(count - 1, Sum::ZERO).len(), request.headers_len());
}

#[test]
fn good_frames_get_what_they_ask_for() {
    for case in good() {
        let request = case.check(case.header, Offloads::ALL).expect(case.name);
        assert_sound(&case, case.header, &request);
        let tags = case.bytes[12..].chunks(4).take_while(|c| matches!(c[0], 0x81 | 0x88)).count();
        assert_eq!(usize::from(request.l3), 14 + 4 * tags, "{}", case.name);
        assert_eq!(request.is_gso(), case.is_gso(), "{}", case.name);
        if case.is_gso() {
            let needs = request.needs.without(Offloads::NEVER);
            assert_eq!(needs, case.asks, "{}", case.name);
            assert_eq!(request.header.gso_type, case.header.gso_type, "{}", case.name);
            assert_eq!(request.header.gso_size, case.header.gso_size, "{}", case.name);
        } else {
            assert_eq!(request.needs, Offloads::CSUM, "{}", case.name);
        }
    }
    for case in opaque() {
        let request = case.check(case.header, Offloads::ALL).expect(case.name);
        assert_eq!(request.needs, Offloads::CSUM, "{}", case.name);
        assert_sound(&case, case.header, &request);
    }
}

#[test]
fn bad_frames_are_refused() {
    for case in bad() {
        let answer = case.check(case.header, Offloads::ALL);
        assert_eq!(answer, Err(Refused::Nonsense), "{}", case.name);
    }
}

#[test]
fn what_was_not_acknowledged_is_refused() {
    for case in good().iter().chain(&opaque()) {
        for may in (0..=Offloads::ALL.0).map(Offloads) {
            let answer = case.check(case.header, may);
            assert_eq!(answer.is_ok(), may.has(case.asks), "{}: {may:?}", case.name);
            let plain = VnetHdr { flags: 0xfe, gso_type: 0, ..case.header };
            assert_eq!(case.check(plain, may), Ok(Request::NONE), "{}: {may:?}", case.name);
        }
    }
}

/// Tries every type and every limit of each field, alone and together: no panic, no unsound frame.
#[test]
fn fields_at_their_borders_are_refused_or_sound() {
    let mut accepted = 0;
    for case in good() {
        let len = case.len() as u16;
        let values = |good: [u8; 2]| {
            [0, 1, len - 1, len, 65_535]
                .map(u16::to_le_bytes)
                .map(|v| v)
                .into_iter()
                .chain([good])
                .collect::<Vec<_>>()
        };
        for gso_type in 0..=u8::MAX {
            for hdr_len in values(case.header.hdr_len) {
                for csum_start in values(case.header.csum_start) {
                    for csum_offset in values(case.header.csum_offset) {
                        for gso_size in values(case.header.gso_size) {
                            let header = VnetHdr {
                                gso_type,
                                hdr_len,
                                gso_size,
                                csum_start,
                                csum_offset,
                                ..case.header
                            };
                            if let Ok(request) = case.check(header, Offloads::ALL) {
                                assert_sound(&case, header, &request);
                                accepted += 1;
                            }
                        }
                    }
                }
            }
        }
    }
    assert!(accepted > 100, "only {accepted}: the table is broken");
}

/// `check` returns `Short` exactly as long as needed bytes are missing.
#[test]
fn longer_and_longer_beginnings_end_in_the_same_answer() {
    for case in good().iter().chain(&opaque()).chain(&bad()) {
        let len = case.len();
        let answer = |n: usize| check(case.header, &case.bytes[..n], len as u32, Offloads::ALL);
        let last = answer(len.min(MAX_HEADERS_LEN));
        assert_ne!(last, Err(Refused::Short), "{}", case.name);
        let mut before = None;
        for n in 0..=len {
            let now = answer(n);
            assert!(now == last || now == Err(Refused::Short), "{}, {n}: {now:?}", case.name);
            let back = before == Some(last) && now != last;
            assert!(!back, "{}: {n} bytes tell less than {}", case.name, n - 1);
            before = Some(now);
        }
        // A request needs the bytes that the request is about.
        if let Ok(request) = last {
            for n in 0..request.csum_at() + 2 {
                assert_eq!(answer(n), Err(Refused::Short), "{}, {n}", case.name);
            }
        }
    }
}

/// `check` must not ask for more bytes if more bytes cannot help.
#[test]
fn a_header_beyond_all_bytes_is_not_waited_for() {
    let case = bad().into_iter().find(|c| c.name == "extension header beyond the frame");
    let case = case.expect("there");
    let answer = check(case.header, &case.bytes[..64], case.len() as u32, Offloads::ALL);
    assert_eq!(answer, Err(Refused::Nonsense));
}

#[test]
fn any_bytes_are_checked_without_panic() {
    let mut seed = 1u64;
    let mut next = move || {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 40) as u32
    };
    let good = good();
    let mut accepted = 0;
    for _ in 0..200_000 {
        let mut case = good[next() as usize % good.len()].clone();
        // The beginning of a good frame with a few changed bytes, of any length.
        for _ in 0..next() % 4 {
            let at = next() as usize % 120;
            case.bytes[at] = next() as u8;
        }
        if next() % 4 == 0 {
            case.bytes.truncate(next() as usize % 300);
        }
        let mut header = case.header.to_bytes();
        if next() % 2 == 0 {
            header[next() as usize % 12] = next() as u8;
        }
        let header = VnetHdr::from_bytes(header);
        let Ok(request) = case.check(header, Offloads::ALL) else { continue };
        accepted += 1;
        if request == Request::NONE {
            continue;
        }
        let end = request.csum_at() + 2;
        assert!(request.csum_start() >= 14 && end <= case.len().min(MAX_HEADERS_LEN));
        if request.is_gso() {
            let segmenter = Segmenter::new(&request, &case.bytes, case.len() as u32);
            let mut segmenter = segmenter.expect("what is sound is cut");
            let last = segmenter.segments() - 1;
            assert_eq!(segmenter.complete(last, Sum::ZERO).len(), request.headers_len());
        }
    }
    assert!(accepted > 1000, "only {accepted}: the bending is too hard");
}
