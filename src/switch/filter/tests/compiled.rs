//! Look-ups agree with a plain reading of the rules, one after another.

use core::net::IpAddr;

use super::super::compiled::Fields;
use super::super::named::{Groups, Reach};
use super::super::rule::{End, Ports};
use super::super::{Compiled, Filter, FilterRule, TooLarge, Verdict};
use super::*;

/// True if a rule matches, by its words.
fn matches(rule: &FilterRule, fields: &Fields, groups: &Groups) -> bool {
    let address = |end: &End, address: u128| match Reach::of(end, groups) {
        Reach::Any => true,
        Reach::Spans(spans) => spans.iter().any(|span| {
            let (first, last) = span.bits();
            span.is_v6() == fields.v6 && (first..=last).contains(&address)
        }),
    };
    let among = |list: &[Ports], port: u16| {
        list.is_empty() || list.iter().any(|ports| (ports.first..=ports.last).contains(&port))
    };
    let protocol = |protocol: &crate::filter::rule::Protocol| {
        let of_version = !matches!(
            (protocol, fields.v6),
            (crate::filter::rule::Protocol::Icmp(_), true)
                | (crate::filter::rule::Protocol::Icmp6(_), false)
        );
        let [kind, code] = fields.to_port.to_be_bytes();
        let message = protocol.message().is_none_or(|message| {
            message.kind == kind && message.code.is_none_or(|asked| asked == code)
        });
        of_version && protocol.number() == fields.protocol && message
    };
    let protocols = rule.protocols.is_empty() || rule.protocols.iter().any(protocol);
    let ends = address(&rule.from, fields.from) && address(&rule.to, fields.to);
    // Ports need protocols that have some.
    let ports = among(&rule.from.ports, fields.from_port) && among(&rule.to.ports, fields.to_port);
    protocols && ends && ports
}

fn random_end(random: &mut Random, ports: bool) -> String {
    const ADDRESSES: &[&str] = &[
        "any",
        "any",
        "10.0.0.0/8",
        "10.0.0.0/30",
        "10.0.0.1",
        "10.0.0.3-10.0.0.6",
        "0.0.0.0/0",
        "fd00::/64",
        "fd00::2",
        "::/0",
        "10.0.0.1,fd00::1",
        "group:few",
        "group:none",
        "255.255.255.255",
        "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
        "group:few,10.0.0.7",
    ];
    const PORTS: &[&str] = &["", " port 80", " port 0-1023", " port 80,443,1000-65535", " port 0"];
    let ports = if ports { random.choose(PORTS) } else { "" };
    format!("{}{ports}", random.choose(ADDRESSES))
}

fn random_rule(random: &mut Random) -> FilterRule {
    const PROTOCOLS: &[&str] = &[
        "tcp",
        "udp",
        "tcp,udp",
        "any",
        "icmp",
        "icmp6",
        "icmp:8",
        "icmp:echo-reply,tcp",
        "icmp6:1/4,icmp:3,47",
        "0-",
    ];
    let protocols = random.choose(&PROTOCOLS[..9]);
    let has_ports = ["tcp", "udp", "tcp,udp"].contains(&protocols);
    let direction = random.choose(&["in", "out"]);
    let verdict = random.choose(&["accept", "drop", "reject"]);
    let (from, to) = (random_end(random, has_ports), random_end(random, has_ports));
    let text = format!("{direction} {verdict} {protocols} from {from} to {to}");
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn random_fields(random: &mut Random) -> Fields {
    const V4: &[&str] = &["10.0.0.0", "10.0.0.1", "10.0.0.4", "10.0.0.7", "10.1.0.0", "9.0.0.0"];
    const V6: &[&str] = &["fd00::", "fd00::1", "fd00::2", "fd01::1", "::", "fd00:0:0:1::"];
    const PORTS: &[u16] = &[0, 1, 80, 443, 999, 1000, 1023, 1024, 0xffff, 0x0800, 0x0100, 0x0104];
    let v6 = random.below(2) == 1;
    let mut address = || {
        if random.below(20) == 0 {
            return if v6 { u128::MAX } else { u32::MAX.into() };
        }
        match random.choose(if v6 { V6 } else { V4 }).parse().unwrap() {
            IpAddr::V4(address) => address.to_bits().into(),
            IpAddr::V6(address) => address.to_bits(),
        }
    };
    let (from, to) = (address(), address());
    let protocol = random.choose(&[6, 17, 1, 58, 47, 0, 255]);
    let (from_port, to_port) = (random.choose(PORTS), random.choose(PORTS));
    Fields { v6, protocol, from, to, from_port, to_port }
}

#[test]
fn the_first_rule_that_matches_decides() {
    let groups = groups(&[("few", &["10.0.0.0/31", "10.0.0.4", "fd00::1"]), ("none", &[])]);
    let mut decided = 0;
    for seed in 0..if cfg!(miri) { 2 } else { 120 } {
        let mut random = Random(seed);
        let count = random.choose(&[0, 1, 3, 20, 63, 64, 65, 200]);
        let mut filters = [Filter::default(), Filter::default()];
        for _ in 0..count {
            let at = random.below(2);
            filters[at].rules.push(random_rule(&mut random));
        }
        filters[1].default_in = Some(Verdict::Reject);
        let list: Vec<_> = filters.iter().collect();
        let compiled = Compiled::new(&list, &groups, 1).unwrap();
        let rules: Vec<_> = filters.iter().flat_map(|filter| &filter.rules).collect();
        for _ in 0..200 {
            let fields = random_fields(&mut random);
            for direction in Direction::ALL {
                let found = rules.iter().position(|rule| {
                    rule.direction == direction && matches(rule, &fields, &groups)
                });
                let ruling = compiled.rule_for(direction, &fields);
                decided += usize::from(found.is_some());
                let expected = match found {
                    Some(at) => (at, rules[at].verdict),
                    None if direction == In => (rules.len(), Verdict::Reject),
                    None => (rules.len() + 1, Verdict::Accept),
                };
                let case = format!("seed {seed}, {direction}, {fields:?}");
                assert_eq!((usize::from(ruling.rule), ruling.verdict), expected, "{case}");
            }
        }
    }
    assert!(decided > 100 || cfg!(miri), "{decided}");
}

#[test]
fn thousands_of_rules_are_told_apart() {
    let count = if cfg!(miri) { 70 } else { 1000 };
    let rule = |n: u32| {
        let (high, low) = (n / 200, n % 200);
        format!("in accept tcp from 10.{high}.{low}.0/24 to 192.168.{high}.{low} port {}", 1000 + n)
    };
    let rules: Vec<String> = (0..count).map(rule).collect();
    let filter = filter(&rules.iter().map(String::as_str).collect::<Vec<_>>());
    let compiled = Compiled::new(&[&filter], &Groups::new(), 1).unwrap();
    for n in 0..count {
        let (high, low) = (n / 200, n % 200);
        let from = u128::from(0x0a00_0007 | high << 16 | low << 8);
        let to = u128::from(0xc0a8_0000 | high << 8 | low);
        let to_port = 1000 + n as u16;
        let fields = Fields { v6: false, protocol: 6, from, to, from_port: 9, to_port };
        assert_eq!(u32::from(compiled.rule_for(In, &fields).rule), n);
        let other = Fields { to_port: to_port + 1, ..fields };
        assert_eq!(compiled.rule_for(In, &other).verdict, Verdict::Drop);
    }
}

#[test]
fn what_would_take_too_much_memory_is_refused() {
    let rule: FilterRule = "in accept".parse().unwrap();
    let rules = |count: usize| Filter { rules: vec![rule.clone(); count], ..Filter::default() };
    let compiled = |count| Compiled::new(&[&rules(count)], &Groups::new(), 1).map(drop);
    assert_eq!(compiled(4096), Ok(()));
    assert_eq!(compiled(4097), Err(TooLarge::Lines(4097)));
    assert_eq!(compiled(70_000), Err(TooLarge::Lines(70_000)));
    let rule = |n: u32| format!("in drop from {}", core::net::Ipv4Addr::from_bits(n << 8));
    let many: Vec<_> = (0..4096).map(|n| rule(n).parse().unwrap()).collect();
    let many = Filter { rules: many, ..Filter::default() };
    assert_eq!(Compiled::new(&[&many], &Groups::new(), 1).map(drop), Ok(()), "half the words");
    let two = Filter {
        rules: (0..4096u32)
            .map(|n| {
                let at = |n: u32| core::net::Ipv4Addr::from_bits(n);
                format!("in drop from {},{}", at(n << 9), at(n << 9 | 0x8000_0100)).parse().unwrap()
            })
            .collect(),
        ..Filter::default()
    };
    // Each rule has one class of addresses, whatever the number of its addresses.
    assert_eq!(Compiled::new(&[&two], &Groups::new(), 1).map(drop), Ok(()));
    let nested = Filter {
        rules: (0..4096u32)
            .map(|n| {
                let at = |n: u32| core::net::Ipv4Addr::from_bits(n);
                format!("in drop from {}-{}", at(n), at(u32::MAX - n)).parse().unwrap()
            })
            .collect(),
        ..Filter::default()
    };
    assert_eq!(Compiled::new(&[&nested], &Groups::new(), 1).map(drop), Ok(()), "nested");
    let shifted = Filter {
        rules: (0..4096u32)
            .map(|n| {
                let at = |n: u32| core::net::Ipv4Addr::from_bits(n);
                let other = (1 << 24) + n * 1001 % 4096 * 2;
                let [a, b, c, d] = [2 * n, (1 << 20) + 2 * n, other, other + (1 << 20)].map(at);
                format!("in drop from {a}-{b},{c}-{d}").parse().unwrap()
            })
            .collect(),
        ..Filter::default()
    };
    assert_eq!(Compiled::new(&[&shifted], &Groups::new(), 1).map(drop), Err(TooLarge::Words));
}
