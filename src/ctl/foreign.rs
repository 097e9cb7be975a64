//! A socket that was given as the control socket and is another one: a port's, or that of metrics.
//!
//! The control socket of its switch is looked for where it may be: at the usual path, beside the
//! socket, on the command line of the process that listens. The switch that answers there says
//! whether one of its ports has the socket.

use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use api::wire::{GetConfig, value};
use base::limits::MAX_PORTS;
use sys::unix_socket::peer_credentials;

use crate::args::DEFAULT_CONTROL;
use crate::client::Client;
use crate::doctor::proc::Reader;

/// Entries of the socket's directory that are looked at, and sockets that are connected to.
const MAX_ENTRIES: usize = 256;
const MAX_SOCKETS: usize = 4;
/// How long all of them together may take.
const LIMIT: Duration = Duration::from_secs(3);
/// In the names of control sockets.
const CONTROL: &str = "control";
/// How an answer by HTTP begins.
const HTTP: &[u8] = b"HTTP/";

/// Recognises a socket that is no control socket. `socket` is connected to `path`, and has answered
/// with `message` or nothing.
pub fn recognise(path: &Path, socket: &UnixStream, message: &[u8]) -> Option<String> {
    let shown = path.display();
    if message.starts_with(HTTP) {
        return Some(format!("{shown} serves metrics by HTTP: give --control the control socket"));
    }
    let pid = peer_credentials(socket.as_fd()).map_or(0, |peer| i64::from(peer.pid));
    let (send, found) = mpsc::channel();
    let own = path.to_owned();
    // What listens may be hostile, and dribble.
    std::thread::spawn(move || send.send(port_with(&own, pid)));
    let (port, control) = found.recv_timeout(LIMIT).ok()??;
    let control = control.display();
    let text =
        format!("{shown} is the {port}; the control socket is {control}: --control {control}");
    Some(text.chars().filter(|c| !c.is_control()).collect())
}

/// The port that has the socket `path`, on which the process `pid` listens, and the control socket
/// of its switch.
fn port_with(path: &Path, pid: i64) -> Option<(String, PathBuf)> {
    let wanted = identity(path)?;
    let others = candidates(path, pid).into_iter();
    let others = others.filter(|other| identity(other).is_some_and(|found| found != wanted));
    others.take(MAX_SOCKETS).find_map(|control| {
        let mut client = Client::to_ask(&control).ok()?;
        let (mut found, mut count) = (None, 0);
        let asked = client.parts(&GetConfig {}, |part| {
            count += part.entries.len().max(1);
            found = part.entries.iter().find_map(|entry| {
                let socket = value(&entry.keys, "socket").map(Path::new)?;
                (identity(socket) == Some(wanted)).then(|| named(&entry.kind, &entry.name))
            });
            found.is_none() && count < MAX_PORTS * 2
        });
        asked.ok().and(found).map(|port| (port, control))
    })
}

/// A port as it is called in an answer.
fn named(kind: &str, name: &str) -> String {
    match kind {
        "stream" => format!("socket of stream '{name}'"),
        _ => format!("vhost-user socket of port '{name}'"),
    }
}

/// Paths where the control socket may be.
fn candidates(path: &Path, pid: i64) -> Vec<PathBuf> {
    let mut found = vec![PathBuf::from(DEFAULT_CONTROL)];
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    let beside = std::fs::read_dir(directory.unwrap_or(Path::new("."))).into_iter().flatten();
    let beside = beside.take(MAX_ENTRIES).flatten();
    // A connection to another port's socket would take the place of its front-end.
    let named = beside.filter(|one| one.file_name().to_string_lossy().contains(CONTROL));
    found.extend(named.map(|one| one.path()));
    let words = if pid > 0 { Reader::new().words(pid) } else { Vec::new() };
    let next = words.iter().skip_while(|word| *word != "--control").nth(1);
    let joined = words.iter().find_map(|word| word.strip_prefix("--control="));
    found.extend(joined.or(next.map(String::as_str)).map(PathBuf::from));
    found
}

/// Which socket is at a path.
fn identity(path: &Path) -> Option<(u64, u64)> {
    let found = std::fs::metadata(path).ok()?;
    found.file_type().is_socket().then(|| (found.dev(), found.ino()))
}
