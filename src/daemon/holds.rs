//! Tells that addresses flap and are held at another port.
//!
//! Workers count that ([`crate::stats::PortStats::learn_held`]) and note the last one. It is told
//! once in a while ([`super::sampler`]), as each frame from such an address counts.

use crate::events::What;
use crate::limits::MOVES_TOLD_SECONDS;
use crate::port::{Port, PortTable};

/// The frames of one port from addresses that another one keeps.
#[derive(Debug)]
pub struct Holds {
    /// Those that were told, or came before; unknown while counters of before are being carried
    /// over.
    told: Option<u64>,
    /// The second of the last time.
    second: Option<u32>,
}

impl Holds {
    /// Those so far need not be told.
    pub fn new(told: Option<u64>) -> Holds {
        Holds { told, second: None }
    }

    /// True if all were told.
    pub fn are_over(&self, port: &Port) -> bool {
        self.told.is_none_or(|told| told == port.stats.learn_held.get())
    }

    /// What the port has counted by second `now`; `ports` are those that addresses are held at.
    pub fn look(&mut self, port: &Port, ports: &PortTable, now: u32) {
        let count = port.stats.learn_held.get();
        let frames = count.wrapping_sub(*self.told.get_or_insert(count));
        let lately = self.second.is_some_and(|told| now.abs_diff(told) < MOVES_TOLD_SECONDS);
        if frames == 0 || lately {
            return;
        }
        (self.told, self.second) = (Some(count), Some(now));
        if let Some((mac, at)) = port.last_seen.held() {
            let at = ports.get(at).map(|at| at.name.clone());
            port.events.tell_and_log(&port.name, What::MacHeld { mac, at, frames });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::events::Events;
    use crate::frame::MacAddr;
    use crate::sys::waker::Waker;

    #[test]
    fn holds_are_told_once_in_a_while() {
        let events = Arc::new(Events::new(&Arc::new(Waker::new().unwrap())));
        let port = |id, name| Arc::new(Port::guest(id, name, 1).telling(&events));
        let ports: PortTable = [port(0, "a"), port(1, "b")].into_iter().collect();
        let mac: MacAddr = "52:54:00:00:00:01".parse().unwrap();
        let mut holds = Holds::new(Some(0));
        for now in [1, 1, 2, 9, 11, 30] {
            ports[0].stats.learn_held.add_shared(1);
            ports[0].last_seen.note_held(mac, 1);
            holds.look(&ports[0], &ports, now);
        }
        assert!(holds.are_over(&ports[0]));
        let told = events.after(0, 9).events.into_iter().map(|event| event.what);
        let held = |frames| What::MacHeld { mac, at: Some("b".to_owned()), frames };
        assert_eq!(told.collect::<Vec<_>>(), [1, 4, 1].map(held));
    }
}
