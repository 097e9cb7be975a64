//! Descriptors that front-ends send: none stays behind, and running out of them ends one connection
//! at most.
//!
//! Counting descriptors and running out of them concern a whole process, so each test starts this
//! test program once more, for itself alone.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use datapath::guard::disposal;
use datapath::vhost_user::codec::{Connection, Incoming, WireError};
use datapath::vhost_user::socket::{Access, Listener, Opened};
use testkit::proc::alone;
use vmm_sys_util::eventfd::EventFd;
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// What can serve nobody is closed by another thread.
fn soon(mut done: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + testkit::SOON;
    while !done() && Instant::now() < end {
        thread::sleep(Duration::from_millis(1));
    }
    done()
}

fn stop() -> Arc<EventFd> {
    Arc::new(EventFd::new(libc::EFD_NONBLOCK).unwrap())
}

fn message(code: u32, size: usize) -> Vec<u8> {
    let header = [code, 1, size as u32].map(u32::to_ne_bytes).concat();
    [header, vec![0; size]].concat()
}

#[test]
fn every_request_with_any_number_of_descriptors_leaks_none() {
    alone("wire_descriptors::every_request_with_any_number_of_descriptors_leaks_none", 256, || {
        let stop = stop();
        let file = File::open("/dev/null").unwrap();
        let before = open_descriptors();
        let (mut served, mut refused, mut ended) = (0, 0, 0);
        for code in 0..=45 {
            for count in [0, 1, 8, 32, 33] {
                let (near, theirs) = UnixStream::pair().unwrap();
                let (mut ours, mut theirs) =
                    (Connection::new(near, Arc::clone(&stop)).unwrap(), theirs);
                // The sizes of all bodies that requests have, a quarter of the hundred each.
                for size in [0, 8, 16, 40].repeat(25) {
                    let fds = vec![file.as_raw_fd(); count];
                    // Where the closer has no CPU the connection would be ended for it.
                    assert!(soon(|| !disposal::is_held_up()), "they are not closed");
                    theirs.send_with_fds(&[&message(code, size)[..]], &fds).unwrap();
                    match ours.receive() {
                        Ok(Incoming::Message(message)) => match message.decode() {
                            Ok(None) | Err(_) => refused += 1,
                            Ok(_) => served += 1,
                        },
                        Err(WireError::TooManyFiles) => {
                            let (near, far) = UnixStream::pair().unwrap();
                            (ours, theirs) =
                                (Connection::new(near, Arc::clone(&stop)).unwrap(), far);
                            ended += 1;
                        }
                        other => panic!("{code} {count} {size}: {other:?}"),
                    }
                }
            }
        }
        assert!(soon(|| open_descriptors() == before), "{} of {before}", open_descriptors());
        assert_eq!(ended, 46 * 100);
        assert_eq!(served + refused, 46 * 400);
        assert!(served >= 24 * 25, "{served}");
    });
}

/// Ticks (10 ms) of processor time this process has used. The file is opened by the caller, who
/// may have no descriptor left when it matters.
fn ticks_used(stat: &mut File) -> u64 {
    let mut text = String::new();
    stat.rewind().unwrap();
    stat.read_to_string(&mut text).unwrap();
    // proc(5): utime and stime are fields 14 and 15; the command, field 2, ends with ')'.
    let fields: Vec<&str> = text.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

fn exhaust() -> Vec<File> {
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}

#[test]
fn without_descriptors_front_ends_wait_and_the_listener_lives() {
    alone(
        "wire_descriptors::without_descriptors_front_ends_wait_and_the_listener_lives",
        64,
        || {
            let name = format!("vioswitch-wire-{}.sock", std::process::id());
            let path: PathBuf = std::env::temp_dir().join(name);
            let stop = stop();
            let mut listener = Listener::bind(&path, Access { mode: 0o600, group: None }).unwrap();
            let _frontend = UnixStream::connect(&path).unwrap();
            let mut stat = File::open("/proc/self/stat").unwrap();

            let hoard = exhaust();
            assert!(!hoard.is_empty());
            let acceptor = thread::spawn(move || {
                let opened = listener.accept(&stop);
                (Instant::now(), matches!(opened, Opened::Connection(..)))
            });
            let used = ticks_used(&mut stat);
            thread::sleep(Duration::from_secs(1));
            let used = ticks_used(&mut stat) - used;
            assert!(used <= 10, "spins: {used} ticks in a second of waiting");
            assert!(!acceptor.is_finished());
            let freed = Instant::now();
            drop(hoard);
            let (at, accepted) = acceptor.join().unwrap();
            assert!(accepted);
            assert!(at - freed <= Duration::from_secs(3), "{:?}", at - freed);
            assert!(!path.exists(), "the listener removes its path");
        },
    );
}

#[test]
fn descriptors_that_find_no_room_end_the_connection_only() {
    alone("wire_descriptors::descriptors_that_find_no_room_end_the_connection_only", 64, || {
        let (near, theirs) = UnixStream::pair().unwrap();
        let mut ours = Connection::new(near, stop()).unwrap();
        let file = File::open("/dev/null").unwrap();
        let mut hoard = exhaust();
        // Room for two of the three.
        hoard.truncate(hoard.len() - 2);
        let held = hoard.len();
        theirs.send_with_fds(&[&message(1, 0)[..]], &[file.as_raw_fd(); 3]).unwrap();
        assert!(matches!(ours.receive(), Err(WireError::FilesLost)));
        let closed = soon(|| exhaust().len() == 2);
        assert!(closed, "the two that fit were not closed again; {held} held");
    });
}
