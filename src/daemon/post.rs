//! A port's settings while it serves: what is in force, and what waits for its next session.
//!
//! What a session is offered is settled when it begins, so that a change of it waits for the next
//! front-end: the port's thread then puts another port in the place of the one there was, with
//! the same number and counters, before it lets the front-end in. A worker that still had the old
//! one in its table would not know the new one's rings, so all of them are waited for. Everything
//! else takes effect at once, at the port that is there.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::build::guest;
use super::state;
use crate::config::{Difference, PortConfig, Settings};
use crate::events::Events;
use crate::frame::MacAddr;
use crate::limits::REMOVE_STEP;
use crate::port::{Port, Ports};
use crate::switch::{Fdb, StaticError};
use crate::sys::netlink::NetlinkError;
use crate::worker::Workers;

/// When a change of a key takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// It has.
    Now,
    /// When a front-end connects again; the one that is connected keeps what it was offered.
    Reconnect,
    /// With another socket or interface: the front-end is disconnected.
    Reopen,
    /// With the next start.
    Restart,
    /// With ports that come later.
    NewPorts,
}

impl Effect {
    /// As it is told to programs.
    pub fn name(self) -> &'static str {
        match self {
            Effect::Now => "now",
            Effect::Reconnect => "reconnect",
            Effect::Reopen => "reopen",
            Effect::Restart => "restart",
            Effect::NewPorts => "new_ports",
        }
    }

    /// When a change of `key` of a port or TAP takes effect.
    pub fn of(kind: &str, key: &str) -> Effect {
        match (kind, key) {
            (_, "mtu" | "flood" | "mac") => Effect::Now,
            ("port", "queues" | "offload" | "platform" | "feature-level" | "memory") => {
                Effect::Reconnect
            }
            _ => Effect::Reopen,
        }
    }
}

/// A port, which may be another one for each of its sessions.
#[derive(Debug)]
pub struct Post {
    name: String,
    ports: Arc<Ports>,
    events: Arc<Events>,
    feature_level: u8,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    port: Arc<Port>,
    /// What it is.
    settings: Settings,
    /// What it will be when a front-end connects, if that is something else.
    next: Option<PortConfig>,
}

/// Why a setting cannot be changed now.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// An address cannot be entered.
    #[error(transparent)]
    Static(#[from] StaticError),
    /// The interface does not take the MTU.
    #[error("the interface does not take the MTU: {0}")]
    Mtu(#[from] NetlinkError),
}

impl Post {
    /// A port that is as `settings` say.
    pub fn new(
        port: &Arc<Port>,
        settings: Settings,
        ports: &Arc<Ports>,
        events: &Arc<Events>,
        feature_level: u8,
    ) -> Post {
        let state = Mutex::new(State { port: Arc::clone(port), settings, next: None });
        let (ports, events) = (Arc::clone(ports), Arc::clone(events));
        Post { name: port.name.clone(), ports, events, feature_level, state }
    }

    /// Its name, which stays.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The port as it is now.
    pub fn port(&self) -> Arc<Port> {
        Arc::clone(&self.state().port)
    }

    /// It is on its way out.
    pub fn leave(&self) {
        self.state().port.leaving.store(true, Ordering::Relaxed);
    }

    /// What waits for the next front-end.
    pub fn pending(&self) -> Vec<Difference> {
        let state = self.state();
        match state.next.clone() {
            Some(next) => state.settings.differences(&Settings::Port(next)),
            None => Vec::new(),
        }
    }

    /// Makes it what `wanted` says, as far as that can be now; nothing has changed where it fails.
    /// What only another socket or interface could do is not looked at.
    pub fn change(&self, wanted: &Settings, fdb: &Fdb) -> Result<(), ChangeError> {
        let mut state = self.state();
        let port = Arc::clone(&state.port);
        match (&mut state.settings, wanted) {
            (Settings::Port(now), Settings::Port(wanted)) => {
                change_addresses(&now.macs, &wanted.macs, &port, fdb)?;
                now.macs.clone_from(&wanted.macs);
                (now.mtu, now.policy) = (wanted.mtu, wanted.policy);
                port.mtu.configure(wanted.mtu);
                state.next = (now != wanted).then(|| wanted.clone());
                port.policy.set(wanted.policy);
            }
            (Settings::Stream(now), Settings::Stream(wanted)) => {
                change_addresses(&now.macs, &wanted.macs, &port, fdb)?;
                now.macs.clone_from(&wanted.macs);
                (now.mtu, now.policy) = (wanted.mtu, wanted.policy);
                port.mtu.configure(wanted.mtu);
                port.policy.set(wanted.policy);
            }
            (Settings::Tap(now), Settings::Tap(wanted)) => {
                if let Some(mtu) = wanted.mtu.filter(|_| now.mtu != wanted.mtu) {
                    port.mtu.set_link(mtu.into())?;
                }
                port.mtu.configure(wanted.mtu);
                (now.mtu, now.policy) = (wanted.mtu, wanted.policy);
                port.policy.set(wanted.policy);
            }
            _ => {}
        }
        drop(state);
        self.ports.renew();
        Ok(())
    }

    /// The port for the next session. To be called between two sessions.
    pub fn renew(&self, workers: &Workers, stopped: impl Fn() -> bool) -> Arc<Port> {
        let mut state = self.state();
        let before = Arc::clone(&state.port);
        let Some(next) = state.next.take() else { return before };
        let mut after = guest(before.id, &next, self.feature_level).telling(&self.events);
        after.succeed(&before);
        let after = Arc::new(after);
        state.settings = Settings::Port(next);
        state.port = Arc::clone(&after);
        let serial = self.ports.add(Arc::clone(&after));
        drop(state);
        while !workers.wait_adopted(serial, Instant::now() + REMOVE_STEP) && !stopped() {}
        // Nobody counts there any more.
        state::carry(&before, &after);
        log::info!("port {}: serves with its new settings", after.name);
        after
    }
}

/// Enters new addresses and takes old ones away.
fn change_addresses(
    now: &[MacAddr],
    wanted: &[MacAddr],
    port: &Port,
    fdb: &Fdb,
) -> Result<(), StaticError> {
    let new = wanted.iter().filter(|mac| !now.contains(mac));
    for (count, mac) in new.clone().enumerate() {
        if let Err(error) = fdb.insert_static(*mac, port.id) {
            for mac in new.take(count) {
                fdb.remove_static(*mac, port.id);
            }
            return Err(error);
        }
    }
    for mac in now.iter().filter(|mac| !wanted.contains(mac)) {
        fdb.remove_static(*mac, port.id);
    }
    Ok(())
}
