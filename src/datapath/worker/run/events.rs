//! The sleep of a worker, and what ends the sleep: kicks of guests, events of devices, and notes of
//! other threads.

use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use super::Worker;
use crate::port::{Awaited, Discard, Polled, Queue, Tx, TxState};
use crate::worker::Token;
use crate::worker::handle::Note;
use crate::worker::kick::receive_kick;
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
            let _ = poll::wait_for_one_of(&self.served.handle.epoll, &self.own.wake, timeout);
            let _ = self.own.wake.read();
            timeout = 0;
        }
        // The only possible error is EINTR: return without events.
        self.served.handle.epoll.wait(timeout, &mut self.inbox.events).unwrap_or(0)
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
        let Worker { ports, pipeline, served, .. } = self;
        let queue = ports.guest(id).and_then(|of| of.1.tx.get(usize::from(queue)));
        let Some(state) = queue.and_then(|queue| queue.lock_for_burst()) else { return false };
        pipeline.stalls.at_sender(id);
        state.vring.owner == Some(served.index) && pipeline.listen(ports, &state)
    }

    /// Wakes the other workers in `waiting`: the event that they wait for went to this worker.
    pub(super) fn wake(&self, waiting: Awaited) {
        for (index, handle) in self.all.handles.iter().enumerate() {
            if index != self.served.index && waiting.has(index) {
                let _ = handle.wake.write(1);
            }
        }
    }

    /// Processes the notes that other threads left.
    pub(super) fn take_notes(&mut self) {
        self.served.handle.take_notes(&mut self.inbox.notes);
        // A note may be about a new port.
        self.refresh();
        // In order, since a later announcement replaces an earlier announcement. One by one, so
        // that a panic in one note does not lose the notes behind it.
        self.inbox.notes.reverse();
        let (mut announced, mut left) = (self.pipeline.floods.has_own(), Vec::new());
        while let Some(note) = self.inbox.notes.pop() {
            match note {
                Note::Look(token @ Token::Receive(..)) => {
                    self.contained(token, |worker| worker.kick(token, false));
                }
                Note::Look(token) => self.ready.mark(token),
                // An announcement may be flooded to all ports, so a turn sends only one.
                Note::Announce(_) if announced => left.push(note),
                Note::Announce(what) => {
                    announced = true;
                    self.contained(Token::Receive(what.port, 0), |worker| {
                        let Worker { pipeline, ports, own, .. } = worker;
                        pipeline.announce(ports, what, &own.stats);
                    });
                }
            }
        }
        if !left.is_empty() {
            self.served.handle.put_back(left);
        }
        self.pipeline.end_look();
    }

    pub(super) fn take_events(&mut self) {
        let count = self.wait_for_events(0);
        self.take(count);
    }

    /// Processes `count` events, which may touch guests' memory.
    fn take(&mut self, count: usize) {
        // An event may be about a new port.
        self.refresh();
        for i in 0..count {
            match Token::from_bits(self.inbox.events[i].data()) {
                Token::Wake => {
                    let _ = self.served.handle.wake.read();
                }
                token @ (Token::Receive(..) | Token::Transmit(..)) => {
                    self.contained(token, |worker| worker.kick(token, true));
                }
                token @ Token::Device(..) => {
                    if self.ready.contains(token) {
                        self.unwatch(token);
                    }
                    self.ready.mark(token);
                }
            }
        }
    }

    /// Handles a guest's kick of a ring. `kicked` is false if another thread asks for the look.
    pub(super) fn kick(&mut self, token: Token, kicked: bool) {
        let ports = Arc::clone(&self.ports);
        let (Token::Transmit(id, index) | Token::Receive(id, index)) = token else { return };
        let Some((port, guest)) = ports.guest(id) else { return };
        let index = usize::from(index);
        self.pipeline.stalls.at_sender(id);
        // No kick comes twice, so a kick is kept if a session or another worker holds the lock.
        // Both release the lock soon unless a guest's memory makes them wait.
        let kept = if matches!(token, Token::Transmit(..)) {
            let Some(queue) = guest.tx.get(index) else { return };
            let state = queue.lock_soon();
            state.map(|state| self.transmit_kick(token, queue, state, kicked))
        } else {
            let Some(queue) = guest.rx.get(index) else { return };
            let state = queue.lock_soon();
            state.map(|state| self.wake(receive_kick(port, guest, index, state, kicked)))
        };
        if kept.is_none() {
            self.inbox.kicked.push((token, kicked));
        }
        self.pipeline.stalls.at_nothing();
    }

    /// Handles kicks of rings again whose lock another thread had.
    #[cold]
    pub(super) fn retry_kicks(&mut self) {
        let mut kicked = std::mem::take(&mut self.inbox.kicked);
        kicked.sort_unstable_by_key(|(token, _)| token.to_bits());
        kicked.dedup();
        for (token, kicked) in kicked {
            self.contained(token, |worker| worker.kick(token, kicked));
        }
        self.pipeline.end_look();
    }

    fn transmit_kick(
        &mut self,
        token: Token,
        queue: &Queue<Tx>,
        mut state: MutexGuard<'_, TxState>,
        kicked: bool,
    ) {
        let Token::Transmit(id, _) = token else { return };
        queue.stats.kicks.add(kicked.into());
        if state.vring.owner != Some(self.served.index) {
            // The ring has moved; its new worker was told to look.
            return;
        }
        if state.side.gate.discard != Discard::Never {
            if matches!(self.pipeline.discard(id, queue, state), Polled::RetryAt(_)) {
                self.ready.mark(token);
            }
            return;
        }
        if let Some(ring) = state.vring.running() {
            ring.suppress_kicks();
        }
        drop(state);
        self.ready.mark(token);
    }
}

/// Returns a timeout for `epoll_wait`: rounded up, at least 1 ms.
fn millis(time: Duration) -> i32 {
    i32::try_from(time.as_micros().div_ceil(1_000)).unwrap_or(i32::MAX).max(1)
}
