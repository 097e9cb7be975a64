//! Signals that end a process unless it handles them.

use super::process::{Process, port, vioswitchd};
use testkit::proc::Dir;

fn start() -> Process {
    let dir = Dir::new();
    let mut command = vioswitchd();
    command.arg(port(dir.path(), "p0"));
    let mut d = Process::start(dir, command);
    d.wait_log("ready: ");
    d
}

/// Without a file nothing changes by a reload: that is said, and guests keep their network.
#[test]
fn sighup_and_sigusr2_are_a_line_and_nothing_else() {
    let mut d = start();
    for (signal, line) in [
        (libc::SIGHUP, "SIGHUP: vioswitchd was started without --config"),
        (libc::SIGUSR2, "SIGUSR2 is ignored; SIGUSR1 logs the counters"),
    ] {
        d.signal(signal);
        d.wait_log(line);
        assert!(d.is_running());
    }
    d.signal(libc::SIGTERM);
    assert_eq!(d.ended().code(), Some(0), "{}", d.log());
    assert!(!d.path("p0").exists());
}

/// Whatever makes it leave, no socket is left behind.
#[test]
fn sigquit_is_an_orderly_end() {
    let mut d = start();
    d.signal(libc::SIGQUIT);
    assert_eq!(d.ended().code(), Some(0), "{}", d.log());
    assert!(!d.path("p0").exists());
}
