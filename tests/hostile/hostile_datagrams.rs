//! Hostile peers of a `type=dgram` stream: they reach nobody's socket but their own, stop nobody,
//! and leave nothing behind.

use std::os::fd::AsRawFd;
use std::os::unix::fs::{chown, symlink};
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use testkit::dgram::{DgramPeer, HELLO};
use testkit::net::{Job, Sizes};
use testkit::proc::wait_for;
use testkit::traffic::To;
use testkit::{Rng, SOON, rounds, silent, skip};
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

use super::hostile_streams::{Lab, RESERVED, frame};

fn lab(extra: &[&str]) -> Lab {
    Lab::with_keys(",type=dgram", extra)
}

fn peer(lab: &Lab, name: &str) -> DgramPeer {
    DgramPeer::connect(&lab.at(name), &lab.at("evil"))
}

/// A datagram of a socket with this path, or without one, which the switch may refuse.
fn knock(lab: &Lab, name: Option<&str>) -> UnixDatagram {
    let socket = match name {
        Some(name) => UnixDatagram::bind(lab.at(name)).expect("bind"),
        None => UnixDatagram::unbound().expect("socket"),
    };
    let sent = || socket.send_to(HELLO, lab.at("evil")).is_ok();
    assert!(wait_for(SOON, sent), "{}", lab.d.log());
    socket
}

/// All datagrams of peers that are not served are counted.
fn is_refused(lab: &Lab, count: u64) {
    let counted = || lab.d.counters().get("evil", "peers_refused");
    assert!(wait_for(SOON, || counted() == count), "{} counted", counted());
}

fn finish(lab: Lab) {
    let peer = peer(&lab, "honest");
    lab.serves(|| peer.send(&frame()));
}

/// Paths that lead to other users' or other programs' sockets, or nowhere.
#[test]
fn a_path_of_others_is_not_used() {
    let mut lab = lab(&[]);
    let victim = UnixDatagram::bind(lab.at("victim")).expect("bind");
    victim.set_nonblocking(true).expect("option");
    let _nameless = knock(&lab, None);
    let _gone = knock(&lab, Some("gone"));
    std::fs::remove_file(lab.at("gone")).expect("remove");
    let _linked = knock(&lab, Some("linked"));
    std::fs::remove_file(lab.at("linked")).expect("remove");
    symlink(lab.at("victim"), lab.at("linked")).expect("link");
    // Sent by root, and the file of somebody else.
    let foreign = UnixDatagram::bind(lab.at("foreign")).expect("bind");
    chown(lab.at("foreign"), Some(12_345), None).expect("chown");
    foreign.send_to(HELLO, lab.at("evil")).expect("send");
    foreign.set_nonblocking(true).expect("option");
    lab.net.run(&[Job::new(0, To::Broadcast, 20, Sizes::Fixed(60))]);
    lab.chat(100);
    for socket in [&victim, &foreign] {
        assert!(socket.recv(&mut [0; 2_000]).is_err(), "a frame reached it");
    }
    is_refused(&lab, 4);
    assert!(lab.d.log().contains("a peer is not served"), "{}", lab.d.log());
    assert!(!lab.d.log().contains("port evil: connected"), "{}", lab.d.log());
    finish(lab);
}

/// The file system of a peer's path never answers: the next peer is served all the same.
#[test]
fn a_path_of_a_server_that_never_answers_holds_up_nobody() {
    let (paths, mounted) = std::sync::mpsc::channel();
    let test = move || {
        if !silent::own_mounts() {
            return skip("needs mounts of its own");
        }
        let lab = lab(&[]);
        std::fs::create_dir(lab.at("far")).expect("create");
        let Some(server) = silent::mount(&lab.at("far"), 0, libc::S_IFDIR) else {
            return skip("FUSE cannot be mounted");
        };
        paths.send((lab.at("far/peer"), lab.at("evil"))).expect("somebody listens");
        is_refused(&lab, 1);
        let first = peer(&lab, "first");
        lab.takes(|| first.send(&frame()));
        drop(first);
        // The directory is removed at the end.
        silent::unmount(&lab.at("far"));
        drop(server);
        finish(lab);
    };
    let test = std::thread::spawn(test);
    // The peer lacks the mount, and so has a socket there.
    let _peer = mounted.recv().map(|(path, evil)| {
        let peer = UnixDatagram::bind(path).expect("bind");
        peer.send_to(HELLO, evil).expect("send");
        peer
    });
    test.join().expect("what is told above");
}

/// A flood of datagrams that are refused costs no CPU, and honest traffic nothing.
#[test]
fn refused_datagrams_cost_little() {
    let mut lab = lab(&[]);
    let flood = UnixDatagram::unbound().expect("socket");
    flood.set_nonblocking(true).expect("option");
    let begun = std::time::Instant::now();
    while begun.elapsed() < Duration::from_secs(1) {
        // Until the queue is full, and again.
        if flood.send_to(&[0; 60], lab.at("evil")).is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let lines = lab.d.log().matches("a peer is not served").count();
    assert!((1..=4).contains(&lines), "{lines} lines");
    lab.chat(500);
    lab.d.stop();
}

#[test]
fn garbage_costs_its_sender_alone() {
    let mut lab = lab(&["--workers", "2"]);
    let (mut rng, peer) = (Rng::new(7), peer(&lab, "vm"));
    peer.send(HELLO);
    for _ in 0..rounds(500, 3_000, 30_000) {
        let mut bytes: Vec<u8> = (0..rng.below(2_000)).map(|_| rng.next() as u8).collect();
        bytes.iter_mut().zip(RESERVED).for_each(|(byte, reserved)| *byte = reserved);
        peer.send(&bytes);
    }
    let c = lab.d.counters();
    assert_eq!(c.drops(Some("p0"), "in") + c.drops(Some("p1"), "in"), 0, "{c:?}");
    lab.chat(100);
    drop(peer);
    finish(lab);
}

/// While a peer is served the kernel refuses others; nothing is left of those who come and go.
#[test]
fn nothing_is_left_of_those_who_come_and_go() {
    let lab = lab(&[]);
    let visit = || {
        let peer = peer(&lab, "vm");
        let before = lab.frames();
        peer.send(&frame());
        assert!(wait_for(SOON, || lab.frames() > before), "{}", lab.d.log());
        let other = UnixDatagram::unbound().expect("socket");
        let refused = other.send_to(HELLO, lab.at("evil")).expect_err("is heard");
        assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
        if let Ok(file) = std::fs::File::open("/dev/null") {
            // Linux 6.16 refuses descriptors; before, they end the connection.
            let _ = peer.socket.send_with_fd(&frame()[..], file.as_raw_fd());
        }
    };
    visit();
    let before = lab.d.settled_usage();
    (0..rounds(5, 20, 100)).for_each(|_| visit());
    let settled = || lab.d.settled_usage().fds <= before.fds;
    assert!(wait_for(SOON, settled), "{before:?} {:?}", lab.d.usage());
    finish(lab);
}
