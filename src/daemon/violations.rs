//! Tells what a port's guard refused.
//!
//! Workers count that ([`crate::stats::GuardStats`]) and note the last one. It is told once in a
//! while ([`super::sampler`]), as a guest can break a rule with each frame.

use super::paced::Paced;
use crate::events::What;
use crate::limits::VIOLATIONS_TOLD_SECONDS;
use crate::port::Port;
use crate::switch::Violation;
use crate::switch::port_security::Address;

/// The violations of one port.
#[derive(Debug)]
pub struct Violations(Paced);

impl Violations {
    /// Those so far need not be reported.
    pub fn new(told: Option<u64>) -> Violations {
        Violations(Paced::new(told))
    }

    /// True if all were reported.
    pub fn are_over(&self, port: &Port) -> bool {
        self.0.is_over(port.stats.guard.total())
    }

    /// What the port has counted by second `now`.
    pub fn look(&mut self, port: &Port, now: u32) {
        let frames = self.0.due(port.stats.guard.total(), now, VIOLATIONS_TOLD_SECONDS);
        let violation = port.last_seen.violation();
        if let (Some(frames), Some(Violation { rule, address })) = (frames, violation) {
            let rule = rule.name();
            let address = (address != Address::None).then(|| address.to_string());
            let dropped = port.policy.get().security.as_ref().is_some_and(|rules| rules.enforced);
            let what = What::GuardViolation { rule, address, dropped, frames };
            port.events.tell_and_log(&port.name, what);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::events::Events;
    use crate::switch::Rule;
    use crate::sys::waker::Waker;

    #[test]
    fn violations_are_told_once_in_a_while_with_the_last_address() {
        let events = Arc::new(Events::new(&Arc::new(Waker::new().unwrap())));
        let port = Port::guest(0, "a", 1).telling(&events);
        let mut violations = Violations::new(Some(0));
        violations.look(&port, 0);
        for now in [1, 1, 1, 2, 4, 5, 6, 30] {
            port.stats.guard.ip.add_shared(1);
            let address = Address::Ip([10, 0, 0, now as u8].into());
            port.last_seen.note_violation(Violation { rule: Rule::Ip, address });
            violations.look(&port, now);
            if now == 4 {
                assert!(!violations.are_over(&port));
            }
        }
        assert!(violations.are_over(&port));
        let told = events.after(0, 9).events.into_iter().map(|event| event.what);
        let violation = |last: u8, frames| What::GuardViolation {
            rule: "ip",
            address: Some(format!("10.0.0.{last}")),
            dropped: false,
            frames,
        };
        let expected = [(1, 1), (5, 5), (30, 2)].map(|(last, frames)| violation(last, frames));
        assert_eq!(told.collect::<Vec<_>>(), expected);
    }
}
