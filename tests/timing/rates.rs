//! `rate-in` and `rate-out`: a port gets the rate that it is given, its frames wait rather than
//! being dropped where they can, and neither costs another port anything nor keeps a worker awake.

use std::time::{Duration, Instant};

use crate::alone;
use testkit::SOON;
use testkit::frontend::feat;
use testkit::host::{Host, in_namespace};
use testkit::hostile::{one_buffer, refill, restart_with};
use testkit::neighbours::{Lab, While, in_one_of_a_few_tries, nobody, not_judged};
use testkit::proc::Daemon;
use testkit::shares::{frame, whole};
use testkit::vm::{Vm, VmConfig, mac_of};
use testkit::vnet::{GSO_TCPV4, Header, NEEDS_CSUM};

/// What a burst of 64 KiB and the first wake-ups take, and how long is measured after that.
const BEFORE: Duration = Duration::from_millis(800);
const MEASURED: Duration = Duration::from_secs(2);
/// How far off the rate may be, in percent. The meter keeps two; a busy machine adds to that.
const OFF: f64 = 3.0;

fn hello(vm: &mut Vm) {
    let hello = [&[0xff; 6][..], &vm.mac(), &[0x88, 0xb5], &[0; 46]].concat();
    vm.tx[0].send_waiting(&hello, SOON);
    vm.tx[0].drain(SOON);
}

/// Guests that are known to the switch.
fn guests<const N: usize>(d: &Daemon, make: impl Fn(u8) -> VmConfig) -> [Vm; N] {
    let mut vms = std::array::from_fn(|id| Vm::connect(&d.socket(id), make(id as u8)));
    vms.iter_mut().for_each(hello);
    vms
}

fn plain(from: [u8; 6], to: [u8; 6], len: usize) -> Vec<u8> {
    let mut bytes = [&to[..], &from, &[0x88, 0xb5]].concat();
    bytes.resize(len, 0);
    bytes
}

/// Takes what came; its bytes on a wire and packets.
fn receive(vm: &mut Vm) -> (u64, u64) {
    let (mut bytes, mut packets) = (0, 0);
    vm.rx[0].recv(256, |header, frame| {
        let header = Header::parse(header);
        let (headers, size) = (u64::from(header.hdr_len), u64::from(header.gso_size));
        let len = frame.len() as u64;
        let segments = if header.gso_type == 0 { 1 } else { (len - headers).div_ceil(size) };
        packets += segments;
        bytes += len + (segments - 1) * headers;
    });
    (bytes, packets)
}

/// What reaches a guest in a second.
#[derive(Clone, Copy)]
struct Seen {
    bits: f64,
    packets: f64,
    /// The part of the time for which threads of the switch and this one had no CPU.
    waited: f64,
}

/// Has `send` keep a ring full, and measures what reaches `to`.
fn measure(d: &Daemon, mut send: impl FnMut(), to: &mut Vm) -> Seen {
    let start = Instant::now();
    let (mut began, mut bytes, mut packets) = (None, 0, 0);
    loop {
        send();
        let (more, frames) = receive(to);
        let now = Instant::now();
        match began {
            None if now - start >= BEFORE && frames > 0 => began = Some((now, d.run_queue_wait())),
            None => {}
            Some((began, waited)) => {
                (bytes, packets) = (bytes + more, packets + frames);
                // From frame to frame, so that no part of a slow one's time is cut off.
                if now - began >= MEASURED && frames > 0 {
                    let took = (now - began).as_secs_f64();
                    let waited = d.run_queue_wait().saturating_sub(waited).as_secs_f64() / took;
                    let (bits, packets) = (bytes as f64 * 8.0 / took, packets as f64 / took);
                    return Seen { bits, packets, waited };
                }
            }
        }
        if frames == 0 {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

/// `of` what was seen is what is due. What is missing while threads had no CPU says nothing.
fn is_near(what: &str, seen: Seen, of: fn(&Seen) -> f64, due: f64) -> Result<(), String> {
    let (got, waited) = (of(&seen), seen.waited * 100.0);
    let off = (got / due - 1.0) * 100.0;
    let said = format!("{what}: {got:.0} of {due:.0}, {off:+.2} %, {waited:.1} % without a CPU");
    println!("{said}");
    match off.abs() <= OFF {
        true => Ok(()),
        false if off < 0.0 && waited > OFF => Err(not_judged(&said)),
        false => Err(said),
    }
}

fn bits(seen: &Seen) -> f64 {
    seen.bits
}

fn packets(seen: &Seen) -> f64 {
    seen.packets
}

/// Fills a ring with frames, 64 at a time.
fn fill(from: &mut Vm, queue: usize, bytes: &[u8]) {
    while from.tx[queue].queue(bytes) {}
    from.tx[queue].ring.publish();
}

const RATES: [(&str, usize, f64); 5] = [
    ("10mbit", 1514, 1e7),
    ("1gbit", 1514, 1e9),
    ("1mbit", 1514, 1e6),
    ("100mbit", 1514, 1e8),
    ("20mbit", 60, 2e7),
];

/// All of them in the full run, otherwise the first two.
fn rates() -> &'static [(&'static str, usize, f64)] {
    &RATES[..testkit::rounds(2, RATES.len(), RATES.len())]
}

/// What exceeds the rate waits in the sender's ring: nothing is dropped.
#[test]
fn a_guest_sends_at_its_rate_in() {
    let _alone = alone();
    for &(rate, len, due) in rates() {
        in_one_of_a_few_tries(rate, || {
            let d = Daemon::with_ports(&[&format!(",rate-in={rate}"), ""], &[]);
            let [mut from, mut to] = guests(&d, VmConfig::new);
            let bytes = plain(from.mac(), to.mac(), len);
            let seen = measure(&d, || fill(&mut from, 0, &bytes), &mut to);
            let counters = d.counters();
            counters.balance();
            assert_eq!(counters.sum(Some("p1"), "", "drop.rate"), 0);
            d.stop();
            is_near(&format!("rate-in={rate}, {len} bytes"), seen, bits, due)
        });
    }
}

#[test]
fn a_guest_receives_at_its_rate_out() {
    let _alone = alone();
    for &(rate, len, due) in rates() {
        in_one_of_a_few_tries(rate, || {
            let d = Daemon::with_ports(&["", &format!(",rate-out={rate}")], &[]);
            let [mut from, mut to] = guests(&d, VmConfig::new);
            let bytes = plain(from.mac(), to.mac(), len);
            let seen = measure(&d, || fill(&mut from, 0, &bytes), &mut to);
            d.counters().balance();
            d.stop();
            is_near(&format!("rate-out={rate}, {len} bytes"), seen, bits, due)
        });
    }
}

#[test]
#[ignore = "full"]
fn packets_are_limited_as_bits_are() {
    let _alone = alone();
    for (keys, len, in_bits, in_packets) in [
        (",rate-in=5kpps", 60, 0.0, 5e3),
        (",rate-in=10mbit,,5kpps", 60, 0.0, 5e3),
        (",rate-in=10mbit,,5kpps", 1514, 1e7, 0.0),
    ] {
        in_one_of_a_few_tries(keys, || {
            let d = Daemon::with_ports(&[keys, ""], &[]);
            let [mut from, mut to] = guests(&d, VmConfig::new);
            let bytes = plain(from.mac(), to.mac(), len);
            let seen = measure(&d, || fill(&mut from, 0, &bytes), &mut to);
            d.stop();
            let what = format!("{keys}, {len} bytes");
            match in_bits > 0.0 {
                true => is_near(&what, seen, bits, in_bits),
                false => is_near(&what, seen, packets, in_packets),
            }
        });
    }
}

/// A TCP packet of IPv4 with `payload` bytes, and the header that has it cut into segments.
fn large(from: [u8; 6], to: [u8; 6], payload: usize, size: u16) -> (Header, Vec<u8>) {
    let total = (40 + payload) as u16;
    let mut bytes = [&to[..], &from, &[8, 0, 0x45, 0]].concat();
    bytes.extend(total.to_be_bytes());
    bytes.extend([0, 1, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    bytes.extend([0, 80, 0, 81, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
    bytes.resize(54 + payload, 7);
    let header = Header {
        flags: NEEDS_CSUM,
        gso_type: GSO_TCPV4,
        hdr_len: 54,
        gso_size: size,
        csum_start: 34,
        csum_offset: 16,
        num_buffers: 0,
    };
    (header, bytes)
}

/// 64 KiB at a time count as the segments that they are on the wire.
#[test]
#[ignore = "full"]
fn a_packet_to_be_segmented_counts_as_its_segments() {
    let _alone = alone();
    let offloads = feat::CSUM | feat::HOST_TSO4 | feat::GUEST_CSUM | feat::GUEST_TSO4;
    for (keys, due) in [
        ([",rate-in=20mbit", ""], 2e7),
        ([",rate-in=1gbit", ""], 1e9),
        (["", ",rate-out=1gbit"], 1e9),
    ] {
        // With segments of 536 bytes the headers are a tenth.
        for size in [1460, 536] {
            in_one_of_a_few_tries(keys[0], || {
                let d = Daemon::with_ports(&keys, &[]);
                let make = |id| VmConfig::with_offloads(id, offloads, true);
                let [mut from, mut to] = guests(&d, make);
                let (header, bytes) = large(from.mac(), to.mac(), 60_000, size);
                from.tx[0].header = header.bytes(12);
                let seen = measure(&d, || fill(&mut from, 0, &bytes), &mut to);
                d.counters().balance();
                d.stop();
                is_near(&format!("{keys:?}, segments of {size}"), seen, bits, due)
            });
        }
    }
}

/// Both queues of a port have one rate, and each gets its part of it.
#[test]
#[ignore = "full"]
fn queues_of_a_port_share_its_rate() {
    let _alone = alone();
    for workers in ["1", "2"] {
        in_one_of_a_few_tries("two queues", || {
            let keys = ",queues=2,rate-in=50mbit";
            let d = Daemon::with_ports(&[keys, ""], &["--workers", workers]);
            let make = |id| VmConfig { pairs: if id == 0 { 2 } else { 1 }, ..VmConfig::new(id) };
            let [mut from, mut to] = guests(&d, make);
            let bytes = plain(from.mac(), to.mac(), 1514);
            let mut first = None;
            let seen = measure(
                &d,
                || {
                    fill(&mut from, 0, &bytes);
                    fill(&mut from, 1, &bytes);
                    first.get_or_insert([0, 1].map(|queue| from.tx[queue].frames));
                },
                &mut to,
            );
            let before = first.unwrap_or_default();
            let sent = [0, 1].map(|queue| from.tx[queue].frames - before[queue]);
            d.stop();
            let least = *sent.iter().min().expect("two") as f64;
            let all = sent.iter().sum::<u64>() as f64;
            if least < all / 4.0 {
                return Err(format!("{workers} workers: {sent:?}"));
            }
            is_near(&format!("two queues, {workers} workers"), seen, bits, 5e7)
        });
    }
}

/// What the host sends waits in the TAP's queue, and then the kernel drops it, not the switch.
#[test]
#[ignore = "full"]
fn a_tap_is_read_at_its_rate_in() {
    let _alone = alone();
    in_namespace(|| {
        in_one_of_a_few_tries("TAP", || {
            let d = Daemon::with_ports(&[""], &["--tap", "up,ifname=t0,rate-in=50mbit"]);
            let host = Host::open("t0");
            let [mut to] = guests(&d, VmConfig::new);
            let bytes = plain(mac_of(99), to.mac(), 1514);
            let send = || (0..64).for_each(|_| drop(host.try_send(&bytes)));
            let seen = measure(&d, send, &mut to);
            d.counters().balance();
            d.stop();
            is_near("rate-in of a TAP", seen, bits, 5e7)
        });
    });
}

/// Frames that cannot wait are dropped with a reason of their own: floods, and those of a TAP.
#[test]
fn what_cannot_wait_for_a_rate_out_is_dropped_and_counted() {
    let _alone = alone();
    in_namespace(|| {
        in_one_of_a_few_tries("floods", || {
            let tap = ["--tap", "up,ifname=t0"];
            let d = Daemon::with_ports(&["", ",rate-out=10mbit"], &tap);
            let host = Host::open("t0");
            let [mut from, mut to] = guests(&d, VmConfig::new);
            let flood = plain(from.mac(), [0xff; 6], 1514);
            let flooded = measure(&d, || fill(&mut from, 0, &flood), &mut to);
            let dropped = d.counters().sum(Some("p1"), "", "drop.rate");
            assert!(dropped > 0, "nothing was dropped");
            let bytes = plain(mac_of(99), to.mac(), 1514);
            let send = || (0..64).for_each(|_| drop(host.try_send(&bytes)));
            let sent = measure(&d, send, &mut to);
            let counters = d.counters();
            counters.balance();
            assert!(counters.sum(Some("p1"), "", "drop.rate") > dropped);
            d.stop();
            is_near("floods to rate-out", flooded, bits, 1e7)?;
            is_near("a TAP to rate-out", sent, bits, 1e7)
        });
    });
}

/// A sender whose frames may wait has its part of a receiver's rate beside one that floods, whose
/// frames may not: these are there whenever a frame fits.
#[test]
fn floods_leave_a_part_of_a_rate_out_to_who_may_wait() {
    let _alone = alone();
    let cases = [("10mbit", 60), ("10mbit", 1514), ("100mbit", 60), ("100mbit", 1514)];
    for (rate, len) in cases.into_iter().take(testkit::rounds(1, 4, 4)) {
        let d = Daemon::with_ports(&["", &format!(",rate-out={rate}"), ""], &[]);
        let [mut from, mut to, mut flooder] = guests(&d, VmConfig::new);
        let bytes = plain(from.mac(), to.mac(), 1514);
        let flood = plain(flooder.mac(), [0xff; 6], len);
        let (start, mut got) = (Instant::now(), [0; 2]);
        while start.elapsed() < BEFORE + MEASURED {
            fill(&mut from, 0, &bytes);
            fill(&mut flooder, 0, &flood);
            let is_counted = start.elapsed() > BEFORE;
            to.rx[0].recv(256, |_, frame| {
                let sender = usize::from(frame[6..12] == flooder.mac());
                got[sender] += if is_counted { frame.len() } else { 0 };
            });
            std::thread::sleep(Duration::from_micros(100));
        }
        d.counters().balance();
        d.stop();
        println!("{rate}, floods of {len} bytes: bytes of who may wait and of who floods {got:?}");
        assert!(got.iter().all(|part| part * 8 >= got.iter().sum()), "{rate} {len}: {got:?}");
    }
}

/// A worker whose only sources wait for a rate sleeps. At 1 Gbit/s it forwards 82,000 frames a
/// second besides, and may spin for the next ones, within the budget of spinning.
#[test]
fn waiting_for_a_rate_costs_no_cpu() {
    let _alone = alone();
    for (keys, most) in [
        ([",rate-in=10mbit", ""], 0.15),
        ([",rate-in=1gbit", ""], 0.5),
        (["", ",rate-out=10mbit"], 0.15),
    ] {
        in_one_of_a_few_tries("idle", || {
            let d = Daemon::with_ports(&keys, &["--workers", "1"]);
            let [mut from, mut to] = guests(&d, VmConfig::new);
            let bytes = plain(from.mac(), to.mac(), 1514);
            let run = |from: &mut Vm, to: &mut Vm, how_long: Duration| {
                let end = Instant::now() + how_long;
                while Instant::now() < end {
                    fill(from, 0, &bytes);
                    receive(to);
                    std::thread::sleep(Duration::from_micros(500));
                }
            };
            run(&mut from, &mut to, BEFORE);
            let (start, before) = (Instant::now(), d.cpu_ticks());
            run(&mut from, &mut to, MEASURED);
            let part = (d.cpu_ticks() - before) as f64 / 100.0 / start.elapsed().as_secs_f64();
            d.stop();
            println!("{keys:?}: {:.1} % of a CPU", 100.0 * part);
            if part < most { Ok(()) } else { Err(format!("{keys:?}: {part:.2} of a CPU")) }
        });
    }
}

/// I7: beside a guest that floods a limited receiver, and one that is limited itself, bystanders
/// keep their rate, their latency, and all their frames.
#[test]
#[ignore = "full"]
fn limited_ports_cost_bystanders_nothing() {
    let _alone = alone();
    for keys in [["", ",rate-out=10mbit"], [",rate-in=10mbit", ""], ["", ",rate-out=1gbit"]] {
        let ports = ["", "", keys[0], keys[1]];
        let mut lab = Lab::with_ports(&ports, &[]);
        let (mut evil, mut limited) = (lab.guest(2, |_| ()), lab.guest(3, |_| ()));
        let bytes = frame(&evil, limited.mac(), 1000);
        restart_with(&mut evil, 1, |ring| one_buffer(ring, whole(&bytes), 0));
        let ring = &evil.guest.tx[0].ring;
        let attack = |phase: &While<'_>| {
            phase.every(Duration::from_micros(150), || {
                limited.rx[0].recv(64, |_, _| ());
                refill(ring);
            });
        };
        lab.unharmed(&format!("a flood, {keys:?}"), nobody, attack);
        drop((evil, limited));
        lab.finish();
    }
}

/// A sender to a limited receiver keeps its rate to others: back-pressure's bounds hold.
#[test]
#[ignore = "full"]
fn a_limited_receiver_does_not_hold_up_what_its_sender_sends_to_others() {
    let _alone = alone();
    in_one_of_a_few_tries("others", || {
        let rate = |keys: &str| {
            let d = Daemon::with_ports(&["", keys, ""], &[]);
            let [mut from, mut limited, mut other] = guests(&d, VmConfig::new);
            let frames = [&limited, &other].map(|vm| plain(from.mac(), vm.mac(), 1000));
            let mut n = 0;
            let send = || {
                receive(&mut limited);
                while from.tx[0].queue(&frames[usize::from(n % 16 != 0)]) {
                    n += 1;
                }
                from.tx[0].ring.publish();
            };
            let Seen { packets, .. } = measure(&d, send, &mut other);
            d.counters().balance();
            d.stop();
            packets
        };
        let (control, beside) = (rate(""), rate(",rate-out=10mbit"));
        println!("to others {beside:.0} packets/s beside {control:.0}");
        if beside >= 0.9 * control { Ok(()) } else { Err(format!("{beside:.0} of {control:.0}")) }
    });
}
