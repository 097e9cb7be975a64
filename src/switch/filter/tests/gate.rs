//! What passes: rules, connections, replies, errors, fragments, and changes of the rules.

use super::*;

const VM: &str = "10.0.0.1";
const PEER: &str = "10.0.0.2";
const SSH: &[&str] = &["in accept tcp to port 22", "out accept udp to port 53"];

fn to_vm(port: u16, flags: u8) -> Vec<u8> {
    tcp((PEER, 4000), (VM, port), flags)
}

fn from_vm(port: u16, flags: u8) -> Vec<u8> {
    tcp((VM, port), (PEER, 4000), flags)
}

/// Opens a TCP connection from the peer to the VM.
fn open(port: &Port, to: u16) {
    assert!(port.passes(&to_vm(to, SYN), In));
    assert!(port.passes(&from_vm(to, SYN | ACK), Out));
    assert!(port.passes(&to_vm(to, ACK), In));
}

#[test]
fn replies_of_an_accepted_connection_pass() {
    let port = Port::new(SSH);
    assert_eq!(port.refused(&from_vm(22, SYN | ACK), Out), Some(Cause::Rule), "unasked");
    open(&port, 22);
    assert!(port.passes(&from_vm(22, ACK), Out) && port.passes(&to_vm(22, ACK), In));
    assert_eq!(port.refused(&to_vm(23, SYN), In), Some(Cause::Rule));
    assert_eq!(port.refused(&from_vm(23, SYN), Out), Some(Cause::Rule));
    assert!(port.passes(&udp((VM, 5000), (PEER, 53)), Out));
    assert!(port.passes(&udp((PEER, 53), (VM, 5000)), In));
    assert_eq!(port.refused(&udp((PEER, 53), (VM, 5001)), In), Some(Cause::Rule), "forged");
    let other = udp(("10.0.0.3", 53), (VM, 5000));
    assert_eq!(port.refused(&other, In), Some(Cause::Rule), "of another peer");
}

#[test]
fn a_packet_that_begins_nothing_passes_by_a_stateless_rule_alone() {
    let port = Port::new(&["in accept tcp"]);
    for flags in [RST, SYN | ACK, FIN | ACK] {
        assert_eq!(port.refused(&to_vm(80, flags), In), Some(Cause::State), "{flags:#x}");
    }
    assert_eq!(port.connections.len(), 0);
    let port = Port::new(&["in accept tcp stateless"]);
    for flags in [RST, SYN | ACK, FIN | ACK, SYN] {
        assert!(port.passes(&to_vm(80, flags), In), "{flags:#x}");
    }
    assert_eq!(port.connections.len(), 0);
    assert_eq!(port.refused(&from_vm(80, ACK), Out), Some(Cause::Rule), "answers need a rule");
}

#[test]
fn a_connection_from_before_the_filter_goes_on_if_a_rule_permits_it() {
    let port = Port::new(SSH);
    assert!(port.passes(&to_vm(22, ACK), In));
    assert!(port.passes(&from_vm(22, ACK), Out));
    assert_eq!(port.refused(&from_vm(23, ACK), Out), Some(Cause::Rule));
}

#[test]
fn ping_passes_one_way_and_its_replies_the_other() {
    let port = Port::new(&["out accept icmp:echo-request"]);
    let ping = |from, to, kind, id| icmp(from, to, [kind, 0], id, &[]);
    assert_eq!(port.refused(&ping(PEER, VM, 0, 7), In), Some(Cause::Rule), "unasked");
    assert!(port.passes(&ping(VM, PEER, 8, 7), Out));
    assert!(port.passes(&ping(PEER, VM, 0, 7), In));
    assert_eq!(port.refused(&ping(PEER, VM, 0, 8), In), Some(Cause::Rule), "another's");
    assert_eq!(port.refused(&ping(PEER, VM, 8, 7), In), Some(Cause::Rule), "a request back");
    assert_eq!(port.refused(&ping(VM, PEER, 0, 7), Out), Some(Cause::Rule));
}

#[test]
fn an_error_passes_if_it_quotes_a_connection() {
    let port = Port::new(&["out accept udp"]);
    let sent = udp((VM, 5000), (PEER, 9));
    let unreachable = |to| error("10.0.0.99", to, [3, 3], &sent);
    assert_eq!(port.refused(&unreachable(VM), In), Some(Cause::Rule), "of nothing");
    assert!(port.passes(&sent, Out));
    assert!(port.passes(&unreachable(VM), In));
    assert_eq!(port.refused(&unreachable("10.0.0.7"), In), Some(Cause::Rule), "to another");
    let foreign = error("10.0.0.99", VM, [3, 3], &udp((VM, 5001), (PEER, 9)));
    assert_eq!(port.refused(&foreign, In), Some(Cause::Rule), "of another connection");
    // An error does not keep a connection alive.
    let left = port.connections.entries(None, port.now)[0].seconds;
    let mut later = port;
    later.wait(5);
    assert!(later.passes(&unreachable(VM), In));
    assert_eq!(later.connections.entries(None, later.now)[0].seconds, left - 5);
    let all = Port::new(&["in accept icmp"]);
    assert_eq!(all.refused(&unreachable(VM), In), Some(Cause::State), "a rule for any message");
    let all = Port::new(&["in accept icmp stateless"]);
    assert!(all.passes(&unreachable(VM), In));
}

#[test]
fn other_fragments_follow_the_first() {
    let port = Port::new(&["in accept udp to port 53"]);
    let whole = |to: u16| udp((PEER, 4000), (VM, to));
    let part = |mut frame: Vec<u8>, word: u16| {
        frame[20..22].copy_from_slice(&word.to_be_bytes());
        frame
    };
    let (first, second) = (part(whole(53), 0x2000), part(whole(53), 0x0002));
    assert_eq!(port.refused(&second, In), Some(Cause::Fragment), "before the first");
    assert_eq!(port.refused(&part(whole(54), 0x2000), In), Some(Cause::Rule));
    assert_eq!(port.refused(&second, In), Some(Cause::Fragment), "the first was dropped");
    assert!(port.passes(&first, In) && port.passes(&second, In) && port.passes(&second, In));
    assert_eq!(port.refused(&second, Out), Some(Cause::Fragment), "the other way");
    let mut other = second.clone();
    other[19] = 8;
    assert_eq!(port.refused(&other, In), Some(Cause::Fragment), "of another packet");
    let mut later = port;
    later.wait(32);
    assert_eq!(later.refused(&second, In), Some(Cause::Fragment), "too late");
    assert!(later.passes(&first, In) && later.passes(&second, In));
    // So many packets push the oldest out.
    for id in 0..base::limits::MAX_FRAGMENTED_PACKETS as u16 {
        let mut other = first.clone();
        other[18..20].copy_from_slice(&(100 + id).to_be_bytes());
        assert!(later.passes(&other, In));
    }
    assert_eq!(later.refused(&second, In), Some(Cause::Fragment), "pushed out");
}

#[test]
fn other_frames_meet_the_default() {
    let mut other = vec![2; 14];
    other[12..].copy_from_slice(&[0x88, 0xb5]);
    let mut arp = other.clone();
    arp[12..].copy_from_slice(&[8, 6]);
    let port = Port::new(&["in accept", "out accept"]);
    assert_eq!(port.refused(&other, In), Some(Cause::Rule), "rules are for IP");
    assert!(port.passes(&arp, In) && port.passes(&arp, Out));
    let open = Port { rules: Compiled::new(&[], &Groups::new(), 1).unwrap(), ..port };
    assert!(open.passes(&other, In));
}

#[test]
fn a_change_ends_what_the_new_rules_do_not_permit() {
    let mut port = Port::new(SSH);
    open(&port, 22);
    assert!(port.passes(&udp((VM, 5000), (PEER, 53)), Out));
    port.change(&["in drop tcp from 10.0.0.9", "in accept tcp to port 22"]);
    // Both ends ask the rules about the connection's first packet.
    assert!(port.passes(&from_vm(22, ACK), Out) && port.passes(&to_vm(22, ACK), In));
    let entry = |port: &Port| port.connections.entries(None, port.now);
    let of_ssh = entry(&port).into_iter().find(|entry| entry.parts.protocol == 6).unwrap();
    assert_eq!((of_ssh.rule, of_ssh.generation), (1, 2));
    assert_eq!(port.refused(&udp((PEER, 53), (VM, 5000)), In), Some(Cause::Rule));
    assert_eq!(entry(&port).len(), 1, "the other connection has ended");
    port.change(&[]);
    assert_eq!(port.refused(&from_vm(22, ACK), Out), Some(Cause::Rule));
    assert_eq!(entry(&port).len(), 0);
    assert_eq!(port.connections.port_len(0), 0);
}

#[test]
fn a_ping_goes_on_after_a_change() {
    let mut port = Port::new(&["out accept icmp"]);
    let ping = |from, to, kind| icmp(from, to, [kind, 0], 7, &[]);
    assert!(port.passes(&ping(VM, PEER, 8), Out));
    port.change(&["out accept icmp:echo-request"]);
    assert!(port.passes(&ping(PEER, VM, 0), In), "the reply of a request before the change");
    port.change(&["out accept icmp:13"]);
    assert_eq!(port.refused(&ping(PEER, VM, 0), In), Some(Cause::Rule));
}

#[test]
fn frames_and_connections_are_counted_at_their_rule() {
    let port = Port::new(SSH);
    open(&port, 22);
    assert!(port.passes(&from_vm(22, ACK), Out));
    assert!(!port.passes(&to_vm(23, SYN), In) && !port.passes(&from_vm(23, SYN), Out));
    let counts: Vec<_> = (0..4).map(|rule| port.rules.counts(rule).unwrap().get()).collect();
    assert_eq!(counts, [[4, 4 * 54, 1], [0; 3], [1, 54, 0], [1, 54, 0]]);
    use crate::filter::compiled::Origin;
    let origins = port.rules.origins();
    assert_eq!(origins[1], Origin::Rule { filter: 0, rule: 1 });
    assert_eq!(origins[2..], [Origin::Default(In), Origin::Default(Out)]);
}

#[test]
fn the_first_filter_that_states_a_default_decides() {
    let rules = ["in accept tcp to port 22"].map(|rule| rule.parse().unwrap()).to_vec();
    let one = Filter { name: "one".into(), rules, ..Filter::default() };
    let reject = Some(super::super::Verdict::Reject);
    let other = Filter { name: "other".into(), default_in: reject, ..Filter::default() };
    let compiled = Compiled::new(&[&one, &other], &Groups::new(), 1).unwrap();
    let port = Port { rules: compiled, ..Port::new(&[]) };
    assert!(port.passes(&to_vm(22, SYN), In));
    assert_eq!(port.refused(&to_vm(23, SYN), In), Some(Cause::Reject));
    assert!(port.passes(&from_vm(9, SYN), Out), "the default of defaults");
}

#[test]
fn a_rule_says_whether_to_log() {
    let port = Port::new(&["in accept tcp to port 22 log", "in drop tcp log"]);
    assert!(port.judge(&to_vm(22, SYN), In).log && port.judge(&to_vm(23, SYN), In).log);
    assert!(!port.judge(&to_vm(22, SYN), In).log, "the connection is known");
    assert!(!port.judge(&udp((PEER, 1), (VM, 2)), In).log);
}

#[test]
fn a_full_port_refuses_new_connections_and_keeps_the_old() {
    let port = Port::new(&["in accept"]);
    // Assured connections, as many as the port may have.
    for n in 0..CONFIG.max_per_port as u16 {
        let (peer, vm) = ((PEER, 1000 + n), (VM, 22));
        assert!(port.passes(&tcp(peer, vm, SYN), In));
        assert!(port.passes(&tcp(vm, peer, SYN | ACK), Out));
        assert!(port.passes(&tcp(peer, vm, ACK), In));
    }
    assert_eq!(port.refused(&to_vm(22, SYN), In), Some(Cause::Full));
    assert!(port.passes(&tcp((PEER, 1000), (VM, 22), ACK), In));
    // One that ends makes room.
    assert!(port.passes(&tcp((PEER, 1007), (VM, 22), RST), In));
    assert!(port.passes(&to_vm(22, SYN), In));
    assert_eq!(port.connections.port_len(0), CONFIG.max_per_port as usize);
}

#[test]
fn a_flood_of_half_open_connections_pushes_out_none_that_is_open() {
    let port = Port::new(&["in accept"]);
    open(&port, 22);
    for n in 0..500u16 {
        let answer = port.judge(&tcp(("10.9.0.1", 1000 + n), (VM, 80), SYN), In);
        assert_eq!(answer.refused, None, "{n}");
    }
    assert_eq!(port.connections.port_len(0), CONFIG.max_per_port as usize);
    assert!(port.passes(&from_vm(22, ACK), Out), "in the flood");
    let entries = port.connections.entries(None, port.now);
    assert!(entries.iter().any(|entry| entry.assured && entry.parts.local.port == 22));
    // The newest half-open connection is there, the oldest is gone.
    assert!(port.passes(&tcp((VM, 80), ("10.9.0.1", 1499), SYN | ACK), Out));
    assert_eq!(port.refused(&tcp((VM, 80), ("10.9.0.1", 1000), SYN | ACK), Out), Some(Cause::Rule));
}

/// A worker that has not adopted the new rules yet meets a connection that began by these.
#[test]
fn old_rules_end_no_connection_of_newer_rules() {
    let mut port = Port::new(SSH);
    let old = Compiled::new(&[&filter(&[])], &Groups::new(), 1).unwrap();
    port.change(SSH);
    open(&port, 22);
    let behind = Gate { rules: &old, ..port.gate() };
    let judge = |frame: &[u8], direction| behind.judge(&parse(frame), direction, port.now);
    assert_eq!(judge(&to_vm(22, ACK), In).refused, None);
    let error = error("10.0.0.99", PEER, [3, 1], &to_vm(22, ACK));
    assert_eq!(judge(&error, Out).refused, None);
    assert_eq!(port.connections.port_len(0), 1);
}

/// Fragments of IPv6 with these headers behind the fragment header: `extra`, then `rest`.
fn part_of_v6(next: u8, word: u16, content: &[u8]) -> Vec<u8> {
    let [high, low] = word.to_be_bytes();
    let header = [next, 0, high, low, 1, 2, 3, 4];
    ip("fd00::2", "fd00::1", 44, &[&header[..], content].concat())
}

#[test]
fn later_fragments_of_ipv6_may_have_another_next_header() {
    let port = Port::new(&["in accept udp to port 53"]);
    let datagram = &udp(("fd00::2", 4000), ("fd00::1", 53))[54..];
    let options = [&[17, 0, 1, 4, 0, 0, 0, 0][..], datagram].concat();
    assert!(port.passes(&part_of_v6(60, 1, &options), In));
    assert!(port.passes(&part_of_v6(60, 24 | 1, &[0; 8]), In), "as the first fragment");
    assert!(port.passes(&part_of_v6(17, 32, &[0; 8]), In), "another next header");
}

#[test]
fn a_later_fragment_never_replaces_headers_behind_options() {
    let port = Port::new(&["in accept tcp to port 80"]);
    let segment = &tcp(("fd00::2", 4000), ("fd00::1", 80), SYN)[54..];
    // 24 bytes of options, then the header of TCP at byte 24 of the data.
    let options = [&[6, 2, 1, 20][..], &[0; 20], segment].concat();
    assert!(port.passes(&part_of_v6(60, 1, &options), In));
    assert_eq!(port.refused(&part_of_v6(6, 24, &[0; 24]), In), Some(Cause::Fragment));
    assert_eq!(port.refused(&part_of_v6(6, 40, &[0; 8]), In), Some(Cause::Fragment));
    assert!(port.passes(&part_of_v6(60, 48, &[0; 8]), In));
}

#[test]
fn fragments_to_the_vm_push_out_none_from_the_vm() {
    let port = Port::new(&["in accept", "out accept"]);
    let part = |mut frame: Vec<u8>, id: u16, word: u16| {
        frame[18..20].copy_from_slice(&id.to_be_bytes());
        frame[20..22].copy_from_slice(&word.to_be_bytes());
        frame
    };
    assert!(port.passes(&part(udp((VM, 1), (PEER, 2)), 7, 0x2000), Out));
    for id in 0..2 * base::limits::MAX_FRAGMENTED_PACKETS as u16 {
        assert!(port.passes(&part(udp((PEER, 3), (VM, 4)), id, 0x2000), In));
    }
    assert!(port.passes(&part(udp((VM, 1), (PEER, 2)), 7, 2), Out));
}

#[test]
fn the_code_of_a_request_is_a_part_of_the_connection() {
    let mut port = Port::new(&["out accept icmp:8/1"]);
    let ping = |from, to, message| icmp(from, to, message, 7, &[]);
    assert!(port.passes(&ping(VM, PEER, [8, 1]), Out));
    assert_eq!(port.refused(&ping(VM, PEER, [8, 0]), Out), Some(Cause::Rule));
    port.change(&["out accept icmp:8/1", "in drop udp"]);
    assert!(port.passes(&ping(PEER, VM, [0, 1]), In), "the rules still permit the connection");
    let error = error("10.0.0.99", VM, [3, 1], &ping(VM, PEER, [8, 1]));
    assert!(port.passes(&error, In));
}

#[test]
fn a_preview_says_what_a_packet_would_get_and_changes_nothing() {
    let mut port = Port::new(&["in accept tcp to port 22", "in reject udp", "in accept icmp:8"]);
    let preview = |port: &Port, frame: &[u8], direction| {
        let preview = port.gate().preview(&parse(frame), direction, port.now);
        (preview.refused, preview.rule, preview.is_known)
    };
    assert_eq!(preview(&port, &to_vm(22, SYN), In), (None, Some(0), false));
    assert_eq!(preview(&port, &to_vm(23, SYN), In), (Some(Cause::Rule), Some(3), false));
    assert_eq!(preview(&port, &to_vm(22, RST), In), (Some(Cause::State), Some(0), false));
    let datagram = udp((PEER, 1), (VM, 2));
    assert_eq!(preview(&port, &datagram, In), (Some(Cause::Reject), Some(1), false));
    assert!(port.connections.is_empty());
    open(&port, 22);
    assert_eq!(preview(&port, &from_vm(22, ACK), Out), (None, Some(0), true));
    let quote = error("10.0.0.99", VM, [3, 1], &from_vm(22, ACK));
    assert_eq!(preview(&port, &quote, In), (None, Some(0), true));
    let foreign = error("10.0.0.99", VM, [3, 1], &from_vm(24, ACK));
    assert_eq!(preview(&port, &foreign, In), (Some(Cause::Rule), Some(3), false));
    let frames = port.rules.counts(0).unwrap().get()[0];
    assert_eq!(frames, 3, "those of the handshake");
    port.change(&["in drop tcp"]);
    assert_eq!(preview(&port, &from_vm(22, ACK), Out), (Some(Cause::Rule), Some(2), false));
    assert_eq!(port.connections.port_len(0), 1);
}
