//! All that is known of one port, for people who look for a fault.
//!
//! What the session knows it is asked for, and not waited for longer than
//! [`CONTROL_INSPECT_TIMEOUT`]. Who may connect is asked of the socket's file, by another thread
//! and for [`CONTROL_LOOK_TIMEOUT`] at most: the path may lead into a directory of another user's,
//! and to a file system that never answers. The rest are counters.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Map, Value, json};

use super::activity::Activity;
use super::methods::Switch;
use super::parts::Part;
use super::{show, virtio};
use crate::limits::{CONTROL_INSPECT_TIMEOUT, CONTROL_LOOK_TIMEOUT};
use crate::port::{Endpoint, Port, RegionFacts, RingFacts, SessionFacts};
use crate::stats::{Fallbacks, QueueStats};
use crate::sys::blocking::{NotBegun, Task};
use crate::sys::waker::Waker;

/// A client waits for what a session says, and a file system.
#[derive(Debug)]
pub struct DetailsWait {
    port: Arc<Port>,
    question: Option<u64>,
    end: Instant,
    socket: Option<SocketLook>,
}

impl DetailsWait {
    /// Asks the session of a port, if there is one.
    pub fn new(port: &Arc<Port>, waker: &Arc<Waker>) -> DetailsWait {
        let question = port.as_guest().and_then(|guest| guest.inspect(waker));
        let now = Instant::now();
        let look = |path: &PathBuf| SocketLook {
            path: path.clone(),
            task: None,
            found: None,
            is_at_it: false,
            end: now + CONTROL_LOOK_TIMEOUT,
        };
        DetailsWait {
            port: Arc::clone(port),
            question,
            end: now + CONTROL_INSPECT_TIMEOUT,
            socket: port.socket.as_ref().map(look),
        }
    }

    /// The answer, if it is time for one.
    pub fn part(&mut self, switch: &Switch) -> Part {
        let now = Instant::now();
        let guest = self.port.as_guest();
        let facts =
            guest.zip(self.question).and_then(|(guest, question)| guest.inspected(question));
        let waits = self.question.is_some() && guest.is_some_and(|guest| guest.is_attached());
        let until = (waits && facts.is_none()).then_some(self.end);
        let until =
            until.into_iter().chain(self.socket.as_mut().and_then(|look| look.go_on(switch)));
        if let Some(until) = until.filter(|until| now < *until).min() {
            return Part::Later(Some(until));
        }
        let mut activity = switch.activity();
        activity.look(&self.port, now);
        let mut told = details(&self.port, facts.as_ref(), switch.show(&self.port), &activity);
        if let Some(look) = &mut self.socket {
            told["socket"] = look.answer();
        }
        Part::Reply(told, false)
    }
}

/// Where front-ends come, and who may: asked of the file by a thread of its own.
#[derive(Debug)]
struct SocketLook {
    path: PathBuf,
    task: Option<Task<Value>>,
    found: Option<Value>,
    /// A thread has begun to look at this path, be it for another client.
    is_at_it: bool,
    /// When it is waited for no longer.
    end: Instant,
}

impl SocketLook {
    /// Begins to look, or sees what came of it. When it is waited for no longer, if it still is.
    fn go_on(&mut self, switch: &Switch) -> Option<Instant> {
        if self.task.is_none() {
            let path = self.path.clone();
            let begun = switch.looks.begin(&self.path, &switch.news, move || socket(&path));
            self.is_at_it |= matches!(begun, Ok(_) | Err(NotBegun::Busy));
            self.task = begun.ok();
        }
        let found = self.task.as_ref().and_then(|task| task.result().ok());
        self.found = self.found.take().or(found);
        self.found.is_none().then_some(self.end)
    }

    fn answer(&mut self) -> Value {
        let unknown = if self.is_at_it { "answers" } else { "looked_at" };
        let silent = || json!({"path": self.path.to_string_lossy(), unknown: false});
        self.found.take().unwrap_or_else(silent)
    }
}

/// A socket's file as it is now.
fn socket(path: &Path) -> Value {
    let mut told = json!({"path": path.to_string_lossy()});
    if let Ok(facts) = std::fs::symlink_metadata(path) {
        told["mode"] = format!("{:04o}", facts.mode() & 0o7777).into();
        told["uid"] = facts.uid().into();
        told["gid"] = facts.gid().into();
    }
    told
}

fn details(
    port: &Arc<Port>,
    facts: Option<&SessionFacts>,
    shown: Value,
    activity: &Activity,
) -> Value {
    let rings =
        queues(port).into_iter().enumerate().map(|(at, (index, queue, direction, stats))| {
            let facts = facts.and_then(|facts| facts.rings.get(index));
            let mut ring = counters(stats);
            ring.insert("index".to_owned(), index.into());
            ring.insert("queue".to_owned(), queue.into());
            ring.insert("direction".to_owned(), direction.into());
            if let Some(idle) = activity.idle(port, at) {
                ring.insert("idle".to_owned(), idle.into());
            }
            facts.into_iter().for_each(|facts| ring.extend(state(facts)));
            Value::Object(ring)
        });
    let mut told = json!({
        "port": shown,
        "rings": rings.collect::<Vec<Value>>(),
        "learn_static": port.stats.learn_static.get(),
        "log_suppressed": port.log.suppressed.get(),
    });
    if let Some(command) = port.front_end().and_then(|who| command(who.pid)) {
        told["command"] = command.into();
    }
    if let Some(facts) = facts {
        told["session"] = session(facts);
    }
    told
}

/// The queues of a port with the index of their ring, their number and direction, in the order of
/// the rings; those of a TAP or stream have the indices that a guest's would.
pub fn queues(port: &Port) -> Vec<(usize, usize, &'static str, &QueueStats)> {
    let pairs: Vec<(&QueueStats, &QueueStats)> = match &port.endpoint {
        Endpoint::Guest(guest) => {
            guest.rx.iter().zip(&guest.tx).map(|(rx, tx)| (&rx.stats, &tx.stats)).collect()
        }
        Endpoint::Device(device) => {
            device.queues().iter().map(|queue| (&queue.output, &queue.input)).collect()
        }
    };
    let pairs = pairs.into_iter().enumerate();
    pairs.flat_map(|(n, (rx, tx))| [(2 * n, n, "out", rx), (2 * n + 1, n, "in", tx)]).collect()
}

fn counters(stats: &QueueStats) -> Map<String, Value> {
    let QueueStats { frames, bytes, drops, kicks, signals, signals_suppressed, .. } = stats;
    let Fallbacks { checksummed, segmented, segments, segments_lost } = &stats.fallbacks;
    let numbers = [
        ("frames", frames),
        ("bytes", bytes),
        ("kicks", kicks),
        ("signals", signals),
        ("signals_suppressed", signals_suppressed),
        ("waits", &stats.waits),
        ("bad_buffers", &stats.bad_buffers),
        ("checksummed", checksummed),
        ("segmented", segmented),
        ("segments", segments),
        ("segments_lost", segments_lost),
    ];
    let mut told: Map<String, Value> =
        numbers.map(|(name, number)| (name.to_owned(), number.get().into())).into_iter().collect();
    told.insert("drops".to_owned(), show::drops(drops));
    told
}

fn state(facts: &RingFacts) -> Map<String, Value> {
    let RingFacts { size, started, standing, enabled, broken, polled, available } = *facts;
    let mut told = Map::new();
    for (name, truth) in
        [("started", started), ("standing", standing), ("enabled", enabled), ("polled", polled)]
    {
        told.insert(name.to_owned(), truth.into());
    }
    if size != 0 {
        told.insert("size".to_owned(), size.into());
    }
    if let Some(broken) = broken {
        told.insert("broken".to_owned(), broken.into());
    }
    if let Some(available) = available {
        told.insert("available".to_owned(), available.into());
    }
    told
}

fn session(facts: &SessionFacts) -> Value {
    let region = |region: &RegionFacts| {
        let RegionFacts { gpa, len, backing, page } = *region;
        // Beyond 63 bits there is no integer of varlink's.
        json!({"address": format!("{gpa:#x}"), "bytes": len, "backing": backing, "page": page})
    };
    json!({
        "features": virtio::features(facts.features),
        "protocol_features": virtio::protocol_features(facts.protocol),
        "memory": facts.regions.iter().map(region).collect::<Vec<Value>>(),
    })
}

/// The name of a process, as it calls itself.
fn command(pid: i32) -> Option<String> {
    if pid <= 0 {
        return None;
    }
    let name = std::fs::read(format!("/proc/{pid}/comm")).ok()?;
    let name = String::from_utf8_lossy(&name);
    Some(name.chars().filter(|c| !c.is_control()).collect())
}
