//! Who is at the other end, as far as that is known.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

use rustix::net::getpeername;

use sys::unix_socket;

/// Those who share the places that they have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// By a socket's file: a user's number.
    User(u32),
    /// By the network.
    Address(IpAddr),
    /// One that has left already, or whose address is of another kind.
    Unknown,
}

impl Peer {
    /// The one of a connection.
    pub fn of(socket: BorrowedFd<'_>) -> Peer {
        if unix_socket::is_unix_stream(socket) {
            let credentials = unix_socket::peer_credentials(socket);
            return credentials.map_or(Peer::Unknown, |who| Peer::User(who.uid));
        }
        let address = getpeername(socket).ok().flatten();
        let address = address.and_then(|address| SocketAddr::try_from(address).ok());
        // IPv4 on a socket for both comes as ::ffff:a.b.c.d.
        address.map_or(Peer::Unknown, |address| Peer::Address(address.ip().to_canonical()))
    }
}
