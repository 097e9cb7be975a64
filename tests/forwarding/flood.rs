//! Floods to more ports than a worker serves at once: each of them gets each frame once, and those
//! of a sender in order, from guests of two workers and from a stream, while receivers come and go.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use base::limits::FLOOD_RECEIVERS;
use testkit::SOON;
use testkit::counters::at_rest;
use testkit::proc::{Daemon, Dir, wait_for};
use testkit::rounds;
use testkit::stream::Peer;
use testkit::vm::{Vm, VmConfig, mac_of};

const PORTS: usize = FLOOD_RECEIVERS + 40;
/// The station behind the stream.
const FAR: u8 = 255;
/// Frames of a sender in a round; those of all fit a receive ring.
const FRAMES: u32 = 24;
/// The same of the stream: as many as are flooded at once.
const FAR_FRAMES: usize = 4;

fn frame(from: u8, number: u32) -> Vec<u8> {
    let mut frame = [&[0xff; 6][..], &mac_of(from), &[0x88, 0xb5]].concat();
    frame.extend([&[from][..], &number.to_be_bytes()].concat());
    frame.resize(60, 0);
    frame
}

/// The numbers that have come, by their senders, until so many frames have, or for so long.
fn come(vm: &mut Vm, count: usize, wait: Duration) -> BTreeMap<u8, Vec<u32>> {
    let (mut numbers, mut left) = (BTreeMap::<u8, Vec<u32>>::new(), count);
    let end = Instant::now() + wait;
    loop {
        left -= vm.rx[0].recv(left, |_, frame| {
            let number = u32::from_be_bytes(frame[15..19].try_into().expect("four bytes"));
            numbers.entry(frame[14]).or_default().push(number);
        });
        if left == 0 || Instant::now() > end {
            return numbers;
        }
    }
}

fn floods(workers: usize) {
    let dir = Dir::new();
    let stream = format!("--stream=far,socket={}", dir.path().join("far").display());
    let d = Daemon::with(PORTS, &[&format!("--workers={workers}"), &stream]);
    let small = |id: usize| {
        let mut config = VmConfig::new(id as u8);
        config.rx.buffers = 128;
        config
    };
    let mut vms: Vec<Vm> = (0..PORTS).map(|id| Vm::connect(&d.socket(id), small(id))).collect();
    let mut peer = Peer::connect(&dir.path().join("far"));
    assert!(wait_for(SOON, || d.log().contains("port far: ")), "the stream is up");
    let (senders, leaves) = ([0, 1, PORTS - 1], PORTS - 2);
    let (count, mut lost) = (rounds(4, 20, 200), 0i64);
    for first in (0..count).map(|round| round * FRAMES) {
        let numbers: Vec<u32> = (first..first + FRAMES).collect();
        for from in senders {
            let frames = numbers.iter().map(|number| frame(from as u8, *number));
            frames.for_each(|frame| assert!(vms[from].tx[0].queue(&frame), "it fits the ring"));
            vms[from].tx[0].ring.publish();
        }
        numbers[..FAR_FRAMES].iter().for_each(|number| peer.send(&frame(FAR, *number)));
        // Amid the floods, which skip it from then on.
        vms[leaves].disconnect();
        let sent = |to: usize| {
            let guests = senders.into_iter().filter(move |from| *from != to);
            let guests = guests.map(|from| (from as u8, &numbers[..]));
            guests.chain([(FAR, &numbers[..FAR_FRAMES])])
        };
        let wait = if workers == 1 { SOON } else { Duration::ZERO };
        if workers > 1 {
            at_rest(|| d.counters());
        }
        for (to, vm) in vms.iter_mut().enumerate().filter(|(to, _)| *to != leaves) {
            let all = sent(to).map(|(_, numbers)| numbers.len()).sum();
            let come = come(vm, all, wait);
            for (from, numbers) in sent(to) {
                let come: &[u32] = come.get(&from).map_or(&[], |come| come);
                assert!(come.is_sorted_by(|a, b| a < b), "from {from} to {to}: {come:?}");
                assert!(come.iter().all(|number| *number < first + FRAMES), "{come:?}");
                lost += numbers.len() as i64 - come.len() as i64;
            }
        }
        let all = senders.len() * FRAMES as usize;
        lost += (0..all).filter(|_| peer.receive(wait).is_none()).count() as i64;
        vms[leaves].reconnect(&d.socket(leaves));
    }
    let counters = d.counters();
    let (sent, far) = (u64::from(count * FRAMES), u64::from(count) * FAR_FRAMES as u64);
    assert_eq!(counters.sum(None, "in", "frames"), 3 * sent + far);
    counters.balance();
    // What is for a guest that leaves is dropped, too.
    let dropped = counters.drops(None, "out") + counters.drops(None, "");
    assert!(lost as u64 <= if workers == 1 { 0 } else { dropped }, "{lost} of {dropped}");
    d.stop();
}

#[test]
fn a_flood_to_many_ports_reaches_each_once_and_in_order() {
    floods(1);
}

/// Of two workers that meet at a receiver one drops its copies there.
#[test]
fn floods_of_two_workers_are_in_order_and_what_they_lose_is_counted() {
    floods(2);
}
