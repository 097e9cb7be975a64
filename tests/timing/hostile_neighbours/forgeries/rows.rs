//! What forgers send, to whom, and which frames pass.

use super::packets::{
    ACK, FIN, MORE, RST, SYN, SYN_ACK, at, datagram, error, fragment6, ip, ping, tcp, udp,
};
use super::victim::{CONNECTIONS, OWN, THEIRS};
use super::{FORGER, PEER, V1, V2};
use testkit::shares::SIZE;

/// Who forges.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sender {
    /// A guest without a guard.
    Free,
    /// A guest with a guard.
    Guarded,
}

/// The frames of a ring.
pub struct Row {
    pub what: &'static str,
    pub sender: Sender,
    /// The guest that the frames go to.
    pub victim: u8,
    /// Returns the packet of a frame.
    pub packet: fn(u16) -> Vec<u8>,
    /// True if the frame passes.
    pub passes: fn(u16) -> bool,
    /// An operator changes the filter meanwhile.
    pub changes: bool,
}

const NONE: fn(u16) -> bool = |_| false;
const ALL: fn(u16) -> bool = |_| true;
/// Ends that do not exist.
const fn nobody(n: u16) -> ([u8; 4], u16) {
    ([10, 9, (n >> 8) as u8, n as u8], 1_024)
}

const fn row(
    what: &'static str,
    victim: u8,
    packet: fn(u16) -> Vec<u8>,
    passes: fn(u16) -> bool,
) -> Row {
    Row { what, sender: Sender::Free, victim, packet, passes, changes: false }
}

/// Makes the packets that belong to the connections of V1, as if `local` had these connections.
fn answer(local: u8, n: u16) -> Vec<u8> {
    let (kind, own) = (n % 6, at(local, OWN + n / 6 % CONNECTIONS));
    let flags = [SYN_ACK, ACK, FIN, RST];
    match kind {
        0..4 => tcp(at(PEER, 22), own, flags[usize::from(kind)]),
        4 => udp(at(PEER, 53), at(local, 7_000)),
        _ => ping(at(PEER, 0), at(local, 0), 0),
    }
}

/// Makes first fragments that pass, and in turn fragments over their headers.
fn overlapping(n: u16) -> Vec<u8> {
    let (id, options) = (n / 3, [17, 0, 1, 4, 0, 0, 0, 0]);
    let first = |port| [&options[..], &datagram(9, port)].concat();
    match n % 3 {
        0 => fragment6(V1, id, 1, &first(5_000)),
        1 => fragment6(V1, id, 8, &datagram(9, 22)),
        _ => fragment6(V1, id, 1, &first(22)),
    }
}

/// Makes datagrams from ends whose lower bits are all the same.
fn alike(n: u16) -> Vec<u8> {
    udp(([10, (n >> 8) as u8, 0, 0], n << 8 | 1), at(V1, 5_000))
}

pub const ROWS: [Row; 16] = [
    row("answers of V1's peer to V2", V2, |n| answer(V2, n), NONE),
    row("answers of V1's peer at V2's port", V2, |n| answer(V1, n), NONE),
    Row { sender: Sender::Guarded, ..row("answers, guarded", V1, |n| answer(V1, n), NONE) },
    row(
        "SYN into connections",
        V1,
        |n| tcp(at(PEER, 22), at(V1, OWN + n % CONNECTIONS), SYN),
        NONE,
    ),
    row("answers of V1's peer, exact", V1, |n| answer(V1, n), ALL),
    row(
        "later fragments",
        V1,
        |n| ip(at(PEER, 0), at(V1, 0), 17, [n, 1], &datagram(9, 5_000)),
        NONE,
    ),
    row(
        "first fragments without end",
        V1,
        |n| ip(at(FORGER, 0), at(V1, 0), 17, [n, MORE], &datagram(9, 5_000)),
        ALL,
    ),
    row("overlapping fragments", V1, overlapping, |n| n % 3 == 0),
    row(
        "errors to V2 that quote foreign connections",
        V2,
        |n| {
            let quoted = tcp(at(V1, OWN + n / 2 % CONNECTIONS), at(PEER, 22), ACK);
            error(nobody(0), at([V1, V2][usize::from(n % 2)], 0), &quoted)
        },
        NONE,
    ),
    row(
        "errors to V1 that quote its packets, or its peer's",
        V1,
        |n| {
            let ends = [at(V1, OWN + n / 2 % CONNECTIONS), at(PEER, 22)];
            let [from, to] = if n % 2 == 0 { ends } else { [ends[1], ends[0]] };
            error(nobody(0), at(V1, 0), &tcp(from, to, ACK))
        },
        |n| n % 2 == 0,
    ),
    row("datagrams from 32,768 sources", V1, |n| udp(nobody(n), at(V1, 5_000)), ALL),
    row("datagrams from sources that are alike", V1, alike, ALL),
    row("SYN from 32,768 sources", V1, |n| tcp(nobody(n), at(V1, 80), SYN), ALL),
    row(
        "RST and SYN into the peer's connections",
        V1,
        |n| {
            let theirs = at(PEER, THEIRS + n / 2 % CONNECTIONS);
            tcp(theirs, at(V1, 80), [RST, SYN][usize::from(n % 2)])
        },
        ALL,
    ),
    row(
        "FIN into the peer's connections",
        V1,
        |n| tcp(at(PEER, THEIRS + n % CONNECTIONS), at(V1, 80), FIN),
        ALL,
    ),
    Row { changes: true, ..row("answers to V2, while rules change", V2, |n| answer(V2, n), NONE) },
];

const _: () = assert!(SIZE == 32_768);
