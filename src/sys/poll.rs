//! Waiting for one descriptor, a stop request, or a deadline: whichever comes first.
//!
//! For the threads that talk to front-ends. Each of them blocks in exactly one place, here, and
//! so each of them can be stopped: the stop eventfd is part of every wait. It is only looked at,
//! never read, so one write to it wakes every thread that shares it, also those that have yet to
//! wait. Deadlines are absolute; nothing that arrives meanwhile extends them.
//!
//! By libc: rustix polls what it can borrow, and the crate's eventfd does not lend its descriptor.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::{Duration, Instant};

use vmm_sys_util::eventfd::EventFd;

/// What ended a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    /// The descriptor can be worked on; errors and hang-ups count, the next call on it says which.
    Ready,
    /// The stop eventfd was written. It takes precedence over [`Wake::Ready`].
    Stop,
    /// The deadline has passed.
    TimedOut,
}

/// What a descriptor is waited for.
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

/// As [`wait`], with two eventfds of which each ends the wait as [`Wake::Stop`].
pub fn wait_for_any(
    fd: BorrowedFd<'_>,
    interest: Interest,
    stops: [&EventFd; 2],
    deadline: Option<Instant>,
) -> io::Result<Wake> {
    let [one, other] = stops.map(|stop| entry(stop.as_raw_fd(), libc::POLLIN));
    let mut fds = [one, other, entry(fd.as_raw_fd(), interest.events())];
    poll(&mut fds, deadline)?;
    Ok(match fds {
        [one, other, _] if one.revents | other.revents != 0 => Wake::Stop,
        [_, _, fd] if fd.revents != 0 => Wake::Ready,
        _ => Wake::TimedOut,
    })
}

/// Waits without a limit until there is something to read from `fd`, or `other`, or a stop is set;
/// true if it is `other` alone.
pub fn wait_for_either(
    fd: BorrowedFd<'_>,
    other: BorrowedFd<'_>,
    stops: [&EventFd; 2],
) -> io::Result<bool> {
    let [one, two] = stops.map(|stop| entry(stop.as_raw_fd(), libc::POLLIN));
    let [fd, other] = [fd, other].map(|fd| entry(fd.as_raw_fd(), libc::POLLIN));
    let mut fds = [one, two, fd, other];
    poll(&mut fds, None)?;
    Ok(fds[..3].iter().all(|fd| fd.revents == 0))
}

/// Waits until there is something to read from one of two descriptors, for so many milliseconds, or
/// without a limit if that is negative.
pub fn wait_for_one_of(one: &impl AsRawFd, other: &impl AsRawFd, millis: i32) -> io::Result<()> {
    let mut fds = [one.as_raw_fd(), other.as_raw_fd()].map(|fd| entry(fd, libc::POLLIN));
    let millis = u64::try_from(millis).ok();
    poll(&mut fds, millis.map(|millis| Instant::now() + Duration::from_millis(millis)))
}

/// Waits until `fd` is ready, errors and hang-ups included; false if it is not by `deadline`. For
/// waits that are too short to be worth stopping.
pub fn is_ready_by(fd: BorrowedFd<'_>, interest: Interest, deadline: Instant) -> io::Result<bool> {
    let mut fds = [entry(fd.as_raw_fd(), interest.events())];
    poll(&mut fds, Some(deadline))?;
    Ok(fds[0].revents != 0)
}

/// Sleeps until `until` or until `stop` is set.
pub fn pause(stop: &EventFd, until: Instant) -> io::Result<Wake> {
    let mut fds = [entry(stop.as_raw_fd(), libc::POLLIN)];
    poll(&mut fds, Some(until))?;
    Ok(if fds[0].revents != 0 { Wake::Stop } else { Wake::TimedOut })
}

fn entry(fd: RawFd, events: libc::c_short) -> libc::pollfd {
    libc::pollfd { fd, events, revents: 0 }
}

/// ppoll(2) until an entry is ready or the deadline has passed, across interruptions. With no
/// deadline it returns only when an entry is ready.
fn poll(fds: &mut [libc::pollfd], deadline: Option<Instant>) -> io::Result<()> {
    loop {
        let timeout = deadline.map(|at| {
            let left = at.saturating_duration_since(Instant::now());
            libc::timespec {
                tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            }
        });
        let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: `fds` and the optional `timeout` live across the call, and the count is that
        // of `fds`.
        let ready = unsafe {
            libc::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout, std::ptr::null())
        };
        if ready >= 0 {
            return Ok(());
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
