//! System calls that fail: no descriptor, no memory, no thread, at each place where one is asked
//! for. A tracer (strace) makes the n-th call of a kind fail, n from 1 until there is no n-th.
//! There are some 330 such places: EMFILE, ENOMEM, no thread.
//!
//! At the start the process says what is missing and ends; it neither hangs nor dies of it. In a
//! port's conversation that port is refused, visibly, and nothing else; the next front-end is
//! served.

use std::io::{BufRead, BufReader};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::lab::{chat, plain};
use crate::process::{Process, SOON};
use testkit::frontend::Frontend;
use testkit::host::{Host, in_namespace, index_of, ip};
use testkit::mem::RegionSpec;
use testkit::net::{Job, Net, Sizes};
use testkit::proc::{Dir, wait_for};
use testkit::rx::RxConfig;
use testkit::traffic::To;
use testkit::vm::{Guest, Vm, VmConfig};
use testkit::{skip, sys};

/// The port whose conversation suffers; 0 and 1 are honest.
const VICTIM: usize = 2;

/// Why nothing can be traced here.
pub fn missing() -> Option<String> {
    let inject = "inject=getpid:error=ENOMEM:when=1";
    let mut traced = Command::new("strace");
    traced.args(["-qq", "-e", inject, "-o", "/dev/null", "true"]).stderr(Stdio::null());
    match traced.status() {
        Err(error) => Some(format!("needs strace: {error}")),
        Ok(status) if !status.success() => Some("needs ptrace(2)".to_owned()),
        Ok(_) => None,
    }
}

/// A call that fails, and how.
type Fault = (&'static str, &'static str);

/// strace of one thread.
pub struct Tracer(Child, PathBuf);

impl Tracer {
    /// The thread's call of a kind number `when` fails.
    fn failing(thread: u32, (call, error): Fault, when: u32, dir: &Path) -> Tracer {
        Tracer::attach(thread, call, &format!("error={error}:when={when}"), dir)
    }

    /// What becomes of the thread's calls of a kind, in strace's words.
    pub fn attach(thread: u32, call: &str, change: &str, dir: &Path) -> Tracer {
        let trace = dir.join("trace");
        let mut command = Command::new("strace");
        command.arg("-p").arg(thread.to_string()).arg("-o").arg(&trace);
        command.args(["-e", &format!("trace={call}")]);
        command.args(["-e", &format!("inject={call}:{change}")]);
        let mut child = command.stderr(Stdio::piped()).spawn().expect("strace");
        let said = BufReader::new(child.stderr.take().expect("pipe"));
        let mut said = said.lines().map_while(Result::ok);
        assert!(said.any(|line| line.contains("attached")), "strace does not attach");
        Tracer(child, trace)
    }

    /// Ends the tracing; true if a call was changed.
    pub fn detach(mut self) -> bool {
        sys::kill(self.0.id(), libc::SIGINT);
        self.0.wait().expect("wait");
        let trace = std::fs::read_to_string(&self.1).unwrap_or_default();
        trace.contains("(INJECTED)") || trace.contains("(DELAYED)")
    }
}

fn victim() -> VmConfig {
    let mut cfg = VmConfig::new(VICTIM as u8);
    cfg.regions = vec![RegionSpec::new(0, 2 << 20), RegionSpec::new(4 << 30, 2 << 20)];
    (cfg.size, cfg.tx_size, cfg.tx.buffers) = (64, 64, 16);
    cfg.rx = RxConfig::plain(64, 1526);
    cfg
}

/// From the connection to memory that comes and goes on running rings.
fn conversation(socket: &Path, guest: &Guest) -> Option<Frontend> {
    let mut fe = Frontend::connect(socket, SOON).ok()?;
    let features = fe.get_features().ok()?;
    guest.bring_up(&mut fe).ok()?;
    let memory = sys::memfd(1 << 20);
    let region = RegionSpec::new(8 << 30, 1 << 20);
    let spec = &testkit::mem::GuestMem::new(&[region]);
    let (spec, _) = &spec.table()[0];
    fe.add_mem_reg(spec, std::os::fd::AsRawFd::as_raw_fd(&memory)).ok()?;
    fe.rem_mem_reg(spec).ok()?;
    fe.set_vring_enable(1, false).ok()?;
    fe.set_vring_enable(1, true).ok()?;
    fe.set_features(features & guest.cfg.features).ok()?;
    fe.set_features(guest.cfg.features | testkit::frontend::feat::PROTOCOL_FEATURES).ok()?;
    fe.get_features().ok()?;
    Some(fe)
}

/// Frames pass in both directions.
fn works(vm: &mut Vm, net: &mut Net) -> bool {
    let mac = vm.mac();
    let frame = plain(mac, mac, 1, 60);
    assert!(vm.tx[0].send(&frame));
    let sent = wait_for(SOON, || {
        vm.tx[0].reclaim();
        vm.tx[0].ring.in_flight() == 0
    });
    net.run(&[Job::new(0, To::Broadcast, 1, Sizes::Fixed(60))]);
    sent && vm.rx[0].wait(SOON)
}

/// Each call that a conversation asks the system for something with.
const CONVERSATION: [Fault; 19] = [
    ("accept4", "EMFILE"),
    ("accept4", "ENFILE"),
    ("accept4", "ENOMEM"),
    ("accept4", "EPERM"),
    ("ppoll", "ENOMEM"),
    ("poll", "ENOMEM"),
    ("recvmsg", "ENOMEM"),
    ("sendmsg,sendto", "ENOBUFS"),
    ("fcntl", "EMFILE"),
    ("mmap", "ENOMEM"),
    ("mmap", "ENODEV"),
    ("epoll_create1", "EMFILE"),
    ("epoll_ctl", "ENOMEM"),
    ("epoll_ctl", "ENOSPC"),
    ("readlink,readlinkat", "ENOMEM"),
    ("openat", "EMFILE"),
    ("fstat,newfstatat,statx,fstatfs", "ENOMEM"),
    ("eventfd2", "EMFILE"),
    ("madvise,mprotect", "ENOMEM"),
];

#[test]
fn a_conversation_without_means() {
    if let Some(reason) = missing() {
        return skip(&reason);
    }
    let dir = Dir::new();
    let mut d = Process::start(3, &["--workers", "2"], |_| {});
    d.ready();
    let mut net = d.pair();
    let mut guest = Guest::new(victim());
    let mut tries = 0;
    for fault in CONVERSATION {
        let mut hits = 0;
        for when in 1.. {
            // A thread that closes descriptors has the name of the one that starts it for a moment.
            assert!(
                wait_for(SOON, || d.threads("port-2").len() == 1),
                "{fault:?} {when}: threads of the port: {:?}\n{}",
                d.threads("port-2"),
                d.log()
            );
            let thread = d.threads("port-2")[0];
            let tracer = Tracer::failing(thread, fault, when, dir.path());
            guest.reset_rings();
            let fe = conversation(&d.socket(VICTIM), &guest);
            chat(&mut net, 20);
            let hit = tracer.detach();
            d.alive();
            tries += 1;
            // Refused is what its front-end can see. Told nothing, it must be served.
            let mut vm = Vm { fe: fe.unwrap_or_else(|| Frontend::from_stream(closed())), guest };
            if !vm.fe.closed_within(Duration::ZERO) {
                // The call may also have failed as the last bytes were read: then the connection
                // ends a moment later.
                let served = works(&mut vm, &mut net);
                let ended = served || vm.fe.closed_within(SOON);
                assert!(ended, "{fault:?} {when}: deaf, and not told\n{}", d.log());
            }
            drop(vm.fe);
            guest = vm.guest;
            // And the next one is served.
            guest.reset_rings();
            let fe = Frontend::connect(&d.socket(VICTIM), SOON).expect("connect");
            let mut vm = Vm { fe, guest };
            vm.guest.bring_up(&mut vm.fe).unwrap_or_else(|error| {
                panic!("{fault:?} {when}: the next is not served: {error:?}\n{}", d.log())
            });
            vm.settle();
            assert!(works(&mut vm, &mut net), "{fault:?} {when}: the next is deaf\n{}", d.log());
            drop(vm.fe);
            guest = vm.guest;
            if !hit {
                break;
            }
            hits += 1;
        }
        println!("{}: {} failed at {hits} places", fault.1, fault.0);
    }
    println!("{tries} conversations");
    net.finish();
    d.counters().balance();
    drop(net);
    d.stop();
}

/// A socket whose other end is gone.
fn closed() -> std::os::unix::net::UnixStream {
    std::os::unix::net::UnixStream::pair().expect("pair").0
}

/// Each call that the start asks the system for something with.
const START: [Fault; 12] = [
    ("openat", "EMFILE"),
    ("openat", "ENFILE"),
    ("socket", "EMFILE"),
    ("eventfd2", "EMFILE"),
    ("epoll_create1", "EMFILE"),
    ("epoll_ctl", "ENOMEM"),
    ("signalfd4", "EMFILE"),
    ("clone3,clone", "EAGAIN"),
    ("bind,listen", "ENOMEM"),
    ("linkat,link", "ENOSPC"),
    ("getrandom", "EINTR"),
    ("mmap", "ENOMEM"),
];

/// Calls of a kind that the loader, the language's runtime and the reading of arguments make:
/// they have their own ways to end.
fn before_start(call: &str, trace: &Path) -> u32 {
    let mut command = Command::new("strace");
    command.args(["-o", &trace.to_string_lossy(), "-e", &format!("trace={call}"), "-qq"]);
    command.args([env!("CARGO_BIN_EXE_vioswitchd"), "--version"]).stdout(Stdio::null());
    assert!(command.status().expect("strace").success());
    std::fs::read_to_string(trace).expect("trace").lines().filter(|l| l.contains('(')).count()
        as u32
}

#[test]
#[ignore = "full"]
fn a_start_without_means() {
    if let Some(reason) = missing() {
        return skip(&reason);
    }
    let files = Dir::new();
    let trace = files.path().join("trace");
    for (call, error) in START {
        let (mut hits, mut refused) = (0, 0);
        let before = before_start(call, &trace);
        for when in before + 1.. {
            let inject = format!("inject={call}:error={error}:when={when}");
            let out = trace.to_string_lossy();
            let traced = format!("trace={call}");
            let words = ["strace", "-D", "-f", "-qq", "-o", &out, "-e", &traced, "-e", &inject];
            let mut d = Process::wrapped(&words, 3, &["--workers", "2"], |_| {});
            // Sockets come before the threads that serve them.
            let mut ended = None;
            let done = wait_for(Duration::from_secs(10), || {
                ended = d.status();
                ended.is_some() || d.log().contains("ready: ")
            });
            assert!(done, "neither ready nor ended\n{}", d.log());
            let what = format!("{call} {error} {when}");
            if let Some(status) = ended {
                let log = d.log();
                assert!(!log.contains("panicked"), "{what}: {status}\n{log}");
                let said = log.contains("ERROR]") || log.contains("cannot start");
                assert!(said && status.code() == Some(1), "{what}: {status}\n{log}");
                refused += 1;
            } else {
                // It does without, and does not do so half. Or the call that fails comes after the
                // start: then it is the first front-end's, and the next is served. Calls are
                // counted for each thread, so there is a first one of each port.
                let mut firsts = (0..2).map(|_| catch_unwind(AssertUnwindSafe(|| d.pair())));
                let mut net = firsts.find_map(Result::ok).unwrap_or_else(|| d.pair());
                chat(&mut net, 20);
                drop(net);
                d.stop();
            }
            if !std::fs::read_to_string(&trace).unwrap_or_default().contains("(INJECTED)") {
                break;
            }
            hits += 1;
        }
        println!("{error}: {call} failed at {hits} places, {refused} starts refused");
    }
}

/// Each call that opening an interface again takes.
const UPLINK: [Fault; 7] = [
    ("openat", "EMFILE"),
    ("socket", "EMFILE"),
    ("ioctl", "ENOMEM"),
    ("epoll_ctl", "ENOMEM"),
    ("sendto,sendmsg", "ENOBUFS"),
    ("recvfrom,recvmsg", "ENOMEM"),
    ("mmap", "ENOMEM"),
];

/// The uplink is lost, and opening it again fails: it is tried until it succeeds, in a quarter of a
/// second each time, and guests talk meanwhile.
#[test]
#[ignore = "full"]
fn a_lost_uplink_without_means() {
    if let Some(reason) = missing() {
        return skip(&reason);
    }
    in_namespace(|| {
        let dir = Dir::new();
        let mut d = Process::start(2, &["--tap", "up,ifname=tap0,queues=2"], |_| {});
        d.ready();
        let mut net = d.pair();
        let back = |d: &Process| d.log().matches("attached to interface tap0 again").count();
        for fault in UPLINK {
            let mut hits = 0;
            for when in 1.. {
                let [thread] = d.threads("tap-2")[..] else {
                    panic!("{fault:?} {when}: the keeper is missing\n{}", d.log())
                };
                let before = back(&d);
                let tracer = Tracer::failing(thread, fault, when, dir.path());
                ip("link del tap0");
                chat(&mut net, 20);
                let again = wait_for(2 * SOON, || back(&d) > before && index_of("tap0").is_some());
                let hit = tracer.detach();
                assert!(again, "{fault:?} {when}: not attached again\n{}", d.log());
                d.alive();
                let host = Host::open("tap0");
                let reached = wait_for(SOON, || {
                    net.run(&[Job::new(0, To::Broadcast, 1, Sizes::Fixed(60))]);
                    host.receive(Duration::from_millis(20)).is_some()
                });
                assert!(reached, "{fault:?} {when}: nothing gets out\n{}", d.log());
                if !hit {
                    break;
                }
                hits += 1;
            }
            println!("{}: {} failed at {hits} places", fault.1, fault.0);
        }
        net.finish();
        d.counters().balance();
        drop(net);
        d.stop();
    });
}
