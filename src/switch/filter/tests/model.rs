//! Random packets through a port and through a plain map must have equal answers.
//!
//! The model knows connections by both ends as the packet has them, keeps times in seconds, and
//! reads the rules one after another. Its table has no limits: the port's has room for all.

use std::collections::HashMap;

use super::super::connections::ConnectionsConfig;
use super::*;

const CLIENTS: [&str; 3] = ["10.0.0.2", "10.0.0.3", "10.1.0.4"];
const VM: &str = "10.0.0.1";
const PORTS: [u16; 3] = [22, 80, 5000];

/// Rules with the verdict that the model gives about protocol, peer and port of the destination.
const RULES: [&[&str]; 3] = [
    &["in accept tcp from 10.0.0.0/24 to port 22", "out accept udp,icmp"],
    &["in accept udp to port 5000", "in accept icmp", "out accept tcp to port 80"],
    &["in accept", "out accept tcp,udp"],
];

fn permits(rules: usize, direction: Direction, protocol: u8, peer: usize, to: u16) -> bool {
    match (rules, direction) {
        (0, In) => protocol == 6 && peer < 2 && to == 22,
        (0, Out) => protocol != 6,
        (1, In) => (protocol == 17 && to == 5000) || protocol == 1,
        (1, Out) => protocol == 6 && to == 80,
        (_, In) => true,
        (_, Out) => protocol != 1,
    }
}

/// Phase of a connection of TCP, by how the model follows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Asked,
    BothAsked,
    Answered,
    Open,
    /// FINs, whether the last one is acknowledged, and whether the first end sent the first one.
    Closing(u8, bool, bool),
    /// Whether the first end sent the last RST, and whether the connection was open.
    Reset(bool, bool),
    /// Datagrams.
    Talk,
}

#[derive(Clone, Debug)]
struct Modelled {
    began: Direction,
    phase: Phase,
    replied: bool,
    first: u32,
    until: u32,
    /// Long exchange of datagrams.
    stream: bool,
    rules: u64,
}

/// Peer, protocol, port of the VM, port of the peer, and who asks for queries.
type Name = (usize, u8, u16, u16, Option<Direction>);

/// A packet.
#[derive(Clone, Copy, Debug)]
struct Sent {
    direction: Direction,
    peer: usize,
    protocol: u8,
    vm_port: u16,
    peer_port: u16,
    /// Flags of TCP; for ICMP 8 or 0.
    flags: u8,
}

impl Sent {
    fn frame(&self) -> Vec<u8> {
        let vm = (VM, self.vm_port);
        let peer = (CLIENTS[self.peer], self.peer_port);
        let (from, to) = if self.direction == In { (peer, vm) } else { (vm, peer) };
        match self.protocol {
            6 => tcp(from, to, self.flags),
            17 => udp(from, to),
            _ => icmp(from.0, to.0, [self.flags, 0], self.vm_port, &[]),
        }
    }

    fn name(&self) -> Name {
        let Sent { direction, peer, protocol, vm_port, peer_port, flags } = *self;
        match protocol {
            1 => {
                let asks = if flags == 8 { direction } else { direction.opposite() };
                (peer, protocol, vm_port, 0, Some(asks))
            }
            _ => (peer, protocol, vm_port, peer_port, None),
        }
    }

    /// Port of the destination, as rules see it.
    fn to(&self) -> u16 {
        if self.direction == In { self.vm_port } else { self.peer_port }
    }
}

/// What a packet does to a connection.
enum Does {
    To(Phase),
    Nothing,
    Wrong,
    Afresh,
}

fn tcp_step(phase: Phase, flags: u8, first: bool) -> Does {
    use Phase::{Answered, Asked, BothAsked, Closing, Open, Reset, Talk};
    let asked = matches!(phase, Asked | BothAsked);
    let over = matches!(phase, Reset(..)) || matches!(phase, Closing(2, true, _));
    if flags & RST != 0 {
        let was_open = matches!(phase, Open | Closing(..) | Reset(_, true));
        return Does::To(Reset(first, was_open));
    }
    match flags & !ACK {
        SYN if flags == SYN => match (asked, over, first) {
            (_, true, _) => Does::Afresh,
            (true, _, true) => Does::To(phase),
            (true, _, false) => Does::To(BothAsked),
            (_, _, true) => Does::Nothing,
            _ => Does::Wrong,
        },
        SYN => match phase {
            BothAsked => Does::To(Answered),
            Answered if first => Does::To(Answered),
            _ if first => Does::Wrong,
            Asked => Does::To(Answered),
            _ => Does::Nothing,
        },
        FIN => match phase {
            Asked | BothAsked => Does::Wrong,
            Answered | Open => Does::To(Closing(1, false, first)),
            Closing(2, true, _) | Reset(..) => Does::To(phase),
            Closing(1, _, by) if by == first => Does::To(phase),
            Closing(.., by) => Does::To(Closing(2, false, by)),
            Talk => unreachable!("a datagram"),
        },
        _ => match phase {
            Asked if first => Does::To(Open),
            BothAsked if first => Does::Wrong,
            Asked | BothAsked => Does::Nothing,
            Answered if first => Does::To(Open),
            Closing(fins, _, by) => Does::To(Closing(fins, true, by)),
            Reset(by, true) if by == first => Does::To(Open),
            _ => Does::To(phase),
        },
    }
}

impl Modelled {
    fn seconds(&self) -> u32 {
        match self.phase {
            Phase::Asked | Phase::BothAsked | Phase::Closing(1, false, _) => 120,
            Phase::Answered | Phase::Closing(1, true, _) => 60,
            Phase::Open if self.replied => 5 * 86_400,
            Phase::Open => 300,
            Phase::Closing(_, false, _) => 30,
            Phase::Closing(_, true, _) => 120,
            Phase::Reset(..) => 10,
            Phase::Talk if self.stream => 120,
            Phase::Talk => 30,
        }
    }
}

#[derive(Default)]
struct Model {
    connections: HashMap<Name, Modelled>,
    rules: usize,
    changes: u64,
}

impl Model {
    /// True if the packet passes at a second.
    fn judge(&mut self, sent: Sent, now: u32) -> bool {
        let (name, direction) = (sent.name(), sent.direction);
        self.connections.retain(|_, known| now <= known.until);
        if let Some(known) = self.connections.get_mut(&name) {
            let first = known.began == direction;
            let does = match sent.protocol {
                6 if matches!(known.phase, Phase::Reset(..))
                    && !known.replied
                    && sent.flags & RST == 0 =>
                {
                    Does::Afresh
                }
                6 => tcp_step(known.phase, sent.flags, first),
                _ => Does::To(Phase::Talk),
            };
            match does {
                Does::Wrong => return false,
                Does::Afresh => return self.begin(sent, now),
                Does::Nothing => {}
                Does::To(phase) => {
                    let lasts = now > known.first + 2;
                    known.stream |= sent.protocol == 17 && known.replied && lasts;
                    known.replied |= !first && sent.flags & RST == 0;
                    known.phase = phase;
                    known.until = now + known.seconds();
                }
            }
            if known.rules == self.changes {
                return true;
            }
            let to = if known.began == In { sent.vm_port } else { sent.peer_port };
            if permits(self.rules, known.began, sent.protocol, sent.peer, to) {
                known.rules = self.changes;
                return true;
            }
            self.connections.remove(&name);
        }
        self.begin(sent, now)
    }

    fn begin(&mut self, sent: Sent, now: u32) -> bool {
        let Sent { direction, peer, protocol, flags, .. } = sent;
        if !permits(self.rules, direction, protocol, peer, sent.to()) {
            return false;
        }
        let phase = match (protocol, flags) {
            (6, SYN) => Phase::Asked,
            (6, ACK) => Phase::Open,
            (17, _) | (1, 8) => Phase::Talk,
            _ => return false,
        };
        let mut known = Modelled {
            began: direction,
            phase,
            replied: false,
            first: now,
            until: 0,
            stream: false,
            rules: self.changes,
        };
        known.until = now + known.seconds();
        self.connections.insert(sent.name(), known);
        true
    }
}

fn random_packet(random: &mut Random) -> Sent {
    let protocol = random.choose(&[6, 6, 6, 17, 1]);
    let flags = match protocol {
        6 => random.choose(&[SYN, SYN | ACK, ACK, ACK, ACK, FIN | ACK, RST | ACK]),
        1 => random.choose(&[8, 0]),
        _ => 0,
    };
    Sent {
        direction: random.choose(&[In, Out]),
        peer: random.below(CLIENTS.len()),
        protocol,
        vm_port: random.choose(&PORTS),
        peer_port: random.choose(&PORTS),
        flags,
    }
}

fn agree(seed: u64, steps: usize) {
    let config = ConnectionsConfig { max_entries: 4096, max_per_port: 1024, ..CONFIG };
    let connections = Connections::new(config);
    connections.prepare(0);
    let mut port = Port { connections, ..Port::new(RULES[0]) };
    let (mut model, mut random) = (Model::default(), Random(seed));
    let (mut passed, mut dropped) = (0, 0);
    for step in 0..steps {
        match random.below(400) {
            0..20 => port.wait(random.choose(&[1, 1, 3, 9, 20])),
            20..22 => port.wait(random.choose(&[61, 130, 400])),
            22..24 => {
                model.rules = random.below(RULES.len());
                model.changes += 1;
                port.change(RULES[model.rules]);
            }
            24 => {
                let peer = random.below(CLIENTS.len());
                let address = packet(&udp((CLIENTS[peer], 1), (VM, 1))).from;
                port.connections.flush(|parts| parts.remote.address == address);
                model.connections.retain(|name, _| name.0 != peer);
            }
            25 => {
                let steps = port.connections.sweep_steps();
                for step in 0..steps {
                    port.connections.sweep(step, port.now);
                }
            }
            _ => {
                let sent = random_packet(&mut random);
                let expected = model.judge(sent, port.now.second());
                let answer = port.judge(&sent.frame(), sent.direction);
                let case = || format!("seed {seed}, step {step}: {sent:?} {answer:?}");
                assert_eq!(answer.refused.is_none(), expected, "{}", case());
                *(if expected { &mut passed } else { &mut dropped }) += 1;
            }
        }
    }
    let live = port.connections.entries(None, port.now).len();
    let now = port.now.second();
    assert_eq!(live, model.connections.values().filter(|known| now <= known.until).count());
    assert!(passed > steps / 10 && dropped > steps / 10, "{passed} {dropped}");
}

#[test]
#[cfg_attr(miri, ignore = "the table's own tests access the same memory")]
fn random_packets_agree_with_a_plain_map() {
    (0..10).for_each(|seed| agree(seed, 4_000));
}

#[test]
#[ignore = "full"]
fn a_million_random_packets_agree_with_a_plain_map() {
    (100..110).for_each(|seed| agree(seed, 100_000));
}
