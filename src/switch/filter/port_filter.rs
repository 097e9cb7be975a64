//! The filter of a port: what the port's policy has, published as a whole with the port's other
//! settings.

use std::fmt;
use std::sync::Arc;

use super::{Compiled, Connections, Fragments, Gate, RuleLog};
use crate::PortId;

/// The rules of a port, the table with its connections, and its fragmented packets.
pub struct PortFilter {
    /// The rules.
    pub rules: Compiled,
    /// The connections of all ports.
    pub connections: Arc<Connections>,
    /// The port's fragmented packets.
    pub fragments: Fragments,
    /// Packets that rules with `log` have decided about.
    pub log: RuleLog,
}

impl PortFilter {
    /// Makes the filter of a port.
    pub fn new(rules: Compiled, connections: Arc<Connections>) -> PortFilter {
        PortFilter { rules, connections, fragments: Fragments::default(), log: RuleLog::default() }
    }

    /// Returns the filter at a port's number.
    #[inline]
    pub fn at(&self, port: PortId) -> Gate<'_> {
        let PortFilter { rules, connections, fragments, .. } = self;
        Gate { port, rules, connections, fragments }
    }
}

/// Generations of rules are unique, so equal ones are of one filter.
impl PartialEq for PortFilter {
    fn eq(&self, other: &PortFilter) -> bool {
        self.rules.generation() == other.rules.generation()
    }
}

impl Eq for PortFilter {}

impl fmt::Debug for PortFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PortFilter").field(&self.rules.generation()).finish()
    }
}
