//! Tells the service manager the state of this process (sd_notify(3), without its library), and
//! gives the manager descriptors to keep for the next process of this service
//! (sd_pid_notify_with_fds(3), "FDSTORE").
//!
//! Each message is a datagram to the socket in `$NOTIFY_SOCKET`. Without the variable there is no
//! manager, and every call succeeds without effect. A failure is a value: a switch that cannot
//! report readiness is still ready.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use vmm_sys_util::sock_ctrl_msg::ScmSocket;

use super::poll::{self, Interest};
use base::limits::KEEP_TIMEOUT;

/// Sends `state` (lines `KEY=value`, see sd_notify(3)) to the service manager, if there is one. A
/// manager that does not read gets nothing and is not waited for.
pub fn notify(state: &str) -> io::Result<()> {
    match FdStore::from_env()? {
        Some(manager) => manager.send(state, &[]),
        None => Ok(()),
    }
}

/// The service manager's store of descriptors. The manager's configuration says whether it keeps
/// any (`FileDescriptorStoreMax=`); the manager does not report that.
#[derive(Debug)]
pub struct FdStore {
    socket: UnixDatagram,
    /// The manager exceeded the timeout: no thread waits for the manager until it reads again.
    hangs: AtomicBool,
}

/// Most descriptors in one message: the kernel's limit (`SCM_MAX_FD`, unix(7)), and more than the
/// queues of a TAP.
const MAX_KEPT_AT_ONCE: usize = 253;

impl FdStore {
    /// Connects to the store; `None` without a service manager.
    pub fn from_env() -> io::Result<Option<FdStore>> {
        let name = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty());
        name.map(|name| FdStore::at(&name)).transpose()
    }

    fn at(name: &OsStr) -> io::Result<FdStore> {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        socket.connect_addr(&address(name)?)?;
        Ok(FdStore { socket, hangs: AtomicBool::new(false) })
    }

    /// Has the manager keep `fds` as `name`; the next process gets them from
    /// [passed](super::inherited::passed). The manager does not poll them: each frame that reaches
    /// a TAP would wake the manager.
    pub fn keep(&self, name: &str, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let text = format!("FDSTORE=1\nFDNAME={name}\nFDPOLL=0");
        for fds in fds.chunks(MAX_KEPT_AT_ONCE) {
            self.say(&text, fds)?;
        }
        Ok(())
    }

    /// Has the manager close all descriptors that it keeps as `name`.
    pub fn discard(&self, name: &str) -> io::Result<()> {
        self.say(&format!("FDSTOREREMOVE=1\nFDNAME={name}"), &[])
    }

    /// Waits until the manager has handled all earlier messages (sd_notify_barrier(3)): the manager
    /// then closes the descriptor of this message.
    pub fn barrier(&self) -> io::Result<()> {
        let (reader, writer) = io::pipe()?;
        self.say("BARRIER=1", &[writer.as_fd()])?;
        drop(writer);
        match self.wait_for(reader.as_fd(), Interest::Read)? {
            true => Ok(()),
            false => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    fn say(&self, text: &str, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        loop {
            match self.send(text, fds) {
                // The manager's queue holds a few hundred messages, and this process may have a
                // thousand sockets.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if !self.wait_for(self.socket.as_fd(), Interest::Write)? {
                        return Err(error);
                    }
                }
                sent => return sent,
            }
        }
    }

    fn send(&self, text: &str, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let numbers: Vec<_> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        let sent = self.socket.send_with_fds(&[text.as_bytes()], &numbers);
        sent.map(drop).map_err(|error| io::Error::from_raw_os_error(error.errno()))
    }

    /// Waits until `fd` is ready; returns false after a timeout. After a timeout later calls return
    /// at once, until the manager reads again.
    fn wait_for(&self, fd: BorrowedFd<'_>, interest: Interest) -> io::Result<bool> {
        let hangs = self.hangs.load(Ordering::Relaxed);
        let timeout = if hangs { Duration::ZERO } else { KEEP_TIMEOUT };
        let ready = poll::is_ready_by(fd, interest, Instant::now() + timeout)?;
        self.hangs.store(!ready, Ordering::Relaxed);
        Ok(ready)
    }
}

/// Returns the address of a socket name: a path, or an abstract name that begins with `@`.
fn address(name: &OsStr) -> io::Result<SocketAddr> {
    match name.as_bytes() {
        [b'@', abstract_name @ ..] => SocketAddr::from_abstract_name(abstract_name),
        [b'/', ..] => SocketAddr::from_pathname(name),
        _ => {
            let text = "NOTIFY_SOCKET is neither an absolute path nor an abstract name";
            Err(io::Error::new(io::ErrorKind::InvalidInput, text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn received(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 64];
        socket.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
        let len = socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..len].to_vec()).unwrap()
    }

    fn send(name: &OsStr) -> io::Result<()> {
        FdStore::at(name)?.send("READY=1", &[])
    }

    fn scratch(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("vioswitch-notify-{name}-{}", std::process::id()))
    }

    #[test]
    fn reaches_a_path() {
        let path = scratch("path");
        let _ = std::fs::remove_file(&path);
        let manager = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str()).unwrap();
        assert_eq!(received(&manager), "READY=1");
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn reaches_an_abstract_name() {
        let name = format!("vioswitch-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let manager = UnixDatagram::bind_addr(&address).unwrap();
        send(OsStr::new(&format!("@{name}"))).unwrap();
        assert_eq!(received(&manager), "READY=1");
    }

    #[test]
    fn failures_are_values() {
        let nobody = scratch("nobody");
        let long = format!("/{}", "x".repeat(200));
        for name in ["relative", "", long.as_str(), nobody.to_str().unwrap()] {
            assert!(send(OsStr::new(name)).is_err(), "{name:?}");
        }
    }

    #[test]
    fn a_manager_that_does_not_read_does_not_block() {
        let path = scratch("full");
        let _ = std::fs::remove_file(&path);
        let _manager = UnixDatagram::bind(&path).unwrap();
        let refused = (0..100_000).find_map(|_| send(path.as_os_str()).err()).unwrap();
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        std::fs::remove_file(&path).unwrap();
    }
}
