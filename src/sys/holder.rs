//! Finds the process that holds a resource that this process wants: a listening socket, or a TAP.
//!
//! Other processes may be hostile. So only data that the kernel keeps of a process is read (its
//! name, its descriptors), never the process's memory, which holds its command line; and time and
//! amounts are bounded.

use std::fmt;
use std::fs;
use std::io::Read;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::Instant;

use super::tap::CLONE_DEVICE;
use super::unix_socket;
use base::limits::{HOLDER_DESCRIPTORS, HOLDER_PROCESSES, HOLDER_TIMEOUT};

/// Most bytes that are read of one file in `/proc`.
const MAX_FILE: u64 = 4096;

/// A process that holds a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    pid: i32,
    name: String,
}

impl Holder {
    /// Returns the process that listens at the other end of a connected socket; `None` if the
    /// process is in another PID namespace.
    pub fn of_listener(socket: BorrowedFd<'_>) -> Option<Holder> {
        let pid = unix_socket::peer_credentials(socket).ok()?.pid;
        (pid > 0).then(|| Holder::new(pid))
    }

    /// Returns a process that has a queue of the TAP `ifname` open, in this network namespace;
    /// `None` if this user may not see the process.
    pub fn of_tap(ifname: &str) -> Option<Holder> {
        let end = Instant::now() + HOLDER_TIMEOUT;
        let network = fs::read_link("/proc/self/ns/net").ok()?;
        let wanted = format!("iff:\t{ifname}");
        let all = fs::read_dir("/proc").ok()?.take(HOLDER_PROCESSES).flatten();
        for process in all.take_while(|_| Instant::now() < end) {
            let (path, number) = (process.path(), process.file_name());
            let Some(pid) = number.to_str().and_then(|number| number.parse().ok()) else {
                continue;
            };
            let Ok(descriptors) = fs::read_dir(path.join("fd")) else { continue };
            let holds = descriptors.take(HOLDER_DESCRIPTORS).flatten().any(|descriptor| {
                let is_tap = fs::read_link(descriptor.path())
                    .is_ok_and(|target| target == Path::new(CLONE_DEVICE));
                let about = || beginning(&path.join("fdinfo").join(descriptor.file_name()));
                is_tap && about().is_some_and(|about| about.lines().any(|line| line == wanted))
            });
            // A TAP of the same name may be in another namespace.
            if holds && fs::read_link(path.join("ns/net")).is_ok_and(|theirs| theirs == network) {
                return Some(Holder::new(pid));
            }
        }
        None
    }

    fn new(pid: i32) -> Holder {
        let name = beginning(Path::new(&format!("/proc/{pid}/comm"))).unwrap_or_default();
        let name = name.trim().chars().filter(|c| c.is_ascii_graphic() || *c == ' ').collect();
        Holder { pid, name }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.as_str() {
            _ if u32::try_from(self.pid) == Ok(std::process::id()) => {
                write!(f, "this process (pid {})", self.pid)
            }
            "" => write!(f, "process {}", self.pid),
            name => write!(f, "{name} (pid {})", self.pid),
        }
    }
}

/// Reads the beginning of a file in `/proc`.
fn beginning(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    fs::File::open(path).ok()?.take(MAX_FILE).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::net::{UnixListener, UnixStream};

    #[test]
    fn who_listens_is_named() {
        let dir = testkit::proc::Dir::new();
        let path = dir.path().join("s");
        let _listener = UnixListener::bind(&path).unwrap();
        let client = UnixStream::connect(&path).unwrap();
        let holder = Holder::of_listener(client.as_fd()).unwrap();
        assert_eq!(holder.to_string(), format!("this process (pid {})", std::process::id()));
    }

    /// A process chooses its own name.
    #[test]
    fn a_name_cannot_forge_a_line() {
        let mut child = std::process::Command::new("sh")
            .args(["-c", "printf 'a\\nb\\033[2J' > /proc/self/comm; echo; read x"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let holder = Holder::new(child.id() as i32);
        assert!(!holder.to_string().contains(char::is_control), "{holder:?}");
        assert!(holder.to_string().ends_with(&format!("(pid {})", child.id())), "{holder}");
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(Holder::new(i32::MAX).to_string(), format!("process {}", i32::MAX));
    }
}
