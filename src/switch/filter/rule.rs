//! One rule of a filter: what it matches, and its verdict.
//!
//! ```text
//! rule      = direction verdict [protocols] ["from" end] ["to" end] {option}
//! direction = "in" | "out"
//! verdict   = "accept" | "drop" | "reject"
//! protocols = "any" | protocol {"," protocol}
//! protocol  = "tcp" | "udp" | "sctp" | icmp | NUMBER
//! icmp      = ("icmp" | "icmp6") [":" (NAME | TYPE ["/" CODE])]
//! end       = [addresses] ["port" port {"," port}]
//! addresses = "any" | address {"," address}
//! address   = ADDRESS | ADDRESS "/" LENGTH | ADDRESS "-" ADDRESS | "group:" NAME
//! port      = NUMBER | NUMBER "-" NUMBER
//! option    = "log" | "stateless"
//! ```

mod error;
mod parse;

use std::fmt;

pub use error::RuleError;

use super::{Direction, Span, Verdict};
use base::frame::protocol::{ICMPV6, TCP, UDP};

/// IP protocol number of ICMP.
pub const ICMP: u8 = 1;
/// IP protocol number of SCTP.
pub(super) const SCTP: u8 = 132;

/// Number of a rule among the rules of a port; the defaults follow behind the rules.
pub type RuleNumber = u16;

/// A rule of a filter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FilterRule {
    /// Direction of the packets that the rule is for.
    pub direction: Direction,
    /// Verdict about packets that match.
    pub verdict: Verdict,
    /// Protocols; an empty list stands for any.
    pub protocols: Vec<Protocol>,
    /// Source of the packet.
    pub from: End,
    /// Destination of the packet.
    pub to: End,
    /// Packets that begin a connection, or are refused, are logged, with a bounded rate.
    pub log: bool,
    /// Accepted packets begin no connection: answers need a rule of their own.
    pub stateless: bool,
}

/// One end of a packet's way.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct End {
    /// Addresses; an empty list stands for any.
    pub addresses: Vec<Address>,
    /// Ports; an empty list stands for any.
    pub ports: Vec<Ports>,
}

/// Addresses in a rule.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Address {
    /// A range of addresses.
    Span(Span),
    /// The addresses of a group with this name.
    Group(String),
}

/// All ports from the first to the last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Ports {
    /// The first port.
    pub first: u16,
    /// The last port.
    pub last: u16,
}

/// A protocol in a rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    /// All packets with this protocol number, of either version of IP.
    Number(u8),
    /// ICMP for IPv4.
    Icmp(Option<Message>),
    /// ICMP for IPv6.
    Icmp6(Option<Message>),
}

/// A kind of ICMP message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message {
    /// Type of the message.
    pub kind: u8,
    /// Code of the message; `None` for any.
    pub code: Option<u8>,
}

impl Message {
    /// Returns the message's place among all types and codes, as a range of ports.
    pub(super) fn ports(self) -> Ports {
        let at = |code: u8| u16::from_be_bytes([self.kind, code]);
        Ports { first: at(self.code.unwrap_or(0)), last: at(self.code.unwrap_or(u8::MAX)) }
    }
}

/// Protocols with a name.
const PROTOCOLS: &[(&str, Protocol)] = &[
    ("tcp", Protocol::Number(TCP)),
    ("udp", Protocol::Number(UDP)),
    ("sctp", Protocol::Number(SCTP)),
    ("icmp", Protocol::Icmp(None)),
    ("icmp6", Protocol::Icmp6(None)),
];

/// Types of ICMP with a name: those of RFC 792.
const ICMP_TYPES: &[(&str, u8)] = &[
    ("echo-reply", 0),
    ("destination-unreachable", 3),
    ("redirect", 5),
    ("echo-request", 8),
    ("router-advertisement", 9),
    ("router-solicitation", 10),
    ("time-exceeded", 11),
    ("parameter-problem", 12),
    ("timestamp-request", 13),
    ("timestamp-reply", 14),
];

/// Types of ICMPv6 with a name: those of RFC 4443.
const ICMP6_TYPES: &[(&str, u8)] = &[
    ("destination-unreachable", 1),
    ("packet-too-big", 2),
    ("time-exceeded", 3),
    ("parameter-problem", 4),
    ("echo-request", 128),
    ("echo-reply", 129),
];

impl Protocol {
    /// Returns the protocol's number.
    pub fn number(self) -> u8 {
        match self {
            Protocol::Number(number) => number,
            Protocol::Icmp(_) => ICMP,
            Protocol::Icmp6(_) => ICMPV6,
        }
    }

    /// True if packets of the protocol have ports.
    pub fn has_ports(self) -> bool {
        matches!(self, Protocol::Number(TCP | UDP | SCTP))
    }

    /// Returns the kind of ICMP message, if the protocol is limited to one.
    pub fn message(self) -> Option<Message> {
        match self {
            Protocol::Number(_) => None,
            Protocol::Icmp(message) | Protocol::Icmp6(message) => message,
        }
    }

    /// True if IPv6 packets, or else IPv4 packets, may have the protocol.
    pub(super) fn is_in(self, v6: bool) -> bool {
        match self {
            Protocol::Number(_) => true,
            Protocol::Icmp(_) => !v6,
            Protocol::Icmp6(_) => v6,
        }
    }
}

impl fmt::Display for FilterRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.direction, self.verdict)?;
        if !self.protocols.is_empty() {
            write!(f, " {}", list(&self.protocols))?;
        }
        for (word, end) in [("from", &self.from), ("to", &self.to)] {
            if *end != End::default() {
                write!(f, " {word}{end}")?;
            }
        }
        for (word, _) in [("log", self.log), ("stateless", self.stateless)].iter().filter(|o| o.1) {
            write!(f, " {word}")?;
        }
        Ok(())
    }
}

fn list(items: &[impl fmt::Display]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.addresses.is_empty() {
            write!(f, " {}", list(&self.addresses))?;
        }
        if !self.ports.is_empty() {
            write!(f, " port {}", list(&self.ports))?;
        }
        Ok(())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Span(span) => span.fmt(f),
            Address::Group(name) => write!(f, "group:{name}"),
        }
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.first == self.last {
            true => write!(f, "{}", self.first),
            false => write!(f, "{}-{}", self.first, self.last),
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (message, types) = match self {
            Protocol::Number(_) => (None, &[][..]),
            Protocol::Icmp(message) => (*message, ICMP_TYPES),
            Protocol::Icmp6(message) => (*message, ICMP6_TYPES),
        };
        let bare = PROTOCOLS.iter().find(|(_, known)| known.number() == self.number());
        match bare {
            Some((name, _)) => f.write_str(name)?,
            None => write!(f, "{}", self.number())?,
        }
        let name = |kind: u8| types.iter().find(|(_, known)| *known == kind);
        match message {
            None => Ok(()),
            Some(Message { kind, code: Some(code) }) => write!(f, ":{kind}/{code}"),
            Some(Message { kind, code: None }) => match name(kind) {
                Some((name, _)) => write!(f, ":{name}"),
                None => write!(f, ":{kind}"),
            },
        }
    }
}
