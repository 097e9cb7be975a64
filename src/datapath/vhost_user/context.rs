//! The parts of the process that sessions use.

use std::sync::Arc;

use crate::guard::BlockedWriterWatch;
use crate::worker::Workers;
use switch::Fdb;

/// The parts of the process that every session uses.
#[derive(Clone)]
pub struct Context {
    /// The forwarding table.
    pub fdb: Arc<Fdb>,
    /// The data path.
    pub workers: Arc<Workers>,
    /// Frees a session whose write to a call descriptor blocks.
    pub watch: Arc<BlockedWriterWatch>,
}
