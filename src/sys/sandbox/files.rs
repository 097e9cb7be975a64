//! Which files and directories the switch may open once it is confined, by Landlock, landlock(7).
//!
//! A rule is about a directory or a file that exists, and what is below it, by whatever path. What
//! is not there yet is served by the nearest directory above it; one that is removed and made anew
//! is another one. Landlock does not concern what is open already, `stat`, and connecting to a
//! socket, which Linux 7.1 and newer could restrict.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, NetPort, PathBeneath,
    Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError,
};

use super::Allowed;
use crate::fs::open_path;

/// The newest version whose rights are handled: all that Linux 6.18 has.
const NEWEST: ABI = ABI::V6;

/// What a directory or file is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Use {
    /// Sockets of ours appear there, and the lock beside them.
    Sockets,
    /// Others' sockets are looked for there.
    Look,
    /// What was changed is kept there.
    State,
    /// It is read.
    Read,
    /// A device, which is opened for reading, writing and ioctl(2).
    Device,
}

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
                // `Refer`: from the private directory to its place.
                files | socket | AccessFs::Refer
            }
            Use::Look => AccessFs::ReadDir.into(),
            Use::State => files,
            Use::Read => read,
            Use::Device => AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev,
        }
    }

    /// True if it may appear after the start.
    fn may_come(self) -> bool {
        matches!(self, Use::Sockets | Use::Look)
    }
}

/// A rule that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// What it is about.
    pub path: PathBuf,
    /// What for.
    pub purpose: Use,
    is_directory: bool,
    identity: (u64, u64),
}

impl Place {
    fn rights(&self) -> BitFlags<AccessFs> {
        let rights = self.purpose.rights();
        if self.is_directory { rights } else { rights & AccessFs::from_file(NEWEST) }
    }
}

/// A ruleset for each thread, and what it covers.
pub struct Files {
    pub ruleset: Option<OwnedFd>,
    pub places: Vec<Place>,
}

impl Files {
    /// Rules for what is allowed; none on a kernel without Landlock.
    pub fn new(allowed: &Allowed) -> Result<Files, RulesetError> {
        let mut ruleset = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(NEWEST))?
            .handle_access(AccessNet::from_all(NEWEST))?
            .create()?;
        let mut places = Vec::new();
        for (path, purpose) in &allowed.paths {
            let Some((place, handle)) = find(path, *purpose) else { continue };
            if !places.contains(&place) {
                ruleset = ruleset.add_rule(PathBeneath::new(handle, place.rights()))?;
                places.push(place);
            }
        }
        if let Some(port) = allowed.tcp {
            ruleset = ruleset.add_rule(NetPort::new(port, AccessNet::BindTcp))?;
        }
        Ok(Files { ruleset: ruleset.into(), places })
    }
}

/// The path, or the nearest directory above it that can be opened and is not the root of all; and
/// a handle for its rule, so that what is listed has one.
fn find(path: &Path, purpose: Use) -> Option<(Place, File)> {
    let mut path = path;
    loop {
        // Of the handle: another file may take the name meanwhile.
        let opened = open_path(path, true).and_then(|file| Ok((file.metadata()?, file)));
        if let Ok((found, handle)) = opened {
            let identity = (found.dev(), found.ino());
            let is_directory = found.is_dir();
            let place = Place { path: path.to_owned(), purpose, is_directory, identity };
            return Some((place, handle));
        }
        path = path.parent().filter(|above| purpose.may_come() && above.parent().is_some())?;
    }
}

/// True if sockets may be made in `directory`, which is looked up as the kernel does.
pub fn covers(places: &[Place], directory: &Path) -> bool {
    let Ok(mut path) = directory.canonicalize() else { return false };
    loop {
        let found = fs::metadata(&path).map(|found| (found.dev(), found.ino()));
        let is_here = |place: &&Place| found.as_ref().is_ok_and(|found| *found == place.identity);
        let mut sockets = places.iter().filter(|place| place.purpose == Use::Sockets);
        if sockets.any(|place| is_here(&place)) {
            return true;
        }
        if !path.pop() {
            return false;
        }
    }
}
