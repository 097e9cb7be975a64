//! A process that gets this one's signals, and whose status is this one's.
//!
//! Both are in one process group, so a terminal sends its signals to both; those that another
//! process sends are passed on. This process stops (SIGTSTP) when it has passed that on, and goes
//! on with the shell's SIGCONT, which both get.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command};

use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{
    SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2, SIGWINCH,
};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::emulate_default_handler;
use signal_hook::low_level::siginfo::{Cause, Origin};

use crate::failure::Failure;

/// Signals that are passed on.
const PASSED: [i32; 9] =
    [SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH, SIGTSTP, SIGCONT];
/// Signals that a terminal sends to the whole group in front of it.
const OF_TERMINAL: [i32; 4] = [SIGINT, SIGQUIT, SIGTSTP, SIGWINCH];
/// Signals that end a process which has not begun its work.
const ENDING: [i32; 4] = [SIGTERM, SIGINT, SIGHUP, SIGQUIT];
/// A shell's status for a process that a signal ended.
const BY_SIGNAL: i32 = 128;

/// This process's signals, which from now on do nothing but wait to be passed on.
pub struct Signals(SignalsInfo<WithOrigin>);

impl Signals {
    pub fn catch() -> Result<Signals, Failure> {
        let ignored = ignored();
        // What is ignored, as under nohup, is so for both.
        let heeded = |number: &i32| ignored & 1u64.wrapping_shl(*number as u32 - 1) == 0;
        let numbers = PASSED.into_iter().filter(heeded);
        let caught = SignalsInfo::new(numbers.chain([SIGCHLD]));
        let cannot = |error| Failure::refused(format!("signals: {error}"));
        caught.map(Signals).map_err(cannot)
    }

    /// Runs a program to its end: its exit status; or that of a signal which came before.
    pub fn run<'a>(
        mut self,
        program: &str,
        words: impl Iterator<Item = &'a String>,
    ) -> Result<u8, Failure> {
        let ends = |origin: &Origin| ENDING.contains(&origin.signal);
        if let Some(origin) = self.0.pending().find(ends) {
            return Ok(status(BY_SIGNAL + origin.signal));
        }
        let mut child = Command::new(program)
            .args(words)
            .spawn()
            .map_err(|error| Failure::refused(format!("cannot start {program}: {error}")))?;
        // A terminal may have sent these before there was a child.
        self.0.pending().for_each(|origin| pass_on(&child, origin.signal));
        loop {
            let lost = |error| Failure::refused(format!("wait: {error}"));
            if let Some(ended) = child.try_wait().map_err(lost)? {
                let signalled = ended.signal().map(|signal| BY_SIGNAL + signal);
                return Ok(status(ended.code().or(signalled).unwrap_or(1)));
            }
            for origin in self.0.wait() {
                match OF_TERMINAL.contains(&origin.signal) && origin.cause == Cause::Kernel {
                    true => stop_if(origin.signal),
                    false => pass_on(&child, origin.signal),
                }
            }
        }
    }
}

fn status(number: i32) -> u8 {
    u8::try_from(number).unwrap_or(u8::MAX)
}

/// It was not waited for yet, so the number is its own.
fn pass_on(child: &Child, number: i32) {
    let passed = PASSED.into_iter().find(|passed| *passed == number);
    let Some(signal) = passed.and_then(Signal::from_named_raw) else { return };
    // One that has just ended needs none.
    let _ = kill_process(Pid::from_child(child), signal);
    stop_if(number);
}

fn stop_if(number: i32) {
    if number == SIGTSTP {
        let _ = emulate_default_handler(SIGTSTP);
    }
}

/// The signals that this process was started to ignore, a bit each.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok()).unwrap_or(0)
}
