//! Makes ports of listening sockets that appear in a directory: a port has the name of its socket
//! and exists as long as the socket. The ports serve virtual machines whose front-end listens
//! (libvirt's `mode='server'`).
//!
//! One thread looks at the directory when the kernel reports a change, and makes the ports match
//! the files. The thread holds the daemon for one port at a time, waits for no front-end, and
//! changes a bounded number of ports a second; the next look finds the rest.
//!
//! A user who may make files in the directory can make ports, and nothing else. The thread refuses
//! a name that is taken, or to which a mirror copies frames, and a socket with several names, which
//! may be another user's. The thread follows no link, and the port connects to the very file that
//! the thread looked at. A file stands for its port as long as the file is not replaced and a
//! process listens; a socket that is bound anew is another file.
//!
//! The thread looks again at a file that was refused, left by its listener or deleted by an
//! administrator when the file changes, and at a file that waits for room or for its name every
//! [`PLUG_LOOK`].
//!
//! The number of ports of a user is bounded, and the oldest files come first: files that had ports
//! before the switch was restarted are older than files that waited for room. So a user who makes
//! many sockets takes no port from another user.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use vmm_sys_util::eventfd::EventFd;

use super::degraded::Code;
use super::front_end::Acceptor;
use super::{Daemon, PortError, Removal};
use api::config::{Entry, Origin, is_port_name, place};
use base::limits::{
    MAX_NAME_LEN, MAX_PLUG_FILES, MAX_PLUG_PORTS, MAX_PLUG_PORTS_A_USER, PLUG_BURST, PLUG_EVERY,
    PLUG_FIRST_LOOK, PLUG_GRACE, PLUG_LOOK, PLUG_PAUSE, PLUG_STOP_TIMEOUT, PLUG_TOLD_BURST,
    PLUG_TOLD_EVERY, REMOVE_STEP,
};
use datapath::events::{Events, What, reason};
use datapath::guard::bucket::Bucket;
use datapath::vhost_user::socket::{Connector, Trouble};
use sys::poll::{self, Interest, Wake};
use sys::service::Service;
use sys::threads::lock;
use sys::watched_dir::{Found, Kind, WatchedDir};

impl Daemon {
    /// Returns the directory of ports by plug.
    pub(crate) fn plug_directory(&self) -> Option<&Path> {
        self.started.plug.as_deref()
    }

    /// Adds a port for a socket of the directory, which appears at `place`.
    fn plug(
        &mut self,
        path: &Path,
        place: PathBuf,
        Candidate { name, file, uid }: &Candidate<'_>,
    ) -> Result<Arc<Trouble>, PortError> {
        let owners = || self.desired.plugged().map(|(_, owner)| owner).chain(self.unplugged());
        if owners().count() >= MAX_PLUG_PORTS {
            return Err(PortError::ManyPlugged);
        }
        if owners().filter(|owner| owner == uid).count() >= MAX_PLUG_PORTS_A_USER {
            return Err(PortError::ManyOfUser(*uid));
        }
        let template = self.desired.template().ok_or(PortError::NoSuchPort)?;
        let settings = template.plugged(name, path.join(name));
        let connector = Connector::to_file(&path.join(name), file.identity)?;
        let trouble = connector.trouble();
        let id = self.check_name(name)?;
        if self.desired.is_added(name) {
            return Err(PortError::Exists);
        }
        if let Some(mirror) = self.desired.mirror_to(name) {
            return Err(PortError::Observer((*name).to_owned(), mirror));
        }
        let origin = Origin::Plug(*uid);
        let entry = Entry { settings: settings.clone(), origin, place: Some(place) };
        self.is_clear(&entry)?;
        self.desired.add(entry)?;
        let acceptor = Acceptor::Connector(connector);
        let port = self.put(id, &settings, Some(acceptor));
        let port = port.inspect_err(|_| drop(self.desired.delete(name)))?;
        port.reports.events.tell_surely(&port.name, What::PortPlugged { uid: *uid });
        Ok(trouble)
    }
}

/// Starts the thread that looks at the daemon's plug directory, if there is one. When the service
/// ends, the ports stay until the daemon ends.
pub(crate) fn start_plug(daemon: &Arc<Mutex<Daemon>>) -> io::Result<Option<Service>> {
    let (path, events) = {
        let daemon = lock(daemon);
        let Some(path) = daemon.plug_directory() else { return Ok(None) };
        (path.to_owned(), Arc::clone(daemon.events()))
    };
    let (looked, first_look) = mpsc::sync_channel(1);
    let mut watcher = Watcher {
        daemon: Arc::clone(daemon),
        path: path.clone(),
        events,
        looked,
        directory: None,
        trouble: None,
        known: BTreeMap::new(),
        removals: Vec::new(),
        changes: Bucket::new(PLUG_BURST, PLUG_EVERY),
        behind: false,
        telling: Bucket::new(PLUG_TOLD_BURST, PLUG_TOLD_EVERY),
        suppressed: 0,
    };
    let service = Service::start("plug", PLUG_STOP_TIMEOUT, move |stop| {
        watcher.run(stop);
        Ok(())
    })?;
    if first_look.recv_timeout(PLUG_FIRST_LOOK).is_err() {
        let seconds = PLUG_FIRST_LOOK.as_secs();
        let why = format!("plug {path:?}: the directory was not read within {seconds} s");
        let mut daemon = lock(daemon);
        // The first look may have ended just now.
        if first_look.try_recv().is_err() {
            daemon.note_service(Code::Plug, Some(why));
        }
    }
    Ok(Some(service))
}

/// A socket that may become a port.
struct Candidate<'a> {
    name: &'a str,
    file: &'a Found,
    uid: u32,
}

/// State of a file.
#[derive(Debug)]
enum State {
    /// The file is a port, to whose socket no connection succeeds since the time `since`.
    Port { trouble: Arc<Trouble>, since: Option<Instant> },
    /// The file is no port, for a reason that may pass.
    Waits,
    /// The file is no port until the file changes or is replaced.
    Done,
}

#[derive(Debug)]
struct Known {
    file: Found,
    state: State,
}

struct Watcher {
    daemon: Arc<Mutex<Daemon>>,
    path: PathBuf,
    events: Arc<Events>,
    directory: Option<WatchedDir>,
    /// Gets a message for each look at the directory, while a thread waits for the first look.
    looked: SyncSender<()>,
    /// The reported reason why the directory could not be read.
    trouble: Option<String>,
    known: BTreeMap<OsString, Known>,
    removals: Vec<Removal>,
    /// Limits how many ports come and go.
    changes: Bucket,
    /// True if a change waits for the bucket.
    behind: bool,
    telling: Bucket,
    suppressed: u64,
}

impl Watcher {
    fn daemon(&self) -> MutexGuard<'_, Daemon> {
        lock(&self.daemon)
    }

    fn run(&mut self, stop: &EventFd) {
        loop {
            let now = Instant::now();
            let next = self.round(now).map(|pause| now + pause);
            let woken = poll::pause(stop, now + PLUG_PAUSE).and_then(|woken| match woken {
                Wake::Stop => Ok(Wake::Stop),
                _ => self.wait(stop, next),
            });
            match woken {
                Ok(Wake::Stop) => return,
                Ok(_) => {}
                // The wait fails if no memory is left: the thread pauses nevertheless.
                Err(_) => std::thread::sleep(PLUG_LOOK),
            }
        }
    }

    fn wait(&self, stop: &EventFd, next: Option<Instant>) -> io::Result<Wake> {
        match self.directory.as_ref().and_then(WatchedDir::events) {
            Some(events) => poll::wait(events, Interest::Read, stop, next),
            None => poll::pause(stop, next.unwrap_or_else(|| Instant::now() + PLUG_LOOK)),
        }
    }

    /// Brings the ports in line with the files. Returns how soon the next look has to be; none if
    /// the kernel reports everything that the thread waits for.
    fn round(&mut self, now: Instant) -> Option<Duration> {
        self.behind = false;
        let found = self.look_and_tell();
        if let Some(found) = found {
            self.compare(&found, now);
            self.add_all(&found);
        }
        self.go_on();
        let waits = self.directory.is_none()
            || self.known.values().any(|known| !matches!(known.state, State::Done));
        match () {
            () if self.behind || !self.removals.is_empty() => Some(PLUG_PAUSE),
            () if waits => Some(PLUG_LOOK),
            () => None,
        }
    }

    /// Returns the files of the directory, as far as they can be read; reports the trouble
    /// otherwise.
    fn look_and_tell(&mut self) -> Option<BTreeMap<OsString, Found>> {
        let before = self.trouble.take();
        let found = match self.look() {
            Ok(found) => Some(found),
            Err(error) => {
                self.trouble = Some(self.named(&error));
                self.directory = None;
                // Without a directory there are no files.
                (error.kind() == io::ErrorKind::NotFound).then(BTreeMap::new)
            }
        };
        let mut daemon = self.daemon();
        daemon.note_service(Code::Plug, self.trouble.clone());
        // The message is sent under the lock: the thread that waits for the first look then reports
        // the trouble that the daemon has at that time.
        let is_first = self.looked.try_send(()).is_ok();
        drop(daemon);
        // Each trouble is reported once until another trouble comes.
        let new = self.trouble.clone().filter(|why| !is_first && before.as_ref() != Some(why));
        new.into_iter().for_each(|why| self.events.tell(What::Degraded { why }));
        found
    }

    /// Returns the files of the directory; the files of ports are always among them.
    fn look(&mut self) -> io::Result<BTreeMap<OsString, Found>> {
        let there = match &self.directory {
            Some(directory) if directory.take_events() => directory.look()?,
            _ => None,
        };
        let directory = match there {
            Some(directory) => directory,
            None => {
                let directory = self.directory.insert(WatchedDir::open(&self.path)?);
                directory.look()?.ok_or(io::ErrorKind::NotFound)?
            }
        };
        let (names, more) = directory.names(MAX_PLUG_FILES)?;
        let files = names.iter().filter_map(|name| Some((&name.name, directory.file_of(name)?)));
        let mut found: BTreeMap<OsString, Found> =
            files.map(|(name, file)| (name.clone(), file)).collect();
        let is_port = |known: &Known| matches!(known.state, State::Port { .. });
        for (name, known) in self.known.iter().filter(|(_, known)| is_port(known)) {
            match found.get(name).copied().or_else(|| directory.file(name)) {
                // The file cannot be examined and counts as unchanged: the thread that connects to
                // the file finds out more.
                Some(Found { kind: Kind::Unseen(_), .. }) => found.insert(name.clone(), known.file),
                Some(file) => found.insert(name.clone(), file),
                None => None,
            };
        }
        if more {
            let text = format!(
                "more than {MAX_PLUG_FILES} files: the switch does not examine all \
                of them"
            );
            self.trouble = Some(self.named(&text));
        }
        Ok(found)
    }

    /// Returns why the directory cannot be read.
    fn named(&self, why: &dyn fmt::Display) -> String {
        reason(format!("plug {:?}: {why}", self.path))
    }

    /// Removes ports whose files or listeners are gone; forgets files without a port that changed.
    fn compare(&mut self, found: &BTreeMap<OsString, Found>, now: Instant) {
        let plugged: BTreeSet<String> =
            self.daemon().desired().plugged().map(|(name, _)| name.to_owned()).collect();
        let mut ports = BTreeSet::new();
        for (name, mut known) in std::mem::take(&mut self.known) {
            let file = found.get(&name);
            let same = file.is_some_and(|file| file.identity == known.file.identity);
            let text = name.to_string_lossy().into_owned();
            match &mut known.state {
                State::Port { trouble, since } if plugged.contains(&text) => {
                    let failed = trouble.last();
                    *since = failed.as_ref().map(|_| since.unwrap_or(now));
                    let left = since.is_some_and(|since| now - since >= PLUG_GRACE);
                    ports.insert(text.clone());
                    if same && !left || !self.remove(&text) {
                        self.known.insert(name, known);
                    } else if same && let Some(error) = failed {
                        self.tell(&name, &known.file, &unreachable(&error));
                        known =
                            Known { file: file.copied().unwrap_or(known.file), state: State::Done };
                        self.known.insert(name, known);
                    }
                }
                // A client deleted the port, or a configuration has its name.
                State::Port { .. } if same => {
                    let taken = self.daemon().desired().get(&text).is_some();
                    known.state = if taken { State::Waits } else { State::Done };
                    known.file = file.copied().unwrap_or(known.file);
                    self.known.insert(name, known);
                }
                State::Waits | State::Done if file == Some(&known.file) => {
                    self.known.insert(name, known);
                }
                _ => {}
            }
        }
        // A panic left these ports without a known file.
        for name in plugged.difference(&ports) {
            self.remove(name);
        }
    }

    /// Begins to remove a port; false if the removal has to wait.
    fn remove(&mut self, name: &str) -> bool {
        if !self.changes.take() {
            self.behind = true;
            return false;
        }
        let removal = {
            let mut daemon = self.daemon();
            // A configuration may have the port's name by now.
            let is_ours = daemon.desired().origin(name).plugged_by().is_some();
            is_ours.then(|| daemon.begin_removal(name))
        };
        self.removals.extend(removal.and_then(Result::ok));
        true
    }

    /// Waits some milliseconds for ports that are being removed. A removal that a front-end holds
    /// up longer goes on in the thread `retry`.
    fn go_on(&mut self) {
        for _ in 0..8 {
            let mut removals = std::mem::take(&mut self.removals);
            removals.retain_mut(|removal| self.daemon().go_on(removal).is_ok_and(|gone| !gone));
            self.removals = removals;
            if self.removals.is_empty() {
                return;
            }
            std::thread::sleep(REMOVE_STEP);
        }
    }

    /// Makes ports of the files that are no ports yet, the oldest file first.
    fn add_all(&mut self, found: &BTreeMap<OsString, Found>) {
        let (mut full, mut crowded) = (false, BTreeSet::new());
        let mut oldest: Vec<(&OsString, &Found)> = found.iter().collect();
        oldest.sort_by_key(|(_, file)| file.changed);
        for (name, file) in oldest {
            let said = match self.known.get(name) {
                Some(Known { state: State::Waits, .. }) => true,
                Some(_) => continue,
                None => false,
            };
            let Some(candidate) = candidate(name, file, said, self) else { continue };
            if self.daemon().is_being_removed(candidate.name) {
                self.behind = true;
                continue;
            }
            let room = !full && !crowded.contains(&candidate.uid);
            if room && !self.changes.take() {
                self.behind = true;
                return;
            }
            let added = match room {
                true => {
                    // The place is found without the daemon's lock: the directory may be another
                    // user's.
                    let place = place(&self.path.join(candidate.name));
                    self.daemon().plug(&self.path, place, &candidate)
                }
                false if full => Err(PortError::ManyPlugged),
                false => Err(PortError::ManyOfUser(candidate.uid)),
            };
            let state = match added {
                Ok(trouble) => State::Port { trouble, since: None },
                Err(error) => {
                    full |= matches!(error, PortError::ManyPlugged | PortError::Full(_));
                    if matches!(error, PortError::ManyOfUser(_)) {
                        crowded.insert(candidate.uid);
                    }
                    if !said {
                        self.tell(name, file, &error);
                    }
                    State::Waits
                }
            };
            self.known.insert(name.clone(), Known { file: *file, state });
        }
    }

    /// Reports a file that is no port, within bounds.
    fn tell(&mut self, name: &OsStr, file: &Found, why: &dyn fmt::Display) {
        if !self.telling.take() {
            self.suppressed += 1;
            return;
        }
        let suppressed = std::mem::take(&mut self.suppressed);
        let uid = match file.kind {
            Kind::Socket(uid) | Kind::LinkedSocket(uid) => Some(uid),
            Kind::Other | Kind::Unseen(_) => None,
        };
        let (file, why) = (reason(format!("{name:?}")), reason(why));
        self.events.tell_after(suppressed, What::PlugRefused { file, uid, why });
    }
}

/// Returns the port that a file may become.
fn candidate<'a>(
    name: &'a OsStr,
    file: &'a Found,
    said: bool,
    watcher: &mut Watcher,
) -> Option<Candidate<'a>> {
    let text = name.to_str().filter(|text| is_port_name(text));
    let (why, state) = match (text, file.kind) {
        (Some(name), Kind::Socket(uid)) => return Some(Candidate { name, file, uid }),
        (Some(_), Kind::Other) => ("the file is no socket".to_owned(), State::Done),
        (Some(_), Kind::LinkedSocket(_)) => {
            let why = "the socket has a second name (hard link), and may belong to another user";
            (why.to_owned(), State::Waits)
        }
        (Some(_), Kind::Unseen(error)) => {
            let error = io::Error::from_raw_os_error(error);
            (format!("the file cannot be examined: {error}"), State::Waits)
        }
        (None, _) => {
            let why = format!(
                "a port's name is 1 to {MAX_NAME_LEN} letters, digits, '.', '_' and '-', the first \
                 a letter or digit"
            );
            (why, State::Done)
        }
    };
    if !said {
        watcher.tell(name, file, &why);
    }
    watcher.known.insert(name.to_owned(), Known { file: *file, state });
    None
}

/// Returns the reason for a socket at which no process was met for some time.
fn unreachable(error: &io::Error) -> String {
    let advice = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "the switch needs write permission, by the directory's group"
        }
        _ => "the file stays; a socket made anew becomes a new port",
    };
    let seconds = PLUG_GRACE.as_secs();
    format!("the socket has refused connections for {seconds} s ({error}): {advice}")
}
