//! `loadgen`: a traffic generator that plays many guests at once against any vhost-user-net
//! back-end, or against TAPs in a bridge, checks every frame it gets back, and prints figures as
//! one JSON object. `scripts/bench` runs it; `docs/performance.md` tells what is measured.
//!
//! It needs no huge pages, no DPDK and no root (but for TAPs). It is an example target, so that it
//! is never installed. Messages are sent by the front-end of the integration tests; the rings are
//! its own, made for speed rather than for catching every broken rule. From the bottom up: `mem`,
//! `outer`, `ring`, `port`; `frame`, `books`; `run`, `report`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

mod books;
mod frame;
mod mem;
mod outer;
mod port;
mod report;
mod ring;
mod run;
mod system;

use testkit::sys;

use outer::Outer;
use port::{Port, TapPort, VirtioConfig, VirtioPort};
use run::{Lengths, Pattern, Plan, Run};

/// 7 : 4 : 1, the "simple IMIX" of routers' data sheets, spread out.
const MIX: [u32; 12] = [60, 590, 60, 60, 590, 60, 1514, 60, 590, 60, 590, 60];

/// Bytes of a head, or of a first frame.
const MOST_BYTES: usize = 1514;
/// From the first frames to the others: a querier's question has been answered by then.
const ASKED: Duration = Duration::from_secs(4);

/// Seconds a back-end may take until it listens.
const PATIENCE: Duration = Duration::from_secs(10);

/// Plays many guests against a vhost-user-net back-end and checks every frame
#[derive(Debug, Parser)]
#[command(name = "loadgen")]
struct Options {
    /// A socket the back-end listens on; repeatable, a port each
    #[arg(long, value_name = "PATH")]
    socket: Vec<PathBuf>,
    /// A TAP instead of a socket; repeatable
    #[arg(long, value_name = "IFNAME", conflicts_with = "socket")]
    tap: Vec<String>,
    /// So many of the ports, the last ones, attach and stay silent
    #[arg(long, value_name = "N", default_value_t = 0)]
    silent: usize,
    /// Who sends to whom
    #[arg(long, value_enum, default_value_t = Pattern::Pairs)]
    pattern: Pattern,
    /// Bytes of a frame without FCS, 32 to 9018, or "mix" (60, 590, 1514 as 7 : 4 : 1)
    #[arg(long, value_name = "BYTES", default_value = "60", value_parser = lengths)]
    len: Lengths,
    /// Frames per second of all senders together; 0: as many as possible
    #[arg(long, default_value_t = 0.0)]
    rate: f64,
    /// Seconds that are measured
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Seconds before that
    #[arg(long, default_value_t = 0.3)]
    warm_up: f64,
    /// Each sender sends so many frames instead of for some time, also to a slow back-end
    #[arg(long, default_value_t = 0)]
    frames: u64,
    /// Descriptors of each ring
    #[arg(long, default_value_t = 256)]
    ring: u16,
    /// Frames sent at once
    #[arg(long, default_value_t = 64)]
    burst: u16,
    /// Source addresses of each port, a power of two
    #[arg(long, default_value_t = 1)]
    addresses: u32,
    /// Neither write nor check what follows the first 32 bytes of a frame
    #[arg(long)]
    no_touch: bool,
    /// Do not negotiate event indices
    #[arg(long)]
    no_event_idx: bool,
    /// Have all that the back-end writes marked in a log, as while the guests migrate
    #[arg(long)]
    log: bool,
    /// Bytes behind the addresses of a port's frames, sent and received, as "PORT:HEX"; repeatable
    #[arg(long, value_name = "PORT:HEX", value_parser = port_bytes)]
    head: Vec<(usize, Vec<u8>)>,
    /// The Ethernet address of a group, in the place of that of all stations
    #[arg(long, value_name = "HEX", value_parser = address)]
    group: Option<[u8; 6]>,
    /// A frame that a port sends before all others, as "PORT:HEX"; repeatable. The rest begins
    /// four seconds later
    #[arg(long, value_name = "PORT:HEX", value_parser = port_bytes)]
    first: Vec<(usize, Vec<u8>)>,
    /// Guest memory in huge pages
    #[arg(long)]
    huge_pages: bool,
    /// The CPU to run on
    #[arg(long)]
    cpu: Option<usize>,
    /// The back-end's process, whose CPU time is measured
    #[arg(long)]
    pid: Option<u32>,
    /// Measure a cache line's way between two CPUs instead, as "A,B"
    #[arg(long, value_name = "A,B", value_parser = two_cpus)]
    gate: Option<[usize; 2]>,
}

fn lengths(text: &str) -> Result<Lengths, String> {
    if text == "mix" {
        return Ok(Lengths::Cycle(MIX.to_vec()));
    }
    match text.parse() {
        Ok(len) if (frame::HEAD..=frame::LONGEST).contains(&len) => Ok(Lengths::Fixed(len)),
        _ => Err(format!("not \"mix\" nor {} to {}", frame::HEAD, frame::LONGEST)),
    }
}

fn two_cpus(text: &str) -> Result<[usize; 2], String> {
    let cpus = text.split_once(',').and_then(|(a, b)| Some([a.parse().ok()?, b.parse().ok()?]));
    cpus.ok_or_else(|| "not two CPUs as \"0,1\"".to_owned())
}

fn port_bytes(text: &str) -> Result<(usize, Vec<u8>), String> {
    let parts = text.split_once(':');
    let parts = parts.and_then(|(port, hex)| Some((port.parse().ok()?, Outer::bytes(hex)?)));
    parts
        .filter(|(_, bytes)| bytes.len() <= MOST_BYTES)
        .ok_or_else(|| "not a port and bytes as \"0:8100000a\"".to_owned())
}

fn address(text: &str) -> Result<[u8; 6], String> {
    let bytes = Outer::bytes(text).and_then(|bytes| bytes.try_into().ok());
    bytes.ok_or_else(|| "not six bytes as \"01005e010101\"".to_owned())
}

fn main() -> ExitCode {
    let options = Options::parse();
    let result = check(&options).and_then(|()| measure(&options));
    match result {
        Ok(json) => {
            println!("{json}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            let mut j = report::Object::new();
            j.text("error", &error);
            println!("{}", j.end());
            ExitCode::FAILURE
        }
    }
}

/// What clap cannot tell by itself.
fn check(o: &Options) -> Result<(), String> {
    let ports = o.socket.len().max(o.tap.len());
    let known = sys::cpus();
    let wanted = o.cpu.iter().chain(o.gate.iter().flatten());
    if let Some(cpu) = wanted.copied().find(|cpu| !known.contains(cpu)) {
        return Err(format!("CPU {cpu} is not among those this process may use"));
    }
    if o.gate.is_some() {
        return Ok(());
    }
    if !o.ring.is_power_of_two() || o.ring > 32_768 || o.burst == 0 {
        return Err("a ring has a power of two of descriptors, a burst at least a frame".into());
    }
    if !o.addresses.is_power_of_two() || o.addresses > 65_536 {
        return Err("addresses must be a power of two up to 65536".into());
    }
    if ports < o.silent || ports > 4096 {
        return Err("more silent ports than ports, or more than 4096".into());
    }
    let with_bytes = o.head.iter().chain(&o.first);
    if with_bytes.map(|(port, _)| *port).any(|port| port >= o.socket.len()) {
        return Err("bytes for a port that is none".into());
    }
    let active = ports - o.silent;
    let nobody = (0..active).all(|i| o.pattern.receiver(i, active).is_none());
    if nobody && o.pattern != Pattern::Idle {
        return Err(format!("nobody sends among {active} ports"));
    }
    let fine = |v: f64| v.is_finite() && (0.0..1e9).contains(&v);
    if !fine(o.rate) || !fine(o.seconds) || !fine(o.warm_up) || o.seconds <= 0.0 {
        return Err("seconds and rates must be positive numbers".into());
    }
    Ok(())
}

fn measure(o: &Options) -> Result<String, String> {
    if let Some(cpus) = o.gate {
        let (median, worst) = system::ping_pong(cpus);
        let mut j = report::Object::new();
        j.number("ping_pong_ns", median);
        j.number("worst_ns", worst);
        return Ok(j.end());
    }
    let longest = match &o.len {
        Lengths::Fixed(len) => *len,
        Lengths::Cycle(all) => all.iter().copied().max().unwrap_or_default(),
    };
    if let Some(cpu) = o.cpu {
        sys::pin(0, &[cpu]);
    }
    if !o.tap.is_empty() {
        let open = |name: &String| TapPort::open(name, longest);
        return go(o, o.tap.iter().map(open).collect::<Result<_, _>>()?, true);
    }
    let config = VirtioConfig {
        ring_size: o.ring,
        frame_len: longest,
        event_idx: !o.no_event_idx,
        log: o.log,
        huge_pages: o.huge_pages,
        patience: PATIENCE,
    };
    let connect = |(port, path): (usize, &PathBuf)| {
        let head = o.head.iter().find(|(of, _)| *of == port).map(|(_, head)| head.clone());
        let outer = Outer { head: head.unwrap_or_default(), group: o.group };
        let frame_len = longest + outer.len() as u32;
        VirtioPort::connect(path, &VirtioConfig { frame_len, ..config }, outer)
    };
    let ports = o.socket.iter().enumerate().map(connect).collect::<Result<Vec<_>, _>>()?;
    go(o, begin(ports, &o.first), false)
}

/// Sends what comes before all others.
fn begin(mut ports: Vec<VirtioPort>, first: &[(usize, Vec<u8>)]) -> Vec<VirtioPort> {
    if first.is_empty() {
        return ports;
    }
    // A switch that counts whole seconds asks those alone that were there before.
    std::thread::sleep(ASKED);
    for (port, bytes) in first {
        ports[*port].send_first(bytes);
        std::thread::sleep(Duration::from_millis(100));
    }
    std::thread::sleep(ASKED);
    ports
}

fn go<P: Port>(o: &Options, mut ports: Vec<P>, tap: bool) -> Result<String, String> {
    let silent = ports.split_off(ports.len() - o.silent);
    let plan = Plan {
        pattern: o.pattern,
        lengths: o.len.clone(),
        rate: o.rate,
        warm_up: o.warm_up,
        seconds: o.seconds,
        frames: o.frames,
        burst: o.burst,
        addresses: o.addresses,
        pid: o.pid,
        ticks_per_second: system::ticks_per_second(),
    };
    let active = ports.len();
    let outcome = match o.no_touch {
        true => Run::<P, false>::new(plan.clone(), ports, silent).run()?,
        false => Run::<P, true>::new(plan.clone(), ports, silent).run()?,
    };
    Ok(report::json(&plan, active, &outcome, tap))
}
