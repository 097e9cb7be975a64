//! A port's life: front-ends come and go, stop and start, die, hang, and come back with their
//! rings as they were. One front-end's troubles end at its port.

use std::io;
use std::os::unix::net::UnixListener;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use base::limits::DISCARD_MILLIS;
use testkit::SOON;
use testkit::frontend::{Acks, Error, Frontend, message, req};
use testkit::net::{Job, Net, Sizes};
use testkit::proc::{Daemon, Dir, wait_for};
use testkit::rx::RxConfig;
use testkit::sys::EventFd;
use testkit::traffic::To;
use testkit::vm::{Vm, VmConfig};

/// A half-sent message times out after this.
const HALF_LIMIT: Duration = Duration::from_secs(5);

fn attach(d: &Daemon, port: usize) -> Vm {
    Vm::connect(&d.socket(port), VmConfig::new(port as u8))
}

/// 60 bytes from one guest to another, and proof that they arrive.
fn exchange(from: &mut Vm, to: &mut Vm) {
    let frame = [&to.mac()[..], &from.mac(), &[0x88, 0xb5], &[3; 46]].concat();
    assert!(from.tx[0].send(&frame));
    expect_frame(to, &frame);
    from.tx[0].drain(SOON);
}

fn expect_frame(to: &mut Vm, frame: &[u8]) {
    let mut found = false;
    while !found {
        assert!(to.rx[0].wait(SOON), "guest {} got nothing", to.cfg.id);
        to.rx[0].recv(1, |_, f| found = f == frame);
    }
}

/// One more connect and disconnect leaves nothing behind, clean or not.
#[test]
fn a_hundred_front_ends_in_turn() {
    let d = Daemon::with(2, &[]);
    let mut peer = attach(&d, 1);
    let mut base = None;
    for i in 0..100 {
        let mut vm = attach(&d, 0);
        exchange(&mut vm, &mut peer);
        exchange(&mut peer, &mut vm);
        match i % 3 {
            // QEMU's way, then a crash after, then in the middle of, the set-up.
            0 => vm.stop(),
            1 => {}
            _ => {
                drop(vm);
                let mut fe = Frontend::connect(&d.socket(0), SOON).expect("connect");
                let guest = testkit::vm::Guest::new(VmConfig::new(0));
                guest.negotiate(&mut fe).expect("negotiate");
                fe.send_raw(&message(req::SET_VRING_CALL, 1, &[0; 8])[..10], &[]).expect("send");
            }
        }
        if i == 11 {
            base = Some(d.settled_usage());
        }
    }
    let base = base.expect("taken in round 11");
    let same = || {
        let u = d.usage();
        (u.fds, u.threads) == (base.fds, base.threads) && u.mappings <= base.mappings + 4
    };
    // Like round 11, the last one ended with nobody connected to port 0.
    assert!(wait_for(SOON, same), "{:?} after 100 cycles, {base:?} after 11", d.usage());
    drop(peer);
    d.stop();
}

/// A second front-end waits in the queue and is served when the first one left.
#[test]
fn the_next_front_end_is_taken_at_once() {
    let d = Daemon::with(2, &[]);
    let mut peer = attach(&d, 1);
    let mut times = Vec::new();
    for _ in 0..11 {
        let first = attach(&d, 0);
        let mut second = Frontend::connect(&d.socket(0), SOON).expect("queued");
        second.send(req::GET_FEATURES, 1, &[], &[]).expect("sent");
        let start = Instant::now();
        drop(first);
        second.reply(req::GET_FEATURES).expect("served");
        times.push(start.elapsed());
        let mut vm = Vm::attach(second, VmConfig::new(0));
        exchange(&mut vm, &mut peer);
    }
    times.sort();
    // The median, because the machine may be busy.
    assert!(times[5] < Duration::from_millis(100), "port free after {times:?}");
    drop(peer);
    d.stop();
}

/// `mode=client`: the daemon connects, and connects again when the front-end comes back. It waits
/// longer and longer between tries and does not spin.
#[test]
fn client_mode_reconnects() {
    let dir = Dir::new();
    let path = dir.path().join("vm");
    let listener = UnixListener::bind(&path).expect("listen");
    let d =
        Daemon::with_ports(&[""], &["--port", &format!("c,socket={},mode=client", path.display())]);
    let mut peer = attach(&d, 0);
    for _ in 0..5 {
        let fe = Frontend::accept(&listener, SOON).expect("daemon connects");
        let mut vm = Vm::attach(fe, VmConfig::new(1));
        exchange(&mut vm, &mut peer);
        exchange(&mut peer, &mut vm);
    }
    // Gone for a while: the daemon backs off, and neither spins nor gives up.
    drop(listener);
    std::fs::remove_file(&path).expect("remove");
    let before = d.cpu_ticks();
    std::thread::sleep(Duration::from_secs(2));
    let ticks = d.cpu_ticks() - before;
    assert!(ticks <= 4, "{ticks} ticks of CPU in 2 s of back-off");
    let listener = UnixListener::bind(&path).expect("listen again");
    let fe = Frontend::accept(&listener, Duration::from_secs(12)).expect("daemon comes back");
    let mut vm = Vm::attach(fe, VmConfig::new(1));
    exchange(&mut vm, &mut peer);
    drop((vm, peer));
    d.stop();
}

/// Part of a message, then silence: closed within 5 s, and nobody else waits meanwhile.
#[test]
fn half_a_message_times_out() {
    let d = Daemon::with(4, &[]);
    let whole = message(req::SET_VRING_NUM, 1, &[0; 8]);
    let fd = EventFd::new();
    let mut half: Vec<Frontend> =
        (0..3).map(|i| Frontend::connect(&d.socket(i), SOON).expect("connect")).collect();
    half[0].send_raw(&whole[..5], &[]).expect("part of the header");
    half[1].send_raw(&whole[..12], &[fd.raw()]).expect("header without a body");
    half[2].send_raw(&whole[..19], &[]).expect("all but one byte");
    let start = Instant::now();
    let mut times = [0; 21].map(|_| {
        let asked = Instant::now();
        let mut other = Frontend::connect(&d.socket(3), SOON).expect("connect");
        other.get_features().expect("served");
        asked.elapsed()
    });
    times.sort();
    // The median, because the machine may be busy; a port held up by another waits for seconds.
    assert!(times[10] < Duration::from_millis(50), "{times:?}");
    assert!(times[20] < Duration::from_secs(1), "{times:?}");
    for fe in &mut half {
        let left = (HALF_LIMIT + Duration::from_millis(500)).saturating_sub(start.elapsed());
        assert!(fe.closed_within(left), "still open after {:?}", start.elapsed());
    }
    for i in 0..3 {
        Frontend::connect(&d.socket(i), SOON).expect("connect").get_features().expect("served");
    }
    d.stop();
}

/// A sender that is stopped and started again (link down and up) loses nothing: what its ring
/// shows is sent when it starts.
#[test]
fn a_sender_stops_and_starts() {
    for acks in [Acks::Never, Acks::Always] {
        let d = Daemon::with(2, &["--workers", "2"]);
        let mut net = Net::connect(&d, 2, |mut c| {
            c.acks = acks;
            c
        });
        for round in 0..60 {
            net.run(&[
                Job::new(0, To::Vm(1), 50, Sizes::Range(60, 1514)),
                Job::new(1, To::Vm(0), 50, Sizes::Range(60, 1514)),
            ]);
            let from = &mut net.vms[round % 2];
            from.stop();
            from.start();
        }
        net.finish();
        drop(net);
        d.stop();
    }
}

/// The same in the middle of traffic: frames are on the ring when GET_VRING_BASE comes.
#[test]
fn a_sender_stops_in_the_middle() {
    let d = Daemon::with(2, &["--workers", "2"]);
    let mut net = Net::connect(&d, 2, |c| c);
    for round in 0..200 {
        net.send_only(&Job::new(0, To::Vm(1), 1 + round % 97, Sizes::Range(60, 1514)));
        net.vms[0].stop();
        net.vms[0].start();
        net.run(&[]);
    }
    net.finish();
    drop(net);
    d.stop();
}

/// ENABLE(0) on a TX ring: what is shown goes out before the answer; later frames are discarded,
/// and only on a kick, because the memory may be part of a snapshot by then.
#[test]
fn disabling_a_sender() {
    let d = Daemon::with(2, &[]);
    let mut a = Vm::connect(&d.socket(0), VmConfig { acks: Acks::Always, ..VmConfig::new(0) });
    let mut b = attach(&d, 1);
    exchange(&mut b, &mut a);
    let frame = [&b.mac()[..], &a.mac(), &[0x88, 0xb5], &[9; 46]].concat();
    for _ in 0..5 {
        assert!(a.tx[0].queue(&frame));
    }
    a.tx[0].ring.show();
    a.fe.set_vring_enable(1, false).expect("acknowledged");
    assert_eq!(a.tx[0].reclaim(), 5, "what was shown is complete when the answer comes");
    (0..5).for_each(|_| expect_frame(&mut b, &frame));
    // Shown without a kick: nobody may touch the ring.
    assert!(a.tx[0].queue(&frame));
    a.tx[0].ring.show();
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(a.tx[0].reclaim(), 0, "a paused ring was touched without a kick");
    let wakeups = || d.counters().worker(0, "wakeups");
    let before = wakeups();
    a.tx[0].ring.kick.write(1);
    a.tx[0].drain(SOON);
    // By the kick and at the end of that time, not each millisecond.
    let woken = wakeups() - before;
    assert!(woken <= 20.0, "{woken} wake-ups in {DISCARD_MILLIS} ms");
    std::thread::sleep(Duration::from_millis(30));
    assert!(!b.rx[0].ring.has_used(), "a disabled ring's frame was forwarded");
    // Kicked only when asked for: each discard must ask for the next kick.
    for _ in 0..5 {
        a.tx[0].send_waiting(&frame, SOON);
        a.tx[0].drain(SOON);
    }
    a.fe.set_vring_enable(1, true).expect("acknowledged");
    exchange(&mut a, &mut b);
    drop((a, b));
    d.stop();
}

/// cloud-hypervisor lets a paused guest run on and enables its rings a little later: what the guest
/// sends in between is neither lost nor touched before.
#[test]
fn what_a_resumed_guest_sends_before_its_rings_are_enabled() {
    let d = Daemon::with(2, &["--workers", "2"]);
    let mut a = Vm::connect(&d.socket(0), VmConfig { acks: Acks::Always, ..VmConfig::new(0) });
    let mut b = attach(&d, 1);
    exchange(&mut b, &mut a);
    let mut late = 0;
    for round in 0..10u8 {
        a.fe.set_vring_enable(0, false).expect("acknowledged");
        a.fe.set_vring_enable(1, false).expect("acknowledged");
        // The monitor kicks every ring when it resumes; then the virtual CPUs run.
        let kicked = Instant::now();
        a.guest.rings().for_each(|ring| ring.kick.write(1));
        let frame = [&b.mac()[..], &a.mac(), &[0x88, 0xb5], &[round; 46]].concat();
        for _ in 0..3 {
            assert!(a.tx[0].send(&frame));
        }
        std::thread::sleep(Duration::from_millis(5));
        assert!(!b.rx[0].ring.has_used(), "a disabled ring's frame was forwarded");
        a.fe.set_vring_enable(0, true).expect("acknowledged");
        a.fe.set_vring_enable(1, true).expect("acknowledged");
        if kicked.elapsed() < Duration::from_millis(DISCARD_MILLIS) {
            (0..3).for_each(|_| expect_frame(&mut b, &frame));
        } else {
            // On a machine that stood still meanwhile they may be gone.
            late += 1;
            std::thread::sleep(Duration::from_millis(30));
            b.rx[0].recv(3, |_, got| assert_eq!(got, frame));
        }
        a.tx[0].drain(SOON);
    }
    assert!(late < 10, "never enabled in time");
    assert!(d.counters().sum(None, "in", "drop.disabled") <= 3 * late);
    drop((a, b));
    d.stop();
}

/// ENABLE(0) on an RX ring: nothing is received until it is enabled again.
#[test]
fn disabling_a_receiver() {
    let d = Daemon::with(2, &[]);
    let mut a = attach(&d, 0);
    let mut b = Vm::connect(&d.socket(1), VmConfig { acks: Acks::Always, ..VmConfig::new(1) });
    exchange(&mut b, &mut a);
    exchange(&mut a, &mut b);
    b.fe.set_vring_enable(0, false).expect("acknowledged");
    let frame = [&b.mac()[..], &a.mac(), &[0x88, 0xb5], &[5; 46]].concat();
    assert!(a.tx[0].send(&frame));
    a.tx[0].drain(SOON);
    std::thread::sleep(Duration::from_millis(30));
    assert!(!b.rx[0].ring.has_used(), "received on a disabled ring");
    b.fe.set_vring_enable(0, true).expect("acknowledged");
    exchange(&mut a, &mut b);
    drop((a, b));
    d.stop();
}

/// A second SET_VRING_KICK on a live ring: the new one is heard, the old one is let go. A thousand
/// times.
#[test]
fn kick_is_swapped_on_a_live_ring() {
    let d = Daemon::with(2, &[]);
    let (mut a, mut b) = (attach(&d, 0), attach(&d, 1));
    exchange(&mut b, &mut a);
    let fds = d.settled_usage().fds;
    for i in 0..1000 {
        let old = std::mem::replace(&mut a.guest.tx[0].ring.kick, EventFd::new());
        let new = a.guest.tx[0].ring.kick.raw();
        a.fe.set_vring_fd(req::SET_VRING_KICK, 1, Some(new)).expect("set");
        if i % 2 == 0 {
            a.settle();
        }
        old.write(1);
        drop(old);
        exchange(&mut a, &mut b);
    }
    // The last one is let go after the new one was heard.
    a.settle();
    assert_eq!(d.usage().fds, fds);
    drop((a, b));
    d.stop();
}

/// Likewise a call fd: signals go to the new one, and a wake-up between the two is not lost. A
/// thousand times.
#[test]
fn call_is_swapped_on_a_live_ring() {
    let d = Daemon::with(2, &[]);
    let (mut a, mut b) = (attach(&d, 0), attach(&d, 1));
    exchange(&mut b, &mut a);
    let fds = d.settled_usage().fds;
    for _ in 0..1000 {
        b.guest.rx[0].ring.call = EventFd::new();
        let new = b.guest.rx[0].ring.call.raw();
        let frame = [&b.mac()[..], &a.mac(), &[0x88, 0xb5], &[1; 46]].concat();
        assert!(a.tx[0].send(&frame));
        b.fe.set_vring_fd(req::SET_VRING_CALL, 0, Some(new)).expect("set");
        expect_frame(&mut b, &frame);
    }
    b.settle();
    assert_eq!(d.usage().fds, fds);
    drop((a, b));
    d.stop();
}

/// A front-end that reads its own kick fd empty: EAGAIN is nothing, the worker goes on.
#[test]
fn a_drained_kick_is_harmless() {
    let d = Daemon::with(2, &[]);
    let (mut a, mut b) = (attach(&d, 0), attach(&d, 1));
    exchange(&mut b, &mut a);
    for _ in 0..100_000 {
        a.tx[0].ring.kick.write(1);
        a.tx[0].ring.kick.take();
    }
    exchange(&mut a, &mut b);
    drop((a, b));
    d.stop();
}

/// A front-end whose memory is private fails in no visible way: the rings that the daemon reads
/// stay empty. Drivers kick their receive queue once it has buffers, so there a kick of an empty
/// ring tells it; an empty transmit queue is kicked by DPDK whenever it starts a port. The log
/// names such a port once.
#[test]
fn private_memory_is_named_in_the_log() {
    let d = Daemon::with(3, &[]);
    let shared = attach(&d, 0);
    let said = || d.log().matches("available ring never moves").count();
    shared.tx[0].ring.kick.write(1);
    let kicked = wait_for(SOON, || d.counters().sum(None, "in", "kicks") == 1);
    assert!(kicked, "a kick that was not counted");
    assert_eq!(said(), 0, "{}", d.log());
    // cloud-hypervisor kicks every queue of a guest that it restored, buffers or not.
    let mut restored = shared;
    restored.guest.rx[0].hold = true;
    let frame = [&restored.mac()[..], &[2, 0, 0, 0, 0, 9, 0x88, 0xb5], &[3; 46]].concat();
    let mut sender = attach(&d, 1);
    (0..256).for_each(|_| sender.tx[0].send_waiting(&frame, SOON));
    assert_eq!(restored.guest.rx[0].take(256, SOON).len(), 256, "all its buffers");
    restored.stop();
    restored.start();
    restored.rx[0].ring.kick.write(1);
    let kicked = wait_for(SOON, || d.counters().sum(None, "out", "kicks") == 1);
    assert!(kicked, "a kick that was not counted");
    assert_eq!(said(), 0, "{}", d.log());
    drop(sender);
    // As the daemon sees a guest in other memory: no buffer, and a kick. On a port with lines left.
    let private = VmConfig { rx: RxConfig::plain(0, 1526), ..VmConfig::new(2) };
    let private = Vm::connect(&d.socket(2), private);
    for kicks in 2..=4 {
        private.rx[0].ring.kick.write(1);
        let kicked = wait_for(SOON, || d.counters().sum(None, "out", "kicks") == kicks);
        assert!(kicked, "a kick that was not counted");
        assert!(wait_for(SOON, || said() > 0), "{}", d.log());
        assert_eq!(said(), 1, "{}", d.log());
    }
    drop((restored, private));
    d.stop();
}

/// A guest that only receives stops and starts its RX ring alone; it never kicks.
#[test]
fn rx_only_restart() {
    let d = Daemon::with(2, &[]);
    let (mut a, mut b) = (attach(&d, 0), attach(&d, 1));
    exchange(&mut b, &mut a);
    for _ in 0..200 {
        let base = b.fe.get_vring_base(0).expect("base");
        assert_eq!(base, b.rx[0].ring.used_idx());
        b.guest.start_ring(&mut b.fe, &b.guest.rx[0].ring).expect("start");
        b.settle();
        exchange(&mut a, &mut b);
    }
    drop((a, b));
    d.stop();
}

/// A daemon killed between publishing and signalling leaves a guest asleep at an event index that
/// is passed already. So a ring's first publish after its start signals whatever that index says.
#[test]
fn the_first_publish_signals() {
    let d = Daemon::with(2, &[]);
    let (mut a, mut b) = (attach(&d, 0), attach(&d, 1));
    exchange(&mut b, &mut a);
    let frame = [&b.mac()[..], &a.mac(), &[0x88, 0xb5], &[3; 46]].concat();
    for _ in 0..20 {
        exchange(&mut a, &mut b);
        b.fe.get_vring_base(0).expect("base");
        let ring = &b.guest.rx[0].ring;
        // The guest asked to be woken at the element before the one that comes next.
        let passed = ring.used_idx().wrapping_sub(1);
        ring.avail.index(4 + 2 * ring.size as usize).store(passed, Ordering::SeqCst);
        b.guest.start_ring(&mut b.fe, ring).expect("start");
        b.settle();
        // What the new call fd brought along is not what is asked for here.
        b.rx[0].ring.call.take();
        assert!(a.tx[0].send(&frame));
        assert!(b.rx[0].ring.call.wait(SOON), "the guest sleeps on");
        expect_frame(&mut b, &frame);
        // From the second on the index counts: one that is not passed means no call.
        let ring = &b.guest.rx[0].ring;
        let ahead = ring.used_idx().wrapping_add(1000);
        ring.avail.index(4 + 2 * ring.size as usize).store(ahead, Ordering::SeqCst);
        ring.call.take();
        assert!(a.tx[0].send(&frame));
        assert!(!b.rx[0].ring.call.wait(Duration::from_millis(20)), "call not asked for");
        expect_frame(&mut b, &frame);
    }
    drop((a, b));
    d.stop();
}

/// A guest reboot as QEMU 10 shows it: stop, empty rings at the same place, start.
#[test]
fn guest_reboots() {
    let d = Daemon::with(2, &[]);
    let (mut a, mut b) = (attach(&d, 0), attach(&d, 1));
    for _ in 0..50 {
        exchange(&mut b, &mut a);
        exchange(&mut a, &mut b);
        a.stop();
        a.reset_rings();
        let Vm { fe, guest } = &mut a;
        guest.rings().try_for_each(|r| guest.start_ring(fe, r)).expect("start");
        a.settle();
    }
    drop((a, b));
    d.stop();
}

/// Memory hotplug on running rings: a region comes and goes, traffic goes on.
#[test]
fn memory_comes_and_goes() {
    let d = Daemon::with(2, &[]);
    let (mut a, mut b) = (attach(&d, 0), attach(&d, 1));
    exchange(&mut b, &mut a);
    let usage = d.settled_usage();
    let extra = testkit::mem::RegionSpec::new(64 << 30, 2 << 20);
    for _ in 0..100 {
        let mem = testkit::mem::GuestMem::new(&[extra]);
        let fd = mem.table()[0].1;
        a.fe.add_mem_reg(&extra, fd).expect("add");
        exchange(&mut a, &mut b);
        a.fe.rem_mem_reg(&extra).expect("remove");
        exchange(&mut b, &mut a);
    }
    a.settle();
    let same = || (d.usage().fds, d.usage().mappings) == (usage.fds, usage.mappings);
    assert!(wait_for(SOON, same), "{:?}, before {usage:?}", d.usage());
    drop((a, b));
    d.stop();
}

/// DPDK's virtio-user whose application takes more memory, or gives some back: all rings disabled,
/// a whole new table, all enabled, and no addresses sent again. What was sent before arrives, once.
#[test]
fn a_table_is_replaced_between_disable_and_enable() {
    let d = Daemon::with(2, &[]);
    let (mut a, mut b) = (attach(&d, 0), attach(&d, 1));
    exchange(&mut b, &mut a);
    let more: Vec<_> = (1..=3u64)
        .map(|i| testkit::mem::GuestMem::new(&[testkit::mem::RegionSpec::new(i << 36, 2 << 20)]))
        .collect();
    for round in 0..50u8 {
        let frame = |n: u8| [&b.mac()[..], &a.mac(), &[0x88, 0xb5, round, n], &[7; 44]].concat();
        let frames: Vec<_> = (0..20).map(frame).collect();
        frames.iter().for_each(|frame| assert!(a.tx[0].send(frame)));
        let Vm { fe, guest } = &mut a;
        for ring in 0..2 {
            fe.set_vring_enable(ring, false).expect("disable");
        }
        let mut table = guest.mem.table();
        table.extend(more.iter().take(usize::from(round % 4)).map(|mem| mem.table()[0]));
        // The order says nothing.
        let len = table.len();
        table.rotate_left(usize::from(round) % len);
        fe.set_mem_table(&table).expect("table");
        for ring in 0..2 {
            fe.set_vring_enable(ring, true).expect("enable");
        }
        a.settle();
        let came: Vec<_> = b.rx[0].take(20, SOON).into_iter().map(|(_, frame)| frame).collect();
        assert!(came == frames, "round {round}: {} came", came.len());
        a.tx[0].drain(SOON);
        exchange(&mut b, &mut a);
    }
    drop((a, b));
    d.stop();
}

/// A socket in use by a live daemon is an error for the second one, not a theft.
#[test]
fn a_live_socket_is_not_taken() {
    let d = Daemon::with(1, &[]);
    let port = format!("p0,socket={}", d.socket(0).display());
    let mut second = Daemon::spawn(Dir::new(), &["--port".into(), port]);
    let status = second.exit_status(SOON);
    assert!(!status.success(), "two daemons on one socket\n{}", second.log());
    assert!(second.log().contains("s0"), "the error names the socket: {}", second.log());
    let mut fe = Frontend::connect(&d.socket(0), SOON).expect("still there");
    fe.get_features().expect("still served");
    d.stop();
}

/// After SIGTERM the sockets are gone and connected front-ends see the end. The exit status is 0,
/// within a second.
#[test]
fn stopping_closes_everything() {
    let d = Daemon::with(2, &[]);
    let (mut a, mut b) = (attach(&d, 0), attach(&d, 1));
    exchange(&mut a, &mut b);
    let path = d.socket(0);
    d.stop();
    assert!(a.fe.closed_within(SOON) && b.fe.closed_within(SOON));
    let gone = std::os::unix::net::UnixStream::connect(&path).expect_err("no socket");
    assert_eq!(gone.kind(), io::ErrorKind::NotFound);
    assert!(matches!(a.fe.get_features(), Err(Error::Closed)));
    // The rings are consistent: every buffer taken is back.
    assert_eq!(a.tx[0].ring.in_flight(), a.tx[0].ring.used_ready() as usize);
}
