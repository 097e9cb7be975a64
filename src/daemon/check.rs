//! Checks that this machine can put a configuration into service, and does not do so: `--check`.
//!
//! The check may run beside the daemon that serves now. So a socket or TAP in use is no problem,
//! and the check connects to nothing. The check judges with the rights of its caller.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use super::latency;
use api::config::{Config, Control, Endpoint, Entry, Kind, Latency};
use sys::fs::{directory_of, may_create_in};
use sys::wakeup::DEVICE;
use sys::{group, tap, watched_dir, xdp};

/// Returns all problems, one a line.
pub fn check(config: &Config) -> Vec<String> {
    let mut found = Vec::new();
    for Entry { settings, .. } in &config.ports {
        let (kind, name) = (settings.kind, &settings.name);
        let complaints = match (&settings.ifname, settings.endpoint()) {
            (Some(ifname), _) => {
                let queues = settings.queues;
                let error = match kind {
                    Kind::Xdp => xdp::check(ifname, queues).err().map(|error| error.to_string()),
                    _ => tap::check(ifname, queues).err().map(|error| error.to_string()),
                };
                error.map(|error| format!("interface {ifname}: {error}")).into_iter().collect()
            }
            (None, endpoint) => endpoint.as_ref().map(found_at).unwrap_or_default(),
        };
        found.extend(complaints.iter().map(|text| format!("{kind} {name}: {text}")));
    }
    if let Some(Control { path, group, .. }) = &config.control {
        found.extend(server(path, *group).iter().map(|text| format!("control: {text}")));
    }
    if config.latency != Latency::Normal {
        found.extend(latency::open(Path::new(DEVICE)).err());
    }
    if let Some(path) = &config.plug {
        found.extend(plug(path).map(|text| format!("plug: {text}")));
    }
    found
}

/// Returns the problems of the place where a port meets its front-end.
pub(super) fn found_at(endpoint: &Endpoint) -> Vec<String> {
    match endpoint {
        Endpoint::Server { path, group, .. } => server(path, *group),
        Endpoint::Datagrams { path, server: Some((_, group)) } => server(path, *group),
        // The switch's own socket appears beside the peer's.
        Endpoint::Datagrams { path, server: None } => {
            relative(path).into_iter().chain(directory(path)).collect()
        }
        // The front-end makes the socket, and may make its directory too.
        Endpoint::Client { path } => relative(path).into_iter().collect(),
        Endpoint::Fd(_) | Endpoint::Vduse(_) => Vec::new(),
    }
}

/// Returns the problems of a socket that is to be made at `path`.
fn server(path: &Path, group: Option<u32>) -> Vec<String> {
    let mut found: Vec<String> = relative(path).into_iter().collect();
    found.extend(directory(path));
    match fs::symlink_metadata(path) {
        Ok(there) if !there.file_type().is_socket() => {
            found.push(format!("{path:?} exists and is not a socket"));
        }
        _ => {}
    }
    if let Some(gid) = group.filter(|gid| !group::may_give(*gid)) {
        let rule = "this user is not in the group, and only root may give a socket to any group";
        found.push(format!("socket-group {gid}: {rule}"));
    }
    found
}

/// Returns the problem of the directory of ports by plug, if there is a problem.
fn plug(path: &Path) -> Option<String> {
    if path.is_relative() {
        return relative(path);
    }
    match watched_dir::fault(path) {
        Ok(fault) => fault.map(|fault| format!("{path:?} {fault}")),
        Err(error) => Some(format!("directory {path:?}: {error}")),
    }
}

fn relative(path: &Path) -> Option<String> {
    let text = "is relative, and a service has another working directory: write the whole path, \
        from / on";
    path.is_relative().then(|| format!("socket {path:?} {text}"))
}

/// Returns the problem of the directory of a socket, if there is a problem.
fn directory(path: &Path) -> Option<String> {
    let directory = directory_of(path);
    match fs::metadata(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Some(format!("directory {directory:?} does not exist"))
        }
        Err(error) => Some(format!("directory {directory:?}: {error}")),
        Ok(found) if !found.is_dir() => Some(format!("{directory:?} is not a directory")),
        Ok(_) => match may_create_in(directory) {
            Ok(()) => None,
            Err(error) => Some(format!("directory {directory:?} is not writable: {error}")),
        },
    }
}
