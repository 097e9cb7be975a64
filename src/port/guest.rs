//! The rings of one VM.
//!
//! Ring `2n` of the device is the receive queue of pair n, ring `2n + 1` its transmit queue
//! (virtio 1.2 section 5.1.2). Which receive rings can take frames is a bit mask, so that a sender
//! chooses one without a lock; it is only ever a hint, checked again under the ring's lock.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::queue::Queue;
use crate::limits::MAX_QUEUE_PAIRS;

// One bit per receive queue.
const _: () = assert!(MAX_QUEUE_PAIRS <= 32);

/// A VM's port.
#[derive(Debug)]
pub struct GuestPort {
    /// Transmit queues: from the VM into the switch.
    pub tx: Box<[Queue]>,
    /// Receive queues: from the switch to the VM.
    pub rx: Box<[Queue]>,
    active_rx: AtomicU32,
    connection: Mutex<Option<UnixStream>>,
}

impl GuestPort {
    /// A port with `pairs` queue pairs, nothing attached.
    pub fn new(pairs: u16) -> GuestPort {
        let queues = || (0..pairs).map(|_| Queue::default()).collect();
        GuestPort {
            tx: queues(),
            rx: queues(),
            active_rx: AtomicU32::new(0),
            connection: Mutex::new(None),
        }
    }

    /// The queue of ring `index` of the device, and whether it is a transmit queue.
    pub fn queue(&self, index: usize) -> Option<(&Queue, bool)> {
        let transmit = index % 2 == 1;
        let queues = if transmit { &self.tx } else { &self.rx };
        queues.get(index / 2).map(|queue| (queue, transmit))
    }

    /// Marks receive queue `queue` as one that can take frames (started, enabled, and has held
    /// buffers), or not. Called with the queue's lock held.
    pub fn set_active(&self, queue: usize, active: bool) {
        let bit = 1u32.checked_shl(queue as u32).unwrap_or(0);
        if active {
            self.active_rx.fetch_or(bit, Ordering::Release);
        } else {
            self.active_rx.fetch_and(!bit, Ordering::Release);
        }
    }

    /// Bit mask of the receive queues that can take frames.
    #[inline(always)]
    pub fn active(&self) -> u32 {
        self.active_rx.load(Ordering::Relaxed)
    }

    /// Records that a front-end came, and the handle by which it can be dropped.
    pub fn attach(&self, connection: UnixStream) {
        *self.connection() = Some(connection);
    }

    /// Records that the front-end left.
    pub fn detach(&self) {
        *self.connection() = None;
    }

    /// True while a front-end is connected.
    pub fn is_attached(&self) -> bool {
        self.connection().is_some()
    }

    /// Ends the conversation with the front-end: its session sees the connection closed and takes
    /// the port out of service. For peers that endanger others; any thread may call it.
    pub fn evict(&self) {
        if let Some(connection) = &*self.connection() {
            // Fails only if the peer closed it already.
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    fn connection(&self) -> MutexGuard<'_, Option<UnixStream>> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The receive queue for a flow: the n-th set bit of `active`, n being the flow's hash modulo
/// their number. None if no bit is set.
#[inline(always)]
pub fn choose_queue(active: u32, hash: impl FnOnce() -> u32) -> Option<usize> {
    // Counting bits takes a dozen instructions on the oldest x86-64 we build for.
    if active & active.wrapping_sub(1) == 0 {
        return (active != 0).then_some(active.trailing_zeros() as usize);
    }
    let mut left = active;
    for _ in 0..hash() % active.count_ones() {
        left &= left - 1;
    }
    Some(left.trailing_zeros() as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_goes_to_one_of_the_active_queues() {
        assert_eq!(choose_queue(0, || 7), None);
        assert_eq!(choose_queue(0b1000, || panic!("not needed")), Some(3));
        assert_eq!(choose_queue(0b1010_0001, || 0), Some(0));
        assert_eq!(choose_queue(0b1010_0001, || 4), Some(5));
        assert_eq!(choose_queue(0b1010_0001, || 5), Some(7));
        assert_eq!(choose_queue(u32::MAX, || 31), Some(31));
    }

    #[test]
    fn even_rings_receive_and_odd_rings_transmit() {
        let port = GuestPort::new(2);
        assert!(!port.queue(0).unwrap().1);
        assert!(port.queue(3).unwrap().1);
        assert!(port.queue(4).is_none());
    }
}
