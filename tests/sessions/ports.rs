//! Ports that are added and removed while frames flow and guests migrate: by the functions of the
//! daemon itself.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::migration::{BEGINNING, Log};
use api::config::{CliAction, Config, Machine, Request, Settings, Texts};
use base::frame::MacAddr;
use daemon::{Daemon, NewPort, PortError};
use switch::PortId;
use testkit::Rng;
use testkit::bystanders::Bystanders;
use testkit::frontend::{Acks, proto};
use testkit::host::{self, Host};
use testkit::neighbours::in_one_of_a_few_tries;
use testkit::proc::{Dir, alone, wait_for};
use testkit::rounds;
use testkit::traffic::{self, Stream, To};
use testkit::vm::{Vm, VmConfig, mac_of};

const LOST: Duration = Duration::from_secs(20);
/// Of the tests that count descriptors.
const DESCRIPTORS: u32 = 512;
/// Guests 0 and 1 are bystanders, 2 comes and goes, and talks with 3.
const GUEST: u8 = 2;
const PEER: u8 = 3;

fn config(args: &[String]) -> Config {
    let args = std::iter::once("vioswitchd".to_owned()).chain(args.iter().cloned());
    match Request::read(args, Machine { cpus: 2, allowed: &[0, 1] }) {
        Ok(CliAction::Request(request)) => request.lay_over(&Texts::default()).expect("valid"),
        other => panic!("{other:?}"),
    }
}

/// A switch in this process.
struct Lab {
    dir: Dir,
    daemon: Daemon,
}

impl Lab {
    /// With the ports of guests `ids`.
    fn new(ids: &[u8], workers: usize) -> Lab {
        Lab::with(ids, workers, |_| "")
    }

    /// With bystanders and the peer. What is sent to a guest that has gone is flooded, and
    /// bystanders get none of it: on a machine without a CPU to spare they would be late to take
    /// it, and short of buffers for each other's frames.
    fn without_floods() -> Lab {
        Lab::with(&[0, 1, PEER], 2, |id| if id < GUEST { ",flood=off" } else { "" })
    }

    /// Whose ports have more keys.
    fn with(ids: &[u8], workers: usize, more: impl Fn(u8) -> &'static str) -> Lab {
        let dir = Dir::new();
        let ports = ids.iter().map(|id| format!("--port={}{}", keys(dir.path(), *id), more(*id)));
        let args: Vec<String> = ports.chain([format!("--workers={workers}")]).collect();
        let daemon = Daemon::start(&config(&args)).expect("start");
        Lab { dir, daemon }
    }

    fn socket(&self, id: u8) -> PathBuf {
        self.dir.path().join(format!("vm{id}"))
    }

    /// What `--port` says of guest `id`'s port, with `more` keys.
    fn settings(&self, id: u8, more: &str) -> Settings {
        config(&[format!("--port={}{more}", keys(self.dir.path(), id))]).ports.remove(0).settings
    }

    fn add(&mut self, id: u8) -> PortId {
        self.daemon.add(&NewPort::Kept(self.settings(id, ""))).expect("add")
    }

    fn connect(&self, id: u8) -> Vm {
        Vm::connect(&self.socket(id), VmConfig::new(id))
    }

    fn remove(&mut self, id: u8) {
        self.daemon.remove_port(&format!("vm{id}")).expect("remove");
        assert!(!self.socket(id).exists(), "its socket is still there");
    }

    fn names(&self) -> Vec<String> {
        self.daemon.ports().iter().map(|port| port.name.clone()).collect()
    }

    fn home(&self, id: u8) -> Option<PortId> {
        self.daemon.fdb().lookup(MacAddr(mac_of(id)))
    }

    fn panics(&self) -> u64 {
        self.daemon.ports().iter().map(|port| port.stats.panics.get()).sum()
    }

    /// Guests 0 and 1 talk, and lose nothing, until they are told to end.
    fn bystanders(&self) -> Bystanders {
        Bystanders::begin([self.connect(0), self.connect(1)])
    }
}

/// A test that fails says where frames were dropped.
impl Drop for Lab {
    fn drop(&mut self) {
        if thread::panicking() {
            for port in self.daemon.ports().iter() {
                for (side, traffic) in ["in", "out"].into_iter().zip(port.traffic()) {
                    let drops: Vec<_> = traffic.dropped().collect();
                    eprintln!("{} {side}: {} frames, {drops:?}", port.name, traffic.frames);
                }
            }
        }
    }
}

fn keys(dir: &Path, id: u8) -> String {
    format!("vm{id},socket={}", dir.join(format!("vm{id}")).display())
}

/// Sends `count` frames from one guest to another, all of which arrive.
fn talk(from: &mut Vm, to: &mut Vm, first: u32, count: u32) {
    try_to_talk(from, to, first, count).unwrap_or_else(|fault| panic!("{fault}"));
}

fn try_to_talk(from: &mut Vm, to: &mut Vm, first: u32, count: u32) -> Result<(), String> {
    let stream = Stream { sender: from.cfg.id, queue: 0, to: To::Vm(to.cfg.id), flow: 0 };
    let (mut frame, source) = (Vec::new(), from.mac());
    for n in first..first + count {
        traffic::build(&stream, n, 200, &mut frame);
        from.tx[0].send_waiting(&frame, LOST);
    }
    let mut come = 0;
    let end = Instant::now() + LOST;
    while come < count {
        to.rx[0].recv(64, |_, frame| {
            if frame[6..12] == source {
                let (_, n) = traffic::parse(frame).expect("a whole frame");
                assert_eq!(n, first + come, "lost, doubled or overtaken");
                come += 1;
            }
        });
        if Instant::now() > end {
            return Err(format!("{come} of {count} came"));
        }
        to.rx[0].wait(Duration::from_millis(1));
    }
    from.tx[0].drain(LOST);
    Ok(())
}

/// Descriptors, threads, mappings, and KiB of this process.
fn usage() -> [usize; 4] {
    let count = |path| fs::read_dir(path).expect("proc").count();
    let maps = fs::read_to_string("/proc/self/maps").expect("proc").lines().count();
    let status = fs::read_to_string("/proc/self/status").expect("proc");
    let resident = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("RssAnon");
    let resident = resident.trim().trim_end_matches(" kB").parse().expect("a number");
    [count("/proc/self/fd"), count("/proc/self/task"), maps, resident]
}

/// One guest's whole life; what it sends and is sent arrives.
fn live(lab: &mut Lab, peer: &mut Vm, n: u32) -> PortId {
    let id = lab.add(GUEST);
    let mut guest = lab.connect(GUEST);
    talk(&mut guest, peer, 0, 100);
    talk(peer, &mut guest, n * 100, 100);
    assert_eq!(lab.home(GUEST), Some(id));
    lab.remove(GUEST);
    assert!(guest.fe.closed_within(LOST), "its front-end is still connected");
    assert_eq!(lab.home(GUEST), None, "its address is still known");
    id
}

/// Beside a pair that loses nothing.
#[test]
fn ports_come_and_go_and_leave_nothing() {
    alone("ports::ports_come_and_go_and_leave_nothing", DESCRIPTORS, || {
        let cycles = rounds(60, 500, 2_000);
        let mut lab = Lab::new(&[0, 1, PEER], 2);
        let bystanders = lab.bystanders();
        let mut peer = lab.connect(PEER);
        let number = live(&mut lab, &mut peer, 0);
        // Stacks and arenas that the C library keeps.
        (1..20)
            .for_each(|n| assert_eq!(live(&mut lab, &mut peer, n), number, "the number is free"));
        let before = usage();
        (20..20 + cycles).for_each(|n| {
            live(&mut lab, &mut peer, n);
        });
        let like_before = || {
            let now = usage();
            now[0] <= before[0]
                && now[1] <= before[1]
                && now[2] <= before[2] + 16
                && now[3] <= before[3] + 4096
        };
        assert!(wait_for(LOST, like_before), "{:?} before, {before:?} then {:?}", before, usage());
        bystanders.finish();
        assert_eq!(
            (lab.panics(), lab.names()),
            (0, ["vm0", "vm1", "vm3"].map(String::from).into())
        );
        println!("{cycles} cycles: {before:?}, {:?}", usage());
    });
}

/// In the middle of bursts in both directions, of frames that wait for the guest's buffers and of
/// signals that are held back: nobody else notices, and what the other sends comes to an end.
///
/// In one of a few tries: where the machine has no memory to spare, the kernel makes a worker wait
/// for a page of a bystander or of the peer, and who makes a worker wait is paused.
#[test]
fn a_port_goes_in_the_middle_of_everything() {
    in_one_of_a_few_tries("a port goes in the middle of everything", goes_in_the_middle);
}

fn goes_in_the_middle() -> Result<(), String> {
    let mut lab = Lab::without_floods();
    let bystanders = lab.bystanders();
    let mut peer = lab.connect(PEER);
    let mut rng = Rng::new(7);
    for round in 0..rounds(30u64, 200, 1_000) {
        lab.add(GUEST);
        let mut guest = lab.connect(GUEST);
        try_to_talk(&mut guest, &mut peer, 0, 1)?;
        // Every other guest takes no frames after its first ones.
        guest.rx[0].hold = round % 2 == 0;
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            for vm in [&mut guest, &mut peer] {
                let to = if vm.cfg.id == PEER { GUEST } else { PEER };
                let (over, frame) =
                    (&over, [&mac_of(to)[..], &vm.mac(), &[0x88, 0xb5], &[0; 300]].concat());
                scope.spawn(move || {
                    while !over.load(Ordering::Acquire) {
                        while vm.tx[0].queue(&frame) {}
                        vm.tx[0].ring.publish();
                        vm.rx[0].recv(64, |_, _| {});
                        thread::yield_now();
                    }
                });
            }
            thread::sleep(Duration::from_micros(rng.below(4_000)));
            lab.remove(GUEST);
            over.store(true, Ordering::Release);
        });
        assert!(guest.fe.closed_within(LOST));
        peer.tx[0].drain(LOST);
        while peer.rx[0].recv(64, |_, _| {}) > 0 {}
        assert_eq!(lab.home(GUEST), None, "its address is still known");
    }
    assert_eq!(lab.panics(), 0);
    bystanders.end()
}

/// Pieces of memory that are shared with a guest, or hold a dirty log, in this process.
fn shared_mappings() -> usize {
    let maps = fs::read_to_string("/proc/self/maps").expect("proc");
    maps.lines().filter(|line| line.contains("/memfd:")).count()
}

/// A guest is about to migrate when its port is removed: after `steps` messages of the beginning,
/// and after what `then` does, with frames for it on their way. All of the log goes with the port.
fn leave_while_migrating(lab: &mut Lab, peer: &mut Vm, steps: usize, then: fn(&mut Vm, &Log)) {
    lab.add(GUEST);
    let mut config = VmConfig::new(GUEST);
    (config.protocol, config.acks) = (config.protocol | proto::LOG_SHMFD, Acks::Always);
    let mut guest = Vm::connect(&lab.socket(GUEST), config);
    talk(&mut guest, peer, 0, 10);
    let [log, next] = [0; 2].map(|_| Log::for_guest(&guest));
    BEGINNING.iter().take(steps).for_each(|step| step(&mut guest, &log));
    let frame = [&guest.mac()[..], &peer.mac(), &[0x88, 0xb5], &[6; 300]].concat();
    let fill = |peer: &mut Vm| {
        while peer.tx[0].queue(&frame) {}
        peer.tx[0].ring.publish();
    };
    fill(peer);
    assert!(guest.rx[0].wait(LOST), "nothing came");
    // Both directions are logged from the last step on.
    let marks = wait_for(LOST, || steps < BEGINNING.len() || !log.take().is_empty());
    assert!(marks, "what was written is not marked");
    then(&mut guest, &next);
    peer.tx[0].drain(LOST);
    fill(peer);
    lab.remove(GUEST);
    assert!(guest.fe.ends_within(LOST), "{steps} steps: no clean end of its connection");
    let before = guest.guest.mem.snapshot();
    let _ = [&log, &next].map(Log::take);
    peer.tx[0].drain(LOST);
    fill(peer);
    peer.tx[0].drain(LOST);
    assert!(log.take().is_empty() && next.take().is_empty(), "{steps} steps: a mark in its log");
    assert!(before == guest.guest.mem.snapshot(), "{steps} steps: its memory was written");
    while peer.rx[0].recv(64, |_, _| {}) > 0 {}
}

/// A port that goes at any step of a migration takes its dirty log along, and its guest's memory
/// stands still.
#[test]
fn a_port_goes_in_the_middle_of_a_migration() {
    alone("ports::a_port_goes_in_the_middle_of_a_migration", DESCRIPTORS, || {
        let mut lab = Lab::without_floods();
        let bystanders = lab.bystanders();
        let mut peer = lab.connect(PEER);
        let all = BEGINNING.len();
        let again: fn(&mut Vm, &Log) = |guest, log| log.attach(&mut guest.fe);
        let halted: fn(&mut Vm, &Log) = |guest, _| guest.stop();
        let ended: fn(&mut Vm, &Log) = |guest, log| {
            log.attach(&mut guest.fe);
            guest.stop();
        };
        let nothing: fn(&mut Vm, &Log) = |_, _| ();
        let cases = (1..=all).map(|steps| (steps, nothing));
        let cases = cases.chain([again, halted, ended].map(|then| (all, then)));
        let cases: Vec<_> = cases.collect();
        leave_while_migrating(&mut lab, &mut peer, all, nothing);
        let before = (usage(), shared_mappings());
        for _ in 0..rounds(2, 20, 100) {
            for &(steps, then) in &cases {
                leave_while_migrating(&mut lab, &mut peer, steps, then);
                assert_eq!(shared_mappings(), before.1, "mappings after {steps} steps");
            }
        }
        let kept = || usage()[0] > before.0[0] || usage()[1] > before.0[1];
        assert!(wait_for(LOST, || !kept()), "descriptors, threads: {before:?}, {:?}", usage());
        bystanders.finish();
        assert_eq!((lab.panics(), lab.names().len()), (0, 3));
    });
}

#[test]
fn what_cannot_be_added_leaves_nothing() {
    alone("ports::what_cannot_be_added_leaves_nothing", DESCRIPTORS, || {
        let mut lab = Lab::new(&[0, 1], 1);
        let mac = |last: u8| format!("02:00:00:00:00:{last:02x}");
        let owner = lab.settings(4, &format!(",mac={}", mac(4)));
        lab.daemon.add(&NewPort::Kept(owner)).expect("add");
        let _other = UnixListener::bind(lab.dir.path().join("other")).expect("bind");
        // A worker keeps a file open from its first spin on, which frames make it do.
        let (mut from, mut to) = (lab.connect(0), lab.connect(1));
        talk(&mut from, &mut to, 0, 100);
        drop((from, to));
        let still = || {
            let first = usage();
            thread::sleep(Duration::from_millis(50));
            first[..2] == usage()[..2]
        };
        assert!(wait_for(LOST, still));
        let before = usage();
        let names = lab.names();
        let path = lab.dir.path().to_owned();
        let mut refused = |settings: Settings, expected: fn(&PortError) -> bool, words: &str| {
            let error = lab.daemon.add(&NewPort::Kept(settings)).expect_err(words);
            assert!(expected(&error) && error.to_string().contains(words), "{error:?}");
        };
        let settings = |name: &str, file: &str, more: &str| {
            let file = path.join(file);
            config(&[format!("--port={name},socket={}{more}", file.display())])
                .ports
                .remove(0)
                .settings
        };
        refused(settings("vm0", "x", ""), |e| matches!(e, PortError::Exists), "taken");
        refused(settings("x", "vm0", ""), |e| matches!(e, PortError::Clash(_)), "used by vm0");
        refused(settings("x", "other", ""), |e| matches!(e, PortError::Socket(_)), "in use");
        refused(settings("x", "no/x", ""), |e| matches!(e, PortError::Socket(_)), "mkdir -p");
        let macs = format!(",mac={},mac={}", mac(5), mac(4));
        refused(settings("x", "x", &macs), |e| matches!(e, PortError::Clash(_)), "used by vm4");
        assert!(matches!(lab.daemon.remove_port("x"), Err(PortError::NoSuchPort)));
        assert_eq!(lab.names(), names);
        assert!(!path.join("x").exists());
        // The port whose socket was found in use lets go of whoever asked there, in its own time.
        let settled = wait_for(LOST, || usage()[..2] == before[..2]);
        assert!(settled, "descriptors and threads: {:?}, not {before:?}", usage());
        let address = MacAddr([2, 0, 0, 0, 0, 5]);
        assert_eq!(lab.daemon.fdb().lookup(address), None);
        // What the refused one asked for is free, and what the other had is when that is gone.
        let id = lab
            .daemon
            .add(&NewPort::Kept(settings("x", "x", &format!(",mac={}", mac(5)))))
            .expect("add");
        assert_eq!(lab.daemon.fdb().lookup(address), Some(id));
        lab.remove(4);
        let again = settings("y", "y", &format!(",mac={}", mac(4)));
        assert!(lab.daemon.add(&NewPort::Kept(again.clone())).is_ok());
        assert_eq!(lab.names(), ["vm0", "vm1", "y", "x"].map(String::from));
    });
}

/// A guest that was there before, and its successor under the same number: nothing that was meant
/// for the one reaches the other.
#[test]
fn a_number_that_is_used_again_brings_nothing_along() {
    let mut lab = Lab::new(&[PEER], 1);
    let mut peer = lab.connect(PEER);
    let first = lab.add(GUEST);
    let mut guest = lab.connect(GUEST);
    talk(&mut guest, &mut peer, 0, 10);
    lab.remove(GUEST);
    let session = |lab: &Lab, id| lab.daemon.ports()[id].as_guest().expect("a guest's").session();
    let second = lab.add(5);
    assert_eq!(first, second);
    assert_eq!(session(&lab, second), None);
    let mut other = lab.connect(5);
    // Flooded, as nobody is known to have that address.
    talk(&mut other, &mut peer, 0, 1);
    let frame = [&mac_of(GUEST)[..], &peer.mac(), &[0x88, 0xb5], &[0; 46]].concat();
    peer.tx[0].send_waiting(&frame, LOST);
    assert_eq!(other.rx[0].take(1, LOST).len(), 1);
    assert_eq!((lab.home(GUEST), lab.home(5)), (None, Some(second)));
    lab.remove(5);
    assert_eq!(lab.panics(), 0);
}

#[test]
fn taps_come_and_go() {
    host::in_namespace(|| {
        let mut lab = Lab::new(&[0, 1], 2);
        let mut guest = lab.connect(0);
        let tap = config(&["--tap=up,ifname=vsw0,queues=2".to_owned()]).ports.remove(0).settings;
        for round in 0..rounds(5u8, 20, 50) {
            let id = lab.daemon.add(&NewPort::Kept(tap.clone())).expect("add");
            assert!(matches!(lab.daemon.add(&NewPort::Kept(tap.clone())), Err(PortError::Exists)));
            let host = Host::open("vsw0");
            let from_host =
                [&[0xff; 6][..], &[2, 0, 0, 0, 1, round], &[0x88, 0xb5], &[7; 46]].concat();
            host.send(&from_host);
            let come = guest.rx[0].take(1, LOST);
            assert_eq!(
                come.iter().map(|(_, frame)| &frame[..]).collect::<Vec<_>>(),
                [&from_host[..]]
            );
            let station = MacAddr([2, 0, 0, 0, 1, round]);
            assert_eq!(lab.daemon.fdb().lookup(station), Some(id));
            let from_guest = [&station.0[..], &guest.mac(), &[0x88, 0xb5], &[8; 46]].concat();
            guest.tx[0].send_waiting(&from_guest, LOST);
            assert_eq!(host.receive(LOST), Some(from_guest));
            lab.daemon.remove_port("up").expect("remove");
            // A child that another test starts has its descriptor too for a moment.
            let gone = wait_for(LOST, || host::index_of("vsw0").is_none());
            assert!(gone, "the interface is still there");
            assert_eq!(lab.daemon.fdb().lookup(station), None);
        }
        assert_eq!((lab.panics(), lab.names().len()), (0, 2));
    });
}

/// Two ask for the same port to be removed, and the one who looks later finds another port of
/// that name: it is not the one that was meant. What was begun and never gone on with holds up no
/// end.
#[test]
fn a_removal_means_one_port_and_holds_up_no_end() {
    let mut lab = Lab::new(&[0, 1, PEER], 1);
    lab.add(GUEST);
    let mut guest = lab.connect(GUEST);
    let mut removals = ["vm2", "vm2"].map(|name| lab.daemon.begin_removal(name).expect("begin"));
    let [first, second] = &mut removals;
    assert!(wait_for(LOST, || lab.daemon.go_on(first).expect("remove")));
    assert!(guest.fe.closed_within(LOST) && !lab.socket(GUEST).exists());
    lab.add(GUEST);
    assert!(lab.daemon.go_on(second).expect("removed already"));
    assert_eq!(lab.names(), ["vm0", "vm1", "vm3", "vm2"].map(String::from));
    let (mut guest, mut peer) = (lab.connect(GUEST), lab.connect(PEER));
    talk(&mut guest, &mut peer, 0, 10);
    let third = lab.daemon.begin_removal("vm2").expect("begin");
    let start = Instant::now();
    lab.daemon.stop();
    println!("stopped in {:?}", start.elapsed());
    assert!(guest.fe.closed_within(LOST) && !lab.socket(GUEST).exists());
    assert!(matches!(
        lab.daemon.add(&NewPort::Kept(lab.settings(GUEST, ""))),
        Err(PortError::Ending)
    ));
    drop(third);
}

/// Two changes begin from the same settings: the second would undo the first, and is refused.
#[test]
fn a_change_of_settings_that_have_changed_since_is_refused() {
    let mut lab = Lab::new(&[0], 1);
    let before = lab.daemon.desired().get("vm0").expect("a port").settings.clone();
    let (first, second) = (lab.settings(0, ",mtu=1400"), lab.settings(0, ",label=second"));
    assert_eq!(lab.daemon.set(&before, &first).expect("set").len(), 1);
    let error = lab.daemon.set(&before, &second).expect_err("undoes the first");
    assert!(matches!(error, PortError::Changed), "{error}");
    assert_eq!(lab.daemon.desired().get("vm0").expect("a port").settings.mtu, Some(1400));
}
