//! The parts of the process and the order in which they start and stop.
//!
//! Start: ports and table, watchdog, workers, TAPs, then every socket, then the session threads.
//! Sockets come last, so that a front-end that connects finds everything else running; the process
//! is ready when all of them exist. A port whose socket cannot be had is left out: the others'
//! guests need not wait for the administrator. If none is left there is nothing to start for.
//!
//! Stop: workers end after their turn, so that what was taken from a ring is delivered and given
//! back and nothing more is taken: what guests send waits in their rings for the next process. Then
//! one descriptor tells all sessions; each makes its rings quiet, one at a time, so guests find
//! them consistent, and removes its socket, if that is not kept. Nobody is waited for longer than
//! [`STOP_TIMEOUT`] in all.
//!
//! What outlives the process is `handover`'s.

mod check;
mod front_end;
mod handover;
mod report;
mod state;
mod uplink;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use vmm_sys_util::eventfd::EventFd;

use crate::config::{Config, PortConfig};
use crate::limits::{
    AGEING_SWEEPS, FDB_MAX_ENTRIES, FDB_MAX_PER_PORT, FDB_RESERVED_PER_PORT, STOP_TIMEOUT,
};
use crate::port::{Endpoint, Port, PortTable, TapPort};
use crate::switch::{Entry, Fdb, FdbConfig, PortId, Rules, StaticError};
use crate::sys::eventfd::{self, BlockedWriterWatch};
use crate::sys::threads::{join_until, run_again_after_panic};
use crate::sys::{clock, random, sigbus};
use crate::vhost_user::session::{Context, Ledger};
use crate::vhost_user::socket::SocketError;
use crate::worker::{Shared, Workers};
pub use check::check;
use handover::{Handover, Received};
use uplink::UplinkError;

/// Why the process cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A socket cannot be opened.
    #[error("port {name}: {source}")]
    Socket {
        /// Port name.
        name: String,
        /// The reason.
        source: SocketError,
    },
    /// A configured address cannot be entered.
    #[error("port {name}: {source}")]
    Static {
        /// Port name.
        name: String,
        /// The reason.
        source: StaticError,
    },
    /// A TAP cannot be opened.
    #[error("tap {name}: {source}")]
    Tap {
        /// Port name.
        name: String,
        /// The reason.
        source: UplinkError,
    },
    /// Descriptors of front-ends could not be told apart.
    #[error("/proc is not mounted: eventfds cannot be recognized")]
    NoProc,
    /// Memory that a front-end takes back would end the process.
    #[error(transparent)]
    Guard(#[from] sigbus::GuardError),
    /// A thread or descriptor cannot be had.
    #[error("cannot start: {0}")]
    Io(#[from] io::Error),
}

impl StartError {
    /// The port or TAP that it is about, if it is about one.
    pub fn name(&self) -> Option<&str> {
        match self {
            StartError::Socket { name, .. }
            | StartError::Static { name, .. }
            | StartError::Tap { name, .. } => Some(name),
            _ => None,
        }
    }
}

/// A running switch.
pub struct Daemon {
    ports: PortTable,
    fdb: Arc<Fdb>,
    workers: Arc<Workers>,
    watch: Arc<BlockedWriterWatch>,
    ledger: Arc<Ledger>,
    stop: Arc<EventFd>,
    stopping: Arc<AtomicBool>,
    handover: Arc<Handover>,
    sessions: Vec<JoinHandle<()>>,
    /// Ports that have no socket, and why.
    left_out: Vec<StartError>,
    /// Threads that wait for something other than a front-end; they hold nothing a guest sees.
    helpers: Vec<JoinHandle<()>>,
}

impl Daemon {
    /// Starts everything; when this returns all sockets exist, but for those of
    /// [`Daemon::left_out`].
    pub fn start(config: &Config) -> Result<Daemon, StartError> {
        if !eventfd::can_identify() {
            return Err(StartError::NoProc);
        }
        sigbus::install()?;
        let (handover, mut received) = Handover::begin(config);
        let ports = build_ports(config);
        let fdb = Arc::new(build_fdb(config, &ports)?);
        received.restore(&ports, &fdb);
        let shared = Shared {
            ports: Arc::clone(&ports),
            fdb: Arc::clone(&fdb),
            rules: Rules { uplink_to_uplink: config.uplink_to_uplink },
            poll: config.poll,
            watch: Arc::new(BlockedWriterWatch::start()?),
        };
        let workers = Arc::new(Workers::start(config.workers, &config.cpus, &shared)?);
        let mut daemon = Daemon {
            ledger: Arc::new(Ledger::new(ports.len())),
            ports,
            fdb,
            workers,
            watch: shared.watch,
            stop: Arc::new(EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)?),
            stopping: Arc::new(AtomicBool::new(false)),
            handover: Arc::new(handover),
            sessions: Vec::new(),
            left_out: Vec::new(),
            helpers: Vec::new(),
        };
        match daemon.start_ports(config, received) {
            Ok(()) => Ok(daemon),
            Err(error) => {
                daemon.halt();
                Err(error)
            }
        }
    }

    fn start_ports(&mut self, config: &Config, mut received: Received) -> Result<(), StartError> {
        let mut taps = Vec::new();
        for port in self.ports.iter() {
            if let Endpoint::Tap(tap) = &port.endpoint {
                let mut kept = received.tap(&tap.ifname);
                let attach = |_: &mut Received| {
                    uplink::attach(port, tap, &self.workers, kept.take(), &self.handover)
                };
                let created = received
                    .open(attach, UplinkError::is_busy)
                    .map_err(|source| StartError::Tap { name: port.name.clone(), source })?;
                taps.push((usize::from(port.id), created));
            }
        }
        uplink::compare_mtus(&self.ports);
        let mut acceptors = Vec::with_capacity(config.ports.len());
        for (id, port) in config.ports.iter().enumerate() {
            let open =
                |received: &mut Received| front_end::Acceptor::open(id, &port.endpoint, received);
            let in_use = |error: &SocketError| matches!(error, SocketError::InUse(_));
            let name = port.name.clone();
            match received.open(open, in_use) {
                Ok(acceptor) => acceptors.push((id as PortId, acceptor)),
                // Out of descriptors or memory: the service manager tries again, with all ports.
                Err(source) if !source.is_lasting() => {
                    return Err(StartError::Socket { name, source });
                }
                Err(source) => self.left_out.push(StartError::Socket { name, source }),
            }
        }
        if acceptors.is_empty() && !self.left_out.is_empty() {
            return Err(self.left_out.swap_remove(0));
        }
        self.handover.keep_sockets(acceptors.iter_mut().map(|(_, acceptor)| acceptor));
        for (id, acceptor) in acceptors {
            self.start_session_thread(id, acceptor)?;
        }
        self.start_helpers(&taps, config.age_seconds)?;
        self.handover.discard_state(&received);
        Ok(())
    }

    fn start_session_thread(
        &mut self,
        id: PortId,
        acceptor: front_end::Acceptor,
    ) -> Result<(), StartError> {
        let context = Context {
            ports: Arc::clone(&self.ports),
            fdb: Arc::clone(&self.fdb),
            workers: Arc::clone(&self.workers),
            watch: Arc::clone(&self.watch),
            ledger: Arc::clone(&self.ledger),
        };
        let stop = Arc::clone(&self.stop);
        let thread = std::thread::Builder::new()
            .name(format!("port-{id}"))
            .stack_size(crate::limits::SESSION_STACK_BYTES)
            .spawn(move || acceptor.serve(&context, id, &stop))?;
        self.sessions.push(thread);
        Ok(())
    }

    fn start_helpers(&mut self, taps: &[(usize, bool)], age_seconds: u32) -> io::Result<()> {
        for &(port, created) in taps {
            let (ports, workers) = (Arc::clone(&self.ports), Arc::clone(&self.workers));
            let stopping = Arc::clone(&self.stopping);
            let handover = Arc::clone(&self.handover);
            let keep = move || uplink::keep(&ports[port], created, &workers, &handover, &stopping);
            self.helpers.push(start_helper(format!("tap-{port}"), &self.stopping, keep)?);
        }
        if self.workers.handles().len() > 1 {
            let (workers, stopping) = (Arc::clone(&self.workers), Arc::clone(&self.stopping));
            let balance = move || workers.balance(&stopping);
            self.helpers.push(start_helper("balance".to_owned(), &self.stopping, balance)?);
        }
        if age_seconds > 0 {
            let (fdb, stopping) = (Arc::clone(&self.fdb), Arc::clone(&self.stopping));
            let age = move || age(&fdb, age_seconds, &stopping);
            self.helpers.push(start_helper("ageing".to_owned(), &self.stopping, age)?);
        }
        Ok(())
    }

    /// Why ports have no socket and are served no front-end, one error for each of them.
    pub fn left_out(&self) -> &[StartError] {
        &self.left_out
    }

    /// Writes all counters to the log.
    pub fn report(&self) {
        report::log(&self.ports, &self.workers, &self.fdb);
    }

    /// The ports, for their counters.
    pub fn ports(&self) -> &PortTable {
        &self.ports
    }

    /// Stops everything and leaves to the next process what it can use; guests find their rings
    /// consistent.
    pub fn stop(&mut self) {
        let addresses = self.halt();
        self.handover.keep_state(&self.ports, &addresses);
    }

    /// Stops everything; returns the addresses that were known before the ports forgot them.
    fn halt(&mut self) -> Vec<Entry> {
        let end = Instant::now() + STOP_TIMEOUT;
        self.stopping.store(true, Ordering::Release);
        self.workers.stop(Instant::now() + STOP_TIMEOUT / 2);
        let addresses = self.fdb.entries(clock::coarse_seconds());
        // The descriptor is only written, so every thread sees it.
        let _ = self.stop.write(1);
        for port in self.ports.iter() {
            if let Endpoint::Tap(tap) = &port.endpoint {
                tap.wake();
            }
        }
        for helper in &self.helpers {
            helper.thread().unpark();
        }
        join_until(&mut self.sessions, end);
        join_until(&mut self.helpers, end);
        addresses
    }
}

/// Starts a thread that goes on after a panic, until `stopping`.
fn start_helper(
    name: String,
    stopping: &Arc<AtomicBool>,
    work: impl FnMut() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let (what, stopping) = (format!("thread {name}"), Arc::clone(stopping));
    let stopped = move || stopping.load(Ordering::Acquire);
    let builder = std::thread::Builder::new().name(name);
    builder.spawn(move || run_again_after_panic(&what, stopped, work))
}

fn build_ports(config: &Config) -> PortTable {
    // Twice the configured pairs: some front-ends read the number of rings as pairs.
    let mut ports = Vec::with_capacity(config.ports.len() + config.taps.len());
    for port in &config.ports {
        let made = Port::guest(ports.len() as PortId, &port.name, 2 * port.queue_pairs);
        let level = port.feature_level.unwrap_or(config.feature_level);
        let made = made.configured(port.offload, port.mtu).sending(port.send);
        let made = made.on_platform(port.platform).at_level(level);
        ports.push(made.with_memory(port.preallocated));
    }
    for tap in &config.taps {
        let endpoint = TapPort::new(&tap.ifname, tap.queues);
        let made = Port::tap(ports.len() as PortId, &tap.name, endpoint);
        ports.push(made.configured(tap.offload, tap.mtu));
    }
    ports.into()
}

fn build_fdb(config: &Config, ports: &[Port]) -> Result<Fdb, StartError> {
    let fdb = Fdb::new(FdbConfig {
        max_entries: FDB_MAX_ENTRIES,
        max_per_port: FDB_MAX_PER_PORT,
        reserved_per_port: FDB_RESERVED_PER_PORT,
        age_seconds: config.age_seconds,
        ports: ports.len(),
        key: random::key()?,
    });
    for port in ports.iter().filter(|port| matches!(port.endpoint, Endpoint::Tap(_))) {
        // A whole network lives behind an uplink.
        fdb.set_port_cap(port.id, FDB_MAX_ENTRIES);
    }
    for (id, PortConfig { name, macs, .. }) in config.ports.iter().enumerate() {
        for &mac in macs {
            fdb.insert_static(mac, id as PortId)
                .map_err(|source| StartError::Static { name: name.clone(), source })?;
        }
    }
    Ok(fdb)
}

/// Removes entries that were idle for too long. Sweeps an eighth of the age apart, so an entry
/// lives at most an eighth longer than configured; not part of the data path.
fn age(fdb: &Fdb, age_seconds: u32, stopping: &AtomicBool) {
    let pause = Duration::from_secs(u64::from(age_seconds)) / AGEING_SWEEPS;
    while !stopping.load(Ordering::Acquire) {
        std::thread::park_timeout(pause.max(Duration::from_millis(500)));
        fdb.age(clock::coarse_seconds());
    }
}
