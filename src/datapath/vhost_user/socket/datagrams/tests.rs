//! Sources of peers whose peers are a test.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;

/// A directory of one test.
struct Lab(PathBuf);

impl Lab {
    fn new(name: &str) -> Lab {
        let dir =
            std::env::temp_dir().join(format!("vioswitch-dgram-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir(&dir).unwrap();
        Lab(dir)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn source(&self) -> Datagrams {
        Datagrams::bind(&self.at("switch"), Access { mode: 0o600, group: None }).unwrap()
    }

    /// Returns a peer with a path of its own, which has sent this datagram.
    fn peer(&self, name: &str, first: &[u8]) -> UnixDatagram {
        let _ = fs::remove_file(self.at(name));
        let peer = UnixDatagram::bind(self.at(name)).unwrap();
        peer.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        peer.connect(self.at("switch")).unwrap();
        peer.send(first).unwrap();
        peer
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn stop() -> EventFd {
    EventFd::new(libc::EFD_NONBLOCK).unwrap()
}

#[test]
fn a_peer_begins_with_the_handshake_or_a_frame() {
    for (first, frame) in [(HELLO, &b""[..]), (b"a frame", b"a frame"), (b"", b"")] {
        let lab = Lab::new("begin");
        let mut source = lab.source();
        let peer = lab.peer("vm", first);
        let met = source.meet(&stop(), &Counter::default()).unwrap();
        assert_eq!(met.first, frame);
        let uid = rustix::process::getuid().as_raw();
        assert_eq!((met.peer.pid, met.peer.uid), (std::process::id() as libc::pid_t, uid));
        scm::send(met.socket.as_fd(), b"answer").unwrap();
        let mut got = [0; 16];
        assert_eq!(peer.recv(&mut got).unwrap(), 6);
        // Nobody else is heard.
        let other = UnixDatagram::unbound().unwrap();
        let refused = other.send_to(b"x", lab.at("switch")).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        assert!(met.address.is_alive());
        drop(peer);
        assert!(!met.address.is_alive());
        drop(source);
        assert!(!lab.at("switch").exists());
    }
}

/// A peer chooses its path, and may put there what it likes.
#[test]
fn a_path_that_leads_elsewhere_is_refused() {
    let lab = Lab::new("refused");
    let mut source = lab.source();
    let victim = UnixDatagram::bind(lab.at("victim")).unwrap();
    victim.set_nonblocking(true).unwrap();
    UnixDatagram::unbound().unwrap().send_to(HELLO, lab.at("switch")).unwrap();
    let linked = lab.peer("linked", HELLO);
    fs::remove_file(lab.at("linked")).unwrap();
    symlink(lab.at("victim"), lab.at("linked")).unwrap();
    let _gone = lab.peer("gone", HELLO);
    fs::remove_file(lab.at("gone")).unwrap();
    let _closed = lab.peer("closed", HELLO);
    drop(_closed);
    let foreign = lab.peer("foreign", HELLO);
    let has_foreign = std::os::unix::fs::chown(lab.at("foreign"), Some(12_345), None).is_ok();
    if !has_foreign {
        // Only root can give a file away.
        fs::remove_file(lab.at("foreign")).unwrap();
    }
    let _honest = lab.peer("honest", HELLO);
    let refused = Counter::default();
    let met = source.meet(&stop(), &refused).unwrap();
    assert_eq!(refused.get(), 5);
    assert!(met.address.path == lab.at("honest"), "{:?}", met.address);
    for other in [&victim, &linked, &foreign] {
        other.set_nonblocking(true).unwrap();
        let nothing = other.recv(&mut [0; 16]).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
    }
}

/// The peer reads the switch's path from its datagrams, as gvproxy does.
#[test]
fn a_client_has_a_path_and_says_hello() {
    let lab = Lab::new("client");
    let path = lab.at("far");
    let mut source = Datagrams::to(&path).unwrap();
    for _ in 0..2 {
        let _ = fs::remove_file(&path);
        let far = UnixDatagram::bind(&path).unwrap();
        let met = source.meet(&stop(), &Counter::default()).unwrap();
        let mut got = [0; 16];
        let (count, from) = far.recv_from(&mut got).unwrap();
        let own = lab.at("far.vioswitch");
        assert_eq!((&got[..count], from.as_pathname()), (HELLO, Some(own.as_path())));
        assert_eq!(fs::metadata(&own).unwrap().permissions().mode() & 0o777 & !0o660, 0);
        far.send_to(b"frame", &own).unwrap();
        let mut files = Vec::new();
        let (received, sender) =
            scm::receive_from(met.socket.as_fd(), &mut got, &mut files).unwrap();
        assert_eq!((received.bytes, met.address.is_of(&sender)), (5, true));
        drop(far);
        assert!(!met.address.is_alive());
    }
    drop(source);
    assert!(!lab.at("far.vioswitch").exists());
    let long = Path::new("/").join("x".repeat(100));
    assert!(matches!(Datagrams::to(&long), Err(SocketError::BadPath(_))));
}

#[test]
fn a_live_socket_is_left_alone() {
    let lab = Lab::new("live");
    let _source = lab.source();
    let again = Datagrams::bind(&lab.at("switch"), Access { mode: 0o600, group: None });
    assert!(matches!(again, Err(SocketError::InUse(..))));
    fs::write(lab.at("file"), "").unwrap();
    let file = Datagrams::bind(&lab.at("file"), Access { mode: 0o600, group: None });
    assert!(matches!(file, Err(SocketError::NotASocket(_))));
}

#[test]
fn a_stop_ends_the_wait() {
    let lab = Lab::new("stop");
    let (mut source, stop) = (lab.source(), stop());
    stop.write(1).unwrap();
    assert!(source.meet(&stop, &Counter::default()).is_none());
    let mut nowhere = Datagrams::to(&lab.at("nowhere")).unwrap();
    assert!(nowhere.meet(&stop, &Counter::default()).is_none());
}
