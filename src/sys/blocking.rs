//! Runs work that may block in a file system on separate threads, while clients are served.
//!
//! The server of a file system (FUSE, NFS) may never answer, and only a fatal signal ends the wait.
//! So at most one thread works at each path, however many clients ask, and the number of threads is
//! bounded. A caller that finds the path or all threads busy waits, and tries again when a thread
//! is done.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, TryRecvError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::threads::lock;
use super::waker::Waker;

/// Pause between two attempts to start work at a path.
const STEP: Duration = Duration::from_millis(2);

/// A bounded set of threads, one for each path.
#[derive(Debug)]
pub struct Blocking {
    most: usize,
    /// The paths at which threads work.
    paths: Arc<Mutex<HashSet<PathBuf>>>,
}

/// The result of a thread's work, to be received.
#[derive(Debug)]
pub struct Task<T>(Receiver<T>);

/// The reason why [`Blocking`] started no thread or got no result.
#[derive(Debug, thiserror::Error)]
pub enum NotBegun {
    /// A thread works at this path.
    #[error("another one is at it")]
    Busy,
    /// The greatest number of threads work at other paths.
    #[error("there are too many others")]
    Full,
    /// The thread could not be started, or it panicked.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] io::Error),
}

/// Marks a path as busy, until the thread ends, perhaps by a panic.
struct AtWork {
    paths: Arc<Mutex<HashSet<PathBuf>>>,
    path: PathBuf,
    waker: Arc<Waker>,
}

impl Drop for AtWork {
    fn drop(&mut self) {
        lock(&self.paths).remove(&self.path);
        self.waker.wake();
    }
}

impl Blocking {
    /// Allows `most` threads, one for each path.
    pub fn new(most: usize) -> Blocking {
        Blocking { most, paths: Arc::default() }
    }

    /// Starts a thread that runs `work` at `path`; `waker` is woken at the end of the work.
    pub fn begin<T: Send + 'static>(
        &self,
        path: &Path,
        waker: &Arc<Waker>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Task<T>, NotBegun> {
        {
            let mut paths = lock(&self.paths);
            if paths.contains(path) {
                return Err(NotBegun::Busy);
            }
            if paths.len() >= self.most {
                return Err(NotBegun::Full);
            }
            paths.insert(path.to_owned());
        }
        let (sender, receiver) = mpsc::channel();
        let (paths, own, waker) = (Arc::clone(&self.paths), path.to_owned(), Arc::clone(waker));
        let run = move || {
            let _at_work = AtWork { paths, path: own, waker };
            // `sender` is dropped before `_at_work` wakes the waker, so that the woken thread sees
            // a panic as a disconnected channel.
            let sender = sender;
            // Fails if the receiver was dropped.
            let _ = sender.send(work());
        };
        if let Err(error) = std::thread::Builder::new().name("blocking".to_owned()).spawn(run) {
            lock(&self.paths).remove(path);
            return Err(error.into());
        }
        Ok(Task(receiver))
    }

    /// Runs `work` at `path` on a thread, and waits for the result until `end`. A thread that has
    /// not finished by `end` goes on and keeps the path busy: [`NotBegun::Busy`].
    pub fn run<T: Send + 'static>(
        &self,
        path: &Path,
        waker: &Arc<Waker>,
        end: Instant,
        work: impl FnOnce() -> T + Clone + Send + 'static,
    ) -> Result<T, NotBegun> {
        loop {
            let error = match self.begin(path, waker, work.clone()) {
                Ok(Task(receiver)) => {
                    let left = end.saturating_duration_since(Instant::now());
                    return receiver.recv_timeout(left).map_err(|error| match error {
                        RecvTimeoutError::Timeout => NotBegun::Busy,
                        RecvTimeoutError::Disconnected => io::Error::other("it panicked").into(),
                    });
                }
                Err(NotBegun::Thread(error)) => return Err(error.into()),
                Err(error) => error,
            };
            if Instant::now() >= end {
                return Err(error);
            }
            std::thread::sleep(STEP);
        }
    }
}

impl<T> Task<T> {
    /// Returns the result of the work; `Empty` until the thread is done, `Disconnected` if the
    /// thread panicked.
    pub fn result(&self) -> Result<T, TryRecvError> {
        self.0.try_recv()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::sync::Barrier;

    use super::*;
    use crate::eventfd::is_readable;

    fn woken(waker: &Waker) {
        let end = Instant::now() + Duration::from_secs(60);
        while !is_readable(waker.as_raw_fd()) {
            assert!(Instant::now() < end, "nobody is woken");
            std::thread::yield_now();
        }
        waker.clear();
    }

    #[test]
    fn there_is_one_for_each_path_and_so_many_in_all() {
        let waker = Arc::new(Waker::new().unwrap());
        let blocking = Blocking::new(2);
        let gates = [0, 1].map(|_| Arc::new(Barrier::new(2)));
        let begin = |path: &str, gate: &Arc<Barrier>| {
            let gate = Arc::clone(gate);
            blocking.begin(Path::new(path), &waker, move || {
                gate.wait();
                7
            })
        };
        waker.arm();
        let one = begin("/a", &gates[0]).unwrap();
        assert!(matches!(begin("/a", &gates[1]), Err(NotBegun::Busy)));
        let two = begin("/b", &gates[1]).unwrap();
        assert!(matches!(begin("/c", &gates[1]), Err(NotBegun::Full)));
        assert_eq!(one.result(), Err(TryRecvError::Empty));
        gates[0].wait();
        woken(&waker);
        assert_eq!(one.result(), Ok(7));
        waker.arm();
        gates[1].wait();
        woken(&waker);
        assert_eq!(two.result(), Ok(7));
        assert!(lock(&blocking.paths).is_empty());
    }

    #[test]
    fn a_panic_is_known_and_leaves_nothing() {
        let waker = Arc::new(Waker::new().unwrap());
        let blocking = Blocking::new(1);
        waker.arm();
        let work = || {
            if true {
                panic!("at work")
            }
        };
        let task = blocking.begin(Path::new("/a"), &waker, work).unwrap();
        woken(&waker);
        assert_eq!(task.result(), Err(TryRecvError::Disconnected));
        assert!(lock(&blocking.paths).is_empty());
    }

    #[test]
    fn who_waits_is_told_in_time_that_there_is_no_answer() {
        let waker = Arc::new(Waker::new().unwrap());
        let blocking = Blocking::new(2);
        let soon = || Instant::now() + Duration::from_millis(20);
        let later = || Instant::now() + Duration::from_secs(60);
        assert_eq!(blocking.run(Path::new("/a"), &waker, later(), || 7).unwrap(), 7);
        let gate = Arc::new(Barrier::new(2));
        let at = Arc::clone(&gate);
        let hangs = blocking.run(Path::new("/a"), &waker, soon(), move || _ = at.wait());
        assert!(matches!(hangs, Err(NotBegun::Busy)));
        assert!(matches!(blocking.run(Path::new("/a"), &waker, soon(), || 7), Err(NotBegun::Busy)));
        assert_eq!(blocking.run(Path::new("/b"), &waker, later(), || 7).unwrap(), 7);
        gate.wait();
        assert_eq!(blocking.run(Path::new("/a"), &waker, later(), || 7).unwrap(), 7);
    }
}
