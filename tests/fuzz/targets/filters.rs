//! Rules, packets and connections: any text is a rule that reads the same or an error of one line;
//! an answer about a frame does not depend on how many of the first bytes are at hand; of a sound
//! packet the addresses and ports are those of etherparse; what a worker remembers passes by the
//! gate too; any bytes as a table of connections are refused, or are a table that reads the same.

use std::cell::Cell;

use base::frame::ethernet::Snapshot;
use base::frame::fold::{PI, fold};
use base::limits::{MAX_HEADERS_LEN, MAX_REJECT_LEN, SNAPSHOT_LEN};
use etherparse::{NetHeaders, PacketHeaders, TransportHeader};
use switch::Tick;
use switch::filter::memo::{Epoch, FlowMemo};
use switch::filter::named::Groups;
use switch::filter::packet::{self, Content, Parsed, Part, Unread};
use switch::filter::{
    Compiled, Connections, ConnectionsConfig, Direction, Filter, FilterRule, Fragments, Gate,
    Verdict, reject,
};
use switch::port_security::Headers;

use super::input::Input;
use super::packet::Packet;

const WORDS: &str = "in|out|accept|drop|reject|tcp|udp|icmp|icmp6:1|icmp:8/0|47|from|to|port|any|\
                     10.0.0.0/8|fd00::1|10.0.0.1-10.0.0.3|group:g|80|1-9|,|log|stateless|x|é| |\n";

const NOW: Tick = Tick::from_bits(8000);

/// Frames that `tests/fuzz_corpus.rs` asks of the corpus, each a bit of [`REACHED`].
pub const KINDS: [&str; 8] = [
    "a tag",
    "two tags",
    "a first fragment that passes",
    "a later fragment that passes",
    "a later fragment of IPv6 that passes",
    "a later fragment that is refused",
    "an error that passes by the packet that it quotes",
    "an error of ICMPv6 that passes so",
];

thread_local! {
    /// The kinds of frames that the inputs of this thread have had, a bit for each.
    pub static REACHED: Cell<u32> = const { Cell::new(0) };
}

/// The target.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    match input.below(4) {
        0 => rules(&mut input),
        1 => frames(&mut input),
        2 => streams(&mut input),
        _ => tables(&mut input),
    }
}

fn rules(input: &mut Input<'_>) {
    let mut text = String::new();
    if input.flag() {
        text = String::from_utf8_lossy(input.rest()).into_owned();
    } else {
        let words: Vec<&str> = WORDS.split('|').collect();
        while !input.is_empty() {
            text += input.choose(&words);
            text += if input.flag() { " " } else { "" };
        }
    }
    match text.parse::<FilterRule>() {
        Ok(rule) => {
            assert_eq!(rule.to_string().parse(), Ok(rule.clone()), "{text}");
            let filter = Filter { rules: vec![rule], ..Filter::default() };
            Compiled::new(&[&filter], &Groups::new(), 1).expect("one rule");
        }
        Err(error) => {
            let error = error.to_string();
            let is_plain = !error.contains(char::is_control);
            assert!(error.len() < 10 * text.len() + 300 && is_plain, "{error}");
        }
    }
}

fn headers(frame: &[u8]) -> Headers<'_> {
    let bytes = &frame[..frame.len().min(MAX_HEADERS_LEN)];
    Headers { bytes, whole: &[], len: frame.len(), sum_at: None, is_cut: false }
}

fn filter() -> Filter {
    let rules = [
        "in accept tcp,udp from 18.0.0.0/8,10.0.0.0/8 to port 0-30000",
        "in reject tcp",
        "in accept icmp,icmp6",
        "out accept icmp,icmp6,tcp,udp",
        "out accept 47 stateless",
    ];
    let rules = rules.map(|rule| rule.parse().expect("a rule")).to_vec();
    let default_in = Some(Verdict::Reject);
    Filter { name: "f".into(), default_in, default_out: Some(Verdict::Accept), rules }
}

/// A port of a small table.
struct Port {
    rules: Compiled,
    connections: Connections,
    fragments: Fragments,
}

impl Port {
    fn new() -> Port {
        let rules = Compiled::new(&[&filter()], &Groups::new(), 1).expect("a few rules");
        let (connections, fragments) = (table(), Fragments::default());
        Port { rules, connections, fragments }
    }

    fn gate(&self) -> Gate<'_> {
        let Port { rules, connections, fragments } = self;
        Gate { port: 0, rules, connections, fragments }
    }
}

fn table() -> Connections {
    let config = ConnectionsConfig {
        max_entries: 32,
        max_per_port: 16,
        reserved_per_port: 2,
        ports: 2,
        key: [1, 2, 3, 4],
    };
    let table = Connections::new(config);
    (0..2).for_each(|port| table.prepare(port));
    table
}

/// Frames of any bytes, and sound packets with a few bytes changed.
fn frames(input: &mut Input<'_>) {
    let port = Port::new();
    let mut rounds = 0;
    while !input.is_empty() && rounds < 64 {
        rounds += 1;
        let mut frame = match input.flag() {
            true => {
                let len = 14 + input.below(120);
                let mut bytes = input.bytes(len).to_vec();
                bytes.resize(len, 0);
                bytes
            }
            false => {
                let packet = Packet::from_input(input, 200);
                agree(&packet);
                packet.frame
            }
        };
        for _ in 0..input.below(4) {
            let at = input.below(frame.len().min(120));
            frame[at] = input.u8();
        }
        let whole = packet::parse(&headers(&frame));
        assert_ne!(whole, Err(Unread::Short));
        let some = input.below(frame.len().min(MAX_HEADERS_LEN) + 1);
        let part = packet::parse(&Headers { bytes: &frame[..some], ..headers(&frame) });
        assert!(part == whole || part == Err(Unread::Short), "{part:?} {whole:?}");
        let Ok(parsed) = whole else { continue };
        for direction in Direction::ALL {
            let is_known = port.gate().preview(&parsed, direction, NOW).is_known;
            let answer = port.gate().judge(&parsed, direction, NOW);
            reach(&parsed, is_known, answer.refused.is_none());
        }
        if let Parsed::Packet(packet) = parsed {
            let mut out = [0; MAX_REJECT_LEN];
            if let Some(len) = reject::answer(&headers(&frame), &packet, &mut out) {
                assert_eq!((&out[..6], &out[6..12]), (&frame[6..12], &frame[..6]));
                let Ok(Parsed::Packet(answer)) = packet::parse(&headers(&out[..len])) else {
                    panic!("an answer that is no packet")
                };
                assert_eq!((answer.from, answer.to), (packet.to, packet.from));
            }
        }
    }
}

/// Notes what kinds a frame is of.
fn reach(parsed: &Parsed, is_known: bool, passes: bool) {
    let Parsed::Packet(packet) = parsed else { return };
    let is_first = matches!(packet.part, Part::First { .. });
    let is_later = matches!(packet.part, Part::Later { .. });
    let quotes = is_known && passes && matches!(packet.content, Content::Error(..));
    let kinds = [
        packet.vlan != 0,
        packet.l3 == 22,
        is_first && passes,
        is_later && passes,
        is_later && passes && packet.v6,
        is_later && !passes,
        quotes && !packet.v6,
        quotes && packet.v6,
    ];
    let bits = (0..).zip(kinds).map(|(at, is)| u32::from(is) << at).sum::<u32>();
    REACHED.set(REACHED.get() | bits);
}

/// Etherparse reads the same of a sound packet.
fn agree(sent: &Packet) {
    let Ok(read) = PacketHeaders::from_ethernet_slice(&sent.frame) else { return };
    let (Some(net), Some(transport)) = (read.net, read.transport) else { return };
    let Ok(Parsed::Packet(packet)) = packet::parse(&headers(&sent.frame)) else { return };
    let addresses = match net {
        NetHeaders::Ipv4(ip, _) => {
            [ip.source, ip.destination].map(|address| u128::from(u32::from_be_bytes(address)))
        }
        NetHeaders::Ipv6(ip, _) => [ip.source, ip.destination].map(u128::from_be_bytes),
        NetHeaders::Arp(_) => return,
    };
    assert_eq!([packet.from, packet.to], addresses);
    let ports = match transport {
        TransportHeader::Tcp(tcp) => (tcp.source_port, tcp.destination_port),
        TransportHeader::Udp(udp) => (udp.source_port, udp.destination_port),
        _ => return,
    };
    let fields = packet.fields();
    assert_eq!((fields.from_port, fields.to_port), ports);
}

/// Packets of a few connections, which a worker remembers.
fn streams(input: &mut Input<'_>) {
    let port = Port::new();
    let (mut memo, mut rounds, mut now) = (FlowMemo::default(), 0, NOW);
    while !input.is_empty() && rounds < 200 {
        rounds += 1;
        let direction = input.choose(&Direction::ALL);
        let (tcp, peer) = (input.flag(), input.below(3) as u8);
        let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
        frame.extend([0x45, 0, 0, 40, 0, 7, 0, 0, 64, if tcp { 6 } else { 17 }, 0, 0]);
        let ends = [[10, 0, 0, 1], [10, 0, 0, 2 + peer]];
        let ends = if direction == Direction::Out { ends } else { [ends[1], ends[0]] };
        frame.extend(ends.concat());
        frame.extend([0, 80, 0, 80, 0, 20, 0, 0, 0, 0, 0, 0, 0x50]);
        frame.extend([input.choose(&[0x10, 0x10, 0x18, 2, 0x12, 0x11, 4]), 1, 0, 0, 0, 0, 0]);
        if input.below(4) == 0 {
            let at = input.below(frame.len());
            frame[at] ^= 1 << input.below(8);
        }
        let mut snapshot: Snapshot = [0; SNAPSHOT_LEN];
        snapshot[..frame.len()].copy_from_slice(&frame);
        memo.begin(Epoch::new(&port.gate(), direction, 0, now));
        let frames = [(&snapshot, frame.len() as u32)].into_iter();
        let knew = memo.stretch(port.gate().connections, frames).is_some();
        // A receiver drops a packet with a wrong length, so the memo need not look at lengths.
        let Ok(parsed) = packet::parse(&headers(&frame)) else { continue };
        let answer = port.gate().judge(&parsed, direction, now);
        assert!(!knew || answer.refused.is_none(), "{answer:?} {frame:02x?}");
        if let Parsed::Packet(packet) = parsed {
            memo.note(&packet, &snapshot, &answer);
        }
        if input.below(8) == 0 {
            now = Tick::from_bits(now.to_bits() + 1);
        }
    }
}

/// Bytes as a table of connections, with a right sum or not.
fn tables(input: &mut Input<'_>) {
    let mut bytes = b"VSWCONNS\x01\0\0\0".to_vec();
    if input.flag() {
        let ports = input.below(3);
        bytes.extend((ports as u32).to_le_bytes());
        for _ in 0..ports {
            let count = input.below(4);
            bytes.extend([1, b'a' + input.below(3) as u8]);
            bytes.extend((count as u32).to_le_bytes());
            (0..count).for_each(|_| entry(input, &mut bytes));
        }
    }
    bytes.extend(input.rest());
    let (words, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let words = words.iter().chain([&last]).map(|word| u64::from_le_bytes(*word));
    let sum = words.fold(bytes.len() as u64, |sum, word| fold(sum ^ word ^ PI[0], PI[1]));
    bytes.extend(sum.to_le_bytes());
    let number = |name: &str| ["a", "b"].iter().position(|known| *known == name);
    let number = |name: &str| number(name).map(|at| at as u16);
    let name = |port: u16| Some(["a", "b"][usize::from(port)].to_owned());
    let first = table();
    let Ok((count, _)) = first.load(&bytes, NOW, number) else {
        assert!(first.is_empty());
        return;
    };
    assert_eq!(first.len(), count);
    let second = table();
    let written = first.dump(NOW, name);
    let (count, orphans) = second.load(&written, NOW, number).expect("a dump");
    assert_eq!(count, first.entries(None, NOW).len());
    assert!(orphans.is_empty());
}

/// A connection that is possible, mostly.
fn entry(input: &mut Input<'_>, bytes: &mut Vec<u8>) {
    for _ in 0..2 {
        bytes.extend([input.u8(), 0, 0, 10]);
        bytes.extend([0; 12]);
    }
    bytes.extend([80, 0, input.u8(), 1, input.u8(), 0, input.choose(&[6, 17, 1, 132, 47])]);
    bytes.extend([input.u8() & 0x3e, input.u8() & 0x1f, 0]);
    bytes.extend((u32::from(input.u8()) & 0x7f).to_le_bytes());
}
