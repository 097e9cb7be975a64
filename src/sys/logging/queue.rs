//! The log's last step: lines wait in a bounded queue for a thread that writes them to standard
//! error or to the journal. The reader of standard error may hang.
//!
//! - A thread of the data path never waits ([`never_wait`]). Any other thread waits until its line
//!   is written, at most [`LOG_TIMEOUT`]; after a wait in vain no thread waits until the reader
//!   reads again.
//! - A line without room is counted, and the count is written in the line's place. The queue
//!   allocates at most twice [`LOG_QUEUE_BYTES`].
//! - No lock is held across a write, and no lock is taken that another thread holds across a write.

use std::cell::Cell;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::threads::{lock, run_again_after_panic};
use base::limits::{LOG_QUEUE_BYTES, LOG_TIMEOUT};
use base::words::counted;

/// The destination of lines.
pub(crate) trait Sink: Send + 'static {
    /// Writes queued lines, all whole.
    fn write(&mut self, lines: &[u8]);

    /// Writes that `lost` lines were lost behind the last written lines.
    fn say_lost(&mut self, lost: u64);
}

/// Writes lines as bytes.
struct Plain<W>(W);

impl<W: Write + Send + 'static> Sink for Plain<W> {
    fn write(&mut self, lines: &[u8]) {
        write_all(&mut self.0, lines);
    }

    fn say_lost(&mut self, lost: u64) {
        write_all(&mut self.0, (said_lost(lost) + "\n").as_bytes());
    }
}

/// Returns the line about lost lines.
pub(crate) fn said_lost(lost: u64) -> String {
    format!("[{} lost: the log was not read]", counted(lost, "log line"))
}

thread_local!(static WAITS: Cell<bool> = const { Cell::new(true) });

/// Makes the calling thread never wait: its lines are queued or lost.
pub fn never_wait() {
    WAITS.with(|waits| waits.set(false));
}

#[derive(Debug, Default)]
struct State {
    /// The lines to be written next.
    queued: Vec<u8>,
    /// Lines lost behind `queued`.
    lost: u64,
    /// Bytes accepted so far, and bytes written or given up so far.
    accepted: u64,
    written: u64,
    /// A thread waited in vain, and no line was written since.
    stalled: bool,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Notified when there are lines to write.
    filled: Condvar,
    /// Notified when lines were written.
    moved: Condvar,
}

/// The queue of lines. Its thread lasts as long as the process, because it may hang in a write.
#[derive(Debug, Clone)]
pub(crate) struct LogQueue(Arc<Shared>);

impl LogQueue {
    /// Starts the thread, which writes lines to `out` unchanged.
    ///
    /// The caller blocks signals before, because the thread inherits the caller's mask.
    pub(crate) fn start_plain(out: impl Write + Send + 'static) -> io::Result<LogQueue> {
        LogQueue::start(Plain(out))
    }

    /// Starts the thread, which writes lines to the sink `out`. The caller blocks signals before.
    pub(crate) fn start(mut out: impl Sink) -> io::Result<LogQueue> {
        let shared = Arc::new(Shared::default());
        let writer = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("log".to_owned());
        thread.spawn(move || {
            never_wait();
            run_again_after_panic(
                "the log's thread",
                || false,
                || {
                    writer.write_to(&mut out);
                },
            );
        })?;
        Ok(LogQueue(shared))
    }

    /// Queues one line, line end included.
    pub(crate) fn push(&self, line: &[u8]) {
        let mut state = lock(&self.0.state);
        if state.queued.len() + line.len() > LOG_QUEUE_BYTES {
            state.lost += 1;
            return;
        }
        state.queued.extend_from_slice(line);
        state.accepted += line.len() as u64;
        let end = state.accepted;
        self.0.filled.notify_one();
        if WAITS.with(Cell::get) {
            self.0.wait_written(state, end);
        }
    }

    /// Waits until all lines are written, at most [`LOG_TIMEOUT`]; for the end of the process.
    /// Waits even if a thread has just waited in vain: on a busy machine this queue's own thread
    /// may be late, and the last lines tell why the process ends.
    pub(crate) fn flush(&self) {
        let mut state = lock(&self.0.state);
        state.stalled = false;
        let end = state.accepted;
        self.0.wait_written(state, end);
    }
}

impl Shared {
    fn wait_written(&self, mut state: MutexGuard<'_, State>, end: u64) {
        let deadline = Instant::now() + LOG_TIMEOUT;
        while state.written < end && !state.stalled {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                state.stalled = true;
                // Other waiting threads need not time out by themselves.
                self.moved.notify_all();
                return;
            }
            let waited = self.moved.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Writes queued lines to `out` for ever.
    fn write_to(&self, out: &mut impl Sink) {
        let mut lines = Vec::new();
        loop {
            let mut state = lock(&self.state);
            while state.queued.is_empty() && state.lost == 0 {
                state = self.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            lines.clear();
            std::mem::swap(&mut state.queued, &mut lines);
            let lost = std::mem::take(&mut state.lost);
            drop(state);
            let bytes = lines.len() as u64;
            out.write(&lines);
            if lost > 0 {
                // The lost lines came after the queued lines.
                out.say_lost(lost);
            }
            let mut state = lock(&self.state);
            state.written += bytes;
            state.stalled = false;
            drop(state);
            self.moved.notify_all();
        }
    }
}

/// Writes all bytes, or as many as possible: a closed reader must not end the process.
pub fn write_all(out: &mut impl Write, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match out.write(bytes) {
            Ok(0) => return,
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // Another process that shares the terminal or pipe may have made it non-blocking.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// A reader that takes one write for each message.
    struct Slow {
        go: mpsc::Receiver<()>,
        taken: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.go.recv();
            self.taken.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn slow() -> (LogQueue, mpsc::Sender<()>, Arc<Mutex<Vec<u8>>>) {
        let (tell, go) = mpsc::channel();
        let taken = Arc::new(Mutex::new(Vec::new()));
        let queue = LogQueue::start_plain(Slow { go, taken: Arc::clone(&taken) }).unwrap();
        (queue, tell, taken)
    }

    #[test]
    fn the_end_waits_after_others_did_in_vain() {
        let (queue, go, taken) = slow();
        queue.push(b"why\n");
        let start = Instant::now();
        queue.flush();
        assert!(start.elapsed() >= LOG_TIMEOUT && taken.lock().unwrap().is_empty());
        drop(go);
    }

    #[test]
    fn a_line_is_written_when_push_returns() {
        let (queue, go, taken) = slow();
        (0..3).for_each(|_| go.send(()).unwrap());
        for text in ["one\n", "two\n", "three\n"] {
            queue.push(text.as_bytes());
            assert!(taken.lock().unwrap().ends_with(text.as_bytes()));
        }
    }

    #[test]
    fn a_reader_that_hangs_costs_one_wait_and_lines_that_are_counted() {
        let (queue, go, taken) = slow();
        let start = Instant::now();
        queue.push(b"first\n");
        assert!(start.elapsed() >= LOG_TIMEOUT);
        let line = [&[b'x'; 99][..], b"\n"].concat();
        let lines = 2 * LOG_QUEUE_BYTES / line.len();
        let start = Instant::now();
        (0..lines).for_each(|_| queue.push(&line));
        queue.flush();
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        // The reader reads again: all queued lines, and the number of lost lines.
        (0..4).for_each(|_| go.send(()).unwrap());
        let text = || String::from_utf8(taken.lock().unwrap().clone()).unwrap();
        let end = Instant::now() + Duration::from_secs(20);
        while !text().contains("lost") && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        let text = text();
        let kept = text.matches(std::str::from_utf8(&line).unwrap()).count();
        assert_eq!(kept, LOG_QUEUE_BYTES / line.len());
        let lost = format!("[{} log lines lost: ", lines - kept);
        assert!(text.lines().last().unwrap().starts_with(&lost), "{:?}", text.lines().last());
        queue.push(b"last\n");
        assert!(taken.lock().unwrap().ends_with(b"last\n"), "in step again");
    }

    #[test]
    fn the_data_path_never_waits() {
        let (queue, _go, _taken) = slow();
        std::thread::spawn(move || {
            never_wait();
            let start = Instant::now();
            (0..100).for_each(|_| queue.push(b"x\n"));
            assert!(start.elapsed() < LOG_TIMEOUT);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_reader_that_is_gone_is_nobodys_end() {
        struct Gone;
        impl Write for Gone {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let queue = LogQueue::start_plain(Gone).unwrap();
        (0..1000).for_each(|_| queue.push(b"x\n"));
    }
}
