//! Whether a port can be used, since when, and in place of which port.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use sys::clock;

/// Whether a port can be used, since when, and in place of which port.
#[derive(Debug)]
pub struct Life {
    /// The port has no socket or interface yet, and cannot be used.
    pub left_out: AtomicBool,
    /// The port is being removed.
    pub removing: AtomicBool,
    /// The port is being deleted, while the switch goes on.
    pub deleted: AtomicBool,
    /// Coarse second before which another peer may have been behind the port, or the port may have
    /// been in another bridge or VLAN.
    pub(crate) since: AtomicU32,
    /// Lineage of the port: the ports that it replaced.
    pub lineage: Lineage,
}

impl Default for Life {
    fn default() -> Life {
        Life {
            left_out: AtomicBool::new(false),
            removing: AtomicBool::new(false),
            deleted: AtomicBool::new(false),
            since: AtomicU32::new(clock::coarse_seconds() + 1),
            lineage: Lineage::default(),
        }
    }
}

/// Lineage of ports that replaced one another with new settings, and whose counters continue. The
/// counts of the old port are added while the new port already counts, and one counter after
/// another.
#[derive(Debug, Default)]
pub struct Lineage {
    id: Arc<()>,
    behind: AtomicBool,
}

impl Lineage {
    /// Returns the lineage of the port that replaces this port.
    pub(crate) fn next(&self) -> Lineage {
        Lineage { id: Arc::clone(&self.id), behind: AtomicBool::new(true) }
    }

    /// True if both ports have one lineage.
    pub fn is(&self, other: &Lineage) -> bool {
        Arc::ptr_eq(&self.id, &other.id)
    }

    /// True if the port's counters include the counts of the ports before.
    pub fn is_whole(&self) -> bool {
        // Acquire: a thread that reads false sees the added counts.
        !self.behind.load(Ordering::Acquire)
    }

    /// Records that the counters include the counts of the ports before.
    pub fn complete(&self) {
        self.behind.store(false, Ordering::Release);
    }
}
