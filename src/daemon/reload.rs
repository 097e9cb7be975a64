//! Reads the configuration again while the switch runs, and carries out the differences.
//!
//! A configuration with an error changes nothing. A check looks for everything that can be known
//! before a change: values that only one port may have, and the places of new sockets. Then the
//! configuration becomes the wanted state under one lock ([`super::reconcile`]). A separate thread
//! opens the new sockets without the lock, and clients may change the switch meanwhile. If a step
//! fails, the reload goes back: the ports that were wanted before are wanted again.
//!
//! A reload with a time to confirm also goes back when the time is over, and in the next process,
//! if this process ends before. The state directory notes the unconfirmed reload before any change.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::desired::Desired;
use super::diff::{Step, diff, summary};
use super::opening::{Opens, Places};
use super::reconcile::{Reconciled, ReloadStep};
use super::state_store::NotSaved;
use super::{Daemon, PortError, Removal};
use api::config::{Config, Entry, Request, Texts};
use base::limits::{RELOAD_REMOVE_TIMEOUT, REMOVE_STEP};
use datapath::events::{What, reason};
use sys::threads::lock;

/// Reads the configuration again on request.
pub struct Reloader {
    daemon: Arc<Mutex<Daemon>>,
    request: Box<Request>,
    /// State of reloads.
    state: Mutex<State>,
    /// Notified when the state changes.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// True while a reload's thread works or waits for the confirmation.
    busy: bool,
    /// Result of the last reload.
    done: Option<Result<Vec<Step>, Vec<String>>>,
    /// True if the reload is to be confirmed: a reload without confirmation may not take its place.
    confirms: bool,
    /// The reload that waits to be confirmed.
    waits: Option<Waiting>,
    /// True if another reload is wanted when the present reload is over.
    again: bool,
}

/// Asks for a reload that is undone unless it is confirmed in time.
#[derive(Debug, Clone, Copy)]
pub struct Confirm {
    /// The time within which the reload is to be confirmed.
    pub(crate) time: Duration,
    /// The process that asked for the reload; 0 outside our PID namespace.
    pub(crate) pid: i32,
    /// The user of the process that asked for the reload.
    pub(crate) uid: u32,
}

/// A reload that waits to be confirmed.
#[derive(Clone)]
struct Waiting {
    texts: Texts,
    confirm: Confirm,
    end: Instant,
}

/// The reason why a reload cannot begin or be confirmed.
#[derive(Debug, thiserror::Error)]
pub enum Busy {
    /// A reload is under way: only one reload runs at a time.
    #[error("a reload is under way, or waits for config confirm")]
    Busy,
    /// The daemon has no configuration file.
    #[error("vioswitchd was started without --config, so there is no file to reload")]
    NoFile,
    /// No reload waits to be confirmed.
    #[error("no reload waits to be confirmed")]
    Nothing,
    /// No thread can be started.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
    /// The reload stays in force, and the next process will not know of the confirmation.
    #[error("confirmed, but the change {0}")]
    NotSaved(NotSaved),
}

/// A reload that was carried out.
struct Applied {
    steps: Vec<Step>,
    texts: Texts,
    /// Entries that were wanted before the reload.
    before: Desired,
}

impl Reloader {
    /// Returns a reloader for a daemon that was started with `request`.
    pub fn new(daemon: &Arc<Mutex<Daemon>>, request: Box<Request>) -> Reloader {
        let daemon = Arc::clone(daemon);
        Reloader { daemon, request, state: Mutex::default(), changed: Condvar::new() }
    }

    fn daemon(&self) -> MutexGuard<'_, Daemon> {
        lock(&self.daemon)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Returns the texts of the files as they are now, their configuration and its changes.
    fn read(&self) -> Result<(Texts, Config, Vec<Step>), Vec<String>> {
        let texts = self.request.texts();
        let places = self.places();
        let at = |path: &Path| places.of(path);
        let read = texts.and_then(|texts| Ok((self.request.lay_over_at(&texts, &at)?, texts)));
        let silent = places.silent.take();
        let read = read.map_err(|error| error.lines);
        let (config, texts) = silent.map_or(read, |error| Err(vec![error.to_string()]))?;
        let daemon = self.daemon();
        let (steps, _) = diff(&daemon.desired, &daemon.started, &config);
        Ok((texts, config, steps))
    }

    /// Returns an error if there is no file to read.
    pub(crate) fn check_file(&self) -> Result<(), Busy> {
        self.file().map(drop).ok_or(Busy::NoFile)
    }

    /// Returns the file that the switch was started with, if any; the files of conf.d are beside
    /// it.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.request.file()
    }

    /// Returns the steps of a reload, or why a reload would do nothing.
    pub(crate) fn diff(&self) -> Result<Vec<Step>, Vec<String>> {
        self.read().map(|(_, _, steps)| steps)
    }

    /// Begins a reload. [`Reloader::outcome`] returns the result.
    pub(crate) fn begin(self: &Arc<Self>, confirm: Option<Confirm>) -> Result<(), Busy> {
        self.check_file()?;
        let mut state = self.state();
        if state.busy {
            return Err(Busy::Busy);
        }
        (state.busy, state.done, state.confirms) = (true, None, confirm.is_some());
        drop(state);
        let this = Arc::clone(self);
        let thread = std::thread::Builder::new().name("reload".to_owned());
        let started = thread.spawn(move || {
            if catch_unwind(AssertUnwindSafe(|| this.work(confirm))).is_err() {
                let why = "the reload panicked half way; see the log".to_owned();
                this.daemon().missing.coming.clear();
                let mut state = this.state();
                (state.busy, state.done, state.waits) = (false, Some(Err(vec![why])), None);
            }
            // A reload that began meanwhile has read files that are as new, so `Busy` is no
            // failure.
            if std::mem::take(&mut this.state().again)
                && let Err(Busy::Thread(error)) = this.begin(None)
            {
                log::error!("reload: cannot start a thread: {error}");
            }
        });
        started.map(drop).map_err(|error| {
            self.state().busy = false;
            Busy::Thread(error)
        })
    }

    /// Begins a reload for a caller who waits for no answer. If a reload is under way, another
    /// reload follows: the present reload may have read the files before they were changed. A
    /// reload that is to be confirmed is not followed by a reload without confirmation.
    pub(crate) fn begin_or_repeat(self: &Arc<Self>) -> Result<(), Busy> {
        let mut state = self.state();
        if state.busy && !state.confirms {
            state.again = true;
            return Ok(());
        }
        drop(state);
        self.begin(None)
    }

    /// Returns the result of the reload, once the reload has ended.
    pub(crate) fn outcome(&self) -> Option<Result<Vec<Step>, Vec<String>>> {
        self.state().done.clone()
    }

    /// Keeps the configuration that was reloaded. The caller may end the process after the answer.
    pub(crate) fn confirm(&self) -> Result<(), Busy> {
        let mut state = self.state();
        let waiting = state.waits.take().ok_or(Busy::Nothing)?;
        let kept = self.daemon().confirm(&waiting.texts);
        self.changed.notify_all();
        kept.map_err(Busy::NotSaved)
    }

    /// Returns the request for the reload that waits to be confirmed, and the time that is left.
    pub(crate) fn unconfirmed(&self) -> Option<(Confirm, Duration)> {
        let state = self.state();
        let Waiting { confirm, end, .. } = state.waits.as_ref()?;
        Some((*confirm, end.saturating_duration_since(Instant::now())))
    }

    fn work(&self, confirm: Option<Confirm>) {
        let applied = self.apply_files(confirm.is_some());
        let (events, wakeup) = {
            let daemon = self.daemon();
            (Arc::clone(daemon.events()), daemon.view().wakeup)
        };
        match &applied {
            Ok(Applied { steps, .. }) => {
                events.tell(What::Reloaded { summary: summary(steps) });
            }
            Err(errors) => {
                // The event logs its reason, which is the whole first error unless the first error
                // is long.
                let why = errors.first().cloned().unwrap_or_default();
                let told = reason(&why);
                let rest = errors.iter().skip(usize::from(told == why));
                rest.for_each(|error| log::error!("reload: {error}"));
                events.tell(What::ReloadFailed { why: told });
            }
        }
        let (done, applied) = match applied {
            Ok(Applied { steps, texts, before }) => (Ok(steps), Some((texts, before))),
            Err(errors) => (Err(errors), None),
        };
        if let (Some((texts, _)), None) = (&applied, confirm) {
            self.daemon().keep_files(texts);
        }
        let waiting = confirm.zip(applied);
        // The state changes at once: after the answer the caller may request the next reload.
        {
            let mut state = self.state();
            state.waits = waiting.as_ref().map(|(confirm, (texts, _))| Waiting {
                texts: texts.clone(),
                confirm: *confirm,
                end: Instant::now() + confirm.time,
            });
            (state.busy, state.done) = (waiting.is_some(), Some(done));
        }
        wakeup.wake();
        let Some((Confirm { time, .. }, (_, before))) = waiting else { return };
        if !self.is_confirmed() {
            let errors = self.go_back(&before);
            self.daemon().store.not_confirmed();
            let seconds = time.as_secs();
            let why = format!("not confirmed in {seconds} s: the earlier configuration runs again");
            errors.iter().for_each(|error| log::error!("reload: {error}"));
            events.tell(What::ReloadFailed { why });
        }
        self.state().busy = false;
    }

    /// Waits for the confirmation; true if the reload was confirmed in time.
    fn is_confirmed(&self) -> bool {
        let mut state = self.state();
        while let Some(Waiting { end, .. }) = &state.waits {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                state.waits = None;
                return false;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    fn apply_files(&self, to_confirm: bool) -> Result<Applied, Vec<String>> {
        let (texts, config, steps) = self.read()?;
        let misplaced = self.opens().misplaced(&steps);
        // The comparison includes the changes that clients have made since `read`.
        let (steps, before, reconciled) = {
            let mut daemon = self.daemon();
            let (steps, desired) = diff(&daemon.desired, &daemon.started, &config);
            let mut wrong = desired.refusals(&daemon.desired);
            wrong.extend(daemon.filters.faults(&daemon.desired, &desired));
            wrong.extend(misplaced);
            wrong.extend(without_worker(&config, daemon.context.workers.handles().len()));
            if !wrong.is_empty() {
                return Err(wrong);
            }
            let before = daemon.desired.clone();
            if to_confirm {
                let kept = daemon.store.keep_unconfirmed(&texts);
                kept.map_err(|error| {
                    vec![format!(
                        "the reload that waits for config confirm \
                    {error}"
                    )]
                })?;
            }
            let reconciled = daemon.want(desired);
            (steps, before, reconciled)
        };
        let mut errors = reconciled.errors();
        if errors.is_empty() {
            errors = self.settle(reconciled, false);
        }
        if !errors.is_empty() {
            errors.extend(self.go_back(&before));
            return Err(errors);
        }
        Ok(Applied { steps, texts, before })
    }

    /// Goes back to the ports that were wanted before; returns the errors.
    fn go_back(&self, before: &Desired) -> Vec<String> {
        let reconciled = {
            let mut daemon = self.daemon();
            let back = daemon.desired.back_to(before);
            daemon.want(back)
        };
        let mut errors = reconciled.errors();
        let left_out = self.settle(reconciled, true);
        let text = "the switch leaves the port out and tries again";
        errors.extend(left_out.iter().map(|why| format!("{why}; {text}")));
        self.daemon().store.stay();
        errors.iter().map(|why| format!("going back: {why}")).collect()
    }

    /// Waits for the ports that were stopped, and makes the new ports; returns the errors. The
    /// first error ends the work, unless `anyway` is true: ports that fail are then made without
    /// their sockets. After [`RELOAD_REMOVE_TIMEOUT`] the thread `retry` goes on with entries that
    /// wait for a port to be gone.
    fn settle(&self, Reconciled { stopped, .. }: Reconciled, anyway: bool) -> Vec<String> {
        let removal = |running| Removal::of(Some(running), RELOAD_REMOVE_TIMEOUT);
        let mut stopped: Vec<Removal> = stopped.into_iter().map(removal).collect();
        let end = Instant::now() + RELOAD_REMOVE_TIMEOUT;
        let mut errors = Vec::new();
        while errors.is_empty() || anyway {
            // A removal that takes longer is an error of `go_on`, and the thread `retry` goes on
            // with it.
            stopped.retain_mut(|removal| self.daemon().go_on(removal).is_ok_and(|gone| !gone));
            let next = self.daemon().next_to_create();
            match next {
                ReloadStep::Create(entries) => {
                    let failed = entries
                        .iter()
                        .filter_map(|entry| Some(named(entry, &self.create(entry, anyway).err()?)));
                    errors.extend(failed.take(if anyway { entries.len() } else { 1 }));
                }
                ReloadStep::Done if stopped.is_empty() => break,
                ReloadStep::Wait if Instant::now() >= end => break,
                ReloadStep::Wait | ReloadStep::Done => std::thread::sleep(REMOVE_STEP),
            }
        }
        if errors.is_empty() || anyway {
            self.daemon().missing.coming.clear();
        }
        errors
    }

    /// Makes a port, whose socket is opened without the daemon's lock.
    fn create(&self, entry: &Entry, anyway: bool) -> Result<(), PortError> {
        // A socket that the port does not take is dropped after the daemon's lock is released.
        let (mut socket, failed) = match self.opens().open(entry) {
            Ok(socket) => (socket, None),
            Err(error) => (None, Some(error)),
        };
        let opened = failed.map_or(Ok(&mut socket), Err);
        let created = self.daemon().create_next(entry, opened, anyway);
        created.map_err(PortError::with_holder)
    }

    fn opens(&self) -> Opens {
        self.daemon().opens()
    }

    /// Returns the places of sockets; the places of present ports are known.
    fn places(&self) -> Places {
        let daemon = self.daemon();
        let all = daemon.desired().entries().values().chain(daemon.desired().all_configured());
        let known = all
            .filter_map(|Entry { settings, place, .. }| settings.socket.clone().zip(place.clone()));
        Places {
            opens: daemon.opens(),
            known: RefCell::new(known.collect()),
            silent: Cell::new(None),
        }
    }
}

/// Returns the errors about entries that ask for a worker that the switch does not have.
fn without_worker(config: &Config, workers: usize) -> impl Iterator<Item = String> {
    let all = config.ports.iter().map(|entry| &entry.settings).chain([&config.template]);
    all.filter_map(move |settings| {
        let wrong = settings.check_worker(workers).err()?;
        let of = format!("{} {}", settings.kind, settings.name);
        Some(format!("{}: {wrong}", of.trim_end()))
    })
}

fn named(entry: &Entry, error: &PortError) -> String {
    format!("{} {}: {error}", entry.settings.kind, &entry.settings.name)
}
