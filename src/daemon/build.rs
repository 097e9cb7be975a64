//! Ports as their settings have them, before anything serves them.

use std::sync::Arc;

use super::StartError;
use crate::config::{Config, Entry, Kind, Memory, Origin, Settings};
use crate::events::Events;
use crate::frame::Offloads;
use crate::limits::{FDB_MAX_ENTRIES, FDB_MAX_PER_PORT};
use crate::port::{DevicePort, Port, PortTable};
use crate::switch::{Fdb, PortId};

/// The ports of a configuration, with their addresses in the table.
pub fn build(config: &Config, fdb: &Fdb, events: &Arc<Events>) -> Result<PortTable, StartError> {
    let mut ports = Vec::new();
    for (id, entry) in config.ports.iter().enumerate() {
        let port = port(id as PortId, &entry.settings).telling(events);
        enter_configured(fdb, &port, entry)?;
        ports.push(Arc::new(port));
    }
    Ok(ports.into_iter().collect())
}

/// A port.
pub fn port(id: PortId, settings: &Settings) -> Port {
    let (name, ifname) = (&settings.name, settings.ifname.as_deref().unwrap_or_default());
    let (port, offload) = match settings.kind {
        Kind::Tap => {
            let tap = DevicePort::tap(ifname, settings.queues);
            (Port::device(id, name, tap), settings.offload.receive)
        }
        Kind::Stream => (Port::device(id, name, DevicePort::stream()), Offloads::NONE),
        // Twice the configured pairs: some front-ends read the number of rings as pairs.
        Kind::Port | Kind::Template => {
            (Port::guest(id, name, 2 * settings.queues), settings.offload.receive)
        }
    };
    let port = port.at(settings.socket.clone()).configured(offload, settings.mtu);
    let port = if settings.kind == Kind::Port { port.sending(settings.offload.send) } else { port };
    port.on_platform(settings.platform)
        .asked(settings.policy())
        .with_memory(settings.memory == Memory::Prealloc)
}

/// How many addresses are learned on a port. A whole network lives behind an uplink.
pub fn cap(kind: Kind) -> u32 {
    if kind == Kind::Tap { FDB_MAX_ENTRIES } else { FDB_MAX_PER_PORT }
}

/// Enters what the configuration says of a port.
fn enter_configured(
    fdb: &Fdb,
    port: &Port,
    Entry { settings, origin, .. }: &Entry,
) -> Result<(), StartError> {
    fdb.set_port_cap(port.id, cap(settings.kind));
    match settings.mac.iter().try_for_each(|mac| fdb.insert_static(*mac, port.id)) {
        // One that was added while an earlier process ran keeps nobody from the network.
        Err(error) if *origin == Origin::Runtime => {
            log::error!("port {}: {error}", port.name);
            Ok(())
        }
        entered => entered.map_err(|error| StartError::port(&port.name)(error.into())),
    }
}
