//! A bystander's share beside a neighbour with a rate, a limit of floods and a guard, whatever that
//! one sends.

use std::process::Command;

use super::shares::{LONGEST, table};
use crate::alone;
use testkit::frontend::feat;
use testkit::hostile::one_buffer;
use testkit::packet::{Ask, Kind, Packet, payload};
use testkit::proc::Dir;
use testkit::ring::{DESC_INDIRECT, Ring, Seg};
use testkit::shares::{Shares, frame, whole};

const EVERYBODY: [u8; 6] = [0xff; 6];

/// Has vioswitchctl do something.
fn done(dir: &Dir, args: &[&str]) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vioswitchctl"));
    let output = command.arg("--control").arg(dir.path().join("control")).args(args).output();
    let output = output.expect("vioswitchctl");
    assert!(output.status.success(), "{args:?}: {output:?}");
}

/// Fills a ring.
type Fill = Box<dyn Fn(&Ring)>;

/// What is dear, by name.
fn dear(shares: &Shares) -> Vec<(&'static str, Fill)> {
    let (evil, sink) = (&shares.evil, shares.sinks[0].mac());
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
        ("violations of the guard", one(whole(&spoofed), 0)),
        ("64 KiB in segments of 8 bytes", one(cut(sink, 8), 0)),
        ("64 KiB in segments of 1448 bytes", one(cut(sink, 1448), 0)),
        ("the same, flooded", one(cut(EVERYBODY, 8), 0)),
        ("1,000 pieces of a byte", one(table(evil, 1000, &pieces, 1, 0), DESC_INDIRECT)),
        ("1,024 pieces of 64 bytes", one(table(evil, LONGEST, &long, 64, 0), DESC_INDIRECT)),
    ]
}

/// Beside a neighbour with the same limits that sends plain frames.
#[test]
#[ignore = "full"]
fn dear_frames_cost_no_more_than_the_rate_permits() {
    let _alone = alone();
    for mirrored in [false, true] {
        let dir = Dir::new();
        let option = format!("--control={}", dir.path().join("control").display());
        let mut shares = Shares::with(5, &[&option], |cfg| cfg.features |= feat::OFFLOADS);
        let floods = "storm=bcast:100pps,mcast:100pps,unknown:100pps";
        let guard = ["guard=on", "mac=02:56:53:00:00:02", "ethertypes=0x88b5"];
        let limits = [&["port", "set", "p2", "rate-in=10mbit,10kpps", floods], &guard[..]];
        done(&dir, &limits.concat());
        if mirrored {
            done(&dir, &["mirror", "add", "m", "from=p2", "to=p7"]);
        }
        for (what, fill) in dear(&shares) {
            shares.kept_beside(&format!("{what}, mirrored {mirrored}"), fill);
        }
        let c = shares.d.counters();
        let counted = |key| c.sum(Some("p2"), "in", key);
        assert!(counted("drop.guard") > 0 && counted("drop.storm") > 0, "{c:#?}");
        assert!(c.sum(Some("p2"), "", "rate_waits") > 0, "{c:#?}");
    }
}
