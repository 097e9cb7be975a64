//! The real switch and the naive one side by side: each operation is done to both, and what the
//! guests got and what the daemon counted must be what the naive one says.
//!
//! Nothing here sleeps for luck: a transmit ring's buffers come back after the last copy was
//! delivered, front-ends are answered in order, and announcements are counted.

use std::ops::{Deref, DerefMut};
use std::process::Command;
use std::time::Duration;

use testkit::packet::{Ask, Kind, Packet, payload};
use testkit::proc::{Daemon, Dir, wait_for};
use testkit::sys;
use testkit::vm::{mac_of, tag_of};
use testkit::vnet::{Header, NEEDS_CSUM};
use testkit::{Rng, frontend::feat};

use super::compare::{books_of, differences, match_up, teaches_itself};
use super::guest::{SOON, Sent, Station};
use super::moves;
use super::naive::{Books, Switch};
use super::op::{
    BATCH_BYTES, BATCH_FRAMES, Dst, FIXED, FIXED_STATIONS, Key, Leave, Op, PORTS, STATIONS, Spec,
};

/// Seconds after which an address is forgotten where ageing is tried.
pub const AGE: u32 = 1;
/// The switch counts whole seconds: nothing is forgotten before, everything is after.
const REMEMBERED: Duration = Duration::from_millis(500);
const FORGOTTEN: Duration = Duration::from_millis(3300);
/// Bytes of the daemon's log after which it is emptied.
const LOG_BYTES: u64 = 32 << 20;

/// How a list is run.
#[derive(Clone, Copy, Debug)]
pub struct Mode {
    pub workers: usize,
    pub ageing: bool,
    /// The daemon's counters are compared after so many operations, and at the end.
    pub compare_every: usize,
}

/// What a receiver must get.
pub struct Item {
    pub header: Header,
    pub bytes: Vec<u8>,
}

/// Frames given to a ring that they break.
#[derive(Clone, Copy, Default)]
struct Struck {
    unicast: u64,
    floods: u64,
}

/// The daemon that a list runs against, with its control socket.
pub struct Subject {
    daemon: Daemon,
    dir: Dir,
}

impl Subject {
    /// Sets a key of a port.
    fn set(&self, port: usize, key: Key) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vioswitchctl"));
        command.arg("--control").arg(self.dir.path().join("control"));
        command.args(["port", "set", &format!("p{port}"), &key.word()]);
        let output = command.output().expect("vioswitchctl");
        assert!(output.status.success(), "{key:?}: {output:?}");
    }

    pub fn stop(self) {
        self.daemon.stop();
    }
}

impl Deref for Subject {
    type Target = Daemon;
    fn deref(&self) -> &Daemon {
        &self.daemon
    }
}

impl DerefMut for Subject {
    fn deref_mut(&mut self) -> &mut Daemon {
        &mut self.daemon
    }
}

pub struct Lab<'d> {
    d: &'d mut Subject,
    mode: Mode,
    naive: Switch,
    stations: Vec<Station>,
    expected: Vec<Vec<Item>>,
    /// Frames went to a ring with heads that do not exist, which breaks it.
    struck: Vec<Struck>,
    /// Copies lost for want of room, by port: without buffers or too long for them is not told
    /// apart for a ring that is short.
    unsure: Vec<u64>,
    /// Announcements that came too late, by port.
    late: Vec<u64>,
    op: u32,
    pub frames: u64,
}

/// A switch to run a list against.
pub fn subject(mode: Mode) -> Subject {
    let dir = Dir::new();
    let control = format!("--control={}", dir.path().join("control").display());
    let macs = FIXED_STATIONS.map(|n| {
        let octets = mac_of(n).map(|octet| format!("{octet:02x}"));
        format!(",mac={}", octets.join(":"))
    });
    let keys: Vec<String> =
        (0..PORTS).map(|p| if p == FIXED { macs.concat() } else { String::new() }).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let (workers, age) = (mode.workers.to_string(), AGE.to_string());
    let mut extra = vec!["--workers", &workers, &control];
    if mode.ageing {
        extra.extend(["--age", &age]);
    }
    Subject { daemon: Daemon::with_ports(&keys, &extra), dir }
}

impl<'d> Lab<'d> {
    pub fn new(d: &'d mut Subject, mode: Mode) -> Lab<'d> {
        let fixed = FIXED_STATIONS.map(|n| (mac_of(n), FIXED));
        let stations = (0..PORTS).map(|p| Station::new(p, d.socket(p))).collect();
        Lab {
            d,
            mode,
            naive: Switch::new(PORTS, &fixed),
            stations,
            expected: (0..PORTS).map(|_| Vec::new()).collect(),
            struck: vec![Struck::default(); PORTS],
            unsure: vec![0; PORTS],
            late: vec![0; PORTS],
            op: 0,
            frames: 0,
        }
    }

    /// Does one operation and checks everything.
    pub fn step(&mut self, op: &Op) {
        self.op += 1;
        self.outlive_doubt();
        moves::begin();
        for station in &mut self.stations {
            station.free = station.vm.as_ref().map_or(0, |vm| vm.rx[0].ring.in_flight());
        }
        self.apply(op);
        self.flush();
        self.collect();
        self.mirror();
        if (self.op as usize).is_multiple_of(self.mode.compare_every) {
            self.compare();
        }
    }

    /// Waits while the switch may or may not remember an address.
    fn outlive_doubt(&mut self) {
        while self.mode.ageing && self.naive.age(REMEMBERED, FORGOTTEN) {
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Send { port, ref frames } => self.send(port, frames),
            Op::Packet { port, dst, kind, len, leave } => self.packet(port, dst, kind, len, leave),
            Op::Junk { port, dst, header } => self.junk(port, dst, header),
            Op::SendPlugged { port, dst } => self.send_plugged(port, dst),
            Op::Hold { port } => self.stations[port].hold(),
            Op::Refill { port, buffers } => self.stations[port].refill(buffers),
            Op::Stop { port, tx } => self.stations[port].stop(tx),
            Op::Start { port, tx } => drop(self.stations[port].start(tx)),
            Op::Restart { port, tx } => self.stations[port].restart(tx),
            Op::Enable { port, tx, on } => self.stations[port].enable(tx, on),
            Op::Swap { port, tx } => self.stations[port].swap(tx),
            Op::Break { port, tx } => self.stations[port].break_ring(tx),
            Op::Plug { port } => self.stations[port].plug(true),
            Op::Unplug { port } => self.stations[port].plug(false),
            Op::Attach { port, make } => drop(self.stations[port].attach(make)),
            Op::Detach { port } => self.detach(port),
            Op::Rarp { port, station } => self.rarp(port, station),
            Op::RarpAndLeave { port, station } => self.rarp_and_leave(port, station),
            Op::BadChain { port, kind, count } => {
                if let Some(reason) = self.stations[port].bad_chains(kind, count) {
                    self.naive.count(port, "in frames", count.into());
                    self.naive.count(port, &format!("in drop.{reason}"), count.into());
                }
            }
            Op::Mtu { port, mtu } => {
                if self.stations[port].connected {
                    let vm = self.stations[port].vm();
                    vm.fe.net_set_mtu(mtu.into()).expect("mtu");
                    vm.settle();
                    self.naive.ports[port].mtu = Some(mtu.into());
                }
            }
            Op::Set { port, key } => {
                // Each worker's next turn sees it.
                self.d.set(port, key);
                self.naive.set(port, key);
            }
            Op::Age => std::thread::sleep(FORGOTTEN),
        }
    }

    /// A frame that is like no other: operation, number, port, the guest's tag, and then noise.
    fn frame(&self, port: usize, spec: Spec, number: usize) -> Vec<u8> {
        let mut bytes = [&spec.dst.mac()[..], &spec.src.mac(), &spec.dst.ethertype()].concat();
        bytes.extend(self.op.to_le_bytes());
        bytes.extend([number as u8, port as u8]);
        bytes.extend(tag_of(port as u8).to_le_bytes());
        let mut rng = Rng::new(u64::from(self.op) << 8 | number as u64);
        while bytes.len() < spec.len {
            bytes.extend(rng.next().to_le_bytes());
        }
        bytes.truncate(spec.len);
        bytes
    }

    fn plain(&self, port: usize, spec: Spec, number: usize) -> Sent {
        let bytes = self.frame(port, spec, number);
        Sent { size: bytes.len(), bytes, refused: false, packet: None }
    }

    fn send(&mut self, port: usize, specs: &[Spec]) {
        let frames = specs.iter().enumerate().map(|(n, spec)| self.plain(port, *spec, n));
        let frames = frames.collect();
        self.show(port, Header::default(), frames);
    }

    /// Shows as many frames to the switch as it surely takes for one burst, whose decisions do not
    /// depend on what the burst itself teaches.
    fn show(&mut self, port: usize, header: Header, frames: Vec<Sent>) {
        let station = &mut self.stations[port];
        if station.vm.is_none() || station.tx.corrupt {
            return;
        }
        let mut kept = station.pending.clone();
        let waiting = kept.len();
        for frame in frames {
            let bytes: usize = kept.iter().map(|f| f.bytes.len()).sum();
            let alone = kept.is_empty();
            if alone || bytes + frame.bytes.len() < BATCH_BYTES && kept.len() < BATCH_FRAMES {
                kept.push(frame);
                if !alone && teaches_itself(&kept) {
                    kept.pop();
                }
            }
        }
        let now = station.send(header, &kept[waiting..]);
        station.pending = kept;
        if now {
            self.take_pending(port);
        }
    }

    /// What was shown is taken by the switch.
    fn take_pending(&mut self, port: usize) {
        let station = &mut self.stations[port];
        let sent = std::mem::take(&mut station.pending);
        station.drain();
        self.frames += sent.len() as u64;
        if !station.tx.enabled {
            self.naive.count(port, "in frames", sent.len() as u64);
            self.naive.count(port, "in drop.disabled", sent.len() as u64);
            return;
        }
        for frame in sent {
            self.forward(port, &frame);
        }
    }

    fn forward(&mut self, port: usize, sent: &Sent) {
        let (to, flood) = self.naive.forward(port, "in", &sent.bytes, sent.refused, sent.size);
        for to in to {
            let items = match &sent.packet {
                None => vec![Item { header: Header::default(), bytes: sent.bytes.clone() }],
                Some((packet, ask)) => packet
                    .received(*ask, self.stations[to].features())
                    .into_iter()
                    .map(|(header, bytes)| Item { header, bytes })
                    .collect(),
            };
            self.expect(to, items, flood);
        }
    }

    /// One of the switch's frames goes to `to`, in one piece or in several.
    fn expect(&mut self, to: usize, items: Vec<Item>, flood: bool) {
        let station = &self.stations[to];
        if station.rx.corrupt {
            let Struck { unicast, floods } = &mut self.struck[to];
            *if flood { floods } else { unicast } += 1;
        } else if items.iter().any(|item| station.need(item.bytes.len()).is_none()) {
            // Unless the ring is empty, which is seen first.
            if station.free == 0 || self.is_short(to) {
                self.unsure[to] += 1;
                self.stations[to].scarce = true;
            } else {
                self.naive.count(to, "lost drop.no_fit", 1);
            }
        } else {
            self.naive.count(to, "out frames", 1);
            self.expected[to].extend(items);
        }
    }

    /// True if the frames expected so far may find too few buffers.
    fn is_short(&self, port: usize) -> bool {
        let station = &self.stations[port];
        let need = |item: &Item| station.need(item.bytes.len()).unwrap_or(0);
        station.scarce || self.expected[port].iter().map(need).sum::<usize>() > station.free
    }

    fn packet(&mut self, port: usize, dst: Dst, kind: usize, len: usize, leave: Leave) {
        // A packet cut into segments arrives in part if buffers are short; not modelled.
        let roomy = |s: &Station| !s.scarce && s.free * (s.capacity() - 12) > 2 * (len + 1600);
        if self.stations.iter().any(|s| s.may_receive() && !roomy(s)) {
            return;
        }
        // Nor are packets that wait: the header is the ring's.
        if !self.stations[port].may_send() || !self.stations[port].pending.is_empty() {
            return;
        }
        let kind = Kind::all().nth(kind).expect("a kind");
        let bytes = payload(u64::from(self.op), len);
        let packet = Packet::new(kind, mac_of(port as u8), dst.mac(), &bytes);
        let ask = match leave {
            Leave::Nothing => Ask::Nothing,
            Leave::Sum => Ask::Sum,
            Leave::Segments(size) => Ask::Segments(size),
        };
        let wanted = match ask {
            Ask::Nothing => 0,
            Ask::Sum => feat::CSUM,
            Ask::Segments(_) => kind.host_features(),
        };
        let (header, bytes) = packet.sent(ask);
        let segment = match leave {
            Leave::Segments(size) => bytes.len().min(packet.headers_len() + usize::from(size)),
            _ => bytes.len(),
        };
        let refused = self.stations[port].features() & wanted != wanted;
        let size = segment - 4 * usize::from(kind.tags);
        self.show(port, header, vec![Sent { bytes, refused, size, packet: Some((packet, ask)) }]);
    }

    fn junk(&mut self, port: usize, dst: Dst, kind: u8) {
        let header = match kind {
            // A checksum beyond the frame.
            0 => {
                Header { flags: NEEDS_CSUM, csum_start: 200, csum_offset: 16, ..Header::default() }
            }
            // Segments of something that is no IP packet.
            1 => Header {
                flags: NEEDS_CSUM,
                gso_type: 1,
                gso_size: 10,
                csum_start: 34,
                csum_offset: 16,
                ..Header::default()
            },
            // Segments without a checksum.
            2 => Header { gso_type: 4, gso_size: 100, hdr_len: 54, ..Header::default() },
            // More headers than frame.
            _ => Header { flags: NEEDS_CSUM, hdr_len: 500, csum_start: 14, ..Header::default() },
        };
        if self.stations[port].may_send() && self.stations[port].pending.is_empty() {
            let spec = Spec { src: super::op::Src::Station(port as u8), dst, len: 100 };
            let sent = Sent { refused: true, ..self.plain(port, spec, 0) };
            self.show(port, header, vec![sent]);
        }
    }

    fn send_plugged(&mut self, port: usize, dst: Dst) {
        let spec = Spec { src: super::op::Src::Station(port as u8), dst, len: 300 };
        let sent = self.plain(port, spec, 0);
        match self.stations[port].send_plugged(&sent.bytes) {
            Some(true) => self.forward(port, &sent),
            Some(false) => {
                self.naive.count(port, "in frames", 1);
                self.naive.count(port, "in drop.bad_address", 1);
            }
            None => {}
        }
    }

    fn detach(&mut self, port: usize) {
        if self.stations[port].connected {
            self.stations[port].leave();
            self.left(port);
        }
    }

    fn left(&mut self, port: usize) {
        drop(self.stations[port].see_it_gone());
        self.naive.flush(port);
        self.naive.ports[port].mtu = None;
    }

    fn rarp(&mut self, port: usize, station: u8) {
        if self.stations[port].connected {
            self.stations[port].vm().fe.send_rarp(mac_of(station)).expect("rarp");
            self.announced(port, mac_of(station));
            let wanted = self.announcements(port);
            self.see_announced(port, wanted);
        }
    }

    /// What an announcement does to the naive switch.
    fn announced(&mut self, port: usize, mac: [u8; 6]) {
        // RFC 903: Ethernet, IPv4, 6, 4, request reverse; sender and target are the station.
        let mut bytes = [&[0xff; 6][..], &mac, &[0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3]].concat();
        bytes.extend([&mac[..], &[0; 4], &mac, &[0; 4]].concat());
        bytes.resize(60, 0);
        let size = bytes.len();
        for to in self.naive.forward(port, "announced", &bytes, false, size).0 {
            let item = Item { header: Header::default(), bytes: bytes.clone() };
            self.expect(to, vec![item], true);
        }
        // The next announcement is another burst.
        self.strike();
        self.mirror();
    }

    /// Announcements of a port by the naive switch's books.
    fn announcements(&self, port: usize) -> u64 {
        self.naive.books.get(&(port, "announced frames".to_string())).copied().unwrap_or(0)
    }

    /// Waits until the switch has dealt with so many.
    fn see_announced(&mut self, port: usize, wanted: u64) {
        let name = format!("p{port}");
        let count = || self.d.report().sum(Some(&name), "announced", "frames");
        let done = wait_for(SOON, || count() >= wanted);
        assert!(done, "an announcement of port {port} was not counted (I1)");
    }

    /// An announcement may be sent before its port has left, or is dropped; no address is left
    /// behind. The next front-end announces another one: then the first has been dealt with.
    fn rarp_and_leave(&mut self, port: usize, station: u8) {
        if !self.stations[port].connected {
            return;
        }
        self.stations[port].vm().fe.send_rarp(mac_of(station)).expect("rarp");
        self.stations[port].leave();
        let mut next = self.stations[port].see_it_gone();
        let mac = [2, 0x56, 0x53, 0xaa, 0, port as u8];
        next.send_rarp(mac).expect("rarp");
        self.naive.ports[port].up = false;
        self.naive.ports[port].mtu = None;
        let wanted = self.announcements(port) + 2;
        self.see_announced(port, wanted);
        let counters = self.d.report();
        let name = format!("p{port}");
        let known = counters.sum(Some(&name), "", "addresses");
        let keys = self.naive.ports[port].keys;
        let learned = u64::from(keys.learns && keys.up);
        let expected = self.naive.fixed(port) + learned;
        assert_eq!(known, expected, "port {port} left, its address stayed");
        let late = counters.sum(Some(&name), "announced", "drop.port_down");
        match late - self.late[port] {
            0 => self.announced(port, mac_of(station)),
            _ => {
                self.naive.count(port, "announced frames", 1);
                self.naive.count(port, "announced drop.port_down", 1);
            }
        }
        self.late[port] = late;
        self.naive.flush(port);
        self.announced(port, mac);
        drop(next);
        self.left(port);
    }

    /// Transmit rings that can go on now do so.
    fn flush(&mut self) {
        for port in 0..PORTS {
            let station = &self.stations[port];
            if station.may_send() && !station.pending.is_empty() {
                self.mirror();
                self.take_pending(port);
            }
        }
    }

    /// What every guest received against what it should have.
    fn collect(&mut self) {
        for port in 0..PORTS {
            let short = self.is_short(port);
            let expected = std::mem::take(&mut self.expected[port]);
            let station = &mut self.stations[port];
            let got = station.receive();
            let lost = match_up(port, &expected, &got, short);
            station.scarce |= lost > 0;
            if lost > 0 {
                *self.naive.books.get_mut(&(port, "out frames".into())).expect("counted") -= lost;
                self.unsure[port] += lost;
            }
        }
        self.strike();
        (0..PORTS).for_each(|port| self.no_errors(port));
    }

    /// Rings that were found broken, by unicast or, after it in the same burst, a flood.
    fn strike(&mut self) {
        for port in 0..PORTS {
            let Struck { unicast, floods } = std::mem::take(&mut self.struck[port]);
            if unicast + floods == 0 {
                continue;
            }
            self.naive.count(port, "lost drop.ring_broken", unicast + floods);
            let station = &mut self.stations[port];
            (station.broken, station.held) = (true, false);
            let err = &station.ring(false).err;
            assert!(sys::poll_in(&[err.raw()], SOON), "a broken ring is not reported");
            err.take();
        }
    }

    fn no_errors(&self, port: usize) {
        if let Some(vm) = self.stations[port].vm.as_ref() {
            assert!(vm.no_errors(), "port {port}: an error was reported");
        }
    }

    /// Tells the naive switch which rings take frames.
    fn mirror(&mut self) {
        for (port, station) in self.naive.ports.iter_mut().zip(&self.stations) {
            port.up = station.may_receive();
            port.broken = station.broken;
            port.empty = station.is_empty();
        }
    }

    /// The daemon's books against the naive switch's, to the frame and by name (I1).
    fn compare(&mut self) {
        assert!(self.d.alive(), "the daemon is gone");
        let counters = self.d.report();
        counters.balance();
        let mut theirs = books_of(&counters);
        let mut ours = self.naive.books.clone();
        for port in 0..PORTS {
            let take = |books: &mut Books, key: &str| {
                books.remove(&(port, format!("lost drop.{key}"))).unwrap_or(0)
            };
            let (fit, buffer) = (take(&mut theirs, "no_fit"), take(&mut theirs, "no_buffer"));
            let sure = take(&mut ours, "no_fit");
            let unsure = self.unsure[port] + take(&mut ours, "no_buffer");
            assert!(
                fit >= sure && fit + buffer == sure + unsure,
                "port {port}: no_fit {fit} no_buffer {buffer}, should be {sure} and {unsure} (I1)"
            );
            if !self.mode.ageing {
                let name = format!("p{port}");
                let (known, should) =
                    (counters.sum(Some(&name), "", "addresses"), self.naive.addresses(port));
                assert_eq!(known, should, "addresses of port {port}");
            }
        }
        ours.retain(|_, n| *n > 0);
        let differ = differences(&theirs, &ours);
        assert!(differ.is_empty(), "counted, and what it should be (I1): {differ:?}");
        if self.d.log_len() > LOG_BYTES {
            assert!(!self.d.log().contains("panicked"), "{}", self.d.log());
            self.d.forget_log();
        }
    }

    /// After the last operation: no guest's memory holds a word of another's (I4).
    pub fn finish(mut self) {
        self.compare();
        let tags: Vec<[u8; 8]> = (0..STATIONS).map(|n| tag_of(n).to_le_bytes()).collect();
        for (port, station) in self.stations.iter_mut().enumerate() {
            let Some(vm) = &mut station.vm else { continue };
            for other in (0..PORTS).filter(|&other| other != port) {
                let found = vm.mem.contains(&tags[other]);
                assert!(!found, "memory of guest {port} holds bytes of {other} (I4)");
            }
        }
    }
}
