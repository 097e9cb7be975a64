//! What the tests of filters share: frames from their parts, and a port with rules.

mod answers;
mod attacks;
mod compiled;
mod connections;
mod findings;
mod gate;
mod kept;
mod logged;
mod memo;
mod model;
mod packets;
mod rules;
mod threads;

use core::net::IpAddr;

use super::connections::{Connections, ConnectionsConfig};
use super::named::{Filter, Group, Groups};
use super::packet::{self, Packet, Parsed, Plain};
use super::{Answer, Cause, Compiled, Direction, Fragments, Gate};
use crate::fdb::Tick;
use crate::port_security::Headers;
use Direction::{In, Out};
use base::limits::SNAPSHOT_LEN;

pub const FIN: u8 = 1;
pub const SYN: u8 = 2;
pub const RST: u8 = 4;
pub const ACK: u8 = 16;

/// Makes an IP packet behind an Ethernet header.
pub fn ip(from: &str, to: &str, protocol: u8, body: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
    let (from, to): (IpAddr, IpAddr) = (from.parse().unwrap(), to.parse().unwrap());
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let total = (20 + body.len()) as u16;
            frame.extend([8, 0, 0x45, 0]);
            frame.extend(total.to_be_bytes());
            frame.extend([0, 7, 0, 0, 64, protocol, 0, 0]);
            frame.extend(from.octets());
            frame.extend(to.octets());
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend((body.len() as u16).to_be_bytes());
            frame.extend([protocol, 64]);
            frame.extend(from.octets());
            frame.extend(to.octets());
        }
        _ => panic!("one version of IP"),
    }
    frame.extend(body);
    frame
}

/// An address with a port.
pub type End<'a> = (&'a str, u16);

pub fn tcp(from: End<'_>, to: End<'_>, flags: u8) -> Vec<u8> {
    let mut body = [from.1.to_be_bytes(), to.1.to_be_bytes()].concat();
    body.extend([0, 0, 0, 9, 0, 0, 0, 5, 0x50, flags, 1, 0, 0, 0, 0, 0]);
    ip(from.0, to.0, 6, &body)
}

pub fn udp(from: End<'_>, to: End<'_>) -> Vec<u8> {
    let mut body = [from.1.to_be_bytes(), to.1.to_be_bytes()].concat();
    body.extend([0, 12, 0, 0, 1, 2, 3, 4]);
    ip(from.0, to.0, 17, &body)
}

/// Makes a message of ICMP, or of ICMPv6.
pub fn icmp(from: &str, to: &str, [kind, code]: [u8; 2], id: u16, rest: &[u8]) -> Vec<u8> {
    let mut body = vec![kind, code, 0, 0];
    body.extend(id.to_be_bytes());
    body.extend([0, 1]);
    body.extend(rest);
    ip(from, to, if from.contains(':') { 58 } else { 1 }, &body)
}

/// Makes an error of ICMP that quotes the packet of a frame.
pub fn error(from: &str, to: &str, message: [u8; 2], frame: &[u8]) -> Vec<u8> {
    icmp(from, to, message, 0, &frame[14..])
}

pub fn headers(frame: &[u8]) -> Headers<'_> {
    let bytes = &frame[..frame.len().min(256)];
    Headers { bytes, whole: &[], len: frame.len(), sum_at: None, is_cut: false }
}

pub fn parse(frame: &[u8]) -> Parsed {
    packet::parse(&headers(frame)).unwrap_or_else(|error| panic!("{error:?}: {frame:02x?}"))
}

/// Reads a frame by the short way.
pub fn plain(frame: &[u8], sum_at: Option<usize>) -> Option<Plain> {
    let mut snapshot = [0; SNAPSHOT_LEN];
    let count = frame.len().min(SNAPSHOT_LEN);
    snapshot[..count].copy_from_slice(&frame[..count]);
    Plain::read(&snapshot, frame.len(), sum_at)
}

pub fn packet(frame: &[u8]) -> Packet {
    match parse(frame) {
        Parsed::Packet(packet) => packet,
        other => panic!("{other:?}"),
    }
}

/// Makes a filter of rules, with defaults that drop.
pub fn filter(rules: &[&str]) -> Filter {
    let rules = rules.iter().map(|rule| rule.parse().unwrap_or_else(|error| panic!("{error}")));
    let drop = Some(super::Verdict::Drop);
    Filter { name: "f".into(), default_in: drop, default_out: drop, rules: rules.collect() }
}

pub fn groups(list: &[(&str, &[&str])]) -> Groups {
    let group = |(name, addresses): &(&str, &[&str])| {
        let addresses = addresses.iter().map(|text| text.parse().unwrap()).collect();
        ((*name).to_owned(), Group { name: (*name).to_owned(), addresses })
    };
    list.iter().map(group).collect()
}

/// A port with rules and connections of its own.
pub struct Port {
    pub rules: Compiled,
    pub connections: Connections,
    pub fragments: Fragments,
    pub now: Tick,
}

pub const CONFIG: ConnectionsConfig = ConnectionsConfig {
    max_entries: 64,
    max_per_port: 32,
    reserved_per_port: 4,
    ports: 4,
    key: [1, 2, 3, 4],
};

impl Port {
    pub fn new(rules: &[&str]) -> Port {
        let rules = Compiled::new(&[&filter(rules)], &Groups::new(), 1).unwrap();
        let connections = Connections::new(CONFIG);
        connections.prepare(0);
        Port { rules, connections, fragments: Fragments::default(), now: Tick::from(1000) }
    }

    pub fn gate(&self) -> Gate<'_> {
        let Port { rules, connections, fragments, .. } = self;
        Gate { port: 0, rules, connections, fragments }
    }

    /// Judges and counts a frame.
    pub fn judge(&self, frame: &[u8], direction: Direction) -> Answer {
        let answer = match plain(frame, None) {
            // As a worker does.
            Some(plain) => {
                let key = plain.key(0, 0, direction);
                let sought = self.connections.seek(key, plain.event);
                self.gate().judge_plain(&sought, direction, self.now)
            }
            None => self.gate().judge(&parse(frame), direction, self.now),
        };
        if let Some(counts) = answer.rule.and_then(|rule| self.rules.counts(rule)) {
            counts.add(1, frame.len() as u64);
        }
        answer
    }

    /// True if a frame passes.
    pub fn passes(&self, frame: &[u8], direction: Direction) -> bool {
        self.judge(frame, direction).refused.is_none()
    }

    pub fn refused(&self, frame: &[u8], direction: Direction) -> Option<Cause> {
        self.judge(frame, direction).refused
    }

    pub fn change(&mut self, rules: &[&str]) {
        let generation = self.rules.generation() + 1;
        self.rules = Compiled::new(&[&filter(rules)], &Groups::new(), generation).unwrap();
    }

    pub fn wait(&mut self, seconds: u32) {
        self.now = Tick::from(self.now.second() + seconds);
    }
}

/// Numbers without a pattern.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) ^ (self.0 << 31)
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() >> 11) as usize % end
    }

    pub fn choose<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())]
    }
}
