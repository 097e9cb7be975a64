//! Guests whose memory faults at each access: their front-end takes the pages away as fast as it
//! can. Each fault is a page to be allocated and cleared, in the worker's time.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::alone;
use crate::common::hostile::{one_buffer, refill, restart_with};
use crate::common::long;
use crate::common::mem::RegionSpec;
use crate::common::neighbours::{Beside, LONGEST_GAP, Lab, While, in_one_of_a_few_tries, nobody};
use crate::common::ring::DESC_INDIRECT;
use crate::common::shares::whole;
use crate::common::sys;
use crate::shares::{LONGEST, table_apart};

const EVIL: u8 = 2;
const PAGE: u64 = 4096;
/// Where the memory that is taken away begins, in the guest.
const FAR: u64 = 16 << 30;

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
        seen.short_gaps(LONGEST_GAP)
    });
    drop(attack);
    drop(evil);
    lab.finish();
}

/// A fault in a range that is being punched waits for the punch: what that comes to, by the size of
/// the range. A figure, not a promise: the kernel offers no way around it.
#[test]
fn a_fault_waits_for_a_punch() {
    let _alone = alone();
    for gib in if long() { vec![1, 2, 4] } else { vec![1] } {
        let mut lab = Lab::new(1, &[]);
        let len = gib << 30;
        let mut evil = lab.guest(EVIL, |cfg| cfg.regions.push(RegionSpec::new(FAR, len)));
        let fd = evil.guest.mem.table()[2].1;
        let last = evil.guest.mem.span(FAR + len - PAGE, PAGE);
        restart_with(&mut evil, 1, |ring| one_buffer(ring, whole(&last), 0));
        sys::populate(fd, len);
        let (ring, over) = (&evil.guest.tx[0].ring, &AtomicBool::new(false));
        let (seen, took) = std::thread::scope(|s| {
            s.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    refill(ring);
                    std::thread::sleep(Duration::from_micros(100));
                }
            });
            let punch = s.spawn(move || {
                std::thread::sleep(Duration::from_millis(20));
                let start = Instant::now();
                sys::punch_hole(fd, 0, len);
                start.elapsed()
            });
            let mut seen = lab.pair.talk(Duration::from_millis(50));
            while !punch.is_finished() {
                seen.add(lab.pair.talk(Duration::from_millis(50)));
            }
            over.store(true, Ordering::Relaxed);
            (seen, punch.join().expect("punch"))
        });
        println!("a punch of {gib} GiB, which took {took:.1?}: {seen}");
        drop(evil);
        lab.finish();
    }
}
