//! 128 ports attached, 16 of them with traffic: the start, the memory and the rest of a large
//! switch.

use std::time::{Duration, Instant};

use crate::process::{Process, SOON};
use testkit::frontend::Frontend;
use testkit::mem::RegionSpec;
use testkit::net::{Job, Net, Sizes};
use testkit::rx::RxConfig;
use testkit::traffic::To;
use testkit::vm::{Vm, VmConfig};

const PORTS: usize = 128;
const ACTIVE: usize = 16;
const START_LIMIT: Duration = Duration::from_secs(2);
const PORT_BYTES: u64 = 2 << 20;

/// A guest of 8 MiB, so that 128 of them fit the machine.
fn small(id: usize) -> VmConfig {
    let mut cfg = VmConfig::new((id % ACTIVE) as u8);
    cfg.regions = vec![RegionSpec::new(0, 4 << 20), RegionSpec::new(4 << 30, 4 << 20)];
    cfg.tx.buffers = 64;
    cfg.rx = RxConfig::plain(128, 1526);
    cfg
}

/// Memory that is the daemon's alone.
fn private_bytes(d: &Process) -> u64 {
    let rollup = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", d.pid()));
    let rollup = rollup.expect("smaps_rollup");
    let private = rollup.lines().filter(|line| line.starts_with("Private_"));
    let kib = |line: &str| line.split_whitespace().nth(1)?.parse::<u64>().ok();
    private.filter_map(kib).sum::<u64>() * 1024
}

fn attach(d: &Process, count: usize) -> Vec<Vm> {
    let connect = |i| Frontend::connect(&d.socket(i), SOON).expect("connect");
    (0..count).map(|i| Vm::attach(connect(i), small(i))).collect()
}

#[test]
fn a_hundred_and_twenty_eight_ports() {
    let mut one = Process::start(1, &[], |_| {});
    one.ready();
    let guests = attach(&one, 1);
    let baseline = private_bytes(&one);
    drop(guests);
    one.stop();

    let start = Instant::now();
    let mut d = Process::start(PORTS, &["--workers", "2"], |_| {});
    d.ready();
    let took = start.elapsed().saturating_sub(d.main_thread_wait());
    assert!(took < START_LIMIT, "ready after {took:?}");

    let mut vms = attach(&d, PORTS);
    let idle_guests = vms.split_off(ACTIVE);
    let mut net = Net::new(vms);
    net.announce();
    let jobs: Vec<Job> = (0..ACTIVE)
        .map(|i| Job::new(i, To::Vm(((i + 1) % ACTIVE) as u8), 500, Sizes::Range(60, 1514)))
        .collect();
    net.run(&jobs);
    let bytes = private_bytes(&d).saturating_sub(baseline) / PORTS as u64;
    assert!(bytes <= PORT_BYTES, "{bytes} bytes of private memory for each port");

    std::thread::sleep(Duration::from_millis(300));
    let seconds = if testkit::long() { 20 } else { 3 };
    let ticks = d.cpu_ticks();
    std::thread::sleep(Duration::from_secs(seconds));
    let ticks = d.cpu_ticks() - ticks;
    // A tick is 10 ms: 1 % of a core is one a second.
    assert!(ticks <= seconds, "{ticks} ticks of CPU in {seconds} idle seconds");
    println!("ready in {took:?}, {} KiB a port, {ticks} ticks in {seconds} s", bytes / 1024);
    net.run(&jobs);
    net.finish();
    d.counters().balance();
    drop((net, idle_guests));
    d.stop();
}
