//! Kicks of rings whose lock somebody else has.

use std::sync::mpsc;
use std::time::Duration;

use super::*;
use crate::limits::{FDB_MAX_ENTRIES, FDB_MAX_PER_PORT, FDB_RESERVED_PER_PORT};
use crate::switch::{Fdb, FdbConfig, Rules};
use crate::sys::eventfd::BlockedWriterWatch;

/// Far longer than anybody waits, however busy the machine is.
const LOST: Duration = Duration::from_secs(60);

fn worker() -> Worker {
    let fdb = Fdb::new(FdbConfig {
        max_entries: FDB_MAX_ENTRIES,
        max_per_port: FDB_MAX_PER_PORT,
        reserved_per_port: FDB_RESERVED_PER_PORT,
        age_seconds: 300,
        ports: 1,
        key: [1, 2],
    });
    let shared = Shared {
        ports: vec![Port::guest(0, "held", 1)].into(),
        fdb: Arc::new(fdb),
        rules: Rules::default(),
        poll: false,
        watch: Arc::new(BlockedWriterWatch::start().unwrap()),
    };
    Worker::new(0, 1, Arc::new(WorkerHandle::new().unwrap()), shared)
}

/// Whoever holds the lock, a session or the worker that the ring moved to, may be waiting for a
/// guest's memory: the kick is kept, and served once the lock is free.
#[test]
fn a_kick_that_meets_a_held_lock_is_served_later() {
    for token in [Token::Transmit(0, 0), Token::Receive(0, 0)] {
        let mut worker = worker();
        let ports = Arc::clone(&worker.ports);
        let guest = ports[0].as_guest().unwrap();
        let transmit = matches!(token, Token::Transmit(..));
        let queue = if transmit { &guest.tx[0] } else { &guest.rx[0] };
        let mut held = queue.lock();
        held.owner = Some(0);
        let mut worker = std::thread::scope(|scope| {
            let (tell, told) = mpsc::channel();
            scope.spawn(move || {
                for _ in 0..100 {
                    worker.kick(token, true);
                    worker.retry_kicks();
                }
                let _ = tell.send(worker);
            });
            let worker = told.recv_timeout(LOST);
            drop(held);
            worker.expect("the worker waits for the ring's lock")
        });
        assert_eq!(worker.kicked, [(token, true)]);
        assert!(worker.ready.is_empty());
        worker.retry_kicks();
        assert!(worker.kicked.is_empty());
        assert_eq!((worker.ready.len(), queue.stats.kicks.get()), (usize::from(transmit), 1));
    }
}
