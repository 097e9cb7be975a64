//! Reports from time to time the events that a guest can cause with each frame: addresses that
//! moved to a port, addresses that flap and are held at another port, and frames that the port's
//! guard refused.
//!
//! Workers count each event ([`base::stats::PortStats`], [`base::stats::GuardStats`]) and note the
//! last event; [`super::sampler`] reads both.

use base::limits::{MOVES_TOLD_SECONDS, VIOLATIONS_TOLD_SECONDS};
use datapath::events::What;
use datapath::port::{Port, PortTable};

/// Reports of one port.
#[derive(Debug)]
pub struct Reports([Paced; 3]);

/// Returns the counts of a port: addresses that moved, frames from held addresses, and frames that
/// broke a rule.
pub fn counted(port: &Port) -> [u64; 3] {
    let stats = &port.stats;
    [stats.mac_moves.get(), stats.learn_held.get(), stats.guard.told()]
}

impl Reports {
    /// Returns the reports of a port whose counts `told` need not be reported.
    pub(crate) fn new(told: Option<[u64; 3]>) -> Reports {
        Reports([0, 1, 2].map(|at| Paced::new(told.map(|told| told[at]))))
    }

    /// True if all events were reported.
    pub(crate) fn are_over(&self, port: &Port) -> bool {
        self.0.iter().zip(counted(port)).all(|(paced, count)| paced.is_over(count))
    }

    /// Reports the port's counters of second `now`; `ports` has the ports that addresses came from
    /// or are held at.
    pub(crate) fn look(&mut self, port: &Port, ports: &PortTable, now: u32) {
        let name = |id| ports.get(id).map(|port| port.name.clone());
        let ([moved, held, broken], counts) = (&mut self.0, counted(port));
        let moves = moved.due(counts[0], now, MOVES_TOLD_SECONDS);
        if let (Some(moves), Some((mac, from))) = (moves, port.observed.last_seen.moved()) {
            let what = What::MacMoved { mac, from: name(from), moves };
            port.reports.events.tell_and_log(&port.name, what);
        }
        let frames = held.due(counts[1], now, MOVES_TOLD_SECONDS);
        if let (Some(frames), Some((mac, at))) = (frames, port.observed.last_seen.held()) {
            let what = What::MacHeld { mac, at: name(at), frames };
            port.reports.events.tell_and_log(&port.name, what);
        }
        let frames = broken.due(counts[2], now, VIOLATIONS_TOLD_SECONDS);
        if let (Some(frames), Some(violation)) = (frames, port.observed.last_seen.violation()) {
            let dropped = port.policy.get().security.as_ref().is_some_and(|rules| rules.enforced);
            let what = What::GuardViolation { violation, dropped, frames };
            port.reports.events.tell_and_log(&port.name, what);
        }
    }
}

/// A counter, the part of the counter that was reported, and the second of the last report.
#[derive(Debug)]
struct Paced {
    /// The number of events that were reported, or came before; none while counters of an earlier
    /// port are being carried over.
    told: Option<u64>,
    /// The second of the last report.
    second: Option<u32>,
}

impl Paced {
    /// Returns a counter of which `told` events are not reported again.
    fn new(told: Option<u64>) -> Paced {
        Paced { told, second: None }
    }

    /// True if all of `count` events were reported.
    fn is_over(&self, count: u64) -> bool {
        self.told.is_none_or(|told| told == count)
    }

    /// Returns how many of `count` events are to be reported in second `now`, at most once in
    /// `pause` seconds; none if no report is due. The events count as reported then.
    fn due(&mut self, count: u64, now: u32, pause: u32) -> Option<u64> {
        let more = count.wrapping_sub(*self.told.get_or_insert(count));
        let lately = self.second.is_some_and(|told| now.abs_diff(told) < pause);
        if more == 0 || lately {
            return None;
        }
        (self.told, self.second) = (Some(count), Some(now));
        Some(more)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use base::frame::MacAddr;
    use datapath::events::Events;
    use switch::port_security::Address;
    use switch::{Rule, Violation};
    use sys::waker::Waker;

    #[test]
    fn moves_are_told_once_in_a_while() {
        let events = Arc::new(Events::new(&Arc::new(Waker::new().unwrap())));
        let port = |id, name| Arc::new(Port::guest(id, name, 1).telling(&events));
        let ports: PortTable = [port(0, "a"), port(1, "b")].into_iter().collect();
        let port = &ports[0];
        let mac: MacAddr = "52:54:00:00:00:01".parse().unwrap();
        let mut reports = Reports::new(Some([0; 3]));
        reports.look(port, &ports, 0);
        for now in [1, 1, 1, 2, 9, 11, 12, 30] {
            port.stats.mac_moves.add_shared(1);
            port.observed.last_seen.note_moved(mac, 1);
            reports.look(port, &ports, now);
            if now == 9 {
                assert!(!reports.are_over(port));
            }
        }
        assert!(reports.are_over(port));
        let told = events.after(0, 9).events.into_iter().map(|event| event.what);
        let moved = |moves| What::MacMoved { mac, from: Some("b".to_owned()), moves };
        assert_eq!(told.collect::<Vec<_>>(), [1, 5, 2].map(moved));
    }

    #[test]
    fn holds_are_told_once_in_a_while() {
        let events = Arc::new(Events::new(&Arc::new(Waker::new().unwrap())));
        let port = |id, name| Arc::new(Port::guest(id, name, 1).telling(&events));
        let ports: PortTable = [port(0, "a"), port(1, "b")].into_iter().collect();
        let mac: MacAddr = "52:54:00:00:00:01".parse().unwrap();
        let mut reports = Reports::new(Some([0; 3]));
        for now in [1, 1, 2, 9, 11, 30] {
            ports[0].stats.learn_held.add_shared(1);
            ports[0].observed.last_seen.note_held(mac, 1);
            reports.look(&ports[0], &ports, now);
        }
        assert!(reports.are_over(&ports[0]));
        let told = events.after(0, 9).events.into_iter().map(|event| event.what);
        let held = |frames| What::MacHeld { mac, at: Some("b".to_owned()), frames };
        assert_eq!(told.collect::<Vec<_>>(), [1, 4, 1].map(held));
    }

    #[test]
    fn violations_are_told_once_in_a_while_with_the_last_address() {
        let events = Arc::new(Events::new(&Arc::new(Waker::new().unwrap())));
        let port = Port::guest(0, "a", 1).telling(&events);
        let none = PortTable::default();
        let mut reports = Reports::new(Some([0; 3]));
        reports.look(&port, &none, 0);
        for now in [1, 1, 1, 2, 4, 5, 6, 30] {
            port.stats.guard.ip.add_shared(1);
            let address = Address::Ip([10, 0, 0, now as u8].into());
            port.observed.last_seen.note_violation(Violation { rule: Rule::Ip, address });
            reports.look(&port, &none, now);
            if now == 4 {
                assert!(!reports.are_over(&port));
            }
        }
        assert!(reports.are_over(&port));
        let told = events.after(0, 9).events.into_iter().map(|event| event.what);
        let violation = |last: u8, frames| What::GuardViolation {
            violation: Violation { rule: Rule::Ip, address: Address::Ip([10, 0, 0, last].into()) },
            dropped: false,
            frames,
        };
        let expected = [(1, 1), (5, 5), (30, 2)].map(|(last, frames)| violation(last, frames));
        assert_eq!(told.collect::<Vec<_>>(), expected);
    }
}
