//! Guests that begin more connections than there is room for, from within and from without: a
//! bystander with a filter keeps its connections, begins others, and is served as beside guests
//! that send as much in one connection each.

use std::fs;
use std::time::Duration;

use crate::alone;
use testkit::SOON;
use testkit::hostile::{raw_avail, raw_desc, refill, restart_with};
use testkit::neighbours::{Lab, While};
use testkit::proc::Dir;
use testkit::ring::Seg;
use testkit::shares::{SIZE, receive};
use testkit::vm::Vm;

/// Bytes of a frame, with the virtio-net header, and of the room it has.
const LEN: usize = 12 + 60;
const ROOM: usize = 128;
/// How often what came back is offered again.
const PAUSE: Duration = Duration::from_micros(150);
/// Connections of the quiet guest, and as many that it begins beside the attack.
const QUIET: u16 = 120;

const FILTERS: &str = "\
[[filter]]
name = \"quiet\"
default-in = \"drop\"
rules = [\"in accept udp to port 5000\"]

[[filter]]
name = \"open\"
";

/// What a packet is: its protocol, and the flags of TCP.
pub(super) type Kind = (u8, u8);

const SYN: Kind = (6, 0x02);
const ACK: Kind = (6, 0x10);
pub(super) const DATAGRAM: Kind = (17, 0);

/// A packet between these ends.
fn packet(
    [to, from]: [[u8; 6]; 2],
    (protocol, flags): Kind,
    addresses: [u8; 2],
    ports: [u16; 2],
) -> Vec<u8> {
    let ip = [0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, protocol, 0, 0];
    let ends = [10, 8, 0, addresses[0], 10, 8, 0, addresses[1]];
    let [source, target] = ports.map(u16::to_be_bytes);
    let rest = match protocol {
        6 => [0, 0, 0, 1, 0, 0, 0, 1, 0x50, flags, 0xff, 0xff, 0, 0, 0, 0],
        _ => [0, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    };
    let mut frame = [&to[..], &from, &[8, 0], &ip, &ends, &source, &target, &rest].concat();
    frame.resize(LEN - 12, 0);
    frame
}

/// Fills a guest's ring with packets, each of a connection of its own or all of one.
pub(super) fn fill(vm: &mut Vm, to: [u8; 6], kind: Kind, has_many: bool) {
    let frames = vm.guest.mem.alloc_in(1, u64::from(SIZE) * ROOM as u64, 16);
    let (mac, id) = (vm.mac(), vm.guest.cfg.id);
    for n in 0..SIZE {
        let port = 1_024 + if has_many { n } else { 0 };
        let bytes = packet([to, mac], kind, [id, 100 + id], [port, 80]);
        frames.write(usize::from(n) * ROOM, &[&[0; 12][..], &bytes].concat());
    }
    restart_with(vm, 1, |ring| {
        for i in 0..SIZE {
            let gpa = frames.gpa() + u64::from(i) * ROOM as u64;
            raw_desc(ring, i, Seg { gpa, len: LEN as u32 }, 0, 0);
            raw_avail(ring, i, i);
        }
    });
}

/// Guests send to others without end.
pub(super) fn keep_sending<'a>(from: &'a [Vm], to: &'a [Vm]) -> impl FnMut(&While<'_>) + Send + 'a {
    move |phase: &While<'_>| {
        phase.every(PAUSE, || {
            let rings = from.iter().map(|vm| &vm.guest.tx[0].ring);
            to.iter().map(|vm| &vm.guest.rx[0].ring).chain(rings).for_each(refill);
        });
    }
}

/// A guest whose filter lets no connection in, and its peer.
struct Quiet {
    guest: Vm,
    peer: Vm,
}

impl Quiet {
    /// The guest begins connections with these ports.
    fn begin(&mut self, ports: std::ops::Range<u16>) {
        let macs = [self.peer.mac(), self.guest.mac()];
        for port in ports.clone() {
            let frame = packet(macs, ACK, [1, 2], [port, 22]);
            self.guest.tx[0].send_waiting(&frame, SOON);
        }
        let came = self.peer.rx[0].take(ports.len(), SOON);
        assert_eq!(came.len(), ports.len(), "connections that begin");
    }

    /// Each connection with these ports still has answers.
    fn goes_on(&mut self, ports: std::ops::Range<u16>) {
        let macs = [self.guest.mac(), self.peer.mac()];
        for port in ports.clone() {
            let frame = packet(macs, ACK, [2, 1], [22, port]);
            self.peer.tx[0].send_waiting(&frame, SOON);
        }
        let came = self.guest.rx[0].take(ports.len(), SOON);
        assert_eq!(came.len(), ports.len(), "answers");
    }

    /// No connection may begin from without.
    fn is_closed(&mut self) {
        let macs = [self.guest.mac(), self.peer.mac()];
        let frame = packet(macs, ACK, [2, 1], [22, 9]);
        self.peer.tx[0].send_waiting(&frame, SOON);
        self.peer.tx[0].drain(SOON);
        assert!(self.guest.rx[0].take(1, Duration::from_millis(50)).is_empty(), "a connection");
    }
}

/// Four guests with filters send SYNs and datagrams of 131,072 connections, again and again, half
/// of them to guests with filters.
#[test]
fn connections_without_end() {
    let _alone = alone();
    let dir = Dir::new();
    let config = dir.path().join("filters.toml");
    fs::write(&config, FILTERS).expect("a file");
    let (quiet, open) = (",filter=quiet", ",filter=open");
    let ports = [quiet, quiet, open, open, open, open, open, "", open, "", "", "", quiet, ""];
    let option = format!("--config={}", config.display());
    let mut lab = Lab::with_datagrams(&ports, &[&option]);
    let mut sender = |id| lab.guest(id, |cfg| cfg.tx_size = SIZE);
    let mut many = [2, 3, 4, 5].map(&mut sender);
    let mut few = [8, 9].map(&mut sender);
    let mut sink = |id| {
        let mut vm = lab.guest(id, |cfg| cfg.size = SIZE);
        receive(&mut vm);
        vm
    };
    let [sinks, few_sinks] = [[6, 7], [10, 11]].map(|ids| ids.map(&mut sink));
    let mut quiet = Quiet { guest: lab.guest(12, |_| ()), peer: lab.guest(13, |_| ()) };
    for (n, vm) in many.iter_mut().enumerate() {
        fill(vm, sinks[n % 2].mac(), [SYN, DATAGRAM][n / 2], true);
    }
    for (vm, to) in few.iter_mut().zip(&few_sinks) {
        fill(vm, to.mac(), DATAGRAM, false);
    }
    quiet.begin(1_000..1_000 + QUIET);
    let sent = |lab: &Lab| {
        let c = lab.d.counters();
        ["p2", "p3", "p4", "p5"].map(|port| c.sum(Some(port), "in", "frames"))
    };
    loop {
        lab.unharmed(
            "connections without end",
            keep_sending(&few, &few_sinks),
            keep_sending(&many, &sinks),
        );
        let sent = sent(&lab);
        println!("{sent:?} frames of new connections");
        if sent.iter().all(|&n| n >= u64::from(SIZE)) {
            break;
        }
    }
    quiet.goes_on(1_000..1_000 + QUIET);
    quiet.begin(2_000..2_000 + QUIET);
    quiet.goes_on(2_000..2_000 + QUIET);
    quiet.is_closed();
    drop((many, few, sinks, few_sinks, quiet));
    lab.finish();
}
