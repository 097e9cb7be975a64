//! Reads lines of another process within a limited time.
//!
//! A process that hangs, or whose children keep its pipe open, costs the reader the limit and
//! nothing more.

use std::io::{self, ErrorKind, Read};
use std::os::fd::AsFd;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Longest line, in bytes.
const MAX_LINE: usize = 1 << 20;
/// Bytes that are read at once.
const CHUNK: usize = 4096;

/// A pipe or socket that another process writes lines to.
pub(super) struct Lines<P> {
    pipe: P,
    /// Bytes after the last returned line.
    rest: Vec<u8>,
}

impl<P: Read + AsFd> Lines<P> {
    pub(super) fn new(pipe: P) -> Lines<P> {
        Lines { pipe, rest: Vec::new() }
    }

    /// Returns the next line without its end; at the end of the pipe the bytes that are left. Fails
    /// with `TimedOut` if no line comes until `end`.
    pub(super) fn next(&mut self, end: Instant) -> io::Result<String> {
        let mut looked = 0;
        loop {
            let found = self.rest[looked..].iter().position(|byte| *byte == b'\n');
            if let Some(at) = found {
                let line = self.rest.drain(..looked + at + 1).collect();
                return text(line);
            }
            looked = self.rest.len();
            if looked >= MAX_LINE {
                return Err(io::Error::new(ErrorKind::InvalidData, "a line is too long"));
            }
            if self.fill(end)? == 0 {
                return text(std::mem::take(&mut self.rest));
            }
        }
    }

    /// Returns everything up to the end of the pipe, as far as it comes until `end`.
    pub(super) fn all(mut self, end: Instant) -> String {
        while self.rest.len() < MAX_LINE && self.fill(end).is_ok_and(|count| count > 0) {}
        String::from_utf8_lossy(&self.rest).into_owned()
    }

    /// Reads once. Returns the number of bytes, 0 at the end of the pipe.
    fn fill(&mut self, end: Instant) -> io::Result<usize> {
        let mut chunk = [0; CHUNK];
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).ok();
            let mut fds = [PollFd::new(&self.pipe, PollFlags::IN)];
            let read = match poll(&mut fds, timeout.as_ref()) {
                Ok(0) => return Err(ErrorKind::TimedOut.into()),
                Ok(_) => self.pipe.read(&mut chunk),
                Err(error) => Err(error.into()),
            };
            match read {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
                Ok(count) => {
                    self.rest.extend_from_slice(&chunk[..count]);
                    return Ok(count);
                }
            }
        }
    }
}

fn text(line: Vec<u8>) -> io::Result<String> {
    let line = String::from_utf8(line);
    let line = line.map_err(|_| io::Error::new(ErrorKind::InvalidData, "a line is no text"))?;
    Ok(line.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(5)
    }

    /// A writer that sends bytes but no line does not prolong the wait.
    #[test]
    fn a_wait_for_a_line_ends() {
        let (read, mut write) = UnixStream::pair().unwrap();
        let mut lines = Lines::new(read);
        write.write_all(b"one\ntwo\nthr").unwrap();
        assert_eq!(lines.next(soon()).unwrap(), "one");
        assert_eq!(lines.next(soon()).unwrap(), "two");
        let drip = std::thread::spawn(move || {
            while write.write_all(b".").is_ok() {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let begun = Instant::now();
        let failed = lines.next(begun + Duration::from_millis(50)).unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::TimedOut);
        drop(lines);
        drip.join().unwrap();
    }

    #[test]
    fn the_rest_of_a_pipe_is_the_last_line() {
        let (read, mut write) = UnixStream::pair().unwrap();
        let mut lines = Lines::new(read);
        write.write_all(b"a line\r\nrest").unwrap();
        drop(write);
        assert_eq!(lines.next(soon()).unwrap(), "a line");
        assert_eq!(lines.next(soon()).unwrap(), "rest");
        assert_eq!(lines.next(soon()).unwrap(), "");
        let (read, mut write) = UnixStream::pair().unwrap();
        write.write_all(b"first\nsecond\n").unwrap();
        let now = Instant::now();
        assert_eq!(Lines::new(read).all(now + Duration::from_millis(50)), "first\nsecond\n");
    }
}
