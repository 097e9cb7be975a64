//! A port's settings while the port serves: the settings in force, and the settings that wait for
//! the next session.
//!
//! A session keeps the offer that it began with. So a change of the offer waits for the next
//! front-end: before the port's thread lets the front-end in, it replaces the present port by a
//! port object with the same number and counters. A worker with the old port in its table would
//! not know the new port's rings, so the thread waits until all workers have adopted the new table.
//! Every other change takes effect at once, at the present port.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use super::build;
use super::state;
use api::config::{Difference, Kind, Settings};
use base::limits::REMOVE_STEP;
use datapath::events::Events;
use datapath::port::{GuestPort, Port, Ports};
use datapath::worker::Workers;
use sys::netlink::NetlinkError;
use sys::threads::lock;

/// A port, which may be replaced by another port for each session.
#[derive(Debug)]
pub(crate) struct RunningPort {
    name: String,
    ports: Arc<Ports>,
    events: Arc<Events>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    port: Arc<Port>,
    /// Settings in force.
    settings: Settings,
    /// Settings from the next front-end on, if they differ.
    next: Option<Settings>,
}

/// The reason why a setting cannot be changed now.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// The interface does not take the MTU.
    #[error("the interface does not take the MTU: {0}")]
    Mtu(#[from] NetlinkError),
}

impl RunningPort {
    /// Returns a running port with `settings` in force.
    pub(crate) fn new(
        port: &Arc<Port>,
        settings: Settings,
        ports: &Arc<Ports>,
        events: &Arc<Events>,
    ) -> RunningPort {
        let state = Mutex::new(State { port: Arc::clone(port), settings, next: None });
        let (ports, events) = (Arc::clone(ports), Arc::clone(events));
        RunningPort { name: port.name.clone(), ports, events, state }
    }

    /// Returns the port's name, which never changes.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Returns the present port.
    pub(crate) fn port(&self) -> Arc<Port> {
        Arc::clone(&self.state().port)
    }

    /// Marks the port as being removed.
    pub(crate) fn leave(&self) {
        self.state().port.life.removing.store(true, Ordering::Relaxed);
    }

    /// Returns the changes that wait for the next front-end.
    pub(crate) fn pending(&self) -> Vec<Difference> {
        let state = self.state();
        state.next.as_ref().map_or(Vec::new(), |next| state.settings.differences(next))
    }

    /// Changes the settings to `wanted`, as far as possible now; an error changes nothing. The
    /// daemon changes static addresses ([`super::reconcile`]).
    pub(crate) fn change(&self, wanted: &Settings) -> Result<(), ChangeError> {
        let mut state = self.state();
        let port = Arc::clone(&state.port);
        let now = &mut state.settings;
        if let (Kind::Tap, Some(mtu)) = (now.kind, wanted.mtu.filter(|_| now.mtu != wanted.mtu)) {
            port.mtu.set_link(mtu.into())?;
        }
        let known = now.warnings();
        now.take_now(wanted);
        let warnings = now.warnings();
        let new = warnings.iter().filter(|warning| !known.contains(warning));
        new.for_each(|warning| log::warn!("{warning}"));
        port.mtu.configure(wanted.mtu);
        let (before, policy) = (port.policy.get(), wanted.policy());
        let moves = (&before.bridge, &before.vlans) != (&policy.bridge, &policy.vlans);
        if *before != policy {
            // Queries may not have reached the port under its old policy. The mark comes before the
            // change: until workers see the new policy the port may get too many frames, and never
            // too few.
            port.begin();
        }
        port.policy.set(policy);
        port.rates.set(wanted.limits(), wanted.flood_limits());
        port.worker.set(wanted.worker);
        let waits = now.kind == Kind::Port && now != wanted;
        state.next = waits.then(|| wanted.clone());
        drop(state);
        self.ports.renew();
        // The session tells the driver whether the link is up.
        port.as_guest().filter(|guest| guest.is_vduse()).into_iter().for_each(GuestPort::wake);
        if moves && let Some(snooping) = self.ports.present().snooping() {
            snooping.forget(port.id);
        }
        Ok(())
    }

    /// Returns the port for the next session. To be called between two sessions.
    pub(crate) fn renew(&self, workers: &Workers, stopped: impl Fn() -> bool) -> Arc<Port> {
        let mut state = self.state();
        let before = Arc::clone(&state.port);
        let Some(next) = state.next.take() else { return before };
        let mut after = build::port(before.id, &next).telling(&self.events);
        after.succeed(&before);
        let after = Arc::new(after);
        state.settings = next;
        state.port = Arc::clone(&after);
        let serial = self.ports.add(Arc::clone(&after));
        drop(state);
        while !workers.wait_adopted(serial, Instant::now() + REMOVE_STEP) && !stopped() {}
        // No worker counts at the old port any more.
        state::carry(&before, &after);
        log::info!("port {}: new settings are in effect", after.name);
        after
    }
}
