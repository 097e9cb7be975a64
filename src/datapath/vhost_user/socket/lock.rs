//! The lock under which a stale socket is replaced.
//!
//! A file of ours that only we can open: every local user may lock the directory itself, as they
//! may open it. It is removed by the process that holds it, before that lets go; so one that gets
//! the lock makes sure that the file still has its name. Where others may write to the directory
//! they may take the name first: a file that is not ours, or that others can open, is not waited
//! for. The lock guards against an accident; without it we go on, and a process gives up waiting
//! once and for all.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use base::limits::SOCKET_LOCK_WAIT;
use sys::{group, unix_socket};

/// The lock's file in the directory of a socket.
const NAME: &str = ".vioswitch.lock";

/// A lock was not to be had, which was said.
static GIVEN_UP: AtomicBool = AtomicBool::new(false);

/// The lock, until it is dropped.
#[derive(Debug)]
pub(super) struct Lock {
    path: PathBuf,
    _file: File,
}

impl Lock {
    /// Locks `directory`, which must lead to the same one until the lock is dropped. `named` is for
    /// the log.
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
        // Fails only if it is gone.
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
            // The one who had it may have removed it: then the lock is that of no name.
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

/// Opens what is there, or a new file: no link, and nothing that is waited for.
fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)
}
