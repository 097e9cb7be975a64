//! Values that only one entry may have.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::raw::Location;
use base::frame::MacAddr;
use switch::VlanId;
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

/// The part of the switch, or of the host, in which a value belongs to one entry alone.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Segment {
    /// The whole switch: a value that is no address.
    Everywhere,
    /// A bridge, and the VLAN of a port's untagged frames.
    Vlan(Arc<str>, VlanId),
    /// A trunk without untagged frames, named by its port. No other port is in the segment.
    Trunk(Arc<str>),
    /// A network namespace, in which an interface's name belongs to one port.
    Namespace(Arc<str>),
}

/// A value of an entry that no other entry may have.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Claimed {
    /// The place of a socket: [`place`].
    Socket(PathBuf),
    /// An interface, in its network namespace.
    Interface(Segment, String),
    /// A static address, in the segment of the port.
    Address(Segment, MacAddr),
}

impl fmt::Display for Claimed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Claimed::Socket(place) => write!(f, "{} {}", Shared::Socket, place.display()),
            Claimed::Interface(_, name) => write!(f, "{} {name}", Shared::Interface),
            Claimed::Address(_, mac) => write!(f, "{} {mac}", Shared::Mac),
        }
    }
}

/// A setting with a value that only one entry of a segment may have.
#[derive(Debug, Clone)]
pub(super) struct Claim {
    pub(super) what: Shared,
    pub(super) value: String,
    /// Segment in which the value belongs to the entry alone.
    pub(super) segment: Segment,
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
