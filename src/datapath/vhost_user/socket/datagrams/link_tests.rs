//! Links whose peer is a test.

use std::fs;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use vmm_sys_util::sock_ctrl_msg::ScmSocket;

use super::*;
use crate::port::device::datagrams::DatagramLink;
use crate::port::device::link::{End, Link};
use base::frame::VNET_HDR_LEN;
use sys::frame_io::{FrameBatch, FrameIo, Transfer};

/// A directory of one test, with a link in it.
struct Lab {
    dir: PathBuf,
    source: Datagrams,
}

impl Lab {
    fn new(name: &str) -> Lab {
        let dir =
            std::env::temp_dir().join(format!("vioswitch-link-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir(&dir).unwrap();
        let access = Access { mode: 0o600, group: None };
        let source = Datagrams::bind(&dir.join("switch"), access).unwrap();
        Lab { dir, source }
    }

    /// Returns a peer that has sent this datagram.
    fn peer(&self, name: &str, first: &[u8]) -> UnixDatagram {
        let peer = UnixDatagram::bind(self.dir.join(name)).unwrap();
        peer.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        peer.connect(self.dir.join("switch")).unwrap();
        peer.send(first).unwrap();
        peer
    }

    fn link(&mut self) -> DatagramLink {
        let stop = EventFd::new(libc::EFD_NONBLOCK).unwrap();
        let met = self.source.meet(&stop, &Counter::default()).unwrap();
        DatagramLink::new(met.socket, Box::new(met.address), met.first, Arc::default())
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn write_all(link: &DatagramLink, frames: &[&[u8]]) -> Vec<Transfer> {
    let frames: Vec<_> =
        frames.iter().map(|frame| [&[0; VNET_HDR_LEN][..], frame].concat()).collect();
    FrameBatch::flushed(link, &frames)
}

fn read(link: &DatagramLink) -> Result<Vec<u8>, Transfer> {
    let mut buffer = vec![0xff; MAX_FRAME_LEN as usize + VNET_HDR_LEN];
    match link.read(&mut buffer) {
        Transfer::Done(len) => {
            assert_eq!(buffer[..VNET_HDR_LEN], [0; VNET_HDR_LEN]);
            Ok(buffer[VNET_HDR_LEN..len].to_vec())
        }
        other => Err(other),
    }
}

#[test]
fn each_datagram_is_a_frame() {
    let mut lab = Lab::new("frames");
    let peer = lab.peer("vm", b"the first");
    let stranger = lab.peer("stranger", b"not a frame");
    peer.send(b"").unwrap();
    peer.send(b"the third").unwrap();
    let link = lab.link();
    let refused = stranger.send(b"x").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
    assert_eq!(read(&link).unwrap(), b"the first");
    assert_eq!(read(&link).unwrap(), b"");
    assert_eq!(read(&link).unwrap(), b"the third");
    assert_eq!(read(&link), Err(Transfer::WouldBlock));
    for len in [0, 14, 1514, MAX_FRAME_LEN as usize] {
        let frame = vec![len as u8; len];
        peer.send(&frame).unwrap();
        assert_eq!(read(&link).unwrap(), frame);
        assert_eq!(write_all(&link, &[&frame]), [Transfer::Done(VNET_HDR_LEN + len)]);
        let mut got = vec![0; len + 1];
        assert_eq!((peer.recv(&mut got).unwrap(), &got[..len]), (len, &frame[..]));
    }
    let long = vec![0; MAX_FRAME_LEN as usize + 1];
    assert_eq!(write_all(&link, &[&long]), [Transfer::Rejected(libc::EMSGSIZE)]);
    peer.send(&long).unwrap();
    peer.send(b"next").unwrap();
    assert_eq!(read(&link), Err(Transfer::Rejected(libc::EMSGSIZE)));
    assert_eq!(read(&link).unwrap(), b"next");
    assert_eq!(link.end(), None);
}

/// No call waits for a peer that does not read, and its frames are dropped whole.
#[test]
fn a_full_peer_costs_its_own_frames() {
    let mut lab = Lab::new("full");
    let peer = lab.peer("vm", HELLO);
    let link = lab.link();
    let frame = [7; 1514];
    let mut sent = 0;
    while write_all(&link, &[&frame]) == [Transfer::Done(VNET_HDR_LEN + frame.len())] {
        sent += 1;
        assert!(sent < 100_000, "never full");
    }
    assert_eq!(write_all(&link, &[&frame[..]; 3]), [Transfer::WouldBlock; 3]);
    let mut got = [0; 2_000];
    for _ in 0..sent {
        assert_eq!(peer.recv(&mut got).unwrap(), frame.len());
    }
    assert_eq!(write_all(&link, &[b"again"]), [Transfer::Done(VNET_HDR_LEN + 5)]);
    assert_eq!(peer.recv(&mut got).unwrap(), 5);
}

#[test]
fn a_peer_that_leaves_is_noticed() {
    for name in ["looked-at", "sent-to"] {
        let mut lab = Lab::new(name);
        let peer = lab.peer(name, HELLO);
        let link = lab.link();
        assert!(link.look().is_some() && link.end().is_none());
        drop(peer);
        if name == "looked-at" {
            assert!(link.look().is_some());
        } else {
            assert_eq!(write_all(&link, &[b"x", b"y"]), [Transfer::Gone; 2]);
        }
        assert_eq!(link.end(), Some(&End::Left));
        assert_eq!(read(&link), Err(Transfer::Gone));
    }
}

/// Also with an empty datagram, whose length tells nothing.
#[test]
fn descriptors_end_the_link() {
    for bytes in [&b""[..], b"a frame"] {
        let mut lab = Lab::new(&format!("files-{}", bytes.len()));
        let peer = lab.peer("vm", HELLO);
        let link = lab.link();
        let (mut reader, writer) = std::io::pipe().unwrap();
        // Linux 6.16 refuses them.
        if peer.send_with_fd(bytes, writer.as_raw_fd()).is_ok() {
            assert_eq!(read(&link), Err(Transfer::Gone));
            assert_eq!(link.end(), Some(&End::Descriptors));
        }
        let _ = peer.send_with_fd(bytes, writer.as_raw_fd());
        drop((writer, link));
        assert_eq!(std::io::Read::read(&mut reader, &mut [0]).unwrap(), 0);
    }
}
