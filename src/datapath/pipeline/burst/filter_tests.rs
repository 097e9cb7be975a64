//! Filters of senders and receivers: what passes, what is counted, and which bytes are checked.

use std::sync::Arc;

use super::flood_tests::{BUFFER, Lab, mac_of};
use super::*;
use crate::pipeline::filter::Filters;
use crate::ring::tests::DATA;
use base::frame::MacAddr;
use switch::filter::named::Groups;
use switch::filter::{Compiled, Connections, ConnectionsConfig, Filter, PortFilter, Verdict};
use switch::{Limit, Membership, PortId, PortPolicy, VlanSet};

const ALL: [u8; 6] = [0xff; 6];

/// A filter of port `id` that has these rules and drops the rest.
fn filter_of(id: PortId, connections: &Arc<Connections>, rules: &[&str]) -> Arc<PortFilter> {
    let rules = rules.iter().map(|rule| rule.parse().unwrap()).collect();
    let drop = Some(Verdict::Drop);
    let filter = Filter { name: "f".into(), default_in: drop, default_out: drop, rules };
    let generation = 1 + u32::from(id);
    let rules = Compiled::new(&[&filter], &Groups::new(), generation).unwrap();
    connections.prepare(id);
    Arc::new(PortFilter::new(rules, Arc::clone(connections)))
}

/// A port whose filter has these rules and drops the rest.
fn filtered(id: PortId, connections: &Arc<Connections>, rules: &[&str]) -> Port {
    let filter = Some(filter_of(id, connections, rules));
    let port = Port::guest(id, &id.to_string(), 1);
    port.policy.set(PortPolicy { filter, ..PortPolicy::PLAIN });
    port
}

fn connections() -> Arc<Connections> {
    Arc::new(Connections::new(ConnectionsConfig::limited(4, [1, 2, 3, 4])))
}

fn plain(id: PortId) -> Port {
    Port::guest(id, &id.to_string(), 1)
}

/// A datagram of UDP from port 0.
fn udp(to: [u8; 6], port: u8) -> Vec<u8> {
    let mut frame = [&to[..], &mac_of(0), &[8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17]].concat();
    frame.extend([0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 3, 0xe8, 0, port, 0, 8, 0, 0]);
    frame.resize(60, 0);
    frame
}

/// A segment of TCP over IPv6 with extension headers: longer than a snapshot.
fn tcp6(to: [u8; 6], port: u8) -> Vec<u8> {
    let mut frame = [&to[..], &mac_of(0), &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 36, 60, 64]].concat();
    for last in [1, 2] {
        frame.extend([0xfd; 15]);
        frame.push(last);
    }
    frame.extend([6, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    frame.extend([3, 0xe8, 0, port, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 1, 0, 0, 0, 0, 0]);
    frame
}

/// Returns the destination ports, at `offset`, of the frames that a port has received.
fn received(lab: &Lab, port: PortId, offset: u64) -> Vec<u8> {
    let frames = lab.guest(port).rx[0].stats.frames.get();
    let byte = |n| lab.memory[usize::from(port)].read(DATA + BUFFER * n + 12 + offset, 1)[0];
    (0..frames).map(byte).collect()
}

const UDP_PORT: u64 = 37;

fn learn(lab: &Lab, port: PortId) {
    let mac = MacAddr(mac_of(port));
    lab.pipelines[0].fdb.insert_static(mac, port).unwrap();
}

#[test]
fn a_receiver_gets_what_its_filter_accepts() {
    let connections = connections();
    let receiver = filtered(1, &connections, &["in accept udp to port 53"]);
    let mut lab = Lab::with([plain(0), receiver, plain(2)].into_iter());
    learn(&lab, 1);
    learn(&lab, 2);
    for (to, port) in [(1, 53), (1, 54), (2, 54), (1, 53), (1, 55)] {
        lab.send(&udp(mac_of(to), port));
    }
    lab.finish(0);
    assert_eq!((received(&lab, 1, UDP_PORT), received(&lab, 2, UDP_PORT)), (vec![53; 2], vec![54]));
    assert_eq!(lab.ports[1].stats.drops.get(DropReason::Filter), 2);
    assert_eq!(lab.guest(0).tx[0].stats.frames.get(), 5);
    assert_eq!(connections.port_len(1), 1);
}

#[test]
fn copies_of_a_flood_meet_the_filter_of_each_receiver() {
    let connections = connections();
    let receiver = filtered(1, &connections, &["in accept udp to port 53"]);
    let mut lab = Lab::with([plain(0), receiver, plain(2)].into_iter());
    for port in [53, 54, 53] {
        lab.send(&udp(ALL, port));
    }
    // To an address that nobody has.
    lab.send(&udp([2, 9, 9, 9, 9, 9], 54));
    lab.finish(0);
    assert_eq!(received(&lab, 1, UDP_PORT), [53, 53]);
    assert_eq!(received(&lab, 2, UDP_PORT), [53, 54, 53, 54]);
    assert_eq!(lab.ports[1].stats.drops.get(DropReason::Filter), 2);
}

#[test]
fn a_sender_sends_what_its_filter_accepts() {
    let connections = connections();
    let sender = filtered(0, &connections, &["out accept udp to port 53", "in accept"]);
    let mut lab = Lab::with([sender, plain(1)].into_iter());
    learn(&lab, 1);
    for port in [54, 53, 54, 53, 53, 54] {
        lab.send(&udp(mac_of(1), port));
    }
    let mut arp = [&ALL[..], &mac_of(0), &[8, 6]].concat();
    arp.resize(60, 77);
    lab.send(&arp);
    lab.finish(0);
    assert_eq!(received(&lab, 1, UDP_PORT), [53, 53, 53, 77], "and neighbours");
    let stats = &lab.guest(0).tx[0].stats;
    assert_eq!((stats.drops.get(DropReason::Filter), stats.frames.get()), (3, 7));
}

/// A connection is one entry at each of its ports.
#[test]
fn both_filters_are_asked() {
    let connections = connections();
    let sender = filtered(0, &connections, &["out accept udp to port 53-54"]);
    let receiver = filtered(1, &connections, &["in accept udp to port 54-55"]);
    let mut lab = Lab::with([sender, receiver].into_iter());
    learn(&lab, 1);
    for port in [53, 54, 55] {
        lab.send(&udp(mac_of(1), port));
    }
    lab.finish(0);
    assert_eq!(received(&lab, 1, UDP_PORT), [54]);
    assert_eq!((connections.port_len(0), connections.port_len(1)), (2, 1));
    assert_eq!(lab.guest(0).tx[0].stats.drops.get(DropReason::Filter), 1);
    assert_eq!(lab.ports[1].stats.drops.get(DropReason::Filter), 1);
}

#[test]
fn headers_behind_the_snapshot_are_checked() {
    let connections = connections();
    let receiver = filtered(1, &connections, &["in accept tcp to port 80"]);
    let mut lab = Lab::with([plain(0), receiver].into_iter());
    learn(&lab, 1);
    for (to, port) in [(mac_of(1), 80), (mac_of(1), 81), (ALL, 80), (ALL, 81)] {
        lab.send(&tcp6(to, port));
    }
    lab.finish(0);
    assert_eq!(received(&lab, 1, 14 + 40 + 16 + 3), [80, 80]);
}

/// The filter judges the bytes that the receiver gets, also if the sender changes the frame
/// between check and delivery.
#[test]
fn checked_bytes_are_the_delivered_bytes() {
    let connections = connections();
    let port = filtered(1, &connections, &["in accept tcp to port 80"]);
    let ports: PortTable = [plain(0), port].map(Arc::new).into_iter().collect();
    let memory = crate::ring::tests::Guest::new();
    let queue = memory.queue();
    let frame = tcp6(mac_of(1), 80);
    let at = DATA + 12;
    memory.write(at, &frame);
    let len = 12 + frame.len() as u32;
    crate::ring::tests::describe(&queue, 0, &[crate::ring::tests::desc(DATA, len, 0, 0)]);
    crate::ring::tests::offer(&queue, &[0]);
    let mut burst = Burst::default();
    assert_eq!(memory.start(&queue).take(&mut burst, 64), Ok(1));
    let (mut kept, mut outcomes) = ([0; BURST_FRAMES], Outcomes::default());
    let way = (0, &ports, &ports[1], true);
    let passing = Filters::default().that_pass(
        &mut burst,
        &[0],
        way,
        Tick::from(9),
        &mut kept,
        &mut outcomes,
    );
    assert_eq!(passing, [0]);
    memory.write(at, &tcp6(mac_of(1), 22));
    let mut bytes = [0; 128];
    let len = burst.egress(0).copy_beginning(&mut bytes);
    assert_eq!(bytes[..len], frame);
}

/// A port that gets frames with another tag than they were sent with has one connection for both.
#[test]
fn a_connection_is_in_a_vlan_and_not_in_a_tag() {
    let connections = connections();
    let receiver = filtered(1, &connections, &["in accept udp to port 53"]);
    let policy = receiver.policy.get();
    let tagged = VlanSet::of(5, 5);
    let vlans = Membership::Trunk { tagged, native: None };
    receiver.policy.set(PortPolicy { vlans, ..(*policy).clone() });
    let sender = plain(0);
    sender.policy.set(PortPolicy { vlans: Membership::Access(5), ..PortPolicy::PLAIN });
    let mut lab = Lab::with([sender, receiver].into_iter());
    lab.send(&udp(ALL, 53));
    lab.finish(0);
    let vlans: Vec<_> =
        connections.entries(None, Tick::default()).iter().map(|entry| entry.parts.vlan).collect();
    assert_eq!(vlans, [5]);
    assert_eq!(received(&lab, 1, UDP_PORT + 4), [53], "behind the tag");
}

/// Frames wait in their ring for the receiver's buffers, and are judged each time that they are
/// taken.
#[test]
fn frames_that_go_back_to_their_ring_are_counted_once_at_their_rules() {
    for flows in [1, 3] {
        let connections = connections();
        let filters = [0, 1].map(|id| {
            let rules = ["out accept udp to port 50-59 log", "in accept udp to port 50-59"];
            filter_of(id, &connections, &rules)
        });
        let none = Limit::default();
        let mut lab = super::tests::Lab::filtered(none, none, |id| {
            filters.get(usize::from(id)).map(Arc::clone)
        });
        for head in 0..64 {
            let frame = udp(mac_of(1), 50 + head / 5 % flows);
            lab.memory[0].write(DATA + 128 * u64::from(head) + 12, &frame);
        }
        assert!(matches!(lab.turn(), Polled::WaitsForReceiver(_)));
        for (port, rule) in [(0, 0), (1, 1)] {
            let counted = filters[port].rules.counts(rule).unwrap().get();
            assert_eq!(counted, [0, 0, flows.into()], "{flows} flows, port {port}");
        }
        for all in [10_u16, 30, 64] {
            lab.offer_buffers(all);
            (0..10).for_each(|_| _ = lab.turn());
            let frames = u64::from(all);
            let received = lab.ports[1].as_guest().unwrap().rx[0].stats.frames.get();
            assert_eq!(received, frames);
            for (port, rule) in [(0, 0), (1, 1)] {
                let counted = filters[port].rules.counts(rule).unwrap().get();
                assert_eq!(counted, [frames, 60 * frames, flows.into()], "port {port}");
            }
        }
        let (logged, lost) = filters[0].log.take();
        assert_eq!((logged.len(), lost), (flows.into(), 0), "the first packet of each connection");
    }
}
