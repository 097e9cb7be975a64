//! An uplink by XDP at one end of a veth pair, beside a TAP in a bridge with such a pair: the same
//! guest, the same frames, from and to the pair's other end, in turn.
//!
//! * guest to uplink: frames end in the host's stack, at the pair's other end;
//! * uplink to guest: a queue of frames, filled while the daemon is held, delivered at one go. By
//!   XDP the kernel has copied the frames when they wait, from a TAP the daemon reads them: what
//!   the sender, a packet socket, and the kernel take up to the queue is a row of its own, and so
//!   is the sum.

use testkit::host::{Host, ip};
use testkit::proc::{Daemon, wait_for};

use super::{Bench, HEADER, HOST, Row, SOON, Sample, frame, heading};

const NAMES: [&str; 3] = ["TAP in a bridge", "XDP, native", "XDP, generic"];

/// A switch whose uplink ends at the interface `far-NAME`.
fn switch(len: usize, name: &str) -> Bench {
    let (near, far, bridge) = (format!("near-{name}"), format!("far-{name}"), format!("br-{name}"));
    ip(&format!("link add {near} type veth peer name {far}"));
    let uplink = match name {
        "tap" => ["--tap", "up,ifname=tap-bridged"].map(str::to_owned),
        mode => ["--xdp".to_owned(), format!("up,ifname={near},mode={mode}")],
    };
    let daemon = Daemon::with(1, &[&uplink[0], &uplink[1]]);
    assert!(wait_for(SOON, || daemon.log().contains("ready: ")), "{}", daemon.log());
    [&near, &far].iter().for_each(|end| drop(ip(&format!("link set {end} up"))));
    if name == "tap" {
        ip(&format!("link add {bridge} type bridge mcast_snooping 0"));
        ip(&format!("link set tap-bridged master {bridge}"));
        ip(&format!("link set {near} master {bridge}"));
        ip(&format!("link set {bridge} up"));
        let ready = || ip("-d -o link show type bridge_slave").matches("state forwarding").count();
        assert!(wait_for(SOON, || ready() == 2), "the bridge forwards nothing");
    }
    let bytes = [vec![0; HEADER], frame(HOST, 0, len)].concat();
    Bench::of(daemon, len, (&far, &format!("bare-{name}")), &bytes)
}

/// Measures both ways, `frames` at a time out and `queued` back.
pub fn beside(len: usize, rounds: usize, (frames, queued): (usize, usize)) {
    let mut benches = ["tap", "native", "generic"].map(|name| switch(len, name));
    benches[1..].iter().for_each(|bench| drop(bench.daemon.run_apart()));
    let _apart = benches[0].daemon.run_apart();
    let mut rows = NAMES.map(|name| Row(name, vec![]));
    for _ in 0..rounds {
        for (bench, row) in benches.iter_mut().zip(&mut rows) {
            row.1.push(bench.guest_to_tap(frames));
        }
    }
    for bench in &benches {
        let sent = bench.daemon.counters().sum(Some("up"), "out", "frames");
        assert_eq!(sent, 1 + (rounds * frames) as u64, "every frame was sent");
    }
    heading(&format!("guest to uplink, {len} bytes"), true);
    rows.iter().for_each(|row| row.print(&rows[0], true));
    // Only now: a packet socket costs the senders to its interface a copy of each frame.
    let hosts = ["far-tap", "far-native", "far-generic"].map(Host::open);
    back(&mut benches, &hosts, rounds, queued);
    benches.into_iter().for_each(|bench| bench.daemon.stop());
    ["near-tap", "near-native", "near-generic", "br-tap"]
        .iter()
        .for_each(|name| drop(ip(&format!("link del {name}"))));
}

fn back(benches: &mut [Bench; 3], hosts: &[Host; 3], rounds: usize, queued: usize) {
    let len = benches[0].len;
    let [mut sender, mut switch, mut both] = [(); 3].map(|()| NAMES.map(|name| Row(name, vec![])));
    let mut held = [(); 3].map(|()| Vec::new());
    for _ in 0..rounds {
        for (at, bench) in benches.iter_mut().enumerate() {
            held[at].push(bench.tap_to_guest(&hosts[at], 0).cpu);
            let (sent, received) = bench.sent_and_received(&hosts[at], queued);
            sender[at].1.push(sent);
            switch[at].1.push(received);
        }
    }
    for (at, mut held) in held.into_iter().enumerate() {
        // What stopping and going on costs the daemon's threads is not the frames'.
        held.sort_by(f64::total_cmp);
        let held = held[held.len() / 2] / queued as f64;
        for (sent, received) in sender[at].1.iter().zip(&mut switch[at].1) {
            received.cpu -= held;
            both[at].1.push(Sample { cpu: sent.cpu + received.cpu, ..*received });
        }
    }
    for (title, rows) in
        [("the switch", &switch), ("the sender and the kernel", &sender), ("both", &both)]
    {
        heading(&format!("uplink to guest, {len} bytes, {queued} at a time: {title}"), false);
        rows.iter().for_each(|row| row.print(&rows[0], false));
    }
}
