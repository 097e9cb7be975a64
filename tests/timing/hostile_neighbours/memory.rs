//! Guests whose memory faults at each access: their front-end takes the pages away as fast as it
//! can. Each fault is a page to be allocated and cleared, in the worker's time.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use super::shares::{LONGEST, table_apart};
use crate::alone;
use testkit::hostile::{one_buffer, raw_avail, raw_desc, refill, restart_with};
use testkit::huge_pages::HugePages;
use testkit::mem::RegionSpec;
use testkit::neighbours::{Beside, LONGEST_GAP, Lab, Seen, While, in_one_of_a_few_tries, nobody};
use testkit::ring::{DESC_INDIRECT, DESC_NEXT, DESC_WRITE, Seg, put_desc};
use testkit::shares::whole;
use testkit::vm::Vm;
use testkit::{skip, sys};

const EVIL: u8 = 2;
const PAGE: u64 = 4096;
/// Where the memory that is taken away begins, in the guest.
const FAR: u64 = 16 << 30;

const HUGE: u64 = 2 << 20;

/// A file of so many huge pages, and as many in the pool; `None` is said.
fn huge_pages(count: u64) -> Option<(OwnedFd, HugePages)> {
    let Ok(fd) = sys::huge_memfd(count * HUGE) else {
        skip("no huge pages in this kernel");
        return None;
    };
    let pool = HugePages::reserve(count).map_err(|missing| skip(&missing)).ok()?;
    Some((fd, pool))
}

/// Punches a whole file, again and again, while `feed` keeps the rings full.
fn punch(fd: RawFd, len: u64, pause: Duration, mut feed: impl FnMut()) -> impl FnMut(&While<'_>) {
    move |phase: &While<'_>| {
        phase.every(pause, || {
            sys::punch_hole(fd, 0, len);
            feed();
        });
    }
}

/// Frames of 64 KiB in 1,024 pieces, each in another page, none of which is there.
#[test]
#[ignore = "full"]
fn every_piece_faults() {
    let _alone = alone();
    let mut lab = Lab::new(1, &[]);
    let len = LONGEST as u64 * PAGE;
    let mut evil = lab.guest(EVIL, |cfg| cfg.regions.push(RegionSpec::new(FAR, len)));
    let fd = evil.guest.mem.table()[2].1;
    let far = evil.guest.mem.span(FAR, len);
    // Zeros are a source that no station has: the frame is dropped, after it was read.
    let buffer = table_apart(&evil, LONGEST, &far, 64, PAGE as u32, 0);
    restart_with(&mut evil, 1, |ring| one_buffer(ring, buffer, DESC_INDIRECT));
    let ring = &evil.guest.tx[0].ring;
    let mut attack = punch(fd, len, Duration::from_micros(150), move || refill(ring));
    in_one_of_a_few_tries("pages that fault", || {
        let seen = lab.measure(nobody, &mut attack);
        let Beside { alone, attacked, turn } = &seen;
        println!("pages that fault: alone {alone} | beside {attacked}, turn {turn:.1?}");
        seen.judge(seen.short_gaps(LONGEST_GAP))
    });
    drop(attack);
    drop(evil);
    lab.finish();
}

/// A receiver whose one buffer is a chain of pieces on as many huge pages that are not there, each
/// of which the kernel clears in the worker's time. Counted is what a broadcast makes it clear: the
/// worker stops soon, and the receiver gets nothing for a while, by a name of its own.
#[test]
#[ignore = "full"]
fn p16_a_receivers_chain_of_missing_huge_pages_is_given_up() {
    const PIECES: usize = 200;
    let _alone = alone();
    let len = PIECES as u64 * HUGE;
    let Some((fd, _pool)) = huge_pages(PIECES as u64) else { return };
    let mut lab = Lab::new(1, &[]);
    let mut evil = lab.guest(EVIL, |_| ());
    let region = RegionSpec::new(FAR, len);
    evil.fe.add_mem_reg(&region, fd.as_raw_fd()).expect("a region of huge pages");
    let table = evil.guest.mem.alloc_in(0, 16 * PIECES as u64, 16);
    for i in 0..PIECES {
        let seg = Seg { gpa: FAR + i as u64 * HUGE, len: 5 };
        let more = if i + 1 < PIECES { DESC_NEXT } else { 0 };
        put_desc(&table, i, seg, DESC_WRITE | more, i as u16 + 1);
    }
    restart_with(&mut evil, 0, |ring| one_buffer(ring, whole(&table), DESC_INDIRECT));
    refill(&evil.guest.rx[0].ring);
    evil.settle();
    let file = File::from(fd);
    let cleared = || file.metadata().expect("memfd").blocks() * 512 / HUGE;
    let frame = [&[0xff; 6][..], &lab.pair[0].mac(), &[0x88, 0xb5], &[0; 900]].concat();
    let lost = |lab: &Lab| lab.d.counters().sum(Some("p2"), "out", "drop.slow_memory");
    // What comes in the pause is dropped at once.
    for sent in 1..=20 {
        lab.pair[0].tx[0].send_waiting(&frame, Duration::from_secs(5));
        lab.pair[0].tx[0].drain(Duration::from_secs(5));
        if sent == 1 {
            assert!(cleared() < PIECES as u64 / 2, "a broadcast cleared {} pages", cleared());
        }
    }
    println!("{} pages cleared, {} frames dropped for it", cleared(), lost(&lab));
    assert!(lost(&lab) > 0 && cleared() < PIECES as u64, "{} pages", cleared());
    drop(evil);
    lab.pair.settle();
    lab.finish();
}

/// A guest that posts so many receive buffers, each on a huge page of its own.
fn receives_on_huge_pages(lab: &mut Lab, fd: &OwnedFd, buffers: u64) -> Vm {
    let mut evil = lab.guest(EVIL, |_| ());
    let region = RegionSpec::new(FAR, buffers * HUGE);
    evil.fe.add_mem_reg(&region, fd.as_raw_fd()).expect("a region of huge pages");
    restart_with(&mut evil, 0, |ring| {
        for i in 0..ring.size {
            let buffer = Seg { gpa: FAR + (u64::from(i) % buffers) * HUGE, len: 2048 };
            raw_desc(ring, i, buffer, DESC_WRITE, 0);
            raw_avail(ring, i, i);
        }
    });
    evil
}

/// Guests that neither send to such a receiver nor share a burst with it go on within 30 ms, the
/// first time too, whose burst it was not known to be. The control has nothing sent to it.
#[test]
fn p16_others_go_on_while_huge_pages_are_cleared() {
    const BUFFERS: u64 = 64;
    let _alone = alone();
    in_one_of_a_few_tries("huge pages that are cleared", || {
        let Some((fd, _pool)) = huge_pages(BUFFERS) else { return Ok(()) };
        let mut lab = Lab::new(2, &[]);
        let evil = receives_on_huge_pages(&mut lab, &fd, BUFFERS);
        let mut helper = lab.guest(EVIL + 1, |_| ());
        let to = [&evil.mac()[..], &helper.mac(), &[0x88, 0xb5], &[0; 900]].concat();
        let [mut alone, mut attacked] = [Seen::default(), Seen::default()];
        for _ in 0..5 {
            alone.add(lab.pair.talk(Duration::from_millis(40)));
            refill(&evil.guest.rx[0].ring);
            (0..BUFFERS).for_each(|_| assert!(helper.tx[0].queue(&to), "room in the ring"));
            helper.tx[0].ring.publish();
            let waited = lab.d.run_queue_wait();
            let mut seen = lab.pair.talk(Duration::from_millis(40));
            seen.waited = lab.d.run_queue_wait().saturating_sub(waited);
            attacked.add(seen);
            helper.tx[0].drain(Duration::from_secs(5));
            sys::punch_hole(fd.as_raw_fd(), 0, BUFFERS * HUGE);
        }
        let lost = lab.d.counters().sum(Some("p2"), "out", "drop.slow_memory");
        println!("cleared: alone {alone} | beside {attacked}, {lost} dropped for it");
        drop((evil, helper));
        lab.pair.settle();
        lab.finish();
        let seen = Beside { alone, attacked, turn: Duration::ZERO };
        seen.judge(seen.short_gaps(Duration::from_millis(30)))
    });
}

/// A receiver that posts 64 buffers, each on a huge page that is not there: a burst for it clears
/// as many. That happens twice, as the first time it is not known whose pages they are; then it
/// gets nothing for many times as long as they took.
#[test]
fn p16_buffers_on_missing_huge_pages_are_cleared_twice() {
    const BUFFERS: usize = 64;
    const ROUNDS: u64 = 40;
    let _alone = alone();
    let len = BUFFERS as u64 * HUGE;
    let Some((fd, _pool)) = huge_pages(BUFFERS as u64) else { return };
    let mut lab = Lab::new(1, &[]);
    let evil = receives_on_huge_pages(&mut lab, &fd, BUFFERS as u64);
    let ring = &evil.guest.rx[0].ring;
    let to = [&evil.mac()[..], &lab.pair[0].mac(), &[0x88, 0xb5], &[0; 900]].concat();
    let file = File::from(fd);
    let cleared = || file.metadata().expect("memfd").blocks() * 512 / HUGE;
    let mut sum = 0;
    for _ in 0..ROUNDS {
        sys::punch_hole(file.as_raw_fd(), 0, len);
        refill(ring);
        for _ in 0..BUFFERS {
            assert!(lab.pair[0].tx[0].queue(&to), "room in the ring");
        }
        lab.pair[0].tx[0].ring.publish();
        lab.pair[0].tx[0].drain(Duration::from_secs(5));
        sum += cleared();
        std::thread::sleep(Duration::from_millis(20));
    }
    let lost = lab.d.counters().sum(Some("p2"), "out", "drop.slow_memory");
    println!("{sum} pages cleared in {ROUNDS} bursts of {BUFFERS} frames, {lost} dropped for it");
    assert!(lost > 0 && sum < ROUNDS * BUFFERS as u64 / 4, "{sum} pages cleared");
    drop(evil);
    lab.pair.settle();
    lab.finish();
}
