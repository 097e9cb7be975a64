//! What kind of file a descriptor is, anonymous memory files, and who may make files where.

use std::ffi::CString;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Where a file lives, as far as mapping guest memory is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// tmpfs or memfd: pages are memory.
    Shmem,
    /// hugetlbfs or a huge-page memfd.
    Huge,
    /// Anything else: its pages may have to be read from somewhere slow.
    Other,
}

/// What mapping needs to know of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
}

/// True for a file on tmpfs or hugetlbfs, memfds included: only these have seals (fcntl(2)). Asks
/// no file system, while fstat(2) of a file on FUSE or NFS waits for its server.
pub fn is_memory(fd: RawFd) -> io::Result<bool> {
    // SAFETY: F_GET_SEALS touches no memory; a bad descriptor is an error.
    if unsafe { libc::fcntl(fd, libc::F_GET_SEALS) } >= 0 {
        return Ok(true);
    }
    match io::Error::last_os_error() {
        // The answer for a file without seals.
        error if error.raw_os_error() == Some(libc::EINVAL) => Ok(false),
        error => Err(error),
    }
}

/// True for a regular file, by what the kernel has at hand: a file system with a server behind it
/// (FUSE, NFS) is told not to ask it.
pub fn is_regular(fd: RawFd) -> bool {
    // SAFETY: all-zero bytes are a valid value of this plain C struct.
    let mut stat: libc::statx = unsafe { std::mem::zeroed() };
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    // SAFETY: the path is a NUL-terminated literal, `stat` live and writable for the call.
    let done = unsafe { libc::statx(fd, c"".as_ptr(), flags, libc::STATX_TYPE, &mut stat) } == 0;
    let known = stat.stx_mask & libc::STATX_TYPE != 0;
    done && known && u32::from(stat.stx_mode) & libc::S_IFMT == libc::S_IFREG
}

/// Mappings this process may have (`vm.max_map_count`); the kernel's default if it does not tell.
pub fn max_map_count() -> u64 {
    let text = std::fs::read_to_string("/proc/sys/vm/max_map_count").ok();
    text.and_then(|text| text.trim().parse().ok()).unwrap_or(65_530)
}

/// Examines `fd`; of a file that [is no memory](is_memory) it only says so.
pub fn examine(fd: RawFd) -> io::Result<FileFacts> {
    if !is_memory(fd)? {
        let page = page_size();
        return Ok(FileFacts {
            kind: FileKind::Other,
            size: 0,
            page,
            identity: (0, 0),
            allocated: 0,
        });
    }
    // SAFETY: all-zero bytes are a valid value of these plain C structs.
    let (mut stat, mut vfs): (libc::stat, libc::statfs) = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` and `vfs` are live and writable for the duration of the calls.
    let failed = unsafe { libc::fstat(fd, &mut stat) != 0 || libc::fstatfs(fd, &mut vfs) != 0 };
    if failed {
        return Err(io::Error::last_os_error());
    }
    let regular = stat.st_mode & libc::S_IFMT == libc::S_IFREG;
    let kind = match vfs.f_type {
        libc::TMPFS_MAGIC if regular => FileKind::Shmem,
        libc::HUGETLBFS_MAGIC if regular => FileKind::Huge,
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
    Ok(FileFacts { kind, size, page, identity: (stat.st_dev, stat.st_ino), allocated })
}

/// Whether there are pages for all of `range` in the file of which these are the facts.
///
/// hugetlbfs says how many pages a file has and not where (it knows no holes: lseek(2) finds the
/// first at the end), so there all of the file has to be there. On tmpfs pages that were allocated
/// and never touched look like holes; they count where the whole file has its pages.
pub fn is_allocated(fd: RawFd, facts: &FileFacts, range: std::ops::Range<u64>) -> io::Result<bool> {
    if facts.allocated >= facts.size || facts.kind == FileKind::Huge {
        return Ok(facts.allocated >= facts.size);
    }
    let start = libc::off_t::try_from(range.start).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: touches no memory.
    let hole = unsafe { libc::lseek(fd, start, libc::SEEK_HOLE) };
    let hole = u64::try_from(hole).map_err(|_| io::Error::last_os_error())?;
    Ok(hole >= range.end)
}

/// The system's base page size in bytes.
pub fn page_size() -> u64 {
    // SAFETY: sysconf has no preconditions.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// The flags of the mapping at `addr`: `VmFlags` of smaps in proc(5).
#[cfg(test)]
pub(crate) fn vm_flags(addr: usize) -> Vec<String> {
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
    let path = CString::new(directory.as_os_str().as_bytes())?;
    let wanted = libc::W_OK | libc::X_OK;
    // SAFETY: `path` is a NUL-terminated string that outlives the call.
    match unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), wanted, libc::AT_EACCESS) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A new memfd of `len` bytes, close-on-exec.
pub fn memfd(name: &str, len: u64) -> io::Result<OwnedFd> {
    let name = CString::new(name).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    // SAFETY: `name` is a NUL-terminated string that outlives the call.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` was just created and is owned by nobody else.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    std::fs::File::from(fd.try_clone()?).set_len(len)?;
    Ok(fd)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn regular_files_are_told_from_the_rest() {
        let (pipe, _writer) = std::io::pipe().unwrap();
        let open = |path| std::fs::File::open(path).unwrap();
        assert!(is_regular(open("/proc/self/exe").as_raw_fd()));
        assert!(is_regular(memfd("t", 4096).unwrap().as_raw_fd()));
        for other in [open("/dev/null").as_raw_fd(), open("/").as_raw_fd(), pipe.as_raw_fd(), -1] {
            assert!(!is_regular(other), "{other}");
        }
    }
}
