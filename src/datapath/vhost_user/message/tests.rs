//! Decoding: each form, each violation of the form, and 10^5 messages of noise.

use super::decode::{Form, shape};
use super::*;
use std::io::{PipeReader, PipeWriter, Read, pipe};

use FrontendReq as R;

/// Every code that the protocol defines, and a few undefined codes.
const CODES: std::ops::RangeInclusive<u32> = 0..=50;

/// A message with `count` descriptors, all copies of the writing end of one pipe.
fn message(code: impl Into<Code>, body: &[u8], writer: &PipeWriter, count: usize) -> Message {
    let files = (0..count).map(|_| Some(writer.try_clone().unwrap().into())).collect();
    let head = Head { code: code.into(), need_reply: false, size: body.len() };
    Message { head, body: body.to_vec(), files }
}

/// Decodes a message of a served request.
fn payload(message: Message) -> Result<Payload, BadMessage> {
    let code = message.head.code;
    message.decode().map(|decoded| {
        let (request, payload) = decoded.unwrap();
        assert_eq!(Code::from(request), code);
        payload
    })
}

fn decode(request: R, body: &[u8], count: usize) -> Result<Payload, BadMessage> {
    let (_reader, writer) = pipe().unwrap();
    payload(message(request, body, &writer, count))
}

/// Returns the payload's text without descriptor numbers, which vary.
fn text(request: Result<Payload, BadMessage>) -> String {
    let mut text = format!("{:?}", request.unwrap());
    while let Some(at) = text.find("OwnedFd {") {
        let end = at + text[at..].find('}').unwrap();
        text.replace_range(at..=end, "fd");
    }
    text
}

fn words32(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn words64(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn header(code: u32, flags: u32, size: u32) -> [u8; HEADER_BYTES] {
    words32(&[code, flags, size]).try_into().unwrap()
}

fn mem_table(regions: u32, entries: u64) -> Vec<u8> {
    let mut body = words32(&[regions, 0]);
    (0..entries).for_each(|n| body.extend(words64(&[n << 32, 0x1000, n << 40, n])));
    body
}

/// True once every copy of the writing end has been closed.
fn all_closed(mut reader: PipeReader, writer: PipeWriter) -> bool {
    drop(writer);
    reader.read(&mut [0]).unwrap() == 0
}

#[test]
fn headers() {
    let good = Head { code: Code(1), need_reply: false, size: 0 };
    assert_eq!(Head::parse(&header(1, 1, 0)), Ok(good));
    assert_eq!(Head::parse(&header(1, 9, 0)), Ok(Head { need_reply: true, ..good }));
    let longest = Head { code: Code(99), size: MAX_MESSAGE_BODY, ..good };
    assert_eq!(Head::parse(&header(99, 1, MAX_MESSAGE_BODY as u32)), Ok(longest));

    let code = Code(1);
    for flags in [0, 2, 3, 8, 0xffff_ffff, 0x8000_0000] {
        assert_eq!(Head::parse(&header(1, flags, 0)), Err(HeaderError::Version(code, flags)));
    }
    for flags in [0x11, 0x8000_0001, 0xffff_fffd] {
        assert_eq!(Head::parse(&header(1, flags, 0)), Err(HeaderError::Reserved(code, flags)));
    }
    for flags in [5, 0xd] {
        assert_eq!(Head::parse(&header(1, flags, 0)), Err(HeaderError::Reply(code, flags)));
    }
    for size in [MAX_MESSAGE_BODY as u32 + 1, 0x7fff_ffff, u32::MAX] {
        assert_eq!(Head::parse(&header(1, 1, size)), Err(HeaderError::BodyTooLong(code, size)));
    }
}

#[test]
fn replies_carry_flags_5_and_nothing_else() {
    assert_eq!(REPLY_FLAGS, 5);
    assert_eq!(reply_header(R::GET_FEATURES.into(), 8), header(1, 5, 8));
}

#[test]
fn codes_print_as_the_protocol_names_them() {
    assert_eq!(Code::from(R::SET_VRING_KICK).to_string(), "SET_VRING_KICK");
    assert_eq!(Code(4711).to_string(), "request 4711");
    let error = decode(R::SET_FEATURES, &[0; 7], 0).unwrap_err();
    assert_eq!(error.to_string(), "SET_FEATURES: a body of 7 bytes instead of 8");
    let error = decode(R::ADD_MEM_REG, &[0; 40], 2).unwrap_err();
    assert_eq!(error.to_string(), "ADD_MEM_REG: 2 descriptors instead of 1");
}

#[test]
fn requests_without_a_body() {
    for request in [
        R::GET_FEATURES,
        R::SET_OWNER,
        R::RESET_OWNER,
        R::GET_PROTOCOL_FEATURES,
        R::GET_QUEUE_NUM,
        R::GET_MAX_MEM_SLOTS,
    ] {
        assert_eq!(text(decode(request, &[], 0)), "None");
    }
    assert_eq!(text(decode(R::SET_LOG_FD, &[], 1)), "None");
}

#[test]
fn requests_with_a_number() {
    let requests = [R::SET_FEATURES, R::SET_PROTOCOL_FEATURES, R::NET_SET_MTU, R::SEND_RARP];
    for (request, number) in requests.into_iter().zip([0x1_4000_0000, 0x801f, u64::MAX, 0]) {
        let decoded = text(decode(request, &words64(&[number]), 0));
        assert_eq!(decoded, format!("Number({number})"));
    }
    // QEMU 7.2's announce_self for 52:54:00:12:34:56, as recorded.
    match decode(R::SEND_RARP, &[0x52, 0x54, 0, 0x12, 0x34, 0x56, 0, 0], 0) {
        Ok(Payload::Number(value)) => {
            assert_eq!(address_in(value).to_string(), "52:54:00:12:34:56");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn requests_about_a_ring() {
    let state = words32(&[3, 256]);
    for request in [R::SET_VRING_NUM, R::SET_VRING_BASE, R::GET_VRING_BASE] {
        assert_eq!(text(decode(request, &state, 0)), "Ring(3, 256)");
    }
    let mut body = words32(&[1, u32::MAX]);
    body.extend(words64(&[u64::MAX, 2, 3, 4]));
    let expected = VringAddr {
        index: 1,
        flags: u32::MAX,
        descriptor: u64::MAX,
        used: 2,
        available: 3,
        log: 4,
    };
    match decode(R::SET_VRING_ADDR, &body, 0) {
        Ok(Payload::Address(address)) => assert_eq!(address, expected),
        other => panic!("{other:?}"),
    }
}

#[test]
fn enable_is_0_or_1() {
    for num in [0, 1] {
        let expected = format!("Ring(7, {num})");
        assert_eq!(text(decode(R::SET_VRING_ENABLE, &words32(&[7, num]), 0)), expected);
    }
    for num in [2, 256, u32::MAX] {
        let code = R::SET_VRING_ENABLE.into();
        let error = decode(R::SET_VRING_ENABLE, &words32(&[7, num]), 0).unwrap_err();
        assert_eq!(error, BadMessage::Value(code, num.into()));
    }
}

/// vhost-user.rst, "A vring descriptor": bits 0 to 7 are the index, bit 8 says that no descriptor
/// comes with the message.
#[test]
fn ring_descriptors_come_unless_bit_8_says_otherwise() {
    for request in [R::SET_VRING_KICK, R::SET_VRING_CALL, R::SET_VRING_ERR] {
        let with = text(decode(request, &words64(&[0xff]), 1));
        assert_eq!(with, "Notifier(255, Some(fd))");
        let without = text(decode(request, &words64(&[0x102]), 0));
        assert_eq!(without, "Notifier(2, None)");

        let code = request.into();
        for (value, got, expected) in [(2, 0, 1), (2, 2, 1), (2, 32, 1), (0x102, 1, 0)] {
            let error = decode(request, &words64(&[value]), got).unwrap_err();
            assert_eq!(error, BadMessage::FileCount { code, expected, got });
        }
        for value in [0x200, 1 << 32, 1 << 63] {
            let error = decode(request, &words64(&[value]), 1).unwrap_err();
            assert_eq!(error, BadMessage::Value(code, value));
        }
    }
}

#[test]
fn memory_regions() {
    let body = words64(&[0xdead, 1, 2, 3, 4]);
    let spec = "RegionSpec { gpa: 1, len: 2, uva: 3, offset: 4 }";
    assert_eq!(text(decode(R::ADD_MEM_REG, &body, 1)), format!("Region({spec}, Some(fd))"));
    assert_eq!(text(decode(R::REM_MEM_REG, &body, 0)), format!("Region({spec}, None)"));
    // "If a file descriptor is passed, the back-end must close it without using it otherwise."
    let (reader, writer) = pipe().unwrap();
    let request = payload(message(R::REM_MEM_REG, &body, &writer, 1));
    assert_eq!(text(request), format!("Region({spec}, None)"));
    assert!(all_closed(reader, writer));
}

/// A region may lack its file, which was on a disk; no other payload may lack a file.
#[test]
fn a_file_on_a_disk_leaves_its_place() {
    let (_reader, writer) = pipe().unwrap();
    let bare = |request: R, body: &[u8]| {
        let mut message = message(request, body, &writer, 1);
        message.files[0] = None;
        payload(message)
    };
    let region = words64(&[0, 1, 2, 3, 4]);
    assert!(matches!(bare(R::ADD_MEM_REG, &region), Ok(Payload::Region(_, None))));
    match bare(R::SET_MEM_TABLE, &mem_table(1, 1)) {
        Ok(Payload::Table(table)) => assert!(table[0].1.is_none()),
        other => panic!("{other:?}"),
    }
    for (request, body) in [(R::SET_VRING_KICK, vec![0]), (R::SET_LOG_BASE, vec![0, 0])] {
        let error = bare(request, &words64(&body)).unwrap_err();
        assert_eq!(error, BadMessage::FileCount { code: request.into(), expected: 1, got: 0 });
    }
}

#[test]
fn the_dirty_log_as_qemu_sends_it() {
    let body = words64(&[0x20_0000, 0]);
    let expected = "Log(fd, 0, 2097152)";
    assert_eq!(text(decode(R::SET_LOG_BASE, &body, 1)), expected);
}

#[test]
fn memory_tables_of_0_to_32_regions() {
    for regions in [0, 1, 8, 32] {
        match decode(R::SET_MEM_TABLE, &mem_table(regions, regions.into()), regions as usize) {
            Ok(Payload::Table(table)) => {
                assert_eq!(table.len(), regions as usize);
                for ((spec, _), n) in table.iter().zip(0..) {
                    let (gpa, uva) = (n << 32, n << 40);
                    assert_eq!(*spec, RegionSpec { gpa, len: 0x1000, uva, offset: n });
                }
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn memory_tables_that_do_not_add_up() {
    let code = R::SET_MEM_TABLE.into();
    for regions in [33, 255, 0x0800_0000, 0x8000_0000, u32::MAX] {
        let error = decode(R::SET_MEM_TABLE, &mem_table(regions, 33), 32).unwrap_err();
        assert_eq!(error, BadMessage::TooManyRegions(code, regions));
    }
    for (regions, entries) in [(2, 1), (1, 2), (0, 1), (32, 31)] {
        let body = mem_table(regions, entries);
        let (expected, got) = (8 + 32 * regions as usize, body.len());
        let error = decode(R::SET_MEM_TABLE, &body, regions as usize).unwrap_err();
        assert_eq!(error, BadMessage::BodySize { code, expected, got });
    }
    for got in 0..8 {
        let error = decode(R::SET_MEM_TABLE, &[0; 8][..got], 0).unwrap_err();
        assert_eq!(error, BadMessage::BodySize { code, expected: 8, got });
    }
    for got in [0, 1, 3, 32] {
        let error = decode(R::SET_MEM_TABLE, &mem_table(2, 2), got).unwrap_err();
        assert_eq!(error, BadMessage::FileCount { code, expected: 2, got });
    }
}

/// Returns a body of `size` bytes that is valid apart from its size.
fn zeroes_for(code: Code) -> Option<usize> {
    Some(match shape(code.known()?)?.0 {
        Form::Empty | Form::Descriptor => 0,
        Form::Number | Form::Notifier | Form::Ring | Form::Switch | Form::Table => 8,
        Form::Address | Form::NewRegion | Form::OldRegion => 40,
        Form::Log => 16,
    })
}

#[test]
fn every_request_has_one_size_and_its_count_of_descriptors() {
    for code in CODES.map(Code) {
        for size in [0, 1, 4, 7, 8, 9, 12, 15, 16, 17, 32, 39, 40, 41, 4096] {
            for count in [0, 1, 2, 8, 32] {
                let (reader, writer) = pipe().unwrap();
                let result = message(code, &vec![0; size], &writer, count).decode();
                let expected = match zeroes_for(code) {
                    None => true,
                    Some(right) if right != size => false,
                    Some(_) => match shape(code.known().unwrap()).unwrap().0 {
                        Form::Descriptor | Form::Notifier | Form::NewRegion | Form::Log => {
                            count == 1
                        }
                        Form::OldRegion => count <= 1,
                        _ => count == 0,
                    },
                };
                assert_eq!(result.is_ok(), expected, "{code} size {size} files {count}");
                drop(result);
                assert!(all_closed(reader, writer), "{code} size {size} files {count}");
            }
        }
    }
}

#[test]
fn requests_not_served_are_known_as_such_and_their_descriptors_closed() {
    let (reader, writer) = pipe().unwrap();
    for code in [R::SET_BACKEND_REQ_FD.into(), R::GET_CONFIG.into(), Code(0), Code(u32::MAX)] {
        assert!(matches!(message(code, &[1; 300], &writer, 32).decode(), Ok(None)), "{code}");
    }
    assert!(all_closed(reader, writer));
}

#[test]
fn an_answer_stands_for_the_acknowledgement() {
    let head = |request: R, need_reply| Head { code: request.into(), need_reply, size: 0 };
    for request in [R::GET_FEATURES, R::GET_VRING_BASE, R::SET_LOG_BASE, R::GET_MAX_MEM_SLOTS] {
        assert!(!head(request, true).wants_ack());
    }
    for request in [R::SET_FEATURES, R::ADD_MEM_REG, R::SET_VRING_ENABLE, R::GET_CONFIG] {
        assert!(head(request, true).wants_ack());
        assert!(!head(request, false).wants_ack());
    }
    assert!(Head { code: Code(4711), need_reply: true, size: 0 }.wants_ack());
}

/// SplitMix64 (Steele, Lea, Flood 2014): a few lines, and equal noise in every run.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[(self.next() % from.len() as u64) as usize]
    }
}

#[test]
fn a_hundred_thousand_random_headers() {
    let mut noise = Noise(1);
    let mut good = 0;
    for _ in 0..100_000 {
        // Half of the messages have plausible flags, to reach the later checks too.
        let flags = if noise.next() & 1 == 0 { noise.next() as u32 } else { 1 };
        let (code, size) = (noise.next() as u32, noise.next() as u32 >> (noise.next() % 32));
        if let Ok(head) = Head::parse(&header(code, flags, size)) {
            assert!(head.size <= MAX_MESSAGE_BODY);
            good += 1;
        }
    }
    assert!((10_000..90_000).contains(&good), "{good}");
}

#[test]
fn a_hundred_thousand_random_bodies() {
    let mut noise = Noise(2);
    let (reader, writer) = pipe().unwrap();
    let (mut good, mut bad) = (0, 0);
    for _ in 0..100_000 {
        let code = Code((noise.next() % 51) as u32);
        let right = zeroes_for(code).unwrap_or(8);
        let size = noise.pick(&[right, right, right, right + 32, 0, 8, 39, 72]);
        let mut body: Vec<u8> = (0..size).map(|_| noise.next() as u8).collect();
        // Numbers near the edges: 0, 1, 2^k - 1, 2^k in the leading words.
        for word in body.chunks_exact_mut(4).take(2) {
            let edge = 1u32.wrapping_shl(noise.next() as u32);
            let value = noise.pick(&[0, 1, edge, edge.wrapping_sub(1), u32::MAX]);
            word.copy_from_slice(&value.to_ne_bytes());
        }
        let count = noise.pick(&[0, 0, 1, 1, 2, 32]);
        match message(code, &body, &writer, count).decode() {
            Ok(_) => good += 1,
            Err(_) => bad += 1,
        }
    }
    assert!(good > 10_000 && bad > 10_000, "{good} {bad}");
    assert!(all_closed(reader, writer));
}
