//! The other end of a `type=dgram` stream, written anew from the descriptions of vfkit and gvproxy:
//! a frame is a datagram, the side that connects has a path of its own and says "VFKT" first.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::SOON;
use crate::proc::wait_for;

/// The handshake of vfkit.
pub const HELLO: &[u8] = b"VFKT";

/// A peer that sends to a switch's socket, as vfkit and libkrun do.
pub struct DgramPeer {
    pub socket: UnixDatagram,
    path: PathBuf,
}

impl DgramPeer {
    /// Connects a socket with the path `own` to the switch's socket, as soon as the switch lets
    /// this peer in.
    pub fn connect(own: &Path, switch: &Path) -> DgramPeer {
        let _ = fs::remove_file(own);
        let socket = UnixDatagram::bind(own).expect("bind");
        let there = wait_for(SOON, || socket.connect(switch).is_ok());
        assert!(there, "nobody receives at {}", switch.display());
        socket.set_write_timeout(Some(SOON)).expect("time-out");
        DgramPeer { socket, path: own.to_owned() }
    }

    /// Sends a frame, or the handshake.
    pub fn send(&self, frame: &[u8]) {
        self.socket.send(frame).expect("send to the switch");
    }

    /// The next frame from this station.
    pub fn receive_from(&self, mac: [u8; 6], limit: Duration) -> Option<Vec<u8>> {
        let end = Instant::now() + limit;
        let mut buffer = vec![0; 70_000];
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let left = left.max(Duration::from_millis(1));
            self.socket.set_read_timeout(Some(left)).expect("time-out");
            let len = self.socket.recv(&mut buffer).ok()?;
            if len >= 12 && buffer[6..12] == mac {
                return Some(buffer[..len].to_vec());
            }
        }
    }
}

impl Drop for DgramPeer {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}
