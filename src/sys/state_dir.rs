//! A directory of small files that outlive the process, each replaced as a whole.
//!
//! A file is written beside its place and synchronized, then takes the place, and the directory is
//! synchronized: whenever the process or the machine dies, either the old or the new content is
//! there. One process has the directory at a time.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::unix_socket::try_lock;

/// Held by the process that has the directory.
const LOCK: &str = "lock";

/// The directory, for as long as this lives.
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
    /// For its lock, which ends with the process however that ends.
    _lock: File,
}

/// Why what stands in a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// It is longer than it may be, or no regular file.
    #[error("{0}")]
    Foreign(&'static str),
    /// It cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// New content on its way to its place.
#[must_use = "it is not in its place before it is committed"]
#[derive(Debug)]
pub struct Prepared {
    directory: PathBuf,
    from: PathBuf,
    to: PathBuf,
}

impl StateDir {
    /// Takes the directory, which is made if only it itself is missing.
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

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What stands in a file of at most `max` bytes; nothing if there is none.
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

    /// Writes new content beside its place. What can fail for want of room fails here.
    pub fn prepare(&self, name: &str, content: &[u8]) -> io::Result<Prepared> {
        let from = self.path.join(format!("{name}.new"));
        let mut file = options().create(true).write(true).truncate(true).open(&from)?;
        file.write_all(content)?;
        file.sync_all()?;
        Ok(Prepared { directory: self.path.clone(), from, to: self.path.join(name) })
    }

    /// Takes a file away for good.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        match fs::remove_file(self.path.join(name)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => synchronize(&self.path),
        }
    }

    /// Puts a file of no use aside, in the place of one that was put there before.
    pub fn put_aside(&self, name: &str) -> io::Result<PathBuf> {
        let to = self.path.join(format!("{name}.damaged"));
        fs::rename(self.path.join(name), &to)?;
        synchronize(&self.path)?;
        Ok(to)
    }
}

impl Prepared {
    /// Puts it in its place. When this returns it stays there, whatever happens.
    pub fn commit(self) -> io::Result<()> {
        fs::rename(&self.from, &self.to)?;
        synchronize(&self.directory)
    }
}

fn synchronize(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// No other user reads these files, no link leads elsewhere, and no FIFO is waited for.
fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    options
}

/// A number that is another one after each start of the machine.
pub fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory that is gone when the test ends.
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
        assert_eq!(boot_id().unwrap().len(), 36);
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
