//! Reports when a port begins to drop frames, and when the drops end.
//!
//! Workers count drops and report none, as there may be millions of drops. [`super::sampler`]
//! compares the counters once a second. Drops of a reason begin with a drop after
//! [`DROPS_QUIET_SECONDS`] without a drop, and end after as many seconds without a drop.

use api::diagnosis::history::LATELY;
use base::limits::DROPS_QUIET_SECONDS;
use base::stats::{Direction, DropReason, Reasons, Traffic};
use datapath::events::What;
use datapath::port::Port;

/// The drops of one port.
#[derive(Debug)]
pub struct Drops {
    /// Counters at the last look; none while counters of an earlier port are being carried over.
    counts: Option<[Reasons; 2]>,
    /// The second of the last drop of each reason; none if no drop was seen since the port's
    /// beginning.
    last: [[Option<u32>; DropReason::ALL.len()]; 2],
    running: Vec<Running>,
    /// Drops of the last minutes, at most one item for each direction and reason.
    recent: Vec<Recent>,
}

/// Frames that were dropped for one reason.
#[derive(Debug)]
struct Recent {
    direction: Direction,
    reason: DropReason,
    frames: u64,
    /// The second of the last drop.
    last: u32,
}

/// Drops that began, or that lasted until a moment ago.
#[derive(Debug)]
struct Running {
    direction: Direction,
    reason: DropReason,
    /// The count before the first drop.
    before: u64,
    /// The second of the last drop.
    last: u32,
    /// True if the beginning was reported, so that the end is reported too.
    told: bool,
}

impl Drops {
    /// Returns the drops of a port that has counted `traffic` so far; drops in `traffic` are no
    /// beginning.
    pub(crate) fn new(traffic: Option<&[Traffic; 2]>) -> Drops {
        let last = [[None; DropReason::ALL.len()]; 2];
        Drops { counts: traffic.map(counts), last, running: Vec::new(), recent: Vec::new() }
    }

    /// Returns the seconds since the last drop of a reason that has counted `count` by second
    /// `now`; none if an earlier process counted all drops of the reason.
    pub(crate) fn age(
        &self,
        (direction, reason): (Direction, DropReason),
        count: u64,
        now: u32,
    ) -> Option<u32> {
        let at = (direction as usize, reason as usize);
        // The port dropped frames since the last look.
        let is_new = self.counts.is_some_and(|known| known[at.0][at.1] != count);
        if is_new { Some(0) } else { self.last[at.0][at.1].map(|last| now.saturating_sub(last)) }
    }

    /// True if no end of drops remains to be reported, unless the port drops more frames.
    pub(crate) fn are_over(&self) -> bool {
        self.running.is_empty()
    }

    /// Records the port's counters of second `now`.
    pub(crate) fn look(&mut self, port: &Port, traffic: &[Traffic; 2], now: u32) {
        let counts = counts(traffic);
        let known = self.counts.replace(counts).unwrap_or(counts);
        for direction in Direction::ALL {
            for &reason in DropReason::ALL {
                let at = (direction as usize, reason as usize);
                let (before, count) = (known[at.0][at.1], counts[at.0][at.1]);
                if count != before {
                    self.last[at.0][at.1] = Some(now);
                    self.note(port, direction, reason, before, now);
                    self.remember(direction, reason, count.wrapping_sub(before), now);
                }
            }
        }
        self.running.retain(|one| {
            let lasts = now.saturating_sub(one.last) < DROPS_QUIET_SECONDS;
            if !lasts && one.told {
                let Running { direction, reason, before, .. } = *one;
                let frames = counts[direction as usize][reason as usize].wrapping_sub(before);
                let ended = What::DropsEnded { direction, reason, frames };
                port.reports.events.tell_surely(&port.name, ended);
            }
            lasts
        });
    }

    fn remember(&mut self, direction: Direction, reason: DropReason, frames: u64, now: u32) {
        self.recent.retain(|one| now.saturating_sub(one.last) < LATELY);
        let same = |one: &&mut Recent| (one.direction, one.reason) == (direction, reason);
        match self.recent.iter_mut().find(same) {
            Some(one) => (one.frames, one.last) = (one.frames + frames, now),
            None => self.recent.push(Recent { direction, reason, frames, last: now }),
        }
    }

    /// Returns the reasons for which frames were dropped in the [`LATELY`] seconds before `now`,
    /// and how many frames. The number includes earlier frames of the reason if no pause between
    /// drops was so long.
    pub(crate) fn lately(&self, now: u32) -> impl Iterator<Item = (DropReason, u64)> {
        let recent = self.recent.iter().filter(move |one| now.saturating_sub(one.last) < LATELY);
        recent.map(|one| (one.reason, one.frames))
    }

    /// Notes that frames were dropped since the last look: drops begin or go on.
    fn note(
        &mut self,
        port: &Port,
        direction: Direction,
        reason: DropReason,
        before: u64,
        now: u32,
    ) {
        let same = |one: &&mut Running| (one.direction, one.reason) == (direction, reason);
        if let Some(one) = self.running.iter_mut().find(same) {
            one.last = now;
            return;
        }
        let began = What::DropsBegan { direction, reason };
        let told = port.reports.events.tell_and_log(&port.name, began);
        self.running.push(Running { direction, reason, before, last: now, told });
    }
}

fn counts(traffic: &[Traffic; 2]) -> [Reasons; 2] {
    traffic.map(|traffic| traffic.drops)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::sampler::Samples;
    use crate::state::carry;
    use datapath::events::{Event, Events};
    use datapath::port::PortTable;
    use sys::waker::Waker;

    /// Returns samples of these ports, whose counters may be an earlier process's.
    fn begun(table: &PortTable) -> Samples {
        let samples = Samples::default();
        samples.begin(table, 0);
        samples
    }

    fn events() -> Arc<Events> {
        Arc::new(Events::new(&Arc::new(Waker::new().unwrap())))
    }

    fn port(name: &str, events: &Arc<Events>) -> Arc<Port> {
        Arc::new(Port::guest(0, name, 2).telling(events))
    }

    fn told(events: &Events) -> Vec<String> {
        let all = events.after(0, 1_000).events;
        let words = |event: &Event| format!("{} {}", event.port.as_ref().unwrap(), event.what);
        // The meaning of the reason is in the table of reasons.
        let brief = |text: String| text.split(" (").next().unwrap_or_default().to_owned();
        all.iter().map(|event| brief(words(event))).collect()
    }

    #[test]
    fn drops_begin_and_end() {
        let events = events();
        let a = port("a", &events);
        a.stats.drops.add(DropReason::PortDown, 7);
        let table: PortTable = [Arc::clone(&a)].into_iter().collect();
        let drops = begun(&table);
        drops.look(&table, 100);
        assert!(told(&events).is_empty() && drops.are_over(), "an earlier process's");
        let guest = a.as_guest().unwrap();
        for now in 101..=110 {
            if now != 104 {
                guest.rx[1].stats.drops.add(DropReason::NoBuffer, 2);
            }
            drops.look(&table, now);
        }
        assert_eq!(told(&events), ["a drops began: out no_buffer"]);
        assert!(!drops.are_over());
        (111..115).for_each(|now| drops.look(&table, now));
        assert_eq!(told(&events).len(), 1, "not yet");
        drops.look(&table, 115);
        assert_eq!(told(&events)[1..], ["a drops ended: out no_buffer, 18 frames"]);
        assert!(drops.are_over());
        // Frames are dropped for another reason in the other direction, and for the first reason
        // again.
        guest.tx[0].stats.drops.add(DropReason::Hairpin, 1);
        guest.rx[0].stats.drops.add(DropReason::NoBuffer, 1);
        drops.look(&table, 116);
        drops.look(&table, 200);
        let ends = &told(&events)[4..];
        let one = |text: &str| ends.iter().filter(|told| told.as_str() == text).count();
        assert_eq!(one("a drops ended: in hairpin, 1 frame"), 1, "{ends:?}");
        assert_eq!(one("a drops ended: out no_buffer, 1 frame"), 1, "{ends:?}");
    }

    /// Drops of an earlier process have no age; counters that are carried over make no drop
    /// younger.
    #[test]
    fn drops_have_an_age() {
        let events = events();
        let a = port("a", &events);
        let (hairpin, down) =
            ((Direction::In, DropReason::Hairpin), (Direction::Out, DropReason::PortDown));
        a.stats.drops.add(DropReason::PortDown, 7);
        let count = |port: &Port, of: (Direction, DropReason)| {
            port.traffic()[of.0 as usize].drops[of.1 as usize]
        };
        let age =
            |drops: &Samples, port: &Port, of, now| drops.drop_age(port, of, count(port, of), now);
        let table: PortTable = [Arc::clone(&a)].into_iter().collect();
        let drops = begun(&table);
        drops.look(&table, 100);
        assert_eq!(age(&drops, &a, down, 100), None);
        a.as_guest().unwrap().tx[0].stats.drops.add(DropReason::Hairpin, 1);
        assert_eq!(age(&drops, &a, hairpin, 105), Some(0), "not looked at yet");
        drops.look(&table, 106);
        drops.look(&table, 172_906);
        assert_eq!(age(&drops, &a, hairpin, 172_906), Some(172_800));
        assert_eq!(age(&drops, &a, down, 172_906), None);
        a.stats.drops.add(DropReason::PortDown, 1);
        drops.look(&table, 172_907);
        assert_eq!(age(&drops, &a, down, 172_910), Some(3));

        let mut after = Port::guest(0, "a", 2).telling(&events);
        after.succeed(&a);
        let after = Arc::new(after);
        let table: PortTable = [Arc::clone(&after)].into_iter().collect();
        drops.look(&table, 172_911);
        carry(&a, &after);
        drops.look(&table, 172_912);
        assert_eq!(age(&drops, &after, down, 172_912), Some(5));
        // The sampler never looked at this port.
        let new = port("b", &events);
        new.stats.drops.add(DropReason::PortDown, 1);
        assert_eq!(age(&drops, &new, down, 172_912), Some(0));
    }

    #[test]
    fn a_port_of_the_same_name_is_another_one() {
        let events = events();
        let (a, b) = (port("a", &events), port("a", &events));
        let table = |port: &Arc<Port>| [Arc::clone(port)].into_iter().collect::<PortTable>();
        let drops = begun(&table(&a));
        a.stats.drops.add(DropReason::TooBig, 5);
        drops.look(&table(&a), 1);
        // The port was added just now, so its counters begin at zero.
        b.stats.drops.add(DropReason::TooBig, 3);
        drops.look(&table(&b), 2);
        drops.look(&table(&b), 100);
        let expected = [
            "a drops began: out too_big",
            "a drops began: out too_big",
            "a drops ended: out too_big, 3 frames",
        ];
        assert_eq!(told(&events), expected);
        drops.look(&PortTable::default(), 101);
        assert!(drops.are_empty());
    }

    /// A port with new settings continues the counters of the port before; drops do not begin.
    #[test]
    fn what_is_carried_over_is_no_beginning() {
        let events = events();
        let table = |port: &Arc<Port>| [Arc::clone(port)].into_iter().collect::<PortTable>();
        let successor = |before: &Port| {
            let mut after = Port::guest(0, "a", 1).telling(&events);
            after.succeed(before);
            Arc::new(after)
        };
        let a = port("a", &events);
        a.as_guest().unwrap().rx[1].stats.drops.add(DropReason::NoBuffer, 815);
        let drops = begun(&table(&a));
        let b = successor(&a);
        drops.look(&table(&b), 1);
        // The thread begins before the counters are carried over.
        let begun = begun(&table(&b));
        carry(&a, &b);
        for drops in [&drops, &begun] {
            drops.look(&table(&b), 2);
            assert!(told(&events).is_empty() && drops.are_over(), "{:?}", told(&events));
        }
        // Drops that go on across the change have one beginning and one end.
        b.stats.drops.add(DropReason::TooBig, 2);
        drops.look(&table(&b), 3);
        let c = successor(&b);
        c.stats.drops.add(DropReason::TooBig, 3);
        drops.look(&table(&c), 4);
        carry(&b, &c);
        drops.look(&table(&c), 5);
        drops.look(&table(&c), 5 + DROPS_QUIET_SECONDS);
        let expected = ["a drops began: out too_big", "a drops ended: out too_big, 5 frames"];
        assert_eq!(told(&events), expected);
    }

    /// Beginnings are reported up to a bound, however many there are; each reported beginning has a
    /// reported end.
    #[test]
    fn suppressed_beginnings_have_suppressed_ends() {
        let events = events();
        let a = port("a", &events);
        let table: PortTable = [Arc::clone(&a)].into_iter().collect();
        let drops = begun(&table);
        for now in 0..100 {
            a.stats.drops.add(DropReason::PortDown, 1);
            drops.look(&table, now * 10);
            drops.look(&table, now * 10 + DROPS_QUIET_SECONDS);
        }
        let told = told(&events);
        let count = |word: &str| told.iter().filter(|line| line.contains(word)).count();
        assert_eq!(count("began"), count("ended"));
        assert!((10..30).contains(&count("began")), "{told:?}");
    }
}
