//! Looks up group numbers in the group database, and this process's own user and group.
//!
//! Used while the configuration is read, before a thread of the data path exists.

use std::io;

use nix::errno::Errno;
use nix::unistd::Group;

/// Returns the group that files of this process get.
pub fn own() -> u32 {
    rustix::process::getegid().as_raw()
}

/// Returns the user that files of this process get.
pub fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Returns true if this process may give its files to group `gid`: the process belongs to the
/// group, or has CAP_CHOWN (chown(2)).
pub fn may_give(gid: u32) -> bool {
    gid == own() || supplementary().contains(&gid) || may_chown()
}

/// Returns the supplementary groups of this process.
fn supplementary() -> Vec<u32> {
    let groups = rustix::process::getgroups().unwrap_or_default();
    groups.into_iter().map(|group| group.as_raw()).collect()
}

/// Returns true if CAP_CHOWN, bit 0, is among the effective capabilities (proc_pid_status(5)).
fn may_chown() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective.is_some_and(|bits| u64::from_str_radix(bits.trim(), 16).is_ok_and(|b| b & 1 == 1))
}

/// Returns the number of the group `name`, `None` if no such group exists (getgrnam_r(3)).
///
/// Fails if the database cannot be read, or if the entry is longer than 1 MiB: a group with tens of
/// thousands of members.
pub fn gid_of(name: &str) -> io::Result<Option<u32>> {
    match Group::from_name(name) {
        Ok(group) => Ok(group.map(|group| group.gid.as_raw())),
        // The manual page lists these errors as further ways to say "not found".
        Err(Errno::ENOENT | Errno::ESRCH | Errno::EBADF | Errno::EPERM) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_groups_can_be_given() {
        assert!(may_give(own()) && supplementary().into_iter().all(may_give));
        let root = own_user() == 0;
        // No process belongs to this group, and root without CAP_CHOWN may not give files to it.
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
}
