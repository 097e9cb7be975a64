//! Recognises a socket that a user gave as the control socket but that belongs to a port or serves
//! metrics.
//!
//! The client looks for the control socket of the socket's switch at the usual path, beside the
//! socket, and on the command line of the process that listens. A switch that answers there says
//! whether one of the switch's ports has the socket.

use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use api::wire::{ConfigEntry, value};
use base::limits::MAX_PORTS;
use sys::unix_socket::peer_credentials;

use crate::doctor::proc::Reader;
use crate::failure::Failure;
use crate::values::DEFAULT_CONTROL;

/// Most entries of the socket's directory that the client reads, and most sockets that the client
/// connects to.
const MAX_ENTRIES: usize = 256;
const MAX_SOCKETS: usize = 4;
/// Longest time for the whole search.
const LIMIT: Duration = Duration::from_secs(3);
/// Word in the names of control sockets.
const CONTROL: &str = "control";
/// Beginning of an answer by HTTP.
const HTTP: &[u8] = b"HTTP/";

/// Asks the switch at a control socket for its entries, some at a time, until the function returns
/// false.
pub(crate) type AskEntries =
    fn(&Path, &mut dyn FnMut(&[ConfigEntry]) -> bool) -> Result<(), Failure>;

/// Returns a text about a socket that is no control socket; `None` if the socket is not recognised.
/// `socket` is connected to `path`, and has answered with `message` or nothing. `entries` asks the
/// switch at a control socket.
pub fn recognise(
    path: &Path,
    (socket, message): (&UnixStream, &[u8]),
    entries: AskEntries,
) -> Option<String> {
    let shown = path.display();
    if message.starts_with(HTTP) {
        return Some(format!("{shown} serves metrics by HTTP: give --control the control socket"));
    }
    let pid = peer_credentials(socket.as_fd()).map_or(0, |peer| i64::from(peer.pid));
    let (send, found) = mpsc::channel();
    let own = path.to_owned();
    // The process that listens may be hostile, and answer byte by byte.
    std::thread::spawn(move || send.send(port_with(&own, pid, entries)));
    let (port, control) = found.recv_timeout(LIMIT).ok()??;
    let control = control.display();
    let text =
        format!("{shown} is the {port}; the control socket is {control}: --control {control}");
    Some(text.chars().filter(|c| !c.is_control()).collect())
}

/// Returns the port that has the socket `path`, and the control socket of the port's switch. The
/// process `pid` listens on the socket.
fn port_with(path: &Path, pid: i64, entries: AskEntries) -> Option<(String, PathBuf)> {
    let wanted = identity(path)?;
    let others = candidates(path, pid).into_iter();
    let others = others.filter(|other| identity(other).is_some_and(|found| found != wanted));
    others.take(MAX_SOCKETS).find_map(|control| {
        let (mut found, mut count) = (None, 0);
        let asked = entries(&control, &mut |part| {
            count += part.len().max(1);
            found = part.iter().find_map(|entry| {
                let socket = value(&entry.keys, "socket").map(Path::new)?;
                (identity(socket) == Some(wanted)).then(|| named(&entry.kind, &entry.name))
            });
            found.is_none() && count < MAX_PORTS * 2
        });
        asked.ok().and(found).map(|port| (port, control))
    })
}

/// Returns the words of an answer for the socket of a port.
fn named(kind: &str, name: &str) -> String {
    match kind {
        "stream" => format!("socket of stream '{name}'"),
        _ => format!("vhost-user socket of port '{name}'"),
    }
}

/// Returns paths where the control socket may be.
fn candidates(path: &Path, pid: i64) -> Vec<PathBuf> {
    let mut found = vec![PathBuf::from(DEFAULT_CONTROL)];
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    let beside = std::fs::read_dir(directory.unwrap_or(Path::new("."))).into_iter().flatten();
    let beside = beside.take(MAX_ENTRIES).flatten();
    // A connection to another port's socket would take the place of the port's front-end.
    let named = beside.filter(|one| one.file_name().to_string_lossy().contains(CONTROL));
    found.extend(named.map(|one| one.path()));
    let words = if pid > 0 { Reader::new().words(pid) } else { Vec::new() };
    let next = words.iter().skip_while(|word| *word != "--control").nth(1);
    let joined = words.iter().find_map(|word| word.strip_prefix("--control="));
    found.extend(joined.or(next.map(String::as_str)).map(PathBuf::from));
    found
}

/// Returns device and inode of the socket at a path.
fn identity(path: &Path) -> Option<(u64, u64)> {
    let found = std::fs::metadata(path).ok()?;
    found.file_type().is_socket().then(|| (found.dev(), found.ino()))
}
