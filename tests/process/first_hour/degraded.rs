//! A port whose socket cannot be had is left out: the others are served, and the service manager
//! learns of both.

use std::fs;
use std::os::unix::net::UnixDatagram;

use super::process::{Process, SOON, port, vioswitchd};
use testkit::frontend::Frontend;
use testkit::proc::Dir;

#[test]
fn one_unusable_path_costs_one_port() {
    let dir = Dir::new();
    let notify = dir.path().join("notify");
    let manager = UnixDatagram::bind(&notify).expect("bind");
    manager.set_read_timeout(Some(SOON)).expect("time limit");
    fs::write(dir.path().join("p1"), "in the way").expect("write");
    let mut command = vioswitchd();
    command.args([port(dir.path(), "p0"), port(dir.path(), "p1")]);
    command.arg(port(&dir.path().join("none"), "p2")).env("NOTIFY_SOCKET", &notify);
    // What is left out is said whatever is let through.
    command.env("RUST_LOG", "vioswitch_daemon::program=warn");
    let mut d = Process::start(dir, command);
    d.wait_log("ready: 3 ports, 0 taps, degraded, ports left out: 2 (p1, p2)");
    let log = d.log();
    assert!(
        log.contains("/p1\" exists and is not a socket; the switch leaves the port out"),
        "{log}"
    );
    assert!(log.contains("ERROR] port p2: socket \""), "{log}");
    let state = || loop {
        let mut buffer = [0; 512];
        let len = manager.recv(&mut buffer).expect("told");
        let said = String::from_utf8_lossy(&buffer[..len]).into_owned();
        if !said.starts_with("FDSTORE") {
            break said;
        }
    };
    assert_eq!(state(), "READY=1\nSTATUS=degraded, ports left out: 2 (p1, p2)");
    let served = |path: &std::path::Path| {
        let mut frontend = Frontend::connect(path, SOON).expect("connect");
        frontend.get_features().expect("served");
    };
    served(&d.path("p0"));
    // What can be had later is served, and the manager knows.
    fs::create_dir(d.path("none")).expect("mkdir");
    assert_eq!(state(), "STATUS=degraded, ports left out: 1 (p1)");
    served(&d.path("none").join("p2"));
    let left = d.log().matches("port p1: in service now").count();
    assert_eq!(left, 0, "{}", d.log());
    d.signal(libc::SIGTERM);
    assert_eq!(d.ended().code(), Some(0), "{}", d.log());
    assert_eq!(fs::read_to_string(d.path("p1")).expect("stays"), "in the way");
}

/// Nothing to serve is no start: the service manager is not told that all is well.
#[test]
fn without_any_port_it_does_not_start() {
    let dir = Dir::new();
    fs::write(dir.path().join("p0"), "in the way").expect("write");
    let mut command = vioswitchd();
    command.args([port(dir.path(), "p0"), port(&dir.path().join("none"), "p1")]);
    let mut d = Process::start(dir, command);
    assert_eq!(d.ended().code(), Some(1), "{}", d.log());
    assert!(!d.log().contains("ready: "), "{}", d.log());
}
