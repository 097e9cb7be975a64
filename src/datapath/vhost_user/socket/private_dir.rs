//! The directory in which a socket is made before it gets its name, and the file behind a socket.
//!
//! Where other users may write to the directory, a path may lead to another file at every use. So
//! this code uses no path twice: it opens directories and sockets once, with `O_PATH` (which opens
//! no device and never waits), and does everything else through this handle.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use super::error::{SocketError, failed};
use base::limits::MAX_SOCKET_PATH;
use sys::fs::open_path;
use sys::group;

/// Who may connect to a listening socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// Permission bits; connecting needs write permission, unix(7).
    pub mode: u32,
    /// Group of the socket; `None` leaves the process's own group.
    pub group: Option<u32>,
}

/// Device and inode of a socket's file. No other file has this identity while the socket is open:
/// the socket keeps the inode, even without a name.
pub type Identity = (u64, u64);

/// Returns a path to the file that `handle` has open, wherever the file's own path leads by now.
pub(super) fn by_handle(handle: &File) -> PathBuf {
    format!("/proc/self/fd/{}", handle.as_raw_fd()).into()
}

/// A directory in which only this user may write, for one socket; removed on drop.
#[derive(Debug)]
pub(super) struct PrivateDir {
    path: PathBuf,
    /// Path of the socket until the socket is complete, by way of `_handle`.
    pub(super) socket: PathBuf,
    _handle: File,
}

impl PrivateDir {
    /// Makes a directory inside `parent` for a socket that will be called `name`.
    pub(super) fn make(parent: &Path, name: &OsStr) -> io::Result<PrivateDir> {
        let pid = std::process::id();
        let path = parent.join(format!(".{}.{pid}", name.to_string_lossy()));
        // A killed process with an equal process number may have left a file of this name.
        if fs::symlink_metadata(&path).is_ok_and(|left| left.file_type().is_socket()) {
            let _ = fs::remove_file(&path);
        }
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let handle = open_path(&path, false)?;
        let found = handle.metadata()?;
        if !found.is_dir() || found.uid() != group::own_user() || found.mode() & 0o077 != 0 {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let inside = by_handle(&handle);
        // The name is for ss(8); "socket" serves where a socket's address is too short for the
        // name.
        let named =
            Some(inside.join(name)).filter(|named| named.as_os_str().len() <= MAX_SOCKET_PATH);
        let socket = named.unwrap_or_else(|| inside.join("socket"));
        let made = PrivateDir { path, socket, _handle: handle };
        made.clear();
        Ok(made)
    }

    fn clear(&self) {
        let _ = fs::remove_file(&self.socket);
    }
}

impl Drop for PrivateDir {
    fn drop(&mut self) {
        self.clear();
        // rmdir(2) removes nothing but an empty directory, whoever owns the directory by now.
        let _ = fs::remove_dir(&self.path);
    }
}

/// The file of a socket.
#[derive(Debug)]
pub(super) struct SocketFile {
    handle: File,
    pub(super) identity: Identity,
    /// User who owns the file.
    pub(super) owner: u32,
}

impl SocketFile {
    /// Opens the socket's file at `path`; fails on other files and on links.
    pub(super) fn open(path: &Path) -> io::Result<SocketFile> {
        let handle = open_path(path, false)?;
        let found = handle.metadata()?;
        if !found.file_type().is_socket() {
            let code = if found.is_symlink() { libc::ELOOP } else { libc::ENOTSOCK };
            return Err(io::Error::from_raw_os_error(code));
        }
        Ok(SocketFile { handle, identity: (found.dev(), found.ino()), owner: found.uid() })
    }

    /// Opens the socket's file as [`open`](Self::open) does; fails on a file of a server, such as
    /// of FUSE or NFS, for which the kernel may wait at each use. The call itself may wait.
    pub(super) fn open_local(path: &Path) -> io::Result<SocketFile> {
        let file = SocketFile::open(path)?;
        match sys::fs::has_server(&file.handle)? {
            true => Err(io::Error::other("its file system waits for a server")),
            false => Ok(file),
        }
    }

    /// Returns a path to the file, wherever its own path leads by now.
    pub(super) fn path(&self) -> PathBuf {
        by_handle(&self.handle)
    }

    /// Sets group and mode of the open file. `path`, the operator's path, only serves the text of
    /// an error.
    pub(super) fn grant(&self, access: Access, path: &Path) -> Result<(), SocketError> {
        let file = self.path();
        chown(&file, None, access.group).map_err(failed("set the group of socket", path))?;
        fs::set_permissions(&file, Permissions::from_mode(access.mode))
            .map_err(failed("set the mode of socket", path))
    }
}
