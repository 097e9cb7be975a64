//! What one process hands to the next: the same connections, or nothing.

use super::super::connections::{Connections, Damaged};
use super::attacks::data;
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

/// Adds a dump; returns the number of connections that were added.
fn load(
    table: &Connections,
    bytes: &[u8],
    now: Tick,
    port: impl Fn(&str) -> Option<u16>,
) -> Result<usize, Damaged> {
    table.load(bytes, now, port).map(|(count, _)| count)
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
    assert_eq!(load(&table, &bytes, now, number), Ok(3));
    let strip = |mut all: Vec<crate::filter::connections::Connection>| {
        all.iter_mut().for_each(|one| (one.parts.port, one.rule, one.generation) = (0, 0, 0));
        all.sort_by_key(|one| one.parts.protocol);
        all
    };
    let (before, after) = (port.connections.entries(None, port.now), table.entries(Some(2), now));
    assert_eq!(strip(before), strip(after));
    let next = Port { connections: table, now, ..Port::new(&["in accept tcp"]) };
    let gate = Gate { port: 2, ..next.gate() };
    let judge = |frame: &[u8], direction| gate.judge(&parse(frame), direction, now).refused;
    assert_eq!(judge(&tcp(("10.0.0.1", 22), ("10.0.0.2", 4000), ACK), Out), None);
    // The rules are asked about what came from elsewhere.
    let reply = udp(("fd00::2", 53), ("fd00::1", 9));
    assert_eq!(judge(&reply, In), Some(Cause::Rule));
}

#[test]
fn ports_that_are_gone_are_left_out() {
    let port = filled();
    assert_eq!(
        load(&another(), &port.connections.dump(port.now, |_| None), port.now, number),
        Ok(0)
    );
    let bytes = port.connections.dump(port.now, name);
    let table = another();
    assert_eq!(load(&table, &bytes, port.now, |_| None), Ok(0));
    assert_eq!(load(&table, &bytes, port.now, |_| Some(4)), Ok(0), "a port beyond the table");
    assert_eq!(load(&table, &bytes, port.now, number), Ok(3));
    assert_eq!(load(&table, &bytes, port.now, number), Ok(0), "there already");
    assert_eq!(table.len(), 3);
}

#[test]
fn a_limit_of_the_next_table_holds() {
    let port = filled();
    let bytes = port.connections.dump(port.now, name);
    let config = ConnectionsConfig { max_per_port: 2, ..CONFIG };
    let table = Connections::new(config);
    assert_eq!(load(&table, &bytes, port.now, number), Ok(2));
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
            assert!(load(&table, &wrong, port.now, number).is_err(), "octet {at}");
        }
        assert!(load(&table, &bytes[..at], port.now, number).is_err(), "{at} octets");
    }
    assert!(load(&table, &[&bytes[..], &[0]].concat(), port.now, number).is_err());
    assert!(table.is_empty());
    assert_eq!(load(&table, &[], port.now, number), Err(Damaged::Magic));
    let mut other = bytes.clone();
    other[8] = 2;
    assert_eq!(load(&table, &other, port.now, number), Err(Damaged::Version(2)));
}

#[test]
fn connections_wait_for_a_port_that_comes_later() {
    let port = filled();
    let bytes = port.connections.dump(port.now, name);
    let table = another();
    let (count, mut orphans) = table.load(&bytes, Tick::from(77), |_| None).unwrap();
    assert_eq!((count, orphans.is_empty(), table.len()), (0, false, 0));
    assert_eq!(table.adopt(&mut orphans, "vm2", 2), 0);
    assert_eq!(table.adopt(&mut orphans, "vm1", 2), 3);
    assert!(orphans.is_empty());
    assert_eq!(table.entries(Some(2), Tick::from(77)).len(), 3);
    // The time-outs count from the moment at which the dump was read.
    let of_udp = |seconds: u32| {
        let all = table.entries(None, Tick::from(77 + seconds));
        all.iter().any(|one| one.parts.protocol == 17)
    };
    assert!(of_udp(29) && !of_udp(31));
}

/// The next process knows which end has sent a FIN or a RST: what proves that the segment was
/// forged opens the connection again, and nothing else does.
#[test]
fn a_connection_that_ends_goes_on_in_another_table() {
    let (vm, peer) = (("10.0.0.1", 4000), ("10.0.0.2", 80));
    let ends = |direction| if direction == Out { (vm, peer) } else { (peer, vm) };
    let segment = |direction, flags| tcp(ends(direction).0, ends(direction).1, flags);
    let (fin, rst) = (FIN | ACK, RST);
    for (ends, flags, next, state) in [
        (Out, fin, Out, "established"),
        (Out, fin, In, "close-wait"),
        (In, fin, In, "established"),
        (In, fin, Out, "close-wait"),
        (Out, rst, Out, "established"),
        (Out, rst, In, "closed"),
        (In, rst, In, "established"),
        (In, rst, Out, "closed"),
    ] {
        let port = Port::new(&["in accept", "out accept"]);
        for (direction, flags) in [(Out, SYN), (In, SYN | ACK), (Out, ACK), (ends, flags)] {
            assert!(port.passes(&segment(direction, flags), direction));
        }
        let (table, now) = (another(), port.now);
        assert_eq!(load(&table, &port.connections.dump(now, name), now, number), Ok(1));
        let port = Port { connections: table, ..port };
        let gate = Gate { port: 2, ..port.gate() };
        let frame = data(segment(next, ACK));
        assert_eq!(gate.judge(&parse(&frame), next, now).refused, None);
        let found = port.connections.entries(None, now);
        assert_eq!((found.len(), found[0].state.name()), (1, state), "{flags:x} {next:?}");
    }
}

#[test]
fn half_open_connections_of_another_process_make_room() {
    let config = ConnectionsConfig { max_per_port: 4, reserved_per_port: 4, ..CONFIG };
    let port = Port::new(&["in accept"]);
    for n in 0..4 {
        assert!(port.passes(&tcp(("10.0.0.2", 4000 + n), ("10.0.0.1", 22), SYN), In));
    }
    let table = Connections::new(config);
    table.prepare(2);
    let bytes = port.connections.dump(port.now, name);
    assert_eq!(load(&table, &bytes, port.now, number), Ok(4));
    let next = Port { connections: table, ..port };
    let gate = Gate { port: 2, ..next.gate() };
    let frame = tcp(("10.0.0.2", 5000), ("10.0.0.1", 22), SYN);
    assert_eq!(gate.judge(&parse(&frame), In, next.now).refused, None);
}

/// A version with longer time-outs wrote the dump.
#[test]
fn a_time_that_is_too_long_is_shortened() {
    let port = filled();
    let mut bytes = port.connections.dump(port.now, name);
    // The last connection's ticks stand in front of the sum.
    let (at, end) = (bytes.len() - 12, bytes.len() - 8);
    bytes[at..end].copy_from_slice(&u32::MAX.to_le_bytes());
    let summed = super::super::connections::resum(&bytes);
    let table = another();
    assert_eq!(load(&table, &summed, port.now, number), Ok(3));
    let most = table.entries(None, port.now).iter().map(|one| one.seconds).max();
    assert!(most <= Some(5 * 86_400 + 1), "{most:?}");
}
