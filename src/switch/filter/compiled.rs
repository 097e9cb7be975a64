//! The rules of one port, compiled for look-ups: an immutable value that a caller publishes as a
//! whole.
//!
//! The algorithm is that of aggregated bit vectors: F. Baboescu, G. Varghese, "Scalable packet
//! classification", SIGCOMM 2001, which adds summaries to the bit vectors of T. V. Lakshman,
//! D. Stiliadis, "High-speed policy-based packet forwarding using efficient multi-dimensional range
//! matching", SIGCOMM 1998. Each field of a packet (source, destination, both ports, protocol) has
//! a table from values to bitmaps of the lines that match the value. The lines that match a packet
//! are the intersection of five bitmaps, and the first set bit decides. A summary has a bit for
//! each word of a bitmap that is not zero, so most words are not read. The cost is a binary search
//! for each address, four loads for each port, and the words that the summaries leave: at most
//! [`MAX_FILTER_LINES`] / 64.
//!
//! [`MAX_FILTER_LINES`]: base::limits::MAX_FILTER_LINES

mod field;
pub(super) mod lines;
mod table;
mod too_large;

use std::sync::Arc;

use super::named::{Filter, Groups, default_of};
pub use super::rule::RuleNumber;
use super::{Direction, Verdict};
use crate::sync::{AtomicU64, Ordering};
pub use table::Fields;
use table::Table;
pub use too_large::TooLarge;

/// The decision about a packet that belongs to no connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ruling {
    /// The rule that decides.
    pub rule: RuleNumber,
    /// Verdict about the packet.
    pub verdict: Verdict,
    /// The packet is logged.
    pub log: bool,
    /// The packet begins no connection.
    pub stateless: bool,
}

/// What a rule has decided about so far.
#[derive(Debug, Default)]
pub struct Counts {
    /// Frames that passed or were refused by the rule, frames of its connections included.
    pub frames: AtomicU64,
    /// Bytes of these frames.
    pub bytes: AtomicU64,
    /// Connections that began by the rule.
    pub connections: AtomicU64,
}

impl Counts {
    /// Counts frames and their bytes.
    #[inline]
    pub fn add(&self, frames: u64, bytes: u64) {
        self.frames.fetch_add(frames, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns frames, bytes and connections.
    pub fn get(&self) -> [u64; 3] {
        [&self.frames, &self.bytes, &self.connections].map(|count| count.load(Ordering::Relaxed))
    }
}

/// Where a rule of a port comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// Rule `rule` of filter `filter` of the port's list.
    Rule {
        /// Place of the filter in the list.
        filter: u16,
        /// Place of the rule in the filter.
        rule: u16,
    },
    /// The default of a direction.
    Default(Direction),
}

/// The compiled rules of a port, and what they have decided about.
#[derive(Debug)]
pub struct Compiled {
    generation: u32,
    rules: Arc<Rules>,
    counts: Vec<Counts>,
}

/// Compiled rules, which ports with equal filters share.
#[derive(Debug)]
struct Rules {
    directions: [Table; 2],
    rulings: Vec<Ruling>,
    origins: Vec<Origin>,
    /// Names of the filters, in order.
    names: Vec<String>,
}

impl Compiled {
    /// Compiles the filters of a port, in order. `generation` differs from that of each `Compiled`
    /// that the port had before: connections ask the rules again when it changes.
    pub fn new(
        filters: &[&Filter],
        groups: &Groups,
        generation: u32,
    ) -> Result<Compiled, TooLarge> {
        let mut rulings = Vec::new();
        let mut origins = Vec::new();
        for (filter, of) in filters.iter().enumerate() {
            for (rule, what) in of.rules.iter().enumerate() {
                rulings.push(Ruling {
                    rule: rulings.len() as RuleNumber,
                    verdict: what.verdict,
                    log: what.log,
                    stateless: what.stateless,
                });
                origins.push(Origin::Rule { filter: filter as u16, rule: rule as u16 });
            }
        }
        let rules = rulings.len();
        // Numbers of rules are 16 bits, and connections keep them.
        if rules + Direction::ALL.len() > RuleNumber::MAX.into() {
            return Err(TooLarge::Lines(rules));
        }
        for direction in Direction::ALL {
            let verdict = default_of(filters, direction);
            let rule = rulings.len() as RuleNumber;
            rulings.push(Ruling { rule, verdict, log: false, stateless: false });
            origins.push(Origin::Default(direction));
        }
        let [into, out] = Direction::ALL;
        let directions = [
            Table::build(&lines::of(filters, groups, into)?, rules as RuleNumber)?,
            Table::build(&lines::of(filters, groups, out)?, rules as RuleNumber + 1)?,
        ];
        let names = filters.iter().map(|filter| filter.name.clone()).collect();
        let rules = Arc::new(Rules { directions, rulings, origins, names });
        Ok(Compiled::share(rules, generation))
    }

    /// Returns these rules for another port, with counts of its own.
    pub fn for_another_port(&self, generation: u32) -> Compiled {
        Compiled::share(Arc::clone(&self.rules), generation)
    }

    fn share(rules: Arc<Rules>, generation: u32) -> Compiled {
        let counts = rules.rulings.iter().map(|_| Counts::default()).collect();
        Compiled { generation, rules, counts }
    }

    /// Returns the number that tells these rules from the port's rules before.
    #[inline]
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Returns the decision about a packet that belongs to no connection.
    #[inline(never)]
    pub fn rule_for(&self, direction: Direction, fields: &Fields) -> Ruling {
        let Rules { directions, rulings, .. } = &*self.rules;
        let table = &directions[direction as usize];
        let rule = table.first_match(fields).map_or(table.default, |line| table.rules[line]);
        rulings[usize::from(rule)]
    }

    /// Returns the decision about packets that no rule can match, such as those of other types than
    /// IP: the default.
    pub fn default_for(&self, direction: Direction) -> Ruling {
        let Rules { directions, rulings, .. } = &*self.rules;
        rulings[usize::from(directions[direction as usize].default)]
    }

    /// Returns the counts of a rule.
    #[inline]
    pub fn counts(&self, rule: RuleNumber) -> Option<&Counts> {
        self.counts.get(usize::from(rule))
    }

    /// Returns a rule as a message names it: rules of a filter are counted from 1.
    pub fn title(&self, rule: RuleNumber) -> String {
        match self.rules.origins.get(usize::from(rule)) {
            Some(&Origin::Rule { filter, rule }) => {
                let name = self.rules.names.get(usize::from(filter)).map_or("", String::as_str);
                format!("rule {} of filter {name}", rule + 1)
            }
            Some(Origin::Default(direction)) => format!("default-{}", direction.name()),
            None => "no rule".to_owned(),
        }
    }

    /// Returns where each rule comes from, by the rule's number.
    pub fn origins(&self) -> &[Origin] {
        &self.rules.origins
    }
}
