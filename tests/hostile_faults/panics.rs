//! A panic in each kind of thread: it would be a bug of ours, costs one port something and is said.
//! No thread is missing afterwards, no other guest has lost a frame or a signal, the books balance,
//! and nothing of the burst is found in another one.

use std::time::Duration;

use api::config::{CliAction, Machine, Request, Texts};
use base::stats::DropReason;
use daemon::Daemon;

use crate::lab::{Answer, EVIL, HOST, Lab, SOON, TAKE, TAP, chat, from_tap, plain, sprung, trap};
use testkit::frontend::{Acks, Frontend, feat, req};
use testkit::packet::{Ask, Kind, Packet, payload};
use testkit::proc::{Dir, wait_for};
use testkit::sys::{self, EventFd};
use testkit::vm::{Vm, VmConfig, mac_of};

const BROADCAST: [u8; 6] = [0xff; 6];

fn rounds() -> usize {
    testkit::rounds(2, 5, 200)
}

/// Stops the transmit ring and starts it empty, as its driver's reset would.
fn restart_tx(vm: &mut Vm) {
    vm.fe.get_vring_base(1).expect("base");
    vm.guest.tx[0].reclaim_all();
    vm.guest.start_ring(&mut vm.fe, &vm.guest.tx[0].ring).expect("start");
    vm.settle();
}

/// Frames for the host pass from the guest.
fn reaches_host(lab: &Lab, vm: &mut Vm) {
    lab.fake.frames();
    let frame = plain(mac_of(HOST), vm.mac(), 7, 60);
    vm.tx[0].send_waiting(&frame, SOON);
    vm.tx[0].drain(SOON);
    let came = lab.fake.frames();
    assert!(came.iter().any(|got| got[12..] == frame), "{} frames", came.len());
}

/// A burst with all there is in it: frames for a guest, for the TAP, for everybody, and a bad one;
/// the writing to the TAP panics.
#[test]
fn a_worker_panics_in_a_guests_burst() {
    for workers in [1, 2] {
        let mut lab = Lab::new("burst", workers);
        let (mut net, mut evil) = lab.guests(VmConfig::new(EVIL as u8));
        let mac = evil.mac();
        for round in 1..=rounds() as u64 {
            lab.fake.on_write(Answer::Panic);
            let to_guest = plain([2, 0, 0, 0, 0, 77], mac, 1, 60);
            let frames = [
                plain(mac_of(HOST), mac, 2, 1000),
                plain(BROADCAST, mac, 3, 60),
                to_guest,
                plain(mac_of(HOST), [1, 0, 0, 0, 0, 0], 4, 60),
                plain(mac_of(HOST), mac, 5, 60),
            ];
            frames.iter().for_each(|frame| assert!(evil.tx[0].queue(frame)));
            evil.tx[0].ring.publish();
            let told = sys::poll_in(&[evil.tx[0].ring.err.raw()], SOON);
            assert!(told, "the sender is not told");
            evil.tx[0].ring.err.take();
            assert_eq!((lab.panics(), lab.port(EVIL).stats.panics.get()), (round, round));
            assert_eq!(lab.port(EVIL).stats.rings_broken.get(), round);
            lab.fake.on_write(TAKE);
            // What the flood had brought to the others is no frame of theirs.
            for vm in &mut net.vms {
                vm.rx[0].recv(64, |_, frame| assert_eq!(frame[12..14], [0x88, 0xb6]));
            }
            chat(&mut net, 50);
            lab.balance();
            restart_tx(&mut evil);
            reaches_host(&lab, &mut evil);
            // As does the burst from before, which nobody had seen used.
        }
        let lost = lab.port(EVIL).traffic()[0].drops[DropReason::Panicked as usize];
        assert_eq!(lost, 4 * rounds() as u64, "all but the bad one");
        lab.balance();
        drop((net, evil));
        lab.finish();
    }
}

/// Reading panics, with frames behind it that bring no event of their own.
#[test]
fn a_worker_panics_in_a_taps_burst() {
    for workers in [1, 2] {
        let mut lab = Lab::new("read", workers);
        let (mut net, mut evil) = lab.guests(VmConfig::new(EVIL as u8));
        let hello = plain(BROADCAST, evil.mac(), 0, 60);
        evil.tx[0].send_waiting(&hello, SOON);
        evil.tx[0].drain(SOON);
        for vm in &mut net.vms {
            vm.rx[0].recv(64, |_, _| {});
        }
        let mut all_lost = 0;
        for round in 1..=rounds() as u64 {
            let frame = |mark| from_tap(&plain(mac_of(EVIL as u8), mac_of(HOST), mark, 100));
            // Those before the panic are lost with the burst; those behind it are not.
            lab.fake.queue([frame(1), Answer::Panic, frame(2), frame(3)]);
            lab.fake.tell();
            let mut marks = Vec::new();
            while marks.last() != Some(&3) {
                assert!(evil.rx[0].wait(SOON), "round {round}: stuck behind {marks:?}");
                evil.rx[0].recv(1, |_, got| marks.push(got[20]));
            }
            // A burst may end in front of the panic, where the machine takes the CPU away.
            let lost = u64::from(marks[0] != 1);
            assert!(marks.ends_with(&[2, 3]) && marks.len() as u64 == 3 - lost, "{marks:?}");
            all_lost += lost;
            assert_eq!(lab.port(TAP).stats.panics.get(), round);
            chat(&mut net, 50);
        }
        let panicked = lab.port(TAP).traffic()[0].drops[DropReason::Panicked as usize];
        assert_eq!(panicked, all_lost);
        lab.balance();
        drop((net, evil));
        lab.finish();
    }
}

/// A packet that asks for an offload puts its header where the next frame's goes; a panic between
/// must not leave it there.
#[test]
fn no_header_outlives_its_panic() {
    let mut lab = Lab::new("header", 1);
    let (mut net, mut evil) = lab.guests(VmConfig::with_offloads(EVIL as u8, feat::OFFLOADS, true));
    let kind = Kind::plain().find(|kind| !kind.v6 && !kind.udp).expect("TCP over IPv4");
    let packet = Packet::new(kind, evil.mac(), mac_of(HOST), &payload(1, 5000));
    let (header, frame) = packet.sent(Ask::Segments(1000));
    for _ in 0..rounds() {
        lab.fake.on_write(Answer::Panic);
        evil.tx[0].header = header.bytes(12);
        assert!(evil.tx[0].send(&frame));
        assert!(sys::poll_in(&[evil.tx[0].ring.err.raw()], SOON), "the sender is not told");
        evil.tx[0].ring.err.take();
        lab.fake.on_write(TAKE);
        lab.fake.frames();
        // Another guest's frame, by the same worker.
        let plain = plain(mac_of(HOST), mac_of(0), 1, 1000);
        net.vms[0].tx[0].send_waiting(&plain, SOON);
        net.vms[0].tx[0].drain(SOON);
        let came = lab.fake.frames();
        assert_eq!(came, [[&[0; 12][..], &plain].concat()], "with a header of its own");
        restart_tx(&mut evil);
    }
    evil.tx[0].header = vec![0; 12];
    reaches_host(&lab, &mut evil);
    lab.balance();
    drop((net, evil));
    lab.finish();
}

/// What a worker does on behalf of a session (SEND_RARP) is contained as well.
#[test]
fn a_worker_panics_in_an_announcement() {
    let mut lab = Lab::new("rarp", 1);
    let (mut net, mut evil) = lab.guests(VmConfig::new(EVIL as u8));
    // More announcements than 32 in a row are refused.
    for round in 1..=rounds().min(30) as u64 {
        lab.fake.on_write(Answer::Panic);
        let mac = evil.mac();
        evil.fe.send_rarp(mac).expect("send");
        let panicked = || lab.port(EVIL).stats.panics.get() == round;
        assert!(wait_for(SOON, panicked), "no panic");
        lab.fake.on_write(TAKE);
        for vm in &mut net.vms {
            vm.rx[0].recv(64, |_, frame| assert_eq!(frame[12..14], [0x80, 0x35], "RARP"));
        }
        chat(&mut net, 50);
        lab.balance();
        reaches_host(&lab, &mut evil);
        lab.fake.frames();
    }
    drop((net, evil));
    lab.finish();
}

/// A panic that is no port's: at the end of a turn, in the middle of the signals that it owes. The
/// worker looks at everything again, and nobody waits for a signal that was lost.
#[test]
fn a_worker_panics_at_the_end_of_a_turn() {
    for workers in [1, 2] {
        let name = format!("turn{workers}");
        let mut lab = Lab::new(&name, workers);
        let (mut net, evil) = lab.guests(VmConfig::new(EVIL as u8));
        drop(evil);
        for _ in 0..rounds() {
            let mut evil = lab.connect(EVIL, VmConfig::new(EVIL as u8));
            let text = format!("port {name}{EVIL}: front-end dropped");
            // Its one log line of this second must not be used up.
            std::thread::sleep(Duration::from_millis(1100));
            trap(&text);
            let call = EventFd::with_flags(0);
            evil.fe.acks = Acks::Never;
            evil.fe.set_vring_fd(req::SET_VRING_CALL, 0, Some(call.raw())).expect("set");
            evil.settle();
            // The session wrote it once. Full, and blocking again, it holds up the worker.
            assert_eq!(call.take(), 1);
            call.write(u64::MAX - 1);
            // SAFETY: no memory is involved.
            assert_eq!(unsafe { libc::fcntl(call.raw(), libc::F_SETFL, 0) }, 0);
            // Frames for all, so that its guest is signalled beside the others.
            let frames: Vec<Vec<u8>> =
                (0..8).map(|mark| plain(BROADCAST, mac_of(HOST), mark, 60)).collect();
            let came = wait_for(SOON, || {
                evil.rx[0].ring.arm();
                lab.fake.queue(frames.iter().map(|frame| from_tap(frame)));
                lab.fake.tell();
                std::thread::sleep(Duration::from_millis(5));
                for vm in &mut net.vms {
                    vm.rx[0].recv(64, |_, frame| assert_eq!(frame[12..14], [0x88, 0xb6]));
                }
                sprung(&text)
            });
            assert!(came, "the front-end was not dropped");
            // To tell of a panic takes a while, 0.2 s for the first.
            assert!(wait_for(SOON, || lab.fake.is_read()), "the worker does not go on");
            std::thread::sleep(Duration::from_millis(50));
            for vm in &mut net.vms {
                vm.rx[0].recv(1024, |_, frame| assert_eq!(frame[12..14], [0x88, 0xb6]));
            }
            chat(&mut net, 100);
        }
        lab.balance();
        drop(net);
        lab.finish();
    }
}

/// A daemon in this process: what it logs meets our traps.
fn daemon(dir: &Dir, names: &[&str]) -> Daemon {
    let mut args = vec!["vioswitchd".to_owned()];
    for name in names {
        let socket = dir.path().join(name);
        args.extend(["--port".to_owned(), format!("{name},socket={}", socket.display())]);
    }
    let machine = Machine { cpus: 2, allowed: &[] };
    match Request::read(args, machine) {
        Ok(CliAction::Request(request)) => {
            let config = request.lay_over(&Texts::default()).expect("valid");
            Daemon::start(&config).expect("start")
        }
        other => panic!("{other:?}"),
    }
}

/// A session panics in the middle of a conversation, with rings running, and its thread panics
/// between two: the port is free for the next front-end each time.
#[test]
fn a_session_panics() {
    let dir = Dir::new();
    let mut daemon = daemon(&dir, &["one", "two", "boom"]);
    let mut net = {
        let vm = |(id, name)| Vm::connect(&dir.path().join(name), VmConfig::new(id));
        testkit::net::Net::new([(0, "one"), (1, "two")].map(vm).into())
    };
    net.announce();
    let connect = || Frontend::connect(&dir.path().join("boom"), SOON).expect("connect");
    for _ in 0..rounds() {
        let mut evil = Vm::attach(connect(), VmConfig::new(EVIL as u8));
        // In the conversation.
        trap("port boom: GET_FEATURES");
        evil.fe.get_features().expect_err("its session panicked");
        assert!(evil.fe.closed_within(SOON));
        drop(evil);
        chat(&mut net, 20);
        let mut evil = Vm::attach(connect(), VmConfig::new(EVIL as u8));
        // Between its stopping of the rings: in the thread's own part.
        std::thread::sleep(Duration::from_millis(1100));
        trap("port boom: ring 1 stopped");
        evil.disconnect();
        assert!(wait_for(SOON, || sprung("port boom: ring 1 stopped")));
        drop(Vm::attach(connect(), VmConfig::new(EVIL as u8)));
        chat(&mut net, 20);
    }
    assert!(daemon.ports()[2].stats.panics.get() >= 2 * rounds() as u64);
    let attached = || daemon.ports()[2].as_guest().is_some_and(|guest| guest.is_attached());
    assert!(wait_for(SOON, || !attached()), "a dead front-end still has the port");
    net.finish();
    daemon.stop();
}

/// The thread of a port panics outside any conversation.
#[test]
fn a_ports_thread_panics() {
    let dir = Dir::new();
    let mut daemon = daemon(&dir, &["lone"]);
    for _ in 0..rounds() {
        std::thread::sleep(Duration::from_millis(1100));
        trap("port lone: front-end connected");
        let mut dead = Frontend::connect(&dir.path().join("lone"), SOON).expect("connect");
        assert!(wait_for(SOON, || sprung("port lone: front-end connected")));
        dead.get_features().expect_err("its thread panicked");
        drop(Vm::connect(&dir.path().join("lone"), VmConfig::new(0)));
    }
    assert_eq!(daemon.ports()[0].stats.attaches.get(), rounds() as u64);
    daemon.stop();
}
