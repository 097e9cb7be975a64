//! The thread that moves rings between workers by their load, as [`super::balance`] decides.
//!
//! The balancer looks once a second, and parks without a timeout while all workers sleep: an idle
//! process has no timer. The first worker that wakes up also wakes the balancer.
//!
//! A worker without a CPU takes no frames, so it looks idle. A ring that moved to such a worker
//! would take no cycles and never move back. So a worker gets a ring only after it answered a
//! wake-up within [`BALANCE_ANSWER_MILLIS`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::{Duration, Instant};

use super::balance::{Balance, Sample};
use super::handle::Helper;
use super::{Token, WorkerHandle, Workers};
use crate::port::Endpoint;
use base::limits::BALANCE_ANSWER_MILLIS;
use sys::clock;
use sys::threads::pause;

impl Workers {
    /// Moves rings between the workers by their load until `stopping`. Returns at once if there is
    /// only one worker.
    pub fn balance(&self, stopping: &AtomicBool) {
        if self.handles().len() < 2 {
            return;
        }
        self.have_helper(Helper::Balancer);
        let second = clock::cycles_per_second();
        let mut balance = Balance::new(self.handles().len(), clock::cycles(), second);
        let mut turns = vec![0; self.handles().len()];
        while pause(Duration::from_secs(1), stopping) {
            self.rings().settle();
            let mut samples = self.samples();
            let moves = balance.look(clock::cycles(), &mut samples);
            self.rings().note_silent(&self.silent(&mut turns));
            self.rings().note_loads(&samples);
            for one in moves {
                let moved = self.answers(one.to) && self.rings().shift(one);
                log::debug!("{one:?}: {}", if moved { "done" } else { "not possible now" });
                if moved {
                    balance.moved(one);
                }
            }
            if self.park_while_asleep(Helper::Balancer, stopping) {
                balance.resume(clock::cycles());
            }
        }
    }

    /// Returns the cycles that each transmit ring and device queue has cost, and its worker.
    fn samples(&self) -> Vec<Sample> {
        let mut samples = self.rings().costs();
        for port in self.rings().ports().present().iter() {
            let Endpoint::Device(device) = &port.endpoint else { continue };
            samples.extend(device.queues().iter().enumerate().map(|(index, queue)| {
                let worker = port.device_worker(index, self.handles().len());
                let source = Token::Device(port.id, index as u16);
                Sample::new(source, worker, queue.input.cycles.get(), false)
            }));
        }
        samples
    }

    /// Returns which workers are awake and have run no turn since the last look, which left their
    /// `turns`: such a worker has no CPU, or stands still in a guest's memory.
    fn silent(&self, turns: &mut [u64]) -> Vec<bool> {
        let is_silent = |(handle, before): (&Arc<WorkerHandle>, &mut u64)| {
            let turns = handle.stats.turns.get();
            std::mem::replace(before, turns) == turns && !handle.is_asleep()
        };
        self.handles().iter().zip(turns).map(is_silent).collect()
    }

    /// True if a worker runs a turn soon after this request.
    fn answers(&self, worker: usize) -> bool {
        let handle = &self.handles()[worker];
        let before = handle.stats.turns.get();
        let end = Instant::now() + Duration::from_millis(BALANCE_ANSWER_MILLIS);
        let _ = handle.wake.write(1);
        while handle.stats.turns.get() == before {
            if Instant::now() >= end {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }

    /// Makes the calling thread the helper `helper`, which workers wake.
    pub fn have_helper(&self, helper: Helper) {
        for handle in self.handles() {
            let _ = handle.sleep_state.helpers[helper as usize].set(std::thread::current());
        }
    }

    /// Parks the helper until a worker wakes up. False if a worker is awake.
    pub fn park_while_asleep(&self, helper: Helper, stopping: &AtomicBool) -> bool {
        let (states, bit) =
            (|| self.handles().iter().map(|handle| &handle.sleep_state), helper.bit());
        for sleep_state in states() {
            sleep_state.parked.fetch_or(bit, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
        let all = states().all(|sleep_state| sleep_state.asleep.load(Ordering::Relaxed));
        while all
            && !stopping.load(Ordering::Acquire)
            && states().all(|sleep_state| sleep_state.parked.load(Ordering::Relaxed) & bit != 0)
        {
            std::thread::park();
        }
        for sleep_state in states() {
            sleep_state.parked.fetch_and(!bit, Ordering::Relaxed);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    /// Returns workers that have handles and no threads.
    fn workers(count: usize) -> Workers {
        let handles = (0..count).map(|n| Arc::new(super::super::WorkerHandle::new(n).unwrap()));
        let handles: Arc<[_]> = handles.collect();
        let rings = super::super::Assignment::new(handles.to_vec(), Arc::default());
        Workers { rings, handles, threads: Default::default() }
    }

    #[test]
    fn a_worker_without_a_cpu_does_not_answer() {
        let workers = workers(2);
        assert!(!workers.answers(1));
        let over = AtomicBool::new(false);
        std::thread::scope(|s| {
            s.spawn(|| {
                while !over.load(Ordering::Acquire) {
                    match workers.handles()[1].wake.read() {
                        Ok(_) => workers.handles()[1].stats.turns.add(1),
                        Err(_) => std::thread::yield_now(),
                    }
                }
            });
            // Several attempts, for a slow machine.
            let answered = (0..100).any(|_| workers.answers(1));
            over.store(true, Ordering::Release);
            assert!(answered);
        });
    }

    #[test]
    fn a_worker_that_makes_no_turn_while_it_is_awake_is_silent() {
        let workers = workers(3);
        workers.handles()[1].sleep_state.asleep();
        let mut turns = vec![0; 3];
        workers.handles()[2].stats.turns.add(1);
        assert_eq!(workers.silent(&mut turns), [true, false, false]);
        assert_eq!(workers.silent(&mut turns), [true, false, true]);
    }

    #[test]
    fn one_worker_needs_no_balance() {
        workers(1).balance(&AtomicBool::new(false));
    }

    /// Helpers park only while all workers sleep, and the first worker that wakes up always wakes
    /// the helpers.
    #[test]
    fn who_wakes_up_wakes_the_helpers() {
        let workers = workers(2);
        let stopping = AtomicBool::new(false);
        let sleep_state = |worker: usize| &workers.handles()[worker].sleep_state;
        sleep_state(0).asleep();
        let balance = Helper::Balancer;
        assert!(!workers.park_while_asleep(balance, &stopping), "the other one is awake");
        let rounds = 2_000;
        let done = AtomicU32::new(0);
        std::thread::scope(|s| {
            let (workers, stopping, done) = (&workers, &stopping, &done);
            for helper in [Helper::Balancer, Helper::Sampler] {
                s.spawn(move || {
                    workers.have_helper(helper);
                    while done.load(Ordering::Acquire) < 2 {
                        workers.park_while_asleep(helper, stopping);
                    }
                });
            }
            for worker in 0..2 {
                s.spawn(move || {
                    for _ in 0..rounds {
                        sleep_state(worker).asleep();
                        std::thread::yield_now();
                        sleep_state(worker).awake();
                    }
                    // This worker stays awake, so no helper parks any more.
                    done.fetch_add(1, Ordering::AcqRel);
                });
            }
        });
    }
}
