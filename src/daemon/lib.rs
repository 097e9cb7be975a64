//! Starts and stops the parts of the process, in order.
//!
//! Start: ports and table, watchdog, workers, TAPs, then every socket, then the session threads.
//! Sockets come last, so that a front-end that connects finds everything else running; the process
//! is ready when all sockets exist. A port whose socket or interface cannot be opened is left out,
//! so that the guests of other ports need not wait for the administrator; `retry.rs` tries again to
//! open the socket or interface. The start fails if a port of the configuration is left out, no
//! port is served and there is no plug directory.
//!
//! Stop: each worker ends after its turn, so that every frame taken from a ring is delivered and
//! its buffer is given back. Workers take no more frames: frames that guests send wait in the rings
//! for the next process. Then the daemon stops all sessions. Each session makes its rings quiet,
//! one ring at a time, so that guests find the rings consistent, and removes its socket unless the
//! socket is kept. The daemon waits for all threads together no longer than [`STOP_TIMEOUT`].
//!
//! Ports also come and go between start and stop ([`ports`]). `handover` has everything that
//! outlives the process.

#![forbid(unsafe_code)]

// Sets signals, umask and environment as tests rely on them.
#[cfg(test)]
use testkit as _;

mod addresses;
mod build;
mod check;
mod connections;
pub mod control;
pub mod degraded;
pub mod desired;
mod diagnose;
mod diff;
mod drops;
mod filters;
mod front_end;
mod handover;
mod helpers;
mod latency;
mod link_monitor;
pub mod metrics;
mod missing;
mod opening;
mod paced;
mod plan;
mod plug;
mod port_error;
mod port_thread;
pub mod ports;
pub mod program;
mod received;
mod reconcile;
mod reload;
mod removal;
mod removing;
mod report;
mod retry;
mod running_port;
mod sampler;
mod sandbox;
mod serve;
mod serving;
mod state;
mod state_store;
mod stream;
mod upgrade;
mod uplink;
mod vduse;

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};

use api::config::{self, Config, Entry, Kind, Origin, Texts};
use api::diagnosis::facts::Odd;
use base::limits::{
    COARSE_CLOCK_TICK, MAX_PORTS, REMOVE_STEP, SNOOPING_SWEEP_PAUSE, SOCKET_OPENS, STOP_TIMEOUT,
    TAP_CLOSE_MILLIS,
};
use base::stats::ClientStats;
pub use check::check;
use datapath::events::Events;
use datapath::guard::{BlockedWriterWatch, sigbus};
use datapath::port::{Port, PortTable, Ports};
use datapath::vhost_user::session::{Context, Ledger};
use datapath::worker::{Shared, Workers};
use desired::Desired;
pub use diff::{Step, summary};
use filters::Filters;
use handover::Handover;
pub use helpers::Background;
use helpers::Helpers;
pub(crate) use latency::start_latency;
use missing::Missing;
pub(crate) use opening::Permit;
pub use opening::add;
pub(crate) use plug::start_plug;
pub use port_error::PortError;
pub use ports::NewPort;
use received::Received;
pub use reload::{Busy, Confirm, Reloader};
pub(crate) use removal::Removal;
use removal::{Removals, Removing};
pub(crate) use retry::Services;
pub use retry::Slot;
pub(crate) use sampler::Samples;
use serving::{Opened, Serving};
use state_store::NotSaved;
pub(crate) use state_store::StateStore;
use switch::{self, Fdb, FdbConfig, PortId, Rules, Snooping};
use sys::blocking::Blocking;
use sys::eventfd;
use sys::waker::Waker;
use sys::{clock, random};

/// The reason why the process cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A port or TAP cannot be served: its kind, its name and the error.
    #[error("{0} {1}: {2}")]
    Port(&'static str, String, PortError),
    /// Without `/proc` the process cannot distinguish descriptors of front-ends.
    #[error("/proc is not mounted: eventfds cannot be recognized")]
    NoProc,
    /// No guard can be installed: memory that a front-end takes back would end the process.
    #[error(transparent)]
    Guard(#[from] sigbus::GuardError),
    /// A thread or descriptor cannot be had.
    #[error("cannot start: {0}")]
    Io(#[from] io::Error),
}

impl StartError {
    fn port(name: &str) -> impl FnOnce(PortError) -> StartError {
        let name = name.to_owned();
        |error| StartError::Port("port", name, error)
    }

    /// Returns the error about a port of any kind.
    fn of(port: &Port, error: PortError) -> StartError {
        StartError::Port(port.kind_name(), port.name.clone(), error)
    }
}

/// A running switch.
pub struct Daemon {
    view: View,
    /// Servers of the ports.
    serving: Vec<Serving>,
    removals: Removals,
    context: Context,
    ledger: Arc<Ledger>,
    handover: Arc<Handover>,
    /// Ports and services that are wanted and not in service.
    missing: Missing,
    /// The ports that are wanted.
    desired: Desired,
    /// Keeps the changes of `desired`.
    store: StateStore,
    /// The configuration that the daemon was started with.
    started: Config,
    /// The filters of ports.
    filters: Filters,
    /// Threads that wait for something other than a front-end.
    helpers: Helpers,
}

/// The parts of a switch that can be read while the switch runs.
#[derive(Clone)]
pub struct View {
    /// The present ports.
    pub(crate) ports: Arc<Ports>,
    /// The forwarding table.
    pub(crate) fdb: Arc<Fdb>,
    /// The workers of the data path.
    pub(crate) workers: Arc<Workers>,
    /// Rules of forwarding.
    pub(crate) rules: Rules,
    /// Threads that open sockets, one for each path.
    pub(crate) opens: Arc<Blocking>,
    /// Woken by each event that a reader of the view may wait for.
    pub(crate) wakeup: Arc<Waker>,
    /// Events of the switch.
    pub(crate) events: Arc<Events>,
    /// Recent counters of ports.
    pub(crate) samples: Arc<Samples>,
    /// Counters of clients of the control socket.
    pub(crate) clients: Arc<ClientStats>,
    /// Start of the process: microseconds since 1970.
    pub(crate) started_micros: u64,
}

impl Daemon {
    /// Starts the switch and keeps nothing for the next process; see [`Daemon::start_keeping`].
    pub fn start(config: &Config) -> Result<Daemon, StartError> {
        Daemon::start_keeping(config, StateStore::default())
    }

    /// Starts the switch, with the ports and changes that clients of earlier processes made. When
    /// this returns, all sockets exist except those of [`Daemon::degradations`].
    pub(crate) fn start_keeping(
        configured: &Config,
        mut store: StateStore,
    ) -> Result<Daemon, StartError> {
        let mut config = configured.clone();
        let kept = store.kept(configured);
        let desired = Desired::new(configured, kept, store.keeps());
        config.ports = desired.in_order(configured);
        config.sort();
        let mut daemon = Daemon::start_all(&config, desired, store)?;
        for Odd { cause, command, .. } in daemon.unused() {
            log::warn!("{cause}: {command}");
        }
        let Daemon { store, desired, .. } = &mut daemon;
        let kept = store.keep(desired);
        kept.unwrap_or_else(|error| log::error!("what was kept before {error}"));
        Ok(daemon)
    }

    fn start_all(
        config: &Config,
        desired: Desired,
        store: StateStore,
    ) -> Result<Daemon, StartError> {
        if !eventfd::can_identify() {
            return Err(StartError::NoProc);
        }
        sigbus::install()?;
        vduse::number(config.control.as_ref().map(|control| control.path.as_path()));
        let (handover, mut received) = Handover::begin(config);
        let fdb = Arc::new(Fdb::new(FdbConfig {
            damping: config.mac_flap_damping,
            ..FdbConfig::limited(MAX_PORTS, config.age_seconds, random::key()?)
        }));
        let wakeup = Arc::new(Waker::new()?);
        let events = Arc::new(Events::new(&wakeup));
        let ports = build::build(config, &desired, &fdb, &events)?;
        let filters = Filters::new()?;
        received.restore(&ports, &fdb);
        let (view, context) = start_workers(config, ports, fdb, (wakeup, events))?;
        let mut daemon = Daemon {
            view,
            serving: Vec::new(),
            removals: Removals::default(),
            context,
            ledger: Arc::default(),
            handover: Arc::new(handover),
            missing: Missing::default(),
            desired,
            store,
            started: config.clone(),
            filters,
            helpers: Helpers::default(),
        };
        daemon.take_over_connections(&mut received);
        daemon.set_mirrors();
        match daemon.start_ports(config, received) {
            Ok(()) => Ok(daemon),
            Err(error) => {
                daemon.halt();
                Err(error)
            }
        }
    }

    fn start_ports(&mut self, config: &Config, mut received: Received) -> Result<(), StartError> {
        let ports = self.view.ports.present();
        // The sampler begins before frames flow: otherwise the sampler would take frames before its
        // first look for frames of an earlier process.
        self.view.samples.begin(&ports, clock::coarse_seconds());
        let mut opened = Vec::with_capacity(config.ports.len());
        // The first error about a port of the configuration: the result if nothing can be served.
        let mut first = None;
        let end = Instant::now() + Duration::from_millis(TAP_CLOSE_MILLIS);
        let all = || config.ports.iter().enumerate();
        let has_interface = |(_, entry): &(usize, &Entry)| entry.settings.ifname.is_some();
        let (first_ones, others) = (all().filter(has_interface), all());
        for (at, entry) in first_ones.chain(others.filter(|one| !has_interface(one))) {
            let Some(port) = ports.shared(at as PortId) else { continue };
            let endpoint = entry.settings.endpoint();
            let means = (&*self.context.workers, &*self.handover);
            match Opened::open(port, endpoint.as_ref(), &mut received, end, means) {
                Ok(one) => opened.push((port, one)),
                // No descriptors or memory are left: the service manager tries again, with all
                // ports.
                Err(PortError::Socket(error)) if !error.is_lasting() => {
                    return Err(StartError::port(&port.name)(error.into()));
                }
                Err(error) => self.leave_out(port, error.with_holder(), &mut first)?,
            }
        }
        uplink::compare_mtus(&ports);
        let serves = !opened.is_empty() || config.plug.is_some();
        if let Some(error) = first.filter(|_| !serves) {
            return Err(error);
        }
        self.handover.keep_sockets(opened.iter_mut().filter_map(|(_, one)| one.acceptor()));
        for (port, one) in opened {
            self.serve(port, one).map_err(StartError::port(&port.name))?;
        }
        self.start_helpers(config.age_seconds)?;
        self.handover.discard_state(&received);
        Ok(())
    }

    /// Leaves a port out whose socket or interface cannot be opened; `first` keeps the first error
    /// about a port of the configuration.
    fn leave_out(
        &mut self,
        port: &Arc<Port>,
        error: PortError,
        first: &mut Option<StartError>,
    ) -> Result<(), StartError> {
        let error = StartError::of(port, error);
        self.miss(port, error.to_string()).map_err(StartError::port(&port.name))?;
        if self.desired.origin(&port.name) == Origin::Config {
            first.get_or_insert(error);
        }
        Ok(())
    }

    fn start_helpers(&mut self, age_seconds: u32) -> io::Result<()> {
        if self.context.workers.handles().len() > 1 {
            self.help("balance", |view, stopping| view.workers.balance(stopping))?;
        }
        self.help("sampler", |View { samples, ports, workers, .. }, stopping| {
            sampler::run(samples, ports, workers, stopping);
        })?;
        self.help("vduse-unused", |view, _| vduse::remove_unused(&view.ports))?;
        if age_seconds > 0 || self.view.ports.present().snooping().is_some() {
            self.help("ageing", move |View { fdb, ports, .. }, stopping| {
                age((fdb, age_seconds > 0), ports, stopping);
            })?;
        }
        Ok(())
    }

    /// Starts a thread that does `work` with a view until the daemon stops. Returns the thread, to
    /// be woken.
    fn help(
        &mut self,
        name: &str,
        mut work: impl FnMut(&View, &AtomicBool) + Send + 'static,
    ) -> io::Result<Thread> {
        let view = self.view();
        self.helpers.start(name, move |stopping| work(&view, stopping))
    }

    /// Keeps the files of the configuration that is in force for good; logs an error.
    pub(crate) fn keep_files(&mut self, texts: &Texts) {
        if let Err(error) = self.confirm(texts) {
            log::error!("the configuration {error}");
        }
    }

    /// True while a reload waits to be confirmed.
    pub(crate) fn is_unconfirmed(&self) -> bool {
        self.store.is_unconfirmed()
    }

    /// Keeps the configuration of these files, in the next process too. Forgets the changes of
    /// clients that the files contain by now.
    fn confirm(&mut self, texts: &Texts) -> Result<(), NotSaved> {
        self.store.stay();
        let files = self.store.keep_files(texts);
        self.desired.forget_the_configured();
        self.store.keep(&self.desired).and(files)
    }

    /// Returns in words how many ports, TAPs and streams are wanted.
    pub(crate) fn summary(&self) -> String {
        let all = || self.desired.entries().values();
        let count = |kind| all().filter(|entry| entry.settings.kind == kind).count();
        config::summary(Kind::PORTS.map(count))
    }

    /// Returns the keys of the configuration outside of entries, with their values.
    pub(crate) fn global_keys(&self) -> Vec<(&'static str, Vec<String>)> {
        let words = self.started.words.iter();
        words.map(|(key, word)| (*key, word.iter().cloned().collect())).collect()
    }

    /// Returns the directory that keeps the changes made while the switch runs.
    pub(crate) fn state_dir(&self) -> Option<&Path> {
        self.store.path()
    }

    /// Returns the ports that are wanted.
    pub fn desired(&self) -> &Desired {
        &self.desired
    }

    /// Returns the present ports.
    pub fn ports(&self) -> Arc<PortTable> {
        self.view.ports.present()
    }

    /// Returns the forwarding table.
    pub fn fdb(&self) -> &Fdb {
        &self.context.fdb
    }

    /// Takes the socket that the service manager made for clients that ask for metrics.
    pub(crate) fn take_metrics_socket(&self) -> Option<OwnedFd> {
        self.handover.take_metrics_socket()
    }

    /// Returns the events of the switch, to read and to report.
    pub(crate) fn events(&self) -> &Arc<Events> {
        &self.view.events
    }

    /// Returns a view for readers of the running switch, who take no lock.
    pub(crate) fn view(&self) -> View {
        self.view.clone()
    }

    /// Writes all counters to the log.
    pub(crate) fn report(&self) {
        report::log(&self.view.ports.present(), &self.context.workers, &self.context.fdb);
    }

    /// Stops the switch and hands the state to the next process. Guests find their rings
    /// consistent.
    pub fn stop(&mut self) {
        let addresses = self.halt();
        let ports = self.view.ports.present();
        self.handover.keep_state(&ports, &addresses);
        if let Some(connections) = self.filters.connections() {
            self.handover.keep_connections(&ports, connections);
        }
    }

    /// Stops the switch; returns the addresses that the table had before the ports forgot them.
    fn halt(&mut self) -> Vec<switch::Entry> {
        let end = Instant::now() + STOP_TIMEOUT;
        self.helpers.begin_stop();
        self.context.workers.stop(Instant::now() + STOP_TIMEOUT / 2);
        let addresses = self.context.fdb.entries(clock::coarse_seconds());
        self.serving.iter().for_each(Serving::stop);
        self.helpers.wake();
        let removing = self.removals.ports.drain(..).map(Removing::into_serving);
        let mut all: Vec<Serving> = self.serving.drain(..).chain(removing).collect();
        while Instant::now() < end {
            all.retain_mut(|serving| !serving.has_ended());
            if all.is_empty() {
                break;
            }
            std::thread::sleep(REMOVE_STEP);
        }
        self.helpers.join(end);
        all.iter().for_each(Serving::remove_file);
        addresses
    }
}

/// Starts the workers with the ports of a table that no worker uses yet.
fn start_workers(
    config: &Config,
    ports: PortTable,
    fdb: Arc<Fdb>,
    (wakeup, events): (Arc<Waker>, Arc<Events>),
) -> io::Result<(View, Context)> {
    let snooping = config.multicast_snooping.then(Arc::<Snooping>::default);
    let ports = Arc::new(Ports::new(ports.with_snooping(snooping)));
    let rules = Rules { uplink_to_uplink: config.uplink_to_uplink };
    let watch = Arc::new(BlockedWriterWatch::start()?);
    let shared = Shared {
        ports: Arc::clone(&ports),
        fdb: Arc::clone(&fdb),
        rules,
        poll: config.poll,
        watch: Arc::clone(&watch),
    };
    let workers = Arc::new(Workers::start(config.workers, &config.cpus, &shared)?);
    let view = View {
        ports,
        fdb: Arc::clone(&fdb),
        workers: Arc::clone(&workers),
        rules,
        opens: Arc::new(Blocking::new(SOCKET_OPENS)),
        wakeup,
        events,
        samples: Arc::default(),
        clients: Arc::default(),
        started_micros: clock::wall_nanos() / 1_000,
    };
    Ok((view, Context { fdb, workers, watch }))
}

/// Removes each address, if addresses age, in the second in which the address has been idle for too
/// long: sweeps at most once a second, and never before the first address can be too old. Removes
/// groups without members from time to time, if the switch snoops. Runs outside of the data path.
fn age((fdb, ages): (&Fdb, bool), ports: &Ports, stopping: &AtomicBool) {
    let snoops = ports.present().snooping().is_some();
    let mut sweep = Instant::now() + SNOOPING_SWEEP_PAUSE;
    while !stopping.load(Ordering::Acquire) {
        let due = || Duration::from_secs(fdb.next_expiry(clock::coarse_seconds()).into());
        let now = || Duration::from_nanos(clock::monotonic_nanos());
        let oldest = ages.then(|| (due() + COARSE_CLOCK_TICK).saturating_sub(now()));
        let groups = snoops.then(|| sweep.saturating_duration_since(Instant::now()));
        std::thread::park_timeout([oldest, groups].into_iter().flatten().min().unwrap_or_default());
        if ages {
            fdb.age(clock::coarse_seconds());
        }
        if snoops && Instant::now() >= sweep {
            let ports = ports.present();
            ports.snooping().into_iter().for_each(|all| all.sweep(clock::coarse_seconds()));
            sweep = Instant::now() + SNOOPING_SWEEP_PAUSE;
        }
    }
}
