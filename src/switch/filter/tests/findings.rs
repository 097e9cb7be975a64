//! Rules that can never match, and groups without addresses.

use super::super::check::{Finding, check};
use super::*;

fn never(rules: &[&str]) -> Vec<(usize, Option<usize>)> {
    let groups = groups(&[("none", &[]), ("some", &["10.0.0.1"])]);
    let findings = check(&[&filter(rules)], &groups).unwrap();
    let one = |finding| match finding {
        Finding::NeverMatches { rule, by, .. } => Some((rule, by.map(|(_, rule)| rule))),
        _ => None,
    };
    findings.into_iter().filter_map(one).collect()
}

#[test]
fn a_rule_behind_a_wider_one_never_matches() {
    let wide = "in accept tcp from 10.0.0.0/8";
    for (rules, expected) in [
        (&[wide, "in drop tcp from 10.1.0.0/16 to port 22"][..], &[(1, Some(0))][..]),
        (&[wide, "out drop tcp from 10.1.0.0/16"], &[]),
        (&[wide, "in drop tcp,udp from 10.1.0.0/16"], &[]),
        (&[wide, "in drop tcp from 10.1.0.0/16,11.0.0.0/8"], &[]),
        (&["in drop tcp from 10.1.0.0/16", wide], &[]),
        (&["in accept", "in drop icmp:8,icmp6"], &[(1, Some(0))]),
        (&["in accept icmp", "in drop icmp:8,icmp6:128"], &[]),
        (&["in accept icmp,icmp6", "in drop icmp:8,icmp6:128"], &[(1, Some(0))]),
        (&["in accept tcp to port 1-9,10-20", "in drop tcp to port 5-15"], &[(1, Some(0))]),
        (&["in accept tcp to port 1-9", "in drop tcp to port 5-15"], &[]),
        (&["in accept from group:some", "in drop from 10.0.0.1"], &[(1, Some(0))]),
    ] {
        assert_eq!(never(rules), expected, "{rules:?}");
    }
}

#[test]
fn a_rule_that_no_packet_is_like_never_matches() {
    for rule in [
        "in accept from group:none",
        "in accept from 10.0.0.1 to fd00::1",
        "in accept icmp from fd00::1",
        "in accept icmp6:128 to 10.0.0.1",
    ] {
        assert_eq!(never(&[rule]), [(0, None)], "{rule}");
    }
}

#[test]
fn groups_are_named_once() {
    let groups = groups(&[("none", &[]), ("some", &["10.0.0.1"])]);
    let rules = ["in accept from group:none,group:gone,group:some", "in drop to group:none"];
    let findings = check(&[&filter(&rules)], &groups).unwrap();
    let expected = [
        Finding::NoGroup("gone".into()),
        Finding::EmptyGroup("none".into()),
        Finding::NeverMatches { filter: 0, rule: 1, by: None },
    ];
    assert_eq!(findings, expected);
}
