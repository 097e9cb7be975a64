//! A daemon as a child process, as its tests start and end it.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use testkit::net::{Job, Net, Sizes};
use testkit::proc::{Dir, STOP_LIMIT, ends_within, wait_for};
use testkit::sys;
use testkit::traffic::To;
use testkit::vm::{Vm, VmConfig};

pub use testkit::SOON;

pub fn vioswitchd() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vioswitchd"));
    command.env("RUST_LOG", "info").env_remove("NOTIFY_SOCKET").stdin(Stdio::null());
    command
}

/// Runs it to its end.
pub fn run<S: AsRef<OsStr>>(args: &[S]) -> Output {
    vioswitchd().args(args).output().expect("run vioswitchd")
}

/// A daemon with the log in its directory, killed when a test panics.
pub struct Process {
    pub child: Child,
    pub dir: Dir,
}

impl Process {
    /// Starts it with `args` and whatever `prepare` does to the command.
    pub fn start<S: AsRef<OsStr>>(
        dir: Dir,
        args: &[S],
        prepare: impl FnOnce(&mut Command) -> &mut Command,
    ) -> Process {
        let log = File::create(dir.path().join("log")).expect("log file");
        let mut command = vioswitchd();
        command.args(args).stdout(Stdio::null()).stderr(log);
        let child = prepare(&mut command).spawn().expect("start vioswitchd");
        Process { child, dir }
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn wait_ready(&mut self) {
        let ready = wait_for(SOON, || {
            assert!(self.child.try_wait().expect("wait").is_none(), "ended: {}", self.log());
            self.log().contains("ready: ")
        });
        assert!(ready, "not ready: {}", self.log());
    }

    /// Status at its end, which must come within `limit`.
    pub fn ended(&mut self, limit: Duration) -> ExitStatus {
        let status = ends_within(&mut self.child, limit);
        status.unwrap_or_else(|| panic!("still running after {limit:?}: {}", self.log()))
    }

    /// A signal, exit 0 within a second, and the sockets of these names gone.
    pub fn stop(mut self, signal: libc::c_int, sockets: &[&str]) {
        assert!(sys::kill(self.child.id(), signal));
        let status = self.ended(STOP_LIMIT);
        assert_eq!(status.code(), Some(0), "{}", self.log());
        assert!(!self.log().contains("panicked"), "{}", self.log());
        for name in sockets {
            assert!(self.path(name).symlink_metadata().is_err(), "{name} is left");
        }
    }

    /// Status 1 and one line of log about it, which is answered.
    pub fn refused(mut self) -> String {
        let status = self.ended(SOON);
        let log = self.log();
        assert_eq!(status.code(), Some(1), "{log}");
        assert_eq!(log.lines().count(), 1, "{log}");
        assert!(log.contains(" ERROR"), "{log}");
        log
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn plain(command: &mut Command) -> &mut Command {
    command
}

/// `--port NAME,socket=DIR/NAME` with further keys.
pub fn port(dir: &Path, name: &str, keys: &str) -> String {
    format!("--port={name},socket={}{keys}", dir.join(name).display())
}

/// Guests 0 and 1 exchange frames.
pub fn exchange(vms: [Vm; 2]) {
    let mut net = Net::new(vms.into());
    net.announce();
    let job = |from: u8| Job::new(from.into(), To::Vm(1 - from), 200, Sizes::Range(60, 1514));
    net.run(&[job(0), job(1)]);
    net.finish();
}

pub fn vm(path: &Path, id: u8) -> Vm {
    Vm::connect(path, VmConfig::new(id))
}
