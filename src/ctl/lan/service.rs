//! A program that the keeper runs, and starts again when the program ends.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use super::programs;

/// First pause before a program starts again; each further end doubles the pause.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// Longest pause before a program starts again.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Time after which a program that runs counts as healthy: its next end is a first end.
const HEALTHY: Duration = Duration::from_secs(30);
/// Longest log in bytes; a longer log begins anew. Guests cause lines.
const MAX_LOG: u64 = 1 << 20;
/// Longest line that is kept, in bytes.
const MAX_LINE: u64 = 1024;
/// Longest wait for the last lines of a program that has ended: its children may hold the pipe.
const LAST_LINES: Duration = Duration::from_millis(200);
/// Last lines of a program that are kept for its failure.
const KEPT_LINES: usize = 4;

/// The log of all programs.
#[derive(Clone)]
pub(super) struct Log(Arc<Mutex<File>>);

/// Last lines of a program.
type Lines = Arc<Mutex<VecDeque<String>>>;

impl Log {
    pub(super) fn open(path: &Path) -> io::Result<Log> {
        let file = File::options().create(true).append(true).open(path)?;
        Ok(Log(Arc::new(Mutex::new(file))))
    }

    /// Writes a line. A full disk loses lines and ends nothing.
    pub(super) fn line(&self, name: &str, line: &str) {
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if file.metadata().is_ok_and(|found| found.len() > MAX_LOG) {
            let _ = file.set_len(0);
        }
        let _ = file.write_all(format!("{name}: {line}\n").as_bytes());
    }

    /// Copies lines of a program to the log until the program closes the pipe. Without a thread the
    /// lines are lost.
    fn follow(
        &self,
        name: &str,
        pipe: impl Read + Send + 'static,
        lines: &Lines,
    ) -> io::Result<JoinHandle<()>> {
        let (log, name, lines) = (self.clone(), name.to_owned(), lines.clone());
        Builder::new().spawn(move || {
            let mut pipe = BufReader::new(pipe);
            let mut line = Vec::new();
            while (&mut pipe).take(MAX_LINE).read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
                let text = String::from_utf8_lossy(&line).into_owned();
                let text: String = text.chars().filter(|c| !c.is_control()).collect();
                // The relays of forwards are this program.
                let text = text.strip_prefix("vioswitchctl: ").unwrap_or(&text).to_owned();
                line.clear();
                // pasta reports that there is no syslog, beside each line.
                if text.starts_with("Failed to send") || text.is_empty() {
                    continue;
                }
                log.line(&name, &text);
                let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
                lines.push_back(text);
                if lines.len() > KEPT_LINES {
                    lines.pop_front();
                }
            }
        })
    }
}

/// A program that is to run.
pub(super) struct Service {
    pub(super) name: String,
    words: Vec<String>,
    log: Log,
    child: Option<Child>,
    begun: Instant,
    pause: Duration,
    /// Time of the next start, while the program does not run.
    again: Option<Instant>,
    /// Number of starts after an end.
    pub(super) restarts: u64,
    lines: Lines,
    /// Thread that reads the program's lines.
    reader: Option<JoinHandle<()>>,
}

impl Service {
    pub(super) fn new(name: &str, words: Vec<String>, log: &Log) -> Service {
        Service {
            name: name.to_owned(),
            words,
            log: log.clone(),
            child: None,
            begun: Instant::now(),
            pause: FIRST_PAUSE,
            again: None,
            restarts: 0,
            lines: Lines::default(),
            reader: None,
        }
    }

    /// Starts the program. Returns its standard output, if the caller wants that.
    pub(super) fn start(&mut self, with_output: bool) -> Result<Option<ChildStdout>, String> {
        let (program, arguments) = self.words.split_first().ok_or("no program")?;
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let output = if with_output { Stdio::piped() } else { Stdio::null() };
        let child = programs::command(program, arguments)
            .stdin(Stdio::piped())
            .stdout(output)
            .stderr(Stdio::piped())
            .spawn();
        let mut child = child.map_err(|error| format!("cannot start {program}: {error}"))?;
        if let Some(pipe) = child.stderr.take() {
            let reader = self.log.follow(&self.name, pipe, &self.lines);
            let lost = |error| self.log.line(&self.name, &format!("lines are lost: {error}"));
            self.reader = reader.map_err(lost).ok();
        }
        let output = child.stdout.take();
        (self.begun, self.again) = (Instant::now(), None);
        self.child = Some(child);
        Ok(output)
    }

    /// Starts the program if the time for that has come; a failure puts the start off.
    pub(super) fn start_if_due(&mut self) {
        if self.again.is_some_and(|at| at <= Instant::now()) {
            self.restarts += 1;
            if let Err(error) = self.start(false) {
                self.log.line(&self.name, &error);
                self.put_off();
            }
        }
    }

    /// Notices the end of the program, and plans the next start.
    pub(super) fn reap(&mut self) {
        let ended = self.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
        if let Some(status) = ended {
            self.log.line(&self.name, &format!("ended: {}", status));
            dismiss(self.child.take().and_then(|mut child| child.stdin.take()));
            self.read_last_lines();
            if self.begun.elapsed() >= HEALTHY {
                self.pause = FIRST_PAUSE;
            }
            self.put_off();
        }
    }

    /// Waits until the lines of a program that has ended are read.
    fn read_last_lines(&mut self) {
        let end = Instant::now() + LAST_LINES;
        let is_reading = || self.reader.as_ref().is_some_and(|reader| !reader.is_finished());
        while is_reading() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Ends the program, and starts the program with other words.
    pub(super) fn replace(&mut self, words: Vec<String>, patience: Duration) {
        self.words = words;
        self.stop(patience);
        self.again = Some(Instant::now());
    }

    /// Plans the next start.
    pub(super) fn put_off(&mut self) {
        self.again = Some(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }

    /// Returns the time of the next start.
    pub(super) fn due(&self) -> Option<Instant> {
        self.again
    }

    pub(super) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Returns the last line that the program wrote to its standard error.
    pub(super) fn last_line(&self) -> Option<String> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).back().cloned()
    }

    /// Asks the program to end, waits for at most `patience`, and then kills the program.
    pub(super) fn stop(&mut self, patience: Duration) {
        self.again = None;
        let Some(mut child) = self.child.take() else { return };
        let stdin = child.stdin.take();
        let end = Instant::now() + patience;
        let pid = rustix::process::Pid::from_child(&child);
        // A program that has just ended needs no signal.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        while Instant::now() < end && matches!(child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = child.kill();
        let _ = child.wait();
        dismiss(stdin);
        self.read_last_lines();
    }
}

/// Sends the line after which nothing kills a program that has ended: another process may have its
/// number.
fn dismiss(stdin: Option<ChildStdin>) {
    let _ = stdin.map(|mut stdin| stdin.write_all(b"\n"));
}
