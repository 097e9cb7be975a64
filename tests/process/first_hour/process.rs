//! The daemon as a process of its own, with its log in a directory of its own.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use testkit::proc::{Dir, wait_for};
use testkit::sys;

pub use testkit::SOON;

pub fn vioswitchd() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vioswitchd"));
    command.env("RUST_LOG", "info").env_remove("NOTIFY_SOCKET").env_remove("JOURNAL_STREAM");
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// `--port=NAME,socket=DIR/NAME`
pub fn port(dir: &Path, name: &str) -> String {
    format!("--port={name},socket={}", dir.join(name).display())
}

/// Killed when a test panics.
pub struct Process {
    child: Child,
    pub dir: Dir,
}

impl Process {
    /// Starts `command` with standard error in the file `log` of `dir`.
    pub fn start(dir: Dir, mut command: Command) -> Process {
        let log = File::create(dir.path().join("log")).expect("log file");
        let child = command.stderr(log).spawn().expect("start vioswitchd");
        Process { child, dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Waits until the log says so.
    pub fn wait_log(&mut self, what: &str) {
        let said = wait_for(SOON, || {
            let over = self.child.try_wait().expect("wait").is_some();
            self.log().contains(what) || over
        });
        assert!(said && self.log().contains(what), "no {what:?}: {}", self.log());
    }

    pub fn signal(&self, signal: libc::c_int) {
        assert!(sys::kill(self.child.id(), signal));
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("wait").is_none()
    }

    pub fn ended(&mut self) -> ExitStatus {
        let mut status = None;
        wait_for(SOON, || {
            status = self.child.try_wait().expect("wait");
            status.is_some()
        });
        status.unwrap_or_else(|| panic!("still running: {}", self.log()))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
