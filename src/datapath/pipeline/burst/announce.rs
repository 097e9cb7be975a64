//! Frames that the switch itself sends, on behalf of a port.

use super::{BurstContext, BurstGuard, Origin, Pipeline, Source};
use crate::port::{GuestPort, Polled, Port, PortTable};
use base::frame::{MacAddr, VnetHdr, rarp};
use base::stats::{DropReason, WorkerStats};
use switch::{PortId, SourceMemo};

/// An address to announce.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Announcement {
    /// Port of the address.
    pub(crate) port: PortId,
    /// The address.
    pub(crate) mac: MacAddr,
    /// The session that asked for the announcement, as counted by [`GuestPort::session`]. After the
    /// end of the session, the address must not be learned.
    ///
    /// [`GuestPort::session`]: crate::port::GuestPort::session
    pub(crate) session: u64,
}

/// Source of the single frame of an announcement.
struct Announced<'p> {
    port: &'p Port,
    guest: &'p GuestPort,
    mac: MacAddr,
    session: u64,
    memo: SourceMemo,
}

impl Pipeline {
    /// Announces a guest's location: forwards a RARP request from the guest's address as if the
    /// guest's port had sent it (vhost-user, `SEND_RARP`).
    pub(crate) fn announce(&mut self, ports: &PortTable, what: Announcement, stats: &WorkerStats) {
        let Announcement { port: id, mac, session } = what;
        if let Some((port, guest)) = ports.guest(id) {
            let memo = SourceMemo::default();
            self.forward(ports, Announced { port, guest, mac, session, memo }, stats);
        }
    }
}

impl Announced<'_> {
    /// True while the session that asked for the announcement lasts.
    fn is_wanted(&self) -> bool {
        self.guest.session() == Some(self.session)
    }
}

impl<'p> Source<'p> for Announced<'p> {
    fn origin(&self) -> Origin<'p> {
        Origin { port: self.port, counters: &self.port.stats.announced, floods: None }
    }

    fn memo(&mut self) -> &mut SourceMemo {
        &mut self.memo
    }

    fn take(&mut self, _: &mut Pipeline, context: &mut BurstContext) -> Result<(), Polled> {
        context.burst.clear();
        if !self.is_wanted() {
            context.burst.refuse(DropReason::PortDown);
            return Ok(());
        }
        let taken = context.burst.push_small(VnetHdr::plain(0), &rarp::request(self.mac));
        if taken { Ok(()) } else { Err(Polled::Unavailable) }
    }

    fn complete(
        &mut self,
        on: &mut Pipeline,
        guard: BurstGuard<'_>,
        _: &WorkerStats,
        _: Polled,
    ) -> Polled {
        if !guard.burst.frames().is_empty() && !self.is_wanted() {
            // The session ended meanwhile. Its addresses may have been removed before this address
            // was learned.
            on.fdb.flush_port(self.port.id);
        }
        guard.finish();
        Polled::Unavailable
    }
}
