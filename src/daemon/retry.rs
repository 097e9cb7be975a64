//! Tries again to open what the start could not open: sockets of ports and streams, interfaces of
//! TAPs, services beside the ports.
//!
//! One thread makes the attempts that are due in the list ([`super::missing`]), one after the
//! other. The thread holds the daemon while it chooses an attempt and while it puts a port into
//! service, and never while it waits for a file system or the kernel. A port is not removed while
//! an attempt for the port lasts. The thread also reports degradations to the service manager
//! whenever they change.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::degraded::{Code, Degradation};
use super::handover::Handover;
use super::helpers::Background;
use super::received::Received;
use super::running_port::RunningPort;
use super::serving::Opened;
use super::{Daemon, PortError, StartError, uplink};
use api::config::Endpoint;
use base::limits::{REMOVE_TICK, RETRY_IDLE_TICK, RETRY_STOP_TIMEOUT, RETRY_TICK};
use datapath::events::What;
use datapath::port::Port;
use datapath::vhost_user::socket::BoundFile;
use datapath::worker::Workers;
use sys::notify::notify;
use sys::sandbox;
use sys::threads::lock;

/// Starts a service; an error says why the service cannot be had.
type Start = Box<dyn FnMut() -> Result<(), String> + Send>;

/// The number of port names in a line about several ports, and of texts about other subjects.
const SHOWN: usize = 5;

/// Services beside the ports: the switch goes on without a service that cannot be had.
pub(crate) struct Services {
    daemon: Arc<Mutex<Daemon>>,
    missing: Vec<(Code, Start)>,
}

/// A service, once the service is started.
pub struct Slot<T>(Arc<Mutex<Option<T>>>);

impl<T> Slot<T> {
    /// Takes the service, if it is started.
    pub(crate) fn take(&self) -> Option<T> {
        lock(&self.0).take()
    }
}

impl Services {
    /// Returns an empty list of services.
    pub(crate) fn new(daemon: &Arc<Mutex<Daemon>>) -> Services {
        Services { daemon: Arc::clone(daemon), missing: Vec::new() }
    }

    /// Starts a service now, or else tries again and again until the service can be had.
    pub(crate) fn start<T: Send + 'static, E: std::fmt::Display>(
        &mut self,
        code: Code,
        mut start: impl FnMut(&Arc<Mutex<Daemon>>) -> Result<T, E> + Send + 'static,
    ) -> Slot<T> {
        let slot = Arc::new(Mutex::new(None));
        let (place, daemon) = (Arc::clone(&slot), Arc::clone(&self.daemon));
        let mut start: Start = Box::new(move || {
            let service = start(&daemon).map_err(|error| error.to_string())?;
            *lock(&place) = Some(service);
            Ok(())
        });
        if let Err(why) = start() {
            let missing = Degradation::new(code, None, why);
            lock(&self.daemon).missing.add(missing, true, Instant::now());
            self.missing.push((code, start));
        }
        Slot(slot)
    }

    /// Starts the thread that tries again, and that reports changes to the service manager, which
    /// has `status`.
    pub(crate) fn retry(self, status: String) -> io::Result<Background> {
        let mut retrier = {
            let daemon = lock(&self.daemon);
            Retrier {
                workers: Arc::clone(&daemon.context.workers),
                handover: Arc::clone(&daemon.handover),
                daemon: Arc::clone(&self.daemon),
                services: self.missing,
                status,
            }
        };
        let daemon = Arc::clone(&self.daemon);
        let run = move |stopping: &AtomicBool| retrier.run(stopping);
        let thread = Background::start("retry", RETRY_STOP_TIMEOUT, run)?;
        lock(&daemon).helpers.set_retrier(thread.thread().clone());
        Ok(thread)
    }
}

/// An attempt, with the means that the attempt needs.
enum Attempt {
    Service(Code),
    Port(Arc<RunningPort>, Option<Endpoint>),
}

impl Daemon {
    /// Returns the attempt that is due, if there is one.
    fn begin_attempt(&mut self) -> Option<Attempt> {
        if self.helpers.are_stopping() {
            return None;
        }
        let (code, subject) = self.missing.begin(Instant::now())?;
        let Some(name) = subject else { return Some(Attempt::Service(code)) };
        let Ok(serving) = self.serving(&name) else {
            // The port is being removed.
            self.missing.forget_port(&name);
            return None;
        };
        let running = Arc::clone(serving.running());
        let endpoint = self.desired.get(&name).and_then(|entry| entry.settings.endpoint());
        Some(Attempt::Port(running, endpoint))
    }

    /// Notes that a wanted port is not served for the reason `why`, and has the thread `retry` try
    /// again. An inherited descriptor is not tried again: its number may be another file's by then.
    pub(super) fn miss(&mut self, port: &Arc<Port>, why: String) -> Result<(), PortError> {
        let entry = self.desired.get(&port.name);
        let endpoint = entry.and_then(|entry| entry.settings.endpoint());
        let again = !matches!(endpoint, Some(Endpoint::Fd(_)));
        let missing = Degradation::new(Code::of(port), Some(&port.name), why);
        self.missing.add(missing, again, Instant::now());
        self.serve_without(port)
    }

    /// Reports that a port or service is in service now, if it was missing.
    pub(super) fn recovered(&mut self, code: Code, port: Option<&str>) {
        let Some(missed) = self.missing.take(code, port, Instant::now()) else { return };
        let event = What::Recovered { code: code.name(), seconds: missed.as_secs() };
        match self.view.ports.present().named(port.unwrap_or_default()) {
            Some(port) => port.reports.events.tell_surely(&port.name, event),
            None => self.view.events.tell(event),
        }
    }

    /// Notes the trouble of a service beside the ports, or that the service has no trouble any
    /// more.
    pub(super) fn note_service(&mut self, code: Code, trouble: Option<String>) {
        match trouble {
            Some(text) => {
                let missing = Degradation::new(code, None, text);
                self.missing.add(missing, false, Instant::now());
            }
            None => self.recovered(code, None),
        }
    }
}

impl Daemon {
    /// Returns the degradations of the switch; empty if the switch is as configured. The list is at
    /// most a little longer than the number of ports. A subject that comes into service leaves the
    /// list.
    pub(crate) fn degradations(&self) -> Vec<Degradation> {
        let there = self.store.degraded().chain(self.missing.iter()).cloned();
        there.chain(self.held_up()).collect()
    }

    /// Returns the degradations in a line, for the service manager; none if the switch is as
    /// configured.
    pub(crate) fn shortfall(&self) -> Option<String> {
        let all = self.degradations();
        let mut parts = Vec::new();
        for (code, kind) in [
            (Code::PortLeftOut, "ports left out"),
            (Code::TapLeftOut, "taps left out"),
            (Code::PortBeingRemoved, "ports being removed"),
        ] {
            let of = all.iter().filter(|one| one.code == code);
            let names: Vec<&str> = of.filter_map(|one| one.subject.as_deref()).collect();
            if !names.is_empty() {
                let (count, some) = (names.len(), names[..names.len().min(SHOWN)].join(", "));
                let more = if count > SHOWN { ", ..." } else { "" };
                parts.push(format!("{kind}: {count} ({some}{more})"));
            }
        }
        let others = all.into_iter().filter(|one| !one.code.is_port()).map(|one| one.text);
        parts.extend(others.take(SHOWN));
        (!parts.is_empty()).then(|| format!("degraded, {}", parts.join("; ")))
    }

    /// Returns the status line of the service manager.
    pub(crate) fn status_line(&self) -> String {
        self.shortfall().unwrap_or_else(|| "all sockets exist".to_owned())
    }
}

struct Retrier {
    daemon: Arc<Mutex<Daemon>>,
    workers: Arc<Workers>,
    handover: Arc<Handover>,
    services: Vec<(Code, Start)>,
    /// The status line that the service manager has.
    status: String,
}

impl Retrier {
    fn run(&mut self, stopping: &AtomicBool) {
        // A panic may have left attempts under way.
        lock(&self.daemon).missing.pause(|_| true, Instant::now());
        while !stopping.load(Ordering::Acquire) {
            // The thread is woken early when a port is to be removed; a wake-up too early costs one
            // look.
            std::thread::park_timeout(self.tick());
            lock(&self.daemon).go_on_removing();
            self.try_all(stopping);
            self.tell();
            sandbox::log();
        }
    }

    fn tick(&self) -> Duration {
        let daemon = lock(&self.daemon);
        match daemon.missing.iter().next() {
            _ if !daemon.removals.ports.is_empty() || daemon.not_running().next().is_some() => {
                REMOVE_TICK
            }
            Some(_) => RETRY_TICK,
            None => RETRY_IDLE_TICK,
        }
    }

    /// Makes all attempts that are due. A failure is due again after a pause, so the loop ends.
    fn try_all(&mut self, stopping: &AtomicBool) {
        while !stopping.load(Ordering::Acquire) {
            let attempt = lock(&self.daemon).begin_attempt();
            match attempt {
                None => return,
                Some(Attempt::Service(code)) => self.try_service(code),
                Some(Attempt::Port(running, endpoint)) => {
                    let (mut none, means) =
                        (Received::default(), (&*self.workers, &*self.handover));
                    let (port, now) = (running.port(), Instant::now());
                    let mut opened = Opened::open(&port, endpoint.as_ref(), &mut none, now, means);
                    self.handover.keep_sockets(opened.iter_mut().filter_map(Opened::acceptor));
                    self.settle(&running, opened);
                }
            }
        }
    }

    fn try_service(&mut self, code: Code) {
        let Some((_, start)) = self.services.iter_mut().find(|(of, _)| *of == code) else { return };
        match start() {
            Ok(()) => lock(&self.daemon).recovered(code, None),
            Err(why) => self.failed(code, None, &why),
        }
    }

    /// Puts a port into service with what was opened for the port, or drops what was opened.
    fn settle(&self, running: &Arc<RunningPort>, opened: Result<Opened, PortError>) {
        let port = running.port();
        let code = Code::of(&port);
        let failed = |error: PortError| {
            let why = StartError::of(&port, error).to_string();
            self.failed(code, Some(&port.name), &why);
        };
        let opened = match opened {
            Ok(opened) => opened,
            Err(error) => return failed(error.with_holder()),
        };
        let file = opened.file_that_stays();
        let mut daemon = lock(&self.daemon);
        if daemon.is_removing(running) {
            drop(daemon);
            opened.discard(&port);
            self.let_go(&port, file);
            let is = |one: &Degradation| one.subject.as_deref() == Some(port.name.as_str());
            // The port may be removed now.
            return lock(&self.daemon).missing.pause(is, Instant::now());
        }
        match daemon.serve_late(running, opened) {
            Ok(()) => {
                daemon.recovered(code, Some(&port.name));
                if port.as_uplink().is_some() {
                    uplink::compare_mtus(&daemon.ports());
                }
            }
            Err(error) => {
                drop(daemon);
                self.let_go(&port, file);
                failed(error);
            }
        }
    }

    /// Drops what was opened for a port.
    fn let_go(&self, port: &Port, file: Option<BoundFile>) {
        file.iter().for_each(|file| self.handover.discard_socket(file));
        uplink::detach(port, &self.workers, &self.handover);
    }

    fn failed(&self, code: Code, port: Option<&str>, why: &str) {
        if lock(&self.daemon).missing.failed(code, port, why, Instant::now()) {
            log::error!("{why}; the switch tries again");
        }
    }

    /// Tells the service manager the degradations, if they changed.
    fn tell(&mut self) {
        let status = lock(&self.daemon).status_line();
        if status == self.status {
            return;
        }
        if let Err(error) = notify(&format!("STATUS={status}")) {
            log::warn!("cannot notify the service manager: {error}");
        }
        self.status = status;
    }
}
