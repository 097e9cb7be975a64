//! All that is known of one port, for people who look for a fault.
//!
//! What the session knows it is asked for, and not waited for longer than
//! [`CONTROL_INSPECT_TIMEOUT`]; the rest are counters.

use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Map, Value, json};

use super::activity::Activity;
use super::parts::Part;
use super::{show, virtio};
use crate::limits::CONTROL_INSPECT_TIMEOUT;
use crate::port::{Endpoint, Port, RegionFacts, RingFacts, SessionFacts};
use crate::stats::{Fallbacks, QueueStats};
use crate::sys::waker::Waker;

/// A client waits for what a session says.
#[derive(Debug)]
pub struct DetailsWait {
    port: Arc<Port>,
    question: Option<u64>,
    end: Instant,
}

impl DetailsWait {
    /// Asks the session of a port, if there is one.
    pub fn new(port: &Arc<Port>, waker: &Arc<Waker>) -> DetailsWait {
        let question = port.as_guest().and_then(|guest| guest.inspect(waker));
        DetailsWait {
            port: Arc::clone(port),
            question,
            end: Instant::now() + CONTROL_INSPECT_TIMEOUT,
        }
    }

    /// The answer, if it is time for one.
    pub fn part(&self, activity: &mut Activity, show: impl Fn(&Port) -> Value) -> Part {
        let guest = self.port.as_guest();
        let facts =
            guest.zip(self.question).and_then(|(guest, question)| guest.inspected(question));
        let waits = self.question.is_some() && guest.is_some_and(|guest| guest.is_attached());
        if waits && facts.is_none() && Instant::now() < self.end {
            return Part::Later(Some(self.end));
        }
        activity.look(&self.port, Instant::now());
        let details = details(&self.port, facts.as_ref(), show(&self.port), activity);
        Part::Reply(details, false)
    }
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
    if let Some(socket) = socket(port) {
        told["socket"] = socket;
    }
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

/// Where front-ends come, and who may.
fn socket(port: &Port) -> Option<Value> {
    let path = port.socket.as_ref()?;
    let mut told = json!({"path": path.to_string_lossy()});
    if let Ok(facts) = std::fs::symlink_metadata(path) {
        told["mode"] = format!("{:04o}", facts.mode() & 0o7777).into();
        told["uid"] = facts.uid().into();
        told["gid"] = facts.gid().into();
    }
    Some(told)
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
