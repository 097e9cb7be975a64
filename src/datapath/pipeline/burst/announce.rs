//! Frames that the switch itself sends, on behalf of a port.

use super::{BurstContext, BurstGuard, Pipeline, Source};
use crate::port::{GuestPort, Next, Port, PortTable};
use base::frame::{MacAddr, VnetHdr, rarp};
use base::stats::{DropReason, QueueStats, WorkerStats};
use switch::{PortId, SourceMemo};

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

/// The one frame of an announcement.
struct Announced<'p> {
    port: &'p Port,
    guest: &'p GuestPort,
    mac: MacAddr,
    session: u64,
    memo: SourceMemo,
}

impl Pipeline {
    /// Tells the network where a guest is now: a RARP request from its address, forwarded as if it
    /// had come from its port (vhost-user, `SEND_RARP`).
    pub fn announce(&mut self, ports: &PortTable, what: Announcement, stats: &WorkerStats) {
        let Announcement { port: id, mac, session } = what;
        if let Some((port, guest)) = ports.guest(id) {
            let memo = SourceMemo::default();
            self.forward(ports, Announced { port, guest, mac, session, memo }, stats);
        }
    }
}

impl Announced<'_> {
    /// True while the session lasts that asked for it.
    fn is_wanted(&self) -> bool {
        self.guest.session() == Some(self.session)
    }
}

impl<'p> Source<'p> for Announced<'p> {
    fn port(&self) -> &'p Port {
        self.port
    }

    fn counters(&self) -> &'p QueueStats {
        &self.port.stats.announced
    }

    fn memo(&mut self) -> &mut SourceMemo {
        &mut self.memo
    }

    fn take(&mut self, _: &mut Pipeline, context: &mut BurstContext) -> Result<(), Next> {
        context.burst.clear();
        if !self.is_wanted() {
            context.burst.refuse(DropReason::PortDown);
            return Ok(());
        }
        let taken = context.burst.push_small(VnetHdr::plain(0), &rarp::request(self.mac));
        if taken { Ok(()) } else { Err(Next::Gone) }
    }

    fn complete(
        &mut self,
        on: &mut Pipeline,
        guard: BurstGuard<'_>,
        _: &WorkerStats,
        _: Next,
    ) -> Next {
        if !guard.burst.frames().is_empty() && !self.is_wanted() {
            // The front-end left meanwhile, and its addresses may have been forgotten before this
            // one was learned.
            on.fdb.flush_port(self.port.id);
        }
        guard.finish();
        Next::Gone
    }
}
