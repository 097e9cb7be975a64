//! The other end of a stream: a process that speaks QEMU's `-netdev stream`, written anew from
//! QEMU's net/stream.c: a length of four bytes, big-endian, and the frame.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::SOON;
use crate::proc::wait_for;

/// A peer.
pub struct Peer {
    pub socket: UnixStream,
    got: Vec<u8>,
}

/// A frame behind its length.
pub fn packed(frame: &[u8]) -> Vec<u8> {
    [&(frame.len() as u32).to_be_bytes()[..], frame].concat()
}

impl Peer {
    pub fn new(socket: UnixStream) -> Peer {
        Peer { socket, got: Vec::new() }
    }

    /// To a stream that listens.
    pub fn connect(path: &Path) -> Peer {
        let mut socket = None;
        let there = wait_for(SOON, || {
            socket = UnixStream::connect(path).ok();
            socket.is_some()
        });
        assert!(there, "nobody listens on {}", path.display());
        Peer::new(socket.expect("connected"))
    }

    /// From a stream that connects.
    pub fn accept(listener: &UnixListener) -> Peer {
        Peer::new(listener.accept().expect("accept").0)
    }

    /// Bytes as they are.
    pub fn write(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).expect("write to the switch");
    }

    pub fn send(&mut self, frame: &[u8]) {
        self.write(&packed(frame));
    }

    /// The next frame.
    pub fn receive(&mut self, limit: Duration) -> Option<Vec<u8>> {
        let end = Instant::now() + limit;
        loop {
            if let Some(frame) = self.whole() {
                return Some(frame);
            }
            if !self.read(end.saturating_duration_since(Instant::now())) {
                return None;
            }
        }
    }

    /// The next frame that comes from this station.
    pub fn receive_from(&mut self, mac: [u8; 6], limit: Duration) -> Option<Vec<u8>> {
        loop {
            let frame = self.receive(limit)?;
            if frame[6..12] == mac {
                return Some(frame);
            }
        }
    }

    /// True if the switch ends the connection in time; frames that come before are lost.
    pub fn closed_within(&mut self, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        while self.read(end.saturating_duration_since(Instant::now())) {
            self.got.clear();
        }
        Instant::now() < end
    }

    /// Takes the first whole frame out of what came.
    fn whole(&mut self) -> Option<Vec<u8>> {
        let (len, rest) = self.got.split_first_chunk::<4>()?;
        let len = u32::from_be_bytes(*len) as usize;
        assert!((14..=65_557).contains(&len), "a frame of {len} bytes: torn?");
        let frame = rest.get(..len)?.to_vec();
        self.got.drain(..4 + len);
        Some(frame)
    }

    /// Reads once; false if nothing comes, or never will.
    fn read(&mut self, limit: Duration) -> bool {
        let limit = limit.max(Duration::from_millis(1));
        self.socket.set_read_timeout(Some(limit)).expect("timeout");
        let mut bytes = vec![0; 1 << 18];
        match self.socket.read(&mut bytes) {
            // A signal that a test sends to its own threads.
            Err(error) if error.kind() == ErrorKind::Interrupted => true,
            Ok(0) => false,
            Ok(n) => {
                self.got.extend_from_slice(&bytes[..n]);
                true
            }
            Err(error) => {
                let late = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
                assert!(late || error.kind() == ErrorKind::ConnectionReset, "{error}");
                false
            }
        }
    }
}
