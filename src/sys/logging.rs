//! The log's first step: what `RUST_LOG` lets through, as lines for the queue (`log_queue`).
//!
//! Where standard error is the journal (`$JOURNAL_STREAM` names its device and inode,
//! systemd.exec(5)) a line begins with its priority (sd-daemon(3)) and has no time: the journal
//! keeps both beside the text. Everywhere else it begins with its time and level.
//!
//! A `RUST_LOG` that cannot be meant is an error, and why the process cannot start is said
//! whatever it lets through: `RUST_LOG=verbose` would otherwise silence everything.

use std::fmt::Display;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;

use env_logger::{Builder, Logger, Target};
use log::{Level, LevelFilter, Log as _, Record};

use super::log_queue::LogQueue;
use super::threads::report_panics;

/// What is let through.
const FILTER_VARIABLE: &str = "RUST_LOG";
const DEFAULT_FILTER: &str = "info";
/// Names of our own code; alone in [`FILTER_VARIABLE`] they let through all that it says.
const OWN_TARGET: &str = "vioswitch";
/// What is shown of a word that is not known.
const SHOWN_CHARS: usize = 40;

/// Why there is no log.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// A word in `RUST_LOG` that is no level.
    #[error("RUST_LOG: {0:?} is not a level: write off, error, warn, info, debug or trace")]
    Filter(String),
    /// No thread could be had.
    #[error("cannot start: {0}")]
    Io(#[from] io::Error),
}

/// The log while it is written.
pub struct Log {
    queue: LogQueue,
    unfiltered: Logger,
}

impl Log {
    /// Starts the thread that writes to standard error, and has panics told through it. Signals are
    /// to be blocked before: it inherits the caller's mask.
    pub fn start() -> Result<Log, LogError> {
        let filter = filter()?;
        let journal = is_journal();
        let prefix = prefix(Level::Warn, journal);
        let queue = LogQueue::with_prefix(io::stderr(), prefix)?;
        builder(&queue, journal).parse_filters(&filter).init();
        let unfiltered = builder(&queue, journal).filter_level(LevelFilter::Error).build();
        report_panics();
        Ok(Log { queue, unfiltered })
    }

    /// Says at level error why something cannot be, whatever `RUST_LOG` lets through.
    pub fn error(&self, text: &dyn Display) {
        let mut record = Record::builder();
        self.unfiltered.log(&record.level(Level::Error).args(format_args!("{text}")).build());
    }

    /// Waits until everything is written, at most [`crate::limits::LOG_TIMEOUT`].
    pub fn flush(&self) {
        self.queue.flush();
    }
}

/// `text` for standard error without a log, each line with its priority if the journal reads it.
pub fn plain_error(text: &str) -> String {
    let prefix = prefix(Level::Error, is_journal());
    text.lines().map(|line| format!("{prefix}{line}\n")).collect()
}

/// Loggers that hand their lines to `queue`.
fn builder(queue: &LogQueue, journal: bool) -> Builder {
    let lines = queue.clone();
    let mut builder = Builder::new();
    // Its own target is behind a lock, which a thread that waits would hold.
    builder.target(Target::Pipe(Box::new(io::sink()))).format(move |f, record| {
        let (level, text) = (record.level(), record.args());
        let prefix = prefix(level, journal);
        let line = match journal {
            // The journal takes each line for itself.
            true => format!("{prefix}{text}").replace('\n', &format!("\n{prefix}")) + "\n",
            false => format!("[{} {level:<5}] {text}\n", f.timestamp()),
        };
        lines.push(line.as_bytes());
        Ok(())
    });
    builder
}

/// A priority of syslog(3) as sd-daemon(3) wants it.
fn prefix(level: Level, journal: bool) -> &'static str {
    match level {
        _ if !journal => "",
        Level::Error => "<3>",
        Level::Warn => "<4>",
        Level::Info => "<6>",
        Level::Debug | Level::Trace => "<7>",
    }
}

/// Whether [`Log::start`] would take what `RUST_LOG` says.
pub fn check_filter_variable() -> Result<(), LogError> {
    filter().map(drop)
}

/// What `RUST_LOG` says, checked.
fn filter() -> Result<String, LogError> {
    let said = std::env::var_os(FILTER_VARIABLE).unwrap_or_default();
    match said.to_string_lossy() {
        said if said.is_empty() => Ok(DEFAULT_FILTER.to_owned()),
        said => check_filter(&said).map(|()| said.into_owned()),
    }
}

/// Levels, and levels of parts of the program (`vioswitch::vhost_user=trace`), with commas between.
fn check_filter(text: &str) -> Result<(), LogError> {
    let is_level = |word: &str| word.parse::<LevelFilter>().is_ok();
    for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        let known = match word.split_once('=') {
            Some((_, level)) => is_level(level.trim()),
            None => is_level(word) || word.starts_with(OWN_TARGET),
        };
        if !known || word.contains('/') {
            return Err(LogError::Filter(word.chars().take(SHOWN_CHARS).collect()));
        }
    }
    Ok(())
}

fn is_journal() -> bool {
    let said = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    names(&said, io::stderr().as_fd())
}

/// True if `DEVICE:INODE` is what `fd` is open on.
fn names(said: &str, fd: BorrowedFd<'_>) -> bool {
    let numbers = said.split_once(':').map(|(device, inode)| (device.parse(), inode.parse()));
    let Some((Ok(device), Ok(inode))) = numbers else { return false };
    let file = fd.try_clone_to_owned().map(std::fs::File::from);
    file.and_then(|file| file.metadata())
        .is_ok_and(|found| (found.dev(), found.ino()) == (device, inode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_are_no_level_are_refused() {
        for good in [
            "info",
            "off",
            "WARN",
            "info,vioswitch::vhost_user=trace",
            "vioswitch",
            "vioswitchd=debug",
            " debug ,",
        ] {
            assert!(check_filter(good).is_ok(), "{good}");
        }
        for bad in ["verbose", "5", "info,verbos", "vioswitch=verbose", "info/x", "=", "all"] {
            let error = check_filter(bad).unwrap_err().to_string();
            assert!(error.ends_with("write off, error, warn, info, debug or trace"), "{error}");
        }
        let long = check_filter(&"x\n".repeat(10_000)).unwrap_err().to_string();
        assert!(long.len() < 300 && !long.contains('\n'), "{long}");
    }

    #[test]
    fn the_journal_is_told_by_device_and_inode() {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let found = file.metadata().unwrap();
        let names = |said: String| names(&said, file.as_fd());
        assert!(names(format!("{}:{}", found.dev(), found.ino())));
        assert!(!names(format!("{}:{}", found.dev(), found.ino() + 1)));
        assert!(!names(format!("{}", found.dev())) && !names(String::new()));
    }
}
