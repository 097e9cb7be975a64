//! Answers to packets that a filter rejects: a reset of TCP, or an ICMP error.
//!
//! The answers to the packets of a burst are kept until the burst is delivered, and then go to the
//! port that sent the burst, and to no other port. The number of answers of a port is limited.

use crate::ring::Burst;
use base::limits::{MAX_PORTS, MAX_REJECT_LEN, REJECT_BURST, REJECTS_PER_SECOND};
use switch::filter::packet::Packet;
use switch::filter::reject::{self, Allowance};
use switch::port_security::Headers;
use switch::{PortId, Tick};

/// Answers of a worker to packets of the present burst.
pub(crate) struct Answers {
    /// The answers; no burst before the first answer of the worker.
    burst: Option<Box<Burst>>,
    /// What each port may cause, by number.
    allowances: Box<[Allowance]>,
}

impl Default for Answers {
    fn default() -> Answers {
        let allowance = Allowance::new(REJECTS_PER_SECOND, REJECT_BURST);
        Answers { burst: None, allowances: vec![allowance; MAX_PORTS].into() }
    }
}

impl Answers {
    /// Adds the answer to frame `index` of a burst from port `from`, unless the packet gets none or
    /// the port has had as many answers as it may have.
    #[cold]
    pub(crate) fn add(
        &mut self,
        (burst, index): (&mut Burst, usize),
        packet: &Packet,
        from: PortId,
        now: Tick,
    ) {
        let allowance = self.allowances.get_mut(usize::from(from));
        if !allowance.is_some_and(|allowance| allowance.take(now)) {
            return;
        }
        let len = burst.frames()[index].len as usize;
        let Some(bytes) = burst.headers(index) else { return };
        let headers = Headers { bytes, whole: &[], len, sum_at: None, is_cut: false };
        let mut answer = [0; MAX_REJECT_LEN];
        if let Some(len) = reject::answer(&headers, packet, &mut answer) {
            // A burst has room for an answer to each frame of another one.
            self.burst.get_or_insert_default().push_own(&answer[..len]);
        }
    }

    /// True if there are answers.
    #[inline(always)]
    pub(crate) fn are_some(&self) -> bool {
        self.burst.as_ref().is_some_and(|burst| !burst.frames().is_empty())
    }

    /// Takes the answers; [`Answers::put_back`] must follow.
    pub(crate) fn take(&mut self) -> Option<Box<Burst>> {
        self.burst.take()
    }

    /// Empties the burst of answers that were delivered, and keeps the burst for the next answers.
    pub(crate) fn put_back(&mut self, mut burst: Box<Burst>) {
        burst.clear();
        self.burst = Some(burst);
    }
}
