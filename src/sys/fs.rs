//! Examines files and directories, and makes anonymous memory files.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    Access, AtFlags, CWD, FileType, MemfdFlags, Mode, OFlags, SeekFrom, StatxFlags, accessat,
    fcntl_get_seals, fstat, fstatfs, memfd_create, seek, statx,
};
use rustix::io::Errno;

/// Returns the directory of a file's path.
pub fn directory_of(path: &Path) -> &Path {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

/// Opens a path with `O_PATH`, following a final symbolic link if `follows_link`. Opens no device
/// and never waits. The standard library offers `O_PATH` with glibc only.
pub fn open_path(path: &Path, follows_link: bool) -> io::Result<File> {
    let link = if follows_link { OFlags::empty() } else { OFlags::NOFOLLOW };
    Ok(rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC | link, Mode::empty())?.into())
}

/// Returns the number that stands for all users without a number in this user namespace.
pub fn overflow_user() -> u32 {
    const USUAL: u32 = 65_534;
    let text = std::fs::read_to_string("/proc/sys/kernel/overflowuid").unwrap_or_default();
    text.trim().parse().unwrap_or(USUAL)
}

/// The kind of memory behind a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FileKind {
    /// tmpfs or memfd: pages are memory.
    Shmem,
    /// hugetlbfs or a huge-page memfd.
    Huge,
    /// Any other file: reading its pages may be slow.
    #[default]
    Other,
}

/// The properties of a file that mapping needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FileFacts {
    /// The kind of memory behind the file.
    pub kind: FileKind,
    /// Size in bytes.
    pub size: u64,
    /// Mapping granularity in bytes.
    pub page: u64,
    /// Device and inode numbers: equal for two descriptors of one file.
    pub identity: (u64, u64),
    /// Bytes that have pages, swapped-out pages included.
    pub allocated: u64,
    /// True if the file has a name in a file system; a memfd has none.
    pub named: bool,
}

/// Returns true for a file on tmpfs or hugetlbfs, memfds included: only these have seals
/// (fcntl(2)). Asks no file system, while fstat(2) of a file on FUSE or NFS waits for its server.
pub fn is_memory(fd: impl AsFd) -> io::Result<bool> {
    match fcntl_get_seals(fd) {
        Ok(_) => Ok(true),
        // The errno for a file without seals.
        Err(Errno::INVAL) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// `AT_STATX_DONT_SYNC`, which rustix does not name with musl.
pub(super) const DONT_SYNC: AtFlags = AtFlags::from_bits_retain(0x4000);
const TMPFS: u32 = libc::TMPFS_MAGIC as u32;
const HUGETLBFS: u32 = libc::HUGETLBFS_MAGIC as u32;

/// File systems whose files are a server's: FUSE, NFS, CIFS, SMB, 9P, Ceph, the AFS of OpenAFS and
/// of Linux, Coda and OCFS2 (statfs(2), `linux/magic.h`).
const OF_SERVERS: [u32; 10] = [
    0x6573_5546,
    0x6969,
    0xff53_4d42,
    0xfe53_4d42,
    0x0102_1997,
    0x00c3_6400,
    0x5346_414f,
    0x6b41_4653,
    0x7375_7245,
    0x7461_636f,
];

/// Returns true for a file of a server, for which the kernel may wait. Asks the server.
pub fn has_server(fd: impl AsFd) -> io::Result<bool> {
    // As in `examine`.
    Ok(OF_SERVERS.contains(&(fstatfs(fd)?.f_type as u32)))
}

/// Returns true for a regular file, from the kernel's cached data: the server of a file system
/// (FUSE, NFS) is not asked.
pub fn is_regular(fd: impl AsFd) -> bool {
    let flags = AtFlags::EMPTY_PATH | DONT_SYNC;
    statx(fd, c"", flags, StatxFlags::TYPE).is_ok_and(|stat| {
        let known = stat.stx_mask & StatxFlags::TYPE.bits() != 0;
        known && FileType::from_raw_mode(stat.stx_mode.into()) == FileType::RegularFile
    })
}

/// Returns the number of mappings that this process may have (`vm.max_map_count`), or the kernel's
/// default if the number cannot be read.
pub fn max_map_count() -> u64 {
    let text = std::fs::read_to_string("/proc/sys/vm/max_map_count").ok();
    text.and_then(|text| text.trim().parse().ok()).unwrap_or(65_530)
}

/// Examines `fd`. A file that is [no memory](is_memory) is not examined further: its facts are
/// defaults.
pub fn examine(fd: impl AsFd) -> io::Result<FileFacts> {
    let fd = fd.as_fd();
    if !is_memory(fd)? {
        return Ok(FileFacts { page: page_size(), ..FileFacts::default() });
    }
    let (stat, vfs) = (fstat(fd)?, fstatfs(fd)?);
    let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    // The 32-bit magic number is in a field that is signed with one C library and unsigned with
    // another.
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
    // The unit is 512 bytes, whatever the file system's block size is (stat(3type)).
    let allocated = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512);
    let (identity, named) = ((stat.st_dev, stat.st_ino), stat.st_nlink > 0);
    Ok(FileFacts { kind, size, page, identity, allocated, named })
}

/// Returns true if the file with these facts has pages for all of `range`.
///
/// hugetlbfs reports the number of a file's pages but not their positions (lseek(2) finds no
/// holes), so the whole file must have pages. On tmpfs, pages that were allocated and never touched
/// look like holes; they count only if the whole file has pages.
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

/// Returns the system's base page size in bytes.
pub fn page_size() -> u64 {
    rustix::param::page_size() as u64
}

/// Returns the flags of the mapping at `addr`: `VmFlags` of smaps in proc(5).
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

/// Checks that this process may make files in `directory` (faccessat(2), with the effective user).
pub fn may_create_in(directory: &Path) -> io::Result<()> {
    Ok(accessat(CWD, directory, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS)?)
}

/// Makes a memfd of `len` bytes, close-on-exec.
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
