//! Sockets that the daemon makes, inherits and finds.

use std::fs::{self};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use testkit::frontend::Frontend;
use testkit::proc::{Daemon, Dir, wait_for};
use testkit::vm::{Vm, VmConfig};

use super::lab::{Process, SOON, exchange, plain, port, run, vm};

/// Lets the child keep a descriptor, which std opens close-on-exec.
pub fn inherit(command: &mut Command, fd: RawFd) -> &mut Command {
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
    assert!(line.contains("port p1: socket") && line.contains("is in use by "), "{line}");
    assert!(line.contains("/p1\"") && line.contains("the switch leaves the port out"), "{line}");
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
        assert!(line.contains("is in use by "), "{line}");
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

/// From the start of a daemon of 12 ports in `dir` until it is ready.
fn start_time(dir: Dir) -> (Process, Duration) {
    let args: Vec<String> = (0..12).map(|i| port(dir.path(), &format!("p{i}"), "")).collect();
    let begun = Instant::now();
    let mut d = Process::start(dir, &args, plain);
    let ready = wait_for(SOON * 4, || {
        assert!(d.child.try_wait().expect("wait").is_none(), "ended: {}", d.log());
        d.log().contains("ready: ")
    });
    assert!(ready, "not ready: {}", d.log());
    (d, begun.elapsed())
}

/// Whoever may open the directory may lock it, and whoever may write there can have taken the lock
/// file's name. That costs a second in all, not one for each port.
#[test]
fn s3_locks_of_others_delay_a_start_by_a_second_at_most() {
    let locked = |file: fs::File| {
        file.try_lock().expect("lock");
        Some(file)
    };
    let (unhampered, base) = start_time(Dir::new());
    assert!(!unhampered.path(".vioswitch.lock").exists(), "a lock file stays behind");
    drop(unhampered);
    let create = |path: &Path| {
        let mut options = fs::File::options();
        options.create(true).truncate(false).write(true).mode(0o600).open(path).expect("create")
    };
    type Hold<'a> = &'a dyn Fn(&Path) -> Option<fs::File>;
    let held: [(&str, Hold<'_>); 4] = [
        ("the directory", &|dir| locked(fs::File::open(dir).expect("open"))),
        ("our lock file", &|dir| locked(create(&dir.join(".vioswitch.lock")))),
        ("one that others can open", &|dir| {
            let file = create(&dir.join(".vioswitch.lock"));
            file.set_permissions(fs::Permissions::from_mode(0o666)).expect("mode");
            locked(file)
        }),
        ("a link", &|dir| {
            let file = create(&dir.join("elsewhere"));
            std::os::unix::fs::symlink("elsewhere", dir.join(".vioswitch.lock")).expect("link");
            locked(file)
        }),
    ];
    for (what, make) in held {
        let dir = Dir::new();
        let held = make(dir.path());
        let (d, took) = start_time(dir);
        println!("{what}: {took:?}, {base:?} unhampered");
        assert!(took < base * 3 + Duration::from_secs(5), "{what}: {took:?}, else {base:?}");
        for i in 0..12 {
            UnixStream::connect(d.path(&format!("p{i}"))).expect("accepts");
        }
        drop(held);
    }
}

/// The socket that a port connects to is swapped for a link, to the socket of another VM's port or
/// to any other: it is not followed. Nor does the daemon connect to itself by another way, after
/// a change of processes either (`handover`).
#[test]
fn s10_a_port_connects_neither_by_a_link_nor_to_the_daemon_itself() {
    let dir = Dir::new();
    let (link, around) = (dir.path().join("link"), dir.path().join("around"));
    std::os::unix::fs::symlink("p0", &link).expect("link");
    // A directory at the start, or the configuration is refused.
    fs::create_dir(&around).expect("create");
    let args = [
        port(dir.path(), "p0", ""),
        port(dir.path(), "link", ",mode=client"),
        format!("--port=itself,socket={},mode=client", around.join("p0").display()),
        format!("--port=good,socket={},mode=client", around.join("vm").display()),
    ];
    let vm = UnixListener::bind(dir.path().join("vm")).expect("bind");
    let mut d = Process::start(dir, &args, plain);
    d.wait_ready();
    fs::remove_dir(&around).expect("remove");
    std::os::unix::fs::symlink(".", &around).expect("link");
    // A directory on the way may be a link.
    let mut good = Frontend::accept(&vm, SOON).expect("connects");
    good.get_features().expect("answers");
    let refused = wait_for(SOON, || {
        let log = d.log();
        log.contains("/link\": cannot connect, will retry: it is a symbolic link")
            && log
                .contains("/around/p0\": cannot connect, will retry: it is a socket of this daemon")
    });
    let log = d.log();
    assert!(refused, "{log}");
    assert!(!log.contains("port p0: front-end connected"), "{log}");
    // The socket takes the link's place: connected to from then on.
    fs::remove_file(&link).expect("remove");
    let real = UnixListener::bind(&link).expect("bind");
    Frontend::accept(&real, SOON).expect("connects").get_features().expect("answers");
    d.stop(libc::SIGTERM, &["p0"]);
}
