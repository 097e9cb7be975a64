//! The state directory: keeps the ports and changes that clients made, and the configuration's
//! files in force.
//!
//! `ports.toml` is written whole before a change takes effect ([`StateDir`]): a change that cannot
//! be written is not made. Without a directory, or with a file that cannot be read, nothing is
//! kept; the switch serves and reports the trouble. The files of the configuration are kept when
//! they are in force, for a start that finds errors in the configuration.
//!
//! The next process undoes a reload that waits to be confirmed. So the files of the reload are kept
//! beside the files that were in force before, and before the reload changes anything.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::degraded::{Code, Degradation};
use super::desired::Desired;
use super::upgrade;
use api::config::{Config, Kept, Text, Texts};
use base::limits::MAX_STATE_BYTES;
use sys::state_dir::{Prepared, StateDir, Unreadable};

/// The file with the ports and changes that clients made.
const PORTS: &str = "ports.toml";

/// The file with the configuration's files that are in force.
const FILES: &str = "applied.json";

/// Keeps state for the next process in files.
#[derive(Debug, Default)]
pub(crate) struct StateStore {
    dir: Option<StateDir>,
    /// Content of [`PORTS`]; none if the content is unknown, or the file does not exist.
    written: Option<String>,
    /// True if the file exists and cannot be read: no other file may take its place.
    is_unreadable: bool,
    /// True if the file of an earlier version was read; the file goes when [`PORTS`] is written.
    is_upgraded: bool,
    /// Degradations found at the start.
    found: Vec<Degradation>,
    /// Errors of the configuration in whose place an earlier configuration runs.
    refused: Vec<Degradation>,
    /// The reason why the last change is not kept.
    failed: Option<Degradation>,
    /// True while a reload waits to be confirmed.
    is_unconfirmed: bool,
}

/// The reason why a change is not kept.
#[derive(Debug, thiserror::Error)]
#[error("cannot be kept for the next start: {0}")]
pub struct NotSaved(#[from] std::io::Error);

impl StateStore {
    /// Returns a store in the directory `path`, if there is a path; notes an error as a
    /// degradation.
    pub(crate) fn open(path: Option<&Path>) -> StateStore {
        let mut store = StateStore::default();
        let Some(path) = path else { return store };
        match StateDir::open(path) {
            Ok(dir) => store.dir = Some(dir),
            Err(error) => {
                let text = format!("changes are not kept: {path:?}: {error}");
                store.trouble(Code::ChangesNotKept, text);
            }
        }
        store
    }

    /// Returns the path of the directory.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.dir.as_ref().map(StateDir::path)
    }

    /// True if changes of clients are kept.
    pub(crate) fn keeps(&self) -> bool {
        self.dir.is_some() && !self.is_unreadable
    }

    /// Logs and notes a degradation that the administrator should know.
    fn trouble(&mut self, code: Code, text: String) {
        log::error!("{text}");
        self.found.push(Degradation::new(code, None, text));
    }

    /// Returns all degradations.
    pub(crate) fn degraded(&self) -> impl Iterator<Item = &Degradation> {
        self.refused.iter().chain(&self.found).chain(&self.failed)
    }

    /// Returns the ports and changes that clients of earlier processes made. Puts a damaged file
    /// aside.
    pub(crate) fn kept(&mut self, config: &Config) -> Kept {
        match self.read(PORTS) {
            Ok(Some(bytes)) => {
                let read = String::from_utf8(bytes).map_err(|error| error.to_string());
                match read.and_then(|text| Ok((Kept::read(&text)?, text))) {
                    Ok((kept, text)) => {
                        self.written = Some(text);
                        return kept;
                    }
                    Err(why) => self.put_aside(PORTS, &why),
                }
                Kept::default()
            }
            Ok(None) => self.kept_by_earlier_versions(config),
            Err(()) => {
                self.is_unreadable = true;
                Kept::default()
            }
        }
    }

    /// Returns the ports and changes in the file of versions without [`PORTS`].
    fn kept_by_earlier_versions(&mut self, config: &Config) -> Kept {
        let Ok(Some(bytes)) = self.read(upgrade::FILE) else { return Kept::default() };
        self.is_upgraded = true;
        let read = upgrade::read(&bytes, config);
        read.unwrap_or_else(|why| {
            self.put_aside(upgrade::FILE, &why);
            Kept::default()
        })
    }

    /// Returns the files of the configuration that was last in force.
    pub(crate) fn last_files(&mut self) -> Option<Texts> {
        Some(texts(self.files()?.files))
    }

    /// True if an earlier process reloaded these files, and no client confirmed the reload.
    pub(crate) fn are_unconfirmed(&mut self, found: &Texts) -> bool {
        let kept = self.files().and_then(|kept| kept.unconfirmed);
        kept.is_some_and(|kept| texts(kept) == *found)
    }

    /// Returns the kept texts of the configuration's files.
    fn files(&mut self) -> Option<Applied> {
        let bytes = self.read(FILES).ok()??;
        match serde_json::from_slice(&bytes) {
            Ok(kept @ Applied { version: 1, .. }) => return Some(kept),
            Ok(_) => self.put_aside(FILES, "the data are of another version"),
            Err(error) => self.put_aside(FILES, &error.to_string()),
        }
        None
    }

    /// Notes that the configuration was not confirmed, and that the configuration before runs.
    pub(crate) fn not_confirmed(&mut self) {
        let text = "a reload was not confirmed, and the earlier configuration runs; config reload \
            applies the files again";
        log::error!("{text}");
        self.refused = vec![Degradation::new(Code::ReloadNotConfirmed, None, text.to_owned())];
    }

    /// Notes that the configuration has errors, and that the configuration last in force runs: the
    /// configuration before the reload, if a reload waits to be confirmed.
    pub(crate) fn refuse(&mut self, errors: &[String]) {
        let text = "the configuration has errors, and the last good configuration runs";
        let lines = std::iter::once(text).chain(errors.iter().map(String::as_str));
        lines.clone().for_each(|line| log::error!("{line}"));
        let of = |line: &str| Degradation::new(Code::LastGoodConfiguration, None, line.to_owned());
        self.refused = lines.map(of).collect();
    }

    /// Keeps these files, which are in force, for a start that finds errors.
    pub(crate) fn keep_files(&mut self, texts: &Texts) -> Result<(), NotSaved> {
        self.refused.clear();
        self.write_files(&Applied { version: 1, files: listed(texts), unconfirmed: None })
    }

    /// Keeps these files, which are about to be in force and wait to be confirmed.
    pub(crate) fn keep_unconfirmed(&mut self, texts: &Texts) -> Result<(), NotSaved> {
        if self.dir.is_some() && !texts.files.is_empty() {
            let none = || std::io::Error::other("the running configuration was not kept");
            let kept = self.files().ok_or_else(none)?;
            self.write_files(&Applied { unconfirmed: Some(listed(texts)), ..kept })?;
        }
        self.is_unconfirmed = true;
        Ok(())
    }

    fn write_files(&self, applied: &Applied) -> Result<(), NotSaved> {
        let Some(dir) = self.dir.as_ref().filter(|_| !applied.files.is_empty()) else {
            return Ok(());
        };
        let text = serde_json::to_vec(applied).map_err(std::io::Error::from)?;
        Ok(dir.prepare(FILES, &text).and_then(Prepared::commit)?)
    }

    /// True while a reload waits to be confirmed.
    pub(crate) fn is_unconfirmed(&self) -> bool {
        self.is_unconfirmed
    }

    /// Notes that no reload waits to be confirmed any more.
    pub(crate) fn stay(&mut self) {
        self.is_unconfirmed = false;
    }

    /// Returns a whole file of the directory; an error if the file exists and cannot be read.
    fn read(&mut self, name: &str) -> Result<Option<Vec<u8>>, ()> {
        let Some(dir) = &self.dir else { return Ok(None) };
        match dir.read(name, MAX_STATE_BYTES) {
            Ok(bytes) => Ok(bytes),
            Err(Unreadable::Foreign(why)) => {
                self.put_aside(name, why);
                Ok(None)
            }
            Err(Unreadable::Io(error)) => {
                let text = format!("{name} cannot be read: {error}");
                self.trouble(Code::StateFileDamaged, text);
                Err(())
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
            Err(error) => {
                self.is_unreadable |= name == PORTS;
                format!("{} is damaged: {why}; and keeps its name: {error}", file.display())
            }
        };
        self.trouble(Code::StateFileDamaged, text);
    }

    /// Writes the ports and changes that clients made, unless the file has equal content.
    pub(crate) fn keep(&mut self, desired: &Desired) -> Result<(), NotSaved> {
        if !self.keeps() {
            return Ok(());
        }
        let kept = desired.kept();
        let is_new = self.written.is_none() && (kept != Kept::default() || self.is_upgraded);
        let text = kept.text();
        if !is_new && self.written.as_ref().is_none_or(|written| *written == text) {
            return Ok(());
        }
        let done = self.write_ports(text);
        let why = done.as_ref().err().map(|error| format!("the last change {error}"));
        self.failed = why.map(|text| Degradation::new(Code::ChangesNotKept, None, text));
        done
    }

    /// Writes the ports and changes that were kept before a change that was not made.
    pub(crate) fn undo(&mut self, desired: &Desired) {
        let failed = self.failed.take();
        let kept = self.keep(desired);
        kept.unwrap_or_else(|error| log::error!("the undoing of a change {error}"));
        self.failed = self.failed.take().or(failed);
    }

    fn write_ports(&mut self, text: String) -> Result<(), NotSaved> {
        let Some(dir) = &self.dir else { return Ok(()) };
        if text.len() as u64 > MAX_STATE_BYTES {
            let text = format!("{PORTS} would be longer than {MAX_STATE_BYTES} bytes");
            return Err(std::io::Error::other(text).into());
        }
        let prepared = dir.prepare(PORTS, text.as_bytes())?;
        // If the commit fails, the file's content is unknown.
        self.written = Some(String::new());
        prepared.commit()?;
        if self.is_upgraded {
            dir.remove(upgrade::FILE)?;
            self.is_upgraded = false;
        }
        self.written = Some(text);
        Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use testkit::proc::Dir;

    /// The earlier version's file would bring back what was deleted since.
    #[test]
    fn an_upgrade_whose_first_write_fails_is_made_up_for_by_the_next() {
        let dir = Dir::new();
        let old = dir.path().join(upgrade::FILE);
        fs::write(&old, "{}").unwrap();
        let open = StateStore::open(Some(dir.path()));
        let mut store = StateStore { is_upgraded: true, ..open };
        let obstacle = dir.path().join("ports.toml.new");
        fs::create_dir(&obstacle).unwrap();
        assert!(store.keep(&Desired::default()).is_err() && old.exists());
        fs::remove_dir(&obstacle).unwrap();
        store.keep(&Desired::default()).unwrap();
        assert!(dir.path().join(PORTS).exists() && !old.exists());
    }

    /// A start would put the file aside.
    #[test]
    fn a_file_that_no_start_would_read_is_not_written() {
        let dir = Dir::new();
        let mut store = StateStore::open(Some(dir.path()));
        let longest = MAX_STATE_BYTES as usize;
        store.write_ports("#".repeat(longest)).unwrap();
        let error = store.write_ports("x".repeat(longest + 1)).unwrap_err().to_string();
        assert!(error.ends_with("ports.toml would be longer than 33554432 bytes"), "{error}");
        assert!(store.read(PORTS).unwrap().is_some_and(|bytes| bytes.len() == longest));
        assert!(store.written.is_some_and(|text| text.starts_with('#')));
    }
}
