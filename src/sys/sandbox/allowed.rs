//! The resources and actions that a switch needs after its start, which the sandbox leaves.

use std::path::PathBuf;

/// The purpose of a directory or file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Use {
    /// The switch makes sockets there, and their lock files.
    Sockets,
    /// The switch looks for other processes' sockets there.
    Look,
    /// The switch saves changes there.
    State,
    /// The switch reads the file or directory.
    Read,
    /// The switch opens the device for reading, writing and ioctl(2).
    Device,
}

/// The resources and actions that a switch needs after its start.
#[derive(Debug, Clone, Default)]
pub struct Allowed {
    /// Files and directories, each with its purpose.
    pub paths: Vec<(PathBuf, Use)>,
    /// The switch may open TAPs.
    pub taps: bool,
    /// The switch may open XDP uplinks.
    pub xdps: bool,
    /// The switch may give sockets to groups.
    pub groups: bool,
    /// The switch may connect to sockets, also to sockets of other users.
    pub connects: bool,
    /// The TCP port at which the switch may listen.
    pub tcp: Option<u16>,
}
