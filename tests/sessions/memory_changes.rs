//! Guest memory that changes under running rings: taken away and given again, whole, in parts or
//! larger; rings that move, and what a front-end may ask of a ring whose memory is away.

use std::time::Duration;

use testkit::SOON;
use testkit::frontend::{Acks, Error, req};
use testkit::mem::RegionSpec;
use testkit::proc::{Daemon, wait_for};
use testkit::ring::Ring;
use testkit::sys::EventFd;
use testkit::vm::{Vm, VmConfig};

/// Long enough for a frame to come that must not.
const WHILE: Duration = Duration::from_millis(20);

/// Where the rings are: the first of a guest's two regions.
const RINGS: usize = 0;

fn attach(d: &Daemon, port: usize, change: impl FnOnce(&mut VmConfig)) -> Vm {
    let mut cfg = VmConfig::new(port as u8);
    change(&mut cfg);
    Vm::connect(&d.socket(port), cfg)
}

/// A guest that is left alone and one whose memory changes, which know each other's address.
fn pair(workers: &str, change: impl FnOnce(&mut VmConfig)) -> (Daemon, Vm, Vm) {
    let d = Daemon::with(2, &["--workers", workers]);
    let mut a = attach(&d, 0, |_| ());
    let mut b = attach(&d, 1, |cfg| {
        cfg.acks = Acks::Always;
        change(cfg);
    });
    both_ways(&mut b, &mut a);
    (d, a, b)
}

fn frame(from: &Vm, to: &Vm, number: u8) -> Vec<u8> {
    [&to.mac()[..], &from.mac(), &[0x88, 0xb5], &[number; 46]].concat()
}

/// Both ways later, this one now.
fn exchange(from: &mut Vm, to: &mut Vm) {
    let frame = frame(from, to, 3);
    assert!(from.tx[0].send(&frame));
    expect(to, &[frame]);
    from.tx[0].drain(SOON);
}

fn both_ways(first: &mut Vm, second: &mut Vm) {
    exchange(first, second);
    exchange(second, first);
}

fn finish(d: Daemon, vms: [Vm; 2]) {
    drop(vms);
    d.stop();
}

/// These frames and no other.
fn expect(to: &mut Vm, frames: &[Vec<u8>]) {
    let came: Vec<_> = to.rx[0].take(frames.len(), SOON).into_iter().map(|(_, f)| f).collect();
    assert_eq!(came.len(), frames.len(), "guest {} got these", to.cfg.id);
    assert!(came == frames, "other frames, or in another order");
}

fn out(d: &Daemon, key: &str) -> u64 {
    let counters = d.counters();
    counters.sum(None, "out", key) + counters.sum(None, "", key)
}

/// The region of the rings as one piece, and as QEMU splits it: two pieces of the same file.
fn shapes(vm: &Vm) -> [Vec<RegionSpec>; 2] {
    let whole = vm.mem.table()[RINGS].0;
    let len = whole.len / 2;
    let upper =
        RegionSpec { gpa: whole.gpa + len, len, uva: whole.uva + len, offset: whole.offset + len };
    [vec![whole], vec![RegionSpec { len, ..whole }, upper]]
}

/// Takes the pieces away.
fn take(vm: &mut Vm, pieces: &[RegionSpec]) {
    if vm.cfg.mem_slots {
        pieces.iter().for_each(|piece| vm.fe.rem_mem_reg(piece).expect("REM_MEM_REG"));
    } else {
        let table = vm.guest.mem.table();
        vm.fe.set_mem_table(&table[RINGS + 1..]).expect("SET_MEM_TABLE");
    }
}

/// Gives the region of the rings again, in these pieces.
fn give(vm: &mut Vm, pieces: &[RegionSpec]) {
    let table = vm.guest.mem.table();
    let fd = table[RINGS].1;
    if vm.cfg.mem_slots {
        pieces.iter().for_each(|piece| vm.fe.add_mem_reg(piece, fd).expect("ADD_MEM_REG"));
    } else {
        let pieces = pieces.iter().map(|piece| (*piece, fd));
        let table: Vec<_> = pieces.chain(table[RINGS + 1..].iter().copied()).collect();
        vm.fe.set_mem_table(&table).expect("SET_MEM_TABLE");
    }
}

fn take_all(vm: &mut Vm) {
    let [whole, _] = shapes(vm);
    take(vm, &whole);
}

fn give_all(vm: &mut Vm) {
    let [whole, _] = shapes(vm);
    give(vm, &whole);
}

/// A region is taken away and given again in another shape, with frames on their way in both
/// directions: what its guest sends meanwhile goes out afterwards, and what is sent to it is a
/// counted drop. It comes back whole or in two, by slots or by table.
#[test]
fn rings_go_on_when_their_memory_is_back() {
    for (mem_slots, workers) in [(true, "1"), (true, "2"), (false, "1")] {
        let (d, mut a, mut b) = pair(workers, |cfg| cfg.mem_slots = mem_slots);
        let shapes = shapes(&b);
        let dropped = out(&d, "drop.port_down");
        for round in 0..100 {
            let (old, new) = (&shapes[round % 2], &shapes[(round + 1) % 2]);
            let frames: Vec<_> = (0..6).map(|n| frame(&b, &a, n)).collect();
            frames[..3].iter().for_each(|frame| assert!(b.tx[0].send(frame)));
            take(&mut b, old);
            let stood = b.tx[0].ring.used_idx();
            frames[3..].iter().for_each(|frame| assert!(b.tx[0].send(frame)));
            // Kicked whether it was asked for or not.
            b.tx[0].ring.kick.write(1);
            let lost = frame(&a, &b, 9);
            assert!(a.tx[0].send(&lost));
            a.tx[0].drain(SOON);
            assert_eq!(b.tx[0].ring.used_idx(), stood, "served without its memory");
            assert!(!b.rx[0].ring.has_used(), "written to memory that was taken away");
            give(&mut b, new);
            expect(&mut a, &frames);
            b.tx[0].drain(SOON);
            both_ways(&mut a, &mut b);
        }
        assert_eq!(out(&d, "drop.port_down") - dropped, 100, "frames that met the hole");
        assert_eq!(d.counters().drops(None, "in"), 0);
        d.counters().balance();
        assert!(b.no_errors(), "{}", d.log());
        finish(d, [a, b]);
    }
}

/// GET_VRING_BASE finds a ring without memory where it stood; the ring starts again when there is
/// memory, and what was shown meanwhile is sent.
#[test]
fn a_ring_without_memory_stops_where_it_stood() {
    let (d, mut a, mut b) = pair("1", |_| ());
    for round in 0..20u8 {
        take_all(&mut b);
        b.stop();
        let late = frame(&b, &a, round);
        assert!(b.tx[0].send(&late));
        if round % 2 == 0 {
            give_all(&mut b);
            b.start();
        } else {
            // The addresses are refused for now, and found with the region.
            b.fe.acks = Acks::Never;
            b.start();
            b.fe.acks = Acks::Always;
            give_all(&mut b);
        }
        expect(&mut a, &[late]);
        b.tx[0].drain(SOON);
        exchange(&mut a, &mut b);
    }
    finish(d, [a, b]);
}

/// What a front-end says of a ring whose memory is away holds when it is back: new descriptors, and
/// whether it is enabled. A ring of another size it is not.
#[test]
fn a_ring_without_memory_takes_requests() {
    let (d, mut a, mut b) = pair("1", |_| ());
    for round in 0..10u8 {
        take_all(&mut b);
        for index in 0..2 {
            b.fe.set_vring_num(index, 256).expect("the size it has");
            assert!(matches!(b.fe.set_vring_num(index, 128), Err(Error::Nack(_))));
            let guest = &mut b.guest;
            let ring = if index == 0 { &mut guest.rx[0].ring } else { &mut guest.tx[0].ring };
            (ring.kick, ring.call) = (EventFd::new(), EventFd::new());
            let (kick, call) = (ring.kick.raw(), ring.call.raw());
            let addr = b.guest.rings().nth(index as usize).expect("a ring").addr(&b.guest.mem, 0);
            b.fe.set_vring_addr(&addr).expect("the address it has");
            b.fe.set_vring_fd(req::SET_VRING_KICK, index, Some(kick)).expect("kick");
            b.fe.set_vring_fd(req::SET_VRING_CALL, index, Some(call)).expect("call");
            b.fe.set_vring_enable(index, false).expect("disable");
        }
        let early = frame(&b, &a, round);
        b.tx[0].queue(&early);
        b.tx[0].ring.show();
        give_all(&mut b);
        let lost = frame(&a, &b, 9);
        assert!(a.tx[0].send(&lost));
        a.tx[0].drain(SOON);
        std::thread::sleep(WHILE);
        assert!(!a.rx[0].ring.has_used() && !b.rx[0].ring.has_used(), "a ring that is disabled");
        for index in 0..2 {
            b.fe.set_vring_enable(index, true).expect("enable");
        }
        expect(&mut a, &[early]);
        b.tx[0].drain(SOON);
        both_ways(&mut a, &mut b);
    }
    finish(d, [a, b]);
}

/// Enabled while its memory is away, as good as afterwards.
#[test]
fn a_ring_without_memory_is_enabled() {
    let (d, mut a, mut b) = pair("1", |_| ());
    (0..2).for_each(|index| b.fe.set_vring_enable(index, false).expect("disable"));
    take_all(&mut b);
    (0..2).for_each(|index| b.fe.set_vring_enable(index, true).expect("enable"));
    give_all(&mut b);
    both_ways(&mut a, &mut b);
    finish(d, [a, b]);
}

/// A kick of a disabled ring whose memory is away is not forgotten: its frames come back,
/// discarded.
#[test]
fn a_disabled_ring_without_memory_remembers_its_kick() {
    let (d, a, mut b) = pair("1", |_| ());
    b.fe.set_vring_enable(1, false).expect("disable");
    take_all(&mut b);
    let lost = frame(&b, &a, 1);
    assert!(b.tx[0].send(&lost));
    let kicks = || d.counters().sum(None, "in", "kicks");
    let kicked = kicks();
    b.tx[0].ring.kick.write(1);
    assert!(wait_for(SOON, || kicks() > kicked), "the kick is not heard");
    give_all(&mut b);
    b.tx[0].drain(SOON);
    assert_eq!(d.counters().sum(None, "in", "drop.disabled"), 1);
    finish(d, [a, b]);
}

/// A front-end that leaves while its memory is away leaves nothing behind, and the next one is
/// served.
#[test]
fn a_front_end_leaves_while_its_memory_is_away() {
    let (d, mut a, mut b) = pair("1", |_| ());
    let mut usage = None;
    for round in 0..20 {
        if round % 2 == 0 {
            take_all(&mut b)
        } else {
            take(&mut b, &[])
        }
        b.disconnect();
        let path = d.socket(1);
        b.reconnect(&path);
        both_ways(&mut b, &mut a);
        if round == 3 {
            usage = Some(d.settled_usage());
        }
    }
    let before = usage.expect("taken in round 3");
    let same = || (d.usage().fds, d.usage().mappings) == (before.fds, before.mappings);
    assert!(wait_for(SOON, same), "{:?}, before {before:?}", d.usage());
    finish(d, [a, b]);
}

/// The rings of a guest at another place of its memory, empty, as its driver makes them after a
/// reset.
fn lay_out_anew(vm: &mut Vm) {
    let (mem, size) = (vm.guest.mem.clone(), vm.cfg.size);
    for ring in [&mut vm.guest.rx[0].ring, &mut vm.guest.tx[0].ring] {
        let fresh = Ring::new(&mem, RINGS, ring.index, size, ring.mode);
        (ring.desc, ring.avail, ring.used) = (fresh.desc, fresh.avail, fresh.used);
    }
    vm.guest.reset_rings();
}

/// A ring that starts again elsewhere, its kick said before its address: nobody looks at the old
/// place any more.
#[test]
fn a_kick_before_the_address() {
    let (d, mut a, mut b) = pair("1", |_| ());
    for _ in 0..20 {
        (0..5).for_each(|_| exchange(&mut a, &mut b));
        exchange(&mut b, &mut a);
        b.stop();
        // What the old place holds is the guest's to use.
        let places: Vec<_> = b.rings().map(|ring| ring.used.clone()).collect();
        lay_out_anew(&mut b);
        places.iter().for_each(|used| used.write(0, &[0xa5; 64]));
        for index in 0..2usize {
            let ring = b.guest.rings().nth(index).expect("a ring");
            let (kick, addr) = (ring.kick.raw(), ring.addr(&b.guest.mem, 0));
            b.fe.set_vring_fd(req::SET_VRING_KICK, index as u32, Some(kick)).expect("kick");
            std::thread::sleep(Duration::from_millis(2));
            b.fe.set_vring_addr(&addr).expect("address");
        }
        both_ways(&mut a, &mut b);
        let untouched = |used: &testkit::mem::Span| used.read(0, 64) == [0xa5; 64];
        assert!(places.iter().all(untouched), "written where the ring was before");
    }
    finish(d, [a, b]);
}

/// Rings move while they run, with memory or without: their positions are those of the new place.
#[test]
fn a_running_ring_is_told_another_place() {
    for away in [false, true] {
        let (d, mut a, mut b) = pair("1", |_| ());
        for _ in 0..20 {
            (0..5).for_each(|_| exchange(&mut a, &mut b));
            exchange(&mut b, &mut a);
            // Its buffers are the driver's again before it forgets them.
            if away {
                take_all(&mut b);
            }
            lay_out_anew(&mut b);
            for index in 0..2 {
                let addr = b.guest.rings().nth(index).expect("a ring").addr(&b.guest.mem, 0);
                b.fe.set_vring_addr(&addr).expect("address");
            }
            if away {
                give_all(&mut b);
            }
            both_ways(&mut a, &mut b);
        }
        finish(d, [a, b]);
    }
}

/// An address in no region is refused, and the ring stays where it was, through changes of memory
/// too.
#[test]
fn a_refused_address_changes_nothing() {
    let (d, mut a, mut b) = pair("1", |_| ());
    let extra = RegionSpec::new(64 << 30, 2 << 20);
    let memory = testkit::mem::GuestMem::new(&[extra]);
    for _ in 0..5 {
        for index in 0..2 {
            let mut addr = b.guest.rings().nth(index).expect("a ring").addr(&b.guest.mem, 0);
            addr.used = 0xdead_0000;
            assert!(matches!(b.fe.set_vring_addr(&addr), Err(Error::Nack(_))), "in no region");
        }
        exchange(&mut a, &mut b);
        b.fe.add_mem_reg(&extra, memory.table()[0].1).expect("add");
        both_ways(&mut a, &mut b);
        b.fe.rem_mem_reg(&extra).expect("remove");
        both_ways(&mut a, &mut b);
    }
    finish(d, [a, b]);
}

/// SET_VRING_KICK without a descriptor means that the ring is to be polled, when it runs already
/// too, until another descriptor comes.
#[test]
fn a_running_ring_is_polled_from_now_on() {
    let (d, mut a, mut b) = pair("1", |_| ());
    for round in 0..5u8 {
        b.fe.set_vring_fd(req::SET_VRING_KICK, 1, None).expect("poll");
        for number in 0..10 {
            // The worker has had time to go to sleep.
            std::thread::sleep(Duration::from_millis(5));
            let silent = frame(&b, &a, number);
            assert!(b.tx[0].queue(&silent));
            b.tx[0].ring.show();
            expect(&mut a, &[silent]);
            b.tx[0].drain(SOON);
        }
        let kick = b.tx[0].ring.kick.raw();
        b.fe.set_vring_fd(req::SET_VRING_KICK, 1, Some(kick)).expect("kick");
        exchange(&mut b, &mut a);
        std::thread::sleep(Duration::from_millis(20));
        let spent = d.cpu_ticks();
        std::thread::sleep(Duration::from_millis(300));
        let spent = d.cpu_ticks() - spent;
        assert!(spent < 15, "round {round}: {spent} ticks of CPU in 0.3 s: it is polled still");
    }
    finish(d, [a, b]);
}

/// A polled receive ring gets frames when it has buffers, whenever they come.
#[test]
fn a_polled_receive_ring_that_was_empty() {
    let (d, mut a, mut b) = pair("1", |cfg| cfg.rx.buffers = 3);
    b.guest.rx[0].hold = true;
    for _ in 0..3 {
        exchange(&mut a, &mut b);
    }
    assert_eq!(b.rx[0].ring.in_flight(), 0);
    b.stop();
    b.guest.rx[0].ring.kick = EventFd::new();
    let lost = frame(&a, &b, 1);
    let Vm { fe, guest } = &mut b;
    guest.rings().try_for_each(|ring| guest.start_ring(fe, ring)).expect("start");
    b.fe.set_vring_fd(req::SET_VRING_KICK, 0, None).expect("poll");
    // Looked at for the last time, if it were not.
    std::thread::sleep(WHILE);
    b.guest.rx[0].hold = false;
    b.guest.rx[0].post(usize::MAX);
    b.guest.rx[0].ring.show();
    assert!(a.tx[0].send(&lost));
    expect(&mut b, &[lost]);
    finish(d, [a, b]);
}
