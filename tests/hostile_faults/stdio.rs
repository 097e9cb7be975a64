//! Standard descriptors that are closed: or whose other side hangs: no frame depends on the log.

use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::sync::mpsc;
use std::time::Duration;

use crate::lab::chat;
use crate::process::{Process, SOON};
use testkit::hostile::raw_avail_idx;
use testkit::proc::wait_for;
use testkit::sys;

/// The smallest a pipe can be.
const PIPE_BYTES: usize = 4096;

fn pipe() -> (OwnedFd, OwnedFd) {
    let mut ends = [0; 2];
    // SAFETY: `ends` has room for the two descriptors, which nobody else owns.
    let (read, write) = unsafe {
        assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0);
        (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))
    };
    // SAFETY: no memory is involved.
    let size = unsafe { libc::fcntl(write.as_raw_fd(), libc::F_SETPIPE_SZ, PIPE_BYTES) };
    assert_eq!(size, PIPE_BYTES as i32);
    (read, write)
}

/// A guest whose rings its worker finds broken, and says so, again and again.
fn break_rings(d: &Process, times: usize) {
    for _ in 0..times {
        let evil = d.connect(2);
        // A port writes a line a second, and has said that somebody came.
        std::thread::sleep(Duration::from_millis(1100));
        let ring = &evil.guest.tx[0].ring;
        raw_avail_idx(ring, ring.used_idx().wrapping_add(ring.size + 1));
        ring.kick.write(1);
        assert!(sys::poll_in(&[ring.err.raw()], SOON), "the ring is not found broken");
        std::thread::sleep(Duration::from_millis(1100));
    }
}

/// The log's reader hangs from the start, or from some moment on, and reads again at the end.
#[test]
#[ignore = "full"]
fn the_log_is_not_read() {
    for from_start in [true, false] {
        let (read, write) = pipe();
        let mut read = std::fs::File::from(read);
        if from_start {
            // SAFETY: the bytes are readable for their length.
            let n = unsafe {
                libc::write(write.as_raw_fd(), [0u8; PIPE_BYTES].as_ptr().cast(), PIPE_BYTES)
            };
            assert_eq!(n, PIPE_BYTES as isize);
        }
        let mut d = Process::start(3, &["--workers", "1"], |command| {
            command.stderr(write);
        });
        d.ready();
        let mut net = d.pair();
        // The main thread has counters to say, more than the pipe takes.
        for _ in 0..30 {
            d.signal(libc::SIGUSR1);
            std::thread::sleep(Duration::from_millis(5));
        }
        break_rings(&d, if testkit::long() { 100 } else { 2 });
        chat(&mut net, 2000);
        net.finish();
        let (tell, told) = mpsc::channel();
        let reader = if from_start {
            drop(tell);
            None
        } else {
            // It reads again, and learns what it missed.
            Some(std::thread::spawn(move || {
                let mut text = Vec::new();
                let _ = read.read_to_end(&mut text);
                let _ = tell.send(String::from_utf8_lossy(&text).into_owned());
            }))
        };
        drop(net);
        d.stop();
        if let Some(reader) = reader {
            let text = told.recv_timeout(SOON).expect("the end of the log");
            assert!(text.contains("is broken and left alone"), "{text}");
            assert!(text.contains("ready: 3 ports"), "{text}");
            reader.join().expect("reader");
        }
    }
}

/// The log's reader is gone: EPIPE, and SIGPIPE, are nobody's end.
#[test]
fn the_logs_reader_is_gone() {
    let (read, write) = pipe();
    let mut d = Process::start(3, &[], |command| {
        command.stderr(write);
    });
    d.ready();
    drop(read);
    let mut net = d.pair();
    for _ in 0..20 {
        d.signal(libc::SIGUSR1);
    }
    break_rings(&d, 1);
    chat(&mut net, 1000);
    net.finish();
    drop(net);
    d.stop();
}

/// Started without standard descriptors: what is opened first gets their numbers, and is not
/// written the log into.
#[test]
fn standard_descriptors_are_closed() {
    let mut d = Process::start(3, &[], |command| {
        // SAFETY: close is async-signal-safe and touches no memory of the parent.
        unsafe {
            command.pre_exec(|| {
                (0..3).for_each(|fd| {
                    libc::close(fd);
                });
                Ok(())
            });
        }
    });
    d.ready();
    let mut net = d.pair();
    break_rings(&d, 1);
    d.signal(libc::SIGUSR1);
    chat(&mut net, 1000);
    for fd in 0..3 {
        let to = std::fs::read_link(format!("/proc/{}/fd/{fd}", d.pid())).expect("descriptor");
        assert_eq!(to.to_str(), Some("/dev/null"));
    }
    net.finish();
    drop(net);
    assert!(wait_for(SOON, || d.log().is_empty()));
    d.stop();
}
