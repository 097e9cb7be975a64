//! What a frame can come from and be delivered to.
//!
//! * [`quantum`] equal shares of a worker's time for rings that compete for it;
//! * [`admission`] which frames go into a receive ring, and whose, and which may wait for it;
//! * [`flood`] one flood at a time of a source;
//! * [`gate`] what keeps the frames of a transmit ring from being taken;
//! * [`moderation`] when a guest is signalled for what it sent;
//! * [`mtu`] the longest frame a port takes;
//! * [`device`] descriptors that take and give whole frames: the queues of an interface, replaced
//!   when it comes back, or a connection;
//! * [`queue`] one ring and everything its lock protects;
//! * [`rate`] what may pass of a port's frames;
//! * [`guest`] a VM: twice the configured pairs of rings, attached and detached by its session;
//! * [`inspect`] what a session tells of itself when it is asked;
//! * [`last_seen`] source addresses that are worth a look;
//! * [`dropped_from`] whose frames find no room;
//! * [`steering`] which receive queue a guest wants a flow on;
//! * [`session_waker`] how other threads wake a session;
//! * [`table`] which ports there are: they come and go while frames flow.
//!
//! States of a guest's port: *Listening* (no front-end), *Negotiating* (connected, no ring
//! started), *Attached* (a ring runs), *Draining* (its session stops the rings one by one, TX
//! before RX). Frames for a port without an enabled receive ring are counted drops.

pub mod admission;
pub mod device;
pub mod dropped_from;
pub mod flood;
pub mod gate;
pub mod guest;
pub mod inspect;
pub mod last_seen;
pub mod moderation;
pub mod mtu;
pub mod quantum;
pub mod queue;
pub mod rate;
pub mod session_waker;
mod shared_memory;
pub mod steering;
pub mod table;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::capture::outcomes::Outcomes;
use crate::events::{Events, PortEvents, What};
use crate::guard::bucket::Bucket;
use base::frame::MacAddr;
use base::frame::offload::Offloads;
use base::limits::{PORT_LOG_BURST, PORT_LOG_EVERY};
use base::stats::{Counter, Direction, DropReason, Drops, PortStats, QueueStats, Traffic};
use switch::port_security::DhcpClients;
use switch::{Fdb, PortId, PortKind, PortPolicy, StaticError, Station};
use sys::clock;

pub use device::{Behind, DevicePort, DeviceQueue};
pub use dropped_from::DroppedFrom;
pub use flood::{FloodPermit, FloodSlot};
pub use gate::Discard;
pub use guest::{Eviction, FrontEnd, GuestPort};
pub use inspect::{RegionFacts, RingFacts, SessionFacts};
pub use last_seen::LastSeen;
pub use mtu::Mtu;
pub use queue::{Awaited, Next, Queue, QueueRef, Rx, RxState, Tx, TxState, Vring};
pub use rate::Rates;
pub use session_waker::SessionWaker;
pub use table::{PortTable, Ports};

/// What is behind a port.
#[derive(Debug)]
pub enum Endpoint {
    /// A VM.
    Guest(GuestPort),
    /// Something that takes and gives whole frames.
    Device(DevicePort),
}

/// What the configuration says of a port, without what may change while frames pass.
#[derive(Debug, Clone)]
pub struct PortConfig {
    /// The path of the socket of a VM or a stream; none if the socket was inherited.
    pub socket: Option<PathBuf>,
    /// Offloads that frames of the VM may ask for, if the VM agrees.
    pub send: Offloads,
    /// Offloads that the switch may use towards the VM or the interface; what a VM has agreed to is
    /// never more.
    pub offload: Offloads,
    /// The VM is offered `VIRTIO_F_ACCESS_PLATFORM`.
    pub platform: bool,
    /// The pages of the VM's memory must be there when the memory is mapped.
    pub preallocated: bool,
}

impl Default for PortConfig {
    /// All offloads, and no socket.
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
    /// Number in the table of ports; what the forwarding table stores.
    pub id: PortId,
    /// Name from the configuration.
    pub name: String,
    /// What is behind it.
    pub endpoint: Endpoint,
    /// What stays as long as the port.
    pub config: PortConfig,
    /// What else is asked of it.
    pub policy: LivePolicy,
    /// What may pass of its frames.
    pub rates: Rates,
    /// It has no socket or interface yet, and cannot be met.
    pub left_out: AtomicBool,
    /// It is being removed.
    pub leaving: AtomicBool,
    /// The worker that serves its rings, if it is not chosen by load.
    pub worker: FixedWorker,
    /// A second before which what is behind it, or its bridge and VLAN, may have been another.
    pub since: AtomicU32,
    /// The ports that it came in the place of.
    pub line: Line,
    /// The longest packet that goes there.
    pub mtu: Mtu,
    /// Counters of the port as a whole.
    pub stats: PortStats,
    /// Whose frames found no room here.
    pub dropped_from: DroppedFrom,
    /// Source addresses that are worth a look.
    pub last_seen: LastSeen,
    /// DHCP clients behind a port with a guard.
    pub dhcp_clients: DhcpClients,
    /// Bounds what this port's peer can make us write to the log.
    pub log: LogLimit,
    /// Tells of what happens to it.
    pub events: PortEvents,
}

impl Port {
    /// A port for a VM with `pairs` queue pairs.
    pub fn guest(id: PortId, name: &str, pairs: u16) -> Port {
        Port::new(id, name, Endpoint::Guest(GuestPort::new(pairs)))
    }

    /// A port for an interface of the host or a stream.
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
            left_out: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
            worker: FixedWorker::default(),
            since: AtomicU32::new(clock::coarse_seconds() + 1),
            line: Line::default(),
            mtu: Mtu::new(None),
            stats: PortStats::default(),
            dropped_from: DroppedFrom::default(),
            last_seen: LastSeen::default(),
            dhcp_clients: DhcpClients::default(),
            log: LogLimit::default(),
            events: PortEvents::new(None),
        }
    }

    /// The port with another configuration.
    pub fn with(self, config: PortConfig) -> Port {
        Port { config, ..self }
    }

    /// Where a static address of the port is; nowhere on a trunk without untagged frames.
    fn station(&self, mac: MacAddr) -> Option<Station> {
        self.policy.get().untagged().map(|segment| Station::new(segment, mac))
    }

    /// Enters a static address in the table, where its untagged frames are.
    pub fn enter_address(&self, mac: MacAddr, fdb: &Fdb) -> Result<(), StaticError> {
        self.station(mac).map_or(Ok(()), |station| fdb.insert_static(station, self.id))
    }

    /// Takes it out again.
    pub fn take_address(&self, mac: MacAddr, fdb: &Fdb) {
        if let Some(station) = self.station(mac) {
            fdb.remove_static(station, self.id);
        }
    }

    /// Whether it is there.
    pub fn has_address(&self, mac: MacAddr, fdb: &Fdb) -> bool {
        self.station(mac).is_none_or(|station| fdb.whose(station) == Some((self.id, true)))
    }

    /// Goes on where another VM's port was.
    pub fn succeed(&mut self, before: &Port) {
        self.line = before.line.next();
        self.leaving.store(before.is_leaving(), Ordering::Relaxed);
        if let (Endpoint::Guest(guest), Some(before)) = (&mut self.endpoint, before.as_guest()) {
            guest.succeed(before);
        }
    }

    /// The port of a switch that keeps events.
    pub fn telling(self, events: &Arc<Events>) -> Port {
        Port { events: PortEvents::new(Some(events)), ..self }
    }

    /// Tells of something for which the port's log has a line, if it has room.
    pub fn tell(&self, what: What) {
        self.events.tell(&self.name, what, self.log.allow());
    }

    /// The VM behind this port, if it is one.
    pub fn as_guest(&self) -> Option<&GuestPort> {
        match &self.endpoint {
            Endpoint::Guest(guest) => Some(guest),
            Endpoint::Device(_) => None,
        }
    }

    /// The stream behind this port, if it is one.
    pub fn as_stream(&self) -> Option<&DevicePort> {
        match &self.endpoint {
            Endpoint::Device(device) if device.behind == Behind::Stream => Some(device),
            _ => None,
        }
    }

    /// The process at the other end: a VM's front-end, or a stream's peer.
    pub fn front_end(&self) -> Option<FrontEnd> {
        match &self.endpoint {
            Endpoint::Guest(guest) => guest.front_end(),
            Endpoint::Device(device) => device.peer(),
        }
    }

    /// What is behind it, as clients are told.
    pub fn kind_name(&self) -> &'static str {
        match &self.endpoint {
            Endpoint::Guest(_) => "vm",
            Endpoint::Device(device) => match device.behind {
                Behind::Tap(_) => "tap",
                Behind::Xdp(..) => "xdp",
                Behind::Stream => "stream",
            },
        }
    }

    /// The interface of the host behind this port, with its name, if there is to be one.
    pub fn as_uplink(&self) -> Option<(&DevicePort, &str)> {
        match &self.endpoint {
            Endpoint::Device(device) => Some((device, device.ifname()?)),
            Endpoint::Guest(_) => None,
        }
    }

    /// Which of so many workers serves queue `queue` of the device behind this port. A stream has
    /// one queue, so that of several streams not all are the first worker's.
    pub fn device_worker(&self, queue: usize, workers: usize) -> usize {
        let first = if self.as_stream().is_some() { usize::from(self.id) } else { 0 };
        (first + queue) % workers
    }

    /// True if frames pass: a front-end is attached, or the interface is there.
    pub fn is_up(&self) -> bool {
        match &self.endpoint {
            Endpoint::Guest(guest) => guest.active() != 0,
            Endpoint::Device(device) => device.is_up(),
        }
    }

    /// Visits the counters of every queue: direction, number in it, counters.
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

    /// What came in and what went out, over all queues, with what was dropped before one was
    /// chosen.
    pub fn traffic(&self) -> [Traffic; 2] {
        let mut traffic = [Traffic::default(); 2];
        traffic[Direction::In as usize].add(&self.stats.announced);
        self.stats.drops.add_to(&mut traffic[Direction::Out as usize].drops);
        self.each_queue(&mut |direction, _, stats| traffic[direction as usize].add(stats));
        traffic
    }

    /// True if it has no socket or interface yet.
    pub fn is_left_out(&self) -> bool {
        self.left_out.load(Ordering::Relaxed)
    }

    /// True if it is being removed.
    pub fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Relaxed)
    }

    /// Counts copies of a burst's frames, which came `from` another port, that do not get there, at
    /// `at`, this port or one of its queues, and notes what became of them.
    pub fn drop_copies(
        &self,
        at: &Drops,
        (from, frames): (PortId, &[u8]),
        reason: DropReason,
        outcomes: &mut Outcomes,
    ) {
        at.add_shared(reason, frames.len() as u64);
        if reason.is_want_of_room() {
            self.dropped_from.add(from, frames.len());
        }
        outcomes.dropped(frames, self.id, reason);
    }

    /// What is behind it is another one from now on. Workers may see that a moment later.
    pub fn begin(&self) {
        self.since.store(clock::coarse_seconds() + 1, Ordering::Relaxed);
    }

    /// What the switch's policy needs to know.
    pub fn kind(&self) -> PortKind {
        match &self.endpoint {
            Endpoint::Guest(_) => PortKind::Guest,
            Endpoint::Device(device) => device.kind(),
        }
    }
}

/// Ports that came in each other's place, the settings being others: counters go on from one to the
/// next. They are carried over while the new one counts already, and not all at a time.
#[derive(Debug, Default)]
pub struct Line {
    id: Arc<()>,
    behind: AtomicBool,
}

impl Line {
    fn next(&self) -> Line {
        Line { id: Arc::clone(&self.id), behind: AtomicBool::new(true) }
    }

    /// True for ports of the same line.
    pub fn is(&self, other: &Line) -> bool {
        Arc::ptr_eq(&self.id, &other.id)
    }

    /// True if the port's counters have what was counted before it.
    pub fn is_whole(&self) -> bool {
        // Acquire: who sees it sees the counts.
        !self.behind.load(Ordering::Acquire)
    }

    /// Its counters have that now.
    pub fn complete(&self) {
        self.behind.store(false, Ordering::Release);
    }
}

/// The worker that an operator wants to serve a port's rings, by number; it may change while they
/// are served.
#[derive(Debug)]
pub struct FixedWorker(AtomicU32);

impl FixedWorker {
    const NONE: u32 = u32::MAX;

    /// The worker, of so many; none if it is chosen by load.
    pub fn get(&self, workers: usize) -> Option<usize> {
        let number = self.0.load(Ordering::Relaxed) as usize;
        (number < workers).then_some(number)
    }

    /// Another one, or none.
    pub fn set(&self, worker: Option<u16>) {
        self.0.store(worker.map_or(Self::NONE, u32::from), Ordering::Relaxed);
    }
}

impl Default for FixedWorker {
    fn default() -> FixedWorker {
        FixedWorker(AtomicU32::new(Self::NONE))
    }
}

/// A policy that may change while frames flow. A change reaches the workers with the next table of
/// ports ([`Ports::renew`]), which holds the policies of its moment ([`PortTable::policy`]).
#[derive(Debug)]
pub struct LivePolicy(Mutex<Arc<PortPolicy>>);

impl LivePolicy {
    fn new(policy: PortPolicy) -> LivePolicy {
        LivePolicy(Mutex::new(Arc::new(policy)))
    }

    /// The policy now.
    pub fn get(&self) -> Arc<PortPolicy> {
        Arc::clone(&self.lock())
    }

    /// Another one.
    pub fn set(&self, policy: PortPolicy) {
        *self.lock() = Arc::new(policy);
    }

    fn lock(&self) -> MutexGuard<'_, Arc<PortPolicy>> {
        // Poison is no concern: the policy is replaced in one step.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Allows few log lines, one a second in the long run, and counts the others.
#[derive(Debug)]
pub struct LogLimit {
    lines: Bucket,
    /// Lines not written.
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
