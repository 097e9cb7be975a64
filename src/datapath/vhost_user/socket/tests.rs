//! Real sockets in a directory of their own: which are replaced, who may connect, who waits.

use super::*;
use base::limits::CONNECT_RETRY_MAX;
use std::fs::DirBuilder;
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier};

use rustix::net::sockopt;

const SHORT: Duration = Duration::from_millis(100);

/// An upper bound for operations that take no time on an idle machine.
const SOON: Duration = Duration::from_secs(5);
const ACCESS: Access = Access { mode: 0o660, group: None };

/// A directory that is removed with everything in it.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("vioswitch-socket-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Scratch(path)
    }

    fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn stop() -> EventFd {
    EventFd::new(libc::EFD_NONBLOCK).unwrap()
}

/// Connects as another process would: the test plays the front-end.
fn from_other_process(path: &Path) -> Connector {
    let mut connector = Connector::new(path).unwrap();
    connector.own = 0;
    connector
}

fn accepted(listener: &mut Listener, stop: &EventFd) -> (Guarded<UnixStream>, FrontEnd) {
    match listener.accept(stop) {
        Opened::Connection(socket, peer) => (socket, peer),
        Opened::Stopped => panic!("nobody asked to stop"),
    }
}

/// Returns a group that this user may give files to: any for root, otherwise a supplementary one.
fn some_group() -> u32 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let field = |name| status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    let first = |name| field(name).split_whitespace().next().map(|id| id.parse::<u32>().unwrap());
    if first("Uid:") == Some(0) {
        return 54_321;
    }
    let mut other = field("Groups:").split_whitespace().map(|id| id.parse().unwrap());
    other.next_back().or(first("Gid:")).unwrap()
}

#[test]
fn mode_group_and_listening_from_the_moment_the_path_exists() {
    let scratch = Scratch::new();
    let access = Access { mode: 0o620, group: Some(some_group()) };
    for round in 0..200 {
        let path = scratch.join(&format!("vm{round}.sock"));
        let seen = path.clone();
        let ready = Arc::new(Barrier::new(2));
        let theirs = Arc::clone(&ready);
        let watcher = thread::spawn(move || {
            theirs.wait();
            let until = Instant::now() + Duration::from_secs(20);
            while Instant::now() < until {
                if let Ok(found) = fs::symlink_metadata(&seen) {
                    let connected = UnixStream::connect(&seen).is_ok();
                    return Some((found.mode() & 0o7777, found.gid(), connected));
                }
            }
            None
        });
        ready.wait();
        let _listener = Listener::bind(&path, access).unwrap();
        let expected = (access.mode, access.group.unwrap(), true);
        assert_eq!(watcher.join().unwrap(), Some(expected), "round {round}");
    }
}

#[test]
fn nothing_is_left_beside_the_socket_and_the_socket_goes_with_the_listener() {
    let scratch = Scratch::new();
    let listener = Listener::bind(&scratch.join("vm1.sock"), ACCESS).unwrap();
    assert_eq!(scratch.names(), ["vm1.sock"]);
    drop(listener);
    assert!(scratch.names().is_empty());
}

#[test]
fn a_stale_socket_is_replaced() {
    let scratch = Scratch::new();
    let path = scratch.join("vm1.sock");
    // The standard library's listener leaves its file behind, as a killed process does.
    drop(UnixListener::bind(&path).unwrap());
    let _listener = Listener::bind(&path, ACCESS).unwrap();
    UnixStream::connect(&path).unwrap();
}

#[test]
fn a_live_socket_is_refused_and_left_alone() {
    let scratch = Scratch::new();
    let path = scratch.join("vm1.sock");
    let mut first = Listener::bind(&path, ACCESS).unwrap();
    let error = Listener::bind(&path, ACCESS).unwrap_err();
    assert!(matches!(error, SocketError::InUse(..)), "{error}");
    let this = format!("is in use by this process (pid {})", std::process::id());
    assert!(error.to_string().contains(&this), "{error}");
    // The check of the path was a connection that ended; the next connection is served.
    let mut frontend = UnixStream::connect(&path).unwrap();
    let stop = stop();
    drop(accepted(&mut first, &stop));
    frontend.write_all(b"x").unwrap();
    (&*accepted(&mut first, &stop).0).read_exact(&mut [0]).unwrap();

    // A full queue means a living process too, and so does a socket of another type.
    let mut queue = Vec::new();
    while let Ok(socket) = unix_socket::connect(&path) {
        queue.push(socket);
    }
    assert!(matches!(Listener::bind(&path, ACCESS), Err(SocketError::InUse(..))));
    let path = scratch.join("datagram");
    let _datagram = UnixDatagram::bind(&path).unwrap();
    assert!(matches!(Listener::bind(&path, ACCESS), Err(SocketError::InUse(..))));
}

#[test]
fn what_is_not_a_socket_is_never_touched() {
    let scratch = Scratch::new();
    let (file, link, target) = (scratch.join("file"), scratch.join("link"), scratch.join("target"));
    fs::write(&file, "precious").unwrap();
    drop(UnixListener::bind(&target).unwrap());
    std::os::unix::fs::symlink(&target, &link).unwrap();
    for path in [&file, &link, &scratch.0] {
        let error = Listener::bind(path, ACCESS).unwrap_err();
        assert!(matches!(error, SocketError::NotASocket(_)), "{error}");
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
    assert_eq!(fs::read_link(&link).unwrap(), target);
}

#[test]
fn of_many_that_start_at_once_exactly_one_gets_the_path() {
    let scratch = Scratch::new();
    for round in 0..50 {
        let path = scratch.join(&format!("vm{round}.sock"));
        // Half of the rounds with a stale socket in the way.
        if round % 2 == 0 {
            drop(UnixListener::bind(&path).unwrap());
        }
        let ready = Barrier::new(8);
        let results: Vec<_> = thread::scope(|scope| {
            let bind = || {
                ready.wait();
                Listener::bind(&path, ACCESS)
            };
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(bind)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let losers = results.iter().filter(|r| matches!(r, Err(SocketError::InUse(..)))).count();
        assert_eq!(losers, 7, "round {round}: {results:?}");
        // The winner listens behind the path; a loser that replaced the file would be there
        // instead.
        UnixStream::connect(&path).unwrap();
    }
}

#[test]
fn at_the_end_only_our_own_socket_is_removed() {
    let scratch = Scratch::new();
    let path = scratch.join("vm1.sock");
    let first = Listener::bind(&path, ACCESS).unwrap();
    fs::remove_file(&path).unwrap();
    let _second = Listener::bind(&path, ACCESS).unwrap();
    drop(first);
    UnixStream::connect(&path).unwrap();
}

#[test]
fn paths_up_to_the_limit_of_an_address() {
    let scratch = Scratch::new();
    let room = MAX_SOCKET_PATH - scratch.0.as_os_str().len() - 1;
    let longest = scratch.join(&"x".repeat(room));
    let _listener = Listener::bind(&longest, ACCESS).unwrap();
    UnixStream::connect(&longest).unwrap();
    assert_eq!(scratch.names().len(), 1);
    for path in [scratch.join(&"x".repeat(room + 1)), PathBuf::new(), "/".into(), "..".into()] {
        assert!(matches!(Listener::bind(&path, ACCESS), Err(SocketError::BadPath(_))), "{path:?}");
        assert!(matches!(Connector::new(&path), Err(SocketError::BadPath(_))), "{path:?}");
    }
}

#[test]
fn a_failure_says_what_was_tried_and_where() {
    let scratch = Scratch::new();
    let error = Listener::bind(&scratch.join("missing/vm1.sock"), ACCESS).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("there is no directory") && text.contains("mkdir -p"), "{text}");
}

#[test]
fn a_temporary_socket_left_by_a_killed_start_is_no_obstacle() {
    let scratch = Scratch::new();
    let temporary = scratch.join(&format!(".vm1.sock.{}", std::process::id()));
    drop(UnixListener::bind(temporary).unwrap());
    let _listener = Listener::bind(&scratch.join("vm1.sock"), ACCESS).unwrap();
    assert_eq!(scratch.names(), ["vm1.sock"]);
    let place = scratch.join(&format!(".vm2.sock.{}", std::process::id()));
    DirBuilder::new().mode(0o700).create(&place).unwrap();
    drop(UnixListener::bind(place.join("vm2.sock")).unwrap());
    let _second = Listener::bind(&scratch.join("vm2.sock"), ACCESS).unwrap();
    assert_eq!(scratch.names().len(), 2, "{:?}", scratch.names());
}

#[test]
fn a_directory_that_others_may_write_is_no_place_to_make_a_socket_in() {
    let scratch = Scratch::new();
    let place = scratch.join(&format!(".vm1.sock.{}", std::process::id()));
    DirBuilder::new().create(&place).unwrap();
    fs::set_permissions(&place, fs::Permissions::from_mode(0o720)).unwrap();
    let error = Listener::bind(&scratch.join("vm1.sock"), ACCESS).unwrap_err();
    assert!(error.to_string().starts_with("cannot make a directory beside"), "{error}");
}

#[test]
fn accept_names_the_peer_keeps_the_next_waiting_and_stops() {
    let scratch = Scratch::new();
    let path = scratch.join("vm1.sock");
    let (mut listener, stop) = (Listener::bind(&path, ACCESS).unwrap(), stop());
    let mut first = UnixStream::connect(&path).unwrap();
    let mut second = UnixStream::connect(&path).unwrap();
    first.write_all(b"1").unwrap();
    second.write_all(b"2").unwrap();
    for expected in [b"1", b"2"] {
        let (socket, peer) = accepted(&mut listener, &stop);
        assert_eq!(peer.pid, std::process::id() as i32);
        assert!(descriptor::is_close_on_exec(socket.as_fd()).unwrap());
        let mut got = [0];
        (&*socket).read_exact(&mut got).unwrap();
        assert_eq!(&got, expected);
    }
    stop.write(1).unwrap();
    assert!(matches!(listener.accept(&stop), Opened::Stopped));
}

#[test]
fn connecting_waits_for_the_front_end_to_appear() {
    let scratch = Scratch::new();
    let path = scratch.join("qemu.sock");
    let (mut connector, stop) = (from_other_process(&path), stop());
    let server_path = path.clone();
    let server = thread::spawn(move || {
        thread::sleep(SHORT * 3);
        UnixListener::bind(server_path).unwrap().accept().unwrap().0
    });
    let begun = Instant::now();
    assert!(matches!(connector.connect(&stop), Opened::Connection(..)));
    assert!((SHORT * 3..SOON).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    server.join().unwrap();
}

#[test]
fn a_front_end_that_hangs_up_at_once_is_not_hammered() {
    let scratch = Scratch::new();
    let path = scratch.join("qemu.sock");
    let server = UnixListener::bind(&path).unwrap();
    let (mut connector, stop) = (from_other_process(&path), stop());
    let begun = Instant::now();
    for _ in 0..4 {
        assert!(matches!(connector.connect(&stop), Opened::Connection(..)));
        drop(server.accept().unwrap());
    }
    // At once, then after 100, 200 and 400 ms.
    assert!((SHORT * 7..SOON).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    // A connection that lasted is followed by an attempt at once, not after 800 ms.
    connector.connected = Instant::now().checked_sub(CONNECT_RETRY_MAX);
    let begun = Instant::now();
    assert!(matches!(connector.connect(&stop), Opened::Connection(..)));
    assert!(begun.elapsed() < SHORT * 7, "{:?}", begun.elapsed());
}

#[test]
fn connecting_can_be_stopped_even_with_a_full_queue() {
    let scratch = Scratch::new();
    let path = scratch.join("vm1.sock");
    let _listener = Listener::bind(&path, ACCESS).unwrap();
    let mut queue = Vec::new();
    while let Ok(socket) = unix_socket::connect(&path) {
        queue.push(socket);
    }
    assert_eq!(queue.len(), SOCKET_BACKLOG as usize + 1);
    let (mut connector, stop) = (from_other_process(&path), stop());
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(SHORT);
            stop.write(1).unwrap();
        });
        let begun = Instant::now();
        assert!(matches!(connector.connect(&stop), Opened::Stopped));
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    });
}

#[test]
fn inherited_sockets_are_told_apart() {
    let scratch = Scratch::new();
    let path = scratch.join("vm1.sock");
    let listening = UnixListener::bind(&path).unwrap();
    let number = descriptor::inheritable(listening.as_fd());
    drop(listening);
    let Inherited::Listener(mut listener) = inherit(number).unwrap() else {
        panic!("not recognised as listening");
    };
    let mut frontend = UnixStream::connect(&path).unwrap();
    frontend.write_all(b"x").unwrap();
    (&*accepted(&mut listener, &stop()).0).read_exact(&mut [0]).unwrap();
    drop(listener);
    assert_eq!(scratch.names(), ["vm1.sock"], "the path belongs to whoever made it");

    let (near, _far) = UnixStream::pair().unwrap();
    sockopt::set_socket_passcred(&near, true).unwrap();
    match inherit(descriptor::inheritable(near.as_fd())).unwrap() {
        Inherited::Connection(socket, peer) => {
            assert_eq!(peer.pid, std::process::id() as i32);
            assert!(!sockopt::socket_passcred(&socket).unwrap());
        }
        Inherited::Listener(_) => panic!("not recognised as connected"),
    }
}

#[test]
fn descriptors_that_are_no_stream_socket_are_not_inherited() {
    let (datagram, _other) = UnixDatagram::pair().unwrap();
    let unconnected = unix_socket::stream_socket().unwrap();
    let file = File::open("/dev/null").unwrap();
    let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    for fd in [datagram.as_fd(), unconnected.as_fd(), file.as_fd(), tcp.as_fd()] {
        let number = descriptor::inheritable(fd);
        assert!(matches!(inherit(number), Err(SocketError::NotInherited(n)) if n == number));
    }
    for number in [-1, 0, 2, 1 << 20] {
        assert!(matches!(inherit(number), Err(SocketError::NotInherited(_))), "{number}");
    }
}

/// P20: between the creation of a socket and the setting of its mode, a user who may write to the
/// directory replaces the file by another port's socket.
#[test]
fn p20_another_socket_in_place_of_the_new_one_keeps_its_mode_and_group() {
    let scratch = Scratch::new();
    let (path, victim) = (scratch.join("evil.sock"), scratch.join("victim.sock"));
    let _victim = Listener::bind(&victim, Access { mode: 0o600, group: None }).unwrap();
    let before = fs::symlink_metadata(&victim).unwrap();
    let temporary = scratch.join(&format!(".evil.sock.{}", std::process::id()));
    let (aside, over) = (scratch.join("aside"), AtomicU32::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            for turn in 0.. {
                if over.load(Ordering::Relaxed) != 0 {
                    break;
                }
                if fs::rename(&temporary, &aside).is_ok() {
                    let _ = match turn % 2 {
                        0 => std::os::unix::fs::symlink(&victim, &temporary),
                        _ => fs::hard_link(&victim, &temporary),
                    };
                }
                let _ = fs::remove_file(&aside);
                let _ = fs::remove_dir_all(&aside);
            }
        });
        let access = Access { mode: 0o666, group: Some(some_group()) };
        for round in 0..1000 {
            drop(Listener::bind(&path, access));
            let now = fs::symlink_metadata(&victim).unwrap();
            let changed = (now.mode(), now.gid()) != (before.mode(), before.gid());
            over.store(changed.into(), Ordering::Relaxed);
            assert!(!changed, "round {round}: {:o} {}", now.mode(), now.gid());
            for left in [&temporary, &path] {
                let _ = fs::remove_file(left);
            }
        }
        over.store(1, Ordering::Relaxed);
    });
}

#[test]
fn p20_what_took_the_place_of_a_kept_socket_is_not_touched() {
    let scratch = Scratch::new();
    let (path, victim) = (scratch.join("kept.sock"), scratch.join("victim.sock"));
    let _victim = Listener::bind(&victim, Access { mode: 0o600, group: None }).unwrap();
    let listener = Listener::bind(&path, ACCESS).unwrap();
    for link in [true, false] {
        fs::remove_file(&path).unwrap();
        match link {
            true => std::os::unix::fs::symlink(&victim, &path).unwrap(),
            false => fs::hard_link(&victim, &path).unwrap(),
        }
        let kept = listener.as_fd().try_clone_to_owned().unwrap();
        let access = Access { mode: 0o666, group: Some(some_group()) };
        let identity = listener.made().unwrap().identity();
        let adopted = Listener::adopt(kept, &path, Some((identity, access)));
        let now = fs::symlink_metadata(&victim).unwrap();
        assert_eq!((now.mode() & 0o777, now.gid()), (0o600, group::own()), "{adopted:?}");
        assert!(adopted.is_err());
    }
}
