//! Properties of the parser alone, of whatever bytes: it never panics, never takes more than it was
//! sent, and what it accepts is what the protocol's text says. A million cases in the long run.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use base::limits::{MAX_MESSAGE_BODY, MAX_MESSAGE_FILES};
use datapath::vhost_user::message::{Head, Message};

use testkit::rounds;
use testkit::sys::EventFd;

fn runner(cases: u32) -> TestRunner {
    let cases = rounds(cases / 5, cases, 1_000_000);
    TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() })
}

/// A header is taken exactly if it is of version 1, no reply, without bits that mean nothing, and
/// announces a body that can be.
#[test]
fn headers_are_taken_by_the_rules() {
    let flags = prop_oneof![0..32u32, any::<u32>()];
    let size = prop_oneof![0..5000u32, any::<u32>()];
    let strategy = (any::<u32>(), flags, size);
    let property = |(code, flags, size): (u32, u32, u32)| {
        let mut bytes = [0; 12];
        for (to, word) in bytes.chunks_exact_mut(4).zip([code, flags, size]) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        let good = (flags == 1 || flags == 9) && size as usize <= MAX_MESSAGE_BODY;
        let head = Head::parse(&bytes);
        prop_assert_eq!(head.is_ok(), good, "{:?}", head);
        if let Ok(head) = head {
            prop_assert_eq!((head.code.0, head.size), (code, size as usize));
            prop_assert_eq!(head.need_reply, flags == 9);
        }
        Ok(())
    };
    runner(100_000).run(&strategy, property).expect("holds");
}

/// Sizes of the bodies of vhost-user.rst, by request, and how many descriptors come with them (by
/// the body's first word); none for requests that are not served.
fn expected(code: u32, body: &[u8]) -> Option<(usize, std::ops::RangeInclusive<usize>)> {
    let word = |at: usize| {
        let bytes = body.get(at..at + 4).map(|b| u32::from_ne_bytes(b.try_into().expect("4")));
        bytes.unwrap_or(0) as usize
    };
    Some(match code {
        1 | 3 | 4 | 15 | 17 | 36 => (0, 0..=0),
        2 | 16 | 19 | 20 => (8, 0..=0),
        5 => (8 + 32 * word(0), word(0)..=word(0)),
        6 => (16, 1..=1),
        7 => (0, 1..=1),
        8 | 10 | 11 | 18 => (8, 0..=0),
        9 => (40, 0..=0),
        12..=14 => {
            let files = usize::from(word(0) & 0x100 == 0);
            (8, files..=files)
        }
        37 => (40, 1..=1),
        38 => (40, 0..=1),
        _ => return None,
    })
}

/// What is decoded has the size and the descriptors that its request calls for, and the other way
/// round, but for values that the protocol does not define.
#[test]
fn bodies_are_taken_by_the_rules() {
    let byte = prop_oneof![3 => Just(0u8), 2 => 0..4u8, 1 => any::<u8>()];
    let sizes = prop_oneof![Just(0usize), Just(8), Just(16), Just(40), Just(72), 0..200usize];
    let body = sizes.prop_flat_map(move |size| prop::collection::vec(byte.clone(), size));
    let code = prop_oneof![20 => 0..46u32, 1 => any::<u32>()];
    let files = prop_oneof![4 => 0..3usize, 1 => 0..=MAX_MESSAGE_FILES];
    let event = EventFd::new().into_fd();
    let property = |(code, body, files): (u32, Vec<u8>, usize)| {
        let mut header = [0; 12];
        for (to, word) in header.chunks_exact_mut(4).zip([code, 1, body.len() as u32]) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        let head = Head::parse(&header).expect("a good header");
        let copies = (0..files).map(|_| Some(event.try_clone().expect("copy"))).collect();
        let decoded = Message { head, body: body.clone(), files: copies }.decode();
        let Some((size, counts)) = expected(code, &body) else {
            prop_assert!(matches!(decoded, Ok(None)), "{:?}", decoded);
            return Ok(());
        };
        let shaped = body.len() == size && counts.contains(&files);
        // Undefined values: an enable of neither 0 nor 1, reserved bits of a ring's descriptor.
        let word = |at: usize| body.get(at).copied().unwrap_or(0);
        let defined = match code {
            18 => word(4) < 2 && (5..8).all(|at| word(at) == 0),
            12..=14 => word(1) < 2 && (2..8).all(|at| word(at) == 0),
            _ => true,
        };
        prop_assert_eq!(decoded.is_ok(), shaped && defined, "{:?}", decoded);
        Ok(())
    };
    runner(100_000).run(&(code, body, files), property).expect("holds");
}
