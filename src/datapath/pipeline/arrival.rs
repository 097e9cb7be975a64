//! A burst that came in: the rules for deciding about its frames, and the frames that the policy of
//! their port refuses before the switch learns from them.

use super::filter::Filters;
use super::guard::Violations;
use crate::port::{Port, PortTable};
use crate::ring::Burst;
use switch::{Policy, PortPolicy, SourceMemo, Tick};

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

/// Frames of a burst that may not come in, as bits of their indices.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Barred {
    /// Frames that port security refuses.
    pub(crate) by_guard: u64,
    /// Frames that the sender's filter refuses.
    pub(crate) by_filter: u64,
}

impl Barred {
    /// No frames.
    pub(crate) const NONE: Barred = Barred { by_guard: 0, by_filter: 0 };

    /// Finds the frames of a burst that the policy `own_policy` of their port refuses.
    #[inline(never)]
    pub(crate) fn find(
        burst: &mut Burst,
        (violations, filters): (&mut Violations, &mut Filters),
        own_policy: &PortPolicy,
        port: &Port,
        now: Tick,
    ) -> Barred {
        let guard = own_policy.security.as_ref();
        let by_guard = guard.map_or(0, |guard| violations.find(burst, guard, port, now));
        let filter = own_policy.filter.as_ref();
        let by_filter = filter
            .map_or(0, |filter| filters.find(burst, (filter, own_policy), port, by_guard, now));
        Barred { by_guard, by_filter }
    }
}
