//! The daemon as a process: started with a directory of its own, watched through /proc, stopped by
//! SIGTERM under the promise "exit 0 within 1 s", killed when a test panics.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::counters::{Counters, settled};
use super::sys;

/// The promise on SIGTERM.
pub const STOP_LIMIT: Duration = Duration::from_secs(1);
/// Arguments of `ip` that make an interface `control0`.
const ADD_TAP: &str = "tuntap add mode tap name control0";
const ADD_VETH: &str = "link add name control0 type veth peer name control1";
/// What the log says of a system call that the sandbox does not allow: the list lacks one.
pub const REFUSED: &str = "was refused (EPERM)";
const START_LIMIT: Duration = Duration::from_secs(10);

/// A directory that goes away with the value.
pub struct Dir(PathBuf);

impl Dir {
    /// A new one: a test that was killed has left its own, and process numbers come again.
    pub fn new() -> Dir {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let all = std::env::temp_dir();
        fs::create_dir_all(&all).expect("directory of temporary files");
        loop {
            let n = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = all.join(format!("vioswitch-{}-{n}", std::process::id()));
            match fs::create_dir(&path) {
                Ok(()) => return Dir(path),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => panic!("{}: {error}", path.display()),
            }
        }
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const CHILD: &str = "VIOSWITCH_TEST_ALONE";

/// Runs the body of test `test` (its whole path) in a process of its own that may have
/// `descriptors` open: the first call starts that process, in which the second gets to the body.
pub fn alone(test: &str, descriptors: u32, body: impl FnOnce()) {
    if std::env::var_os(CHILD).is_some() {
        return body();
    }
    let output = Command::new("sh")
        .args([
            "-c",
            "ulimit -n \"$1\" && exec \"$0\" --exact \"$2\" --include-ignored --nocapture",
        ])
        .arg(std::env::current_exe().expect("the test program"))
        .args([&descriptors.to_string(), test])
        .env(CHILD, "1")
        .output()
        .expect("start the test program");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1 passed"), "the child ran no test: {text}");
}

/// Waits until `done` answers true; false if the time is over.
pub fn wait_for(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + limit;
    loop {
        if done() {
            return true;
        }
        if Instant::now() >= end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Copies a program that is to be run. By another program: a descriptor of ours that can write to
/// it would for a moment be any child's that another thread starts meanwhile, and nobody can run
/// what somebody can write to (ETXTBSY).
pub fn copy_program(from: impl AsRef<Path>, to: &Path) {
    let status = Command::new("cp").arg(from.as_ref()).arg(to).status().expect("run cp");
    assert!(status.success(), "cp {} {}", from.as_ref().display(), to.display());
}

/// The program under test: the one that `VIOSWITCHD_BIN` names, or the one that cargo builds beside
/// the directory of the tests' own programs.
pub fn program() -> PathBuf {
    // A thread that has taken mounts of its own may have no path to this program any more.
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    let find = || {
        if let Some(named) = std::env::var_os("VIOSWITCHD_BIN") {
            return named.into();
        }
        let this = std::env::current_exe().expect("this program");
        let mut above = this.ancestors().map(|dir| dir.join("vioswitchd"));
        above.find(|path| path.is_file()).expect("vioswitchd above this program")
    };
    FOUND.get_or_init(find).clone()
}

/// How long the threads of process `pid` and this one's stood ready without a CPU, in all. What a
/// busy machine adds to a delay is told apart from what the daemon does by this. A process that was
/// waited for does not count, nor does a thread that has ended.
pub fn run_queue_wait(pid: u32) -> Duration {
    Duration::from_nanos(waits(pid).map(|(_, nanos)| nanos).sum())
}

/// The same in nanoseconds for each thread, by its number.
fn waits(pid: u32) -> impl Iterator<Item = (OsString, u64)> {
    let all = [format!("/proc/{pid}/task"), "/proc/self/task".to_owned()];
    let tasks = all.into_iter().filter_map(|dir| fs::read_dir(dir).ok()).flatten().flatten();
    tasks.filter_map(|task| {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        Some((task.file_name(), text.split_whitespace().nth(1)?.parse().ok()?))
    })
}

/// The same from a moment on, with what threads had waited that have ended since.
struct Waits {
    pid: u32,
    before: HashMap<OsString, u64>,
    last: HashMap<OsString, u64>,
}

impl Waits {
    fn of(pid: u32) -> Waits {
        Waits { pid, before: waits(pid).collect(), last: HashMap::new() }
    }

    /// To be called often: what a thread waits after the last look before its end is lost.
    fn look(&mut self) {
        self.last.extend(waits(self.pid));
    }

    fn total(&self) -> Duration {
        let before = |thread| self.before.get(thread).copied().unwrap_or_default();
        let each = self.last.iter().map(|(thread, &nanos)| nanos.saturating_sub(before(thread)));
        Duration::from_nanos(each.sum())
    }
}

/// Waits for a process's end for so long, and for as long again as its threads and this process's
/// waited for a CPU meanwhile, up to ten seconds.
pub fn ends_within(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let mut waits = Waits::of(child.id());
    let (mut status, mut looked) = (None, Instant::now());
    let mut ends = |limit| {
        wait_for(limit, || {
            status = child.try_wait().expect("wait");
            if status.is_none() && looked.elapsed() >= Duration::from_millis(10) {
                waits.look();
                looked = Instant::now();
            }
            status.is_some()
        });
        (status, waits.total())
    };
    match ends(limit) {
        (None, waited) => ends(waited.min(Duration::from_secs(10))).0,
        (status, _) => status,
    }
}

/// What a process holds and has used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    pub fds: usize,
    pub threads: usize,
    /// Of files, as guests' memory is: what malloc maps for its arenas depends on which threads
    /// meet at it.
    pub mappings: usize,
}

/// A line of /proc/PID/maps with an inode (proc_pid_maps(5)).
fn is_of_a_file(line: &str) -> bool {
    line.split_whitespace().nth(4).is_some_and(|inode| inode != "0")
}

/// This thread keeps to some CPUs; see [`Daemon::run_apart`].
pub struct Apart(Vec<usize>);

impl Drop for Apart {
    fn drop(&mut self) {
        sys::pin(0, &self.0);
    }
}

pub struct Daemon {
    child: Child,
    args: Vec<String>,
    sockets: Vec<PathBuf>,
    dir: Dir,
    /// Exit was seen by a test: nothing to kill.
    gone: bool,
}

impl Daemon {
    /// Starts `vioswitchd` with these arguments and does not wait for anything.
    pub fn spawn(dir: Dir, args: &[String]) -> Daemon {
        let child = Daemon::exec(&dir, args);
        Daemon { child, args: args.to_vec(), sockets: Vec::new(), dir, gone: false }
    }

    fn exec(dir: &Dir, args: &[String]) -> Child {
        let log = File::options().create(true).append(true).open(dir.path().join("log"));
        let log = log.expect("log file");
        let mut command = Command::new(program());
        command
            .args(args)
            .env("RUST_LOG", "info")
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("log file"))
            .stderr(log)
            .process_group(0);
        // SAFETY: prctl is async-signal-safe and touches no memory of the parent.
        unsafe {
            command.pre_exec(|| {
                // The daemon must not outlive an aborted test run.
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        command.spawn().expect("start vioswitchd")
    }

    /// Starts it again after [`Daemon::kill`], over the sockets the dead one left.
    pub fn restart(&mut self) {
        assert!(self.gone);
        self.child = Daemon::exec(&self.dir, &self.args);
        self.gone = false;
        // The stale sockets exist already: ready is when somebody answers there.
        let up =
            wait_for(START_LIMIT, || self.sockets.iter().all(|s| UnixStream::connect(s).is_ok()));
        assert!(up, "not back\n{}", self.log());
    }

    /// A switch with one server port per element (the element: further keys, such as ",queues=4"),
    /// ready to take connections at [`Daemon::socket`]. `VIOSWITCH_PORT_KEYS` has keys for all of
    /// them, so that tests run once more with what no frame of theirs depends on.
    pub fn with_ports(ports: &[&str], extra: &[&str]) -> Daemon {
        let dir = Dir::new();
        let mut args: Vec<String> = extra.iter().map(|s| s.to_string()).collect();
        let all = std::env::var("VIOSWITCH_PORT_KEYS").unwrap_or_default();
        for (i, keys) in ports.iter().enumerate() {
            let socket = dir.path().join(format!("s{i}"));
            args.push("--port".into());
            args.push(format!("p{i},socket={}{keys}{all}", socket.display()));
        }
        let mut d = Daemon::spawn(dir, &args);
        d.sockets = (0..ports.len()).map(|i| d.socket(i)).collect();
        d.wait_ready();
        d
    }

    /// `n` ports without further keys.
    pub fn with(n: usize, extra: &[&str]) -> Daemon {
        Daemon::with_ports(&vec![""; n], extra)
    }

    /// Ready is when all sockets exist. How long its threads waited for a CPU is added.
    fn wait_ready(&mut self) {
        let pid = self.pid();
        let mut ready = |limit| {
            wait_for(limit, || {
                let ended = self.child.try_wait().expect("wait");
                assert!(ended.is_none(), "daemon ended at start: {ended:?}\n{}", self.log());
                self.sockets.iter().all(|s| s.exists())
            })
        };
        let ready = ready(START_LIMIT) || ready(run_queue_wait(pid).min(START_LIMIT));
        assert!(ready, "sockets missing\n{}", self.log());
    }

    /// A port is gone for good: nobody waits for its socket when the switch starts again.
    pub fn forget_port(&mut self, port: usize) {
        let path = self.socket(port);
        self.sockets.retain(|socket| *socket != path);
    }

    pub fn socket(&self, port: usize) -> PathBuf {
        self.dir.path().join(format!("s{port}"))
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// All it has logged so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// Asks for the counters (SIGUSR1) and reads them from the log.
    pub fn counters(&self) -> Counters {
        settled(|| self.read_counters())
    }

    fn read_counters(&self) -> Counters {
        let before = self.log().len();
        assert!(sys::kill(self.pid(), libc::SIGUSR1), "daemon is gone");
        let mut len = before;
        // Complete when the last line came and nothing more follows.
        let done = wait_for(Duration::from_secs(10), || {
            std::thread::sleep(Duration::from_millis(30));
            let log = self.log();
            let now = log.len();
            let still = now == std::mem::replace(&mut len, now);
            still && log[before..].contains("] addresses ")
        });
        assert!(done, "no counters after SIGUSR1\n{}", self.log());
        Counters::parse(&self.log()[before..])
    }

    /// The same as soon as the report's last line is there, reading no more of the log than that:
    /// a millisecond instead of a tenth of a second, for who asks often.
    pub fn report(&self) -> Counters {
        let before = self.log_len();
        assert!(sys::kill(self.pid(), libc::SIGUSR1), "daemon is gone");
        let mut text = String::new();
        let done = wait_for(Duration::from_secs(10), || {
            text = self.log_after(before).0;
            text.contains("] addresses ")
        });
        assert!(done, "no counters after SIGUSR1\n{text}");
        Counters::parse(&text)
    }

    /// Whole lines of the log from byte `from` on, and where the next one begins.
    pub fn log_after(&self, from: u64) -> (String, u64) {
        let mut log = File::open(self.dir.path().join("log")).expect("log file");
        log.seek(SeekFrom::Start(from)).expect("seek");
        let mut text = Vec::new();
        log.read_to_end(&mut text).expect("log file");
        text.truncate(text.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1));
        let next = from + text.len() as u64;
        (String::from_utf8_lossy(&text).into_owned(), next)
    }

    pub fn log_len(&self) -> u64 {
        fs::metadata(self.dir.path().join("log")).map_or(0, |file| file.len())
    }

    /// Empties the log, which the daemon goes on appending to.
    pub fn forget_log(&self) {
        fs::write(self.dir.path().join("log"), "").expect("log file");
    }

    pub fn alive(&mut self) -> bool {
        self.child.try_wait().expect("wait").is_none()
    }

    fn proc(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{name}", self.pid()))
    }

    fn entries(&self, name: &str) -> usize {
        fs::read_dir(self.proc(name)).map(|d| d.count()).unwrap_or(0)
    }

    pub fn usage(&self) -> Usage {
        let maps = fs::read_to_string(self.proc("maps")).unwrap_or_default();
        Usage {
            fds: self.entries("fd"),
            threads: self.entries("task"),
            mappings: maps.lines().filter(|line| is_of_a_file(line)).count(),
        }
    }

    /// Mappings of any kind.
    pub fn mappings(&self) -> usize {
        fs::read_to_string(self.proc("maps")).unwrap_or_default().lines().count()
    }

    /// Resident memory that is its own, and no file's or guest's.
    pub fn private_kib(&self) -> u64 {
        let status = fs::read_to_string(self.proc("status")).expect("status");
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok()).expect("RssAnon")
    }

    /// The usage once it stands still: threads may be starting or ending yet.
    pub fn settled_usage(&self) -> Usage {
        let mut last = (self.usage(), Instant::now());
        let still = wait_for(Duration::from_secs(5), || {
            let now = self.usage();
            if now != last.0 {
                last = (now, Instant::now());
            }
            last.1.elapsed() > Duration::from_millis(100)
        });
        assert!(still, "usage never stands still: {:?}", last.0);
        last.0
    }

    /// Times any of its threads gave up the CPU by itself: each wake-up ends in one.
    pub fn voluntary_switches(&self) -> u64 {
        self.voluntary_switches_of("")
    }

    /// The same of its threads whose names begin so.
    pub fn voluntary_switches_of(&self, thread: &str) -> u64 {
        let tasks = fs::read_dir(self.proc("task")).expect("tasks");
        tasks
            .filter_map(|t| fs::read_to_string(t.ok()?.path().join("status")).ok())
            .filter(|s| s.strip_prefix("Name:\t").is_some_and(|name| name.starts_with(thread)))
            .filter_map(|s| {
                let line = s.lines().find(|l| l.starts_with("voluntary_ctxt_switches"))?;
                line.split_whitespace().last()?.parse::<u64>().ok()
            })
            .sum()
    }

    /// CPU time that its threads used, to the nanosecond.
    pub fn cpu_time(&self) -> Duration {
        let tasks = fs::read_dir(self.proc("task")).expect("tasks").flatten();
        let stats = tasks.filter_map(|t| fs::read_to_string(t.path().join("schedstat")).ok());
        let spent = stats.filter_map(|s| s.split_whitespace().next()?.parse::<u64>().ok());
        Duration::from_nanos(spent.sum())
    }

    /// CPU time used, in clock ticks (100 per second).
    pub fn cpu_ticks(&self) -> u64 {
        let stat = fs::read_to_string(self.proc("stat")).expect("stat");
        // Fields 14 and 15, counted after the name, which may hold spaces.
        let tail = stat.rsplit(')').next().expect("name");
        let ticks = tail.split_whitespace().skip(11).take(2);
        ticks.map(|v| v.parse::<u64>().expect("ticks")).sum()
    }

    /// Gives the daemon one CPU and this thread another, so that they truly run side by side: a
    /// wake-up otherwise tends to bring both to the same one, where they take turns. `None` if
    /// there is only one. Ends with the value.
    pub fn run_apart(&self) -> Option<Apart> {
        let all = sys::cpus();
        let [mine, its, ..] = all[..] else { return None };
        for t in fs::read_dir(self.proc("task")).expect("tasks").flatten() {
            let id = t.file_name().to_string_lossy().parse().expect("a thread's number");
            sys::pin(id, &[its]);
        }
        sys::pin(0, &[mine]);
        Some(Apart(all))
    }

    /// Gives the daemon's workers the last CPU, and the daemon's other threads and this one, with
    /// those it will start, all others: what a test and an attacker burn is not the workers'.
    /// `None` where there is only one. Ends with the value.
    pub fn spread_workers(&self) -> Option<Apart> {
        self.spread(&["worker-"])
    }

    /// The same for threads whose names begin so.
    pub fn spread(&self, names: &[&str]) -> Option<Apart> {
        let all = sys::cpus();
        let [others @ .., last] = &all[..] else { return None };
        if others.is_empty() {
            return None;
        }
        for t in fs::read_dir(self.proc("task")).expect("tasks").flatten() {
            let id = t.file_name().to_string_lossy().parse().expect("a thread's number");
            let name = fs::read_to_string(t.path().join("comm")).unwrap_or_default();
            let apart = names.iter().any(|begin| name.starts_with(begin));
            sys::pin(id, if apart { std::slice::from_ref(last) } else { others });
        }
        sys::pin(0, others);
        Some(Apart(all))
    }

    /// The names of its threads.
    pub fn thread_names(&self) -> Vec<String> {
        let tasks = fs::read_dir(self.proc("task")).expect("tasks").flatten();
        tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok()).collect()
    }

    /// The directory in /proc of its thread of this name, which it gives itself when it first runs.
    pub fn thread(&self, name: &str) -> PathBuf {
        let named = |path: &PathBuf| {
            fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim() == name)
        };
        let mut found = None;
        wait_for(Duration::from_secs(20), || {
            let tasks = fs::read_dir(self.proc("task")).expect("tasks").flatten();
            found = tasks.map(|task| task.path()).find(named);
            found.is_some()
        });
        found.expect(name)
    }

    /// How long the daemon's threads and this process's stood ready without a CPU, in all.
    pub fn run_queue_wait(&self) -> Duration {
        run_queue_wait(self.pid())
    }

    pub fn signal(&self, signal: libc::c_int) {
        assert!(sys::kill(self.pid(), signal), "daemon is gone\n{}", self.log());
    }

    /// Waits for the end; panics if it does not come in time. How long its threads and this process
    /// waited for a CPU meanwhile is added, up to ten seconds, and where it has a TAP or an XDP
    /// uplink, how long the kernel needs now to make and remove such an interface: it does such
    /// things one after the other, and waits for all CPUs over each.
    pub fn exit_status(&mut self, limit: Duration) -> ExitStatus {
        let mut status = ends_within(&mut self.child, limit);
        for (option, add) in [("--tap", ADD_TAP), ("--xdp", ADD_VETH)] {
            if status.is_none() && self.args.iter().any(|arg| arg.starts_with(option)) {
                let began = Instant::now();
                super::host::ip(add);
                super::host::ip("link del control0");
                // The way of an XDP uplink out of the kernel has several such steps.
                status = ends_within(&mut self.child, 4 * began.elapsed());
            }
        }
        let status = status.unwrap_or_else(|| panic!("runs after {limit:?}\n{}", self.log()));
        self.gone = true;
        status
    }

    /// SIGTERM: exit 0 within a second, sockets removed, no panic in the log.
    pub fn stop(mut self) {
        let start = Instant::now();
        self.signal(libc::SIGTERM);
        let status = self.exit_status(STOP_LIMIT);
        let log = self.log();
        assert!(status.success(), "{status} after {:?}\n{log}", start.elapsed());
        assert!(!log.contains("panicked"), "{log}");
        assert!(!log.contains(REFUSED), "{log}");
        let left = fs::read_dir(self.dir.path()).expect("directory");
        let left: Vec<_> = left.filter_map(|e| Some(e.ok()?.file_name())).collect();
        assert_eq!(left, ["log"], "sockets left behind");
    }

    /// SIGKILL, and the directory with the stale sockets for the next one.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.gone = true;
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let failed = std::thread::panicking();
        if !self.gone {
            let from = self.log_len();
            // A frame that is missing may have been dropped, and counted.
            if failed && sys::kill(self.pid(), libc::SIGUSR1) {
                let told = || self.log_after(from).0.contains("] addresses ");
                wait_for(Duration::from_secs(1), told);
            }
            self.kill();
        }
        if failed {
            eprintln!("--- log of the daemon\n{}", self.log());
        }
    }
}
