//! Waits for one descriptor, a stop request, or a deadline: whichever comes first.
//!
//! For the threads that talk to front-ends. Each of these threads blocks only here, so each can be
//! stopped: the stop eventfd is part of every wait. The stop eventfd is polled and never read, so
//! one write to it wakes every thread that shares it, also threads that wait later. Deadlines are
//! absolute; no event extends a deadline.
//!
//! Uses libc: rustix polls borrowed descriptors, and `EventFd` does not lend its descriptor.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::{Duration, Instant};

use vmm_sys_util::eventfd::EventFd;

/// The reason why a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    /// The descriptor is ready, or has an error or a hang-up, which the next call on it returns.
    Ready,
    /// The stop eventfd was written. A stop request takes precedence over [`Wake::Ready`].
    Stop,
    /// The deadline has passed.
    TimedOut,
}

/// The event that a wait is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interest {
    /// Bytes, a connection, or the end of the stream.
    Read,
    /// Room to write.
    Write,
}

impl Interest {
    fn events(self) -> libc::c_short {
        match self {
            Interest::Read => libc::POLLIN,
            Interest::Write => libc::POLLOUT,
        }
    }
}

/// Waits until `fd` is ready, `stop` is set, or `deadline` has passed (`None`: no deadline).
/// Signals do not end the wait.
pub fn wait(
    fd: BorrowedFd<'_>,
    interest: Interest,
    stop: &EventFd,
    deadline: Option<Instant>,
) -> io::Result<Wake> {
    wait_for_any(fd, interest, [stop, stop], deadline)
}

/// Waits until `fd` is ready, one of `stops` is set ([`Wake::Stop`]), or `deadline` has passed
/// (`None`: no deadline).
pub fn wait_for_any(
    fd: BorrowedFd<'_>,
    interest: Interest,
    stops: [&EventFd; 2],
    deadline: Option<Instant>,
) -> io::Result<Wake> {
    let [one, other] = stops.map(readable);
    let ready = poll([one, other, (fd.as_raw_fd(), interest.events())], deadline)?;
    Ok(match ready {
        [false, false, false] => Wake::TimedOut,
        [false, false, true] => Wake::Ready,
        _ => Wake::Stop,
    })
}

/// Waits without a limit until `fd` or `other` is readable, or a stop is set; returns true if only
/// `other` is readable.
pub fn wait_for_either(
    fd: BorrowedFd<'_>,
    other: BorrowedFd<'_>,
    stops: [&EventFd; 2],
) -> io::Result<bool> {
    let [one, two] = stops.map(readable);
    let ready = poll([one, two, readable(&fd), readable(&other)], None)?;
    Ok(ready == [false, false, false, true])
}

/// Waits until one of two descriptors is readable, for `millis` milliseconds, or without a limit if
/// `millis` is negative.
pub fn wait_for_one_of(one: &impl AsRawFd, other: &impl AsRawFd, millis: i32) -> io::Result<()> {
    let millis = u64::try_from(millis).ok();
    let deadline = millis.map(|millis| Instant::now() + Duration::from_millis(millis));
    poll([readable(one), readable(other)], deadline).map(drop)
}

/// Waits until `fd` is ready, errors and hang-ups included; returns false if `deadline` passes
/// first. For waits too short to be stopped.
pub(crate) fn is_ready_by(
    fd: BorrowedFd<'_>,
    interest: Interest,
    deadline: Instant,
) -> io::Result<bool> {
    Ok(poll([(fd.as_raw_fd(), interest.events())], Some(deadline))? == [true])
}

/// Sleeps until `until`, or until `stop` is set.
pub fn pause(stop: &EventFd, until: Instant) -> io::Result<Wake> {
    let is_set = poll([readable(stop)], Some(until))? == [true];
    Ok(if is_set { Wake::Stop } else { Wake::TimedOut })
}

fn readable(fd: &impl AsRawFd) -> (RawFd, libc::c_short) {
    (fd.as_raw_fd(), libc::POLLIN)
}

/// Calls ppoll(2), across interruptions, until a descriptor is ready or the deadline has passed;
/// returns a flag for each descriptor that is ready.
fn poll<const N: usize>(
    fds: [(RawFd, libc::c_short); N],
    deadline: Option<Instant>,
) -> io::Result<[bool; N]> {
    let mut fds = fds.map(|(fd, events)| libc::pollfd { fd, events, revents: 0 });
    loop {
        let timeout = deadline.map(|at| {
            let left = at.saturating_duration_since(Instant::now());
            libc::timespec {
                tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            }
        });
        let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: `fds` and the optional `timeout` live across the call, and the count is the
        // length of `fds`.
        let ready = unsafe {
            libc::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout, std::ptr::null())
        };
        if ready >= 0 {
            return Ok(fds.map(|fd| fd.revents != 0));
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn each_cause_wakes_and_stop_wins() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let stop = EventFd::new(libc::EFD_NONBLOCK).unwrap();
        let soon = || Some(Instant::now() + Duration::from_millis(20));
        let reading = |deadline| wait(near.as_fd(), Interest::Read, &stop, deadline).unwrap();

        assert_eq!(reading(soon()), Wake::TimedOut);
        assert_eq!(wait(near.as_fd(), Interest::Write, &stop, None).unwrap(), Wake::Ready);
        far.write_all(b"x").unwrap();
        assert_eq!(reading(None), Wake::Ready);
        assert_eq!(
            pause(&stop, Instant::now() + Duration::from_millis(5)).unwrap(),
            Wake::TimedOut
        );
        stop.write(1).unwrap();
        assert_eq!(reading(None), Wake::Stop);
        assert_eq!(reading(None), Wake::Stop, "looking at the stop request must not consume it");
        assert_eq!(pause(&stop, Instant::now() + Duration::from_secs(60)).unwrap(), Wake::Stop);
    }

    #[test]
    fn either_of_two_ends_a_wait() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let other = EventFd::new(libc::EFD_NONBLOCK).unwrap();
        let start = Instant::now();
        wait_for_one_of(&near, &other, 5).unwrap();
        assert!(start.elapsed() >= Duration::from_millis(5));
        other.write(1).unwrap();
        wait_for_one_of(&near, &other, -1).unwrap();
        other.read().unwrap();
        far.write_all(b"x").unwrap();
        wait_for_one_of(&near, &other, -1).unwrap();
    }

    #[test]
    fn a_deadline_in_the_past_looks_once() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let stop = EventFd::new(libc::EFD_NONBLOCK).unwrap();
        let past = Some(Instant::now());
        assert_eq!(wait(near.as_fd(), Interest::Read, &stop, past).unwrap(), Wake::TimedOut);
        far.write_all(b"x").unwrap();
        assert_eq!(wait(near.as_fd(), Interest::Read, &stop, past).unwrap(), Wake::Ready);
    }
}
