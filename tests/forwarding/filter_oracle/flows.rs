//! What two ends say to each other: connections with honest scripts, and packets that no honest end
//! sends.

use std::collections::VecDeque;
use std::fmt;
use std::net::IpAddr;

use testkit::Rng;

use super::nft::By;
use super::packets::{ACK, Between, Cut, FIN, Ip, PSH, RST, SYN, URG, icmp, tcp, udp};
use super::rules::{ICMP, ICMPV6, LOCAL, REMOTE, SERVICES, TCP, UDP, UNKNOWN, address, of, one_in};

const FIN_ACK: u8 = FIN | ACK;
/// Flags of TCP that have no meaning together.
pub const SENSELESS: [u8; 5] = [0, FIN, SYN | FIN, SYN | RST, FIN | RST | ACK];

/// What an ICMP error is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum About {
    /// A packet of the flow.
    Flow,
    /// A packet with another port or identifier.
    Other,
    /// A packet of the flow, but the error goes to another than the packet's sender.
    Astray,
    /// A fragment behind the first one.
    Fragment,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// A segment with these flags.
    Tcp(u8),
    /// A packet of UDP, or of an unknown protocol.
    Datagram,
    /// ICMP with this code.
    Request(u8),
    Reply(u8),
    Error(u8, About),
    /// ICMP that is neither a query nor an error.
    Message,
}

/// A packet of a flow, to be sent or sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// From the VM.
    pub out: bool,
    pub what: What,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", if self.out { "out:" } else { "in:" })?;
        match self.what {
            What::Tcp(flags) => {
                let names =
                    [(SYN, "S"), (FIN, "F"), (RST, "R"), (PSH, "P"), (ACK, "."), (URG, "U")];
                let set = names.iter().filter(|(flag, _)| flags & flag != 0);
                write!(f, "tcp[{}]", set.map(|(_, name)| *name).collect::<String>())
            }
            what => write!(f, "{what:?}"),
        }
    }
}

/// Two ends, and what is still to be said.
pub struct Flow {
    pub protocol: u8,
    pub local: IpAddr,
    pub remote: IpAddr,
    /// Those of the VM and of the other; an identifier twice for ICMP.
    pub ports: (u16, u16),
    /// The VM begins.
    pub out: bool,
    /// The type of an ICMP request.
    query: u8,
    script: VecDeque<Event>,
    /// What was said, and how each passed.
    pub past: Vec<(Event, Option<By>)>,
    /// One passed here or there alone, so the states may differ.
    pub differs: bool,
}

/// A packet that is to be sent, in one part or more.
pub struct Packet {
    pub flow: usize,
    pub event: Event,
    pub ip: Ip,
    pub between: Between,
    pub cut: Cut,
    pub parts: Vec<Vec<u8>>,
}

impl Packet {
    /// True if the packet may leave another state here than there, even if it is dropped by both:
    /// the ports are read differently, or the first fragment alone passes here.
    pub fn may_part_states(&self) -> bool {
        self.between == Between::Authentication || self.cut == Cut::Reversed
    }
}

impl Flow {
    pub fn any(rng: &mut Rng) -> Flow {
        let v6 = one_in(rng, 2);
        let (local, remote) = (address(rng, &LOCAL, v6), address(rng, &REMOTE, v6));
        let protocol = match rng.below(10) {
            0..6 => TCP,
            6..8 => UDP,
            8 if v6 => ICMPV6,
            8 => ICMP,
            _ => UNKNOWN,
        };
        let out = one_in(rng, 2);
        let client = 1_025 + rng.below(60_000) as u16;
        let any = 1 + rng.below(65_534) as u16;
        let server = if one_in(rng, 4) { any } else { *of(rng, &SERVICES) };
        let ports = match protocol {
            TCP | UDP if out => (client, server),
            TCP | UDP => (server, client),
            _ => (client, client),
        };
        let query = if v6 { 128 } else { *of(rng, &[8, 8, 13]) };
        let script = VecDeque::new();
        let past = Vec::new();
        let mut flow =
            Flow { protocol, local, remote, ports, out, query, script, past, differs: false };
        flow.script = flow.script(rng).into();
        flow
    }

    /// A flow of which nothing is said.
    pub fn ended(rng: &mut Rng) -> Flow {
        let mut flow = Flow::any(rng);
        flow.end();
        flow
    }

    fn v6(&self) -> bool {
        self.local.is_ipv6()
    }

    /// The direction of the next packet; none if nothing more is said.
    pub fn next_out(&self) -> Option<bool> {
        self.script.front().map(|event| event.out)
    }

    /// The direction of the first packet that passed and began a connection.
    pub fn began_out(&self) -> Option<bool> {
        let begins = |event: &Event| !matches!(event.what, What::Error(..) | What::Message);
        let mut past = self.past.iter();
        let first = past.find(|(event, by)| *by == Some(By::Connection) && begins(event));
        first.map(|(event, _)| event.out)
    }

    /// Says nothing more.
    pub fn end(&mut self) {
        self.script.clear();
    }

    fn script(&self, rng: &mut Rng) -> Vec<Event> {
        let mut steps = match self.protocol {
            TCP => tcp_script(rng),
            UDP | UNKNOWN => {
                (0..2 + rng.below(8)).map(|_| (one_in(rng, 2), What::Datagram)).collect()
            }
            _ => query_script(rng),
        };
        // The first end begins in most flows.
        if one_in(rng, 4) {
            for _ in 0..=rng.below(3) {
                let at = rng.below(steps.len() as u64) as usize;
                let step = (one_in(rng, 2), self.stray(rng));
                match rng.below(3) {
                    0 => steps.insert(at, step),
                    1 => steps[at] = step,
                    _ => steps.swap(at, 0),
                }
            }
        }
        let errors = one_in(rng, 3);
        let mut script = Vec::new();
        for (first, what) in steps {
            let out = first == self.out;
            script.push(Event { out, what });
            if errors && one_in(rng, 4) {
                script.push(Event { out: one_in(rng, 2), what: self.error(rng) });
            }
        }
        script
    }

    /// A packet that no honest end sends now.
    fn stray(&self, rng: &mut Rng) -> What {
        match self.protocol {
            TCP => What::Tcp(match rng.below(8) {
                0 => SYN,
                1 => SYN | ACK,
                2 => FIN | ACK,
                3 => RST,
                4 => RST | ACK,
                5 => ACK | PSH,
                6 => *of(rng, &SENSELESS),
                _ => URG | *of(rng, &[SYN, ACK, FIN | ACK, SYN | ACK, RST]),
            }),
            ICMP | ICMPV6 => *of(rng, &[What::Message, What::Request(1), What::Reply(1)]),
            _ => What::Datagram,
        }
    }

    fn error(&self, rng: &mut Rng) -> What {
        let kinds: &[u8] = if self.v6() { &[1, 2, 3, 4] } else { &[3, 3, 4, 5, 11, 12] };
        let about = match rng.below(8) {
            0 => About::Other,
            1 => About::Astray,
            2 => About::Fragment,
            _ => About::Flow,
        };
        What::Error(*of(rng, kinds), about)
    }

    /// Leaves out each SYN behind a segment that may end the connection.
    pub fn without_reopening(mut self) -> Flow {
        let mut is_over = false;
        self.script.retain(|event| {
            let What::Tcp(flags) = event.what else { return true };
            is_over |= flags & (FIN | RST) != 0;
            !is_over || flags & SYN == 0
        });
        self
    }

    /// The next packet.
    pub fn next(
        &mut self,
        rng: &mut Rng,
        flow: usize,
        (number, may_be_cut): (u32, bool),
    ) -> Option<Packet> {
        let event = self.script.pop_front()?;
        let may_be_cut = may_be_cut && !matches!(event.what, What::Error(..) | What::Message);
        let between = match rng.below(24) {
            0 if !self.v6() => Between::Options,
            0 => Between::HopByHop,
            1 if self.v6() => Between::Routing,
            2 if self.v6() => Between::Destination,
            3 if self.v6() && self.protocol != UNKNOWN => Between::Authentication,
            4 if self.v6() => Between::Two,
            _ => Between::Nothing,
        };
        let cut = match rng.below(40) {
            _ if !may_be_cut => Cut::Whole,
            0 | 1 => Cut::Two,
            2 => Cut::Three,
            // Flows without ports share a state, which must not differ.
            3 if self.protocol != UNKNOWN => {
                *of(rng, &[Cut::Reversed, Cut::Overlap, Cut::Headless])
            }
            4 if self.v6() => Cut::Atomic,
            4 => Cut::Short,
            _ => Cut::Whole,
        };
        let (mut ip, body) = self.body(rng, event, cut, number);
        if let What::Error(_, About::Astray) = event.what {
            let list: &[&str] = if event.out { &REMOTE } else { &LOCAL };
            while ip.to == if event.out { self.remote } else { self.local } {
                ip.to = address(rng, list, self.v6());
            }
        }
        let body = ip.summed(body);
        Some(Packet { flow, event, ip, between, cut, parts: ip.parts(between, cut, &body) })
    }

    fn ip(&self, out: bool, protocol: u8, number: u32) -> Ip {
        let (from, to) = if out { (self.local, self.remote) } else { (self.remote, self.local) };
        Ip { from, to, protocol, number }
    }

    fn body(&self, rng: &mut Rng, event: Event, cut: Cut, number: u32) -> (Ip, Vec<u8>) {
        let Event { out, what } = event;
        let icmp_number = if self.v6() { ICMPV6 } else { ICMP };
        let room = match cut {
            Cut::Whole | Cut::Atomic => rng.below(40) as usize,
            cut => cut.first(self.v6()) + 24 + 8 * rng.below(4) as usize,
        };
        let data = vec![0; room];
        match what {
            What::Error(kind, about) => {
                let ip = self.ip(out, icmp_number, number);
                let quoted = self.quoted(rng, !out, about);
                let code = rng.below(2) as u8;
                (ip, icmp((kind, code), [0, 0, 5, 0], &quoted))
            }
            What::Message => {
                let ip = self.ip(out, icmp_number, number);
                let kind = if self.v6() { 144 } else { 9 };
                (ip, icmp((kind, 0), [0; 4], &data))
            }
            _ => {
                let ip = self.ip(out, self.protocol, number);
                (ip, self.said(event, &data))
            }
        }
    }

    /// The body of a packet that is no error.
    fn said(&self, Event { out, what }: Event, data: &[u8]) -> Vec<u8> {
        let (local, remote) = self.ports;
        let ports = if out { (local, remote) } else { (remote, local) };
        let id = [(local >> 8) as u8, local as u8, 0, 1];
        let reply = if self.v6() {
            129
        } else if self.query == 8 {
            0
        } else {
            14
        };
        // A message with times has twelve bytes of them.
        let times = [&[0; 12][..], data].concat();
        match what {
            What::Tcp(flags) => tcp(ports, flags, data),
            What::Request(code) => icmp((self.query, code), id, &times),
            What::Reply(code) => icmp((reply, code), id, &times),
            _ if self.protocol == UDP => udp(ports, data),
            _ => data.to_vec(),
        }
    }

    /// The beginning of a packet that went this way.
    fn quoted(&self, rng: &mut Rng, out: bool, about: About) -> Vec<u8> {
        let mut ip = self.ip(out, self.protocol, 0);
        let what = match self.protocol {
            TCP => What::Tcp(*of(rng, &[SYN, ACK, ACK | PSH])),
            ICMP | ICMPV6 if out == self.out => What::Request(0),
            ICMP | ICMPV6 => What::Reply(0),
            _ => What::Datagram,
        };
        let mut body = ip.summed(self.said(Event { out, what }, &[0; 8]));
        if about == About::Other {
            // The second port, or the identifier.
            let at = if matches!(self.protocol, ICMP | ICMPV6) { 5 } else { 3 };
            match self.protocol {
                UNKNOWN => ip.protocol = UNKNOWN + 1,
                _ => body[at] ^= 0x55,
            }
        }
        let cut = if about == About::Fragment { Cut::Headless } else { Cut::Whole };
        if cut == Cut::Headless {
            body.resize(cut.first(self.v6()) + 24, 0);
        }
        let mut quoted = ip.parts(Between::Nothing, cut, &body).remove(0);
        // RFC 792 asks for eight bytes of the body.
        let header = if self.v6() { 48 } else { 20 };
        quoted.truncate(header + if one_in(rng, 2) { 8 } else { 20 });
        quoted
    }
}

/// Steps of a connection: true for those of the end that begins.
fn tcp_script(rng: &mut Rng) -> Vec<(bool, What)> {
    let segments = |list: &[(bool, u8)]| -> Vec<(bool, What)> {
        list.iter().map(|(first, flags)| (*first, What::Tcp(*flags))).collect()
    };
    let mut steps = segments(match rng.below(12) {
        // One that is under way, of which each end may speak first.
        0 => &[(true, ACK | PSH), (false, ACK)],
        1 => &[(false, ACK | PSH), (true, ACK)],
        // Both begin at once.
        2 => &[(true, SYN), (false, SYN), (true, SYN | ACK), (false, SYN | ACK)],
        // The answer is lost, or late.
        3 => &[(true, SYN), (true, SYN), (false, SYN | ACK), (false, SYN | ACK), (true, ACK)],
        // Nobody listens.
        4 => return segments(&[(true, SYN), (false, RST | ACK), (true, SYN), (false, RST | ACK)]),
        _ => &[(true, SYN), (false, SYN | ACK), (true, ACK)],
    });
    for _ in 0..rng.below(6) {
        steps.push((one_in(rng, 2), What::Tcp(*of(rng, &[ACK, ACK | PSH]))));
    }
    let one = one_in(rng, 2);
    steps.extend(segments(match rng.below(7) {
        0 => &[],
        1 => &[(true, RST), (false, ACK)],
        2 => &[(false, RST | ACK), (true, ACK)],
        3 => &[(true, FIN_ACK), (false, FIN_ACK), (true, ACK), (false, ACK)],
        4 => &[
            (true, FIN_ACK),
            (false, ACK),
            (false, ACK | PSH),
            (true, ACK),
            (false, FIN_ACK),
            (true, ACK),
        ],
        5 if one => &[(true, FIN_ACK), (false, FIN_ACK), (true, ACK)],
        _ => &[(false, FIN_ACK), (true, ACK), (true, FIN_ACK), (false, ACK)],
    }));
    // The same ports once more, from either end, and what is late of before.
    if one_in(rng, 2) {
        let first = one_in(rng, 2);
        steps.extend(segments(&[(first, SYN), (!first, SYN | ACK), (first, ACK), (!first, ACK)]));
        if one_in(rng, 2) {
            let late = steps.len() - 3;
            steps.insert(late, (one_in(rng, 2), What::Tcp(ACK)));
        }
    }
    steps
}

fn query_script(rng: &mut Rng) -> Vec<(bool, What)> {
    let mut steps = Vec::new();
    for _ in 0..=rng.below(3) {
        steps.extend([(true, What::Request(0)), (false, What::Reply(0))]);
    }
    if one_in(rng, 4) {
        steps.remove(0);
    }
    steps
}
