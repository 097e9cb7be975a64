//! The session with one front-end, from its first message to its last.
//!
//! One thread per port reads requests and answers them; every error ends here. A request has three
//! outcomes: done; *refused* (the front-end gets a NACK if it asked, and the session goes on);
//! *fatal* (the connection is closed, the listener stays). Requests may come in any order and
//! state: front-ends enable rings before features are set, stop rings that never started, and
//! repeat everything.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use vhost::vhost_user::message::{
    FrontendReq, VhostUserLog, VhostUserProtocolFeatures as Protocol, VhostUserVringState,
};

use super::codec::{Connection, Incoming, WireError};
pub use super::context::Context;
use super::descriptors;
use super::features::{self, Offer};
use super::guest_memory::GuestMemory;
use super::message::{Code, Head, Message, Passed, Payload, RegionSpec, address_in};
use super::refusal::Refusal;
use super::rings::Rings;
use super::setup::Setup;
use crate::events::What;
use crate::guard::disposal;
pub use crate::memory::{Account, Exhausted, Ledger};
use crate::memory::{DirtyLog, MemTable};
use crate::pipeline::Announcement;
use crate::port::{GuestPort, Port, PortConfig, SessionFacts};
use base::frame::MacAddr;
use base::limits::{MAX_CARRIED_MTU, MAX_MEM_SLOTS, MIN_MTU};
use base::words::counted;

/// Why a session ended early.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The connection failed.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The port is not a guest's.
    #[error("the port is not a guest's")]
    NoGuest,
    /// A request was refused, and no reply could say so.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The front-end set virtio or protocol features that were not offered; these bits.
    #[error("{0} {1:#x} were not offered")]
    NotOffered(&'static str, u64),
    /// The driver acknowledged ACCESS_PLATFORM. The session cannot go on: the guest's addresses
    /// would be an IOMMU's, and be taken for guest-physical ones.
    #[error(
        "ACCESS_PLATFORM was acknowledged: the network card is behind a virtual IOMMU, which is \
         not supported"
    )]
    Iommu,
}

/// How a session ended without an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The front-end left.
    Closed,
    /// The daemon stops.
    Stopped,
}

/// The session with one front-end. Dropping it stops the rings and removes the port's addresses.
pub struct Session<'a> {
    context: &'a Context,
    port: &'a Port,
    connection: Connection,
    features: u64,
    protocol: u64,
    memory: GuestMemory,
    rings: Rings<'a>,
    setup: Setup,
    /// A ring has run.
    attached: bool,
}

impl<'a> Session<'a> {
    /// Makes a session over `connection` on behalf of `port`, which must be a guest's and in
    /// service. Mappings are charged to `account`, the port's account.
    pub fn new(
        context: &'a Context,
        port: &'a Port,
        account: &Arc<Account>,
        connection: Connection,
    ) -> Result<Session<'a>, SessionError> {
        let guest = port.as_guest().ok_or(SessionError::NoGuest)?;
        guest.attach(Arc::clone(connection.leave()));
        port.stats.attaches.add_shared(1);
        Ok(Session {
            context,
            port,
            connection,
            features: 0,
            protocol: 0,
            memory: GuestMemory::new(account, port.config.preallocated),
            rings: Rings::new(context, port, guest),
            setup: Setup::default(),
            attached: false,
        })
    }

    /// Serves requests until the front-end leaves, the daemon stops, or an error ends the session.
    pub fn serve(&mut self) -> Result<End, SessionError> {
        loop {
            match self.connection.receive()? {
                Incoming::Message(message) => self.handle(message)?,
                Incoming::OtherFrontEnd if self.port.reports.log.allow() => log::info!(
                    "port {}: another front-end has connected to its socket and waits: one \
                     front-end is served at a time",
                    self.port.name
                ),
                Incoming::OtherFrontEnd => {}
                Incoming::Called => self.tell(),
                Incoming::Closed => {
                    if self.setup.wanted_more() {
                        let most = counted(self.rings.pairs(), "queue pair");
                        self.warn(&format!(
                            "the front-end was offered {most} at most, and \
                             left without a ring: does it want more? queues=N is the port's option"
                        ));
                    }
                    return Ok(End::Closed);
                }
                Incoming::Stopped => return Ok(End::Stopped),
            }
        }
    }

    /// Answers another thread's question about the session, if there is one.
    fn tell(&self) {
        let Some(guest) = self.port.as_guest() else { return };
        guest.tell(|| SessionFacts {
            features: self.features,
            protocol: self.protocol,
            regions: self.memory.facts(),
            rings: self.rings.facts(&self.memory.table),
        });
    }

    fn warn(&self, text: &str) {
        if self.port.reports.log.allow() {
            log::warn!("port {}: {text}", self.port.name);
        }
    }

    fn handle(&mut self, mut message: Message) -> Result<(), SessionError> {
        let head = message.head;
        log::trace!("port {}: {}", self.port.name, head.code);
        if head.code == FrontendReq::SET_BACKEND_REQ_FD.into()
            && self.has_protocol(Protocol::BACKEND_REQ)
        {
            // The descriptor is the channel for requests of the back-end. The switch supports no
            // IOMMU, so the switch sends no request.
            disposal::close(message.files.drain(..).flatten().collect());
            return self.acknowledge(head, true);
        }
        if let Err(strange) = descriptors::screen(head.code, &mut message.files) {
            let refusal = Refusal::from(strange);
            // A reply of the request's own could only say that the request was done.
            return if head.has_answer() {
                Err(refusal.into())
            } else {
                self.refuse(head, refusal)
            };
        }
        let refusal = match message.decode() {
            Ok(Some((request, payload))) => self.dispatch(head.code, request, payload)?.err(),
            Ok(None) => Some(Refusal::Unsupported(head.code)),
            Err(bad) => Some(bad.into()),
        };
        self.tell_attached();
        if matches!(refusal, Some(Refusal::OnDisk)) {
            self.memory.all_on_disk = true;
        }
        self.note_memory();
        match refusal {
            None => self.acknowledge(head, true),
            Some(refusal) => self.refuse(head, refusal),
        }
    }

    /// Publishes faults of the guest's memory for the diagnosis.
    fn note_memory(&mut self) {
        let Some(guest) = self.port.as_guest() else { return };
        let driver = self.features & !features::PROTOCOL_FEATURES != 0;
        let GuestMemory { was_mapped, all_on_disk, .. } = self.memory;
        guest.memory_faults.set(driver && !was_mapped, all_on_disk, self.memory.bytes_left_out());
    }

    /// Reports once that a ring runs.
    fn tell_attached(&mut self) {
        if self.attached || !self.rings.any_started() {
            return;
        }
        self.attached = true;
        let who = self.port.as_guest().and_then(GuestPort::front_end);
        let (pid, uid) = who.map_or((0, u32::MAX), |who| (who.pid, who.uid));
        let attached = What::Attached { pid, uid, features: self.features };
        self.port.reports.events.tell_and_log(&self.port.name, attached);
    }

    fn acknowledge(&mut self, head: Head, done: bool) -> Result<(), SessionError> {
        if self.can_acknowledge(head) {
            self.connection.ack(head.code, done)?;
        }
        Ok(())
    }

    fn can_acknowledge(&self, head: Head) -> bool {
        head.wants_ack() && self.has_protocol(Protocol::REPLY_ACK)
    }

    fn has_protocol(&self, feature: Protocol) -> bool {
        self.protocol & feature.bits() != 0
    }

    /// Refuses a request. A front-end that asked for an acknowledgement gets a NACK and may go on.
    /// A front-end that did not ask would believe the request done. So a malformed message ends
    /// such a session, and so does resource exhaustion: the guest would stay cut off, while a new
    /// connection tries again. Other refusals are only logged, as QEMU relies on this (unknown
    /// requests, addresses that QEMU sets again later).
    fn refuse(&mut self, head: Head, refusal: Refusal) -> Result<(), SessionError> {
        self.warn(&format!("{} refused: {refusal}", head.code));
        let fatal = matches!(refusal, Refusal::Bad(_)) || refusal.is_resource_exhaustion();
        if !self.can_acknowledge(head) && fatal {
            return Err(refusal.into());
        }
        self.acknowledge(head, false)
    }

    /// Serves a request, one function per request. Outer error: fatal; inner error: refused.
    fn dispatch(
        &mut self,
        code: Code,
        request: FrontendReq,
        payload: Payload,
    ) -> Result<Result<(), Refusal>, SessionError> {
        use FrontendReq as R;
        if let Some(text) = self.setup.note(request, &payload) {
            self.warn(text);
        }
        match (request, payload) {
            (R::GET_FEATURES, _) => self.connection.reply_u64(code, self.offer().features)?,
            (R::GET_PROTOCOL_FEATURES, _) => {
                self.connection.reply_u64(code, self.offer().protocol)?;
            }
            // The rings of the configured pairs, as cloud-hypervisor expects. QEMU and DPDK read
            // the number as pairs and may use as many: the port has twice the configured pairs.
            (R::GET_QUEUE_NUM, _) => self.connection.reply_u64(code, self.rings.pairs() as u64)?,
            (R::GET_MAX_MEM_SLOTS, _) => self.connection.reply_u64(code, MAX_MEM_SLOTS as u64)?,
            (R::SET_FEATURES, Payload::Number(bits)) => self.set_features(bits)?,
            (R::SET_PROTOCOL_FEATURES, Payload::Number(bits)) => {
                check_offered("protocol features", bits, self.offer().protocol)?;
                self.protocol = bits;
            }
            (R::GET_VRING_BASE, Payload::Ring(index, _)) => {
                let base = self.rings.stop(index)?;
                self.connection.reply(code, VhostUserVringState::new(index, base))?;
            }
            (R::SET_LOG_BASE, Payload::Log(file, offset, size)) => {
                // QEMU waits for this reply and ignores its body; front-ends built on the `vhost`
                // crate expect the log's description in the reply. The reply cannot refuse, so a
                // session that cannot use the log ends the connection.
                self.set_log_base(file, offset, size)?;
                self.connection.reply(code, VhostUserLog::new(size, offset))?;
            }
            (request, payload) => return Ok(self.change(code, request, payload)),
        }
        Ok(Ok(()))
    }

    /// Serves requests without a reply of their own.
    fn change(
        &mut self,
        code: Code,
        request: FrontendReq,
        payload: Payload,
    ) -> Result<(), Refusal> {
        use FrontendReq as R;
        match (request, payload) {
            // The protocol says to ignore the first two; the log needs no signal from the switch.
            (R::SET_OWNER | R::RESET_OWNER | R::SET_LOG_FD, _) => Ok(()),
            (R::SET_MEM_TABLE, Payload::Table(regions)) => self.set_mem_table(regions),
            (R::ADD_MEM_REG, Payload::Region(spec, file)) => self.add_region(spec, file),
            (R::REM_MEM_REG, Payload::Region(spec, _)) => self.remove_region(spec),
            (R::SET_VRING_NUM, Payload::Ring(index, num)) => {
                self.rings.set_num(index, num)?;
                self.rings.refresh(index, self.features, &self.memory.table, &self.memory.log)
            }
            (R::SET_VRING_ADDR, Payload::Address(addr)) => {
                self.rings.set_addr(addr, &self.memory.table)?;
                self.rings.refresh(addr.index, self.features, &self.memory.table, &self.memory.log)
            }
            (R::SET_VRING_BASE, Payload::Ring(index, base)) => self.rings.set_base(index, base),
            (R::SET_VRING_KICK, Payload::Notifier(index, file)) => {
                self.rings.set_kick(index, file)?;
                self.rings.refresh(index, self.features, &self.memory.table, &self.memory.log)
            }
            (R::SET_VRING_CALL, Payload::Notifier(index, file)) => self.rings.set_call(index, file),
            (R::SET_VRING_ERR, Payload::Notifier(index, file)) => self.rings.set_err(index, file),
            (R::SET_VRING_ENABLE, Payload::Ring(index, num)) => {
                self.rings.set_enable(index, num == 1)
            }
            (R::SEND_RARP, Payload::Number(number)) => self.announce(address_in(number)),
            (R::NET_SET_MTU, Payload::Number(mtu)) => self.set_mtu(mtu),
            _ => Err(Refusal::Unsupported(code)),
        }
    }

    /// Returns the features offered to this port.
    fn offer(&self) -> Offer {
        let PortConfig { send, offload, platform, .. } = self.port.config;
        features::offer(send, offload, platform)
    }

    /// `SET_FEATURES`. Front-ends repeat it while rings run, once per pair; for running rings only
    /// the log bit, MQ and the offloads of receive rings have an effect.
    fn set_features(&mut self, bits: u64) -> Result<(), SessionError> {
        check_offered("features", bits, self.offer().features)?;
        if bits & features::ACCESS_PLATFORM != 0 {
            return Err(SessionError::Iommu);
        }
        self.features = bits;
        self.rings.set_features(bits);
        self.update_log();
        Ok(())
    }

    fn set_log_base(&mut self, file: OwnedFd, offset: u64, size: u64) -> Result<(), Refusal> {
        let log = self.memory.map_log(file, offset, size)?;
        // The old log is unmapped after every ring has released it, and not under a ring's lock.
        let old = self.memory.log.replace(log);
        self.update_log();
        drop(old);
        Ok(())
    }

    fn set_mem_table(&mut self, regions: Vec<(RegionSpec, Passed)>) -> Result<(), Refusal> {
        let (table, on_disk) = self.memory.map_all(regions)?;
        self.replace_memory(table)?;
        self.memory.keep_left_out(|spec| on_disk.contains(spec));
        on_disk.into_iter().try_for_each(|spec| self.leave_out(spec))
    }

    fn leave_out(&mut self, spec: RegionSpec) -> Result<(), Refusal> {
        if self.memory.leave_out(spec)? {
            self.warn(&format!(
                "{} MiB of guest memory at {:#x} lie in a file on a disk and are left out: frames \
                 there are dropped",
                spec.len >> 20,
                spec.gpa
            ));
        }
        Ok(())
    }

    /// `ADD_MEM_REG`. QEMU 7.2 sends each region once per queue pair, so a region that is in the
    /// table already is no error.
    fn add_region(&mut self, spec: RegionSpec, file: Passed) -> Result<(), Refusal> {
        let Some(file) = file else {
            return self.leave_out(spec);
        };
        match self.memory.with(spec, file)? {
            Some(table) => self.replace_memory(table),
            None => Ok(()),
        }
    }

    /// `REM_MEM_REG`, which QEMU 7.2 sends once per queue pair too.
    fn remove_region(&mut self, spec: RegionSpec) -> Result<(), Refusal> {
        match self.memory.without(spec)? {
            Some(table) => self.replace_memory(table),
            None => Ok(()),
        }
    }

    /// Replaces the memory table. The old table is unmapped when the last running ring has released
    /// it, before this returns.
    fn replace_memory(&mut self, table: MemTable) -> Result<(), Refusal> {
        // Held until every ring has moved: unmapping takes long and must not happen under a lock.
        let old = self.memory.replace(table);
        self.rings.rebase(&self.memory.table);
        drop(old);
        self.rings.refresh_all(self.features, &self.memory.table, &self.memory.log)
    }

    /// Switches dirty logging of running rings on, off or to another log. When this returns no
    /// worker writes to another log than the present one.
    fn update_log(&mut self) {
        let log = self.active_log();
        self.rings.set_log(log);
    }

    fn active_log(&self) -> Option<Arc<DirtyLog>> {
        self.memory.log.clone().filter(|_| self.features & features::LOG_ALL != 0)
    }

    fn set_mtu(&mut self, mtu: u64) -> Result<(), Refusal> {
        let carried = (MIN_MTU..=MAX_CARRIED_MTU).contains(&mtu);
        let said = u16::try_from(mtu).ok().filter(|_| carried).ok_or(Refusal::Mtu(mtu))?;
        self.port.mtu.agree(Some(said));
        Ok(())
    }

    /// `SEND_RARP`. After a migration the front-end asks to tell the network the guest's new place.
    fn announce(&self, mac: MacAddr) -> Result<(), Refusal> {
        let Some(guest) = self.port.as_guest() else { return Ok(()) };
        if !guest.announcements.take() {
            return Err(Refusal::Announcements);
        }
        let session = guest.session();
        if let (Some(worker), Some(session)) = (self.context.workers.handles().first(), session) {
            worker.announce(Announcement { port: self.port.id, mac, session });
        }
        Ok(())
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        end(self.context, self.port, &mut self.rings);
    }
}

/// Ends a session: stops the rings and removes the port's addresses.
pub(crate) fn end(context: &Context, port: &Port, rings: &mut Rings<'_>) {
    rings.stop_all();
    // Before the addresses are flushed: a worker with an announcement of this session learns and
    // then checks whether the session is over, so the worker or this thread flushes.
    if let Some(guest) = port.as_guest() {
        guest.detach();
    }
    context.fdb.flush_port(port.id);
    context.workers.forget_memberships(port.id);
    port.mtu.agree(None);
}

fn check_offered(what: &'static str, bits: u64, offered: u64) -> Result<(), SessionError> {
    match bits & !offered {
        0 => Ok(()),
        bits => Err(SessionError::NotOffered(what, bits)),
    }
}
