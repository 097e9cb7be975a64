//! One process of the service leaves, another comes: what a service manager with a descriptor store
//! makes of that for front-ends and the network. The manager is the test's own
//! (`testkit::manager`); a real one, with real guests, is in tests/guests/qemu_restart.rs.

mod connections;
mod own;
mod privileges;

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use testkit::SOON;
use testkit::counters::Counters;
use testkit::frontend::{Frontend, req};
use testkit::host::{Host, in_namespace, index_of, ip};
use testkit::manager::Manager;
use testkit::net::{Job, Net, Sizes};
use testkit::proc::{Dir, REFUSED, ends_within, wait_for};
use testkit::stream::Peer;
use testkit::sys;
use testkit::traffic::To;
use testkit::vm::{Vm, VmConfig, mac_of};

/// The service: a manager, and a process of it while one runs.
struct Service {
    manager: Manager,
    child: Option<Child>,
    dir: Dir,
}

impl Service {
    fn new() -> Service {
        let dir = Dir::new();
        Service { manager: Manager::new(dir.path()), child: None, dir }
    }

    /// A file of this service. A socket's name is nobody else's: the kernel has it without its
    /// directory, see [`listens`].
    fn path(&self, name: &str) -> std::path::PathBuf {
        let dir = self.dir.path();
        let own = dir.file_name().filter(|_| name.starts_with('p')).unwrap_or_default();
        dir.join(format!("{name}{}", own.display()))
    }

    /// `--port NAME,socket=…` with further keys.
    fn port(&self, name: &str, keys: &str) -> [String; 2] {
        ["--port".into(), format!("{name},socket={}{keys}", self.path(name).display())]
    }

    /// Arguments for `n` ports, p0 and so on.
    fn ports(&self, n: usize) -> Vec<String> {
        (0..n).flat_map(|i| self.port(&format!("p{i}"), "")).collect()
    }

    /// Guests on the first `n` ports, which the switch knows.
    fn guests(&self, n: u8) -> Net {
        let vm = |i: u8| Vm::connect(&self.path(&format!("p{i}")), VmConfig::new(i));
        let mut net = Net::new((0..n).map(vm).collect());
        net.announce();
        net
    }

    /// Starts a process and waits for it to be ready.
    fn start(&mut self, args: &[String]) {
        self.start_in(Command::new("sh"), args);
    }

    fn start_in(&mut self, mut command: Command, args: &[String]) {
        assert!(self.child.is_none());
        let log = File::options().create(true).append(true).open(self.path("log")).expect("log");
        let ready = self.manager.starts() + 1;
        self.manager.start(&mut command, env!("CARGO_BIN_EXE_vioswitchd"), args);
        command.env("RUST_LOG", "info").stdin(Stdio::null()).stderr(log);
        let mut child = command.spawn().expect("start vioswitchd");
        // It holds copies of what it passed on.
        drop(command);
        let up = wait_for(SOON, || {
            self.manager.starts() >= ready || child.try_wait().expect("wait").is_some()
        });
        assert!(up && self.manager.starts() == ready, "not ready\n{}", self.log());
        self.child = Some(child);
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// SIGTERM, as before a restart. The last report is the last thing it says.
    fn stop(&mut self) -> Counters {
        let mut child = self.child.take().expect("a process");
        assert!(sys::kill(child.id(), libc::SIGTERM));
        let status = ends_within(&mut child, Duration::from_secs(1));
        self.child = status.is_none().then_some(child);
        assert!(status.is_some_and(|status| status.success()), "{status:?}\n{}", self.log());
        assert!(!self.log().contains(REFUSED), "{}", self.log());
        Counters::parse(&self.log())
    }

    /// SIGKILL.
    fn kill(&mut self) {
        let mut child = self.child.take().expect("a process");
        child.kill().expect("kill");
        child.wait().expect("wait");
    }

    /// The counters now.
    fn report(&self) -> Counters {
        let before = self.log().len();
        assert!(sys::kill(self.child.as_ref().expect("a process").id(), libc::SIGUSR1));
        assert!(wait_for(SOON, || self.log()[before..].contains("] addresses ")), "no report");
        Counters::parse(&self.log()[before..])
    }

    /// Learned and configured addresses, in the last report.
    fn addresses(&self) -> usize {
        let log = self.log();
        let line = log.lines().rfind(|line| line.contains("] addresses ")).expect("a report");
        line.rsplit(' ').next().and_then(|word| word.parse().ok()).expect("a number")
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the daemon's log:\n{}", self.log());
        }
        if self.child.is_some() {
            self.kill();
        }
    }
}

/// Whether the daemon's socket at a path listens, as the kernel has it. A connect could wait for
/// ever where nobody accepts.
fn listens(service: &Service, name: &str) -> bool {
    let sockets = fs::read_to_string("/proc/net/unix").expect("the kernel's table");
    // Bound by way of a descriptor, before it got its real path.
    let path = service.path(name);
    let bound = format!("/proc/self/fd/NUMBER/{}", path.file_name().expect("a name").display());
    let (before, after) = bound.split_once("NUMBER").expect("a number");
    sockets.lines().any(|line| line.contains(before) && line.ends_with(after))
}

/// Whether the front-end gets an answer.
fn is_served(mut frontend: Frontend) -> bool {
    frontend.get_features().is_ok_and(|features| features != 0)
}

/// A port that was added while a process ran is the next one's, and so is its socket: the front-end
/// that waits there is served.
/// A stream's listening socket outlives its process like a port's: who connects in between waits,
/// and is served by the next one, which goes on with the addresses and counters.
#[test]
fn a_stream_goes_on() {
    let mut service = Service::new();
    let mut args = service.ports(1);
    args.extend(["--stream".into(), service.port("pnet", "")[1].clone()]);
    service.start(&args);
    let mut peer = Peer::connect(&service.path("pnet"));
    let mut frame = [&[0xff; 6][..], &mac_of(9), &[0x88, 0xb6]].concat();
    frame.resize(60, 0);
    peer.send(&frame);
    let came = |service: &Service, n| {
        wait_for(SOON, || service.report().sum(Some("pnet"), "in", "frames") == n)
    };
    assert!(came(&service, 1), "{}", service.log());
    service.stop();
    assert!(peer.closed_within(SOON) && listens(&service, "pnet"));
    let mut peer = Peer::connect(&service.path("pnet"));
    peer.send(&frame);
    service.start(&args);
    assert!(came(&service, 2), "{}", service.log());
    assert_eq!(service.addresses(), 1);
    service.stop();
}

#[test]
fn the_socket_of_a_port_that_was_added_is_found_by_it() {
    let mut service = Service::new();
    let mut args = service.ports(1);
    let control = service.path("control");
    args.extend(["--control".to_owned(), control.display().to_string()]);
    args.extend(["--state-dir".to_owned(), service.path("kept").display().to_string()]);
    service.start(&args);
    let mut client = UnixStream::connect(&control).expect("connect");
    let added = service.path("p1");
    let parameters = format!("{{\"name\":\"r1\",\"socket\":\"{}\"}}", added.display());
    let method = "io.vioswitch.Switch.Add";
    write!(client, "{{\"method\":\"{method}\",\"parameters\":{parameters}}}\0").expect("ask");
    let mut answer = [0; 512];
    let len = std::io::Read::read(&mut client, &mut answer).expect("an answer");
    let expected =
        format!("{{\"parameters\":{{\"number\":1,\"socket\":\"{}\"}}}}\0", added.display());
    assert_eq!(String::from_utf8_lossy(&answer[..len]), expected);
    let inode = || fs::metadata(&added).expect("the socket").ino();
    let before = inode();
    for round in 0..6 {
        if round % 2 == 0 {
            drop(service.stop())
        } else {
            service.kill()
        }
        let mut waiting = Frontend::connect(&added, SOON).expect("connect");
        waiting.send(req::GET_FEATURES, 1, &[], &[]).expect("sent into the queue");
        service.start(&args);
        assert_eq!(waiting.reply(req::GET_FEATURES).expect("an answer").len(), 8);
        assert_eq!((inode(), service.manager.names().len()), (before, 2));
    }
}

/// Between two processes, after an orderly end and after a crash, connecting never fails, and who
/// connected is served by the next process. The file stays the same one. 20 times; sockets keep
/// their permissions.
#[test]
fn front_ends_that_connect_between_two_processes_are_served() {
    let mut service = Service::new();
    let args = service.ports(3);
    service.start(&args);
    let identity = |service: &Service, port: &str| {
        let found = fs::metadata(service.path(port)).expect("the socket");
        (found.dev(), found.ino(), found.permissions().mode() & 0o777)
    };
    let before = ["p0", "p1", "p2"].map(|port| identity(&service, port));
    for round in 0..20 {
        let attached = Frontend::connect(&service.path("p0"), SOON).expect("connect");
        assert!(is_served(attached));
        if round % 2 == 0 {
            drop(service.stop())
        } else {
            service.kill()
        }
        let mut waiting: Vec<_> = ["p0", "p1", "p2"]
            .iter()
            .map(|port| Frontend::connect(&service.path(port), SOON).expect("connect"))
            .collect();
        for frontend in &mut waiting {
            frontend.send(req::GET_FEATURES, 1, &[], &[]).expect("sent into the queue");
        }
        service.start(&args);
        for mut frontend in waiting {
            assert_eq!(frontend.reply(req::GET_FEATURES).expect("an answer").len(), 8);
        }
        assert_eq!(["p0", "p1", "p2"].map(|port| identity(&service, port)), before);
    }
    assert_eq!(service.manager.names().len(), 3, "{:?}", service.manager.names());
    service.stop();
}

/// Guests that were attached come back with their rings as they were: what they had sent and nobody
/// had taken is taken then. Frames under way at the end come once, all and in order, and the
/// counters go on.
#[test]
fn a_hundred_restarts_lose_and_duplicate_nothing() {
    let mut service = Service::new();
    let args = service.ports(2);
    service.start(&args);
    let mut net = service.guests(2);
    let mut times = Vec::new();
    for round in 0..100 {
        let (from, to) = (round % 2, 1 - round % 2);
        net.send_only(&Job::new(from, To::Vm(to as u8), 60, Sizes::Range(60, 1514)));
        // Before, during and after the burst is taken.
        std::thread::sleep(Duration::from_micros(round as u64 * 7 % 100));
        service.stop();
        let start = Instant::now();
        service.start(&args);
        // Nothing is sent before its receiver is there.
        for i in [to, from] {
            net.vms[i].reconnect(&service.path(&format!("p{i}")));
        }
        times.push(start.elapsed());
        net.run(&[]);
    }
    let report = service.report();
    report.balance();
    assert_eq!(report.sum(None, "in", "frames"), 2 + 100 * 60);
    assert_eq!(report.sum(None, "out", "frames"), 2 + 100 * 60);
    assert_eq!(report.sum(Some("p0"), "", "attaches"), 101);
    times.sort();
    println!("100 restarts; both guests back after {:?}, {:?} at most", times[50], times[99]);
    // The median, because the machine may be busy.
    assert!(times[50] < Duration::from_millis(1500), "back after {times:?}");
    service.stop();
}

/// An orderly end hands over where addresses live; the flood that a forgotten address means does
/// not happen. A crash forgets them, and what was handed over before it is not taken twice.
#[test]
fn addresses_are_handed_over_once() {
    let mut service = Service::new();
    let args = service.ports(3);
    service.start(&args);
    let mut net = service.guests(3);
    service.stop();
    assert!(service.manager.names().contains(&"state".to_owned()));
    service.start(&args);
    assert!(!service.manager.names().contains(&"state".to_owned()));
    let floods = |service: &Service| service.report().sum(Some("p2"), "out", "frames");
    let before = floods(&service);
    assert_eq!(service.addresses(), 3);
    for i in 0..3 {
        net.vms[i].reconnect(&service.path(&format!("p{i}")));
    }
    net.run(&[Job::new(0, To::Vm(1), 10, Sizes::Fixed(60))]);
    assert_eq!(floods(&service), before, "a known address was flooded");
    service.kill();
    service.start(&args);
    assert_eq!((service.report().sum(None, "in", "frames"), service.addresses()), (0, 0));
    service.stop();
}

/// A start that fails, for whatever reason, leaves what was known to the next one.
#[test]
fn a_start_that_fails_costs_no_state() {
    let mut service = Service::new();
    let args = service.ports(2);
    service.start(&args);
    let _attached = service.guests(2);
    service.stop();
    let mut command = Command::new("sh");
    // With nothing that can be served.
    let none = ["--tap".to_owned(), "up,ifname=lo".to_owned()];
    service.manager.start(&mut command, env!("CARGO_BIN_EXE_vioswitchd"), &none);
    assert_eq!(command.output().expect("run").status.code(), Some(1));
    drop(command);
    service.start(&args);
    assert_eq!((service.report().sum(None, "in", "frames"), service.addresses()), (2, 2));
    service.stop();
}

/// What another release left, or what is no state at all, is put away and the service starts.
#[test]
fn a_state_of_another_version_is_ignored() {
    let mut service = Service::new();
    let args = service.ports(1);
    let junk: [&[u8]; 4] = [
        b"vioswitch-state 999\naddress 52:54:00:00:00:01 1 p0\n",
        b"",
        &[0xff; 4096],
        b"vioswitch-state 1\naddress 52:54:00:00:00:01 1 p0",
    ];
    for (text, expected) in junk.into_iter().zip([0, 0, 0, 1]) {
        let file = sys::memfd(0);
        File::from(file.try_clone().expect("dup")).write_all(text).expect("write");
        service.manager.add("state", file);
        service.start(&args);
        service.report();
        assert_eq!(service.addresses(), expected, "{text:?}");
        service.kill();
        assert_eq!(service.manager.names().len(), 1);
    }
}

/// The file at the path is gone, or another one: front-ends could not reach the kept socket.
#[test]
fn a_socket_without_its_file_is_bound_anew() {
    let mut service = Service::new();
    let args = service.ports(2);
    service.start(&args);
    let (p0, p1) = (service.path("p0"), service.path("p1"));
    for _ in 0..3 {
        service.stop();
        fs::remove_file(&p0).expect("remove");
        fs::remove_file(&p1).expect("remove");
        // Somebody left a socket there, dead by now.
        drop(UnixListener::bind(&p1).expect("bind"));
        service.start(&args);
        for path in [&p0, &p1] {
            assert!(is_served(Frontend::connect(path, SOON).expect("connect")));
        }
        assert!(listens(&service, "p0"));
        assert_eq!(service.manager.names().len(), 2, "{:?}", service.manager.names());
    }
    service.stop();
}

/// Ports that are configured no more are let go, and come back without trouble.
#[test]
fn what_is_not_wanted_any_more_is_let_go() {
    let mut service = Service::new();
    let args = service.ports(3);
    for round in 0..3 {
        service.start(&args);
        service.stop();
        let kept = service.manager.names();
        assert_eq!(kept.len(), 4, "three sockets and the state: {kept:?}");
        service.manager.add("strange", sys::memfd(1));
        service.manager.add("listener-1-2", UnixStream::pair().expect("pair").0.into());
        service.start(&args[..2]);
        assert_eq!(service.manager.names().len(), 1, "{:?}", service.manager.names());
        // Nobody listens there now; a child of another test may yet have to close its copies.
        let deaf = wait_for(SOON, || !listens(&service, "p1"));
        assert!(deaf, "round {round}");
        assert!(is_served(Frontend::connect(&service.path("p0"), SOON).expect("connect")));
        service.stop();
    }
}

/// A live process of somebody else has the path: it keeps it, and we say so.
#[test]
fn a_path_that_another_process_took_is_left_alone() {
    let mut service = Service::new();
    let args = service.ports(1);
    service.start(&args);
    service.stop();
    let path = service.path("p0");
    fs::remove_file(&path).expect("remove");
    let theirs = UnixListener::bind(&path).expect("bind");
    let mut command = Command::new("sh");
    service.manager.start(&mut command, env!("CARGO_BIN_EXE_vioswitchd"), &args);
    let refused = command.output().expect("run");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("is in use by "), "{said}");
    drop(theirs);
}

/// Socket activation: the manager's sockets are used, by their path through links too, and are
/// its own when we leave.
#[test]
fn sockets_of_the_manager_are_used_and_left() {
    let mut service = Service::new();
    fs::create_dir(service.path("real")).expect("directory");
    std::os::unix::fs::symlink("real", service.path("link")).expect("link");
    for (name, path) in [("vioswitchd.socket", "p0"), ("", "real/p1")] {
        let listener = UnixListener::bind(service.path(path)).expect("bind");
        fs::set_permissions(service.path(path), fs::Permissions::from_mode(0o606)).expect("mode");
        service.manager.add(name, OwnedFd::from(listener));
    }
    let port = |name, path| format!("--port={name},socket={}", service.path(path).display());
    let args = [port("a", "p0"), port("b", "link/p1")];
    for _ in 0..3 {
        service.start(&args);
        for path in ["p0", "link/p1"] {
            let path = service.path(path);
            assert!(is_served(Frontend::connect(&path, SOON).expect("connect")));
            assert_eq!(fs::metadata(&path).expect("socket").permissions().mode() & 0o777, 0o606);
        }
        assert_eq!(service.manager.names(), ["", "vioswitchd.socket"]);
        service.stop();
        assert_eq!(service.manager.remove("state").len(), 1);
    }
    assert!(service.path("p0").exists() && service.path("real/p1").exists());
}

/// A kept socket gets the permissions that are configured now.
#[test]
fn permissions_follow_the_configuration() {
    let mut service = Service::new();
    // SAFETY: takes nothing and cannot fail.
    let own = unsafe { libc::getegid() };
    // Root may give a socket to any group, others to their own.
    let other = if own == 0 { 54_321 } else { own };
    for (mode, group) in [("0600", None), ("0666", Some(other)), ("0620", None)] {
        let keys = group.map_or(String::new(), |group| format!(",socket-group={group}"));
        let args = service.port("p0", &format!(",socket-mode={mode}{keys}"));
        service.start(&args);
        let found = fs::metadata(service.path("p0")).expect("socket");
        assert_eq!(found.mode() & 0o777, u32::from_str_radix(mode, 8).expect("octal"));
        assert_eq!(found.gid(), group.unwrap_or(own), "mode {mode}");
        service.stop();
    }
}

/// Frames that came in by the uplink so far, those of processes before included.
fn came_in(service: &Service) -> u64 {
    service.report().sum(Some("up"), "in", "frames")
}

/// The uplink `up` on interface vio0.
fn uplink(queues: u32) -> Vec<String> {
    ["--tap".into(), format!("up,ifname=vio0,queues={queues}")].into()
}

/// A TAP of ours stays the same interface, in its bridge, through orderly ends and crashes, and
/// what arrives for us meanwhile is taken by the next process.
#[test]
fn a_tap_stays_in_its_bridge() {
    for queues in [1, 2] {
        in_namespace(|| {
            let mut service = Service::new();
            service.start(&uplink(queues));
            ip("link add br0 type bridge");
            ip("link set vio0 master br0");
            let index = index_of("vio0").expect("an interface");
            let host = Host::open("vio0");
            let mut expected = 0;
            for round in 1..=10 {
                if round % 3 == 0 {
                    service.kill();
                    expected = 0;
                } else {
                    service.stop();
                }
                assert_eq!(index_of("vio0"), Some(index), "gone with the process");
                for _ in 0..5 {
                    host.send(&[&[0xff; 6][..], &[2, 0, 0, 0, 0, 9], &[0x88; 48]].concat());
                }
                expected += 5;
                service.start(&uplink(queues));
                let caught = wait_for(SOON, || came_in(&service) >= expected);
                assert!(caught, "{} of {expected} in round {round}", came_in(&service));
                assert!(ip("link show dev vio0").contains("master br0"));
            }
            assert_eq!(service.manager.names().len(), queues as usize);
            service.stop();
        });
    }
}

/// What cannot be gone on with is opened anew: other queues, an interface that was deleted with
/// and without us there, one that somebody renamed.
#[test]
fn a_tap_that_changed_is_opened_anew() {
    in_namespace(|| {
        let mut service = Service::new();
        let mut index = None;
        let changed = |service: &mut Service, queues| {
            service.start(&uplink(queues));
            let now = index_of("vio0").expect("an interface");
            assert_eq!(service.manager.names(), vec!["tap-vio0"; queues as usize]);
            let before = index.replace(now);
            assert_ne!(before, Some(now), "still the same interface");
        };
        let mut changed = changed;
        changed(&mut service, 1);
        service.stop();
        changed(&mut service, 2);
        service.stop();
        ip("link del vio0");
        changed(&mut service, 2);
        // Deleted under us, it is made again, and that one is kept.
        ip("link del vio0");
        let kept = |service: &Service| service.manager.names() == ["tap-vio0"; 2];
        assert!(wait_for(SOON, || index_of("vio0").is_some() && kept(&service)));
        let remade = index_of("vio0");
        service.stop();
        assert_eq!(index_of("vio0"), remade, "the new one is not kept");
        ip("link set vio0 name other");
        changed(&mut service, 2);
        assert_eq!(index_of("other"), None, "nobody has it any more");
        service.stop();
    });
}

/// An interface of the administrator stays as it is.
#[test]
fn a_tap_of_the_administrator_is_kept_too() {
    in_namespace(|| {
        ip("tuntap add vio0 mode tap");
        ip("link set vio0 up");
        let index = index_of("vio0");
        let mut service = Service::new();
        for _ in 0..3 {
            service.start(&uplink(1));
            service.stop();
        }
        // While it is kept it has its carrier.
        assert!(ip("link show dev vio0").contains("LOWER_UP"));
        assert_eq!(service.manager.remove("tap-vio0").len(), 1);
        assert_eq!(index_of("vio0"), index);
    });
}
