//! DPDK's virtio-user driver: an independent front-end with its own receive and send paths, against
//! the real daemon.
//!
//! Two forms of traffic. *Circulation*: one testpmd with two ports in `io` mode sends a first burst
//! and then passes on for ever what comes back, so a constant number of frames runs in circles
//! through the switch; each lost or doubled one shows in the count at the end. *One way*: one
//! testpmd sends as fast as it can (`txonly`), another receives (`rxonly`), with the receiver's
//! ring always full; what does not fit must be counted. `flowgen` is of no use here: it sends one
//! fixed address pair from every port, which a learning switch must flood.
//!
//! Needs the packages `dpdk-dev` and `pkg-config`, and huge pages for those cases that use them.
//! `VIOSWITCH_LONG=1` changes memory 50 times instead of 10.

use std::time::Duration;

use crate::lab::{Lab, port};
use crate::testpmd::{
    Backing, HUGE_PAGES, PortCount, Testpmd, TestpmdSpec, VirtioUser, available, socket, used_path,
};
use crate::{alone, dpdk_memory, is_set, progress, skip, wait_for};
use testkit::counters::Counters;
use testkit::huge_pages::HugePages;

/// Frames of a first burst, per queue of each port (testpmd's default burst).
const BURST: u64 = 32;

/// Frames to wait for in each step: many times round the ring, some 10 ms of an idle machine.
const ENOUGH: u64 = 20_000;

/// For [`ENOUGH`] frames on the slowest machine.
const TRAFFIC_LIMIT: Duration = Duration::from_secs(30);

/// Longest time without a frame while memory is plugged in or out: mapping and clearing 18 MiB is
/// the greater part of it.
const LONGEST_GAP: Duration = Duration::from_millis(500);

/// One way to run a circulation.
struct Case {
    name: &'static str,
    options: &'static str,
    queues: u16,
    backing: Backing,
    /// The driver's receive path that these options lead to, in its own words.
    rx_path: &'static str,
    /// Frames are addressed to the other port; otherwise to an address nobody has, and flooded.
    addressed: bool,
}

const MERGEABLE: &str = "mergeable buffer Rx path";
const STANDARD: &str = "standard Rx path";
const IN_ORDER: &str = "inorder Rx path";
const VECTORIZED: &str = "vectorized Rx path";

/// Reserves huge pages; `None` (said loudly) if the machine cannot.
fn huge_pages() -> Option<HugePages> {
    HugePages::reserve(HUGE_PAGES).map_err(|missing| skip(&missing)).ok()
}

fn dpdk_available() -> bool {
    available().map_err(|missing| skip(&missing)).is_ok()
}

/// A daemon with two ports, `vm1` and `vm2`.
fn lab(name: &str, options: &str) -> Lab {
    let mut lab = Lab::without_network(name);
    let args =
        [port("vm1", &socket(&lab, "vm1"), options), port("vm2", &socket(&lab, "vm2"), options)];
    lab.start_daemon(&args.concat());
    lab
}

/// One testpmd with a port on each of the daemon's.
fn both_ports(lab: &Lab, case: &Case) -> Testpmd {
    let user =
        |name, number| VirtioUser { socket: socket(lab, name), number, options: case.options };
    let spec = TestpmdSpec {
        name: "circle",
        ports: vec![user("vm1", 1), user("vm2", 2)],
        queues: case.queues,
        backing: case.backing,
        forward: "io",
        peers: if case.addressed { vec![2, 1] } else { vec![] },
    };
    Testpmd::start(lab, &spec)
}

/// Waits until every port has received [`ENOUGH`] more frames than now; the counts then.
fn wait_traffic(pmd: &mut Testpmd) -> Vec<PortCount> {
    let before = pmd.counts();
    wait_for("frames on every port", TRAFFIC_LIMIT, || {
        let now = pmd.counts();
        now.iter().zip(&before).all(|(n, b)| n.rx > b.rx + ENOUGH).then_some(now)
    })
}

/// Stops the circulation and empties the receive rings; the final counts.
fn drain(pmd: &mut Testpmd) -> Vec<PortCount> {
    pmd.ask("stop");
    pmd.ask("set fwd rxonly");
    pmd.ask("start");
    let mut last = pmd.counts();
    let counts = wait_for("the rings to empty", TRAFFIC_LIMIT, || {
        std::thread::sleep(Duration::from_millis(100));
        let now = pmd.counts();
        let rests = now == last;
        last.clone_from(&now);
        rests.then_some(now)
    });
    pmd.ask("stop");
    counts
}

/// What testpmd counted is what the daemon counted, and nothing was lost or doubled on the way.
fn assert_lossless(pmd: &[PortCount], daemon: &Counters) {
    let (sent, received) = (pmd[0].tx + pmd[1].tx, pmd[0].rx + pmd[1].rx);
    assert_eq!(sent, received, "frames sent and received: {pmd:?}\n{daemon:#?}");
    assert!(pmd.iter().all(|port| port.errors == 0), "{pmd:?}");
    for (port, count) in ["vm1", "vm2"].iter().zip(pmd) {
        assert_eq!(daemon.get(port, "in frames"), count.tx, "{port}: {daemon:#?}");
        assert_eq!(daemon.get(port, "out frames"), count.rx, "{port}: {daemon:#?}");
    }
    daemon.assert_balanced();
}

/// Frames circulate, stop, and are all accounted for.
fn circulate(case: &Case) {
    let mut lab = lab("circulate", &format!(",queues={}", case.queues));
    let mut pmd = both_ports(&lab, case);
    assert!(used_path(&pmd.said(), case.rx_path), "{}: {}", case.name, pmd.said());
    pmd.ask("start tx_first");
    wait_traffic(&mut pmd);
    let counts = drain(&mut pmd);
    assert_lossless(&counts, &lab.counters_at_rest());
    let total = counts[0].rx + counts[1].rx;
    assert!(total > 2 * BURST * u64::from(case.queues) + ENOUGH, "{counts:?}");
    progress(&format!("{}: {total} frames, none lost", case.name));
    assert_eq!(lab.complaints(), "", "nothing was wrong");
    pmd.quit();
    lab.stop_daemon();
}

/// Mergeable and not, in order, vectorized, 1 and 2 queues.
#[test]
#[ignore = "full"]
fn frames_circulate_without_loss_on_huge_pages() {
    let _alone = alone();
    if !dpdk_available() {
        return;
    }
    let Some(_pages) = huge_pages() else { return };
    let case = |name, options, queues, rx_path, addressed| Case {
        name,
        options,
        queues,
        backing: Backing::Huge,
        rx_path,
        addressed,
    };
    for case in [
        case("in order, 1 queue", ",in_order=1", 1, IN_ORDER, true),
        case("mergeable, flooded", ",in_order=0", 1, MERGEABLE, false),
        case("mergeable, 2 queues", ",in_order=0", 2, MERGEABLE, true),
        case("not mergeable", ",in_order=0,mrg_rxbuf=0", 1, STANDARD, true),
        case("vectorized", ",in_order=0,mrg_rxbuf=0,vectorized=1", 1, VECTORIZED, true),
        case("vectorized, 2 queues", ",in_order=0,mrg_rxbuf=0,vectorized=1", 2, VECTORIZED, true),
        case("in order, not mergeable, 2 queues", ",in_order=1,mrg_rxbuf=0", 2, IN_ORDER, true),
    ] {
        circulate(&case);
    }
}

#[test]
fn frames_circulate_without_loss_on_ordinary_pages() {
    let _alone = alone();
    if !dpdk_available() {
        return;
    }
    let case = |name, options, queues, rx_path| Case {
        name,
        options,
        queues,
        backing: Backing::NoHuge,
        rx_path,
        addressed: true,
    };
    for case in [
        case("no huge pages, in order, 2 queues", ",in_order=1", 2, IN_ORDER),
        case("no huge pages, mergeable", ",in_order=0", 1, MERGEABLE),
        case("no huge pages, vectorized", ",in_order=0,mrg_rxbuf=0,vectorized=1", 1, VECTORIZED),
    ] {
        circulate(&case);
    }
}

/// The daemon connects to sockets that testpmd serves, and comes back after a crash.
#[test]
fn daemon_as_client_returns_after_a_crash() {
    let _alone = alone();
    if !dpdk_available() {
        return;
    }
    let mut lab = lab("client", ",queues=1,mode=client");
    let case = Case {
        name: "testpmd serves the sockets",
        options: ",server=1,in_order=0",
        queues: 1,
        backing: Backing::NoHuge,
        rx_path: MERGEABLE,
        addressed: true,
    };
    let mut pmd = both_ports(&lab, &case);
    pmd.ask("start tx_first");
    wait_traffic(&mut pmd);
    let counts = drain(&mut pmd);
    assert_lossless(&counts, &lab.counters_at_rest());
    lab.kill_daemon();
    let args = [
        port("vm1", &socket(&lab, "vm1"), ",mode=client"),
        port("vm2", &socket(&lab, "vm2"), ",mode=client"),
    ];
    lab.start_daemon(&args.concat());
    pmd.ask("set fwd io");
    // Until both connections are back the first bursts are lost, or wait in a ring.
    wait_for("traffic after the crash", TRAFFIC_LIMIT, || {
        pmd.ask("start tx_first");
        let before = pmd.counts();
        std::thread::sleep(Duration::from_millis(500));
        let now = pmd.counts();
        pmd.ask("stop");
        now.iter().zip(&before).all(|(n, b)| n.rx > b.rx + BURST).then_some(())
    });
    lab.counters_at_rest().assert_balanced();
    progress("traffic is back after the daemon was killed");
    pmd.quit();
    lab.stop_daemon();
}

/// A sender that never stops and a receiver.
fn one_way(lab: &Lab) -> (Testpmd, Testpmd) {
    let spec = |name, forward, number, peer, socket| TestpmdSpec {
        name,
        ports: vec![VirtioUser { socket, number, options: ",in_order=0" }],
        queues: 1,
        backing: Backing::NoHuge,
        forward,
        peers: vec![peer],
    };
    let mut receiver = Testpmd::start(lab, &spec("receiver", "rxonly", 2, 1, socket(lab, "vm2")));
    let mut sender = Testpmd::start(lab, &spec("sender", "txonly", 1, 2, socket(lab, "vm1")));
    receiver.ask("start");
    sender.ask("start");
    (sender, receiver)
}

#[test]
#[ignore = "full"]
fn a_sender_that_never_stops_is_accounted_for() {
    let _alone = alone();
    if !dpdk_available() {
        return;
    }
    let mut lab = lab("oneway", "");
    let (mut sender, mut receiver) = one_way(&lab);
    wait_traffic(&mut receiver);
    sender.ask("stop");
    let received = drain(&mut receiver)[0];
    let sent = sender.counts()[0];
    let counters = lab.counters_at_rest();
    counters.assert_balanced();
    assert_eq!(counters.get("vm1", "in frames"), sent.tx, "{counters:#?}");
    assert_eq!(counters.get("vm2", "out frames"), received.rx, "{counters:#?}");
    assert_eq!(received.errors, 0, "{received:?}");
    progress(&format!("{} frames sent, {} received, the rest counted", sent.tx, received.rx));
    sender.quit();
    receiver.quit();
    lab.stop_daemon();
}

/// A port goes away and comes back again and again while the other end keeps sending.
#[test]
fn ports_stop_and_start_while_traffic_runs() {
    let _alone = alone();
    if !dpdk_available() {
        return;
    }
    let mut lab = lab("stopstart", "");
    let (mut sender, mut receiver) = one_way(&lab);
    wait_traffic(&mut receiver);
    for _ in 0..5 {
        receiver.ask("stop");
        receiver.ask("port stop 0");
        let before = sender.counts()[0].tx;
        wait_for("the sender to go on without a receiver", TRAFFIC_LIMIT, || {
            (sender.counts()[0].tx > before + ENOUGH).then_some(())
        });
        receiver.ask("port start 0");
        receiver.ask("start");
        wait_traffic(&mut receiver);
    }
    progress("receiver stopped and started 5 times");
    for _ in 0..5 {
        sender.ask("stop");
        sender.ask("port stop 0");
        sender.ask("port start 0");
        sender.ask("start");
        wait_traffic(&mut receiver);
    }
    progress("sender stopped and started 5 times");
    sender.quit();
    receiver.quit();
    lab.counters_at_rest().assert_balanced();
    // The same ports serve the next front-ends as if nothing had happened.
    let (sender, mut receiver) = one_way(&lab);
    wait_traffic(&mut receiver);
    sender.quit();
    receiver.quit();
    lab.stop_daemon();
}

/// DPDK maps more memory for a pool of packet buffers and gives it back, while frames flow: each
/// time it disables the rings, sends another memory table and enables them, and never stops sending
/// meanwhile. What meets a disabled ring may be dropped, and is counted; nothing else is lost,
/// nothing comes twice, late, or from memory that is gone. 18 MiB each time;
/// no gap is as long as 0.5 s.
#[test]
#[ignore = "full"]
fn memory_changes_while_frames_flow() {
    let _alone = alone();
    if let Err(missing) = dpdk_memory::available() {
        return skip(&missing);
    }
    let Some(_pages) = huge_pages() else { return };
    let mut lab = lab("memory", "");
    let user = |name, number| VirtioUser { socket: socket(&lab, name), number, options: "" };
    let rounds = if is_set("VIOSWITCH_LONG") { 50 } else { 10 };
    let saw = dpdk_memory::run(&lab, &[user("vm1", 1), user("vm2", 2)], rounds);
    let counters = lab.counters_at_rest();
    counters.assert_balanced();
    for (port, saw) in ["vm1", "vm2"].iter().zip(&saw) {
        assert_eq!((saw.disordered, saw.foreign, saw.corrupt), (0, 0, 0), "{port}: {saw:?}");
        assert_eq!(counters.get(port, "in frames"), saw.sent, "{port}: {counters:#?}");
        assert_eq!(counters.get(port, "out frames"), saw.received, "{port}: {counters:#?}");
        assert!(saw.changes >= 2 * rounds, "{port}: {saw:?}");
        assert!(saw.gap < LONGEST_GAP, "{port}: {saw:?}");
    }
    assert_eq!(lab.complaints(), "", "nothing was wrong");
    progress(&format!("memory changed {rounds} times, {saw:?}"));
    lab.stop_daemon();
}
