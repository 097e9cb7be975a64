//! Guests with several queue pairs: flows spread over the receive queues, keep their order, and
//! come back on the queue they were last sent on; pairs are enabled and disabled under traffic.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Scope;
use std::time::{Duration, Instant};

use testkit::frontend::{Frontend, feat};
use testkit::net::{Job, Net, Sizes};
use testkit::proc::Daemon;
use testkit::ring::{Ring, Seg};
use testkit::traffic::To;
use testkit::vm::{Guest, Vm, VmConfig, mac_of};

const PAIRS: [usize; 4] = [1, 2, 4, 8];
/// Longest wait for what must come.
const SOON: Duration = Duration::from_secs(3);
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

/// What B got while A sends many flows at once: order and completeness.
struct Books {
    /// By flow and ring: the next sequence number that is not a step back.
    next: Vec<Vec<u32>>,
    /// By flow: frames.
    count: Vec<u32>,
    /// By ring: frames since it was last looked at.
    load: Vec<u64>,
}

impl Books {
    fn new(flows: u16, rings: usize) -> Books {
        let flows = usize::from(flows);
        Books { next: vec![vec![0; rings]; flows], count: vec![0; flows], load: vec![0; rings] }
    }

    /// Takes what is there; answers how much.
    fn take(&mut self, vm: &mut Vm) -> u64 {
        let mut n = 0;
        for (ring, rx) in vm.guest.rx.iter_mut().enumerate() {
            n += rx.recv(64, |_, got| {
                let (flow, seq) = read(got);
                let next = &mut self.next[usize::from(flow)][ring];
                assert!(seq >= *next, "flow {flow}, ring {ring}: {seq} after {next}");
                *next = seq + 1;
                self.count[usize::from(flow)] += 1;
                self.load[ring] += 1;
            });
        }
        n as u64
    }
}

/// What A and B tell each other beside the switch.
#[derive(Default)]
struct Shared {
    received: AtomicU64,
    sent: AtomicU64,
    over: AtomicBool,
}

const FLOWS: u16 = 64;
/// How many frames guest A sends before it looks again whether B has room for more.
const AT_ONCE: u64 = 16;
/// So few of A's frames that B has not taken let A send again: with `AT_ONCE` more a quarter of
/// what one of B's rings holds, so nothing may be missing.
const ON_THE_WAY: u64 = 64;

/// A thread that is guest A and sends `FLOWS` flows in turn to B until it is told to stop.
fn send_all_the_time<'s>(
    s: &'s Scope<'s, '_>,
    mut make: impl FnMut() -> Vm + Send + 's,
    shared: &'s Shared,
) {
    s.spawn(move || {
        let mut a = make();
        let mut sent = 0u64;
        let end = Instant::now() + Duration::from_secs(60);
        while !shared.over.load(Ordering::Acquire) && Instant::now() < end {
            if sent - shared.received.load(Ordering::Acquire) >= ON_THE_WAY {
                std::thread::yield_now();
                continue;
            }
            for _ in 0..AT_ONCE {
                let (flow, seq) = (sent % u64::from(FLOWS), sent / u64::from(FLOWS));
                let kind = if flow % 2 == 0 { Kind::Udp4 } else { Kind::Udp6 };
                let frame = frame(kind, flow as u16, A, B, seq as u32);
                if !a.tx[0].queue(&frame) {
                    break;
                }
                sent += 1;
            }
            a.tx[0].ring.publish();
        }
        a.tx[0].drain(SOON);
        shared.sent.store(sent, Ordering::Release);
        shared.over.store(true, Ordering::Release);
        // The guest stays until its last frame has come.
        let end = Instant::now() + SOON;
        while shared.received.load(Ordering::Acquire) < sent && Instant::now() < end {
            std::thread::yield_now();
        }
    });
}

/// Guest B under the traffic of A.
struct Receiver<'a> {
    vm: Vm,
    books: Books,
    shared: &'a Shared,
}

impl Receiver<'_> {
    fn take(&mut self) -> u64 {
        let n = self.books.take(&mut self.vm);
        self.shared.received.fetch_add(n, Ordering::Release);
        n
    }

    /// Receives until `enough` frames more have come; answers which rings got some. What was in
    /// the rings before does not count.
    fn rings_used(&mut self, enough: u64) -> Vec<usize> {
        while self.take() > 0 {}
        self.receive(enough);
        let rings = self.books.load.iter().enumerate();
        rings.filter(|&(_, &n)| n > 0).map(|(ring, _)| ring).collect()
    }

    /// Receives what a worker may have chosen a ring for before it saw a change: a worker that
    /// loses its CPU in the middle of a burst delivers the rest where it was to go.
    fn receive_what_was_under_way(&mut self) {
        self.receive(ON_THE_WAY + AT_ONCE);
    }

    fn receive(&mut self, enough: u64) {
        self.books.load.fill(0);
        let end = Instant::now() + SOON;
        while self.books.load.iter().sum::<u64>() < enough {
            assert!(Instant::now() < end, "too few frames: {:?}", self.books.load);
            if self.take() == 0 {
                std::thread::yield_now();
            }
        }
    }

    fn enable(&mut self, pair: usize, on: bool) {
        for ring in [2 * pair, 2 * pair + 1] {
            self.vm.fe.set_vring_enable(ring as u32, on).expect("enable");
        }
        self.vm.settle();
        // A ring that was disabled gets nothing any more; one that was enabled need not be the
        // ring of a burst that has begun.
        if on {
            self.receive_what_was_under_way();
        }
    }

    /// All that was sent has come, each flow whole.
    fn finish(mut self) {
        self.shared.over.store(true, Ordering::Release);
        let end = Instant::now() + SOON;
        let sent = || self.shared.sent.load(Ordering::Acquire);
        let all = loop {
            let n = self.books.take(&mut self.vm);
            let got = self.shared.received.fetch_add(n, Ordering::Release) + n;
            if sent() > 0 && got == sent() {
                break got;
            }
            assert!(Instant::now() < end, "{got} of {} frames", sent());
            std::thread::yield_now();
        };
        for (flow, &count) in self.books.count.iter().enumerate() {
            let flow = flow as u64;
            let due = all / u64::from(FLOWS) + u64::from(flow < all % u64::from(FLOWS));
            assert_eq!(u64::from(count), due, "flow {flow}");
        }
    }
}

/// Ends the traffic also when a test fails.
impl Drop for Receiver<'_> {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Release);
    }
}

/// As QEMU does it: all rings are set up, and those of the first pair enabled. The guest's driver
/// then asks for more pairs.
fn bring_up_as_qemu(d: &Daemon, cfg: VmConfig) -> Vm {
    let mut fe = Frontend::connect(&d.socket(cfg.id.into()), SOON).expect("connect");
    let guest = Guest::new(cfg);
    guest.negotiate(&mut fe).expect("negotiate");
    guest.share_memory(&mut fe).expect("memory");
    fe.set_features(guest.cfg.features | feat::PROTOCOL_FEATURES).expect("features");
    for ring in guest.rings() {
        fe.set_vring_enable(ring.index, ring.index < 2).expect("enable");
        guest.start_ring(&mut fe, ring).expect("start");
    }
    let mut vm = Vm { fe, guest };
    vm.settle();
    introduce(&mut vm, &mut []);
    vm
}

/// Runs a test for B with each number of pairs, under the traffic of A.
fn under_traffic(pairs: &[usize], test: impl Fn(&mut Receiver, usize)) {
    for (&pairs, workers) in pairs.iter().zip(["1", "2"].into_iter().cycle()) {
        let d = switch(pairs, workers);
        let shared = Shared::default();
        let vm = bring_up_as_qemu(&d, config(B, pairs));
        let books = Books::new(FLOWS, pairs);
        std::thread::scope(|s| {
            let socket = d.socket(A.into());
            send_all_the_time(s, move || Vm::connect(&socket, config(A, 1)), &shared);
            let mut b = Receiver { vm, books, shared: &shared };
            test(&mut b, pairs);
            b.finish();
        });
        let counters = d.counters();
        counters.balance();
        assert_eq!(counters.drops(Some("p1"), "out"), 0, "{counters:#?}");
        assert_eq!(counters.drops(Some("p1"), ""), 0, "{counters:#?}");
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
