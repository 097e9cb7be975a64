//! What each port and TAP was told to be, and by whom.
//!
//! Two accounts: what the command line and the files say, and what is in force. Ports that were
//! added, changed or deleted while the switch runs are the difference, which `keep` writes down.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use crate::config::{Config, Origin, Settings, Shared, place};

/// What one port or TAP is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its settings.
    pub settings: Settings,
    /// Who gave it.
    pub origin: Origin,
}

/// Two want what only one may have.
#[derive(Debug, thiserror::Error)]
#[error("{} {} is already used by {owner}", what.noun(), place.display())]
pub struct Clash {
    what: Shared,
    place: PathBuf,
    owner: String,
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
}

impl Book {
    /// The entries of a configuration, with the changes that were made since.
    pub fn new(config: &Config) -> Book {
        let mut book = Book::default();
        if let Some(control) = &config.control {
            book.reserve(&control.path);
        }
        for (settings, origin) in config.entries() {
            book.enter(Entry { settings, origin });
        }
        book
    }

    /// What is in force, by name.
    pub fn entries(&self) -> &BTreeMap<String, Entry> {
        &self.entries
    }

    /// What the configuration says of one name.
    pub fn configured(&self, name: &str) -> Option<&Entry> {
        self.configured.get(name)
    }

    /// What the configuration has and is not in force.
    pub fn deleted(&self) -> impl Iterator<Item = &Entry> {
        let all = self.configured.iter();
        all.filter(|(name, _)| !self.entries.contains_key(*name)).map(|(_, entry)| entry)
    }

    /// Everything that the configuration has.
    pub fn all_configured(&self) -> impl Iterator<Item = &Entry> {
        self.configured.values()
    }

    /// Another configuration counts from now on.
    pub fn configure(&mut self, config: &Config) {
        let all = config.entries();
        self.configure_as(all.map(|(settings, origin)| Entry { settings, origin }).collect());
    }

    /// The same by its entries.
    pub fn configure_as(&mut self, all: Vec<Entry>) {
        let all = all.into_iter();
        self.configured = all.map(|entry| (entry.settings.name().to_owned(), entry)).collect();
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
        let name = entry.settings.name().to_owned();
        self.strike(&name);
        let claims = entry.settings.claims();
        self.owners.extend(claims.iter().map(|claim| (claim.clone(), name.clone())));
        self.claims.insert(name.clone(), claims);
        self.entries.insert(name, entry);
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
    pub fn clash(&self, settings: &Settings) -> Option<Clash> {
        settings.claims().into_iter().find_map(|(what, place)| {
            let owner = self.owners.get(&(what, place.clone()))?;
            (owner != settings.name()).then(|| Clash { what, place, owner: owner.clone() })
        })
    }

    /// Keeps the control socket's path from being a port's.
    fn reserve(&mut self, path: &Path) {
        self.owners.insert((Shared::Socket, place(path)), CONTROL.to_owned());
    }
}
