//! What each port and TAP was told to be, and by whom.
//!
//! Two accounts: what the command line and the files say, and what is in force. Ports that were
//! added, changed or deleted while the switch runs are the difference, which `keep` writes down.
//! Addresses that were tied to a port while the switch runs are no setting of it: they are kept
//! beside, so that other settings, whoever gives them, leave them alone. They go with their port.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use crate::config::{Config, Entry, Origin, Settings, Shared, place};
use crate::frame::MacAddr;
use crate::limits::MAX_STATIC_MACS;

/// What became of one port while the switch runs.
#[derive(Debug)]
pub struct Changed<'b> {
    /// What the configuration has; nothing of one that was added.
    pub configured: Option<&'b Entry>,
    /// What is in force; nothing of one that was deleted.
    pub now: Option<&'b Entry>,
    /// Addresses that were tied to it.
    pub tied: Vec<MacAddr>,
}

impl Changed<'_> {
    /// False if nothing but addresses differs.
    pub fn has_other_settings(&self) -> bool {
        self.configured.map(|entry| &entry.settings) != self.now.map(|entry| &entry.settings)
    }
}

/// Two want what only one may have.
#[derive(Debug, thiserror::Error)]
#[error("{} {} is already used by {owner}", what.noun(), place.display())]
pub struct Clash {
    what: Shared,
    place: PathBuf,
    owner: String,
}

/// Why an address cannot be tied to a port.
#[derive(Debug, thiserror::Error)]
pub enum Untied {
    /// There is none of this name.
    #[error("there is no such port")]
    NoSuchPort,
    /// It is another one's.
    #[error("{mac} is a static address of port '{owner}'")]
    Taken {
        /// The address.
        mac: MacAddr,
        /// Who has it.
        owner: String,
    },
    /// It has as many as there may be.
    #[error("port '{name}' has {MAX_STATIC_MACS} static addresses already")]
    Many {
        /// The port.
        name: String,
    },
}

/// An address, as something that only one port may have.
fn claim(mac: MacAddr) -> (Shared, PathBuf) {
    (Shared::Mac, mac.to_string().into())
}

/// The owner of the control socket; no port has such a name.
const CONTROL: &str = "the control socket";

/// All of them.
#[derive(Debug, Clone, Default)]
pub struct Book {
    entries: BTreeMap<String, Entry>,
    /// The sockets and interfaces of each, as they were spelled when it was entered.
    claims: HashMap<String, Vec<(Shared, PathBuf)>>,
    /// The same by who has them.
    owners: HashMap<(Shared, PathBuf), String>,
    /// As the command line and the files have them.
    configured: BTreeMap<String, Entry>,
    /// Addresses that were tied to ports while the switch runs, and to which.
    tied: BTreeMap<MacAddr, String>,
    /// What ports are like that bring their own sockets; none in a test of the book alone.
    template: Option<Settings>,
}

impl Book {
    /// The entries of a configuration, with the changes that were made since.
    pub fn new(config: &Config) -> Book {
        let mut book = Book { template: Some(config.template.clone()), ..Book::default() };
        if let Some(control) = &config.control {
            book.reserve(&control.path);
        }
        config.ports.iter().for_each(|entry| book.enter(entry.clone()));
        book
    }

    /// What is in force, by name.
    pub fn entries(&self) -> &BTreeMap<String, Entry> {
        &self.entries
    }

    /// Ports that brought their own sockets, and whose these are.
    pub fn plugged(&self) -> impl Iterator<Item = (&str, u32)> {
        let all = self.entries.iter();
        all.filter_map(|(name, entry)| Some((name.as_str(), entry.origin.plugged_by()?)))
    }

    /// What such ports are like that come from now on.
    pub fn template(&self) -> Option<&Settings> {
        self.template.as_ref()
    }

    /// Has them be like this, as a configuration says.
    pub fn set_template(&mut self, template: Option<Settings>) {
        self.template = template;
    }

    /// What the configuration says of one name.
    pub fn configured(&self, name: &str) -> Option<&Entry> {
        self.configured.get(name)
    }

    /// What the configuration has and is not in force.
    pub fn deleted(&self) -> impl Iterator<Item = &Entry> {
        // What has the name of one meanwhile and is not kept is no reason to have it again.
        let lasts = |name: &str| self.get(name).is_some_and(|e| e.origin.plugged_by().is_none());
        let all = self.configured.iter();
        all.filter(move |(name, _)| !lasts(name)).map(|(_, entry)| entry)
    }

    /// What is not as the configuration has it, by name. Ports that brought their own sockets are
    /// not among it: these are found again.
    pub fn changes(&self) -> Vec<Changed<'_>> {
        let mut tied: HashMap<&str, Vec<MacAddr>> = HashMap::new();
        for (mac, name) in &self.tied {
            tied.entry(name).or_default().push(*mac);
        }
        let lasting = self.entries.values().filter(|entry| entry.origin.plugged_by().is_none());
        let there = lasting.map(|entry| {
            let name = entry.settings.name.as_str();
            let tied = tied.remove(name).unwrap_or_default();
            Changed { configured: self.configured(name), now: Some(entry), tied }
        });
        let there =
            there.filter(|changed| changed.has_other_settings() || !changed.tied.is_empty());
        let deleted = self.deleted().map(|entry| Changed {
            configured: Some(entry),
            now: None,
            tied: Vec::new(),
        });
        // One after the other: the first takes out of `tied`.
        let mut all: Vec<Changed<'_>> = there.collect();
        all.extend(deleted);
        all
    }

    /// Everything that the configuration has.
    pub fn all_configured(&self) -> impl Iterator<Item = &Entry> {
        self.configured.values()
    }

    /// Another configuration counts from now on.
    pub fn configure(&mut self, config: &Config) {
        self.configure_as(config.ports.clone());
    }

    /// The same by its entries.
    pub fn configure_as(&mut self, all: Vec<Entry>) {
        let all = all.into_iter();
        self.configured = all.map(|entry| (entry.settings.name.clone(), entry)).collect();
    }

    /// What is in force for one name.
    pub fn get(&self, name: &str) -> Option<&Entry> {
        self.entries.get(name)
    }

    /// Who gave a port; who is not known gave it while the switch ran.
    pub fn origin(&self, name: &str) -> Origin {
        self.get(name).map_or(Origin::Runtime, |entry| entry.origin)
    }

    /// Puts an entry in the place of the one of its name.
    pub fn enter(&mut self, entry: Entry) {
        let name = entry.settings.name.clone();
        self.strike(&name);
        let claims = entry.claims();
        self.owners.extend(claims.iter().map(|claim| (claim.clone(), name.clone())));
        // What its settings have now need not be kept beside them.
        entry.settings.mac.iter().for_each(|mac| drop(self.tied.remove(mac)));
        self.claims.insert(name.clone(), claims);
        self.entries.insert(name, entry);
    }

    /// What only one may have of an entry, as it was spelled when it was entered, and the addresses
    /// that were tied to it.
    pub fn claims(&self, name: &str) -> Vec<(Shared, PathBuf)> {
        let tied = self.tied_to(name).map(claim);
        self.claims.get(name).into_iter().flatten().cloned().chain(tied).collect()
    }

    /// Takes an entry out.
    pub fn strike(&mut self, name: &str) -> Option<Entry> {
        let entry = self.entries.remove(name)?;
        for claim in self.claims.remove(name).unwrap_or_default() {
            if self.owners.get(&claim).is_some_and(|owner| owner == name) {
                self.owners.remove(&claim);
            }
        }
        Some(entry)
    }

    /// Another entry that has what only one may have, and what that is.
    pub fn clash(&self, entry: &Entry) -> Option<Clash> {
        entry.claims().into_iter().find_map(|(what, place)| {
            let owner = self.owners.get(&(what, place.clone()))?;
            (*owner != entry.settings.name).then(|| Clash { what, place, owner: owner.clone() })
        })
    }

    /// Addresses that were tied to ports while the switch runs, and to which.
    pub fn tied(&self) -> &BTreeMap<MacAddr, String> {
        &self.tied
    }

    /// The same of one port.
    pub fn tied_to(&self, name: &str) -> impl Iterator<Item = MacAddr> {
        self.tied.iter().filter(move |(_, port)| *port == name).map(|(mac, _)| *mac)
    }

    /// The port that has an address, tied or by its settings.
    pub fn owner(&self, mac: MacAddr) -> Option<&str> {
        self.owners.get(&claim(mac)).map(String::as_str)
    }

    /// Ties an address to a port.
    pub fn tie(&mut self, mac: MacAddr, name: &str) -> Result<(), Untied> {
        let entry = self.get(name).ok_or(Untied::NoSuchPort)?;
        match self.owner(mac) {
            Some(owner) if owner == name => return Ok(()),
            Some(owner) => return Err(Untied::Taken { mac, owner: owner.to_owned() }),
            None => {}
        }
        if entry.settings.mac.len() + self.tied_to(name).count() >= MAX_STATIC_MACS {
            return Err(Untied::Many { name: name.to_owned() });
        }
        self.owners.insert(claim(mac), name.to_owned());
        self.tied.insert(mac, name.to_owned());
        Ok(())
    }

    /// Gives an address free that was tied to a port; false if it was not.
    pub fn untie(&mut self, mac: MacAddr) -> bool {
        let tied = self.tied.remove(&mac).is_some();
        if tied {
            self.owners.remove(&claim(mac));
        }
        tied
    }

    /// The same for all of a port that is gone.
    pub fn untie_all(&mut self, name: &str) {
        let all: Vec<MacAddr> = self.tied_to(name).collect();
        for mac in all {
            self.untie(mac);
        }
    }

    /// Forgets what is tied now as it was here: of the rest somebody else decides.
    pub fn leave_tied(&mut self, now: &Book) {
        self.tied.retain(|mac, name| now.tied.get(mac) != Some(name));
    }

    /// What there is after going back to this from `now`. What was added meanwhile while the switch
    /// ran stays, what was deleted stays away, and so do settings of the command line's ports.
    pub fn after_going_back(&self, now: &Book) -> Book {
        let (configured, template) = (self.configured.clone(), self.template.clone());
        let mut back = Book { configured, template, ..Book::default() };
        let reserved = self.owners.iter().filter(|(_, owner)| *owner == CONTROL);
        back.owners = reserved.map(|(claim, owner)| (claim.clone(), owner.clone())).collect();
        let is_back = |entry: &&Entry| match entry.origin {
            Origin::File => true,
            Origin::Runtime => now.get(entry.settings.name.as_str()).is_some(),
            Origin::Cli | Origin::Plug(_) => false,
        };
        let stays = |entry: &&Entry| match entry.origin {
            Origin::File => false,
            Origin::Runtime => self.get(entry.settings.name.as_str()).is_none(),
            Origin::Cli => true,
            // Whose socket is there comes again by itself, but for a name that is taken.
            Origin::Plug(_) => {
                let before = self.get(entry.settings.name.as_str());
                before.is_none_or(|before| before.origin.plugged_by().is_some())
            }
        };
        let before = self.entries.values().filter(is_back);
        for entry in before.chain(now.entries.values().filter(stays)) {
            if back.clash(entry).is_none() {
                back.enter(entry.clone());
            }
        }
        for (mac, name) in self.tied.iter().chain(&now.tied) {
            // The port may be gone, or another one have it by its settings.
            let _ = back.tie(*mac, name);
        }
        back
    }

    /// Keeps the control socket's path from being a port's.
    fn reserve(&mut self, path: &Path) {
        self.owners.insert((Shared::Socket, place(path)), CONTROL.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Kind, Value};

    fn mac(last: u8) -> MacAddr {
        MacAddr([2, 0, 0, 0, 0, last])
    }

    fn settings(name: &str, macs: &[u8]) -> Settings {
        let mut given = vec![
            ("name".to_owned(), Value::Word(name.to_owned())),
            ("socket".to_owned(), Value::Word(format!("/run/{name}"))),
        ];
        given.extend(macs.iter().map(|&n| ("mac".to_owned(), Value::Word(mac(n).to_string()))));
        Settings::parse(Kind::Port, given).unwrap()
    }

    fn enter(book: &mut Book, name: &str, macs: &[u8]) {
        book.enter(Entry::new(settings(name, macs), Origin::File));
    }

    #[test]
    fn an_address_is_one_ports_and_outlives_its_settings() {
        let mut book = Book::default();
        enter(&mut book, "a", &[1]);
        enter(&mut book, "b", &[]);
        book.tie(mac(1), "a").unwrap();
        assert!(book.tied().is_empty(), "its settings have it");
        book.tie(mac(2), "a").unwrap();
        assert!(book.tie(mac(2), "b").is_err() && book.tie(mac(1), "b").is_err());
        assert!(book.tie(mac(3), "c").is_err());
        assert!(book.clash(&Entry::new(settings("b", &[2]), Origin::File)).is_some());
        // Other settings, and for a moment none.
        enter(&mut book, "a", &[]);
        assert_eq!((book.owner(mac(1)), book.owner(mac(2))), (None, Some("a")));
        book.strike("a");
        assert_eq!(book.owner(mac(2)), Some("a"));
        enter(&mut book, "a", &[2]);
        assert!(book.tied().is_empty() && book.owner(mac(2)) == Some("a"));
        assert!(!book.untie(mac(2)));
        book.tie(mac(4), "a").unwrap();
        book.tie(mac(5), "b").unwrap();
        book.untie_all("a");
        assert_eq!(book.tied_to("b").collect::<Vec<_>>(), [mac(5)]);
        assert!(book.untie(mac(5)) && book.owner(mac(5)).is_none());
    }

    #[test]
    fn a_port_has_no_more_than_a_configuration_may_give_it() {
        let mut book = Book::default();
        enter(&mut book, "a", &[0, 1]);
        (2..MAX_STATIC_MACS).for_each(|n| book.tie(mac(n as u8), "a").unwrap());
        assert!(matches!(book.tie(mac(200), "a"), Err(Untied::Many { .. })));
        book.tie(mac(0), "a").unwrap();
    }
}
