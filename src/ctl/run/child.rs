//! A child process that gets this process's signals, and whose exit status becomes this process's.
//!
//! Both processes are in one process group, so a terminal sends its signals to both. This process
//! passes on the signals that other processes send. This process stops once SIGTSTP is passed on,
//! and continues with the shell's SIGCONT, which both processes get.

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

/// Signals that this process passes on.
const PASSED: [i32; 9] =
    [SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH, SIGTSTP, SIGCONT];
/// Signals that a terminal sends to the whole process group in its foreground.
const OF_TERMINAL: [i32; 4] = [SIGINT, SIGQUIT, SIGTSTP, SIGWINCH];
/// Signals that end this process before the child starts.
const ENDING: [i32; 4] = [SIGTERM, SIGINT, SIGHUP, SIGQUIT];
/// Base of the exit status by which a shell reports the signal that ended a process.
const BY_SIGNAL: i32 = 128;

/// Signals of this process, which wait to be passed on and have no other effect.
pub struct Signals(SignalsInfo<WithOrigin>);

impl Signals {
    pub(crate) fn catch() -> Result<Signals, Failure> {
        let ignored = ignored();
        // A signal that this process ignores, as under nohup, stays ignored by both processes.
        let heeded = |number: &i32| ignored & 1u64.wrapping_shl(*number as u32 - 1) == 0;
        let numbers = PASSED.into_iter().filter(heeded);
        let caught = SignalsInfo::new(numbers.chain([SIGCHLD]));
        let cannot = |error| Failure::refused(format!("signals: {error}"));
        caught.map(Signals).map_err(cannot)
    }

    /// Runs a program to its end. Returns the exit status of the program, or the status for a
    /// signal that came before the start.
    pub(crate) fn run<'a>(
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
        // A terminal may have sent the pending signals before the child existed.
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

/// Sends a signal to the child. Nobody has waited for the child yet, so the number is still the
/// child's.
fn pass_on(child: &Child, number: i32) {
    let passed = PASSED.into_iter().find(|passed| *passed == number);
    let Some(signal) = passed.and_then(Signal::from_named_raw) else { return };
    // A child that has just ended needs no signal.
    let _ = kill_process(Pid::from_child(child), signal);
    stop_if(number);
}

fn stop_if(number: i32) {
    if number == SIGTSTP {
        let _ = emulate_default_handler(SIGTSTP);
    }
}

/// Returns the signals that this process was started to ignore, a bit for each signal.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok()).unwrap_or(0)
}
