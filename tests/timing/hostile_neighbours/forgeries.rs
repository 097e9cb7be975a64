//! Guests that forge packets of other guests' connections, or send what a filter remembers: just
//! the frames that the rules and the connections permit reach a guest with a filter. The guest's
//! connections go on, and the guest begins and closes others. Two bystanders with filters are
//! served as beside a guest that sends as much in one connection.

mod packets;
mod rows;
mod victim;

use std::fs;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::connections::{DATAGRAM, fill};
use super::rules::answer;
use crate::alone;
use packets::framed;
use rows::{ROWS, Row, Sender};
use testkit::hostile::{raw_avail, raw_desc, refill, restart_with};
use testkit::mem::Span;
use testkit::neighbours::{Beside, Lab, While, in_one_of_a_few_tries, verdict};
use testkit::proc::Dir;
use testkit::ring::Seg;
use testkit::rx::RxConfig;
use testkit::shares::{SIZE, receive};
use testkit::vm::{Vm, VmConfig};
use victim::{AT_ONCE, CONNECTIONS, Forged, Victim, comes_to_rest, send_once};

/// Numbers of the guests.
const FORGER: u8 = 2;
const GUARDED: u8 = 3;
const V1: u8 = 4;
const V2: u8 = 5;
const PEER: u8 = 6;
const CONTROL: u8 = 7;
const SINK: u8 = 8;

/// Bytes that a frame has in its sender's memory, with the virtio-net header.
const ROOM: usize = 128;
/// How often what came back is offered again, and how often an operator changes the filter and V1
/// begins a connection.
const PAUSE: Duration = Duration::from_micros(150);
const EVERY: Duration = Duration::from_millis(20);

const FILTER: &str = "\
[[filter]]
name = \"quiet\"
default-in = \"drop\"
rules = [\"in accept udp to port 5000\", \"in accept tcp to port 80\"]
";

/// Part of the control's rate that a bystander keeps, and what its p99 may become, as a multiple.
const KEPT: f64 = 0.9;
const SLOWER: u32 = 4;

/// Gives a guest room for the frames that [`send_once`] sends at once.
fn large(cfg: &mut VmConfig) {
    cfg.size = 2 * AT_ONCE;
    cfg.rx = RxConfig::plain(2 * AT_ONCE, 256);
}

/// A guest that forges, and the frames of its ring.
struct Forger {
    vm: Vm,
    frames: Span,
}

impl Forger {
    fn new(vm: Vm) -> Forger {
        let frames = vm.guest.mem.alloc_in(1, u64::from(SIZE) * ROOM as u64, 16);
        Forger { vm, frames }
    }

    /// Fills the ring with the frames of a row, and offers none.
    fn fill(&mut self, row: &Row, to: [u8; 6]) {
        let Forger { vm, frames } = self;
        let macs = [to, vm.mac()];
        let len = |n: u16| {
            let bytes = [&[0; 12][..], &framed(macs, &(row.packet)(n), n)].concat();
            frames.write(usize::from(n) * ROOM, &bytes);
            bytes.len() as u32
        };
        let lens: Vec<u32> = (0..SIZE).map(len).collect();
        restart_with(vm, 1, |ring| {
            for (n, len) in (0..SIZE).zip(lens) {
                let gpa = frames.gpa() + u64::from(n) * ROOM as u64;
                raw_desc(ring, n, Seg { gpa, len }, 0, 0);
                raw_avail(ring, n, n);
            }
        });
    }
}

/// A switch with bystanders, forgers and their victims.
struct Stage {
    lab: Lab,
    dir: Dir,
    free: Forger,
    guarded: Forger,
    victim: Victim,
    /// V2, which has no connections.
    quiet: Vm,
    /// Sends in one connection, and receives that.
    control: [Vm; 2],
}

impl Stage {
    fn new() -> Stage {
        let dir = Dir::new();
        let [control, config] = ["control", "filters.toml"].map(|name| dir.path().join(name));
        fs::write(&config, FILTER).expect("a file");
        let quiet = ",filter=quiet";
        let guarded =
            format!(",guard=on,mac=02:56:53:00:00:0{GUARDED},allowed-ips=10.8.0.{GUARDED}");
        let ports = [quiet, quiet, "", &guarded, quiet, quiet, "", "", quiet];
        let options =
            [format!("--config={}", config.display()), format!("--control={}", control.display())];
        let mut lab = Lab::with_datagrams(&ports, &options.each_ref().map(String::as_str));
        let [free, guarded] =
            [FORGER, GUARDED].map(|id| Forger::new(lab.guest(id, |cfg| cfg.tx_size = SIZE)));
        let macs = [free.vm.mac(), guarded.vm.mac()];
        let forged = Forged { passes: |_| true, macs, came: [0; 2] };
        let guests = [V1, PEER].map(|id| lab.guest(id, large));
        let victim = Victim::new(guests, forged, control);
        let quiet = lab.guest(V2, large);
        let mut sender = lab.guest(CONTROL, |cfg| cfg.tx_size = SIZE);
        let mut sink = lab.guest(SINK, |cfg| cfg.size = SIZE);
        receive(&mut sink);
        fill(&mut sender, sink.mac(), DATAGRAM, false);
        Stage { lab, dir, free, guarded, victim, quiet, control: [sender, sink] }
    }

    fn forger(&mut self, row: &Row) -> &mut Forger {
        if row.sender == Sender::Free { &mut self.free } else { &mut self.guarded }
    }

    /// Frames that came from the row's forger so far.
    fn sent(&self, row: &Row) -> u64 {
        let port = format!("p{}", if row.sender == Sender::Free { FORGER } else { GUARDED });
        self.lab.d.counters().sum(Some(&port), "in", "frames")
    }

    /// Sends each frame of a row once: those that may pass come, and no others.
    fn count(&mut self, row: &Row) {
        let to = if row.victim == V1 { self.victim.guest.mac() } else { self.quiet.mac() };
        self.forger(row).fill(row, to);
        let before = self.sent(row);
        let Stage { free, guarded, victim, quiet, .. } = self;
        let forger = if row.sender == Sender::Free { free } else { guarded };
        let to = if row.victim == V1 { &mut victim.guest } else { quiet };
        let came = send_once(&forger.vm, to, SIZE);
        for (n, &count) in (0..SIZE).zip(&came) {
            let expected = u32::from((row.passes)(n));
            assert_eq!(count, expected, "{}: frame {n}: {:02x?}", row.what, (row.packet)(n));
        }
        assert_eq!(self.sent(row) - before, u64::from(SIZE), "{}", row.what);
    }

    /// V1's connections go on and are open, and another begins and closes.
    fn goes_on(&mut self, row: &Row) {
        self.victim.goes_on();
        let told = self.victim.all_told();
        let own = format!(" 10.8.0.{PEER}:");
        let open =
            told.lines().filter(|line| line.contains(&own) && line.contains(" established "));
        assert_eq!(open.count(), 2 * usize::from(CONNECTIONS), "{}: {told}", row.what);
        let port = self.victim.begins_and_closes();
        let told = self.victim.told(port);
        assert!(told.contains(" time-wait "), "{}: {told}", row.what);
    }

    /// Nothing was lost on the way to a bystander, and the books balance.
    fn end(self) {
        let Stage { lab, dir, .. } = self;
        lab.finish();
        drop(dir);
    }
}

/// What happens beside the flood: victims receive, V1 begins and closes connections, an operator
/// changes the filter.
struct Meanwhile<'a> {
    victim: &'a mut Victim,
    quiet: &'a mut Vm,
    operator: Option<UnixStream>,
    next: Instant,
    begun: u64,
}

impl Meanwhile<'_> {
    fn step(&mut self) {
        self.victim.drain();
        let forged = &mut self.victim.forged;
        self.quiet.rx[0].recv(256, |_, frame| forged.look(frame));
        if Instant::now() < self.next {
            return;
        }
        self.victim.begins_and_closes();
        self.begun += 1;
        if let Some(socket) = &mut self.operator {
            socket.write_all(change(self.begun).as_bytes()).expect("a call");
            let answer = answer(socket);
            assert!(answer.contains("\"changes\":[{"), "{answer}");
        }
        self.next = Instant::now() + EVERY;
    }
}

/// A call that changes the filter, and permits as much as before.
fn change(number: u64) -> String {
    let first = ["in drop 47", "in drop 50"][number as usize % 2];
    let rules =
        format!("[\"{first}\",\"in accept udp to port 5000\",\"in accept tcp to port 80\"]");
    let parameters = format!("{{\"kind\":\"filter\",\"name\":\"quiet\",\"rules\":{rules}}}");
    format!("{{\"method\":\"io.vioswitch.Switch.Set\",\"parameters\":{parameters}}}\0")
}

/// A bystander's median, longest gap, p99 and rate beside the control and beside the forger.
fn judge(seen: &Beside) -> Result<(), String> {
    verdict(seen)?;
    let (alone, attacked) = (&seen.alone, &seen.attacked);
    let (before, after) = (alone.percentile(99), attacked.percentile(99));
    if after > SLOWER * before {
        return Err(format!("p99 {after:.1?}, {before:.1?} beside the control"));
    }
    let (before, after) = (alone.kept(), attacked.kept());
    if after < KEPT * before {
        return Err(format!("{after:.2} of the rate kept, {before:.2} beside the control"));
    }
    Ok(())
}

/// Sends the frames of a row without end beside the bystanders.
fn flood(stage: &mut Stage, row: &Row) {
    let before = stage.sent(row);
    let Stage { lab, free, guarded, victim, quiet, control, .. } = stage;
    let forger = if row.sender == Sender::Free { &free.vm } else { &guarded.vm };
    (victim.forged.passes, victim.forged.came) = (row.passes, [0; 2]);
    let operator = row.changes.then(|| UnixStream::connect(&victim.control).expect("connect"));
    let meanwhile = Meanwhile { victim, quiet, operator, next: Instant::now(), begun: 0 };
    let meanwhile = Mutex::new(meanwhile);
    let step = |phase: &While<'_>, senders: &[&Vm], sinks: &[&Vm]| {
        phase.every(PAUSE, || {
            let senders = senders.iter().map(|vm| &vm.guest.tx[0].ring);
            sinks.iter().map(|vm| &vm.guest.rx[0].ring).chain(senders).for_each(refill);
            meanwhile.lock().expect("no panic").step();
        });
    };
    in_one_of_a_few_tries(row.what, || {
        let seen = lab.measure(
            |phase: &While<'_>| step(phase, &[&control[0]], &[&control[1]]),
            |phase: &While<'_>| step(phase, &[forger], &[]),
        );
        let (alone, attacked) = (&seen.alone, &seen.attacked);
        println!("{}: control {alone} | beside {attacked}", row.what);
        lab.pair.check();
        seen.judge(judge(&seen))
    });
    comes_to_rest(forger, || meanwhile.lock().expect("no panic").step());
    let meanwhile = meanwhile.into_inner().expect("no panic");
    let (begun, [right, wrong]) = (meanwhile.begun, meanwhile.victim.forged.came);
    let sent = stage.sent(row) - before;
    println!("{}: {sent} frames, {right} came, V1 began {begun} connections", row.what);
    assert!(sent >= u64::from(SIZE) && begun > 0, "{}: {sent} {begun}", row.what);
    assert_eq!(wrong, 0, "{}: frames came that may not", row.what);
    let some = (0..SIZE).any(row.passes);
    assert_eq!(right > 0, some, "{}", row.what);
}

#[test]
fn forgeries_reach_whom_the_rules_permit() {
    let _alone = alone();
    let mut stage = Stage::new();
    for row in &ROWS {
        stage.count(row);
        stage.goes_on(row);
        println!("{}: counted", row.what);
    }
    stage.end();
}

#[test]
#[ignore = "full"]
fn forgeries_harm_no_bystander() {
    let _alone = alone();
    let mut stage = Stage::new();
    for row in &ROWS {
        stage.count(row);
        flood(&mut stage, row);
        stage.goes_on(row);
    }
    stage.end();
}
