//! What may happen to a switch, as values: a seed makes a list of these, and a list can be run
//! again in parts. Every operation makes sense in every state; where it cannot be done it is
//! nothing.

use testkit::Rng;
use testkit::packet::Kind;
use testkit::vm::mac_of;

/// Ports of the switch.
pub const PORTS: usize = 4;
/// Stations that frames come from and go to: one for each port, and as many that roam.
pub const STATIONS: u8 = 8;
/// The port whose own address, and that of one that would roam, are static.
pub const FIXED: usize = 3;
/// Stations with a static address at [`FIXED`].
pub const FIXED_STATIONS: [u8; 2] = [3, 7];
/// Bytes of one publication: with its chains it stays one burst (64 frames, 64 KiB), which may
/// decide for all of it by one look at the table.
pub const BATCH_BYTES: usize = 40_000;
/// Frames of one publication.
pub const BATCH_FRAMES: usize = 60;
/// Longest frame that is sent: some are longer than any that is carried (65,557).
pub const LONGEST: usize = 65_600;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Src {
    Station(u8),
    Zero,
    Group,
}

impl Src {
    pub fn mac(self) -> [u8; 6] {
        match self {
            Src::Station(n) => mac_of(n),
            Src::Zero => [0; 6],
            Src::Group => [3, 0, 0, 0, 0, 1],
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dst {
    Station(u8),
    Broadcast,
    Multicast,
    /// A unicast address nobody has.
    Unknown,
    /// 01:80:c2:00:00:xx.
    Bridge(u8),
    /// The same, by LLDP.
    Lldp(u8),
}

impl Dst {
    pub fn mac(self) -> [u8; 6] {
        match self {
            Dst::Station(n) => mac_of(n),
            Dst::Broadcast => [0xff; 6],
            Dst::Multicast => [0x33, 0x33, 0, 0, 0, 1],
            Dst::Unknown => [2, 0x56, 0x53, 0xee, 0xee, 0xee],
            Dst::Bridge(last) | Dst::Lldp(last) => [1, 0x80, 0xc2, 0, 0, last],
        }
    }

    /// The type of frames that are sent there.
    pub fn ethertype(self) -> [u8; 2] {
        if let Dst::Lldp(_) = self { [0x88, 0xcc] } else { [0x88, 0xb5] }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spec {
    pub src: Src,
    pub dst: Dst,
    /// Less than 14 and more than 65,557 are no frames.
    pub len: usize,
}

/// How a guest is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Make {
    /// 256 mergeable buffers.
    Modern,
    /// One buffer a frame, a header of 10 bytes, no event indices.
    Legacy,
    /// Mergeable buffers of a few bytes; header and frame sent in pieces.
    Crumbs,
    /// A ring of 16.
    Small,
    /// All offloads.
    Offloads,
}

pub const MAKES: [Make; 5] =
    [Make::Modern, Make::Legacy, Make::Crumbs, Make::Small, Make::Offloads];

/// What a packet leaves to its device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leave {
    Nothing,
    Sum,
    Segments(u16),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// These frames, shown at once.
    Send {
        port: usize,
        frames: Vec<Spec>,
    },
    /// A TCP or UDP packet that asks for something.
    Packet {
        port: usize,
        dst: Dst,
        kind: usize,
        len: usize,
        leave: Leave,
    },
    /// A frame whose virtio-net header is nonsense.
    Junk {
        port: usize,
        dst: Dst,
        header: u8,
    },
    /// The guest takes frames but posts no buffers.
    Hold {
        port: usize,
    },
    /// It posts so many.
    Refill {
        port: usize,
        buffers: usize,
    },
    /// GET_VRING_BASE, and all that starts a ring.
    Stop {
        port: usize,
        tx: bool,
    },
    Start {
        port: usize,
        tx: bool,
    },
    Enable {
        port: usize,
        tx: bool,
        on: bool,
    },
    /// KICK and CALL are set again while the ring runs.
    Swap {
        port: usize,
        tx: bool,
    },
    /// The front-end leaves, and comes; `make` is a new guest, else it is the same one.
    Detach {
        port: usize,
    },
    Attach {
        port: usize,
        make: Option<Make>,
    },
    /// Malformed chains, then a restart of that ring.
    BadChain {
        port: usize,
        kind: usize,
        count: u16,
    },
    /// An index beyond the ring, or heads that do not exist.
    Break {
        port: usize,
        tx: bool,
    },
    /// Stopped, emptied, and started.
    Restart {
        port: usize,
        tx: bool,
    },
    Plug {
        port: usize,
    },
    Unplug {
        port: usize,
    },
    /// A frame out of memory that is plugged in, or was.
    SendPlugged {
        port: usize,
        dst: Dst,
    },
    Mtu {
        port: usize,
        mtu: u16,
    },
    Rarp {
        port: usize,
        station: u8,
    },
    /// The same, and gone at once.
    RarpAndLeave {
        port: usize,
        station: u8,
    },
    /// The administrator sets a key of a port that serves.
    Set {
        port: usize,
        key: Key,
    },
    /// Long enough for every learned address to be forgotten.
    Age,
}

/// A key of a port, with its value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Key {
    Isolated(bool),
    Learn(bool),
    MaxAddresses(Option<usize>),
    Admin(bool),
    Flood(bool),
    /// LLDP passes.
    Lldp(bool),
    /// Another bridge than the one that ports are in by themselves.
    Bridge(bool),
    /// An access port of this VLAN.
    Vlan(Option<u16>),
}

impl Key {
    /// As it is given to `vioswitchctl port set`.
    pub fn word(self) -> String {
        let on_off = |on| if on { "on" } else { "off" };
        match self {
            Key::Isolated(on) => format!("isolated={}", on_off(on)),
            Key::Learn(on) => format!("learn={}", on_off(on)),
            Key::Flood(on) => format!("flood={}", on_off(on)),
            Key::Lldp(on) => format!("pass={}", if on { "stp,lldp" } else { "" }),
            Key::MaxAddresses(most) => {
                format!("max-addresses={}", most.map_or(String::new(), |most| most.to_string()))
            }
            Key::Bridge(other) => format!("bridge={}", if other { "other" } else { "" }),
            Key::Vlan(vlan) => {
                format!("vlan={}", vlan.map_or(String::new(), |vlan| vlan.to_string()))
            }
            Key::Admin(up) => format!("admin={}", if up { "up" } else { "down" }),
        }
    }
}

/// What keeps frames away is mostly off.
fn any_key(rng: &mut Rng) -> Key {
    match rng.below(16) {
        14..=15 => Key::Lldp(rng.below(4) > 0),
        10 => Key::Bridge(true),
        11 => Key::Bridge(false),
        12..=13 => Key::Vlan((rng.below(3) == 0).then_some(10)),
        0..=3 => Key::Isolated(rng.below(2) == 0),
        4 => Key::Learn(rng.below(2) == 0),
        5..=6 => Key::MaxAddresses((rng.below(3) > 0).then_some(1 + rng.below(3) as usize)),
        7..=8 => Key::Admin(rng.below(4) > 0),
        _ => Key::Flood(rng.below(3) > 0),
    }
}

fn any_dst(rng: &mut Rng) -> Dst {
    match rng.below(20) {
        0..=11 => Dst::Station(rng.below(STATIONS.into()) as u8),
        12..=14 => Dst::Broadcast,
        15..=16 => Dst::Multicast,
        17 => Dst::Unknown,
        18 => Dst::Lldp([0, 2, 3, 14][rng.below(4) as usize]),
        // The last one of them is an ordinary group address.
        _ => Dst::Bridge(rng.below(17) as u8),
    }
}

fn any_src(rng: &mut Rng, port: usize) -> Src {
    match rng.below(20) {
        0..=13 => Src::Station(port as u8),
        14..=18 => Src::Station(rng.below(STATIONS.into()) as u8),
        _ if rng.below(2) == 0 => Src::Zero,
        _ => Src::Group,
    }
}

fn any_len(rng: &mut Rng) -> usize {
    (match rng.below(40) {
        0 => rng.below(14),
        1..=4 => 14 + rng.below(16),
        5..=30 => 60 + rng.below(200),
        31..=36 => 1500 + rng.below(30),
        _ => 60 + rng.below(9000),
    }) as usize
}

fn any_frames(rng: &mut Rng, port: usize) -> Vec<Spec> {
    let spec =
        |rng: &mut Rng| Spec { src: any_src(rng, port), dst: any_dst(rng), len: any_len(rng) };
    match rng.below(20) {
        0..=9 => vec![spec(rng)],
        10..=14 => (0..2 + rng.below(6)).map(|_| spec(rng)).collect(),
        15..=18 => {
            let (of, frames) = (spec(rng), 1 + rng.below(BATCH_FRAMES as u64));
            (0..frames).map(|_| of).collect()
        }
        _ => vec![Spec { len: 30_000 + rng.below(LONGEST as u64 - 29_999) as usize, ..spec(rng) }],
    }
}

fn any_packet(rng: &mut Rng, port: usize) -> Op {
    let leave = match rng.below(4) {
        0 => Leave::Nothing,
        1 => Leave::Sum,
        _ => Leave::Segments(500 + rng.below(1000) as u16),
    };
    let kind = rng.below(Kind::all().count() as u64) as usize;
    Op::Packet { port, dst: any_dst(rng), kind, len: 1 + rng.below(4000) as usize, leave }
}

/// One operation other than ageing.
pub fn any(rng: &mut Rng) -> Op {
    let port = rng.below(PORTS as u64) as usize;
    let tx = rng.below(2) == 0;
    let station = rng.below(STATIONS.into()) as u8;
    match rng.below(106) {
        0..=49 => Op::Send { port, frames: any_frames(rng, port) },
        50..=54 => any_packet(rng, port),
        55..=56 => Op::Junk { port, dst: any_dst(rng), header: rng.below(4) as u8 },
        57..=58 => Op::Hold { port },
        59..=63 => Op::Refill { port, buffers: 1 + rng.below(300) as usize },
        64..=66 => Op::Stop { port, tx },
        67..=72 => Op::Start { port, tx },
        73..=74 => Op::Enable { port, tx, on: false },
        75..=78 => Op::Enable { port, tx, on: true },
        79 => Op::Swap { port, tx },
        80..=81 => Op::Detach { port },
        82..=86 => {
            let make = MAKES[rng.below(MAKES.len() as u64) as usize];
            Op::Attach { port, make: (rng.below(3) > 0).then_some(make) }
        }
        87..=88 => {
            Op::BadChain { port, kind: rng.below(15) as usize, count: 1 + rng.below(5) as u16 }
        }
        89 => Op::Break { port, tx },
        90..=91 => Op::Restart { port, tx },
        92 => Op::Plug { port },
        93 => Op::Unplug { port },
        94..=95 => Op::SendPlugged { port, dst: any_dst(rng) },
        96 => Op::Mtu { port, mtu: if rng.below(2) == 0 { 1500 } else { 9000 } },
        97 => Op::Rarp { port, station },
        98 => Op::RarpAndLeave { port, station },
        100..=105 => Op::Set { port, key: any_key(rng) },
        _ => Op::Send {
            port,
            frames: vec![Spec { src: Src::Station(station), dst: Dst::Broadcast, len: 60 }],
        },
    }
}

/// The operations of a seed.
pub fn list(seed: u64, count: usize, ageing: bool) -> Vec<Op> {
    let mut rng = Rng::new(seed);
    let mut ops: Vec<Op> = (0..count).map(|_| any(&mut rng)).collect();
    if ageing {
        for part in 1..3 {
            ops.insert(part * count / 3, Op::Age);
        }
    }
    ops
}
