//! The command line and the file: what the real binary prints, takes and refuses.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::process::Stdio;

use testkit::proc::{Dir, wait_for};

use super::lab::{Process, SOON, exchange, plain, port, run, vioswitchd, vm};

// --- What is printed ----------------------------------------------------------------------

#[test]
fn version_help_and_capabilities() {
    let print = |args: &[&str]| {
        let output = run(args);
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert!(output.stderr.is_empty(), "{args:?}");
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    assert_eq!(print(&["--version"]), format!("vioswitchd {}\n", env!("CARGO_PKG_VERSION")));
    // QEMU docs/interop/vhost-user.rst, "Backend program conventions".
    let json = "{\"type\":\"net\"}\n";
    assert_eq!(print(&["--print-capabilities"]), json);
    assert_eq!(print(&["--workers=0", "--nonsense", "--print-capabilities"]), json);
    let help = print(&["--help"]);
    for option in ["--config", "--port", "--tap", "--socket-path", "--fd", "--workers", "--poll"] {
        assert!(help.contains(option), "{option}");
    }
}

/// A configuration is judged without being put into service.
#[test]
fn a_configuration_is_checked() {
    let dir = Dir::new();
    let file = dir.path().join("new.toml");
    let check = |text: &str| {
        fs::write(&file, text).expect("write");
        let output = run(&["--check", "--config", file.to_str().expect("UTF-8")]);
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let socket = dir.path().join("p0");
    let good = format!("[[port]]\nname = \"p0\"\nsocket = \"{}\"\n", socket.display());
    assert_eq!(check(&good), (Some(0), "valid: 1 port, 0 taps\n".into(), String::new()));
    assert!(!socket.exists());
    let (status, said, complaints) = check(&good.replace("name", "nmae"));
    assert_eq!((status, said.as_str()), (Some(2), ""));
    assert!(complaints.contains("nmae"), "{complaints}");
}

/// A reader that has enough (`--help | head -1`) and a full disk are no reason to panic.
#[test]
fn output_that_nobody_takes() {
    let closed = || {
        let (reader, writer) = io::pipe().expect("pipe");
        drop(reader);
        writer
    };
    for args in [&["--help"][..], &["--version"], &["--print-capabilities"]] {
        let full = File::options().write(true).open("/dev/full").expect("/dev/full");
        for stdout in [Stdio::from(closed()), Stdio::from(full)] {
            let output = vioswitchd().args(args).stdout(stdout).output().expect("run");
            assert_eq!(output.status.code(), Some(0), "{args:?}: {output:?}");
            assert!(output.stderr.is_empty(), "{output:?}");
        }
    }
    let output = vioswitchd().arg("--bogus").stderr(closed()).output().expect("run");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let busy = "--port=a,socket=/proc/no/such/directory";
    let output = vioswitchd().arg(busy).stderr(closed()).output().expect("run");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

// --- What is refused ----------------------------------------------------------------------

/// Status 2, nothing on standard output, one line on standard error, answered.
fn complaint<S: AsRef<OsStr> + std::fmt::Debug>(args: &[S]) -> String {
    let output = run(args);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {output:?}");
    assert!(output.stdout.is_empty(), "{args:?}: {output:?}");
    let text = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(text.ends_with('\n') && text.lines().count() == 1, "{args:?}: {text}");
    assert!(text.starts_with("vioswitchd: "), "{args:?}: {text}");
    text
}

#[test]
fn a_bad_argument_is_status_2_and_one_line_that_names_it() {
    let dir = Dir::new();
    let at = |name: &str| dir.path().join(name).display().to_string();
    let good = format!("--port=good,socket={}", at("good"));
    let long = format!("--socket-path=/{}", "x".repeat(107));
    let (a, folder) = (at("a"), format!("--config={}", dir.path().display()));
    let missing = format!("--config={}", at("none.toml"));
    let file = File::open("/dev/null").expect("/dev/null");
    let no_socket = format!("--fd={}", file.as_raw_fd());
    let with_good: [(&str, &str); 29] = [
        ("--bogus", "--bogus"),
        ("-x", "-x"),
        ("word", "word"),
        ("", "''"),
        ("--workers", "--workers"),
        ("--config", "--config"),
        ("--port", "--port"),
        ("--workers=0", "--workers 0"),
        ("--workers=-1", "--workers -1"),
        ("--workers=100000", "--workers 100000"),
        ("--workers=two", "--workers two"),
        ("--age=0", "--age 0"),
        ("--age=soon", "--age soon"),
        ("--poll=maybe", "--poll maybe"),
        ("--fd=1000000", "--fd 1000000"),
        (&no_socket, "is not an open socket"),
        (&long, "a socket path at most 107"),
        (&missing, "none.toml"),
        (&folder, "not a regular file"),
        ("--port=good,socket=/x", "name 'good' is already used"),
        (&format!("--port=b,socket={}", at("good")), "is already used"),
        (&format!("--port=b,socket={a},mac=52:54:00"), "mac '52:54:00'"),
        (&format!("--port=b,socket={a},mac=01:00:5e:00:00:01"), "is a group address"),
        (&format!("--port=b,socket={a},queues=17"), "'17'"),
        (&format!("--port=b,socket={a},colour=red"), "unknown key 'colour'"),
        (&format!("--port=b,socket={a},socket-group=no such"), "'no such' does not exist"),
        ("--port=b", "socket is missing"),
        ("--tap=up", "ifname is missing"),
        ("--tap=up,ifname=a/b", "'a/b' is not an interface name"),
    ];
    for (argument, expected) in with_good {
        let line = complaint(&[&good, argument]);
        assert!(line.contains(expected), "{argument}: {line}");
    }
    assert!(complaint::<&str>(&[]).contains("nothing to switch"));
    // No line can be forged, nor the terminal told anything.
    let line = complaint(&["--port=a\nb,socket=/x", "--workers=\u{1b}[2J"]);
    assert!(!line.contains('\u{1b}'), "{line:?}");
    let line = complaint(&[OsStr::from_bytes(b"--port=\xff\xfe")]);
    assert!(line.contains("UTF-8"), "{line}");
    // Refused as a whole: the good port's socket was never made.
    assert_eq!(fs::read_dir(dir.path()).expect("directory").count(), 0);
}

#[test]
fn a_bad_file_is_told_all_its_errors_with_their_lines() {
    let dir = Dir::new();
    let path = dir.path().join("bad.toml");
    let complaints = |text: &str| -> Vec<String> {
        fs::write(&path, text).expect("write");
        let output = run(&["--config".as_ref(), path.as_os_str()]);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(output.stdout.is_empty());
        let text = String::from_utf8(output.stderr).expect("UTF-8");
        text.lines().map(str::to_owned).collect()
    };
    let text = "workers = 0\nspeed = 9\n\n[[port]]\nname = 'a'\nsocket = ''\n\n[[port]]\n\
                name = 'a'\nsocket = '/b'\nmac = 'x'\n\n[[tap]]\nname = 'up'\n";
    let lines = complaints(text);
    let expected = [
        (1, "workers must be auto or a number from 1"),
        (2, "unknown key 'speed'"),
        (6, "socket is empty"),
        (9, "name 'a' is already used in line 5"),
        (11, "mac 'x'"),
        (13, "ifname is missing"),
    ];
    assert_eq!(lines.len(), expected.len(), "{lines:#?}");
    for (line, (number, text)) in lines.iter().zip(expected) {
        let head = format!("{}:{number}: ", path.display());
        assert!(line.starts_with(&head) && line.contains(text), "{line}");
    }
    let lines = complaints("workers = 1\n[[port]\nname = \"a\n");
    let shown = path.display().to_string();
    assert!(!lines.is_empty() && lines.iter().all(|line| line.starts_with(&shown)), "{lines:?}");
    assert!(lines[0].starts_with(&format!("{shown}:2: ")), "{lines:?}");
}

#[test]
fn the_command_line_wins_over_the_file() {
    let dir = Dir::new();
    let at = |name: &str| dir.path().join(name).display().to_string();
    let text = format!(
        "workers = 1\n[[port]]\nname = 'p0'\nsocket = '{}'\n[[port]]\nname = 'p1'\nsocket = '{}'\n",
        at("file0"),
        at("file1")
    );
    let file = at("config.toml");
    fs::write(&file, text).expect("write");
    let mut args = vec![format!("--config={file}"), format!("--port=p0,socket={}", at("line0"))];
    if std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() >= 2) {
        args.push("--workers=2".into());
    }
    let workers = args.len() - 1;
    let mut d = Process::start(dir, &args, plain);
    d.wait_ready();
    assert!(!d.path("file0").exists(), "replaced as a whole");
    let tasks = format!("/proc/{}/task", d.child.id());
    let count = || {
        let tasks = fs::read_dir(&tasks).expect("tasks");
        let names = tasks.map(|task| fs::read_to_string(task.expect("task").path().join("comm")));
        names.filter(|name| name.as_ref().is_ok_and(|n| n.starts_with("worker-"))).count()
    };
    // A thread gets its name when it first runs.
    assert!(wait_for(SOON, || count() == workers), "{} workers", count());
    exchange([vm(&d.path("line0"), 0), vm(&d.path("file1"), 1)]);
    d.stop(libc::SIGTERM, &["line0", "file1"]);
}

// --- Sockets ------------------------------------------------------------------------------

#[test]
fn the_shorthand_for_one_port() {
    let dir = Dir::new();
    let args = [format!("--socket-path={}", dir.path().join("s").display())];
    let args = [&args[..], &[port(dir.path(), "p1", "")]].concat();
    let mut d = Process::start(dir, &args, plain);
    d.wait_ready();
    exchange([vm(&d.path("s"), 0), vm(&d.path("p1"), 1)]);
    d.stop(libc::SIGTERM, &["s", "p1"]);
}
