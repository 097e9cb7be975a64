//! Guests with several queue pairs: flows spread over the receive queues, keep their order, and
//! come back on the queue they were last sent on; pairs are enabled and disabled under traffic.
//! With 1, 2, 4 and 8 pairs.

use std::time::{Duration, Instant};

use testkit::SOON;
use testkit::frontend::{Frontend, feat};
use testkit::net::{Job, Net, Sizes};
use testkit::proc::Daemon;
use testkit::ring::{Ring, Seg};
use testkit::traffic::To;
use testkit::vm::{Guest, Vm, VmConfig, mac_of};

mod traffic;

use self::traffic::{FLOWS, under_traffic};

const PAIRS: [usize; 4] = [1, 2, 4, 8];
/// How long nothing may come where nothing must: hundreds of times what a frame takes.
const QUIET: Duration = Duration::from_millis(30);

/// The two guests of most tests, by number.
const A: u8 = 0;
const B: u8 = 1;

/// What kind of frame a flow consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Udp4,
    Udp6,
    Fragment,
    Arp,
    /// No IP at all.
    Other,
}
const KINDS: [Kind; 5] = [Kind::Udp4, Kind::Udp6, Kind::Fragment, Kind::Arp, Kind::Other];

/// Where a frame's sequence number stands: behind all headers.
const SEQ: usize = 64;
const LEN: usize = 72;

/// A frame of flow `number` from one guest to another, or its answer if they change places. An ARP
/// request goes to everybody.
fn frame(kind: Kind, number: u16, from: u8, to: u8, seq: u32) -> Vec<u8> {
    // Ports belong to the ends: guest B is the server of all flows.
    let port = |guest: u8| if guest == B { 4789 } else { 20000 + 2 * number };
    let address = |guest: u8| match kind {
        Kind::Udp4 => [10, 0, 0, guest],
        _ => [10, (number >> 8) as u8, number as u8, guest],
    };
    let mut f = [mac_of(to), mac_of(from)].concat();
    if kind == Kind::Arp && from == B {
        f[..6].fill(0xff);
    }
    let ports = [port(from).to_be_bytes(), port(to).to_be_bytes()].concat();
    match kind {
        Kind::Udp4 | Kind::Fragment => {
            let flags: u8 = if kind == Kind::Fragment { 0x20 } else { 0x40 };
            f.extend([8, 0, 0x45, 0, 0, 58, seq as u8, 0, flags, 0, 64, 17, 0, 0]);
            f.extend([address(from), address(to)].concat());
            f.extend(if kind == Kind::Fragment { seq.to_be_bytes().to_vec() } else { ports });
        }
        Kind::Udp6 => {
            f.extend([0x86, 0xdd, 0x60, 0, 0, seq as u8, 0, 18, 17, 64]);
            for guest in [from, to] {
                f.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, guest]);
            }
            f.extend(ports);
        }
        Kind::Arp => {
            f.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, if from == B { 1 } else { 2 }]);
            for guest in [from, to] {
                f.extend([&mac_of(guest)[..], &address(guest)].concat());
            }
        }
        Kind::Other => f.extend([0x88, 0xb5]),
    }
    f.resize(SEQ, 0);
    f.extend(seq.to_be_bytes());
    f.extend(number.to_be_bytes());
    f.resize(LEN, 0);
    f
}

/// Flow and sequence number of a frame.
fn read(frame: &[u8]) -> (u16, u32) {
    assert_eq!(frame.len(), LEN, "not one of ours: {frame:02x?}");
    let seq = u32::from_be_bytes(frame[SEQ..SEQ + 4].try_into().expect("4 octets"));
    (u16::from_be_bytes([frame[SEQ + 4], frame[SEQ + 5]]), seq)
}

fn config(id: u8, pairs: usize) -> VmConfig {
    let mut cfg = VmConfig::new(id);
    cfg.pairs = pairs;
    if pairs > 1 {
        cfg.features |= feat::MQ;
    }
    cfg
}

/// A switch for A with one pair and B with some.
fn switch(pairs: usize, workers: &str) -> Daemon {
    let keys = format!(",queues={pairs}");
    Daemon::with_ports(&["", &keys], &["--workers", workers])
}

/// Connects a guest and lets the switch learn it; `others` take their copy.
fn connect(d: &Daemon, cfg: VmConfig, others: &mut [&mut Vm]) -> Vm {
    let mut vm = Vm::connect(&d.socket(cfg.id.into()), cfg);
    introduce(&mut vm, others);
    vm
}

fn introduce(vm: &mut Vm, others: &mut [&mut Vm]) {
    let hello = [&[0xff; 6], &vm.mac()[..], &[0x88, 0xb6], &[0; 46]].concat();
    vm.tx[0].send_waiting(&hello, SOON);
    vm.tx[0].drain(SOON);
    for other in others {
        let mut came = 0;
        let end = Instant::now() + SOON;
        while came == 0 && Instant::now() < end {
            came = other.guest.rx.iter_mut().map(|rx| rx.recv(16, |_, _| ())).sum();
        }
        assert_eq!(came, 1, "the newcomer's broadcast");
    }
}

/// A and B, known to the switch.
fn pair_of_guests(d: &Daemon, pairs: usize) -> (Vm, Vm) {
    let mut a = connect(d, config(A, 1), &mut []);
    let b = connect(d, config(B, pairs), &mut [&mut a]);
    (a, b)
}

/// Sends one frame and answers the receive queue on which it comes, alone.
fn queue_of(from: &mut Vm, tx: usize, to: &mut Vm, frame: &[u8]) -> usize {
    from.tx[tx].send_waiting(frame, SOON);
    from.tx[tx].drain(SOON);
    let end = Instant::now() + SOON;
    let mut came = Vec::new();
    while came.is_empty() && Instant::now() < end {
        for (i, rx) in to.guest.rx.iter_mut().enumerate() {
            rx.recv(16, |_, got| {
                assert_eq!(got, frame);
                came.push(i);
            });
        }
    }
    assert_eq!(came.len(), 1, "receive queues with {frame:02x?}");
    came[0]
}

#[test]
fn flows_spread_over_all_queues() {
    const FLOWS: u16 = 256;
    for pairs in PAIRS {
        let d = switch(pairs, "1");
        let (mut a, mut b) = pair_of_guests(&d, pairs);
        for kind in [Kind::Udp4, Kind::Udp6, Kind::Fragment, Kind::Arp] {
            let mut load = vec![0; pairs];
            for flow in 0..FLOWS {
                let queue = queue_of(&mut a, 0, &mut b, &frame(kind, flow, A, B, 0));
                load[queue] += 1;
                for seq in 1..4 {
                    let again = queue_of(&mut a, 0, &mut b, &frame(kind, flow, A, B, seq));
                    assert_eq!(again, queue, "{kind:?}, flow {flow}");
                }
            }
            // The flows are the same in each run, and so is the outcome; chance would leave a queue
            // with less than a third of its part once in some thousands.
            let least = usize::from(FLOWS) / pairs / 3;
            assert!(load.iter().all(|&n| n >= least), "{kind:?}: {load:?}");
        }
        d.counters().balance();
        d.stop();
    }
}

/// Linux's tun driver promises that, and so vhost-net: the guest chooses by where it sends.
#[test]
fn answers_come_on_the_queue_last_sent_on() {
    for (pairs, workers) in PAIRS.into_iter().zip(["1", "2", "1", "2"]) {
        let d = switch(pairs, workers);
        let (mut a, mut b) = pair_of_guests(&d, pairs);
        for kind in KINDS {
            for round in 0..3 {
                for flow in 0..40u16 {
                    // Without IP the stations are the flow: there is but one.
                    let tx = (usize::from(flow) + 3 * round) % pairs;
                    queue_of(&mut b, tx, &mut a, &frame(kind, flow, B, A, 0));
                    let rx = queue_of(&mut a, 0, &mut b, &frame(kind, flow, A, B, 0));
                    assert_eq!(rx, tx, "{kind:?}, flow {flow}");
                }
                // All of them are remembered at once.
                for flow in (0..40u16).filter(|_| kind != Kind::Other) {
                    let tx = (usize::from(flow) + 3 * round) % pairs;
                    let rx = queue_of(&mut a, 0, &mut b, &frame(kind, flow, A, B, 1));
                    assert_eq!(rx, tx, "{kind:?}, flow {flow}");
                }
            }
        }
        d.counters().balance();
        d.stop();
    }
}

/// Both guests send on all pairs, flows with ports and flows without: those are sent on all pairs
/// of a guest in turn, so its answers change their queue all the time. What is promised holds: of
/// one transmit ring and one flow, what one receive ring gets is in order, and nothing is missing.
#[test]
fn streams_are_whole_and_in_order() {
    for pairs in PAIRS {
        let keys = format!(",queues={pairs}");
        let d = Daemon::with_ports(&[&keys, &keys, &keys], &["--workers", "2"]);
        let mut net = Net::connect(&d, 3, |c| config(c.id, pairs));
        let mut jobs = Vec::new();
        for from in 0..3 {
            for to in (0..3).filter(|&to| to != from) {
                for queue in 0..pairs {
                    for flow in 0..4 {
                        let frames = 1000 / pairs as u32;
                        let job = Job::new(from, To::Vm(to as u8), frames, Sizes::Range(60, 200));
                        jobs.push(job.queue(queue).flow(flow));
                    }
                }
            }
            let flood = Job::new(from, To::Broadcast, 100, Sizes::Fixed(60));
            jobs.push(flood.queue(from % pairs).flow(4));
        }
        net.run(&jobs);
        net.finish();
        net.books(&d);
        d.stop();
    }
}

#[test]
fn pairs_are_enabled_and_disabled_one_after_the_other() {
    under_traffic(&PAIRS, |b, pairs| {
        assert_eq!(b.rings_used(1000), [0]);
        for pair in 1..pairs {
            b.enable(pair, true);
            assert_eq!(b.rings_used(4000), (0..=pair).collect::<Vec<_>>(), "pair {pair} enabled");
        }
        for pair in (1..pairs).rev() {
            b.enable(pair, false);
            assert_eq!(b.rings_used(1000), (0..pair).collect::<Vec<_>>(), "pair {pair} disabled");
        }
    });
}

/// The queue that a flow was steered to goes away and comes back, again and again: not a frame is
/// lost that was not in it, and none of those, as its driver still takes them.
#[test]
fn a_queue_is_disabled_under_traffic() {
    under_traffic(&[4, 4, 8], |b, pairs| {
        (1..pairs).for_each(|pair| b.enable(pair, true));
        let all: Vec<usize> = (0..pairs).collect();
        for round in 0..60 {
            // The guest sends all flows on one pair, so all of A's go there, until that is gone.
            let pair = round % pairs;
            for flow in 0..FLOWS {
                let kind = if flow % 2 == 0 { Kind::Udp4 } else { Kind::Udp6 };
                b.vm.tx[pair].send_waiting(&frame(kind, flow, B, A, 0), SOON);
                b.take();
            }
            b.vm.tx[pair].drain(SOON);
            b.receive_what_was_under_way();
            assert_eq!(b.rings_used(500), [pair], "round {round}");
            b.enable(pair, false);
            let rest: Vec<usize> = all.iter().copied().filter(|&p| p != pair).collect();
            assert_eq!(b.rings_used(1000), rest, "round {round}");
            b.enable(pair, true);
            assert_eq!(b.rings_used(500), [pair], "round {round}: back");
        }
    });
}

/// Some front-ends enable all rings at once, whether the guest's driver uses them or not.
#[test]
fn a_ring_that_was_never_filled_gets_nothing() {
    let d = switch(4, "1");
    let mut a = connect(&d, config(A, 1), &mut []);
    let mut fe = Frontend::connect(&d.socket(B.into()), SOON).expect("connect");
    let mut guest = Guest::new(config(B, 4));
    // The driver takes its buffers back before anybody saw them.
    guest.rx[1].reclaim_all();
    guest.rx[3].reclaim_all();
    guest.bring_up(&mut fe).expect("bring up");
    let mut b = Vm { fe, guest };
    b.settle();
    introduce(&mut b, &mut [&mut a]);
    for flow in 0..64 {
        let there = queue_of(&mut a, 0, &mut b, &frame(Kind::Udp4, flow, A, B, 0));
        assert!([0, 2].contains(&there), "flow {flow}: ring {there}");
        queue_of(&mut b, 1, &mut a, &frame(Kind::Udp4, flow, B, A, 0));
        let there = queue_of(&mut a, 0, &mut b, &frame(Kind::Udp4, flow, A, B, 1));
        assert!([0, 2].contains(&there), "flow {flow}: ring {there}");
    }
    b.rx[1].refill();
    let end = Instant::now() + SOON;
    let mut seq = 2;
    while queue_of(&mut a, 0, &mut b, &frame(Kind::Udp4, 0, A, B, seq)) != 1 {
        assert!(Instant::now() < end, "buffers came, and no frames");
        seq += 1;
    }
    for flow in 0..64 {
        let there = queue_of(&mut a, 0, &mut b, &frame(Kind::Udp4, flow, A, B, 3));
        assert_eq!(there, 1, "flow {flow}, last sent on pair 1");
    }
    d.stop();
}

/// The frames of 64 flows to a guest, each of which must come on one of its first `pairs` queues.
fn all_come_on_the_first(pairs: usize, a: &mut Vm, b: &mut Vm) {
    for flow in 0..64 {
        let queue = queue_of(a, 0, b, &frame(Kind::Udp4, flow, A, B, 0));
        assert!(queue < pairs, "flow {flow} on queue {queue} of {pairs}");
    }
    let flood = [&[0xff; 6], &a.mac()[..], &[0x88, 0xb5], &[0; 58]].concat();
    assert!(queue_of(a, 0, b, &flood) < pairs);
}

/// crosvm passes the control queue on as it does the others: ring 2 of a guest that may use one
/// pair, the ring behind the last pair of one that may use several. It gets no frames, and what it
/// holds stays there.
#[test]
fn a_control_queue_gets_no_frames() {
    for (pairs, more) in [(1, 0), (1, feat::MQ), (2, 0)] {
        let d = switch(pairs, "1");
        let mut a = connect(&d, config(A, 1), &mut []);
        let mut cfg = config(B, pairs);
        cfg.features |= feat::CTRL_VQ | more;
        let mut b = connect(&d, cfg, &mut [&mut a]);
        let mode = b.tx[0].ring.mode;
        let mut control = Ring::new(&b.guest.mem, 0, 2 * pairs as u32, 64, mode);
        // A command and a byte for the answer.
        let room = b.guest.mem.alloc_in(0, 64, 16);
        let command = Seg { gpa: room.gpa(), len: 8 };
        assert!(control.add(&[command], false, None, 0));
        control.show();
        b.guest.start_ring(&mut b.fe, &control).expect("start");
        b.fe.set_vring_enable(control.index, true).expect("enable");
        b.settle();
        for _ in 0..2 {
            all_come_on_the_first(pairs, &mut a, &mut b);
            assert!(control.add(&[command], false, None, 0));
            control.show();
            control.kick.write(1);
            b.fe.set_vring_enable(control.index, true).expect("enable again");
            b.settle();
        }
        assert_eq!(control.used_idx(), 0, "the control queue was served");
        let counters = d.counters();
        assert_eq!(counters.sum(None, "out", "bad_buffers"), 0);
        assert_eq!(counters.drops(None, "out") + counters.drops(None, ""), 0);
        counters.balance();
        d.stop();
    }
}

/// cloud-hypervisor starts and enables every ring it has, whatever the guest's driver uses: without
/// VIRTIO_NET_F_MQ that is the first pair.
#[test]
fn a_guest_that_may_use_one_pair_gets_frames_on_that() {
    let d = switch(2, "1");
    let mut a = connect(&d, config(A, 1), &mut []);
    let one = VmConfig { pairs: 2, ..config(B, 1) };
    let mut b = connect(&d, one, &mut [&mut a]);
    all_come_on_the_first(1, &mut a, &mut b);
    // Its next driver may use both, and the one after that one again.
    let both = b.cfg.features | feat::PROTOCOL_FEATURES | feat::MQ;
    b.fe.set_features(both).expect("features");
    b.settle();
    let mut queue = |flow| queue_of(&mut a, 0, &mut b, &frame(Kind::Udp4, flow, A, B, 0));
    let second = (0..64).filter(|&flow| queue(flow) == 1).count();
    assert!(second > 0, "64 flows on the first of two queues");
    b.fe.set_features(both & !feat::MQ).expect("features");
    b.settle();
    all_come_on_the_first(1, &mut a, &mut b);
    d.counters().balance();
    d.stop();
}

/// The port serves one guest after another; what the first did says nothing about the second.
#[test]
fn the_next_guest_begins_anew() {
    let d = switch(4, "1");
    let (mut a, mut b) = pair_of_guests(&d, 4);
    let queues = |a: &mut Vm, b: &mut Vm| -> Vec<usize> {
        (0..32).map(|flow| queue_of(a, 0, b, &frame(Kind::Udp4, flow, A, B, 0))).collect()
    };
    let by_hash = queues(&mut a, &mut b);
    for flow in 0..32 {
        queue_of(&mut b, 3, &mut a, &frame(Kind::Udp4, flow, B, A, 0));
    }
    assert_eq!(queues(&mut a, &mut b), [3; 32]);
    b.stop();
    drop(b);
    let mut b = connect(&d, config(B, 4), &mut [&mut a]);
    assert_eq!(queues(&mut a, &mut b), by_hash);
    d.stop();
}

/// Each flooded frame comes once to each guest, all of a flow on one queue, and to one that sent
/// on the flow where it wants it; also without mergeable buffers and with the 10-byte header.
#[test]
fn a_flood_takes_one_queue_for_each_flow() {
    for features in [feat::MQ, feat::MQ | feat::VERSION_1 | feat::MRG_RXBUF] {
        let d = Daemon::with_ports(&["", ",queues=4", ",queues=8"], &[]);
        let mut a = connect(&d, config(A, 1), &mut []);
        let make = |id, pairs| VmConfig { features, ..config(id, pairs) };
        let mut b = connect(&d, make(B, 4), &mut [&mut a]);
        let mut c = connect(&d, make(2, 8), &mut [&mut a, &mut b]);
        let flood = |flow, seq| {
            let mut f = frame(Kind::Udp4, flow, A, B, seq);
            f[..6].fill(0xff);
            f
        };
        let mut place = [[None; 64]; 2];
        for seq in 0..4 {
            for flow in 0..64u16 {
                assert!(a.tx[0].queue(&flood(flow, seq)));
            }
            a.tx[0].ring.publish();
            a.tx[0].drain(SOON);
            for (vm, place) in [&mut b, &mut c].into_iter().zip(&mut place) {
                let mut came = 0;
                let end = Instant::now() + SOON;
                while came < 64 && Instant::now() < end {
                    for (ring, rx) in vm.guest.rx.iter_mut().enumerate() {
                        came += rx.recv(64, |_, got| {
                            let (flow, n) = read(got);
                            assert_eq!(n, seq, "flow {flow}");
                            let known = place[usize::from(flow)].get_or_insert(ring);
                            assert_eq!(*known, ring, "flow {flow}");
                        });
                    }
                }
                assert_eq!(came, 64, "round {seq}");
            }
        }
        for place in place {
            let used: std::collections::HashSet<_> = place.into_iter().collect();
            assert!(used.len() >= 4, "{used:?}");
        }
        // A flood is steered as well.
        queue_of(&mut b, 2, &mut a, &frame(Kind::Udp4, 5, B, A, 0));
        assert_eq!(queue_of(&mut a, 0, &mut b, &flood(5, 9)), 2);
        std::thread::sleep(QUIET);
        assert_eq!(b.guest.rx.iter_mut().map(|rx| rx.recv(64, |_, _| ())).sum::<usize>(), 0);
        d.counters().balance();
        d.stop();
    }
}
