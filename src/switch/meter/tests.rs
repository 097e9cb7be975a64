//! Senders that always have frames, or send now and then, on simulated clocks.

use super::*;

/// Ticks a second of a fast counter, of nanoseconds, of a slow counter.
const CLOCKS: [u64; 3] = [3_000_000_000, 1_000_000_000, 25_000_000];

/// A generator of numbers that look random.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end.max(1)
    }
}

fn frame(bytes: u64) -> Load {
    Load { packets: 1, bytes }
}

/// Returns a packet of so many segments of 1,448 bytes of payload.
fn segments(count: u64) -> Load {
    Load { packets: count, bytes: count * 1514 }
}

/// Generates a sender's frames.
type Frames = fn(&mut Random) -> Load;

const KINDS: [(&str, Frames); 5] = [
    ("short", |_| frame(60)),
    ("full", |_| frame(1514)),
    ("any", |random| frame(60 + random.below(1455))),
    ("TSO", |_| segments(45)),
    ("mixed", |random| match random.below(3) {
        0 => segments(1 + random.below(45)),
        1 => frame(60),
        _ => frame(60 + random.below(1455)),
    }),
];

fn bits(bits: u64) -> Limit {
    Limit { rate: Rate { bits, packets: 0 }, burst: Size::default() }
}

fn packets(packets: u64) -> Limit {
    Limit { rate: Rate { bits: 0, packets }, burst: Size::default() }
}

fn meter(second: u64, limit: Limit, now: u64) -> Meter {
    let mut meter = Meter::new(second);
    meter.set(limit, now);
    meter
}

/// A sender that always has a burst of frames.
struct Greedy {
    frames: Frames,
    pending: Vec<Load>,
    booked: Option<Booking>,
    at: u64,
    sent: Load,
}

impl Greedy {
    fn new(frames: Frames, at: u64) -> Greedy {
        Greedy { frames, pending: Vec::new(), booked: None, at, sent: Load::NONE }
    }

    /// Sends the frames that may pass. Comes again when the next frame may pass, or `late` ticks
    /// later.
    fn look(&mut self, meter: &mut Meter, random: &mut Random, late: u64) {
        self.pending.resize_with(64, || (self.frames)(random));
        let pending = self.pending.iter().copied();
        let all = pending.clone().sum();
        let passed = meter.admit(pending, self.booked.take(), true, self.at);
        self.sent += self.pending.drain(..passed).sum();
        self.at += 300;
        if let Some(first) = self.pending.first() {
            let booking = meter.book(*first, all, self.at);
            self.booked = Some(booking);
            let until = meter.waits(&booking, self.at).unwrap_or(self.at);
            self.at = until + random.below(late);
        }
    }
}

/// Returns the load that a sender sends in each of so many seconds, if it is up to two milliseconds
/// late at each look.
fn run(second: u64, limit: Limit, frames: Frames, seconds: u64) -> Vec<Load> {
    let (start, mut random) = (second * 77 + 12_345, Random(0x1234_5678_9abc_def1));
    let mut meter = meter(second, limit, start);
    let mut sender = Greedy::new(frames, start);
    (1..=seconds)
        .map(|n| {
            let before = sender.sent;
            while sender.at < start + n * second {
                sender.look(&mut meter, &mut random, second / 500);
            }
            let Load { packets, bytes } = sender.sent;
            Load { packets: packets - before.packets, bytes: bytes - before.bytes }
        })
        .collect()
}

/// True if `got` is within so many percent of `due`, plus the longest frame.
fn within(got: u64, due: u64, percent: u64) -> bool {
    got.abs_diff(due) <= due * percent / 100 + segments(45).bytes
}

#[test]
fn a_bit_rate_is_kept_within_two_percent() {
    for second in CLOCKS {
        for rate in [1_000_000, 10_000_000, 50_000_000, 100_000_000, 1_000_000_000, 10_000_000_000]
        {
            for (kind, frames) in KINDS {
                // Keeps the number of frames below millions for each clock.
                let many = rate > 100_000_000 && kind != "TSO";
                if many && second != CLOCKS[0] || kind == "short" && rate > 1_000_000_000 {
                    continue;
                }
                let sent = run(second, bits(rate), frames, 11);
                let bytes: Load = sent[1..].iter().copied().sum();
                let due = 10 * rate / 8;
                assert!(within(bytes.bytes, due, 2), "{second} {rate} {kind}: {bytes:?} of {due}");
                let most = rate / 8 * 105 / 100 + (rate / 800).max(65_536);
                assert!(sent[0].bytes <= most, "{second} {rate} {kind}: {:?} of {most}", sent[0]);
            }
        }
    }
}

#[test]
fn a_packet_rate_is_kept_within_two_percent() {
    for rate in [100, 5_000, 1_000_000, 10_000_000] {
        for (kind, frames) in KINDS {
            let sent = run(3_000_000_000, packets(rate), frames, 11);
            let all: Load = sent[1..].iter().copied().sum();
            let off = all.packets.abs_diff(10 * rate);
            assert!(off <= rate / 5 + 45, "{rate} {kind}: {all:?}");
            let first = rate * 105 / 100 + (rate / 100).max(64);
            assert!(sent[0].packets <= first, "{rate} {kind}: {:?} of {first}", sent[0]);
        }
    }
}

/// With short and long frames and both limits, each limit holds, and one of them is reached.
#[test]
fn of_two_rates_the_lower_one_counts() {
    let both = |bits, packets| Limit { rate: Rate { bits, packets }, burst: Size::default() };
    for (bits, packets) in
        [(10_000_000, 5_000), (10_000_000, 500), (100_000_000, 20_000), (1_000_000, 100_000)]
    {
        for (kind, frames) in KINDS {
            let sent = run(3_000_000_000, both(bits, packets), frames, 11);
            let all: Load = sent[1..].iter().copied().sum();
            let parts = [all.bytes * 8 * 100 / (10 * bits), all.packets * 100 / (10 * packets)];
            let most = parts[0].max(parts[1]);
            // A packet of 68 kB is 5 % of a megabit's ten seconds.
            assert!((94..=106).contains(&most), "{bits} {packets} {kind}: {parts:?}");
        }
    }
}

#[test]
fn a_burst_passes_at_once_and_comes_back_with_the_time() {
    let (second, start) = (1_000_000_000, 5_000_000_000);
    let limit = Limit {
        rate: Rate { bits: 8_000_000, packets: 0 },
        burst: Size { bytes: 100_000, packets: 0 },
    };
    let mut meter = meter(second, limit, start);
    let mut passed = |now| meter.admit(std::iter::repeat_n(frame(1000), 1000), None, true, now);
    // The burst, and 10 ms of the rate.
    assert_eq!(passed(start), 110);
    assert_eq!(passed(start), 0);
    assert_eq!(passed(start + 999_999), 0);
    assert_eq!(passed(start + 1_000_000), 1);
    assert_eq!(passed(start + 11_000_000), 10);
    assert_eq!(passed(start + 10 * second), 110, "no more is saved up");
}

/// A frame longer than a burst passes when the whole burst is left, and is paid for.
#[test]
fn a_frame_longer_than_a_burst_passes_too() {
    for burst in [1514, 10_000, 65_536] {
        let size = Size { bytes: burst, packets: 0 };
        let limit = Limit { burst: size, ..bits(50_000_000) };
        let sent = run(1_000_000_000, limit, |_| segments(45), 11);
        let bytes: Load = sent[1..].iter().copied().sum();
        assert!(within(bytes.bytes, 62_500_000, 2), "{burst}: {bytes:?}");
    }
}

#[test]
fn while_the_time_stands_a_burst_passes_and_no_more() {
    let start = 1 << 40;
    let mut meter = meter(1_000_000_000, bits(1_000_000_000), start);
    let mut sender = Greedy::new(|_| frame(1514), start);
    for _ in 0..100_000 {
        sender.at = start;
        sender.look(&mut meter, &mut Random(1), 1);
    }
    // 10 ms, and 10 ms for being late.
    assert!((2_400_000..2_700_000).contains(&sender.sent.bytes), "{:?}", sender.sent);
}

/// A step back costs at most the time of the step, and at most a second for a long step.
#[test]
fn a_time_that_steps_back_neither_gives_a_rate_away_nor_stops_it() {
    let second = 1_000_000_000;
    for back in [1, 1_000, 1_000_000, 100_000_000, 400 * second, 1 << 50] {
        let start = (1 << 50) + 7 * second;
        let mut meter = meter(second, bits(10_000_000), start);
        let mut random = Random(9);
        let mut sender = Greedy::new(|_| frame(1514), start);
        for round in 1..20 {
            let before = sender.sent.bytes;
            sender.at = sender.at.saturating_sub(back);
            let end = sender.at + second;
            while sender.at < end {
                sender.look(&mut meter, &mut random, 1000);
            }
            let sent = sender.sent.bytes - before;
            assert!(sent <= 1_250_000 * 105 / 100 + 65_536, "{back} {round}: {sent}");
            let lost = if back < second / 4 { 1_250_000 * back / second } else { 0 };
            assert!(sent >= 1_200_000 - lost, "{back} {round}: {sent}");
        }
    }
}

#[test]
fn a_meter_that_was_idle_for_years_goes_on() {
    let second = 3_000_000_000;
    for idle in [second, 3600 * second, 200 * 24 * 3600 * second, u64::MAX / 4] {
        let start = 1_000;
        let mut meter = meter(second, bits(1_000_000), start);
        let all = || std::iter::repeat_n(frame(1000), 1000);
        assert!(meter.admit(all(), None, true, start) > 60);
        let now = start + idle;
        assert!(meter.admit(all(), None, true, now) > 60, "{idle}");
        assert!(meter.admit(all(), None, true, now + second) > 60, "{idle}");
        assert!(meter.admit(all(), None, true, now + second) == 0, "{idle}");
    }
}

#[test]
fn another_rate_holds_from_its_beginning() {
    let (second, start) = (1_000_000_000, 1_000_000_000);
    let mut meter = meter(second, bits(8_000), start);
    let (mut random, mut sender) = (Random(3), Greedy::new(|_| segments(45), start));
    sender.look(&mut meter, &mut random, 1);
    let booked = sender.booked.expect("it waits");
    assert!(meter.waits(&booked, start + second).is_some(), "68 kB take a minute");
    for (n, rate) in [1_000_000_000, 10_000_000, 0, 100_000_000].into_iter().enumerate() {
        let now = start + (n as u64 + 1) * 10 * second;
        meter.set(bits(rate), now);
        assert_eq!(meter.waits(&booked, now), None, "bookings end with their rate");
        let before = sender.sent.bytes;
        sender.at = now;
        while sender.at < now + if rate > 0 { second } else { second / 100 } {
            sender.look(&mut meter, &mut random, 1000);
        }
        let sent = sender.sent.bytes - before;
        let most = rate / 8 * 105 / 100 + (rate / 800).max(65_536);
        match rate {
            0 => assert!(sent > 1_000_000_000, "{sent}"),
            _ => assert!((rate / 8 * 98 / 100..=most).contains(&sent), "{rate}: {sent}"),
        }
    }
}

/// The first sender in each turn of a worker, which looks once a millisecond, gets no more.
#[test]
fn all_that_wait_get_their_part() {
    let second = 1_000_000_000;
    for rate in [1_000_000, 10_000_000, 100_000_000, 1_000_000_000] {
        for count in [2, 3, 20] {
            let mut meter = meter(second, bits(rate), 0);
            let mut random = Random(5);
            let mut all: Vec<Greedy> =
                (0..count).map(|_| Greedy::new(|_| frame(1514), 0)).collect();
            for now in (0..40 * second).step_by(second as usize / 1000) {
                for sender in &mut all {
                    while sender.at <= now {
                        sender.at = now;
                        sender.look(&mut meter, &mut random, 1);
                    }
                }
            }
            let total: u64 = all.iter().map(|sender| sender.sent.bytes).sum();
            assert!(within(total, 40 * rate / 8, 3), "{rate}: {total}");
            let sent: Vec<u64> = all.iter().map(|sender| sender.sent.bytes).collect();
            let least = sent.iter().min().unwrap();
            let due = total.saturating_sub(65_536) / count as u64;
            assert!(least * 10 >= due * 7, "{rate}: {sent:?}");
        }
    }
}

/// Frames that cannot wait compete with frames that have booked.
#[test]
fn who_cannot_wait_is_not_shut_out_by_those_who_can() {
    let second = 1_000_000_000;
    for count in [1, 8, 64] {
        let mut meter = meter(second, bits(100_000_000), 0);
        let mut random = Random(5);
        let mut all: Vec<Greedy> = (0..count).map(|_| Greedy::new(|_| frame(1514), 0)).collect();
        let mut other = Load::NONE;
        for now in (0..10 * second).step_by(second as usize / 5000) {
            for sender in &mut all {
                while sender.at <= now {
                    sender.at = now;
                    sender.look(&mut meter, &mut random, 1);
                }
            }
            let passed = meter.admit(std::iter::repeat_n(frame(1514), 64), None, false, now);
            other += std::iter::repeat_n(frame(1514), passed).sum();
        }
        let waited: u64 = all.iter().map(|sender| sender.sent.bytes).sum();
        let total = waited + other.bytes;
        assert!(within(total, 125_000_000, 3), "{count}: {total}");
        for part in [waited, other.bytes] {
            assert!(part >= total / 20, "{count}: {waited} and {other:?}");
        }
    }
}

#[test]
fn what_did_not_pass_is_given_back() {
    let mut meter = meter(1_000_000_000, bits(10_000_000), 0);
    let mut now = 0;
    let mut passed = 0;
    while now < 10_000_000_000 {
        let got = meter.admit(std::iter::repeat_n(frame(1514), 64), None, true, now);
        // Half of the frames find no buffer.
        let back = got / 2;
        meter.refund(std::iter::repeat_n(frame(1514), back).sum());
        passed += (got - back) * 1514;
        now += 500_000;
    }
    assert!(within(passed as u64, 12_500_000, 2), "{passed}");
}

/// The wait that is announced for a frame is that of its booking, others' bookings included.
#[test]
fn a_frame_waits_as_long_as_its_booking_says() {
    for clock in CLOCKS {
        let mut meter = meter(clock, bits(10_000_000), 0);
        while meter.admit(std::iter::once(frame(1514)), None, true, 0) > 0 {}
        let mut before = 0;
        for _ in 0..5 {
            let wait = meter.wait(frame(1514), 0);
            assert!(wait > before, "{wait} ticks, {before} before");
            let booking = meter.book(frame(1514), frame(1514), 0);
            assert_eq!(meter.waits(&booking, 0), Some(wait));
            before = wait;
        }
    }
}

/// A sender whose frames pass and then find no buffers at the receiver: all but the frames that the
/// receiver takes are given back, while the booking for later frames stays.
struct HeldUp {
    sender: Greedy,
    taken: Taken,
    /// Ticks; a frame that would wait longer is dropped.
    longest: u64,
}

/// Returns how many of the frames that passed the receiver takes.
type Taken = fn(&mut Random, u64) -> u64;

const TAKEN: [Taken; 4] = [
    |_, passed| passed.min(1),
    |_, passed| passed.div_ceil(2),
    |random, passed| random.below(passed + 1).max(passed.min(1)),
    |random, passed| if random.below(8) > 0 { passed.min(1) } else { passed },
];

/// Longest waits, in ticks: without a limit for the own port's rate, bounded for a receiver's rate.
const LONGEST: [u64; 2] = [u64::MAX, 10_000_000];

impl HeldUp {
    fn new(frames: Frames, taken: Taken, longest: u64) -> HeldUp {
        HeldUp { sender: Greedy::new(frames, 0), taken, longest }
    }

    /// Sends the frames that may pass and that the receiver takes. Comes again when the booked
    /// frames may pass, or soon.
    fn look(&mut self, meter: &mut Meter, random: &mut Random) {
        let Greedy { frames, pending, booked, at, sent } = &mut self.sender;
        pending.resize_with(64, || frames(random));
        let all: Load = pending.iter().copied().sum();
        let passed = meter.admit(pending.iter().copied(), booked.take(), true, *at);
        let mut next = *at + 20_000;
        match pending.get(passed) {
            Some(first) if !meter.waits_longer(*first, *at, self.longest) => {
                let booking = meter.book(*first, all, *at);
                next = meter.waits(&booking, *at).unwrap_or(*at + 1);
                *booked = Some(booking);
            }
            _ => pending.truncate(passed),
        }
        let taken = (self.taken)(random, passed as u64) as usize;
        meter.refund(pending[taken..passed].iter().copied().sum());
        *sent += pending.drain(..taken).sum();
        *at = next;
    }
}

/// Frames that cannot wait leave frames that can wait, but not for long, their turn.
#[test]
fn who_can_wait_for_a_while_is_not_shut_out_by_those_who_cannot() {
    let second = 1_000_000_000;
    let rates = [(1_000_000, 60), (10_000_000, 60), (10_000_000, 1514), (100_000_000, 60)];
    for (rate, bytes) in rates {
        let mut meter = meter(second, bits(rate), 0);
        let mut one = HeldUp::new(|_| frame(1514), |_, passed| passed, LONGEST[1]);
        for now in (0..10 * second).step_by(second as usize / 10_000) {
            meter.admit(std::iter::repeat_n(frame(bytes), 64), None, false, now);
            if one.sender.at <= now {
                one.sender.at = now;
                one.look(&mut meter, &mut Random(5));
            }
        }
        let (sent, due) = (one.sender.sent.bytes, 10 * rate / 8);
        assert!(sent >= due / 8, "{rate} {bytes}: {sent} of {due}");
    }
}

/// No more than the rate and a burst pass. A sender of short and long frames may get less than the
/// rate of its own port: short frames that were given back wait with a long frame behind them.
#[test]
fn frames_given_back_before_those_that_booked_gain_nothing() {
    let second = 1_000_000_000;
    for (rate, (kind, frames)) in [1_000_000, 10_000_000].into_iter().flat_map(each_kind) {
        for (longest, (n, taken)) in LONGEST.into_iter().flat_map(|l| each(l, TAKEN)) {
            let mut meter = meter(second, bits(rate), 0);
            let (mut random, mut one) = (Random(7), HeldUp::new(frames, taken, longest));
            while one.sender.at < 5 * second {
                one.look(&mut meter, &mut random);
            }
            let (sent, due) = (one.sender.sent.bytes, 5 * rate / 8);
            let text = format!("{rate} {kind} {longest} {n}: {sent} of {due}");
            let burst = 65_536.max(rate / 800) + rate / 800;
            assert!(sent <= due + burst + 1514, "{text}");
            if kind != "mixed" || longest < u64::MAX {
                assert!(sent + segments(45).bytes >= due * 97 / 100, "{text}");
            }
        }
    }
}

/// Other senders to a receiver get the receiver's rate beside senders whose frames pass and are all
/// given back, whether the other senders' frames can wait or not.
#[test]
fn frames_given_back_before_those_that_booked_cost_others_nothing() {
    let second = 1_000_000_000;
    for (rate, (kind, frames)) in [1_000_000, 10_000_000].into_iter().flat_map(each_kind) {
        for (count, (_, may_wait)) in [1, 16].into_iter().flat_map(|n| each(n, [true, false])) {
            let mut meter = meter(second, bits(rate), 0);
            let mut random = Random(5);
            let stuck = || HeldUp::new(frames, |_, _| 0, LONGEST[1]);
            let mut stuck: Vec<HeldUp> = std::iter::repeat_with(stuck).take(count).collect();
            let mut other = Greedy::new(|_| frame(1514), 0);
            for now in (0..5 * second).step_by(second as usize / 2000) {
                for one in stuck.iter_mut().filter(|one| one.sender.at <= now) {
                    one.sender.at = now;
                    one.look(&mut meter, &mut random);
                }
                if !may_wait {
                    let all = std::iter::repeat_n(frame(1514), 64);
                    let passed = meter.admit(all, None, false, now) as u64;
                    other.sent += Load { packets: passed, bytes: 1514 * passed };
                } else if other.at <= now {
                    other.at = now;
                    other.look(&mut meter, &mut random, 1);
                }
            }
            let (sent, due) = (other.sent.bytes, 5 * rate / 8);
            let text = format!("{rate} {count} {kind} {may_wait}: {sent} of {due}");
            assert!((due * 95 / 100..=due * 105 / 100 + 131_072).contains(&sent), "{text}");
        }
    }
}

fn each<A: Copy, B, const N: usize>(one: A, all: [B; N]) -> impl Iterator<Item = (A, (usize, B))> {
    all.into_iter().enumerate().map(move |other| (one, other))
}

fn each_kind(rate: u64) -> impl Iterator<Item = (u64, (&'static str, Frames))> {
    KINDS.into_iter().map(move |kind| (rate, kind))
}
