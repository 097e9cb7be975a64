//! Closing descriptors that somebody else made.
//!
//! The last close(2) of a file runs the file's own code, which may wait: a TCP socket with
//! `SO_LINGER` and bytes that nobody reads for as long as that option says (up to 18 hours), a
//! file of a FUSE file system for whoever serves it. Anybody can make such a file, send it with a
//! message and close his own descriptor, so that the last one is ours.
//!
//! Eventfds and files in memory have no such code, and nothing else is ever of use here. So these
//! two are closed where they are. All others go to a thread that ends when it has nothing more to
//! do; if it is held up, another one goes on with the rest. With [`MAX_CLOSERS`] of them held up
//! the caller closes itself; it is a session that was sent such a file, and it delays its own port
//! only.
//!
//! A signal every [`CLOSE_TIME`] ends a wait for `SO_LINGER`, and any other that a signal ends.
//!
//! A client's socket with such a file in its queue ([`retire`]) is closed by these threads alone.
//! [`MAX_RETIRED`] of them may wait; until there is room no further client is let in.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::blocked_writers::{RESCUE, prepare_thread};
use crate::limits::{CLOSE_TIME, MAX_CLOSERS, MAX_RETIRED, SESSION_STACK_BYTES};
use crate::sys::eventfd::is_eventfd;
use crate::sys::fs::is_memory;
use crate::sys::signals::Ticker;

/// What is to be closed, and by how many.
struct Work {
    files: VecDeque<OwnedFd>,
    /// Sockets of clients, for which nobody waits.
    sockets: VecDeque<OwnedFd>,
    closers: usize,
}

static WORK: Mutex<Work> =
    Mutex::new(Work { files: VecDeque::new(), sockets: VecDeque::new(), closers: 0 });
/// Sockets of clients that are not closed yet.
static RETIRED: AtomicUsize = AtomicUsize::new(0);
/// A file was taken to be closed.
static TAKEN: Condvar = Condvar::new();

/// True for the kinds of file that serve a session, and whose closing never waits.
pub fn is_of_use(file: &OwnedFd) -> io::Result<bool> {
    Ok(is_memory(file)? || is_eventfd(file.as_raw_fd())?)
}

/// Closes `files`. When this returns each is closed or somebody is at it; for each that takes
/// longer than [`CLOSE_TIME`] the caller waits that long.
pub fn close(files: Vec<OwnedFd>) {
    let (harmless, strange): (Vec<_>, Vec<_>) =
        files.into_iter().partition(|file| is_of_use(file).unwrap_or(false));
    drop(harmless);
    if strange.is_empty() {
        return;
    }
    let mut work = work();
    work.files.extend(strange);
    let mut idle = work.closers == 0;
    while !work.files.is_empty() {
        if idle && !add_closer(&mut work) {
            let rest = std::mem::take(&mut work.files);
            drop(work);
            drop(rest);
            return;
        }
        let waited = TAKEN.wait_timeout(work, CLOSE_TIME);
        let (guard, result) = waited.unwrap_or_else(PoisonError::into_inner);
        (work, idle) = (guard, result.timed_out());
    }
}

/// Has a client's socket closed, and waits for nothing.
pub fn retire(socket: OwnedFd) {
    RETIRED.fetch_add(1, Ordering::Relaxed);
    let mut work = work();
    work.sockets.push_back(socket);
    add_closer(&mut work);
}

/// True if a further socket may be retired.
pub fn has_room() -> bool {
    let mut work = work();
    if !work.sockets.is_empty() && work.closers == 0 {
        // No thread could be had for the last one.
        add_closer(&mut work);
    }
    RETIRED.load(Ordering::Relaxed) < MAX_RETIRED
}

fn work() -> MutexGuard<'static, Work> {
    WORK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a thread that closes; false if there are too many, or none can be had.
fn add_closer(work: &mut Work) -> bool {
    if work.closers >= MAX_CLOSERS {
        return false;
    }
    let thread = std::thread::Builder::new().name("closer".into());
    let started = thread.stack_size(SESSION_STACK_BYTES).spawn(run).is_ok();
    work.closers += usize::from(started);
    started
}

/// A closer's life.
fn run() {
    // Without signals a close lasts as long as it likes.
    prepare_thread();
    let _ticker = Ticker::start(RESCUE, CLOSE_TIME);
    let mut work = work();
    loop {
        if let Some(file) = work.files.pop_front() {
            drop(work);
            TAKEN.notify_all();
            drop(file);
        } else if let Some(socket) = work.sockets.pop_front() {
            drop(work);
            drop(socket);
            RETIRED.fetch_sub(1, Ordering::Relaxed);
        } else {
            break;
        }
        work = self::work();
    }
    work.closers -= 1;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::fs::memfd;
    use std::io::Read;
    use vmm_sys_util::eventfd::EventFd;

    #[test]
    fn what_is_of_use_is_told_from_the_rest() {
        let event = crate::sys::descriptor::from_eventfd(EventFd::new(0).unwrap());
        let is_of_use = |file: &OwnedFd| is_of_use(file).unwrap();
        assert!(is_of_use(&event) && is_of_use(&memfd("t", 4096).unwrap()));
        let (reader, writer) = std::io::pipe().unwrap();
        let disk = std::fs::File::open("/proc/self/exe").unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        for other in [OwnedFd::from(reader), writer.into(), disk.into(), null.into()] {
            assert!(!is_of_use(&other), "{other:?}");
        }
    }

    /// A TCP socket that lingers for ten minutes, and the end that keeps it waiting.
    fn lingering() -> (OwnedFd, std::net::TcpStream) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        near.set_nonblocking(true).unwrap();
        while std::io::Write::write(&mut near, &[0; 65536]).is_ok() {}
        let ten_minutes = Some(std::time::Duration::from_secs(600));
        rustix::net::sockopt::set_socket_linger(&near, ten_minutes).unwrap();
        (near.into(), far)
    }

    #[test]
    fn a_signal_ends_a_close_that_lingers() {
        let _handler = super::super::BlockedWriterWatch::start().unwrap();
        let (files, kept): (Vec<_>, Vec<_>) = (0..2 * MAX_CLOSERS).map(|_| lingering()).unzip();
        let begin = std::time::Instant::now();
        files.into_iter().for_each(retire);
        while RETIRED.load(Ordering::Relaxed) > 0 {
            assert!(begin.elapsed() < std::time::Duration::from_secs(60), "they linger");
            std::thread::yield_now();
        }
        assert!(has_room());
        drop(kept);
    }

    #[test]
    fn all_are_closed_in_the_end() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let copies = (0..100).map(|_| OwnedFd::from(writer.try_clone().unwrap()));
        copies.for_each(|copy| close(vec![copy]));
        drop(writer);
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
    }
}
