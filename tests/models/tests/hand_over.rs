//! Two workers deliver to a receive ring that a session stops: a model of it
//! (`src/datapath/port/queue.rs`, `src/datapath/pipeline/deliver.rs`).
//!
//! Not the code itself, which measures time while it spins and waits: the same steps
//! on loom's lock and atomics. A worker tries the lock, unless a session waits for it; sets its
//! frames aside; tries again; and drops them. A session says that it waits, takes the lock, takes
//! the ring away, and from then on nobody may write there.

use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::{Arc, Mutex, MutexGuard};
use loom::thread;

/// A ring as its guest's memory has it.
#[derive(Default)]
struct Memory {
    frames: Vec<(usize, u32)>,
}

struct State {
    /// The ring while it is started.
    ring: Option<Memory>,
    dropped: u32,
}

struct Queue {
    state: Mutex<State>,
    waiting: AtomicU32,
    /// Frames dropped without the lock.
    busy: AtomicU32,
}

impl Queue {
    fn lock_for_burst(&self) -> Option<MutexGuard<'_, State>> {
        if self.waiting.load(Ordering::Relaxed) != 0 { None } else { self.state.try_lock().ok() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn quiet(&self) -> MutexGuard<'_, State> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let guard = self.lock();
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        guard
    }
}

/// A worker's burst of two frames.
fn deliver(queue: &Queue, worker: usize) {
    let first = queue.lock_for_burst();
    // Set aside, tried again once, then dropped.
    let Some(mut state) = first.or_else(|| queue.lock_for_burst()) else {
        queue.busy.fetch_add(2, Ordering::Relaxed);
        return;
    };
    match &mut state.ring {
        Some(memory) => memory.frames.extend([(worker, 0), (worker, 1)]),
        None => state.dropped += 2,
    }
}

#[test]
fn every_frame_is_delivered_once_or_counted() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let state = State { ring: Some(Memory::default()), dropped: 0 };
        let (waiting, busy) = (AtomicU32::new(0), AtomicU32::new(0));
        let queue = Arc::new(Queue { state: Mutex::new(state), waiting, busy });
        let workers: Vec<_> = (0..2)
            .map(|worker| {
                let queue = Arc::clone(&queue);
                thread::spawn(move || deliver(&queue, worker))
            })
            .collect();
        // The session: what it took away nobody writes to any more.
        let stopped = queue.quiet().ring.take().expect("started");
        for worker in workers {
            worker.join().unwrap();
        }
        let state = queue.lock();
        assert!(state.ring.is_none());
        assert_eq!(queue.waiting.load(Ordering::Relaxed), 0);
        let dropped = state.dropped + queue.busy.load(Ordering::Relaxed);
        assert_eq!(stopped.frames.len() as u32 + dropped, 4);
        // Bursts do not mix, and each keeps its order.
        for burst in stopped.frames.chunks(2) {
            assert!(burst[0].0 == burst[1].0 && (burst[0].1, burst[1].1) == (0, 1));
        }
    });
}
