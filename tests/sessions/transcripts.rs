//! Recorded conversations of four front-ends are replayed: of QEMU 7.2, QEMU 10.0, DPDK 22.11
//! virtio-user and cloud-hypervisor 54; each message in its recorded order and state, each reply
//! checked. Each is served three times on one port, and nothing stays behind.
//!
//! QEMU 10's was recorded against a back-end that offered BACKEND_REQ (bit 5). We do not, so it is
//! replayed without that bit and without SET_BACKEND_REQ_FD; as recorded it must be refused.
//! Offload bits are masked by what GET_FEATURES offers, as a front-end does.

use testkit::SOON;
use testkit::frontend::{Error, Frontend, proto, req};
use testkit::net::{Job, Net, Sizes};
use testkit::proc::{Daemon, Usage, wait_for};
use testkit::traffic::To;
use testkit::transcript::{Line, OFFLOADS, Replay, parse};
use testkit::vm::{Vm, VmConfig};

const QEMU_7: &str = include_str!("transcripts/qemu-7.2-migrate-reset-announce.txt");
const QEMU_10: &str = include_str!("transcripts/qemu-10.0-linux-mq-reboot.txt");
const DPDK: &str = include_str!("transcripts/dpdk-22.11-virtio-user-mq.txt");
const CLOUD_HYPERVISOR: &str = include_str!("transcripts/cloud-hypervisor-54-mq-migrate.txt");
const PAIRS: u64 = 2;

fn daemon() -> Daemon {
    Daemon::with_ports(&[",queues=2", ",queues=2"], &[])
}

fn connect(d: &Daemon) -> Replay {
    let fe = Frontend::connect(&d.socket(0), SOON).expect("connect");
    Replay::new(fe, 2 * PAIRS)
}

fn play(replay: &mut Replay, lines: &[Line]) {
    for (i, l) in lines.iter().enumerate() {
        replay.step(l).unwrap_or_else(|e| panic!("message {i}, {}: {e:?}", l.name));
    }
}

/// The whole conversation three times on one port, leaving nothing behind; then real guests.
fn replay(text: &str) {
    let d = daemon();
    let before = d.settled_usage();
    let lines = parse(text);
    for _ in 0..3 {
        let mut replay = connect(&d);
        play(&mut replay, &lines);
        replay.alive().expect("still in step at the end");
    }
    assert!(wait_for(SOON, || fits(d.usage(), before)), "{:?}", d.usage());
    let vms = (0..2).map(|i| Vm::connect(&d.socket(i as usize), VmConfig::new(i))).collect();
    let mut net = Net::new(vms);
    net.announce();
    net.run(&[Job::new(0, To::Vm(1), 100, Sizes::Range(60, 1514))]);
    net.finish();
    drop(net);
    d.stop();
}

/// No descriptor and no thread more than before. Mappings: the allocator may have grown by a few.
fn fits(now: Usage, before: Usage) -> bool {
    now.fds <= before.fds && now.threads <= before.threads && now.mappings <= before.mappings + 4
}

#[test]
fn qemu_7_2_migration_reset_and_announce() {
    replay(QEMU_7);
}

#[test]
fn qemu_10_0_boot_multiqueue_and_reboot() {
    replay(QEMU_10);
}

#[test]
fn dpdk_virtio_user_port_stop_and_start() {
    replay(DPDK);
}

#[test]
fn cloud_hypervisor_54_reset_pause_hotplug_and_migration() {
    replay(CLOUD_HYPERVISOR);
}

/// A protocol feature that was not offered: acknowledging it ends the connection.
#[test]
fn qemu_10_0_verbatim_is_refused() {
    let d = daemon();
    let mut replay = connect(&d);
    replay.verbatim = true;
    let lines = parse(QEMU_10);
    let set = lines.iter().position(|l| l.name == "SET_PROTOCOL_FEATURES").expect("recorded");
    play(&mut replay, &lines[..=set]);
    assert!(replay.fe.closed_within(SOON), "bit 5 was accepted");
    // The port serves the next front-end.
    let mut next = connect(&d);
    play(&mut next, &lines);
    d.stop();
}

/// Every protocol bit that was not offered is refused, each in a connection of its own.
#[test]
fn protocol_features_not_offered_are_refused() {
    let d = daemon();
    let offered = connect(&d).fe.get_protocol_features().expect("offer");
    assert_eq!(offered & proto::BACKEND_REQ, 0);
    for bit in (0..64).filter(|b| offered >> b & 1 == 0) {
        let mut fe = connect(&d).fe;
        let body = (offered | 1 << bit).to_le_bytes();
        match fe.request_acked(req::SET_PROTOCOL_FEATURES, &body, &[]) {
            Ok(()) => panic!("bit {bit} was accepted"),
            Err(Error::Nack(_)) => {}
            Err(Error::Closed) => continue,
            Err(e) => panic!("bit {bit}: {e:?}"),
        }
        assert!(fe.closed_within(SOON), "bit {bit}: connection kept");
    }
    d.stop();
}

/// What the guests on record acknowledge must be offered for good: offering less than before
/// leaves a running QEMU in an endless reconnect loop.
#[test]
fn the_offer_covers_the_recordings() {
    let d = daemon();
    let offered = connect(&d).fe.get_features().expect("offer");
    for text in [QEMU_7, QEMU_10, DPDK, CLOUD_HYPERVISOR] {
        for l in parse(text).iter().filter(|l| l.name == "SET_FEATURES") {
            let missing = l.word.expect("features") & !offered & !OFFLOADS;
            assert_eq!(missing, 0, "recorded guests need what is not offered: {missing:#x}");
        }
    }
    d.stop();
}
