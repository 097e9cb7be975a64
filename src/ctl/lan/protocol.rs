//! The protocol between commands and the keeper: a request and an answer, each a line of JSON.

use std::io::{self, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sys::unix_socket;

use super::lines::Lines;
use super::place::Place;
use crate::failure::Failure;

/// Time that a client has for its request; the keeper serves one client at a time.
const REQUEST: Duration = Duration::from_millis(500);
/// Longest wait for an answer: the keeper may be stopping programs.
const PATIENCE: Duration = Duration::from_secs(15);
/// Longest wait for the state: the request may start the keeper, by the socket of the user's unit.
const START_PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "call", rename_all = "snake_case")]
pub(super) enum KeeperCall {
    Status,
    AddForward {
        forward: String,
    },
    DeleteForward {
        forward: String,
    },
    /// Makes dnsmasq forget names whose files are gone.
    ForgetNames,
    Stop,
}

/// The state of the network, and why the request was refused.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct NetworkState {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
    pub(super) nat: String,
    pub(super) host_loopback: bool,
    /// True if pasta connects the network with the host.
    pub(super) outside: bool,
    /// Process that holds the namespaces.
    pub(super) namespace: u32,
    pub(super) services: Vec<ServiceState>,
    pub(super) forwards: Vec<ForwardState>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct ServiceState {
    pub(super) name: String,
    pub(super) pid: Option<u32>,
    pub(super) restarts: u64,
    pub(super) last_line: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct ForwardState {
    pub(super) forward: String,
    pub(super) running: bool,
    /// Why the forward does not run.
    pub(super) last_line: Option<String>,
}

/// Answers the next client; an unreadable request gets no answer.
pub(super) fn serve(listener: &UnixListener, answer: impl FnOnce(KeeperCall) -> NetworkState) {
    let Ok((mut socket, _)) = listener.accept() else { return };
    let _ = socket.set_write_timeout(Some(REQUEST));
    let line = Lines::new(&socket).next(Instant::now() + REQUEST).unwrap_or_default();
    let Ok(request) = serde_json::from_str(&line) else { return };
    let told = serde_json::to_string(&answer(request)).unwrap_or_default();
    let _ = writeln!(socket, "{told}");
}

/// Asks the keeper; `None` if no keeper runs.
pub(super) fn ask(place: &Place, request: &KeeperCall) -> Result<Option<NetworkState>, Failure> {
    if !place.directory.exists() {
        return Ok(None);
    }
    place.check()?;
    let silent = |error: io::Error| {
        let log = place.log();
        Failure::refused(format!(
            "the network's keeper does not answer ({error}); see {}, or journalctl --user -u \
             vioswitch-lan",
            log.display()
        ))
    };
    let socket = match unix_socket::connect(&place.keeper()) {
        Ok(socket) => UnixStream::from(socket),
        // Many commands wait for the keeper.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(silent(error)),
        Err(_) => return Ok(None),
    };
    let answer = converse(socket, request).map_err(silent)?;
    match answer.error {
        Some(reason) => Err(Failure::refused(reason)),
        None => Ok(Some(answer)),
    }
}

/// Sends a request, and waits for the answer.
fn converse(mut socket: UnixStream, request: &KeeperCall) -> io::Result<NetworkState> {
    let patience = match request {
        KeeperCall::Status => START_PATIENCE,
        _ => PATIENCE,
    };
    socket.set_nonblocking(false)?;
    socket.set_write_timeout(Some(patience))?;
    writeln!(socket, "{}", serde_json::to_string(request)?)?;
    let line = Lines::new(socket).next(Instant::now() + patience)?;
    Ok(serde_json::from_str(&line)?)
}
