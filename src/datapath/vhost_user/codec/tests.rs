//! The codec over real sockets: valid messages, each way to break one, deadlines, and noise.

use super::*;
use std::io::{PipeReader, Read, Write, pipe};
use std::os::fd::AsRawFd;
use std::thread;
use vhost::vhost_user::message::{VhostUserLog, VhostUserVringState};

use vhost::vhost_user::message::FrontendReq as R;
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

use crate::vhost_user::message::Payload;
use base::limits::MAX_MESSAGE_BODY;

const SHORT: Duration = Duration::from_millis(100);

/// Longer than any test, for deadlines that must not pass.
const LONG: Duration = Duration::from_secs(60);

/// The codec must have given up a half-sent message within this time, on a busy machine too.
const SOON: Duration = Duration::from_secs(5);

/// Both ends of a session, and the eventfd that stops the back-end's end.
struct Pair {
    ours: Connection,
    theirs: UnixStream,
    stop: Arc<EventFd>,
}

fn pair() -> Pair {
    pair_with_timeouts(LONG)
}

/// A deadline for tests in which it passes.
fn impatient_pair() -> Pair {
    pair_with_timeouts(SHORT)
}

fn pair_with_timeouts(timeout: Duration) -> Pair {
    let (near, theirs) = UnixStream::pair().unwrap();
    let stop = Arc::new(EventFd::new(libc::EFD_NONBLOCK).unwrap());
    let ours = Connection::new(near, Arc::clone(&stop)).unwrap();
    let ours = Connection { message_timeout: timeout, reply_timeout: timeout, ..ours };
    Pair { ours, theirs, stop }
}

fn bytes(code: u32, flags: u32, size: u32, body: &[u8]) -> Vec<u8> {
    let header = [code, flags, size].map(u32::to_ne_bytes).concat();
    [header.as_slice(), body].concat()
}

fn message(request: R, body: &[u8]) -> Vec<u8> {
    bytes(request.into(), 1, body.len() as u32, body)
}

/// Sends `bytes` with `count` descriptors; the reader sees the end once all copies are closed.
fn send_with_files(socket: &UnixStream, bytes: &[u8], count: usize) -> PipeReader {
    let (reader, writer) = pipe().unwrap();
    let fds = vec![writer.as_raw_fd(); count];
    assert_eq!(socket.send_with_fds(&[bytes], &fds).unwrap(), bytes.len());
    reader
}

fn all_closed(mut reader: PipeReader) -> bool {
    reader.read(&mut [0]).unwrap() == 0
}

fn received(pair: &mut Pair) -> Message {
    match pair.ours.receive() {
        Ok(Incoming::Message(message)) => message,
        other => panic!("{other:?}"),
    }
}

#[test]
fn messages_one_after_the_other_then_the_end() {
    let mut pair = pair();
    let first = message(R::GET_FEATURES, &[]);
    let second = bytes(R::SET_FEATURES.into(), 9, 8, &7u64.to_ne_bytes());
    pair.theirs.write_all(&[first, second].concat()).unwrap();
    drop(send_with_files(&pair.theirs, &message(R::SET_VRING_KICK, &1u64.to_ne_bytes()), 1));
    pair.theirs.shutdown(std::net::Shutdown::Write).unwrap();

    let got = received(&mut pair);
    assert_eq!(got.head, Head { code: R::GET_FEATURES.into(), need_reply: false, size: 0 });
    assert!(matches!(got.decode(), Ok(Some((R::GET_FEATURES, _)))));
    let got = received(&mut pair);
    assert!(got.head.need_reply && got.files.is_empty());
    assert!(matches!(got.decode(), Ok(Some((_, Payload::Number(7))))));
    let kick = received(&mut pair).decode();
    assert!(matches!(kick, Ok(Some((_, Payload::Notifier(1, Some(_)))))), "{kick:?}");
    assert!(matches!(pair.ours.receive(), Ok(Incoming::Closed)));
}

#[test]
fn a_front_end_that_dies_with_a_reply_unread_has_left() {
    let mut pair = pair();
    pair.ours.ack(R::SET_FEATURES.into(), true).unwrap();
    drop(pair.theirs);
    assert!(matches!(pair.ours.receive(), Ok(Incoming::Closed)));
}

#[test]
fn every_count_of_descriptors_up_to_32_arrives_with_the_largest_body() {
    let mut pair = pair();
    for count in [0, 1, 8, 31, 32] {
        let reader = send_with_files(&pair.theirs, &message(R::GET_CONFIG, &[7; 4096]), count);
        let got = received(&mut pair);
        assert_eq!((got.files.len(), got.body), (count, vec![7; MAX_MESSAGE_BODY]));
        drop(got.files);
        assert!(all_closed(reader));
    }
}

#[test]
fn more_than_32_descriptors_end_the_connection_and_none_leaks() {
    for count in [33, 34, 253] {
        let mut pair = pair();
        let reader = send_with_files(&pair.theirs, &message(R::SET_OWNER, &[]), count);
        assert!(matches!(pair.ours.receive(), Err(WireError::TooManyFiles)));
        assert!(all_closed(reader));
    }
}

#[test]
fn descriptors_inside_a_message_end_the_connection_and_none_leaks() {
    let whole = message(R::SET_FEATURES, &[0; 8]);
    for split in [12, 13, 19] {
        let mut pair = pair();
        pair.theirs.write_all(&whole[..split]).unwrap();
        let reader = send_with_files(&pair.theirs, &whole[split..], 2);
        assert!(matches!(pair.ours.receive(), Err(WireError::StrayFiles)), "{split}");
        assert!(all_closed(reader));
    }
}

#[test]
fn headers_out_of_protocol_end_the_connection() {
    let too_long = MAX_MESSAGE_BODY as u32 + 1;
    for (flags, size) in [(0, 0), (2, 0), (5, 0), (0x11, 0), (1, too_long), (1, u32::MAX)] {
        let mut pair = pair();
        pair.theirs.write_all(&bytes(1, flags, size, &[0; 64])).unwrap();
        assert!(matches!(pair.ours.receive(), Err(WireError::Header(_))), "{flags} {size}");
    }
}

#[test]
fn a_message_cut_off_at_any_byte_is_an_error() {
    let whole = message(R::SET_VRING_NUM, &[0; 8]);
    for cut in 1..whole.len() {
        let mut pair = pair();
        pair.theirs.write_all(&whole[..cut]).unwrap();
        drop(pair.theirs);
        assert!(matches!(pair.ours.receive(), Err(WireError::Truncated)), "{cut}");
    }
}

#[test]
fn a_message_in_single_bytes_is_put_together() {
    let mut pair = pair();
    let whole = message(R::SET_VRING_NUM, &[1, 0, 0, 0, 0, 1, 0, 0]);
    let reader = send_with_files(&pair.theirs, &whole[..1], 2);
    let mut theirs = pair.theirs.try_clone().unwrap();
    let feeder = thread::spawn(move || {
        whole[1..].iter().for_each(|byte| theirs.write_all(&[*byte]).unwrap());
    });
    let got = received(&mut pair);
    feeder.join().unwrap();
    assert_eq!((got.head.size, got.files.len()), (8, 2));
    drop(got);
    assert!(all_closed(reader));
}

#[test]
fn half_a_message_then_silence_times_out_and_its_descriptors_are_closed() {
    let whole = message(R::SET_VRING_KICK, &[0; 8]);
    for sent in [1, 6, 11, 12, 13, 19] {
        let mut pair = impatient_pair();
        let reader = send_with_files(&pair.theirs, &whole[..sent], 1);
        let begun = Instant::now();
        assert!(matches!(pair.ours.receive(), Err(WireError::MessageTimeout(_))), "{sent}");
        assert!((SHORT..SOON).contains(&begun.elapsed()), "{sent}: {:?}", begun.elapsed());
        assert!(all_closed(reader));
    }
}

#[test]
fn feeding_bytes_one_by_one_does_not_extend_the_deadline() {
    let mut pair = impatient_pair();
    let mut theirs = pair.theirs.try_clone().unwrap();
    let feeder = thread::spawn(move || {
        // 4108 bytes at this pace would take 40 s.
        let whole = message(R::GET_CONFIG, &[0; 4096]);
        for byte in &whole {
            if theirs.write_all(&[*byte]).is_err() {
                break;
            }
            thread::sleep(Duration::from_millis(10));
        }
    });
    let begun = Instant::now();
    assert!(matches!(pair.ours.receive(), Err(WireError::MessageTimeout(_))));
    assert!((SHORT..SOON).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    drop(pair.ours);
    feeder.join().unwrap();
}

#[test]
fn the_first_byte_has_no_deadline() {
    let mut pair = impatient_pair();
    let mut theirs = pair.theirs.try_clone().unwrap();
    let late = thread::spawn(move || {
        thread::sleep(SHORT * 3);
        theirs.write_all(&message(R::SET_OWNER, &[])).unwrap();
    });
    assert!(matches!(received(&mut pair).decode(), Ok(Some((R::SET_OWNER, _)))));
    late.join().unwrap();
}

#[test]
fn stopping_ends_every_wait_and_comes_first() {
    // Between messages.
    let mut idle = pair();
    let stop = Arc::clone(&idle.stop);
    let stopper = thread::spawn(move || {
        thread::sleep(SHORT / 2);
        stop.write(1).unwrap();
    });
    assert!(matches!(idle.ours.receive(), Ok(Incoming::Stopped)));
    stopper.join().unwrap();
    // With a message lying ready.
    idle.theirs.write_all(&message(R::SET_OWNER, &[])).unwrap();
    assert!(matches!(idle.ours.receive(), Ok(Incoming::Stopped)));
    // Inside a message.
    let mut half = pair();
    half.theirs.write_all(&message(R::SET_OWNER, &[])[..5]).unwrap();
    let stop = Arc::clone(&half.stop);
    let stopper = thread::spawn(move || {
        thread::sleep(SHORT / 2);
        stop.write(1).unwrap();
    });
    assert!(matches!(half.ours.receive(), Ok(Incoming::Stopped)));
    stopper.join().unwrap();
}

#[test]
fn replies_byte_for_byte() {
    let mut pair = pair();
    pair.ours.reply_u64(R::GET_FEATURES.into(), 0x1_4000_0000).unwrap();
    pair.ours.ack(R::SET_FEATURES.into(), true).unwrap();
    pair.ours.ack(R::SET_VRING_NUM.into(), false).unwrap();
    pair.ours.reply(R::GET_VRING_BASE.into(), VhostUserVringState::new(3, 77)).unwrap();
    pair.ours.reply(R::SET_LOG_BASE.into(), VhostUserLog::new(0x20_0000, 4096)).unwrap();
    drop(pair.ours);
    let mut got = Vec::new();
    pair.theirs.read_to_end(&mut got).unwrap();
    let expected = [
        bytes(1, 5, 8, &0x1_4000_0000u64.to_ne_bytes()),
        bytes(2, 5, 8, &0u64.to_ne_bytes()),
        bytes(8, 5, 8, &1u64.to_ne_bytes()),
        bytes(11, 5, 8, &[3u32, 77].map(u32::to_ne_bytes).concat()),
        bytes(6, 5, 16, &[0x20_0000u64, 4096].map(u64::to_ne_bytes).concat()),
    ];
    assert_eq!(got, expected.concat());
}

/// Replies until a reply fails. Returns the failure and how long the failing call took.
fn reply_until_failure(pair: &mut Pair) -> (WireError, Duration) {
    loop {
        let begun = Instant::now();
        if let Err(error) = pair.ours.reply_u64(R::GET_FEATURES.into(), 0) {
            return (error, begun.elapsed());
        }
    }
}

#[test]
fn a_front_end_that_never_reads_blocks_nobody() {
    let mut pair = impatient_pair();
    let (error, took) = reply_until_failure(&mut pair);
    assert!(matches!(error, WireError::ReplyTimeout(_)), "{error}");
    assert!((SHORT..SOON).contains(&took), "{took:?}");
    // Replies again, with a stop request in the middle.
    pair.ours.reply_timeout = LONG;
    pair.stop.write(1).unwrap();
    assert!(matches!(reply_until_failure(&mut pair).0, WireError::Stopped));
}

#[test]
fn a_reply_waits_for_a_slow_reader() {
    let mut pair = pair();
    while scm::send(pair.ours.socket.as_fd(), &[0; 1000]).is_ok() {}
    let mut theirs = pair.theirs.try_clone().unwrap();
    let reader = thread::spawn(move || {
        thread::sleep(SHORT / 2);
        let mut got = Vec::new();
        theirs.read_to_end(&mut got).unwrap();
        got
    });
    pair.ours.reply_u64(R::GET_FEATURES.into(), 5).unwrap();
    drop(pair.ours);
    assert!(reader.join().unwrap().ends_with(&bytes(1, 5, 8, &5u64.to_ne_bytes())));
}

#[test]
fn a_reply_to_nobody_is_an_error_and_no_signal() {
    let mut pair = pair();
    drop(pair.theirs);
    let error = pair.ours.reply_u64(R::GET_FEATURES.into(), 0).unwrap_err();
    assert!(matches!(&error, WireError::Io(e) if e.kind() == io::ErrorKind::BrokenPipe), "{error}");
}

/// Random bytes on 2,000 connections: each ends with an error or the end of the stream, and every
/// message on the way is whole. Half of the connections begin with good messages.
#[test]
fn noise_on_the_wire() {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut noise = move || {
        // xorshift64 (Marsaglia 2003).
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let (mut whole, mut broken) = (0, 0);
    for round in 0..2_000u32 {
        let mut pair = pair();
        let mut stream: Vec<u8> = (0..noise() % 200).map(|_| noise() as u8).collect();
        for _ in 0..(round % 2) * 5 {
            let body = vec![noise() as u8; (noise() % 50) as usize];
            let good =
                bytes((noise() % 50) as u32, 1 | (noise() as u32 & 8), body.len() as u32, &body);
            stream.splice(0..0, good);
        }
        pair.theirs.write_all(&stream).unwrap();
        drop(pair.theirs);
        loop {
            match pair.ours.receive() {
                Ok(Incoming::Message(message)) => {
                    assert_eq!(message.body.len(), message.head.size);
                    drop(message.decode());
                    whole += 1;
                }
                Ok(Incoming::Closed) => break,
                Ok(Incoming::OtherFrontEnd) => panic!("no socket listens"),
                Ok(Incoming::Called) => panic!("nobody called"),
                Ok(Incoming::Stopped) => panic!("nobody asked to stop"),
                Err(WireError::MessageTimeout(_)) => panic!("the stream has an end"),
                // This thread owned the earlier connections too, and the closer may lack a CPU.
                // Asking waits for the closer.
                Err(WireError::HeldUp) => {}
                Err(_) => {
                    broken += 1;
                    break;
                }
            }
        }
    }
    assert!(whole >= 5_000 && broken > 1_500, "{whole} {broken}");
}

/// A call is reported between two messages, whether the call came before or during a message.
#[test]
fn a_call_is_told_and_loses_no_byte() {
    let mut pair = pair();
    let waker = Arc::clone(pair.ours.leave());
    waker.wake();
    assert!(matches!(pair.ours.receive(), Ok(Incoming::Called)));
    let message = bytes(2, 1, 8, &7u64.to_ne_bytes());
    pair.theirs.write_all(&message[..15]).unwrap();
    let mut theirs = pair.theirs.try_clone().unwrap();
    let writer = thread::spawn(move || {
        thread::sleep(SHORT / 4);
        waker.wake();
        thread::sleep(SHORT / 4);
        theirs.write_all(&message[15..]).unwrap();
        waker
    });
    match pair.ours.receive() {
        Ok(Incoming::Message(message)) => assert_eq!(message.body, 7u64.to_ne_bytes()),
        other => panic!("{other:?}"),
    }
    assert!(matches!(pair.ours.receive(), Ok(Incoming::Called)));
    let waker = writer.join().unwrap();
    waker.end();
    assert!(matches!(pair.ours.receive(), Err(WireError::Dropped)));
}
