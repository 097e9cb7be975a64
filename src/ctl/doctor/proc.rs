//! Reads files of `/proc`, each up to a bound, and all files together up to another bound, because
//! the content is up to the processes, which may be hostile.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags, fstat, open, openat2};

use super::facts::Step;

/// Most bytes of one command line that are read. QEMU's command line under libvirt has some 10 KiB.
const MAX_COMMAND_LINE: u64 = 128 << 10;
/// Most words of a command line that are read, and the longest word that counts.
const MAX_WORDS: usize = 1024;
const MAX_WORD: usize = 4096;
/// Most bytes that are read of a file that the kernel writes: about 40,000 mappings.
const MAX_FILE: u64 = 4 << 20;
/// Most bytes that are read of all processes.
const MAX_ALL: u64 = 64 << 20;
/// Most processes that the reader lists.
const MAX_PROCESSES: usize = 16_384;

/// Reads files until the reader has read `MAX_ALL` bytes.
#[derive(Debug)]
pub struct Reader {
    left: u64,
    /// Reason why the reader did not read everything.
    pub(crate) missed: Option<&'static str>,
}

/// The user that a process acts as.
#[derive(Debug, PartialEq, Eq)]
pub struct User {
    pub(crate) uid: u32,
    pub(crate) groups: Vec<u32>,
}

impl Reader {
    pub(crate) fn new() -> Reader {
        Reader { left: MAX_ALL, missed: None }
    }

    /// Returns the beginning of a file, and true if the beginning is the whole file.
    fn beginning(&mut self, pid: i64, name: &str, most: u64) -> Option<(Vec<u8>, bool)> {
        let file = File::open(format!("/proc/{pid}/{name}")).ok()?;
        let most = most.min(self.left);
        let mut bytes = Vec::new();
        // One byte more tells whether the file is longer.
        file.take(most + 1).read_to_end(&mut bytes).ok()?;
        let whole = bytes.len() as u64 <= most;
        bytes.truncate(usize::try_from(most).unwrap_or(usize::MAX));
        self.left -= bytes.len() as u64;
        if self.left == 0 {
            self.missed = Some("some processes: /proc has more text than doctor reads");
        }
        Some((bytes, whole))
    }

    /// Returns a file of at most `MAX_FILE` bytes; `None` for a longer file.
    pub(crate) fn whole(&mut self, pid: i64, name: &str) -> Option<String> {
        let (bytes, whole) = self.beginning(pid, name, MAX_FILE)?;
        whole.then(|| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Returns the first words of a command line.
    pub(crate) fn words(&mut self, pid: i64) -> Vec<String> {
        let (bytes, _) = self.beginning(pid, "cmdline", MAX_COMMAND_LINE).unwrap_or_default();
        let words = bytes.split(|byte| *byte == 0).take(MAX_WORDS);
        let words = words.filter(|word| word.len() <= MAX_WORD);
        words.map(|word| String::from_utf8_lossy(word).into_owned()).collect()
    }

    /// Returns the user of a process.
    pub(crate) fn user(&mut self, pid: i64) -> Option<User> {
        User::parse(&self.whole(pid, "status")?)
    }

    /// Returns the numbers of all processes, up to `MAX_PROCESSES`.
    pub(crate) fn processes(&mut self) -> Vec<i64> {
        let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let mut all = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let found = all.by_ref().take(MAX_PROCESSES).collect();
        if all.next().is_some() {
            self.missed = Some("some processes: more run than doctor examines");
        }
        found
    }

    /// Returns the parent of a process.
    pub(crate) fn parent(&mut self, pid: i64) -> Option<i64> {
        let stat = self.whole(pid, "stat")?;
        // The process's name, which stands before, may hold anything.
        stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse().ok()
    }
}

impl User {
    /// Reads a process's user from `status`.
    fn parse(status: &str) -> Option<User> {
        let numbers = |key: &str| -> Vec<u32> {
            let line = status.lines().find_map(|line| line.strip_prefix(key));
            let words = line.into_iter().flat_map(str::split_whitespace);
            words.filter_map(|number| number.parse().ok()).collect()
        };
        let mut groups = numbers("Groups:");
        groups.extend(numbers("Gid:").get(1));
        Some(User { uid: *numbers("Uid:").get(1)?, groups })
    }
}

/// Files as a process sees them, through the process's mounts and root.
#[derive(Debug)]
pub struct View(OwnedFd);

/// Device and inode, which distinguish a file from all others.
pub type Identity = (u64, u64);

impl View {
    /// Returns the view of a process; none if this process may not look.
    pub(crate) fn of(pid: i64) -> Option<View> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = open(format!("/proc/{pid}/root"), flags, Mode::empty());
        root.ok().map(View)
    }

    /// Returns this process's own view.
    pub(crate) fn own() -> Option<View> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        open("/", flags, Mode::empty()).ok().map(View)
    }

    /// Returns the file that a path leads to in the view. No link of the path leads out of the
    /// view's root.
    fn stat(&self, path: &Path) -> Option<rustix::fs::Stat> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        fstat(openat2(&self.0, path, flags, Mode::empty(), resolve).ok()?).ok()
    }

    /// Returns the identity of the file at a path.
    pub(crate) fn identity(&self, path: &Path) -> Option<Identity> {
        self.stat(path).map(|found| (found.st_dev, found.st_ino))
    }

    /// Returns the directories of a path, with the path itself at the end, as far as they exist.
    pub(crate) fn steps(&self, path: &Path) -> Vec<Step> {
        let mut all: Vec<&Path> = path.ancestors().collect();
        all.reverse();
        let known = all.into_iter().map_while(|path| {
            let found = self.stat(path)?;
            let path = path.to_string_lossy().into_owned();
            Some(Step { path, mode: found.st_mode, uid: found.st_uid, gid: found.st_gid })
        });
        known.collect()
    }
}
