//! Frames that the switch itself sends, on behalf of a port.

use super::Pipeline;
use crate::frame::{MacAddr, VnetHdr, rarp};
use crate::pipeline::guest_of;
use crate::port::PortTable;
use crate::stats::{DropReason, WorkerStats};
use crate::switch::{Ingress, PortId, SourceMemo};

/// An address to announce.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Announcement {
    /// Where it lives.
    pub port: PortId,
    /// The address.
    pub mac: MacAddr,
    /// The session that asked for it, as [`GuestPort::session`] counts them: once that is over
    /// nothing of it may be learned.
    ///
    /// [`GuestPort::session`]: crate::port::GuestPort::session
    pub session: u64,
}

impl Pipeline {
    /// Tells the network where a guest is now: a RARP request from its address, forwarded as if it
    /// had come from its port (vhost-user, `SEND_RARP`).
    pub fn announce(&mut self, ports: &PortTable, what: Announcement, stats: &WorkerStats) {
        let Announcement { port: id, mac, session } = what;
        let Some((port, guest)) = guest_of(ports, id) else {
            return;
        };
        let counters = &port.stats.announced;
        let asked = || guest.session() == Some(session);
        self.burst.clear();
        if !asked() {
            counters.frames.add(1);
            counters.drops.add(DropReason::PortDown, 1);
        } else if self.burst.push_small(VnetHdr::plain(0), &rarp::request(mac)) {
            let ingress = Ingress { port: id, kind: port.kind() };
            let mut source = SourceMemo::default();
            let tally = self.classify(ports, port, ingress, &mut source, counters);
            if !asked() {
                // The front-end left meanwhile, and its addresses may have been forgotten before
                // this one was learned.
                self.fdb.flush_port(id);
            }
            self.deliver(ports, id, stats, None);
            self.planned = false;
            counters.frames.add(1);
            counters.bytes.add(tally.bytes);
            counters.copies.add(tally.copies);
        }
        self.burst.clear();
    }
}
