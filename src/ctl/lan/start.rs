//! Starts the keeper, or finds the running keeper.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::keeper::{Keeper, report};
use super::place::Place;
use super::programs::{NEEDED, Wanted, has_own_server};
use super::protocol::{KeeperCall, NetworkState, ask};
use super::{StartOptions, ipv4};
use crate::failure::Failure;

/// Address of the network without `--nat`.
const DEFAULT_NAT: &str = "10.78.0.1/24";
/// Longest wait for a keeper that another command starts.
const OTHER: Duration = Duration::from_secs(20);
const STEP: Duration = Duration::from_millis(50);
/// Line of a keeper that finds another keeper.
const TAKEN: &str = "taken";
/// Directories of programs that an ordinary user's PATH may lack.
const MORE_PATHS: &str = "/usr/sbin:/sbin:/usr/local/sbin";

/// Returns the state of the network, which runs afterwards.
pub(super) fn ensure(place: &Place, options: &StartOptions) -> Result<NetworkState, Failure> {
    if let Some(answer) = ask(place, &KeeperCall::Status)? {
        return check(answer, options);
    }
    let is_new = prepare(place)?;
    match spawn(place, options)?.as_str() {
        "ready" => {}
        TAKEN => {
            let end = Instant::now() + OTHER;
            while Instant::now() < end {
                if let Some(answer) = ask(place, &KeeperCall::Status)? {
                    return check(answer, options);
                }
                std::thread::sleep(STEP);
            }
        }
        line => {
            if is_new {
                place.remove()?;
            }
            return Err(told(line));
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
            let text = "the network runs with other options; to stop it: vioswitchctl lan stop";
            Err(Failure::refused(text.to_owned()))
        }
    }
}

/// Checks what the network needs, and makes the directory. Returns true if the directory is new.
fn prepare(place: &Place) -> Result<bool, Failure> {
    if is_root() {
        let text = "lan is for ordinary users, as pasta refuses root: runuser -u USER -- \
                    vioswitchctl lan; root has vioswitchctl network";
        return Err(Failure::refused(text.to_owned()));
    }
    let missing = NEEDED.iter().filter(|(program, _)| !is_there(program));
    let mut packages: Vec<&str> = missing.map(|(_, package)| *package).collect();
    packages.dedup();
    if !packages.is_empty() {
        let packages = packages.join(" ");
        return Err(Failure::refused(format!("programs are missing: apt install {packages}")));
    }
    place.make()
}

/// True for the root of the host; the root of a user namespace is an ordinary user.
fn is_root() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let is_whole = map.split_whitespace().eq(["0", "0", "4294967295"]);
    rustix::process::geteuid().is_root() && is_whole
}

fn paths() -> String {
    let own = std::env::var("PATH").unwrap_or_default();
    if own.is_empty() { MORE_PATHS.to_owned() } else { format!("{own}:{MORE_PATHS}") }
}

fn is_there(program: &str) -> bool {
    paths().split(':').any(|directory| Path::new(directory).join(program).is_file())
}

/// Starts the keeper in the background. Returns the line that tells how the start went.
fn spawn(place: &Place, options: &StartOptions) -> Result<String, Failure> {
    let cannot = |error| Failure::refused(format!("cannot start the network's keeper: {error}"));
    let log = File::options().create(true).append(true).open(place.log());
    let log = log.map_err(|error| Failure::file("open", &place.log(), &error))?;
    let mut command = Command::new(std::env::current_exe().map_err(cannot)?);
    command.args(["lan", "serve"]).env("PATH", paths()).current_dir("/");
    if let Some(nat) = options.nat {
        command.args(["--nat", &nat.to_string()]);
    }
    if options.host_loopback {
        command.arg("--host-loopback");
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
    let mut child = command.spawn().map_err(cannot)?;
    let mut line = String::new();
    if let Some(output) = child.stdout.take() {
        BufReader::new(output.take(1 << 16)).read_line(&mut line).map_err(cannot)?;
    }
    if line.trim() != "ready" {
        // The keeper ends by itself.
        let _ = child.wait();
    }
    Ok(line.trim().to_owned())
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
        Some(lock) => keep(place, options, lock),
    }
}

/// Keeps the network until a signal ends this process.
pub(super) fn foreground(place: Place, options: &StartOptions) -> Result<(), Failure> {
    prepare(&place)?;
    let taken = || Failure::refused("the network runs already; see vioswitchctl lan status".into());
    let lock = place.lock()?.ok_or_else(taken)?;
    keep(place, options, lock)
}

fn keep(place: Place, options: &StartOptions, lock: File) -> Result<(), Failure> {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let nat = options.nat.map_or_else(|| ipv4(DEFAULT_NAT), Ok).map_err(Failure::usage)?;
    let resolv_conf = fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let has_own_dns = has_own_server(&resolv_conf);
    let wanted = Wanted { nat, host_loopback: options.host_loopback, has_own_dns };
    let path = place.keeper();
    let started = Keeper::start(place.clone(), wanted, lock).and_then(|keeper| {
        // The lock is held: a socket there has no listener.
        let _ = fs::remove_file(&path);
        let bound = UnixListener::bind(&path);
        let listener = bound.map_err(|error| Failure::file("listen at", &path, &error))?;
        Ok((keeper, listener))
    });
    match started {
        Ok((keeper, listener)) => {
            report(&Ok(()));
            keeper.run(&listener)
        }
        Err(failure) => {
            report(&Err(&failure));
            Err(failure)
        }
    }
}
