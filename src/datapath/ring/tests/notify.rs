//! Kicks and signals (virtio 1.2 sections 2.7.7 and 2.7.10).

use vm_memory::GuestMemoryBackend;

use super::*;
use crate::ring::Burst;
use crate::ring::split::passed;

fn used_flags(guest: &Guest, queue: &Queue<'_>) -> u16 {
    guest.driver.read_obj(queue.used_addr()).unwrap()
}

fn avail_event(guest: &Guest, queue: &Queue<'_>) -> u16 {
    guest.driver.read_obj(GuestAddress(queue.used_addr().0 + 4 + 8 * u64::from(SIZE))).unwrap()
}

fn set_used_event(guest: &Guest, queue: &Queue<'_>, event: u16) {
    let at = GuestAddress(queue.avail_addr().0 + 4 + 2 * u64::from(SIZE));
    assert!(guest.driver.address_in_range(at));
    guest.driver.write_obj(event, at).unwrap();
}

/// Takes and completes everything; true if the driver is to be signalled.
fn serve(ring: &mut SplitRing) -> bool {
    let mut burst = Burst::default();
    ring.take(&mut burst, 64).unwrap();
    ring.complete(&burst)
}

#[test]
fn without_event_idx_flags_steer_both_directions() {
    let guest = Guest::new();
    let queue = guest.queue();
    let mut ring = guest.start(&queue);
    describe(&queue, 0, &[desc(DATA, 100, 0, 0)]);
    ring.suppress_kicks();
    assert_eq!(used_flags(&guest, &queue), 1);
    assert!(!ring.enable_kicks());
    assert_eq!(used_flags(&guest, &queue), 0);
    offer(&queue, &[0]);
    assert!(serve(&mut ring), "the first publication always signals");
    guest.driver.write_obj(1u16, queue.avail_addr()).unwrap();
    offer(&queue, &[0]);
    assert!(!serve(&mut ring), "VIRTQ_AVAIL_F_NO_INTERRUPT");
    guest.driver.write_obj(0u16, queue.avail_addr()).unwrap();
    offer(&queue, &[0]);
    assert!(serve(&mut ring));
}

#[test]
fn with_event_idx_indices_steer_both_directions() {
    let guest = Guest::new();
    let queue = guest.queue();
    let config = RingConfig { event_idx: true, ..guest.config(&queue) };
    let mut ring = SplitRing::start(Arc::clone(&guest.table), &config).unwrap();
    describe(&queue, 0, &[desc(DATA, 100, 0, 0)]);
    // The driver waits at an index that a killed predecessor had passed.
    set_used_event(&guest, &queue, 40_000);
    offer(&queue, &[0]);
    assert!(serve(&mut ring), "the first publication signals whatever used_event says");
    set_used_event(&guest, &queue, 2);
    offer(&queue, &[0]);
    assert!(!serve(&mut ring), "the driver wants to sleep on");
    offer(&queue, &[0]);
    assert!(serve(&mut ring), "used.idx has passed used_event");
    assert!(!ring.enable_kicks());
    assert_eq!(avail_event(&guest, &queue), 3);
}

#[test]
fn a_buffer_posted_while_kicks_were_off_is_found_by_the_second_look() {
    for event_idx in [false, true] {
        let guest = Guest::new();
        let queue = guest.queue();
        let config = RingConfig { event_idx, ..guest.config(&queue) };
        let mut ring = SplitRing::start(Arc::clone(&guest.table), &config).unwrap();
        describe(&queue, 0, &[desc(DATA, 100, 0, 0)]);
        ring.suppress_kicks();
        offer(&queue, &[0]);
        assert!(ring.enable_kicks(), "event_idx {event_idx}");
    }
}

#[test]
fn nothing_published_means_no_signal() {
    let guest = Guest::new();
    let queue = guest.queue();
    let mut ring = guest.start(&queue);
    assert!(!ring.publish());
}

/// Section 2.7.10.1: notify when the index that the event names has been written.
#[test]
fn event_index_arithmetic() {
    assert!(passed(0, 1, 0));
    assert!(!passed(1, 1, 0));
    assert!(passed(3, 8, 2));
    assert!(!passed(8, 8, 2));
    assert!(!passed(1, 8, 2));
    assert!(passed(65_535, 0, 65_535));
    assert!(passed(65_535, 2, 65_534));
    assert!(!passed(2, 2, 65_534));
}
