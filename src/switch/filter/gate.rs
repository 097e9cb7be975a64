//! The decision about a packet: connections first, then rules.

use super::compiled::{Compiled, Fields, RuleNumber, Ruling};
use super::connections::{
    Connections, Gap, Key, Known, Moment, Opened, Seen, SlotRef, Sought, State,
};
use super::packet::{Content, Packet, Parsed, Part};
use super::rule::ICMP;
use super::{Direction, Fragments, Verdict};
use crate::PortId;
use crate::fdb::Tick;
use crate::sync::Ordering as Memory;
use base::frame::protocol::ICMPV6;
use std::cmp::Ordering;

base::words! {
    /// Why a packet does not pass.
    Cause {
        /// A rule, or the default, drops the packet.
        Rule "rule",
        /// A rule, or the default, rejects the packet: its sender is told.
        Reject "reject",
        /// The packet can neither belong to a connection nor begin one.
        State "state",
        /// The port, or the table, has too many connections.
        Full "full",
        /// Other workers kept the part of the table that the packet needs.
        Busy "busy",
        /// A later fragment of a packet whose first fragment did not pass or was not seen.
        Fragment "fragment",
        /// The headers cannot be read.
        Headers "headers",
    }
}

/// The decision about a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Answer {
    /// Why the packet does not pass; `None` if it passes.
    pub refused: Option<Cause>,
    /// The rule that decided, now or when the connection began; `None` if no rule did.
    pub rule: Option<RuleNumber>,
    /// The rule wants the packet to be logged.
    pub log: bool,
    /// The connection's entry, if the next packets like this one get the same answer in this tick
    /// while the entry stays as it is.
    pub settled: Option<Moment>,
}

impl Answer {
    /// The packet passes, and no rule is asked.
    const PASS: Answer = Answer { refused: None, rule: None, log: false, settled: None };

    /// The answer to a packet whose headers cannot be read.
    pub const UNREADABLE: Answer = Answer::refused(Cause::Headers);

    const fn refused(cause: Cause) -> Answer {
        Answer { refused: Some(cause), ..Answer::PASS }
    }

    fn pass(rule: RuleNumber) -> Answer {
        Answer { rule: Some(rule), ..Answer::PASS }
    }

    fn of(ruling: Ruling, refused: Option<Cause>) -> Answer {
        Answer { refused, rule: Some(ruling.rule), log: ruling.log, settled: None }
    }
}

/// The decision that [`Gate::judge`] would make about a packet now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Preview {
    /// Why the packet would not pass; `None` if it would pass.
    pub refused: Option<Cause>,
    /// The rule that would decide, or decided when the connection began.
    pub rule: Option<RuleNumber>,
    /// The packet belongs to a known connection, or to a packet whose first fragment passed.
    pub is_known: bool,
}

/// A port with a filter.
#[derive(Clone, Copy)]
pub struct Gate<'a> {
    /// Number of the port.
    pub port: PortId,
    /// The port's rules.
    pub rules: &'a Compiled,
    /// The connections of all ports.
    pub connections: &'a Connections,
    /// The port's fragmented packets.
    pub fragments: &'a Fragments,
}

impl Gate<'_> {
    /// Decides about a packet. The caller counts the frame at the rule of the answer, once the
    /// frame does not go back to its ring.
    pub fn judge(&self, parsed: &Parsed, direction: Direction, now: Tick) -> Answer {
        match parsed {
            Parsed::Neighbour => Answer::PASS,
            Parsed::Foreign => by_verdict(self.rules.default_for(direction)),
            Parsed::Packet(packet) => self.judge_part(packet, direction, now),
        }
    }

    /// Returns the decision about a packet, and changes and counts nothing. The state of a known
    /// connection is not examined.
    pub fn preview(&self, parsed: &Parsed, direction: Direction, now: Tick) -> Preview {
        let of = |answer: Answer| Preview {
            refused: answer.refused,
            rule: answer.rule,
            is_known: false,
        };
        let packet = match parsed {
            Parsed::Neighbour => return of(Answer::PASS),
            Parsed::Foreign => return of(by_verdict(self.rules.default_for(direction))),
            Parsed::Packet(packet) => packet,
        };
        let known = |rule| Preview { refused: None, rule: Some(rule), is_known: true };
        if let Part::Later { id, begin } = packet.part {
            let rule = self.fragments.rule_of(packet, (id, begin), direction, now);
            return rule.map_or(of(Answer::refused(Cause::Fragment)), known);
        }
        let (key, begins) = match packet.key(self.port, direction) {
            Some((key, event)) => (Some(key), State::first(event).is_some()),
            None => (
                packet.quoted_key(self.port, direction),
                !matches!(packet.content, Content::Error(..)),
            ),
        };
        let connection = key.and_then(|key| Some((key, self.connections.quoted(&key, now)?)));
        if let Some(rule) = connection.and_then(|(key, of)| self.rule_of(&key, &of)) {
            return known(rule);
        }
        let ruling = self.rules.rule_for(direction, &packet.fields());
        let refused = by_verdict(ruling).refused;
        let lacks = refused.is_none() && !ruling.stateless && !begins;
        let refused = if lacks { Some(Cause::State) } else { refused };
        Preview { refused, rule: Some(ruling.rule), is_known: false }
    }

    /// Returns the rule by which a known connection may go on; `None` if it may not.
    fn rule_of(&self, key: &Key, known: &Known) -> Option<RuleNumber> {
        if known.generation == self.rules.generation() {
            return Some(known.rule);
        }
        let began = if known.out { Direction::Out } else { Direction::In };
        let ruling = self.rules.rule_for(began, &first_fields(key, began));
        (ruling.verdict == Verdict::Accept && !ruling.stateless).then_some(ruling.rule)
    }

    fn judge_part(&self, packet: &Packet, direction: Direction, now: Tick) -> Answer {
        match packet.part {
            Part::Whole => self.judge_packet(packet, direction, now),
            Part::First { id, header_end } => {
                let answer = self.judge_packet(packet, direction, now);
                if answer.refused.is_none()
                    && let Some(rule) = answer.rule
                {
                    self.fragments.pass(packet, (id, header_end), direction, rule, now);
                }
                answer
            }
            Part::Later { id, begin } => {
                match self.fragments.rule_of(packet, (id, begin), direction, now) {
                    Some(rule) => Answer::pass(rule),
                    None => Answer::refused(Cause::Fragment),
                }
            }
        }
    }

    #[inline]
    fn judge_packet(&self, packet: &Packet, direction: Direction, now: Tick) -> Answer {
        match packet.key(self.port, direction) {
            Some((key, event)) => {
                let sought = self.connections.seek(key, event);
                self.judge_sought(&sought, Some(packet), direction, now)
            }
            None => self.judge_message(packet, direction, now),
        }
    }

    /// Decides about a [`Plain`](super::packet::Plain) packet as [`Gate::judge`] does.
    #[inline]
    pub fn judge_plain(&self, sought: &Sought, direction: Direction, now: Tick) -> Answer {
        self.judge_sought(sought, None, direction, now)
    }

    /// Decides about a packet of the connection `sought`. Without a `packet` the key has the fields
    /// that rules match.
    #[inline(always)]
    fn judge_sought(
        &self,
        sought: &Sought,
        packet: Option<&Packet>,
        direction: Direction,
        now: Tick,
    ) -> Answer {
        let (ended, gap) = match self.connections.pass(sought, direction == Direction::Out, now) {
            Seen::Known(known) if known.generation == self.rules.generation() => {
                return Answer { settled: known.settled, ..Answer::pass(known.rule) };
            }
            // Another worker has newer rules already, and these permit the connection.
            Seen::Known(known) if known.generation > self.rules.generation() => {
                return Answer::PASS;
            }
            Seen::Known(known) => match self.ask_again(&sought.key, &known) {
                Some(rule) => return Answer::pass(rule),
                None => (None, Gap::UNKNOWN),
            },
            Seen::Unknown(gap) => (None, gap),
            Seen::Again(slot) => (Some(slot), Gap::UNKNOWN),
            Seen::Invalid => return Answer::refused(Cause::State),
        };
        self.begin((sought, packet), (ended, gap), direction, now)
    }

    /// Asks the rules about a packet that belongs to no connection. `ended`: the ended connection
    /// with this key, which the new connection replaces. `gap`: what the search has seen.
    #[inline(never)]
    fn begin(
        &self,
        (sought, packet): (&Sought, Option<&Packet>),
        (ended, gap): (Option<SlotRef>, Gap),
        direction: Direction,
        now: Tick,
    ) -> Answer {
        let fields = match packet {
            Some(packet) => packet.fields(),
            None => first_fields(&sought.key, direction),
        };
        let ruling = self.rules.rule_for(direction, &fields);
        if ruling.verdict != Verdict::Accept || ruling.stateless {
            return by_verdict(ruling);
        }
        if let Some(slot) = ended.filter(|_| State::first(sought.event).is_some()) {
            self.connections.end(&sought.key, slot);
        }
        let by = (ruling.rule, self.rules.generation());
        let opened = self.connections.open((sought, gap), direction == Direction::Out, by, now);
        Answer::of(
            ruling,
            match opened {
                Opened::New => {
                    if let Some(counts) = self.rules.counts(ruling.rule) {
                        counts.connections.fetch_add(1, Memory::Relaxed);
                    }
                    None
                }
                Opened::Known => None,
                Opened::Full => Some(Cause::Full),
                Opened::Busy => Some(Cause::Busy),
                Opened::Invalid => Some(Cause::State),
            },
        )
    }

    /// Asks the rules whether a connection that began by other rules may go on. Returns its rule;
    /// removes the connection if it may not.
    #[cold]
    fn ask_again(&self, key: &Key, known: &Known) -> Option<RuleNumber> {
        let rule = self.rule_of(key, known);
        match rule {
            Some(rule) => self.connections.renew(known, rule, self.rules.generation()),
            None => _ = self.connections.end(key, known.slot),
        }
        rule
    }

    /// Decides about a message of ICMP that is neither a request nor a reply.
    #[inline(never)]
    fn judge_message(&self, packet: &Packet, direction: Direction, now: Tick) -> Answer {
        if let Some(key) = packet.quoted_key(self.port, direction)
            && let Some(known) = self.connections.quoted(&key, now)
        {
            let rule = match known.generation.cmp(&self.rules.generation()) {
                Ordering::Less => self.ask_again(&key, &known),
                Ordering::Equal => Some(known.rule),
                // Another worker has newer rules already, and these permit the connection.
                Ordering::Greater => return Answer::PASS,
            };
            if let Some(rule) = rule {
                return Answer::pass(rule);
            }
        }
        let ruling = self.rules.rule_for(direction, &packet.fields());
        // Without a known connection only a `stateless` rule lets an ICMP error pass.
        let is_error = matches!(packet.content, Content::Error(..));
        match ruling.verdict == Verdict::Accept && is_error && !ruling.stateless {
            true => Answer::of(ruling, Some(Cause::State)),
            false => by_verdict(ruling),
        }
    }
}

/// Returns the answer of a rule that begins no connection.
fn by_verdict(ruling: Ruling) -> Answer {
    Answer::of(
        ruling,
        match ruling.verdict {
            Verdict::Accept => None,
            Verdict::Drop => Some(Cause::Rule),
            Verdict::Reject => Some(Cause::Reject),
        },
    )
}

/// Returns the fields of a connection's first packet, which went in direction `began`.
pub(super) fn first_fields(key: &Key, began: Direction) -> Fields {
    let parts = key.parts();
    let (from, to) = match began {
        Direction::In => (parts.remote, parts.local),
        Direction::Out => (parts.local, parts.remote),
    };
    let is_query = parts.protocol == if parts.v6 { ICMPV6 } else { ICMP };
    let ports = match is_query {
        // Type and code of the request.
        true => (0, parts.remote.port),
        false => (from.port, to.port),
    };
    Fields {
        v6: parts.v6,
        protocol: parts.protocol,
        from: from.address,
        to: to.address,
        from_port: ports.0,
        to_port: ports.1,
    }
}
