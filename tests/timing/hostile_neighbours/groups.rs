//! A guest that reports groups of IGMP without an end, beside a querier that hears all reports.

use std::time::{Duration, Instant};

use crate::alone;
use testkit::hostile::{raw_avail, raw_avail_idx, raw_desc, restart_with};
use testkit::neighbours::{While, nobody};
use testkit::proc::Dir;
use testkit::ring::Seg;
use testkit::shares::{SIZE, Shares};
use testkit::stream::Peer;

/// Records of a report, and reports that differ.
const RECORDS: u16 = 180;
const REPORTS: usize = 8;
const ROOM: usize = 1_536;
const RECORDS_PER_SECOND: f64 = 1e6;
const PAUSE: Duration = Duration::from_micros(200);
/// Part of the bystander's rate that may be lost.
const ALLOWED: f64 = 0.1;

fn put_sum(bytes: &mut [u8], at: usize) {
    let words = bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}

fn igmp(from: [u8; 6], to: [u8; 4], mut message: Vec<u8>) -> Vec<u8> {
    put_sum(&mut message, 2);
    let [high, low] = (24 + message.len() as u16).to_be_bytes();
    let mut head = vec![0x46, 0, high, low, 0, 0, 0, 0, 1, 2, 0, 0, 10, 0, 0, from[5]];
    head.extend([&to[..], &[0x94, 4, 0, 0]].concat());
    put_sum(&mut head, 10);
    [&[1, 0, 0x5e, to[1], to[2], to[3]][..], &from, &[8, 0], &head, &message].concat()
}

/// A report of IGMPv3 about groups that no other one of these names.
pub fn report(from: [u8; 6], number: usize) -> Vec<u8> {
    let [high, low] = RECORDS.to_be_bytes();
    let mut message = vec![0x22, 0, 0, 0, 0, 0, high, low];
    for n in 0..RECORDS {
        let [high, low] = n.to_be_bytes();
        message.extend([4, 0, 0, 0, 239, number as u8, high, low]);
    }
    igmp(from, [224, 0, 0, 22], message)
}

/// A million records a second take a tenth of another port's throughput at most.
#[test]
#[ignore = "full"]
fn a_million_records_a_second() {
    let _alone = alone();
    let dir = Dir::new();
    let socket = dir.path().join("querier");
    let stream = format!("--stream=querier,socket={},multicast-router=on", socket.display());
    let mut shares = Shares::with(2, &[&stream, "--multicast-snooping"], |_| ());
    let mut querier = Peer::connect(&socket);
    querier.send(&igmp([2, 0, 0, 0, 0, 9], [224, 0, 0, 1], vec![0x11, 10, 0, 0, 0, 0, 0, 0]));
    let mut evil = shares.sinks.pop().expect("a guest");
    let frames = evil.guest.mem.alloc_in(1, (REPORTS * ROOM) as u64, 16);
    let len = 12 + report(evil.mac(), 0).len();
    (0..REPORTS).for_each(|n| {
        let bytes = [&[0; 12][..], &report(evil.mac(), n)].concat();
        frames.write(n * ROOM, &bytes);
    });
    restart_with(&mut evil, 1, |ring| {
        for i in 0..SIZE {
            let gpa = frames.gpa() + (usize::from(i) % REPORTS * ROOM) as u64;
            raw_desc(ring, i, Seg { gpa, len: len as u32 }, 0, 0);
            raw_avail(ring, i, i);
        }
    });
    let (mut offered, mut took) = (0u64, Duration::ZERO);
    let ring = &evil.guest.tx[0].ring;
    let mut at = 0u16;
    let attack = |phase: &While<'_>| {
        let (start, mut sent) = (Instant::now(), 0u64);
        phase.every(PAUSE, || {
            let due = RECORDS_PER_SECOND / f64::from(RECORDS) * start.elapsed().as_secs_f64();
            let room = SIZE - at.wrapping_sub(ring.used_idx());
            let more = (due as u64).saturating_sub(sent).min(room.into());
            (at, sent) = (at.wrapping_add(more as u16), sent + more);
            raw_avail_idx(ring, at);
            ring.kick.write(1);
            while querier.receive(Duration::ZERO).is_some() {}
        });
        (offered, took) = (offered + sent, took + start.elapsed());
    };
    shares.slowed_no_more("a million records a second", ALLOWED, nobody, attack);
    let records = offered as f64 * f64::from(RECORDS) / took.as_secs_f64();
    println!("{records:.0} records a second");
    let counters = shares.d.counters();
    assert!(counters.get("p4", "multicast_too_many") > 0, "{counters:#?}");
}
