//! Starts the keeper, or finds the running keeper.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::keeper::{Keeper, report};
use super::lines::Lines;
use super::place::Place;
use super::programs::{NEEDED, Wanted, has_own_dns, paths};
use super::protocol::{KeeperCall, NetworkState, ask};
use super::{StartOptions, ipv4};
use crate::failure::Failure;
use crate::network::host::Net;
use crate::output::say;
use sys::inherited;
use sys::notify::notify;

/// Address of the network without `--nat`.
const DEFAULT_NAT: &str = "10.78.0.1/24";
/// Longest wait for a keeper that another command starts.
const OTHER: Duration = Duration::from_secs(20);
/// Longest wait for a keeper to tell how its start went: longer than all waits of the keeper.
const KEEPER: Duration = Duration::from_secs(60);
const STEP: Duration = Duration::from_millis(100);
/// Line of a keeper that finds another keeper.
const TAKEN: &str = "taken";

/// Returns the state of the network, which runs afterwards.
pub(super) fn ensure(place: &Place, options: &StartOptions) -> Result<NetworkState, Failure> {
    if let Some(answer) = ask(place, &KeeperCall::Status)? {
        return check(answer, options);
    }
    examine(options)?;
    let end = Instant::now() + OTHER;
    loop {
        let is_new = place.make()?;
        match spawn(place, options)?.as_str() {
            "ready" => break,
            // Another keeper starts, or ends.
            TAKEN if Instant::now() < end => {
                std::thread::sleep(STEP);
                if let Some(answer) = ask(place, &KeeperCall::Status)? {
                    return check(answer, options);
                }
            }
            TAKEN => break,
            line => {
                if is_new && let Some(_lock) = place.lock()? {
                    place.remove()?;
                }
                return Err(told(line));
            }
        }
    }
    let silent = || Failure::refused(format!("the network ended; see {}", place.log().display()));
    ask(place, &KeeperCall::Status)?.ok_or_else(silent)
}

/// Refuses options that the running network does not have.
fn check(answer: NetworkState, options: &StartOptions) -> Result<NetworkState, Failure> {
    let has_nat = options.nat.is_none_or(|nat| nat.to_string() == answer.nat);
    let has_loopback = !options.host_loopback || answer.host_loopback;
    match has_nat && has_loopback {
        true => Ok(answer),
        false => {
            let text = "the network runs with other options; to stop it: vioswitchctl lan stop; \
                        options of the unit: systemctl --user edit vioswitch-lan";
            Err(Failure::refused(text.to_owned()))
        }
    }
}

/// Checks what the network needs of the host.
fn examine(options: &StartOptions) -> Result<(), Failure> {
    if is_root() {
        let text = "lan is for ordinary users, as pasta refuses root: runuser -u USER -- \
                    vioswitchctl lan; root has vioswitchctl network";
        return Err(Failure::refused(text.to_owned()));
    }
    let missing = NEEDED.iter().filter(|(program, _)| !is_there(program));
    let (programs, mut packages): (Vec<&str>, Vec<&str>) = missing.copied().unzip();
    packages.dedup();
    if !packages.is_empty() {
        let (programs, packages) = (programs.join(", "), packages.join(" "));
        let text = format!("programs are missing ({programs}): apt install {packages}");
        return Err(Failure::refused(text));
    }
    judge(options)
}

/// Refuses a network that the host has already: virtual machines could not reach the host's.
fn judge(options: &StartOptions) -> Result<(), Failure> {
    let nat = options.nat.map_or_else(|| ipv4(DEFAULT_NAT), Ok).map_err(Failure::usage)?;
    let judged = Net::look().map_or(Ok(Vec::new()), |net| net.judge_address(nat, ""));
    let notes = judged.map_err(|failure| failure.told_as(|text| format!("{text}, by --nat")))?;
    notes.iter().for_each(|note| say(note));
    Ok(())
}

/// True for the root of the host; the root of a user namespace is an ordinary user.
fn is_root() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let is_whole = map.split_whitespace().eq(["0", "0", "4294967295"]);
    rustix::process::geteuid().is_root() && is_whole
}

fn is_there(program: &str) -> bool {
    paths().split(':').any(|directory| Path::new(directory).join(program).is_file())
}

/// Starts the keeper in the background. Returns the line that tells how the start went.
fn spawn(place: &Place, options: &StartOptions) -> Result<String, Failure> {
    let cannot = |error| Failure::refused(format!("cannot start the network's keeper: {error}"));
    let log = File::options().create(true).append(true).open(place.log());
    let log = log.map_err(|error| Failure::users_file("open", &place.log(), &error))?;
    let mut command = Command::new(std::env::current_exe().map_err(cannot)?);
    command.args(["lan", "serve"]).current_dir("/");
    if let Some(nat) = options.nat {
        command.args(["--nat", &nat.to_string()]);
    }
    if options.host_loopback {
        command.arg("--host-loopback");
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
    let mut child = command.spawn().map_err(cannot)?;
    let output = child.stdout.take().ok_or_else(|| cannot(ErrorKind::BrokenPipe.into()))?;
    let line = Lines::new(output).next(Instant::now() + KEEPER);
    let line = line.map_err(|error| unready(place, &error))?;
    if line != "ready" {
        await_end(&mut child);
    }
    Ok(line)
}

/// Waits until a keeper that has failed ends its programs, and itself.
fn await_end(keeper: &mut Child) {
    let end = Instant::now() + OTHER;
    while matches!(keeper.try_wait(), Ok(None)) && Instant::now() < end {
        std::thread::sleep(STEP / 10);
    }
}

fn unready(place: &Place, error: &io::Error) -> Failure {
    let (seconds, log) = (KEEPER.as_secs(), place.log());
    let what = match error.kind() {
        ErrorKind::TimedOut => format!("the network is not ready after {seconds} s"),
        _ => format!("the network's keeper does not answer ({error})"),
    };
    Failure::refused(format!("{what}; see {}", log.display()))
}

/// Returns the failure that the keeper reported.
fn told(line: &str) -> Failure {
    let failure: Value = serde_json::from_str(line).unwrap_or_default();
    let text = failure["message"].as_str().unwrap_or("the network's keeper ended at once");
    Failure::refused(text.to_owned())
}

/// Keeps the network in the background: the end of the terminal does not matter.
pub(super) fn serve(place: Place, options: &StartOptions) -> Result<(), Failure> {
    // Fails for the leader of a process group, who is in nobody's background.
    let _ = rustix::process::setsid();
    match place.lock()? {
        None => {
            println!("{TAKEN}");
            Ok(())
        }
        Some(lock) => keep(place, options, lock, None, report),
    }
}

/// Keeps the network until a signal ends this process. A service manager may have made the keeper's
/// socket, and gets to know that the network is ready.
pub(super) fn foreground(place: Place, options: &StartOptions) -> Result<(), Failure> {
    examine(options)?;
    let socket = passed(&place)?;
    place.make()?;
    let taken = || Failure::refused("the network runs already; see vioswitchctl lan status".into());
    let lock = place.lock()?.ok_or_else(taken)?;
    keep(place, options, lock, socket, |outcome| {
        if outcome.is_ok()
            && let Err(error) = notify("READY=1")
        {
            say(&format!("cannot tell the service manager: {error}"));
        }
    })
}

/// Returns the keeper's socket of the service manager, if there is one.
fn passed(place: &Place) -> Result<Option<UnixListener>, Failure> {
    let Some(passed) = inherited::passed(&[]).into_iter().next() else { return Ok(None) };
    let (path, socket) = (place.keeper(), UnixListener::from(passed.fd));
    let address = socket.local_addr().ok();
    match address.is_some_and(|address| address.as_pathname() == Some(&path)) {
        true => Ok(Some(socket)),
        false => {
            let text = format!("the unit's socket is not {}", path.display());
            Err(Failure::refused(text))
        }
    }
}

fn keep(
    place: Place,
    options: &StartOptions,
    lock: File,
    socket: Option<UnixListener>,
    tell: fn(Result<(), &Failure>),
) -> Result<(), Failure> {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let nat = options.nat.map_or_else(|| ipv4(DEFAULT_NAT), Ok).map_err(Failure::usage)?;
    let has_own_dns = has_own_dns().unwrap_or(false);
    let wanted = Wanted { nat, host_loopback: options.host_loopback, has_own_dns };
    let (path, is_managed) = (place.keeper(), socket.is_some());
    let started = Keeper::start(place.clone(), wanted, lock).and_then(|keeper| {
        if let Some(socket) = socket {
            return Ok((keeper, socket));
        }
        // The lock is held: a socket there has no listener.
        let _ = fs::remove_file(&path);
        let bound = UnixListener::bind(&path);
        let listener = bound.map_err(|error| Failure::users_file("listen at", &path, &error))?;
        Ok((keeper, listener))
    });
    match started {
        Ok((keeper, listener)) => {
            tell(Ok(()));
            keeper.run(listener, is_managed)
        }
        Err(failure) => {
            tell(Err(&failure));
            Err(failure)
        }
    }
}
