//! Takes over descriptors that a parent process left open: by number (`--fd N`), or from a service
//! manager (sd_listen_fds(3)), for socket activation and from the manager's descriptor store.

use std::env;
use std::os::fd::{OwnedFd, RawFd};

use super::descriptor::adopt_inherited;
use base::limits::MAX_PASSED_FDS;

/// The first number that a service manager uses.
const FIRST: RawFd = 3;

/// A descriptor from the service manager.
#[derive(Debug)]
pub struct Passed {
    /// The descriptor's name in the service manager; empty if it has none.
    pub name: String,
    /// The descriptor, close-on-exec.
    pub fd: OwnedFd,
}

/// Takes over the descriptors that the service manager left open, except the numbers in `except`.
/// Empty without a service manager. Call this early, before this process reuses the numbers.
pub fn passed(except: &[RawFd]) -> Vec<Passed> {
    let variable = |name| env::var(name).ok();
    if variable("LISTEN_PID") != Some(std::process::id().to_string()) {
        return Vec::new();
    }
    let count = variable("LISTEN_FDS").unwrap_or_default();
    let names = variable("LISTEN_FDNAMES").unwrap_or_default();
    numbers_and_names(&count, &names)
        .filter(|(number, _)| !except.contains(number))
        .filter_map(|(number, name)| {
            let fd = adopt_inherited(number).ok().flatten()?;
            Some(Passed { name: name.to_owned(), fd })
        })
        .collect()
}

/// Parses `LISTEN_FDS` and `LISTEN_FDNAMES`.
fn numbers_and_names<'a>(
    count: &str,
    names: &'a str,
) -> impl Iterator<Item = (RawFd, &'a str)> + use<'a> {
    let count = count.parse::<usize>().unwrap_or(0).min(MAX_PASSED_FDS);
    (FIRST..).zip(names.split(':').chain(std::iter::repeat(""))).take(count)
}

/// Returns true if `fd` is an open socket.
///
/// The caller keeps ownership of the number. Uses libc, because rustix accepts only open
/// descriptors.
pub fn is_socket(fd: RawFd) -> bool {
    // SAFETY: all-zero bytes are a valid `stat`, which consists of integers only.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: fstat writes one `stat` to the live `status` and refuses numbers that are not open.
    let answer = unsafe { libc::fstat(fd, &mut status) };
    answer == 0 && status.st_mode & libc::S_IFMT == libc::S_IFSOCK
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn numbers_and_names_are_those_of_the_manager() {
        let pairs = |count, names| numbers_and_names(count, names).collect::<Vec<_>>();
        assert_eq!(pairs("2", "a:b"), [(3, "a"), (4, "b")]);
        assert_eq!(pairs("3", "a::"), [(3, "a"), (4, ""), (5, "")]);
        assert_eq!(pairs("2", ""), [(3, ""), (4, "")]);
        assert_eq!(pairs("1", "a:b:c"), [(3, "a")]);
        for nonsense in ["", "0", "-1", "x", "99999999999999999999"] {
            assert_eq!(pairs(nonsense, "a"), [], "{nonsense}");
        }
        assert_eq!(pairs("1000000000", "").len(), MAX_PASSED_FDS);
    }

    #[test]
    fn what_is_for_another_process_is_left_alone() {
        // No service manager started this process, or the variables name the parent.
        assert!(passed(&[]).is_empty());
    }

    #[test]
    fn only_open_sockets_pass() {
        let (socket, _peer) = UnixStream::pair().unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(is_socket(socket.as_raw_fd()));
        assert!(!is_socket(file.as_raw_fd()));
        assert!(!is_socket(-1));
        assert!(!is_socket(1 << 30));
    }
}
