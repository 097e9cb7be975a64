//! Mirrors: which frames an observer gets, in which direction and VLAN, how much of each and with
//! what offloads; that it takes part in nothing else, and that one which is full, gone or hostile
//! costs only its own copies.

use std::time::Duration;

use testkit::SOON;
use testkit::end::End;
use testkit::frontend::feat;
use testkit::host::{Host, in_namespace, index_of, ip};
use testkit::hostile::{loop_chain, raw_avail, raw_avail_idx, restart_with};
use testkit::packet::{Ask, Kind, Packet, payload};
use testkit::proc::{Daemon, Dir, wait_for};
use testkit::ring::{DESC_WRITE, Seg};
use testkit::stream::Peer;
use testkit::vm::{Vm, VmConfig, mac_of};
use testkit::vnet::Header;

/// How long nothing may come where nothing must.
const QUIET: Duration = Duration::from_millis(50);
const BROADCAST: [u8; 6] = [0xff; 6];

/// Guests at ports of these keys with a mirror, known to the switch.
fn lab(ports: &[&str], mirror: &str) -> (Daemon, Vec<Vm>) {
    let d = Daemon::with_ports(ports, &["--mirror", mirror]);
    let vms = (0..ports.len()).map(|id| Vm::connect(&d.socket(id), VmConfig::new(id as u8)));
    let mut vms: Vec<Vm> = vms.collect();
    for (id, vm) in vms.iter_mut().enumerate() {
        send(vm, &frame(BROADCAST, id, None, 60));
    }
    for vm in &mut vms {
        come(vm);
    }
    (d, vms)
}

fn frame(dst: [u8; 6], from: usize, tag: Option<u16>, len: usize) -> Vec<u8> {
    let mut frame = [dst, mac_of(from as u8)].concat();
    frame.extend(tag.iter().flat_map(|tag| [[0x81, 0], tag.to_be_bytes()].concat()));
    frame.extend([0x88, 0xb5]);
    let first = frame.len();
    frame.extend((first..len).map(|at| at as u8));
    frame
}

fn to(id: usize) -> [u8; 6] {
    mac_of(id as u8)
}

fn send(vm: &mut Vm, bytes: &[u8]) {
    vm.tx[0].send_waiting(bytes, SOON);
    vm.tx[0].drain(SOON);
}

/// What comes until nothing does any more.
fn come(vm: &mut Vm) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    while vm.rx[0].wait(QUIET) {
        vm.rx[0].recv(64, |_, got| all.push(got.to_vec()));
    }
    all
}

/// Sends so many frames between two guests that keep up; all arrive.
fn pass(vms: &mut [Vm], from: usize, dst: usize, frames: usize) {
    for n in 0..frames {
        let sent = frame(to(dst), from, None, 60 + n % 1000);
        send(&mut vms[from], &sent);
        assert!(vms[dst].rx[0].wait(SOON), "frame {n} is missed");
        assert_eq!(vms[dst].rx[0].recv(8, |_, got| assert_eq!(got, sent)), 1);
    }
}

/// Unicast and floods; neither what passes between others nor the observer's own.
#[test]
fn an_observer_gets_the_frames_of_its_direction() {
    for (dir, wanted) in [("in", &[0, 2][..]), ("out", &[1, 3, 4]), ("both", &[0, 1, 2, 3, 4])] {
        let (d, mut vms) = lab(&["", "", "", ""], &format!("m,from=p0,to=p2,dir={dir}"));
        let sent = [
            (0, frame(to(1), 0, None, 700)),
            (1, frame(to(0), 1, None, 60)),
            (0, frame(BROADCAST, 0, None, 1514)),
            (1, frame(BROADCAST, 1, None, 300)),
            (3, frame(to(0), 3, None, 64)),
            (3, frame(to(1), 3, None, 64)),
        ];
        for (from, frame) in &sent {
            send(&mut vms[*from], frame);
        }
        let expected: Vec<Vec<u8>> = wanted.iter().map(|at| sent[*at].1.clone()).collect();
        assert_eq!(come(&mut vms[2]), expected, "{dir}");
        assert_eq!([0, 1, 3].map(|id| come(&mut vms[id]).len()), [3, 3, 2], "{dir}: the others");
        d.counters().balance();
        d.stop();
    }
}

/// A burst of frames for several ports keeps its order at the observer.
#[test]
fn a_burst_keeps_its_order() {
    let (d, mut vms) = lab(&["", "", "", ""], "m,from=p0,to=p2,dir=in");
    let all: Vec<Vec<u8>> =
        (0..60).map(|n| frame([to(1), to(3), BROADCAST][n % 3], 0, None, 60 + n)).collect();
    all.iter().for_each(|frame| assert!(vms[0].tx[0].queue(frame)));
    vms[0].tx[0].ring.publish();
    vms[0].tx[0].drain(SOON);
    assert_eq!(come(&mut vms[2]), all);
    assert_eq!([1, 3].map(|id| come(&mut vms[id]).len()), [40, 40]);
    d.counters().balance();
    d.stop();
}

/// Only those of the VLAN, with the tags that they have at the port that is watched.
#[test]
fn a_mirror_of_a_vlan_copies_no_other_one() {
    let ports = [",trunk=10,20", ",vlan=10", "", ",vlan=20"];
    let (d, mut vms) = lab(&ports, "m,from=p0,to=p2,vlan=10");
    let sent = [
        (1, frame(BROADCAST, 1, None, 100)),
        (3, frame(BROADCAST, 3, None, 100)),
        (0, frame(BROADCAST, 0, Some(10), 100)),
        (0, frame(BROADCAST, 0, Some(20), 100)),
        (0, frame(BROADCAST, 0, None, 100)),
    ];
    sent.iter().for_each(|(from, frame)| send(&mut vms[*from], frame));
    let mut with_tag = sent[0].1.clone();
    with_tag.splice(12..12, [0x81, 0, 0, 10]);
    assert_eq!(come(&mut vms[2]), [with_tag, sent[2].1.clone()]);
    assert_eq!([0, 1, 3].map(|id| come(&mut vms[id]).len()), [2, 1, 1]);
    d.counters().balance();
    d.stop();
}

/// Offloads: as the observer permits, or none with a snaplen.
#[test]
fn offloads_are_those_that_the_observer_takes() {
    let kinds: Vec<Kind> = Kind::all().filter(|kind| kind.tags == 0).collect();
    for (features, snaplen) in [(0, None), (feat::OFFLOADS, None), (feat::OFFLOADS, Some(100))] {
        let more = snaplen.map(|len| format!(",snaplen={len}")).unwrap_or_default();
        let mirror = format!("m,from=p0,to=p2,dir=in{more}");
        let d = Daemon::with_ports(&["", "", ""], &["--mirror", &mirror]);
        let guest = |id: u8, features| {
            Vm::connect(&d.socket(id.into()), VmConfig::with_offloads(id, features, true))
        };
        let (mut from, mut dst) = (guest(0, feat::OFFLOADS), guest(1, feat::OFFLOADS));
        let mut observer = guest(2, features);
        for &kind in &kinds {
            let mss = kind.mss();
            for (len, ask) in [
                (700, Ask::Nothing),
                (700, Ask::Sum),
                (3 * usize::from(mss) + 5, Ask::Segments(mss)),
            ] {
                let what = format!("{kind:?} {ask:?} {features:x} {snaplen:?}");
                let packet = Packet::new(kind, from.mac(), BROADCAST, &payload(len as u64, len));
                let (header, bytes) = packet.sent(ask);
                from.tx[0].header = header.bytes(from.cfg.header_len());
                send(&mut from, &bytes);
                let whole = packet.received(ask, features);
                let expected = match snaplen {
                    Some(most) => vec![(Header::default(), bytes[..most].to_vec())],
                    None => whole,
                };
                check(&mut observer, &expected, &what);
                let expected = packet.received(ask, feat::OFFLOADS);
                check(&mut dst, &expected, &what);
            }
        }
        assert!(come(&mut observer).is_empty());
        d.counters().balance();
        d.stop();
    }
}

fn check(vm: &mut Vm, expected: &[(Header, Vec<u8>)], what: &str) {
    let got = vm.rx[0].take(expected.len(), SOON);
    let got = got.iter().map(|(header, frame)| (Header { num_buffers: 0, ..*header }, frame));
    let got: Vec<_> = got.collect();
    assert_eq!(got.len(), expected.len(), "{what}");
    for ((header, frame), (want_header, want)) in got.into_iter().zip(expected) {
        assert_eq!(header, *want_header, "{what}");
        assert!(frame == want, "{what}: {} bytes, not {}", frame.len(), want.len());
    }
}

/// What its port drops was not delivered there; where it came from it did come.
#[test]
fn what_is_dropped_is_not_mirrored_as_delivered() {
    for (dir, from, copies) in [("out", "p1", 0), ("in", "p0", 2)] {
        let ports = ["", ",mtu=1000", "", ""];
        let (d, mut vms) = lab(&ports, &format!("m,from={from},to=p2,dir={dir}"));
        send(&mut vms[0], &frame(to(1), 0, None, 1500));
        send(&mut vms[0], &frame([1, 0x80, 0xc2, 0, 0, 1], 0, None, 100));
        assert_eq!([1, 2, 3].map(|id| come(&mut vms[id]).len()), [0, copies, 0], "{dir}");
        let c = d.counters();
        assert_eq!((c.get("p1", "drop.too_big"), c.get("p0", "in drop.reserved")), (1, 1));
        c.balance();
        d.stop();
    }
}

/// Nothing passes from the observer, nothing is learned there, and nothing else goes there.
#[test]
fn an_observer_takes_part_in_nothing() {
    let (d, mut vms) = lab(&["", "", "", ""], "m,from=p0,to=p2");
    for dst in [to(0), to(1), BROADCAST] {
        send(&mut vms[2], &frame(dst, 2, None, 60));
    }
    assert_eq!([0, 1, 3].map(|id| come(&mut vms[id]).len()), [0, 0, 0]);
    send(&mut vms[1], &frame(to(2), 1, None, 60));
    send(&mut vms[1], &frame(to(3), 1, None, 60));
    // Its address is not known: a flood, of which the watched port's copy is mirrored.
    assert_eq!([0, 2, 3].map(|id| come(&mut vms[id]).len()), [1, 1, 2]);
    let c = d.counters();
    // The first of all that guests send is one more.
    assert_eq!(c.get("p2", "in drop.observer"), 4);
    c.balance();
    d.stop();
}

/// An observer that takes nothing loses its copies, and each of them is counted.
#[test]
fn a_full_observer_loses_its_own_copies() {
    for mirror in ["m,from=p0,to=p2", "m,from=p1,to=p2,dir=out", "m,from=p0,to=p2,snaplen=64"] {
        let (d, mut vms) = lab(&["", "", ""], mirror);
        let room = vms[2].rx[0].buffer_count();
        pass(&mut vms, 0, 1, room + 500);
        let c = d.counters();
        let lost = c.get("p2", "out drop.mirror");
        assert!(lost >= 400, "{mirror}: {lost}");
        assert_eq!(c.drops(Some("p1"), "out") + c.drops(Some("p1"), ""), 0);
        let got = come(&mut vms[2]).len() as u64;
        // A hello of each other guest came before, as far as it is mirrored.
        assert_eq!(got + lost, (room + 500) as u64, "{mirror}");
        pass(&mut vms, 0, 1, 20);
        assert_eq!(come(&mut vms[2]).len(), 20, "{mirror}: it goes on");
        d.counters().balance();
        d.stop();
    }
}

/// An observer without a front-end loses the copies until one is there again.
#[test]
fn an_observer_may_go_and_come() {
    let (d, mut vms) = lab(&["", "", ""], "m,from=p0,to=p2");
    vms[2].disconnect();
    std::thread::sleep(QUIET);
    pass(&mut vms, 0, 1, 200);
    let socket = d.socket(2);
    vms[2].reconnect(&socket);
    std::thread::sleep(QUIET);
    pass(&mut vms, 0, 1, 50);
    assert_eq!(come(&mut vms[2]).len(), 50);
    let c = d.counters();
    assert_eq!(c.get("p2", "out drop.mirror"), 200);
    c.balance();
    d.stop();
}

/// An observer whose ring is broken, which it breaks again and again: the others lose nothing.
#[test]
fn a_hostile_observer_costs_the_others_no_frame() {
    for mirror in ["m,from=p0,to=p2", "m,from=p1,to=p2,dir=out,snaplen=64"] {
        let (d, mut vms) = lab(&["", "", ""], mirror);
        for round in 0..20u16 {
            restart_with(&mut vms[2], 0, |ring| match round % 3 {
                0 => raw_avail_idx(ring, 0x8000),
                1 => {
                    loop_chain(ring, 8, Seg { gpa: 1 << 20, len: 64 }, DESC_WRITE);
                    (0..8).for_each(|slot| raw_avail(ring, slot, slot));
                    raw_avail_idx(ring, 8);
                }
                _ => {}
            });
            pass(&mut vms, 0, 1, 30);
        }
        let c = d.counters();
        assert_eq!(c.drops(Some("p1"), "out") + c.drops(Some("p1"), ""), 0, "{mirror}");
        assert!(c.get("p2", "rings_broken") >= 6, "{mirror}: {c:?}");
        assert!(c.get("p2", "out drop.mirror") > 0, "{mirror}: {c:?}");
        c.balance();
        d.stop();
    }
}

/// Behind a TAP or a stream there are copies of frames of every length, with their tags, and
/// nothing that it sends is let in.
#[test]
fn a_tap_and_a_stream_observe_too() {
    in_namespace(|| {
        let dir = Dir::new();
        let socket = dir.path().join("s").display().to_string();
        for kind in ["tap", "stream"] {
            let observer = match kind {
                "tap" => "--tap=o,ifname=o0".to_owned(),
                _ => format!("--stream=o,socket={socket}"),
            };
            for (more, most) in [("", 2000), (",snaplen=100", 100)] {
                let mirror = format!("--mirror=m,from=p0,to=o{more}");
                let d = Daemon::with_ports(&["", ""], &[&observer, &mirror]);
                let mut end = match kind {
                    "tap" => {
                        assert!(wait_for(SOON, || index_of("o0").is_some()));
                        ip("link set o0 up");
                        assert!(wait_for(SOON, || d.log().contains("came up")), "{}", d.log());
                        End::Host(Host::open("o0"))
                    }
                    _ => End::Peer(Peer::connect(dir.path().join("s").as_path())),
                };
                assert!(wait_for(SOON, || kind == "tap" || d.log().contains("port o: ")));
                let guest = |id: u8| Vm::connect(&d.socket(id.into()), VmConfig::new(id));
                let mut vms = [guest(0), guest(1)];
                for (n, len) in (60..1514).step_by(97).enumerate() {
                    let tag = (n % 3 == 0).then_some(7);
                    let (there, back) = (frame(to(1), 0, tag, len), frame(to(0), 1, None, len));
                    for (from, sent) in [(0, there), (1, back)] {
                        send(&mut vms[from], &sent);
                        let copy = end.receive(SOON).expect("a copy");
                        assert_eq!(copy, sent[..most.min(sent.len())], "{kind}{more}");
                        come(&mut vms[1 - from]);
                    }
                }
                end.send(&frame(BROADCAST, 9, None, 60));
                assert!(wait_for(SOON, || d.counters().get("o", "in drop.observer") == 1));
                assert_eq!([0, 1].map(|id: usize| come(&mut vms[id]).len()), [0, 0]);
                d.counters().balance();
                d.stop();
            }
        }
    });
}
