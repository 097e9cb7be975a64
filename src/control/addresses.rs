//! Static addresses that come and go while the switch runs.

use serde_json::{Value, json};

use super::connection::Caller;
use super::message::{Fault, Parameters};
use super::methods::{Switch, unknown_port};
use super::parameters::{self, only, required};
use crate::config::Wrong;
use crate::frame::MacAddr;
use crate::limits::MAX_STATIC_MACS;
use crate::switch::EntryAge;
use crate::sys::clock;

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
        // No port comes or goes meanwhile, and a number is no other port's.
        let daemon = self.daemon();
        let ports = daemon.ports();
        let port = ports.named(&name).ok_or_else(|| unknown_port(&ports, &name))?;
        let entries = daemon.fdb().entries(clock::coarse_seconds());
        let own = entries.iter().filter(|entry| entry.port == port.id);
        let mut statics = own.filter(|entry| entry.age == EntryAge::Static);
        if statics.clone().all(|entry| entry.mac != mac) {
            if statics.by_ref().count() >= MAX_STATIC_MACS {
                let text = format!("port '{name}' has {MAX_STATIC_MACS} static addresses already");
                return Err(Fault::refused(&text));
            }
            daemon.fdb().insert_static(mac, port.id).map_err(|error| {
                // It knows ports by their numbers.
                let owner = entries.iter().find(|entry| entry.mac == mac);
                let owner = owner.and_then(|entry| ports.get(entry.port));
                Fault::refused(&match owner {
                    Some(owner) => format!("{mac} is a static address of port '{}'", owner.name),
                    None => error.to_string(),
                })
            })?;
        }
        self.tell("adds an address to", &name, caller);
        Ok(json!({}))
    }

    /// `DeleteAddress`: one of the configuration comes back with a restart.
    pub(super) fn delete_address(
        &self,
        mut parameters: Parameters,
        caller: Caller,
    ) -> Result<Value, Fault> {
        only(&parameters, &["mac"])?;
        let mac = address(&mut parameters)?;
        let daemon = self.daemon();
        let ports = daemon.ports();
        let owner = daemon.fdb().lookup(mac).and_then(|id| ports.get(id));
        let Some(owner) = owner.filter(|owner| daemon.fdb().remove_static(mac, owner.id)) else {
            return Err(Fault::refused(&format!("{mac} is no static address of any port")));
        };
        self.tell("takes an address from", &owner.name, caller);
        Ok(json!({"port": owner.name}))
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
