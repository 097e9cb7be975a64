//! The log's first step: selects lines by the configured level, or by `RUST_LOG`, and queues them
//! (`queue`).
//!
//! If standard error leads to the journal (`$JOURNAL_STREAM` names its device and inode,
//! systemd.exec(5)), a line becomes an entry of the journal's native protocol, with the line's port
//! and the fields of its writer ([`journal`]). Otherwise a line begins with its time and level.
//!
//! A malformed `RUST_LOG` is an error: `RUST_LOG=verbose` would otherwise silence the log. The
//! reason why the process cannot start is logged whatever `RUST_LOG` selects.

use std::fmt::Display;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;

use env_logger::{Builder, Logger, Target};
use log::kv::{self, Key, Value, VisitSource};
use log::{Level, LevelFilter, Log as _, Record};

use self::journal::{Entry, Journal};
use self::queue::LogQueue;
use crate::threads::report_panics;

pub mod journal;
mod queue;

pub use queue::never_wait;

/// The environment variable that overrides the configured level.
const FILTER_VARIABLE: &str = "RUST_LOG";
/// Prefix of this program's targets; a target alone in [`FILTER_VARIABLE`] selects all its lines.
const OWN_TARGET: &str = "vioswitch";
/// Number of characters that are shown of an unknown word.
const SHOWN_CHARS: usize = 40;

/// The reason why the log cannot start.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// A word in `RUST_LOG` that is no level.
    #[error("RUST_LOG: {0:?} is not a level: write off, error, warn, info, debug or trace")]
    Filter(String),
    /// The thread cannot be started.
    #[error("cannot start: {0}")]
    Io(#[from] io::Error),
}

/// The running log.
pub struct Log {
    queue: LogQueue,
    unfiltered: Logger,
}

impl Log {
    /// Starts the thread that writes to standard error or to the journal, and has panics logged.
    /// `level` selects lines unless `RUST_LOG` is set. The caller blocks signals before, because
    /// the thread inherits the caller's mask.
    pub fn start(level: LevelFilter) -> Result<Log, LogError> {
        let filter = filter(level)?;
        let journal = is_journal();
        let queue = match journal {
            true => LogQueue::start(Journal::new(io::stderr()))?,
            false => LogQueue::start_plain(io::stderr())?,
        };
        builder(&queue, journal).parse_filters(&filter).init();
        let unfiltered = builder(&queue, journal).filter_level(LevelFilter::Error).build();
        report_panics();
        Ok(Log { queue, unfiltered })
    }

    /// Logs an error, whatever `RUST_LOG` selects.
    pub fn error(&self, text: &dyn Display) {
        self.error_with(&[], text);
    }

    /// Logs an error with values beside the text, whatever `RUST_LOG` selects.
    pub fn error_with(&self, values: &[(&str, &str)], text: &dyn Display) {
        let mut record = Record::builder();
        let record = record.level(Level::Error).key_values(&values);
        self.unfiltered.log(&record.args(format_args!("{text}")).build());
    }

    /// Waits until all lines are written, at most [`base::limits::LOG_TIMEOUT`].
    pub fn flush(&self) {
        self.queue.flush();
    }
}

/// Formats `text` for standard error without a log, each line behind its priority if the journal
/// reads standard error.
pub fn plain_error(text: &str) -> String {
    match is_journal() {
        true => journal::prefixed(Level::Error, text),
        false => text.lines().map(|line| format!("{line}\n")).collect(),
    }
}

/// Makes a logger that hands its lines to `queue`.
fn builder(queue: &LogQueue, journal: bool) -> Builder {
    let lines = queue.clone();
    let mut builder = Builder::new();
    // The logger's own target is a sink: a target is behind a lock, which a waiting thread would
    // hold.
    builder.target(Target::Pipe(Box::new(io::sink()))).format(move |f, record| {
        let (level, text) = (record.level(), record.args());
        match journal {
            true => lines.push(&entry(record).encoded()),
            false => lines.push(format!("[{} {level:<5}] {text}\n", f.timestamp()).as_bytes()),
        }
        Ok(())
    });
    builder
}

/// Makes a journal entry of a record.
fn entry(record: &Record<'_>) -> Entry {
    let text = record.args().to_string();
    let mut values = Values(Vec::new());
    // A value that cannot be formatted is left out; no value of this program fails.
    let _ = record.key_values().visit(&mut values);
    if let Some(port) = port_of(&text) {
        values.0.push(("VIOSWITCH_PORT".to_owned(), port.to_owned()));
    }
    Entry { level: record.level(), text, fields: values.0 }
}

/// The values of a record as fields: `message_id` is the journal's own field, others get a prefix.
struct Values(Vec<(String, String)>);

impl<'a> VisitSource<'a> for Values {
    fn visit_pair(&mut self, key: Key<'a>, value: Value<'a>) -> Result<(), kv::Error> {
        let name = match key.as_str() {
            "message_id" => "MESSAGE_ID".to_owned(),
            key => format!("VIOSWITCH_{}", key.to_ascii_uppercase()),
        };
        self.0.push((name, value.to_string()));
        Ok(())
    }
}

/// Returns the port of a line that begins with `port NAME:`, `tap NAME:` or `xdp NAME:`.
fn port_of(text: &str) -> Option<&str> {
    let rest = ["port ", "tap ", "xdp "].iter().find_map(|kind| text.strip_prefix(kind))?;
    let (name, _) = rest.split_once(':')?;
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (!name.is_empty() && name.bytes().all(is_name)).then_some(name)
}

/// Checks that [`Log::start`] accepts `RUST_LOG`.
pub fn check_filter_variable() -> Result<(), LogError> {
    filter(LevelFilter::Info).map(drop)
}

/// Returns the checked filter of `RUST_LOG`; `level` if the variable is not set.
fn filter(level: LevelFilter) -> Result<String, LogError> {
    let said = std::env::var_os(FILTER_VARIABLE).unwrap_or_default();
    match said.to_string_lossy() {
        said if said.is_empty() => Ok(level.as_str().to_ascii_lowercase()),
        said => check_filter(&said).map(|()| said.into_owned()),
    }
}

/// Checks a filter: levels, and levels of targets (`vioswitch_datapath::vhost_user=trace`),
/// separated by commas.
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

/// Returns true if `fd` is open on the file that `DEVICE:INODE` names.
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
            "info,vioswitch_datapath::vhost_user=trace",
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
    fn a_line_for_the_journal_names_its_port_and_what_its_writer_knows() {
        let text = format_args!("port vm-1.a: removed");
        let mut record = Record::builder();
        let values = [("message_id", "0123"), ("event", "port_deleted")];
        let record = record.level(Level::Warn).args(text).key_values(&values).build();
        let Entry { level, text, fields } = entry(&record);
        assert_eq!((level, text.as_str()), (Level::Warn, "port vm-1.a: removed"));
        let expected = [
            ("MESSAGE_ID", "0123"),
            ("VIOSWITCH_EVENT", "port_deleted"),
            ("VIOSWITCH_PORT", "vm-1.a"),
        ];
        assert_eq!(fields, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
        for other in ["port a b: x", "port : x", "port a", "ready: 1 port, 0 taps", "report a: b"] {
            assert_eq!(port_of(other), None, "{other}");
        }
        assert_eq!(port_of("tap up: gone"), Some("up"));
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
