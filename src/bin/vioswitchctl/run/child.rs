//! A process that gets this one's signals, and whose status is this one's.
//!
//! Both are in one process group, so a terminal sends them its signals itself; those for this
//! process alone are passed on. It stops (SIGTSTP) when it has passed that on, and goes on with
//! the shell's SIGCONT, which both get.

use std::io::{ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{
    SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2, SIGWINCH,
};
use signal_hook::low_level;

use crate::failure::Failure;

/// What is passed on.
const PASSED: [(i32, Signal); 9] = [
    (SIGTERM, Signal::TERM),
    (SIGINT, Signal::INT),
    (SIGHUP, Signal::HUP),
    (SIGQUIT, Signal::QUIT),
    (SIGUSR1, Signal::USR1),
    (SIGUSR2, Signal::USR2),
    (SIGWINCH, Signal::WINCH),
    (SIGTSTP, Signal::TSTP),
    (SIGCONT, Signal::CONT),
];
/// A shell's status for a process that a signal ended.
const BY_SIGNAL: i32 = 128;

/// A running process, and what it is to be sent.
pub struct Running {
    child: Child,
    came: Vec<(Signal, Arc<AtomicBool>)>,
    /// Has a byte when something came.
    wake: UnixStream,
}

impl Running {
    pub fn start<'a>(
        program: &str,
        words: impl Iterator<Item = &'a String>,
    ) -> Result<Running, Failure> {
        let cannot = |error: std::io::Error| Failure::refused(format!("signals: {error}"));
        let (wake, other) = UnixStream::pair().map_err(cannot)?;
        let ignored = ignored();
        let mut came = Vec::new();
        // Before the start: nothing is lost, and nothing of it is inherited.
        for (number, signal) in PASSED.into_iter().chain([(SIGCHLD, Signal::CHILD)]) {
            // What is ignored, as under nohup, is so for both.
            if ignored & 1u64.wrapping_shl(number as u32 - 1) != 0 && number != SIGCHLD {
                continue;
            }
            let flag = Arc::new(AtomicBool::new(false));
            signal_hook::flag::register(number, Arc::clone(&flag)).map_err(cannot)?;
            let other = other.try_clone().map_err(cannot)?;
            low_level::pipe::register(number, other).map_err(cannot)?;
            if number != SIGCHLD {
                came.push((signal, flag));
            }
        }
        let child = Command::new(program).args(words).spawn();
        let child =
            child.map_err(|error| Failure::refused(format!("cannot start {program}: {error}")))?;
        Ok(Running { child, came, wake })
    }

    /// Its exit status.
    pub fn wait(&mut self) -> Result<u8, Failure> {
        let lost = |error: std::io::Error| Failure::refused(format!("wait: {error}"));
        loop {
            if let Some(status) = self.child.try_wait().map_err(lost)? {
                let signalled = status.signal().map(|signal| BY_SIGNAL + signal);
                let status = status.code().or(signalled).unwrap_or(1);
                return Ok(u8::try_from(status).unwrap_or(u8::MAX));
            }
            self.pass_on();
            match self.wake.read(&mut [0; 64]) {
                Err(error) if error.kind() != ErrorKind::Interrupted => return Err(lost(error)),
                _ => {}
            }
        }
    }

    fn pass_on(&self) {
        // It was not waited for yet, so the number is its own.
        let pid = Pid::from_child(&self.child);
        for (signal, came) in &self.came {
            if came.swap(false, Ordering::Relaxed) {
                // One that has just ended needs none.
                let _ = kill_process(pid, *signal);
                if *signal == Signal::TSTP {
                    let _ = low_level::emulate_default_handler(SIGTSTP);
                }
            }
        }
    }
}

/// The signals that this process was started to ignore, a bit each.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok()).unwrap_or(0)
}
