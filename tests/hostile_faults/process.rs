//! The daemon as a process, started in ways that [`testkit::proc::Daemon`] has no word for:
//! with other standard descriptors, under a tracer, with a library before the others.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use testkit::counters::{Counters, settled};
use testkit::net::Net;
use testkit::proc::{Dir, STOP_LIMIT, wait_for};
use testkit::sys;
use testkit::vm::{Vm, VmConfig};

pub use testkit::SOON;

/// A daemon with ports p0, p1, … at sockets s0, s1, …
pub struct Process {
    child: Child,
    dir: Dir,
    ports: usize,
    ended: bool,
}

impl Process {
    /// The daemon's own binary as a command, with a log file; `change` has the last word.
    pub fn start(ports: usize, extra: &[&str], change: impl FnOnce(&mut Command)) -> Process {
        Process::wrapped(&[], ports, extra, change)
    }

    /// The same, run by another program whose words come first and which becomes the daemon.
    pub fn wrapped(
        wrapper: &[&str],
        ports: usize,
        extra: &[&str],
        change: impl FnOnce(&mut Command),
    ) -> Process {
        let dir = Dir::new();
        let binary = env!("CARGO_BIN_EXE_vioswitchd");
        let mut words: Vec<&str> = wrapper.to_vec();
        words.push(binary);
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).args(extra);
        for i in 0..ports {
            let socket = dir.path().join(format!("s{i}"));
            command.arg("--port").arg(format!("p{i},socket={}", socket.display()));
        }
        let log = std::fs::File::create(dir.path().join("log")).expect("log file");
        command.env("RUST_LOG", "info").process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        // SAFETY: prctl is async-signal-safe and touches no memory of the parent.
        unsafe {
            command.pre_exec(|| {
                // The daemon must not outlive an aborted test run.
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        change(&mut command);
        let child = command.spawn().unwrap_or_else(|error| panic!("{}: {error}", words[0]));
        Process { child, dir, ports, ended: false }
    }

    pub fn socket(&self, port: usize) -> PathBuf {
        self.dir.path().join(format!("s{port}"))
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    pub fn status(&mut self) -> Option<ExitStatus> {
        let status = self.child.try_wait().expect("wait");
        self.ended |= status.is_some();
        status
    }

    /// Waits until all sockets exist, or the daemon has ended.
    pub fn ready_or_ended(&mut self, limit: Duration) -> Option<ExitStatus> {
        let mut status = None;
        let done = wait_for(limit, || {
            status = self.status();
            status.is_some() || (0..self.ports).all(|i| self.socket(i).exists())
        });
        assert!(done, "neither ready nor ended after {limit:?}\n{}", self.log());
        status
    }

    pub fn ready(&mut self) {
        let ended = self.ready_or_ended(Duration::from_secs(20));
        assert!(ended.is_none(), "{ended:?}\n{}", self.log());
    }

    pub fn connect(&self, id: usize) -> Vm {
        Vm::connect(&self.socket(id), VmConfig::new(id as u8))
    }

    /// Two guests on the first ports, known to the switch.
    pub fn pair(&self) -> Net {
        let mut net = Net::new((0..2).map(|id| self.connect(id)).collect());
        net.announce();
        net
    }

    pub fn signal(&self, signal: libc::c_int) {
        assert!(sys::kill(self.pid(), signal), "the daemon is gone\n{}", self.log());
    }

    /// The counters, from the log.
    pub fn counters(&self) -> Counters {
        settled(|| self.read_counters())
    }

    fn read_counters(&self) -> Counters {
        let before = self.log().len();
        self.signal(libc::SIGUSR1);
        let whole = || self.log()[before..].lines().any(|line| line.contains("] addresses "));
        assert!(wait_for(SOON, whole), "no counters\n{}", self.log());
        Counters::parse(&self.log()[before..])
    }

    /// The numbers of the threads of this name.
    pub fn threads(&self, name: &str) -> Vec<u32> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid())).expect("tasks");
        let named = tasks.flatten().filter(|task| {
            let comm = std::fs::read_to_string(task.path().join("comm"));
            comm.is_ok_and(|comm| comm.trim_end() == name)
        });
        named.filter_map(|task| task.file_name().to_string_lossy().parse().ok()).collect()
    }

    /// CPU time used, in clock ticks (100 per second).
    pub fn cpu_ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).expect("stat");
        let tail = stat.rsplit(')').next().expect("name");
        tail.split_whitespace().skip(11).take(2).map(|v| v.parse::<u64>().expect("ticks")).sum()
    }

    /// How long its main thread, which does the starting, stood ready without a CPU.
    pub fn main_thread_wait(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/schedstat", self.pid()));
        let stat = stat.unwrap_or_default();
        let nanos = stat.split_whitespace().nth(1).and_then(|n| n.parse().ok());
        Duration::from_nanos(nanos.unwrap_or(0))
    }

    /// Nanoseconds its threads and ours stood ready without a CPU: what a busy machine adds.
    pub fn run_queue_wait(&self) -> Duration {
        testkit::proc::run_queue_wait(self.pid())
    }

    pub fn alive(&mut self) {
        let status = self.status();
        assert!(status.is_none(), "{status:?}\n{}", self.log());
    }

    /// SIGTERM: status 0 within a second, and no panic in the log.
    pub fn stop(mut self) {
        self.alive();
        let (start, waited) = (Instant::now(), self.run_queue_wait());
        self.signal(libc::SIGTERM);
        let mut took = Duration::ZERO;
        let ended = wait_for(20 * STOP_LIMIT, || {
            took = start.elapsed().saturating_sub(self.run_queue_wait().saturating_sub(waited));
            self.status().is_some()
        });
        let log = self.log();
        assert!(ended && took < STOP_LIMIT, "running {took:?} after SIGTERM\n{log}");
        let status = self.child.wait().expect("wait");
        assert!(status.success(), "{status}\n{log}");
        assert!(!log.contains("panicked"), "{log}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.ended {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        if std::thread::panicking() {
            let _ = writeln!(std::io::stderr(), "--- log of the daemon\n{}", self.log());
        }
    }
}
