//! Why the request loop is our own: the stock `VhostUserDaemon` refuses QEMU's opening.
//!
//! QEMU's vhost-user-net device sends SET_VRING_ENABLE while it realizes and resets the device,
//! before any SET_FEATURES; the stock layers answer that with an error and close. The day this
//! test fails, the loop can go upstream's way.

use std::io;

use testkit::SOON;
use testkit::frontend::{Acks, Frontend};
use testkit::proc::Dir;
use testkit::transcript::{Line, Replay, parse};
use vhost::vhost_user::Listener;
use vhost::vhost_user::message::VhostUserProtocolFeatures;
use vhost_user_backend::{VhostUserBackendMut, VhostUserDaemon, VringRwLock};
use vm_memory::{GuestMemoryAtomic, GuestMemoryMmap};
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::event::{
    EventConsumer, EventFlag, EventNotifier, new_event_consumer_and_notifier,
};

const VRINGS: usize = 4;

/// A net back-end that moves no frames: the opening never gets that far.
struct Idle;

impl VhostUserBackendMut for Idle {
    type Bitmap = ();
    type Vring = VringRwLock;

    fn num_queues(&self) -> usize {
        VRINGS
    }

    fn max_queue_size(&self) -> usize {
        1024
    }

    fn features(&self) -> u64 {
        // The virtio bits that the recording back-end had offered, PROTOCOL_FEATURES among them.
        [0, 1, 3, 7, 8, 11, 12, 15, 17, 21, 22, 26, 28, 29, 30, 32, 35].map(|b| 1 << b).iter().sum()
    }

    fn protocol_features(&self) -> VhostUserProtocolFeatures {
        VhostUserProtocolFeatures::from_bits_truncate(0x803f)
    }

    fn set_event_idx(&mut self, _enabled: bool) {}

    fn update_memory(&mut self, _mem: GuestMemoryAtomic<GuestMemoryMmap>) -> io::Result<()> {
        Ok(())
    }

    /// Lets the daemon's worker thread end with it.
    fn exit_event(&self, _thread: usize) -> Option<(EventConsumer, EventNotifier)> {
        Some(new_event_consumer_and_notifier(EventFlag::empty()).expect("eventfd"))
    }

    fn handle_event(
        &mut self,
        _event: u16,
        _set: EventSet,
        _vrings: &[VringRwLock],
        _thread: usize,
    ) -> io::Result<()> {
        Ok(())
    }
}

/// Sends the recorded messages up to and with the first SET_VRING_ENABLE; answers whether the
/// connection was then closed.
fn refuses(transcript: &str) -> bool {
    let dir = Dir::new();
    let path = dir.path().join("stock");
    let server = path.clone();
    let mut listener = Listener::new(&server, true).expect("listen");
    let thread = std::thread::spawn(move || {
        let memory = GuestMemoryAtomic::new(GuestMemoryMmap::<()>::new());
        let idle = std::sync::Arc::new(std::sync::Mutex::new(Idle));
        let mut daemon = VhostUserDaemon::new("stock".into(), idle, memory).expect("daemon");
        daemon.start(&mut listener).expect("start");
        daemon.wait()
    });
    let fe = Frontend::connect(&path, SOON).expect("connect");
    let mut replay = Replay::new(fe, VRINGS as u64);
    let lines = parse(transcript);
    let enable = lines.iter().position(|l| l.name == "SET_VRING_ENABLE").expect("an ENABLE");
    let features = lines.iter().position(|l| l.name == "SET_FEATURES").expect("SET_FEATURES");
    assert!(enable < features, "QEMU's order");
    let opening: &[Line] = &lines[..enable];
    for l in opening {
        replay.step(l).unwrap_or_else(|e| panic!("{}: {e:?}", l.name));
    }
    assert_eq!(replay.fe.acks, Acks::Never);
    // Sent without looking at a possible NACK: what counts is whether the daemon stays.
    let _ = replay.step(&lines[enable]);
    let closed = replay.fe.closed_within(SOON);
    drop(replay);
    let end = thread.join().expect("no panic");
    assert_eq!(closed, end.is_err(), "the stock loop ended with {end:?}");
    closed
}

#[test]
fn the_stock_loop_refuses_qemu_7_2() {
    assert!(refuses(include_str!("transcripts/qemu-7.2-migrate-reset-announce.txt")));
}

#[test]
fn the_stock_loop_refuses_qemu_10_0() {
    assert!(refuses(include_str!("transcripts/qemu-10.0-linux-mq-reboot.txt")));
}
