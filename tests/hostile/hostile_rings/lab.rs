//! Two honest guests, a hostile one, and what is asked after each of its misdeeds.

use std::sync::atomic::Ordering;
use std::time::Duration;

use testkit::counters::{Counters, settled};
use testkit::hostile::{raw_avail, raw_avail_idx, raw_desc};
use testkit::mem::RegionSpec;
use testkit::net::{Job, Net, Sizes};
use testkit::proc::{Daemon, wait_for};
use testkit::ring::{DESC_WRITE, Ring, Seg};
use testkit::sys;
use testkit::traffic::{self, Checker, FULL_MIN, SHORT_FLOW, Stream, To};
use testkit::vm::{Vm, VmConfig};

pub use testkit::SOON;

/// The hostile guest's port and number; 0 and 1 are honest.
pub const EVIL: u8 = 2;
/// Its port's name.
pub const PORT: Option<&str> = Some("p2");

/// The hostile guest's memory: two regions without a gap, a hole, a region between holes, and one
/// that ends a page before addresses wrap. All of it is looked at after each case, so it is small.
pub const LOW: u64 = 0;
pub const LOW_END: u64 = 0x10_0000;
pub const NEXT_END: u64 = LOW_END + 0x4_0000;
pub const HIGH: u64 = 4 << 30;
pub const HIGH_END: u64 = HIGH + 0x4_0000;
pub const TOP: u64 = 0xffff_ffff_fff0_0000;
pub const TOP_END: u64 = 0xffff_ffff_ffff_f000;
/// Where cases have their data, their tables, and what is sent after them.
pub const DATA: u64 = 0x8_0000;
pub const TABLE: u64 = 0xc_0000;
pub const AFTER: u64 = 0xf_0000;

const REGIONS: [RegionSpec; 4] = [
    RegionSpec { gpa: LOW, len: LOW_END, uva: 0x7e00_0000_0000, offset: 0 },
    RegionSpec { gpa: LOW_END, len: NEXT_END - LOW_END, uva: 0x7e80_0000_0000, offset: 0x3000 },
    RegionSpec { gpa: HIGH, len: HIGH_END - HIGH, uva: 0x7d00_0000_0000, offset: 0 },
    RegionSpec { gpa: TOP, len: TOP_END - TOP, uva: 0x7f00_0000_0000, offset: 0 },
];

/// True if all these bytes lie in memory.
pub fn mapped(at: u64, len: u64) -> bool {
    let end = u128::from(at) + u128::from(len);
    let runs = [(LOW, NEXT_END), (HIGH, HIGH_END), (TOP, TOP_END)];
    runs.iter().any(|&(from, to)| at >= from && end <= u128::from(to))
}

/// The counters as soon as they are complete: [`Daemon::counters`] waits for silence, which takes
/// 60 ms, too much after each of hundreds of cases.
pub fn counters(d: &Daemon) -> Counters {
    settled(|| read_counters(d))
}

fn read_counters(d: &Daemon) -> Counters {
    let before = d.log().len();
    d.signal(libc::SIGUSR1);
    let complete = || {
        let log = d.log();
        let new = &log[before..];
        new.find("] addresses ").is_some_and(|at| new[at..].contains('\n'))
    };
    assert!(wait_for(SOON, complete), "no counters after SIGUSR1");
    Counters::parse(&d.log()[before..])
}

/// Stops one ring of a guest and starts it empty, as its driver's reset would.
pub fn restart(vm: &mut Vm, tx: bool) {
    vm.fe.get_vring_base(u32::from(tx)).expect("base");
    if tx {
        vm.guest.tx[0].reclaim_all()
    } else {
        vm.guest.rx[0].reclaim_all()
    }
    let ring = if tx { &vm.guest.tx[0].ring } else { &vm.guest.rx[0].ring };
    ring.err.take();
    vm.guest.start_ring(&mut vm.fe, ring).expect("start");
    vm.settle();
}

/// Honest traffic goes on as if nothing were.
pub fn chat(net: &mut Net, frames: u32) {
    net.run(&[
        Job::new(0, To::Vm(1), frames, Sizes::Range(60, 1514)),
        Job::new(1, To::Vm(0), frames, Sizes::Range(60, 1514)),
    ]);
}

/// Used elements that were published after position `from`: head and length.
pub fn used_since(ring: &Ring, from: u16) -> Vec<(u32, u32)> {
    let count = ring.used_idx().wrapping_sub(from);
    let slot = |i: u16| 4 + 8 * usize::from(from.wrapping_add(i) & (ring.size - 1));
    (0..count).map(|i| (ring.used.get32(slot(i)), ring.used.get32(slot(i) + 4))).collect()
}

/// The switch and its guests.
pub struct Lab {
    pub d: Daemon,
    pub net: Net,
    pub evil: Vm,
    /// The books of what the hostile guest gets.
    pub checker: Checker,
    /// Frames that it sent well: to all, those of at least 30 bytes and the shorter ones.
    sent: [u32; 2],
}

impl Lab {
    /// The hostile guest has `features`.
    pub fn new(features: u64) -> Lab {
        let d = Daemon::with(3, &[]);
        let net = Net::connect(&d, 2, |c| c);
        let mut cfg = VmConfig::new(EVIL);
        cfg.features = features;
        cfg.regions = REGIONS.to_vec();
        cfg.rx.buffers = 1;
        cfg.tx.buffers = 1;
        let evil = Vm::connect(&d.socket(EVIL.into()), cfg);
        let mut lab = Lab { d, net, evil, checker: Checker::new(EVIL, 1), sent: [0; 2] };
        restart(&mut lab.evil, true);
        restart(&mut lab.evil, false);
        lab
    }

    pub fn tx(&self) -> &Ring {
        &self.evil.guest.tx[0].ring
    }

    pub fn rx(&self) -> &Ring {
        &self.evil.guest.rx[0].ring
    }

    /// Writes to the hostile guest's memory what lies in it.
    pub fn write(&self, at: u64, bytes: &[u8]) {
        let mut from = 0;
        while from < bytes.len() {
            // Region by region: a span lies in one.
            let gpa = at.wrapping_add(from as u64);
            let region = REGIONS.iter().find(|r| gpa.wrapping_sub(r.gpa) < r.len);
            let room = region.map_or(1, |r| r.gpa + r.len - gpa);
            let len = (bytes.len() - from).min(usize::try_from(room).expect("small"));
            if region.is_some() {
                self.evil.guest.mem.span(gpa, len as u64).write(0, &bytes[from..from + len]);
            }
            from += len;
        }
    }

    /// What stands in its memory.
    pub fn read(&self, at: u64, len: u32) -> Vec<u8> {
        (0..u64::from(len)).map(|i| self.evil.guest.mem.span(at + i, 1).read(0, 1)[0]).collect()
    }

    /// All of its memory.
    pub fn memory(&self) -> Vec<Vec<u8>> {
        let all = |r: &RegionSpec| self.evil.guest.mem.span(r.gpa, r.len).read(0, r.len as usize);
        REGIONS.iter().map(all).collect()
    }

    /// Since memory looked like `before`, only the rings have changed, and these pieces.
    pub fn check_written(&self, before: &[Vec<u8>], pieces: &[(u64, u32)], name: &str) {
        let rings = [self.tx(), self.rx()].map(|r| [&r.avail, &r.used]);
        let mut own: Vec<(u64, u64)> =
            rings.as_flattened().iter().map(|s| (s.gpa(), s.len() as u64)).collect();
        own.extend(pieces.iter().map(|&(at, len)| (at, u64::from(len))));
        let is_own = |at: u64| own.iter().any(|&(from, len)| at.wrapping_sub(from) < len);
        let strange: Vec<u64> = Lab::differences(before, &self.memory())
            .into_iter()
            .filter(|&at| !is_own(at))
            .collect();
        assert!(strange.is_empty(), "{name}: wrote to {strange:x?} (I4)");
    }

    /// Where memory differs, as addresses.
    fn differences(before: &[Vec<u8>], after: &[Vec<u8>]) -> Vec<u64> {
        let mut found = Vec::new();
        for ((region, old), new) in REGIONS.iter().zip(before).zip(after) {
            if old != new {
                let at = (0..old.len()).filter(|&i| old[i] != new[i]);
                found.extend(at.map(|i| region.gpa + i as u64));
            }
        }
        found
    }

    /// Makes heads available on the hostile guest's ring, and kicks.
    pub fn offer(&self, ring: &Ring, heads: &[u16]) {
        let at = ring.avail.index(2).load(Ordering::Relaxed);
        for (i, &head) in heads.iter().enumerate() {
            raw_avail(ring, at.wrapping_add(i as u16), head);
        }
        raw_avail_idx(ring, at.wrapping_add(heads.len() as u16));
        ring.kick.write(1);
    }

    /// The header and the next frame of `len` bytes that everybody is to get.
    pub fn next_frame(&self, len: usize) -> Vec<u8> {
        let (stream, seq) = self.stream(len);
        let mut frame = Vec::new();
        traffic::build(&stream, seq, len, &mut frame);
        frame.splice(0..0, [0; 12].into_iter().take(self.evil.guest.cfg.header_len()));
        frame
    }

    fn stream(&self, len: usize) -> (Stream, u32) {
        let short = len < FULL_MIN;
        let flow = if short { SHORT_FLOW } else { 0 };
        let stream = Stream { sender: EVIL, queue: 0, to: To::Broadcast, flow };
        (stream, self.sent[usize::from(short)])
    }

    /// That frame was sent: both honest guests get it, and have all before it (I1, I2, I3).
    pub fn arrives(&mut self, len: usize, name: &str) {
        let (stream, seq) = self.stream(len);
        self.sent[usize::from(len < FULL_MIN)] += 1;
        let net = &mut self.net;
        let came = wait_for(SOON, || {
            net.receive();
            net.checkers.iter().all(|c| c.tally(&stream).count == u64::from(seq) + 1)
        });
        assert!(came, "{name}: a good frame of {len} bytes did not arrive");
        net.checkers.iter().for_each(|c| c.complete(&stream, u64::from(seq) + 1));
    }

    /// The hostile guest keeps to the rules for once: its TX ring works.
    pub fn sends_well(&mut self, name: &str) {
        let bytes = self.next_frame(100);
        self.write(AFTER, &bytes);
        let (ring, from) = (self.tx(), self.tx().used_idx());
        let last = ring.size - 1;
        raw_desc(ring, last, Seg { gpa: AFTER, len: bytes.len() as u32 }, 0, 0);
        self.offer(ring, &[last]);
        let back = wait_for(SOON, || ring.used_idx() != from);
        assert!(back, "{name}: a good frame is not completed (I5)");
        assert_eq!(used_since(ring, from), [(u32::from(last), 0)], "{name} (I5)");
        self.arrives(100, name);
    }

    /// … and so does its RX ring.
    pub fn receives_well(&mut self, name: &str) {
        let (ring, from) = (self.rx(), self.rx().used_idx());
        let (last, room) = (ring.size - 1, 2048);
        raw_desc(ring, last, Seg { gpa: AFTER, len: room }, DESC_WRITE, 0);
        self.offer(ring, &[last]);
        let header = self.evil.guest.cfg.header_len() as u32;
        self.net.run(&[Job::new(0, To::Broadcast, 1, Sizes::Fixed(200))]);
        let ring = self.rx();
        assert!(wait_for(SOON, || ring.used_idx() != from), "{name}: nothing received");
        assert_eq!(used_since(ring, from), [(u32::from(last), 200 + header)], "{name} (I5)");
        let bytes = self.read(AFTER, 200 + header);
        self.checker.accept(0, &bytes[header as usize..]);
    }

    /// True if the ring was reported broken.
    pub fn is_broken(ring: &Ring) -> bool {
        sys::poll_in(&[ring.err.raw()], Duration::ZERO)
    }

    /// Everything is in order at the end, and the daemon leaves in order.
    pub fn finish(mut self) {
        chat(&mut self.net, 500);
        counters(&self.d).balance();
        drop(self.evil);
        chat(&mut self.net, 100);
        self.net.finish();
        drop(self.net);
        self.d.stop();
    }
}
