//! Where changes are kept that were made while the switch runs.
//!
//! The file is written whole before a change is acknowledged ([`StateDir`]). What fails for want
//! of room fails before anything was changed. Without a directory nothing is kept, and without one
//! that can be used the switch serves as ever, and says so. The files of the configuration are kept
//! there too when they are in force, for a start that finds errors in them.
//!
//! A reload that waits to be confirmed is undone by the next process. So its files stand beside
//! those that were in force before anything is done of them, and while it waits each change is
//! written down twice: as it differs from the new configuration, and as it will from the old one.
//! Of the two a start takes that for the configuration which it runs.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::degraded::{Code, Degradation};
use super::desired::Desired;
use super::saved_changes::{self, Differences};
use api::config::{Text, Texts};
use base::limits::MAX_STATE_BYTES;
use sys::state_dir::{self, Prepared, StateDir, Unreadable};

/// The file of changes.
const CHANGES: &str = "runtime.json";

/// The configuration's files that are in force.
const FILES: &str = "applied.json";

/// The way to the next process that goes through files.
#[derive(Debug, Default)]
pub struct StateStore {
    dir: Option<StateDir>,
    /// The machine's present start.
    boot: String,
    /// Degradations found at the start.
    found: Vec<Degradation>,
    /// Errors of the configuration, in whose place an earlier one runs.
    refused: Vec<Degradation>,
    /// Why the last change is not kept.
    failed: Option<Degradation>,
    /// Entries before a reload that waits to be confirmed.
    before: Option<Desired>,
    /// The configuration before one that was not confirmed runs.
    went_back: bool,
}

/// Why something is not kept.
#[derive(Debug, thiserror::Error)]
#[error("cannot be kept for the next start: {0}")]
pub struct NotSaved(#[from] std::io::Error);

impl StateStore {
    /// Takes the directory, if there is to be one.
    pub fn open(path: Option<&Path>) -> StateStore {
        let mut store = StateStore::default();
        let Some(path) = path else { return store };
        let opened = state_dir::boot_id().and_then(|boot| Ok((boot, StateDir::open(path)?)));
        match opened {
            Ok((boot, dir)) => (store.boot, store.dir) = (boot, Some(dir)),
            Err(error) => {
                let text = format!("changes are not kept: {path:?}: {error}");
                store.trouble(Code::ChangesNotKept, text);
            }
        }
        store
    }

    /// Where that is.
    pub fn path(&self) -> Option<&Path> {
        self.dir.as_ref().map(StateDir::path)
    }

    /// Something is wrong that the administrator should know.
    pub fn trouble(&mut self, code: Code, text: String) {
        log::error!("{text}");
        self.found.push(Degradation::new(code, None, text));
    }

    /// All that is wrong.
    pub fn degraded(&self) -> impl Iterator<Item = &Degradation> {
        self.refused.iter().chain(&self.found).chain(&self.failed)
    }

    /// Returns the changes of earlier processes since the machine was started. A file that cannot
    /// be read is put aside.
    pub fn changes(&mut self) -> Differences {
        let Some(bytes) = self.read(CHANGES) else { return Differences::default() };
        match saved_changes::read(&bytes, &self.boot) {
            Ok(Some(kept)) if self.went_back => return kept.before(),
            Ok(Some(kept)) => return kept.now(),
            Ok(None) => {
                log::info!("changes from before the machine was started are forgotten");
                let removed = self.dir.as_ref().map_or(Ok(()), |dir| dir.remove(CHANGES));
                if let Err(error) = removed {
                    let text = format!("{CHANGES} cannot be removed: {error}");
                    self.trouble(Code::ChangesNotKept, text);
                }
            }
            Err(why) => self.put_aside(CHANGES, &why),
        }
        Differences::default()
    }

    /// The files of the configuration that was last in force.
    pub fn last_files(&mut self) -> Option<Texts> {
        Some(texts(self.files()?.files))
    }

    /// True if these files were reloaded by an earlier process, and not confirmed.
    pub fn are_unconfirmed(&mut self, found: &Texts) -> bool {
        let kept = self.files().and_then(|kept| kept.unconfirmed);
        kept.is_some_and(|kept| texts(kept) == *found)
    }

    /// Returns the kept texts of the configuration's files.
    fn files(&mut self) -> Option<Applied> {
        let bytes = self.read(FILES)?;
        match serde_json::from_slice(&bytes) {
            Ok(kept @ Applied { version: 1, .. }) => return Some(kept),
            Ok(_) => self.put_aside(FILES, "it is of another version"),
            Err(error) => self.put_aside(FILES, &error.to_string()),
        }
        None
    }

    /// The configuration was not confirmed, and the one before runs since the start.
    pub fn go_back(&mut self) {
        self.not_confirmed();
        self.went_back = true;
    }

    /// The configuration was not confirmed, and the one before runs.
    pub fn not_confirmed(&mut self) {
        let text = "the configuration was reloaded and not confirmed, and the one before it runs; \
                    config reload puts it into service";
        log::error!("{text}");
        self.refused = vec![Degradation::new(Code::ReloadNotConfirmed, None, text.to_owned())];
    }

    /// The configuration has errors; the last one runs in its place. If a reload waits to be
    /// confirmed that is the one before the reload.
    pub fn refuse(&mut self, errors: &[String]) {
        self.went_back = self.files().is_some_and(|kept| kept.unconfirmed.is_some());
        let text = "the configuration has errors, and the one that was last in force runs";
        let lines = std::iter::once(text).chain(errors.iter().map(String::as_str));
        lines.clone().for_each(|line| log::error!("{line}"));
        let of = |line: &str| Degradation::new(Code::LastGoodConfiguration, None, line.to_owned());
        self.refused = lines.map(of).collect();
    }

    /// These files are in force: they are kept for a start with bad ones.
    pub fn keep_files(&mut self, texts: &Texts) -> Result<(), NotSaved> {
        self.refused.clear();
        self.write_files(&Applied { version: 1, files: listed(texts), unconfirmed: None })
    }

    /// These files are about to be in force, and wait to be confirmed.
    pub fn keep_unconfirmed(&mut self, texts: &Texts) -> Result<(), NotSaved> {
        if self.dir.is_none() || texts.files.is_empty() {
            return Ok(());
        }
        let none = || std::io::Error::other("what runs was not kept");
        let kept = self.files().ok_or_else(none)?;
        self.write_files(&Applied { unconfirmed: Some(listed(texts)), ..kept })
    }

    fn write_files(&self, applied: &Applied) -> Result<(), NotSaved> {
        let Some(dir) = self.dir.as_ref().filter(|_| !applied.files.is_empty()) else {
            return Ok(());
        };
        let text = serde_json::to_vec(applied).map_err(std::io::Error::from)?;
        Ok(dir.prepare(FILES, &text).and_then(Prepared::commit)?)
    }

    /// The next process is to go back to this, until [`StateStore::stay`].
    pub fn go_back_to(&mut self, before: Desired) {
        self.before = Some(before);
    }

    /// True if the next process is to go back.
    pub fn is_unconfirmed(&self) -> bool {
        self.before.is_some()
    }

    /// Keeps the configuration in force.
    pub fn stay(&mut self) {
        self.before = None;
    }

    /// A whole file of the directory.
    fn read(&mut self, name: &str) -> Option<Vec<u8>> {
        match self.dir.as_ref()?.read(name, MAX_STATE_BYTES) {
            Ok(bytes) => bytes,
            Err(Unreadable::Foreign(why)) => {
                self.put_aside(name, why);
                None
            }
            Err(Unreadable::Io(error)) => {
                let text = format!("{name} cannot be read: {error}");
                self.trouble(Code::StateFileDamaged, text);
                None
            }
        }
    }

    fn put_aside(&mut self, name: &str, why: &str) {
        let Some(dir) = &self.dir else { return };
        let file = dir.path().join(name);
        let text = match dir.put_aside(name) {
            Ok(to) => {
                format!("{} is damaged and now called {}: {why}", file.display(), to.display())
            }
            Err(error) => format!("{} is damaged: {why}; and stays: {error}", file.display()),
        };
        self.trouble(Code::StateFileDamaged, text);
    }

    /// Gets ready to keep the changes; nothing is kept before that is committed.
    pub fn prepare(&self, desired: &Desired) -> Result<Option<Prepared>, NotSaved> {
        let Some(dir) = &self.dir else { return Ok(None) };
        let back = self.before.as_ref().map(|before| before.after_going_back(desired));
        Ok(Some(dir.prepare(CHANGES, &saved_changes::write(desired, back.as_ref(), &self.boot))?))
    }

    /// Keeps what is ready to be kept.
    pub fn commit(&mut self, prepared: Option<Prepared>) -> Result<(), NotSaved> {
        let kept = prepared.map_or(Ok(()), Prepared::commit).map_err(NotSaved::from);
        self.tell(kept)
    }

    /// Keeps the changes.
    pub fn keep(&mut self, desired: &Desired) -> Result<(), NotSaved> {
        match self.prepare(desired) {
            Ok(prepared) => self.commit(prepared),
            Err(error) => self.tell(Err(error)),
        }
    }

    fn tell(&mut self, kept: Result<(), NotSaved>) -> Result<(), NotSaved> {
        let text = kept.as_ref().err().map(|error| format!("the last change {error}"));
        self.failed = text.map(|text| Degradation::new(Code::ChangesNotKept, None, text));
        kept
    }
}

/// The configuration's files in [`FILES`].
#[derive(Debug, Serialize, Deserialize)]
struct Applied {
    version: u64,
    files: Vec<Listed>,
    /// Files of a reload that waits to be confirmed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    unconfirmed: Option<Vec<Listed>>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Listed {
    name: String,
    text: String,
}

fn listed(texts: &Texts) -> Vec<Listed> {
    let file = |Text { name, bytes }: &Text| Listed {
        name: name.clone(),
        text: String::from_utf8_lossy(bytes).into_owned(),
    };
    texts.files.iter().map(file).collect()
}

fn texts(files: Vec<Listed>) -> Texts {
    let text = |Listed { name, text }: Listed| Text { name, bytes: text.into_bytes() };
    Texts { files: files.into_iter().map(text).collect() }
}
