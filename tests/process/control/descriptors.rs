//! Clients that send descriptors whose close waits: the daemon is the one that closes last, and
//! neither of its listeners may wait for that.

use std::io::Write;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::thread;

use testkit::skip;
use testkit::sys::{self, lingering};

use super::*;

const PLACES: usize = 32;
const CALL: &[u8] = b"{\"method\":\"io.vioswitch.Switch.GetStatus\"}\0";
const REQUEST: &[u8] = b"GET /metrics HTTP/1.1\r\n\r\n";

/// A switch, and the other ends of what was sent to it.
struct Attack {
    lab: Lab,
    metrics: PathBuf,
    kept: Vec<TcpStream>,
    _dir: Dir,
}

impl Attack {
    fn new() -> Attack {
        let dir = Dir::new();
        let metrics = dir.path().join("metrics");
        let lab = Lab::new(1, &[&format!("--metrics=unix:{}", metrics.display())]);
        assert!(wait_for(LOST, || metrics.exists()), "no socket\n{}", lab.d.log());
        Attack { lab, metrics, kept: Vec::new(), _dir: dir }
    }

    /// Connects and sends these bytes while the daemon stands still: `with` comes along with the
    /// last of them, and the daemon's copy is the only one when it goes on.
    fn send(&mut self, path: &Path, before: &[u8], with: &[u8]) -> UnixStream {
        self.lab.d.signal(libc::SIGSTOP);
        assert!(wait_for(LOST, || sys::stands_still(self.lab.d.pid())), "it does not stop");
        let mut socket = UnixStream::connect(path).expect("connect");
        let (near, far) = lingering();
        self.kept.push(far);
        let _ = socket.write_all(before);
        match sys::send_with_fds(socket.as_raw_fd(), with, &[near.as_raw_fd()]) {
            Ok(count) => assert_eq!(count, with.len()),
            // Linux 6.16 refuses to send what the other end does not take.
            // It is ours to close then, when the other end is gone.
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::EPERM), "{error}");
                self.kept.pop();
            }
        }
        drop(near);
        self.lab.d.signal(libc::SIGCONT);
        socket
    }

    /// Both threads answer: a close that they waited for would last for ten minutes.
    fn both_answer(&self, what: &str) {
        let answer =
            self.lab.client().try_call(&json!({"method": format!("{INTERFACE}.GetStatus")}));
        assert!(answer.is_some_and(|answer| answer["error"].is_null()), "control: {what}");
        let mut socket = UnixStream::connect(&self.metrics).expect("connect");
        socket.set_read_timeout(Some(LOST)).expect("timeout");
        socket.write_all(REQUEST).expect("send");
        let mut text = String::new();
        let read = socket.read_to_string(&mut text);
        assert!(read.is_ok() && text.starts_with("HTTP/1.1 200 "), "metrics: {what}");
    }
}

fn no_close_is_waited_for() {
    let mut attack = Attack::new();
    let (control, metrics) = (attack.lab.path.clone(), attack.metrics.clone());
    let before = attack.lab.d.settled_usage();
    for (what, path, before, with) in [
        ("with a call", &control, &b""[..], CALL),
        ("with half a call", &control, b"", &CALL[..9]),
        ("behind a call", &control, CALL, CALL),
        ("unread behind what is no call", &control, b"hello\0", CALL),
        ("with a request", &metrics, b"", REQUEST),
        ("with half a request", &metrics, b"", &REQUEST[..5]),
        ("unread behind a request", &metrics, REQUEST, REQUEST),
    ] {
        let socket = attack.send(path, before, with);
        attack.both_answer(what);
        drop(socket);
        attack.both_answer(what);
    }
    // Where there is no place for the client. Those of before have left theirs.
    assert!(wait_for(LOST, || attack.lab.client().count("connected") == 1));
    let mut others: Vec<Client> = (0..PLACES).map(|_| attack.lab.client()).collect();
    others.iter_mut().for_each(|other| assert!(other.connected().is_some()));
    let refused = attack.send(&control, b"", CALL);
    assert!(others[0].connected().is_some(), "control: one that is refused");
    drop(refused);
    assert!(others[0].connected().is_some(), "control: one that was refused");
    drop(others);
    // Others than those that closed are not held up, and these not for ever.
    let usage = || attack.lab.d.usage();
    let settled = wait_for(LOST, || usage().threads <= before.threads && usage().fds <= before.fds);
    assert!(settled, "{before:?} {:?}", usage());
    attack.lab.d.stop();
}

/// The close waits for ten minutes: descriptors come with a call, with half a call, unread at the
/// end, and where there is no place.
#[test]
fn no_close_of_a_clients_descriptor_is_waited_for() {
    no_close_is_waited_for();
}

#[test]
fn nor_where_the_kernel_does_not_refuse_them() {
    if !is_root() {
        return skip("a filter of system calls needs root");
    }
    // In a thread of its own: what it forgets is forgotten for good.
    let forgetful = thread::Builder::new().name("nor_where".to_owned()).spawn(|| {
        sys::forget_passrights();
        no_close_is_waited_for();
    });
    forgetful.expect("thread").join().expect("all is answered");
}
