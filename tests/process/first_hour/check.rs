//! `--check` fails what cannot start; `daemon::check` is given each case by itself.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use super::process::{port, vioswitchd};
use testkit::proc::{Dir, copy_program};

/// Nobody's number, who has no groups but his own.
const NOBODY: u32 = 65_534;

/// Status, and what was said on both ways out.
fn check(mut command: Command, args: &[String]) -> (Option<i32>, String) {
    command.arg("--check").args(args).stdout(Stdio::piped());
    let output = command.output().expect("run vioswitchd");
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(said).expect("UTF-8"))
}

fn refused(args: &[String], expected: &[&str]) {
    let (status, said) = check(vioswitchd(), args);
    assert_eq!(status, Some(1), "{args:?}: {said}");
    assert_eq!(said.lines().count(), expected.len(), "{args:?}: {said}");
    for (line, expected) in said.lines().zip(expected) {
        assert!(line.contains(expected), "{args:?}: {line} instead of {expected}");
    }
}

#[test]
fn what_could_start_is_valid_beside_a_daemon_that_serves() {
    let dir = Dir::new();
    let _serving = UnixListener::bind(dir.path().join("p0")).expect("bind");
    let args = [port(dir.path(), "p0"), port(dir.path(), "p1")];
    assert_eq!(check(vioswitchd(), &args), (Some(0), "valid: 2 ports, 0 taps\n".to_owned()));
    assert!(!dir.path().join("p1").exists());
}

#[test]
fn places_where_no_socket_can_be_made() {
    let dir = Dir::new();
    fs::write(dir.path().join("file"), "in the way").expect("write");
    let missing = port(&dir.path().join("none"), "p0");
    refused(&[missing], &["port p0: directory \""]);
    refused(&[port(dir.path(), "file")], &["/file\" exists and is not a socket"]);
    refused(&[port(&dir.path().join("file"), "p0")], &["is not a directory"]);
    let both = [port(dir.path(), "file"), port(&dir.path().join("none"), "p1")];
    refused(&both, &["port file: ", "port p1: "]);
    // Where the shell stands is not where the service will.
    let mut there = vioswitchd();
    there.current_dir(dir.path());
    let (status, said) = check(there, &["--port=p0,socket=s".to_owned()]);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.starts_with("port p0: socket \"s\" is relative"), "{said}");
    // Sockets appear here, and no user may replace another one's.
    let plug = |path: &str| vec![format!("--plug={}", dir.path().join(path).display())];
    refused(&plug("none"), &["plug: directory \""]);
    refused(&plug("file"), &["/file\" is not a directory"]);
    std::os::unix::fs::symlink(dir.path(), dir.path().join("link")).expect("link");
    refused(&plug("link"), &["/link\" is a symbolic link"]);
    fs::create_dir(dir.path().join("open")).expect("create");
    let mode = |mode| {
        fs::set_permissions(dir.path().join("open"), fs::Permissions::from_mode(mode))
            .expect("mode")
    };
    mode(0o777);
    refused(&plug("open"), &["/open\" may be written to by everybody"]);
    mode(0o1777);
    assert_eq!(check(vioswitchd(), &plug("open")).0, Some(0));
    // The front-end makes this one.
    let client = port(&dir.path().join("none"), "p0") + ",mode=client";
    assert_eq!(check(vioswitchd(), &[client]).0, Some(0));
}

#[test]
fn what_is_no_tap() {
    if !std::path::Path::new("/dev/net/tun").exists() {
        testkit::skip("/dev/net/tun is missing");
        return;
    }
    refused(&["--tap=up,ifname=lo".to_owned()], &["tap up: interface lo: exists and is not a TAP"]);
}

/// As a user who may not write there and belongs to no other group.
#[test]
fn rights_that_this_user_lacks() {
    // SAFETY: plain system call.
    if unsafe { libc::geteuid() } != 0 {
        testkit::skip("needs root, to be somebody else");
        return;
    }
    let dir = Dir::new();
    let program = dir.path().join("vioswitchd");
    copy_program(env!("CARGO_BIN_EXE_vioswitchd"), &program);
    let mode = |path: &std::path::Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("mode");
    };
    mode(dir.path(), 0o755);
    let open = dir.path().join("open");
    fs::create_dir(&open).expect("create");
    mode(&open, 0o777);
    let as_nobody = || {
        let mut command = Command::new(&program);
        command.env_remove("JOURNAL_STREAM").uid(NOBODY).gid(NOBODY);
        command
    };
    let cases = [
        (port(&open, "p0"), ""),
        (port(&open, "p0") + &format!(",socket-group={NOBODY}"), ""),
        (port(dir.path(), "p0"), "is not writable: Permission denied"),
        (
            port(&open, "p0") + ",socket-group=12345",
            "port p0: socket-group 12345: this user is not",
        ),
    ];
    for (argument, expected) in cases {
        let (status, said) = check(as_nobody(), std::slice::from_ref(&argument));
        let wanted = if expected.is_empty() { Some(0) } else { Some(1) };
        assert_eq!(status, wanted, "{argument}: {said}");
        assert!(said.contains(expected), "{argument}: {said}");
    }
    let root = port(&open, "p0") + ",socket-group=12345";
    assert_eq!(check(vioswitchd(), &[root]).0, Some(0));
}

#[test]
fn several_files_are_one_configuration() {
    let dir = Dir::new();
    let etc = |name: &str| dir.path().join(name);
    let entry =
        |name: &str| format!("[[port]]\nname = \"{name}\"\nsocket = \"{}\"\n", etc(name).display());
    fs::create_dir(etc("conf.d")).expect("mkdir");
    fs::write(etc("vioswitch.toml"), entry("a")).expect("write");
    fs::write(etc("conf.d/b.toml"), entry("b")).expect("write");
    let args = ["--config".to_owned(), etc("vioswitch.toml").display().to_string()];
    let (status, said) = check(vioswitchd(), &args);
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("valid: 2 ports, 0 taps\n"), "{said}");
    fs::write(etc("conf.d/c.toml"), entry("b")).expect("write");
    let (status, said) = check(vioswitchd(), &args);
    let places = [etc("conf.d/c.toml:2"), etc("conf.d/b.toml:2")].map(|p| p.display().to_string());
    let line = format!("{}: name 'b' is already used in {}\n", places[0], places[1]);
    assert_eq!((status, said.contains(&line)), (Some(2), true), "{said}");
}
