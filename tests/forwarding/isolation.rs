//! What `isolated`, `learn` and `max-addresses` do to frames: which guests, TAPs and streams a
//! frame reaches, which addresses are known afterwards, and what is counted.

use std::time::Duration;

use testkit::SOON;
use testkit::end::End;
use testkit::host::{Host, in_namespace, ip};
use testkit::proc::{Daemon, Dir, wait_for};
use testkit::stream::Peer;
use testkit::vm::{Vm, VmConfig, mac_of};

/// How long nothing may come where nothing must.
const QUIET: Duration = Duration::from_millis(50);
const BROADCAST: [u8; 6] = [0xff; 6];
const MULTICAST: [u8; 6] = [0x33, 0x33, 0, 0, 0, 1];
const UNKNOWN: [u8; 6] = [2, 0x56, 0x53, 0xee, 0, 0];

fn frame(dst: [u8; 6], src: [u8; 6], number: u8) -> Vec<u8> {
    let mut frame = [&dst[..], &src, &[0x88, 0xb5, number]].concat();
    frame.resize(60, 0);
    frame
}

/// Ports of every kind, isolated and not, send to each other and to all.
#[test]
fn two_isolated_ports_do_not_reach_each_other_and_any_other_pair_does() {
    in_namespace(|| {
        let dir = Dir::new();
        let sockets = ["open", "shut"].map(|name| dir.path().join(name));
        let [open, shut] = sockets.each_ref().map(|path| path.display());
        let streams = [format!("q4,socket={open}"), format!("q5,socket={shut},isolated=on")];
        let taps = ["--tap", "q6,ifname=t6", "--tap", "q7,ifname=t7,isolated=on"];
        let [open, shut] = streams.each_ref().map(String::as_str);
        let extra = [&["--uplink-to-uplink", "--stream", open, "--stream", shut], &taps[..]];
        let keys = ["", "", ",isolated=on", ",isolated=on"];
        let d = Daemon::with_ports(&keys, &extra.concat());
        ["t6", "t7"].iter().for_each(|name| drop(ip(&format!("link set {name} up"))));
        let guest = |id: usize| Vm::connect(&d.socket(id), VmConfig::new(id as u8));
        let mut ends: Vec<End> = (0..4).map(|id| End::Guest(guest(id).into())).collect();
        ends.extend(sockets.iter().map(|path| End::Peer(Peer::connect(path))));
        ends.extend(["t6", "t7"].map(|name| End::Host(Host::open(name))));
        let up = || {
            let log = d.log();
            log.matches("came up").count() == 2
                && ["q4", "q5"].iter().all(|name| log.contains(&format!("port {name}: ")))
        };
        assert!(wait_for(SOON, up), "{}", d.log());
        let isolated = |port: usize| [2, 3, 5, 7].contains(&port);
        // All are known, also to those that the first frames do not reach.
        for (port, end) in ends.iter_mut().enumerate() {
            end.send(&frame(MULTICAST, mac_of(port as u8), 0));
            std::thread::sleep(QUIET);
        }
        ends.iter_mut().for_each(|end| while end.receive(QUIET).is_some() {});
        let (mut number, mut refused) = (0, 0);
        for from in 0..ends.len() {
            let others = (0..ends.len()).filter(|to| *to != from);
            let unicast = others.map(|to| (mac_of(to as u8), Some(to)));
            let groups = [BROADCAST, MULTICAST, UNKNOWN].map(|dst| (dst, None));
            for (dst, only) in unicast.chain(groups) {
                number += 1;
                let sent = frame(dst, mac_of(from as u8), number);
                ends[from].send(&sent);
                refused += u64::from(only.is_some_and(|to| isolated(from) && isolated(to)));
                for to in (0..ends.len()).filter(|to| *to != from && only.is_none_or(|o| o == *to))
                {
                    if !(isolated(from) && isolated(to)) {
                        let got = ends[to].receive(SOON);
                        assert_eq!(got.as_ref(), Some(&sent), "{from} to {to}: {dst:02x?}");
                    }
                }
            }
        }
        std::thread::sleep(QUIET);
        for (to, end) in ends.iter_mut().enumerate() {
            assert_eq!(end.receive(Duration::ZERO), None, "{to} got what is not for it");
        }
        assert_eq!((d.counters().sum(None, "in", "drop.isolated"), refused), (12, 12));
        d.stop();
    });
}

/// A switch of guests with these keys.
fn guests(keys: &[&str]) -> (Daemon, Vec<Vm>) {
    let d = Daemon::with_ports(keys, &[]);
    let guest = |id: usize| Vm::connect(&d.socket(id), VmConfig::new(id as u8));
    let vms = (0..keys.len()).map(guest).collect();
    (d, vms)
}

/// Sends a frame; the guests that get it.
fn send(vms: &mut [Vm], from: usize, dst: [u8; 6], src: [u8; 6]) -> Vec<usize> {
    let sent = frame(dst, src, 1);
    vms[from].tx[0].send_waiting(&sent, SOON);
    vms[from].tx[0].drain(SOON);
    let mut got = |to: &usize| vms[*to].rx[0].recv(9, |_, frame| assert_eq!(frame, sent)) == 1;
    // Buffers are used before the sender's comes back.
    (0..3).filter(|to| got(to)).collect()
}

/// Frames of a port with `learn=off` pass, and those for it are flooded, but for its own static
/// address, which another port cannot have.
#[test]
fn a_port_that_does_not_learn_keeps_its_static_address_alone() {
    let (d, mut vms) = guests(&["", ",learn=off,mac=02:56:53:00:00:01", ""]);
    let [own, other] = [1, 77].map(mac_of);
    for src in [own, other] {
        for dst in [BROADCAST, UNKNOWN] {
            assert_eq!(send(&mut vms, 1, dst, src), [0, 2], "{src:02x?}");
        }
    }
    assert_eq!(send(&mut vms, 0, own, mac_of(0)), [1], "static");
    assert_eq!(send(&mut vms, 0, other, mac_of(0)), [1, 2], "not learned");
    // What the port sends from another's address takes nothing away from that one.
    assert_eq!(send(&mut vms, 1, BROADCAST, mac_of(0)), [0, 2]);
    assert_eq!(send(&mut vms, 2, mac_of(0), mac_of(2)), [0]);
    // Nor does another one take the static address.
    send(&mut vms, 2, BROADCAST, own);
    assert_eq!(send(&mut vms, 0, own, mac_of(0)), [1]);
    let counters = d.counters();
    let of = |port: &str, key: &str| counters.sum(Some(port), "", key);
    assert_eq!((of("p1", "addresses"), of("p1", "learn_refused")), (1, 0));
    assert_eq!((of("p0", "addresses"), of("p2", "learn_static")), (1, 1));
    d.stop();
}

/// A port learns as many addresses as it may, beside its static ones, and takes no other one's.
#[test]
fn a_port_learns_as_many_addresses_as_it_may() {
    let (d, mut vms) = guests(&["", ",max-addresses=2,mac=02:56:53:00:00:01", ""]);
    for n in [1, 50, 51, 52, 53] {
        assert_eq!(send(&mut vms, 1, BROADCAST, mac_of(n)), [0, 2], "it passes");
    }
    for (n, known) in [(1, true), (50, true), (51, true), (52, false), (53, false)] {
        let to = send(&mut vms, 0, mac_of(n), mac_of(0));
        assert_eq!(to, if known { &[1][..] } else { &[1, 2] }, "{n}");
    }
    // An address that is known elsewhere stays there; one that leaves makes room.
    send(&mut vms, 1, BROADCAST, mac_of(0));
    assert_eq!(send(&mut vms, 2, mac_of(0), mac_of(2)), [0]);
    send(&mut vms, 2, BROADCAST, mac_of(50));
    send(&mut vms, 1, BROADCAST, mac_of(52));
    assert_eq!(send(&mut vms, 0, mac_of(52), mac_of(0)), [1]);
    let counters = d.counters();
    let of = |key| counters.sum(Some("p1"), "", key);
    assert_eq!((of("addresses"), of("learn_refused")), (3, 3));
    d.stop();
}
