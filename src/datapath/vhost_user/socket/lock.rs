//! The lock under which a stale socket is replaced.
//!
//! The lock is a file that only this user can open: every local user may open the directory, and so
//! could lock the directory itself. The holder removes the file before releasing the lock, so a
//! process that gets the lock checks that the file still has its name. Where other users may write
//! to the directory, they may take the name first: a file that belongs to another user, or that
//! others can open, is not waited for. The lock guards against accidents only: without the lock the
//! daemon goes on, and after one timeout the process waits for no lock any more.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use base::limits::SOCKET_LOCK_WAIT;
use sys::{group, unix_socket};

/// Name of the lock's file in the directory of a socket.
const NAME: &str = ".vioswitch.lock";

/// A lock could not be taken, and the log says so.
static GIVEN_UP: AtomicBool = AtomicBool::new(false);

/// The lock, held until drop.
#[derive(Debug)]
pub(super) struct Lock {
    path: PathBuf,
    _file: File,
}

impl Lock {
    /// Locks `directory`, a path that must lead to one directory until the lock is dropped. `named`
    /// is the directory's name for the log. `None` if the lock cannot be taken.
    pub(super) fn take(directory: &Path, named: &Path) -> Option<Lock> {
        let path = directory.join(NAME);
        let taken = lock(&path);
        if let Err(error) = &taken
            && !GIVEN_UP.swap(true, Ordering::Relaxed)
        {
            log::warn!("cannot lock directory {named:?}, going on without: {error}");
        }
        Some(Lock { path, _file: taken.ok()? })
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Fails only if the file is gone.
        let _ = fs::remove_file(&self.path);
    }
}

fn lock(path: &Path) -> io::Result<File> {
    let end = Instant::now() + SOCKET_LOCK_WAIT;
    loop {
        let file = open(path)?;
        let found = file.metadata()?;
        let ours = found.is_file() && found.uid() == group::own_user();
        if !ours || found.mode() & 0o077 != 0 || found.nlink() > 1 {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        if unix_socket::try_lock(file.as_fd())? {
            // The last holder may have removed the file: the lock is on a file without a name then.
            let named = fs::symlink_metadata(path);
            if named.is_ok_and(|now| (now.dev(), now.ino()) == (found.dev(), found.ino())) {
                return Ok(file);
            }
        }
        if GIVEN_UP.load(Ordering::Relaxed) || Instant::now() >= end {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Opens the file, or creates it. Follows no link, and does not wait for a FIFO.
fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)
}
