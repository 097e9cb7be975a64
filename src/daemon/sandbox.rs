//! Chooses the files, system calls and capabilities that a switch keeps in its sandbox: those of
//! its configuration, and those of ports that may be added later.
//!
//! A switch with a control socket or a configuration file may get ports and uplinks later. A switch
//! without either keeps the files and calls that open its own ports again.

use std::io;
use std::path::Path;

use super::Daemon;
use api::config::{Config, Control, Endpoint, Kind, Latency, MetricsSocket, Texts};
use sys::fs::directory_of;
use sys::sandbox::{self, Allowed, State, Use};
use sys::{group, tap, vduse, wakeup};

/// No group has this name, so that each source of groups is asked for it.
const NO_GROUP: &str = "no group has this name";

impl Daemon {
    /// Confines the process, unless the configuration turns the sandbox off, and logs what the
    /// kernel cannot enforce. `file` is the configuration file that the command line names, `texts`
    /// are all files of the configuration. Returns an error if a thread is left outside of the
    /// sandbox.
    pub(crate) fn confine(&self, file: Option<&Path>, texts: Option<&Texts>) -> io::Result<()> {
        if !self.started.sandbox {
            log::warn!("sandbox: off, as configured");
            return Ok(());
        }
        // Loads the code of all sources of groups (NSS), as none can be loaded later.
        let _ = group::gid_of(NO_GROUP);
        let state = sandbox::enter(self.allowed(file, texts))
            .map_err(|error| io::Error::other(format!("cannot enter the sandbox: {error}")))?;
        let lacks = state.lacks();
        if !lacks.is_empty() {
            log::warn!("sandbox: incomplete: {}", lacks.join("; "));
        }
        let State { landlock, system_calls, capabilities, .. } = state;
        log::debug!("sandbox: Landlock {landlock}, {system_calls} calls, {capabilities:?}");
        Ok(())
    }

    fn allowed(&self, file: Option<&Path>, texts: Option<&Texts>) -> Allowed {
        let config = &self.started;
        let changes = config.control.is_some() || file.is_some();
        let entries = || self.desired.entries().values().map(|entry| &entry.settings);
        let has = |kind| entries().any(|one| one.kind == kind);
        let endpoints = || entries().filter_map(|one| one.endpoint());
        let mut allowed = Allowed {
            paths: Vec::new(),
            taps: changes || has(Kind::Tap) || has(Kind::Vduse),
            xdps: changes || has(Kind::Xdp),
            groups: changes || endpoints().any(|one| one.group().is_some()),
            connects: changes || config.plug.is_some() || endpoints().any(|one| one.connects()),
            tcp: match config.metrics {
                Some(MetricsSocket::Ip(address)) => Some(address.port()),
                _ => None,
            },
        };
        let mut add = |path: &Path, purpose| allowed.paths.push((path.to_owned(), purpose));
        for endpoint in endpoints() {
            if let Endpoint::Server { path, .. } | Endpoint::Datagrams { path, .. } = endpoint {
                add(directory_of(&path), Use::Sockets);
            }
        }
        add_own(config, &mut add);
        self.state_dir().into_iter().for_each(|path| add(path, Use::State));
        let others = texts.iter().flat_map(|texts| &texts.files).map(|text| Path::new(&text.name));
        for path in file.into_iter().chain(others) {
            add_config(path, &mut add);
        }
        sandbox::READ.iter().for_each(|path| add(Path::new(path), Use::Read));
        if allowed.taps {
            allowed.paths.push((tap::CLONE_DEVICE.into(), Use::Device));
            allowed.paths.push((vduse::DIRECTORY.into(), Use::Device));
            allowed.paths.push((vduse::interface::NAMESPACES.into(), Use::Read));
        }
        allowed
    }
}

/// Adds the places of sockets and devices that belong to no port, and the plug directory.
fn add_own(config: &Config, add: &mut impl FnMut(&Path, Use)) {
    if let Some(Control { path, .. }) = &config.control {
        add(directory_of(path), Use::Sockets);
    }
    if let Some(MetricsSocket::Unix(path)) = &config.metrics {
        add(directory_of(path), Use::Sockets);
    }
    if let Some(path) = &config.plug {
        add(path, Use::Look);
        // The parent directory is needed to see whether the plug directory is missing or back.
        add(directory_of(path), Use::Look);
    }
    if config.latency != Latency::Normal {
        add(Path::new(wakeup::DEVICE), Use::Device);
    }
}

/// Adds the directory of a configuration file, as editors put another file in its place, and the
/// directory `conf.d`; adds the directories that links lead to.
fn add_config(path: &Path, add: &mut impl FnMut(&Path, Use)) {
    let real = path.canonicalize();
    for path in [Some(path), real.as_deref().ok()].into_iter().flatten() {
        add(directory_of(path), Use::Read);
        if let Ok(more) = directory_of(path).join("conf.d").canonicalize() {
            add(&more, Use::Read);
        }
    }
}
