//! Adds and deletes static addresses while the switch runs.
//!
//! Each static address belongs to the setting `mac` of a port: adding or deleting an address
//! changes the setting.

use super::Daemon;
use super::PortError;
use super::desired::Desired;
use base::frame::MacAddr;

impl Daemon {
    /// Gives a static address to a port: the switch sends frames for the address to the port, and
    /// no other port can take the address over. Does nothing if the port has the address.
    pub(crate) fn assign_address(&mut self, mac: MacAddr, name: &str) -> Result<(), PortError> {
        self.serving(name)?;
        if self.desired.owners(mac).contains(&name) {
            return Ok(());
        }
        self.edit(|desired| desired.assign(mac, name), |daemon| daemon.reconcile_port(name))
    }

    /// Takes a static address away; returns the name of the port that had it. If several ports have
    /// the address, each in a bridge or VLAN of its own, `port` names the port that loses the
    /// address.
    pub(crate) fn release_address(
        &mut self,
        mac: MacAddr,
        port: Option<&str>,
    ) -> Result<String, PortError> {
        let mut owners = self.desired.owners(mac);
        owners.retain(|owner| port.is_none_or(|port| *owner == port));
        let owner = match owners[..] {
            [] => return Err(PortError::NotStatic(mac)),
            [owner] => owner.to_owned(),
            _ => return Err(PortError::Several(mac)),
        };
        let release = |desired: &mut Desired| -> Result<(), PortError> {
            desired.unassign(mac, &owner);
            Ok(())
        };
        self.edit(release, |daemon| daemon.reconcile_port(&owner))?;
        Ok(owner)
    }
}
