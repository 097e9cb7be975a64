//! A port with a filter: a connection that a rule accepts, its reply, and what no rule accepts:
//! `cargo run -p vioswitch-switch --example filter`.

use vioswitch_switch::Tick;
use vioswitch_switch::filter::named::Groups;
use vioswitch_switch::filter::{
    Compiled, Connections, ConnectionsConfig, Direction, Filter, Fragments, Gate, Verdict, packet,
};
use vioswitch_switch::port_security::Headers;

/// A datagram of UDP.
fn datagram([from, to]: [u8; 2], [from_port, to_port]: [u8; 2]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from, 8, 0];
    frame.extend([0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, from, 10, 0, 0, to]);
    frame.extend([0, from_port, 0, to_port, 0, 8, 0, 0]);
    frame
}

fn main() {
    let rule = "in accept udp from 10.0.0.0/24 to port 53".parse().expect("a rule");
    let drop = Some(Verdict::Drop);
    let filter =
        Filter { rules: vec![rule], default_in: drop, default_out: drop, ..Filter::default() };
    let rules = Compiled::new(&[&filter], &Groups::new(), 1).expect("not too many rules");
    let connections = Connections::new(ConnectionsConfig::limited(1, [1, 2, 3, 4]));
    connections.prepare(0);
    let fragments = Fragments::default();
    let gate = Gate { port: 0, rules: &rules, connections: &connections, fragments: &fragments };
    let passes = |frame: &[u8], direction| {
        let headers =
            Headers { bytes: frame, whole: &[], len: frame.len(), sum_at: None, is_cut: false };
        let parsed = packet::parse(&headers).expect("a sound packet");
        gate.judge(&parsed, direction, Tick::from(1)).refused.is_none()
    };
    assert!(passes(&datagram([2, 1], [9, 53]), Direction::In), "accepted");
    assert!(passes(&datagram([1, 2], [53, 9]), Direction::Out), "the reply");
    assert!(!passes(&datagram([1, 2], [53, 8]), Direction::Out), "a reply to nobody");
    println!("{:?}", connections.entries(None, Tick::from(1)));
}
