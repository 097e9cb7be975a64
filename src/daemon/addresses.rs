//! Static addresses that come and go while the switch runs.
//!
//! Each address is one of the port's setting `mac`: to add or to delete an address changes that.

use super::Daemon;
use super::desired::Desired;
use super::ports::PortError;
use base::frame::MacAddr;

impl Daemon {
    /// Gives an address to a port: its frames go there, and no other port can take it over. One
    /// that the port has already is as good.
    pub fn assign_address(&mut self, mac: MacAddr, name: &str) -> Result<(), PortError> {
        self.serving(name)?;
        if self.desired.owners(mac).contains(&name) {
            return Ok(());
        }
        self.edit(|desired| desired.assign(mac, name), |daemon| daemon.reconcile_port(name))
    }

    /// Takes a static address away, from this port if several have it, each in a bridge or VLAN of
    /// its own; the port that had it.
    pub fn release_address(
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
