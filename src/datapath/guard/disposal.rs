//! Closes descriptors that a front-end or a client sent.
//!
//! The last close(2) of a file runs the file's own code, which may wait. A TCP socket with
//! `SO_LINGER` and unread bytes waits for as long as the option says (up to 18 hours); a file of a
//! FUSE file system waits for the server of the file system. Any peer can make such a file, send
//! the file with a message and close its own descriptor, so that this process closes last.
//!
//! Eventfds and files in memory have no such code, and a session uses no other kind of file. So
//! these two kinds are closed at once. All others go to a closer: a thread that closes the files
//! which one other thread received (a port's thread, or the thread of all clients), and ends when
//! none is left. If a close lasts, the files of this one thread wait behind it; files of other
//! threads do not. A thread with more than [`MAX_HELD_FILES`] waiting files must accept no more
//! ([`is_held_up`]), so it holds no more than these, the files of one message and its sockets.
//!
//! A signal every [`CLOSE_TIME`] ends a wait for `SO_LINGER`, and any other interruptible wait.
//!
//! A socket is such a file too: closing a socket closes the descriptors that lie unread in it, or
//! in the connections in its queue. [`Guarded`] is a socket that is closed accordingly.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::eventfd::{RESCUE, prepare_thread};
use base::limits::{
    CLOSE_PATIENCE_MILLIS, CLOSE_TIME, MAX_CLOSERS, MAX_HELD_FILES, SESSION_STACK_BYTES,
};
use sys::eventfd::is_eventfd;
use sys::fs::is_memory;
use sys::signals::Ticker;
use sys::threads::lock;
use sys::unix_socket;

/// The files that one thread gave to its closer.
#[derive(Default)]
struct Work {
    /// Files that wait to be closed.
    files: VecDeque<OwnedFd>,
    /// A closer is running.
    closing: bool,
}

type Shared = Arc<Mutex<Work>>;

thread_local! {
    static WORK: RefCell<Shared> = RefCell::default();
}

/// Number of closers in the process.
static CLOSERS: AtomicUsize = AtomicUsize::new(0);

/// True for the kinds of file that serve a session; closing such a file never waits.
pub(crate) fn is_of_use(file: &OwnedFd) -> io::Result<bool> {
    Ok(is_memory(file)? || is_eventfd(file.as_raw_fd())?)
}

/// Closes `files`; a file whose closing may wait is closed by a closer, a little later.
pub fn close(files: Vec<OwnedFd>) {
    let (harmless, strange): (Vec<_>, Vec<_>) =
        files.into_iter().partition(|file| is_of_use(file).unwrap_or(false));
    drop(harmless);
    if strange.is_empty() {
        return;
    }
    // Fails in a thread that is about to end; such a thread has closed its files before.
    let Ok(shared) = WORK.try_with(|work| Arc::clone(&work.borrow())) else { return };
    let mut work = lock(&shared);
    work.files.extend(strange);
    work.closing = work.closing || start_closer(&shared);
}

/// True if the calling thread has more files waiting to be closed than it may have. Waits a little
/// for a closer that only lacks a CPU.
pub fn is_held_up() -> bool {
    for _ in 0..CLOSE_PATIENCE_MILLIS {
        if !is_late() {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    is_late()
}

fn is_late() -> bool {
    WORK.with(|shared| {
        let shared = shared.borrow();
        let mut work = lock(&shared);
        // The last attempt to start a closer may have failed.
        work.closing = work.closing || (!work.files.is_empty() && start_closer(&shared));
        work.files.len() > MAX_HELD_FILES
    })
}

/// Starts a closer; false if there are too many closers or no thread can be had.
fn start_closer(work: &Shared) -> bool {
    if CLOSERS.fetch_add(1, Ordering::Relaxed) < MAX_CLOSERS {
        let thread = std::thread::Builder::new().name("closer".into());
        let work = Arc::clone(work);
        if thread.stack_size(SESSION_STACK_BYTES).spawn(move || run(&work)).is_ok() {
            return true;
        }
    }
    CLOSERS.fetch_sub(1, Ordering::Relaxed);
    false
}

/// A closer's loop.
fn run(shared: &Mutex<Work>) {
    // Without the signal a close would last as long as the file's owner likes.
    prepare_thread();
    let _ticker = Ticker::start(RESCUE, CLOSE_TIME);
    let mut work = lock(shared);
    while let Some(file) = work.files.pop_front() {
        drop(work);
        drop(file);
        work = lock(shared);
    }
    work.closing = false;
    CLOSERS.fetch_sub(1, Ordering::Relaxed);
}

/// A Unix socket to which peers may have sent descriptors. On drop, [`close`] closes a listening
/// socket, a datagram socket, and a connected stream socket that holds unread bytes.
#[derive(Debug)]
pub struct Guarded<T: Into<OwnedFd> + AsFd>(Option<T>);

impl<T: Into<OwnedFd> + AsFd> From<T> for Guarded<T> {
    fn from(socket: T) -> Guarded<T> {
        Guarded(Some(socket))
    }
}

impl<T: Into<OwnedFd> + AsFd> Deref for Guarded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("it is there until it is dropped")
    }
}

impl<T: Into<OwnedFd> + AsFd> AsFd for Guarded<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        (**self).as_fd()
    }
}

impl<T: Into<OwnedFd> + AsFd> Drop for Guarded<T> {
    fn drop(&mut self) {
        let Some(socket) = self.0.take() else { return };
        // A connected socket is shut down first, so that nothing more arrives. A listening socket
        // may belong to another process too and is not shut down; its queue cannot be examined.
        let listens = unix_socket::listens(socket.as_fd()).unwrap_or(true);
        if !listens {
            unix_socket::shut_down(socket.as_fd());
        }
        // An empty datagram may carry descriptors too.
        let is_stream = unix_socket::is_unix_stream(socket.as_fd());
        let is_empty = || unix_socket::unread(socket.as_fd()).is_ok_and(|bytes| bytes == 0);
        if listens || !is_stream || !is_empty() {
            close(vec![socket.into()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use sys::fs::memfd;
    use vmm_sys_util::eventfd::EventFd;

    #[test]
    fn what_is_of_use_is_told_from_the_rest() {
        let event = sys::descriptor::from_eventfd(EventFd::new(0).unwrap());
        let is_of_use = |file: &OwnedFd| is_of_use(file).unwrap();
        assert!(is_of_use(&event) && is_of_use(&memfd("t", 4096).unwrap()));
        let (reader, writer) = std::io::pipe().unwrap();
        let disk = std::fs::File::open("/proc/self/exe").unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        for other in [OwnedFd::from(reader), writer.into(), disk.into(), null.into()] {
            assert!(!is_of_use(&other), "{other:?}");
        }
    }

    /// Returns a TCP socket that lingers for ten minutes, and the peer that keeps it waiting.
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
        let (files, kept): (Vec<_>, Vec<_>) = (0..2 * MAX_HELD_FILES).map(|_| lingering()).unzip();
        let begin = std::time::Instant::now();
        files.into_iter().for_each(|file| close(vec![file]));
        let wait = || WORK.with(|work| !lock(&work.borrow()).files.is_empty());
        while wait() {
            assert!(begin.elapsed() < std::time::Duration::from_secs(60), "they linger");
            std::thread::yield_now();
        }
        drop(kept);
    }

    #[test]
    fn all_are_closed_in_the_end() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let copies = (0..100).map(|_| OwnedFd::from(writer.try_clone().unwrap()));
        copies.for_each(|copy| close(vec![copy]));
        drop(writer);
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
        assert!(!is_held_up());
    }

    #[test]
    fn what_lies_unread_in_a_socket_is_closed_with_it() {
        use std::os::unix::net::UnixStream;
        use vmm_sys_util::sock_ctrl_msg::ScmSocket;
        let (near, far) = UnixStream::pair().unwrap();
        let (mut reader, writer) = std::io::pipe().unwrap();
        far.send_with_fd(&[0][..], writer.as_raw_fd()).unwrap();
        drop((writer, Guarded::from(near)));
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
        assert!(far.send_with_fd(&[0][..], far.as_raw_fd()).is_err(), "shut down");
    }
}
