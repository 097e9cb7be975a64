//! Limits the files and directories that the switch may open once it is confined, by Landlock
//! (landlock(7)).
//!
//! A rule covers an existing directory or file, and all files below a directory, by whatever path.
//! A path that does not exist yet is covered by a rule for the nearest existing directory above it.
//! A directory that is removed and made again is another directory. Landlock does not limit open
//! descriptors, `stat`, and connecting to a socket, which Linux 7.1 and newer can limit.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, NetPort, PathBeneath,
    Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError,
};

use super::allowed::{Allowed, Use};
use crate::fs::open_path;

/// The newest version whose rights are handled: all rights of Linux 6.18.
const NEWEST: ABI = ABI::V6;

impl Use {
    fn rights(self) -> BitFlags<AccessFs> {
        let read = AccessFs::ReadFile | AccessFs::ReadDir;
        let files = read
            | AccessFs::WriteFile
            | AccessFs::Truncate
            | AccessFs::MakeReg
            | AccessFs::RemoveFile;
        match self {
            Use::Sockets => {
                let socket = AccessFs::MakeSock | AccessFs::MakeDir | AccessFs::RemoveDir;
                // `Refer` permits the link from the private directory to the socket's path.
                files | socket | AccessFs::Refer
            }
            Use::Look => AccessFs::ReadDir.into(),
            Use::State => files,
            Use::Read => read,
            Use::Device => AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev,
        }
    }

    /// Returns true if a path of this purpose may appear after the start.
    fn may_come(self) -> bool {
        matches!(self, Use::Sockets | Use::Look)
    }
}

/// A rule in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedPath {
    /// Path of the rule.
    pub(crate) path: PathBuf,
    /// Purpose of the rule.
    pub(crate) purpose: Use,
    is_directory: bool,
    identity: (u64, u64),
}

impl AllowedPath {
    fn rights(&self) -> BitFlags<AccessFs> {
        let rights = self.purpose.rights();
        if self.is_directory { rights } else { rights & AccessFs::from_file(NEWEST) }
    }
}

/// The ruleset for all threads, and the rules in it.
pub struct Files {
    pub(crate) ruleset: Option<OwnedFd>,
    pub(crate) allowed_paths: Vec<AllowedPath>,
}

impl Files {
    /// Makes the rules for `allowed`; no ruleset on a kernel without Landlock.
    pub(crate) fn new(allowed: &Allowed) -> Result<Files, RulesetError> {
        let mut ruleset = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(NEWEST))?
            .handle_access(AccessNet::from_all(NEWEST))?
            .create()?;
        let mut allowed_paths = Vec::new();
        for (path, purpose) in &allowed.paths {
            let Some((allowed_path, handle)) = find(path, *purpose) else { continue };
            if !allowed_paths.contains(&allowed_path) {
                ruleset = ruleset.add_rule(PathBeneath::new(handle, allowed_path.rights()))?;
                allowed_paths.push(allowed_path);
            }
        }
        if let Some(port) = allowed.tcp {
            ruleset = ruleset.add_rule(NetPort::new(port, AccessNet::BindTcp))?;
        }
        Ok(Files { ruleset: ruleset.into(), allowed_paths })
    }
}

/// Finds the path, or the nearest directory above it that can be opened and is not the root
/// directory; returns the rule, and the handle for the rule.
fn find(path: &Path, purpose: Use) -> Option<(AllowedPath, File)> {
    let mut path = path;
    loop {
        // Reads the metadata of the handle, because another file may take the name meanwhile.
        let opened = open_path(path, true).and_then(|file| Ok((file.metadata()?, file)));
        if let Ok((found, handle)) = opened {
            let identity = (found.dev(), found.ino());
            let is_directory = found.is_dir();
            let allowed_path =
                AllowedPath { path: path.to_owned(), purpose, is_directory, identity };
            return Some((allowed_path, handle));
        }
        path = path.parent().filter(|above| purpose.may_come() && above.parent().is_some())?;
    }
}

/// Returns true if sockets may be made in `directory`, found by device and inode as in the kernel.
pub fn covers(allowed_paths: &[AllowedPath], directory: &Path) -> bool {
    let Ok(mut path) = directory.canonicalize() else { return false };
    loop {
        let found = fs::metadata(&path).map(|found| (found.dev(), found.ino()));
        let is_here =
            |rule: &&AllowedPath| found.as_ref().is_ok_and(|found| *found == rule.identity);
        let mut sockets = allowed_paths.iter().filter(|rule| rule.purpose == Use::Sockets);
        if sockets.any(|rule| is_here(&rule)) {
            return true;
        }
        if !path.pop() {
            return false;
        }
    }
}
