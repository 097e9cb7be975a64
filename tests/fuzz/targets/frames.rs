//! Any bytes as header and frame: nothing panics, an answer does not depend on how many of a
//! frame's first bytes were at hand, and what is accepted lies inside the frame; segments of sound
//! packets hold the payload, whole and in order, and each is a complete packet by arithmetic of its
//! own and by etherparse; segments that are merged are cut into what they were; a guard lets no
//! packet pass whose source, by etherparse, is not the port's.

use base::frame::coalesce::{Order, Packet as Merged, Written};
use base::frame::ethernet::{self, Addresses};
use base::frame::offload::{self, Offloads, Refused, Request};
use base::frame::{MacAddr, Segmenter, Sum, VnetHdr, flow_hash, rarp};
use base::limits::{
    BURST_FRAMES, MAX_DATAGRAMS, MAX_FRAME_LEN, MAX_HEADERS_LEN, MAX_SEGMENTS, SNAPSHOT_LEN,
};
use etherparse::{NetHeaders, PacketHeaders};
use switch::port_security::{self, AllowedIps, AllowedMacs, Headers, PortSecurity, Servers};

use super::input::Input;
use super::packet::{Packet, ones};

/// The target.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    match input.below(4) {
        0 => any_frame(&mut input),
        1 => sound_packet(&mut input),
        2 => changed_packet(&mut input),
        _ => sums(&mut input),
    }
}

fn any_frame(input: &mut Input<'_>) {
    let header = header(input);
    let may = Offloads::from_bits(input.u8());
    // Lengths beyond the bytes at hand too: no more than the first 256 are ever looked at.
    let extra = usize::from(input.u16());
    let mut frame = input.rest().to_vec();
    frame.resize(frame.len().max(14) + extra, 0x5a);
    frame.truncate(MAX_FRAME_LEN as usize);
    examine(header, &frame, may);
    look(&frame);
}

fn header(input: &mut Input<'_>) -> VnetHdr {
    let mut bytes = [0; 12];
    let given = input.bytes(12);
    bytes[..given.len()].copy_from_slice(given);
    VnetHdr::from_bytes(bytes)
}

/// A sound packet with a few bytes of its headers, or of its virtio-net header, replaced: far more
/// of these get past the first checks than of any bytes.
fn changed_packet(input: &mut Input<'_>) {
    let may = Offloads::from_bits(input.u8());
    let size = input.u16();
    let mut packet = Packet::from_input(input, 3000);
    let mut header = packet.asking(size).to_bytes();
    while !input.is_empty() {
        // Anywhere, or where the lengths and types of its headers are.
        let (l3, l4) = (12 + packet.l3, 12 + packet.l4);
        let fields =
            [0, 1, 4, 6, 8, l3, l3 + 2, l3 + 3, l3 + 4, l3 + 5, l3 + 6, l3 + 9, l4 + 5, l4 + 12];
        let at = if input.flag() { input.choose(&fields) } else { input.below(300) };
        let value = input.u8();
        match header.get_mut(at) {
            Some(byte) => *byte = value,
            None => {
                if let Some(byte) = packet.frame.get_mut(at - 12) {
                    *byte = value;
                }
            }
        }
    }
    examine(VnetHdr::from_bytes(header), &packet.frame, may);
    look(&packet.frame);
}

/// What must hold whatever the bytes.
fn examine(header: VnetHdr, frame: &[u8], may: Offloads) {
    let len = frame.len() as u32;
    let first = &frame[..frame.len().min(MAX_HEADERS_LEN)];
    let answer = offload::check(header, first, len, may);
    assert_ne!(answer, Err(Refused::Short), "there are no more bytes to look at");
    for known in [SNAPSHOT_LEN, 14, first.len() / 2, first.len().saturating_sub(1)] {
        let known = known.min(first.len());
        let early = offload::check(header, &first[..known], len, may);
        assert!(early == Err(Refused::Short) || early == answer, "{known}: {early:?}, {answer:?}");
    }
    let Ok(request) = answer else { return };
    if header.flags & 1 == 0 && header.gso_type == 0 {
        assert_eq!(request, Request::NONE);
        return;
    }
    assert!(may.has(request.needs.without(Offloads::NEVER)), "{:?} of {may:?}", request.needs);
    let train = request.header.gso_type == 5;
    let payload = frame.len() - request.headers_len();
    let long = train && payload > MAX_DATAGRAMS * request.gso_size();
    assert_eq!(request.needs.has(Offloads::NEVER), long, "of {payload} bytes");
    assert!(request.csum_at() + 2 <= frame.len().min(MAX_HEADERS_LEN));
    assert!(usize::from(request.l3) <= 22 && usize::from(request.l3) <= request.csum_start());
    // The answer is a request that asks for the same: whoever gets the frame may check it again.
    assert_eq!(offload::check(request.header, first, len, request.needs), answer);
    assert_eq!(request.is_gso(), request.gso_size() != 0);
    assert_eq!(request.is_gso(), request.headers_len() != 0);
    if request.is_gso() {
        assert!(request.headers_len() + request.gso_size() < frame.len(), "one segment's worth");
        let number = |at: usize| usize::from(u16::from_be_bytes([frame[at], frame[at + 1]]));
        let (l3, l4) = (usize::from(request.l3), request.csum_start());
        match frame[l3] >> 4 {
            4 => assert_eq!(number(l3 + 2), frame.len() - l3, "IPv4 length"),
            _ => assert_eq!(number(l3 + 4), frame.len() - l3 - 40, "IPv6 length"),
        }
        if request.header.gso_type == 5 {
            assert_eq!(number(l4 + 4), frame.len() - l4, "UDP length");
        }
        let segmenter = Segmenter::new(&request, first, len).expect("accepted");
        segments(&request, segmenter, frame);
    } else {
        assert!(Segmenter::new(&request, first, len).is_none());
    }
}

/// Segments of an accepted packet: the payload, whole and in order; lengths that are theirs; and a
/// checksum that differs from the packet's own by what differs. The packet's own may be wrong.
fn segments(request: &Request, mut segmenter: Segmenter, frame: &[u8]) {
    let (l4, at) = (request.csum_start(), request.csum_at());
    let payload = &frame[request.headers_len()..];
    let count = payload.len().div_ceil(request.gso_size());
    assert_eq!((segmenter.segments() + segmenter.surplus()) as usize, count);
    assert_eq!(segmenter.segments(), (count as u32).min(MAX_SEGMENTS));
    let field = u32::from(u16::from_be_bytes([frame[at], frame[at + 1]]));
    for (index, part) in payload.chunks(request.gso_size()).enumerate() {
        let index = index as u32;
        if index >= segmenter.segments() {
            break;
        }
        let (from, len) = segmenter.payload(index);
        assert_eq!(&frame[from as usize..][..len as usize], part);
        let headers = segmenter.complete(index, Sum::of(part)).to_vec();
        assert_eq!(headers.len(), request.headers_len());
        // Of the pseudo-header only the length has changed.
        let (whole, own) = (frame.len() - l4, headers.len() - l4 + part.len());
        let pseudo = ones(field + u32::from(!(whole as u16)) + own as u32, &[]);
        let sum = ones(ones(pseudo, &with_sum(&headers, at, [0; 2])[l4..]), part);
        let told = u16::from_be_bytes([headers[at], headers[at + 1]]);
        let expected = if sum == 0xffff { 0xffff } else { !(sum as u16) };
        assert_eq!(told, expected, "segment {index}");
        let partial = segmenter.partial(index);
        let left = [partial[at], partial[at + 1]];
        // Both zeros of ones' complement are the same sum.
        assert_eq!(u32::from(u16::from_be_bytes(left)) % 0xffff, pseudo % 0xffff);
        assert_eq!(with_sum(partial, at, [0; 2]), with_sum(&headers, at, [0; 2]));
    }
}

fn with_sum(headers: &[u8], at: usize, sum: [u8; 2]) -> Vec<u8> {
    let mut headers = headers.to_vec();
    headers[at..at + 2].copy_from_slice(&sum);
    headers
}

fn sound_packet(input: &mut Input<'_>) {
    let size = input.u16();
    let packet = Packet::from_input(input, 65_000);
    let (frame, header) = (&packet.frame, packet.asking(size));
    // A maximal payload behind all options is longer than IP can say.
    let told = frame.len() - packet.l3 - if packet.v4 { 0 } else { 40 };
    if told > usize::from(u16::MAX) || packet.headers > MAX_HEADERS_LEN {
        return;
    }
    look(frame);
    assert_eq!(ethernet::l3_offset(frame), packet.l3);
    // A receiver that finishes the checksum has the whole packet.
    let mut whole = packet.clone();
    let sum = Sum::of(&frame[packet.l4..]).checksum();
    whole.frame[packet.csum_at()..][..2].copy_from_slice(&sum);
    whole.assert_whole();
    if frame.len() == packet.headers {
        return;
    }
    let first = &frame[..frame.len().min(MAX_HEADERS_LEN)];
    let request = offload::check(header, first, frame.len() as u32, Offloads::ALL);
    let least = if packet.tcp { 8 } else { 1 };
    if size != 0 && size < least {
        assert_eq!(request, Err(Refused::Nonsense));
        return;
    }
    let request = request.expect("a sound packet");
    assert_eq!(request.is_gso(), size != 0 && frame.len() - packet.headers > size.into());
    let Some(mut segmenter) = Segmenter::new(&request, first, frame.len() as u32) else {
        assert!(!request.is_gso());
        return;
    };
    let (mut together, mut sequence, mut all) = (Vec::new(), None, Vec::new());
    for index in 0..segmenter.segments() {
        let (from, len) = segmenter.payload(index);
        let part = &frame[from as usize..][..len as usize];
        let bytes = [segmenter.complete(index, Sum::of(part)), part].concat();
        let segment = Packet { frame: bytes, ..packet };
        segment.assert_whole();
        together.extend(part);
        if packet.tcp {
            let told = u32::from_be_bytes(segment.frame[packet.l4 + 4..][..4].try_into().unwrap());
            assert_eq!(sequence.unwrap_or(told), told, "segment {index}");
            sequence = Some(told.wrapping_add(len));
            // CWR is for the first, FIN and PSH are for the last.
            let (asked, flags) = (frame[packet.l4 + 13], segment.frame[packet.l4 + 13]);
            let last = together.len() == frame.len() - packet.headers;
            let keeps = if index == 0 { 0xff } else { 0x7f } & if last { 0xff } else { 0xf6 };
            assert_eq!(flags, asked & keeps, "segment {index}");
        }
        if packet.v4 {
            let id =
                |bytes: &[u8]| u16::from_be_bytes([bytes[packet.l3 + 4], bytes[packet.l3 + 5]]);
            assert_eq!(id(&segment.frame), id(frame).wrapping_add(index as u16));
        }
        if index == 0 {
            let parsed = PacketHeaders::from_ethernet_slice(&segment.frame).expect("well formed");
            assert!(parsed.payload.slice().ends_with(part));
        }
        all.push(segment.frame);
    }
    merge(&all);
    let rest = &frame[packet.headers..];
    assert!(rest.starts_with(&together));
    assert_eq!(rest.len() == together.len(), segmenter.surplus() == 0);
}

/// What forwarding reads of a frame.
fn look(frame: &[u8]) {
    let mut snapshot = [0; SNAPSHOT_LEN];
    let len = frame.len().min(SNAPSHOT_LEN);
    snapshot[..len].copy_from_slice(&frame[..len]);
    assert_eq!(ethernet::destination(&snapshot).0, snapshot[..6]);
    assert_eq!(ethernet::source(&snapshot).0, snapshot[6..12]);
    let same = ethernet::addresses(&snapshot);
    assert!(same == ethernet::addresses(&snapshot) && same != Addresses::NONE);
    flow_hash(&snapshot);
    assert!((14..=22).contains(&ethernet::l3_offset(frame)));
    let mac = ethernet::source(&snapshot);
    assert_eq!(mac.to_string().parse(), Ok(mac));
    let announced = rarp::request(mac);
    assert_eq!(announced[6..12], mac.0);
    guarded(frame, mac);
    merge(&[frame.to_vec(), frame.to_vec()]);
}

/// Frames that may be segments, each behind the one before it.
fn merge(frames: &[Vec<u8>]) {
    let listed: Vec<u8> = (0..frames.len().min(BURST_FRAMES) as u8).collect();
    let head =
        |at| frames.get(usize::from(at)).map(|frame| &frame[..frame.len().min(SNAPSHOT_LEN)]);
    if let Some(order) = Order::of(&listed, |at| head(at).unwrap_or_default()) {
        let mut all = order.frames().to_vec();
        all.sort_unstable();
        assert_eq!(all, listed);
    }
    let Some((first, others)) = frames.split_first() else { return };
    let written =
        |frame: &[u8]| Written { len: frame.len(), header: VnetHdr::plain(0), sum: Sum::of(frame) };
    let Some(mut merged) = Merged::begin(first, written(first)) else { return };
    let mut buffer = [first.clone(), vec![0; 1 << 16]].concat();
    for next in others {
        let write = |headers: &mut [u8], room: &mut [u8]| {
            let (front, payload) = next.split_at_checked(headers.len())?;
            headers.copy_from_slice(front);
            room.get_mut(..payload.len())?.copy_from_slice(payload);
            Some(written(next))
        };
        if !merged.may_take(next.len()) || !merged.add(&mut buffer, write) {
            break;
        }
    }
    let (len, count) = (merged.len(), usize::from(merged.segments()));
    let header = VnetHdr { num_buffers: [1, 0], ..merged.finish(&mut buffer) };
    let packet = &buffer[..len];
    let first = &packet[..len.min(MAX_HEADERS_LEN)];
    let request = offload::check(header, first, len as u32, Offloads::ALL).expect("sound");
    assert_eq!(request.is_gso(), count > 1);
    let Some(mut segmenter) = Segmenter::new(&request, first, len as u32) else { return };
    assert_eq!(segmenter.segments() as usize, count);
    for (index, frame) in (0..).zip(&frames[..count]) {
        let (from, len) = segmenter.payload(index);
        let part = &packet[from as usize..][..len as usize];
        let same = [segmenter.complete(index, Sum::of(part)), part].concat();
        let at = request.csum_at();
        let sums = [&same, frame].map(|frame| u16::from_be_bytes([frame[at], frame[at + 1]]));
        // Both zeros of ones' complement are the same sum.
        assert!(sums[0] % 0xffff == sums[1] % 0xffff);
        assert!(with_sum(&same, at, [0; 2]) == with_sum(frame, at, [0; 2]));
    }
}

/// What a guard says of a frame from its own address, of as many of its bytes as are at hand.
fn guarded(frame: &[u8], source: MacAddr) {
    let ips = ["10.0.0.0/8", "fd00::/8"].map(|ip| ip.parse().expect("a prefix"));
    let rules = PortSecurity {
        enforced: true,
        macs: AllowedMacs::Only { list: [source].into(), vrrp: false },
        ips: AllowedIps::new(&ips),
        servers: Servers::default(),
        ethertypes: Box::default(),
    };
    let first = &frame[..frame.len().min(MAX_HEADERS_LEN)];
    let more = [port_security::Refused::Short, port_security::Refused::Whole];
    let asks_for_more = |answer: Result<(), _>| more.map(Err).contains(&answer);
    let asked = |known: usize, whole| {
        let bytes = &first[..known.min(first.len())];
        let len = frame.len();
        let frame = Headers { bytes, whole, len, sum_at: None, is_cut: false };
        port_security::check(&rules, &frame, &|_| true)
    };
    let answer = asked(first.len(), frame);
    assert!(!asks_for_more(answer), "there are no more bytes to look at");
    for known in [SNAPSHOT_LEN, 14, first.len() / 2, first.len()] {
        let early = asked(known, &[]);
        assert!(asks_for_more(early) || early == answer, "{known}");
    }
    let (Ok(()), Ok(packet)) = (answer, PacketHeaders::from_ethernet_slice(frame)) else { return };
    match packet.net {
        Some(NetHeaders::Ipv4(header, _)) => {
            assert!(matches!(header.source, [10, ..] | [0, 0, 0, 0]), "{:?}", header.source);
        }
        Some(NetHeaders::Ipv6(header, _)) => {
            let bytes = header.source;
            let listed = bytes[0] == 0xfd || (bytes[0] == 0xfe && bytes[1] & 0xc0 == 0x80);
            assert!(listed || bytes == [0; 16], "{bytes:?}");
        }
        _ => {}
    }
}

/// Sums of parts, wherever they are cut, are the sum of the whole.
fn sums(input: &mut Input<'_>) {
    let (cuts, value) = ([input.u16(), input.u16()], input.u16());
    let times = 1 + input.below(40);
    let bytes = input.rest().repeat(times);
    let slow = ones(0, &bytes);
    let whole = Sum::of(&bytes);
    assert_eq!(u32::from(u16::from_be_bytes(whole.to_bytes())), slow);
    assert_eq!(whole.fold() == 0, bytes.iter().all(|&b| b == 0));
    let cuts = cuts.map(|cut| usize::from(cut) % (bytes.len() + 1));
    let (one, two) = (cuts[0].min(cuts[1]), cuts[0].max(cuts[1]));
    let parts = Sum::of(&bytes[..one])
        .plus_at(Sum::of(&bytes[one..two]), one % 2 == 1)
        .plus_at(Sum::of(&bytes[two..]), two % 2 == 1);
    assert_eq!(parts.fold(), whole.fold());
    let more = whole.word(value);
    assert_eq!(u32::from(u16::from_be_bytes(more.to_bytes())), ones(slow + u32::from(value), &[]));
    assert_eq!(more.minus_word(value).fold() % 0xffff, whole.fold() % 0xffff);
    let complete = ones(slow, &whole.checksum());
    assert_eq!(complete, 0xffff);
}
