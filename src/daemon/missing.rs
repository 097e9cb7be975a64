//! Lists the ports and services that are wanted and not in service: why, since when, and the time
//! of the next attempt.
//!
//! The list has ports and TAPs that were left out at the start, and services beside the ports. A
//! subject leaves the list when it comes into service, and a port also when it is deleted or made
//! anew with other settings. Time is an argument; [`super::retry`] makes the attempts that are due.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::degraded::{Code, Degradation};
use base::limits::{RETRY_MAX, RETRY_MIN};

/// The ports and services that are wanted and not in service.
#[derive(Debug, Default)]
pub struct Missing {
    all: Vec<Lack>,
    /// Names of the ports that the thread of a reload makes; no attempt is made for them.
    pub(super) coming: BTreeSet<String>,
}

/// A port or service that is not in service.
#[derive(Debug)]
struct Lack {
    degradation: Degradation,
    found: Instant,
    next: Attempt,
}

/// The time of the next attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attempt {
    /// The retry thread never tries.
    Never,
    /// The retry thread tries at this time; after a failure it tries again after twice the pause.
    At(Instant, Duration),
    /// The retry thread is trying; the attempt came after this pause.
    Running(Duration),
}

impl Lack {
    /// Ends an attempt that is under way; the next attempt comes after a longer pause.
    fn wait(&mut self, now: Instant) {
        if let Attempt::Running(pause) = self.next {
            let pause = (2 * pause).min(RETRY_MAX);
            self.next = Attempt::At(now + pause, pause);
        }
    }
}

impl Missing {
    /// Returns all degradations, in the order in which they were found.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Degradation> {
        self.all.iter().map(|lack| &lack.degradation)
    }

    /// Adds a subject that is not in service; `again` says whether it is tried again. A subject
    /// that is in the list gets the new reason, and keeps its time.
    pub(crate) fn add(&mut self, degradation: Degradation, again: bool, now: Instant) {
        let Degradation { code, subject, text, .. } = &degradation;
        match self.find(*code, subject.as_deref()) {
            Some(at) => self.all[at].degradation.text.clone_from(text),
            None => {
                let next =
                    if again { Attempt::At(now + RETRY_MIN, RETRY_MIN) } else { Attempt::Never };
                self.all.push(Lack { degradation, found: now, next });
            }
        }
    }

    /// Removes a subject that is in service now, or no longer wanted; returns for how long it was
    /// missing.
    pub(crate) fn take(
        &mut self,
        code: Code,
        subject: Option<&str>,
        now: Instant,
    ) -> Option<Duration> {
        let lack = self.all.remove(self.find(code, subject)?);
        Some(now.saturating_duration_since(lack.found))
    }

    /// Removes all degradations of a deleted port.
    pub(crate) fn forget_port(&mut self, name: &str) {
        self.all.retain(|lack| lack.degradation.subject.as_deref() != Some(name));
    }

    /// Begins the attempt that is due for the longest time. The attempt lasts until
    /// [`Missing::take`] removes its subject, or [`Missing::failed`].
    pub(crate) fn begin(&mut self, now: Instant) -> Option<(Code, Option<String>)> {
        let due = |lack: &&mut Lack| matches!(lack.next, Attempt::At(at, _) if at <= now);
        let at = |lack: &Lack| if let Attempt::At(at, _) = lack.next { at } else { now };
        let lack = self.all.iter_mut().filter(due).min_by_key(|lack| at(lack))?;
        if let Attempt::At(_, pause) = lack.next {
            lack.next = Attempt::Running(pause);
        }
        Some((lack.degradation.code, lack.degradation.subject.clone()))
    }

    /// Ends an attempt that failed for the reason `why`; true if the reason is new.
    pub(crate) fn failed(
        &mut self,
        code: Code,
        subject: Option<&str>,
        why: &str,
        now: Instant,
    ) -> bool {
        let Some(at) = self.find(code, subject) else { return false };
        let lack = &mut self.all[at];
        lack.wait(now);
        let is_new = lack.degradation.text != why;
        why.clone_into(&mut lack.degradation.text);
        is_new
    }

    /// Ends an attempt and plans the next: for a port that is to end, or after a panic.
    pub(crate) fn pause(&mut self, of: impl Fn(&Degradation) -> bool, now: Instant) {
        self.all.iter_mut().filter(|lack| of(&lack.degradation)).for_each(|lack| lack.wait(now));
    }

    /// True while the retry thread tries a port.
    pub(crate) fn is_tried(&self, name: &str) -> bool {
        let of = |lack: &&Lack| lack.degradation.subject.as_deref() == Some(name);
        self.all.iter().filter(of).any(|lack| matches!(lack.next, Attempt::Running(_)))
    }

    fn find(&self, code: Code, subject: Option<&str>) -> Option<usize> {
        let is = |Lack { degradation: one, .. }: &Lack| {
            one.code == code && one.subject.as_deref() == subject
        };
        self.all.iter().position(is)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(name: &str, text: &str) -> Degradation {
        Degradation::new(Code::PortLeftOut, Some(name), text.to_owned())
    }

    #[test]
    fn what_fails_is_tried_again_after_pauses_that_grow_up_to_a_bound() {
        let (start, mut missing) = (Instant::now(), Missing::default());
        missing.add(port("a", "no"), true, start);
        missing.add(port("never", "no"), false, start);
        let (mut now, mut pauses) = (start, Vec::new());
        for _ in 0..8 {
            let from = now;
            while missing.begin(now).is_none() {
                now += Duration::from_millis(500);
            }
            pauses.push((now - from).as_secs());
            assert!(missing.is_tried("a") && missing.begin(now + RETRY_MAX).is_none());
            assert!(!missing.failed(Code::PortLeftOut, Some("a"), "no", now));
            assert!(!missing.is_tried("a"));
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30, 30]);
        assert!(missing.failed(Code::PortLeftOut, Some("a"), "other", now));
        let texts: Vec<&str> = missing.iter().map(|one| one.text.as_str()).collect();
        assert_eq!(texts, ["other", "no"]);
        let lasted = missing.take(Code::PortLeftOut, Some("a"), now);
        assert_eq!(lasted, Some(now - start));
        assert_eq!(missing.iter().count(), 1);
    }

    #[test]
    fn who_waits_longest_is_first_and_what_is_gone_is_tried_no_more() {
        let (now, mut missing) = (Instant::now(), Missing::default());
        missing.add(port("late", "no"), true, now + RETRY_MIN);
        missing.add(port("early", "no"), true, now);
        missing.add(Degradation::new(Code::Metrics, None, "no".to_owned()), true, now);
        missing.forget_port("late");
        // A second degradation of the service is no second item.
        missing.add(Degradation::new(Code::Metrics, None, "why".to_owned()), true, now);
        let later = now + 2 * RETRY_MIN;
        assert_eq!(missing.begin(later), Some((Code::PortLeftOut, Some("early".to_owned()))));
        assert_eq!(missing.begin(later), Some((Code::Metrics, None)));
        assert_eq!(missing.begin(later), None);
        assert_eq!(missing.take(Code::Metrics, None, later), Some(2 * RETRY_MIN));
        assert_eq!(missing.take(Code::Metrics, None, later), None);
        // The late result of a subject that was forgotten changes nothing.
        assert!(!missing.failed(Code::PortLeftOut, Some("late"), "x", later));
    }
}
