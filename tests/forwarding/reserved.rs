//! `pass=`: frames of neighbours' protocols pass between ports that both pass them, and no other
//! frame for a reserved address does: built frames between guests, and the spanning tree of the
//! kernel's bridge.

use std::time::Duration;

use testkit::SOON;
use testkit::host::{Host, in_namespace, index_of, ip};
use testkit::proc::{Daemon, wait_for};
use testkit::vm::{Vm, VmConfig, mac_of};

const QUIET: Duration = Duration::from_millis(30);
/// As long as a bridge takes to send several hellos.
const HELLOS: Duration = Duration::from_secs(20);

/// Last octet of the address, what follows the source, and the protocol that passes it.
const FRAMES: [(u8, &[u8], &str); 12] = [
    (0x0e, &[0x88, 0xcc], "lldp"),
    (0x03, &[0x88, 0xcc], "lldp"),
    (0x00, &[0x88, 0xcc], "lldp"),
    (0x02, &[0x88, 0x09, 1], "lacp"),
    (0x02, &[0x88, 0x09, 2], "lacp"),
    (0x00, &[0, 38, 0x42, 0x42, 3], "stp"),
    // PAUSE, OAM, EAPOL, PTP, a provider's BPDU, no protocol at all.
    (0x01, &[0x88, 0x08, 0, 1], ""),
    (0x02, &[0x88, 0x09, 3], ""),
    (0x03, &[0x88, 0x8e], ""),
    (0x0e, &[0x88, 0xf7], ""),
    (0x08, &[0, 38, 0x42, 0x42, 3], ""),
    (0x00, &[0x88, 0xb5], ""),
];

fn frame(last: u8, from: u8, tag: Option<u16>, rest: &[u8]) -> Vec<u8> {
    let tag = tag.map(|tag| [[0x81, 0], tag.to_be_bytes()].concat()).unwrap_or_default();
    let mut frame = [&[1, 0x80, 0xc2, 0, 0, last][..], &mac_of(from), &tag, rest].concat();
    frame.resize(60, 0x5a);
    frame
}

fn guests(d: &Daemon, count: u8) -> Vec<Vm> {
    (0..count).map(|id| Vm::connect(&d.socket(id.into()), VmConfig::new(id))).collect()
}

fn send(vms: &mut [Vm], from: usize, frame: &[u8]) {
    vms[from].tx[0].send_waiting(frame, SOON);
    vms[from].tx[0].drain(SOON);
}

/// What each guest got of guest `from`.
fn got(vms: &mut [Vm], from: u8) -> Vec<Vec<Vec<u8>>> {
    let of = |vm: &mut Vm| {
        let mut all = Vec::new();
        vm.rx[0].recv(256, |_, frame| {
            all.extend((frame[6..12] == mac_of(from)).then(|| frame.to_vec()))
        });
        all
    };
    vms.iter_mut().map(of).collect()
}

/// Every frame from every port to every port; none comes back.
#[test]
fn a_frame_passes_where_both_ports_pass_its_protocol() {
    let keys = ["lldp,lacp,stp", "lldp", "lacp,stp", "stp,lldp,lacp", ""];
    let keys =
        keys.map(|words| if words.is_empty() { String::new() } else { format!(",pass={words}") });
    let words: Vec<&str> = keys.iter().map(String::as_str).collect();
    let d = Daemon::with_ports(&words, &[]);
    let passes =
        |port: usize, protocol: &str| !protocol.is_empty() && keys[port].contains(protocol);
    let mut vms = guests(&d, 5);
    for from in 0..5 {
        let mut reserved = d.counters().get(&format!("p{from}"), "in drop.reserved");
        for (last, rest, protocol) in FRAMES {
            let sent = frame(last, from as u8, None, rest);
            send(&mut vms, from, &sent);
            std::thread::sleep(QUIET / 10);
            for (to, frames) in got(&mut vms, from as u8).into_iter().enumerate() {
                let wanted = to != from && passes(from, protocol) && passes(to, protocol);
                let wanted = if wanted { vec![sent.clone()] } else { Vec::new() };
                assert_eq!(frames, wanted, "{rest:x?} to {last:x} from {from} to {to}");
            }
            reserved += u64::from(!passes(from, protocol));
        }
        let c = d.counters();
        assert_eq!(c.get(&format!("p{from}"), "in drop.reserved"), reserved, "{c:#?}");
    }
    d.counters().balance();
    d.stop();
}

/// In one burst, where addresses alone do not tell them apart; the source is learned by any.
#[test]
fn frames_for_one_address_are_told_apart_in_a_burst() {
    let d = Daemon::with_ports(&[",pass=stp", ",pass=stp,lldp"], &[]);
    let mut vms = guests(&d, 2);
    let kinds = [&[0, 38, 0x42, 0x42, 3][..], &[0x88, 0xcc], &[0x88, 0xb5]];
    let all: Vec<Vec<u8>> = (0..48).map(|n| frame(0, 0, None, kinds[n % 3])).collect();
    for one in &all {
        assert!(vms[0].tx[0].send(one));
    }
    vms[0].tx[0].drain(SOON);
    std::thread::sleep(QUIET);
    let passed: Vec<Vec<u8>> = all.iter().step_by(3).cloned().collect();
    assert_eq!(got(&mut vms, 0)[1], passed);
    let c = d.counters();
    assert_eq!((c.get("p0", "in drop.reserved"), c.get("p0", "addresses")), (32, 1), "{c:#?}");
    d.stop();
}

/// VLANs, isolation and guards are those of any other flood.
#[test]
fn other_keys_hold_for_what_passes() {
    let keys = [
        ",pass=lldp,trunk=10,20,native=0",
        ",pass=lldp,vlan=10",
        ",pass=lldp,vlan=20",
        ",pass=lldp,isolated=on",
        ",pass=lldp,isolated=on,guard=on,mac=02:56:53:00:00:04",
    ];
    let d = Daemon::with_ports(&keys, &[]);
    let mut vms = guests(&d, 5);
    let lldp = &[0x88, 0xcc][..];
    for (from, src, tag, reached) in [
        (0, 0, Some(10), &[1][..]),
        (0, 0, Some(20), &[2]),
        (0, 0, None, &[3, 4]),
        (1, 1, None, &[0]),
        (3, 3, None, &[0]),
        // Of another port's address.
        (4, 9, None, &[]),
    ] {
        send(&mut vms, from, &frame(0x0e, src, tag, lldp));
        std::thread::sleep(QUIET);
        let got = got(&mut vms, src);
        for (to, frames) in got.into_iter().enumerate() {
            assert_eq!(frames.len(), usize::from(reached.contains(&to)), "{from} {tag:?} to {to}");
            // With the tag that it should have there.
            let tag = if from == 1 { Some(10) } else { None };
            let here = frame(0x0e, src, tag, lldp);
            frames.iter().for_each(|got| assert_eq!(got[..here.len().min(20)], here[..20]));
        }
    }
    let c = d.counters();
    assert_eq!(c.get("p4", "in drop.guard"), 1, "{c:#?}");
    c.balance();
    d.stop();
}

/// The spanning tree of a kernel's bridge behind one TAP is heard at another with `pass` alone. (A
/// second bridge would not hear it: Linux takes BPDUs in its first network namespace only.)
#[test]
fn what_a_kernels_bridge_says_is_heard_behind_another_tap() {
    in_namespace(|| {
        for pass in ["", ",pass=stp"] {
            let taps = ["a", "b"].map(|name| format!("--tap={name},ifname=t{name}{pass}"));
            let d = Daemon::with_ports(&[""], &[&taps[0], &taps[1], "--uplink-to-uplink"]);
            for name in ["ta", "tb"] {
                assert!(wait_for(SOON, || index_of(name).is_some()));
                ip(&format!("link set {name} up"));
            }
            assert!(wait_for(SOON, || d.log().matches("came up").count() == 2), "{}", d.log());
            let host = Host::open("tb");
            ip("link add ba type bridge stp_state 1 hello_time 100");
            ip("link set ta master ba");
            ip("link set ba up");
            let (mut heard, dropped) = (0, || d.counters().get("a", "in drop.reserved"));
            let mut enough = || {
                while let Some(frame) = host.receive(QUIET) {
                    let bpdu =
                        frame[..6] == [1, 0x80, 0xc2, 0, 0, 0] && frame[14..17] == [0x42, 0x42, 3];
                    heard += u64::from(bpdu);
                }
                heard.max(dropped()) > 2
            };
            assert!(wait_for(HELLOS, &mut enough), "no bridge sends a BPDU");
            assert_eq!(heard > 0, !pass.is_empty());
            assert_eq!(dropped() > 0, pass.is_empty());
            ip("link del ba");
            d.stop();
        }
    });
}
