//! Slow front-ends: half a header, bytes one by one, replies that they never read. And what all of
//! them may have us write to the log.

use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use super::lab::{Lab, SOON, connect};
use testkit::frontend::{FLAG_NEED_REPLY, VERSION, message, req, state_body};
use testkit::long;
use testkit::proc::Daemon;
use testkit::sys::{self, EventFd};

/// A front-end that is slow keeps its session for less than this.
const GIVEN_UP: Duration = Duration::from_secs(5);

/// Half a header, then silence, on 100 ports: each is closed within 5 s, and meanwhile another port
/// takes and answers its front-ends within 50 ms.
#[test]
fn half_a_header_on_a_hundred_ports() {
    const HOSTILE: usize = 100;
    let d = Daemon::with(HOSTILE + 1, &[]);
    let header = message(req::GET_FEATURES, VERSION, &[]);
    let begun = Instant::now();
    let mut silent: Vec<_> = (0..HOSTILE)
        .map(|port| {
            let mut fe = connect(&d, port);
            fe.send_raw(&header[..1 + port % 11], &[]).expect("sent");
            fe
        })
        .collect();
    let mut times: Vec<Duration> = (0..25)
        .map(|_| {
            let asked = Instant::now();
            let mut fe = connect(&d, HOSTILE);
            fe.get_features().expect("answer");
            let took = asked.elapsed();
            assert!(fe.leave(SOON));
            took
        })
        .collect();
    times.sort();
    println!("accepted and answered within {:?}, median {:?}", times[24], times[12]);
    assert!(times[12] <= Duration::from_millis(50), "{times:?}");
    for (port, fe) in silent.iter_mut().enumerate() {
        let left = GIVEN_UP.saturating_sub(begun.elapsed());
        assert!(fe.closed_within(left), "port {port} not closed after {:?}", begun.elapsed());
    }
    println!("all closed after {:?}", begun.elapsed());
    drop(silent);
    d.stop();
}

/// A message that comes byte by byte is given up like one that does not come.
#[test]
fn bytes_one_by_one() {
    let lab = Lab::new(1);
    let mut fe = connect(&lab.d, lab.evil);
    let bytes = message(req::SET_VRING_NUM, VERSION, &[0; 4096]);
    let begun = Instant::now();
    for byte in &bytes {
        if fe.send_raw(std::slice::from_ref(byte), &[]).is_err() {
            break;
        }
        assert!(begun.elapsed() < GIVEN_UP, "still taken after {:?}", begun.elapsed());
        std::thread::sleep(Duration::from_millis(25));
    }
    assert!(fe.closed_within(GIVEN_UP));
    lab.finish();
}

/// Replies that nobody reads: the connection ends, and the port is free again.
#[test]
fn replies_that_nobody_reads() {
    let lab = Lab::new(1);
    let mut fe = connect(&lab.d, lab.evil);
    let ask = message(req::GET_FEATURES, VERSION, &[]).repeat(100);
    let begun = Instant::now();
    while fe.send_raw(&ask, &[]).is_ok() {
        assert!(begun.elapsed() < 2 * GIVEN_UP, "never closed");
    }
    println!("closed after {:?}", begun.elapsed());
    lab.serves();
    drop(fe);
    lab.finish();
}

/// Descriptors with every byte of a message: only those with its first may come.
#[test]
fn descriptors_with_every_byte() {
    let lab = Lab::new(1);
    let (event, memory) = (EventFd::new(), sys::memfd(4096));
    let bytes = message(req::SET_VRING_KICK, VERSION, &1u64.to_le_bytes());
    for skip in 0..bytes.len() {
        for fds in [[event.raw(); 1].as_slice(), &[memory.as_raw_fd(); 32]] {
            let mut fe = connect(&lab.d, lab.evil);
            for (at, byte) in bytes.iter().enumerate() {
                let with = if at < skip { &[] } else { fds };
                if fe.send_raw(std::slice::from_ref(byte), with).is_err() {
                    break;
                }
            }
            if skip == bytes.len() - 1 && fds.len() > 1 {
                // Only its last byte has any: still in the middle.
                assert!(fe.closed_within(SOON));
            }
            assert!(fe.leave(SOON));
        }
    }
    lab.finish();
}

/// Whatever a front-end does, a port writes a line a second to the log, and a few more at first.
#[test]
fn log_lines_are_few() {
    let lab = Lab::new(1);
    let lines = || lab.d.log().lines().filter(|line| line.contains("port p0")).count();
    let (before, begun) = (lines(), Instant::now());
    let time = Duration::from_secs(if long() { 60 } else { 4 });
    let mut connections = 0;
    while begun.elapsed() < time {
        let mut fe = connect(&lab.d, lab.evil);
        connections += 1;
        let _ = match connections % 5 {
            // Refused, and told nothing.
            0 => fe.send(req::SET_VRING_NUM, VERSION, &state_body(0, 200), &[]),
            // Not offered.
            1 => fe.send(req::SET_FEATURES, VERSION, &u64::MAX.to_le_bytes(), &[]),
            // Not a message.
            2 => fe.send(req::SET_FEATURES, 0, &[], &[]),
            // A hundred refusals.
            3 => fe.send_raw(&message(99, VERSION | FLAG_NEED_REPLY, &[]).repeat(100), &[]),
            _ => Ok(()),
        };
        assert!(fe.leave(SOON));
    }
    let (lines, allowed) = (lines() - before, 4 + begun.elapsed().as_secs() as usize + 1);
    println!("{lines} lines for {connections} connections in {:?}", begun.elapsed());
    assert!(connections > 100, "only {connections} connections");
    assert!(lines <= allowed, "{lines} lines in {:?}\n{}", begun.elapsed(), lab.d.log());
    lab.finish();
}
