//! The forwarding table: a burst of look-ups or learnings among few and many addresses.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use base::frame::MacAddr;
use base::limits::{FDB_AGE_SECONDS, FDB_MAX_ENTRIES};
use criterion::{BenchmarkGroup, Criterion, Throughput, measurement::WallTime};
use switch::{Fdb, FdbConfig, Learn, PortId};
use testkit::Rng;

use super::BURST;

const PORTS: usize = 16;
/// The second in which everything happens.
const NOW: u32 = 100;

/// `fdb/<what>/<addresses in the table>`
pub fn all(c: &mut Criterion) {
    for (what, bench) in [
        ("lookup hit", lookup_hit as fn(&mut Group, usize)),
        ("lookup miss", lookup_miss),
        ("learn known", learn_known),
        ("learn refresh", learn_refresh),
        ("learn insert", learn_insert),
        ("learn move", learn_move),
        ("lookup beside lookup", lookup_beside_lookup),
        ("lookup beside move", lookup_beside_move),
        ("move beside move", move_beside_move),
    ] {
        let mut group = c.benchmark_group(format!("fdb/{what}"));
        group.throughput(Throughput::Elements(BURST as u64));
        for addresses in [10, 1_000, FDB_MAX_ENTRIES as usize] {
            bench(&mut group, addresses);
        }
        group.finish();
    }
}

type Group<'a> = BenchmarkGroup<'a, WallTime>;

/// An empty table of the default size where one port may fill it.
fn empty() -> Fdb {
    Fdb::new(FdbConfig {
        max_entries: FDB_MAX_ENTRIES,
        max_per_port: FDB_MAX_ENTRIES,
        reserved_per_port: 16,
        max_per_segment: u32::MAX,
        reserved_per_segment: 0,
        age_seconds: FDB_AGE_SECONDS,
        damping: true,
        ports: PORTS,
        key: [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210],
    })
}

/// A table that knows `walk`'s addresses, all on port 0.
fn filled(walk: &Walk) -> Fdb {
    let fdb = empty();
    add(&fdb, walk);
    fdb
}

fn add(fdb: &Fdb, walk: &Walk) {
    for &(mac, _) in &walk.visits {
        fdb.learn(mac, 0, NOW);
    }
}

/// Visits of addresses in an order that the CPU cannot foresee: rounds over all of them, each
/// shuffled by itself.
struct Walk {
    /// Addresses, and a port that is another one than at the last visit.
    visits: Vec<(MacAddr, PortId)>,
    at: usize,
}

impl Walk {
    /// Over `count` addresses, numbered as hypervisors do, from 52:54:`prefix`.
    fn new(prefix: u64, count: usize) -> Walk {
        let mut random = Rng::new(count as u64);
        let mut visits = Vec::new();
        let mut round = 0;
        // An even number of rounds, or the ports would not alternate from the last to the first;
        // whole bursts; and more visits than a branch predictor remembers.
        while round % 2 != 0 || visits.len() % BURST != 0 || visits.len() < 64 * BURST {
            let from = visits.len();
            let mac = |i: usize| MacAddr::from_bits(0x5254_0000_0000 | prefix << 24 | i as u64);
            visits.extend((0..count).map(|i| (mac(i), round % 2 + 1)));
            random.shuffle(&mut visits[from..]);
            round += 1;
        }
        Walk { visits, at: 0 }
    }

    /// The next burst, round and round.
    #[inline(always)]
    fn next(&mut self) -> &[(MacAddr, PortId)] {
        let from = self.at % self.visits.len();
        self.at = from + BURST;
        &self.visits[from..self.at]
    }
}

/// Looks a burst up; how many were found.
#[inline(always)]
fn look_up(fdb: &Fdb, visits: &[(MacAddr, PortId)]) -> usize {
    visits.iter().filter(|(mac, _)| black_box(fdb.lookup(*mac)).is_some()).count()
}

/// Learns a burst on port 1 or 2, in turn for each address, and each frame in a second of its own,
/// so that no address flaps; how many moved.
#[inline(always)]
fn shift(fdb: &Fdb, visits: &[(MacAddr, PortId)], now: &mut u32) -> usize {
    let moved = |learn| matches!(learn, Learn::Moved { .. });
    let learn = |(mac, port): &&(MacAddr, PortId)| {
        *now += 1;
        moved(fdb.learn(*mac, *port, *now))
    };
    visits.iter().filter(learn).count()
}

fn lookup_hit(group: &mut Group, addresses: usize) {
    let mut walk = Walk::new(0, addresses);
    let fdb = filled(&walk);
    group.bench_function(addresses.to_string(), |b| {
        b.iter(|| assert_eq!(look_up(&fdb, walk.next()), BURST));
    });
}

fn lookup_miss(group: &mut Group, addresses: usize) {
    let fdb = filled(&Walk::new(0, addresses));
    let mut strangers = Walk::new(1, addresses);
    group.bench_function(addresses.to_string(), |b| {
        b.iter(|| assert_eq!(look_up(&fdb, strangers.next()), 0));
    });
}

/// What comes of a source that the memo does not cover: nothing is stored.
fn learn_known(group: &mut Group, addresses: usize) {
    let mut walk = Walk::new(0, addresses);
    let fdb = filled(&walk);
    group.bench_function(addresses.to_string(), |b| {
        b.iter(|| {
            for &(mac, _) in walk.next() {
                assert_eq!(fdb.learn(mac, 0, NOW), Learn::Known);
            }
        });
    });
}

/// The first frame of an address in each second.
fn learn_refresh(group: &mut Group, addresses: usize) {
    let mut walk = Walk::new(0, addresses);
    let fdb = filled(&walk);
    let mut now = NOW;
    group.bench_function(addresses.to_string(), |b| {
        b.iter(|| {
            for &(mac, _) in walk.next() {
                // Few addresses come several times in a burst.
                now += 1;
                assert_eq!(fdb.learn(mac, 0, now), Learn::Refreshed);
            }
        });
    });
}

/// Bursts of new addresses before they are taken out again.
const INSERTED_BURSTS: u64 = 64;

/// New addresses beside those in the table. They are taken out again in between, unmeasured; what
/// is left of the table's first use is not seen, as its pages are there after the first round.
fn learn_insert(group: &mut Group, addresses: usize) {
    let strangers = INSERTED_BURSTS as usize * BURST;
    // Room for the strangers below the cap.
    let fdb = filled(&Walk::new(0, addresses.min(FDB_MAX_ENTRIES as usize - strangers)));
    let mut walk = Walk::new(1, strangers);
    group.bench_function(addresses.to_string(), |b| {
        b.iter_custom(|iterations| {
            let (mut time, mut left) = (Duration::ZERO, iterations);
            while left > 0 {
                let bursts = left.min(INSERTED_BURSTS);
                left -= bursts;
                walk.at = 0;
                let start = Instant::now();
                for _ in 0..bursts {
                    for &(mac, _) in walk.next() {
                        assert_eq!(fdb.learn(mac, 3, NOW), Learn::Inserted);
                    }
                }
                time += start.elapsed();
                fdb.flush_port(3);
            }
            time
        });
    });
}

fn learn_move(group: &mut Group, addresses: usize) {
    let mut walk = Walk::new(0, addresses);
    let fdb = filled(&walk);
    let mut now = NOW;
    group.bench_function(addresses.to_string(), |b| {
        b.iter(|| assert_eq!(shift(&fdb, walk.next(), &mut now), BURST));
    });
}

/// Measures `part` on this thread while `other` runs over and over on another.
fn beside(
    group: &mut Group,
    addresses: usize,
    mut part: impl FnMut() -> usize,
    mut other: impl FnMut() -> usize + Send,
) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Stops on a panic too, or the scope would wait for ever.
        let _stop = StopOnDrop(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                black_box(other());
            }
        });
        group.bench_function(addresses.to_string(), |b| b.iter(&mut part));
    });
}

struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn lookup_beside_lookup(group: &mut Group, addresses: usize) {
    let (mut walk, mut others) = (Walk::new(0, addresses), Walk::new(0, addresses));
    let fdb = filled(&walk);
    beside(group, addresses, || look_up(&fdb, walk.next()), || look_up(&fdb, others.next()));
}

fn lookup_beside_move(group: &mut Group, addresses: usize) {
    let (mut walk, mut others) = (Walk::new(0, addresses), Walk::new(0, addresses));
    let fdb = filled(&walk);
    let mut now = NOW;
    beside(
        group,
        addresses,
        || look_up(&fdb, walk.next()),
        || shift(&fdb, others.next(), &mut now),
    );
}

/// Two workers that learn different addresses: what they share is the shards' locks, the ports'
/// counters and the generation.
fn move_beside_move(group: &mut Group, addresses: usize) {
    let (mut walk, mut others) = (Walk::new(0, addresses / 2), Walk::new(1, addresses / 2));
    let fdb = filled(&walk);
    add(&fdb, &others);
    let (mut now, mut then) = (NOW, NOW);
    beside(
        group,
        addresses,
        || shift(&fdb, walk.next(), &mut now),
        || shift(&fdb, others.next(), &mut then),
    );
}
