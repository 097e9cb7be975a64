//! Static addresses that come and go while the switch runs.

use serde_json::{Value, json};

use super::connection::Caller;
use super::message::{Fault, Parameters};
use super::methods::Switch;
use super::parameters::{self, only, required};
use crate::config::Wrong;
use crate::frame::MacAddr;

impl Switch {
    /// `AddAddress`: the address is the port's for as long as there is one, and cannot be learned
    /// elsewhere. As many as a configuration may have; those that a port has already are as good.
    pub(super) fn add_address(
        &self,
        mut parameters: Parameters,
        caller: Caller,
    ) -> Result<Value, Fault> {
        only(&parameters, &["mac", "port"])?;
        let (mac, name) = (address(&mut parameters)?, required(&mut parameters, "port")?);
        let tied = self.daemon().assign_address(mac, &name);
        tied.map_err(|error| self.fault(&name, &error))?;
        self.tell("adds an address to", &name, caller);
        Ok(json!({}))
    }

    /// `DeleteAddress`: one of the settings too, which are others then.
    pub(super) fn delete_address(
        &self,
        mut parameters: Parameters,
        caller: Caller,
    ) -> Result<Value, Fault> {
        only(&parameters, &["mac"])?;
        let mac = address(&mut parameters)?;
        let untied = self.daemon().release_address(mac);
        let owner = untied.map_err(|error| Fault::refused(&error.to_string()))?;
        self.tell("takes an address from", &owner, caller);
        Ok(json!({"port": owner}))
    }
}

/// The parameter `mac`: the address of one station.
fn address(parameters: &mut Parameters) -> Result<MacAddr, Fault> {
    let mac = parameters::mac(parameters, "mac")?;
    if mac.is_station() {
        return Ok(mac);
    }
    let text = "mac must be the address of one station, such as 52:54:00:12:34:56".to_owned();
    Err(Fault::invalid(&Wrong { key: "mac".to_owned(), text }, &mac.to_string()))
}
