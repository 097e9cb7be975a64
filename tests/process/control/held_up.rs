//! Ports are deleted or reloaded while a front-end holds them up.

use std::net::TcpStream;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use testkit::frontend::{FLAG_NEED_REPLY, Frontend, VERSION, message, req};
use testkit::proc::wait_for;
use testkit::skip;
use testkit::sys::{self, lingering};

use super::reload::Filed;
use super::{LOST, Lab};

fn connect(path: &Path) -> Frontend {
    Frontend::connect(path, LOST).expect("connect")
}

/// One front-end that is served, and one in the queue behind it that has sent a descriptor whose
/// last close lasts; and what keeps it so.
fn queued(path: &Path) -> (Frontend, UnixStream, TcpStream) {
    let mut served = connect(path);
    served.get_features().expect("is served");
    let waits = UnixStream::connect(path).expect("connect");
    let (near, far) = lingering();
    sys::send_with_fds(waits.as_raw_fd(), &[0; 12], &[near.as_raw_fd()]).expect("sent");
    (served, waits, far)
}

/// A close that lasts, of what lies unread behind a port's socket, holds up neither the one who
/// deletes the port nor the next port of the name.
#[test]
fn a_port_goes_whatever_waits_at_its_socket() {
    let lab = Lab::new(2, &[]);
    let mut kept = Vec::new();
    for _ in 0..3 {
        kept.push(queued(&lab.d.socket(0)));
        lab.done(&["port", "del", "p0"]);
        assert!(!lab.d.socket(0).exists());
        let socket = format!("socket={}", lab.d.socket(0).display());
        lab.done(&["port", "add", "p0", &socket]);
    }
    // As for a stream, of which the kernel may refuse the descriptor.
    let (path, to) = (lab.socket("net"), format!("socket={}", lab.socket("net").display()));
    lab.done(&["stream", "add", "net", &to]);
    let _served = UnixStream::connect(&path).expect("connect");
    let waits = UnixStream::connect(&path).expect("connect");
    let (near, far) = lingering();
    let sent = sys::send_with_fds(waits.as_raw_fd(), &[0], &[near.as_raw_fd()]);
    // Refused, it is we who would wait for the closing as long as the other end is there.
    let _far = sent.is_ok().then_some(far);
    drop(near);
    lab.done(&["stream", "del", "net"]);
    lab.bystanders().finish();
    drop(kept);
    lab.d.stop();
}

/// A reload that makes such a port anew does it.
#[test]
fn a_reload_makes_a_port_anew_whatever_waits_at_its_socket() {
    let filed = Filed::new(1, &[("f1", ""), ("f2", "")], &[]);
    let kept = [queued(&filed.etc.path().join("f1")), queued(&filed.etc.path().join("f2"))];
    filed.write(&[("f1", "socket-mode = \"0600\"")]);
    let done = filed.lab.done(&["config", "reload"]);
    assert!(done.ends_with("reloaded: 0 added, 1 changed, 1 deleted\n"), "{done}");
    connect(&filed.etc.path().join("f1")).get_features().expect("is served");
    drop(kept);
    filed.lab.d.stop();
}

/// While the daemon stands still: its copy of a descriptor must outlive ours, or it is us who wait.
fn unheard(lab: &Lab, near: OwnedFd, send: impl FnOnce(i32)) {
    lab.d.signal(libc::SIGSTOP);
    assert!(wait_for(LOST, || sys::stands_still(lab.d.pid())), "the daemon does not stop");
    send(near.as_raw_fd());
    drop(near);
    lab.d.signal(libc::SIGCONT);
}

/// A byte out of band is thrown away by the kernel when the next ones are read, and its descriptor
/// is closed there and then: unless it is read in line.
#[test]
fn a_descriptor_out_of_band_holds_up_its_port_no_more_than_others() {
    let lab = Lab::new(2, &[]);
    let mut fe = connect(&lab.d.socket(0));
    fe.get_features().expect("is served");
    let (near, _far) = lingering();
    let mut sent = Ok(0);
    unheard(&lab, near, |near| {
        sent = sys::send_flagged(fe.raw(), &[1], &[near], libc::MSG_OOB);
        let _ = fe.send_raw(&message(req::GET_FEATURES, VERSION, &[]), &[]);
    });
    if let Err(error) = sent {
        return skip(&format!("no bytes out of band: {error}"));
    }
    // It is the first byte of a message that makes no sense.
    assert!(fe.closed_within(LOST), "the session hangs");
    connect(&lab.d.socket(0)).get_features().expect("is served");
    lab.done(&["port", "del", "p0"]);
    lab.d.stop();
}

/// A front-end that sends one such descriptor after the other: its messages wait until so many are
/// closed, or its connection ends. Its port can be deleted, and others notice nothing, not even one
/// that sends such a descriptor too.
#[test]
fn a_front_end_that_holds_up_all_it_may_harms_itself() {
    let lab = Lab::new(3, &[]);
    let bystanders = lab.bystanders();
    let kick = message(req::SET_VRING_KICK, VERSION | FLAG_NEED_REPLY, &1u64.to_le_bytes());
    let mut kept = Vec::new();
    let mut evil = connect(&lab.d.socket(2));
    evil.get_features().expect("is served");
    lab.d.signal(libc::SIGSTOP);
    assert!(wait_for(LOST, || sys::stands_still(lab.d.pid())), "does not stop");
    for _ in 0..100 {
        let (near, far) = lingering();
        kept.push(far);
        evil.send_raw(&kick, &[near.as_raw_fd()]).expect("sent");
    }
    lab.d.signal(libc::SIGCONT);
    lab.done(&["port", "del", "p2"]);
    bystanders.finish();
    let (near, far) = lingering();
    let mut honest = connect(&lab.d.socket(1));
    unheard(&lab, near, |near| honest.send_raw(&kick, &[near]).expect("sent"));
    assert!(honest.still_served(), "another port pays for it");
    drop((kept, far));
    lab.d.stop();
}
