//! Where filters differ from nftables, and why.

use super::flows::{Event, Flow, Packet, What};
use super::nft::By;
use super::packets::{ACK, Between, Cut, FIN, RST, SYN, URG};
use super::rules::Model;
use Direction::{Laxer, Stricter};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// Packets are dropped here and pass there.
    Stricter,
    /// Packets pass here and are dropped there.
    Laxer,
}

/// A packet, and the flow that the packet is of.
pub struct Case<'a> {
    pub model: &'a Model,
    pub flow: &'a Flow,
    pub packet: &'a Packet,
}

/// A kind of difference.
pub struct Entry {
    pub direction: Direction,
    pub why: &'static str,
    /// True for packets that the entry is about.
    pub of: fn(&Case<'_>) -> bool,
}

impl Entry {
    pub fn applies(&self, direction: Direction, case: &Case<'_>) -> bool {
        self.direction == direction && (self.of)(case)
    }
}

impl Case<'_> {
    /// The flags of TCP, and whether the end that began the flow sent them.
    pub fn segment(&self) -> Option<(bool, u8)> {
        let Event { out, what: What::Tcp(flags) } = self.packet.event else { return None };
        Some((self.flow.began_out().unwrap_or(out) == out, flags))
    }

    pub fn has(&self, all: u8) -> bool {
        self.segment().is_some_and(|(_, flags)| flags & all == all)
    }

    /// Segments of the flow's connection that have passed, in order.
    pub fn past(&self) -> Vec<(bool, u8)> {
        let began = self.flow.began_out();
        let passed = self.flow.past.iter().filter(|(_, by)| *by == Some(By::Connection));
        let segments = passed.filter_map(|(event, _)| match event.what {
            What::Tcp(flags) => Some((Some(event.out) == began, flags)),
            _ => None,
        });
        segments.collect()
    }

    /// True if an end has reset the connection, or two FINs have ended it; and if `then`, a SYN has
    /// passed behind.
    pub fn is_over(&self, then: bool) -> bool {
        let past = self.past();
        let reset = past.iter().position(|(_, flags)| flags & RST != 0);
        let fins = past.iter().enumerate().filter(|(_, (_, flags))| flags & FIN != 0);
        let ended = fins.map(|(at, _)| at).nth(1);
        let over = reset.into_iter().chain(ended).min();
        let reopens = |at: usize| past[at..].iter().any(|(_, flags)| flags & SYN != 0);
        over.is_some_and(|at| !then || reopens(at))
    }

    /// True if one end alone had spoken when the connection was reset.
    pub fn is_reset_unanswered(&self) -> bool {
        let past = self.past();
        let reset = past.iter().position(|(_, flags)| flags & RST != 0);
        reset.is_some_and(|at| past[..at].iter().all(|(first, _)| *first))
    }

    /// True if a SYN began no connection behind the end of one.
    pub fn is_refused_again(&self) -> bool {
        let refused = |(event, by): &(Event, Option<By>)| {
            matches!(event.what, What::Tcp(flags) if flags & SYN != 0)
                && *by != Some(By::Connection)
        };
        self.is_over(false) && self.flow.past.iter().any(refused)
    }

    /// True for ICMP whose code is not that of all queries of the flow.
    pub fn has_codes(&self) -> bool {
        let code = |event: &Event| match event.what {
            What::Request(code) | What::Reply(code) => Some(code),
            _ => None,
        };
        let past = self.flow.past.iter().filter_map(|(event, _)| code(event));
        past.chain(code(&self.packet.event)).any(|code| code != 0)
    }
}

/// ICMP that is neither query nor error.
pub const MESSAGES: Entry = Entry {
    direction: Laxer,
    why: "rules alone decide about ICMP messages that are neither query nor error",
    of: |case| case.packet.event.what == What::Message,
};

/// Another code of an ICMP query.
pub const OTHER_CODE: Entry = Entry {
    direction: Laxer,
    why: "the code of an ICMP query is not that of the connection",
    of: |case| case.has_codes(),
};

/// The first one that applies counts.
pub const LIST: &[Entry] = &[
    Entry {
        direction: Stricter,
        why: "a fragment that comes before the first one is dropped; Linux waits for the first",
        of: |case| case.packet.cut == Cut::Reversed,
    },
    Entry {
        direction: Stricter,
        why: "the header of TCP is in two fragments (RFC 3128)",
        of: |case| case.packet.cut == Cut::Short && case.segment().is_some(),
    },
    Entry {
        direction: Laxer,
        why: "fragments that overlap behind the header are the receiver's to judge",
        of: |case| case.packet.cut == Cut::Overlap,
    },
    MESSAGES,
    Entry {
        direction: Laxer,
        why: "ports behind an authentication header are read; nftables takes it for the protocol",
        of: |case| case.packet.between == Between::Authentication,
    },
    Entry {
        direction: Stricter,
        why: "ports behind an authentication header are read, and refused",
        of: |case| case.packet.between == Between::Authentication,
    },
    Entry {
        direction: Laxer,
        why: "SYN and ACK from the end that began; its receiver refuses it (RFC 9293 3.10.7.4)",
        of: |case| case.has(SYN | ACK) && case.segment().is_some_and(|(first, _)| first),
    },
    Entry {
        direction: Laxer,
        why: "the urgent flag is not looked at; Linux refuses it with SYN and ACK, or RST",
        of: |case| case.has(URG | SYN | ACK) || case.has(URG | RST),
    },
    Entry {
        direction: Laxer,
        why: "a connection that is reset before both ends have spoken is known for ten seconds",
        of: |case| case.is_reset_unanswered(),
    },
    Entry {
        direction: Laxer,
        why: "either end may begin anew with the ports of a connection that was reset",
        of: |case| case.has(SYN) && case.is_over(false),
    },
    Entry {
        direction: Laxer,
        why: "a SYN that begins no connection leaves the one that has ended; Linux forgets both",
        of: |case| case.is_refused_again(),
    },
    Entry {
        direction: Stricter,
        why: "a SYN behind a reset, or behind the last FIN, begins a connection; Linux may ignore \
              it, so that all segments still pass",
        of: |case| !case.has(SYN) && case.is_over(true),
    },
    Entry {
        direction: Stricter,
        why: "a worker may miss ACKs behind a FIN for a tick, so that no new connection begins",
        of: |case| case.has(SYN) && case.is_over(false),
    },
    Entry {
        direction: Laxer,
        why: "a worker lets ACKs of a connection pass for the rest of a tick, though its ports \
              have begun anew",
        of: |case| !case.has(SYN) && case.is_over(true),
    },
    Entry {
        direction: Stricter,
        why: "no stateless rule is asked about a segment with senseless flags, or one that cannot \
              belong to its connection",
        of: |case| case.model.has_stateless() && case.segment().is_some(),
    },
    OTHER_CODE,
];
