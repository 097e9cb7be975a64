//! Reads once a second the counters of ports.
//!
//! Workers count and report nothing. A separate thread reads the counters. The thread reports when
//! drops begin and end ([`super::drops`]), which addresses moved or were held and which frames
//! guards refused ([`super::paced`]). The thread records each port's counts of the last minutes,
//! from which findings are made ([`super::diagnose`]), and when each ring was last used. While all
//! workers sleep no counter changes, and the thread has no timer once all drops that began have
//! ended and all events are reported.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use super::drops::Drops;
use super::paced::{Reports, counted};
use api::diagnosis::history::{Counts, History, Sender, Senders};
use base::stats::{Direction, DropReason, Traffic};
use datapath::port::{Port, PortTable, Ports};
use datapath::worker::Helper;
use datapath::worker::Workers;
use sys::clock;
use sys::threads::{lock, pause};

/// Looks at all ports once a second, until `stopping`.
pub fn run(samples: &Samples, ports: &Ports, workers: &Workers, stopping: &AtomicBool) {
    workers.have_helper(Helper::Sampler);
    let turns = || workers.handles().iter().map(|handle| handle.stats.turns.get()).sum::<u64>();
    while pause(Duration::from_secs(1), stopping) {
        let before = turns();
        samples.look(&ports.present(), clock::coarse_seconds());
        // A count that comes after the look belongs to a later turn.
        if samples.are_over() && turns() == before {
            workers.park_while_asleep(Helper::Sampler, stopping);
        }
    }
}

/// Samples of all ports. The sampler holds the lock for a look at all ports, which takes
/// milliseconds for a thousand; no worker takes the lock.
#[derive(Debug, Default)]
pub struct Samples(Mutex<Ledger>);

#[derive(Debug, Default)]
struct Ledger {
    ports: HashMap<String, Seen>,
    looks: u64,
}

/// Samples of one port.
#[derive(Debug)]
pub struct Seen {
    port: Arc<Port>,
    pub(crate) drops: Drops,
    reports: Reports,
    /// Counts of the last minutes; none while counters of an earlier port are being carried over.
    history: Option<History>,
    /// Ports whose frames found no room at this port.
    pub(crate) senders: Senders,
    /// The port's rings, by direction and queue.
    rings: HashMap<(Direction, usize), Used>,
    /// The number of the last look at which the port existed.
    look: u64,
}

/// The frames of a ring, and the second of the look that last saw more frames.
#[derive(Debug, Clone, Copy, Default)]
struct Used {
    frames: u64,
    at: Option<u32>,
}

impl Samples {
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        lock(&self.0)
    }

    /// Begins with ports that nothing serves yet: their counters may be an earlier process's.
    pub(crate) fn begin(&self, ports: &PortTable, now: u32) {
        let mut ledger = self.ledger();
        for port in ports.iter() {
            let traffic = port.life.lineage.is_whole().then(|| port.traffic());
            let before = traffic.as_ref().map(|traffic| (traffic, counted(port)));
            let mut seen = Seen::new(port, before, now);
            seen.look_at_rings(None);
            ledger.ports.insert(port.name.clone(), seen);
        }
    }

    /// Looks at all ports in second `now`.
    pub(crate) fn look(&self, ports: &PortTable, now: u32) {
        let mut ledger = self.ledger();
        ledger.looks += 1;
        let looks = ledger.looks;
        for port in ports.iter() {
            if ledger
                .ports
                .get(&port.name)
                .is_none_or(|seen| !port.life.lineage.is(&seen.port.life.lineage))
            {
                let new = Seen::new(port, Some((&Default::default(), [0; 3])), now);
                ledger.ports.insert(port.name.clone(), new);
            }
            let Some(seen) = ledger.ports.get_mut(&port.name) else { continue };
            seen.look = looks;
            // Counts that are carried over were counted, and reported, before.
            if port.life.lineage.is_whole() {
                let other = std::mem::replace(&mut seen.port, Arc::clone(port));
                // Frames that were carried over are no use of the rings.
                seen.look_at_rings(Arc::ptr_eq(&other, port).then_some(now));
                seen.look_at(ports, now);
            }
        }
        ledger.ports.retain(|_, seen| seen.look == looks);
    }

    /// Forgets a deleted port, as the thread may sleep for as long as the workers do.
    pub(crate) fn forget(&self, port: &Port) {
        let mut ledger = self.ledger();
        if ledger
            .ports
            .get(&port.name)
            .is_some_and(|seen| port.life.lineage.is(&seen.port.life.lineage))
        {
            ledger.ports.remove(&port.name);
        }
    }

    /// True if nothing remains to be reported, unless counters change.
    pub(crate) fn are_over(&self) -> bool {
        let over =
            |Seen { port, drops, reports, .. }: &Seen| drops.are_over() && reports.are_over(port);
        self.ledger().ports.values().all(over)
    }

    /// Returns the ports whose frames found no room at a port lately, the port with most frames
    /// first.
    pub(crate) fn senders(&self, port: &Port, now: u32) -> Vec<Sender> {
        self.of(port, |seen| seen.senders.lately(now)).unwrap_or_default()
    }

    /// Returns the seconds since a ring with `frames` frames was last used; none if it was never
    /// used.
    pub(crate) fn idle(
        &self,
        port: &Port,
        ring: (Direction, usize),
        frames: u64,
        now: u32,
    ) -> Option<u32> {
        let seen = |seen: &Seen| {
            let used = seen.rings.get(&ring).copied().unwrap_or_default();
            let now = if used.frames == frames {
                used.at.map(|at| now.saturating_sub(at))
            } else {
                Some(0)
            };
            now.filter(|_| std::ptr::eq(&*seen.port, port))
        };
        // A port that was added since the last look has carried no frames over.
        self.of(port, seen).unwrap_or_else(|| (frames > 0).then_some(0))
    }

    /// Returns the seconds since a port last dropped a frame for a reason, which has counted
    /// `count`; none if an earlier process counted all of them.
    pub(crate) fn drop_age(
        &self,
        port: &Port,
        of: (Direction, DropReason),
        count: u64,
        now: u32,
    ) -> Option<u32> {
        // All counts of a port that was added since the last look are new.
        self.of(port, |seen| seen.drops.age(of, count, now)).unwrap_or(Some(0))
    }

    /// Returns the result of `ask` on the samples of a port; none if the sampler never looked at
    /// the port.
    pub(crate) fn of<T>(&self, port: &Port, ask: impl FnOnce(&Seen) -> T) -> Option<T> {
        let ledger = self.ledger();
        ledger
            .ports
            .get(&port.name)
            .filter(|seen| port.life.lineage.is(&seen.port.life.lineage))
            .map(ask)
    }

    /// True if there are no samples of any port.
    #[cfg(test)]
    pub(crate) fn are_empty(&self) -> bool {
        self.ledger().ports.is_empty()
    }
}

impl Seen {
    /// Returns the samples of a port with these counts `before`, if they are known: its traffic,
    /// addresses that moved, frames from held addresses, and frames that broke a rule.
    fn new(port: &Arc<Port>, before: Option<(&[Traffic; 2], [u64; 3])>, now: u32) -> Seen {
        let (traffic, told) = before.unzip();
        Seen {
            port: Arc::clone(port),
            drops: Drops::new(traffic),
            reports: Reports::new(told),
            history: traffic.map(|traffic| History::new(now, counts(port, traffic))),
            senders: Senders::default(),
            rings: HashMap::new(),
            look: 0,
        }
    }

    /// Notes which rings were used by second `now`; without `now`, notes only their counts.
    fn look_at_rings(&mut self, now: Option<u32>) {
        let Seen { port, rings, .. } = self;
        port.each_queue(&mut |direction, queue, stats| {
            let (used, frames) = (rings.entry((direction, queue)).or_default(), stats.frames.get());
            match now {
                None => *used = Used { frames, at: None },
                Some(_) if used.frames != frames => *used = Used { frames, at: now },
                Some(_) => {}
            }
        });
    }

    fn look_at(&mut self, ports: &PortTable, now: u32) {
        let Seen { port, drops, reports, history, senders, .. } = self;
        let traffic = port.traffic();
        drops.look(port, &traffic, now);
        reports.look(port, ports, now);
        let counts = counts(port, &traffic);
        history.get_or_insert_with(|| History::new(now, counts)).note(now, counts);
        let mut more = Vec::new();
        port.observed.dropped_from.take(|from, frames| {
            // A sender that is gone meanwhile is not reported.
            more.extend(
                ports
                    .get(from)
                    .map(|from| Sender { port: from.name.clone(), frames: frames.into() }),
            );
        });
        if !more.is_empty() {
            senders.note(now, more.into_iter());
        }
    }

    /// Returns the counts of the last `seconds`.
    pub(crate) fn over(&self, seconds: u32, now: u32) -> Counts {
        self.history.as_ref().map(|history| history.over(seconds, now)).unwrap_or_default()
    }
}

/// Returns the number of receive buffers that a guest's driver made of unusable descriptors.
fn bad_buffers(port: &Port) -> u64 {
    let mut all = 0;
    port.each_queue(&mut |_, _, stats| all += stats.bad_buffers.get());
    all
}

fn counts(port: &Port, [input, output]: &[Traffic; 2]) -> Counts {
    let dropped = |traffic: &Traffic, reason: DropReason| traffic.drops[reason as usize];
    let room = DropReason::ALL.iter().filter(|reason| reason.is_want_of_room());
    Counts {
        out: output.frames,
        no_room: room.map(|reason| dropped(output, *reason)).sum(),
        too_big: dropped(input, DropReason::TooBig) + dropped(output, DropReason::TooBig),
        learn_refused: port.stats.learn_refused.get(),
        learn_static: port.stats.learn_static.get(),
        learn_held: port.stats.learn_held.get(),
        moves: port.stats.mac_moves.get(),
        bad_buffers: bad_buffers(port),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::carry;
    use api::diagnosis::history::{LATELY, MOMENT};

    fn no_buffer(port: &Port, frames: u64) {
        port.as_guest().unwrap().rx[0].stats.drops.add(DropReason::NoBuffer, frames);
    }

    fn table(ports: &[&Arc<Port>]) -> PortTable {
        ports.iter().map(|port| Arc::clone(port)).collect()
    }

    /// A ring was used when its frames last grew. Frames that an earlier process or an earlier port
    /// counted are no use of the ring.
    #[test]
    fn a_ring_that_counts_is_used() {
        let port = Arc::new(Port::guest(3, "one", 1));
        let sent = |port: &Port, frames| {
            let counter = &port.as_guest().unwrap().tx[0].stats.frames;
            counter.add(frames);
            counter.get()
        };
        let (samples, ports) = (Samples::default(), table(&[&port]));
        let idle = |port: &Port, way, frames, now| samples.idle(port, (way, 0), frames, now);
        let frames = sent(&port, 9);
        assert_eq!(idle(&port, Direction::In, frames, 99), Some(0), "it is new");
        samples.begin(&ports, 100);
        assert_eq!(idle(&port, Direction::In, frames, 100), None);
        let frames = sent(&port, 1);
        assert_eq!(idle(&port, Direction::In, frames, 100), Some(0), "before it is looked at");
        samples.look(&ports, 101);
        samples.look(&ports, 106);
        assert_eq!(idle(&port, Direction::In, frames, 108), Some(7));
        assert_eq!(idle(&port, Direction::Out, 0, 108), None);

        let mut after = Port::guest(3, "one", 1);
        after.succeed(&port);
        let after = Arc::new(after);
        assert_eq!(idle(&after, Direction::In, frames, 108), None);
        carry(&port, &after);
        samples.look(&table(&[&after]), 109);
        assert_eq!(idle(&after, Direction::In, frames, 109), None);
        let frames = sent(&after, 1);
        samples.look(&table(&[&after]), 110);
        assert_eq!(idle(&after, Direction::In, frames, 112), Some(2));
    }

    /// Counts and senders of a port go on at the port that comes in its place. Counts of an earlier
    /// process are not among them.
    #[test]
    fn a_port_is_remembered_by_its_line() {
        let [a, b] = [(0, "a"), (1, "b")].map(|(id, name)| Arc::new(Port::guest(id, name, 1)));
        no_buffer(&a, 1_000);
        let (samples, ports) = (Samples::default(), table(&[&a, &b]));
        samples.begin(&ports, 100);
        no_buffer(&a, 7);
        a.observed.dropped_from.add(1, 7);
        samples.look(&ports, 101);
        let no_room = |port: &Port, now| samples.of(port, |seen| seen.over(MOMENT, now).no_room);
        assert_eq!((no_room(&a, 101), no_room(&b, 101)), (Some(7), Some(0)));
        let of_b = vec![Sender { port: "b".to_owned(), frames: 7 }];
        assert_eq!((samples.senders(&a, 101), samples.senders(&b, 101)), (of_b.clone(), vec![]));

        let mut after = Port::guest(0, "a", 2);
        after.succeed(&a);
        let after = Arc::new(after);
        let ports = table(&[&after, &b]);
        samples.look(&ports, 102);
        carry(&a, &after);
        no_buffer(&after, 5);
        samples.look(&ports, 103);
        assert_eq!(no_room(&after, 103), Some(12));
        assert_eq!(samples.of(&after, |seen| seen.over(LATELY, 103).no_room), Some(12));
        assert_eq!(samples.senders(&after, 101), of_b);

        // A new port of the name does not get the samples of the earlier port.
        let other = Arc::new(Port::guest(0, "a", 1));
        assert_eq!(no_room(&other, 103), None);
        samples.look(&table(&[&other]), 104);
        assert_eq!((no_room(&other, 104), no_room(&b, 104)), (Some(0), None));
        samples.forget(&after);
        assert_eq!(no_room(&other, 104), Some(0), "it is another one's");
        samples.forget(&other);
        assert!(samples.are_empty());
    }
}
