//! System calls of each kind of thread after the start: observed by a tracer (strace), compared
//! with the table in `system_calls.md`, and that with the list of the sandbox.
//!
//! A call that is not in the table fails the test. So does one that is there, is not said to be
//! rare, and does not come: the table would rot.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

use sys::sandbox;
use testkit::frontend::req;
use testkit::host::{Host, in_namespace, ip, veth_up};
use testkit::mounts::{cover, own_mounts};
use testkit::proc::{Daemon, Dir, wait_for};
use testkit::skip;
use testkit::stream::Peer;
use testkit::vm::{Vm, VmConfig, mac_of};

/// Everything is slower under a tracer.
const SOON: Duration = Duration::from_secs(60);
/// The number of the host behind the TAP as a station.
const HOST: u8 = 9;
/// That of the stream's peer.
const PEER: u8 = 8;
const BROADCAST: [u8; 6] = [0xff; 6];
/// The row for what any thread may do.
const ANY: &str = "any";

/// System calls by kind of thread.
type Calls = BTreeMap<String, BTreeSet<String>>;

/// strace of all threads of a process.
struct Tracer {
    child: Child,
    file: PathBuf,
    /// What it says, for which somebody has to be there.
    _said: BufReader<ChildStderr>,
}

impl Tracer {
    fn attach(d: &Daemon) -> Tracer {
        let file = d.dir().join("trace");
        let mut command = Command::new("strace");
        command.args(["-f", "--decode-pids=comm", "-e", "signal=none", "-s", "0", "-o"]);
        command.arg(&file).arg("-p").arg(d.pid().to_string()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("strace");
        let mut said = BufReader::new(child.stderr.take().expect("pipe"));
        let mut attached = String::new();
        said.read_line(&mut attached).expect("what strace says");
        // "strace: Process 12 attached with 9 threads"
        let all = format!("attached with {} threads", d.usage().threads);
        assert!(attached.contains(&all), "{attached}, not {all}");
        Tracer { child, file, _said: said }
    }

    /// All calls, after the process has ended.
    fn finish(mut self) -> Calls {
        self.child.wait().expect("strace");
        let text = std::fs::read(&self.file).expect("trace");
        let mut calls = Calls::new();
        for line in String::from_utf8_lossy(&text).lines() {
            if let Some((kind, call)) = call_in(line) {
                calls.entry(kind).or_default().insert(call);
            }
        }
        calls
    }
}

/// Kind of thread and name of the call in a line such as `12<worker-0> read(3, ...`.
fn call_in(line: &str) -> Option<(String, String)> {
    let (thread, what) = line.split_once('<')?.1.split_once("> ")?;
    let name = what.trim_start().split_once('(')?.0;
    // Not of "+++ exited with 0 +++", nor of what goes on: "<... read resumed>".
    let is_name = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    let kind = match thread.rsplit_once('-') {
        Some((kind, number)) if number.bytes().all(|b| b.is_ascii_digit()) => format!("{kind}-N"),
        _ => thread.to_owned(),
    };
    is_name.then(|| (kind, name.to_owned()))
}

/// None of a worker's is an ioctl.
#[test]
fn each_kind_of_thread_makes_the_calls_of_its_table() {
    if cfg!(not(all(target_arch = "x86_64", target_env = "gnu"))) {
        return skip("the names in the table are those of x86-64 and glibc");
    }
    let mut traced = Command::new("strace");
    traced.args(["-qq", "--decode-pids=comm", "-o", "/dev/null", "true"]).stderr(Stdio::null());
    match traced.status() {
        Err(error) => return skip(&format!("needs strace: {error}")),
        Ok(status) if !status.success() => return skip("needs ptrace(2) and strace 5.13"),
        Ok(_) => {}
    }
    in_namespace(|| {
        make_wire();
        let dir = Dir::new();
        let control = dir.path().join("control");
        let path = control.to_str().expect("UTF-8");
        let scraped = dir.path().join("metrics");
        let metrics = format!("unix:{}", scraped.display());
        let net = dir.path().join("net");
        let stream = format!("net,socket={}", net.display());
        let plug = Dir::new();
        let plugged = format!("--plug={}", plug.path().display());
        let has_device = has_latency_device(dir.path());
        let latency = if has_device { "--latency=low" } else { "--latency=normal" };
        let extra = [
            latency,
            "--stream",
            &stream,
            &plugged,
            "--workers",
            "2",
            "--age",
            "4",
            "--tap",
            "up,ifname=tap0",
            "--xdp",
            "fast,ifname=wire",
            "--control",
            path,
            "--metrics",
            &metrics,
        ];
        let mut d = Daemon::with_ports(&["", ""], &extra);
        let names = ["balance", "sampler", "ageing", "link-monitor", "tap-2", "xdp-3", "port-1"];
        let more = ["stream-4", "control", "plug", "metrics", "retry"];
        let names = names.into_iter().chain(more).map(str::to_owned);
        let names: Vec<String> = names.collect();
        assert!(wait_for(SOON, || names.iter().all(|name| names_of(&d).contains(name))));
        // None is at its beginning any more.
        assert!(wait_for(SOON, || are_asleep(&d)), "never idle");
        let tracer = Tracer::attach(&d);
        live(&d, &net);
        steer(&control);
        scrape(&scraped);
        bring_a_port(&d, plug.path());
        d.signal(libc::SIGTERM);
        assert!(d.exit_status(SOON).success());
        let seen = tracer.finish();
        compare(&seen, has_device);
        assert!(!seen["worker-N"].contains("ioctl"), "a worker asks for an MTU");
    });
}

/// Puts a file in the place of the device that has CPUs wake up soon, for this thread and its
/// children; false if this machine has no such device.
fn has_latency_device(dir: &Path) -> bool {
    let device = Path::new("/dev/cpu_dma_latency");
    if !device.exists() {
        return false;
    }
    let file = dir.join("device");
    std::fs::write(&file, "").expect("write");
    own_mounts();
    cover(device, &file);
    true
}

/// The sandbox permits what the table has, and nothing else: one list. Calls that take another's
/// place elsewhere are no part of it.
#[test]
fn the_sandbox_permits_the_calls_of_the_table() {
    let (usual, rare) = table(include_str!("system_calls.md"));
    let mut table: BTreeSet<String> =
        usual.into_values().chain(rare.into_values()).flatten().collect();
    for name in [sandbox::ALWAYS, sandbox::TAP, sandbox::XDP].concat() {
        assert!(table.remove(name), "the sandbox permits {name}, which is not in the table");
    }
    assert!(table.is_empty(), "in the table and not permitted: {table:?}");
}

/// What is in the table is all there is, and it is what there is; without the device one thread
/// less.
fn compare(seen: &Calls, has_device: bool) {
    let (mut usual, rare) = table(include_str!("system_calls.md"));
    if !has_device {
        usual.remove("latency");
    }
    let mut complaints = Vec::new();
    for (kind, calls) in seen {
        println!("{kind}: {}", calls.iter().cloned().collect::<Vec<_>>().join(" "));
        let listed = [&usual, &rare].into_iter().flat_map(|part| [part.get(kind), part.get(ANY)]);
        let listed: BTreeSet<_> = listed.flatten().flatten().collect();
        let missing = calls.iter().filter(|call| !listed.contains(call));
        complaints.extend(missing.map(|call| format!("{kind}: {call} is not in the table")));
    }
    let everybodys: BTreeSet<_> = seen.values().flatten().collect();
    for (kind, calls) in &usual {
        let is_seen = |call| match seen.get(kind) {
            _ if kind == ANY => everybodys.contains(call),
            Some(seen) => seen.contains(call),
            None => false,
        };
        let absent = calls.iter().filter(|call| !is_seen(*call));
        complaints.extend(absent.map(|call| format!("{kind}: {call} never comes")));
        if kind != ANY && !seen.contains_key(kind) {
            complaints.push(format!("{kind}: there is no such thread"));
        }
    }
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

/// The table in a page: usual calls, and rare ones.
fn table(page: &str) -> (Calls, Calls) {
    let (mut usual, mut rare) = (Calls::new(), Calls::new());
    for row in page.lines().filter(|line| line.starts_with("| ")).skip(1) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').collect();
        let [thread, calls, rarely] = cells[..] else { panic!("{row}") };
        let kind = words(thread).next().unwrap_or(ANY).to_owned();
        usual.insert(kind.clone(), words(calls).map(str::to_owned).collect());
        rare.insert(kind, words(rarely).map(str::to_owned).collect());
    }
    assert!(usual.len() > 8 && usual.contains_key(ANY), "{usual:?}");
    (usual, rare)
}

/// What stands between backticks.
fn words(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// The names of all threads.
fn names_of(d: &Daemon) -> BTreeSet<String> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", d.pid())).expect("tasks").flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.map(|name| name.trim().to_owned()).collect()
}

/// True if no thread runs, wants to, or has run for a moment.
fn are_asleep(d: &Daemon) -> bool {
    let asleep = || {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", d.pid())).expect("tasks").flatten();
        let stats = tasks.map(|task| std::fs::read_to_string(task.path().join("stat")));
        // The state stands behind the name.
        let mut states = stats.map(|stat| stat.is_ok_and(|stat| stat.contains(") S ")));
        states.all(|sleeps| sleeps)
    };
    let before = d.voluntary_switches();
    std::thread::sleep(Duration::from_millis(100));
    asleep() && d.voluntary_switches() == before
}

/// A frame of `len` bytes from one station to an address.
fn frame(dst: [u8; 6], src: u8, len: usize) -> Vec<u8> {
    let mut frame = [&dst[..], &mac_of(src), &[0x88, 0xb5]].concat();
    frame.resize(len, len as u8);
    frame
}

/// A guest, a guest and the host's side of the uplink.
struct Lan {
    vms: [Vm; 2],
    host: Host,
}

impl Lan {
    /// Whether a frame of this length gets to the host.
    fn is_passed(&mut self, len: usize) -> bool {
        self.vms[0].tx[0].send_waiting(&frame(mac_of(HOST), 0, len), SOON);
        self.host.receive(Duration::from_millis(100)).is_some_and(|frame| frame.len() == len)
    }

    /// The guests get frames of each other. Memory that was just mapped is touched for the first
    /// time, and a worker that strace stops in a page fault finds it slow: its guest gets nothing
    /// for a while.
    fn meet(&mut self) {
        for (from, to) in [(0, 1), (1, 0)] {
            let met = wait_for(SOON, || {
                self.vms[from].tx[0].send_waiting(&frame(mac_of(to as u8), from as u8, 60), SOON);
                self.vms[to].rx[0].wait(Duration::from_millis(100))
            });
            assert!(met, "nothing of guest {from} comes to guest {to}");
        }
    }

    /// Frames from each to each, in bursts and one at a time, `longest` of them to the host.
    fn talk(&mut self, longest: usize) {
        self.meet();
        for round in 0..40 {
            for (from, to) in [(0, 1), (1, 0), (0, HOST), (1, HOST)] {
                for _ in 0..round {
                    self.vms[from].tx[0].queue(&frame(mac_of(to), from as u8, 200));
                }
                for len in [60, if to == HOST { longest } else { 1400 }] {
                    let frame = frame(mac_of(to), from as u8, len);
                    self.vms[from].tx[0].send_waiting(&frame, SOON);
                }
                self.vms[from].tx[0].drain(SOON);
            }
            self.host.send(&frame(BROADCAST, HOST, 60));
            for vm in &mut self.vms {
                // One whose memory was found slow, as in `meet`, missed it.
                let heard = wait_for(SOON, || {
                    let heard = vm.rx[0].wait(Duration::from_millis(100));
                    if !heard {
                        self.host.send(&frame(BROADCAST, HOST, 60));
                    }
                    heard
                });
                assert!(heard);
                vm.rx[0].recv(1024, |_, _| {});
            }
            while self.host.receive(SOON).expect("a long frame").len() != longest {}
            self.host.drain();
        }
    }
}

/// A veth pair, one end of which is an uplink.
fn make_wire() {
    ip("link add wire type veth peer name peer");
    veth_up(["wire", "peer"]);
}

/// Frames come by XDP for longer than a second; the interface goes, and comes back.
fn by_xdp(d: &Daemon) {
    let wire = Host::open("peer");
    for _ in 0..3 {
        wire.send(&frame(BROADCAST, PEER + 2, 60));
        std::thread::sleep(Duration::from_millis(700));
    }
    ip("link del wire");
    assert!(wait_for(SOON, || d.log().contains("interface wire is gone")), "{}", d.log());
    make_wire();
    assert!(wait_for(SOON, || d.log().contains("to interface wire again")), "{}", d.log());
}

/// What happens in a switch's life.
fn live(d: &Daemon, net: &Path) {
    let vms = [0, 1].map(|id| {
        let mut config = VmConfig::new(id as u8);
        config.tx.max_frame = 9014;
        Vm::connect(&d.socket(id), config)
    });
    let mut lan = Lan { vms, host: Host::open("tap0") };
    lan.talk(1400);
    // A stream's peer comes, hears and is heard, and goes; and another one.
    for _ in 0..2 {
        let mut peer = Peer::connect(net);
        peer.send(&frame(BROADCAST, PEER, 60));
        lan.talk(1400);
        assert!(peer.receive_from(mac_of(HOST), SOON).is_some());
    }
    by_xdp(d);
    // The MTU changes, and the workers make of it what they need no system call for.
    ip("link set tap0 mtu 9000");
    assert!(wait_for(SOON, || lan.is_passed(9000)), "9000 bytes do not pass");
    lan.talk(9000);
    // The administrator asks.
    d.counters();
    // A descriptor that is of no use.
    let (pipe, _writer) = std::io::pipe().expect("pipe");
    let _ = lan.vms[0].fe.set_vring_fd(req::SET_VRING_KICK, 0, Some(pipe.as_raw_fd()));
    assert!(wait_for(SOON, || d.log().contains("but pipe:")), "{}", d.log());
    // The interface goes and comes back, and so does a front-end.
    ip("link del tap0");
    assert!(wait_for(SOON, || d.log().contains("to interface tap0 again")), "{}", d.log());
    lan.host = Host::open("tap0");
    lan.vms[1].reconnect(&d.socket(1));
    lan.talk(1400);
    // Silence: everybody goes to sleep, addresses age.
    std::thread::sleep(Duration::from_secs(3));
    lan.talk(1400);
    d.counters();
}

/// A scraper asks for metrics.
fn scrape(path: &Path) {
    let mut socket = std::os::unix::net::UnixStream::connect(path).expect("connect");
    socket.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").expect("send");
    let mut answer = String::new();
    socket.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

/// A socket appears, and goes; and so does the directory.
fn bring_a_port(d: &Daemon, plug: &Path) {
    for (round, name) in ["vm7", "vm8"].into_iter().enumerate() {
        let socket = plug.join(name);
        let _listening = std::os::unix::net::UnixListener::bind(&socket).expect("bind");
        let said =
            |what: &str| wait_for(SOON, || d.log().contains(&format!("port {name}: {what}")));
        assert!(said("added for the socket of uid "), "{}", d.log());
        std::fs::remove_file(&socket).expect("remove");
        assert!(said("removed"), "{}", d.log());
        std::fs::remove_dir(plug).expect("remove");
        let missed = || d.log().matches(&format!("plug {plug:?}: No such file")).count();
        assert!(wait_for(SOON, || missed() > round), "{}", d.log());
        std::fs::create_dir(plug).expect("create");
    }
}

/// Clients look at the switch, and ports and TAPs come and go.
fn steer(control: &Path) {
    for command in [
        "status",
        "port add x",
        "tap add y ifname=tap1",
        "port list",
        "port show p0",
        "fdb flush",
        "events",
        "tap del y",
        "port del x",
    ] {
        let mut client = Command::new(env!("CARGO_BIN_EXE_vioswitchctl"));
        let done = client.arg("--control").arg(control).args(command.split(' ')).output();
        let done = done.expect("vioswitchctl");
        assert!(done.status.success(), "{command}: {done:?}");
    }
}
