//! The log's first step: what the configured level lets through, or `RUST_LOG`, as lines for the
//! queue (`queue`).
//!
//! Where standard error is the journal (`$JOURNAL_STREAM` names its device and inode,
//! systemd.exec(5)) a line is an entry of the journal's own protocol, with the port it is about and
//! what its writer knows besides ([`journal`]). Everywhere else it begins with its
//! time and level.
//!
//! A `RUST_LOG` that cannot be meant is an error, and why the process cannot start is said
//! whatever it lets through: `RUST_LOG=verbose` would otherwise silence everything.

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

/// What is let through, whatever the configuration says.
const FILTER_VARIABLE: &str = "RUST_LOG";
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
    /// Starts the thread that writes to standard error or to the journal, and has panics told
    /// through it. `level` is let through unless `RUST_LOG` says otherwise. Signals are to
    /// be blocked before: it inherits the caller's mask.
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

    /// Says at level error why something cannot be, whatever `RUST_LOG` lets through.
    pub fn error(&self, text: &dyn Display) {
        self.error_with(&[], text);
    }

    /// The same, with values beside the text.
    pub fn error_with(&self, values: &[(&str, &str)], text: &dyn Display) {
        let mut record = Record::builder();
        let record = record.level(Level::Error).key_values(&values);
        self.unfiltered.log(&record.args(format_args!("{text}")).build());
    }

    /// Waits until everything is written, at most [`base::limits::LOG_TIMEOUT`].
    pub fn flush(&self) {
        self.queue.flush();
    }
}

/// `text` for standard error without a log, each line with its priority if the journal reads it.
pub fn plain_error(text: &str) -> String {
    match is_journal() {
        true => journal::prefixed(Level::Error, text),
        false => text.lines().map(|line| format!("{line}\n")).collect(),
    }
}

/// Loggers that hand their lines to `queue`.
fn builder(queue: &LogQueue, journal: bool) -> Builder {
    let lines = queue.clone();
    let mut builder = Builder::new();
    // Its own target is behind a lock, which a thread that waits would hold.
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

/// A line for the journal.
fn entry(record: &Record<'_>) -> Entry {
    let text = record.args().to_string();
    let mut values = Values(Vec::new());
    // A value that cannot be written is left out; none of ours can fail.
    let _ = record.key_values().visit(&mut values);
    if let Some(port) = port_of(&text) {
        values.0.push(("VIOSWITCH_PORT".to_owned(), port.to_owned()));
    }
    Entry { level: record.level(), text, fields: values.0 }
}

/// Values beside a line's text, as fields: `message_id` is the journal's own, others are ours.
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

/// The port that a line is about: it begins with `port NAME:`, `tap NAME:` or `xdp NAME:`.
fn port_of(text: &str) -> Option<&str> {
    let rest = ["port ", "tap ", "xdp "].iter().find_map(|kind| text.strip_prefix(kind))?;
    let (name, _) = rest.split_once(':')?;
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (!name.is_empty() && name.bytes().all(is_name)).then_some(name)
}

/// Whether [`Log::start`] would take what `RUST_LOG` says.
pub fn check_filter_variable() -> Result<(), LogError> {
    filter(LevelFilter::Info).map(drop)
}

/// What `RUST_LOG` says, checked; `level` if it says nothing.
fn filter(level: LevelFilter) -> Result<String, LogError> {
    let said = std::env::var_os(FILTER_VARIABLE).unwrap_or_default();
    match said.to_string_lossy() {
        said if said.is_empty() => Ok(level.as_str().to_ascii_lowercase()),
        said => check_filter(&said).map(|()| said.into_owned()),
    }
}

/// Levels, and levels of parts of the program (`vioswitch_datapath::vhost_user=trace`), with
/// commas between.
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
