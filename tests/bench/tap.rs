//! What the switch costs between a guest and a TAP, beside a bare loop of system calls.
//!
//! `cargo bench -p benchmarks --bench tap`, as root. In a network namespace of its own it measures
//! in turn:
//! * guest to TAP: the real daemon with one guest whose transmit ring is kept full from another
//!   CPU, against one thread that writes the same bytes out of the same kind of memory (a shared
//!   memfd) into a TAP set up alike; by `writev` of a header and a frame, and by `write` of both
//!   in one piece, which only somebody who trusts the guest's header could do. The daemon runs
//!   twice, with `io=write` and `io=uring`;
//! * streams: the same with TCP segments of one stream, of 8 and of 64 that take turns, by two
//!   daemons, with `coalesce=off` and `coalesce=on`; the host routes them to a device that takes
//!   large packets, as network cards do;
//! * TAP to guest: a queue of frames, filled while the reader is held, read at one go;
//! * XDP: both ways by XDP at one end of a veth pair, beside a TAP in a bridge with one (`xdp`).
//!
//! The main figure is CPU time per frame, of the whole daemon and of the loop's thread, with
//! that of the kernel's threads for packets: other load on the machine hardly moves it. The wall
//! rate is that of the ring kept full, so it falls when the driver loses its CPU. Frames end in the
//! host's stack, where nobody wants them: the rest of a host's work is the same for all and would
//! only blur the ratio.

mod bare;
mod xdp;

use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use testkit::host::{Host, in_namespace, ip};
use testkit::mem::{RegionSpec, Span};
use testkit::proc::{Daemon, wait_for};
use testkit::ring::Seg;
use testkit::rx::RxConfig;
use testkit::sys;
use testkit::vm::{Vm, VmConfig, mac_of};

use bare::Bare;

/// The longest frame a packet socket can send to a TAP: its largest MTU and an Ethernet header.
const LONG: usize = 65_535;
const HEADER: usize = 12;
/// The sender's buffers: the ring's size.
const RING: usize = 256;
/// Bytes of frames under way at most: more than a core's cache, less than what others on the
/// machine would have to give up.
const UNDER_WAY: usize = 2 << 20;
/// Bytes between two buffers.
const ROOM: usize = 65_600;
/// Bytes of all buffers.
const BYTES: u64 = (RING * ROOM) as u64;
/// The station behind the TAP.
const HOST: u8 = 9;
/// This thread's CPU time.
const OWN: libc::clockid_t = libc::CLOCK_THREAD_CPUTIME_ID;
const SOON: Duration = Duration::from_secs(10);

/// What one round took.
#[derive(Clone, Copy)]
struct Sample {
    /// CPU nanoseconds per frame.
    cpu: f64,
    /// Nanoseconds per frame on the clock.
    wall: f64,
}

/// Nanoseconds of a clock.
fn clock(id: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable.
    let done = unsafe { libc::clock_gettime(id, &mut time) };
    assert_eq!(done, 0, "clock {id}");
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The clock of a whole process's CPU time.
fn clock_of(pid: u32) -> libc::clockid_t {
    let mut id = 0;
    // SAFETY: `id` is writable.
    let done = unsafe { libc::clock_getcpuclockid(pid as libc::pid_t, &mut id) };
    assert_eq!(done, 0, "no CPU clock of {pid}");
    id
}

/// CPU nanoseconds of the kernel threads that receive packets for others.
fn kernel_threads() -> u64 {
    let mut sum = 0;
    for entry in std::fs::read_dir("/proc").expect("/proc").flatten() {
        let read = |file| std::fs::read_to_string(entry.path().join(file)).unwrap_or_default();
        if read("comm").starts_with("ksoftirqd/") {
            let stat = read("schedstat");
            sum += stat.split(' ').next().and_then(|used| used.parse::<u64>().ok()).unwrap_or(0);
        }
    }
    sum
}

/// Runs `work` for `frames` frames and books it on the CPU clock of this thread or of another
/// process, and what kernel threads use meanwhile too. What a running process used since the last
/// tick is not on its clock yet: it gets time to fall asleep, which is one more look for frames.
fn timed(id: libc::clockid_t, frames: usize, work: impl FnOnce()) -> Sample {
    let (kernel, cpu, wall) = (kernel_threads(), clock(id), Instant::now());
    work();
    let wall = wall.elapsed().as_nanos() as f64 / frames as f64;
    if id != OWN {
        std::thread::sleep(Duration::from_millis(1));
    }
    let cpu = clock(id) - cpu + (kernel_threads() - kernel);
    Sample { cpu: cpu as f64 / frames as f64, wall }
}

/// A frame of an EtherType nobody listens to.
fn frame(dst: u8, src: u8, len: usize) -> Vec<u8> {
    let mut frame = [&mac_of(dst)[..], &mac_of(src), &[0x88, 0xb5]].concat();
    frame.resize(len, 0x5a);
    frame
}

/// Frames of `len` bytes under way at once.
fn under_way(len: usize) -> usize {
    RING.min(UNDER_WAY / len)
}

fn tune(ifname: &str) {
    ip(&format!("link set {ifname} mtu {} up", LONG - 14));
    let words = ["qdisc", "replace", "dev", ifname, "root", "noqueue"];
    assert!(Command::new("tc").args(words).status().expect("run tc").success());
}

/// The daemon with one guest and one TAP, and the bare loop beside them.
struct Bench {
    daemon: Daemon,
    vm: Vm,
    bare: Bare,
    /// The driver's CPU and that of whoever is measured.
    cpus: (usize, usize),
    len: usize,
    buffers: Vec<Span>,
    idle: Vec<u16>,
    streams: Streams,
}

/// TCP segments of several streams that take turns.
#[derive(Default)]
struct Streams {
    /// None: frames of no stream.
    count: usize,
    /// The segments so far.
    sent: usize,
}

/// Where a segment has its identification and IPv4 checksum, port, sequence number and checksum.
const ID: usize = HEADER + 14 + 4;
const IP_SUM: usize = HEADER + 14 + 10;
const PORT: usize = HEADER + 34;
const SEQUENCE: usize = HEADER + 34 + 4;
const TCP_SUM: usize = HEADER + 34 + 16;

impl Streams {
    /// Gives the segment in `buffer`, of `len` bytes, the next place in its stream.
    fn next(&mut self, buffer: &Span, len: usize) {
        if self.count == 0 {
            return;
        }
        let (nth, port) = (self.sent / self.count, (self.sent % self.count) as u16);
        self.sent += 1;
        let (id, sequence) = (nth as u16, (nth * (len - 66)) as u32);
        buffer.write(ID, &id.to_be_bytes());
        buffer.write(PORT, &port.to_be_bytes());
        buffer.write(SEQUENCE, &sequence.to_be_bytes());
        // All else is zero, but for what these constants are the sums of.
        let total = (len - 14) as u32;
        let ip = 0x4500 + total + u32::from(id) + 0x4000 + 0x4006 + 0x0a00 + 1 + 0x0a00 + 2;
        let pseudo = 0x0a00 + 1 + 0x0a00 + 2 + 6 + total - 20;
        let tcp = pseudo + u32::from(port) + (sequence >> 16) + (sequence & 0xffff) + 0x8010;
        buffer.write(IP_SUM, &checksum(ip));
        buffer.write(TCP_SUM, &checksum(tcp));
    }
}

fn checksum(sum: u32) -> [u8; 2] {
    let sum = (sum >> 16) + (sum & 0xffff);
    (!((sum >> 16) + sum) as u16).to_be_bytes()
}

/// A segment whose payload is zero, and what differs between segments too.
fn segment(dst: u8, src: u8, len: usize) -> Vec<u8> {
    let [high, low] = ((len - 14) as u16).to_be_bytes();
    let ip = [0x45, 0, high, low, 0, 0, 0x40, 0, 0x40, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    let mut frame =
        [&mac_of(dst)[..], &mac_of(src), &[8, 0], &ip, &[0; 12], &[0x80, 0x10]].concat();
    frame.resize(len, 0);
    frame
}

impl Bench {
    /// With frames that are written to the TAP by `io`.
    fn new(len: usize, io: &str) -> Bench {
        Bench::with(len, io, &format!("io={io}"), [vec![0; HEADER], frame(HOST, 0, len)].concat())
    }

    /// With `bytes`, header and frame, in each buffer, and a TAP called like `name`.
    fn with(len: usize, name: &str, keys: &str, bytes: Vec<u8>) -> Bench {
        let (tap, bare) = (format!("tap-{name}"), format!("bare-{name}"));
        let daemon = Daemon::with(1, &["--tap", &format!("up,ifname={tap},{keys}")]);
        assert!(wait_for(SOON, || daemon.log().contains("ready: ")), "{}", daemon.log());
        tune(&tap);
        Bench::of(daemon, len, (&tap, &bare), &bytes)
    }

    /// Of a switch whose uplink leads to the host by the interface `tap`.
    fn of(daemon: Daemon, len: usize, (tap, bare): (&str, &str), bytes: &[u8]) -> Bench {
        let mut cfg = VmConfig::new(0);
        cfg.regions = [0, 4 << 30].map(|gpa| RegionSpec::new(gpa, 2 * BYTES + (4 << 20))).to_vec();
        cfg.size = 512;
        cfg.tx_size = RING as u16;
        cfg.rx = RxConfig::plain(512, if len > 1514 { ROOM as u32 } else { 1526 });
        cfg.tx.buffers = 4;
        let mut vm = Vm::connect(&daemon.socket(0), cfg);
        let all = vm.mem.alloc_in(0, BYTES, 4096);
        let buffers: Vec<Span> = (0..RING).map(|i| all.sub(i * ROOM, ROOM)).collect();
        buffers.iter().for_each(|buffer| buffer.write(0, bytes));
        let bare = Bare::open(bare, bytes);
        let host = Host::open(tap);
        // The switch learns both sides.
        vm.tx[0].send_waiting(&frame(HOST, 0, 60), SOON);
        assert!(host.receive(SOON).is_some(), "the guest's hello");
        vm.tx[0].drain(SOON);
        host.send(&frame(0, HOST, 60));
        assert!(vm.rx[0].wait(SOON), "the host's hello");
        vm.rx[0].recv(1, |_, _| ());
        let idle = (0..under_way(len) as u16).collect();
        let cpus = sys::cpus();
        let cpus = (cpus[0], *cpus.get(1).unwrap_or(&cpus[0]));
        Bench { daemon, vm, bare, cpus, len, buffers, idle, streams: Streams::default() }
    }

    /// Keeps the transmit ring full until `frames` frames went through it.
    fn guest_to_tap(&mut self, frames: usize) -> Sample {
        let len = (HEADER + self.len) as u32;
        let (buffers, idle, ring) = (&self.buffers, &mut self.idle, &mut self.vm.guest.tx[0].ring);
        let streams = &mut self.streams;
        timed(clock_of(self.daemon.pid()), frames, || {
            let (mut sent, mut done, mut spins) = (0, 0, 0u64);
            while done < frames {
                let before = done;
                while let Some((token, _)) = ring.pop_used() {
                    idle.push(token);
                    done += 1;
                }
                while sent < frames
                    && let Some(&token) = idle.last()
                {
                    let buffer = &buffers[token as usize];
                    if !ring.add(&[Seg { gpa: buffer.gpa(), len }], false, None, token) {
                        break;
                    }
                    streams.next(buffer, len as usize - HEADER);
                    idle.pop();
                    sent += 1;
                }
                ring.publish();
                spins = if done == before { spins + 1 } else { 0 };
                // Seconds of a loop without a system call or a look at the clock.
                assert!(spins < 1 << 32, "stalled at {done} of {frames}");
                std::hint::spin_loop();
            }
        })
    }

    /// Stops the daemon's threads, all of them.
    fn hold(&self) {
        self.daemon.signal(libc::SIGSTOP);
        let path = format!("/proc/{}/stat", self.daemon.pid());
        let held = || std::fs::read_to_string(&path).expect("stat").contains(") T ");
        assert!(wait_for(SOON, held), "not stopped");
    }

    /// Holds the daemon, fills the TAP's queue, and lets the daemon deliver it at one go. With no
    /// frame it tells what holding costs.
    fn tap_to_guest(&mut self, host: &Host, frames: usize) -> Sample {
        self.sent_and_received(host, frames).1
    }

    /// The same, and before that what the sender and the kernel took to fill the queue.
    fn sent_and_received(&mut self, host: &Host, frames: usize) -> (Sample, Sample) {
        let frame = frame(0, HOST, self.len);
        self.hold();
        let sent = timed(OWN, frames.max(1), || (0..frames).for_each(|_| host.send(&frame)));
        let id = clock_of(self.daemon.pid());
        let sample = timed(id, frames.max(1), || {
            self.daemon.signal(libc::SIGCONT);
            let ring = &self.vm.rx[0].ring;
            let start = Instant::now();
            while usize::from(ring.used_ready()) < frames {
                assert!(start.elapsed() < SOON, "{} of {frames} came", ring.used_ready());
                std::hint::spin_loop();
            }
        });
        assert_eq!(self.vm.rx[0].recv(usize::MAX, |_, _| ()), frames);
        (sent, sample)
    }
}

/// Samples of one way of doing it.
struct Row(&'static str, Vec<Sample>);

impl Row {
    /// Best and median of a figure.
    fn figures(&self, of: impl Fn(&Sample) -> f64) -> (f64, f64) {
        let mut all: Vec<f64> = self.1.iter().map(of).collect();
        all.sort_by(f64::total_cmp);
        (all[0], all[all.len() / 2])
    }

    fn print(&self, reference: &Row, rate: bool) {
        let (cpu, wall) = (self.figures(|s| s.cpu), self.figures(|s| s.wall));
        let base = reference.figures(|s| s.cpu);
        let (best, median) = (base.0 / cpu.0, base.1 / cpu.1);
        print!("  {:<22}{:>8.0}{:>8.0}{:>9.2}{:>8.2}", self.0, cpu.0, cpu.1, best, median);
        match rate {
            true => println!("{:>12.3}{:>8.3}", 1e3 / wall.0, 1e3 / wall.1),
            false => println!(),
        }
    }
}

fn heading(title: &str, rate: bool) {
    println!("{title}");
    print!("  {:<22}{:>8}{:>8}{:>9}{:>8}", "CPU ns a frame", "best", "median", "ratio", "median");
    println!("{}", if rate { "  M frames/s  median" } else { "" });
}

fn guest_to_tap(bench: &mut Bench, uring: &mut Bench, rounds: usize, frames: usize) {
    let mut rows = ["bare writev", "bare write", "vioswitchd io=write", "vioswitchd io=uring"]
        .map(|name| Row(name, vec![]));
    let counters = |benches: [&Bench; 2]| benches.map(|bench| bench.daemon.counters());
    let before = counters([bench, uring]);
    let len = bench.len;
    for _ in 0..rounds {
        rows[2].1.push(bench.guest_to_tap(frames));
        rows[3].1.push(uring.guest_to_tap(frames));
        let (bare, cpu) = (&bench.bare, bench.cpus.1);
        let (a, b) = std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                sys::pin(0, &[cpu]);
                let a = timed(OWN, frames, || bare.writev(len, frames));
                (a, timed(OWN, frames, || bare.write(len, frames)))
            });
            // As busy beside the loop as the driver is beside the daemon: the two CPUs may be one
            // core's.
            while !thread.is_finished() {
                std::hint::spin_loop();
            }
            thread.join().expect("bare loop")
        });
        rows[0].1.push(a);
        rows[1].1.push(b);
    }
    let sent = |c: &testkit::counters::Counters| c.sum(Some("up"), "out", "frames");
    for (before, after) in before.iter().zip(&counters([bench, uring])) {
        let sent = sent(after) - sent(before);
        assert_eq!(sent, (rounds * frames) as u64, "every frame was written");
    }
    heading(&format!("guest to TAP, {len} bytes"), true);
    rows.iter().for_each(|row| row.print(&rows[0], true));
}

/// Has the host route what comes from its TAPs.
fn route(taps: [&str; 2]) {
    ip("link add sink type veth peer name drain");
    ["sink", "drain"].iter().for_each(|end| drop(ip(&format!("link set {end} up"))));
    ip("route add 10.0.0.2/32 dev sink");
    ip("neighbour add 10.0.0.2 lladdr 02:00:00:00:00:02 dev sink nud permanent");
    let set = |key: &str, value: &str| {
        let path = format!("/proc/sys/net/ipv4/{key}");
        std::fs::write(&path, value).unwrap_or_else(|error| panic!("{path}: {error}"));
    };
    set("ip_forward", "1");
    set("conf/all/rp_filter", "0");
    let mac: Vec<String> = mac_of(HOST).iter().map(|byte| format!("{byte:02x}")).collect();
    for tap in taps {
        set(&format!("conf/{tap}/rp_filter"), "0");
        ip(&format!("link set {tap} address {}", mac.join(":")));
    }
    ip("route add 10.0.0.1/32 dev tap-on");
}

/// Frames through two daemons, with and without packets made of segments: short ones of no stream,
/// which cost what looking for streams does, and segments of some streams.
fn streams(rounds: usize, frames: usize) {
    for (len, counts) in [(60, &[0][..]), (1514, &[1, 8, 64])] {
        let bytes = if counts == [0] { frame(HOST, 0, len) } else { segment(HOST, 0, len) };
        let bytes = [vec![0; HEADER], bytes].concat();
        let mut benches =
            ["off", "on"].map(|on| Bench::with(len, on, &format!("coalesce={on}"), bytes.clone()));
        if counts != [0] {
            route(["tap-off", "tap-on"]);
        }
        for &count in counts {
            let mut rows = ["coalesce=off", "coalesce=on"].map(|name| Row(name, vec![]));
            for _ in 0..rounds {
                for (bench, row) in benches.iter_mut().zip(&mut rows) {
                    bench.streams = Streams { count, sent: 0 };
                    row.1.push(bench.guest_to_tap(frames));
                }
            }
            heading(&format!("{count} TCP streams to a TAP, {len} bytes a frame"), true);
            rows.iter().for_each(|row| row.print(&rows[0], true));
        }
        for bench in benches {
            let counters = bench.daemon.counters();
            let sum = |name| counters.sum(Some("up"), "out", name);
            println!("  {} frames, {} of them in packets", sum("frames"), sum("coalesced"));
            bench.daemon.stop();
        }
    }
    println!("{}", ip("-s link show dev sink"));
}

fn tap_to_guest(bench: &mut Bench, rounds: usize, frames: usize) {
    let mut rows = [Row("bare read", vec![]), Row("vioswitchd", vec![])];
    // Only now: a packet socket costs the writers of its interface a copy of each frame.
    let (bare, host) = (Host::open("bare-write"), Host::open("tap-write"));
    let frame = frame(0, HOST, bench.len);
    let (cpu, tap, len) = (bench.cpus.1, &bench.bare, bench.len);
    let mut held = Vec::new();
    std::thread::scope(|scope| {
        let (go, wait) = mpsc::channel::<()>();
        let (tell, told) = mpsc::channel();
        let reader = scope.spawn(move || {
            sys::pin(0, &[cpu]);
            while wait.recv().is_ok() {
                let mut count = 0;
                let sample = timed(OWN, frames, || count = tap.read_all(len));
                tell.send((count, sample)).expect("asked for");
            }
        });
        for _ in 0..rounds {
            (0..frames).for_each(|_| bare.send(&frame));
            go.send(()).expect("reader");
            let (count, sample) = told.recv().expect("reader");
            assert_eq!(count, frames, "bare loop");
            rows[0].1.push(sample);
        }
        drop(go);
        reader.join().expect("reader");
    });
    for _ in 0..rounds {
        held.push(bench.tap_to_guest(&host, 0).cpu);
        rows[1].1.push(bench.tap_to_guest(&host, frames));
    }
    // What stopping and going on costs the daemon's threads is not the frames'.
    held.sort_by(f64::total_cmp);
    let held = held[held.len() / 2] / frames as f64;
    rows[1].1.iter_mut().for_each(|sample| sample.cpu -= held);
    heading(&format!("TAP to guest, {} bytes, {frames} at a time", bench.len), false);
    rows.iter().for_each(|row| row.print(&rows[0], false));
    println!("  (less {held:.0} ns a frame for holding the daemon)");
}

fn main() {
    // `cargo bench` says so; anything else only wants to know whether this works.
    let real = std::env::args().any(|arg| arg == "--bench");
    // Many short rounds: on a busy machine some run undisturbed.
    let rounds = if real { 41 } else { 1 };
    // `streams`, `xdp`: these alone. Numbers choose lengths, `out` and `back` directions.
    let chosen: Vec<usize> = std::env::args().filter_map(|arg| arg.parse().ok()).collect();
    let wanted = |way: &str, other: &str| {
        std::env::args().any(|arg| arg == way) || !std::env::args().any(|arg| arg == other)
    };
    in_namespace(|| {
        if std::env::args().any(|arg| arg == "streams") || !real {
            streams(rounds, if real { 20_000 } else { 1000 });
            if real {
                return;
            }
        }
        if std::env::args().any(|arg| arg == "xdp") || !real {
            let frames = if real { 20_000 } else { 1000 };
            [60, 1514].iter().for_each(|len| xdp::beside(*len, rounds, (frames, 400)));
            if real {
                return;
            }
        }
        for (len, frames, queued) in [(60, 20_000, 400), (1514, 20_000, 400), (LONG, 4_000, 48)] {
            if !chosen.is_empty() && !chosen.contains(&len) {
                continue;
            }
            let mut bench = Bench::new(len, "write");
            let mut uring = Bench::new(len, "uring");
            // The first one's ends before the other's begins: this thread keeps to its CPU.
            drop(bench.daemon.run_apart());
            let apart = uring.daemon.run_apart();
            if apart.is_none() {
                println!("one CPU only: the ring is not kept full, and rates mean little");
            }
            if wanted("out", "back") {
                let frames = if real { frames } else { 1000 };
                guest_to_tap(&mut bench, &mut uring, rounds, frames);
            }
            if wanted("back", "out") {
                tap_to_guest(&mut bench, rounds * if real { 4 } else { 1 }, queued);
            }
            bench.daemon.stop();
            uring.daemon.stop();
        }
    });
}
