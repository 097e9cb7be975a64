//! What `RUST_LOG` may say, and a log that is the journal's.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;

use super::process::{Process, SOON, port, vioswitchd};
use testkit::proc::Dir;

/// A start that fails because something is in the way of its only socket.
fn failing(rust_log: &str) -> (Option<i32>, String) {
    let dir = Dir::new();
    fs::write(dir.path().join("p0"), "in the way").expect("write");
    let mut command = vioswitchd();
    command.env("RUST_LOG", rust_log).arg(port(dir.path(), "p0"));
    let mut d = Process::start(dir, command);
    (d.ended().code(), d.log())
}

#[test]
fn why_it_cannot_start_is_said_whatever_rust_log_lets_through() {
    for rust_log in ["off", "info", "", "vioswitch::worker=trace"] {
        let (status, log) = failing(rust_log);
        assert_eq!(status, Some(1), "{rust_log}: {log}");
        assert!(log.contains("exists and is not a socket"), "{rust_log}: {log:?}");
    }
}

#[test]
fn a_word_that_is_no_level_is_an_error() {
    for rust_log in ["verbose", "info,vioswitch=verbose", "\u{1b}[2J\n"] {
        let (status, log) = failing(rust_log);
        assert_eq!(status, Some(2), "{rust_log}: {log}");
        assert!(log.starts_with("RUST_LOG: \"") && log.lines().count() == 1, "{log:?}");
        assert!(log.contains("write off, error, warn, info, debug or trace"), "{log}");
        assert!(!log.contains('\u{1b}'), "{log:?}");
    }
}

/// systemd names the journal's socket; here it is a file.
#[test]
fn the_journal_gets_priorities_and_no_time() {
    for (meant, inode) in [(true, 0), (false, 1)] {
        let dir = Dir::new();
        let path = dir.path().join("journal");
        let file = File::create(&path).expect("create");
        let found = file.metadata().expect("made");
        let stream = format!("{}:{}", found.dev(), found.ino() + inode);
        let mut command = vioswitchd();
        command.env("JOURNAL_STREAM", stream).arg(port(dir.path(), "p0"));
        let mut child = command.stderr(file).spawn().expect("start vioswitchd");
        let text = || fs::read_to_string(&path).expect("journal");
        let ready = testkit::proc::wait_for(SOON, || text().contains("ready: "));
        assert!(testkit::sys::kill(child.id(), libc::SIGHUP));
        let said = testkit::proc::wait_for(SOON, || text().contains("SIGHUP"));
        let _ = child.kill();
        let _ = child.wait();
        assert!(ready && said, "{}", text());
        for line in text().lines() {
            assert_eq!(line.starts_with("<6>") || line.starts_with("<4>SIGHUP: "), meant, "{line}");
            assert_eq!(line.starts_with('['), !meant, "{line}");
        }
    }
}

#[test]
fn the_journal_gets_the_priority_of_errors_at_start() {
    let dir = Dir::new();
    let path = dir.path().join("journal");
    let blocked = dir.path().join("p0");
    fs::write(&blocked, "in the way").expect("write");
    for (argument, status, start) in [
        ("--bogus".to_owned(), 2, "<3>vioswitchd: unexpected argument '--bogus'"),
        (port(dir.path(), "p0"), 1, "<3>port p0: "),
    ] {
        let file = File::create(&path).expect("create");
        let found = file.metadata().expect("made");
        let mut command = vioswitchd();
        command.env("JOURNAL_STREAM", format!("{}:{}", found.dev(), found.ino()));
        let ended = command.arg(argument).stderr(file).status().expect("run vioswitchd");
        let text = fs::read_to_string(&path).expect("journal");
        assert_eq!(ended.code(), Some(status), "{text}");
        assert!(text.starts_with(start) && text.lines().count() == 1, "{text}");
    }
}
