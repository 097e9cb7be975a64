//! Decisions about one frame, for people: the port that decides, the values that decide, and the
//! verdict.
//!
//! The table of [`Note`] words each decision that no counter counts; the table of [`DropReason`]
//! words each drop, for counters too, and the table of [`PortState`] each state of a port. A
//! sentence has its port in `{port}`, and other facts in places with their names
//! ([`base::words::fill`]). A view such as `trace` adds the names of ports.

use std::fmt::Display;

use super::fdb::PortId;
use base::stats::{DropReason, PortState};
use base::words::fill;

/// A decision about a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ruling {
    /// The port whose settings, addresses or state decide.
    pub(crate) port: PortId,
    /// The row of a table that words the decision.
    pub ground: Ground,
    /// Facts of the sentence by name: values of keys, addresses, other ports.
    facts: Vec<(&'static str, Fact)>,
    /// Consequence for the frame.
    pub verdict: Verdict,
}

/// The row that words a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ground {
    /// A decision that no counter counts.
    Note(Note),
    /// A decision for which frames are dropped.
    Drop(DropReason),
    /// The state of the port, for which frames are dropped.
    State(PortState, DropReason),
}

/// A fact of a decision.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Fact {
    Port(PortId),
    Text(String),
}

/// The consequence of a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The frame goes on.
    Passes,
    /// A flood leaves the port out, and no drop is counted.
    Avoids,
    /// The frame is dropped and counted.
    Drops,
}

impl Ruling {
    /// Makes a decision by which the frame goes on.
    pub fn passes(port: PortId, note: Note) -> Ruling {
        Ruling { port, ground: Ground::Note(note), facts: Vec::new(), verdict: Verdict::Passes }
    }

    /// Makes a decision by which the frame does not go to `port`.
    pub fn avoids(port: PortId, ground: Ground) -> Ruling {
        Ruling { port, ground, facts: Vec::new(), verdict: Verdict::Avoids }
    }

    /// Makes a decision by which the frame is dropped.
    pub fn drops(port: PortId, reason: DropReason) -> Ruling {
        Ruling { port, ground: Ground::Drop(reason), facts: Vec::new(), verdict: Verdict::Drops }
    }

    /// Makes a decision by which the frame is dropped because of the port's state.
    pub fn idle(port: PortId, state: PortState, reason: DropReason) -> Ruling {
        let ground = Ground::State(state, reason);
        Ruling { port, ground, facts: Vec::new(), verdict: Verdict::Drops }
    }

    /// Adds a fact.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Display) -> Ruling {
        self.facts.push((name, Fact::Text(value.to_string())));
        self
    }

    /// Adds a port as a fact.
    #[must_use]
    pub fn with_port(mut self, name: &'static str, port: PortId) -> Ruling {
        self.facts.push((name, Fact::Port(port)));
        self
    }

    /// Returns the reason of the drop, if the frame is dropped.
    pub fn reason(&self) -> Option<DropReason> {
        match (self.ground, self.verdict) {
            (Ground::Drop(reason) | Ground::State(_, reason), Verdict::Drops) => Some(reason),
            _ => None,
        }
    }

    /// Returns the decision as a sentence. `name` returns the name of a port.
    pub fn words(&self, name: impl Fn(PortId) -> String) -> String {
        let sentence = match self.ground {
            Ground::Note(note) => note.sentence(),
            Ground::Drop(reason) => reason.sentence(),
            Ground::State(state, _) => state.sentence(),
        };
        fill(sentence, |place| match self.facts.iter().find(|(known, _)| *known == place) {
            Some((_, Fact::Text(text))) => Some(text.clone()),
            Some((_, Fact::Port(port))) => Some(name(*port)),
            None if place == "port" => Some(name(self.port)),
            None => {
                let has_default = !sentence.contains(&format!("{{{place}}}"));
                debug_assert!(has_default, "{place} is missing: {sentence}");
                None
            }
        })
    }
}

macro_rules! notes {
    ($($note:ident $sentence:literal;)*) => {
        /// A decision that no counter counts.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Note { $(#[doc = $sentence] $note,)* }

        impl Note {
            /// Returns the sentence about the decision, with places for facts.
            pub const fn sentence(self) -> &'static str {
                match self { $(Note::$note => $sentence,)* }
            }
        }
    };
}

notes! {
    In "in on {port}{idle}";
    MirroredIn "mirror '{mirror}' copies the frame to {to}{limits}";
    MirroredOut "mirror '{mirror}' copies frames that leave by {port} to {to}{limits}";
    Allowed "{what} allowed ({guard})";
    Unread "{guard} needs more bytes of the frame to decide";
    FilterAccepts "{rule} accepts the packet at {port}";
    FilterKnows "the packet belongs to a connection of {port} that {rule} accepted";
    FilterUnasked "the filters of {port} decide about IP packets: give ip and dst_ip, and proto, \
                   sport and dport, to ask the filters";
    Counted "guard=log at {port} counts the frame alone: {why}";
    InSegment "the frame is in {segment}";
    TaggedOnly "{port} is a trunk without native: only tagged frames come in";
    RateIn "rate-in is {rate}: frames beyond the rate wait at the sender";
    StaticHere "{mac} is configured here";
    KnownHere "{mac} is known here";
    Moves "{mac} was seen on {from}, and moves here";
    StaticElsewhere "{mac} is configured on {at}: not learned here, so answers go to that port";
    Held "{mac} flaps between ports, and is held on {at} for a while: not learned here, so \
        answers go to that port";
    Learned "{mac} is new, and is learned here";
    Full "{mac} is not learned here: the port has as many as it may (max-addresses)";
    LearnOff "{mac} is not learned here (learn=off)";
    NoSource "no address is known behind {port}";
    PassesProtocol "{frame}: {port} passes {protocol}";
    DeniesProtocol "{frame}: {port} does not pass {protocol}";
    Unicast "{mac} is on {port}: the frame is sent there alone";
    FloodedGroup "{mac} is a group's address: the frame is flooded";
    FloodedUnknown "{mac} is not known: the frame is flooded";
    NoDestination "no address is known behind {port}: frames for it are flooded";
    FloodedReserved "the frame is flooded to the ports that pass its protocol";
    Storm "the storm limit is {limit}: floods beyond the limit are dropped";
    Members "group {group}: members, routers, and ports not asked yet are {members}";
    Report "the frame is a report of IGMP or MLD, which is for multicast routers";
    ForAll "the frame is a message of IGMP or MLD, which is for all";
    NoMember "{port} is no member of the group";
    NoRouter "no multicast router is there";
    OtherPort "the frame is for another port";
    Nowhere "the frame goes nowhere";
    Apart "{port} has {own}, {other} has {others}";
    FloodOff "{port} has flood=off";
    PassOff "{port} does not pass {protocol}";
    Out "out to {port}{tag}{limit}";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ruling_is_worded_with_its_facts() {
        let name = |port| format!("'p{port}'");
        let moves = Ruling::passes(1, Note::Moves).with("mac", "02::1").with_port("from", 2);
        assert_eq!(moves.words(name), "02::1 was seen on 'p2', and moves here");
        assert_eq!(moves.reason(), None);
        let isolated = Ruling::drops(1, DropReason::Isolated).with_port("other", 2);
        assert_eq!(isolated.words(name), "'p1' and 'p2' have isolated=on");
        assert_eq!(isolated.reason(), Some(DropReason::Isolated));
        assert_eq!(
            Ruling::avoids(1, Ground::Note(Note::FloodOff)).words(name),
            "'p1' has flood=off"
        );
    }
}
