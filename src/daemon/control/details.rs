//! Collects all details of one port, for people who look for a fault.
//!
//! The session is asked for its facts, and is waited for no longer than
//! [`CONTROL_INSPECT_TIMEOUT`]. The socket's file says who may connect. Another thread reads the
//! file's state, and is waited for no longer than [`CONTROL_LOOK_TIMEOUT`]: the path may lead into
//! another user's directory, and to a file system that never answers. The other details are
//! counters.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use super::parts::Part;
use super::show;
use super::switch::Switch;
use crate::View;
use api::wire::{self, PortDetails, Region, Ring, Session, Socket};
use base::limits::{CONTROL_INSPECT_TIMEOUT, CONTROL_LOOK_TIMEOUT};
use base::stats::{Direction, DropReason, QueueStats};
use datapath::port::{Port, RegionFacts, RingFacts, SessionFacts};
use datapath::vhost_user::features;
use datapath::worker::Token;
use switch::mirror::Mirror;
use sys::blocking::{NotBegun, Task};
use sys::clock;
use sys::waker::Waker;

/// A client's wait for the facts of a session, and for a file system.
#[derive(Debug)]
pub(crate) struct DetailsWait {
    port: Arc<Port>,
    question: Option<u64>,
    end: Instant,
    socket: Option<SocketLook>,
}

impl DetailsWait {
    /// Returns a new wait; asks the session of a port for its facts, if the port has a session.
    pub(crate) fn new(port: &Arc<Port>, waker: &Arc<Waker>) -> DetailsWait {
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
            socket: port.config.socket.as_ref().map(look),
        }
    }

    /// Returns the answer, if the facts are known or the wait is over.
    pub(crate) fn part(&mut self, switch: &Switch) -> Part {
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
        let (shown, view) = (switch.show(&self.port), &switch.view);
        let told = details(&self.port, facts.as_ref(), shown, view);
        let socket = self.socket.as_mut().map(SocketLook::answer);
        let (lists, settings) = switch.other_keys(&self.port.name);
        let table = switch.view.ports.present();
        let name = &self.port.name;
        let of = |is: fn(&Mirror, &str) -> bool| {
            let all = table.mirrors().iter().filter(|mirror| is(mirror, name));
            all.map(|mirror| mirror.name.clone()).collect()
        };
        let watched_by = of(|mirror, name| mirror.from == name);
        let observes = of(|mirror, name| mirror.to == name);
        let told = PortDetails { socket, lists, settings, watched_by, observes, ..told };
        Part::reply(&told, false)
    }
}

/// A look at a socket's file by a separate thread: where front-ends connect, and who may connect.
#[derive(Debug)]
struct SocketLook {
    path: PathBuf,
    task: Option<Task<Socket>>,
    found: Option<Socket>,
    /// True if a thread has begun to look at this path, perhaps for another client.
    is_at_it: bool,
    /// The end of the client's wait.
    end: Instant,
}

impl SocketLook {
    /// Begins to look, or takes the result. Returns the end of the wait, if the result is not
    /// known.
    fn go_on(&mut self, switch: &Switch) -> Option<Instant> {
        if self.task.is_none() {
            let path = self.path.clone();
            let begun = switch.looks.begin(&self.path, &switch.wakeup, move || socket(&path));
            self.is_at_it |= matches!(begun, Ok(_) | Err(NotBegun::Busy));
            self.task = begun.ok();
        }
        let found = self.task.as_ref().and_then(|task| task.result().ok());
        self.found = self.found.take().or(found);
        self.found.is_none().then_some(self.end)
    }

    fn answer(&mut self) -> Socket {
        let silent = || Socket {
            path: self.path.to_string_lossy().into_owned(),
            answers: self.is_at_it.then_some(false),
            looked_at: (!self.is_at_it).then_some(false),
            ..Socket::default()
        };
        self.found.take().unwrap_or_else(silent)
    }
}

/// Returns the state of a socket's file.
fn socket(path: &Path) -> Socket {
    let facts = std::fs::symlink_metadata(path).ok();
    Socket {
        path: path.to_string_lossy().into_owned(),
        mode: facts.as_ref().map(|facts| format!("{:04o}", facts.mode() & 0o7777)),
        uid: facts.as_ref().map(MetadataExt::uid),
        gid: facts.as_ref().map(MetadataExt::gid),
        ..Socket::default()
    }
}

fn details(
    port: &Arc<Port>,
    facts: Option<&SessionFacts>,
    shown: wire::Port,
    View { samples, workers, .. }: &View,
) -> PortDetails {
    let (mut rings, now) = (Vec::new(), clock::coarse_seconds());
    // The rings of a TAP or stream get the indexes that a guest's rings would have.
    port.each_queue(&mut |direction, queue, stats| {
        let index = 2 * queue + usize::from(direction == Direction::In);
        let facts = facts.and_then(|facts| facts.rings.get(index));
        let idle = samples.idle(port, (direction, queue), stats.frames.get(), now).map(u64::from);
        let token = match direction {
            Direction::In => Token::Transmit(port.id, queue as u16),
            Direction::Out => Token::Receive(port.id, queue as u16),
        };
        let worker = workers.rings().worker_of(token);
        rings.push(Ring { index, queue, direction, idle, worker, ..ring(stats, facts) });
    });
    rings.sort_by_key(|ring| ring.index);
    let rules = port.stats.guard.counters();
    PortDetails {
        port: shown,
        socket: None,
        command: port.front_end().and_then(|who| command(who.pid)),
        session: facts.map(session),
        rings,
        learn_static: port.stats.learn_static.get(),
        learn_held: port.stats.learn_held.get(),
        rate_waits: port.stats.rate_waits.get(),
        log_suppressed: port.reports.log.suppressed.get(),
        lists: Vec::new(),
        settings: Vec::new(),
        violations: show::happened(rules.map(|(rule, counter)| (rule, counter.get()))),
        watched_by: Vec::new(),
        observes: Vec::new(),
    }
}

/// Returns a ring's counters, and the session's facts about the ring.
fn ring(stats: &QueueStats, facts: Option<&RingFacts>) -> Ring {
    let drops = DropReason::ALL.iter().map(|reason| (reason.name(), stats.drops.get(*reason)));
    let counters = stats.counters().chain(stats.fallbacks.counters());
    Ring {
        size: facts.map(|facts| facts.size.into()).filter(|size| *size != 0),
        started: facts.map(|facts| facts.started),
        no_memory: facts.map(|facts| facts.no_memory),
        enabled: facts.map(|facts| facts.enabled),
        broken: facts.and_then(|facts| facts.broken),
        polled: facts.map(|facts| facts.polled),
        available: facts.and_then(|facts| facts.available).map(u64::from),
        drops: show::happened(drops),
        ..show::counted(counters)
    }
}

fn session(facts: &SessionFacts) -> Session {
    let region = |region: &RegionFacts| {
        let RegionFacts { gpa, len, backing, page } = *region;
        // An address beyond 63 bits does not fit into varlink's integers.
        Region { address: format!("{gpa:#x}"), bytes: len, backing: backing.to_owned(), page }
    };
    Session {
        features: features::names(facts.features),
        protocol_features: features::protocol_names(facts.protocol),
        memory: facts.regions.iter().map(region).collect(),
    }
}

/// Returns the name of a process, as the process calls itself.
fn command(pid: i32) -> Option<String> {
    if pid <= 0 {
        return None;
    }
    let name = std::fs::read(format!("/proc/{pid}/comm")).ok()?;
    let name = String::from_utf8_lossy(&name);
    Some(name.chars().filter(|c| !c.is_control()).collect())
}
