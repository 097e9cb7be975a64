//! What a worker remembers: the same answers as the gate's, for a tick.

use super::super::memo::{Epoch, FlowMemo};
use super::*;
use base::frame::ethernet::Snapshot;

fn snapshot(frame: &[u8]) -> Snapshot {
    let mut bytes = [0; 64];
    let len = frame.len().min(64);
    bytes[..len].copy_from_slice(&frame[..len]);
    bytes
}

/// True if the memo lets a frame pass.
fn covers(memo: &mut FlowMemo, port: &Port, snapshot: &Snapshot, len: u32) -> bool {
    let stretch = memo.stretch(&port.connections, [(snapshot, len)].into_iter());
    stretch.is_some_and(|(_, count)| count == 1)
}

/// Decides by the memo or the gate; returns whether the frame passes and whether the memo knew.
fn decide(memo: &mut FlowMemo, port: &Port, frame: &[u8], direction: Direction) -> (bool, bool) {
    let snapshot = snapshot(frame);
    memo.begin(Epoch::new(&port.gate(), direction, 0, port.now));
    if covers(memo, port, &snapshot, frame.len() as u32) {
        return (true, true);
    }
    let answer = port.judge(frame, direction);
    if let Parsed::Packet(packet) = parse(frame) {
        memo.note(&packet, &snapshot, &answer);
    }
    (answer.refused.is_none(), false)
}

const VM: End<'_> = ("10.0.0.1", 22);
const PEER: End<'_> = ("10.0.0.2", 4000);

fn opened() -> (Port, FlowMemo) {
    let port = Port::new(&["in accept tcp to port 22", "out accept udp"]);
    let mut memo = FlowMemo::default();
    for (frame, direction) in
        [(tcp(PEER, VM, SYN), In), (tcp(VM, PEER, SYN | ACK), Out), (tcp(PEER, VM, ACK), In)]
    {
        assert_eq!(decide(&mut memo, &port, &frame, direction), (true, false));
    }
    (port, memo)
}

#[test]
fn an_open_connection_is_remembered_for_a_tick() {
    let (mut port, mut memo) = opened();
    let data = tcp(PEER, VM, ACK | 8);
    assert_eq!(decide(&mut memo, &port, &data, In), (true, true));
    assert_eq!(decide(&mut memo, &port, &tcp(VM, PEER, ACK), Out), (true, false));
    assert_eq!(decide(&mut memo, &port, &tcp(VM, PEER, ACK), Out), (true, true));
    assert_eq!(decide(&mut memo, &port, &data, In), (true, true), "two flows in turn");
    port.wait(1);
    assert_eq!(decide(&mut memo, &port, &data, In), (true, false), "the time is renewed");
    assert_eq!(decide(&mut memo, &port, &data, In), (true, true));
    assert_eq!(port.rules.counts(0).unwrap().get(), [5, 5 * 54, 1], "those of the gate");
}

#[test]
fn what_changes_a_connection_is_not_covered() {
    for flags in [FIN | ACK, RST | ACK, SYN | ACK, SYN, RST, 0] {
        let (port, mut memo) = opened();
        assert!(decide(&mut memo, &port, &tcp(PEER, VM, ACK), In).1);
        let snapshot = snapshot(&tcp(PEER, VM, flags));
        assert!(!covers(&mut memo, &port, &snapshot, 54), "{flags:#x}");
    }
    let (port, mut memo) = opened();
    let known = tcp(PEER, VM, ACK);
    assert!(decide(&mut memo, &port, &known, In).1);
    // Each octet that tells what the packet is; others may differ.
    for at in 12..54 {
        let mut other = snapshot(&known);
        other[at] ^= if at == 47 { 0x10 } else { 0x80 };
        let free =
            [15, 16, 17, 18, 19, 22, 24, 25].contains(&at) || (38..47).contains(&at) || at > 47;
        assert_eq!(covers(&mut memo, &port, &other, 54), free, "octet {at}");
    }
    let mut fragment = snapshot(&known);
    fragment[20] = 0x20;
    assert!(!covers(&mut memo, &port, &fragment, 54));
    fragment[20] = 0x40;
    assert!(covers(&mut memo, &port, &fragment, 54), "not to be fragmented");
    let short = snapshot(&known[..40]);
    assert!(!covers(&mut memo, &port, &short, 40), "a frame without flags");
}

#[test]
fn another_epoch_has_other_answers() {
    let (mut port, mut memo) = opened();
    let data = tcp(PEER, VM, ACK);
    assert!(decide(&mut memo, &port, &data, In).1);
    port.connections.flush(|_| true);
    assert_eq!(decide(&mut memo, &port, &data, In), (true, false), "picked up by its rule");
    assert_eq!(decide(&mut memo, &port, &data, In), (true, false), "settled");
    assert!(decide(&mut memo, &port, &data, In).1);
    port.change(&["out accept"]);
    assert_eq!(decide(&mut memo, &port, &data, In), (false, false), "other rules");
    assert_eq!(decide(&mut memo, &port, &data, In), (false, false));
}

#[test]
fn datagrams_are_remembered_and_those_without_ports_are_not() {
    let (port, mut memo) = opened();
    let ask = udp(("10.0.0.1", 5000), ("10.0.0.9", 53));
    assert_eq!(decide(&mut memo, &port, &ask, Out), (true, false), "the first");
    assert_eq!(decide(&mut memo, &port, &ask, Out), (true, false), "settled");
    assert_eq!(decide(&mut memo, &port, &ask, Out), (true, true));
    let odd = udp(("10.0.0.1", 5000), ("10.0.0.9", 0));
    for _ in 0..4 {
        assert_eq!(decide(&mut memo, &port, &odd, Out), (true, false));
    }
}

/// The connection closes, by this worker or by another, and ACKs must be seen by the table.
#[test]
fn a_connection_that_another_packet_changes_is_not_covered() {
    let (port, mut memo) = opened();
    let (to_vm, from_vm) = (tcp(PEER, VM, ACK), tcp(VM, PEER, ACK));
    for (frame, direction) in [(&to_vm, In), (&from_vm, Out), (&from_vm, Out)] {
        decide(&mut memo, &port, frame, direction);
    }
    assert!(decide(&mut memo, &port, &to_vm, In).1 && decide(&mut memo, &port, &from_vm, Out).1);
    // The FIN of another worker.
    assert!(port.passes(&tcp(PEER, VM, FIN | ACK), In));
    assert_eq!(decide(&mut memo, &port, &from_vm, Out), (true, false));
    assert!(port.passes(&tcp(VM, PEER, FIN | ACK), Out));
    assert_eq!(decide(&mut memo, &port, &to_vm, In), (true, false));
    let state = port.connections.entries(None, port.now)[0].state;
    assert_eq!(state, crate::filter::connections::State::TimeWait);
    assert_eq!(decide(&mut memo, &port, &tcp(PEER, VM, SYN), In), (true, false), "another one");
}

#[test]
fn a_burst_of_several_flows_is_covered_up_to_a_change() {
    let port = Port::new(&["in accept"]);
    let mut memo = FlowMemo::default();
    let peer = |n: u16| ("10.0.0.2", 4000 + n);
    for n in 0..3 {
        for frame in [SYN, ACK] {
            let out = frame == ACK;
            if out {
                assert!(port.passes(&tcp(VM, peer(n), SYN | ACK), Out));
            }
            decide(&mut memo, &port, &tcp(peer(n), VM, frame), In);
        }
        decide(&mut memo, &port, &tcp(peer(n), VM, ACK), In);
    }
    let flows = [0, 0, 1, 2, 1, 1, 0];
    let mut burst: Vec<_> = flows.map(|n| snapshot(&tcp(peer(n), VM, ACK))).to_vec();
    burst.push(snapshot(&tcp(peer(1), VM, FIN | ACK)));
    burst.push(snapshot(&tcp(peer(0), VM, ACK)));
    memo.begin(Epoch::new(&port.gate(), In, 0, port.now));
    let (mut at, mut stretches) = (0, Vec::new());
    while let Some((rule, count)) =
        memo.stretch(&port.connections, burst[at..].iter().map(|frame| (frame, 54)))
    {
        assert_eq!(rule, 0);
        stretches.push(count);
        at += count;
    }
    assert_eq!(stretches, [2, 1, 1, 2, 1]);
    assert_eq!(memo.stretch(&port.connections, std::iter::empty()), None);
}
