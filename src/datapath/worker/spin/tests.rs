//! The idle policy without a worker: a simulated clock, and frames at times that the test chooses.

use super::*;

/// Cycles per nanosecond.
const RATE: u64 = 3;
const START: u64 = 1 << 40;

fn policy(poll: bool) -> SpinPolicy {
    SpinPolicy::new(poll, START, |nanos| RATE * nanos)
}

/// Result of an idle time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Idle {
    /// A spin found the end of the idle time.
    Found,
    /// A spin ended before the end of the idle time.
    GivenUp,
    /// There was no spin.
    Slept,
}

/// A worker that only waits for frames.
struct Sim {
    spin: SpinPolicy,
    now: u64,
    /// Cycles spent on spins.
    spun: u64,
    preempted: u64,
    asked: u32,
}

impl Sim {
    fn new() -> Sim {
        Sim { spin: policy(false), now: START, spun: 0, preempted: 0, asked: 0 }
    }

    /// Sleeps for `nanos` nanoseconds, so long that the window closes.
    fn rest(&mut self, nanos: u64) {
        let asleep = self.now;
        self.now += RATE * nanos;
        self.spin.woke(asleep, self.now);
    }

    /// Runs an idle time of `nanos` nanoseconds, in steps of 100 ns like a worker's turns.
    fn idle(&mut self, nanos: u64) -> Idle {
        let (begin, end) = (self.now, self.now + RATE * nanos);
        let mut outcome = Idle::Slept;
        while self.now < end {
            let held = self.spin.hold(self.now, 1);
            let preempted = self.preempted;
            let asked = &mut self.asked;
            let next = self.spin.next(self.now, || {
                *asked += 1;
                preempted
            });
            assert!(held || next != Instead::Look, "a ring that was armed is not spun for");
            match next {
                Instead::Look => {
                    self.now += RATE * 100;
                    outcome = Idle::Found;
                }
                Instead::Arm | Instead::GiveUp => {
                    if next == Instead::GiveUp {
                        self.spun += self.now - begin;
                        outcome = Idle::GivenUp;
                    }
                    let asleep = self.now;
                    self.now = end;
                    self.spin.woke(asleep, end);
                    return outcome;
                }
            }
        }
        self.spun += self.now - begin;
        assert!(self.spin.found(self.now), "a spin found something");
        outcome
    }

    fn window_nanos(&self) -> u64 {
        self.spin.window / RATE
    }
}

#[test]
fn poll_mode_never_sleeps_and_arms_after_long_silence() {
    let mut spin = policy(true);
    assert!(spin.poll);
    assert!(spin.hold(START, IDLE_LOOKS_BEFORE_ARM - 1));
    assert!(!spin.hold(START, IDLE_LOOKS_BEFORE_ARM));
    assert_eq!(spin.next(START, || panic!("not asked")), Instead::Look);
    assert!(!spin.found(START));
}

#[test]
fn events_are_looked_for_at_a_bounded_distance() {
    let mut spin = policy(true);
    let step = RATE * EVENT_CHECK_NANOS / 10;
    let looks = (1..=1000).filter(|&i| spin.check_events(START + i * step)).count();
    assert_eq!(looks, 100);
    assert!(spin.check_events(START), "a counter that went backwards must not end the looks");
}

#[test]
fn a_spinning_worker_looks_for_events_more_often() {
    let mut sim = Sim::new();
    sim.rest(1_000_000_000);
    sim.rest(SPIN_MAX_NANOS / 2);
    assert_eq!(sim.spin.next(sim.now, || 0), Instead::Look);
    assert!(sim.spin.check_events(sim.now));
    assert!(!sim.spin.check_events(sim.now + RATE * SPIN_EVENT_CHECK_NANOS - 1));
    assert!(sim.spin.check_events(sim.now + RATE * SPIN_EVENT_CHECK_NANOS));
}

#[test]
fn a_busy_worker_holds_a_silent_ring_for_some_looks_only() {
    let mut sim = Sim::new();
    assert!(!sim.spin.hold(sim.now, 1), "no window yet");
    sim.rest(1_000_000_000);
    sim.rest(1);
    assert!(sim.spin.hold(sim.now, BUSY_LOOKS_BEFORE_ARM - 1));
    assert!(!sim.spin.hold(sim.now, BUSY_LOOKS_BEFORE_ARM));
    // A spin takes one look after a fraction of the time, and all looks until its end.
    assert_eq!(sim.spin.next(sim.now, || 0), Instead::Look);
    assert!(sim.spin.hold(sim.now, 10 * BUSY_LOOKS_BEFORE_ARM));
}

#[test]
fn who_sends_rarely_is_never_spun_for() {
    let mut sim = Sim::new();
    for _ in 0..10_000 {
        assert_eq!(sim.idle(1_000_000), Idle::Slept);
        // Work between two idle times.
        assert!(!sim.spin.found(sim.now));
    }
    assert_eq!((sim.window_nanos(), sim.spun), (0, 0));
}

#[test]
fn the_window_grows_until_spins_find_work() {
    let mut sim = Sim::new();
    sim.rest(1_000_000_000);
    let outcomes: Vec<Idle> = (0..8).map(|_| sim.idle(20_000)).collect();
    // Windows of 4, 8 and 16 µs are too short for 20 µs.
    let expected = [Idle::Slept, Idle::GivenUp, Idle::GivenUp, Idle::GivenUp];
    assert_eq!(outcomes[..4], expected);
    assert_eq!(outcomes[4..], [Idle::Found; 4]);
    assert!((20_000..=SPIN_MAX_NANOS).contains(&sim.window_nanos()), "{}", sim.window_nanos());
}

#[test]
fn the_window_closes_when_nobody_sends() {
    let mut sim = Sim::new();
    sim.rest(1_000_000_000);
    while sim.window_nanos() < SPIN_MAX_NANOS {
        sim.idle(30_000);
    }
    sim.rest(1_000_000_000);
    sim.rest(1);
    let before = sim.spun;
    let outcomes: Vec<Idle> = (0..8).map(|_| sim.idle(10_000_000)).collect();
    assert_eq!(outcomes[0], Idle::GivenUp);
    assert_eq!(outcomes[7], Idle::Slept);
    assert_eq!(sim.window_nanos(), 0);
    assert!(sim.spun - before <= 2 * RATE * SPIN_MAX_NANOS, "{}", sim.spun - before);
}

#[test]
fn spinning_takes_a_tenth_of_the_time_at_most() {
    for gap in [3_000, 9_000, 20_000, 45_000] {
        let mut sim = Sim::new();
        let begin = sim.now;
        let mut found = 0;
        while sim.now - begin < RATE * 1_000_000_000 {
            found += u32::from(sim.idle(gap) == Idle::Found);
            // The worker works as long again.
            sim.now += RATE * gap;
        }
        let share = sim.spun as f64 / (sim.now - begin) as f64;
        assert!(share < 0.101, "{share} of the time spun at a frame per {gap} ns");
        assert!(share > 0.09, "{share} of the time spun at a frame per {gap} ns");
        assert!(found > 100, "{found} found at a frame per {gap} ns");
    }
}

#[test]
fn what_is_saved_is_bounded() {
    let mut sim = Sim::new();
    sim.rest(3_600_000_000_000);
    let begin = sim.now;
    while sim.idle(10_000) != Idle::Slept || sim.now == begin + RATE * 10_000 {}
    assert!(sim.spun <= RATE * (SPIN_CREDIT_NANOS * 12 / 10), "{}", sim.spun);
}

#[test]
fn a_worker_with_rivals_for_its_cpu_does_not_spin() {
    let mut sim = Sim::new();
    let mut spun = 0;
    while sim.now - START < RATE * 1_000_000_000 {
        let (before, pause) = (sim.spun, sim.now.wrapping_sub(sim.spin.asked));
        let rivals = sim.spin.rivals;
        sim.idle(10_000);
        assert!(!rivals || pause >= RATE * SPIN_OFF_NANOS || sim.spun == before, "in a pause");
        // The worker waits for one millisecond of four.
        sim.preempted = (sim.now - START) / (RATE * 4_000_000);
        if sim.asked > 0 {
            spun += sim.spun - before;
        }
    }
    assert_eq!(spun, 0, "after the first look at its waits");
    assert!((5..=11).contains(&sim.asked), "looks at its waits: {}", sim.asked);
    // Without rivals the worker spins again, after a pause.
    for _ in 0..2 {
        sim.now += RATE * SPIN_OFF_NANOS;
        sim.idle(10_000);
    }
    let found = (0..100).filter(|_| sim.idle(10_000) == Idle::Found).count();
    assert!(found > 5, "{found}");
}

#[test]
fn waits_are_asked_for_rarely() {
    let mut sim = Sim::new();
    let seconds = 2;
    while sim.now - START < seconds * RATE * 1_000_000_000 {
        sim.idle(10_000);
        // The kernel has some work on every machine.
        sim.preempted = (sim.now - START) / (RATE * 50_000_000);
    }
    let most = seconds * 1_000_000_000 / SPIN_WAIT_NANOS;
    assert!((10..=most).contains(&sim.asked.into()), "{}", sim.asked);
    assert!(!sim.spin.rivals);
}

#[test]
fn a_counter_that_steps_back_ends_a_spin_and_a_pause() {
    let mut sim = Sim::new();
    sim.rest(1_000_000_000);
    sim.rest(1);
    assert_eq!(sim.spin.next(sim.now, || 0), Instead::Look);
    assert_eq!(sim.spin.next(sim.now - (1 << 35), || 0), Instead::GiveUp);
    (sim.spin.rivals, sim.spin.asked) = (true, sim.now);
    sim.spin.woke(sim.now, sim.now);
    sim.spin.credit.earn(sim.spin.credit.cap);
    assert!(!sim.spin.may_spin(sim.now));
    assert!(sim.spin.may_spin(sim.spin.asked - 1));
}

#[test]
fn a_worker_under_load_may_spin_for_two_thirds_of_its_work() {
    let mut sim = Sim::new();
    // Of each millisecond 600 µs are work.
    for _ in 0..100 {
        sim.spin.work(RATE * 600_000);
        sim.now += RATE * 1_000_000;
        sim.spin.pay(sim.now, RATE * 390_000);
    }
    let left = sim.spin.credit.level();
    assert!(left > 0, "the work was not earned");
    for _ in 0..100 {
        sim.now += RATE * 1_000_000;
        sim.spin.pay(sim.now, RATE * 110_000);
    }
    assert_eq!(sim.spin.credit.level(), 0, "without work more than a tenth was earned");
}
