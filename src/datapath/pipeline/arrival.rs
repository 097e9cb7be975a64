//! A burst that came in, and the rules that decide about it.

use crate::port::{Port, PortTable};
use switch::{Policy, SourceMemo, Tick};

/// A burst that came in.
pub struct Arrival<'a> {
    /// The forwarding table and the rules of the ports.
    pub policy: &'a Policy<'a, PortTable>,
    /// The port that sent the burst.
    pub port: &'a Port,
    /// The last address of the source.
    pub source: &'a mut SourceMemo,
    /// The present tick.
    pub now: Tick,
}
