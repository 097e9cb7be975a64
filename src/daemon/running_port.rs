//! A port's settings while it serves: what is in force, and what waits for its next session.
//!
//! What a session is offered is settled when it begins, so that a change of it waits for the next
//! front-end: the port's thread then puts another port in the place of the one there was, with
//! the same number and counters, before it lets the front-end in. A worker that still had the old
//! one in its table would not know the new one's rings, so all of them are waited for. Everything
//! else takes effect at once, at the port that is there.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use super::build;
use super::state;
use api::config::{Difference, Kind, Settings};
use base::limits::REMOVE_STEP;
use datapath::events::Events;
use datapath::port::{Port, Ports};
use datapath::worker::Workers;
use sys::netlink::NetlinkError;
use sys::threads::lock;

/// A port, which may be another one for each of its sessions.
#[derive(Debug)]
pub struct RunningPort {
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

/// Why a setting cannot be changed now.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// The interface does not take the MTU.
    #[error("the interface does not take the MTU: {0}")]
    Mtu(#[from] NetlinkError),
}

impl RunningPort {
    /// A port that is as `settings` say.
    pub fn new(
        port: &Arc<Port>,
        settings: Settings,
        ports: &Arc<Ports>,
        events: &Arc<Events>,
    ) -> RunningPort {
        let state = Mutex::new(State { port: Arc::clone(port), settings, next: None });
        let (ports, events) = (Arc::clone(ports), Arc::clone(events));
        RunningPort { name: port.name.clone(), ports, events, state }
    }

    /// Its name, which stays.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The port as it is now.
    pub fn port(&self) -> Arc<Port> {
        Arc::clone(&self.state().port)
    }

    /// It is on its way out.
    pub fn leave(&self) {
        self.state().port.life.leaving.store(true, Ordering::Relaxed);
    }

    /// Returns the changes that wait for the next front-end.
    pub fn pending(&self) -> Vec<Difference> {
        let state = self.state();
        state.next.as_ref().map_or(Vec::new(), |next| state.settings.differences(next))
    }

    /// Makes it what `wanted` says, as far as that can be now; nothing has changed where it fails.
    /// Static addresses are the daemon's ([`super::reconcile`]).
    pub fn change(&self, wanted: &Settings) -> Result<(), ChangeError> {
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
            // Queries may not have reached it as it was before. First: until it is seen to change
            // it may get too much, and never too little.
            port.begin();
        }
        port.policy.set(policy);
        port.rates.set(wanted.limits(), wanted.flood_limits());
        port.worker.set(wanted.worker);
        let waits = now.kind == Kind::Port && now != wanted;
        state.next = waits.then(|| wanted.clone());
        drop(state);
        self.ports.renew();
        if moves && let Some(snooping) = self.ports.present().snooping() {
            snooping.forget(port.id);
        }
        Ok(())
    }

    /// The port for the next session. To be called between two sessions.
    pub fn renew(&self, workers: &Workers, stopped: impl Fn() -> bool) -> Arc<Port> {
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
        // Nobody counts there any more.
        state::carry(&before, &after);
        log::info!("port {}: new settings are in effect", after.name);
        after
    }
}
