//! Clients and scrapers without a pause, or in storms. Two guests beside them lose nothing, and
//! wait no longer than beside another server that is asked so.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::alone;
use testkit::neighbours::{Lab, While};
use testkit::proc::{Dir, wait_for};
use testkit::shares::Shares;

const CALLS: [&str; 3] = [
    "{\"method\":\"io.vioswitch.Switch.GetStatus\"}\0",
    "{\"method\":\"io.vioswitch.Switch.ListPorts\",\"more\":true}\0",
    "{\"method\":\"io.vioswitch.Switch.ListAddresses\",\"more\":true}\0",
];

const REQUEST: &str = "GET /metrics HTTP/1.1\r\nHost: vioswitch\r\n\r\n";

/// Connects, asks, reads a part of the answer and leaves, again and again.
fn ask<'a>(path: &'a Path, asked: &'a AtomicU64) -> impl FnMut(&While<'_>) + Send + 'a {
    move |phase: &While<'_>| {
        let mut answer = [0; 4096];
        while phase.on() {
            let mut socket = UnixStream::connect(path).expect("connect");
            for call in CALLS {
                // A full switch closes it.
                if socket.write_all(call.as_bytes()).is_err() || socket.read(&mut answer).is_err() {
                    break;
                }
            }
            asked.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Beside a server of the test's own, which takes as much of the same CPUs.
#[test]
#[ignore = "full"]
fn clients_that_ask_without_a_pause() {
    let _alone = alone();
    let dir = Dir::new();
    let [path, other] = ["control", "other"].map(|name| dir.path().join(name));
    let listener = UnixListener::bind(&other).expect("bind");
    thread::spawn(move || {
        let mut call = [0; 4096];
        for socket in listener.incoming() {
            let mut socket = socket.expect("accept");
            while socket.read(&mut call).is_ok_and(|count| count > 0) {
                if socket.write_all(&[b'x'; 1000]).is_err() {
                    break;
                }
            }
        }
    });
    let option = format!("--control={}", path.display());
    let mut lab = Lab::new(30, &[&option]);
    let asked = [AtomicU64::new(0), AtomicU64::new(0)];
    let (control, attack) = (ask(&other, &asked[0]), ask(&path, &asked[1]));
    lab.unharmed("clients of the control socket", control, attack);
    let asked = asked.map(AtomicU64::into_inner);
    println!("connections: {asked:?}");
    assert!(asked.iter().all(|count| *count > 100), "{asked:?}");
    lab.finish();
}

/// What the data path may lose to any number of clients.
const ALLOWED: f64 = 0.03;
/// Connections are made so far apart, if the machine can.
const EVERY: Duration = Duration::from_micros(100);
/// Who waits for an answer waits no longer: there may be none.
const ANSWER: Duration = Duration::from_millis(5);
/// Those that stay for a while: most of the places there are.
const HELD: usize = 28;

/// Connections that were made, and in what time.
#[derive(Default)]
struct Made {
    connections: AtomicU64,
    micros: AtomicU64,
}

impl Made {
    fn a_second(&self) -> u64 {
        let micros = self.micros.load(Ordering::Relaxed).max(1);
        1_000_000 * self.connections.load(Ordering::Relaxed) / micros
    }
}

/// Connects 10,000 times a second and does with each what `with` says of its number. Those for
/// which it says so stay until there are too many.
fn storm<'a>(
    path: &'a Path,
    made: &'a Made,
    with: impl Fn(u64, &mut UnixStream) -> bool + Send + 'a,
) -> impl FnMut(&While<'_>) + Send + 'a {
    move |phase: &While<'_>| {
        let (start, mut held) = (Instant::now(), VecDeque::new());
        let mut number = 0;
        while phase.on() {
            let mut socket = UnixStream::connect(path).expect("connect");
            socket.set_read_timeout(Some(ANSWER)).expect("a timeout");
            if with(number, &mut socket) {
                held.push_back(socket);
            }
            if held.len() > HELD {
                held.pop_front();
            }
            number += 1;
            let next = start + EVERY * number as u32;
            thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        made.connections.fetch_add(number, Ordering::Relaxed);
        made.micros.fetch_add(start.elapsed().as_micros() as u64, Ordering::Relaxed);
    }
}

/// Takes connections, says something to each, and lets go of it when some more have come.
fn serve(path: &Path) {
    let listener = UnixListener::bind(path).expect("bind");
    thread::spawn(move || {
        let mut held = VecDeque::new();
        let mut call = [0; 4096];
        for socket in listener.incoming() {
            let mut socket = socket.expect("accept");
            socket.set_nonblocking(true).expect("nonblocking");
            let _ = (socket.read(&mut call), socket.write(&[b'x'; 1000]));
            held.push_back(socket);
            if held.len() > HELD {
                held.pop_front();
            }
        }
    });
}

/// Two storms, of which the second leaves nothing behind that the first had not.
fn weathers(what: &str, option: &str, path: &Path, with: fn(u64, &mut UnixStream) -> bool) {
    let dir = Dir::new();
    let other = dir.path().join("other");
    serve(&other);
    let mut shares = Shares::with(1, &[option], |_| ());
    let before = shares.d.settled_usage();
    let made = [Made::default(), Made::default()];
    let mut grown = Vec::new();
    for _ in 0..2 {
        let (control, attack) = (storm(&other, &made[0], with), storm(path, &made[1], with));
        shares.slowed_no_more(what, ALLOWED, control, attack);
        let mut after = shares.d.settled_usage();
        let same = wait_for(Duration::from_secs(20), || {
            after = shares.d.settled_usage();
            after == before
        });
        assert!(same, "{after:?}, {before:?} before");
        grown.push(shares.d.private_kib());
    }
    let rates = made.each_ref().map(Made::a_second);
    println!("{what}: connections a second {rates:?}, resident {grown:?} KiB");
    assert!(made.iter().all(|made| made.connections.load(Ordering::Relaxed) > 1000), "{rates:?}");
    assert!(grown[1] <= grown[0] + 1024, "{grown:?} KiB");
    shares.d.stop();
}

/// They leave without a word, stop in the middle of one, ask and never read, or talk nonsense.
/// 10,000 connections a second if the machine can: a worker's frames per second of its CPU time are
/// within 3 % of those beside another server, and nothing grows.
#[test]
#[ignore = "full"]
fn a_storm_of_connections_to_the_control_socket() {
    let _alone = alone();
    let dir = Dir::new();
    let path = dir.path().join("control");
    let option = format!("--control={}", path.display());
    weathers("storm at the control socket", &option, &path, |number, socket| {
        // A full switch closes it.
        let _ = match number % 4 {
            0 => return false,
            1 => socket.write_all(&CALLS[1].as_bytes()[..30]),
            2 => socket.write_all(CALLS[1].repeat(20).as_bytes()),
            _ => socket.write_all(b"hello\0"),
        };
        true
    });
}

/// They leave without a word, stop in the middle of a request, or never read the answer. 10,000
/// connections a second if the machine can: a worker's frames per second of its CPU time are within
/// 3 % of those beside another server, and nothing grows.
#[test]
#[ignore = "full"]
fn a_storm_of_scrapers() {
    let _alone = alone();
    let dir = Dir::new();
    let path = dir.path().join("metrics");
    let option = format!("--metrics=unix:{}", path.display());
    weathers("storm of scrapers", &option, &path, |number, socket| {
        let _ = match number % 4 {
            0 => return false,
            1 => socket.write_all(&REQUEST.as_bytes()[..20]),
            _ => socket.write_all(REQUEST.as_bytes()),
        };
        if number % 4 == 3 {
            let _ = socket.read(&mut [0; 4096]);
        }
        true
    });
}
