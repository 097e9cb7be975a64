//! A TAP that fails costs guests no frame: it goes down, is deleted, changes its MTU. It is back
//! within a second; meanwhile the daemon takes under 5 % of a CPU.

use std::time::{Duration, Instant};

use testkit::host::{Host, in_namespace, index_of, ip};
use testkit::net::{Job, Net, Sizes};
use testkit::proc::{Daemon, wait_for};
use testkit::traffic::To;
use testkit::vm::Vm;

use super::*;

/// What happens to the TAP in a round of trouble.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Trouble {
    /// Set down and up again.
    Down,
    /// Deleted; it is the daemon's, which makes another.
    Deleted,
    /// Deleted; it is the administrator's, who makes another.
    DeletedByAdmin,
    /// Its MTU goes up and down.
    Mtu,
}

/// A third guest and the host, who see how the uplink does while guests 0 and 1 talk.
struct Probe<'d> {
    d: &'d Daemon,
    vm: Vm,
    host: Host,
    queues: u16,
    seq: usize,
    /// Frames sent into a TAP that was not in service, or had too small an MTU.
    lost: u64,
    /// How long it took each time until frames passed again, less what the machine had no CPU for.
    took: Vec<Duration>,
}

const LOST_PER_ROUND: u64 = 5;

impl Probe<'_> {
    fn create(queues: u16) {
        let multi = if queues > 1 { " multi_queue" } else { "" };
        ip(&format!("tuntap add dev tap0 mode tap{multi}"));
        ip("link set tap0 up");
    }

    /// Frames to the host that cannot arrive; each comes back to the guest all the same.
    fn lose_some(&mut self) {
        for _ in 0..LOST_PER_ROUND {
            self.vm.tx[0].send_waiting(&traced(2, To::Vm(HOST), 0, 0, 100), SOON);
        }
        self.vm.tx[0].drain(SOON);
        self.lost += LOST_PER_ROUND;
    }

    /// Waits until a fresh frame passes each way, and notes the time since `start`.
    fn back(&mut self, start: Instant, waited: Duration) {
        self.host.drain();
        let (mut there, mut here) = (false, false);
        let deadline = start + Duration::from_secs(20);
        while !(there && here) {
            assert!(Instant::now() < deadline, "the TAP does not come back\n{}", self.d.log());
            self.seq += 1;
            let out = traced(2, To::Vm(HOST), 0, self.seq, 200);
            let back = traced(HOST, To::Vm(2), 0, self.seq, 300);
            // Until it is up and somebody reads it there are errors; that is what is waited for.
            let _ = self.host.try_send(&back);
            if !there {
                self.vm.tx[0].send_waiting(&out, SOON);
            }
            let pause = Duration::from_millis(2);
            there |= self.host.receive(pause).is_some();
            if self.vm.rx[0].wait(pause) {
                self.vm.rx[0].recv(64, |_, frame| here |= *frame == *back);
            }
        }
        let cpu = self.d.run_queue_wait().saturating_sub(waited);
        self.took.push(start.elapsed().saturating_sub(cpu));
        // Whatever the last attempts left on the way.
        std::thread::sleep(QUIET);
        self.host.drain();
        self.vm.rx[0].recv(64, |_, _| {});
    }

    fn round(&mut self, trouble: Trouble, n: usize) {
        let waited = self.d.run_queue_wait();
        match trouble {
            Trouble::Down => {
                ip("link set tap0 down");
                self.lose_some();
                ip("link set tap0 up");
                self.back(Instant::now(), waited);
            }
            Trouble::Deleted => {
                ip("link del tap0");
                let start = Instant::now();
                let old = self.host.index();
                let made = wait_for(SOON, || index_of("tap0").is_some_and(|new| new != old));
                assert!(made, "not created again\n{}", self.d.log());
                self.host = Host::open("tap0");
                self.back(start, waited);
                assert!(ip("-o link show tap0").contains("qdisc noqueue"));
            }
            Trouble::DeletedByAdmin => {
                ip("link del tap0");
                self.lose_some();
                Probe::create(self.queues);
                let start = Instant::now();
                self.host = Host::open("tap0");
                self.back(start, waited);
            }
            Trouble::Mtu => {
                let longest = [590, 9013, 1514][n % 3];
                ip(&format!("link set tap0 mtu {}", longest - 14));
                self.back(Instant::now(), waited);
                std::thread::sleep(FOLLOWED);
                to_host(&mut self.vm, &self.host, &[60, 590, longest]);
                from_host(&self.host, &mut self.vm, &[60, 590, longest]);
                let longer = traced(2, To::Vm(HOST), 0, n, longest + 1);
                self.vm.tx[0].send_waiting(&longer, SOON);
                self.vm.tx[0].drain(SOON);
                self.lost += 1;
            }
        }
    }

    /// A second in which nothing happens but that the TAP is missing.
    fn quiet_while_gone(&mut self, trouble: Trouble) {
        match trouble {
            Trouble::Down => ip("link set tap0 down"),
            Trouble::DeletedByAdmin => ip("link del tap0"),
            Trouble::Deleted | Trouble::Mtu => return,
        };
        self.lose_some();
        let before = self.d.cpu_ticks();
        std::thread::sleep(Duration::from_secs(1));
        let used = self.d.cpu_ticks() - before;
        assert!(used < IDLE_TICKS, "{used} ticks of CPU in a second without a TAP");
        if trouble == Trouble::Down {
            ip("link set tap0 up");
        } else {
            Probe::create(self.queues);
        }
        self.host = Host::open("tap0");
        self.back(Instant::now(), self.d.run_queue_wait());
    }

    /// Every lost frame was counted, under the name of what happened.
    fn books(&self, trouble: Trouble) {
        let c = self.d.counters();
        let sum = |key| c.sum(Some("up"), "out", key) + c.sum(Some("up"), "", key);
        let (down, gone) = (sum("drop.tap_down"), sum("drop.tap_gone"));
        let too_big = sum("drop.too_big");
        match trouble {
            Trouble::Down => assert_eq!((down, gone), (self.lost, 0), "{c:?}"),
            // Attempts while it was away, or not yet up, are counted too.
            Trouble::Deleted | Trouble::DeletedByAdmin => {
                assert!(gone >= self.lost, "{gone} of {}: {c:?}", self.lost);
            }
            Trouble::Mtu => assert_eq!((down, gone, too_big), (0, 0, self.lost), "{c:?}"),
        }
        let drops = c.drops(None, "in") + c.drops(None, "out") + c.drops(None, "");
        assert_eq!(drops, down + gone + too_big, "other drops: {c:?}");
        c.balance();
    }
}

/// Trouble with the TAP, over and over, while two guests talk and lose nothing.
fn trouble(trouble: Trouble, queues: u16, workers: &str) {
    trouble_by(trouble, queues, workers, "uring");
}

fn trouble_by(trouble: Trouble, queues: u16, workers: &str, io: &str) {
    in_namespace(|| {
        if trouble == Trouble::DeletedByAdmin {
            Probe::create(queues);
        }
        let tap = format!("up,ifname=tap0,queues={queues},io={io}");
        let d = daemon(3, &[&tap], &["--workers", workers]);
        let (vm, host) = (connect(&d, 2), Host::open("tap0"));
        let mut probe = Probe { d: &d, vm, host, queues, seq: 0, lost: 0, took: Vec::new() };
        introduce(&mut [&mut probe.vm], &probe.host);
        probe.quiet_while_gone(trouble);
        let mut net = Net::connect(&d, 2, |cfg| cfg);
        let rounds = if testkit::long() { 100 } else { 4 };
        std::thread::scope(|scope| {
            let script = scope.spawn(|| {
                (0..rounds).for_each(|n| probe.round(trouble, n));
                probe
            });
            let job =
                |from: u8| Job::new(from.into(), To::Vm(1 - from), 100, Sizes::Range(60, 1514));
            let mut runs = 0;
            while !script.is_finished() {
                // Panics if a frame is missing.
                net.run(&[job(0), job(1)]);
                runs += 1;
                // The kernel's own threads need a CPU to take an interface away: on a machine of
                // two, tests that never pause keep them from it for seconds.
                std::thread::sleep(Duration::from_millis(2));
            }
            let mut probe = script.join().unwrap_or_else(|p| std::panic::resume_unwind(p));
            println!("{trouble:?}: {runs} runs of 200 frames, back in {:?}", probe.took);
            assert!(runs > 0);
            // Half of them: the kernel makes and removes one interface at a time for all.
            probe.took.sort();
            assert!(probe.took[probe.took.len() / 2] < BACK_LIMIT, "back in {:?}", probe.took);
            probe.books(trouble);
        });
        assert_eq!(net.receive(), 0, "frames nobody sent");
        d.stop();
    });
}

#[test]
fn down_and_up() {
    trouble(Trouble::Down, 1, "1");
}

/// Bursts of frames of a guest while an interface goes down and comes up: the frames that it sent,
/// and those of them that came at the host's end, in their places.
pub(super) fn bursts_while_down(
    vm: &mut Vm,
    host: &Host,
    interface: &str,
) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let (mut sent, mut came) = (Vec::new(), Vec::new());
    std::thread::scope(|scope| {
        let script = scope.spawn(|| {
            for _ in 0..20 {
                ip(&format!("link set {interface} down"));
                ip(&format!("link set {interface} up"));
            }
        });
        while !script.is_finished() {
            for _ in 0..64 {
                let frame = traced(0, To::Vm(HOST), 0, sent.len(), 60 + sent.len() % 1400);
                assert!(vm.tx[0].queue(&frame), "the ring is empty before");
                sent.push(frame);
            }
            vm.tx[0].ring.publish();
            vm.tx[0].drain(SOON);
            while let Some(frame) = host.receive(Duration::ZERO) {
                came.push(frame);
            }
        }
        script.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    while let Some(frame) = host.receive(QUIET) {
        came.push(frame);
    }
    let mut rest = sent.iter();
    assert!(came.iter().all(|frame| rest.any(|of| of == frame)), "out of order, or changed");
    (sent, came)
}

/// Bursts of frames while the interface goes down and comes up: each frame arrives, in its place,
/// or is counted.
fn in_the_middle_of_bursts(io: &str) {
    in_namespace(|| {
        let d = daemon(1, &[&format!("up,ifname=tap0,io={io}")], &[]);
        let (mut vm, host) = (connect(&d, 0), Host::open("tap0"));
        introduce(&mut [&mut vm], &host);
        let (sent, came) = bursts_while_down(&mut vm, &host, "tap0");
        let mut c = d.counters();
        let all = |c: &testkit::counters::Counters| {
            let [frames, down] =
                ["frames", "drop.tap_down"].map(|key| c.sum(Some("up"), "out", key));
            (frames, down)
        };
        let count = 1 + sent.len() as u64;
        wait_for(SOON, || {
            c = d.counters();
            all(&c).0 + all(&c).1 >= count
        });
        let (frames, down) = all(&c);
        assert_eq!(frames + down, count, "{c:?}");
        assert!(down > 0 && came.len() as u64 <= frames, "{down} lost, {} came", came.len());
        println!("{io}: {} frames, {down} while down, {} came", sent.len(), came.len());
        c.balance();
        d.stop();
    });
}

#[test]
fn down_in_the_middle_of_bursts() {
    in_the_middle_of_bursts("uring");
}

#[test]
fn down_in_the_middle_of_bursts_with_a_call_for_each_frame() {
    in_the_middle_of_bursts("write");
}

#[test]
fn down_and_up_with_a_call_for_each_frame() {
    trouble_by(Trouble::Down, 1, "1", "write");
}

#[test]
fn deleted_and_made_again_with_a_call_for_each_frame() {
    trouble_by(Trouble::Deleted, 1, "1", "write");
}

#[test]
fn down_and_up_with_two_queues() {
    trouble(Trouble::Down, 2, "2");
}

#[test]
fn deleted_and_made_again_by_us() {
    trouble(Trouble::Deleted, 1, "1");
}

#[test]
fn deleted_and_made_again_by_us_with_two_queues() {
    trouble(Trouble::Deleted, 2, "2");
}

#[test]
fn deleted_and_made_again_by_the_administrator() {
    trouble(Trouble::DeletedByAdmin, 1, "1");
}

#[test]
fn deleted_and_made_again_by_the_administrator_with_two_queues() {
    trouble(Trouble::DeletedByAdmin, 2, "2");
}

#[test]
fn mtu_changed() {
    trouble(Trouble::Mtu, 1, "2");
}
