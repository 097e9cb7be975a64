//! Requests of the kernel's driver behind a VDUSE device that no front-end makes.

use std::sync::Arc;

use super::super::refusal::Refusal;
use super::Rings;
use crate::guard::CallFd;
use crate::ring::SplitRing;
use sys::vduse::Served;

impl Rings<'_> {
    /// Signals a ring by interrupts of a VDUSE device.
    pub(crate) fn set_interrupt(
        &mut self,
        index: u32,
        device: &Arc<dyn Served>,
    ) -> Result<(), Refusal> {
        let cost = Arc::clone(&self.guest.signal_cost);
        let call = CallFd::interrupt(Arc::clone(device), index, cost, self.session);
        self.use_call(index, Some(Arc::new(call)))
    }

    /// Returns the index of the available entry that a ring takes next. The ring keeps running.
    pub(crate) fn base(&self, index: u32) -> u16 {
        let queue = self.guest.queue(index as usize);
        let running = queue
            .and_then(|queue| queue.quiet(|vring, _| vring.ring.as_ref().map(SplitRing::base)));
        running.or(self.rings.get(index as usize).map(|ring| ring.base)).unwrap_or(0)
    }
}
