//! A directory in which files turn up: what is there, and being woken when that changes.
//!
//! inotify(7) only wakes: who is woken looks at the whole directory, so that nothing depends on
//! what the kernel's queue had room for. Where there is no inotify left
//! (`fs.inotify.max_user_instances`), the directory has to be looked at again and again.
//!
//! Nothing here follows a link, opens a file or waits for one: a name is looked at with lstat(2),
//! in the directory that was opened.

use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, fstat, inotify, openat, statat};
use rustix::io::Errno;

/// A file of the directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// Device and inode.
    pub identity: (u64, u64),
    /// When it was changed last: made, renamed, given another mode or owner.
    pub changed: (i64, i64),
    /// Whose it is.
    pub uid: u32,
    /// It is a socket; not a link to one.
    pub is_socket: bool,
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

    /// Takes what happened so far: a look at the directory comes after this. Some may be left,
    /// which is only another look.
    pub fn take_events(&self) {
        let Some(events) = &self.events else { return };
        let mut buffer = [0u8; 4096];
        for _ in 0..16 {
            if rustix::io::read(events, &mut buffer).is_err() {
                return;
            }
        }
    }
}

impl Look {
    /// The file of this name, if there is one.
    pub fn file(&self, name: &OsString) -> io::Result<Option<Found>> {
        // No file has such a name.
        let Ok(name) = CString::new(name.as_bytes()) else { return Ok(None) };
        match statat(&self.0, &*name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(found(&stat))),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Up to `most` names, and whether there are more.
    pub fn names(&self, most: usize) -> io::Result<(Vec<OsString>, bool)> {
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
            names.push(OsString::from_vec(name.to_vec()));
        }
        Ok((names, false))
    }
}

fn found(stat: &Stat) -> Found {
    Found {
        identity: (stat.st_dev, stat.st_ino),
        changed: (stat.st_ctime, stat.st_ctime_nsec),
        uid: stat.st_uid,
        is_socket: FileType::from_raw_mode(stat.st_mode) == FileType::Socket,
    }
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
    // A directory that is removed while somebody listens in it lives on, and says nothing.
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let gone = WatchFlags::DELETE | WatchFlags::MOVE;
    inotify::add_watch(&events, parent.unwrap_or(Path::new(".")), gone)?;
    Ok(events)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;
    use std::time::{Duration, Instant};

    use crate::sys::poll::{Interest, is_ready_by};

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
        watched.take_events();
        assert!(!happened(0));
        let look = watched.look().unwrap().unwrap();
        let (mut names, more) = look.names(10).unwrap();
        names.sort();
        assert_eq!((names, more), (vec!["l".into(), "s".into()], false));
        assert!(look.names(1).unwrap().1);
        let file = |name: &str| look.file(&name.into()).unwrap();
        assert!(file("s").unwrap().is_socket && !file("l").unwrap().is_socket);
        assert_eq!(file("x"), None);
        drop(look);
        fs::remove_file(path.join("s")).unwrap();
        assert!(happened(5_000));
        fs::remove_file(path.join("l")).unwrap();
        watched.take_events();
        assert!(!happened(0));
        fs::remove_dir(&path).unwrap();
        assert!(happened(5_000));
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
