//! Static addresses that come and go while the switch runs.
//!
//! One that is tied to a port beside its settings stays when these change, whoever changes them:
//! it goes with the port, when somebody gives it free, and when a file names it for another port.
//! One that the settings have is a setting: giving it free changes them.

use super::Daemon;
use super::book::Book;
use super::ports::PortError;
use crate::frame::MacAddr;
use crate::port::PortTable;
use crate::switch::Fdb;

impl Daemon {
    /// Ties an address to a port: its frames go there, and no other port can take it over. One that
    /// the port has already is as good.
    pub fn tie(&mut self, mac: MacAddr, name: &str) -> Result<(), PortError> {
        self.is_free()?;
        self.serving(name)?;
        let known = self.book.owner(mac) == Some(name);
        self.book.tie(mac, name)?;
        if known {
            return Ok(());
        }
        // What can fail of keeping it fails before it is done.
        let prepared = self.keeper.prepare(&self.book).map_err(PortError::from);
        match prepared.and_then(|prepared| self.enter_address(mac, name).map(|()| prepared)) {
            Ok(prepared) => self.keeper.commit(prepared).map_err(PortError::Forgotten),
            Err(error) => {
                self.book.untie(mac);
                Err(error)
            }
        }
    }

    /// Gives an address free; the port that had it.
    pub fn untie(&mut self, mac: MacAddr) -> Result<String, PortError> {
        self.is_free()?;
        let owner = self.book.owner(mac).ok_or(PortError::NotStatic(mac))?.to_owned();
        if self.release(mac) {
            self.keep()?;
        } else if let Some(entry) = self.book.get(&owner) {
            let mut settings = entry.settings.clone();
            settings.forget(mac);
            self.set(&settings)?;
        }
        Ok(owner)
    }

    /// Gives an address free that was tied to a port beside its settings; false if it was not.
    pub(super) fn release(&mut self, mac: MacAddr) -> bool {
        let port = self.book.tied().get(&mac).and_then(|name| self.ports().named(name).cloned());
        if let Some(port) = port {
            self.context.fdb.remove_static(mac, port.id);
        }
        self.book.untie(mac)
    }

    /// The same for all of a port that goes for good.
    pub(super) fn release_all(&mut self, name: &str) {
        let all: Vec<MacAddr> = self.book.tied_to(name).collect();
        for mac in all {
            self.release(mac);
        }
    }

    /// Ties an address again that a reload took from its port, and keeps nothing of it.
    pub(super) fn tie_again(&mut self, mac: MacAddr, name: &str) -> Result<(), PortError> {
        self.book.tie(mac, name)?;
        let entered = self.enter_address(mac, name);
        if entered.is_err() {
            self.book.untie(mac);
        }
        entered
    }

    fn enter_address(&self, mac: MacAddr, name: &str) -> Result<(), PortError> {
        let ports = self.ports();
        let port = ports.named(name).ok_or(PortError::NoSuchPort)?;
        Ok(self.context.fdb.insert_static(mac, port.id)?)
    }
}

/// Enters what is tied to the ports of a start.
pub(super) fn enter_all(book: &Book, ports: &PortTable, fdb: &Fdb) {
    for port in ports.iter() {
        for mac in book.tied_to(&port.name) {
            if let Err(error) = fdb.insert_static(mac, port.id) {
                log::error!("port {}: {error}", port.name);
            }
        }
    }
}
