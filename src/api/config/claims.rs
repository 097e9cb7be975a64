//! Values that only one entry may have.

use std::path::{Path, PathBuf};

use super::raw::Location;
use sys::fs::directory_of;

base::words! {
    /// Kinds of values that only one entry may have.
    Shared {
        /// Name of the entry.
        Name "name",
        /// Location of the entry's socket in the file system.
        Socket "socket",
        /// Interface of an uplink.
        Interface "interface",
        /// Static address.
        Mac "mac",
    }
}

/// A value that an entry claims for itself.
#[derive(Debug, Clone)]
pub(super) struct Claim {
    pub(super) what: Shared,
    pub(super) value: String,
    /// Scope in which the value belongs to the entry alone; empty for all scopes.
    pub(super) scope: PathBuf,
    pub(super) at: Location,
}

/// Returns the place of a socket: two spellings of a path (`/run//a`, `/run/./a`, `/var/run/a`) are
/// one socket. If the directory does not exist, only the spelling can be compared. The function
/// asks the directory's file system, which may never answer.
pub fn place(path: &Path) -> PathBuf {
    let spelled: PathBuf = path.components().collect();
    match (directory_of(&spelled).canonicalize(), spelled.file_name()) {
        (Ok(directory), Some(name)) => directory.join(name),
        _ => spelled,
    }
}

/// Function from the path of a socket to the socket's place: [`place`], or a look-up of known
/// places.
pub type Places<'a> = &'a dyn Fn(&Path) -> PathBuf;
