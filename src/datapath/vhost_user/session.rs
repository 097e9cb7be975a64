//! The session with one front-end, from its first message to its last.
//!
//! One thread per port reads requests and answers them; every error ends here. A request has three
//! outcomes: done; *refused* (the front-end gets a NACK if it asked, and the session goes on);
//! *fatal* (the connection is closed, the listener stays). Requests may come in any order and
//! state: front-ends enable rings before features are set, stop rings that never started, and
//! repeat everything.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use vhost::vhost_user::message::{
    FrontendReq, VhostUserLog, VhostUserProtocolFeatures as Protocol, VhostUserVringState,
};

use super::codec::{Connection, Incoming, WireError};
use super::descriptors::{self, DescriptorError};
use super::features::{self, Offer};
use super::message::{BadMessage, Code, Head, Message, Passed, Payload, RegionSpec, address_in};
use super::rings::{Rings, facts};
use super::setup::Setup;
use crate::events::What;
use crate::guard::BlockedWriterWatch;
use crate::guard::disposal;
pub use crate::memory::{Account, Exhausted, Ledger};
use crate::memory::{DirtyLog, Extent, LogError, MapError, MemTable, Region, TableError};
use crate::pipeline::Announcement;
use crate::port::{GuestPort, Port, PortConfig, RegionFacts, SessionFacts};
use crate::ring::RingError;
use crate::worker::Workers;
use base::frame::MacAddr;
use base::limits::{MAX_CARRIED_MTU, MAX_MEM_SLOTS, MIN_MTU};
use base::words::counted;
use switch::Fdb;

/// The parts of the process that every session uses.
#[derive(Clone)]
pub struct Context {
    /// The forwarding table.
    pub fdb: Arc<Fdb>,
    /// The data path.
    pub workers: Arc<Workers>,
    /// Frees a session whose write to a call descriptor blocks.
    pub watch: Arc<BlockedWriterWatch>,
}

/// Why a request is not carried out.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The message is malformed.
    #[error(transparent)]
    Bad(#[from] BadMessage),
    /// This back-end does not serve the request.
    #[error("{0} is not supported")]
    Unsupported(Code),
    /// The port has no ring of this index.
    #[error("ring {0} does not exist")]
    NoRing(u32),
    /// The ring cannot be set up with these values.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// The request is not allowed while the ring runs.
    #[error("ring {0} is running")]
    Running(u32),
    /// A ring's address flags have undefined bits.
    #[error("undefined flags {0:#x}")]
    Flags(u32),
    /// The file cannot be mapped.
    #[error("memory region: {0}")]
    Map(#[from] MapError),
    /// All that can be mapped is mapped, by other ports or by this one.
    #[error("memory region: {0}")]
    Exhausted(#[from] Exhausted),
    /// All of the guest's memory lies in disk files.
    #[error(
        "all of the guest's memory lies in files on a disk: give it memory-backend-memfd, or \
         hugetlbfs (libvirt: <source type='memfd'/>)"
    )]
    OnDisk,
    /// The regions do not form a memory table.
    #[error("memory table: {0}")]
    Table(#[from] TableError),
    /// The descriptor is of the wrong kind.
    #[error(transparent)]
    Descriptor(#[from] DescriptorError),
    /// The dirty log cannot be used.
    #[error("dirty log: {0}")]
    Log(#[from] LogError),
    /// The MTU is larger than a frame can carry, or too small.
    #[error("mtu {0} is out of range")]
    Mtu(u64),
    /// More announcements than a migration calls for.
    #[error("too many announcements")]
    Announcements,
    /// The data path could not watch the ring.
    #[error("cannot watch a kick descriptor: {0}")]
    Watch(#[from] std::io::Error),
}

impl Refusal {
    /// True if nothing is wrong with the request: this process ran out of a resource.
    pub fn is_resource_exhaustion(&self) -> bool {
        matches!(
            self,
            Refusal::Watch(_)
                | Refusal::Exhausted(_)
                | Refusal::Descriptor(DescriptorError::Io(_))
                | Refusal::Map(MapError::Stat(_) | MapError::Mmap(_) | MapError::Guard(_))
        )
    }
}

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
    memory: Arc<MemTable>,
    /// Regions that lie on a disk and are therefore in no table.
    left_out: Vec<RegionSpec>,
    /// Account of the port, for mappings of the memory and the log.
    account: Arc<Account>,
    /// Set when an access finds a file of this guest shorter than it was when mapped.
    truncated: Arc<AtomicBool>,
    log: Option<Arc<DirtyLog>>,
    rings: Rings<'a>,
    setup: Setup,
    /// Memory was mapped at some time in this session.
    mapped: bool,
    /// All memory that the front-end sent lies on a disk.
    all_on_disk: bool,
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
        let truncated = Arc::default();
        Ok(Session {
            context,
            port,
            connection,
            features: 0,
            protocol: 0,
            memory: Arc::new(MemTable::empty(&truncated)),
            left_out: Vec::new(),
            account: Arc::clone(account),
            truncated,
            log: None,
            rings: Rings::new(context, port, guest),
            setup: Setup::default(),
            mapped: false,
            all_on_disk: false,
            attached: false,
        })
    }

    /// Serves requests until the front-end leaves, the daemon stops, or an error ends the session.
    pub fn serve(&mut self) -> Result<End, SessionError> {
        loop {
            match self.connection.receive()? {
                Incoming::Message(message) => self.handle(message)?,
                Incoming::OtherFrontEnd if self.port.log.allow() => log::info!(
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
        guest.tell(|| {
            let mut regions: Vec<RegionFacts> = self.memory.facts().map(facts::region).collect();
            let left_out = |spec: &RegionSpec| RegionFacts {
                gpa: spec.gpa,
                len: spec.len,
                backing: "disk",
                page: 0,
            };
            regions.extend(self.left_out.iter().map(left_out));
            regions.sort_by_key(|region| region.gpa);
            SessionFacts {
                features: self.features,
                protocol: self.protocol,
                regions,
                rings: self.rings.facts(&self.memory),
            }
        });
    }

    fn warn(&self, text: &str) {
        if self.port.log.allow() {
            log::warn!("port {}: {text}", self.port.name);
        }
    }

    fn handle(&mut self, mut message: Message) -> Result<(), SessionError> {
        let head = message.head;
        log::trace!("port {}: {}", self.port.name, head.code);
        if head.code == FrontendReq::SET_BACKEND_REQ_FD.into()
            && self.has_protocol(Protocol::BACKEND_REQ)
        {
            // A channel for requests of the back-end. Without an IOMMU the back-end sends none.
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
        self.all_on_disk |= matches!(refusal, Some(Refusal::OnDisk));
        self.note_memory();
        match refusal {
            None => self.acknowledge(head, true),
            Some(refusal) => self.refuse(head, refusal),
        }
    }

    /// Publishes faults of the guest's memory for the diagnosis.
    fn note_memory(&mut self) {
        let Some(guest) = self.port.as_guest() else { return };
        self.mapped |= !self.memory.is_empty();
        let driver = self.features & !features::PROTOCOL_FEATURES != 0;
        let on_disk = self.left_out.iter().map(|region| region.len).sum();
        guest.memory_faults.set(driver && !self.mapped, self.all_on_disk, on_disk);
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
        self.port.events.tell_and_log(&self.port.name, attached);
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
                self.rings.refresh(index, self.features, &self.memory, &self.log)
            }
            (R::SET_VRING_ADDR, Payload::Address(addr)) => {
                self.rings.set_addr(addr, &self.memory)?;
                self.rings.refresh(addr.index, self.features, &self.memory, &self.log)
            }
            (R::SET_VRING_BASE, Payload::Ring(index, base)) => self.rings.set_base(index, base),
            (R::SET_VRING_KICK, Payload::Notifier(index, file)) => {
                self.rings.set_kick(index, file)?;
                self.rings.refresh(index, self.features, &self.memory, &self.log)
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
        let extent = Extent::new(file, offset, size)?;
        let lease = self.account.lease(extent.size().mapped)?;
        let log = DirtyLog::new(extent, &self.truncated)?.leased(lease);
        // The old log is unmapped after every ring has released it, and not under a ring's lock.
        let old = self.log.replace(Arc::new(log));
        self.update_log();
        drop(old);
        Ok(())
    }

    fn set_mem_table(&mut self, regions: Vec<(RegionSpec, Passed)>) -> Result<(), Refusal> {
        let mut checked = Vec::with_capacity(regions.len());
        let mut on_disk = Vec::new();
        for (spec, file) in regions {
            match file {
                Some(file) => {
                    let extent = self.extent(&spec, file)?;
                    checked.push((spec, extent));
                }
                None => on_disk.push(spec),
            }
        }
        if checked.is_empty() && !on_disk.is_empty() {
            return Err(Refusal::OnDisk);
        }
        MemTable::check_sizes(checked.iter().map(|(_, extent)| extent.size()))?;
        let mut mapped = Vec::with_capacity(checked.len());
        for (spec, extent) in checked {
            mapped.push(self.map(spec, extent)?);
        }
        self.replace_memory(MemTable::new(mapped, &self.truncated)?)?;
        self.left_out.retain(|spec| on_disk.contains(spec));
        on_disk.into_iter().try_for_each(|spec| self.leave_out(spec))
    }

    /// Leaves out a region in a disk file, whose pages could fault for as long as the disk likes.
    /// Beside other memory the region becomes a hole, and the guest keeps its network: frames
    /// seldom lie in such a region (persistent memory, a second kind of RAM).
    fn leave_out(&mut self, spec: RegionSpec) -> Result<(), Refusal> {
        if self.memory.is_empty() {
            return Err(Refusal::OnDisk);
        }
        if self.left_out.contains(&spec) {
            return Ok(());
        }
        if self.left_out.len() >= MAX_MEM_SLOTS {
            return Err(TableError::TooMany.into());
        }
        self.left_out.push(spec);
        self.warn(&format!(
            "{} MiB of guest memory at {:#x} lie in a file on a disk and are left out: frames \
             there are dropped",
            spec.len >> 20,
            spec.gpa
        ));
        Ok(())
    }

    /// Returns a region's range of its file; with `preallocated` all of its pages must be there.
    fn extent(&self, spec: &RegionSpec, file: OwnedFd) -> Result<Extent, MapError> {
        let extent = Extent::new(file, spec.offset, spec.len)?;
        if self.port.config.preallocated { extent.preallocated() } else { Ok(extent) }
    }

    fn map(&self, spec: RegionSpec, extent: Extent) -> Result<Region, Refusal> {
        let lease = self.account.lease(extent.size().mapped)?;
        let mapping = extent.map(&self.truncated)?.leased(lease);
        let RegionSpec { gpa, uva, offset, .. } = spec;
        Ok(Region { gpa, uva, offset, mapping: Arc::new(mapping) })
    }

    /// `ADD_MEM_REG`. QEMU 7.2 sends each region once per queue pair, so a region that is in the
    /// table already is no error.
    fn add_region(&mut self, spec: RegionSpec, file: Passed) -> Result<(), Refusal> {
        let Some(file) = file else {
            return self.leave_out(spec);
        };
        // Mapped before the table's limits are checked: the region may be in the table already.
        let region = self.map(spec, self.extent(&spec, file)?)?;
        if !self.memory.holds(&region) {
            let table = self.memory.with(region)?;
            self.replace_memory(table)?;
        }
        Ok(())
    }

    /// `REM_MEM_REG`, which QEMU 7.2 sends once per queue pair too.
    fn remove_region(&mut self, spec: RegionSpec) -> Result<(), Refusal> {
        let same = |r: &RegionSpec| (r.gpa, r.uva, r.len) == (spec.gpa, spec.uva, spec.len);
        self.left_out.retain(|region| !same(region));
        match self.memory.without(spec.gpa, spec.uva, spec.len) {
            Ok(table) => self.replace_memory(table),
            Err(TableError::Unknown) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Replaces the memory table. The old table is unmapped when the last running ring has released
    /// it, before this returns.
    fn replace_memory(&mut self, table: MemTable) -> Result<(), Refusal> {
        // Held until every ring has moved: unmapping takes long and must not happen under a lock.
        let old = std::mem::replace(&mut self.memory, Arc::new(table));
        self.rings.rebase(&self.memory);
        drop(old);
        self.rings.refresh_all(self.features, &self.memory, &self.log)
    }

    /// Switches dirty logging of running rings on, off or to another log. When this returns no
    /// worker writes to another log than the present one.
    fn update_log(&mut self) {
        let log = self.active_log();
        self.rings.set_log(log);
    }

    fn active_log(&self) -> Option<Arc<DirtyLog>> {
        self.log.clone().filter(|_| self.features & features::LOG_ALL != 0)
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
        self.rings.stop_all();
        // Before the addresses are flushed: a worker with an announcement of this session learns
        // and then checks whether the session is over, so the worker or this thread flushes.
        if let Some(guest) = self.port.as_guest() {
            guest.detach();
        }
        self.context.fdb.flush_port(self.port.id);
        self.context.workers.forget_memberships(self.port.id);
        self.port.mtu.agree(None);
    }
}

fn check_offered(what: &'static str, bits: u64, offered: u64) -> Result<(), SessionError> {
    match bits & !offered {
        0 => Ok(()),
        bits => Err(SessionError::NotOffered(what, bits)),
    }
}
