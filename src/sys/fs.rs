//! What kind of file a descriptor is, and anonymous memory files.

use std::ffi::CString;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

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

/// Mappings this process may have (`vm.max_map_count`); the kernel's default if it does not tell.
pub fn max_map_count() -> u64 {
    let text = std::fs::read_to_string("/proc/sys/vm/max_map_count").ok();
    text.and_then(|text| text.trim().parse().ok()).unwrap_or(65_530)
}

/// Examines `fd`; of a file that [is no memory](is_memory) it only says so.
pub fn examine(fd: RawFd) -> io::Result<FileFacts> {
    if !is_memory(fd)? {
        let page = page_size();
        return Ok(FileFacts { kind: FileKind::Other, size: 0, page, identity: (0, 0) });
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
    Ok(FileFacts { kind, size, page, identity: (stat.st_dev, stat.st_ino) })
}

/// The system's base page size in bytes.
pub fn page_size() -> u64 {
    // SAFETY: sysconf has no preconditions.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
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
