//! Frames that the switch itself sends, on behalf of a port.

use super::{Forwarder, guest_of};
use crate::frame::{VnetHdr, rarp};
use crate::port::PortTable;
use crate::stats::DropReason;
use crate::switch::{Ingress, SourceMemo};
use crate::worker::{Announcement, WorkerStats};

impl Forwarder {
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
