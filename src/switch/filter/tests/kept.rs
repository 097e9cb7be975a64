//! What one process hands to the next: the same connections, or nothing.

use super::super::connections::{Connections, Damaged};
use super::*;

fn filled() -> Port {
    let port = Port::new(&["in accept", "out accept"]);
    let (vm, peer) = (("10.0.0.1", 22), ("10.0.0.2", 4000));
    assert!(port.passes(&tcp(peer, vm, SYN), In));
    assert!(port.passes(&tcp(vm, peer, SYN | ACK), Out));
    assert!(port.passes(&tcp(peer, vm, ACK), In));
    assert!(port.passes(&udp(("fd00::1", 9), ("fd00::2", 53)), Out));
    assert!(port.passes(&icmp("10.0.0.1", "10.0.0.2", [8, 0], 5, &[]), Out));
    port
}

fn name(port: u16) -> Option<String> {
    (port == 0).then(|| "vm1".to_owned())
}

fn number(name: &str) -> Option<u16> {
    (name == "vm1").then_some(2)
}

/// Another table, with another key.
fn another() -> Connections {
    let table = Connections::new(ConnectionsConfig { key: [9; 4], ..CONFIG });
    (0..4).for_each(|port| table.prepare(port));
    table
}

#[test]
fn connections_go_on_in_another_table() {
    let port = filled();
    let bytes = port.connections.dump(port.now, name);
    let table = another();
    let now = Tick::from(77);
    assert_eq!(table.load(&bytes, now, number), Ok(3));
    let strip = |mut all: Vec<crate::filter::connections::Connection>| {
        all.iter_mut().for_each(|one| (one.parts.port, one.rule, one.generation) = (0, 0, 0));
        all.sort_by_key(|one| one.parts.protocol);
        all
    };
    let (before, after) = (port.connections.entries(None, port.now), table.entries(Some(2), now));
    assert_eq!(strip(before), strip(after));
    let next = Port { connections: table, now, ..Port::new(&["in accept tcp"]) };
    let gate = Gate { port: 2, ..next.gate() };
    let judge = |frame: &[u8], direction| gate.judge(&parse(frame), direction, 60, now).refused;
    assert_eq!(judge(&tcp(("10.0.0.1", 22), ("10.0.0.2", 4000), ACK), Out), None);
    // The rules are asked about what came from elsewhere.
    let reply = udp(("fd00::2", 53), ("fd00::1", 9));
    assert_eq!(judge(&reply, In), Some(Cause::Rule));
}

#[test]
fn ports_that_are_gone_are_left_out() {
    let port = filled();
    assert_eq!(another().load(&port.connections.dump(port.now, |_| None), port.now, number), Ok(0));
    let bytes = port.connections.dump(port.now, name);
    let table = another();
    assert_eq!(table.load(&bytes, port.now, |_| None), Ok(0));
    assert_eq!(table.load(&bytes, port.now, |_| Some(4)), Ok(0), "a port beyond the table");
    assert_eq!(table.load(&bytes, port.now, number), Ok(3));
    assert_eq!(table.load(&bytes, port.now, number), Ok(0), "there already");
    assert_eq!(table.len(), 3);
}

#[test]
fn a_limit_of_the_next_table_holds() {
    let port = filled();
    let bytes = port.connections.dump(port.now, name);
    let config = ConnectionsConfig { max_per_port: 2, ..CONFIG };
    let table = Connections::new(config);
    assert_eq!(table.load(&bytes, port.now, number), Ok(2));
}

#[test]
fn damaged_bytes_add_nothing() {
    let port = filled();
    let bytes = port.connections.dump(port.now, name);
    let table = another();
    for at in 0..bytes.len() {
        for bit in [0, 7] {
            let mut wrong = bytes.clone();
            wrong[at] ^= 1 << bit;
            assert!(table.load(&wrong, port.now, number).is_err(), "octet {at}");
        }
        assert!(table.load(&bytes[..at], port.now, number).is_err(), "{at} octets");
    }
    assert!(table.load(&[&bytes[..], &[0]].concat(), port.now, number).is_err());
    assert!(table.is_empty());
    assert_eq!(table.load(&[], port.now, number), Err(Damaged::Magic));
    let mut other = bytes.clone();
    other[8] = 2;
    assert_eq!(table.load(&other, port.now, number), Err(Damaged::Version(2)));
}
