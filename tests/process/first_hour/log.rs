//! What `log-level` and `RUST_LOG` may say: and a log that is the journal's.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::process::Command;

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
    for rust_log in ["off", "info", "", "vioswitch_datapath::worker=trace"] {
        let (status, log) = failing(rust_log);
        assert_eq!(status, Some(1), "{rust_log}: {log}");
        assert!(log.contains("exists and is not a socket"), "{rust_log}: {log:?}");
    }
}

/// The variable overrides the option, and the option the default.
#[test]
fn the_level_is_the_options_unless_the_variable_says_otherwise() {
    for (rust_log, level, said) in [
        (None, "warn", false),
        (None, "INFO", true),
        (Some(""), "off", false),
        (Some("info"), "off", true),
        (Some("off"), "trace", false),
    ] {
        let dir = Dir::new();
        let mut command = vioswitchd();
        command.env_remove("RUST_LOG").args(["--log-level", level]).arg(port(dir.path(), "p0"));
        rust_log.map(|rust_log| command.env("RUST_LOG", rust_log));
        let socket = dir.path().join("p0");
        let mut d = Process::start(dir, command);
        assert!(testkit::proc::wait_for(SOON, || socket.exists()));
        d.signal(libc::SIGTERM);
        assert!(d.ended().success());
        assert_eq!(d.log().contains("port p0 addresses 0"), said, "{rust_log:?} {level}");
    }
    let mut command = vioswitchd();
    let dir = Dir::new();
    command.args(["--log-level", "loud"]).arg(port(dir.path(), "p0"));
    let mut d = Process::start(dir, command);
    assert_eq!(d.ended().code(), Some(2));
    let expected = "log-level must be off, error, warn, info, debug or trace, not 'loud'";
    assert!(d.log().contains(expected) && d.log().lines().count() == 1, "{}", d.log());
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

/// Runs the daemon where the journal's directory is `dir`; none without root.
fn beside_a_journal(dir: &Path) -> Option<Command> {
    if testkit::skips_without_mounts() {
        return None;
    }
    let mut command = vioswitchd();
    let program = command.get_program().to_owned();
    let own_run = "mount -t tmpfs none /run && mkdir -p /run/systemd/journal && \
                   mount --bind \"$0\" /run/systemd/journal && exec \"$@\"";
    let mut shell = Command::new("unshare");
    shell.args(["--mount", "sh", "-ec", own_run]).arg(dir).arg(program);
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    command.env_clear();
    Some(shell)
}

/// The fields of an entry.
fn fields(entry: &[u8]) -> HashMap<String, String> {
    let text = String::from_utf8(entry.to_vec()).expect("UTF-8");
    let fields = text.lines().map(|line| line.split_once('=').expect("a field"));
    fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

#[test]
fn the_journal_gets_the_port_and_the_kind_of_event() {
    let (dir, journal) = (Dir::new(), Dir::new());
    let Some(mut command) = beside_a_journal(journal.path()) else { return };
    let socket = UnixDatagram::bind(journal.path().join("socket")).expect("bind");
    socket.set_read_timeout(Some(SOON)).expect("timeout");
    let path = dir.path().join("stderr");
    let file = File::create(&path).expect("create");
    let found = file.metadata().expect("made");
    command.env("JOURNAL_STREAM", format!("{}:{}", found.dev(), found.ino()));
    let mut child = command.arg(port(dir.path(), "vm1")).stderr(file).spawn().expect("vioswitchd");
    let next = || {
        let mut entry = [0; 8192];
        let count = socket.recv(&mut entry).expect("an entry");
        fields(&entry[..count])
    };
    let ready = next();
    assert_eq!(ready["MESSAGE"], "ready: 1 port, 0 taps");
    assert_eq!((ready["PRIORITY"].as_str(), ready["VIOSWITCH_EVENT"].as_str()), ("6", "ready"));
    assert_eq!(
        (ready["SYSLOG_IDENTIFIER"].as_str(), ready["MESSAGE_ID"].len()),
        ("vioswitchd", 32)
    );
    drop(UnixStream::connect(dir.path().join("vm1")).expect("connect").write_all(&[0xff; 64]));
    let connected = next();
    assert_eq!(connected["VIOSWITCH_PORT"], "vm1");
    assert!(!connected.contains_key("MESSAGE_ID"), "{connected:?}");
    let detached = next();
    assert!(detached["MESSAGE"].starts_with("port vm1: connection closed: "), "{detached:?}");
    assert_eq!((detached["PRIORITY"].as_str(), detached["VIOSWITCH_PORT"].as_str()), ("4", "vm1"));
    assert_eq!(detached["VIOSWITCH_EVENT"], "detached");
    // The journal is gone: what is said then is on standard error. Its name goes first: a program
    // that another test is about to start has the socket open until its exec.
    fs::remove_file(journal.path().join("socket")).expect("remove");
    drop(socket);
    assert!(testkit::sys::kill(child.id(), libc::SIGUSR2));
    let text = || fs::read_to_string(&path).expect("standard error");
    let said = testkit::proc::wait_for(SOON, || text().contains("<4>SIGUSR2 is ignored"));
    assert!(testkit::sys::kill(child.id(), libc::SIGTERM));
    assert!(child.wait().expect("vioswitchd").success() && said, "{}", text());
}

/// systemd names the journal's socket; here it is a file, and nobody takes datagrams.
#[test]
fn the_journal_gets_priorities_and_no_time() {
    for (meant, inode) in [(true, 0), (false, 1)] {
        let dir = Dir::new();
        let path = dir.path().join("journal");
        let file = File::create(&path).expect("create");
        let found = file.metadata().expect("made");
        let stream = format!("{}:{}", found.dev(), found.ino() + inode);
        let journal = Dir::new();
        let Some(mut command) = beside_a_journal(journal.path()) else { return };
        command.env("JOURNAL_STREAM", stream).arg(port(dir.path(), "p0"));
        let mut child = command.stderr(file).spawn().expect("start vioswitchd");
        let text = || fs::read_to_string(&path).expect("journal");
        let ready = testkit::proc::wait_for(SOON, || text().contains("ready: "));
        assert!(testkit::sys::kill(child.id(), libc::SIGUSR2));
        let said = testkit::proc::wait_for(SOON, || text().contains("SIGUSR2"));
        let _ = child.kill();
        let _ = child.wait();
        assert!(ready && said, "{}", text());
        for line in text().lines() {
            assert_eq!(
                line.starts_with("<6>") || line.starts_with("<4>SIGUSR2 is ignored"),
                meant,
                "{line}"
            );
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
        let journal = Dir::new();
        let Some(mut command) = beside_a_journal(journal.path()) else { return };
        command.env("JOURNAL_STREAM", format!("{}:{}", found.dev(), found.ino()));
        let ended = command.arg(argument).stderr(file).status().expect("run vioswitchd");
        let text = fs::read_to_string(&path).expect("journal");
        assert_eq!(ended.code(), Some(status), "{text}");
        assert!(text.starts_with(start) && text.lines().count() == 1, "{text}");
    }
}
