//! The reservation of a port's name for one `run` command: the port has no front-end until QEMU
//! connects, and a second QEMU would share the port.
//!
//! The reservation is an abstract socket (unix(7)), which ends with its process, leaves no file,
//! and names the process that has it. Any user of the host may bind such a socket: the socket of a
//! user who is neither root nor the caller reserves nothing.

use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;

use rustix::net::{SocketAddrUnix, connect};
use sys::unix_socket::{peer_credentials, stream_socket};

use crate::failure::Failure;

/// A reserved name; free again on drop.
#[derive(Debug)]
pub(super) struct Reservation {
    /// None if the name could not be reserved: the switch then decides alone.
    _socket: Option<UnixListener>,
}

impl Reservation {
    /// Reserves a port's name at the switch with this control socket. Fails if another command of
    /// this user, or of root, has reserved the name.
    pub(super) fn of(name: &str, control: &Path) -> Result<Reservation, Failure> {
        let Ok(address) = address(name, control) else { return Ok(Reservation { _socket: None }) };
        match UnixListener::bind_addr(&address) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            bound => return Ok(Reservation { _socket: bound.ok() }),
        }
        let own = rustix::process::getuid().as_raw();
        match holder(&address).ok().filter(|(_, uid)| *uid == 0 || *uid == own) {
            Some((pid, _)) => {
                let text = format!("port '{name}' is of a machine that pid {pid} runs");
                let text = text + ": each machine needs a port of its own";
                Err(Failure::refused(text))
            }
            None => Ok(Reservation { _socket: None }),
        }
    }
}

/// Returns the process that has an address, and its user. Does not wait: anybody may fill the queue
/// of the socket.
fn holder(address: &SocketAddr) -> std::io::Result<(i32, u32)> {
    let name = address.as_abstract_name().unwrap_or_default();
    let socket = stream_socket()?;
    connect(&socket, &SocketAddrUnix::new_abstract_name(name)?)?;
    peer_credentials(socket.as_fd()).map(|holder| (holder.pid, holder.uid))
}

/// Returns the address of a name's reservation. Paths may be longer than an address.
fn address(name: &str, control: &Path) -> std::io::Result<SocketAddr> {
    let path = std::fs::canonicalize(control)?;
    // FNV-1a.
    let hash = path.as_os_str().as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    SocketAddr::from_abstract_name(format!("vioswitchctl-run-{hash:016x}-{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_reserved_once_for_each_switch() {
        let (switch, other) = (std::env::temp_dir(), Path::new("/"));
        let pid = std::process::id();
        let name = format!("test-{pid}");
        let reserved = Reservation::of(&name, &switch).unwrap();
        let refused = Reservation::of(&name, &switch).unwrap_err().text;
        let expected = format!("'{name}' is of a machine that pid {pid} runs");
        assert!(refused.contains(&expected), "{refused}");
        Reservation::of(&format!("other-{pid}"), &switch).unwrap();
        Reservation::of(&name, other).unwrap();
        drop(reserved);
        Reservation::of(&name, &switch).unwrap();
    }
}
