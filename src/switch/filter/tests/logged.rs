//! Packets for the log of rules: bounded, and written as a rule is.

use super::super::rule_log::{LoggedPacket, RuleLog};
use super::*;
use base::limits::RULE_LOG_PACKETS;

fn logged(frame: &[u8], passed: bool) -> LoggedPacket {
    LoggedPacket { rule: 0, direction: In, passed, fields: packet(frame).fields() }
}

#[test]
fn a_packet_is_written_as_a_rule_is() {
    let text = |frame: &[u8]| logged(frame, false).to_string();
    let segment = tcp(("10.0.0.2", 4000), ("10.0.0.1", 22), SYN);
    assert_eq!(text(&segment), "in tcp from 10.0.0.2 port 4000 to 10.0.0.1 port 22");
    let datagram = udp(("fd00::2", 9), ("fd00::1", 53));
    assert_eq!(text(&datagram), "in udp from fd00::2 port 9 to fd00::1 port 53");
    let ping = icmp("10.0.0.2", "10.0.0.1", [8, 0], 1, &[]);
    assert_eq!(text(&ping), "in icmp:8/0 from 10.0.0.2 to 10.0.0.1");
    assert_eq!(text(&ip("10.0.0.2", "10.0.0.1", 47, &[0; 8])), "in 47 from 10.0.0.2 to 10.0.0.1");
}

#[test]
fn packets_beyond_the_list_are_counted() {
    let log = RuleLog::default();
    let packet = logged(&tcp(("10.0.0.2", 4000), ("10.0.0.1", 22), SYN), true);
    let now = Tick::from(100);
    (0..RULE_LOG_PACKETS + 7).for_each(|_| log.note(packet, now));
    assert_eq!(log.take(), (vec![packet; RULE_LOG_PACKETS], 7));
    assert_eq!(log.take(), (Vec::new(), 0));
    // One a second from here on.
    log.note(packet, now);
    assert_eq!(log.take(), (Vec::new(), 0), "a count waits for a packet");
    (0..3).for_each(|_| log.note(packet, Tick::from(101)));
    assert_eq!(log.take(), (vec![packet], 3));
}
