//! When a ring was last used.
//!
//! No worker notes that: the thread looks now and then which counters have grown, and whoever asks
//! has it look once more.

use std::sync::{Arc, Weak};
use std::time::Instant;

use super::details::queues;
use crate::port::{Port, PortTable};

/// What was seen of all ports, by their numbers.
#[derive(Debug, Default)]
pub struct Activity(Vec<Option<Watched>>);

#[derive(Debug)]
struct Watched {
    port: Weak<Port>,
    queues: Vec<Seen>,
}

/// The frames of a queue, and when it was found to have had some.
#[derive(Debug, Clone, Copy)]
struct Seen {
    frames: u64,
    at: Option<Instant>,
}

impl Activity {
    /// Looks at all ports, and forgets those that are gone.
    pub fn look_at_all(&mut self, ports: &PortTable, now: Instant) {
        ports.iter().for_each(|port| self.look(port, now));
        for place in &mut self.0 {
            place.take_if(|watched| watched.port.strong_count() == 0);
        }
    }

    /// Looks at one.
    pub fn look(&mut self, port: &Arc<Port>, now: Instant) {
        let at = usize::from(port.id);
        self.0.resize_with(self.0.len().max(at + 1), || None);
        let queues = queues(port);
        let frames = queues.iter().map(|(_, _, _, stats)| stats.frames.get());
        match self.0[at].as_mut().filter(|watched| watched.port.as_ptr() == Arc::as_ptr(port)) {
            Some(watched) => {
                for (seen, frames) in watched.queues.iter_mut().zip(frames) {
                    if seen.frames != frames {
                        *seen = Seen { frames, at: Some(now) };
                    }
                }
            }
            None => {
                // Counters of a former life are no activity of this one.
                let queues = frames.map(|frames| Seen { frames, at: None }).collect();
                self.0[at] = Some(Watched { port: Arc::downgrade(port), queues });
            }
        }
    }

    /// Seconds since a queue was last seen to be used; none if it never was.
    pub fn idle(&self, port: &Arc<Port>, queue: usize) -> Option<u64> {
        let watched = self.0.get(usize::from(port.id))?.as_ref()?;
        let same = watched.port.as_ptr() == Arc::as_ptr(port);
        let at = watched.queues.get(queue).filter(|_| same)?.at?;
        Some(at.elapsed().as_secs())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_grows_was_used_and_another_port_of_the_number_was_not() {
        let mut activity = Activity::default();
        let port = |name| Arc::new(Port::guest(3, name, 1));
        let (one, other) = (port("one"), port("other"));
        let past = Instant::now().checked_sub(Duration::from_secs(7)).unwrap();
        activity.look(&one, past);
        one.as_guest().unwrap().tx[0].stats.frames.add(1);
        activity.look(&one, past);
        activity.look(&one, Instant::now());
        assert_eq!((activity.idle(&one, 0), activity.idle(&one, 1)), (None, Some(7)));
        assert_eq!((activity.idle(&one, 2), activity.idle(&other, 1)), (None, None));
        activity.look(&other, Instant::now());
        assert_eq!((activity.idle(&one, 1), activity.idle(&other, 1)), (None, None));
        drop(other);
        activity.look_at_all(&PortTable::default(), Instant::now());
        assert!(activity.0.iter().all(Option::is_none));
    }
}
