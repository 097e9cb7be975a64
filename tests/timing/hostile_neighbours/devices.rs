//! TAPs and streams that send as fast as they can: they cost a bystander no more than a guest does
//! that floods as well. The bystander's latency is at most twice as long as beside that guest.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::alone;
use testkit::frontend::feat;
use testkit::host::{Host, in_namespace};
use testkit::hostile::{one_buffer, refill, restart_with};
use testkit::neighbours::{Lab, While};
use testkit::proc::Dir;
use testkit::shares::{SIZE, Shares, frame, receive, whole};
use testkit::stream::{Peer, packed};
use testkit::vm::{Vm, mac_of};

/// The station behind the device.
const FAR: u8 = 99;
/// Bytes of its frames: what costs least, and most, beside the system call.
const LENS: [usize; 2] = [60, 1514];
/// How often the guest that floods as well offers again what came back.
const PAUSE: Duration = Duration::from_micros(150);

fn flood(to: [u8; 6], len: usize) -> Vec<u8> {
    let mut bytes = [&to[..], &mac_of(FAR), &[0x88, 0xb5]].concat();
    bytes.resize(len, 0);
    bytes
}

/// Frames that the host sends through a TAP without end, to a guest that may take them so.
fn from_host<'a>(
    host: &'a Host,
    bytes: &'a [u8],
    sink: Option<&'a Vm>,
) -> impl FnMut(&While<'_>) + Send + 'a {
    move |phase: &While<'_>| {
        while phase.on() {
            for _ in 0..64 {
                // Refused while the TAP's queue is full.
                let _ = host.try_send(bytes);
            }
            sink.iter().for_each(|sink| refill(&sink.guest.rx[0].ring));
        }
    }
}

/// Frames that come on a stream without end.
fn from_peer<'a>(
    peer: &'a mut Peer,
    bytes: &[u8],
    sink: Option<&'a Vm>,
) -> impl FnMut(&While<'_>) + Send + use<'a> {
    let chunk = packed(bytes).repeat((1 << 16) / bytes.len());
    move |phase: &While<'_>| {
        while phase.on() {
            peer.write(&chunk);
            sink.iter().for_each(|sink| refill(&sink.guest.rx[0].ring));
        }
    }
}

const TAP: [&str; 2] = ["--tap", "up,ifname=tap0"];

fn stream(dir: &Dir) -> (PathBuf, String) {
    let path = dir.path().join("peer");
    let option = format!("--stream=peer,socket={}", path.display());
    (path, option)
}

#[test]
fn a_tap_that_floods_leaves_a_bystander_its_share() {
    let _alone = alone();
    in_namespace(|| {
        let mut shares = Shares::with(1, &TAP, |_| ());
        let host = Host::open("tap0");
        for len in LENS {
            let bytes = flood(shares.sinks[0].mac(), len);
            let what = format!("a TAP with frames of {len} bytes");
            shares.kept_beside_another(&what, from_host(&host, &bytes, None));
        }
        shares.d.stop();
    });
}

#[test]
fn a_stream_that_floods_leaves_a_bystander_its_share() {
    let _alone = alone();
    let dir = Dir::new();
    let (path, option) = stream(&dir);
    let mut shares = Shares::with(1, &[&option], |_| ());
    let mut peer = Peer::connect(&path);
    for len in LENS {
        let bytes = flood(shares.sinks[0].mac(), len);
        let what = format!("a stream with frames of {len} bytes");
        shares.kept_beside_another(&what, from_peer(&mut peer, &bytes, None));
    }
    shares.d.stop();
}

/// A guest that sends to another one without end, and that other one.
fn flooding_guest(lab: &mut Lab) -> [Vm; 2] {
    let mut sink = lab.guest(3, |cfg| cfg.size = SIZE);
    receive(&mut sink);
    let mut vm = lab.guest(2, |cfg| {
        cfg.tx_size = SIZE;
        cfg.features &= !feat::EVENT_IDX;
    });
    let bytes = frame(&vm, sink.mac(), 60);
    restart_with(&mut vm, 1, |ring| one_buffer(ring, whole(&bytes), 0));
    [vm, sink]
}

/// Offers what that guest sends without end, and takes as much of the test's CPU as who sends
/// through a device.
fn keep_sending<'a>([from, to]: [&'a Vm; 2]) -> impl FnMut(&While<'_>) + Send + 'a {
    move |phase: &While<'_>| {
        while phase.on() {
            refill(&to.guest.rx[0].ring);
            refill(&from.guest.tx[0].ring);
            let next = Instant::now() + PAUSE;
            while Instant::now() < next {
                std::hint::spin_loop();
            }
        }
    }
}

#[test]
#[ignore = "full"]
fn a_tap_that_floods_slows_a_bystander_no_more_than_a_guest() {
    let _alone = alone();
    in_namespace(|| {
        let mut lab = Lab::new(2, &TAP);
        let host = Host::open("tap0");
        let [vm, sink] = flooding_guest(&mut lab);
        let bytes = flood(sink.mac(), 60);
        let attack = from_host(&host, &bytes, Some(&sink));
        lab.unharmed("a TAP that floods", keep_sending([&vm, &sink]), attack);
        drop((vm, sink));
        lab.finish();
    });
}

#[test]
#[ignore = "full"]
fn a_stream_that_floods_slows_a_bystander_no_more_than_a_guest() {
    let _alone = alone();
    let dir = Dir::new();
    let (path, option) = stream(&dir);
    let mut lab = Lab::new(2, &[&option]);
    let mut peer = Peer::connect(&path);
    let [vm, sink] = flooding_guest(&mut lab);
    let attack = from_peer(&mut peer, &flood(sink.mac(), 60), Some(&sink));
    lab.unharmed("a stream that floods", keep_sending([&vm, &sink]), attack);
    drop((vm, sink, peer));
    lab.finish();
}
