//! What kind of file a descriptor is, anonymous memory files, and who may make files where.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    Access, AtFlags, CWD, FileType, MemfdFlags, Mode, OFlags, SeekFrom, StatxFlags, accessat,
    fcntl_get_seals, fstat, fstatfs, memfd_create, seek, statx,
};
use rustix::io::Errno;

/// The directory that a file of this path is in.
pub fn directory_of(path: &Path) -> &Path {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

/// Opens a file as a path (`O_PATH`), itself or what it leads to: opens no device and never waits.
/// The standard library does so with glibc alone.
pub fn open_path(path: &Path, follows_link: bool) -> io::Result<File> {
    let link = if follows_link { OFlags::empty() } else { OFlags::NOFOLLOW };
    Ok(rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC | link, Mode::empty())?.into())
}

/// Where a file lives, as far as mapping guest memory is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FileKind {
    /// tmpfs or memfd: pages are memory.
    Shmem,
    /// hugetlbfs or a huge-page memfd.
    Huge,
    /// Anything else: its pages may have to be read from somewhere slow.
    #[default]
    Other,
}

/// What mapping needs to know of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FileFacts {
    /// Where it lives.
    pub kind: FileKind,
    /// Its size in bytes.
    pub size: u64,
    /// Mapping granularity in bytes.
    pub page: u64,
    /// Device and inode: equal for two descriptors of one file.
    pub identity: (u64, u64),
    /// Bytes for which there are pages, swapped out ones included.
    pub allocated: u64,
    /// It has a name in a file system, which a memfd has not.
    pub named: bool,
}

/// True for a file on tmpfs or hugetlbfs, memfds included: only these have seals (fcntl(2)). Asks
/// no file system, while fstat(2) of a file on FUSE or NFS waits for its server.
pub fn is_memory(fd: impl AsFd) -> io::Result<bool> {
    match fcntl_get_seals(fd) {
        Ok(_) => Ok(true),
        // The answer for a file without seals.
        Err(Errno::INVAL) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// `AT_STATX_DONT_SYNC`, which rustix has no name for where the C library is musl.
pub(super) const DONT_SYNC: AtFlags = AtFlags::from_bits_retain(0x4000);
const TMPFS: u32 = libc::TMPFS_MAGIC as u32;
const HUGETLBFS: u32 = libc::HUGETLBFS_MAGIC as u32;

/// True for a regular file, by what the kernel has at hand: a file system with a server behind it
/// (FUSE, NFS) is told not to ask it.
pub fn is_regular(fd: impl AsFd) -> bool {
    let flags = AtFlags::EMPTY_PATH | DONT_SYNC;
    statx(fd, c"", flags, StatxFlags::TYPE).is_ok_and(|stat| {
        let known = stat.stx_mask & StatxFlags::TYPE.bits() != 0;
        known && FileType::from_raw_mode(stat.stx_mode.into()) == FileType::RegularFile
    })
}

/// Mappings this process may have (`vm.max_map_count`); the kernel's default if it does not say.
pub fn max_map_count() -> u64 {
    let text = std::fs::read_to_string("/proc/sys/vm/max_map_count").ok();
    text.and_then(|text| text.trim().parse().ok()).unwrap_or(65_530)
}

/// Examines `fd`; of a file that [is no memory](is_memory) it only says so.
pub fn examine(fd: impl AsFd) -> io::Result<FileFacts> {
    let fd = fd.as_fd();
    if !is_memory(fd)? {
        return Ok(FileFacts { page: page_size(), ..FileFacts::default() });
    }
    let (stat, vfs) = (fstat(fd)?, fstatfs(fd)?);
    let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    // Of 32 bits, in a field that is signed with one C library and not with another.
    let kind = match vfs.f_type as u32 {
        TMPFS if regular => FileKind::Shmem,
        HUGETLBFS if regular => FileKind::Huge,
        _ => FileKind::Other,
    };
    let page = match kind {
        // hugetlbfs reports its page size as the block size of the file system.
        FileKind::Huge => u64::try_from(vfs.f_bsize).unwrap_or(0).max(4096),
        _ => page_size(),
    };
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    // Counted in 512 bytes, whatever the file system's blocks are (stat(3type)).
    let allocated = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512);
    let (identity, named) = ((stat.st_dev, stat.st_ino), stat.st_nlink > 0);
    Ok(FileFacts { kind, size, page, identity, allocated, named })
}

/// Whether there are pages for all of `range` in the file of which these are the facts.
///
/// hugetlbfs says how many pages a file has and not where (it knows no holes: lseek(2) finds the
/// first at the end), so there all of the file has to be there. On tmpfs pages that were allocated
/// and never touched look like holes; they count where the whole file has its pages.
pub fn is_allocated(
    fd: impl AsFd,
    facts: &FileFacts,
    range: std::ops::Range<u64>,
) -> io::Result<bool> {
    if facts.allocated >= facts.size || facts.kind == FileKind::Huge {
        return Ok(facts.allocated >= facts.size);
    }
    Ok(seek(fd, SeekFrom::Hole(range.start))? >= range.end)
}

/// The system's base page size in bytes.
pub fn page_size() -> u64 {
    rustix::param::page_size() as u64
}

/// The flags of the mapping at `addr`: `VmFlags` of smaps in proc(5).
#[cfg(any(test, feature = "test-utils"))]
pub fn vm_flags(addr: usize) -> Vec<String> {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let number = |text| usize::from_str_radix(text, 16).ok();
    let mut inside = false;
    for line in smaps.lines() {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        if let Some((Some(first), Some(end))) = range.map(|(a, b)| (number(a), number(b))) {
            inside = (first..end).contains(&addr);
        }
        if let Some(flags) = line.strip_prefix("VmFlags:").filter(|_| inside) {
            return flags.split_whitespace().map(str::to_owned).collect();
        }
    }
    panic!("nothing is mapped at {addr:#x}");
}

/// Whether this process may make files in `directory` (faccessat(2), with the effective user).
pub fn may_create_in(directory: &Path) -> io::Result<()> {
    Ok(accessat(CWD, directory, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS)?)
}

/// A new memfd of `len` bytes, close-on-exec.
pub fn memfd(name: &str, len: u64) -> io::Result<OwnedFd> {
    let file = std::fs::File::from(memfd_create(name, MemfdFlags::CLOEXEC)?);
    file.set_len(len)?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regular_files_are_told_from_the_rest() {
        let (pipe, _writer) = std::io::pipe().unwrap();
        let open = |path| std::fs::File::open(path).unwrap();
        assert!(is_regular(open("/proc/self/exe")));
        assert!(is_regular(memfd("t", 4096).unwrap()));
        for other in [open("/dev/null").into(), open("/").into(), OwnedFd::from(pipe)] {
            assert!(!is_regular(&other), "{other:?}");
        }
    }
}
