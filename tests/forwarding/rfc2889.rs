//! RFC 2889, the methods to measure a LAN switch by, as far as they count: addresses that are kept
//! and no longer flooded for, how long they are, copies for 64 ports and their order, frames with
//! errors, and a congested port beside one that is not. Rates are in docs/performance.md.

use std::time::{Duration, Instant};

use base::limits::{FDB_MAX_ENTRIES, FDB_MAX_PER_PORT, FDB_RESERVED_PER_PORT};
use testkit::SOON;
use testkit::frontend::feat;
use testkit::proc::{Daemon, run_queue_wait};
use testkit::rounds;
use testkit::vm::{Vm, VmConfig, mac_of};
use testkit::vnet::{GSO_TCPV4, Header, NEEDS_CSUM};

const BROADCAST: [u8; 6] = [0xff; 6];
/// How long nothing may come where nothing must.
const QUIET: Duration = Duration::from_millis(30);
/// Frames under way to a guest at most: half of its buffers.
const WINDOW: u32 = 128;

/// A frame with a number.
fn frame(dst: [u8; 6], src: [u8; 6], number: u32) -> Vec<u8> {
    let mut frame = [&dst[..], &src, &[0x88, 0xb5], &number.to_be_bytes()].concat();
    frame.resize(60, 0);
    frame
}

fn number_of(frame: &[u8]) -> u32 {
    u32::from_be_bytes(frame[14..18].try_into().expect("four bytes"))
}

fn guests<const N: usize>(d: &Daemon) -> [Vm; N] {
    std::array::from_fn(|id| Vm::connect(&d.socket(id), VmConfig::new(id as u8)))
}

/// Sends frames as one burst and waits until the switch has taken them.
fn send(vm: &mut Vm, frames: impl Iterator<Item = Vec<u8>>) {
    frames.for_each(|frame| assert!(vm.tx[0].queue(&frame), "a window fits the ring"));
    vm.tx[0].ring.publish();
    vm.tx[0].drain(SOON);
}

/// The numbers of the frames that have come.
fn come(vm: &mut Vm) -> Vec<u32> {
    let mut numbers = Vec::new();
    while vm.rx[0].recv(usize::MAX, |_, frame| numbers.push(number_of(frame))) > 0 {}
    numbers
}

/// Each says where it is, and nothing of that is left in a ring.
fn introduce(vms: &mut [Vm]) {
    for at in 0..vms.len() {
        send(&mut vms[at], [frame(BROADCAST, mac_of(at as u8), 0)].into_iter());
        vms.iter_mut().for_each(|vm| drop(come(vm)));
    }
}

/// The three ports of section 5.7: behind the first one are the addresses, the second one sends to
/// them, and the third one sees what is flooded.
struct Cache {
    d: Daemon,
    vms: [Vm; 3],
}

fn station(n: u32) -> [u8; 6] {
    let [_, a, b, c] = n.to_be_bytes();
    [0x02, 0x28, 0x89, a, b, c]
}

impl Cache {
    fn new(keys: &str) -> Cache {
        let d = Daemon::with_ports(&[keys, "", ""], &[]);
        let mut vms = guests(&d);
        // The first guest has no address but those that it is to teach.
        for at in 1..3 {
            send(&mut vms[at], [frame(BROADCAST, mac_of(at as u8), 0)].into_iter());
            vms.iter_mut().for_each(|vm| drop(come(vm)));
        }
        Cache { d, vms }
    }

    /// A frame from each of so many addresses, as fast as they are taken.
    fn teach(&mut self, count: u32) -> Duration {
        let began = Instant::now();
        for first in (0..count).step_by(WINDOW as usize) {
            let numbers = first..count.min(first + WINDOW);
            let frames = numbers.clone().map(|n| frame(mac_of(1), station(n), n));
            send(&mut self.vms[0], frames);
            assert_eq!(come(&mut self.vms[1]), numbers.collect::<Vec<_>>());
        }
        began.elapsed()
    }

    /// Sends to each of so many addresses; how many of these frames are flooded. None may be
    /// missed by the first port, where flooded ones come after the others of their burst.
    fn flooded(&mut self, count: u32) -> u32 {
        let mut flooded = 0;
        for first in (0..count).step_by(WINDOW as usize) {
            let numbers = first..count.min(first + WINDOW);
            let frames = numbers.clone().map(|n| frame(station(n), mac_of(1), n));
            send(&mut self.vms[1], frames);
            let mut came = come(&mut self.vms[0]);
            came.sort_unstable();
            assert_eq!(came, numbers.collect::<Vec<_>>());
            flooded += come(&mut self.vms[2]).len() as u32;
        }
        flooded
    }

    /// Addresses that the first port has.
    fn held(&self) -> u32 {
        self.d.counters().sum(Some("p0"), "", "addresses") as u32
    }
}

/// Sections 5.7 and 5.8: a port's addresses up to its limit are learned from one frame each, back
/// to back, and then no frame for them is flooded; those beyond are flooded for.
#[test]
fn addresses_are_cached_up_to_the_limit_and_not_flooded_for() {
    let whole = FDB_MAX_ENTRIES - 3 * FDB_RESERVED_PER_PORT;
    for (keys, limit, most) in [
        ("", FDB_MAX_PER_PORT, FDB_MAX_PER_PORT),
        (",max-addresses=100", 100, 100),
        (",max-addresses=65536", whole, FDB_MAX_ENTRIES),
    ] {
        let mut cache = Cache::new(keys);
        let below = limit - WINDOW.min(limit / 2);
        let took = cache.teach(below);
        println!("{below} addresses in {took:?} with the test's own work");
        // Where a thread lost its CPU with a part of the table, the next frame teaches.
        if cache.held() < below {
            cache.teach(below);
        }
        // Of a full table one address in some runs is the ninth of a bucket of eight.
        let displaced = below - cache.held();
        assert!(
            displaced <= if below > FDB_MAX_ENTRIES / 2 { 4 } else { 0 },
            "{keys}: {displaced}"
        );
        assert_eq!(cache.flooded(below), displaced, "{keys}");
        // Those that are known, and more than there is room for.
        let beyond = most + 200;
        cache.teach(beyond);
        let held = cache.held();
        assert!((limit..=most).contains(&held), "{keys}: {held}");
        assert_eq!(cache.flooded(beyond), beyond - held, "{keys}");
        let counters = cache.d.counters();
        assert!(counters.sum(Some("p0"), "", "learn_refused") >= 200, "{counters:#?}");
        assert_eq!(counters.drops(None, "out") + counters.drops(None, ""), 0, "{counters:#?}");
        counters.balance();
        cache.d.stop();
    }
}

/// Section 5.7 and RFC 2285, section 3.8.2: an address that is silent is known for the configured
/// time and at most a second longer, as its last frame counts by whole seconds; threads may have
/// waited for a CPU besides.
#[test]
fn an_address_ages_within_a_second_of_the_configured_time() {
    for &age in rounds(&[2][..], &[2, 4], &[2, 4, 9]) {
        let d = Daemon::with(3, &["--age", &age.to_string()]);
        let mut vms = guests::<3>(&d);
        introduce(&mut vms[..2]);
        let waited = run_queue_wait(d.pid());
        let before = Instant::now();
        send(&mut vms[0], [frame(mac_of(1), station(0), 0)].into_iter());
        let after = Instant::now();
        let limit = Duration::from_secs(age + 30);
        // The frames that ask are from another port, which says nothing of that address.
        let (mut last_known, mut number) = (after, 0);
        let forgotten = loop {
            let now = Instant::now();
            number += 1;
            send(&mut vms[1], [frame(station(0), mac_of(1), number)].into_iter());
            if come(&mut vms[2]).contains(&number) {
                break Instant::now();
            }
            last_known = now;
            assert!(after.elapsed() < limit, "never forgotten\n{}", d.log());
            std::thread::sleep(Duration::from_millis(10));
        };
        let (least, most) = (forgotten - before, last_known - after);
        let waited = run_queue_wait(d.pid()).saturating_sub(waited);
        println!("--age {age}: between {most:?} and {least:?}, {waited:?} without a CPU");
        assert!(least >= Duration::from_secs(age), "{least:?}");
        let longest = Duration::from_secs(age + 1) + Duration::from_millis(50) + waited;
        assert!(most <= longest, "{most:?}, waited {waited:?}");
        d.stop();
    }
}

/// Section 5.10 and, of a frame to all, 5.1: one port sends, 64 others get each frame once and in
/// order, and so they do when each of several sends.
#[test]
fn a_broadcast_reaches_64_ports_in_order() {
    const PORTS: usize = 65;
    let d = Daemon::with(PORTS, &[]);
    let small = |id: usize| {
        let mut config = VmConfig::new(id as u8);
        config.rx.buffers = WINDOW as u16;
        config
    };
    let mut vms: Vec<Vm> = (0..PORTS).map(|id| Vm::connect(&d.socket(id), small(id))).collect();
    let (count, senders) = (rounds(1_024, 8_192, 65_536), [0, 31, 64]);
    for from in senders {
        for first in (0..count).step_by(32) {
            let numbers = first..first + 32;
            send(&mut vms[from], numbers.clone().map(|n| frame(BROADCAST, mac_of(from as u8), n)));
            for (to, vm) in vms.iter_mut().enumerate() {
                let expected: Vec<u32> =
                    if to == from { vec![] } else { numbers.clone().collect() };
                // More copies than are made in a turn.
                let (mut came, end) = (come(vm), Instant::now() + SOON);
                while came.len() < expected.len() && Instant::now() < end {
                    vm.rx[0].wait(SOON);
                    came.extend(come(vm));
                }
                assert_eq!(came, expected, "{from} to {to}");
            }
        }
    }
    let counters = d.counters();
    let copies = u64::from(count) * senders.len() as u64 * (PORTS as u64 - 1);
    assert_eq!(counters.sum(None, "out", "frames"), copies, "{counters:#?}");
    counters.balance();
    d.stop();
}

/// Frames that must not go on, with the request in front of them and how the drop is counted.
fn errored() -> Vec<(&'static str, Header, Vec<u8>)> {
    let plain = Header::default();
    let whole = |len: usize| {
        let mut bytes = frame(BROADCAST, mac_of(0), 0);
        bytes.resize(len, 0);
        bytes
    };
    let mut all: Vec<_> =
        (0..14).map(|len| ("too_short", plain, whole(60)[..len].to_vec())).collect();
    all.extend([65_558, 66_000].map(|len| ("too_long", plain, whole(len))));
    all.push(("bad_source", plain, frame(mac_of(1), BROADCAST, 0)));
    all.push(("bad_source", plain, frame(mac_of(1), [0; 6], 0)));
    all.push(("reserved", plain, frame([1, 0x80, 0xc2, 0, 0, 1], mac_of(0), 0)));
    let sum =
        |csum_start, csum_offset| Header { flags: NEEDS_CSUM, csum_start, csum_offset, ..plain };
    let cut = |hdr_len, gso_size| Header { gso_type: GSO_TCPV4, hdr_len, gso_size, ..sum(34, 16) };
    // Headers longer than the frame, that begin behind it, or that no frame has.
    for header in [
        sum(60, 0),
        sum(59, 0),
        sum(u16::MAX, u16::MAX),
        cut(54, 0),
        cut(u16::MAX, 1_000),
        Header { gso_type: 0x55, ..sum(34, 16) },
    ] {
        all.push(("bad_offload", header, whole(60)));
    }
    all
}

/// Section 5.9: runts, giants, and frames whose headers do not fit them are counted by their
/// reason and go nowhere; what is between them arrives. A frame of 1,515 bytes reaches all but the
/// port with an MTU of 1,500. The errors of a wire (FCS, alignment) cannot come from a ring.
#[test]
fn errored_frames_are_counted_and_not_forwarded() {
    let d = Daemon::with_ports(&["", "", ",mtu=1500"], &[]);
    let mut config = VmConfig::with_offloads(0, feat::OFFLOADS, true);
    config.tx.max_frame = 66_000;
    let mut sender = Vm::connect(&d.socket(0), config);
    let mut others = [1, 2].map(|id| Vm::connect(&d.socket(id.into()), VmConfig::new(id)));
    let before = d.counters();
    let cases = errored();
    for (number, (_, header, bytes)) in (1..).zip(&cases) {
        sender.tx[0].header = header.bytes(12);
        sender.tx[0].send_waiting(bytes, SOON);
        sender.tx[0].header = Header::default().bytes(12);
        sender.tx[0].send_waiting(&frame(BROADCAST, mac_of(0), number), SOON);
    }
    let last = cases.len() as u32 + 1;
    let mut long = frame(BROADCAST, mac_of(0), last);
    long.resize(1_515, 0);
    sender.tx[0].send_waiting(&long, SOON);
    sender.tx[0].drain(SOON);
    std::thread::sleep(QUIET);
    let [open, limited] = others.each_mut().map(come);
    assert_eq!(open, (1..=last).collect::<Vec<_>>());
    assert_eq!(limited, (1..last).collect::<Vec<_>>());
    let counters = d.counters();
    for reason in ["too_short", "too_long", "bad_source", "reserved", "bad_offload"] {
        let count = cases.iter().filter(|case| case.0 == reason).count();
        let name = format!("drop.{reason}");
        let counted = counters.sum(Some("p0"), "in", &name) - before.sum(Some("p0"), "in", &name);
        assert_eq!(counted, count as u64, "{reason}: {counters:#?}");
    }
    assert_eq!(counters.drops(Some("p0"), "in"), cases.len() as u64);
    assert_eq!(counters.sum(Some("p2"), "", "drop.too_big"), 1, "{counters:#?}");
    counters.balance();
    d.stop();
}

/// Section 5.5: two ports send, half of what the first one sends is for a port that takes nothing
/// any more. The port beside it gets each frame in order (no head-of-line blocking), the congested
/// one what it has room for, and each frame more is counted. When it takes frames again it gets all
/// of them.
#[test]
fn a_congested_port_costs_the_one_beside_it_no_frame() {
    let d = Daemon::with(4, &[]);
    let mut vms = guests::<4>(&d);
    introduce(&mut vms);
    vms[3].rx[0].hold = true;
    let before = d.counters();
    let count = rounds(2_000, 20_000, 200_000);
    let (mut number, mut for_congested) = (0, 0);
    while number < count {
        let burst: Vec<u32> = (number..number + 64).collect();
        let to = |n: u32| mac_of(2 + (n % 2) as u8);
        let [first, second, open, _] = &mut vms;
        send(first, burst.iter().map(|&n| frame(to(n), mac_of(0), n)));
        send(second, burst.iter().take(32).map(|&n| frame(mac_of(3), mac_of(1), n)));
        let expected: Vec<u32> = burst.iter().copied().filter(|n| n % 2 == 0).collect();
        assert_eq!(come(open), expected);
        (number, for_congested) = (number + 64, for_congested + 64);
    }
    let room = vms[3].rx[0].buffer_count();
    assert_eq!(come(&mut vms[3]).len(), room);
    let counters = d.counters();
    let lost = counters.drops(Some("p3"), "out") - before.drops(Some("p3"), "out");
    assert_eq!(lost, for_congested - room as u64, "{counters:#?}");
    assert_eq!(counters.drops(Some("p2"), "out"), 0, "{counters:#?}");
    vms[3].rx[0].hold = false;
    vms[3].rx[0].refill();
    send(&mut vms[1], (0..WINDOW).map(|n| frame(mac_of(3), mac_of(1), n)));
    assert_eq!(come(&mut vms[3]), (0..WINDOW).collect::<Vec<_>>());
    d.counters().balance();
    d.stop();
}
