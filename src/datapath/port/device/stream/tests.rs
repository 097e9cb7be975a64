//! Connections whose peer is a test.

use std::io::{Read, Write};

use vmm_sys_util::sock_ctrl_msg::ScmSocket;

use super::*;
use base::frame::stream::BadLength;
use base::limits::{MAX_FRAME_LEN, MAX_STREAM_FRAME_LEN};

fn pair() -> (Connection, UnixStream) {
    let (near, far) = UnixStream::pair().unwrap();
    let long = Some(std::time::Duration::from_secs(10));
    far.set_read_timeout(long).and(far.set_write_timeout(long)).unwrap();
    (Connection::new(near, Arc::default()), far)
}

fn frame(len: usize, mark: u8) -> Vec<u8> {
    (0..len).map(|n| n as u8 ^ mark).collect()
}

fn with_length(frame: &[u8]) -> Vec<u8> {
    [&(frame.len() as u32).to_be_bytes()[..], frame].concat()
}

/// Writes a frame.
fn write(connection: &Connection, frame: &[u8]) -> Transfer {
    write_all(connection, &[frame])[0]
}

/// Writes frames in one batch.
fn write_all(connection: &Connection, frames: &[&[u8]]) -> Vec<Transfer> {
    let frames: Vec<_> =
        frames.iter().map(|frame| [&[0; VNET_HDR_LEN][..], frame].concat()).collect();
    FrameBatch::flushed(connection, &frames)
}

/// Reads until no frame comes. Returns the frames, and the result that ended the reading.
fn read_all(connection: &Connection) -> (Vec<Vec<u8>>, Transfer) {
    let (mut frames, mut buffer) = (Vec::new(), vec![0xff; 70_000]);
    loop {
        match connection.read(&mut buffer) {
            Transfer::Done(len) => {
                assert_eq!(buffer[..VNET_HDR_LEN], [0; VNET_HDR_LEN]);
                frames.push(buffer[VNET_HDR_LEN..len].to_vec());
            }
            end => return (frames, end),
        }
    }
}

#[test]
fn frames_pass_both_ways() {
    let (connection, mut far) = pair();
    for len in [14, 15, 60, 1514, 9014, MAX_FRAME_LEN as usize] {
        let frame = frame(len, len as u8);
        let (got, frame) = std::thread::scope(|scope| {
            let writer = scope.spawn(|| far.write_all(&with_length(&frame)).unwrap());
            let mut got = Vec::new();
            while got.is_empty() {
                got = read_all(&connection).0;
            }
            writer.join().unwrap();
            (got, frame.clone())
        });
        assert!(got == [frame.clone()], "{len} bytes in");
        let (wanted, mut got) = (with_length(&frame), vec![0; 4 + len]);
        assert_eq!(write(&connection, &frame), Transfer::Done(VNET_HDR_LEN + len));
        std::thread::scope(|scope| {
            let flusher = scope.spawn(|| {
                while connection.sending.load(Ordering::SeqCst) {
                    assert_eq!(read_all(&connection).1, Transfer::WouldBlock);
                }
            });
            far.read_exact(&mut got).unwrap();
            flusher.join().unwrap();
        });
        assert!(got == wanted, "{len} bytes out");
    }
    assert_eq!(connection.end(), None);
}

/// The peer reads in parts of all sizes while frames are written at full speed: the peer gets whole
/// frames, in order, and exactly the accepted frames.
#[test]
fn no_frame_is_torn_under_back_pressure() {
    for part in [1, 7, 1000, 40_000] {
        let (connection, mut far) = pair();
        let mut taken = Vec::new();
        let (mut refused, mut got) = (0, Vec::new());
        let mut buffer = vec![0; part];
        for n in 0..2_000u32 {
            let len = 14 + (n * 7919 % 60_000) as usize;
            match write(&connection, &frame(len, n as u8)) {
                Transfer::Done(_) => taken.extend(with_length(&frame(len, n as u8))),
                Transfer::WouldBlock => refused += 1,
                other => panic!("{other:?}"),
            }
            if n % 3 == 0 {
                let n = far.read(&mut buffer).unwrap();
                got.extend_from_slice(&buffer[..n]);
            }
        }
        assert!(refused > 0, "{part}");
        let mut buffer = vec![0; 100_000];
        while got.len() < taken.len() {
            // The event for room makes the worker read. A write that the machine delayed counts as
            // expensive: the connection pauses, and the worker reads again.
            let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
            while read_all(&connection).1 != Transfer::WouldBlock {
                assert!(std::time::Instant::now() < end, "{part}: reading does not end");
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            let n = far.read(&mut buffer).unwrap();
            got.extend_from_slice(&buffer[..n]);
        }
        assert!(got == taken, "{part}");
    }
}

/// Frames are sent in few calls; frames without room in the socket and in memory are dropped.
#[test]
fn frames_that_come_together_go_together() {
    let (connection, mut far) = pair();
    let (short, long) = (frame(1_514, 1), frame(MAX_FRAME_LEN as usize, 2));
    let too_long = frame(MAX_FRAME_LEN as usize + 1, 3);
    let mut wanted = Vec::new();
    for frames in [vec![&short[..]; 64], vec![&short, &too_long], vec![&short, &long]] {
        for (frame, answer) in frames.iter().zip(write_all(&connection, &frames)) {
            match answer {
                Transfer::Done(len) => {
                    assert_eq!(len, VNET_HDR_LEN + frame.len());
                    wanted.extend(with_length(frame));
                }
                Transfer::Rejected(libc::EMSGSIZE) => assert_eq!(frame.len(), too_long.len()),
                other => panic!("{other:?}"),
            }
        }
        let mut got = vec![0; wanted.len()];
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| far.read_exact(&mut got).unwrap());
            while !reader.is_finished() {
                read_all(&connection);
            }
        });
        assert!(got == std::mem::take(&mut wanted));
    }
    // With a full socket and frames that wait, a further frame has no room, unless it is short.
    while write(&connection, &long) != Transfer::WouldBlock {}
    let answers = write_all(&connection, &[&long, &short[..60]]);
    assert_eq!(answers[0], Transfer::WouldBlock);
    drop(far);
    assert_eq!(write_all(&connection, &[&short, &short]), [Transfer::Gone; 2]);
    assert_eq!(connection.end(), Some(&End::Left));
}

#[test]
fn what_is_too_short_or_too_long_is_for_the_switch_to_drop() {
    let (connection, mut far) = pair();
    for len in [0, 1, 13, MAX_STREAM_FRAME_LEN as usize] {
        let frame = frame(len, 3);
        std::thread::scope(|scope| {
            scope.spawn(|| far.write_all(&with_length(&frame)).unwrap());
            let mut got = Vec::new();
            while got.is_empty() {
                got = read_all(&connection).0;
            }
            assert!(got == [frame.clone()], "{len}");
        });
    }
    // A worker's slot is shorter: the rest of the frame is lost, and the next frame is not.
    let (long, short) = (frame(60_000, 4), frame(60, 5));
    far.write_all(&[with_length(&long), with_length(&short)].concat()).unwrap();
    let mut slot = vec![0; 1_000];
    assert_eq!(connection.read(&mut slot), Transfer::Done(1_000));
    assert_eq!(connection.read(&mut slot), Transfer::Done(72));
    assert!(slot[12..72] == short);
}

#[test]
fn every_end_has_its_reason() {
    let bad = BadLength(MAX_STREAM_FRAME_LEN + 1);
    let cases: [(&[u8], End); 4] = [
        (&with_length(&frame(60, 1)), End::Left),
        (&with_length(&frame(60, 1))[..63], End::Torn),
        (&[0, 0], End::Torn),
        (&bad.0.to_be_bytes(), End::Length(bad)),
    ];
    for (bytes, end) in cases {
        let (connection, mut far) = pair();
        far.write_all(bytes).unwrap();
        drop(far);
        let (frames, result) = read_all(&connection);
        assert_eq!((frames.len(), result), (usize::from(end == End::Left), Transfer::Gone));
        assert_eq!(connection.end(), Some(&end));
        assert_eq!(read_all(&connection).1, Transfer::Gone);
        assert_eq!(write(&connection, &[0; 88]), Transfer::Gone);
    }
    let (connection, far) = pair();
    drop(far);
    assert_eq!(write(&connection, &[0; 88]), Transfer::Gone);
    assert_eq!(connection.end(), Some(&End::Left));
}

/// Each byte that comes alone needs a call: a look reads a few, and finds the whole frames.
#[test]
fn a_peer_that_dribbles_is_not_read_for_ever() {
    let (connection, far) = pair();
    let bytes = with_length(&frame(60, 1));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut far = &far;
            while !stop.load(Ordering::Relaxed) {
                for byte in &bytes {
                    far.write_all(&[*byte]).unwrap();
                }
            }
        });
        let mut found = 0;
        while found < 200 {
            let (frames, result) = read_all(&connection);
            assert!(matches!(result, Transfer::WouldBlock | Transfer::NoBuffers));
            assert!(frames.iter().all(|got| *got == frame(60, 1)));
            found += frames.len();
        }
        stop.store(true, Ordering::Relaxed);
        // The writer may wait for room.
        while !writer.is_finished() {
            read_all(&connection);
        }
    });
}

#[test]
fn descriptors_are_kept_for_whoever_closes_them() {
    let (connection, far) = pair();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let bytes = with_length(&frame(60, 1));
    far.send_with_fds(&[&bytes[..]], &[writer.as_raw_fd(), writer.as_raw_fd()]).unwrap();
    drop(writer);
    assert_eq!(read_all(&connection), (Vec::new(), Transfer::Gone));
    assert_eq!(connection.end(), Some(&End::Descriptors));
    assert_eq!(lock(&connection.peer.strays).len(), 2);
    drop(connection);
    assert_eq!(reader.read(&mut [0]).unwrap(), 0, "none is left");
}

/// Since Linux 6.16 the socket refuses descriptors; before, descriptors arrive and end the
/// connection.
#[test]
fn descriptors_are_refused_where_the_kernel_can() {
    let (near, far) = UnixStream::pair().unwrap();
    sys::unix_socket::refuse_descriptors(near.as_fd());
    let sent = far.send_with_fds(&[&[0][..]], &[far.as_raw_fd()]);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = kernel.split(['.', '-']).map_while(|word| word.parse::<u32>().ok());
    let refuses = (numbers.next(), numbers.next()) >= (Some(6), Some(16));
    assert_eq!(sent.is_err(), refuses, "{sent:?} by {kernel}");
}

#[test]
fn a_peer_whose_socket_is_expensive_has_to_wait_and_goes() {
    let (connection, _far) = pair();
    assert!(!connection.peer.cost.pauses());
    connection.peer.cost.watch(clock::cycles());
    let now = clock::cycles();
    assert!(!connection.peer.cost.record(100_000, clock::cycles_in(100_000_000), now));
    assert!(connection.peer.cost.pauses());
    assert_eq!(write(&connection, &[0; 88]), Transfer::WouldBlock);
    assert_eq!(connection.read(&mut [0; 100]), Transfer::NoBuffers);
    // The cost that was found on one connection counts for the next connection.
    let (near, _far) = UnixStream::pair().unwrap();
    assert!(Connection::new(near, Arc::clone(&connection.peer.cost)).peer.cost.pauses());
    connection.peer.over(End::Waiters);
    assert!(connection.end().unwrap().is_harmful());
    assert_eq!(write(&connection, &[0; 88]), Transfer::Gone);
}

/// Two threads write while the peer reads slowly; each accepted frame arrives whole.
#[test]
fn writers_do_not_mix_their_frames() {
    let (connection, mut far) = pair();
    let writer = |mark: u8| {
        let mut taken = 0u64;
        for n in 0..20_000usize {
            let len = 60 + n % 1_400;
            let frame = vec![mark; len];
            taken += u64::from(matches!(write(&connection, &frame), Transfer::Done(_)));
        }
        taken
    };
    let (taken, got) = std::thread::scope(|scope| {
        let writers = [scope.spawn(|| writer(1)), scope.spawn(|| writer(2))];
        let reader = scope.spawn(|| {
            let (mut unpacker, mut counts) = (Unpacker::default(), [0u64; 3]);
            loop {
                let n = far.read(unpacker.room()).unwrap();
                unpacker.filled(n);
                while let Some(frame) = unpacker.next_frame().unwrap() {
                    assert!(frame.iter().all(|byte| *byte == frame[0]));
                    counts[usize::from(frame[0])] += 1;
                }
                if counts[0] > 0 {
                    return counts;
                }
            }
        });
        let taken = writers.map(|writer| writer.join().unwrap());
        while write(&connection, &[0; 60]) == Transfer::WouldBlock {}
        // The last frame may be there in part.
        while connection.sending.load(Ordering::SeqCst) {
            read_all(&connection);
        }
        (taken, reader.join().unwrap())
    });
    assert_eq!(got[1..], taken);
}

/// A worker loses its CPU while it writes: its frames are sent with those of another worker.
#[test]
fn frames_are_left_with_whoever_writes() {
    let (connection, mut far) = pair();
    let output = connection.output().unwrap();
    let mut wanted = Vec::new();
    for n in 0..20 {
        let frame = frame(1_514, n);
        assert_eq!(write(&connection, &frame), Transfer::Done(1_526));
        wanted.extend(with_length(&frame));
    }
    // The memory for frames is limited.
    let longest = frame(MAX_FRAME_LEN as usize, 1);
    assert_eq!(write(&connection, &longest), Transfer::WouldBlock);
    // A worker does not send for all other workers without a limit.
    lock(&connection.waiting).closed = true;
    assert_eq!(write(&connection, &frame(60, 1)), Transfer::WouldBlock);
    assert_eq!(connection.flush(output), Transfer::Done(0));
    assert!(!lock(&connection.waiting).closed);
    let mut got = vec![0; wanted.len()];
    far.read_exact(&mut got).unwrap();
    assert!(got == wanted);
    assert!(!connection.sending.load(Ordering::SeqCst));
}

/// No frame is left behind that one writer leaves when the other writer has just finished: one of
/// the two sends the frame.
#[test]
fn no_frame_is_left_behind() {
    // Too few frames for one writer to reach the limit for sending frames of the other.
    const FRAMES: u8 = STREAM_ROUNDS as u8 - 1;
    for _ in 0..500 {
        let (connection, mut far) = pair();
        let together = std::sync::Barrier::new(2);
        let writer = |mark: u8| {
            together.wait();
            for n in 0..FRAMES {
                let mut frame = frame(60, 0);
                (frame[0], frame[1]) = (mark, n);
                assert!(matches!(write(&connection, &frame), Transfer::Done(_)));
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| writer(0));
            scope.spawn(|| writer(1));
        });
        let mut got = vec![0; 2 * usize::from(FRAMES) * 64];
        far.read_exact(&mut got).unwrap();
        let mut next = [0; 2];
        for frame in got.chunks(64) {
            let [mark, n] = [frame[4], frame[5]];
            assert_eq!(n, next[usize::from(mark)], "one writer's frames in their order");
            next[usize::from(mark)] += 1;
        }
    }
}
