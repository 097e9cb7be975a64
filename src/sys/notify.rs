//! Telling the service manager how far we are: sd_notify(3) without its library.
//!
//! One datagram to the socket named by `$NOTIFY_SOCKET`. Without that variable nobody is
//! listening and every call succeeds without doing anything. A failure is a value: readiness that
//! cannot be told must not stop a switch that is ready.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The environment variable a service manager sets.
const SOCKET_VARIABLE: &str = "NOTIFY_SOCKET";

/// All sockets exist and answer.
pub const READY: &str = "READY=1";

/// Shutting down has begun.
pub const STOPPING: &str = "STOPPING=1";

/// Sends `state` (lines `KEY=value`, see sd_notify(3)) to the service manager.
///
/// `Ok(false)` means that none asked for it.
pub fn notify(state: &str) -> io::Result<bool> {
    match std::env::var_os(SOCKET_VARIABLE) {
        None => Ok(false),
        Some(name) if name.is_empty() => Ok(false),
        Some(name) => send(&name, state).map(|()| true),
    }
}

/// Sends `state` to the socket `name`: a path, or an abstract name that begins with `@`.
fn send(name: &OsStr, state: &str) -> io::Result<()> {
    let address = match name.as_bytes() {
        [b'@', abstract_name @ ..] => SocketAddr::from_abstract_name(abstract_name)?,
        [b'/', ..] => SocketAddr::from_pathname(name)?,
        _ => {
            let text = "NOTIFY_SOCKET is neither an absolute path nor an abstract name";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
    };
    let socket = UnixDatagram::unbound()?;
    // A manager that does not read must not hold up the switch.
    socket.set_nonblocking(true)?;
    let sent = socket.send_to_addr(state.as_bytes(), &address)?;
    if sent == state.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
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

    fn scratch(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("vioswitch-notify-{name}-{}", std::process::id()))
    }

    #[test]
    fn reaches_a_path() {
        let path = scratch("path");
        let _ = std::fs::remove_file(&path);
        let manager = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str(), READY).unwrap();
        assert_eq!(received(&manager), READY);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn reaches_an_abstract_name() {
        let name = format!("vioswitch-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let manager = UnixDatagram::bind_addr(&address).unwrap();
        send(OsStr::new(&format!("@{name}")), STOPPING).unwrap();
        assert_eq!(received(&manager), STOPPING);
    }

    #[test]
    fn failures_are_values() {
        let nobody = scratch("nobody");
        let long = format!("/{}", "x".repeat(200));
        for name in ["relative", "", long.as_str(), nobody.to_str().unwrap()] {
            assert!(send(OsStr::new(name), READY).is_err(), "{name:?}");
        }
    }

    #[test]
    fn a_manager_that_does_not_read_does_not_block() {
        let path = scratch("full");
        let _ = std::fs::remove_file(&path);
        let _manager = UnixDatagram::bind(&path).unwrap();
        let refused = (0..100_000).find_map(|_| send(path.as_os_str(), READY).err()).unwrap();
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        std::fs::remove_file(&path).unwrap();
    }
}
