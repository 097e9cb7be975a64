//! A directory in which files appear: what is there, and being woken when that changes.
//!
//! inotify(7) only wakes: who is woken looks at the whole directory, so that nothing depends on
//! what the kernel's queue had room for. Where there is no inotify left
//! (`fs.inotify.max_user_instances`), the directory has to be looked at again and again.
//!
//! Nothing here follows a link, opens a file or waits for one. What the directory says is no socket
//! is not asked about: a user can mount FUSE over a directory or a plain file of his, and root then
//! gets EACCES there, or no answer. A name that may be a socket's is looked at with statx(2), which
//! asks no file system's server; an error is that file's alone.

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

/// Events that are taken before a look, at most.
const MAX_EVENTS: usize = 4096;

/// A file of the directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// Device and inode.
    pub identity: (u64, u64),
    /// When it was changed last: made, renamed, given another mode or owner.
    pub changed: (i64, i64),
    /// What it is.
    pub kind: Kind,
}

/// What a file of the directory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A socket, not a link to one, of this user, which has no other name.
    Socket(u32),
    /// A socket of this user with several names. A hard link gives somebody else's socket a name
    /// here, where `fs.protected_hardlinks` permits that.
    LinkedSocket(u32),
    /// Something else.
    Other,
    /// It could not be looked at, for this error number.
    Unseen(i32),
}

/// A name in the directory, with what that says of it.
#[derive(Debug)]
pub struct Name {
    /// The name.
    pub name: OsString,
    kind: FileType,
    inode: u64,
}

/// A directory that is watched. It is not kept open: the kernel would not say that it was removed.
#[derive(Debug)]
pub struct WatchedDir {
    path: PathBuf,
    identity: (u64, u64),
    events: Option<OwnedFd>,
}

/// The same for one look.
#[derive(Debug)]
pub struct Look(OwnedFd);

/// What is wrong with a directory in which others make files.
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
    /// Opens and watches it.
    pub fn open(path: &Path) -> io::Result<WatchedDir> {
        let (handle, identity) = enter(path)?;
        let events = watch(path, &handle).inspect_err(|error| {
            log::warn!("directory {path:?} is looked at again and again, as inotify: {error}");
        });
        Ok(WatchedDir { path: path.to_owned(), identity, events: events.ok() })
    }

    /// Opens it for a look; nothing if its path leads elsewhere by now.
    pub fn look(&self) -> io::Result<Option<Look>> {
        let (handle, identity) = enter(&self.path)?;
        Ok((identity == self.identity).then_some(Look(handle)))
    }

    /// What becomes readable when something happens in it, if the kernel says so.
    pub fn events(&self) -> Option<BorrowedFd<'_>> {
        self.events.as_ref().map(AsFd::as_fd)
    }

    /// Takes the events so far: a look at the directory comes after this. Some may be left, which
    /// is only another look. Returns false if the kernel watches the directory no longer: it was
    /// removed, and one made anew may have its number.
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
    /// The file of this name, if there is one.
    pub fn file(&self, name: &OsStr) -> Option<Found> {
        // No file has such a name.
        let name = CString::new(name.as_bytes()).ok()?;
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | DONT_SYNC;
        match statx(&self.0, &*name, flags, StatxFlags::BASIC_STATS) {
            Ok(stat) => Some(found(&stat)),
            Err(Errno::NOENT) => None,
            Err(error) => Some(Found::unknown(0, Kind::Unseen(error.raw_os_error()))),
        }
    }

    /// The same of a name that was read.
    pub fn file_of(&self, name: &Name) -> Option<Found> {
        match name.kind {
            FileType::Socket | FileType::Unknown => self.file(&name.name),
            _ => Some(Found::unknown(name.inode, Kind::Other)),
        }
    }

    /// Up to `most` names, and whether there are more.
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
    /// A file that was not looked at.
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

/// Opens a directory in which files are safe.
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

    /// Many file systems give a new directory the number of the one that was just removed.
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
