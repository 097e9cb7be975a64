//! Watches a directory in which files appear: lists its files, and wakes a thread when they change.
//!
//! inotify(7) only wakes the thread, which then lists the whole directory, so that a full event
//! queue does no harm. If no inotify instance is left (`fs.inotify.max_user_instances`), the caller
//! lists the directory periodically.
//!
//! This module follows no link, opens no file of the directory and waits for none. A name that the
//! directory entry says is no socket is not examined: a user can mount FUSE over the
//! user's own directory or plain file, and root then gets EACCES there, or no answer. A name that
//! may be a socket's is examined with statx(2), which asks no file system's server. An error of
//! statx(2) concerns only the name in question.

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, Statx, StatxFlags, fstat, inotify, makedev, openat,
    statat, statx,
};
use rustix::io::Errno;

use super::fs::{DONT_SYNC, directory_of};

/// Most events that are taken before the directory is listed.
const MAX_EVENTS: usize = 4096;

/// A file in the directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// Device and inode.
    pub identity: (u64, u64),
    /// Time of the last change (ctime) in seconds and nanoseconds: created, renamed, new mode or
    /// owner.
    pub changed: (i64, i64),
    /// Kind of the file.
    pub kind: Kind,
}

/// The kind of a file in the directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A socket with a single hard link, owned by the user with this id. A symbolic link to a
    /// socket is `Other`.
    Socket(u32),
    /// A socket with several hard links, owned by the user with this id. Another user may have
    /// linked the owner's socket into this directory, if `fs.protected_hardlinks` permits that.
    LinkedSocket(u32),
    /// Any other file.
    Other,
    /// The file could not be examined, with this errno.
    Unseen(i32),
}

/// A name in the directory, with the type and inode number of the directory entry.
#[derive(Debug)]
pub struct Name {
    /// The name.
    pub name: OsString,
    kind: FileType,
    inode: u64,
}

/// A watched directory. The directory is not kept open: the kernel would not report its removal.
#[derive(Debug)]
pub struct WatchedDir {
    path: PathBuf,
    identity: (u64, u64),
    events: Option<OwnedFd>,
}

/// An open directory, for one listing.
#[derive(Debug)]
pub struct Look(OwnedFd);

/// Returns the fault of a directory in which other users create files; `None` for a safe directory.
pub fn fault(path: &Path) -> io::Result<Option<&'static str>> {
    let stat = statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(match FileType::from_raw_mode(stat.st_mode) {
        FileType::Symlink => Some("is a symbolic link"),
        FileType::Directory if stat.st_mode & 0o1002 == 0o002 => {
            Some("may be written to by everybody, and anybody remove others' files there")
        }
        FileType::Directory => None,
        _ => Some("is not a directory"),
    })
}

impl WatchedDir {
    /// Opens and watches a directory.
    pub fn open(path: &Path) -> io::Result<WatchedDir> {
        let (handle, identity) = enter(path)?;
        let events = watch(path, &handle).inspect_err(|error| {
            log::warn!("cannot watch directory {path:?} by inotify, so polls it: {error}");
        });
        Ok(WatchedDir { path: path.to_owned(), identity, events: events.ok() })
    }

    /// Opens the directory for a listing; `None` if the path leads to another directory now.
    pub fn look(&self) -> io::Result<Option<Look>> {
        let (handle, identity) = enter(&self.path)?;
        Ok((identity == self.identity).then_some(Look(handle)))
    }

    /// Returns the descriptor that becomes readable after a change; `None` without inotify.
    pub fn events(&self) -> Option<BorrowedFd<'_>> {
        self.events.as_ref().map(AsFd::as_fd)
    }

    /// Takes the events so far; the caller lists the directory afterwards. Events may be left, and
    /// then cause only another listing. Returns false if the kernel lost events, or no longer
    /// watches the directory: the directory was removed, and a new directory may have its inode
    /// number.
    #[must_use]
    pub fn take_events(&self) -> bool {
        let Some(events) = &self.events else { return true };
        let ends = inotify::ReadFlags::IGNORED | inotify::ReadFlags::QUEUE_OVERFLOW;
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(events, &mut buffer);
        let mut is_watched = true;
        for _ in 0..MAX_EVENTS {
            let Ok(event) = reader.next() else { break };
            is_watched &= !event.events().intersects(ends);
        }
        is_watched
    }
}

impl Look {
    /// Returns the file with this name, if there is one.
    pub fn file(&self, name: &OsStr) -> Option<Found> {
        // No file has a name with a NUL.
        let name = CString::new(name.as_bytes()).ok()?;
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | DONT_SYNC;
        match statx(&self.0, &*name, flags, StatxFlags::BASIC_STATS) {
            Ok(stat) => Some(found(&stat)),
            Err(Errno::NOENT) => None,
            Err(error) => Some(Found::unknown(0, Kind::Unseen(error.raw_os_error()))),
        }
    }

    /// Returns the file with a listed name, if there is one. A name that is no socket is not
    /// examined.
    pub fn file_of(&self, name: &Name) -> Option<Found> {
        match name.kind {
            FileType::Socket | FileType::Unknown => self.file(&name.name),
            _ => Some(Found::unknown(name.inode, Kind::Other)),
        }
    }

    /// Returns up to `most` names, and true if there are more.
    pub fn names(&self, most: usize) -> io::Result<(Vec<Name>, bool)> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.0)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            if names.len() == most {
                return Ok((names, true));
            }
            let name = OsString::from_vec(name.to_vec());
            names.push(Name { name, kind: entry.file_type(), inode: entry.ino() });
        }
        Ok((names, false))
    }
}

impl Found {
    /// Makes a file that was not examined.
    fn unknown(inode: u64, kind: Kind) -> Found {
        Found { identity: (0, inode), changed: (0, 0), kind }
    }
}

fn found(stat: &Statx) -> Found {
    let kind = match FileType::from_raw_mode(stat.stx_mode.into()) {
        FileType::Socket if stat.stx_nlink > 1 => Kind::LinkedSocket(stat.stx_uid),
        FileType::Socket => Kind::Socket(stat.stx_uid),
        _ => Kind::Other,
    };
    let identity = (makedev(stat.stx_dev_major, stat.stx_dev_minor), stat.stx_ino);
    Found { identity, changed: (stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec.into()), kind }
}

/// Opens a directory, if it has no [`fault`].
fn enter(path: &Path) -> io::Result<(OwnedFd, (u64, u64))> {
    if let Some(fault) = fault(path)? {
        return Err(io::Error::other(fault));
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let handle = openat(CWD, path, flags, Mode::empty())?;
    let stat = fstat(&handle)?;
    Ok((handle, (stat.st_dev, stat.st_ino)))
}

fn watch(path: &Path, directory: &OwnedFd) -> io::Result<OwnedFd> {
    use inotify::{CreateFlags, WatchFlags};
    let events = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
    let what = WatchFlags::CREATE
        | WatchFlags::DELETE
        | WatchFlags::MOVE
        | WatchFlags::ATTRIB
        | WatchFlags::DELETE_SELF
        | WatchFlags::MOVE_SELF;
    inotify::add_watch(&events, format!("/proc/self/fd/{}", directory.as_raw_fd()), what)?;
    // A directory that is removed while a socket listens in it stays, without an event.
    let gone = WatchFlags::DELETE | WatchFlags::MOVE;
    inotify::add_watch(&events, directory_of(path), gone)?;
    Ok(events)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;
    use std::time::{Duration, Instant};

    use crate::poll::{Interest, is_ready_by};

    fn directory() -> PathBuf {
        let path = std::env::temp_dir().join(format!(
            "vioswitch-watched.{}.{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        path
    }

    #[test]
    fn what_turns_up_is_told_and_what_it_is() {
        let path = directory();
        let watched = WatchedDir::open(&path).unwrap();
        let events = watched.events().expect("inotify");
        let happened = |millis| {
            let end = Instant::now() + Duration::from_millis(millis);
            is_ready_by(events, Interest::Read, end).unwrap()
        };
        assert!(!happened(0));
        let _socket = UnixListener::bind(path.join("s")).unwrap();
        symlink("s", path.join("l")).unwrap();
        assert!(happened(5_000));
        assert!(watched.take_events());
        assert!(!happened(0));
        let look = watched.look().unwrap().unwrap();
        let (mut names, more) = look.names(10).unwrap();
        names.sort_by(|one, other| one.name.cmp(&other.name));
        let is_socket = |name: &Name| matches!(look.file_of(name)?.kind, Kind::Socket(_)).into();
        let seen = |at: usize| (names[at].name.to_str(), is_socket(&names[at]));
        assert_eq!((names.len(), more), (2, false));
        assert_eq!([seen(0), seen(1)], [(Some("l"), Some(false)), (Some("s"), Some(true))]);
        assert!(look.names(1).unwrap().1);
        let kind = |name: &str| look.file(name.as_ref()).map(|file| file.kind);
        assert_eq!(kind("s"), Some(Kind::Socket(rustix::process::geteuid().as_raw())));
        assert_eq!((kind("l"), kind("x")), (Some(Kind::Other), None));
        drop(look);
        fs::remove_file(path.join("s")).unwrap();
        assert!(happened(5_000));
        fs::remove_file(path.join("l")).unwrap();
        assert!(watched.take_events());
        assert!(!happened(0));
        fs::remove_dir(&path).unwrap();
        assert!(happened(5_000));
    }

    /// Many file systems give a new directory the inode number of the directory that was removed
    /// last.
    #[test]
    fn a_directory_that_is_made_anew_at_once_is_another_one() {
        let path = directory();
        for _ in 0..200 {
            let watched = WatchedDir::open(&path).unwrap();
            let events = watched.events().expect("inotify");
            fs::remove_dir(&path).unwrap();
            fs::create_dir(&path).unwrap();
            let end = Instant::now() + Duration::from_secs(5);
            assert!(is_ready_by(events, Interest::Read, end).unwrap());
            assert!(!watched.take_events() || watched.look().unwrap().is_none());
        }
        fs::remove_dir(&path).unwrap();
    }

    #[test]
    fn it_must_be_a_directory_in_which_files_are_safe() {
        let path = directory();
        let mode = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let watched = WatchedDir::open(&path).unwrap();
        assert!(watched.look().unwrap().is_some());
        mode(0o777);
        assert!(WatchedDir::open(&path).is_err() && watched.look().is_err());
        mode(0o1777);
        assert!(watched.look().unwrap().is_some());
        symlink(&path, path.join("link")).unwrap();
        assert!(WatchedDir::open(&path.join("link")).is_err());
        fs::write(path.join("file"), "").unwrap();
        assert!(WatchedDir::open(&path.join("file")).is_err());
        let other = path.with_extension("other");
        fs::rename(&path, &other).unwrap();
        assert!(watched.look().is_err());
        fs::create_dir(&path).unwrap();
        assert!(watched.look().unwrap().is_none());
        for gone in [path, other] {
            fs::remove_dir_all(gone).unwrap();
        }
    }
}
