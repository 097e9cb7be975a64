//! The naive switch: a map from address to port, and the rules of docs/architecture.md in the order
//! in which a frame meets them. It knows nothing of rings and bursts; what it cannot know (which
//! frames found a buffer) it is told by `lab`.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use super::moves::{self, Goes, Moves};
use super::op::Key;

type Mac = [u8; 6];

/// What is counted, by port and name: "in frames", "in drop.hairpin", "lost drop.no_buffer".
pub type Books = BTreeMap<(usize, String), u64>;

/// A port as the switch sees it.
#[derive(Clone, Copy, Debug)]
pub struct Port {
    /// Its receive ring runs, is enabled, and has held buffers.
    pub up: bool,
    /// Its receive ring is known to be broken.
    pub broken: bool,
    /// The ring runs and is enabled, but has not held a buffer yet: floods pass it by.
    pub empty: bool,
    pub mtu: Option<usize>,
    pub keys: Keys,
}

/// What the administrator asks of a port.
#[derive(Clone, Copy, Debug)]
pub struct Keys {
    pub isolated: bool,
    pub learns: bool,
    pub most: usize,
    pub up: bool,
    pub floods: bool,
    /// It passes what LLDP sends.
    pub lldp: bool,
    pub segment: Segment,
}

/// Whether it is in the other bridge, and its VLAN.
pub type Segment = (bool, Option<u16>);

impl Port {
    const NEW: Port = Port {
        up: false,
        broken: false,
        empty: false,
        mtu: None,
        keys: Keys {
            isolated: false,
            learns: true,
            most: usize::MAX,
            up: true,
            floods: true,
            lldp: false,
            segment: (false, None),
        },
    };
}

struct Entry {
    port: usize,
    fixed: bool,
    seen: Instant,
    /// The same by the switch's clock.
    heard: Duration,
    moves: Moves,
}

impl Entry {
    fn new(port: usize, fixed: bool) -> Entry {
        Entry { port, fixed, seen: Instant::now(), heard: moves::now(), moves: Moves::default() }
    }
}

pub struct Switch {
    pub ports: Vec<Port>,
    pub books: Books,
    table: HashMap<(Segment, Mac), Entry>,
}

impl Switch {
    pub fn new(ports: usize, fixed: &[(Mac, usize)]) -> Switch {
        let table = fixed.iter().map(|&(mac, port)| (home(mac), Entry::new(port, true)));
        let table = table.collect();
        Switch { ports: vec![Port::NEW; ports], books: Books::new(), table }
    }

    pub fn count(&mut self, port: usize, what: &str, n: u64) {
        if n > 0 {
            *self.books.entry((port, what.to_string())).or_default() += n;
        }
    }

    /// Takes one frame in; answers the ports to whose rings it is given, and whether as a flood.
    /// `side` is the line it is counted on. `refused`: its virtio-net header is nonsense. `size` is
    /// what counts for an MTU: a packet's longest segment.
    pub fn forward(
        &mut self,
        from: usize,
        side: &str,
        frame: &[u8],
        refused: bool,
        size: usize,
    ) -> (Vec<usize>, bool) {
        self.count(from, &format!("{side} frames"), 1);
        match self.decide(from, frame, refused) {
            Err(reason) => {
                self.count(from, &format!("{side} drop.{reason}"), 1);
                (Vec::new(), false)
            }
            Ok((to, flood)) => {
                self.count(from, &format!("{side} copies"), to.len() as u64);
                (self.hand_out(to, size), flood)
            }
        }
    }

    fn decide(
        &mut self,
        from: usize,
        frame: &[u8],
        refused: bool,
    ) -> Result<(Vec<usize>, bool), &'static str> {
        match frame.len() {
            0..14 => return Err("too_short"),
            65_558.. => return Err("too_long"),
            _ if refused => return Err("bad_offload"),
            _ => {}
        }
        if !self.ports[from].keys.up {
            return Err("admin_down");
        }
        let segment = self.ports[from].keys.segment;
        if segment.1.is_some() && [[0x81, 0], [0x88, 0xa8]].contains(&[frame[12], frame[13]]) {
            return Err("vlan");
        }
        let (dst, src) = (mac(&frame[..6]), mac(&frame[6..12]));
        if src == [0; 6] || src[0] & 1 == 1 {
            return Err("bad_source");
        }
        self.learn(src, from);
        if dst[..5] == [1, 0x80, 0xc2, 0, 0] && dst[5] < 0x10 {
            // LLDP has three addresses, by IEEE Std 802.1AB.
            let lldp = [0, 3, 14].contains(&dst[5]) && frame[12..14] == [0x88, 0xcc];
            if !lldp || !self.ports[from].keys.lldp {
                return Err("reserved");
            }
            let mut others = self.others(from, true);
            others.retain(|&to| self.ports[to].keys.lldp);
            return if others.is_empty() { Err("no_receiver") } else { Ok((others, true)) };
        }
        let known = self.table.get(&(segment, dst)).filter(|_| dst[0] & 1 == 0);
        match known.map(|entry| entry.port) {
            Some(port) if port == from => Err("hairpin"),
            Some(port) if self.are_isolated(from, port) => Err("isolated"),
            Some(port) if !self.ports[port].keys.up => Err("admin_down"),
            Some(port) => Ok((vec![port], false)),
            None => match self.others(from, dst[0] & 1 == 1) {
                none if none.is_empty() => Err("no_receiver"),
                others => Ok((others, true)),
            },
        }
    }

    /// Drops the copies that no ring is asked to take.
    fn hand_out(&mut self, to: Vec<usize>, size: usize) -> Vec<usize> {
        let mut asked = Vec::new();
        for port in to {
            let Port { up, broken, empty, mtu, .. } = self.ports[port];
            let reason = match (up, broken) {
                _ if mtu.is_some_and(|mtu| size > mtu + 14) => "too_big",
                (_, true) => "ring_broken",
                (false, _) if empty => "no_buffer",
                (false, _) => "port_down",
                (true, false) => {
                    asked.push(port);
                    continue;
                }
            };
            self.count(port, &format!("lost drop.{reason}"), 1);
        }
        asked
    }

    fn are_isolated(&self, one: usize, other: usize) -> bool {
        [one, other].iter().all(|&port| self.ports[port].keys.isolated)
    }

    /// The ports that a flood reaches.
    fn others(&self, from: usize, group: bool) -> Vec<usize> {
        let takes = |&to: &usize| {
            let Port { up, keys, .. } = self.ports[to];
            let reached = keys.segment == self.ports[from].keys.segment && to != from;
            reached && up && keys.up && (group || keys.floods) && !self.are_isolated(from, to)
        };
        (0..self.ports.len()).filter(takes).collect()
    }

    /// Learns a source; what is static stays where it is, and so does what has no room. The switch
    /// leaves that to the next frame while another thread has the place in its table: none has,
    /// where operations come one by one, but for one that removes what is too old each second, and
    /// would have to lose its CPU with the very place.
    fn learn(&mut self, mac: Mac, port: usize) {
        let Keys { learns, segment, .. } = self.ports[port].keys;
        if !learns {
            return;
        }
        let room: Vec<bool> = (0..self.ports.len()).map(|port| self.has_room(port)).collect();
        let Some(entry) = self.table.get_mut(&(segment, mac)) else {
            if room[port] {
                self.table.insert((segment, mac), Entry::new(port, false));
            }
            return;
        };
        let to = match entry.port == port {
            _ if entry.fixed => return,
            true => port,
            false if !room[port] => return,
            false => match entry.moves.one_more(entry.port, port, entry.heard) {
                Goes::There => port,
                Goes::Back(origin) if origin != entry.port && room[origin] => origin,
                Goes::Back(_) | Goes::Nowhere => return,
            },
        };
        (entry.port, entry.seen, entry.heard) = (to, Instant::now(), moves::now());
    }

    fn has_room(&self, port: usize) -> bool {
        (self.addresses(port) - self.fixed(port)) < self.ports[port].keys.most as u64
    }

    /// A key is set while the port serves.
    pub fn set(&mut self, port: usize, key: Key) {
        let keys = &mut self.ports[port].keys;
        match key {
            Key::Isolated(on) => keys.isolated = on,
            Key::Learn(on) => keys.learns = on,
            Key::MaxAddresses(most) => keys.most = most.unwrap_or(usize::MAX),
            Key::Admin(up) => keys.up = up,
            Key::Flood(on) => keys.floods = on,
            Key::Lldp(on) => keys.lldp = on,
            Key::Bridge(other) => keys.segment.0 = other,
            Key::Vlan(vlan) => keys.segment.1 = vlan,
        }
        let segment = keys.segment;
        match key {
            Key::Learn(false) => self.flush(port),
            Key::Bridge(_) | Key::Vlan(_) => self.resettle(port, segment),
            _ => {}
        }
    }

    /// A port is in another bridge or VLAN: its static addresses go with it, its others do not.
    fn resettle(&mut self, port: usize, segment: Segment) {
        let mut fixed = Vec::new();
        self.table.retain(|(of, mac), entry| {
            let goes = entry.port == port && *of != segment;
            fixed.extend((goes && entry.fixed).then_some(*mac));
            !goes
        });
        let left = self.table.iter_mut().filter(|((of, _), _)| *of != segment);
        left.for_each(|(_, entry)| entry.moves.forget(port));
        for mac in fixed {
            self.table.insert((segment, mac), Entry::new(port, true));
        }
    }

    pub fn flush(&mut self, port: usize) {
        self.table.retain(|_, entry| entry.fixed || entry.port != port);
        self.table.values_mut().for_each(|entry| entry.moves.forget(port));
    }

    /// Addresses of a port.
    pub fn addresses(&self, port: usize) -> u64 {
        self.table.values().filter(|entry| entry.port == port).count() as u64
    }

    /// Static ones among them.
    pub fn fixed(&self, port: usize) -> u64 {
        self.table.values().filter(|entry| entry.fixed && entry.port == port).count() as u64
    }

    /// Forgets who was silent for longer than `sure`. True if somebody was silent for longer than
    /// `maybe`: whether the switch still knows that one cannot be told.
    pub fn age(&mut self, maybe: Duration, sure: Duration) -> bool {
        self.table.retain(|_, entry| entry.fixed || entry.seen.elapsed() < sure);
        self.table.values().any(|entry| !entry.fixed && entry.seen.elapsed() > maybe)
    }
}

/// An address where ports are by themselves.
fn home(mac: Mac) -> (Segment, Mac) {
    ((false, None), mac)
}

fn mac(bytes: &[u8]) -> Mac {
    bytes.try_into().expect("six octets")
}
