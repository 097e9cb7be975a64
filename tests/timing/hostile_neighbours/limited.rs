//! A bystander's share beside a neighbour with a rate, a limit of floods and a guard, whatever that
//! one sends.

use std::process::Command;

use std::sync::atomic::{AtomicU32, Ordering};

use super::groups::report;
use super::shares::{LONGEST, table};
use crate::alone;
use testkit::frontend::feat;
use testkit::hostile::{one_buffer, raw_avail, raw_desc};
use testkit::packet::{Ask, Kind, Packet, payload};
use testkit::proc::Dir;
use testkit::ring::{DESC_INDIRECT, Ring, Seg};
use testkit::shares::{SIZE, Shares, frame, whole};
use testkit::vm::Vm;
use testkit::vnet::{Header, NEEDS_CSUM};

const EVERYBODY: [u8; 6] = [0xff; 6];
const GROUPS: [u8; 6] = [1, 0, 0x5e, 0, 0, 22];

/// Has vioswitchctl do something.
fn done(dir: &Dir, args: &[&str]) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vioswitchctl"));
    let output = command.arg("--control").arg(dir.path().join("control")).args(args).output();
    let output = output.expect("vioswitchctl");
    assert!(output.status.success(), "{args:?}: {output:?}");
}

/// Fills a ring.
type Fill = Box<dyn Fn(&Ring)>;

/// Headers of IPv6 in front of a fragment, as many as a guard reads.
fn behind_headers() -> Vec<u8> {
    let options = [60, 0, 1, 4, 0, 0, 0, 0].repeat(20);
    let fragment = [&[44, 0, 1, 4, 0, 0, 0, 0][..], &[17, 0, 0, 1, 0, 0, 0, 9], &[0; 32]].concat();
    let headers = [options, fragment].concat();
    let [high, low] = (headers.len() as u16).to_be_bytes();
    let addresses = [[0xfd; 16], [0xfe; 16]].concat();
    [&[0x60, 0, 0, 0, high, low, 60, 64][..], &addresses, &headers].concat()
}

/// The first fragment of a packet of UDP.
fn first_fragment() -> Vec<u8> {
    let head = [0x45, 0, 0, 60, 0, 9, 0x20, 0, 64, 17, 0xd7, 0xa2, 10, 0, 0, 2, 10, 0, 0, 3];
    [&head[..], &[0, 68, 0, 67], &[0; 36]].concat()
}

/// Fills a ring with frames from ever new addresses.
fn new_addresses(evil: &Vm, to: [u8; 6]) -> Fill {
    let frames = evil.guest.mem.alloc_in(1, u64::from(SIZE) * 128, 16);
    let next = AtomicU32::new(0);
    Box::new(move |ring| {
        for i in 0..SIZE {
            let at = 128 * usize::from(i);
            let [a, b, c, d] = next.fetch_add(1, Ordering::Relaxed).to_be_bytes();
            frames.write(at, &[0; 12]);
            frames.write(at + 12, &[&to[..], &[2, 9, a, b, c, d], &[0x88, 0xb5]].concat());
            raw_desc(ring, i, Seg { gpa: frames.gpa() + at as u64, len: 112 }, 0, 0);
            raw_avail(ring, i, i);
        }
    })
}

/// What is dear, by name, to `sink`.
fn dear(shares: &Shares, sink: [u8; 6]) -> Vec<(&'static str, Fill)> {
    let evil = &shares.evil;
    let one = |seg: Seg, flags: u16| -> Fill { Box::new(move |ring| one_buffer(ring, seg, flags)) };
    let cut = |to: [u8; 6], size: u16| {
        let kind = Kind::default();
        let packet = Packet::new(kind, evil.mac(), to, &payload(9, kind.longest()));
        let (header, bytes) = packet.sent(Ask::Segments(size));
        let bytes = [&header.bytes(12)[..], &bytes].concat();
        let span = evil.guest.mem.alloc_in(0, bytes.len() as u64, 16);
        span.write(0, &bytes);
        whole(&span)
    };
    let sent = |header: Header, to: [u8; 6], behind: &[u8]| {
        let bytes = [&header.bytes(12)[..], &to, &evil.mac(), behind].concat();
        let span = evil.guest.mem.alloc_in(0, bytes.len() as u64, 16);
        span.write(0, &bytes);
        whole(&span)
    };
    let v6 = [&[0x86, 0xdd][..], &behind_headers()].concat();
    let v4 = [&[8, 0][..], &first_fragment()].concat();
    let report = &report(evil.mac(), 0);
    let refused =
        Header { flags: NEEDS_CSUM, gso_type: 5, csum_start: u16::MAX, ..Header::default() };
    let none = Header::default();
    let spoofed = frame(evil, sink, 60);
    spoofed.write(18, &[2, 9, 9, 9, 9, 9]);
    let plain = whole(&frame(evil, sink, 60));
    let empty = Seg { len: 12, ..plain };
    let pieces = frame(evil, sink, 1000 - 12);
    let long = frame(evil, sink, 64 * LONGEST - 12);
    vec![
        ("chains without a frame", one(empty, 0)),
        ("frames of 60 bytes", one(plain, 0)),
        ("broadcasts of 60 bytes", one(whole(&frame(evil, EVERYBODY, 60)), 0)),
        ("frames from another's address", one(whole(&spoofed), 0)),
        ("frames from ever new addresses", new_addresses(evil, sink)),
        ("offloads that are refused", one(sent(refused, sink, &v4), 0)),
        ("fragments of IPv4", one(sent(none, sink, &v4), 0)),
        ("fragments of IPv6 behind 21 headers", one(sent(none, sink, &v6), 0)),
        ("reports of 180 groups", one(sent(none, GROUPS, &report[12..]), 0)),
        ("64 KiB in segments of 8 bytes", one(cut(sink, 8), 0)),
        ("64 KiB in segments of 1448 bytes", one(cut(sink, 1448), 0)),
        ("the same, flooded", one(cut(EVERYBODY, 8), 0)),
        ("1,000 pieces of a byte", one(table(evil, 1000, &pieces, 1, 0), DESC_INDIRECT)),
        ("1,024 pieces of 64 bytes", one(table(evil, LONGEST, &long, 64, 0), DESC_INDIRECT)),
    ]
}

fn control(dir: &Dir) -> [String; 2] {
    let option = format!("--control={}", dir.path().join("control").display());
    [option, "--multicast-snooping".to_owned()]
}

/// Beside a neighbour with the same limits that sends plain frames.
#[test]
#[ignore = "full"]
fn dear_frames_cost_no_more_than_the_rate_permits() {
    let _alone = alone();
    for mirrored in [false, true] {
        let dir = Dir::new();
        let options = control(&dir);
        let options = options.each_ref().map(String::as_str);
        let mut shares = Shares::with(5, &options, |cfg| cfg.features |= feat::OFFLOADS);
        let floods = "storm=bcast:100pps,mcast:100pps,unknown:100pps";
        let guard = ["guard=on", "mac=02:56:53:00:00:02", "ethertypes=0x88b5"];
        let limits = [&["port", "set", "p2", "rate-in=10mbit,10kpps", floods], &guard[..]];
        done(&dir, &limits.concat());
        if mirrored {
            done(&dir, &["mirror", "add", "m", "from=p2", "to=p7"]);
        }
        for (what, fill) in dear(&shares, shares.sinks[0].mac()) {
            shares.kept_beside(&format!("{what}, mirrored {mirrored}"), fill);
        }
        let c = shares.d.counters();
        let counted = |key| c.sum(Some("p2"), "in", key);
        assert!(counted("drop.guard") > 0 && counted("drop.storm") > 0, "{c:#?}");
        assert!(c.sum(Some("p2"), "", "rate_waits") > 0, "{c:#?}");
        if mirrored {
            continue;
        }
        // With its rate alone, so that addresses are learned.
        done(&dir, &["port", "set", "p2", "guard=off", "mac=", "ethertypes="]);
        let (evil, sink) = (&shares.evil, shares.sinks[0].mac());
        let fill = new_addresses(evil, sink);
        shares.kept_beside("frames from ever new addresses, no guard", fill);
    }
}

/// To a receiver with a rate, beside a neighbour that sends plain frames to one without.
#[test]
#[ignore = "full"]
fn dear_frames_for_a_limited_receiver_cost_no_more_than_plain_ones() {
    let _alone = alone();
    let dir = Dir::new();
    let options = control(&dir);
    let options = options.each_ref().map(String::as_str);
    let mut shares = Shares::with(5, &options, |cfg| cfg.features |= feat::OFFLOADS);
    done(&dir, &["port", "set", "p4", "rate-out=10mbit,10kpps"]);
    for (what, fill) in dear(&shares, shares.sinks[1].mac()) {
        shares.kept_beside(&format!("{what}, rate-out"), fill);
    }
    let c = shares.d.counters();
    assert!(c.sum(Some("p4"), "", "drop.rate") > 0, "{c:#?}");
}
