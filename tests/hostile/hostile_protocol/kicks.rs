//! Shared kick and call descriptors (P3, P4, P5, P21).

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::lab::SOON;
use testkit::frontend::{VERSION, req};
use testkit::hostile::raw_avail_idx;
use testkit::long;
use testkit::net::{Job, Net, Sizes};
use testkit::proc::{Daemon, wait_for};
use testkit::sys::{self, EventFd};
use testkit::traffic::To;
use testkit::vm::{Vm, VmConfig};

const EVIL: usize = 2;

fn chat(net: &mut Net, frames: u32) {
    net.run(&[
        Job::new(0, To::Vm(1), frames, Sizes::Range(60, 1514)),
        Job::new(1, To::Vm(0), frames, Sizes::Range(60, 1514)),
    ]);
}

/// P3: the front-end takes the kicks itself, so that the worker is woken and finds nothing.
#[test]
fn p3_the_front_end_drains_its_kick() {
    let d = Daemon::with(2, &[]);
    let mut net = Net::connect(&d, 2, |c| c);
    let rounds = if long() { 1_000_000 } else { 30_000 };
    let stop = AtomicBool::new(false);
    // Both rings: a receive ring's kick is watched as well.
    let kicks = [net.vms[0].rx[0].ring.kick.raw(), net.vms[0].tx[0].ring.kick.raw()];
    std::thread::scope(|s| {
        s.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                kicks.iter().for_each(|&kick| sys::drain_raw(kick));
            }
        });
        for _ in 0..rounds {
            kicks.iter().for_each(|&kick| sys::signal_raw(kick));
        }
        stop.store(true, Ordering::Relaxed);
    });
    chat(&mut net, 1000);
    net.books(&d);
    net.finish();
    drop(net);
    d.stop();
}

/// P4: another kick descriptor on a running ring, a thousand times. Each new one is heard, none of
/// the old ones does harm, whatever becomes of them.
#[test]
fn p4_kicks_are_swapped_on_live_rings() {
    let d = Daemon::with(2, &["--workers", "2"]);
    let mut net = Net::connect(&d, 2, |c| c);
    let mut old: Vec<EventFd> = Vec::new();
    for round in 0..1000u32 {
        for queue in [0, 1] {
            let Vm { fe, guest } = &mut net.vms[0];
            let ring = if queue == 0 { &mut guest.rx[0].ring } else { &mut guest.tx[0].ring };
            let new = EventFd::new();
            fe.set_vring_fd(req::SET_VRING_KICK, queue, Some(new.raw())).expect("kick");
            old.push(std::mem::replace(&mut ring.kick, new));
        }
        // Some are closed at once, some written for a while.
        old.retain(|kick| {
            kick.write(1);
            kick.raw() % 3 != 0
        });
        old.truncate(64);
        net.run(&[Job::new(0, To::Vm(1), 1 + round % 3, Sizes::Fixed(60))]);
        net.run(&[Job::new(1, To::Vm(0), 1, Sizes::Fixed(60))]);
    }
    net.books(&d);
    net.finish();
    drop(net);
    d.stop();
}

/// The kernel's numbers of the eventfds that each epoll set of a process watches, and how many
/// other descriptors.
fn epoll_sets(pid: u32) -> Vec<(Vec<u64>, usize)> {
    let info = |fd: &str| std::fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}"));
    let entries = std::fs::read_dir(format!("/proc/{pid}/fdinfo")).expect("fdinfo");
    let infos = entries.flatten().filter_map(|e| info(&e.file_name().to_string_lossy()).ok());
    let set = |text: String| {
        let watched = text.lines().filter_map(|line| line.strip_prefix("tfd:"));
        let watched: Vec<String> =
            watched.filter_map(|line| info(line.split_whitespace().next()?).ok()).collect();
        let events: Vec<u64> = watched.iter().filter_map(|text| eventfd_id(text)).collect();
        (events.clone(), watched.len() - events.len())
    };
    infos.filter(|text| text.contains("tfd:")).map(set).collect()
}

fn eventfd_id(fdinfo: &str) -> Option<u64> {
    let id = fdinfo.lines().find_map(|line| line.strip_prefix("eventfd-id:"))?;
    id.trim().parse().ok()
}

/// To begin or end watching a kick takes as long as its front-end likes, and whoever does so has
/// the epoll set meanwhile. So no kick is in a set with anything else: not with another guest's
/// kick, nor with what wakes a worker.
#[test]
fn p21_a_kick_shares_its_epoll_set_with_nothing() {
    let d = Daemon::with(3, &["--workers", "2"]);
    let mut net = Net::connect(&d, 3, |c| c);
    let fds = d.usage().fds;
    for round in 0..20 {
        let kicks: Vec<u64> = net
            .vms
            .iter()
            .flat_map(|vm| vm.guest.rings())
            .map(|ring| {
                let path = format!("/proc/self/fdinfo/{}", ring.kick.raw());
                eventfd_id(&std::fs::read_to_string(path).expect("fdinfo")).expect("an eventfd")
            })
            .collect();
        let sets = epoll_sets(d.pid());
        for kick in kicks {
            let with: Vec<_> = sets.iter().filter(|(events, _)| events.contains(&kick)).collect();
            let [(events, others)] = with[..] else { panic!("a kick in {} sets", with.len()) };
            let beside = events.len() - 1 + others;
            assert_eq!(beside, 0, "what shares an epoll set with a kick");
        }
        let Vm { fe, guest } = &mut net.vms[round % 3];
        let ring = if round % 2 == 0 { &mut guest.rx[0].ring } else { &mut guest.tx[0].ring };
        let new = EventFd::new();
        fe.set_vring_fd(req::SET_VRING_KICK, ring.index, Some(new.raw())).expect("kick");
        ring.kick = new;
        net.vms[round % 3].settle();
        chat(&mut net, 10);
    }
    assert_eq!(d.usage().fds, fds, "descriptors");
    net.finish();
    drop(net);
    d.stop();
}

/// A kick whose counter is nearly full, of the kind that a read lowers by one (EFD_SEMAPHORE), and
/// blocking: it is never read, so none of that matters.
#[test]
fn p4_kicks_with_full_counters() {
    let d = Daemon::with(2, &[]);
    let mut net = Net::connect(&d, 2, |c| c);
    for flags in [libc::EFD_SEMAPHORE, 0, libc::EFD_SEMAPHORE | libc::EFD_NONBLOCK] {
        for count in [1, 1 << 40, u64::MAX - 1000] {
            let Vm { fe, guest } = &mut net.vms[0];
            let kick = EventFd::with_flags(flags);
            kick.write(count);
            fe.set_vring_fd(req::SET_VRING_KICK, 1, Some(kick.raw())).expect("kick");
            guest.tx[0].ring.kick = kick;
            chat(&mut net, 50);
            // Disabling takes the counter down, by one each time if it is a semaphore's.
            let vm = &mut net.vms[0];
            for on in [false, true] {
                vm.fe.set_vring_enable(1, on).expect("enable");
            }
            vm.settle();
            chat(&mut net, 50);
        }
    }
    net.finish();
    drop(net);
    d.stop();
}

/// P5 for the other descriptor that a worker writes: one that reports broken rings and blocks. Its
/// front-end is dropped, and those beside it wait for tens of milliseconds at most.
#[test]
fn p5_an_err_descriptor_that_blocks() {
    let d = Daemon::with(3, &[]);
    let mut net = Net::connect(&d, 2, |c| c);
    let mut evil = Vm::connect(&d.socket(EVIL), VmConfig::new(EVIL as u8));
    chat(&mut net, 50);
    let err = EventFd::with_flags(0);
    evil.fe.set_vring_fd(req::SET_VRING_ERR, 1, Some(err.raw())).expect("err");
    evil.settle();
    // The daemon made it non-blocking; we share the description and undo that.
    sys::set_blocking(&err);
    err.write(u64::MAX - 1);
    let ring = &evil.guest.tx[0].ring;
    raw_avail_idx(ring, ring.used_idx().wrapping_add(ring.size + 1));
    ring.kick.write(1);
    chat(&mut net, 2000);
    assert!(evil.fe.closed_within(SOON), "the front-end was not dropped\n{}", d.log());
    assert!(d.log().contains("front-end dropped"), "{}", d.log());
    net.finish();
    drop(net);
    d.stop();
}

/// P5 in the session's own thread, which writes each new call descriptor once: it is freed, its
/// port takes the next front-end (not at once), and other ports notice nothing.
#[test]
#[ignore = "full"]
fn p5_a_call_that_blocks_its_own_session() {
    let d = Daemon::with(3, &[]);
    let mut net = Net::connect(&d, 2, |c| c);
    let stop = AtomicBool::new(false);
    let call = EventFd::with_flags(0);
    call.write(u64::MAX - 1);
    std::thread::scope(|s| {
        // The daemon sets O_NONBLOCK before it writes; in between we have a chance.
        s.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                sys::set_blocking(&call);
            }
        });
        let mut evil = super::lab::connect(&d, EVIL);
        let begun = Instant::now();
        let mut swaps = 0;
        while begun.elapsed() < Duration::from_secs(2) && swaps < 2000 {
            swaps += 1;
            if evil.set_vring_fd(req::SET_VRING_CALL, 0, Some(call.raw())).is_err()
                || !evil.still_served()
            {
                break;
            }
        }
        chat(&mut net, 500);
        stop.store(true, Ordering::Relaxed);
    });
    // Dropped or not, the port is to be had again, if not at once.
    let mut fe = super::lab::connect(&d, EVIL);
    fe.send(req::GET_FEATURES, VERSION, &[], &[]).expect("sent");
    let back = wait_for(Duration::from_secs(30), || fe.reply(req::GET_FEATURES).is_ok());
    assert!(back, "{}", d.log());
    net.finish();
    drop(net);
    drop(fe);
    d.stop();
}
