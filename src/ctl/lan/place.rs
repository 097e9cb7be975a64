//! The directory of this user's switch, and what lies in the directory.
//!
//! Other users may write to /tmp: a directory there must be this user's own, with mode 0700, before
//! any file in the directory is used.

use std::fs::{self, DirBuilder, File, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::failure::Failure;

/// Paths of one user's switch.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) directory: PathBuf,
}

impl Place {
    /// Returns the place of this user: `XDG_RUNTIME_DIR`, otherwise /run/user/UID, otherwise /tmp.
    pub(super) fn of_user() -> Place {
        let uid = rustix::process::getuid().as_raw();
        let given = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let usual = Path::new("/run/user").join(uid.to_string());
        Place::of(uid, given.into_iter().chain([usual]))
    }

    /// Returns the place of a user. After runuser(1) the environment may name the runtime directory
    /// of another user, which does not count.
    fn of(uid: u32, mut runtime: impl Iterator<Item = PathBuf>) -> Place {
        let is_own = |path: &PathBuf| fs::metadata(path).is_ok_and(|found| found.uid() == uid);
        let directory = match runtime.find(|path| path.is_absolute() && is_own(path)) {
            Some(runtime) => runtime.join("vioswitch-lan"),
            None => Path::new("/tmp").join(format!("vioswitch-lan-{uid}")),
        };
        Place { directory }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Returns the control socket of the switch.
    pub(super) fn control(&self) -> PathBuf {
        self.at("control.sock")
    }

    /// Returns the socket of the process that keeps the network.
    pub(super) fn keeper(&self) -> PathBuf {
        self.at("lan.sock")
    }

    /// Returns the directory in which the switch keeps ports.
    pub(super) fn state(&self) -> PathBuf {
        self.at("state")
    }

    /// Returns dnsmasq's file of leases.
    pub(super) fn leases(&self) -> PathBuf {
        self.at("leases")
    }

    /// Returns the directory of the names of virtual machines, which dnsmasq watches.
    pub(super) fn hosts(&self) -> PathBuf {
        self.at("hosts")
    }

    /// Returns the directory of the files that running `lan run` commands have locked.
    fn running(&self) -> PathBuf {
        self.at("running")
    }

    /// Returns the file of the forwards, a line each.
    pub(super) fn forwards(&self) -> PathBuf {
        self.at("forwards")
    }

    /// Returns the log of all programs.
    pub(super) fn log(&self) -> PathBuf {
        self.at("log")
    }

    /// Makes the directory, or checks that an existing directory is this user's alone. Returns true
    /// if the directory is new.
    pub(super) fn make(&self) -> Result<bool, Failure> {
        let path = &self.directory;
        let is_new = match DirBuilder::new().mode(0o700).create(path) {
            Ok(()) => true,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => false,
            Err(error) => return Err(Failure::users_file("make", path, &error)),
        };
        self.check()?;
        for inner in [self.state(), self.hosts(), self.running()] {
            fs::create_dir_all(&inner)
                .map_err(|error| Failure::users_file("make", &inner, &error))?;
        }
        Ok(is_new)
    }

    /// Fails if another user can write to the directory.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let path = &self.directory;
        let found = fs::symlink_metadata(path);
        let found = found.map_err(|error| Failure::users_file("look at", path, &error))?;
        let own = rustix::process::getuid().as_raw();
        match found.is_dir() && found.uid() == own && found.mode() & 0o077 == 0 {
            true => Ok(()),
            false => {
                let path = path.display();
                let text = format!("{path} is not a directory of yours alone (mode 0700)");
                Err(Failure::refused(format!("{text}: remove it, or set XDG_RUNTIME_DIR")))
            }
        }
    }

    /// Locks the directory for as long as the keeper lives; `None` if another process has the lock
    /// or has just removed the directory. systemd-tmpfiles(8) leaves a locked directory alone.
    pub(super) fn lock(&self) -> Result<Option<File>, Failure> {
        let path = &self.directory;
        let directory = match File::open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(|error| Failure::users_file("open", path, &error))?,
        };
        match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(same_file(directory.metadata(), path).then_some(directory)),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(Failure::users_file("lock", path, &error.into())),
        }
    }

    /// Locks the name of a virtual machine until the file is closed. Fails if another command runs
    /// a machine of this name: both would share a port, and the first to end would delete the port.
    pub(super) fn lock_name(&self, name: &str) -> Result<File, Failure> {
        let path = self.running().join(name);
        let cannot = |error| Failure::users_file("lock", &path, &error);
        let file = File::options().create(true).append(true).open(&path).map_err(cannot)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(file),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(Failure::refused(format!(
                "'{name}' runs already: each machine needs a name of its own"
            ))),
            Err(error) => Err(cannot(error.into())),
        }
    }

    /// Removes the directory with all that is in the directory. The caller has the lock.
    pub(super) fn remove(&self) -> Result<(), Failure> {
        match fs::remove_dir_all(&self.directory) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(Failure::users_file("remove", &self.directory, &error))
            }
            _ => Ok(()),
        }
    }

    /// Removes all that is in the directory but the keeper's socket. The caller has the lock.
    pub(super) fn clear(&self) -> Result<(), Failure> {
        let cannot = |error| Failure::users_file("remove files of", &self.directory, &error);
        for entry in fs::read_dir(&self.directory).map_err(cannot)? {
            let path = entry.map_err(cannot)?.path();
            let removed = match path {
                _ if path == self.keeper() => Ok(()),
                _ if path.is_dir() => fs::remove_dir_all(&path),
                _ => fs::remove_file(&path),
            };
            removed.map_err(cannot)?;
        }
        Ok(())
    }
}

/// True if this file is at the path.
pub(super) fn same_file(file: io::Result<Metadata>, path: &Path) -> bool {
    let identity = |found: io::Result<Metadata>| found.ok().map(|found| (found.dev(), found.ino()));
    let (own, there) = (identity(file), identity(fs::symlink_metadata(path)));
    own.is_some() && own == there
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_machine_at_a_time() {
        let directory = std::env::temp_dir().join(format!("vioswitchctl-n-{}", std::process::id()));
        let place = Place { directory };
        place.make().unwrap();
        let lock = place.lock_name("vm1").unwrap();
        let told = place.lock_name("vm1").unwrap_err().text;
        assert_eq!(told, "'vm1' runs already: each machine needs a name of its own");
        place.lock_name("vm2").unwrap();
        drop(lock);
        place.lock_name("vm1").unwrap();
        place.remove().unwrap();
    }

    #[test]
    fn the_runtime_directory_of_another_user_does_not_count() {
        let own = std::env::temp_dir().join(format!("vioswitchctl-place-{}", std::process::id()));
        fs::create_dir_all(&own).unwrap();
        let uid = fs::metadata(&own).unwrap().uid();
        let place = |uid, path: &Path| Place::of(uid, [path.to_owned()].into_iter()).directory;
        assert_eq!(place(uid, &own), own.join("vioswitch-lan"));
        assert_eq!(place(uid + 1, &own), Path::new(&format!("/tmp/vioswitch-lan-{}", uid + 1)));
        let more = [PathBuf::from("/nowhere"), own.clone()].into_iter();
        assert_eq!(Place::of(uid, more).directory, own.join("vioswitch-lan"));
        fs::remove_dir_all(&own).unwrap();
        assert_eq!(place(uid, &own), Path::new(&format!("/tmp/vioswitch-lan-{uid}")));
    }
}
