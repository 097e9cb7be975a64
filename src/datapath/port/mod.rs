//! Ports: the sources and destinations of frames.
//!
//! * [`quantum`] equal shares of a worker's time for competing sources;
//! * [`admission`] admission of frames to a receive ring, and waiting for the ring;
//! * [`flood`] the slot for a source's flood;
//! * [`gate`] conditions that keep frames in a transmit ring;
//! * [`moderation`] which signals for sent frames may wait;
//! * [`mtu`] the MTU of a port;
//! * [`device`] devices that take and give whole frames: the queues of an interface, reattached
//!   when the interface comes back, or a connection;
//! * [`queue`] one ring and the state under its lock;
//! * [`rate`] the rates of a port;
//! * [`guest`] a VM: two rings for each queue pair, attached and detached by its session;
//! * [`inspect`] the state that a session reports for diagnosis;
//! * [`life`] whether a port can be used, since when, and in place of which port;
//! * [`last_seen`] source addresses that may explain a fault;
//! * [`dropped_from`] frames without room, by sender;
//! * [`steering`] the receive queue that a guest wants for a flow;
//! * [`session_waker`] wake-ups of a session;
//! * [`table`] the table of ports, which come and go while frames flow.
//!
//! States of a guest's port: *Listening* (no front-end), *Negotiating* (connected, no ring
//! started), *Attached* (a ring runs), *Draining* (its session stops the rings one by one, TX
//! before RX). Frames for a port without an enabled receive ring are counted drops.

pub(crate) mod admission;
pub mod device;
pub mod dropped_from;
pub mod flood;
pub mod gate;
pub mod guest;
pub mod inspect;
pub mod last_seen;
pub mod life;
pub(crate) mod moderation;
pub mod mtu;
pub(crate) mod quantum;
pub mod queue;
pub mod rate;
pub(crate) mod session_waker;
mod shared_memory;
pub(crate) mod steering;
pub mod table;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::capture::outcomes::Outcomes;
use crate::events::{Events, PortEvents, What, reason};
use crate::guard::bucket::Bucket;
use base::frame::MacAddr;
use base::frame::offload::Offloads;
use base::limits::{PORT_LOG_BURST, PORT_LOG_EVERY};
use base::stats::{Counter, Direction, DropReason, Drops, PortStats, QueueStats, Traffic};
use switch::port_security::DhcpClients;
use switch::{Fdb, PortId, PortKind, PortPolicy, StaticError, Station};
use sys::clock;

pub(crate) use device::DeviceQueue;
pub use device::{Backend, DevicePort};
pub(crate) use dropped_from::DroppedFrom;
pub(crate) use flood::{FloodPermit, FloodSlot};
pub(crate) use gate::Discard;
pub(crate) use guest::Eviction;
pub use guest::{FrontEnd, GuestPort};
pub use inspect::{RegionFacts, RingFacts, SessionFacts};
pub(crate) use last_seen::LastSeen;
pub(crate) use life::Life;
pub use mtu::Mtu;
pub(crate) use queue::{Awaited, QueueRef, RxState, Tx, TxState};
pub use queue::{Polled, Queue, Rx, Vring};
pub use rate::Rates;
pub(crate) use session_waker::SessionWaker;
pub use table::{PortTable, Ports};

/// The endpoint of a port.
#[derive(Debug)]
pub enum Endpoint {
    /// A VM.
    Guest(GuestPort),
    /// A device that takes and gives whole frames.
    Device(DevicePort),
}

/// The configuration of a port that does not change while frames flow.
#[derive(Debug, Clone)]
pub struct PortConfig {
    /// Path of the socket of a VM or a stream; none if the socket was inherited.
    pub socket: Option<PathBuf>,
    /// Offloads that frames of the VM may ask for, if the VM agrees.
    pub send: Offloads,
    /// Offloads that the switch may use towards the VM or the interface; at most those to which a
    /// VM has agreed.
    pub offload: Offloads,
    /// The VM is offered `VIRTIO_F_ACCESS_PLATFORM`.
    pub platform: bool,
    /// The pages of the VM's memory must exist when the memory is mapped.
    pub preallocated: bool,
}

impl Default for PortConfig {
    /// Returns a configuration with all offloads and without a socket.
    fn default() -> PortConfig {
        PortConfig {
            socket: None,
            send: Offloads::ALL,
            offload: Offloads::ALL,
            platform: false,
            preallocated: false,
        }
    }
}

/// A port of the switch.
#[derive(Debug)]
pub struct Port {
    /// Number in the table of ports, which the forwarding table stores.
    pub id: PortId,
    /// Name from the configuration.
    pub name: String,
    /// The endpoint.
    pub endpoint: Endpoint,
    /// Configuration that does not change.
    pub config: PortConfig,
    /// Policy that may change while frames flow.
    pub policy: LivePolicy,
    /// Rates of the port's frames.
    pub rates: Rates,
    /// Whether the port can be used, since when, and in place of which port.
    pub life: Life,
    /// The worker that an operator chose for the port's rings, if one is chosen.
    pub worker: FixedWorker,
    /// MTU of the port.
    pub mtu: Mtu,
    /// Counters of the port as a whole.
    pub stats: PortStats,
    /// State that workers observe in frames of the port.
    pub observed: Observed,
    /// Reports about the port: events and log lines.
    pub reports: Reports,
}

impl Port {
    /// Creates a port for a VM with `pairs` queue pairs.
    pub fn guest(id: PortId, name: &str, pairs: u16) -> Port {
        Port::new(id, name, Endpoint::Guest(GuestPort::new(pairs)))
    }

    /// Creates a port for the kernel's driver behind a VDUSE device, with interface `ifname`.
    pub fn vduse(id: PortId, name: &str, ifname: &str) -> Port {
        let mut guest = GuestPort::new(1);
        guest.interface = Some(ifname.to_owned());
        Port::new(id, name, Endpoint::Guest(guest))
    }

    /// Creates a port for an interface of the host or a stream.
    pub fn device(id: PortId, name: &str, device: DevicePort) -> Port {
        Port::new(id, name, Endpoint::Device(device))
    }

    fn new(id: PortId, name: &str, endpoint: Endpoint) -> Port {
        Port {
            id,
            name: name.to_owned(),
            endpoint,
            config: PortConfig::default(),
            policy: LivePolicy::new(PortPolicy::PLAIN),
            rates: Rates::default(),
            life: Life::default(),
            worker: FixedWorker::default(),
            mtu: Mtu::new(None),
            stats: PortStats::default(),
            observed: Observed::default(),
            reports: Reports::new(None),
        }
    }

    /// Returns the port with configuration `config`.
    pub fn with(self, config: PortConfig) -> Port {
        Port { config, ..self }
    }

    /// Returns the station of a static address of the port; none on a trunk without untagged
    /// frames.
    fn station(&self, mac: MacAddr) -> Option<Station> {
        self.policy.get().untagged().map(|segment| Station::new(segment, mac))
    }

    /// Adds a static address to the forwarding table, in the segment of the port's untagged frames.
    pub fn enter_address(&self, mac: MacAddr, fdb: &Fdb) -> Result<(), StaticError> {
        self.station(mac).map_or(Ok(()), |station| fdb.insert_static(station, self.id))
    }

    /// Removes a static address of the port from the forwarding table.
    pub fn take_address(&self, mac: MacAddr, fdb: &Fdb) {
        if let Some(station) = self.station(mac) {
            fdb.remove_static(station, self.id);
        }
    }

    /// True if the forwarding table has the static address, or if the port has no untagged frames.
    pub fn has_address(&self, mac: MacAddr, fdb: &Fdb) -> bool {
        self.station(mac).is_none_or(|station| fdb.whose(station) == Some((self.id, true)))
    }

    /// Makes this port the successor of port `before`: in the same lineage, with the costs of its
    /// front-ends.
    pub fn succeed(&mut self, before: &Port) {
        self.life.lineage = before.life.lineage.next();
        self.life.removing.store(before.is_removing(), Ordering::Relaxed);
        if let (Endpoint::Guest(guest), Some(before)) = (&mut self.endpoint, before.as_guest()) {
            guest.succeed(before);
        }
    }

    /// Returns the port with a reporter to `events`.
    pub fn telling(self, events: &Arc<Events>) -> Port {
        Port { reports: Reports::new(Some(events)), ..self }
    }

    /// Reports an event, with a log line if the port's log limit permits.
    pub fn tell(&self, what: What) {
        self.reports.events.tell(&self.name, what, self.reports.log.allow());
    }

    /// Ends session `session` of a front-end that delays others, and reports why.
    pub(crate) fn evict(&self, session: u64, why: &str) {
        let guest = self.as_guest();
        if guest.is_some_and(|guest| guest.evict(session, Eviction::Harmful)) {
            self.tell(What::Dropped { why: reason(why) });
        }
    }

    /// Returns the VM behind this port, if the port is a VM's.
    pub fn as_guest(&self) -> Option<&GuestPort> {
        match &self.endpoint {
            Endpoint::Guest(guest) => Some(guest),
            Endpoint::Device(_) => None,
        }
    }

    /// Returns the stream behind this port, if the port is a stream's.
    pub fn as_stream(&self) -> Option<&DevicePort> {
        match &self.endpoint {
            Endpoint::Device(device) if device.backend == Backend::Stream => Some(device),
            _ => None,
        }
    }

    /// Returns the process at the other end: a VM's front-end, or a stream's peer.
    pub fn front_end(&self) -> Option<FrontEnd> {
        match &self.endpoint {
            Endpoint::Guest(guest) => guest.front_end(),
            Endpoint::Device(device) => device.peer(),
        }
    }

    /// Returns the name of the kind of the port's entry in the configuration.
    pub fn kind_name(&self) -> &'static str {
        match &self.endpoint {
            Endpoint::Guest(guest) if guest.is_vduse() => "vduse",
            Endpoint::Guest(_) => "port",
            Endpoint::Device(device) => match device.backend {
                Backend::Tap(_) => "tap",
                Backend::Xdp(..) => "xdp",
                Backend::Stream => "stream",
            },
        }
    }

    /// Returns the name of the interface behind this port, if the port has an interface.
    pub fn interface(&self) -> Option<&str> {
        match &self.endpoint {
            Endpoint::Device(device) => device.ifname(),
            Endpoint::Guest(guest) => guest.interface.as_deref(),
        }
    }

    /// Returns the device and the name of the host's interface behind this port, if the port has an
    /// interface.
    pub fn as_uplink(&self) -> Option<(&DevicePort, &str)> {
        match &self.endpoint {
            Endpoint::Device(device) => Some((device, device.ifname()?)),
            Endpoint::Guest(_) => None,
        }
    }

    /// Returns which of `workers` workers serves queue `queue` of the device behind this port. A
    /// stream has one queue, so streams are spread by port number.
    pub(crate) fn device_worker(&self, queue: usize, workers: usize) -> usize {
        let first = if self.as_stream().is_some() { usize::from(self.id) } else { 0 };
        (first + queue) % workers
    }

    /// True if frames can flow: a receive ring of the guest is active, or the device is attached.
    pub fn is_up(&self) -> bool {
        match &self.endpoint {
            Endpoint::Guest(guest) => guest.active() != 0,
            Endpoint::Device(device) => device.is_up(),
        }
    }

    /// Calls `visit` with the direction, number and counters of each queue.
    pub fn each_queue(&self, visit: &mut dyn FnMut(Direction, usize, &QueueStats)) {
        match &self.endpoint {
            Endpoint::Guest(guest) => {
                for (n, queue) in guest.tx.iter().enumerate() {
                    visit(Direction::In, n, &queue.stats);
                }
                for (n, queue) in guest.rx.iter().enumerate() {
                    visit(Direction::Out, n, &queue.stats);
                }
            }
            Endpoint::Device(device) => {
                for (n, queue) in device.queues().iter().enumerate() {
                    visit(Direction::In, n, &queue.input);
                    visit(Direction::Out, n, &queue.output);
                }
            }
        }
    }

    /// Returns the traffic in each direction, over all queues, including drops before a queue was
    /// chosen.
    pub fn traffic(&self) -> [Traffic; 2] {
        let mut traffic = [Traffic::default(); 2];
        traffic[Direction::In as usize].add(&self.stats.announced);
        self.stats.drops.add_to(&mut traffic[Direction::Out as usize].drops);
        self.each_queue(&mut |direction, _, stats| traffic[direction as usize].add(stats));
        traffic
    }

    /// True if the port has no socket or interface yet.
    pub fn is_left_out(&self) -> bool {
        self.life.left_out.load(Ordering::Relaxed)
    }

    /// True if the port is being removed.
    pub fn is_removing(&self) -> bool {
        self.life.removing.load(Ordering::Relaxed)
    }

    /// Counts copies of frames that came `from` another port as dropped, at `at` (this port or one
    /// of its queues), and records the outcome of the copies.
    pub(crate) fn drop_copies(
        &self,
        at: &Drops,
        (from, frames): (PortId, &[u8]),
        reason: DropReason,
        outcomes: &mut Outcomes,
    ) {
        at.add_shared(reason, frames.len() as u64);
        if reason.is_want_of_room() {
            self.observed.dropped_from.add(from, frames.len());
        }
        outcomes.dropped(frames, self.id, reason);
    }

    /// Records that the peer behind the port, or its bridge and VLAN, changed. Workers may see the
    /// change a moment later.
    pub fn begin(&self) {
        self.life.since.store(clock::coarse_seconds() + 1, Ordering::Relaxed);
    }

    /// Returns the port's kind, for the switch's policy.
    pub fn kind(&self) -> PortKind {
        match &self.endpoint {
            Endpoint::Guest(_) => PortKind::Guest,
            Endpoint::Device(device) => device.kind(),
        }
    }
}

/// The worker, by number, that an operator chose for a port's rings. The choice may change while
/// the rings are served.
#[derive(Debug)]
pub struct FixedWorker(AtomicU32);

impl FixedWorker {
    const NONE: u32 = u32::MAX;

    /// Returns the chosen worker if it is one of `workers` workers; none if the load decides.
    pub(crate) fn get(&self, workers: usize) -> Option<usize> {
        let number = self.0.load(Ordering::Relaxed) as usize;
        (number < workers).then_some(number)
    }

    /// Sets the chosen worker, or none.
    pub fn set(&self, worker: Option<u16>) {
        self.0.store(worker.map_or(Self::NONE, u32::from), Ordering::Relaxed);
    }
}

impl Default for FixedWorker {
    fn default() -> FixedWorker {
        FixedWorker(AtomicU32::new(Self::NONE))
    }
}

/// A policy that may change while frames flow. Workers see a change with the next table of ports
/// ([`Ports::renew`]), which has the policies of its moment ([`PortTable::policy`]).
#[derive(Debug)]
pub struct LivePolicy(Mutex<Arc<PortPolicy>>);

impl LivePolicy {
    fn new(policy: PortPolicy) -> LivePolicy {
        LivePolicy(Mutex::new(Arc::new(policy)))
    }

    /// Returns the present policy.
    pub fn get(&self) -> Arc<PortPolicy> {
        Arc::clone(&self.lock())
    }

    /// Sets the policy.
    pub fn set(&self, policy: PortPolicy) {
        *self.lock() = Arc::new(policy);
    }

    fn lock(&self) -> MutexGuard<'_, Arc<PortPolicy>> {
        // A poisoned lock is harmless: the policy is replaced in one step.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// State that workers observe in frames of a port.
#[derive(Debug, Default)]
pub struct Observed {
    /// Frames that found no room at the port, by sender.
    pub dropped_from: DroppedFrom,
    /// Source addresses that may explain a fault.
    pub last_seen: LastSeen,
    /// DHCP clients behind a port with port security.
    pub(crate) dhcp_clients: DhcpClients,
}

/// Reports about a port.
#[derive(Debug)]
pub struct Reports {
    /// Limit of the log lines that the port's peer can cause.
    pub log: LogLimit,
    /// Reporter of the port's events.
    pub events: PortEvents,
}

impl Reports {
    fn new(events: Option<&Arc<Events>>) -> Reports {
        Reports { log: LogLimit::default(), events: PortEvents::new(events) }
    }
}

/// Limit of log lines: a few at once, one a second in the long run. Counts the other lines.
#[derive(Debug)]
pub struct LogLimit {
    lines: Bucket,
    /// Number of lines that were not written.
    pub suppressed: Counter,
}

impl Default for LogLimit {
    fn default() -> LogLimit {
        let lines = Bucket::new(PORT_LOG_BURST, PORT_LOG_EVERY);
        LogLimit { lines, suppressed: Counter::default() }
    }
}

impl LogLimit {
    /// True if a line may be written now.
    pub fn allow(&self) -> bool {
        let allowed = self.lines.take();
        if !allowed {
            self.suppressed.add_shared(1);
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_lines_are_limited_and_counted() {
        let limit = LogLimit::default();
        let allowed = (0..100).filter(|_| limit.allow()).count() as u64;
        assert!(allowed >= 1 && allowed <= 1 + u64::from(PORT_LOG_BURST));
        assert_eq!(limit.suppressed.get(), 100 - allowed);
    }
}
