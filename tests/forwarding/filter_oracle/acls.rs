//! OVN on one host, over Open vSwitch's own datapath with its own tracking of connections: a
//! logical switch with ACLs at the VM's port. The others are behind a network that is attached
//! without ACLs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::Oracle;
use super::flows::Packet;
use super::nft::By;
use super::ours::frame;
use super::rules::{
    Address, End, ICMP, ICMPV6, Model, Protocol, Rule, TCP, Verdict, joined, listed,
};
use testkit::vm::mac_of;

use crate::ovn_oracle::ovn::{Capture, Programs, add_port, done, wait_for_ports};

/// Priority of the first rule, and of the defaults.
const FIRST: usize = 2_000;
const DEFAULT: usize = 1_000;
const NORTH: &str = "--db=unix:db";

pub struct Acls {
    programs: Programs,
    /// What the VM is sent, and the others.
    captures: [Capture; 2],
    sentinels: u32,
}

impl Acls {
    pub fn start() -> Acls {
        let mut programs = Programs::start();
        let dir = programs.dir();
        let far = "--db=unix:db add-br far -- set bridge far datapath-type=dummy -- set open . \
                   external-ids:ovn-bridge-mappings=far:far -- add-port far net -- \
                   set interface net type=dummy options:tx_pcap=net.sent";
        done("ovs-vsctl", dir, far);
        let net = "--db=unix:db lsp-add switch net -- lsp-set-type net localnet -- \
                   lsp-set-addresses net unknown -- lsp-set-options net network_name=far";
        done("ovn-nbctl", dir, net);
        add_port(dir, "vm", " options:tx_pcap=vm.sent");
        let mac = mac_of(0).map(|octet| format!("{octet:02x}")).join(":");
        done("ovn-nbctl", dir, &format!("--db=unix:db lsp-set-addresses vm {mac}"));
        wait_for_ports(dir, &["vm"]);
        let captures = ["vm.sent", "net.sent"].map(|name| Capture::open(dir, name));
        // As this switch: no windows.
        programs.ask("dpctl/ct-disable-tcp-seq-chk", &[vec![]]);
        Acls { programs, captures, sentinels: 0 }
    }
}

impl Oracle for Acls {
    fn load(&mut self, model: &Model) {
        let mut words: Vec<String> = vec![NORTH.into(), "--wait=hv".into(), "--timeout=60".into()];
        let mut add = |command: &[&str]| {
            words.push("--".into());
            words.extend(command.iter().map(|word| (*word).to_owned()));
        };
        add(&["acl-del", "switch"]);
        for (out, default) in [false, true].into_iter().zip(model.defaults) {
            let (direction, port) = way(out);
            let rules = model.rules.iter().filter(|rule| rule.out == out);
            for (number, rule) in rules.enumerate() {
                let priority = (FIRST - number).to_string();
                for text in conditions(rule, model) {
                    let text = format!("{port} && {text}");
                    let action = action(rule.verdict);
                    add(&["acl-add", "switch", direction, &priority, &text, action]);
                }
            }
            let (text, priority) = (format!("{port} && ip"), DEFAULT.to_string());
            add(&["acl-add", "switch", direction, &priority, &text, action(default)]);
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        self.programs.run("ovn-nbctl", &words);
        // No decision by the rules before is left.
        self.programs.ask("revalidator/purge", &[vec![]]);
        self.programs.ask("dpctl/flush-conntrack", &[vec![]]);
    }

    fn pass(&mut self, packets: &[Packet]) -> Vec<Option<By>> {
        packets.iter().map(|packet| self.pass_one(packet)).collect()
    }
}

impl Acls {
    /// Sends a packet and then a frame that always passes. Open vSwitch may send two frames in the
    /// other order if they come together, so a frame that follows alone decides.
    fn pass_one(&mut self, packet: &Packet) -> Option<By> {
        let from = usize::from(!packet.event.out);
        let sent = frame(from, &packet.parts[0]);
        let mut passes = false;
        for frames in [vec![sent.clone()], vec![]] {
            if !passes {
                let got = self.send(from, frames);
                passes = got.contains(&sent);
            }
        }
        passes.then_some(By::Connection)
    }

    /// Sends frames and one that always passes; what the other end is sent until then.
    fn send(&mut self, from: usize, mut frames: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        self.sentinels += 1;
        let macs = [mac_of(1 - from as u8), mac_of(from as u8)].concat();
        let last = [&macs[..], &[0x88, 0xb5], &self.sentinels.to_be_bytes(), &[0; 42]].concat();
        frames.push(last.clone());
        self.programs.send(["vm", "net"][from], &frames);
        self.programs.until(&last, &mut self.captures[1 - from])
    }
}

/// The direction of a rule, and the condition on the port.
fn way(out: bool) -> (&'static str, &'static str) {
    match out {
        false => ("to-lport", "outport == \"vm\""),
        true => ("from-lport", "inport == \"vm\""),
    }
}

fn action(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Accept | Verdict::Stateless => "allow-related",
        Verdict::Drop | Verdict::Reject => "drop",
    }
}

/// Conditions, of which one must hold for a packet that the rule is for.
fn conditions(rule: &Rule, model: &Model) -> Vec<String> {
    let mut all = Vec::new();
    for v6 in [false, true] {
        let ip = if v6 { "ip6" } else { "ip4" };
        let ends = [("src", &rule.from), ("dst", &rule.to)];
        let addresses = ends.map(|(word, end)| match addresses(end, model, v6) {
            None => Some(ip.to_owned()),
            Some(list) if list.is_empty() => None,
            Some(list) => Some(format!("{ip}.{word} == {{{list}}}")),
        });
        let [Some(from), Some(to)] = addresses else { continue };
        for protocol in protocols(rule, v6) {
            let ports = ends.map(|(word, end)| ports(&protocol, word, end)).concat();
            all.push(format!("{from} && {to} && {protocol}{ports}"));
        }
    }
    all
}

fn protocols(rule: &Rule, v6: bool) -> Vec<String> {
    let (ip, icmp) = if v6 { ("ip6", "icmp6") } else { ("ip4", "icmp4") };
    if rule.protocols.is_empty() {
        return vec![ip.to_owned()];
    }
    let here = rule.protocols.iter().filter(|one| one.is_in(v6));
    here.map(|one| match *one {
        Protocol::Number(ICMP | ICMPV6) => icmp.to_owned(),
        // These have ports.
        Protocol::Number(TCP) => "tcp".to_owned(),
        Protocol::Number(17) => "udp".to_owned(),
        Protocol::Number(number) => format!("ip.proto == {number}"),
        Protocol::Message { kind, code, .. } => {
            let code = code.map(|code| format!(" && {icmp}.code == {code}")).unwrap_or_default();
            format!("{icmp}.type == {kind}{code}")
        }
    })
    .collect()
}

fn ports(protocol: &str, word: &str, end: &End) -> String {
    let field = format!("{protocol}.{word}");
    let ranges = joined(&end.ports).into_iter().map(|(first, last)| match first == last {
        true => format!("{field} == {first}"),
        false => format!("({field} >= {first} && {field} <= {last})"),
    });
    let ranges: Vec<String> = ranges.collect();
    if ranges.is_empty() { String::new() } else { format!(" && ({})", ranges.join(" || ")) }
}

/// The prefixes of an end; none for any address.
fn addresses(end: &End, model: &Model, v6: bool) -> Option<String> {
    if end.addresses.is_empty() {
        return None;
    }
    let resolved = end.addresses.iter().flat_map(|address| match address {
        Address::Group(group) => model.groups[*group].clone(),
        other => vec![*other],
    });
    let here = resolved.filter(|address| address.is_in(v6));
    Some(listed(here.flat_map(|address| match address {
        Address::Prefix(address, len) => vec![format!("{address}/{len}")],
        Address::Range(first, last) => prefixes(first, last),
        Address::Group(_) => unreachable!("a group has no groups"),
    })))
}

/// The prefixes that have all addresses from the first to the last.
fn prefixes(first: IpAddr, last: IpAddr) -> Vec<String> {
    let bits = |address| match address {
        IpAddr::V4(v4) => u128::from(Ipv4Addr::to_bits(v4)),
        IpAddr::V6(v6) => Ipv6Addr::to_bits(v6),
    };
    let (mut at, end, width) = (bits(first), bits(last), if first.is_ipv4() { 32 } else { 128 });
    let mut all = Vec::new();
    loop {
        let fits = |size: u32| at + ((1u128 << size) - 1) <= end;
        let most = at.trailing_zeros().min(width - 1);
        let size = (0..=most).rev().find(|size| fits(*size)).unwrap_or(0);
        let address = match width {
            32 => IpAddr::from(Ipv4Addr::from_bits(at as u32)),
            _ => IpAddr::from(Ipv6Addr::from_bits(at)),
        };
        all.push(format!("{address}/{}", width - size));
        at += 1 << size;
        if at > end {
            return all;
        }
    }
}
