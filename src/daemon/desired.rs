//! The ports that are wanted: by the configuration, by clients, by sockets in the plug directory.
//!
//! `configured` is what the command line and the files say, `entries` is what is wanted now. The
//! difference is what was added, changed or deleted while the switch runs; `state_store`
//! writes it down. Static addresses that a port was given while the switch runs are no setting of
//! it: they outlive a change of its settings and go with the port.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use api::config::{Config, Entry, Origin, Settings, Shared, place};
use base::frame::MacAddr;
use base::limits::{MAX_MIRRORS, MAX_STATIC_MACS};
use switch::mirror::{Mirror, conflict};

/// A port that has changed while the switch runs.
#[derive(Debug)]
pub struct Changed<'b> {
    /// The configuration's entry; none for a port that was added.
    pub configured: Option<&'b Entry>,
    /// The entry in force; none for a port that was deleted.
    pub now: Option<&'b Entry>,
    /// Addresses that it was given.
    pub tied: Vec<MacAddr>,
}

impl Changed<'_> {
    /// False if nothing but addresses differs.
    pub fn has_other_settings(&self) -> bool {
        self.configured.map(|entry| &entry.settings) != self.now.map(|entry| &entry.settings)
    }

    /// True if a client deleted the port of the configuration and added one of the same name.
    pub fn is_added_again(&self) -> bool {
        let is_runtime = |entry: &Entry| entry.origin == Origin::Runtime;
        self.configured.is_some() && self.now.is_some_and(is_runtime)
    }

    /// The port's name, and what a client did: `vm3 added`.
    pub fn summary(&self) -> String {
        let done = match (self.configured, self.now) {
            (None, _) => "added",
            (Some(_), Some(_)) => "changed",
            (Some(_), None) => "deleted",
        };
        format!("{} {done}", self.name())
    }

    /// The port's name.
    pub fn name(&self) -> &str {
        self.now.or(self.configured).map_or("", |entry| &entry.settings.name)
    }
}

/// An entry claims what another one has.
#[derive(Debug, thiserror::Error)]
#[error("{what} {} is already used by {owner}{}", self.shown().display(), self.remedy())]
pub struct Clash {
    what: Shared,
    place: PathBuf,
    owner: String,
}

impl Clash {
    /// The command that shows the owner.
    fn remedy(&self) -> String {
        match self.owner.as_str() {
            CONTROL => ": choose another path".to_owned(),
            owner => format!(": see vioswitchctl port show {owner}"),
        }
    }

    /// The path, or of an address what is behind its bridge and VLAN.
    fn shown(&self) -> &Path {
        let address = self.place.file_name().filter(|_| self.what == Shared::Mac);
        address.map_or(&self.place, Path::new)
    }
}

/// Why a port cannot be given an address.
#[derive(Debug, thiserror::Error)]
pub enum NotAssigned {
    /// There is no port of this name.
    #[error("there is no such port")]
    NoSuchPort,
    /// Another port has it.
    #[error("{0} is a static address of port '{1}'")]
    Taken(MacAddr, String),
    /// The port has the most that one may have.
    #[error("port '{0}' has {MAX_STATIC_MACS} static addresses already")]
    Many(String),
}

/// An address, as something that only one port of a bridge and VLAN may have.
fn claim(home: &Path, mac: MacAddr) -> (Shared, PathBuf) {
    (Shared::Mac, home.join(mac.to_string()))
}

/// The owner of the control socket; no port has such a name.
const CONTROL: &str = "the control socket";

/// The ports that are wanted.
#[derive(Debug, Clone, Default)]
pub struct Desired {
    entries: BTreeMap<String, Entry>,
    /// The sockets and interfaces of each, as they were spelled when it was entered.
    claims: HashMap<String, Vec<(Shared, PathBuf)>>,
    /// Owner of each value that one port alone may have.
    owners: HashMap<(Shared, PathBuf), String>,
    /// Entries of the command line and the files.
    configured: BTreeMap<String, Entry>,
    /// Static addresses that were given to ports while the switch runs, and where they are.
    assigned: BTreeMap<(MacAddr, String), PathBuf>,
    /// Settings of ports that bring their own sockets; none in a test of this module.
    template: Option<Settings>,
}

impl Desired {
    /// The entries of a configuration, with the changes that were made since.
    pub fn new(config: &Config) -> Desired {
        let mut desired = Desired { template: Some(config.template.clone()), ..Desired::default() };
        if let Some(control) = &config.control {
            desired.reserve(&control.path);
        }
        config.ports.iter().for_each(|entry| desired.insert(entry.clone()));
        desired
    }

    /// The ports that are wanted, by name.
    pub fn entries(&self) -> &BTreeMap<String, Entry> {
        &self.entries
    }

    /// Ports that brought their own sockets, and whose these are.
    pub fn plugged(&self) -> impl Iterator<Item = (&str, u32)> {
        let all = self.entries.iter();
        all.filter_map(|(name, entry)| Some((name.as_str(), entry.origin.plugged_by()?)))
    }

    /// Returns the settings of ports that bring their own sockets.
    pub fn template(&self) -> Option<&Settings> {
        self.template.as_ref()
    }

    /// Returns the configuration's entry of a name.
    pub fn configured(&self, name: &str) -> Option<&Entry> {
        self.configured.get(name)
    }

    /// Returns the configuration's entries that a client has deleted.
    pub fn deleted(&self) -> impl Iterator<Item = &Entry> {
        // A port by plug of the same name is not kept, so the deletion still counts.
        let lasts = |name: &str| self.get(name).is_some_and(|e| e.origin.plugged_by().is_none());
        let all = self.configured.iter();
        all.filter(move |(name, _)| !lasts(name)).map(|(_, entry)| entry)
    }

    /// Returns the ports that differ from the configuration, by name, except ports by plug: their
    /// sockets are found again.
    pub fn changes(&self) -> Vec<Changed<'_>> {
        let mut tied: HashMap<&str, Vec<MacAddr>> = HashMap::new();
        for (mac, name) in self.assigned() {
            tied.entry(name).or_default().push(mac);
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
        let all = config.ports.iter().cloned();
        self.configured = all.map(|entry| (entry.settings.name.clone(), entry)).collect();
        self.template = Some(config.template.clone());
    }

    /// The entry of one name.
    pub fn get(&self, name: &str) -> Option<&Entry> {
        self.entries.get(name)
    }

    /// Where a port comes from; a client added one of an unknown name.
    pub fn origin(&self, name: &str) -> Origin {
        self.get(name).map_or(Origin::Runtime, |entry| entry.origin)
    }

    /// Inserts an entry in place of the one of its name.
    pub fn insert(&mut self, entry: Entry) {
        let name = entry.settings.name.clone();
        self.remove(&name);
        let claims = entry.claims();
        self.owners.extend(claims.iter().map(|claim| (claim.clone(), name.clone())));
        // An address of the settings need not be kept beside them.
        for mac in &entry.settings.mac {
            self.assigned.remove(&(*mac, name.clone()));
        }
        self.rehome(&name, entry.settings.home());
        self.claims.insert(name.clone(), claims);
        self.entries.insert(name, entry);
    }

    /// The static addresses of each port: those of its settings and those it was given.
    pub fn addresses(&self) -> HashMap<&str, BTreeSet<MacAddr>> {
        let mut all: HashMap<&str, BTreeSet<MacAddr>> = HashMap::new();
        for (name, entry) in &self.entries {
            all.entry(name).or_default().extend(&entry.settings.mac);
        }
        for (mac, name) in self.assigned() {
            all.entry(name).or_default().insert(mac);
        }
        all
    }

    /// Moves the addresses that a port was given to the bridge and VLAN that it is in now.
    fn rehome(&mut self, name: &str, home: PathBuf) {
        let all =
            self.assigned.iter_mut().filter(|((_, port), there)| port == name && **there != home);
        for ((mac, _), there) in all {
            self.owners.remove(&claim(there, *mac));
            self.owners.insert(claim(&home, *mac), name.to_owned());
            there.clone_from(&home);
        }
    }

    /// Removes an entry; the addresses that it was given stay.
    pub fn remove(&mut self, name: &str) -> Option<Entry> {
        let entry = self.entries.remove(name)?;
        for claim in self.claims.remove(name).unwrap_or_default() {
            if self.owners.get(&claim).is_some_and(|owner| owner == name) {
                self.owners.remove(&claim);
            }
        }
        Some(entry)
    }

    /// An error if another entry has something of this one.
    pub fn check(&self, entry: &Entry) -> Result<(), Clash> {
        let home = entry.settings.home();
        let given = self.assigned_to(&entry.settings.name).map(|mac| claim(&home, mac));
        let clash = entry.claims().into_iter().chain(given).find_map(|(what, place)| {
            let owner = self.owners.get(&(what, place.clone()))?;
            (*owner != entry.settings.name).then(|| Clash { what, place, owner: owner.clone() })
        });
        clash.map_or(Ok(()), Err)
    }

    /// Inserts an entry unless another one has something of it.
    pub fn enter(&mut self, entry: Entry) -> Result<(), Clash> {
        self.check(&entry)?;
        self.insert(entry);
        Ok(())
    }

    /// The mirrors that are wanted, by name.
    pub fn mirrors(&self) -> impl Iterator<Item = Mirror> {
        self.entries.values().filter_map(|entry| entry.settings.mirror())
    }

    /// Why a mirror cannot be beside the others, if it is one.
    pub fn check_mirror(&self, settings: &Settings) -> Result<(), String> {
        let Some(mirror) = settings.mirror() else { return Ok(()) };
        let others: Vec<Mirror> = self.mirrors().collect();
        if others.iter().filter(|other| other.name != mirror.name).count() >= MAX_MIRRORS {
            return Err(format!("there are {MAX_MIRRORS} mirrors already"));
        }
        let observer = self.get(&mirror.to);
        if observer.is_some_and(|entry| entry.origin.plugged_by().is_some()) {
            return Err(format!(
                "port '{}' is by plug: whoever makes its socket anew would get the copies",
                mirror.to
            ));
        }
        conflict(&mirror, &others).map_or(Ok(()), Err)
    }

    /// Returns the name of a mirror whose copies a port of this name gets.
    pub fn mirror_to(&self, name: &str) -> Option<String> {
        self.mirrors().find(|mirror| mirror.to == name).map(|mirror| mirror.name)
    }

    /// Static addresses that ports were given while the switch runs.
    pub fn assigned(&self) -> impl Iterator<Item = (MacAddr, &str)> {
        self.assigned.keys().map(|(mac, name)| (*mac, name.as_str()))
    }

    /// Returns the static addresses that a port was given while the switch runs.
    pub fn assigned_to(&self, name: &str) -> impl Iterator<Item = MacAddr> {
        self.assigned().filter(move |(_, port)| *port == name).map(|(mac, _)| mac)
    }

    /// Whether a port was given this address while the switch runs.
    pub fn is_assigned(&self, mac: MacAddr, name: &str) -> bool {
        self.assigned.contains_key(&(mac, name.to_owned()))
    }

    /// The ports that have an address, one in each bridge and VLAN.
    pub fn owners(&self, mac: MacAddr) -> Vec<&str> {
        let (word, all) = (mac.to_string(), self.owners.iter());
        let of = all.filter(|((what, place), _)| *what == Shared::Mac && place.ends_with(&word));
        of.map(|(_, owner)| owner.as_str()).collect()
    }

    /// The port that has an address where the settings would have theirs.
    pub fn owner(&self, mac: MacAddr, settings: &Settings) -> Option<&str> {
        self.owners.get(&claim(&settings.home(), mac)).map(String::as_str)
    }

    /// Gives an address to a port.
    pub fn assign(&mut self, mac: MacAddr, name: &str) -> Result<(), NotAssigned> {
        let entry = self.get(name).ok_or(NotAssigned::NoSuchPort)?;
        let home = entry.settings.home();
        match self.owner(mac, &entry.settings) {
            Some(owner) if owner == name => return Ok(()),
            Some(owner) => return Err(NotAssigned::Taken(mac, owner.to_owned())),
            None => {}
        }
        if entry.settings.mac.len() + self.assigned_to(name).count() >= MAX_STATIC_MACS {
            return Err(NotAssigned::Many(name.to_owned()));
        }
        self.owners.insert(claim(&home, mac), name.to_owned());
        self.assigned.insert((mac, name.to_owned()), home);
        Ok(())
    }

    /// Takes an address away that a port was given; false if it was not.
    pub fn unassign(&mut self, mac: MacAddr, name: &str) -> bool {
        let home = self.assigned.remove(&(mac, name.to_owned()));
        home.inspect(|home| drop(self.owners.remove(&claim(home, mac)))).is_some()
    }

    /// Takes all addresses away that a port was given.
    pub fn unassign_all(&mut self, name: &str) {
        let all: Vec<MacAddr> = self.assigned_to(name).collect();
        for mac in all {
            self.unassign(mac, name);
        }
    }

    /// Keeps of the given addresses only those that `now` has not.
    pub fn keep_unassigned(&mut self, now: &Desired) {
        self.assigned.retain(|given, _| !now.assigned.contains_key(given));
    }

    /// Returns the entries after going back to these from `now`. Ports that clients have added
    /// stay, ports that they have deleted stay away, settings of the command line's ports stay.
    pub fn after_going_back(&self, now: &Desired) -> Desired {
        let (configured, template) = (self.configured.clone(), self.template.clone());
        let mut back = Desired { configured, template, ..Desired::default() };
        let reserved = self.owners.iter().filter(|(_, owner)| *owner == CONTROL);
        back.owners = reserved.map(|(claim, owner)| (claim.clone(), owner.clone())).collect();
        let is_back = |entry: &&Entry| match entry.origin {
            Origin::File => true,
            Origin::Runtime => now.get(entry.settings.name.as_str()).is_some(),
            Origin::Cli | Origin::Plug(_) => false,
        };
        let stays = |entry: &&Entry| match entry.origin {
            Origin::File => false,
            // A port of the command line may have been deleted and added again meanwhile.
            Origin::Runtime => {
                let before = self.get(entry.settings.name.as_str());
                before.is_none_or(|before| before.origin == Origin::Cli)
            }
            Origin::Cli => true,
            // Whose socket is there comes again by itself, but for a name that is taken.
            Origin::Plug(_) => {
                let before = self.get(entry.settings.name.as_str());
                before.is_none_or(|before| before.origin.plugged_by().is_some())
            }
        };
        let before = self.entries.values().filter(is_back);
        for entry in before.chain(now.entries.values().filter(stays)) {
            // But what another one has by now.
            let _ = back.enter(entry.clone());
        }
        for (mac, name) in self.assigned().chain(now.assigned()) {
            // The port may be gone, or another one have it by its settings.
            let _ = back.assign(mac, name);
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
    use api::config::{Kind, Value};

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

    fn enter(desired: &mut Desired, name: &str, macs: &[u8]) {
        desired.insert(Entry::new(settings(name, macs), Origin::File));
    }

    #[test]
    fn an_address_is_one_ports_and_outlives_its_settings() {
        let mut desired = Desired::default();
        enter(&mut desired, "a", &[1]);
        enter(&mut desired, "b", &[]);
        desired.assign(mac(1), "a").unwrap();
        assert!(desired.assigned().next().is_none(), "its settings have it");
        desired.assign(mac(2), "a").unwrap();
        assert!(desired.assign(mac(2), "b").is_err() && desired.assign(mac(1), "b").is_err());
        assert!(desired.assign(mac(3), "c").is_err());
        assert!(desired.check(&Entry::new(settings("b", &[2]), Origin::File)).is_err());
        // Other settings, and for a moment none.
        enter(&mut desired, "a", &[]);
        assert_eq!((desired.owners(mac(1)), desired.owners(mac(2))), (vec![], vec!["a"]));
        desired.remove("a");
        assert_eq!(desired.owners(mac(2)), ["a"]);
        enter(&mut desired, "a", &[2]);
        assert!(desired.assigned().next().is_none() && desired.owners(mac(2)) == ["a"]);
        assert!(!desired.unassign(mac(2), "a"));
        desired.assign(mac(4), "a").unwrap();
        desired.assign(mac(5), "b").unwrap();
        desired.unassign_all("a");
        assert_eq!(desired.assigned_to("b").collect::<Vec<_>>(), [mac(5)]);
        assert!(desired.unassign(mac(5), "b") && desired.owners(mac(5)).is_empty());
    }

    #[test]
    fn a_port_has_no_more_than_a_configuration_may_give_it() {
        let mut desired = Desired::default();
        enter(&mut desired, "a", &[0, 1]);
        (2..MAX_STATIC_MACS).for_each(|n| desired.assign(mac(n as u8), "a").unwrap());
        assert!(matches!(desired.assign(mac(200), "a"), Err(NotAssigned::Many(_))));
        desired.assign(mac(0), "a").unwrap();
    }
}
