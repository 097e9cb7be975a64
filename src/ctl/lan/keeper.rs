//! The process that keeps a user's network: holds the namespace, runs the programs, and starts
//! programs again that end.
//!
//! Each program ends when the pipe from this process ends. So nothing of the network outlives this
//! process.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use api::wire::GetStatus;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process_group};
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};
use signal_hook::low_level::pipe;

use super::forward::PortForward;
use super::lines::Lines;
use super::namespaces;
use super::place::{Place, same_file};
use super::programs::{self, Wanted, bound, inside};
use super::protocol::{ForwardState, KeeperCall, NetworkState, ServiceState, serve};
use super::routes::Families;
use super::service::{Log, Service};
use crate::client::Client;
use crate::failure::Failure;
use crate::files::Replacement;

/// Longest wait for the namespace, which programs of the host make.
const NAMESPACE: Duration = Duration::from_secs(10);
/// Longest wait for relays to open their ports. The keeper answers nobody meanwhile.
const PORTS: Duration = Duration::from_secs(5);
/// Longest wait for the last words of a program that was killed: its children may hold the pipe.
const LAST_WORDS: Duration = Duration::from_millis(200);
/// Longest wait for the switch after its start.
const START: Duration = Duration::from_secs(10);
/// Longest wait for pasta's interface. Machines reach each other without the interface.
const OUTSIDE: Duration = Duration::from_secs(2);
/// Pause between two looks at a program that starts.
const STEP: Duration = Duration::from_millis(10);
/// Interval of the looks at the user's directory and at the host's name servers.
const LOOK: Duration = Duration::from_secs(10);
/// Time that each program has to end before the program is killed.
const PATIENCE: Duration = Duration::from_secs(2);

/// A forward, and the program that carries the forward.
struct Running {
    forward: PortForward,
    service: Service,
}

/// Why the keeper ends.
#[derive(PartialEq, Eq)]
enum End {
    /// `lan stop`: nothing stays.
    Stop,
    /// A signal: names, leases and forwards stay for the next start.
    Signal,
    /// The process that holds the namespace has ended.
    NamespaceLost,
    /// The user's directory is gone, as after the user's last session: no command finds the keeper.
    DirectoryLost,
}

pub(super) struct Keeper {
    place: Place,
    wanted: Wanted,
    /// This program. After an upgrade the kernel has another name for the old program's file.
    own: PathBuf,
    log: Log,
    /// The host's families at the last look.
    families: Families,
    holder: Child,
    services: Vec<Service>,
    forwards: Vec<Running>,
    child_ended: UnixStream,
    signalled: UnixStream,
    _lock: File,
}

impl Keeper {
    /// Makes the network. Returns once virtual machines can use the network.
    pub(super) fn start(place: Place, wanted: Wanted, lock: File) -> Result<Keeper, Failure> {
        let cannot = |error| Failure::refused(format!("signals: {error}"));
        let child_ended = signals(&[SIGCHLD]).map_err(cannot)?;
        let signalled = signals(&[SIGTERM, SIGINT]).map_err(cannot)?;
        let log = Log::open(&place.log());
        let log = log.map_err(|error| Failure::users_file("open", &place.log(), &error))?;
        let own = std::env::current_exe();
        let own = own.map_err(|error| Failure::refused(format!("own program: {error}")))?;
        let holder = hold(&wanted)?;
        let pid = holder.id();
        let switch = programs::switch(&switch_program(&own), &place);
        let dnsmasq = programs::dnsmasq(&wanted, &place);
        let service = |name, words| Service::new(name, words, &log);
        let services = vec![
            service("vioswitchd", inside(pid, switch)),
            service("dnsmasq", inside(pid, dnsmasq)),
            service("pasta", bound(programs::pasta(pid, &wanted))),
        ];
        let mut keeper = Keeper {
            place,
            wanted,
            own,
            log,
            families: Families::of("self"),
            holder,
            services,
            forwards: Vec::new(),
            child_ended,
            signalled,
            _lock: lock,
        };
        match keeper.begin() {
            Ok(()) => Ok(keeper),
            Err(failure) => {
                keeper.end();
                Err(failure)
            }
        }
    }

    fn begin(&mut self) -> Result<(), Failure> {
        for service in &mut self.services {
            service.start(false).map_err(Failure::refused)?;
        }
        let (control, end) = (self.place.control(), Instant::now() + START);
        while !answers(&control) {
            self.check_programs(Instant::now() >= end)?;
            std::thread::sleep(STEP);
        }
        let end = Instant::now() + OUTSIDE;
        while !self.has_outside() && Instant::now() < end && self.services[2].pid().is_some() {
            self.services[2].reap();
            std::thread::sleep(STEP);
        }
        self.check_programs(false)?;
        let kept = fs::read_to_string(self.place.forwards()).unwrap_or_default();
        let end = Instant::now() + PORTS;
        for forward in kept.lines().filter_map(|line| line.parse().ok()) {
            // A forward whose ports are taken waits for the ports.
            let (mut service, outcome) = self.launch(&forward, end);
            if let Err(reason) = outcome {
                self.log.line("forward", &reason);
                service.put_off();
            }
            self.forwards.push(Running { forward, service });
        }
        Ok(())
    }

    /// Fails if the switch or dnsmasq has ended, or if the time is over.
    fn check_programs(&mut self, is_late: bool) -> Result<(), Failure> {
        for service in &mut self.services[..2] {
            service.reap();
            if service.pid().is_none() || is_late {
                let said = service.last_line().unwrap_or_default();
                let log = self.place.log();
                // The log goes with the directory, so that the failure has the last line.
                let text = format!("{} does not start: {said}", service.name);
                self.log.line("lan", &format!("{text} ({})", log.display()));
                return Err(Failure::refused(text));
            }
        }
        Ok(())
    }

    /// True if pasta's interface is in the namespace.
    fn has_outside(&self) -> bool {
        let devices = fs::read_to_string(format!("/proc/{}/net/dev", self.holder.id()));
        let name = format!("{}:", programs::OUTER);
        devices.is_ok_and(|text| text.lines().any(|line| line.trim_start().starts_with(&name)))
    }

    /// Serves until the end. Removes everything if the user asked for that, but for the socket of a
    /// service manager (`is_managed`), which starts the next keeper.
    pub(super) fn run(mut self, listener: UnixListener, is_managed: bool) -> Result<(), Failure> {
        let own = fs::symlink_metadata(self.place.keeper()).ok();
        let is_own =
            |place: &Place| own.clone().is_some_and(|own| same_file(Ok(own), &place.keeper()));
        let mut look = Instant::now() + LOOK;
        let end = loop {
            let listening = self.wait(&listener, look);
            if drain(&mut self.signalled) {
                break End::Signal;
            }
            if drain(&mut self.child_ended) && self.reap() {
                break End::NamespaceLost;
            }
            self.all_services().for_each(Service::start_if_due);
            if look <= Instant::now() {
                if !is_own(&self.place) {
                    break End::DirectoryLost;
                }
                self.ask_present_servers();
                self.carry_present_families();
                look = Instant::now() + LOOK;
            }
            if listening && self.answer(&listener) {
                break End::Stop;
            }
        };
        // From now on no command finds this keeper.
        if !is_managed && is_own(&self.place) {
            let _ = fs::remove_file(self.place.keeper());
        }
        drop(listener);
        self.end();
        match end {
            End::Stop if is_managed => self.place.clear(),
            End::Stop => self.place.remove(),
            End::Signal | End::DirectoryLost => Ok(()),
            End::NamespaceLost => Err(Failure::refused("the namespace was ended".to_owned())),
        }
    }

    fn all_services(&mut self) -> impl Iterator<Item = &mut Service> {
        self.services.iter_mut().chain(self.forwards.iter_mut().map(|one| &mut one.service))
    }

    /// Restarts dnsmasq and pasta if /etc/resolv.conf now names a server on the host itself and did
    /// not before, or the reverse. Changes nothing while the file names no server.
    fn ask_present_servers(&mut self) {
        let has_own_dns = programs::has_own_dns().unwrap_or(self.wanted.has_own_dns);
        if has_own_dns != self.wanted.has_own_dns {
            self.wanted.has_own_dns = has_own_dns;
            self.replace_dnsmasq();
            self.replace_pasta();
        }
    }

    /// Restarts pasta if the host has got a way out by IPv4 or IPv6 that pasta does not carry.
    fn carry_present_families(&mut self) {
        let before = std::mem::replace(&mut self.families, Families::of("self"));
        let carried = Families::of(&self.holder.id().to_string());
        if self.families.exceed(before, carried) {
            self.replace_pasta();
        }
    }

    fn replace_pasta(&mut self) {
        let pasta = programs::pasta(self.holder.id(), &self.wanted);
        self.services[2].replace(bound(pasta), PATIENCE);
    }

    /// Starts dnsmasq anew, which forgets names only so.
    fn replace_dnsmasq(&mut self) {
        let dnsmasq = programs::dnsmasq(&self.wanted, &self.place);
        self.services[1].replace(inside(self.holder.id(), dnsmasq), PATIENCE);
    }

    /// Sleeps until something happens, at most until `look`; true if a client waits.
    fn wait(&mut self, listener: &UnixListener, look: Instant) -> bool {
        let due = self.all_services().filter_map(|service| service.due()).fold(look, Instant::min);
        let left = due.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).ok();
        let fds = [listener.as_fd(), self.child_ended.as_fd(), self.signalled.as_fd()];
        let mut fds = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        // An interrupted wait finds nothing, and begins again.
        let _ = poll(&mut fds, timeout.as_ref());
        !fds[0].revents().is_empty()
    }

    /// Notices ends of programs; true if the namespace is lost.
    fn reap(&mut self) -> bool {
        self.all_services().for_each(Service::reap);
        !matches!(self.holder.try_wait(), Ok(None))
    }

    /// Answers one request; true for the request to stop.
    fn answer(&mut self, listener: &UnixListener) -> bool {
        let mut stops = false;
        serve(listener, |request| match request {
            KeeperCall::Status => self.state(),
            KeeperCall::AddForward { forward } => {
                let outcome = forward.parse().and_then(|forward| self.add(forward));
                self.told(outcome)
            }
            KeeperCall::DeleteForward { forward } => {
                let outcome = forward.parse().and_then(|forward| self.delete(&forward));
                self.told(outcome)
            }
            KeeperCall::ForgetNames => {
                self.replace_dnsmasq();
                self.state()
            }
            KeeperCall::Stop => {
                stops = true;
                self.state()
            }
        });
        stops
    }

    fn told(&mut self, outcome: Result<(), String>) -> NetworkState {
        let kept = outcome.and_then(|()| {
            let lines = self.forwards.iter().map(|one| format!("{}\n", one.forward));
            let (path, text) = (self.place.forwards(), lines.collect::<String>());
            Replacement::prepare(&path, &text, None)
                .and_then(Replacement::commit)
                .map_err(|error| format!("cannot write {}: {error}", path.display()))
        });
        NetworkState { error: kept.err(), ..self.state() }
    }

    fn state(&mut self) -> NetworkState {
        let state = |service: &Service| ServiceState {
            name: service.name.clone(),
            pid: service.pid(),
            restarts: service.restarts,
            last_line: service.last_line(),
        };
        let forwards = self.forwards.iter().map(|one| ForwardState {
            forward: one.forward.to_string(),
            running: one.service.pid().is_some(),
            last_line: one.service.last_line(),
        });
        NetworkState {
            error: None,
            nat: self.wanted.nat.to_string(),
            host_loopback: self.wanted.host_loopback,
            outside: self.has_outside(),
            namespace: self.holder.id(),
            services: self.services.iter().map(state).collect(),
            forwards: forwards.collect(),
        }
    }

    fn add(&mut self, forward: PortForward) -> Result<(), String> {
        if self.forwards.iter().any(|one| one.forward == forward) {
            return Ok(());
        }
        if let Some(other) = self.forwards.iter().find(|one| one.forward.excludes(&forward)) {
            return Err(format!("forward {} has these ports", other.forward));
        }
        let (service, outcome) = self.launch(&forward, Instant::now() + PORTS);
        outcome.map(|()| self.forwards.push(Running { forward, service }))
    }

    /// Starts the relay of a forward. Returns the reason if the relay did not get its ports until
    /// `end`.
    fn launch(&self, forward: &PortForward, end: Instant) -> (Service, Result<(), String>) {
        let (leases, holder) = (self.place.leases(), self.holder.id());
        let own = self.own.display().to_string();
        let mut words = vec![own, "lan".into(), "relay".into(), forward.to_string()];
        words.extend([holder.to_string(), leases.display().to_string()]);
        let mut service = Service::new(&forward.to_string(), bound(words), &self.log);
        let outcome = begun(&mut service, end);
        if outcome.is_err() {
            service.stop(Duration::ZERO);
        }
        let outcome = outcome.map_err(|reason| service.last_line().unwrap_or(reason));
        (service, outcome)
    }

    fn delete(&mut self, forward: &PortForward) -> Result<(), String> {
        let at = self.forwards.iter().position(|one| one.forward == *forward);
        let at = at
            .ok_or_else(|| format!("there is no forward {forward}; see vioswitchctl lan status"))?;
        self.forwards.remove(at).service.stop(Duration::ZERO);
        Ok(())
    }

    /// Ends all programs; the namespace last.
    fn end(&mut self) {
        self.forwards.iter_mut().for_each(|one| one.service.stop(Duration::ZERO));
        self.services.iter_mut().for_each(|service| service.stop(PATIENCE));
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// Starts a relay, and waits until `end` for its word that the ports are open.
fn begun(relay: &mut Service, end: Instant) -> Result<(), String> {
    let output = relay.start(true)?.ok_or("no output")?;
    // The relay says something at once, or ends.
    let line = Lines::new(output).next(end);
    match line.as_deref() {
        Ok("ready") => Ok(()),
        Err(error) if error.kind() == ErrorKind::TimedOut => {
            let seconds = PORTS.as_secs();
            Err(format!("the program that carries the forward opens no ports within {seconds} s"))
        }
        _ => Err("the program that carries the forward ended; see the log".to_owned()),
    }
}

/// Returns a pipe that gets a byte for each of these signals.
fn signals(numbers: &[i32]) -> std::io::Result<UnixStream> {
    let (read, write) = UnixStream::pair()?;
    read.set_nonblocking(true)?;
    for number in numbers {
        pipe::register(*number, write.try_clone()?)?;
    }
    Ok(read)
}

/// Empties a pipe; true if anything was in the pipe.
fn drain(pipe: &mut UnixStream) -> bool {
    let mut buffer = [0; 64];
    let mut any = false;
    while pipe.read(&mut buffer).is_ok_and(|count| count > 0) {
        any = true;
    }
    any
}

/// Starts the process that holds the namespace. The process ends with the pipe to its standard
/// input.
fn hold(wanted: &Wanted) -> Result<Child, Failure> {
    let words = programs::holder(wanted);
    let child = programs::command(&words[0], &words[1..])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn();
    let mut child =
        child.map_err(|error| Failure::refused(format!("cannot start {}: {error}", words[0])))?;
    let end = Instant::now() + NAMESPACE;
    let lines = child.stdout.take().map(Lines::new);
    let (first, second) = lines.map_or((String::new(), Ok(String::new())), |mut lines| {
        let first = lines.next(end).unwrap_or_default();
        (first, lines.next(end))
    });
    if second.as_deref().is_ok_and(|line| line == "ready") {
        return Ok(child);
    }
    // With the program that the process waits for.
    let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
    let errors = child.stderr.take().map(Lines::new);
    let said = errors.map(|errors| errors.all(Instant::now() + LAST_WORDS)).unwrap_or_default();
    let _ = child.wait();
    if second.is_err_and(|error| error.kind() == ErrorKind::TimedOut) {
        let seconds = NAMESPACE.as_secs();
        let text = format!("the namespace is not ready after {seconds} s: {}", said.trim());
        return Err(Failure::refused(text.trim_end_matches([':', ' ']).to_owned()));
    }
    Err(Failure::refused(match first.as_str() {
        "namespace" => namespaces::why_bare(Path::new("/dev/net/tun"), &said),
        _ => namespaces::why(Path::new("/proc/sys"), &said),
    }))
}

/// True if the switch answers.
pub(super) fn answers(control: &Path) -> bool {
    Client::to_ask(control).and_then(|mut client| client.call(&GetStatus {})).is_ok()
}

/// Returns the daemon's program: beside this program, otherwise by `PATH`.
fn switch_program(own: &Path) -> PathBuf {
    let beside = own.with_file_name("vioswitchd");
    if beside.is_file() { beside } else { "vioswitchd".into() }
}

/// Tells the starting process how the start went; nobody may listen.
pub(super) fn report(outcome: Result<(), &Failure>) {
    let line = match outcome {
        Ok(()) => "ready".to_owned(),
        Err(failure) => failure.json().to_string(),
    };
    let _ = writeln!(std::io::stdout(), "{line}");
}
