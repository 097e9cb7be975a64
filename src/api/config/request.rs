//! A request of the command line, laid over the files.

use std::path::{Path, PathBuf};

use super::claims::{Places, place};
use super::configuration::{Config, Machine, UsageError, one_line, usage_error};
use super::sources::{self, Texts};
use super::{entries, file, validate};
use base::words::counted;

/// The command line as read: its settings, and the name of the file.
#[derive(Debug)]
pub struct Request {
    /// File of `--config`.
    pub(super) file: Option<PathBuf>,
    pub(super) over: validate::Validated,
    pub(super) cpus: usize,
    pub(super) allowed: Vec<usize>,
    /// True if the program only reports errors.
    pub check: bool,
    /// True if files with errors prevent the start.
    pub strict: bool,
    /// Where changes are kept that are made while the switch runs.
    pub state_dir: Option<PathBuf>,
}

impl Request {
    /// Returns the file of `--config`, if there is one.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Reads the files, if the command line names a file.
    pub fn texts(&self) -> Result<Texts, UsageError> {
        let Some(path) = &self.file else { return Ok(Texts::default()) };
        sources::read(path).map_err(|error| usage_error(&format!("--config {error}")))
    }

    /// Lays the command line over the files in `texts`.
    pub fn lay_over(&self, texts: &Texts) -> Result<Config, UsageError> {
        self.lay_over_at(texts, &place)
    }

    /// Lays the files below the command line, with the places of sockets by `places`.
    pub fn lay_over_at(&self, texts: &Texts, places: Places<'_>) -> Result<Config, UsageError> {
        let machine = Machine { cpus: self.cpus, allowed: &self.allowed };
        let under = file::check(&texts.files, machine, places)?;
        let (mut config, complaints) = entries::overlay(under, self.over.clone(), places);
        one_line(&complaints)?;
        if config.workers > self.cpus {
            let (workers, cpus) = (config.workers, counted(self.cpus, "CPU"));
            config.warnings.push(format!("{workers} workers share {cpus}: fewer forward more"));
        }
        let ports = config.ports.iter().flat_map(|entry| entry.settings.warnings());
        config.warnings.extend(ports);
        Ok(config)
    }
}
