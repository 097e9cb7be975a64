//! Bridges and VLANs between guests, a TAP and a stream: what a frame of each tag that comes in by
//! a port of each kind becomes at every other port, against a model of its own; addresses that are
//! in several VLANs; offloads of frames whose tag comes and goes.

use std::time::Duration;

use testkit::SOON;
use testkit::counters::Counters;
use testkit::frontend::feat;
use testkit::host::{Host, in_namespace};
use testkit::net::{Job, Net, Sizes};
use testkit::packet::{Ask, Kind, Packet, payload};
use testkit::proc::{Daemon, wait_for};
use testkit::stream::Peer;
use testkit::traffic::{Stream, Tally, To};
use testkit::vm::{Vm, VmConfig, mac_of};
use testkit::vnet::Header;

/// How long nothing may come where nothing must.
const QUIET: Duration = Duration::from_millis(30);
const BROADCAST: [u8; 6] = [0xff; 6];

/// What a port is, written down once more.
#[derive(Clone, Copy, Debug)]
enum Is {
    Plain,
    Access(u16),
    /// Tagged VLANs, and the one without a tag.
    Trunk(&'static [u16], Option<u16>),
}

/// Ports of every kind, in two bridges.
const PORTS: [(&str, &str, Is); 12] = [
    ("", "default", Is::Plain),
    ("", "default", Is::Plain),
    (",vlan=10", "default", Is::Access(10)),
    (",vlan=10", "default", Is::Access(10)),
    (",vlan=20", "default", Is::Access(20)),
    (",trunk=10,20", "default", Is::Trunk(&[10, 20], None)),
    (",trunk=20-21,native=10", "default", Is::Trunk(&[20, 21], Some(10))),
    (",trunk=10,native=0", "default", Is::Trunk(&[10], Some(0))),
    (",bridge=blue,vlan=10", "blue", Is::Access(10)),
    (",bridge=blue", "blue", Is::Plain),
    (",bridge=blue,trunk=10,20,native=0", "blue", Is::Trunk(&[10, 20], Some(0))),
    (",bridge=blue,trunk=10,native=10", "blue", Is::Trunk(&[10], Some(10))),
];

/// The tags of a frame, each with its type.
type Tags = Vec<(u16, u16)>;

/// Where a frame is once it is in: VLAN, priority if a tag of ours carried one, tags behind that.
struct Inside {
    vlan: u16,
    priority: Option<u16>,
    carried: Tags,
    opaque: bool,
}

/// What the rules say of a frame that comes in.
fn comes_in(is: Is, tags: &[(u16, u16)]) -> Option<Inside> {
    let opaque = Inside { vlan: 0, priority: None, carried: tags.to_vec(), opaque: true };
    if let Is::Plain = is {
        return Some(opaque);
    }
    let (own, carried) = match tags.split_first() {
        Some((&(0x8100, tag), rest)) => (Some(tag), rest.to_vec()),
        _ => (None, tags.to_vec()),
    };
    let named = own.map(|tag| tag & 0xfff).filter(|vlan| *vlan > 0);
    let vlan = match (is, named) {
        (Is::Access(_), Some(_)) => None,
        (Is::Access(_), None)
            if carried.first().is_some_and(|tag| tag.0 == 0x88a8 && own.is_none()) =>
        {
            None
        }
        (Is::Access(vlan), None) => Some(vlan),
        (Is::Trunk(_, native), None) => native,
        (Is::Trunk(list, native), Some(vlan)) => {
            (list.contains(&vlan) || native == Some(vlan)).then_some(vlan)
        }
        (Is::Plain, _) => unreachable!("is opaque"),
    }?;
    Some(Inside { vlan, priority: own.map(|tag| tag & 0xf000), carried, opaque: false })
}

/// The tags with which a frame leaves; nothing if it does not.
fn leaves(is: Is, Inside { vlan, priority, carried, opaque }: &Inside) -> Option<Tags> {
    let (vlan, mut carried) = (*vlan, carried.clone());
    let mut priority = *priority;
    if let Is::Plain = is {
        // With the tag that it came with.
        return (vlan == 0).then(|| {
            carried.splice(0..0, priority.map(|tag| (0x8100, tag)));
            carried
        });
    }
    if *opaque && let Some((&(0x8100, tag), rest)) = carried.split_first() {
        if tag & 0xfff != 0 {
            return None;
        }
        (priority, carried) = (Some(tag), rest.to_vec());
    }
    let tagged = match is {
        Is::Trunk(list, native) if native != Some(vlan) => list.contains(&vlan).then_some(true),
        Is::Trunk(..) => Some(false),
        Is::Access(own) => (own == vlan).then_some(false),
        Is::Plain => unreachable!("is done"),
    }?;
    if tagged {
        carried.insert(0, (0x8100, priority.unwrap_or(0) | vlan));
        return Some(carried);
    }
    // No other tag comes to light, and a provider's stays on trunks.
    let hidden = priority.is_some() && !carried.is_empty();
    let provider = matches!(is, Is::Access(_)) && !carried.is_empty();
    (!hidden && !provider).then_some(carried)
}

fn frame(dst: [u8; 6], src: [u8; 6], tags: &[(u16, u16)], len: usize) -> Vec<u8> {
    let mut frame = [dst, src].concat();
    for (kind, tag) in tags {
        frame.extend(kind.to_be_bytes());
        frame.extend(tag.to_be_bytes());
    }
    frame.extend([0x88, 0xb5]);
    frame.extend((0..len).map(|at| at as u8));
    frame
}

fn daemon(ports: &[&str]) -> (Daemon, Vec<Vm>) {
    let d = Daemon::with_ports(ports, &[]);
    let vms = (0..ports.len()).map(|id| Vm::connect(&d.socket(id), VmConfig::new(id as u8)));
    let vms = vms.collect();
    (d, vms)
}

fn send(vm: &mut Vm, bytes: &[u8]) {
    vm.tx[0].send_waiting(bytes, SOON);
    vm.tx[0].drain(SOON);
}

fn dropped(c: &Counters, port: usize) -> u64 {
    let name = format!("p{port}");
    c.sum(Some(&name), "in", "drop.vlan")
}

/// Every tag from every port, in frames that are broadcast, short and long.
#[test]
fn frames_leave_where_and_as_the_rules_say() {
    let keys: Vec<&str> = PORTS.iter().map(|port| port.0).collect();
    let (d, mut vms) = daemon(&keys);
    const C: u16 = 0x8100;
    const S: u16 = 0x88a8;
    let all: Vec<Tags> = vec![
        vec![],
        vec![(C, 0)],
        vec![(C, 0xe000)],
        vec![(C, 10)],
        vec![(C, 0x600a)],
        vec![(C, 20)],
        vec![(C, 21)],
        vec![(C, 30)],
        vec![(C, 4095)],
        vec![(S, 10)],
        vec![(C, 10), (C, 20)],
        vec![(C, 20), (S, 7)],
        vec![(C, 0), (C, 10)],
        vec![(C, 0xa000), (S, 3)],
    ];
    let mut passed = 0;
    for from in 0..PORTS.len() {
        for tags in &all {
            for len in [1, 46, 60, 300, 1400] {
                let sent = frame(BROADCAST, mac_of(from as u8), tags, len);
                send(&mut vms[from], &sent);
                let inside = comes_in(PORTS[from].2, tags);
                for to in (0..PORTS.len()).filter(|to| *to != from) {
                    let here = PORTS[to].1 == PORTS[from].1;
                    let left = inside.as_ref().filter(|_| here);
                    let left = left.and_then(|inside| leaves(PORTS[to].2, inside));
                    let what = format!("{tags:x?} from {:?} to {:?}", PORTS[from], PORTS[to]);
                    let Some(tags) = left else { continue };
                    passed += 1;
                    assert!(vms[to].rx[0].wait(SOON), "{what}: missed");
                    let expected = frame(BROADCAST, mac_of(from as u8), &tags, len);
                    vms[to].rx[0].recv(1, |_, got| {
                        assert!(
                            got == expected,
                            "{what}: {:02x?}, not {tags:x?}",
                            &got[..24.min(got.len())]
                        );
                    });
                }
            }
        }
        std::thread::sleep(QUIET);
        for (to, vm) in vms.iter_mut().enumerate() {
            let more =
                vm.rx[0].recv(16, |_, got| eprintln!("{to}: {:02x?}", &got[..24.min(got.len())]));
            assert_eq!(more, 0, "{:?} got what is not for it from {:?}", PORTS[to], PORTS[from]);
        }
    }
    println!("{passed} copies");
    assert!(passed > 500);
    let c = d.counters();
    for port in (0..PORTS.len()).filter(|port| matches!(PORTS[*port].2, Is::Access(_))) {
        assert!(dropped(&c, port) > 0, "port {port}");
    }
    d.stop();
}

/// Frames of different tags in one burst, many of one kind and one of each in turn: nothing that is
/// remembered of one holds for another.
#[test]
fn frames_of_a_burst_have_their_own_tags() {
    let keys: Vec<&str> = PORTS.iter().map(|port| port.0).collect();
    let (d, mut vms) = daemon(&keys);
    let kinds: [Tags; 8] = [
        vec![],
        vec![(0x8100, 10)],
        vec![(0x8100, 0xe00a)],
        vec![(0x8100, 20)],
        vec![(0x8100, 0)],
        vec![(0x88a8, 10)],
        vec![(0x8100, 10), (0x8100, 20)],
        vec![(0x8100, 30)],
    ];
    let turns = (0..kinds.len()).flat_map(|a| [a, a, a, (a + 3) % kinds.len(), a]);
    let order: Vec<usize> = turns.collect();
    for from in 0..PORTS.len() {
        // To all, and to each that is known by then.
        for to in std::iter::once(BROADCAST).chain((0..PORTS.len() as u8).map(mac_of)) {
            let sent = |n: usize| frame(to, mac_of(from as u8), &kinds[order[n]], 46 + n);
            for n in 0..order.len() {
                assert!(vms[from].tx[0].queue(&sent(n)));
            }
            vms[from].tx[0].ring.publish();
            vms[from].tx[0].drain(SOON);
            for there in (0..PORTS.len()).filter(|there| *there != from) {
                if PORTS[there].1 != PORTS[from].1 {
                    continue;
                }
                let mut wanted = Vec::new();
                for n in 0..order.len() {
                    let inside = comes_in(PORTS[from].2, &kinds[order[n]]);
                    let left = inside.and_then(|inside| leaves(PORTS[there].2, &inside));
                    wanted.extend(left.map(|tags| frame(to, mac_of(from as u8), &tags, 46 + n)));
                }
                let mut got = Vec::new();
                vms[there].rx[0].recv(64, |_, frame| got.push(frame.to_vec()));
                // What is for another port reaches this one where that one is not known.
                let is_own = to == BROADCAST || to == mac_of(there as u8);
                let missed = wanted.iter().position(|frame| !got.contains(frame));
                let what = format!("{to:x?} from {:?} to {:?}", PORTS[from], PORTS[there]);
                assert!(!is_own || missed.is_none(), "{what}: {missed:?}, {} came", got.len());
                let foreign = got.iter().find(|frame| !wanted.contains(frame));
                assert_eq!(foreign, None, "{what}");
            }
            vms.iter_mut().for_each(|vm| assert_eq!(vm.rx[0].recv(64, |_, _| {}), 0));
        }
    }
    d.counters().balance();
    d.stop();
}

/// One address in several VLANs and bridges is as many stations, and unicast finds each of them.
#[test]
fn one_address_lives_in_each_vlan() {
    let keys = [
        ",vlan=10",
        ",vlan=20",
        ",bridge=blue,vlan=10",
        "",
        ",vlan=10",
        ",vlan=20",
        ",bridge=blue,vlan=10",
        "",
        ",trunk=10,20,native=0",
    ];
    let (d, mut vms) = daemon(&keys);
    let mac = mac_of(77);
    for vm in &mut vms[..4] {
        send(vm, &frame(BROADCAST, mac, &[], 46));
    }
    std::thread::sleep(QUIET);
    vms.iter_mut().for_each(|vm| _ = vm.rx[0].recv(64, |_, _| {}));
    for round in 0..3 {
        for from in 4..8 {
            let sent = frame(mac, mac_of(from as u8), &[], 46 + round);
            send(&mut vms[from], &sent);
            let to = &mut vms[from - 4].rx[0];
            assert!(to.wait(SOON), "{}: missed", keys[from]);
            to.recv(1, |_, got| assert_eq!(got, sent));
        }
        for (tags, to) in [(vec![(0x8100, 10)], 0), (vec![(0x8100, 20)], 1), (vec![], 3)] {
            send(&mut vms[8], &frame(mac, mac_of(8), &tags, 60));
            assert!(vms[to].rx[0].wait(SOON), "{tags:x?}: missed");
            let expected = frame(mac, mac_of(8), &[], 60);
            vms[to].rx[0].recv(1, |_, got| assert_eq!(got, expected));
        }
    }
    std::thread::sleep(QUIET);
    for (id, vm) in vms.iter_mut().enumerate() {
        assert_eq!(vm.rx[0].recv(64, |_, _| {}), 0, "port {id} got what is not for it");
    }
    d.stop();
}

/// Two tenants with the same addresses and VLANs, in two bridges, both at work: each frame arrives
/// at its own tenant's guests and at no other's.
#[test]
#[ignore = "full"]
fn tenants_with_equal_addresses_never_meet() {
    const GUESTS: usize = 3;
    let keys = [",bridge=red,vlan=10", ",bridge=blue,vlan=10"];
    let ports = keys.map(|keys| [keys; GUESTS]).concat();
    let d = Daemon::with_ports(&ports, &["--workers=2"]);
    // Ten million copies: a round makes 54,000.
    let rounds = 190;
    std::thread::scope(|scope| {
        for tenant in 0..keys.len() {
            let d = &d;
            scope.spawn(move || {
                let port = |i: usize| d.socket(tenant * GUESTS + i);
                let vm = |i: usize| Vm::connect(&port(i), VmConfig::new(i as u8));
                let mut net = Net::new((0..GUESTS).map(vm).collect());
                let job = |from: usize, to, frames| {
                    Job::new(from, to, frames, Sizes::Range(60, 90)).flow(tenant as u8)
                };
                let pairs = (0..GUESTS).flat_map(|a| (0..GUESTS).map(move |b| (a, b)));
                let pairs: Vec<_> = pairs.filter(|(a, b)| a != b).collect();
                let unicast = pairs.iter().map(|&(a, b)| job(a, To::Vm(b as u8), 4_000));
                let floods: Vec<Job> = (0..GUESTS).map(|a| job(a, To::Broadcast, 500)).collect();
                // So that the switch knows where each of them is.
                net.run(&floods);
                let jobs: Vec<Job> = unicast.chain(floods).collect();
                for _ in 0..rounds {
                    let Err(stall) = net.try_run(&jobs) else { continue };
                    // A worker waits some milliseconds for a ring that another one holds.
                    let (counters, first) = (d.report(), tenant * GUESTS);
                    let ports = (first..first + GUESTS).map(|i| format!("p{i}"));
                    let busy: u64 = ports.map(|port| counters.get(&port, "drop.ring_busy")).sum();
                    assert_eq!(busy, net.under_way() as u64, "{stall}");
                    println!("tenant {tenant}: {busy} frames dropped by a worker without a CPU");
                    break;
                }
                net.finish();
                let other = 1 - tenant as u8;
                for (checker, sender) in net
                    .checkers
                    .iter()
                    .flat_map(|checker| (0..GUESTS as u8).map(move |s| (checker, s)))
                {
                    for to in (0..GUESTS as u8).map(To::Vm).chain([To::Broadcast]) {
                        let foreign = Stream { sender, queue: 0, to, flow: other };
                        assert_eq!(checker.tally(&foreign), Tally::default(), "{foreign:?}");
                    }
                }
            });
        }
    });
    d.counters().balance();
    d.stop();
}

/// A port that is down says so of every frame, also of one whose tag may not come in.
#[test]
fn a_port_that_is_down_says_so_of_a_wrong_tag() {
    let (d, mut vms) = daemon(&["", ",vlan=10,admin=down"]);
    for tags in [vec![(0x8100, 20)], vec![]] {
        send(&mut vms[1], &frame(BROADCAST, mac_of(1), &tags, 46));
    }
    let c = d.counters();
    assert_eq!((c.sum(Some("p1"), "in", "drop.admin_down"), dropped(&c, 1)), (2, 0));
    d.stop();
}

/// The frame with a tag more.
fn tagged(header: Header, frame: &[u8], tag: u16) -> (Header, Vec<u8>) {
    let tag = [0x8100u16.to_be_bytes(), tag.to_be_bytes()].concat();
    let frame = [&frame[..12], &tag, &frame[12..]].concat();
    let mut header = header;
    if header.flags & 1 != 0 {
        header.csum_start += 4;
    }
    if header.gso_type != 0 {
        header.hdr_len += 4;
    }
    (header, frame)
}

/// Packets with checksums and segments left to the device, over a tag that is pushed and one that
/// is taken out: the header's offsets move with it, and a receiver without the offload gets each
/// segment with the tag.
#[test]
fn offloads_move_with_the_tag() {
    let d = Daemon::with_ports(&[",vlan=10", ",vlan=10", ",trunk=10,20", ",trunk=10,20"], &[]);
    let guest = |id: u8, features| {
        Vm::connect(&d.socket(id.into()), VmConfig::with_offloads(id, features, true))
    };
    let mut access = guest(0, feat::OFFLOADS);
    let mut others = [guest(1, 0), guest(2, feat::OFFLOADS), guest(3, 0)];
    let mut packets = Vec::new();
    for kind in Kind::all().filter(|kind| kind.tags == 0) {
        let mss = kind.mss();
        for (len, ask) in [
            (700, Ask::Nothing),
            (700, Ask::Sum),
            (3 * usize::from(mss) + 5, Ask::Segments(mss)),
            (1000, Ask::Segments(300)),
        ] {
            packets.push((kind, len, ask));
        }
    }
    // From the access port: untagged to one, with a tag to the trunks.
    for &(kind, len, ask) in &packets {
        let packet = Packet::new(kind, access.mac(), BROADCAST, &payload(len as u64, len));
        let (header, bytes) = packet.sent(ask);
        access.tx[0].header = header.bytes(access.cfg.header_len());
        send(&mut access, &bytes);
        for (at, other) in others.iter_mut().enumerate() {
            let mut expected = packet.received(ask, other.cfg.features);
            if at > 0 {
                let all = expected.iter();
                expected = all.map(|(header, frame)| tagged(*header, frame, 10)).collect();
            }
            check(other, &expected, &format!("{kind:?} {ask:?} {len} to {at}"));
        }
    }
    // From a trunk: without a tag to the access ports.
    let [plain, from, trunk] = &mut others;
    for &(kind, len, ask) in &packets {
        let packet = Packet::new(kind, from.mac(), BROADCAST, &payload(len as u64, len));
        let (header, bytes) = packet.sent(ask);
        let (header, bytes) = tagged(header, &bytes, 0x600a);
        from.tx[0].header = header.bytes(from.cfg.header_len());
        send(from, &bytes);
        for other in [&mut *plain, &mut access] {
            let expected = packet.received(ask, other.cfg.features);
            check(other, &expected, &format!("{kind:?} {ask:?} {len} without its tag"));
        }
        let expected = packet.received(ask, trunk.cfg.features);
        let all = expected.iter().map(|(header, frame)| tagged(*header, frame, 0x600a));
        check(trunk, &all.collect::<Vec<_>>(), &format!("{kind:?} {ask:?} {len} with its tag"));
    }
    d.stop();
}

fn check(to: &mut Vm, expected: &[(Header, Vec<u8>)], what: &str) {
    let got = to.rx[0].take(expected.len(), SOON);
    assert_eq!(got.len(), expected.len(), "{what}: frames");
    for (n, ((header, frame), (want_header, want))) in got.iter().zip(expected).enumerate() {
        let header = Header { num_buffers: 0, ..*header };
        assert_eq!(header, *want_header, "{what}: header {n}");
        let first = frame.iter().zip(want).position(|(a, b)| a != b);
        assert!(
            frame == want,
            "{what}: frame {n}, {} and {} bytes, byte {first:?}",
            frame.len(),
            want.len()
        );
    }
}

/// A TAP and a stream are members like guests.
#[test]
fn a_tap_and_a_stream_are_members() {
    in_namespace(|| {
        let dir = testkit::proc::Dir::new();
        let socket = dir.path().join("stream");
        let stream = format!("st,socket={},trunk=10,20", socket.display());
        let extra = [
            "--tap",
            "ta,ifname=ta,vlan=10",
            "--tap",
            "tt,ifname=tt,trunk=all",
            "--stream",
            &stream,
        ];
        let d = Daemon::with_ports(&[",vlan=10", ",vlan=20"], &extra);
        ["ta", "tt"]
            .iter()
            .for_each(|name| drop(testkit::host::ip(&format!("link set {name} up"))));
        let mut vms: Vec<Vm> =
            (0..2).map(|id| Vm::connect(&d.socket(id), VmConfig::new(id as u8))).collect();
        let (access, trunk) = (Host::open("ta"), Host::open("tt"));
        let mut peer = Peer::connect(&socket);
        let up = || d.log().matches("came up").count() == 2 && d.log().contains("port st: ");
        assert!(wait_for(SOON, up), "{}", d.log());
        let tag = |vlan| vec![(0x8100, vlan)];
        // From a guest of VLAN 10.
        for len in [46, 1000] {
            let sent = frame(BROADCAST, mac_of(0), &[], len);
            send(&mut vms[0], &sent);
            assert_eq!(access.receive(SOON), Some(sent));
            let with_tag = frame(BROADCAST, mac_of(0), &tag(10), len);
            assert_eq!(trunk.receive_whole(SOON), Some(with_tag.clone()));
            assert_eq!(peer.receive(SOON), Some(with_tag));
        }
        // From the host and from the stream's peer.
        access.send(&frame(BROADCAST, mac_of(9), &[], 100));
        trunk.send(&frame(BROADCAST, mac_of(8), &tag(20), 100));
        peer.send(&frame(BROADCAST, mac_of(7), &tag(20), 101));
        trunk.send(&frame(BROADCAST, mac_of(8), &tag(30), 100));
        let mut get = |vm: usize, from, len| {
            assert!(vms[vm].rx[0].wait(SOON), "guest {vm} missed that of {from}");
            let expected = frame(BROADCAST, mac_of(from), &[], len);
            vms[vm].rx[0].recv(1, |_, got| assert_eq!(got, expected));
        };
        get(0, 9, 100);
        // In either order.
        let mut came: Vec<Vec<u8>> = Vec::new();
        assert!(wait_for(SOON, || {
            vms[1].rx[0].recv(2, |_, got| came.push(got.to_vec()));
            came.len() == 2
        }));
        came.sort();
        let expected = [(8, 100), (7, 101)].map(|(n, len)| frame(BROADCAST, mac_of(n), &[], len));
        assert!(expected.iter().all(|frame| came.contains(frame)), "{came:02x?}");
        std::thread::sleep(QUIET);
        assert_eq!(vms.iter_mut().map(|vm| vm.rx[0].recv(9, |_, _| {})).sum::<usize>(), 0);
        d.stop();
    });
}

/// An announcement has no tag: it is in the VLAN of such frames, and a port without one has none to
/// announce an address in.
#[test]
fn an_address_is_announced_in_the_vlan_of_untagged_frames() {
    let ports = [",trunk=10,20", ",trunk=10,native=20", ",vlan=20", ",trunk=10,20", ",vlan=10"];
    let d = Daemon::with_ports(&ports, &[]);
    let connect = |id: u8| Vm::connect(&d.socket(id.into()), VmConfig::new(id));
    let mut vms: Vec<Vm> = (0..5).map(connect).collect();
    for (from, reached) in [(0, &[][..]), (1, &[0, 2, 3]), (2, &[0, 1, 3])] {
        vms[from].fe.send_rarp([2, 0x77, 0, 0, 0, from as u8]).expect("rarp");
        let counted = |c: &Counters| {
            c.get(&format!("p{from}"), "announced frames")
                + c.get(&format!("p{from}"), "announced drop.vlan")
        };
        assert!(wait_for(SOON, || counted(&d.counters()) > 0), "{:#?}", d.counters());
        std::thread::sleep(QUIET);
        for (to, vm) in vms.iter_mut().enumerate() {
            let mut tags = Vec::new();
            vm.rx[0].recv(8, |_, frame| {
                assert_eq!(frame[6..12], [2, 0x77, 0, 0, 0, from as u8]);
                tags.push((frame[12..14] == [0x81, 0]).then(|| frame[15]));
            });
            let tag = matches!(to, 0 | 3).then_some(20);
            let wanted = if reached.contains(&to) { vec![tag] } else { Vec::new() };
            assert_eq!(tags, wanted, "from {from} to {to}");
        }
    }
    let c = d.counters();
    assert_eq!(c.get("p0", "announced drop.vlan"), 1, "{c:#?}");
    assert_eq!([0, 1, 2].map(|n| c.get(&format!("p{n}"), "addresses")), [0, 1, 1], "{c:#?}");
    c.balance();
    d.stop();
}
