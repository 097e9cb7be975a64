//! File systems that never answer: FUSE without a server, in mounts of a thread's own.

use std::ffi::CString;
use std::fs::OpenOptions;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use super::proc::program;

/// The calling thread, and what it starts, have mounts of their own from now on; false where that
/// is not permitted.
pub fn own_mounts() -> bool {
    let _ = program();
    // SAFETY: plain system calls on strings that live across them.
    unsafe {
        let (none, private) = (std::ptr::null(), libc::MS_REC | libc::MS_PRIVATE);
        libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(none, c"/".as_ptr(), none, private, none.cast()) == 0
    }
}

/// A file system of user `uid` over a file or directory, whose server never answers; it ends with
/// the server's descriptor. None where that may not be mounted. `kind` is the root's type.
pub fn mount(over: &Path, uid: u32, kind: u32) -> Option<OwnedFd> {
    let server = OpenOptions::new().read(true).write(true).open("/dev/fuse").ok()?;
    let options = format!("fd={},rootmode={kind:o},user_id={uid},group_id=0", server.as_raw_fd());
    let options = CString::new(options).expect("options");
    let path = path(over);
    let (fuse, flags) = (c"fuse".as_ptr(), libc::MS_NOSUID | libc::MS_NODEV);
    // SAFETY: plain system call on strings that live across it.
    let made = unsafe { libc::mount(fuse, path.as_ptr(), fuse, flags, options.as_ptr().cast()) };
    (made == 0).then(|| server.into())
}

/// Takes away what is mounted there, whoever is still inside.
pub fn unmount(path_of: &Path) {
    let path = path(path_of);
    // SAFETY: plain system call on a string that lives across it.
    assert_eq!(unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) }, 0, "{path_of:?}");
}

fn path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_encoded_bytes()).expect("a path")
}
