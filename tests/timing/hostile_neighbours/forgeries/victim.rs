//! A guest with a filter and connections, which are attacked, and its peer.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use super::packets::{
    ACK, End, FIN, MORE, SYN, SYN_ACK, at, data, datagram, framed, ip, number_of, ping, tcp, udp,
};
use super::{PEER, V1};
use testkit::hostile::raw_avail_idx;
use testkit::vm::Vm;

/// Connections that the guest has begun, at these ports, and the peer, at ports from 4000.
pub const OWN: u16 = 1_000;
pub const THEIRS: u16 = 4_000;
pub const CONNECTIONS: u16 = 48;
/// Frames that are counted at a time.
pub const AT_ONCE: u16 = 1_024;
/// Longest wait for a frame, after which a host sends it again, and for how long a host does so.
const AGAIN: Duration = Duration::from_millis(20);
const LOST: Duration = Duration::from_secs(60);

/// Which guest sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    Guest,
    Peer,
}
use By::{Guest, Peer};

/// Forged frames that came to a victim.
pub struct Forged {
    /// Tells which frames may come, by number.
    pub passes: fn(u16) -> bool,
    /// Addresses of the forgers.
    pub macs: [[u8; 6]; 2],
    /// Frames that may come, and frames that may not.
    pub came: [u64; 2],
}

impl Forged {
    /// Notes a frame if a forger has sent it.
    pub fn look(&mut self, frame: &[u8]) {
        if self.macs.iter().any(|mac| frame[6..12] == *mac) {
            self.came[usize::from(!(self.passes)(number_of(frame)))] += 1;
        }
    }
}

/// The guest with connections, and its peer, which has no filter.
pub struct Victim {
    pub guest: Vm,
    pub peer: Vm,
    pub forged: Forged,
    /// The switch's control socket.
    pub control: PathBuf,
    /// Port of the next connection.
    pub next: u16,
    /// Number of the last frame.
    number: u16,
}

/// A segment between the guest's connection at `own` and the peer, from either.
fn segment(from: By, [own, theirs]: [u16; 2], flags: u8) -> Vec<u8> {
    let (own, theirs) = (at(V1, own), at(PEER, theirs));
    if from == Guest { tcp(own, theirs, flags) } else { tcp(theirs, own, flags) }
}

/// Data between the guest's connection at `own` and the peer, from either.
fn data_of(from: By, [own, theirs]: [u16; 2]) -> Vec<u8> {
    let (own, theirs) = (at(V1, own), at(PEER, theirs));
    if from == Guest { data(own, theirs) } else { data(theirs, own) }
}

impl Victim {
    pub fn new([guest, peer]: [Vm; 2], forged: Forged, control: PathBuf) -> Victim {
        let mut victim = Victim { guest, peer, forged, control, next: 10_000, number: 0 };
        for (flags, is_first) in [(SYN, true), (SYN_ACK, false), (ACK, true)] {
            let own = (0..CONNECTIONS).map(|n| [OWN + n, 22]);
            let theirs = (0..CONNECTIONS).map(|n| [80, THEIRS + n]);
            let (one, other) = if is_first { (Guest, Peer) } else { (Peer, Guest) };
            victim.all_pass(one, &own.map(|ports| segment(one, ports, flags)).collect::<Vec<_>>());
            let theirs = theirs.map(|ports| segment(other, ports, flags));
            victim.all_pass(other, &theirs.collect::<Vec<_>>());
        }
        victim
    }

    /// Sends packets, each again and again as a host does, until it comes.
    fn all_pass(&mut self, from: By, packets: &[Vec<u8>]) {
        let begin = Instant::now();
        let macs = [self.peer.mac(), self.guest.mac()];
        let (macs, sender, receiver) = match from {
            Guest => (macs, &mut self.guest, &mut self.peer),
            Peer => ([macs[1], macs[0]], &mut self.peer, &mut self.guest),
        };
        let (number, forged) = (&mut self.number, &mut self.forged);
        let mut frames: Vec<_> = packets
            .iter()
            .map(|packet| {
                *number = number.wrapping_add(1);
                framed(macs, packet, *number)
            })
            .collect();
        while !frames.is_empty() {
            let lost = &frames[0];
            assert!(begin.elapsed() < LOST, "lost, {from:?} has sent {lost:02x?}");
            frames.iter().for_each(|frame| sender.tx[0].send_waiting(frame, LOST));
            let sent = Instant::now();
            while !frames.is_empty() && sent.elapsed() < AGAIN {
                let taken = receiver.rx[0].recv(256, |_, came| {
                    frames.retain(|frame| frame != came);
                    forged.look(came);
                });
                if taken == 0 {
                    std::thread::yield_now();
                }
            }
        }
    }

    fn passes(&mut self, from: By, packet: Vec<u8>) {
        self.all_pass(from, &[packet]);
    }

    fn segments(&mut self, ports: [u16; 2], segments: &[(By, u8)]) {
        for &(from, flags) in segments {
            self.passes(from, segment(from, ports, flags));
        }
    }

    /// The guest begins a connection and closes it; returns its port.
    pub fn begins_and_closes(&mut self) -> u16 {
        let port = self.next;
        self.next += 1;
        self.segments([port, 22], &[(Guest, SYN), (Peer, SYN_ACK), (Guest, ACK)]);
        self.segments([port, 22], &[(Guest, FIN), (Peer, ACK), (Peer, FIN), (Guest, ACK)]);
        port
    }

    /// Each connection goes on, both ways; the guest talks in datagrams, pings and fragments.
    pub fn goes_on(&mut self) {
        let [guest, peer]: [End; 2] = [at(V1, 7_000), at(PEER, 53)];
        for from in [Peer, Guest] {
            let own = (0..CONNECTIONS).map(|n| data_of(from, [OWN + n, 22]));
            let theirs = (0..CONNECTIONS).map(|n| data_of(from, [80, THEIRS + n]));
            self.all_pass(from, &own.chain(theirs).collect::<Vec<_>>());
        }
        self.all_pass(Guest, &[udp(guest, peer), ping(guest, peer, 8)]);
        self.all_pass(Peer, &[udp(peer, guest), ping(peer, guest, 0)]);
        let first = ip(guest, peer, 17, [7, MORE], &datagram(7_000, 53));
        self.all_pass(Guest, &[first, ip(guest, peer, 17, [7, 2], &[0; 8])]);
    }

    /// What the switch tells of a connection that the guest has begun.
    pub fn told(&self, port: u16) -> String {
        let (told, end) = (self.all_told(), format!("10.8.0.{V1}:{port} "));
        told.lines().find(|line| line.contains(&end)).unwrap_or("no connection").to_owned()
    }

    /// What the switch tells of all connections.
    pub fn all_told(&self) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vioswitchctl"));
        let output = command.arg("--control").arg(&self.control).args(["connections", "show"]);
        let output = output.output().expect("vioswitchctl");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Takes what came, forged frames among them.
    pub fn drain(&mut self) {
        let forged = &mut self.forged;
        self.guest.rx[0].recv(256, |_, frame| forged.look(frame));
        self.peer.rx[0].recv(256, |_, _| ());
    }
}

/// Sends each frame of a forger's ring once, and returns how often each has come to `victim`.
pub fn send_once(forger: &Vm, victim: &mut Vm, count: u16) -> Vec<u32> {
    let (ring, mac) = (&forger.guest.tx[0].ring, forger.mac());
    let mut came = vec![0; usize::from(count)];
    let mut note = |frame: &[u8]| {
        if frame[6..12] == mac {
            came[usize::from(number_of(frame))] += 1;
        }
    };
    let mut take = |victim: &mut Vm| while victim.rx[0].recv(256, |_, frame| note(frame)) > 0 {};
    let begin = Instant::now();
    for end in (0..=count).step_by(AT_ONCE.into()).skip(1) {
        raw_avail_idx(ring, end);
        ring.kick.write(1);
        while ring.used_idx() != end {
            assert!(begin.elapsed() < LOST, "stalled: {} of {count}", ring.used_idx());
            take(victim);
            std::thread::yield_now();
        }
        take(victim);
    }
    // A frame is with its receiver before it goes back to its sender.
    take(victim);
    came
}

/// Waits until a ring that was offered again is empty.
pub fn comes_to_rest(vm: &Vm, mut meanwhile: impl FnMut()) {
    let (ring, begin) = (&vm.guest.tx[0].ring, Instant::now());
    let offered = ring.avail.index(2).load(std::sync::atomic::Ordering::Relaxed);
    while ring.used_idx() != offered {
        assert!(begin.elapsed() < LOST, "stalled");
        meanwhile();
        std::thread::yield_now();
    }
}
