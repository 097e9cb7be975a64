//! A model of going to sleep (`src/datapath/ring/split.rs`) and of the driver on the other
//! side of it: Linux's `virtqueue_add` and `virtqueue_kick_prepare`, DPDK's
//! `vq_update_avail_idx` and `virtqueue_kick_prepare`.
//!
//! Not the code itself, whose fields lie in guest memory: the same stores, loads and fences on
//! loom's atomics. It is the variant with fences. On x86-64 the crate uses an exchange instead of a
//! store and a fence, which the processor makes no less of; loom takes sequentially consistent
//! accesses for weaker than they are.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU16, Ordering, fence};
use loom::thread;

#[derive(Default)]
struct Ring {
    avail_idx: AtomicU16,
    /// used.flags, or whether avail_event is the next index.
    wants_kick: AtomicBool,
    /// The eventfd: kicks are not lost there.
    kicked: AtomicBool,
}

/// The device's side: asks for a kick, and looks again.
fn enable_kicks(ring: &Ring, fenced: bool) -> bool {
    ring.wants_kick.store(true, Ordering::Release);
    if fenced {
        fence(Ordering::SeqCst);
    }
    ring.avail_idx.load(Ordering::Acquire) != 0
}

/// The driver's side: shows a buffer, and kicks if asked to.
fn show(ring: &Ring) {
    ring.avail_idx.store(1, Ordering::Release);
    fence(Ordering::SeqCst);
    if ring.wants_kick.load(Ordering::Relaxed) {
        ring.kicked.store(true, Ordering::Release);
    }
}

/// True if the device sleeps for ever although a buffer was shown, in some interleaving.
fn lost(fenced: bool) -> bool {
    let found = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let seen = std::sync::Arc::clone(&found);
    loom::model(move || {
        let ring = Arc::new(Ring::default());
        let driver = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || show(&ring))
        };
        let work = enable_kicks(&ring, fenced);
        driver.join().unwrap();
        if !work && !ring.kicked.load(Ordering::Acquire) {
            seen.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    });
    found.load(std::sync::atomic::Ordering::Relaxed)
}

#[test]
fn no_kick_is_lost() {
    assert!(!lost(true));
}

/// The model is able to show what the fence is for.
#[test]
fn without_the_fence_one_is() {
    assert!(lost(false));
}
