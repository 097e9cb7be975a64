//! Clients of the control socket that ask without a pause.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use crate::alone;
use testkit::neighbours::{Lab, While};
use testkit::proc::Dir;

const CALLS: [&str; 3] = [
    "{\"method\":\"io.vioswitch.Switch.GetStatus\"}\0",
    "{\"method\":\"io.vioswitch.Switch.ListPorts\",\"more\":true}\0",
    "{\"method\":\"io.vioswitch.Switch.ListAddresses\",\"more\":true}\0",
];

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
