//! Ports as their settings have them, before anything serves them.

use std::path::PathBuf;
use std::sync::Arc;

use super::StartError;
use crate::config::{Config, Origin, PortConfig, StreamConfig, TapConfig};
use crate::events::Events;
use crate::frame::{MacAddr, Offloads};
use crate::limits::{FDB_MAX_ENTRIES, FDB_MAX_PER_PORT};
use crate::port::{DevicePort, Port, PortTable};
use crate::switch::{Fdb, PortId};

/// The ports of a configuration, with their addresses in the table.
pub fn build(config: &Config, fdb: &Fdb, events: &Arc<Events>) -> Result<PortTable, StartError> {
    let mut ports = Vec::new();
    for settings in &config.ports {
        let port = guest(ports.len() as PortId, settings, config.feature_level);
        let port = port.telling(events);
        enter_configured(config, fdb, &port, &settings.macs)?;
        ports.push(Arc::new(port));
    }
    for settings in &config.taps {
        let port = tap(ports.len() as PortId, settings).telling(events);
        // A whole network lives behind an uplink.
        fdb.set_port_cap(port.id, FDB_MAX_ENTRIES);
        ports.push(Arc::new(port));
    }
    for settings in &config.streams {
        let port = stream(ports.len() as PortId, settings).telling(events);
        enter_configured(config, fdb, &port, &settings.macs)?;
        ports.push(Arc::new(port));
    }
    Ok(ports.into_iter().collect())
}

/// A VM's port.
pub fn guest(id: PortId, settings: &PortConfig, feature_level: u8) -> Port {
    // Twice the configured pairs: some front-ends read the number of rings as pairs.
    Port::guest(id, &settings.name, 2 * settings.queue_pairs)
        .at(settings.endpoint.path().map(PathBuf::from))
        .configured(settings.offload, settings.mtu)
        .sending(settings.send)
        .on_platform(settings.platform)
        .asked(settings.policy)
        .at_level(settings.feature_level.unwrap_or(feature_level))
        .with_memory(settings.preallocated)
}

/// A TAP's.
pub fn tap(id: PortId, settings: &TapConfig) -> Port {
    let endpoint = DevicePort::tap(&settings.ifname, settings.queues);
    Port::device(id, &settings.name, endpoint)
        .configured(settings.offload, settings.mtu)
        .asked(settings.policy)
}

/// A stream's.
pub fn stream(id: PortId, settings: &StreamConfig) -> Port {
    Port::device(id, &settings.name, DevicePort::stream())
        .at(settings.endpoint.path().map(PathBuf::from))
        .configured(Offloads::NONE, settings.mtu)
        .asked(settings.policy)
}

/// Enters what the configuration says of a port.
fn enter_configured(
    config: &Config,
    fdb: &Fdb,
    port: &Port,
    macs: &[MacAddr],
) -> Result<(), StartError> {
    fdb.set_port_cap(port.id, FDB_MAX_PER_PORT);
    match macs.iter().try_for_each(|mac| fdb.insert_static(*mac, port.id)) {
        // One that was added while an earlier process ran keeps nobody from the network.
        Err(error) if config.origins.get(&port.name) == Some(&Origin::Runtime) => {
            log::error!("port {}: {error}", port.name);
            Ok(())
        }
        entered => entered.map_err(|error| StartError::port(&port.name)(error.into())),
    }
}
