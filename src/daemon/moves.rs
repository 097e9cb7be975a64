//! Tells that addresses moved to a port, or flap and are held at another one.
//!
//! Workers count both ([`crate::stats::PortStats::mac_moves`], `learn_held`) and note the last
//! address. Each is reported now and then ([`super::sampler`]), as a guest can have an address move
//! with each frame.

use super::paced::Paced;
use crate::events::What;
use crate::limits::MOVES_TOLD_SECONDS;
use crate::port::{Port, PortTable};

/// The moves to one port, and its frames from addresses that another one keeps.
#[derive(Debug)]
pub struct Moves {
    moved: Paced,
    held: Paced,
}

impl Moves {
    /// So many of each so far need not be reported.
    pub fn new(moved: Option<u64>, held: Option<u64>) -> Moves {
        Moves { moved: Paced::new(moved), held: Paced::new(held) }
    }

    /// True if all were reported.
    pub fn are_over(&self, port: &Port) -> bool {
        self.moved.is_over(port.stats.mac_moves.get())
            && self.held.is_over(port.stats.learn_held.get())
    }

    /// What the port has counted by second `now`; `ports` are those that addresses came from or are
    /// held at.
    pub fn look(&mut self, port: &Port, ports: &PortTable, now: u32) {
        let name = |id| ports.get(id).map(|port| port.name.clone());
        let moves = self.moved.due(port.stats.mac_moves.get(), now, MOVES_TOLD_SECONDS);
        if let (Some(moves), Some((mac, from))) = (moves, port.last_seen.moved()) {
            let what = What::MacMoved { mac, from: name(from), moves };
            port.events.tell_and_log(&port.name, what);
        }
        let frames = self.held.due(port.stats.learn_held.get(), now, MOVES_TOLD_SECONDS);
        if let (Some(frames), Some((mac, at))) = (frames, port.last_seen.held()) {
            let what = What::MacHeld { mac, at: name(at), frames };
            port.events.tell_and_log(&port.name, what);
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
        let mut moves = Moves::new(Some(0), Some(0));
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

    #[test]
    fn holds_are_told_once_in_a_while() {
        let events = Arc::new(Events::new(&Arc::new(Waker::new().unwrap())));
        let port = |id, name| Arc::new(Port::guest(id, name, 1).telling(&events));
        let ports: PortTable = [port(0, "a"), port(1, "b")].into_iter().collect();
        let mac: MacAddr = "52:54:00:00:00:01".parse().unwrap();
        let mut moves = Moves::new(Some(0), Some(0));
        for now in [1, 1, 2, 9, 11, 30] {
            ports[0].stats.learn_held.add_shared(1);
            ports[0].last_seen.note_held(mac, 1);
            moves.look(&ports[0], &ports, now);
        }
        assert!(moves.are_over(&ports[0]));
        let told = events.after(0, 9).events.into_iter().map(|event| event.what);
        let held = |frames| What::MacHeld { mac, at: Some("b".to_owned()), frames };
        assert_eq!(told.collect::<Vec<_>>(), [1, 4, 1].map(held));
    }
}
