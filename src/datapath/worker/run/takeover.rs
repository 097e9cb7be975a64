//! Takeover: a thread begins or ends to relieve a worker; see [`crate::stalls`].

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Served, Worker};
use crate::pipeline::signals::SignalHolder;
use crate::port::{Endpoint, Port, QueueRef};
use crate::stalls::Duty;
use crate::worker::Token;

impl Worker {
    /// Registers this thread with the watchdog. Called by the thread itself.
    pub(crate) fn begin(&mut self) {
        self.own.takeover.begin();
        let slot = &self.pipeline.signals.slot;
        slot.active();
        slot.asleep();
    }

    /// Acts on changes of the takeover state.
    #[cold]
    pub(super) fn update_takeover(&mut self) {
        let stalls = &mut self.pipeline.stalls;
        self.all.takeovers.resume(&self.own.takeover, || stalls.last_turn());
        let takeovers = Arc::clone(&self.all.takeovers);
        if self.number < self.all.takeovers.workers() {
            if let Some(thread) = takeovers.come_back(self.number) {
                self.begin_work(SignalHolder::Thread(thread));
            }
            self.own.counted.move_to(&self.own.stats);
            return;
        }
        let Some(duty) = self.own.takeover.duty() else { return };
        match (self.is_relieving(), takeovers.works_for(self.number, duty.worker)) {
            (false, true) => self.relieve(duty),
            // The duty ended before this thread began.
            (false, false) => self.own.takeover.end_duty(),
            (true, false) => self.retire(),
            (true, true) => {}
        }
    }

    /// Begins to relieve a worker.
    fn relieve(&mut self, duty: Duty) {
        self.work_for(duty.worker);
        self.begin_work(SignalHolder::Turn(duty.instead_of, duty.stuck.step));
    }

    /// Ends to relieve a worker. Sources that are still to be looked at go to the worker's notes.
    /// The worker is woken, since this thread may have taken the events that were to wake it.
    pub(super) fn retire(&mut self) {
        for ready in self.ready.take() {
            self.served.handle.look(ready.token);
        }
        for (token, _) in std::mem::take(&mut self.inbox.kicked) {
            self.served.handle.look(token);
        }
        for note in self.inbox.notes.drain(..).rev() {
            self.served.handle.leave(note);
        }
        self.inbox.signal_audit.rings.clear();
        self.own.stats.move_to(&self.served.handle.counted);
        self.served.handle.takeover.wake();
        self.work_for(self.number);
        self.own.takeover.end_duty();
    }

    fn work_for(&mut self, index: usize) {
        self.served = Served { handle: Arc::clone(&self.all.handles[index]), index };
        self.pipeline.work_for(index, &self.served.handle.floods, self.is_relieving());
    }

    /// Recovers from a panic that belongs to no port. Events and signals may be lost, so all
    /// sources are looked at, and all drivers are signalled.
    #[cold]
    pub(super) fn recover(&mut self) {
        self.pipeline.signals.slot.active();
        self.own.sleep_state.awake();
        // The panic may have left notes that were taken.
        self.served.handle.noted.store(true, Ordering::Relaxed);
        self.begin_work(SignalHolder::Anyone);
    }

    /// Looks at all sources of the worker, whatever is known of them, and sends signals that thread
    /// `holder` may owe.
    fn begin_work(&mut self, holder: SignalHolder) {
        self.refresh();
        self.inbox.signal_audit.rings.clear();
        for port in self.ports.iter() {
            let rings = port.as_guest().map_or(0, |guest| 2 * guest.tx.len());
            self.inbox.signal_audit.rings.extend((0..rings).map(|ring| (port.id, ring)));
        }
        self.inbox.signal_audit.holder = holder;
        self.audit_signals();
        self.look_at_all();
    }

    /// Makes all sources of the worker ready.
    fn look_at_all(&mut self) {
        let ports = Arc::clone(&self.ports);
        for port in ports.iter() {
            match &port.endpoint {
                Endpoint::Guest(guest) => {
                    // Rings of other workers are removed at the first look.
                    for i in 0..guest.tx.len() as u16 {
                        let receive = Token::Receive(port.id, i);
                        self.contained(receive, |worker| worker.kick(receive, false));
                        self.ready.mark(Token::Transmit(port.id, i));
                    }
                }
                Endpoint::Device(device) => {
                    for i in 0..device.queues().len() {
                        if port.device_worker(i, self.all.takeovers.workers()) == self.served.index
                        {
                            self.ready.mark(Token::Device(port.id, i as u16));
                        }
                    }
                }
            }
        }
    }

    /// Sends signals that another thread may owe. Rings whose lock is not free are tried again in
    /// the next turn.
    #[cold]
    pub(super) fn audit_signals(&mut self) {
        let (ports, holder) = (Arc::clone(&self.ports), self.inbox.signal_audit.holder);
        let mut unasked = std::mem::take(&mut self.inbox.signal_audit.rings);
        unasked.retain(|&(id, ring)| {
            let queue = ports.get(id).and_then(Port::as_guest).and_then(|guest| guest.queue(ring));
            let signals = &mut self.pipeline.signals;
            match queue {
                Some(QueueRef::Tx(queue)) => queue.lock_soon().map(|mut state| {
                    signals.take_over_sent(id, &mut state, &queue.stats, holder);
                }),
                Some(QueueRef::Rx(queue)) => queue.lock_soon().map(|mut state| {
                    signals.take_over(id, &mut state.vring, &queue.stats, holder);
                }),
                None => Some(()),
            }
            .is_none()
        });
        self.inbox.signal_audit.rings = unasked;
    }
}

#[cfg(test)]
mod tests;
