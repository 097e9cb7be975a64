//! The command line of the real binary: what it prints and refuses, which sockets it makes and
//! inherits, what signals and the service manager get from it.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use testkit::counters::Counters;
use testkit::frontend::Frontend;
use testkit::net::{Job, Net, Sizes};
use testkit::proc::{Daemon, Dir, STOP_LIMIT, ends_within, wait_for};
use testkit::sys;
use testkit::traffic::To;
use testkit::vm::{Vm, VmConfig, mac_of};

const SOON: Duration = Duration::from_secs(5);

fn vioswitchd() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vioswitchd"));
    command.env("RUST_LOG", "info").env_remove("NOTIFY_SOCKET").stdin(Stdio::null());
    command
}

/// Runs it to its end.
fn run<S: AsRef<OsStr>>(args: &[S]) -> Output {
    vioswitchd().args(args).output().expect("run vioswitchd")
}

/// A daemon with the log in its directory, killed when a test panics.
struct Process {
    child: Child,
    dir: Dir,
}

impl Process {
    /// Starts it with `args` and whatever `prepare` does to the command.
    fn start<S: AsRef<OsStr>>(
        dir: Dir,
        args: &[S],
        prepare: impl FnOnce(&mut Command) -> &mut Command,
    ) -> Process {
        let log = File::create(dir.path().join("log")).expect("log file");
        let mut command = vioswitchd();
        command.args(args).stdout(Stdio::null()).stderr(log);
        let child = prepare(&mut command).spawn().expect("start vioswitchd");
        Process { child, dir }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn wait_ready(&mut self) {
        let ready = wait_for(SOON, || {
            assert!(self.child.try_wait().expect("wait").is_none(), "ended: {}", self.log());
            self.log().contains("ready: ")
        });
        assert!(ready, "not ready: {}", self.log());
    }

    /// Status at its end, which must come within `limit`.
    fn ended(&mut self, limit: Duration) -> ExitStatus {
        let status = ends_within(&mut self.child, limit);
        status.unwrap_or_else(|| panic!("still running after {limit:?}: {}", self.log()))
    }

    /// A signal, exit 0 within a second, and the sockets of these names gone.
    fn stop(mut self, signal: libc::c_int, sockets: &[&str]) {
        assert!(sys::kill(self.child.id(), signal));
        let status = self.ended(STOP_LIMIT);
        assert_eq!(status.code(), Some(0), "{}", self.log());
        assert!(!self.log().contains("panicked"), "{}", self.log());
        for name in sockets {
            assert!(self.path(name).symlink_metadata().is_err(), "{name} is left");
        }
    }

    /// Status 1 and one line of log about it, which is answered.
    fn refused(mut self) -> String {
        let status = self.ended(SOON);
        let log = self.log();
        assert_eq!(status.code(), Some(1), "{log}");
        assert_eq!(log.lines().count(), 1, "{log}");
        assert!(log.contains(" ERROR"), "{log}");
        log
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn plain(command: &mut Command) -> &mut Command {
    command
}

/// `--port NAME,socket=DIR/NAME` with further keys.
fn port(dir: &Path, name: &str, keys: &str) -> String {
    format!("--port={name},socket={}{keys}", dir.join(name).display())
}

/// Guests 0 and 1 exchange frames.
fn exchange(vms: [Vm; 2]) {
    let mut net = Net::new(vms.into());
    net.announce();
    let job = |from: u8| Job::new(from.into(), To::Vm(1 - from), 200, Sizes::Range(60, 1514));
    net.run(&[job(0), job(1)]);
    net.finish();
}

fn vm(path: &Path, id: u8) -> Vm {
    Vm::connect(path, VmConfig::new(id))
}

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

/// Lets the child keep a descriptor, which std opens close-on-exec.
fn inherit(command: &mut Command, fd: RawFd) -> &mut Command {
    // SAFETY: fcntl is async-signal-safe and touches no memory.
    unsafe { command.pre_exec(move || keep_open(fd)) }
}

fn keep_open(fd: RawFd) -> io::Result<()> {
    // SAFETY: fcntl with F_SETFD takes no pointer.
    match unsafe { libc::fcntl(fd, libc::F_SETFD, 0) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[test]
fn an_inherited_listener_serves_one_front_end_after_another() {
    let dir = Dir::new();
    let path = dir.path().join("ours");
    let listener = UnixListener::bind(&path).expect("bind");
    let fd = listener.as_raw_fd();
    let args = [format!("--fd={fd}"), port(dir.path(), "p1", "")];
    let mut d = Process::start(dir, &args, |command| inherit(command, fd));
    drop(listener);
    d.wait_ready();
    for _ in 0..3 {
        exchange([vm(&path, 0), vm(&d.path("p1"), 1)]);
    }
    // Its path is ours, not the daemon's to remove.
    assert!(path.exists());
    d.stop(libc::SIGTERM, &["p1"]);
}

#[test]
fn an_inherited_connection_is_served_once() {
    let dir = Dir::new();
    let (near, far) = UnixStream::pair().expect("pair");
    let fd = far.as_raw_fd();
    let args = [format!("--fd={fd}"), port(dir.path(), "p1", "")];
    let mut d = Process::start(dir, &args, |command| inherit(command, fd));
    drop(far);
    d.wait_ready();
    let first = Vm::attach(Frontend::from_stream(near), VmConfig::new(0));
    exchange([first, vm(&d.path("p1"), 1)]);
    // The port stays empty, and the others are served on.
    let mut other = Frontend::connect(&d.path("p1"), SOON).expect("connect");
    other.get_features().expect("answers");
    d.stop(libc::SIGTERM, &["p1"]);
}

#[test]
fn other_inherited_sockets_are_refused() {
    let (a, _b) = UnixDatagram::pair().expect("pair");
    let tcp = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
    for fd in [a.as_raw_fd(), tcp.as_raw_fd()] {
        let args = [format!("--fd={fd}")];
        let line = Process::start(Dir::new(), &args, |command| inherit(command, fd)).refused();
        assert!(line.contains(&format!("descriptor {fd} is not")), "{line}");
    }
}

/// Whoever sees the path sees a socket with its mode and group that accepts, whatever the umask.
#[test]
fn sockets_appear_complete() {
    // SAFETY: plain system call.
    let root = unsafe { libc::geteuid() } == 0;
    // Any group for root; another user may only name its own.
    // SAFETY: plain system call.
    let group = if root { 12_345 } else { unsafe { libc::getegid() } };
    for (umask, mode) in [(0o000, 0o660), (0o077, 0o666), (0o777, 0o600), (0o022, 0o620)] {
        let dir = Dir::new();
        let path = dir.path().join("p0");
        let args =
            [port(dir.path(), "p0", &format!(",socket-mode=0{mode:o},socket-group={group}"))];
        let mut d = Process::start(dir, &args, |command| {
            let set = move || {
                // SAFETY: plain system call.
                unsafe { libc::umask(umask) };
                Ok(())
            };
            // SAFETY: umask is async-signal-safe.
            unsafe { command.pre_exec(set) }
        });
        let end = Instant::now() + SOON;
        // As fast as it can be seen.
        let seen = loop {
            match path.symlink_metadata() {
                Ok(seen) => break seen,
                Err(_) => assert!(Instant::now() < end, "no socket: {}", d.log()),
            }
        };
        assert!(seen.file_type().is_socket());
        assert_eq!((seen.permissions().mode() & 0o777, seen.gid()), (mode, group), "{umask:o}");
        UnixStream::connect(&path).expect("accepts from the first moment");
        d.wait_ready();
        let names = fs::read_dir(d.dir.path()).expect("directory");
        assert_eq!(names.count(), 2, "socket and log, nothing else");
        d.stop(libc::SIGTERM, &["p0"]);
    }
}

#[test]
fn a_socket_of_a_live_process_is_left_to_it() {
    let dir = Dir::new();
    let path = dir.path().join("p1");
    let listener = UnixListener::bind(&path).expect("bind");
    let args = [port(dir.path(), "p0", ""), port(dir.path(), "p1", "")];
    let mut d = Process::start(dir, &args, plain);
    d.wait_ready();
    let (log, theirs) = (d.log(), d.path("p1"));
    let line = log.lines().find(|line| line.contains(" ERROR")).expect("an error");
    assert!(
        line.contains("port p1: socket") && line.contains("in use by a live process"),
        "{line}"
    );
    assert!(line.contains("/p1\"") && line.contains("the port is left out"), "{line}");
    UnixStream::connect(theirs).expect("somebody else's, as before");
    d.stop(libc::SIGTERM, &["p0"]);
    drop(listener);
}

#[test]
fn a_live_socket_still_works_after_another_daemon_tried() {
    let d = Daemon::with(2, &[]);
    for signal in 0..3 {
        let args = [format!("--port=other,socket={}", d.socket(signal % 2).display())];
        let line = Process::start(Dir::new(), &args, plain).refused();
        assert!(line.contains("in use by a live process"), "{line}");
    }
    exchange([vm(&d.socket(0), 0), vm(&d.socket(1), 1)]);
    d.stop();
}

#[test]
fn a_stale_socket_is_replaced() {
    let dir = Dir::new();
    for name in ["p0", "p1"] {
        // Closing a listener leaves its file, as a killed daemon does.
        drop(UnixListener::bind(dir.path().join(name)).expect("bind"));
    }
    let args = [port(dir.path(), "p0", ""), port(dir.path(), "p1", "")];
    let mut d = Process::start(dir, &args, plain);
    d.wait_ready();
    exchange([vm(&d.path("p0"), 0), vm(&d.path("p1"), 1)]);
    d.stop(libc::SIGINT, &["p0", "p1"]);
}

#[test]
fn what_is_not_a_socket_is_refused_and_stays() {
    type Make = fn(&Path);
    let kinds: [(&str, Make); 4] = [
        ("file", |path| fs::write(path, "precious").expect("write")),
        ("directory", |path| fs::create_dir(path).expect("create")),
        ("dangling link", |path| std::os::unix::fs::symlink("nowhere", path).expect("link")),
        ("link", |path| std::os::unix::fs::symlink("/dev/null", path).expect("link")),
    ];
    for (kind, make) in kinds {
        let dir = Dir::new();
        let path = dir.path().join("p0");
        make(&path);
        let before = path.symlink_metadata().expect("made");
        let args = [port(dir.path(), "p0", "")];
        let mut d = Process::start(dir, &args, plain);
        let status = d.ended(SOON);
        let (log, after) = (d.log(), path.symlink_metadata().expect("still there"));
        assert_eq!(status.code(), Some(1), "{kind}: {log}");
        assert!(log.contains("exists and is not a socket"), "{kind}: {log}");
        assert_eq!((before.ino(), before.mode()), (after.ino(), after.mode()), "{kind}");
        if kind == "file" {
            assert_eq!(fs::read_to_string(&path).expect("read"), "precious");
        }
    }
    let line = run(&["--port=a,socket=/no/such/directory/s"]);
    assert_eq!(line.status.code(), Some(1));
    let text = String::from_utf8_lossy(&line.stderr);
    assert!(text.contains("port a: ") && text.contains("/no/such/directory"), "{text}");
}

// --- Signals ------------------------------------------------------------------------------

#[test]
fn both_signals_end_it_in_every_state() {
    let client = |dir: &Path| format!("--port=c,socket={},mode=client", dir.join("c").display());
    for signal in [libc::SIGTERM, libc::SIGINT] {
        for poll in [false, true] {
            let dir = Dir::new();
            let mut args = vec![
                port(dir.path(), "idle", ""),
                port(dir.path(), "half", ""),
                client(dir.path()),
            ];
            args.push(port(dir.path(), "served", ",queues=4"));
            args.extend(poll.then(|| "--poll".to_owned()));
            let mut d = Process::start(dir, &args, plain);
            d.wait_ready();
            let served = vm(&d.path("served"), 0);
            // In the middle of a message, and of a negotiation.
            let mut half = Frontend::connect(&d.path("half"), SOON).expect("connect");
            half.get_features().expect("answers");
            half.send_raw(&[1, 0, 0], &[]).expect("sent");
            d.stop(signal, &["idle", "half", "served"]);
            drop(served);
        }
    }
}

/// The guests' rings are consistent at the end: the next daemon goes on where this one stopped.
#[test]
fn both_signals_end_it_under_traffic() {
    for (signal, workers) in [(libc::SIGTERM, "1"), (libc::SIGINT, "2")] {
        let dir = Dir::new();
        let args = [port(dir.path(), "p0", ""), port(dir.path(), "p1", "")];
        let args = [&args[..], &[format!("--workers={workers}")]].concat();
        let mut d = Process::start(dir, &args, plain);
        d.wait_ready();
        let mut vms = [vm(&d.path("p0"), 0), vm(&d.path("p1"), 1)];
        let frame = |from: usize| {
            let mut frame =
                [&mac_of(1 - from as u8)[..], &mac_of(from as u8), &[0x88, 0xb5]].concat();
            frame.resize(1000, from as u8);
            frame
        };
        let frames = [frame(0), frame(1)];
        let mut moved = [0; 2];
        std::thread::scope(|scope| {
            let stopping = scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(200));
                assert!(sys::kill(d.child.id(), signal));
                d.ended(STOP_LIMIT)
            });
            while !stopping.is_finished() {
                for (i, vm) in vms.iter_mut().enumerate() {
                    while vm.tx[0].send(&frames[i]) {}
                    moved[i] += vm.rx[0].recv(64, |_, got| assert!(got == frames[1 - i]));
                }
            }
            let status = stopping.join().unwrap_or_else(|p| std::panic::resume_unwind(p));
            assert_eq!(status.code(), Some(0));
        });
        assert!(moved.iter().all(|&n| n > 1000), "{moved:?} frames");
        assert!(!d.path("p0").exists() && !d.path("p1").exists());
        let dir = Dir::new();
        let args = [port(dir.path(), "p0", ""), port(dir.path(), "p1", "")];
        let mut next = Process::start(dir, &args, plain);
        next.wait_ready();
        for (i, vm) in vms.iter_mut().enumerate() {
            vm.reconnect(&next.path(&format!("p{i}")));
        }
        for i in 0..2 {
            // What was left on the ring, and something new behind it; room for all is ensured by
            // taking what comes.
            let end = Instant::now() + SOON;
            while vms[i].tx[0].ring.in_flight() > 0 {
                assert!(Instant::now() < end, "guest {i}: frames not taken");
                vms[1 - i].rx[0].recv(64, |_, got| assert!(got == frames[i]));
                vms[i].tx[0].reclaim();
            }
            vms[i].tx[0].send_waiting(&frames[i], SOON);
            assert!(vms[1 - i].rx[0].wait(SOON), "guest {i}: nothing arrives");
        }
        next.stop(signal, &["p0", "p1"]);
    }
}

#[test]
fn sigusr1_logs_the_counters_and_nothing_else_happens() {
    let d = Daemon::with(2, &[]);
    let mut net = Net::connect(&d, 2, |cfg| cfg);
    let job = |from: u8| Job::new(from.into(), To::Vm(1 - from), 300, Sizes::Fixed(100));
    net.run(&[job(0), job(1)]);
    let counted =
        |c: &Counters| (c.sum(Some("p0"), "in", "frames"), c.sum(Some("p1"), "out", "frames"));
    // Two hellos: each guest's broadcast is a frame of its own and one for the other.
    assert_eq!(counted(&d.counters()), (301, 301));
    for _ in 0..100 {
        d.signal(libc::SIGUSR1);
    }
    net.run(&[job(0), job(1)]);
    let c = d.counters();
    assert_eq!(counted(&c), (601, 601));
    c.balance();
    net.finish();
    d.stop();
}

/// The last word in the log is the counters.
#[test]
fn counters_are_logged_at_the_end() {
    let dir = Dir::new();
    let args = [port(dir.path(), "p0", ""), port(dir.path(), "p1", "")];
    let mut d = Process::start(dir, &args, plain);
    d.wait_ready();
    exchange([vm(&d.path("p0"), 0), vm(&d.path("p1"), 1)]);
    assert!(sys::kill(d.child.id(), libc::SIGTERM));
    assert_eq!(d.ended(STOP_LIMIT).code(), Some(0));
    let c = Counters::parse(&d.log());
    assert_eq!(c.sum(Some("p0"), "in", "frames"), 201, "{}", d.log());
    assert_eq!(c.sum(Some("p0"), "", "attaches"), 1);
    c.balance();
}

// --- The service manager ------------------------------------------------------------------

/// What the manager is told next, but for what it is asked to keep.
fn told(manager: &UnixDatagram, limit: Duration) -> Option<String> {
    manager.set_read_timeout(Some(limit)).expect("time limit");
    let mut buffer = [0; 512];
    loop {
        let len = match manager.recv(&mut buffer) {
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => panic!("{error}"),
        };
        let said = String::from_utf8(buffer[..len].to_vec()).expect("UTF-8");
        if !said.starts_with("FDSTORE") {
            return Some(said);
        }
    }
}

/// `Type=notify`: ready means that every socket exists.
#[test]
fn readiness_is_told_when_all_sockets_exist() {
    let abstract_name = format!("vioswitch-cli-{}", std::process::id());
    // A manager that reads too late is not waited for; on a busy machine we may be one.
    let (mut round, mut late) = (0, 0);
    while round < 4 {
        let dir = Dir::new();
        let path = dir.path().join("notify");
        let (manager, name) = if round % 2 == 0 {
            (UnixDatagram::bind(&path), path.display().to_string())
        } else {
            let address = SocketAddr::from_abstract_name(&abstract_name).expect("name");
            (UnixDatagram::bind_addr(&address), format!("@{abstract_name}"))
        };
        let manager = manager.expect("bind");
        let names: Vec<String> = (0..100).map(|i| format!("p{i}")).collect();
        let args: Vec<String> = names.iter().map(|name| port(dir.path(), name, "")).collect();
        let mut d = Process::start(dir, &args, |command| command.env("NOTIFY_SOCKET", &name));
        let state = told(&manager, SOON);
        if state.is_none() && d.log().contains("cannot notify") && late < 8 {
            late += 1;
            continue;
        }
        let state = state.unwrap_or_else(|| panic!("round {round}: not ready: {}", d.log()));
        for name in &names {
            UnixStream::connect(d.path(name)).expect("ready, so each accepts");
        }
        assert!(state.lines().any(|line| line == "READY=1"), "{state}");
        assert!(sys::kill(d.child.id(), libc::SIGTERM));
        let state = told(&manager, SOON).expect("the end");
        assert!(state.lines().any(|line| line == "STOPPING=1"), "{state}");
        assert_eq!(d.ended(STOP_LIMIT).code(), Some(0));
        round += 1;
    }
}

#[test]
fn a_failed_start_is_never_told_as_ready() {
    let dir = Dir::new();
    let path = dir.path().join("notify");
    let manager = UnixDatagram::bind(&path).expect("bind");
    let args = [port(dir.path(), "p0", ""), "--tap=up,ifname=lo".to_owned()];
    let mut d = Process::start(dir, &args, |command| command.env("NOTIFY_SOCKET", &path));
    assert_eq!(d.ended(SOON).code(), Some(1));
    assert_eq!(told(&manager, Duration::from_millis(10)), None);
}

/// A service manager that cannot be reached is a warning, not the end.
#[test]
fn a_missing_service_manager_is_survived() {
    let dir = Dir::new();
    let args = [port(dir.path(), "p0", "")];
    let nobody = dir.path().join("nobody");
    let mut d = Process::start(dir, &args, |command| command.env("NOTIFY_SOCKET", &nobody));
    d.wait_ready();
    assert!(d.log().contains("cannot notify the service manager"), "{}", d.log());
    d.stop(libc::SIGTERM, &["p0"]);
}
