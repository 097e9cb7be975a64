//! Adds and deletes static addresses while the switch runs.

use super::connection::Caller;
use super::parameters::{self, wrong};
use super::switch::Switch;
use api::wire::{AddAddress, AddressAdded, AddressDeleted, DeleteAddress, Fault};
use base::frame::MacAddr;

impl Switch {
    /// Answers `AddAddress`: gives the port a static address until the port is deleted, so that no
    /// other port learns the address. A port may have as many addresses as a configuration may give
    /// it. An address that the port has already is no error.
    pub(super) fn add_address(
        &self,
        given: &AddAddress,
        caller: Caller,
    ) -> Result<AddressAdded, Fault> {
        let AddAddress { mac, port } = given;
        let tied = self.daemon().assign_address(address(mac)?, port);
        tied.map_err(|error| self.fault(port, &error))?;
        self.tell("adds an address to", port, caller);
        Ok(AddressAdded {})
    }

    /// Answers `DeleteAddress`: takes a static address from a port, also an address among the
    /// port's settings, which change then.
    pub(super) fn delete_address(
        &self,
        given: &DeleteAddress,
        caller: Caller,
    ) -> Result<AddressDeleted, Fault> {
        let untied = self.daemon().release_address(address(&given.mac)?, given.port.as_deref());
        let port = untied.map_err(|error| Fault::refused(&error.to_string()))?;
        self.tell("takes an address from", &port, caller);
        Ok(AddressDeleted { port })
    }
}

/// Returns the address of one station.
fn address(word: &str) -> Result<MacAddr, Fault> {
    let mac = parameters::mac(word, "mac")?;
    if mac.is_station() {
        return Ok(mac);
    }
    let text = "mac must be the address of one station, such as 52:54:00:12:34:56".to_owned();
    Err(wrong("mac", text, &mac.to_string()))
}
