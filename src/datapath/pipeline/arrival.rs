//! A burst that came in, and the rules for deciding about its frames.

use crate::port::{Port, PortTable};
use switch::{Policy, SourceMemo, Tick};

/// A burst that came in, and the rules for deciding about its frames.
pub(crate) struct Arrival<'a> {
    /// The forwarding table and the policies of the ports.
    pub(crate) policy: &'a Policy<'a, PortTable>,
    /// The port that sent the burst.
    pub(crate) port: &'a Port,
    /// Memo of the source's last address.
    pub(crate) source: &'a mut SourceMemo,
    /// Present tick of the forwarding table's time.
    pub(crate) now: Tick,
}
