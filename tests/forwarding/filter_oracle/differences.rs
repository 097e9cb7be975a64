//! Where filters differ from nftables, and why.

use super::flows::{Event, Flow, Packet, What};
use super::nft::By;
use super::packets::{ACK, Between, Cut, FIN, RST, SYN};
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

    /// True if a SYN began no connection behind the end of one.
    pub fn is_refused_again(&self) -> bool {
        let refused = |(event, by): &(Event, Option<By>)| {
            matches!(event.what, What::Tcp(flags) if flags & SYN != 0)
                && *by != Some(By::Connection)
        };
        self.is_over(false) && self.flow.past.iter().any(refused)
    }
}

impl Case<'_> {
    /// True if a reset has come before the second end said anything that an open connection, or a
    /// SYN, has to do with.
    pub fn is_reset_unanswered(&self) -> bool {
        let past = self.past();
        let Some(at) = past.iter().position(|(_, flags)| flags & RST != 0) else { return false };
        let has_syn = past[0].1 & SYN != 0;
        past[..at].iter().all(|(first, flags)| *first || (flags & SYN != 0) != has_syn)
    }

    /// True if the last SYN is of the packet's sender, and has no answer.
    fn has_asked_last(&self) -> bool {
        let past = self.past();
        let last = past.iter().rev().find(|(_, flags)| flags & SYN != 0);
        let sender = self.segment().map(|(first, _)| first);
        last.is_some_and(|(first, flags)| flags & ACK == 0 && Some(*first) == sender)
    }

    /// True if an end has sent a FIN twice, and the other none.
    fn has_repeated_fin(&self) -> bool {
        let past = self.past();
        let fins = |end| past.iter().filter(|(of, flags)| flags & FIN != 0 && *of == end).count();
        matches!((fins(true), fins(false)), (0, 2..) | (2.., 0))
    }

    /// True if an ACK has passed behind a reset.
    fn goes_on_behind_a_reset(&self) -> bool {
        let past = self.past();
        let reset = past.iter().position(|(_, flags)| flags & RST != 0);
        reset.is_some_and(|at| past[at..].iter().any(|(_, flags)| flags & (RST | SYN) == 0))
    }
}

/// ICMP that is neither query nor error.
pub const MESSAGES: Entry = Entry {
    direction: Laxer,
    why: "rules alone decide about ICMP messages that are neither query nor error",
    of: |case| case.packet.event.what == What::Message,
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
        direction: Stricter,
        why: "a reset removes a connection whose answers were all ignored",
        of: |case| case.is_reset_unanswered(),
    },
    Entry {
        direction: Laxer,
        why: "a reset of such a connection may be repeated",
        of: |case| case.has(RST) && case.is_reset_unanswered(),
    },
    Entry {
        direction: Stricter,
        why: "a SYN and its answer within a connection do not begin the handshake again",
        of: |case| {
            let is_first = case.segment().is_some_and(|(first, _)| first);
            case.has(SYN | ACK) && is_first && case.past().iter().any(|(_, of)| of & SYN != 0)
        },
    },
    Entry {
        direction: Laxer,
        why: "an ACK of the second end does not open a connection that both ends have begun, so \
              that a SYN with ACK may come again",
        of: |case| {
            let (past, syn) = (case.past(), SYN);
            let begun =
                |end| past.iter().any(|(first, of)| *first == end && of & (syn | ACK) == syn);
            case.has(SYN | ACK) && begun(true) && begun(false)
        },
    },
    Entry {
        direction: Laxer,
        why: "a FIN that comes twice is one FIN; Linux takes the second one for the other end's",
        of: |case| case.has_repeated_fin(),
    },
    Entry {
        direction: Stricter,
        why: "a FIN that comes twice does not end the connection, so that a SYN begins none",
        of: |case| case.has(SYN) && case.has_repeated_fin(),
    },
    Entry {
        direction: Laxer,
        why: "an ACK behind a reset, which may be forged, opens the connection again",
        of: |case| !case.has(SYN) && case.goes_on_behind_a_reset(),
    },
    Entry {
        direction: Laxer,
        why: "an ACK of the end that sent a SYN, which may be forged, opens the connection",
        of: |case| !case.has(SYN) && case.has(ACK) && case.has_asked_last(),
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
        of: |case| (!case.has(SYN) || case.has(SYN | ACK)) && case.is_over(true),
    },
    Entry {
        direction: Stricter,
        why: "no stateless rule is asked about a segment with senseless flags, or one that cannot \
              belong to its connection",
        of: |case| case.model.has_stateless() && case.segment().is_some(),
    },
];
