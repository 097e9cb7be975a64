//! Random rules, as this switch and as nftables read them.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use testkit::Rng;

/// Addresses of the VM, and of the others: those that flows use and rules are about.
pub const LOCAL: [&str; 4] = ["10.66.1.2", "10.66.1.9", "fd66:1::2", "fd66:1::9"];
pub const REMOTE: [&str; 10] = [
    "10.0.0.53",
    "10.0.0.54",
    "10.200.3.4",
    "172.16.3.4",
    "198.51.100.7",
    "fd00::53",
    "fd00::54",
    "fd00:0:0:7::1",
    "2001:db8::7",
    "2001:db8:ffff::8",
];
/// Ports of services.
pub const SERVICES: [u16; 5] = [22, 53, 80, 443, 8080];
/// A protocol that is known to nobody (RFC 3692).
pub const UNKNOWN: u8 = 253;

pub const ICMP: u8 = 1;
pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
pub const ICMPV6: u8 = 58;

pub fn of<'t, T>(rng: &mut Rng, list: &'t [T]) -> &'t T {
    &list[rng.below(list.len() as u64) as usize]
}

pub fn one_in(rng: &mut Rng, n: u64) -> bool {
    rng.below(n) == 0
}

/// An address of the list, of either version of IP.
pub fn address(rng: &mut Rng, list: &[&str], v6: bool) -> IpAddr {
    loop {
        let address: IpAddr = of(rng, list).parse().expect("an address");
        if address.is_ipv6() == v6 {
            return address;
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    Accept,
    Stateless,
    Drop,
    Reject,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    /// Of either version of IP, or of the one that has it.
    Number(u8),
    /// A type of ICMP, and its code.
    Message { v6: bool, kind: u8, code: Option<u8> },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Address {
    Prefix(IpAddr, u8),
    Range(IpAddr, IpAddr),
    Group(usize),
}

#[derive(Clone, Default, Debug)]
pub struct End {
    pub addresses: Vec<Address>,
    pub ports: Vec<(u16, u16)>,
}

#[derive(Clone, Debug)]
pub struct Rule {
    pub out: bool,
    pub verdict: Verdict,
    pub protocols: Vec<Protocol>,
    pub from: End,
    pub to: End,
}

/// What one port filters by.
#[derive(Debug)]
pub struct Model {
    pub rules: Vec<Rule>,
    /// Number of rules in the first of two filters.
    split: usize,
    /// Of packets to the VM, and from the VM.
    pub defaults: [Verdict; 2],
    pub groups: Vec<Vec<Address>>,
}

impl Protocol {
    fn any(rng: &mut Rng) -> Protocol {
        match rng.below(10) {
            0..4 => Protocol::Number(TCP),
            4..6 => Protocol::Number(UDP),
            6 => Protocol::Number(ICMP),
            7 => Protocol::Number(ICMPV6),
            8 => Protocol::Number(UNKNOWN),
            _ => {
                let v6 = one_in(rng, 2);
                let kinds: &[u8] = if v6 { &[128, 129, 1, 2] } else { &[8, 0, 3, 13, 9] };
                let code = one_in(rng, 2).then_some(rng.below(2) as u8);
                Protocol::Message { v6, kind: *of(rng, kinds), code }
            }
        }
    }

    fn has_ports(self) -> bool {
        matches!(self, Protocol::Number(TCP | UDP))
    }

    pub fn is_in(self, v6: bool) -> bool {
        match self {
            Protocol::Number(ICMP) => !v6,
            Protocol::Number(ICMPV6) => v6,
            Protocol::Number(_) => true,
            Protocol::Message { v6: of, .. } => of == v6,
        }
    }

    fn ours(self) -> String {
        match self {
            Protocol::Number(TCP) => "tcp".to_owned(),
            Protocol::Number(UDP) => "udp".to_owned(),
            Protocol::Number(ICMP) => "icmp".to_owned(),
            Protocol::Number(ICMPV6) => "icmp6".to_owned(),
            Protocol::Number(number) => number.to_string(),
            Protocol::Message { v6, kind, code } => {
                let name = if v6 { "icmp6" } else { "icmp" };
                let code = code.map(|code| format!("/{code}")).unwrap_or_default();
                format!("{name}:{kind}{code}")
            }
        }
    }
}

impl Address {
    fn any(rng: &mut Rng, list: &[&str]) -> Address {
        let v6 = one_in(rng, 2);
        let base = address(rng, list, v6);
        if one_in(rng, 4) {
            let other = address(rng, list, v6);
            return Address::Range(base.min(other), base.max(other));
        }
        let lens: &[u8] = if v6 { &[16, 48, 64, 127, 128] } else { &[8, 16, 24, 31, 32] };
        let len = *of(rng, lens);
        Address::Prefix(masked(base, len), len)
    }

    pub fn is_in(self, v6: bool) -> bool {
        match self {
            Address::Prefix(address, _) | Address::Range(address, _) => address.is_ipv6() == v6,
            Address::Group(_) => true,
        }
    }

    fn ours(self) -> String {
        match self {
            Address::Group(group) => format!("group:g{group}"),
            other => other.nft(false),
        }
    }

    fn nft(self, v6: bool) -> String {
        match self {
            Address::Prefix(address, len) => format!("{address}/{len}"),
            Address::Range(first, last) => format!("{first}-{last}"),
            Address::Group(group) => format!("@g{group}v{}", if v6 { 6 } else { 4 }),
        }
    }
}

fn masked(address: IpAddr, len: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => Ipv4Addr::from(v4.to_bits() & (!0 << (32 - len))).into(),
        IpAddr::V6(v6) => Ipv6Addr::from(v6.to_bits() & (!0 << (128 - len))).into(),
    }
}

pub fn listed(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(",")
}

fn ports(rng: &mut Rng) -> (u16, u16) {
    let service = *of(rng, &SERVICES);
    *of(rng, &[(service, service), (service, service), (50, 100), (1024, 65535), (0, 1023)])
}

/// Sorted ranges without an overlap: a set of nftables has none.
pub fn joined(ports: &[(u16, u16)]) -> Vec<(u16, u16)> {
    let mut sorted = ports.to_vec();
    sorted.sort_unstable();
    let mut all: Vec<(u16, u16)> = Vec::new();
    for (first, last) in sorted {
        match all.last_mut() {
            Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
            _ => all.push((first, last)),
        }
    }
    all
}

fn range((first, last): (u16, u16)) -> String {
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}

impl End {
    fn any(rng: &mut Rng, list: &[&str], groups: usize, may_have_ports: bool) -> End {
        let mut end = End::default();
        if one_in(rng, 2) {
            for _ in 0..=rng.below(3) {
                let group = Address::Group(rng.below(groups as u64) as usize);
                end.addresses.push(if one_in(rng, 3) { group } else { Address::any(rng, list) });
            }
        }
        if may_have_ports {
            end.ports = (0..=rng.below(3)).map(|_| ports(rng)).collect();
        }
        end
    }

    fn ours(&self, word: &str) -> String {
        let mut text = String::new();
        if !self.addresses.is_empty() {
            let _ = write!(text, " {}", listed(self.addresses.iter().map(|one| one.ours())));
        }
        if !self.ports.is_empty() {
            let _ = write!(text, " port {}", listed(self.ports.iter().map(|one| range(*one))));
        }
        if text.is_empty() { text } else { format!(" {word}{text}") }
    }

    /// Conditions, of which one must hold; none if no packet of this version of IP fits.
    fn nft(&self, word: &str, v6: bool) -> Vec<String> {
        if self.addresses.is_empty() {
            return vec![String::new()];
        }
        let here = self.addresses.iter().filter(|one| one.is_in(v6));
        let ip = if v6 { "ip6" } else { "ip" };
        here.map(|one| format!("{ip} {word} {}", one.nft(v6))).collect()
    }
}

impl Rule {
    fn any(rng: &mut Rng, out: bool, groups: usize, stateless: bool) -> Rule {
        let verdict = match rng.below(12) {
            0..3 => Verdict::Drop,
            3 => Verdict::Reject,
            4..6 if stateless => Verdict::Stateless,
            _ => Verdict::Accept,
        };
        let count = if one_in(rng, 6) { 0 } else { 1 + rng.below(2) };
        let protocols: Vec<_> = (0..count).map(|_| Protocol::any(rng)).collect();
        let has_ports = count > 0 && protocols.iter().all(|one| one.has_ports());
        let lists: [&[&str]; 2] = if out { [&LOCAL, &REMOTE] } else { [&REMOTE, &LOCAL] };
        let by_source = one_in(rng, 4);
        let from = End::any(rng, lists[0], groups, has_ports && by_source);
        let by_target = !by_source && !one_in(rng, 4);
        let to = End::any(rng, lists[1], groups, has_ports && by_target);
        Rule { out, verdict, protocols, from, to }
    }

    fn ours(&self) -> String {
        let direction = if self.out { "out" } else { "in" };
        let (verdict, option) = match self.verdict {
            Verdict::Accept => ("accept", ""),
            Verdict::Stateless => ("accept", " stateless"),
            Verdict::Drop => ("drop", ""),
            Verdict::Reject => ("reject", ""),
        };
        let protocols = listed(self.protocols.iter().map(|one| one.ours()));
        let (from, to) = (self.from.ours("from"), self.to.ours("to"));
        format!("{direction} {verdict} {protocols}{from}{to}{option}")
    }

    fn nft(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for v6 in [false, true] {
            let version = if v6 { "meta nfproto ipv6" } else { "meta nfproto ipv4" };
            let ports = [("sport", &self.from), ("dport", &self.to)]
                .into_iter()
                .filter(|(_, end)| !end.ports.is_empty())
                .map(|(word, end)| {
                    let ranges = joined(&end.ports).into_iter().map(range);
                    format!("th {word} {{ {} }}", listed(ranges))
                });
            let ports = ports.collect::<Vec<_>>().join(" ");
            for protocol in self.nft_protocols(v6) {
                for from in self.from.nft("saddr", v6) {
                    for to in self.to.nft("daddr", v6) {
                        let verdict = verdict(self.verdict);
                        let words = [version, &from, &to, &protocol, &ports, verdict];
                        lines.push(words.join(" "));
                    }
                }
            }
        }
        lines
    }

    fn nft_protocols(&self, v6: bool) -> Vec<String> {
        if self.protocols.is_empty() {
            return vec![String::new()];
        }
        let here = self.protocols.iter().filter(|one| one.is_in(v6));
        let word = if v6 { "icmpv6" } else { "icmp" };
        here.map(|one| match one {
            Protocol::Number(number) => format!("meta l4proto {number}"),
            Protocol::Message { kind, code, .. } => {
                let code = code.map(|code| format!(" {word} code {code}")).unwrap_or_default();
                format!("{word} type {kind}{code}")
            }
        })
        .collect()
    }
}

fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Accept => "goto begin",
        Verdict::Stateless => "goto stateless",
        Verdict::Drop | Verdict::Reject => "drop",
    }
}

impl Model {
    pub fn any(rng: &mut Rng, may_be_stateless: bool) -> Model {
        let groups: Vec<Vec<Address>> = (0..3)
            .map(|_| {
                let list: &[&str] = if one_in(rng, 3) { &LOCAL } else { &REMOTE };
                (0..rng.below(6)).map(|_| Address::any(rng, list)).collect()
            })
            .collect();
        let stateless = may_be_stateless && one_in(rng, 3);
        let mut rules = Vec::new();
        for out in [false, true] {
            let count = rng.below(10);
            rules.extend((0..count).map(|_| Rule::any(rng, out, groups.len(), stateless)));
        }
        rng.shuffle(&mut rules);
        let split = rng.below(rules.len() as u64 + 1) as usize;
        let defaults = [(); 2].map(|()| *of(rng, &[Verdict::Drop, Verdict::Accept]));
        Model { rules, split, defaults, groups }
    }

    /// True if packets may pass without a connection.
    pub fn has_stateless(&self) -> bool {
        self.rules.iter().any(|rule| rule.verdict == Verdict::Stateless)
    }

    /// The entries of this switch's configuration; the port's filters are `a` and `b`.
    pub fn ours(&self) -> String {
        let word = |verdict| if verdict == Verdict::Accept { "accept" } else { "drop" };
        let [into, out] = self.defaults.map(word);
        let mut text = String::new();
        let (first, second) = self.rules.split_at(self.split);
        let defaults = format!("default-in = \"{into}\"\ndefault-out = \"{out}\"\n");
        for (name, defaults, rules) in [("a", defaults.as_str(), first), ("b", "", second)] {
            let rules = rules.iter().map(|rule| format!("  \"{}\",\n", rule.ours()));
            let rules = rules.collect::<String>();
            let _ = writeln!(text, "[[filter]]\nname = \"{name}\"\n{defaults}rules = [\n{rules}]");
        }
        for (number, group) in self.groups.iter().enumerate() {
            let list = listed(group.iter().map(|one| format!("\"{}\"", one.ours())));
            let _ = writeln!(text, "[[group]]\nname = \"g{number}\"\naddresses = [{list}]");
        }
        text
    }

    /// A ruleset of nftables for packets that are forwarded between interfaces `vm` and `net`.
    pub fn nft(&self) -> String {
        let mut text = "flush ruleset\ntable inet oracle {\n".to_owned();
        for (number, group) in self.groups.iter().enumerate() {
            for (v6, kind) in [(false, "ipv4_addr"), (true, "ipv6_addr")] {
                let here = group.iter().filter(|one| one.is_in(v6));
                let list = listed(here.map(|one| one.nft(v6)));
                let elements = match list.is_empty() {
                    true => String::new(),
                    false => format!("elements = {{ {list} }};"),
                };
                let name = format!("g{number}v{}", if v6 { 6 } else { 4 });
                let set = format!("type {kind}; flags interval; auto-merge; {elements}");
                let _ = writeln!(text, "set {name} {{ {set} }}");
            }
        }
        // A packet that begins no connection passes by a stateless rule alone.
        text += "chain begin { ct state new accept; drop; }\n";
        // The test removes what such a rule lets begin, by this mark; a class of service
        // tells that the rule has decided.
        text += "chain stateless { ip dscp set cs1; ip6 dscp set cs1; \
                 ct state new ct mark set 1 accept; accept; }\n";
        for (out, default) in [false, true].into_iter().zip(self.defaults) {
            let name = if out { "from_vm" } else { "to_vm" };
            let rules = self.rules.iter().filter(|rule| rule.out == out);
            let lines = rules.flat_map(Rule::nft).collect::<Vec<_>>().join("\n");
            let _ = writeln!(text, "chain {name} {{\n{lines}\n{}\n}}", verdict(default));
        }
        text + "chain forward { type filter hook forward priority filter; policy drop;\n\
                meta l4proto 254 accept\n\
                ct state established,related accept\n\
                iifname vm goto from_vm\niifname net goto to_vm\n}\n\
                chain raw { type filter hook prerouting priority raw;\n\
                meta l4proto 254 notrack\n}\n}\n"
    }
}
