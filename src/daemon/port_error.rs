//! The reasons why a port, or another entry, cannot be added, changed or removed.

use std::io;
use std::path::PathBuf;

use super::desired::{Clash, NoEffect, NotAssigned};
use super::running_port::ChangeError;
use super::state_store::NotSaved;
use super::uplink::UplinkError;
use api::config::{Kind, Settings};
use base::frame::MacAddr;
use base::limits::{MAX_PLUG_PORTS, MAX_PLUG_PORTS_A_USER, SOCKET_OPENS};
use base::words::counted;
use datapath::port::table::Full;
use datapath::vhost_user::session::Exhausted;
use datapath::vhost_user::socket::SocketError;
use switch::StaticError;

/// The reason why a port cannot be added, changed or removed.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// The switch has a port or TAP of this name.
    #[error("the name is taken")]
    Exists,
    /// Another entry has the port's socket or interface.
    #[error(transparent)]
    Clash(#[from] Clash),
    /// The switch has no port of this name.
    #[error("there is no such port")]
    NoSuchPort,
    /// No number is left.
    #[error(transparent)]
    Full(#[from] Full),
    /// The switch has as many ports of this kind as the limit permits.
    #[error("there are {} already", counted(.0.most(), .0.noun()))]
    Many(Kind),
    /// The switch has as many ports by plug as the limit permits.
    #[error("there are {MAX_PLUG_PORTS} ports by plug already")]
    ManyPlugged,
    /// The user has as many ports by plug as one user may have.
    #[error("user {0} has {MAX_PLUG_PORTS_A_USER} ports by plug already")]
    ManyOfUser(u32),
    /// A port by plug has the name of the port that gets a mirror's copies.
    #[error("port '{0}' would get the copies of mirror '{1}'")]
    Observer(String, String),
    /// The other ports have all the memory that can be mapped.
    #[error("no address space or mappings are left for another port (vm.max_map_count)")]
    Exhausted(#[from] Exhausted),
    /// The port's socket cannot be opened.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// A static address cannot be entered.
    #[error(transparent)]
    Static(#[from] StaticError),
    /// A static address cannot be given to the port.
    #[error(transparent)]
    NotAssigned(#[from] NotAssigned),
    /// The address is no static address, so it cannot be released.
    #[error("{0} is no static address of any port")]
    NotStatic(MacAddr),
    /// Several ports have the address.
    #[error("{0} is a static address of several ports: name the port")]
    Several(MacAddr),
    /// The file system of the socket's path does not answer.
    #[error("socket {0:?}: its file system does not answer")]
    Silent(PathBuf),
    /// The kernel has made no interface for the VDUSE device in time.
    #[error("{0:?}: the kernel has made no interface in time: try again")]
    Slow(PathBuf),
    /// The daemon waits for as many silent file systems as the limit permits.
    #[error("socket {0:?} is not opened: {SOCKET_OPENS} file systems do not answer")]
    ManySilent(PathBuf),
    /// The port's interface cannot be opened.
    #[error(transparent)]
    Uplink(#[from] UplinkError),
    /// The change concerns a setting that belongs to the socket or interface.
    #[error("{key} of {} '{}' cannot be changed: {}", wanted.kind, wanted.name, wanted.anew(None))]
    Fixed {
        /// The setting.
        key: &'static str,
        /// Settings that are wanted of the port.
        wanted: Box<Settings>,
    },
    /// A setting cannot be changed.
    #[error(transparent)]
    Change(#[from] ChangeError),
    /// The change cannot be kept, and was not made.
    #[error("nothing was changed: the change {0}")]
    NotSaved(#[from] NotSaved),
    /// Nothing of the port is kept beside the configuration.
    #[error("nothing is kept of port '{0}' beside the configuration: {1}")]
    NothingToReset(String, String),
    /// The change would leave another port without effect.
    #[error(transparent)]
    NoEffect(#[from] NoEffect),
    /// The mirror cannot exist beside the other mirrors.
    #[error("{0}")]
    Mirror(String),
    /// A filter or group cannot be as it is wanted.
    #[error("{0}")]
    Filter(String),
    /// Entries name the filter or group that is to be deleted.
    #[error("{kind} '{name}' is in use by {users}{remedy}")]
    InUse {
        /// Kind of the entry.
        kind: Kind,
        /// Name of the entry.
        name: String,
        /// Names of the first entries that name this entry.
        users: String,
        /// A command that ends a use, if one command does so.
        remedy: String,
    },
    /// The port's settings are no longer the settings from which the change began.
    #[error("the configuration was changed meanwhile: try again")]
    Changed,
    /// The process is about to end.
    #[error("the switch is ending")]
    Ending,
    /// The port is being removed; the removal goes on without the caller.
    #[error("port {0} is being removed: try again when it is gone")]
    BeingRemoved(String),
    /// A thread or descriptor cannot be had.
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl PortError {
    /// Returns the error with the name of the process that has the interface, if the process can be
    /// seen. The search reads `/proc` for up to [`base::limits::HOLDER_TIMEOUT`]: call this without
    /// the daemon's lock.
    pub(crate) fn with_holder(self) -> PortError {
        match self {
            PortError::Uplink(error) => PortError::Uplink(error.with_holder()),
            other => other,
        }
    }
}
