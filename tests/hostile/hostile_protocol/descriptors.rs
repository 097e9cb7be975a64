//! Descriptors of wrong kinds: for a ring they are refused, whatever they are, and closing them
//! holds up no other port.

use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::lab::{Lab, SOON, acked, connect, small};
use testkit::frontend::{Error, FLAG_NEED_REPLY, VERSION, message, req};
use testkit::proc::{Daemon, wait_for};
use testkit::sys::{self, EventFd};
use testkit::vm::Vm;

/// Every kind of descriptor that is at hand and is no eventfd.
pub fn strangers() -> Vec<(&'static str, OwnedFd)> {
    let (reader, writer) = std::io::pipe().expect("pipe");
    let (stream, far) = UnixStream::pair().expect("socket pair");
    let file = |path: &str| OwnedFd::from(std::fs::File::open(path).expect(path));
    // SAFETY: an all-zero set is a valid one, and it lives across the call.
    let signals = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigaddset(&mut set, libc::SIGUSR2);
        libc::signalfd(-1, &set, libc::SFD_CLOEXEC)
    };
    // SAFETY: the calls touch no memory.
    let (timer, inotify, watch, tcp) = unsafe {
        (
            libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC),
            libc::inotify_init1(libc::IN_CLOEXEC),
            libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) as i32,
            libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0),
        )
    };
    vec![
        ("a pipe's reading end", reader.into()),
        ("a pipe's writing end", writer.into()),
        ("a socket", stream.into()),
        ("its other end", far.into()),
        ("a TCP socket", sys::made(tcp)),
        ("an epoll set", epoll(&[])),
        ("nested epoll sets", nested_epoll()),
        ("a timer", sys::made(timer)),
        ("signals", sys::made(signals)),
        ("inotify", sys::made(inotify)),
        ("a process", sys::made(watch)),
        ("a directory", file("/tmp")),
        ("a device", file("/dev/zero")),
        ("a file of /proc", file("/proc/self/maps")),
        ("a program", file("/proc/self/exe")),
    ]
}

/// An epoll set that waits for others.
pub fn epoll(inside: &[RawFd]) -> OwnedFd {
    // SAFETY: the call touches no memory.
    let set = sys::made(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) });
    for &fd in inside {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        // SAFETY: `event` lives across the call.
        let done = unsafe { libc::epoll_ctl(set.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) };
        assert_eq!(done, 0, "epoll_ctl: {}", std::io::Error::last_os_error());
    }
    set
}

/// Four deep, which is what the kernel allows; the innermost waits for an eventfd.
fn nested_epoll() -> OwnedFd {
    let event = EventFd::new();
    let mut set = epoll(&[event.raw()]);
    for _ in 0..3 {
        set = epoll(&[set.as_raw_fd()]);
    }
    set
}

/// What is no eventfd is refused as kick, call and err, with a NACK, and the conversation goes on;
/// memory too, which is of use elsewhere.
#[test]
fn only_eventfds_notify() {
    let lab = Lab::new(1);
    let mut all = strangers();
    all.push(("memory", sys::memfd(1 << 20)));
    let mut fe = acked(&lab.d, lab.evil);
    for (what, fd) in &all {
        for code in [req::SET_VRING_KICK, req::SET_VRING_CALL, req::SET_VRING_ERR] {
            let answer = fe.set_vring_fd(code, 1, Some(fd.as_raw_fd()));
            assert!(matches!(answer, Err(Error::Nack(_))), "{what} as {code}: {answer:?}");
        }
    }
    assert!(fe.still_served());
    // Without acknowledgements there is nothing to say; the message has no effect.
    let mut fe2 = fe;
    for (_, fd) in &all {
        fe2.send(req::SET_VRING_KICK, VERSION, &1u64.to_le_bytes(), &[fd.as_raw_fd()])
            .expect("sent");
    }
    assert!(fe2.still_served() && fe2.leave(SOON));
    lab.finish();
}

/// While the daemon stands still: its copy of a descriptor must outlive ours, or it is us who wait.
fn unheard(d: &Daemon, send: impl FnOnce()) {
    d.signal(libc::SIGSTOP);
    // The signal is only sent by now; a thread that still runs would close its copy first.
    assert!(wait_for(SOON, || sys::stands_still(d.pid())), "the daemon does not stop");
    send();
    d.signal(libc::SIGCONT);
}

/// A descriptor whose closing waits for as long as the front-end likes, in each place where the
/// daemon has to get rid of one: its last copy is the one that was sent. The conversation goes on
/// or ends, and the port serves the next front-end at once. It may wait for 18 hours.
#[test]
fn a_close_that_waits_holds_up_nobody() {
    let lab = Lab::new(1);
    let kick = message(req::SET_VRING_KICK, VERSION | FLAG_NEED_REPLY, &1u64.to_le_bytes());
    let unknown = message(99, VERSION, &[0; 8]);
    let region = message(req::ADD_MEM_REG, VERSION, &[0; 40]);
    let log = message(req::SET_LOG_BASE, VERSION, &[1; 16]);
    let wrong = message(req::GET_FEATURES, 0, &[]);
    let event = EventFd::new();
    let mut kept = Vec::new();
    let mut socket = || {
        let (near, far) = sys::lingering();
        kept.push(far);
        near
    };
    for (what, bytes, before) in [
        ("a kick", &kick, 0),
        ("with an unknown request", &unknown, 0),
        ("memory", &region, 0),
        ("a dirty log", &log, 0),
        ("one descriptor too many", &kick, 1),
        ("one more than any message has", &kick, 32),
        ("with half a message", &kick[..5].to_vec(), 0),
        ("with a bad header", &wrong, 0),
    ] {
        let near = socket();
        let mut fe = connect(&lab.d, lab.evil);
        let mut fds = vec![event.raw(); before];
        fds.push(near.as_raw_fd());
        unheard(&lab.d, || {
            fe.send_raw(bytes, &fds).expect("sent");
            drop(near);
        });
        assert!(fe.leave(SOON), "{what}: the session hangs");
        lab.serves();
    }
    // In the middle of a message.
    let near = socket();
    let mut fe = connect(&lab.d, lab.evil);
    unheard(&lab.d, || {
        fe.send_raw(&kick[..14], &[event.raw()]).expect("sent");
        fe.send_raw(&kick[14..], &[near.as_raw_fd()]).expect("sent");
        drop(near);
    });
    assert!(fe.leave(SOON), "in the middle of a message: the session hangs");
    lab.serves();
    // Not read any more when the connection ends, alone and inside another socket.
    for round in 0..6 {
        let mut near = socket();
        if round % 2 == 1 {
            let (inner, outer) = UnixStream::pair().expect("socket pair");
            sys::send_with_fds(inner.as_raw_fd(), &[0], &[near.as_raw_fd()]).expect("sent");
            near = outer.into();
        }
        let mut fe = connect(&lab.d, lab.evil);
        unheard(&lab.d, || {
            fe.send_raw(&wrong, &[]).expect("sent");
            fe.send_raw(&kick, &[near.as_raw_fd()]).expect("sent");
            drop(near);
        });
        assert!(fe.leave(SOON), "unread: the session hangs");
        lab.serves();
    }
    // The other ends let go, and so do the threads that closed.
    kept.iter_mut().for_each(|far| {
        far.set_nonblocking(true).expect("nonblocking");
        while far.read(&mut [0; 65536]).is_ok_and(|n| n > 0) {}
    });
    drop(kept);
    lab.finish();
}

/// Such a descriptor keeps nobody from stopping the daemon either.
#[test]
fn a_close_that_waits_does_not_keep_the_daemon() {
    let lab = Lab::new(2);
    let mut vm = Vm::connect(&lab.d.socket(0), small(0));
    let kick = message(req::SET_VRING_KICK, VERSION, &1u64.to_le_bytes());
    let mut kept = Vec::new();
    let mut fe = connect(&lab.d, lab.evil);
    for _ in 0..3 {
        let (near, far) = sys::lingering();
        unheard(&lab.d, || {
            fe.send_raw(&kick, &[near.as_raw_fd()]).expect("sent");
            drop(near);
        });
        kept.push(far);
    }
    assert!(fe.still_served());
    std::thread::sleep(Duration::from_millis(20));
    vm.settle();
    // Exit 0 within a second.
    lab.d.stop();
}
