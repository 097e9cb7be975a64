//! A part of all connections, for an answer of several parts.

use super::super::super::fdb::Tick;
use super::Connections;
use super::listing::Connection;

impl Connections {
    /// Returns connections of one port, or of all, that have not timed out: at most `most`, from
    /// `slots` slots from `from` on. Also returns the first slot of the next part, if there is one.
    /// A connection that stays is in one part.
    pub fn page(
        &self,
        port: Option<u16>,
        (from, slots, most): (usize, usize, usize),
        now: Tick,
    ) -> (Vec<Connection>, Option<usize>) {
        let mut entries = Vec::new();
        let end = from.saturating_add(slots).min(self.slots.len());
        for slot in from..end {
            if entries.len() == most {
                return (entries, Some(slot));
            }
            entries.extend(
                self.entry(slot, now)
                    .filter(|entry| port.is_none_or(|port| port == entry.parts.port)),
            );
        }
        (entries, (end < self.slots.len()).then_some(end))
    }
}
