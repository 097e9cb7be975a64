//! Tests hold wherever they are started from: under `nohup`, as a service, with a user's umask,
//! locale and limits. `testkit` sets before `main` what they rely on; here a test program is
//! started where all of that is different.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use testkit::proc::{Dir, program};

/// Signals, permissions of sockets, the service manager, several ports, and what is set itself.
const REPRESENTATIVE: [&str; 5] = [
    "surroundings::tests_find_what_they_rely_on",
    "lifetime::both_signals_end_it_in_every_state",
    "lifetime::readiness_is_told_when_all_sockets_exist",
    "sockets::sockets_appear_complete",
    "cli::a_configuration_is_checked",
];

/// A descriptor that a test program inherits and its children must not. No test opens so many.
const STRAY: i32 = 15_000;

/// Marks the child, which has no others.
const STARTED: &str = "VIOSWITCH_TEST_ANYWHERE";

/// A line of a process's status, without its name.
fn status<'a>(text: &'a str, name: &str) -> &'a str {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name}: {text}")).trim()
}

#[test]
fn tests_find_what_they_rely_on() {
    let output = Command::new("cat").arg("/proc/self/status").output().expect("run cat");
    let child = String::from_utf8(output.stdout).expect("a status");
    // Signals 32 and 33 are the C library's own, and it lets nobody set them.
    const OF_LIBC: u64 = 3 << (32 - 1);
    for name in ["SigBlk", "SigIgn", "SigCgt"] {
        let signals = u64::from_str_radix(status(&child, name), 16).expect("a mask");
        assert_eq!(signals & !OF_LIBC, 0, "{name}: {child}");
    }
    assert_eq!(status(&child, "Umask"), "0022");
    let ask = "env; ulimit -n; ulimit -c; ls /proc/self/fd";
    let output = Command::new("sh").args(["-c", ask]).output().expect("run sh");
    let said = String::from_utf8(output.stdout).expect("text");
    let variable =
        |name: &str| said.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    for name in [
        "LISTEN_FDS",
        "NOTIFY_SOCKET",
        "STATE_DIRECTORY",
        "RUST_LOG",
        "RUST_BACKTRACE",
        "LANG",
        "NO_COLOR",
    ] {
        assert_eq!(variable(name), None, "{said}");
    }
    assert_eq!(variable("LC_ALL"), Some("C.UTF-8"), "{said}");
    let path = variable("PATH").expect("a path");
    assert!(path.split(':').any(|dir| dir == "/usr/sbin"), "{path}");
    let temporary = variable("TMPDIR").unwrap_or("/tmp");
    assert!(temporary.len() < 60, "no room for a socket's name: {temporary}");
    let numbers: Vec<&str> = said.lines().filter(|line| !line.contains('=')).collect();
    let [files, core, descriptors @ ..] = &numbers[..] else { panic!("{said}") };
    let stray = STRAY.to_string();
    assert!(*files == "unlimited" || files.parse::<u64>().is_ok_and(|n| n >= 1024), "{said}");
    assert_eq!(*core, "0", "{said}");
    assert!(["0", "1", "2"].iter().all(|number| descriptors.contains(number)), "{said}");
    assert!(!descriptors.contains(&stray.as_str()), "{said}");
}

#[test]
fn tests_hold_in_any_surroundings() {
    if std::env::var_os(STARTED).is_some() {
        return;
    }
    let dir = Dir::new();
    let long = dir.path().join("a-directory-for-temporary-files".repeat(4));
    fs::DirBuilder::new().mode(0o700).create(&long).expect("a directory");
    for umask in ["077", "000"] {
        // Closed standard input, and further down a descriptor that children do not expect.
        let script = "trap '' HUP INT QUIT TERM USR1 USR2 TSTP CHLD; umask $0; ulimit -Sn 64; \
                      ulimit -Sc unlimited; exec \"$@\" <&-";
        let mut command = Command::new("sh");
        command.args(["-c", script, umask]);
        command.arg(std::env::current_exe().expect("this program"));
        command.args(["--exact", "--test-threads=4"]).args(REPRESENTATIVE);
        command.env_clear().env(STARTED, "1").env("TMPDIR", &long).env("VIOSWITCHD_BIN", program());
        command.env("PATH", "/usr/bin:/bin").env("HOME", "/nonexistent").env("TERM", "dumb");
        command.env("LANG", "tr_TR.UTF-8").env("LC_ALL", "de_DE.UTF-8").env("LANGUAGE", "de");
        command.env("TZ", "Asia/Kathmandu").env("RUST_LOG", "off").env("RUST_BACKTRACE", "1");
        command.env("NO_COLOR", "1").env("CLICOLOR_FORCE", "1").env("POSIXLY_CORRECT", "1");
        command.env("NOTIFY_SOCKET", "/nonexistent").env("JOURNAL_STREAM", "8:1234");
        command.env("LISTEN_FDS", "1").env("LISTEN_FDNAMES", "other");
        command.env("STATE_DIRECTORY", &long).env("XDG_RUNTIME_DIR", "/nonexistent");
        // SAFETY: the calls are async-signal-safe; the set is live and writable.
        unsafe {
            command.pre_exec(|| {
                if libc::dup2(libc::STDOUT_FILENO, STRAY) != STRAY {
                    return Err(std::io::Error::last_os_error());
                }
                let mut all: libc::sigset_t = std::mem::zeroed();
                libc::sigfillset(&mut all);
                libc::sigprocmask(libc::SIG_BLOCK, &all, std::ptr::null_mut());
                Ok(())
            });
        }
        let output = command.output().expect("start the test program");
        let said = String::from_utf8_lossy(&output.stdout);
        let passed = format!("{} passed; 0 failed", REPRESENTATIVE.len());
        assert!(said.contains(&passed), "umask {umask}: {said}");
        let left = fs::read_dir(&long).expect("the directory").count();
        assert_eq!(left, 0, "something was put where TMPDIR has no room");
    }
}

/// Directories that killed tests left, of a process that had our number, are not taken for new.
#[test]
fn a_directory_of_a_test_is_empty() {
    let first = Dir::new();
    let name = first.path().display().to_string();
    let (start, number) = name.rsplit_once('-').expect("a number");
    let number: u32 = number.parse().expect("a number");
    let left = (number + 1..number + 9).map(|n| format!("{start}-{n}"));
    // Those that are there are other tests'.
    let left: Vec<String> = left.filter(|path| fs::create_dir(path).is_ok()).collect();
    left.iter().for_each(|path| fs::write(format!("{path}/s0"), "").expect("leave it"));
    for _ in 0..8 {
        let files = fs::read_dir(Dir::new().path()).expect("read it").count();
        assert_eq!(files, 0);
    }
    left.iter().for_each(|path| fs::remove_dir_all(path).expect("remove it"));
}
