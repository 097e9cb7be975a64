//! The language of rules: what it says, what is refused and how, and that text and rule agree.

use super::super::rule::{Address, Message, Ports, Protocol};
use super::super::{Direction, FilterRule, Verdict};
use proptest::prelude::*;

fn read(text: &str) -> FilterRule {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn what_is_written_reads_the_same() {
    for text in [
        "in accept tcp to port 80,443",
        "in accept tcp from 10.0.0.0/8 to port 22",
        "in accept icmp,icmp6",
        "in accept udp from group:dns port 53",
        "out reject",
        "out drop from 10.0.0.5-10.0.0.9,fd00::/64 to group:a,10.0.0.1 log",
        "in accept tcp,udp,sctp from port 1024-65535 to 10.0.0.1 port 53 log stateless",
        "in accept icmp:echo-request,icmp:3/4,icmp:77,icmp6:packet-too-big,47",
        "in reject from 0.0.0.0/0",
    ] {
        assert_eq!(read(text).to_string(), text);
    }
    for (text, shorter) in [
        ("in accept tcp from any to port 80, 443", "in accept tcp to port 80,443"),
        ("  in\taccept any from any to any ", "in accept"),
        ("in accept icmp , icmp6", "in accept icmp,icmp6"),
        ("in accept 6,icmp:8,58", "in accept tcp,icmp:echo-request,icmp6"),
        ("in drop to 10.0.0.1/32 stateless", ""),
    ] {
        match shorter {
            "" => assert!(text.parse::<FilterRule>().is_err(), "{text}"),
            shorter => assert_eq!(read(text).to_string(), shorter),
        }
    }
}

#[test]
fn a_rule_has_the_parts_of_its_text() {
    let rule = read("out accept tcp,icmp6:1/4 from group:x to fd00::1 log");
    assert_eq!((rule.direction, rule.verdict), (Direction::Out, Verdict::Accept));
    let message = Message { kind: 1, code: Some(4) };
    assert_eq!(rule.protocols, [Protocol::Number(6), Protocol::Icmp6(Some(message))]);
    assert_eq!(rule.from.addresses, [Address::Group("x".into())]);
    assert_eq!(rule.to.addresses, [Address::Span("fd00::1".parse().unwrap())]);
    assert!(rule.log && !rule.stateless && rule.from.ports.is_empty());
    let ports = read("in accept udp to port 53,1000-2000").to.ports;
    assert_eq!(ports, [Ports { first: 53, last: 53 }, Ports { first: 1000, last: 2000 }]);
}

/// Each error names the wrong word and what was expected in its place.
#[test]
fn an_error_names_the_word_and_what_is_expected() {
    for (text, error) in [
        ("", "the rule ends where in or out is expected"),
        ("inn accept", "'inn' is wrong: expected in or out"),
        ("in", "the rule ends where accept, drop or reject is expected"),
        ("in allow tcp", "'allow' is wrong: expected accept, drop or reject"),
        (
            "in accept tpc",
            "'tpc' is wrong: expected a protocol (tcp, udp, sctp, icmp, icmp6 or a number), or \
             from, to, log or stateless",
        ),
        ("in accept tcp:1", "'tcp:1' is wrong: expected a type behind icmp: or icmp6: alone"),
        (
            "in accept icmp6:ping",
            "'icmp6:ping' is wrong: expected a type: TYPE or TYPE/CODE, or \
             destination-unreachable, packet-too-big, time-exceeded, parameter-problem, \
             echo-request, echo-reply",
        ),
        (
            "in accept tcp from 10.0.0",
            "'10.0.0' is wrong: expected an address, a prefix such as 10.0.0.0/24, or a range such \
             as 10.0.0.5-10.0.0.9, or group:NAME",
        ),
        (
            "in accept from 10.0.0.1/24",
            "'10.0.0.1/24' is wrong: expected no bits set behind the prefix: 10.0.0.0/24",
        ),
        ("in accept from group:", "'group:' is wrong: expected a group's name behind group:"),
        (
            "in accept tcp to port 70000",
            "'70000' is wrong: expected a port from 0 to 65535, or a range such as 80-89",
        ),
        (
            "in accept tcp to port 9-8",
            "'9-8' is wrong: expected a port from 0 to 65535, or a range such as 80-89",
        ),
        ("in accept tcp to", "the rule ends where an item of a list is expected"),
        ("in accept tcp to port 80,", "the rule ends where an item of a list is expected"),
        ("in accept tcp port 80", "'port' is wrong: expected from, to, log or stateless"),
        (
            "in accept tcp from any 80",
            "'80' is wrong: expected port, to, log, stateless or the end of the rule",
        ),
        (
            "in accept tcp to port 80 from any",
            "'from' is wrong: expected log, stateless or the end of the rule",
        ),
        ("in accept log log", "'log' is wrong: expected each option once"),
        ("in accept to port 80", "'port' needs the protocols tcp, udp or sctp, not any"),
        ("in accept tcp,icmp to port 80", "'port' needs the protocols tcp, udp or sctp, not icmp"),
        (
            "in drop stateless",
            "'stateless' needs the verdict accept: nothing else begins a connection",
        ),
    ] {
        assert_eq!(text.parse::<FilterRule>().unwrap_err().to_string(), error, "{text}");
    }
}

#[test]
fn a_text_and_its_lists_are_bounded() {
    let list = |count: usize| vec!["1"; count].join(",");
    assert_eq!(read(&format!("in accept tcp to port {}", list(64))).to.ports.len(), 64);
    let error = format!("in accept tcp to port {}", list(65)).parse::<FilterRule>().unwrap_err();
    let expected = "'1' is one item too many: a list has up to 64; use a group";
    assert_eq!(error.to_string(), expected);
    let error = format!("in accept{}", " ".repeat(1100)).parse::<FilterRule>().unwrap_err();
    assert_eq!(error.to_string(), "the rule has more than 1024 bytes");
}

/// Words of the language, and some that are not.
const WORDS: &[&str] = &[
    "in",
    "out",
    "accept",
    "drop",
    "reject",
    "tcp",
    "udp",
    "icmp",
    "icmp6:1",
    "icmp:8/0",
    "47",
    "from",
    "to",
    "port",
    "any",
    "10.0.0.0/8",
    "fd00::1",
    "10.0.0.1-10.0.0.3",
    "group:g",
    "80",
    "1-9",
    ",",
    ",",
    "log",
    "stateless",
    "x",
    "é",
];

proptest! {
    #[test]
    fn any_text_is_a_rule_that_reads_the_same_or_an_error(
        words in proptest::collection::vec(proptest::sample::select(WORDS), 0..14)
    ) {
        for text in [words.join(" "), ["in accept ", &words.join(" ")].concat()] {
            if let Ok(rule) = text.parse::<FilterRule>() {
                prop_assert_eq!(read(&rule.to_string()), rule);
            }
        }
    }
}
