//! Descriptors a parent process left open for us (`--fd N`).

use std::os::fd::RawFd;

/// True if `fd` is open and is a socket.
///
/// Only looks: ownership stays with whoever later wraps the number.
pub fn is_socket(fd: RawFd) -> bool {
    // SAFETY: all-zero is a valid `stat`, it consists of integers only.
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
    fn only_open_sockets_pass() {
        let (socket, _peer) = UnixStream::pair().unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(is_socket(socket.as_raw_fd()));
        assert!(!is_socket(file.as_raw_fd()));
        assert!(!is_socket(-1));
        assert!(!is_socket(1 << 30));
    }
}
