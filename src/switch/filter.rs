//! Filters: which packets a port may send and receive, by rules, with the state of connections.
//!
//! * [`rule`] has the language of rules, [`named`] has filters and groups. [`Compiled::new`] makes
//!   one [`Compiled`] of a port's list of filters, whose look-ups do not grow with the number of
//!   rules.
//! * [`packet::parse`] reads a frame's first bytes. [`connections::Connections`] has the
//!   connections of all ports, [`fragments::Fragments`] the fragmented packets.
//! * [`Gate::judge`] decides about a packet. [`memo::FlowMemo`] repeats the answer for the next
//!   packets of a stream. [`reject`] makes the answers to rejected packets,
//!   [`rule_log`] keeps packets for a log.
//!
//! # What passes
//!
//! A packet of a known connection passes, in both directions, and so does an ICMP error that quotes
//! a packet of a known connection to the sender of that packet. Any other packet meets the rules of
//! its direction in order; the first rule that matches decides, otherwise the default. A packet
//! that is accepted begins a connection, unless its rule is `stateless`. A packet that can begin no
//! connection (a TCP reset, an ICMP reply) passes by a `stateless` rule alone.
//!
//! After a change of the rules the first packet of each connection asks the new rules whether the
//! connection may still begin; if not, the connection ends.
//!
//! ARP, neighbour discovery and multicast listener discovery pass; a port's guard checks these. The
//! default decides about frames of other types than IP.
//!
//! A connection belongs to the port: the same connection at another port with a filter is another
//! entry. So no port sees, ends or crowds out the connections of another.

pub mod check;
pub mod compiled;
pub mod connections;
pub mod fragments;
mod gate;
pub mod memo;
pub mod named;
pub mod packet;
mod port_filter;
pub mod reject;
pub mod rule;
pub mod rule_log;
pub mod span;
#[cfg(test)]
mod tests;

pub use compiled::{Compiled, Counts, TooLarge};
pub use connections::{Connections, ConnectionsConfig};
pub use fragments::Fragments;
pub use gate::{Answer, Cause, Gate, Preview};
pub use memo::FlowMemo;
pub use named::{Filter, Group};
pub use packet::Packet;
pub use port_filter::PortFilter;
pub use rule::{FilterRule, RuleError};
pub use rule_log::{LoggedPacket, RuleLog};
pub use span::Span;

base::words! {
    /// Direction of a packet, from the view of the VM behind the port.
    Direction {
        /// To the VM.
        In "in",
        /// From the VM.
        Out "out",
    }

    /// Verdict about a packet.
    Verdict {
        /// The packet passes.
        Accept "accept",
        /// The packet is dropped.
        Drop "drop",
        /// The packet is dropped, and its sender is told.
        Reject "reject",
    }
}

impl Direction {
    /// Returns the direction of answers.
    #[inline(always)]
    pub const fn opposite(self) -> Direction {
        match self {
            Direction::In => Direction::Out,
            Direction::Out => Direction::In,
        }
    }
}
