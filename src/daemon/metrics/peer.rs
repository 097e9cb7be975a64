//! The peer at the other end of a connection, as far as the peer is known.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

use rustix::net::getpeername;

use sys::unix_socket;

/// The clients that share the places of one peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// A user that connects by a socket's file: the user's number.
    User(u32),
    /// A host that connects by the network.
    Address(IpAddr),
    /// A client that has left already, or whose address is of another kind.
    Unknown,
}

impl Peer {
    /// Returns the peer of a connection.
    pub(crate) fn of(socket: BorrowedFd<'_>) -> Peer {
        if unix_socket::is_unix_stream(socket) {
            let credentials = unix_socket::peer_credentials(socket);
            return credentials.map_or(Peer::Unknown, |who| Peer::User(who.uid));
        }
        let address = getpeername(socket).ok().flatten();
        let address = address.and_then(|address| SocketAddr::try_from(address).ok());
        // An IPv4 address on a socket for both versions comes as ::ffff:a.b.c.d.
        address.map_or(Peer::Unknown, |address| Peer::Address(address.ip().to_canonical()))
    }
}
