//! A directory of small files that outlive the process, each replaced as a whole.
//!
//! A new file is written beside the old file and synchronized, then renamed over it, and the
//! directory is synchronized: whenever the process or the machine dies, the file has either its old
//! or its new content. One process uses the directory at a time.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::unix_socket::try_lock;

/// Name of the lock file, which the process that uses the directory locks.
const LOCK: &str = "lock";

/// A state directory, locked until the value is dropped.
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
    /// The lock file; the kernel releases the lock when the process ends in any way.
    _lock: File,
}

/// The reason why a file's content cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// The file is too long, or no regular file.
    #[error("{0}")]
    Foreign(&'static str),
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// New content of a file, written but not yet renamed over the old file.
#[must_use = "it is not in its place before it is committed"]
#[derive(Debug)]
pub struct Prepared {
    directory: PathBuf,
    from: PathBuf,
    to: PathBuf,
}

impl StateDir {
    /// Locks the directory, and makes it if its parent exists.
    pub fn open(path: &Path) -> io::Result<StateDir> {
        match DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let lock = options().create(true).write(true).open(path.join(LOCK))?;
        match try_lock(lock.as_fd())? {
            true => Ok(StateDir { path: path.to_owned(), _lock: lock }),
            false => Err(io::Error::other("another process has it, with the same --state-dir")),
        }
    }

    /// Returns the directory's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the content of a file of at most `max` bytes; `None` if there is no file.
    pub fn read(&self, name: &str, max: u64) -> Result<Option<Vec<u8>>, Unreadable> {
        let file = match options().read(true).open(self.path.join(name)) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {
                return Err(Unreadable::Foreign("it is a symbolic link"));
            }
            Err(error) => return Err(error.into()),
        };
        if !file.metadata()?.is_file() {
            return Err(Unreadable::Foreign("it is no regular file"));
        }
        let mut bytes = Vec::new();
        file.take(max + 1).read_to_end(&mut bytes)?;
        match bytes.len() as u64 > max {
            true => Err(Unreadable::Foreign("it is longer than it may be")),
            false => Ok(Some(bytes)),
        }
    }

    /// Writes new content beside the old file. Errors for lack of room come here, not from
    /// [`Prepared::commit`].
    pub fn prepare(&self, name: &str, content: &[u8]) -> io::Result<Prepared> {
        let from = self.path.join(format!("{name}.new"));
        let mut file = options().create(true).write(true).truncate(true).open(&from)?;
        file.write_all(content)?;
        file.sync_all()?;
        Ok(Prepared { directory: self.path.clone(), from, to: self.path.join(name) })
    }

    /// Deletes a file, durably; a missing file is no error.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        match fs::remove_file(self.path.join(name)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => synchronize(&self.path),
        }
    }

    /// Renames an unusable file to `NAME.damaged`, over an earlier one; returns the new path.
    pub fn put_aside(&self, name: &str) -> io::Result<PathBuf> {
        let to = self.path.join(format!("{name}.damaged"));
        fs::rename(self.path.join(name), &to)?;
        synchronize(&self.path)?;
        Ok(to)
    }
}

impl Prepared {
    /// Renames the new content over the old file. After success the new content is durable.
    pub fn commit(self) -> io::Result<()> {
        fs::rename(&self.from, &self.to)?;
        synchronize(&self.directory)
    }
}

fn synchronize(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// Returns options by which no other user can read a file, no link is followed, and no FIFO is
/// waited for.
fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory that is deleted when the test ends.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let name = format!("vioswitch-state-{}-{name}", std::process::id());
            Scratch(std::env::temp_dir().join(name))
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn content_is_replaced_as_a_whole() {
        let scratch = Scratch::new("whole");
        let dir = StateDir::open(&scratch.0).unwrap();
        assert_eq!(dir.read("a", 10).unwrap(), None);
        dir.prepare("a", b"one").unwrap().commit().unwrap();
        let half = dir.prepare("a", b"two").unwrap();
        assert_eq!(dir.read("a", 10).unwrap().unwrap(), b"one", "it was not committed");
        half.commit().unwrap();
        assert_eq!(dir.read("a", 10).unwrap().unwrap(), b"two");
        dir.remove("a").unwrap();
        dir.remove("a").unwrap();
        assert_eq!(dir.read("a", 10).unwrap(), None);
    }

    #[test]
    fn one_process_has_it() {
        let scratch = Scratch::new("lock");
        let first = StateDir::open(&scratch.0).unwrap();
        let error = StateDir::open(&scratch.0).unwrap_err().to_string();
        assert!(error.contains("another process has it"), "{error}");
        drop(first);
        StateDir::open(&scratch.0).unwrap();
        assert!(StateDir::open(&scratch.0.join("no/such")).is_err());
        assert!(StateDir::open(Path::new("/dev/null")).is_err());
    }

    #[test]
    fn what_is_of_no_use_is_put_aside() {
        let scratch = Scratch::new("aside");
        let dir = StateDir::open(&scratch.0).unwrap();
        let at = |name: &str| scratch.0.join(name);
        fs::write(at("a"), "12345678901").unwrap();
        assert!(matches!(dir.read("a", 10), Err(Unreadable::Foreign(_))));
        assert_eq!(dir.put_aside("a").unwrap(), at("a.damaged"));
        std::os::unix::fs::symlink("/dev/zero", at("a")).unwrap();
        assert!(matches!(dir.read("a", 10), Err(Unreadable::Foreign(_))));
        dir.put_aside("a").unwrap();
        fs::create_dir(at("b")).unwrap();
        assert!(matches!(dir.read("b", 10), Err(Unreadable::Foreign(_))));
        assert!(fs::symlink_metadata(at("a.damaged")).unwrap().is_symlink());
    }
}
