//! Frames of a burst that the policy of their port refuses, before the switch learns from them.

use super::filter::Filters;
use super::guard::Violations;
use crate::port::Port;
use crate::ring::Burst;
use switch::{PortPolicy, Tick};

/// Frames of a burst that may not come in, as bits of their indices.
#[derive(Clone, Copy)]
pub struct Barred {
    /// Frames that port security refuses.
    pub by_guard: u64,
    /// Frames that the sender's filter refuses.
    pub by_filter: u64,
}

impl Barred {
    /// No frames.
    pub const NONE: Barred = Barred { by_guard: 0, by_filter: 0 };

    /// Finds the frames of a burst that the policy `asked` of their port refuses.
    #[inline(never)]
    pub fn find(
        burst: &mut Burst,
        (violations, filters): (&mut Violations, &mut Filters),
        asked: &PortPolicy,
        port: &Port,
        now: Tick,
    ) -> Barred {
        let guard = asked.security.as_ref();
        let by_guard = guard.map_or(0, |guard| violations.find(burst, guard, port, now));
        let filter = asked.filter.as_ref();
        let by_filter =
            filter.map_or(0, |filter| filters.find(burst, (filter, asked), port, by_guard, now));
        Barred { by_guard, by_filter }
    }

    /// True if no frame is refused.
    pub fn is_empty(self) -> bool {
        self.by_guard | self.by_filter == 0
    }
}
