//! Builds ports from their settings, before anything serves them.

use std::sync::Arc;

use super::StartError;
use super::desired::Desired;
use api::config::{Config, Entry, Kind, Memory, Settings};
use base::frame::Offloads;
use base::limits::FDB_MAX_PER_PORT;
use datapath::events::Events;
use datapath::port::{DevicePort, Port, PortConfig, PortTable};
use switch::{Fdb, PortId};

/// Returns the ports of a configuration, with their static addresses in the forwarding table.
pub fn build(
    config: &Config,
    desired: &Desired,
    fdb: &Fdb,
    events: &Arc<Events>,
) -> Result<PortTable, StartError> {
    let (mut ports, addresses) = (Vec::new(), desired.addresses());
    for (id, Entry { settings, .. }) in config.ports.iter().enumerate() {
        if !settings.kind.is_port() {
            continue;
        }
        let port = port(id as PortId, settings).telling(events);
        fdb.set_port_cap(port.id, cap(settings));
        for mac in addresses.get(port.name.as_str()).into_iter().flatten() {
            let Err(error) = port.enter_address(*mac, fdb) else { continue };
            let base = desired.configured(&port.name).map(|entry| &entry.settings.mac);
            if base.is_some_and(|macs| macs.contains(mac)) {
                return Err(StartError::port(&port.name)(error.into()));
            }
            // An address that a client gave to the port does not keep the switch from starting.
            log::error!("port {}: {error}", port.name);
        }
        ports.push(Arc::new(port));
    }
    Ok(ports.into_iter().collect())
}

/// Returns a port with these settings.
pub fn port(id: PortId, settings: &Settings) -> Port {
    let (name, ifname) = (&settings.name, settings.ifname.as_deref().unwrap_or_default());
    let (port, offload) = match settings.kind {
        Kind::Tap => {
            let tap =
                DevicePort::tap(ifname, settings.queues).writing_by(settings.io, settings.coalesce);
            (Port::device(id, name, tap), settings.offload.receive)
        }
        // AF_XDP carries no request for an offload. The switch finishes checksums and segments of
        // frames to the port, and takes each frame from the port as finished.
        Kind::Xdp => {
            let xdp = DevicePort::xdp(ifname, settings.queues, settings.mode.of_xdp());
            (Port::device(id, name, xdp), Offloads::NONE)
        }
        Kind::Vduse => (Port::vduse(id, name, ifname), settings.offload.receive),
        Kind::Stream => (Port::device(id, name, DevicePort::stream()), Offloads::NONE),
        // The port has twice the configured pairs: some front-ends read the number of rings as
        // pairs.
        Kind::Port | Kind::Mirror | Kind::Filter | Kind::Group | Kind::Template => {
            (Port::guest(id, name, 2 * settings.queues), settings.offload.receive)
        }
    };
    let port = port.with(PortConfig {
        socket: settings.socket.clone(),
        send: match settings.kind {
            Kind::Port | Kind::Vduse => settings.offload.send,
            _ => offload,
        },
        offload,
        platform: settings.platform,
        preallocated: settings.memory == Memory::Prealloc,
    });
    port.policy.set(settings.policy());
    port.rates.set(settings.limits(), settings.flood_limits());
    port.worker.set(settings.worker);
    port.mtu.configure(settings.mtu);
    port
}

/// Returns the greatest number of addresses that are learned on a port. An uplink without the
/// setting has no limit of its own, as whole networks live behind an uplink: the limits of the
/// table and of segments apply.
pub fn cap(settings: &Settings) -> u32 {
    let is_uplink = matches!(settings.kind, Kind::Tap | Kind::Xdp);
    let usual = if is_uplink { u32::MAX } else { FDB_MAX_PER_PORT };
    settings.max_addresses.unwrap_or(usual)
}
