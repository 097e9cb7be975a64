//! The sleep of a worker: its end, its timeout, and waking other workers.

use std::time::Duration;

use super::Worker;
use crate::port::Awaited;
use crate::worker::Token;
use base::limits::RETRY_NANOS;
use sys::{clock, poll};

impl Worker {
    /// Sleeps until an event, or until the first wait for a time ends. Other waits have no timeout,
    /// since a timeout would hide a lost wake-up.
    pub(super) fn sleep(&mut self) {
        let more = !self.ready.is_empty() && self.listen_behind();
        // From here on this thread does not touch guests' memory.
        self.pipeline.signals.slot.asleep();
        let asleep = self.turn.now;
        self.own.sleep_state.asleep();
        let timeout = match self.due() {
            _ if more || self.own.takeover.has_news_before_sleep() => 0,
            // Rounded up: a worker that wakes too early would have to sleep again.
            Some(due) => millis(clock::time_of(clock::since(self.turn.now, due))),
            None => -1,
        };
        let events = self.wait_for_events(timeout);
        self.turn.now = clock::cycles();
        self.pipeline.signals.slot.active();
        self.own.sleep_state.awake();
        self.take(events);
        self.spin.woke(asleep, self.turn.now);
        self.own.stats.wakeups.add(1);
        self.inbox.woken = true;
    }

    /// Waits for events for at most `timeout` milliseconds. Returns the number of events.
    pub(super) fn wait_for_events(&mut self, timeout: i32) -> usize {
        let mut timeout = timeout;
        if timeout != 0 && self.is_relieving() {
            // A reserve also waits for its own wake-up descriptor, beside the epoll set of the
            // worker that the reserve relieves.
            let _ = poll::wait_for_one_of(&self.handle.epoll, &self.own.wake, timeout);
            let _ = self.own.wake.read();
            timeout = 0;
        }
        // The only possible error is EINTR: return without events.
        self.handle.epoll.wait(timeout, &mut self.inbox.events).unwrap_or(0)
    }

    /// Returns the first cycle at which a source, a kept kick or a signal must be looked at again.
    fn due(&mut self) -> Option<u64> {
        let ready = self.ready.iter().map(|ready| ready.retry_at).filter(|&cycle| cycle != 0);
        let retry = || self.turn.now.saturating_add(clock::cycles_in(RETRY_NANOS));
        let kicked = (!self.inbox.kicked.is_empty()).then(retry);
        ready.chain(kicked).chain(self.pipeline.signals.due()).min()
    }

    /// Asks for kicks by receivers whose buffers frames wait for. True if buffers came already.
    fn listen_behind(&mut self) -> bool {
        let mut more = false;
        for at in 0..self.ready.len() {
            let token = self.ready[at].token;
            more |= self.listen_behind_ring(token);
        }
        self.pipeline.stalls.at_nothing();
        let now = clock::cycles();
        self.pipeline.stalls.end_turn(clock::since(self.turn.now, now), now);
        more
    }

    fn listen_behind_ring(&mut self, token: Token) -> bool {
        let Token::Transmit(id, queue) = token else { return false };
        let Worker { ports, pipeline, index, .. } = self;
        let queue = ports.guest(id).and_then(|of| of.1.tx.get(usize::from(queue)));
        let Some(state) = queue.and_then(|queue| queue.lock_for_burst()) else { return false };
        pipeline.stalls.at_sender(id);
        state.vring.owner == Some(*index) && pipeline.listen(ports, &state)
    }

    /// Wakes the other workers in `waiting`: the event that they wait for went to this worker.
    pub(super) fn wake(&self, waiting: Awaited) {
        for (index, handle) in self.threads.iter().enumerate() {
            if index != self.index && waiting.has(index) {
                let _ = handle.wake.write(1);
            }
        }
    }
}

/// Returns a timeout for `epoll_wait`: rounded up, at least 1 ms.
fn millis(time: Duration) -> i32 {
    i32::try_from(time.as_micros().div_ceil(1_000)).unwrap_or(i32::MAX).max(1)
}
