//! The loop of a worker: turns over the ready sources. `events` has the sleep between turns, and
//! what ends the sleep.

mod events;
mod polled;
mod takeover;
mod turn;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use vmm_sys_util::epoll::EpollEvent;

use self::turn::{Ready, ReadySources, Turn};
use super::handle::{Note, Shared, Token, WorkerHandle};
use super::spin::{Instead, SpinPolicy};
use crate::guard::IsStuck;
use crate::pipeline::Pipeline;
use crate::pipeline::deliver::count_broken;
use crate::pipeline::signals::SignalHolder;
use crate::port::{Endpoint, Polled, PortTable, Ports};
use crate::stalls::Takeovers;
use base::limits::{EPOLL_BATCH, SHORTEST_SLEEP_NANOS};
use switch::PortId;
use sys::clock;
use sys::logging::never_wait;
use sys::threads::run_again_after_panic;
use sys::usage::run_queue_delay_millis;

/// A thread of the data path: a worker or a reserve.
pub struct Worker {
    /// Number of the thread.
    number: usize,
    /// Handle of this thread.
    own: Arc<WorkerHandle>,
    all: Threads,
    served: Served,
    /// The present table of ports, and the table that this worker has adopted.
    present: Arc<Ports>,
    ports: Arc<PortTable>,
    pipeline: Pipeline,
    spin: SpinPolicy,
    ready: ReadySources,
    inbox: Inbox,
    turn: Turn,
}

/// All threads of the data path.
struct Threads {
    /// Handles of the threads, by number.
    handles: Arc<[Arc<WorkerHandle>]>,
    /// Takeover states of the threads.
    takeovers: Arc<Takeovers>,
}

/// The worker whose sources a thread serves: the thread itself, or the worker that the thread, a
/// reserve, relieves.
struct Served {
    handle: Arc<WorkerHandle>,
    /// Number of the worker.
    index: usize,
}

/// Requests by other threads, and events of the kernel.
struct Inbox {
    notes: Vec<Note>,
    /// Kicks of rings whose lock another thread had; true if the guest kicked. Tried again each
    /// turn.
    kicked: Vec<(Token, bool)>,
    signal_audit: SignalAudit,
    events: Vec<EpollEvent>,
    /// The worker slept before this turn.
    woken: bool,
}

/// Rings for which another thread may owe a signal.
struct SignalAudit {
    rings: Vec<(PortId, usize)>,
    /// The thread that may owe signals.
    holder: SignalHolder,
}

impl Worker {
    /// Creates the thread with number `index`.
    pub(crate) fn new(
        index: usize,
        threads: &Arc<[Arc<WorkerHandle>]>,
        takeovers: &Arc<Takeovers>,
        shared: Shared,
    ) -> Worker {
        let (handle, threads) = (Arc::clone(&threads[index]), Arc::clone(threads));
        let (weak, is_worker) = (Arc::downgrade(takeovers), index < takeovers.workers());
        let all = Arc::clone(&threads);
        let on_stuck = move |stuck, is_stuck: IsStuck<'_>| {
            let Some(takeovers) = weak.upgrade() else { return };
            if let Some(worker) = takeovers.relieve(index, stuck, is_stuck) {
                all[worker].stats.stalls.add_shared(1);
            }
        };
        let mut worker = Worker {
            number: index,
            own: Arc::clone(&handle),
            all: Threads { handles: threads, takeovers: Arc::clone(takeovers) },
            served: Served { handle, index },
            present: Arc::clone(&shared.ports),
            ports: shared.ports.present(),
            pipeline: Pipeline::new(
                index,
                Arc::clone(&shared.fdb),
                shared.rules,
                shared.watch.register_watched(Box::new(on_stuck)),
            ),
            spin: SpinPolicy::new(shared.poll && is_worker, clock::cycles(), clock::cycles_in),
            ready: ReadySources::default(),
            inbox: Inbox {
                notes: Vec::new(),
                kicked: Vec::new(),
                signal_audit: SignalAudit { rings: Vec::new(), holder: SignalHolder::Anyone },
                events: vec![EpollEvent::default(); EPOLL_BATCH],
                woken: false,
            },
            turn: Turn::new(clock::cycles()),
        };
        worker.pipeline.work_for(index, &worker.served.handle.floods, false);
        worker
    }

    /// Works until [`super::Workers::stop`].
    pub(crate) fn run(mut self) {
        never_wait();
        // The watchdog reads files of this thread. The slot opens these files now, not at the first
        // turn, which a reserve may begin much later.
        self.pipeline.signals.slot.active();
        self.pipeline.signals.slot.asleep();
        let own = Arc::clone(&self.own);
        let stopped = || own.stop.load(Ordering::Relaxed);
        let mut panicked = false;
        let name = std::thread::current().name().unwrap_or_default().replacen('-', " ", 1);
        run_again_after_panic(&name, stopped, || {
            if std::mem::replace(&mut panicked, true) {
                self.recover();
            }
            self.work();
        });
    }

    fn work(&mut self) {
        self.turn.now = clock::cycles();
        while !self.own.stop.load(Ordering::Relaxed) {
            if self.own.takeover.has_news() {
                self.update_takeover();
            }
            self.refresh();
            if self.served.handle.noted.load(Ordering::Relaxed) {
                self.take_notes();
            }
            if !self.inbox.kicked.is_empty() {
                self.retry_kicks();
            }
            if !self.inbox.signal_audit.rings.is_empty() {
                self.audit_signals();
            }
            let found = self.turn();
            if std::mem::take(&mut self.inbox.woken) && !found {
                self.own.stats.empty_wakeups.add(1);
            }
            let rest = self.after_turn(found);
            // Frames that wait for a full receiver also have a retry time: the kick for new buffers
            // may go to another worker.
            let sleepy = (rest || self.ready.is_empty())
                && !self.spin.poll
                && self.ready.len() == self.turn.waiting
                && self.pipeline.floods.is_empty()
                && !self.pipeline.signals.due_soon(self.turn.now);
            if !sleepy && self.spin.check_events(self.turn.now) {
                self.take_events();
            }
            self.account(found);
            if sleepy {
                self.sleep();
            }
        }
        self.finish_floods();
        if self.is_relieving() {
            self.retire();
        }
    }

    /// True if this thread is a reserve that relieves a worker.
    pub(super) fn is_relieving(&self) -> bool {
        self.served.index != self.number
    }

    /// Serves all floods to their end before the thread ends, since their frames were taken from
    /// sources.
    #[cold]
    fn finish_floods(&mut self) {
        while !self.pipeline.floods.is_empty() {
            self.turn.now = clock::cycles();
            self.pipeline.begin_turn(self.turn.now, false, false);
            self.go_on_with_floods();
            self.pipeline.end_turn(&self.ports, &self.own.stats);
        }
    }

    /// Adopts the present table of ports, if there is a new one.
    #[inline(always)]
    fn refresh(&mut self) {
        if !self.present.is_present(&self.ports) {
            self.adopt();
        }
    }

    /// Adopts the present table and drops all state of ports that are gone. Then publishes the
    /// table's serial number: from then on this thread does not refer to numbers of such ports.
    #[cold]
    fn adopt(&mut self) {
        let present = self.present.present();
        let before = std::mem::replace(&mut self.ports, present);
        let after = &self.ports;
        let stays = |id| after.agrees(&before, id);
        let source_stays = |token: Token| token.port().is_none_or(stays);
        self.ready.retain(source_stays);
        self.inbox.kicked.retain(|&(token, _)| source_stays(token));
        self.pipeline.signals.forget(stays);
        self.pipeline.floods.forget_gone(&self.ports);
        self.own.adopted.store(self.ports.serial(), Ordering::Release);
    }

    /// Decides after a turn whether to spin, or to arm the sources that were held for a spin. True
    /// if the worker may sleep.
    #[inline]
    fn after_turn(&mut self, found: bool) -> bool {
        let stats = &self.own.stats;
        if found {
            if self.spin.found(self.turn.now) {
                stats.spins_found.add(1);
            }
            return false;
        }
        if !self.ready.is_empty() && !self.waits_for_time() {
            match self.spin.next(self.turn.now, run_queue_delay_millis) {
                Instead::Look => return false,
                Instead::Arm => self.arm_all(),
                Instead::GiveUp => {
                    stats.spins_empty.add(1);
                    self.arm_all();
                }
            }
        }
        !self.spin.poll
    }

    /// True if all sources wait for a time after the shortest sleep: a spin cannot end such a wait.
    #[cold]
    fn waits_for_time(&self) -> bool {
        let soon = self.turn.now.saturating_add(clock::cycles_in(SHORTEST_SLEEP_NANOS));
        let waits = |ready: &Ready| ready.retry_at >= soon;
        self.turn.waiting == self.ready.len()
            && !self.turn.receivers
            && self.ready.iter().all(waits)
    }

    /// Arms every source; a source with work stays ready.
    fn arm_all(&mut self) {
        let mut at = 0;
        while let Some(&Ready { token, retry_at, looks }) = self.ready.get(at) {
            // A device that was not found empty may have frames that no event reports.
            let device = looks == 0 && matches!(token, Token::Device(..));
            if device || retry_at != 0 || self.arm(token) {
                at += 1;
            } else {
                self.ready.remove(at);
            }
        }
        self.pipeline.stalls.at_nothing();
    }

    /// Ends an iteration: counts its cycles, and uses one reading of the clock for its end and the
    /// start of the next iteration.
    #[inline]
    fn account(&mut self, found: bool) {
        let now = clock::cycles();
        let spent = clock::since(self.turn.now, now);
        self.turn.now = now;
        self.pipeline.stalls.end_turn(spent, now);
        let stats = &self.own.stats;
        if found {
            stats.busy_turns.add(1);
            stats.busy_cycles.add(spent);
            self.spin.work(spent);
        } else {
            stats.idle_cycles.add(spent);
            // Receivers that take frames end the wait within microseconds, so the wait is part of
            // the work.
            if self.turn.receivers {
                self.spin.work(spent);
            }
        }
    }

    /// Runs one pass over the ready sources. True if a source had frames. The next turn continues a
    /// pass that exceeds the time of a turn.
    fn turn(&mut self) -> bool {
        self.pipeline.begin_turn(self.turn.now, self.turn.contended, self.turn.idle);
        (self.turn.working, self.turn.waiting, self.turn.receivers) = (0, 0, false);
        let (mut found, mut is_cut, mut began) = (false, false, self.turn.now);
        if !self.pipeline.floods.is_empty() {
            // Floods compete with the sources for the worker's time.
            (found, self.turn.working) = (self.go_on_with_floods(), 1);
            began = self.pipeline.end_look();
        }
        for left in (0..self.ready.len()).rev() {
            let Some(token) = self.ready.next() else { break };
            let next = self.service(token);
            found |= self.turn.count(next);
            let stays = self.stays_ready(token, next);
            self.ready.advance(stays);
            if left == 0 {
                break;
            }
            let now = self.pipeline.end_look();
            if found && clock::since(began, now) >= self.turn.longest {
                is_cut = matches!(token, Token::Device(..));
                break;
            }
        }
        // Throttled sources compete, too: a turn in which all sources are throttled must not
        // forgive their deficits. Nor must a turn that a device's long burst cut short.
        self.turn.contended = self.turn.working > 1 || (is_cut && self.turn.contended);
        self.turn.idle = self.turn.contended && !found;
        self.pipeline.end_turn(&self.ports, &self.own.stats);
        self.own.stats.turns.add(1);
        found
    }

    /// Serves the next receivers of each flood, for at most the time of a turn. True if a flood was
    /// served.
    #[cold]
    fn go_on_with_floods(&mut self) -> bool {
        let mut served = false;
        for _ in 0..self.pipeline.floods.len() {
            let Some(port) = self.pipeline.floods.next_port() else { break };
            // The frames are in no ring, so a panic breaks no ring.
            self.contained(Token::Receive(port, 0), |worker| {
                let Worker { pipeline, ports, own, .. } = worker;
                served |= pipeline.go_on(ports, &own.stats);
            });
            if clock::since(self.turn.now, self.pipeline.end_look()) >= self.turn.longest {
                break;
            }
        }
        served
    }

    /// True if the source that was just looked at must be looked at in the next turn, with or
    /// without an event.
    #[inline(always)]
    fn stays_ready(&mut self, token: Token, next: Polled) -> bool {
        let looks = self.ready.note(next);
        let is_ring = matches!(token, Token::Transmit(..));
        match next {
            Polled::More | Polled::Locked | Polled::Throttled | Polled::RetryNow => true,
            Polled::RetryAt(_) | Polled::WaitsForReceiver(_) => true,
            Polled::Drained => is_ring || self.can_poll(token) || self.arm(token),
            // A look at a TAP is a system call, and the TAP's event reports new frames.
            Polled::Empty => {
                let is_polled = is_ring || self.can_poll(token);
                (is_polled && self.spin.hold(self.turn.now, looks)) || self.arm(token)
            }
            Polled::Unavailable => false,
        }
    }

    /// Looks at one source. A panic (a bug in the switch) is contained: the port loses its turn,
    /// and a ring is out of service until its driver restarts it. The process goes on.
    #[inline(never)]
    fn service(&mut self, token: Token) -> Polled {
        let stats = &self.own.stats;
        let ports = &self.ports;
        let pipeline = &mut self.pipeline;
        let work = || match token {
            Token::Transmit(port, queue) => pipeline.guest_burst(ports, port, queue.into(), stats),
            Token::Device(port, queue) => pipeline.device_burst(ports, port, queue.into(), stats),
            Token::Wake | Token::Receive(..) => Polled::Unavailable,
        };
        match catch_unwind(AssertUnwindSafe(work)) {
            Ok(serviced) => serviced,
            Err(_) => self.contain_panic(token),
        }
    }

    /// Runs `work` for a source outside its turn. A panic is contained as in a turn.
    fn contained(&mut self, token: Token, work: impl FnOnce(&mut Worker)) {
        if catch_unwind(AssertUnwindSafe(|| work(self))).is_err() {
            self.contain_panic(token);
        }
    }

    /// Takes the ring of a burst that panicked out of service; the burst is counted already. A
    /// device is looked at again later, since no event reports the frames in its queue. Threads
    /// that take the locks of the receive rings next repair these rings.
    #[cold]
    fn contain_panic(&mut self, token: Token) -> Polled {
        let ports = Arc::clone(&self.ports);
        let (Token::Transmit(id, index) | Token::Receive(id, index) | Token::Device(id, index)) =
            token
        else {
            return Polled::Unavailable;
        };
        let Some(port) = ports.get(id) else {
            return Polled::Unavailable;
        };
        let index = usize::from(index);
        port.stats.panics.add_shared(1);
        let after = match (&port.endpoint, token) {
            (Endpoint::Guest(guest), Token::Transmit(..)) if index < guest.tx.len() => {
                let queue = &guest.tx[index];
                let mut state = queue.lock();
                state.vring.broken = true;
                (state.side.gate.drain_to, state.side.gate.receiver) = (None, None);
                self.pipeline.signals.note_error(id, &state.vring);
                drop(state);
                queue.notify_drained();
                count_broken(port, 2 * index + 1, "a worker panicked at its frames");
                return Polled::Unavailable;
            }
            (Endpoint::Device(_), Token::Device(..)) => self.pipeline.retry(),
            // An announcement, a flood, or the kick of a receive ring.
            _ => Polled::Unavailable,
        };
        if port.reports.log.allow() {
            log::error!("port {}: a worker panicked at its frames", port.name);
        }
        after
    }

    /// Enables the kicks of an empty source and looks at the source again. True if the source must
    /// stay ready.
    fn arm(&mut self, token: Token) -> bool {
        // The read that found a TAP empty has armed the TAP's edge-triggered event.
        let Token::Transmit(id, queue) = token else { return !self.watch_again(token) };
        let Some((_, guest)) = self.ports.guest(id) else { return false };
        let Some(queue) = guest.tx.get(usize::from(queue)) else { return false };
        // A session holds the lock, and may just be enabling the ring: look again later.
        let Some(mut state) = queue.lock_for_burst() else { return true };
        self.pipeline.stalls.at_sender(id);
        let vring = &mut state.vring;
        if vring.owner != Some(self.served.index) {
            return false;
        }
        let kickless = vring.kickless;
        let Some(ring) = vring.running() else { return false };
        if kickless {
            return true;
        }
        if ring.enable_kicks() {
            ring.suppress_kicks();
            return true;
        }
        false
    }
}

#[cfg(test)]
mod tests;
