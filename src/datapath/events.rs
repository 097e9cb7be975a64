//! Events of the switch for operators and clients: a bounded ring of typed events.
//!
//! An event is reported once, here: the switch logs the event as one line and keeps the event for
//! clients of the control socket. The newest event displaces the oldest. Frames are not events;
//! what happens to each frame is counted.
//!
//! Rules: a thread that reports never waits for a thread that reads. While events are being read,
//! new ones wait in a short queue; an event that finds the queue full is lost and counted. A worker
//! reports rare events only, and never while it holds a ring's lock: waking the reader is a system
//! call. Events that a guest or a front-end can cause are bounded for each port ([`PortEvents`]);
//! the port's next event has the number of those left out. Each event has a number, by which a
//! client finds the events it missed; numbers begin at 1 in each process.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard};

use log::Level;
use serde::{Serialize, Serializer};

use crate::guard::bucket::Bucket;
use base::frame::MacAddr;
use base::limits::{
    EVENT_TEXT_CHARS, EVENTS_KEPT, EVENTS_QUEUED, PORT_EVENT_BURST, PORT_EVENT_EVERY,
};
use base::stats::{Direction, DropReason, PortState};
use base::words::counted;
use switch::Violation;
use switch::port_security::Address;
use sys::clock;
use sys::threads::lock;
use sys::waker::Waker;

fn shown<S: Serializer>(mac: &MacAddr, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(mac)
}

fn named<S: Serializer>(reason: &DropReason, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(reason.name())
}

/// Serializes a broken rule as the name of the rule, and the address or null.
fn broken<S: Serializer>(violation: &Violation, to: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Fields {
        rule: &'static str,
        address: Option<String>,
    }
    let Violation { rule, address } = violation;
    let address = (*address != Address::None).then(|| address.to_string());
    Fields { rule: rule.name(), address }.serialize(to)
}

/// A kind of event: its name, and its number in the journal's catalog, which never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    /// Name of the kind in the control protocol.
    pub name: &'static str,
    /// `MESSAGE_ID=` of the kind's lines in the journal.
    pub message_id: &'static str,
}

/// Defines the events: fields = name of the kind, number in the catalog, level; text of the log
/// line, behind the port's name.
macro_rules! events {
    ($($(#[$about:meta])* $event:ident $({ $($(#[$meta:meta])* $field:ident: $type:ty),* })?
        = $name:literal $message_id:literal $level:ident, $text:literal $(, $arg:expr)*;)*) => {
        /// The event, with its fields.
        #[derive(Debug, Clone, PartialEq, Eq, Serialize)]
        #[serde(untagged)]
        #[allow(missing_docs, reason = "an event tells of its fields")]
        pub enum What { $($(#[$about])* $event $({ $($(#[$meta])* $field: $type),* })?,)* }

        /// All kinds of events.
        pub const KINDS: &[Kind] = &[$(Kind { name: $name, message_id: $message_id },)*];

        impl What {
            /// Returns the kind of the event.
            pub fn kind(&self) -> Kind {
                match self {
                    $(What::$event { .. } => Kind { name: $name, message_id: $message_id },)*
                }
            }

            fn level(&self) -> Level {
                match self { $(What::$event { .. } => Level::$level,)* }
            }
        }

        #[allow(unused_variables, reason = "some are for programs alone")]
        impl fmt::Display for What {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(What::$event $({ $($field),* })? => write!(f, $text $(, $arg)*),)*
                }
            }
        }
    };
}

events! {
    /// The switch serves; a summary of its configuration.
    Ready { summary: String } = "ready" "16d11a7ef9bc4d8785fe32c1d0495ced" Info,
        "ready: {summary}";
    /// A port of the configuration cannot be served.
    Degraded { why: String } = "degraded" "1b4a954731a44f2082f357c03ce4f4c9" Error,
        "{why}";
    /// A service that was reported with [`What::Degraded`] works now; the code of that degradation.
    Recovered { code: &'static str, seconds: u64 }
        = "recovered" "b92f4c07d5e84a1386c21f7e905ad3b6" Info,
        "in service now, after {seconds} s without ({code})";
    /// A changed configuration is in effect.
    Reloaded { summary: String } = "reloaded" "0f78e4dd1dcc4134aba6806bf704bf6a" Info,
        "reloaded: {summary}";
    /// A changed configuration was refused; the previous configuration stays in effect.
    ReloadFailed { why: String } = "reload_failed" "7df3cebd53084288b664dfe4a96ec816" Error,
        "not reloaded: {why}";
    /// A port or TAP was added.
    PortAdded = "port_added" "b3a7a316071d4fcfa94b9f2e3273b62d" Info,
        "added";
    /// A port was added for a socket of this user that appeared in the directory of ports by plug.
    PortPlugged { uid: u32 } = "port_added" "b3a7a316071d4fcfa94b9f2e3273b62d" Info,
        "added for the socket of uid {uid}";
    /// A port or TAP was removed.
    PortDeleted = "port_deleted" "5f01215257524e0db3e3e95daabad6d0" Info,
        "removed";
    /// A file in the directory of ports by plug was not made a port: the file's name as it may be
    /// shown, and the owner of a socket.
    PlugRefused { file: String, uid: Option<u32>, why: String }
        = "plug_refused" "0c9e5a7d1f6b4e2c8a3d94b7f5612e80" Warn,
        "plug: {file}{} is not made a port: {why}", of_user(*uid);
    /// The first ring of a front-end runs, with these virtio features. `pid` and `uid` are those of
    /// the front-end; `pid` is 0 outside of the daemon's PID namespace.
    Attached { pid: i32, uid: u32, features: u64 }
        = "attached" "f191339ffd2445cda92c3e29c93b5f8e" Info,
        "front-end attached (pid {pid} uid {uid}), features {features:#x}";
    /// The kernel's driver of a VDUSE device is ready, with these virtio features.
    DriverReady { features: u64 } = "attached" "f191339ffd2445cda92c3e29c93b5f8e" Info,
        "driver ready, features {features:#x}";
    /// A process is connected to the stream of a port.
    Connected { pid: i32, uid: u32 } = "attached" "f191339ffd2445cda92c3e29c93b5f8e" Info,
        "connected (pid {pid} uid {uid})";
    /// The connection with a front-end has ended: the front-end left, or the switch let it go.
    Detached = "detached" "75021922b8c2432794877d65cf652b85" Info,
        "front-end disconnected";
    /// The connection with a front-end has ended with an error.
    DetachedBy { why: String } = "detached" "75021922b8c2432794877d65cf652b85" Warn,
        "connection closed: {why}";
    /// The connection with a front-end has ended by a bug of this daemon.
    DetachedByPanic { why: &'static str } = "detached" "75021922b8c2432794877d65cf652b85" Error,
        "{why}";
    /// The connection of a stream has ended: the peer left.
    Disconnected = "detached" "75021922b8c2432794877d65cf652b85" Info,
        "disconnected";
    /// The connection of a stream has ended for another reason.
    DisconnectedBy { why: String } = "detached" "75021922b8c2432794877d65cf652b85" Warn,
        "disconnected: {why}";
    /// The interface of a TAP was deleted.
    InterfaceGone = "interface_gone" "9f0c3a5be1d7462d8e64a7bb0f2c9d11" Warn,
        "{}", PortState::Gone.of_it(None);
    /// The interface of a TAP, deleted before, is attached again.
    InterfaceBack = "interface_back" "47be2d90c65f4f1fa3180d6e9c7b5a22" Info,
        "its interface is back";
    /// The interface of a TAP was set down: no frame passes.
    InterfaceDown = "interface_down" "d2e8517a4c0b4b6e95f3c1a87d604e33" Warn,
        "{}", PortState::Down.of_it(None);
    /// The interface of a TAP was set up.
    InterfaceUp = "interface_up" "6a13f9d07e824c5db0c2985ef47a1b44" Info,
        "its interface came up";
    /// A ring is broken and not served until its driver restarts it. `ring` is the ring's index in
    /// the device.
    RingBroken { ring: usize, why: String }
        = "ring_broken" "bebfdf309d644df789d3bd8c94de66b4" Warn,
        "ring {ring} is broken and left alone: {why}";
    /// A front-end is disconnected because it harms other ports.
    Dropped { why: String } = "dropped" "650528fb32fa41e5915f3c7b83f5705d" Warn,
        "front-end dropped: {why}";
    /// The port admits no front-end for a while, after [`What::Dropped`].
    Closed { seconds: u64 } = "closed" "ee59fc9bd3d64c21930eb52bb8726d17" Warn,
        "closed for {seconds}s: its front-end harmed others";
    /// An address moved here from another port, which may be gone. The last of `moves` moves since
    /// the port's last event of this kind.
    MacMoved { #[serde(serialize_with = "shown")] mac: MacAddr, from: Option<String>, moves: u64 }
        = "mac_moved" "c26707b169be4383bbf6f73a57c600e3" Info,
        "{mac} moved here from port {}{}", old_port(from), others(*moves);
    /// A flapping address was not learned here: another port, which may be gone, keeps the address
    /// for a while. The last of `frames` frames since the port's last event of this kind.
    MacHeld { #[serde(serialize_with = "shown")] mac: MacAddr, at: Option<String>, frames: u64 }
        = "mac_held" "8f1c2b64d0e94a7795d3a6c1be70f25e" Warn,
        "{mac} flaps, and is held at port {}{}", old_port(at), others(*frames);
    /// A frame broke a rule of the port's guard, by this address if the rule is about an address.
    /// The last of `frames` frames, dropped or not, since the port's last event of this kind.
    GuardViolation {
        #[serde(flatten, serialize_with = "broken")] violation: Violation, dropped: bool,
        frames: u64
    }
        = "guard_violation" "5d3e0b7c92a14f68b1c7e94d20fa6383" Warn,
        "guard: {violation} (rule {}){}{}", violation.rule, others(*frames),
        if *dropped { "" } else { " (not dropped)" };
    /// A rule with `log` has decided about a packet. The log had no room for
    /// `not_logged` packets before.
    FilterLogged { packet: String, rule: String, passed: bool, not_logged: u64 }
        = "filter_logged" "e62e03c31cdc449fb8906231a50ae0e0" Info,
        "filter: {packet}: {} by {rule}{}", if *passed { "accepted" } else { "refused" },
        besides(*not_logged);
    /// Frames are dropped for a reason for which none was dropped for some time.
    DropsBegan { direction: Direction, #[serde(serialize_with = "named")] reason: DropReason }
        = "drops_began" "bacc21b9ce954b2ea0398000b810f992" Info,
        "drops began: {} {} ({})", direction.name(), reason.name(), reason.meaning();
    /// No frame is dropped for this reason any more.
    DropsEnded {
        direction: Direction, #[serde(serialize_with = "named")] reason: DropReason, frames: u64
    } = "drops_ended" "6a7e961fadc6413085cce637e3e1255a" Info,
        "drops ended: {} {}, {}", direction.name(), reason.name(), counted(frames, "frame");
}

fn of_user(uid: Option<u32>) -> String {
    uid.map_or_else(String::new, |uid| format!(" of uid {uid}"))
}

fn old_port(name: &Option<String>) -> &str {
    name.as_deref().unwrap_or("one that is gone")
}

fn besides(packets: u64) -> String {
    match packets {
        0 => String::new(),
        packets => format!("; {} more not logged", counted(packets, "packet")),
    }
}

fn others(moves: u64) -> String {
    if moves > 1 { format!(", the last of {moves}") } else { String::new() }
}

impl What {
    /// Logs the event; `name` is the port's.
    fn log(&self, name: Option<&str>) {
        let Kind { name: event, message_id } = self.kind();
        match name {
            Some(name) => log::log!(self.level(), message_id, event; "port {name}: {self}"),
            None => log::log!(self.level(), message_id, event; "{self}"),
        }
    }
}

/// Shortens a reason to the length that an event may have.
pub fn reason(why: impl fmt::Display) -> String {
    let text = why.to_string();
    match text.char_indices().nth(EVENT_TEXT_CHARS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

/// An event as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Number of the event in its process, from 1.
    pub sequence: u64,
    /// Microseconds of the wall clock since 1970.
    pub time: u64,
    /// Microseconds of `CLOCK_MONOTONIC`.
    pub monotonic: u64,
    /// The port of the event, if it is about a port.
    pub port: Option<String>,
    /// Number of the port's events that were left out before this event, because there were too
    /// many.
    pub suppressed: u64,
    /// The event, with its fields.
    pub what: What,
}

#[derive(Debug)]
struct Ring {
    /// Events that were reported while the ring was in use.
    queued: Receiver<Event>,
    /// The kept events, the newest last; their numbers have no gap.
    events: VecDeque<Event>,
    last: u64,
}

impl Ring {
    /// Numbers the queued events and keeps them.
    fn settle(&mut self) {
        let Ring { queued, events, last } = self;
        for event in queued.try_iter() {
            if events.len() == EVENTS_KEPT {
                events.pop_front();
            }
            *last += 1;
            events.push_back(Event { sequence: *last, ..event });
        }
    }
}

/// The events of a process.
#[derive(Debug)]
pub struct Events {
    queue: SyncSender<Event>,
    ring: Mutex<Ring>,
    /// Wakes the threads that wait for events.
    wakeup: Arc<Waker>,
}

/// A part of the events, for a client.
#[derive(Debug, PartialEq, Eq)]
pub struct Told {
    /// Number of events asked for that are no longer kept.
    pub lost: u64,
    /// The events, oldest first.
    pub events: Vec<Event>,
}

impl Events {
    /// Makes an empty ring; `wakeup` wakes the thread that waits for events.
    pub fn new(wakeup: &Arc<Waker>) -> Events {
        let (queue, queued) = sync_channel(EVENTS_QUEUED);
        let ring = Mutex::new(Ring { queued, events: VecDeque::new(), last: 0 });
        Events { queue, ring, wakeup: Arc::clone(wakeup) }
    }

    /// Reports an event of the switch as a whole.
    pub fn tell(&self, what: What) {
        self.tell_after(0, what);
    }

    /// Reports an event of the switch as a whole, before which `suppressed` events of its kind were
    /// left out.
    pub fn tell_after(&self, suppressed: u64, what: What) {
        what.log(None);
        // No worker reports such events, so this thread may wait for room in the queue.
        drop(self.ring());
        self.keep(None, suppressed, what);
    }

    /// Keeps an event that the caller logs. False if the event is lost, because events are being
    /// read and the queue is full.
    pub fn keep(&self, port: Option<&str>, suppressed: u64, what: What) -> bool {
        let (time, monotonic) = (clock::wall_nanos() / 1_000, clock::monotonic_micros());
        let port = port.map(str::to_owned);
        let event = Event { sequence: 0, time, monotonic, port, suppressed, what };
        self.settle();
        let kept = self.queue.try_send(event).is_ok();
        self.settle();
        self.wakeup.wake();
        kept
    }

    /// Moves queued events into the ring, unless the ring is in use: its user does so then.
    fn settle(&self) {
        if let Ok(mut ring) = self.ring.try_lock() {
            ring.settle();
        }
    }

    /// Returns the number of the last event.
    pub fn last(&self) -> u64 {
        self.ring().last
    }

    /// Returns up to `most` events after number `after`.
    pub fn after(&self, after: u64, most: usize) -> Told {
        let ring = self.ring();
        let before = ring.last - ring.events.len() as u64;
        let lost = before.saturating_sub(after);
        let from = usize::try_from(after.saturating_sub(before)).unwrap_or(usize::MAX);
        Told { lost, events: ring.events.iter().skip(from).take(most).cloned().collect() }
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        let mut ring = lock(&self.ring);
        ring.settle();
        ring
    }
}

/// Reports events of one port, within bounds.
#[derive(Debug)]
pub struct PortEvents {
    /// Where events are kept; `None` in a test of a port alone.
    events: Option<Arc<Events>>,
    allowed: Bucket,
    suppressed: AtomicU64,
}

impl PortEvents {
    /// Makes the reporter of one port; `events` keeps its events.
    pub(crate) fn new(events: Option<&Arc<Events>>) -> PortEvents {
        PortEvents {
            events: events.cloned(),
            allowed: Bucket::new(PORT_EVENT_BURST, PORT_EVENT_EVERY),
            suppressed: AtomicU64::new(0),
        }
    }

    /// Reports an event that the port's log bounds by itself: logs it if `in_log`, and keeps it
    /// within the port's bounds.
    pub fn tell(&self, name: &str, what: What, in_log: bool) {
        if in_log {
            what.log(Some(name));
        }
        if self.allowed.take() {
            self.keep(name, what);
        } else {
            self.suppressed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Reports an event, within the port's bounds, with its log line; false if there were too many.
    pub fn tell_and_log(&self, name: &str, what: What) -> bool {
        let told = self.allowed.take();
        if told {
            self.tell_surely(name, what);
        } else {
            self.suppressed.fetch_add(1, Ordering::Relaxed);
        }
        told
    }

    /// Reports an event without bounds: the end of something whose beginning was reported.
    pub fn tell_surely(&self, name: &str, what: What) {
        what.log(Some(name));
        self.keep(name, what);
    }

    fn keep(&self, name: &str, what: What) {
        if let Some(events) = &self.events {
            let suppressed = self.suppressed.swap(0, Ordering::Relaxed);
            if !events.keep(Some(name), suppressed, what) {
                self.suppressed.fetch_add(suppressed + 1, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests;
