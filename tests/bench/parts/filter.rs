//! Filters: the rules' answer about a first packet, the table's about the next ones, and what a
//! worker remembers. `--toggle-collect='*rule_for*'` counts the rules alone.

use std::hint::black_box;

use base::frame::ethernet::Snapshot;
use criterion::{BatchSize, Criterion, Throughput};
use switch::Tick;
use switch::filter::compiled::Fields;
use switch::filter::memo::{Epoch, FlowMemo};
use switch::filter::named::Groups;
use switch::filter::packet::{self, Parsed};
use switch::filter::{
    Compiled, Connections, ConnectionsConfig, Direction, Filter, Fragments, Gate, Verdict,
};
use switch::port_security::Headers;

use super::BURST;

/// As a cloud's group has them: each rule for other addresses and ports.
fn compiled(count: u32) -> Compiled {
    let rule = |n: u32| {
        let (high, low) = (n >> 8, n & 0xff);
        let to = 1000 + n;
        format!("in accept tcp from 10.{high}.{low}.0/24 to 192.168.{high}.{low} port {to}")
    };
    let rules = (0..count).map(|n| rule(n).parse().expect("a rule")).collect();
    let default_in = Some(Verdict::Drop);
    let filter = Filter { name: "f".into(), default_in, default_out: None, rules };
    Compiled::new(&[&filter], &Groups::new(), 1).expect("not too many")
}

/// Fields of packets that match rules all over the list.
fn packets(count: u32) -> Vec<Fields> {
    let fields = |i: u32| {
        let n = i * 2_654_435 % count;
        Fields {
            v6: false,
            protocol: 6,
            from: u128::from(0x0a00_0001 + (n << 8)),
            to: u128::from(0xc0a8_0000 + n),
            from_port: 40_000,
            to_port: 1000 + n as u16,
        }
    };
    (0..BURST as u32).map(fields).collect()
}

/// A segment of the flow `n`, 60 bytes long, to the port.
fn segment(n: u16, flags: u8, direction: Direction) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    frame.extend([0x45, 0, 0, 46, 0, 7, 0, 0, 64, 6, 0, 0]);
    let (peer, port) = ([10, 0, 0, 1], [192, 168, 0, 0]);
    let (from, to) = if direction == Direction::In { (peer, port) } else { (port, peer) };
    frame.extend([from, to].concat());
    let ports = [n.to_be_bytes(), 1000u16.to_be_bytes()];
    let (from, to) = if direction == Direction::In { (0, 1) } else { (1, 0) };
    frame.extend([ports[from], ports[to]].concat());
    frame.extend([0, 0, 0, 9, 0, 0, 0, 5, 0x50, flags, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    frame
}

fn parse(frame: &[u8]) -> Parsed {
    let headers =
        Headers { bytes: frame, whole: &[], len: frame.len(), sum_at: None, is_cut: false };
    packet::parse(&headers).expect("a sound packet")
}

/// `filter/rules/<rules>`, `filter/first`, `filter/established/<flows>`,
/// `filter/remembered/<flows>`
pub fn all(c: &mut Criterion) {
    let mut group = c.benchmark_group("filter");
    group.throughput(Throughput::Elements(BURST as u64));
    for count in [10, 100, 1000] {
        let (rules, packets) = (compiled(count), packets(count));
        group.bench_function(format!("rules/{count}"), |b| {
            b.iter(|| {
                for fields in black_box(&packets) {
                    let ruling = rules.rule_for(Direction::In, fields);
                    assert_eq!(ruling.verdict, Verdict::Accept);
                }
            });
        });
    }
    let now = Tick::from(1000);
    let (rules, fragments) = (compiled(10), Fragments::default());
    let new_table = || {
        let table = Connections::new(ConnectionsConfig::limited(1, [1, 2, 3, 4]));
        table.prepare(0);
        table
    };
    let table = new_table();
    let judge = |table: &Connections, frame: &[u8], direction| {
        let gate = Gate { port: 0, rules: &rules, connections: table, fragments: &fragments };
        gate.judge(&parse(frame), direction, now)
    };
    group.bench_function("first", |b| {
        let frames: Vec<_> = (0..BURST as u16).map(|n| segment(1 + n, 2, Direction::In)).collect();
        b.iter_batched(
            new_table,
            |table| {
                for frame in &frames {
                    assert_eq!(judge(&table, frame, Direction::In).refused, None);
                }
                table
            },
            BatchSize::LargeInput,
        );
    });
    for flows in [1, 8, BURST] {
        let mut frames = Vec::new();
        for n in 0..BURST {
            let port = 1 + (n % flows) as u16;
            judge(&table, &segment(port, 2, Direction::In), Direction::In);
            judge(&table, &segment(port, 0x12, Direction::Out), Direction::Out);
            frames.push(segment(port, 0x10, Direction::In));
        }
        group.bench_function(format!("established/{flows}"), |b| {
            b.iter(|| {
                for frame in black_box(&frames) {
                    assert_eq!(judge(&table, frame, Direction::In).refused, None);
                }
            });
        });
        let mut memo = FlowMemo::default();
        let gate = Gate { port: 0, rules: &rules, connections: &table, fragments: &fragments };
        memo.begin(Epoch::new(&gate, Direction::In, 0, now));
        let mut snapshots: Vec<Snapshot> = Vec::new();
        for frame in &frames {
            let mut snapshot = [0; 64];
            snapshot[..60].copy_from_slice(frame);
            let Parsed::Packet(packet) = parse(frame) else { unreachable!("IP") };
            let answer = judge(&table, frame, Direction::In);
            memo.note(&packet, &snapshot, &answer);
            snapshots.push(snapshot);
        }
        group.bench_function(format!("remembered/{flows}"), |b| {
            b.iter(|| remembered(&mut memo, black_box(&snapshots), &gate));
        });
    }
    group.finish();
}

/// Passes a burst by the memo.
#[inline(never)]
fn remembered(memo: &mut FlowMemo, frames: &[Snapshot], gate: &Gate<'_>) {
    let mut at = 0;
    while at < frames.len() {
        let rest = frames[at..].iter().map(|frame| (frame, 60));
        let (_, count) = memo.stretch(gate.connections, rest).expect("a known flow");
        at += count;
    }
}
