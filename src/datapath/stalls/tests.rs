//! Delays that are noticed, threads that are relieved, and ports that are suspended and pay.

use std::sync::Arc;
use std::time::Instant;

use vmm_sys_util::eventfd::EventFd;

use super::delay::RunStart;
use super::takeover::named;
use super::*;
use crate::guard::{BlockedWriterWatch, NOWHERE, StuckThread};
use crate::port::{Port, Ports};
use base::limits::{MAX_SUSPECTS, SUSPICION};
use switch::PortId;
use sys::clock;
use sys::usage::Usage;

const MS: u64 = 1_000_000;

/// Returns the record of a thread without a watchdog.
fn record() -> Stalls {
    Stalls::new(Arc::clone(&BlockedWriterWatch::start().unwrap().register().presence))
}

fn stalls() -> (Stalls, u64) {
    let mut stalls = record();
    let start = clock::cycles();
    stalls.base = (start, Usage { run_delay: Some(0), ..Usage::default() });
    (stalls, start)
}

fn after(start: u64, nanos: u64) -> u64 {
    start + clock::cycles_in(nanos)
}

fn near(got: u64, wanted: u64) -> bool {
    got.abs_diff(wanted) < wanted / 100 + 1000
}

#[test]
fn only_page_faults_are_stalls() {
    let (mut stalls, start) = stalls();
    let usage = Usage { cpu: 30 * MS, run_delay: Some(0), ..Usage::default() };
    let spent = clock::cycles_in(30 * MS);
    assert_eq!(stalls.judge(spent, after(start, 30 * MS), usage), None);
}

#[test]
fn blocked_is_what_neither_ran_nor_wanted_a_cpu() {
    let (mut stalls, start) = stalls();
    let usage =
        Usage { cpu: 5 * MS, run_delay: Some(10 * MS), sleeps: 1, faults: 9, major_faults: 0 };
    let spent = clock::cycles_in(100 * MS);
    let stall = stalls.judge(spent, after(start, 100 * MS), usage).unwrap();
    assert!(near(stall.blocked, 85 * MS), "{stall:?}");
    assert!(near(clock::time_of(stall.cycles).as_nanos() as u64, 90 * MS), "{stall:?}");
}

#[test]
fn a_disk_is_no_fault_of_the_guest() {
    let (mut stalls, start) = stalls();
    let usage = Usage { cpu: MS, run_delay: Some(0), sleeps: 1, faults: 2, major_faults: 1 };
    let stall = stalls.judge(clock::cycles_in(50 * MS), after(start, 50 * MS), usage).unwrap();
    assert_eq!(stall.blocked, 0);
}

#[test]
fn a_kernel_that_does_not_count_delays_blames_nobody() {
    let (mut stalls, start) = stalls();
    let usage = Usage { cpu: 9 * MS, run_delay: None, sleeps: 1, faults: 9, major_faults: 0 };
    let stall = stalls.judge(clock::cycles_in(50 * MS), after(start, 50 * MS), usage).unwrap();
    assert_eq!(stall.blocked, 0);
}

#[test]
fn what_a_hypervisor_steals_is_no_fault_of_the_guest() {
    let (mut stalls, start) = stalls();
    let usage = Usage { cpu: MS, run_delay: Some(0), faults: 1, ..Usage::default() };
    assert_eq!(stalls.judge(clock::cycles_in(50 * MS), after(start, 50 * MS), usage), None);
}

/// A run with a page fault that was long because the worker had no CPU. The fault itself is
/// rarely long, on a busy machine only.
#[test]
fn a_run_that_faults_do_not_explain_is_nobodys() {
    let is_nobodys = || {
        let mut stalls = record();
        let ago = clock::cycles().saturating_sub(2 * stalls.slow);
        stalls.base = (ago, Usage::now());
        // A new page, so that the write faults.
        std::hint::black_box(vec![0u8; 64 << 20])[1 << 20] = 1;
        assert!(Usage::now().since(&stalls.base.1).faults > 0);
        stalls.end_run(RunStart { cycle: ago, delay: 0 }).is_none() && stalls.until == 0
    };
    assert!((0..20).any(|_| is_nobodys()));
}

#[test]
fn a_turn_without_faults_is_not_followed_by_watching() {
    let mut stalls = record();
    let now = clock::cycles();
    stalls.rebase(now);
    stalls.end_turn(clock::cycles_in(500), now);
    assert_eq!(stalls.until, 0);
    stalls.watch(Stall { cycles: clock::cycles_in(2 * MS), blocked: 0 }, now);
    stalls.begin_turn(now);
    assert!(stalls.is_watching);
    stalls.begin_turn(after(now, 199 * MS));
    assert!(stalls.is_watching);
    stalls.begin_turn(after(now, 201 * MS));
    assert!(!stalls.is_watching);
}

#[test]
fn ports_are_named_once() {
    let named = |at| named(at).collect::<Vec<_>>();
    assert!(named([NOWHERE; 2]).is_empty());
    assert_eq!(named([0, NOWHERE]), [0]);
    assert_eq!(named([NOWHERE, PortId::MAX.into()]), [PortId::MAX]);
    assert_eq!(named([3, 0]), [3, 0]);
    assert_eq!(named([3, 3]), [3]);
}

/// Returns one worker and two reserves, and the guests with numbers 1 and 2.
fn threads() -> (Takeovers, Vec<Arc<Takeover>>, [Arc<Port>; 2]) {
    let wake = || Arc::new(EventFd::new(libc::EFD_NONBLOCK).unwrap());
    let threads: Vec<_> = (0..3).map(|n| Arc::new(Takeover::new(n, wake()))).collect();
    let guests = [1, 2].map(|id| Arc::new(Port::guest(id, &id.to_string(), 1)));
    let ports = Arc::new(Ports::new(guests.iter().cloned().collect()));
    (Takeovers::new(threads.clone(), 1, ports), threads, guests)
}

fn stuck_at(at: [u32; 2]) -> StuckThread {
    StuckThread { thread: 0, at, step: 0 }
}

/// Another reserve relieves a stuck reserve, for the same worker.
#[test]
fn a_reserve_that_stands_still_is_relieved() {
    let (takeovers, _, _) = threads();
    let acting = || (0..3).find(|&number| takeovers.works_for(number, 0));
    assert_eq!(takeovers.relieve(2, stuck_at([NOWHERE; 2]), &|| true), None);
    assert_eq!(acting(), Some(0), "one that has nothing to do");
    for (number, next, relieved) in [(0, 1, Some(0)), (0, 1, None), (1, 2, Some(0)), (2, 2, None)] {
        assert_eq!(takeovers.relieve(number, stuck_at([NOWHERE; 2]), &|| true), relieved);
        assert_eq!(acting(), Some(next));
    }
    assert_eq!(takeovers.come_back(0), Some(2));
    assert_eq!((acting(), takeovers.come_back(0)), (Some(0), None));
}

/// A reserve that continued meanwhile has retired: the next reserve works for the worker, whose own
/// thread is still stuck.
#[test]
fn a_reserve_that_went_on_meanwhile_leaves_the_worker_to_the_next() {
    let (takeovers, threads, _) = threads();
    takeovers.relieve(0, stuck_at([NOWHERE; 2]), &|| true);
    assert!(threads[1].is_woken());
    takeovers.relieve(1, stuck_at([NOWHERE; 2]), &|| false);
    let next = &threads[2];
    assert!(takeovers.works_for(2, 0) && next.duty().is_some() && next.has_news());
    assert!(threads[1].is_woken(), "it retires");
}

/// A thread gets stuck again before its turn ends, while another thread works for the worker: the
/// memory must be suspended, or the other thread gets stuck next.
#[test]
fn what_a_second_stall_of_a_turn_is_at_is_kept_apart_too() {
    let (takeovers, threads, guests) = threads();
    let apart = || guests.each_ref().map(|port| port.as_guest().unwrap().tx[0].must_not_wait());
    let mut relieved = 0;
    for (id, expected) in [(1, [true, false]), (1, [true, false]), (2, [true, true])] {
        relieved += takeovers.relieve(0, stuck_at([id, NOWHERE]), &|| true).iter().count();
        assert_eq!(apart(), expected);
    }
    assert_eq!(relieved, 1);
    assert!(threads[0].has_news());
    takeovers.resume(&threads[0], || None);
    assert_eq!(apart(), [false; 2]);
}

/// A stuck thread may be waiting for a device that a guest sends to: the guest's rings are
/// suspended, and the guest is not charged.
#[test]
fn a_device_that_holds_a_worker_up_is_not_its_senders_fault() {
    let (takeovers, threads, [guest, _]) = threads();
    let queue = &guest.as_guest().unwrap().tx[0];
    let stall = Stall { cycles: clock::cycles_in(MS), blocked: 0 };
    for (at, is_charged) in [([1, 7], false), ([1, NOWHERE], true)] {
        takeovers.relieve(0, stuck_at(at), &|| true);
        assert!(queue.must_not_wait());
        takeovers.resume(&threads[0], || Some(stall));
        assert_eq!((queue.must_not_wait(), queue.lock().memory.is_set()), (false, is_charged));
    }
}

/// The kernel's memory blocks nobody, and a suspended ring would lose what others send to it. But
/// no worker waits for the lock of a receive ring that the stuck thread may hold, until the lock
/// has been free.
#[test]
fn a_vduse_device_goes_on_while_a_thread_is_stuck_there() {
    let ports = [Port::guest(1, "vm1", 1), Port::vduse(2, "web", "eth0")].map(Arc::new);
    let [vm, web] = ports.each_ref().map(|port| &port.as_guest().unwrap().tx[0]);
    let receive = &ports[1].as_guest().unwrap().rx[0];
    let wake = || Arc::new(EventFd::new(libc::EFD_NONBLOCK).unwrap());
    let threads: Vec<_> = (0..2).map(|n| Arc::new(Takeover::new(n, wake()))).collect();
    let present = Arc::new(Ports::new(ports.iter().cloned().collect()));
    let takeovers = Takeovers::new(threads.clone(), 1, present);
    let held = receive.lock();
    takeovers.relieve(0, stuck_at([1, 2]), &|| true);
    assert_eq!((vm.must_not_wait(), web.must_not_wait()), (true, false));
    assert!(receive.must_not_wait() && receive.lock_soon().is_none());
    drop(held);
    assert!(receive.lock_soon().is_some() && !receive.must_not_wait());
    takeovers.resume(&threads[0], || None);
    assert!(!vm.must_not_wait() && !receive.must_not_wait());
}

#[test]
fn a_front_end_is_harmful_the_second_time() {
    let (takeovers, ..) = threads();
    let start = Instant::now();
    assert!(!takeovers.is_harmful(7, start));
    assert!(!takeovers.is_harmful(8, start), "another session");
    assert!(takeovers.is_harmful(7, start + SUSPICION / 2));
    assert!(!takeovers.is_harmful(7, start + SUSPICION), "long ago");
    for session in 0..2 * MAX_SUSPECTS as u64 {
        takeovers.is_harmful(session, start + SUSPICION);
    }
    assert_eq!(takeovers.suspects(), MAX_SUSPECTS);
}
