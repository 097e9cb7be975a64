//! What the descriptors a front-end hands over may be.
//!
//! Kick, call and error descriptors must be eventfds. The data path writes call descriptors from
//! the threads of *other* ports: on a pipe nobody empties, a FIFO of a network file system or a
//! terminal, that write could hold up everybody. What serves as guest memory is checked where it
//! is mapped.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use crate::sys::descriptor;

/// A descriptor for notifications that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DescriptorError {
    /// It is something else; the text is the kernel's name for it, such as `pipe:[4026]`.
    #[error("not an eventfd but {0}")]
    NotEventfd(String),
    /// The kernel would not tell, or would not set the flag.
    #[error("cannot examine a descriptor: {0}")]
    Io(#[from] io::Error),
}

/// Takes `file` as an eventfd and makes it non-blocking. The front-end shares the description and
/// can make it blocking again, so a writer must still not trust the flag; it only keeps honest
/// front-ends, whose eventfds are often blocking, from stalling anybody.
pub fn eventfd(file: OwnedFd) -> Result<OwnedFd, DescriptorError> {
    // There is no call that asks for a descriptor's type; the name in /proc is the documented
    // one: proc(5), "anon_inode:[eventfd]". A file name cannot look like it: those start with '/'.
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    let target = std::fs::read_link(link)?;
    if target != Path::new("anon_inode:[eventfd]") {
        // The name of a file is its owner's text, as long and as odd as it likes: not for our log.
        let name =
            if target.is_absolute() { "a file".into() } else { target.display().to_string() };
        return Err(DescriptorError::NotEventfd(name));
    }
    descriptor::set_nonblocking(file.as_fd())?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::descriptor::{from_eventfd, into_eventfd};
    use vmm_sys_util::eventfd::EventFd;

    #[test]
    fn an_eventfd_is_accepted_and_made_nonblocking() {
        let sent = into_eventfd(eventfd(from_eventfd(EventFd::new(0).unwrap())).unwrap());
        sent.write(u64::MAX - 1).unwrap();
        assert_eq!(sent.write(1).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(sent.read().unwrap(), u64::MAX - 1);
    }

    #[test]
    fn anything_else_is_refused() {
        let (reader, writer) = io::pipe().unwrap();
        let (near, _far) = std::os::unix::net::UnixStream::pair().unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        for other in [reader.into(), writer.into(), near.into(), OwnedFd::from(file)] {
            assert!(matches!(eventfd(other), Err(DescriptorError::NotEventfd(_))));
        }
    }
}
