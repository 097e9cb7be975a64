//! The configuration is read again while the switch runs, and what differs is done.
//!
//! Nothing is done of a configuration with an error in it. Then everything is looked at that can be
//! before it is tried: what only one may have, and the places of new sockets. What fails after
//! that is undone, by the same way: the difference back to what was in force. A thread of its own
//! does it and holds the daemon for one step at a time; nobody else changes the switch meanwhile.
//!
//! With a time to confirm, what was in force before is in force again when it is over, and in the
//! next process, if this one ends before. That it waits is written down before anything is done.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::book::Book;
use super::keeper::NotKept;
use super::opening::{Opens, Places};
use super::plan::{Step, Summary, plan, scalars};
use super::{Daemon, PortError};
use crate::config::{Config, Entry, Request, Settings, Texts};
use crate::events::{What, reason};
use crate::limits::{RELOAD_REMOVE_TIMEOUT, REMOVE_STEP};

/// Reads the configuration again, for whoever asks.
pub struct Reloader {
    daemon: Arc<Mutex<Daemon>>,
    request: Box<Request>,
    /// What is under way.
    state: Mutex<State>,
    /// Something of it has changed.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// A thread is at it, until it has confirmed too.
    busy: bool,
    /// What the last one came to.
    done: Option<Result<Vec<Step>, Vec<String>>>,
    /// It is to be confirmed, so that none that needs no confirmation may take its place.
    confirms: bool,
    /// What waits to be confirmed.
    waits: Option<Waiting>,
    /// Another one is wanted when it is over.
    again: bool,
}

/// A reload is undone unless it is confirmed in time.
#[derive(Debug, Clone, Copy)]
pub struct Confirm {
    /// How long that may take.
    pub time: Duration,
    /// The process that asked for it; 0 outside our PID namespace.
    pub pid: i32,
    /// Its user's number.
    pub uid: u32,
}

/// A reload that waits to be confirmed.
#[derive(Clone)]
struct Waiting {
    texts: Texts,
    confirm: Confirm,
    end: Instant,
}

/// Why there is no reload.
#[derive(Debug, thiserror::Error)]
pub enum Busy {
    /// One at a time.
    #[error("a reload is under way, or waits for config confirm")]
    Busy,
    /// There is nothing to read.
    #[error("there is no configuration file to read: vioswitchd was started without --config")]
    NoFile,
    /// Nothing waits to be confirmed.
    #[error("no reload waits to be confirmed")]
    Nothing,
    /// There is no thread.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
    /// It stays, and the next process will not know.
    #[error("confirmed, but it {0}")]
    NotKept(NotKept),
}

/// What a reload did.
struct Applied {
    steps: Vec<Step>,
    texts: Texts,
    /// What was in force.
    before: Book,
}

impl Reloader {
    /// For a daemon that runs what `request` asked for.
    pub fn new(daemon: &Arc<Mutex<Daemon>>, request: Box<Request>) -> Reloader {
        let daemon = Arc::clone(daemon);
        Reloader { daemon, request, state: Mutex::default(), changed: Condvar::new() }
    }

    fn daemon(&self) -> MutexGuard<'_, Daemon> {
        self.daemon.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The files as they are now, and what they change.
    fn read(&self) -> Result<(Texts, Config, Vec<Step>), Vec<String>> {
        let texts = self.request.texts();
        let places = self.places();
        let at = |path: &Path| places.of(path);
        let read = texts.and_then(|texts| Ok((self.request.lay_over_at(&texts, &at)?, texts)));
        let silent = places.silent.take();
        let read = read.map_err(|error| error.lines);
        let (config, texts) = silent.map_or(read, |error| Err(vec![error.to_string()]))?;
        let daemon = self.daemon();
        let mut steps = scalars(&daemon.started, &config);
        if let Some(template) = daemon.book().template() {
            let differences = template.differences(&config.template);
            steps.extend(differences.into_iter().map(Step::Template));
        }
        steps.extend(plan(daemon.book(), &config.ports));
        Ok((texts, config, steps))
    }

    /// Whether there is a file to read at all.
    pub fn check_file(&self) -> Result<(), Busy> {
        self.file().map(drop).ok_or(Busy::NoFile)
    }

    /// The file that the switch was started with, if there was one; those of conf.d are beside it.
    pub fn file(&self) -> Option<&Path> {
        self.request.file()
    }

    /// Whether it is settled what the configuration is: no reload is under way, and none waits to
    /// be confirmed.
    pub fn check_settled(&self) -> Result<(), Busy> {
        if self.state().busy { Err(Busy::Busy) } else { Ok(()) }
    }

    /// What a reload would do, or why it would do nothing.
    pub fn diff(&self) -> Result<Vec<Step>, Vec<String>> {
        self.read().map(|(_, _, steps)| steps)
    }

    /// Begins a reload. What it comes to is told by [`Reloader::outcome`].
    pub fn begin(self: &Arc<Self>, confirm: Option<Confirm>) -> Result<(), Busy> {
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
                let why = "it panicked half way; the log tells more".to_owned();
                this.daemon().changing = false;
                let mut state = this.state();
                (state.busy, state.done, state.waits) = (false, Some(Err(vec![why])), None);
            }
            // One that was begun meanwhile has read the files as late.
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

    /// Reloads for one who waits for no answer, once more after a reload that is under way: that
    /// one may have read the files before they were changed. One that is to be confirmed is not
    /// followed by one that is not.
    pub fn begin_or_repeat(self: &Arc<Self>) -> Result<(), Busy> {
        let mut state = self.state();
        if state.busy && !state.confirms {
            state.again = true;
            return Ok(());
        }
        drop(state);
        self.begin(None)
    }

    /// What the reload came to, once it is known.
    pub fn outcome(&self) -> Option<Result<Vec<Step>, Vec<String>>> {
        self.state().done.clone()
    }

    /// What was reloaded stays. Who is told so may end the process.
    pub fn confirm(&self) -> Result<(), Busy> {
        let mut state = self.state();
        let waiting = state.waits.take().ok_or(Busy::Nothing)?;
        let kept = self.daemon().confirm(&waiting.texts);
        self.changed.notify_all();
        kept.map_err(Busy::NotKept)
    }

    /// Who asked for the reload that waits to be confirmed, and how long it still does.
    pub fn unconfirmed(&self) -> Option<(Confirm, Duration)> {
        let state = self.state();
        let Waiting { confirm, end, .. } = state.waits.as_ref()?;
        Some((*confirm, end.saturating_duration_since(Instant::now())))
    }

    fn work(&self, confirm: Option<Confirm>) {
        let applied = self.apply_files(confirm.is_some());
        let (events, news) = {
            let daemon = self.daemon();
            (Arc::clone(daemon.events()), daemon.view().news)
        };
        match &applied {
            Ok(Applied { steps, .. }) => {
                events.tell(What::Reloaded { summary: Summary(steps).to_string() });
            }
            Err(errors) => {
                errors.iter().for_each(|error| log::error!("reload: {error}"));
                let why = errors.first().cloned().unwrap_or_default();
                events.tell(What::ReloadFailed { why: reason(why) });
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
        // Who is told what it came to may ask for the next one at once.
        {
            let mut state = self.state();
            state.waits = waiting.as_ref().map(|(confirm, (texts, _))| Waiting {
                texts: texts.clone(),
                confirm: *confirm,
                end: Instant::now() + confirm.time,
            });
            (state.busy, state.done) = (waiting.is_some(), Some(done));
        }
        news.wake();
        let Some((Confirm { time, .. }, (_, before))) = waiting else { return };
        if !self.is_confirmed() {
            let errors = self.go_back(&before);
            self.daemon().keeper.not_confirmed();
            let why = format!("not confirmed in {} s: back to what ran before", time.as_secs());
            errors.iter().for_each(|error| log::error!("reload: {error}"));
            events.tell(What::ReloadFailed { why });
        }
        self.state().busy = false;
    }

    /// Waits for the confirmation.
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
        let mut before = {
            let mut daemon = self.daemon();
            let mut wrong = foresee(daemon.book(), &steps);
            wrong.extend(misplaced);
            if !wrong.is_empty() {
                return Err(wrong);
            }
            if to_confirm {
                let kept = daemon.keeper.keep_unconfirmed(&texts);
                kept.map_err(|error| vec![format!("that it is to be confirmed {error}")])?;
            }
            let before = daemon.book().clone();
            daemon.changing = true;
            daemon.book.configure(&config);
            before
        };
        let applied = self.apply(&steps);
        before.leave_tied(self.daemon().book());
        if let Err(error) = applied {
            let mut errors = vec![error];
            errors.extend(self.go_back(&before));
            return Err(errors);
        }
        let mut daemon = self.daemon();
        daemon.changing = false;
        daemon.book.set_template(Some(config.template));
        if to_confirm {
            daemon.keeper.go_back_to(before.clone());
        }
        if let Err(error) = daemon.keep() {
            log::error!("reload: {error}");
        }
        Ok(Applied { steps, texts, before })
    }

    /// Has in force again what was; what that could not do.
    fn go_back(&self, before: &Book) -> Vec<String> {
        let (back, steps) = {
            let mut daemon = self.daemon();
            daemon.changing = true;
            let back = before.after_going_back(&daemon.book);
            let all: Vec<Entry> = back.all_configured().cloned().collect();
            daemon.book.configure_as(all);
            daemon.book.set_template(back.template().cloned());
            let wanted: Vec<Entry> = back.entries().values().cloned().collect();
            let steps = plan(&daemon.book, &wanted);
            (back, steps)
        };
        let mut errors = Vec::new();
        for step in ordered(&steps) {
            if let Err(error) = self.apply(std::slice::from_ref(step)) {
                let comes = matches!(step, Step::Add(_)) || step.detaches();
                let entry = step.entry().filter(|_| comes);
                let left_out = entry.is_some_and(|entry| self.daemon().add_without(entry, &error));
                let what = if left_out { "; it is left out and tried again" } else { "" };
                errors.push(format!("going back: {error}{what}"));
            }
        }
        let mut daemon = self.daemon();
        for (mac, name) in back.tied() {
            if let Err(error) = daemon.tie_again(*mac, name) {
                errors.push(format!("going back: port {name}: {error}"));
            }
        }
        daemon.changing = false;
        daemon.keeper.stay();
        if let Err(error) = daemon.keep() {
            errors.push(error.to_string());
        }
        errors
    }

    /// Does all steps: what goes first, so that names, sockets and addresses are free.
    fn apply(&self, steps: &[Step]) -> Result<(), String> {
        for step in steps {
            let mut daemon = self.daemon();
            match step {
                Step::Address { mac, .. } => _ = daemon.release(*mac),
                Step::Remove(entry) => daemon.release_all(&entry.settings.name),
                _ => {}
            }
        }
        self.take_away(steps)?;
        for step in ordered(steps) {
            let Some(entry) = step.entry() else { continue };
            let done = match step {
                Step::Remove(_) | Step::Scalar(_) | Step::Template(_) | Step::Address { .. } => {
                    Ok(())
                }
                Step::Change(_, changes) if changes.is_empty() => self.daemon().give_to(entry),
                Step::Change(..) if !step.detaches() => self.daemon().change_entry(entry),
                Step::Add(_) | Step::Change(..) => self.add(entry),
            };
            done.map_err(|error| named(entry, &error))?;
        }
        Ok(())
    }

    /// Adds what a configuration has, and opens its socket without the daemon.
    fn add(&self, entry: &Entry) -> Result<(), PortError> {
        if !self.daemon().can_come(entry)? {
            return Ok(());
        }
        // Let go of, where it is not taken, when the daemon is free again.
        let mut socket = self.opens().open(entry)?;
        self.daemon().add_entry(entry, &mut socket)
    }

    fn opens(&self) -> Opens {
        self.daemon().opens()
    }

    /// Where sockets are: those of ports that there are is known.
    fn places(&self) -> Places {
        let daemon = self.daemon();
        let all = daemon.book().entries().values().chain(daemon.book().all_configured());
        let known = all
            .filter_map(|Entry { settings, place, .. }| settings.socket.clone().zip(place.clone()));
        Places {
            opens: daemon.opens(),
            known: RefCell::new(known.collect()),
            silent: Cell::new(None),
        }
    }

    /// Takes away what goes for good or for a moment, all at a time.
    fn take_away(&self, steps: &[Step]) -> Result<(), String> {
        let mut leaving = Vec::new();
        for entry in steps.iter().filter(|step| step.detaches()).filter_map(Step::entry) {
            let removal = self.daemon().leave(&entry.settings.name, RELOAD_REMOVE_TIMEOUT);
            leaving.push((entry, removal.map_err(|error| named(entry, &error))?));
        }
        let mut failed = Ok(());
        while !leaving.is_empty() {
            leaving.retain_mut(|(entry, removal)| match self.daemon().go_on(removal) {
                Ok(done) => !done,
                // It goes on by itself, and what is to come in its place waits for that.
                Err(PortError::Leaving(_)) => false,
                Err(error) => {
                    failed = Err(named(entry, &error));
                    false
                }
            });
            if !leaving.is_empty() {
                std::thread::sleep(REMOVE_STEP);
            }
        }
        failed
    }
}

/// First what changes nothing of sockets, then what comes.
fn ordered(steps: &[Step]) -> impl Iterator<Item = &Step> {
    let early = |step: &&Step| !matches!(step, Step::Add(_)) && !step.detaches();
    steps.iter().filter(early).chain(steps.iter().filter(move |step| !early(step)))
}

fn named(entry: &Entry, error: &PortError) -> String {
    format!("{} {}: {error}", entry.settings.kind, &entry.settings.name)
}

/// What can be seen to fail before anything is done.
fn foresee(book: &Book, steps: &[Step]) -> Vec<String> {
    let mut after = book.clone();
    let gone = steps.iter().filter(|step| step.detaches()).filter_map(Step::entry);
    gone.for_each(|entry| drop(after.strike(&entry.settings.name)));
    for step in steps {
        match step {
            Step::Address { mac, .. } => _ = after.untie(*mac),
            Step::Remove(entry) => after.untie_all(&entry.settings.name),
            _ => {}
        }
    }
    let mut wrong = Vec::new();
    for step in steps {
        let (Step::Add(entry) | Step::Change(entry, _)) = step else { continue };
        if let Some(clash) = after.clash(entry) {
            let Settings { kind, name, .. } = &entry.settings;
            wrong.push(format!("{kind} {name}: {clash}"));
        }
        after.enter(entry.clone());
    }
    wrong
}
