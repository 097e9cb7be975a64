//! Memory that vanishes (P1): it is shortened while it is used. `hostile::memory_is_truncated` has
//! guest memory under the load of others; here are the dirty log, ports that truncate and come
//! back, and what becomes of the daemon's mappings.

use std::os::fd::AsRawFd;
use std::time::Duration;

use super::lab::{SOON, acked, small};
use testkit::frontend::{VringAddr, feat, proto, req};
use testkit::huge_pages::HugePages;
use testkit::mem::RegionSpec;
use testkit::net::{Job, Net, Sizes};
use testkit::proc::{Daemon, Usage, wait_for};
use testkit::sys;
use testkit::traffic::To;
use testkit::vm::Vm;
use testkit::{long, skip};

const EVIL: usize = 2;

/// A switch with a port for whoever loses memory, two guests that talk, and what it has by then.
fn start() -> (Daemon, Net, Usage) {
    let d = Daemon::with(3, &["--workers", "2"]);
    let net = Net::connect(&d, 2, |c| c);
    let idle = d.settled_usage();
    (d, net, idle)
}

/// Broadcasts until the guest is dropped.
fn until_dropped(d: &Daemon, net: &mut Net, evil: &mut Vm) {
    let gone = wait_for(SOON, || {
        net.run(&[Job::new(0, To::Broadcast, 1, Sizes::Fixed(60))]);
        evil.fe.closed_within(Duration::from_millis(1))
    });
    assert!(gone, "not dropped\n{}", d.log());
}

/// It has what it had before, and the two still talk.
fn finish(d: Daemon, mut net: Net, idle: Usage) {
    let same = || d.usage().fds == idle.fds && d.usage().mappings <= idle.mappings + 2;
    assert!(wait_for(SOON, same), "{:?}, before {idle:?}", d.usage());
    net.run(&[Job::new(0, To::Vm(1), 1000, Sizes::Range(60, 1514))]);
    net.finish();
    drop(net);
    d.stop();
}

/// The memory is cut short under traffic, whichever way it was handed over: the guest is dropped,
/// its mappings go with it, and the others lose nothing.
#[test]
fn p1_whose_memory_vanishes_is_dropped() {
    let (d, mut net, idle) = start();
    for round in 0..if long() { 1000 } else { 30 } {
        let mut cfg = small(EVIL as u8);
        cfg.mem_slots = round % 2 == 0;
        let mut evil = Vm::connect(&d.socket(EVIL), cfg);
        net.send_only(&Job::new(0, To::Broadcast, 4, Sizes::Fixed(1514)));
        for (_, fd) in evil.guest.mem.table() {
            sys::truncate(&fd, [0, 4096, 16384][round % 3]);
        }
        net.run(&[Job::new(1, To::Vm(0), 20, Sizes::Range(60, 1514))]);
        until_dropped(&d, &mut net, &mut evil);
    }
    finish(d, net, idle);
}

/// The log of a migration is cut short under traffic: the guest is dropped, the others go on, and
/// nobody's frames are lost.
#[test]
fn p1_the_dirty_log_is_truncated() {
    let (d, mut net, idle) = start();
    for round in 0..if long() { 1000 } else { 20 } {
        let mut cfg = small(EVIL as u8);
        cfg.features |= feat::LOG_ALL;
        cfg.protocol |= proto::LOG_SHMFD;
        let mut evil = Vm::connect(&d.socket(EVIL), cfg);
        let log = sys::memfd(1 << 20);
        evil.fe.set_log_base(1 << 20, 0, log.as_raw_fd()).expect("log");
        for index in [0, 1] {
            let ring = if index == 0 { &evil.guest.rx[0].ring } else { &evil.guest.tx[0].ring };
            let addr = VringAddr { log: ring.used.gpa(), ..ring.addr(&evil.guest.mem, 1) };
            evil.fe.set_vring_addr(&addr).expect("addr");
        }
        evil.settle();
        net.send_only(&Job::new(0, To::Broadcast, 4, Sizes::Fixed(1514)));
        sys::truncate(&log, [0, 4096][round % 2]);
        net.send_only(&Job::new(1, To::Broadcast, 4, Sizes::Fixed(1514)));
        net.run(&[Job::new(1, To::Vm(0), 20, Sizes::Range(60, 1514))]);
        until_dropped(&d, &mut net, &mut evil);
    }
    finish(d, net, idle);
}

/// A file that serves many slots is shortened: each mapping is replaced once, as a whole, so the
/// number of mappings stays what it was, however often that is done.
#[test]
fn p1_repairs_do_not_add_mappings() {
    let d = Daemon::with(1, &[]);
    let idle = d.settled_usage();
    let slots = 200;
    for round in 0..if long() { 200 } else { 5 } {
        let fd = sys::memfd(slots * 8192);
        let mut fe = acked(&d, 0);
        for i in 0..slots {
            // Each apart in the file, so that they do not merge.
            let at =
                RegionSpec { gpa: i << 20, len: 4096, uva: 1 << 40 | i << 20, offset: i << 13 };
            fe.add_mem_reg(&at, fd.as_raw_fd()).expect("a slot");
        }
        let mapped = d.mappings();
        sys::truncate(&fd, 0);
        // A ring of two in each page: its start reads used.idx there.
        for i in 0..slots {
            let at = 1u64 << 40 | i << 20;
            let addr =
                VringAddr { index: 0, flags: 0, desc: at, avail: at + 64, used: at + 128, log: 0 };
            fe.set_vring_num(0, 2).expect("num");
            fe.set_vring_addr(&addr).expect("addr");
            fe.set_vring_fd(req::SET_VRING_KICK, 0, None).expect("kick");
            fe.get_vring_base(0).expect("base");
        }
        assert!(fe.still_served(), "round {round}\n{}", d.log());
        let now = d.mappings();
        assert!(now <= mapped + 2, "round {round}: {now} mappings, {mapped} before");
        drop(fe);
        let same = || d.usage().mappings <= idle.mappings + 2;
        assert!(wait_for(SOON, same), "{:?}, before {idle:?}", d.usage());
    }
    d.stop();
}

/// Huge pages: cut off, or never there because the pool is empty. The kernel replaces only whole
/// ones, and says that the *page* is missing, wherever in it the access was.
#[test]
fn p1_huge_pages_vanish() {
    const HUGE: u64 = 2 << 20;
    let (d, mut net, idle) = start();
    for round in 0..if long() { 300 } else { 12 } {
        let Ok(fd) = sys::huge_memfd(2 * HUGE) else {
            return skip("no huge pages in this kernel");
        };
        let len = 2 * HUGE;
        // Every third time there is no page behind the region, unless somebody else left some.
        let pool = (round % 3 != 0).then(|| HugePages::reserve(4));
        if let Some(Err(missing)) = pool {
            return skip(&missing);
        }
        let empty = pool.is_none() && HugePages::free() == 0;
        let mut fe = acked(&d, EVIL);
        let at = RegionSpec { gpa: 0, len, uva: 1 << 40, offset: 0 };
        fe.add_mem_reg(&at, fd.as_raw_fd()).expect("a region of huge pages");
        if round % 3 != 0 {
            sys::truncate(&fd, [0, HUGE][round % 2]);
        }
        // In the last page, not at its beginning. A sender's ring without a kick is looked at again
        // and again.
        let desc = at.uva + len - 12_288;
        let addr =
            VringAddr { index: 1, flags: 0, desc, avail: desc + 4096, used: desc + 8192, log: 0 };
        fe.set_vring_num(1, 256).expect("num");
        fe.set_vring_addr(&addr).expect("addr");
        fe.set_vring_fd(req::SET_VRING_KICK, 1, None).expect("kick");
        net.run(&[Job::new(1, To::Vm(0), 20, Sizes::Range(60, 1514))]);
        if pool.is_some() || empty {
            assert!(fe.closed_within(SOON), "round {round}: not dropped\n{}", d.log());
        }
        drop(fe);
    }
    finish(d, net, idle);
}
