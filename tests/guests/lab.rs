//! A network namespace, a scratch directory and a daemon, all gone when the test ends.
//!
//! The namespace has no name: a sleeping process holds it, so a killed test leaves none behind.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use super::{tail, wait_for};
use testkit::counters::{Counters, at_rest};
use testkit::proc::program;

/// The host's end of the TAP.
pub const TAP: &str = "uplink0";

/// Ethernet address of the host's end of the TAP.
pub const TAP_MAC: &str = "52:54:00:99:ff:fe";

/// Addresses of the host's end of the TAP.
pub const HOST_IP4: &str = "10.99.0.254";
/// The same in IPv6.
pub const HOST_IP6: &str = "fd00:99::fe";

/// The daemon promises to leave within one second; the second one is the test machine's, whose
/// two cores also run guests.
const STOP_LIMIT: Duration = Duration::from_secs(2);

/// One test's surroundings.
pub struct Lab {
    dir: PathBuf,
    /// Holds the namespace; `None` for tests that need no network.
    holder: Option<Child>,
    daemon: Option<Child>,
    /// Those that the daemon listens on.
    sockets: Vec<PathBuf>,
}

impl Lab {
    /// An empty directory, and no network; `name` appears in the directory's name.
    pub fn without_network(name: &str) -> Lab {
        let dir = std::env::temp_dir().join(format!("vioswitch-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir(&dir).expect("make the scratch directory");
        Lab { dir, holder: None, daemon: None, sockets: Vec::new() }
    }

    /// An empty directory and a namespace with nothing but its loopback.
    pub fn new(name: &str) -> Lab {
        let mut lab = Lab::without_network(name);
        lab.holder = Some(hold_namespace());
        lab.sh("ip link set lo up");
        lab
    }

    /// Another daemon's surroundings in the same namespace: two switches on one host.
    pub fn beside(&self, name: &str) -> Lab {
        let mut lab = Lab::without_network(name);
        let mut sleep = self.in_netns("sleep");
        lab.holder = Some(await_namespace(sleep.arg("infinity")));
        lab
    }

    /// A path in the scratch directory.
    pub fn path(&self, file: &str) -> PathBuf {
        self.dir.join(file)
    }

    /// A command that runs in the namespace, if there is one, and dies with the test.
    pub fn in_netns(&self, program: impl AsRef<OsStr>) -> Command {
        in_netns(self.holder.as_ref(), program)
    }

    /// Runs a shell script in the namespace; panics with its output unless it succeeds.
    pub fn sh(&self, script: &str) -> String {
        let out = self.in_netns("sh").args(["-c", script]).output().expect("run sh");
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        let errors = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "`{script}` failed on the host: {text}{errors}");
        text
    }

    /// Starts the daemon under test and waits until its listening sockets exist.
    pub fn start_daemon(&mut self, args: &[String]) {
        assert!(self.daemon.is_none(), "one daemon at a time");
        let log = File::create(self.log_path()).expect("create the daemon's log");
        let child = self
            .in_netns(program())
            .args(args)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("clone the log"))
            .stderr(log)
            .spawn()
            .expect("start vioswitchd");
        self.daemon = Some(child);
        // Its word, not its sockets or its TAP: those of one that was killed may still be there.
        wait_for("the daemon to be ready", Duration::from_secs(20), || {
            assert!(self.daemon_runs(), "the daemon left at once");
            let log = std::fs::read_to_string(self.log_path()).ok()?;
            log.contains("] ready: ").then_some(())
        });
        self.sockets = listening_sockets(args).map(Path::to_path_buf).collect();
    }

    /// Gives the host's end of the TAP its addresses and brings it up. Its Ethernet address too: a
    /// TAP that is made anew after a crash has another one, and until a guest has noticed that its
    /// link was away, which takes its kernel up to a second, it would ask the old one.
    pub fn configure_tap(&self) {
        self.wait_tap(TAP);
        self.sh(&format!(
            "ip link set {TAP} address {TAP_MAC} up && ip addr add {HOST_IP4}/24 dev {TAP} && \
             ip -6 addr add {HOST_IP6}/64 dev {TAP} nodad"
        ));
    }

    /// Joins the TAPs of two daemons by a bridge, which gets the host's addresses.
    pub fn bridge_taps(&self, taps: [&str; 2]) {
        self.sh("ip link add br0 type bridge");
        for tap in taps {
            self.wait_tap(tap);
            self.sh(&format!("ip link set {tap} master br0 && ip link set {tap} up"));
        }
        self.sh(&format!(
            "ip link set br0 up && ip addr add {HOST_IP4}/24 dev br0 && \
             ip -6 addr add {HOST_IP6}/64 dev br0 nodad"
        ));
    }

    /// Waits until the daemon has made an interface.
    pub fn wait_tap(&self, tap: &str) {
        wait_for("the TAP", Duration::from_secs(10), || {
            let found = self.in_netns("ip").args(["link", "show", tap]).output().ok()?;
            found.status.success().then_some(())
        });
    }

    /// Whether the daemon is still there.
    pub fn daemon_runs(&mut self) -> bool {
        self.daemon.as_mut().is_some_and(|d| d.try_wait().expect("wait").is_none())
    }

    /// Pieces of guests' memory that the daemon has mapped.
    pub fn mapped_regions(&self) -> usize {
        let pid = self.daemon.as_ref().expect("a running daemon").id();
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("read the maps");
        maps.lines().filter(|line| line.contains("/memfd:")).count()
    }

    /// What the daemon complained about so far, a line each.
    pub fn complaints(&self) -> String {
        let log = std::fs::read_to_string(self.log_path()).expect("read the log");
        let bad = |line: &&str| line.contains(" WARN ") || line.contains(" ERROR ");
        log.lines().filter(bad).map(|line| format!("{line}\n")).collect()
    }

    /// Makes the daemon log its counters and reads them.
    pub fn counters(&mut self) -> Counters {
        let before = std::fs::read(self.log_path()).expect("read the log").len();
        self.signal_daemon("USR1");
        wait_for("the counters in the log", Duration::from_secs(10), || {
            let log = std::fs::read(self.log_path()).expect("read the log");
            Counters::complete(&String::from_utf8_lossy(&log[before..]))
        })
    }

    /// The counters once traffic rests.
    pub fn counters_at_rest(&mut self) -> Counters {
        at_rest(|| self.counters())
    }

    /// SIGTERM: the daemon must leave with status 0 and in time, remove its sockets, and log
    /// counters that balance, whoever is still attached.
    pub fn stop_daemon(&mut self) {
        let before = std::fs::read(self.log_path()).expect("read the log").len();
        self.signal_daemon("TERM");
        let start = Instant::now();
        let mut daemon = self.daemon.take().expect("a running daemon");
        let status: ExitStatus = wait_for("the daemon to leave", Duration::from_secs(10), || {
            daemon.try_wait().expect("wait for the daemon")
        });
        let took = start.elapsed();
        assert!(status.success(), "the daemon left with {status}:\n{}", self.log_tail());
        assert!(took < STOP_LIMIT, "the daemon took {took:?} to leave");
        for socket in self.sockets.drain(..) {
            assert!(!socket.exists(), "{} was left behind", socket.display());
        }
        let log = std::fs::read(self.log_path()).expect("read the log");
        let counters = Counters::complete(&String::from_utf8_lossy(&log[before..]));
        counters.expect("counters in the log at the end").assert_balanced();
    }

    /// SIGKILL: what a crash leaves.
    pub fn kill_daemon(&mut self) {
        let mut daemon = self.daemon.take().expect("a running daemon");
        daemon.kill().expect("kill the daemon");
        daemon.wait().expect("wait for the daemon");
    }

    fn signal_daemon(&self, signal: &str) {
        let pid = self.daemon.as_ref().expect("a running daemon").id();
        self.sh(&format!("kill -{signal} {pid}"));
    }

    fn log_path(&self) -> PathBuf {
        self.path("vioswitchd.log")
    }

    fn log_tail(&self) -> String {
        tail(&self.log_path(), 60)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- vioswitchd, end of its log:\n{}", self.log_tail());
        }
        for child in [&mut self.daemon, &mut self.holder].into_iter().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// A command that runs in the holder's namespace, or in the test's own, and dies with the test.
pub fn in_netns(holder: Option<&Child>, program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]);
    if let Some(holder) = holder {
        command.args(["nsenter", "--net", "--target", &holder.id().to_string()]);
    }
    command.arg(program);
    command
}

/// A process that holds a network namespace of its own and dies with the test.
pub fn hold_namespace() -> Child {
    let mut unshare = Command::new("setpriv");
    unshare.args(["--pdeathsig", "KILL", "unshare", "--net", "sleep", "infinity"]);
    await_namespace(&mut unshare)
}

/// Starts a process that will sleep in another namespace than the test's, and waits until it does.
fn await_namespace(sleep: &mut Command) -> Child {
    let holder =
        sleep.stdin(Stdio::null()).spawn().expect("start the process that holds the namespace");
    let namespace = format!("/proc/{}/ns/net", holder.id());
    let own = std::fs::read_link("/proc/self/ns/net").expect("own namespace");
    wait_for("the network namespace", Duration::from_secs(10), || {
        (std::fs::read_link(&namespace).ok()? != own).then_some(())
    });
    holder
}

/// The sockets that the daemon itself creates, from its `--port` arguments.
fn listening_sockets(args: &[String]) -> impl Iterator<Item = &Path> {
    args.iter()
        .filter(|arg| arg.contains(",socket=") && !arg.contains(",mode=client"))
        .filter_map(|arg| arg.split(',').find_map(|part| part.strip_prefix("socket=")))
        .map(Path::new)
}

/// `--port NAME,socket=PATH…` as two arguments; `options` starts with a comma or is empty.
pub fn port(name: &str, socket: &Path, options: &str) -> [String; 2] {
    ["--port".into(), format!("{name},socket={}{options}", socket.display())]
}

/// `--tap` for the namespace's uplink.
pub fn tap() -> [String; 2] {
    ["--tap".into(), format!("uplink,ifname={TAP}")]
}
