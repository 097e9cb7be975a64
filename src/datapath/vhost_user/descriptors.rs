//! Checks the descriptors that a front-end sends.
//!
//! Kick, call and error descriptors must be eventfds. The data path writes call descriptors from
//! the threads of *other* ports: a write to a pipe that nobody reads, to a FIFO of a network file
//! system or to a terminal could hold up all ports. `memory` checks files of guest memory before
//! mapping. Descriptors of other kinds are refused on arrival: see [`crate::guard::disposal`].

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use vhost::vhost_user::message::FrontendReq;

use super::message::{Code, Passed};
use crate::guard::disposal;
use sys::{descriptor, fs};

/// A descriptor that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DescriptorError {
    /// Not an eventfd; the text is the kernel's name of the file, such as `pipe:[4026]`.
    #[error("not an eventfd but {0}")]
    NotEventfd(String),
    /// Neither an eventfd nor a file in memory; the text is the kernel's name of the file.
    #[error("neither an eventfd nor memory (memfd, tmpfs, hugetlbfs) but {0}")]
    Strange(String),
    /// A system call failed.
    #[error("cannot examine a descriptor: {0}")]
    Io(#[from] io::Error),
}

/// Checks the descriptors of a message. If one of them serves no request, closes all and fails. A
/// disk file that comes as guest memory is the exception: only that file is closed, and `None`
/// takes its place.
pub fn screen(code: Code, files: &mut Vec<Passed>) -> Result<(), DescriptorError> {
    let of_memory = matches!(
        code.known(),
        Some(FrontendReq::SET_MEM_TABLE | FrontendReq::ADD_MEM_REG | FrontendReq::REM_MEM_REG)
    );
    let mut useless = Vec::new();
    for passed in files.iter_mut() {
        let Some(error) = passed.as_ref().and_then(|file| examine(file).err()) else { continue };
        let is_strange = matches!(error, DescriptorError::Strange(_));
        let on_disk = |file: &mut OwnedFd| of_memory && is_strange && fs::is_regular(file);
        if let Some(file) = passed.take_if(on_disk) {
            useless.push(file);
        } else {
            useless.extend(files.drain(..).flatten());
            disposal::close(useless);
            return Err(error);
        }
    }
    disposal::close(useless);
    Ok(())
}

fn examine(file: &OwnedFd) -> Result<(), DescriptorError> {
    match disposal::is_of_use(file)? {
        true => Ok(()),
        false => Err(DescriptorError::Strange(describe(&kernel_name(file)?))),
    }
}

/// Returns the kernel's name of a descriptor in /proc: a path, or a kind such as `pipe:[4026]`.
fn kernel_name(file: &OwnedFd) -> io::Result<PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Returns a text for `target` that may be logged. A path is not logged: its owner chooses the
/// text, of any length and content.
fn describe(target: &Path) -> String {
    if target.is_absolute() { "a file".into() } else { target.display().to_string() }
}

/// Takes `file` as an eventfd and makes `file` non-blocking. The front-end shares the open file
/// description and can make it blocking again, so a writer must still not trust the flag. The flag
/// only keeps honest front-ends, whose eventfds are often blocking, from stalling a worker.
pub fn eventfd(file: OwnedFd) -> Result<OwnedFd, DescriptorError> {
    // No system call returns a descriptor's type; proc(5) documents the name in /proc,
    // "anon_inode:[eventfd]". A path cannot look like this name: a path starts with '/'.
    let target = kernel_name(&file)?;
    if target != Path::new("anon_inode:[eventfd]") {
        return Err(DescriptorError::NotEventfd(describe(&target)));
    }
    descriptor::set_nonblocking(file.as_fd())?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sys::descriptor::{from_eventfd, into_eventfd};
    use vmm_sys_util::eventfd::EventFd;

    #[test]
    fn an_eventfd_is_accepted_and_made_nonblocking() {
        let sent = into_eventfd(eventfd(from_eventfd(EventFd::new(0).unwrap())).unwrap());
        sent.write(u64::MAX - 1).unwrap();
        assert_eq!(sent.write(1).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(sent.read().unwrap(), u64::MAX - 1);
    }

    #[test]
    fn a_file_on_a_disk_is_taken_out_of_memory_alone() {
        let disk = || Some(OwnedFd::from(std::fs::File::open("/proc/self/exe").unwrap()));
        let memory = || Some(fs::memfd("t", 4096).unwrap());
        let of_memory =
            [FrontendReq::SET_MEM_TABLE, FrontendReq::ADD_MEM_REG, FrontendReq::REM_MEM_REG];
        for request in of_memory {
            let mut files = vec![memory(), disk(), memory()];
            screen(request.into(), &mut files).unwrap();
            assert_eq!(files.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false, true]);
            let null = std::fs::File::open("/dev/null").unwrap();
            let mut files = vec![memory(), disk(), Some(null.into())];
            let error = screen(request.into(), &mut files).unwrap_err();
            assert!(matches!(error, DescriptorError::Strange(_)));
            assert!(files.is_empty());
        }
        let mut files = vec![disk()];
        screen(FrontendReq::SET_LOG_BASE.into(), &mut files).unwrap_err();
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
