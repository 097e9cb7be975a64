//! Answers to packets that a filter rejects: a reset of TCP, or an ICMP error.
//!
//! The answers to the packets of a burst are kept until the burst is delivered, and then go to the
//! port that sent the burst, and to no other port. A frame that goes back to its ring is judged
//! again, and answered then. The copies of a flood are not answered: a port that is not the
//! destination could reset a connection. The number of answers of a port is limited.

use crate::ring::Burst;
use base::limits::{BURST_FRAMES, MAX_PORTS, MAX_REJECT_LEN, REJECT_BURST, REJECTS_PER_SECOND};
use switch::filter::packet::Packet;
use switch::filter::reject::{self, Allowance};
use switch::port_security::Headers;
use switch::{PortId, Tick};

/// Answers of a worker to packets of the present burst.
pub(crate) struct Answers {
    /// The answers; no burst before the first answer of the worker.
    burst: Option<Box<Burst>>,
    /// Index of the rejected frame, for each answer.
    frames: Vec<u8>,
    /// Answers that each port may still cause, by the port's number.
    allowances: Box<[Allowance]>,
}

impl Default for Answers {
    fn default() -> Answers {
        let allowance = Allowance::new(REJECTS_PER_SECOND, REJECT_BURST);
        let frames = Vec::with_capacity(BURST_FRAMES);
        Answers { burst: None, frames, allowances: vec![allowance; MAX_PORTS].into() }
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
            if self.burst.get_or_insert_default().push_own(&answer[..len]) {
                self.frames.push(index as u8);
            }
        }
    }

    /// True if there are answers.
    #[inline(always)]
    pub(crate) fn are_some(&self) -> bool {
        !self.frames.is_empty()
    }

    /// Takes the answers. Writes the indices of the answers to the first `kept` frames of the burst
    /// to `list`, and returns their number: the other frames went back to their ring.
    /// [`Answers::put_back`] must follow.
    pub(crate) fn take(
        &mut self,
        kept: usize,
        list: &mut [u8; BURST_FRAMES],
    ) -> Option<(Box<Burst>, usize)> {
        let answers = (0..).zip(&self.frames).filter(|(_, frame)| usize::from(**frame) < kept);
        let count = list.iter_mut().zip(answers).map(|(place, of)| *place = of.0).count();
        Some((self.burst.take()?, count))
    }

    /// Empties the burst of answers that were delivered, and keeps the burst for the next answers.
    pub(crate) fn put_back(&mut self, mut burst: Box<Burst>) {
        burst.clear();
        self.frames.clear();
        self.burst = Some(burst);
    }
}
