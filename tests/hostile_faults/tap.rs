//! A TAP whose kernel answers in every way: 1,000 times each, under a worker; no spin, no dead
//! thread, each frame in the books under a name, and service goes on afterwards.

use std::sync::atomic::Ordering;
use std::time::Duration;

use base::stats::DropReason;
use sys::frame_io::Transfer;

use crate::lab::{Answer, EVIL, HOST, Lab, SOON, TAKE, TAP, chat, from_tap, plain};
use testkit::proc::wait_for;
use testkit::vm::{VmConfig, mac_of};

fn times() -> u64 {
    if testkit::long() { 1000 } else { 200 }
}

fn errno(errno: i32) -> Answer {
    Answer::Io(Transfer::from_result(-1, errno))
}

/// While nothing happens no worker turns, but for one look a millisecond where a read is to be
/// tried again; twice that, as the machine's timers are its own.
fn is_quiet(lab: &Lab) {
    const WINDOW: Duration = Duration::from_millis(100);
    std::thread::sleep(Duration::from_millis(20));
    let (turns, reads) = (lab.turns(), lab.fake.read_calls.load(Ordering::Relaxed));
    std::thread::sleep(WINDOW);
    let turns = lab.turns() - turns;
    let reads = lab.fake.read_calls.load(Ordering::Relaxed) - reads;
    assert!(turns <= 250 && reads <= 250, "{turns} turns and {reads} reads in {WINDOW:?}");
}

#[test]
fn each_answer_to_a_write() {
    use DropReason::{TapDown, TapFull, TapRejected};
    let mut lab = Lab::new("write", 1);
    let (mut net, mut evil) = lab.guests(VmConfig::new(EVIL as u8));
    let table = [
        ("EAGAIN", errno(libc::EAGAIN), TapFull),
        ("ENOBUFS", errno(libc::ENOBUFS), TapFull),
        ("ENOMEM", errno(libc::ENOMEM), TapFull),
        ("EIO", errno(libc::EIO), TapDown),
        ("EINVAL", errno(libc::EINVAL), TapRejected),
        ("EFAULT", errno(libc::EFAULT), TapRejected),
        ("0", Answer::Io(Transfer::from_result(0, 0)), TapRejected),
        ("short by 1", Answer::Short(1), TapRejected),
        ("short by all but 1", Answer::Short(71), TapRejected),
    ];
    let mac = evil.mac();
    for (name, answer, reason) in table {
        let (before, calls) = (lab.tap_drops(reason), lab.fake.write_calls.load(Ordering::Relaxed));
        lab.fake.on_write(answer);
        for n in 0..times() {
            // Copied together, and gathered from where it lies.
            let len = if n % 2 == 0 { 60 } else { 5000 };
            let frame = plain(mac_of(HOST), mac, 1, len.min(1514));
            evil.tx[0].send_waiting(&frame, SOON);
        }
        evil.tx[0].drain(SOON);
        assert_eq!(lab.tap_drops(reason) - before, times(), "{name}");
        let calls = lab.fake.write_calls.load(Ordering::Relaxed) - calls;
        assert!(calls <= times(), "{name}: {calls} calls");
        is_quiet(&lab);
        lab.fake.on_write(TAKE);
        lab.fake.frames();
        let frame = plain(mac_of(HOST), mac, 2, 60);
        evil.tx[0].send_waiting(&frame, SOON);
        evil.tx[0].drain(SOON);
        assert_eq!(lab.fake.frames().len(), 1, "{name}: service goes on");
        chat(&mut net, 20);
        lab.balance();
    }
    assert_eq!(lab.panics(), 0);
    drop((net, evil));
    lab.finish();
}

#[test]
fn each_answer_to_a_read() {
    let mut lab = Lab::new("answer", 1);
    let (mut net, mut evil) = lab.guests(VmConfig::new(EVIL as u8));
    let hello = plain([0xff; 6], evil.mac(), 0, 60);
    evil.tx[0].send_waiting(&hello, SOON);
    evil.tx[0].drain(SOON);
    net.vms.iter_mut().for_each(|vm| {
        vm.rx[0].recv(64, |_, _| {});
    });
    // The answer, and how many frames it loses each time at least: none if there was none.
    let table = [
        ("EAGAIN", errno(libc::EAGAIN), None),
        ("EIO", errno(libc::EIO), None),
        ("ENOBUFS", errno(libc::ENOBUFS), None),
        ("ENOMEM", errno(libc::ENOMEM), None),
        ("EINVAL", errno(libc::EINVAL), Some(DropReason::TapRejected)),
        ("EFAULT", errno(libc::EFAULT), Some(DropReason::TapRejected)),
        ("short: 1", Answer::Short(1), Some(DropReason::TooShort)),
        ("short: 11", Answer::Short(11), Some(DropReason::TooShort)),
        ("short: 25", Answer::Short(25), Some(DropReason::TooShort)),
    ];
    for (name, answer, reason) in table {
        let input = |lab: &Lab| {
            let stats = &lab.tap().queues()[0].input;
            (stats.frames.get(), stats.drops.total(), reason.map_or(0, |r| stats.drops.get(r)))
        };
        let before = input(&lab);
        for n in 0..times() {
            lab.fake.queue([answer.clone()]);
            // With a frame behind it now and then, which must not stay there.
            if n % 16 == 0 {
                lab.fake.queue([from_tap(&plain(mac_of(EVIL as u8), mac_of(HOST), 1, 60))]);
            }
            lab.fake.tell();
            if n % 16 == 0 && reason.is_some() {
                assert!(evil.rx[0].wait(SOON), "{name}: the frame behind it is stuck");
                evil.rx[0].recv(64, |_, _| {});
            }
        }
        // What ends a turn leaves the rest to the next event, or to the clock.
        let read = wait_for(SOON, || {
            lab.fake.tell();
            lab.fake.left() == 0
        });
        assert!(read, "{name}: {} left", lab.fake.left());
        std::thread::sleep(Duration::from_millis(20));
        evil.rx[0].recv(4096, |_, _| {});
        let after = input(&lab);
        let lost = if reason.is_some() { times() } else { 0 };
        assert_eq!((after.1 - before.1, after.2 - before.2), (lost, lost), "{name}");
        assert_eq!(after.0 - before.0, lost + times().div_ceil(16), "{name}: frames taken");
        // The kernel says nothing else any more: no spin.
        // (Short ones without end are frames without end.)
        if matches!(answer, Answer::Io(_)) {
            lab.fake.idle(answer);
            lab.fake.tell();
            is_quiet(&lab);
        }
        lab.fake.idle(Answer::Io(Transfer::WouldBlock));
        lab.fake.queue([from_tap(&plain(mac_of(EVIL as u8), mac_of(HOST), 1, 60))]);
        lab.fake.tell();
        assert!(evil.rx[0].wait(SOON), "{name}: service goes on");
        evil.rx[0].recv(64, |_, _| {});
        chat(&mut net, 20);
        lab.balance();
    }
    assert_eq!(lab.panics(), 0);
    drop((net, evil));
    lab.finish();
}

/// EBADFD, and the 0 of a read: the interface is lost, once; what is sent meanwhile is counted, and
/// a device that is attached again serves.
#[test]
fn each_loss_is_one_and_mended() {
    let mut lab = Lab::new("lost", 1);
    let (mut net, mut evil) = lab.guests(VmConfig::new(EVIL as u8));
    let mac = evil.mac();
    for round in 0..times() {
        let frame = plain(mac_of(HOST), mac, 1, 60);
        let before = lab.tap_drops(DropReason::TapGone);
        if round % 2 == 0 {
            lab.fake.on_write(errno(libc::EBADFD));
            evil.tx[0].send_waiting(&frame, SOON);
            evil.tx[0].drain(SOON);
        } else {
            let answers = [errno(libc::EBADFD), Answer::Io(Transfer::from_result(0, 0))];
            lab.fake.queue([answers[round as usize / 2 % 2].clone()]);
            lab.fake.tell();
        }
        assert!(wait_for(SOON, || lab.tap().is_lost()), "round {round}");
        for _ in 0..2 {
            evil.tx[0].send_waiting(&frame, SOON);
        }
        evil.tx[0].drain(SOON);
        let lost = 2 + u64::from(round % 2 == 0);
        assert_eq!(lab.tap_drops(DropReason::TapGone) - before, lost);
        lab.attach();
        lab.tap().close_lost();
        assert!(!lab.tap().is_lost());
        evil.tx[0].send_waiting(&frame, SOON);
        evil.tx[0].drain(SOON);
        assert_eq!(lab.fake.frames().len(), 1, "round {round}: service goes on");
        if round % 50 == 0 {
            // The station's broadcast, learned before it was delivered.
            std::thread::sleep(Duration::from_millis(50));
        }
        for vm in &mut net.vms {
            vm.rx[0].recv(64, |_, frame| assert_eq!(frame[12..14], [0x88, 0xb6]));
        }
        evil.rx[0].recv(64, |_, _| {});
        if round % 50 == 0 {
            chat(&mut net, 20);
        }
    }
    assert_eq!((lab.panics(), lab.port(TAP).stats.panics.get()), (0, 0));
    lab.balance();
    drop((net, evil));
    lab.finish();
}
