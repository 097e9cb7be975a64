//! Two guests that keep to every rule and talk to each other all the time, both ways, at a rate far
//! below what the switch carries. Their frames prove order, uniqueness and content (I2 to I4); what
//! is lost shows as a step in the sequence numbers.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use testkit::Rng;
use testkit::sys;
use testkit::traffic::{self, Stream, To};
use testkit::vm::{Vm, VmConfig, mac_of};

use super::shared::{PAIRS, REMARKABLE, Shared, raise};

/// Frames sent at once, one way.
const BURST: usize = 16;
/// Frames under way, one way: a quarter of the receiver's ring, most of which strangers may fill.
const WINDOW: u32 = 64;
/// Between two rounds: with both ways some 30,000 frames a second and pair.
const ROUND: Duration = Duration::from_millis(1);
/// Frames that do not come for so long are lost; the next ones tell.
const LOST: Duration = Duration::from_millis(20);
/// No guest is without a frame for so long unless the switch stands still.
const STALLED: Duration = Duration::from_secs(20);
const SOON: Duration = Duration::from_secs(10);

/// One way.
struct Way {
    from: usize,
    sent: u32,
    /// Next sequence number to come, and how many came.
    next: u32,
    came: u64,
    last_sent: Instant,
    last_came: Instant,
    /// What this thread had waited for a CPU by then.
    waited: Duration,
}

pub struct Pair {
    pub vms: [Vm; 2],
    ways: [Way; 2],
    rng: Rng,
    frame: Vec<u8>,
}

impl Pair {
    pub fn connect(first: u8, path: impl Fn(usize) -> std::path::PathBuf) -> Pair {
        let vm = |id: u8| Vm::connect(&path(id.into()), VmConfig::new(id));
        let now = Instant::now();
        let way = |from| Way {
            from,
            sent: 0,
            next: 0,
            came: 0,
            last_sent: now,
            last_came: now,
            waited: Duration::ZERO,
        };
        Pair {
            vms: [vm(first), vm(first + 1)],
            ways: [way(0), way(1)],
            rng: Rng::new(first.into()),
            frame: Vec::new(),
        }
    }

    pub fn run(&mut self, shared: &Shared) {
        while !shared.stopping() {
            if shared.honest_rest() {
                self.ways.iter_mut().for_each(|way| way.last_came = Instant::now());
                self.ways.iter_mut().for_each(|way| way.waited = own_wait());
            }
            self.round(shared);
            if shared.stopping() || !self.sleep() {
                continue;
            }
            std::thread::sleep(ROUND / 2);
        }
        self.settle(shared);
    }

    fn round(&mut self, shared: &Shared) {
        for way in 0..2 {
            self.send(way);
        }
        for receiver in 0..2 {
            self.receive(receiver, shared);
        }
        for way in &self.ways {
            let gap = way.last_came.elapsed();
            raise([&shared.gap, &shared.longest_gap], gap);
            assert!(gap < STALLED, "guest {} is not heard", self.vms[way.from].cfg.id);
        }
    }

    fn send(&mut self, way: usize) {
        let way = &mut self.ways[way];
        let under_way = way.sent - way.next;
        if under_way >= WINDOW && way.last_sent.elapsed() < LOST {
            return;
        }
        let (id, to) = (self.vms[way.from].cfg.id, self.vms[1 - way.from].cfg.id);
        let stream = Stream { sender: id, queue: 0, to: To::Vm(to), flow: 0 };
        let tx = &mut self.vms[way.from].guest.tx[0];
        for _ in 0..BURST {
            let len = 60 + self.rng.below(1455) as usize;
            traffic::build(&stream, way.sent, len, &mut self.frame);
            if !tx.queue(&self.frame) {
                break;
            }
            way.sent += 1;
        }
        tx.ring.publish();
        way.last_sent = Instant::now();
    }

    fn receive(&mut self, receiver: usize, shared: &Shared) {
        let [me, other] = [receiver, 1 - receiver].map(|n| self.vms[n].cfg.id);
        let way = &mut self.ways[other_way(receiver)];
        let mut came = 0;
        self.vms[receiver].guest.rx[0].recv(256, |_, frame| {
            let Some(seq) = own_frame(frame, me, other) else { return };
            assert!(seq >= way.next, "guest {me}: {seq} after {} (I2, I3)", way.next);
            assert!(seq < way.sent, "guest {me}: {seq} was never sent (I3)");
            shared.honest_lost.fetch_add(u64::from(seq - way.next), Ordering::Relaxed);
            way.next = seq + 1;
            came += 1;
        });
        if came > 0 {
            way.came += came;
            let gap = way.last_came.elapsed();
            raise([&shared.gap, &shared.longest_gap], gap);
            let waited = own_wait();
            if gap > REMARKABLE {
                shared.silence(me, gap, waited - way.waited);
            }
            (way.last_came, way.waited) = (Instant::now(), waited);
            shared.honest_frames.fetch_add(came, Ordering::Relaxed);
        }
    }

    /// Sleeps on the call descriptors; true if something came.
    fn sleep(&mut self) -> bool {
        let mut ready = false;
        for vm in &mut self.vms {
            ready |= vm.guest.rx[0].ring.arm();
        }
        let calls = [0, 1].map(|n| self.vms[n].rx[0].ring.call.raw());
        ready |= sys::poll_in(&calls, Duration::from_millis(5));
        let waits = self.vms.iter().any(|vm| vm.rx[0].ring.has_used());
        let told = ready || !waits || sys::poll_in(&calls, SOON / 10);
        assert!(
            told,
            "guests {} and {}: lost notification",
            self.vms[0].cfg.id, self.vms[1].cfg.id
        );
        for vm in &mut self.vms {
            vm.guest.rx[0].ring.call.take();
            vm.guest.rx[0].ring.disarm();
        }
        ready
    }

    /// The last frames: all transmit buffers back, and nothing left to take.
    pub fn settle(&mut self, shared: &Shared) {
        for vm in &mut self.vms {
            vm.guest.tx[0].drain(SOON);
        }
        for receiver in 0..2 {
            self.receive(receiver, shared);
        }
        for way in &mut self.ways {
            let lost = way.sent - way.next;
            shared.honest_lost.fetch_add(lost.into(), Ordering::Relaxed);
            way.next = way.sent;
        }
    }

    /// Frames lost on the way to each of the two.
    pub fn lost(&self) -> [u64; 2] {
        [1, 0].map(|way| u64::from(self.ways[way].sent) - self.ways[way].came)
    }
}

/// How long this thread has stood ready without a CPU.
fn own_wait() -> Duration {
    let times = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let waited = times.split_whitespace().nth(1).and_then(|n| n.parse().ok());
    Duration::from_nanos(waited.unwrap_or(0))
}

fn other_way(receiver: usize) -> usize {
    1 - receiver
}

/// The sequence number of a frame of the partner. Strangers may send to an honest guest whatever
/// they like, but what is for another honest guest, whose address is static, must not come here.
fn own_frame(frame: &[u8], me: u8, other: u8) -> Option<u32> {
    let to = &frame[..6];
    let foreign = (0..2 * PAIRS as u8).any(|id| id != me && to == mac_of(id));
    assert!(!foreign, "guest {me} got a frame for {to:02x?} (I4)");
    // Its own are no shorter.
    let (stream, seq) = (frame.len() >= 60).then(|| traffic::parse(frame).ok())??;
    (to == mac_of(me) && stream.sender == other).then_some(seq)
}
