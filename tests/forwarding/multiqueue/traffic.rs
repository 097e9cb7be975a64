//! Guest A sends many flows at once while guest B's queue pairs change.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Scope;
use std::time::{Duration, Instant};

use testkit::frontend::{Frontend, feat};
use testkit::proc::Daemon;
use testkit::vm::{Guest, Vm, VmConfig};

use super::*;

/// What B got while A sends many flows at once: order and completeness.
pub struct Books {
    /// By flow and ring: the next sequence number that is not a step back.
    next: Vec<Vec<u32>>,
    /// By flow: frames.
    count: Vec<u32>,
    /// By ring: frames since it was last looked at.
    load: Vec<u64>,
}

impl Books {
    pub fn new(flows: u16, rings: usize) -> Books {
        let flows = usize::from(flows);
        Books { next: vec![vec![0; rings]; flows], count: vec![0; flows], load: vec![0; rings] }
    }

    /// Takes what is there; answers how much.
    pub fn take(&mut self, vm: &mut Vm) -> u64 {
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

pub const FLOWS: u16 = 64;
/// How many frames guest A sends before it looks again whether B has room for more.
pub const AT_ONCE: u64 = 16;
/// So few of A's frames that B has not taken let A send again: with `AT_ONCE` more a quarter of
/// what one of B's rings holds, so nothing may be missing.
pub const ON_THE_WAY: u64 = 64;

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
pub struct Receiver<'a> {
    pub vm: Vm,
    pub books: Books,
    shared: &'a Shared,
}

impl Receiver<'_> {
    pub fn take(&mut self) -> u64 {
        let n = self.books.take(&mut self.vm);
        self.shared.received.fetch_add(n, Ordering::Release);
        n
    }

    /// Receives until `enough` frames more have come; answers which rings got some. What was in
    /// the rings before does not count.
    pub fn rings_used(&mut self, enough: u64) -> Vec<usize> {
        while self.take() > 0 {}
        self.receive(enough);
        let rings = self.books.load.iter().enumerate();
        rings.filter(|&(_, &n)| n > 0).map(|(ring, _)| ring).collect()
    }

    /// Receives what a worker may have chosen a ring for before it saw a change: a worker that
    /// loses its CPU in the middle of a burst delivers the rest where it was to go.
    pub fn receive_what_was_under_way(&mut self) {
        self.receive(ON_THE_WAY + AT_ONCE);
    }

    pub fn receive(&mut self, enough: u64) {
        self.books.load.fill(0);
        let end = Instant::now() + SOON;
        while self.books.load.iter().sum::<u64>() < enough {
            assert!(Instant::now() < end, "too few frames: {:?}", self.books.load);
            if self.take() == 0 {
                std::thread::yield_now();
            }
        }
    }

    pub fn enable(&mut self, pair: usize, on: bool) {
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
pub fn bring_up_as_qemu(d: &Daemon, cfg: VmConfig) -> Vm {
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
pub fn under_traffic(pairs: &[usize], test: impl Fn(&mut Receiver, usize)) {
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
