//! The group database: names of groups to their numbers; and this process's own user and group.
//!
//! Used while the configuration is read, before any thread of the data path exists.

use std::io;

use nix::errno::Errno;
use nix::unistd::Group;

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
/// Fails when the database cannot be read, or when the entry is longer than 1 MiB: a group with
/// tens of thousands of members.
pub fn gid_of(name: &str) -> io::Result<Option<u32>> {
    match Group::from_name(name) {
        Ok(group) => Ok(group.map(|group| group.gid.as_raw())),
        // The manual page lists these as further ways to say "not found".
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
}
