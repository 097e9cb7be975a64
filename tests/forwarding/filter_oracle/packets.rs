//! Packets of IP, with right checksums, whole or in fragments.

use std::net::IpAddr;

use super::rules::{ICMP, ICMPV6, TCP, UDP};
use crate::host_oracle::messages::checksum;

pub const FIN: u8 = 0x01;
pub const SYN: u8 = 0x02;
pub const RST: u8 = 0x04;
pub const PSH: u8 = 0x08;
pub const ACK: u8 = 0x10;
pub const URG: u8 = 0x20;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION: u8 = 60;

/// Hops that a packet may still go.
const HOPS: u8 = 64;
/// Body of IPv6's first fragments, which some kernels drop if they are shorter than a minimum MTU.
const LONG: usize = 1_304;

/// What stands between the header of IP and the body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Between {
    Nothing,
    /// Options of IPv4 that mean nothing.
    Options,
    HopByHop,
    Routing,
    Destination,
    Authentication,
    /// Two headers.
    Two,
}

/// How a packet is cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cut {
    Whole,
    /// IPv6: a fragment header, and the only fragment.
    Atomic,
    Two,
    Three,
    /// The second fragment comes first.
    Reversed,
    /// The second fragment has eight bytes of the first one too.
    Overlap,
    /// IPv4: the first fragment ends within the header of TCP.
    Short,
    /// There is no first fragment.
    Headless,
}

impl Cut {
    /// Bytes of the first fragment's body; the packet's body must be longer by 24.
    pub fn first(self, v6: bool) -> usize {
        match (self, v6) {
            (Cut::Short, _) => 8,
            (_, true) => LONG,
            (_, false) => 32,
        }
    }
}

/// A packet that is to be sent.
#[derive(Clone, Copy, Debug)]
pub struct Ip {
    pub from: IpAddr,
    pub to: IpAddr,
    pub protocol: u8,
    /// Tells the packet from all others: identification of IPv4, or flow label of IPv6.
    pub number: u32,
}

impl Ip {
    /// The number as a packet has it.
    pub fn label(&self) -> u32 {
        self.number & if self.from.is_ipv6() { 0xf_ffff } else { 0xffff }
    }

    fn pseudo(&self, len: usize) -> Vec<u8> {
        match (self.from, self.to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let len = (len as u16).to_be_bytes();
                [&from.octets()[..], &to.octets(), &[0, self.protocol], &len].concat()
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let len = (len as u32).to_be_bytes();
                [&from.octets()[..], &to.octets(), &len, &[0, 0, 0, self.protocol]].concat()
            }
            _ => panic!("two versions of IP"),
        }
    }

    /// Puts the checksum into a body.
    pub fn summed(&self, mut body: Vec<u8>) -> Vec<u8> {
        let at = match self.protocol {
            TCP => 16,
            UDP => 6,
            ICMP | ICMPV6 => 2,
            _ => return body,
        };
        body[at..at + 2].fill(0);
        let pseudo = if self.protocol == ICMP { Vec::new() } else { self.pseudo(body.len()) };
        let sum = match checksum(&[&pseudo, &body]) {
            0 if self.protocol == UDP => 0xffff,
            sum => sum,
        };
        body[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        body
    }

    /// One packet; `part` is offset and "more follows" of a fragment.
    fn packet(&self, between: Between, part: Option<(usize, bool)>, body: &[u8]) -> Vec<u8> {
        match (self.from, self.to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let options: &[u8] = if between == Between::Options { &[1, 1, 1, 0] } else { &[] };
                let (at, more) = part.unwrap_or((0, false));
                let word = (at / 8) as u16 | if more { 0x2000 } else { 0 };
                let total = (20 + options.len() + body.len()) as u16;
                let mut header = vec![0x45 + (options.len() / 4) as u8, 0];
                header.extend(total.to_be_bytes());
                header.extend((self.label() as u16).to_be_bytes());
                header.extend(word.to_be_bytes());
                header.extend([HOPS, self.protocol, 0, 0]);
                header.extend([&from.octets()[..], &to.octets(), options].concat());
                let sum = checksum(&[&header]);
                header[10..12].copy_from_slice(&sum.to_be_bytes());
                [&header, body].concat()
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let mut numbers = match between {
                    Between::Nothing | Between::Options => vec![],
                    Between::HopByHop => vec![HOP_BY_HOP],
                    Between::Routing => vec![ROUTING],
                    Between::Destination => vec![DESTINATION],
                    Between::Authentication => vec![AUTHENTICATION],
                    Between::Two => vec![HOP_BY_HOP, DESTINATION],
                };
                if part.is_some() {
                    numbers.push(FRAGMENT);
                }
                numbers.push(self.protocol);
                let mut rest = Vec::new();
                for pair in numbers.windows(2) {
                    rest.extend(self.extension(pair[0], pair[1], part));
                }
                rest.extend(body);
                let first = (6 << 28 | self.label()).to_be_bytes();
                let len = (rest.len() as u16).to_be_bytes();
                let fixed = [&first[..], &len, &[numbers[0], HOPS]].concat();
                [&fixed[..], &from.octets(), &to.octets(), &rest].concat()
            }
            _ => panic!("two versions of IP"),
        }
    }

    fn extension(&self, number: u8, next: u8, part: Option<(usize, bool)>) -> Vec<u8> {
        match number {
            FRAGMENT => {
                let (at, more) = part.expect("a fragment");
                let word = (at as u16 | u16::from(more)).to_be_bytes();
                [&[next, 0][..], &word, &self.number.to_be_bytes()].concat()
            }
            AUTHENTICATION => [&[next, 4][..], &[0; 22]].concat(),
            ROUTING => vec![next, 0, 0, 0, 0, 0, 0, 0],
            // One option that fills the header.
            _ => vec![next, 0, 1, 4, 0, 0, 0, 0],
        }
    }

    /// The packet as it is sent.
    pub fn parts(&self, between: Between, cut: Cut, body: &[u8]) -> Vec<Vec<u8>> {
        let first = cut.first(self.from.is_ipv6());
        let piece = |from: usize, to: usize| {
            self.packet(between, Some((from, to < body.len())), &body[from..to])
        };
        let end = body.len();
        match cut {
            Cut::Whole => vec![self.packet(between, None, body)],
            Cut::Atomic => vec![piece(0, end)],
            Cut::Two | Cut::Short => vec![piece(0, first), piece(first, end)],
            Cut::Three => {
                let pieces = [(0, first), (first, first + 8), (first + 8, end)];
                pieces.map(|(from, to)| piece(from, to)).to_vec()
            }
            Cut::Reversed => vec![piece(first, end), piece(0, first)],
            Cut::Overlap => vec![piece(0, first), piece(first - 8, end)],
            Cut::Headless => vec![piece(first, end)],
        }
    }
}

/// A segment of TCP. The numbers of each end stay the same, so that no segment is out of a window.
pub fn tcp((from, to): (u16, u16), flags: u8, data: &[u8]) -> Vec<u8> {
    let first = |port: u16| u32::from(port) << 12;
    let sequence = first(from) + u32::from(flags & SYN == 0);
    let acknowledged = if flags & ACK == 0 { 0 } else { first(to) + 1 };
    let mut segment = [from.to_be_bytes(), to.to_be_bytes()].concat();
    segment.extend(sequence.to_be_bytes());
    segment.extend(acknowledged.to_be_bytes());
    segment.extend([5 << 4, flags, 0xff, 0xff, 0, 0, 0, 0]);
    segment.extend(data);
    segment
}

pub fn udp((from, to): (u16, u16), data: &[u8]) -> Vec<u8> {
    let words = [from, to, 8 + data.len() as u16, 0];
    [&words.map(u16::to_be_bytes).concat()[..], data].concat()
}

/// A message of ICMP; `word` is behind the checksum.
pub fn icmp((kind, code): (u8, u8), word: [u8; 4], rest: &[u8]) -> Vec<u8> {
    [&[kind, code, 0, 0][..], &word, rest].concat()
}
