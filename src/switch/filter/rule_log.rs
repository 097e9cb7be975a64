//! Packets that rules with `log` have decided about, until a control thread writes them to a log.
//!
//! A worker never writes: it notes the packet in a short list, and the packets beyond are counted.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::fmt;
use std::sync::TryLockError;

use super::Direction;
use super::compiled::{Fields, RuleNumber};
use super::reject::Allowance;
use super::rule::{ICMP, Protocol, SCTP};
use crate::fdb::Tick;
use crate::sync::Mutex;
use base::frame::protocol::{ICMPV6, TCP, UDP};
use base::limits::{RULE_LOG_PACKETS, RULE_LOG_PER_SECOND};

/// A packet that a rule with `log` has decided about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LoggedPacket {
    /// The rule.
    pub rule: RuleNumber,
    /// Direction of the packet.
    pub direction: Direction,
    /// The packet passed.
    pub passed: bool,
    /// The fields of the packet that rules match.
    pub fields: Fields,
}

/// The packets of one port since the last call of [`RuleLog::take`].
#[derive(Debug)]
pub struct RuleLog(Mutex<List>);

#[derive(Debug)]
struct List {
    packets: Vec<LoggedPacket>,
    allowance: Allowance,
    lost: u64,
}

impl Default for RuleLog {
    /// Makes an empty list. The memory is allocated here: a frame never allocates.
    fn default() -> RuleLog {
        let packets = Vec::with_capacity(RULE_LOG_PACKETS);
        let allowance = Allowance::new(RULE_LOG_PER_SECOND, RULE_LOG_PACKETS as u32);
        RuleLog(Mutex::new(List { packets, allowance, lost: 0 }))
    }
}

impl RuleLog {
    /// Notes a packet; counts the packet alone if the port has had as many as it may have. Does
    /// nothing while another thread has the list.
    pub fn note(&self, packet: LoggedPacket, now: Tick) {
        let Ok(mut list) = self.0.try_lock() else { return };
        if list.packets.len() < RULE_LOG_PACKETS && list.allowance.take(now) {
            list.packets.push(packet);
        } else {
            list.lost += 1;
        }
    }

    /// Takes the packets, and the number of packets that were counted alone, if there are packets.
    /// For control threads.
    pub fn take(&self) -> (Vec<LoggedPacket>, u64) {
        let mut list = match self.0.try_lock() {
            Ok(list) => list,
            // A poisoned lock is usable: each packet of the list is whole at any moment.
            Err(TryLockError::Poisoned(poison)) => poison.into_inner(),
            // The next call has the packets.
            Err(TryLockError::WouldBlock) => return (Vec::new(), 0),
        };
        if list.packets.is_empty() {
            return (Vec::new(), 0);
        }
        let packets = list.packets.clone();
        list.packets.clear();
        (packets, std::mem::take(&mut list.lost))
    }
}

impl fmt::Display for LoggedPacket {
    /// Writes direction, protocol, and both ends, as in a rule.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fields { v6, protocol, from, to, from_port, to_port } = self.fields;
        let address = |bits: u128| match v6 {
            true => IpAddr::from(Ipv6Addr::from_bits(bits)),
            false => IpAddr::from(Ipv4Addr::from_bits(bits as u32)),
        };
        let (from, to) = (address(from), address(to));
        write!(f, "{} {}", self.direction.name(), Protocol::Number(protocol))?;
        match protocol {
            TCP | UDP | SCTP => {
                write!(f, " from {from} port {from_port} to {to} port {to_port}")
            }
            ICMP | ICMPV6 => {
                let [kind, code] = to_port.to_be_bytes();
                write!(f, ":{kind}/{code} from {from} to {to}")
            }
            _ => write!(f, " from {from} to {to}"),
        }
    }
}
