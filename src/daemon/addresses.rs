//! Static addresses that come and go while the switch runs.
//!
//! One that a port is given beside its settings stays when these change: it goes with the port, when
//! a client takes it away, and when a file names it for another port. One of the settings is a
//! setting: taking it away changes them.

use super::Daemon;
use super::desired::Desired;
use super::ports::PortError;
use crate::frame::MacAddr;
use crate::port::PortTable;
use crate::switch::Fdb;

impl Daemon {
    /// Gives an address to a port: its frames go there, and no other port can take it over. One
    /// that the port has already is as good.
    pub fn assign_address(&mut self, mac: MacAddr, name: &str) -> Result<(), PortError> {
        self.serving(name)?;
        if self.desired.owner(mac) == Some(name) {
            return Ok(());
        }
        let assign = |desired: &mut Desired| Ok(desired.assign(mac, name)?);
        self.edit(assign, |daemon| daemon.reconcile_port(name))
    }

    /// Takes a static address away; the port that had it.
    pub fn release_address(&mut self, mac: MacAddr) -> Result<String, PortError> {
        let owner = self.desired.owner(mac).ok_or(PortError::NotStatic(mac))?.to_owned();
        let release = |desired: &mut Desired| {
            let entry = desired.get(&owner).cloned();
            if !desired.unassign(mac)
                && let Some(mut entry) = entry
            {
                entry.settings.forget(mac);
                desired.insert(entry);
            }
            Ok(())
        };
        self.edit(release, |daemon| daemon.reconcile_port(&owner))?;
        Ok(owner)
    }
}

/// Enters what the ports of a start were given.
pub(super) fn enter_all(desired: &Desired, ports: &PortTable, fdb: &Fdb) {
    for port in ports.iter() {
        for mac in desired.assigned_to(&port.name) {
            if let Err(error) = fdb.insert_static(mac, port.id) {
                log::error!("port {}: {error}", port.name);
            }
        }
    }
}
