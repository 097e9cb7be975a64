//! Tells that addresses moved to a port.
//!
//! Workers count that ([`crate::stats::PortStats::mac_moves`]) and note the last one. It is told
//! once in a while ([`super::sampler`]), as a guest can have an address move with each frame.

use crate::events::What;
use crate::limits::MOVES_TOLD_SECONDS;
use crate::port::{Port, PortTable};

/// The moves of one port.
#[derive(Debug)]
pub struct Moves {
    /// Those that were told, or came before; unknown while counters of before are being carried
    /// over.
    told: Option<u64>,
    /// The second of the last time.
    second: Option<u32>,
}

impl Moves {
    /// Those so far need not be told.
    pub fn new(told: Option<u64>) -> Moves {
        Moves { told, second: None }
    }

    /// True if all were told.
    pub fn are_over(&self, port: &Port) -> bool {
        self.told.is_none_or(|told| told == port.stats.mac_moves.get())
    }

    /// What the port has counted by second `now`; `ports` are those that addresses came from.
    pub fn look(&mut self, port: &Port, ports: &PortTable, now: u32) {
        let count = port.stats.mac_moves.get();
        let moves = count.wrapping_sub(*self.told.get_or_insert(count));
        let lately = self.second.is_some_and(|told| now.abs_diff(told) < MOVES_TOLD_SECONDS);
        if moves == 0 || lately {
            return;
        }
        (self.told, self.second) = (Some(count), Some(now));
        if let Some((mac, from)) = port.last_seen.moved() {
            let from = ports.get(from).map(|from| from.name.clone());
            port.events.tell_and_log(&port.name, What::MacMoved { mac, from, moves });
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
    fn moves_are_told_once_in_a_while() {
        let events = Arc::new(Events::new(&Arc::new(Waker::new().unwrap())));
        let port = |id, name| Arc::new(Port::guest(id, name, 1).telling(&events));
        let ports: PortTable = [port(0, "a"), port(1, "b")].into_iter().collect();
        let port = &ports[0];
        let mac: MacAddr = "52:54:00:00:00:01".parse().unwrap();
        let mut moves = Moves::new(Some(0));
        moves.look(port, &ports, 0);
        for now in [1, 1, 1, 2, 9, 11, 12, 30] {
            port.stats.mac_moves.add_shared(1);
            port.last_seen.note_moved(mac, 1);
            moves.look(port, &ports, now);
            if now == 9 {
                assert!(!moves.are_over(port));
            }
        }
        assert!(moves.are_over(port));
        let told = events.after(0, 9).events.into_iter().map(|event| event.what);
        let moved = |moves| What::MacMoved { mac, from: Some("b".to_owned()), moves };
        assert_eq!(told.collect::<Vec<_>>(), [1, 5, 2].map(moved));
    }
}
