//! The group database: names of groups to their numbers; and this process's own user and group.
//!
//! Used while the configuration is read, before any thread of the data path exists.

use std::ffi::{CStr, CString};
use std::io;

use crate::limits;

/// Bytes of the first attempt: enough for a group of a few dozen members.
const FIRST_BUFFER_BYTES: usize = 1024;

/// The group that files of this process get.
pub fn own() -> u32 {
    rustix::process::getegid().as_raw()
}

/// The user that files of this process get.
pub fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Whether this process may give a file of its own to group `gid`: one that it belongs to, or any
/// with CAP_CHOWN (chown(2)).
pub fn may_give(gid: u32) -> bool {
    gid == own() || supplementary().contains(&gid) || may_chown()
}

/// The further groups of this process.
fn supplementary() -> Vec<u32> {
    let groups = rustix::process::getgroups().unwrap_or_default();
    groups.into_iter().map(|group| group.as_raw()).collect()
}

/// CAP_CHOWN among the effective capabilities, which is bit 0 of them (proc_pid_status(5)).
fn may_chown() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective.is_some_and(|bits| u64::from_str_radix(bits.trim(), 16).is_ok_and(|b| b & 1 == 1))
}

/// The number of the group called `name`, `None` if no such group exists (getgrnam_r(3)).
///
/// Fails when the database cannot be read, or when the entry is longer than
/// [`limits::MAX_GROUP_ENTRY_BYTES`].
pub fn gid_of(name: &str) -> io::Result<Option<u32>> {
    // A name with a zero inside cannot be in the database.
    let Ok(name) = CString::new(name) else {
        return Ok(None);
    };
    let mut size = FIRST_BUFFER_BYTES;
    while size <= limits::MAX_GROUP_ENTRY_BYTES {
        match look_up(&name, size) {
            Err(error) if error.raw_os_error() == Some(libc::ERANGE) => size *= 2,
            answer => return answer,
        }
    }
    Err(io::Error::from_raw_os_error(libc::ERANGE))
}

/// One attempt with a buffer of `size` bytes; `ERANGE` if that is too small.
fn look_up(name: &CStr, size: usize) -> io::Result<Option<u32>> {
    let mut buffer: Vec<libc::c_char> = vec![0; size];
    let mut found: *mut libc::group = std::ptr::null_mut();
    // SAFETY: all-zero is a valid `group`: null pointers and the number 0.
    let mut entry: libc::group = unsafe { std::mem::zeroed() };
    // SAFETY: `name` is terminated; `entry`, `buffer` and `found` are live, exclusively ours, and
    // `buffer.len()` is the number of bytes that may be written to `buffer`.
    let error = unsafe {
        libc::getgrnam_r(name.as_ptr(), &mut entry, buffer.as_mut_ptr(), buffer.len(), &mut found)
    };
    match error {
        0 if found.is_null() => Ok(None),
        0 => Ok(Some(entry.gr_gid)),
        // The manual page lists these as further ways to say "not found".
        libc::ENOENT | libc::ESRCH | libc::EBADF | libc::EPERM => Ok(None),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_groups_can_be_given() {
        assert!(may_give(own()) && supplementary().into_iter().all(may_give));
        let root = own_user() == 0;
        // Nobody belongs to it; a root without CAP_CHOWN may not give it either.
        assert_eq!(may_give(3_999_999_999), root && may_chown());
    }

    #[test]
    fn root_is_group_zero() {
        assert_eq!(gid_of("root").unwrap(), Some(0));
    }

    #[test]
    fn unknown_names_are_none() {
        for name in ["", "no such group", "with\0zero"] {
            assert_eq!(gid_of(name).unwrap(), None, "{name:?}");
        }
    }

    #[test]
    fn a_short_buffer_is_reported_not_overrun() {
        let error = look_up(c"root", 1).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ERANGE));
    }
}
