//! Static addresses that come and go while the switch runs.
//!
//! An address that a client gives to a port stays when the port's settings change. It goes with the
//! port, when a client takes it away, and when a file names it for another port. To take an address
//! of the settings away changes the settings.

use super::Daemon;
use super::desired::Desired;
use super::ports::PortError;
use crate::frame::MacAddr;

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
