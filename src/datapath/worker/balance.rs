//! The choice of transmit rings that should move to another worker, by their load.
//!
//! A ring gets a worker when it starts ([`super::assignment`]), before its load is known: of four
//! guests of which only two send, both senders may have one worker; and guests come and go. So the
//! cycles of each ring's bursts are summed. Once a second, rings move from a busy worker to a
//! worker with less load, if the move makes the busier of the two workers clearly less busy.
//!
//! A move loses no frame, but costs a moment and cache misses. Loads are noisy, and an attacker
//! chooses a part of the load. So no ring moves
//! * from a worker that is busy for less than a hundredth of the time: no ring waits for it;
//! * to a worker that has at least three quarters of the other worker's load;
//! * if it has less than a 64th of its worker's load, or if the new worker would then lead by more
//!   than half of the present difference;
//! * unless all these conditions held in both of the last two seconds: a worker that lost its CPU
//!   for a moment, or a load that alternates each second, moves no ring;
//! * within ten seconds of its last move. At most four rings move in a second.
//!
//! Queues of devices do not move, nor do rings of a port for which an operator chose a worker;
//! their load counts. Time is an argument, in cycles.

use std::collections::HashMap;

use super::handle::Token;
use base::limits::{BALANCE_IDLE_PARTS, BALANCE_MOVES, BALANCE_REST_SECONDS};

/// Cycles in each of the last two seconds, the last second first.
type Load = [u64; 2];

/// A source of frames at the time of a look.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// The source: a transmit ring, or a queue of a device.
    pub(crate) source: Token,
    /// The source's worker.
    pub(crate) worker: usize,
    /// Cycles that the source's bursts took since its creation.
    pub(crate) cycles: u64,
    /// The source may get another worker.
    pub(crate) may_move: bool,
    /// Load of the source, which [`Balance::look`] computes.
    pub(crate) load: Load,
}

impl Sample {
    /// Creates a sample without a load.
    pub(crate) fn new(source: Token, worker: usize, cycles: u64, may_move: bool) -> Sample {
        Sample { source, worker, cycles, may_move, load: Load::default() }
    }
}

/// A ring that should get another worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    /// The ring.
    pub(crate) ring: Token,
    /// The present worker.
    pub(crate) from: usize,
    /// The worker to move to.
    pub(crate) to: usize,
}

/// State of a source between two looks.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    cycles: u64,
    /// Cycles that the source took in the last second.
    took: u64,
    /// Cycle of the look for which the source last moved.
    moved: Option<u64>,
}

/// State of the balance between two looks.
#[derive(Debug)]
pub(crate) struct Balance {
    workers: usize,
    /// Number of cycles in a second.
    second: u64,
    last: u64,
    seen: HashMap<Token, Seen>,
}

impl Balance {
    /// Creates the state for `workers` workers at cycle `now`; a second has `second` cycles.
    pub(crate) fn new(workers: usize, now: u64, second: u64) -> Balance {
        Balance { workers, second, last: now, seen: HashMap::new() }
    }

    /// Looks at all sources at cycle `now`, about a second after the last look. Computes the load
    /// of each source, and returns moves that make busy workers less busy.
    pub(crate) fn look(&mut self, now: u64, samples: &mut [Sample]) -> Vec<Move> {
        let passed = now.saturating_sub(self.last).max(1);
        self.last = now;
        self.note(passed, samples);
        let mut moves = Vec::new();
        while moves.len() < BALANCE_MOVES
            && let Some((at, to)) = self.best(samples)
        {
            let sample = &mut samples[at];
            moves.push(Move { ring: sample.source, from: sample.worker, to });
            (sample.worker, sample.may_move) = (to, false);
        }
        moves
    }

    /// Records that a ring has moved as the last look asked, so that the ring rests. A ring that
    /// did not move, since its new worker or its session had no time, is judged again by the next
    /// look.
    pub(crate) fn moved(&mut self, one: Move) {
        if let Some(seen) = self.seen.get_mut(&one.ring) {
            seen.moved = Some(self.last);
        }
    }

    /// Restarts the measurement at cycle `now`, until which all workers slept.
    pub(crate) fn resume(&mut self, now: u64) {
        self.last = now;
    }

    /// Computes the cycles of each source since the last look, scaled to a second. A source that
    /// moved a short time ago may not move again.
    fn note(&mut self, passed: u64, samples: &mut [Sample]) {
        let mut seen = HashMap::with_capacity(samples.len());
        for sample in samples {
            let known = self.seen.get(&sample.source);
            // The age of a new source is not known.
            let before =
                known.copied().unwrap_or(Seen { cycles: sample.cycles, ..Seen::default() });
            let took = sample.cycles.saturating_sub(before.cycles).min(passed);
            let took = (u128::from(took) * u128::from(self.second) / u128::from(passed)) as u64;
            sample.load = [took, before.took];
            let rest = self.second * BALANCE_REST_SECONDS;
            sample.may_move &=
                before.moved.is_none_or(|then| self.last.saturating_sub(then) >= rest);
            seen.insert(sample.source, Seen { cycles: sample.cycles, took, ..before });
        }
        self.seen = seen;
    }

    /// Returns the move that helps the busiest worker that can be helped: the source's index in
    /// `samples`, and the new worker.
    fn best(&self, samples: &[Sample]) -> Option<(usize, usize)> {
        let mut loads = vec![Load::default(); self.workers];
        for sample in samples {
            (0..2).for_each(|i| loads[sample.worker][i] += sample.load[i]);
        }
        let mut workers: Vec<usize> = (0..self.workers).collect();
        workers.sort_by_key(|&worker| loads[worker][0] + loads[worker][1]);
        let to = *workers.first()?;
        workers.into_iter().rev().find_map(|from| {
            let (from_load, to_load) = (loads[from], loads[to]);
            let candidates = samples.iter().enumerate().filter(|(_, one)| {
                one.worker == from && one.may_move && self.evens_out(from_load, to_load, one.load)
            });
            // Difference between the loads of the workers after the move.
            let left = |i: usize, one: Load| (from_load[i] - to_load[i]).abs_diff(2 * one[i]);
            let best = candidates.min_by_key(|(_, one)| left(0, one.load) + left(1, one.load));
            best.map(|(at, _)| (at, to))
        })
    }

    /// True if moving a source from one worker to another is useful in both seconds.
    fn evens_out(&self, from: Load, to: Load, source: Load) -> bool {
        (0..2).all(|i| {
            let more = from[i].saturating_sub(to[i]);
            let uneven = from[i] >= self.second / BALANCE_IDLE_PARTS && more > from[i] / 4;
            uneven && (from[i] / 64..=more - more / 4).contains(&source[i])
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1000;

    /// Rings with their loads, in thousandths of a second per second, and their workers.
    struct Bench {
        balance: Balance,
        rings: Vec<(u64, usize, u64)>,
        now: u64,
        moves: usize,
    }

    fn ring(at: usize) -> Token {
        Token::Transmit(at as u16, 0)
    }

    impl Bench {
        fn new(workers: usize, rings: &[(u64, usize)]) -> Bench {
            let rings = rings.iter().map(|&(load, worker)| (load, worker, 0)).collect();
            Bench { balance: Balance::new(workers, 0, SECOND), rings, now: 0, moves: 0 }
        }

        fn samples(&self) -> Vec<Sample> {
            let sample = |(at, &(_, worker, cycles)): (usize, &(u64, usize, u64))| {
                Sample::new(ring(at), worker, cycles, true)
            };
            self.rings.iter().enumerate().map(sample).collect()
        }

        /// Runs a second in which each ring takes its load. Returns the moves.
        fn second(&mut self, load: impl Fn(usize, u64) -> u64) -> Vec<Move> {
            self.now += SECOND;
            for (at, ring) in self.rings.iter_mut().enumerate() {
                ring.2 += load(at, ring.0);
            }
            let moves = self.balance.look(self.now, &mut self.samples());
            for one in &moves {
                let Token::Transmit(at, 0) = one.ring else { panic!("{one:?}") };
                assert_eq!(self.rings[usize::from(at)].1, one.from);
                self.rings[usize::from(at)].1 = one.to;
                self.balance.moved(*one);
            }
            self.moves += moves.len();
            moves
        }

        fn seconds(&mut self, count: usize) -> usize {
            (0..count).map(|_| self.second(|_, load| load).len()).sum()
        }

        fn loads(&self) -> Vec<u64> {
            let of = |worker| self.rings.iter().filter(move |ring| ring.1 == worker);
            (0..self.balance.workers).map(|worker| of(worker).map(|ring| ring.0).sum()).collect()
        }
    }

    /// Two senders on one worker, and two receivers that send nothing on the other worker.
    fn one_way() -> Bench {
        Bench::new(2, &[(500, 0), (0, 1), (500, 0), (0, 1)])
    }

    #[test]
    fn senders_on_one_worker_are_parted_within_three_seconds() {
        let mut bench = one_way();
        assert_eq!(bench.seconds(3), 1);
        assert_eq!(bench.loads(), [500, 500]);
    }

    /// A steady load whose seconds vary by a tenth, and some by a third.
    #[test]
    fn a_stable_load_moves_nothing_for_a_minute() {
        for rings in [
            vec![(500, 0), (500, 1)],
            vec![(330, 0), (330, 0), (330, 1)],
            vec![(200, 0), (300, 0), (500, 1), (0, 1)],
            vec![(100, 0), (100, 0), (100, 0), (100, 1), (100, 1), (100, 1)],
            vec![(900, 0), (50, 1), (50, 1), (50, 1)],
            vec![(300, 0), (280, 1), (320, 2), (90, 1), (90, 2), (100, 0)],
        ] {
            let workers = 1 + rings.iter().map(|ring| ring.1).max().unwrap();
            let mut bench = Bench::new(workers, &rings);
            bench.seconds(2);
            let mut random = 1u64;
            for _ in 0..60 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
                let noise = random >> 33;
                bench.second(|at, load| {
                    let share = if noise.is_multiple_of(20) { 67 } else { 90 + (noise >> at) % 21 };
                    load * share / 100
                });
            }
            assert_eq!(bench.moves, 0, "{rings:?}");
        }
    }

    #[test]
    fn each_of_two_workers_comes_to_two_fifths_if_any_move_can_do_that() {
        for rings in [
            vec![(600, 0), (200, 0), (200, 0)],
            vec![(100, 0); 9],
            vec![(250, 1), (250, 1), (250, 1), (200, 1)],
            vec![(50, 0), (450, 0), (350, 0), (30, 1)],
        ] {
            let mut bench = Bench::new(2, &rings);
            bench.seconds(3);
            let loads = bench.loads();
            let sum: u64 = loads.iter().sum();
            assert!(loads.iter().all(|load| 5 * load >= 2 * sum), "{rings:?}: {loads:?}");
        }
    }

    #[test]
    fn who_has_little_to_do_is_left_alone() {
        let mut bench = Bench::new(2, &[(4, 0), (5, 0)]);
        assert_eq!(bench.seconds(60), 0);
        let mut bench = Bench::new(2, &[(6, 0), (5, 0)]);
        assert_eq!(bench.seconds(3), 1);
    }

    /// A guest that sends every other second moves no ring. A guest whose load changes slowly moves
    /// rings, its own or others', but each ring rests for ten seconds, and no second has more than
    /// four moves.
    #[test]
    fn a_load_that_alternates_moves_little() {
        let mut bench = one_way();
        bench.seconds(3);
        for second in 0..600 {
            bench.second(|at, load| if at == 0 && second % 2 == 0 { 0 } else { load });
        }
        assert!(bench.moves <= 1, "{} moves", bench.moves);

        let rings: Vec<(u64, usize)> = (0..40).map(|at| (25, at % 2)).collect();
        let mut bench = Bench::new(2, &rings);
        for second in 0..600 {
            let moved = bench.second(|at, _| {
                let heavy = second / 3 % 2 == at % 2;
                if heavy { 40 } else { 0 }
            });
            assert!(moved.len() <= BALANCE_MOVES);
        }
        assert!(bench.moves <= 60 * 40, "{} moves", bench.moves);
        let (mut last, mut bench) = (HashMap::new(), Bench::new(2, &rings));
        for second in 0..600u64 {
            for one in bench.second(|at, _| 40 * u64::from(second / 3 % 2 == at as u64 % 2)) {
                let before = last.insert(one.ring, second);
                assert!(before.is_none_or(|then| second - then >= BALANCE_REST_SECONDS));
            }
        }
    }

    /// One second with all load on one worker is not enough for a move.
    #[test]
    fn one_busy_second_moves_nothing() {
        let mut bench = one_way();
        bench.second(|_, _| 0);
        assert_eq!(bench.second(|_, load| load), []);
        for _ in 0..10 {
            assert_eq!(bench.second(|_, _| 0), []);
        }
    }

    /// The next look asks again for a move that was not made; a ring rests only after a move.
    #[test]
    fn what_could_not_move_is_asked_for_again() {
        let mut bench = one_way();
        let mut asked = 0;
        for _ in 0..5 {
            bench.now += SECOND;
            bench.rings.iter_mut().for_each(|ring| ring.2 += ring.0);
            asked += bench.balance.look(bench.now, &mut bench.samples()).len();
        }
        assert_eq!(asked, 3, "moves asked for, by the looks that know two seconds");
        assert_eq!([bench.seconds(1), bench.seconds(60)], [1, 0]);
    }

    #[test]
    fn what_may_not_move_stays_and_its_load_counts() {
        [Token::Device(9, 0), ring(9)].into_iter().for_each(one_that_stays);
    }

    fn one_that_stays(source: Token) {
        let mut balance = Balance::new(2, 0, SECOND);
        let look = |balance: &mut Balance, second: u64, worker: usize| {
            let mut samples = [
                Sample::new(source, 0, 700 * second, false),
                Sample::new(ring(1), worker, 300 * second, true),
            ];
            balance.look(second * SECOND, &mut samples)
        };
        look(&mut balance, 1, 0);
        assert_eq!(look(&mut balance, 2, 0), []);
        let expected = [Move { ring: ring(1), from: 0, to: 1 }];
        assert_eq!(look(&mut balance, 3, 0), expected);
        for second in 4..60 {
            assert_eq!(look(&mut balance, second, 1), []);
        }
    }

    /// If the thread is late, the longer sum is scaled to a second. Cycles from before the first
    /// look at a ring do not count.
    #[test]
    fn a_late_look_and_a_new_ring_are_no_load() {
        let mut bench = Bench::new(2, &[(50, 0), (50, 0)]);
        bench.rings[0].2 = 1 << 40;
        for _ in 0..20 {
            bench.now += 9 * SECOND;
            assert_eq!(bench.second(|_, _| 40), []);
        }
    }
}
