//! Holds the ports that are wanted: by the configuration, by clients, by sockets in the plug
//! directory.
//!
//! `configured` has the ports of the command line and the files, `added` the ports that clients and
//! sockets added, `overrides` the changes of clients at ports of the configuration.
//! `Desired::build` makes `entries`, which are in force, from these three fields. If an added port
//! or an override wants the name, socket, interface or address of a port of the configuration, the
//! configuration wins, and the added port or the override has no effect ([`Desired::unused`]).
//! `state_store` keeps added ports and overrides, so that they stay through a restart and a reload.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use api::config::{
    Claimed, Config, Entry, Kept, Keys, Kind, Origin, Override, Settings, Unread, place,
};
use base::frame::MacAddr;
use base::limits::{MAX_MIRRORS, MAX_PORTS, MAX_STATIC_MACS};
use switch::mirror::{Mirror, conflict};

/// An entry claims a value that another entry has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{claimed} is already used by {owner}{}", self.remedy())]
pub struct Clash {
    claimed: Claimed,
    owner: String,
}

impl Clash {
    /// Returns the remedy: the command that shows the owner, or another path for the owner
    /// `CONTROL`.
    fn remedy(&self) -> String {
        match self.owner.as_str() {
            CONTROL => ": choose another path".to_owned(),
            owner => format!(": see vioswitchctl port show {owner}"),
        }
    }
}

/// The reason that an added port or an override has no effect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoEffect {
    /// The configuration has the name.
    #[error("the configuration has port '{0}' too, and the configuration's port is in force")]
    Named(String),
    /// The configuration has no port that the override changes.
    #[error("the configuration has no port '{0}'")]
    NoPort(String),
    /// Another entry has the socket, the interface or an address.
    #[error(transparent)]
    Clash(#[from] Clash),
    /// The settings do not fit.
    #[error("{0}")]
    Settings(String),
}

/// An added port or an override that has no effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unused {
    /// The port's name.
    pub(crate) name: String,
    /// The entry of an added port; none for an override.
    pub(crate) entry: Option<Entry>,
    /// The reason.
    pub(crate) why: NoEffect,
}

/// The reason why an address cannot be given to a port.
#[derive(Debug, thiserror::Error)]
pub enum NotAssigned {
    /// The switch has no port of this name.
    #[error("there is no such port")]
    NoSuchPort,
    /// Another port has the address.
    #[error("{0} is a static address of port '{1}'")]
    Taken(MacAddr, String),
    /// The port has as many static addresses as a port may have.
    #[error("port '{0}' has {MAX_STATIC_MACS} static addresses already")]
    Many(String),
}

/// The owner of the control socket; no port has such a name.
const CONTROL: &str = "the control socket";

fn by_plug(port: &str) -> String {
    format!("port '{port}' is by plug: whoever makes the port's socket anew would get the copies")
}

/// The ports that are wanted.
#[derive(Debug, Clone, Default)]
pub struct Desired {
    entries: BTreeMap<String, Entry>,
    /// The claims of each entry, as they were spelled when the entry was inserted.
    claims: HashMap<String, Vec<Claimed>>,
    /// Owner of each value that one port alone may have.
    owners: HashMap<Claimed, String>,
    /// Entries of the command line and the files.
    configured: BTreeMap<String, Entry>,
    /// Ports that clients and sockets added, in force or not.
    added: BTreeMap<String, Entry>,
    /// Changes of clients at ports of the configuration.
    overrides: BTreeMap<String, Override>,
    /// Parts of the kept file that this version cannot read.
    unread: Vec<Unread>,
    /// Added ports and overrides that have no effect.
    unused: Vec<Unused>,
    /// Settings of ports that bring their own sockets; none in a test of this module.
    template: Option<Settings>,
    /// Number of workers of the switch; none in a test of this module.
    workers: Option<usize>,
    /// True if the changes of clients are kept.
    keeps: bool,
}

impl Desired {
    /// Returns the ports that a configuration wants, with the ports and changes that clients of
    /// earlier processes made (`kept`). `keeps`: this process saves the changes of its clients.
    pub(crate) fn new(config: &Config, kept: Kept, keeps: bool) -> Desired {
        let Kept { added, overrides, unread } = kept;
        let entry = |settings: Settings| Entry::new(settings, Origin::Kept);
        let added = added.into_iter().map(|(name, settings)| (name, entry(settings))).collect();
        let workers = Some(config.workers);
        let mut desired =
            Desired { added, overrides, unread, workers, keeps, ..Desired::default() };
        if let Some(control) = &config.control {
            let socket = Claimed::Socket(place(&control.path));
            desired.owners.insert(socket, CONTROL.to_owned());
        }
        desired.with(config)
    }

    /// Returns the ports that are wanted with another configuration.
    pub(crate) fn with(&self, config: &Config) -> Desired {
        let all = config.ports.iter().cloned();
        let configured = all.map(|entry| (entry.settings.name.clone(), entry)).collect();
        let template = Some(config.template.clone());
        let mut desired = Desired { configured, template, ..self.clone() };
        desired.build();
        desired
    }

    /// Returns the ports that are wanted with the configuration of `before`.
    pub(crate) fn back_to(&self, before: &Desired) -> Desired {
        let (configured, template) = (before.configured.clone(), before.template.clone());
        let mut desired = Desired { configured, template, ..self.clone() };
        desired.build();
        desired
    }

    /// Makes the entries that are in force: those of the configuration, with the overrides that
    /// fit, then each added port that no entry and no limit excludes.
    fn build(&mut self) {
        self.entries.clear();
        self.claims.clear();
        self.owners.retain(|_, owner| owner == CONTROL);
        self.unused.clear();
        let is_deleted = |name: &str| self.overrides.get(name) == Some(&Override::Deleted);
        let stay = self.configured.values().filter(|entry| !is_deleted(&entry.settings.name));
        let stay: Vec<Entry> = stay.cloned().collect();
        stay.into_iter().for_each(|entry| self.insert(entry));
        self.enter_overrides();
        for (name, entry) in self.added.clone() {
            let entered = match self.entries.get(&name) {
                Some(there) if there.settings == entry.settings => Ok(()),
                Some(_) => Err(NoEffect::Named(name.clone())),
                None => self.enter_fitting(entry.clone()),
            };
            if let Err(why) = entered {
                self.unused.push(Unused { name, entry: Some(entry), why });
            }
        }
        // The plug directory's thread finds a socket again, so its port need not stay in `added`.
        let entries = &self.entries;
        let lasts = |name: &str, entry: &Entry| {
            entry.origin.plugged_by().is_none() || entries.get(name) == Some(entry)
        };
        self.added.retain(|name, entry| lasts(name, entry));
    }

    /// Inserts the changed entries of the configuration. A change may need an address that another
    /// change frees, so failed changes are tried again until all of them fail.
    fn enter_overrides(&mut self) {
        let changed = |(name, change): (&String, &Override)| {
            let changed = match (self.configured(name), change) {
                (Some(_), Override::Deleted) => return None,
                (Some(base), Override::Keys(keys)) => match base.settings.with(keys) {
                    Ok(settings) => Ok(Entry { settings, ..base.clone() }),
                    Err(wrong) => Err(NoEffect::Settings(wrong.text)),
                },
                (None, _) => Err(NoEffect::NoPort(name.clone())),
            };
            Some((name.clone(), changed))
        };
        let mut left: Vec<_> = self.overrides.iter().filter_map(changed).collect();
        loop {
            let (tried, mut unused) = (left.len(), Vec::new());
            left.retain(|(name, changed)| {
                let entered = changed.clone().and_then(|entry| self.enter_fitting(entry));
                let why = entered.err();
                let (name, entry, is_left) = (name.clone(), None, why.is_some());
                unused.extend(why.map(|why| Unused { name, entry, why }));
                is_left
            });
            if left.len() == tried {
                self.unused.extend(unused);
                return;
            }
        }
    }

    /// Inserts an entry unless another entry, or a limit, excludes it.
    fn enter_fitting(&mut self, entry: Entry) -> Result<(), NoEffect> {
        let Settings { kind, name, .. } = &entry.settings;
        self.check(&entry)?;
        self.check_mirror(&entry.settings).map_err(NoEffect::Settings)?;
        if entry.origin.plugged_by().is_some() && self.mirror_to(name).is_some() {
            return Err(NoEffect::Settings(by_plug(name)));
        }
        let worker = self.workers.map_or(Ok(()), |workers| entry.settings.check_worker(workers));
        worker.map_err(|wrong| NoEffect::Settings(wrong.text))?;
        let others = self.entries.values().map(|entry| &entry.settings);
        let others = others.filter(|other| other.name != *name);
        let same = others.clone().filter(|other| other.kind == *kind).count();
        let ports = others.filter(|other| other.kind.is_port()).count();
        if same >= kind.most() || kind.is_port() && ports >= MAX_PORTS {
            let text = "there are too many ports, taps or streams";
            return Err(NoEffect::Settings(text.to_owned()));
        }
        self.insert(entry);
        Ok(())
    }

    /// Returns the entries of the ports that are wanted, by name.
    pub(crate) fn entries(&self) -> &BTreeMap<String, Entry> {
        &self.entries
    }

    /// Returns the entries of the ports that are wanted, those of a configuration first and in its
    /// order.
    pub(crate) fn in_order(&self, config: &Config) -> Vec<Entry> {
        let order = config.ports.iter().enumerate();
        let order: HashMap<&str, usize> =
            order.map(|(at, entry)| (entry.settings.name.as_str(), at)).collect();
        let mut all: Vec<Entry> = self.entries.values().cloned().collect();
        all.sort_by_key(|entry| {
            order.get(entry.settings.name.as_str()).map_or(usize::MAX, |at| *at)
        });
        all
    }

    /// Returns the ports that brought their own sockets, each with the user that owns the socket.
    pub(crate) fn plugged(&self) -> impl Iterator<Item = (&str, u32)> {
        let all = self.entries.iter();
        all.filter_map(|(name, entry)| Some((name.as_str(), entry.origin.plugged_by()?)))
    }

    /// Returns the settings of ports that bring their own sockets.
    pub(crate) fn template(&self) -> Option<&Settings> {
        self.template.as_ref()
    }

    /// Returns the configuration's entry of a name.
    pub(crate) fn configured(&self, name: &str) -> Option<&Entry> {
        self.configured.get(name)
    }

    /// Returns all entries of the configuration.
    pub(crate) fn all_configured(&self) -> impl Iterator<Item = &Entry> {
        self.configured.values()
    }

    /// Returns the configuration's entries that a client deleted.
    pub(crate) fn deleted(&self) -> impl Iterator<Item = &Entry> {
        let is_deleted = |name: &str| self.overrides.get(name) == Some(&Override::Deleted);
        self.configured.iter().filter(move |(name, _)| is_deleted(name)).map(|(_, entry)| entry)
    }

    /// Returns the kept ports and the overrides that have no effect.
    pub(crate) fn unused(&self) -> impl Iterator<Item = &Unused> {
        let is_kept = |entry: &Entry| entry.origin == Origin::Kept;
        self.unused.iter().filter(move |unused| unused.entry.as_ref().is_none_or(is_kept))
    }

    /// Returns the parts of the kept file that this version cannot read.
    pub(crate) fn unread(&self) -> &[Unread] {
        &self.unread
    }

    /// Returns the keys that clients changed at a port of the configuration, if the change has
    /// effect.
    pub(crate) fn overridden(&self, name: &str) -> Vec<String> {
        let has_effect = self.get(name).is_some_and(|entry| entry.origin == Origin::Config)
            && !self.unused.iter().any(|unused| unused.name == name && unused.entry.is_none());
        match self.overrides.get(name) {
            Some(Override::Keys(keys)) if has_effect => keys.keys().cloned().collect(),
            _ => Vec::new(),
        }
    }

    /// Returns the ports and changes that are kept for the next process.
    pub(crate) fn kept(&self) -> Kept {
        let kept = self.added.iter().filter(|(_, entry)| entry.origin == Origin::Kept);
        Kept {
            added: kept.map(|(name, entry)| (name.clone(), entry.settings.clone())).collect(),
            overrides: self.overrides.clone(),
            unread: self.unread.clone(),
        }
    }

    /// Returns the entry of a name.
    pub fn get(&self, name: &str) -> Option<&Entry> {
        self.entries.get(name)
    }

    /// Returns the origin of a port; of an unknown name [`Origin::Transient`], as of a client's
    /// port.
    pub(crate) fn origin(&self, name: &str) -> Origin {
        self.get(name).map_or(Origin::Transient, |entry| entry.origin)
    }

    /// Returns the origin of a static address of a port.
    pub(crate) fn origin_of_address(&self, mac: MacAddr, name: &str) -> Origin {
        let base = self.configured(name).map(|entry| &entry.settings.mac);
        match self.origin(name) {
            Origin::Config if !base.is_some_and(|macs| macs.contains(&mac)) => match self.keeps {
                true => Origin::Kept,
                false => Origin::Transient,
            },
            origin => origin,
        }
    }

    /// Inserts an entry in place of the entry of its name.
    pub(crate) fn insert(&mut self, entry: Entry) {
        let name = entry.settings.name.clone();
        self.remove(&name);
        let claims = entry.claims();
        self.owners.extend(claims.iter().map(|claim| (claim.clone(), name.clone())));
        self.claims.insert(name.clone(), claims);
        self.entries.insert(name, entry);
    }

    /// Returns the static addresses of each port.
    pub(crate) fn addresses(&self) -> HashMap<&str, BTreeSet<MacAddr>> {
        let macs = |entry: &Entry| entry.settings.mac.iter().copied().collect();
        self.entries.iter().map(|(name, entry)| (name.as_str(), macs(entry))).collect()
    }

    /// Removes the entry of a name; returns the entry.
    pub(crate) fn remove(&mut self, name: &str) -> Option<Entry> {
        let entry = self.entries.remove(name)?;
        for claim in self.claims.remove(name).unwrap_or_default() {
            if self.owners.get(&claim).is_some_and(|owner| owner == name) {
                self.owners.remove(&claim);
            }
        }
        Some(entry)
    }

    /// Returns an error if another entry has a value that this entry claims.
    pub(crate) fn check(&self, entry: &Entry) -> Result<(), Clash> {
        let clash = entry.claims().into_iter().find_map(|claimed| {
            let owner = self.owners.get(&claimed)?.clone();
            (owner != entry.settings.name).then_some(Clash { claimed, owner })
        });
        clash.map_or(Ok(()), Err)
    }

    /// Inserts an entry unless another entry has a value that this entry claims.
    pub(crate) fn enter(&mut self, entry: Entry) -> Result<(), Clash> {
        self.check(&entry)?;
        self.insert(entry);
        Ok(())
    }

    /// Adds a port of a client, or of a socket in the plug directory.
    pub(crate) fn add(&mut self, entry: Entry) -> Result<(), Clash> {
        let name = entry.settings.name.clone();
        self.enter(entry.clone())?;
        self.unused.retain(|unused| unused.name != name);
        if entry.origin == Origin::Kept {
            self.unread.retain(|unread| !unread.is_of_entry(&name));
        }
        self.added.insert(name, entry);
        Ok(())
    }

    /// True if a client or a socket added a port of this name, in force or not.
    pub(crate) fn is_added(&self, name: &str) -> bool {
        self.added.contains_key(name)
    }

    /// Changes the settings of a port for good: of an added port the settings, of a port of the
    /// configuration the override, which also keeps the keys of earlier changes.
    pub(crate) fn set(&mut self, settings: Settings) -> Result<(), Clash> {
        let name = settings.name.clone();
        let Some(there) = self.get(&name) else { return Ok(()) };
        // The entry keeps its place: the change does not move the socket.
        let (before, entry) = (there.settings.clone(), Entry { settings, ..there.clone() });
        self.enter(entry.clone())?;
        let base = self.configured.get(&name).filter(|_| entry.origin == Origin::Config);
        let Some(base) = base else {
            self.added.insert(name, entry);
            return Ok(());
        };
        let mut keys = match self.overrides.remove(&name) {
            Some(Override::Keys(keys)) => keys,
            Some(Override::Deleted) | None => Keys::new(),
        };
        keys.extend(before.changed_keys(&entry.settings));
        if base.settings.with(&keys).is_ok_and(|settings| settings == entry.settings) {
            self.unused.retain(|unused| unused.name != name || unused.entry.is_some());
        }
        if !keys.is_empty() {
            self.overrides.insert(name, Override::Keys(keys));
        }
        Ok(())
    }

    /// Deletes a port for good, with all that is kept of the port; returns the port's entry.
    pub(crate) fn delete(&mut self, name: &str) -> Option<Entry> {
        let entry = self.remove(name)?;
        if entry.origin.plugged_by().is_some() {
            self.added.remove(name);
            return Some(entry);
        }
        self.forget(name);
        if self.configured.contains_key(name) {
            self.overrides.insert(name.to_owned(), Override::Deleted);
        }
        Some(entry)
    }

    /// Removes the override of a name, and everything that is kept by the name without effect;
    /// returns false if nothing is removed. An added port that is in force stays.
    pub(crate) fn reset(&mut self, name: &str) -> bool {
        let stays = self.get(name).is_some() && !self.configured.contains_key(name);
        let added = self.added.get(name).filter(|_| stays).cloned();
        let size = |of: &Desired| (of.added.len(), of.overrides.len(), of.unread.len());
        let before = size(self);
        self.forget(name);
        self.added.extend(added.map(|entry| (name.to_owned(), entry)));
        if before == size(self) {
            // A table of a later version that is about no port, but has the name.
            self.unread.retain(|unread| unread.name.as_deref() != Some(name));
        }
        self.build();
        before != size(self)
    }

    /// An error if a port other than `name`, or a change at one, has effect here and has none in
    /// `after`.
    pub(crate) fn check_others(&self, after: &Desired, name: &str) -> Result<(), NoEffect> {
        let is_old = |new: &Unused| {
            let same = |old: &Unused| old.name == new.name && old.entry == new.entry;
            self.unused.iter().any(same)
        };
        let mut lost = after.unused.iter().filter(|new| new.name != name && !is_old(new));
        let Some(Unused { name, why, .. }) = lost.next() else { return Ok(()) };
        Err(match why {
            NoEffect::Clash(clash) => Clash { owner: name.clone(), ..clash.clone() }.into(),
            why => NoEffect::Settings(format!("port '{name}' would have no effect: {why}")),
        })
    }

    /// Forgets the ports and changes that clients made by a name.
    fn forget(&mut self, name: &str) {
        self.added.remove(name);
        self.overrides.remove(name);
        self.unread.retain(|unread| !unread.is_of_entry(name) && !unread.is_of_override(name));
        self.unused.retain(|unused| unused.name != name);
    }

    /// Forgets the added ports and the changed keys that the configuration has by now with equal
    /// values.
    pub(crate) fn forget_the_configured(&mut self) {
        let configured = &self.configured;
        let same = |name: &str, entry: &Entry| {
            configured.get(name).is_some_and(|base| base.settings == entry.settings)
        };
        let (overrides, unread) = (&self.overrides, &self.unread);
        let is_there = |name: &str| overrides.get(name) != Some(&Override::Deleted);
        // Keys of a later version say more than the known ones.
        let has_more = |name: &str| unread.iter().any(|unread| unread.is_of_entry(name));
        let stays =
            |name: &str, entry: &Entry| !same(name, entry) || !is_there(name) || has_more(name);
        self.added.retain(|name, entry| stays(name, entry));
        self.overrides.retain(|name, change| match (change, configured.get(name)) {
            (Override::Keys(keys), Some(base)) => {
                let words: BTreeMap<&str, Vec<String>> =
                    base.settings.words().into_iter().collect();
                keys.retain(|key, values| words.get(key.as_str()) != Some(values));
                !keys.is_empty() || unread.iter().any(|unread| unread.is_of_override(name))
            }
            (Override::Deleted, _) | (Override::Keys(_), None) => true,
        });
    }

    /// Returns why ports and changes of clients that `before` has in force would have no effect
    /// beside this configuration, a line each. A port of the configuration with the name of an
    /// added port is no reason, nor is a changed port that the configuration no longer has.
    pub(crate) fn refusals(&self, before: &Desired) -> Vec<String> {
        let refusal = |Unused { name, entry, why }: &Unused| {
            let was = before.get(name)?;
            let was_in_force = match entry {
                Some(_) => was.origin != Origin::Config,
                None => !before.overridden(name).is_empty(),
            };
            match why {
                _ if !was_in_force => None,
                NoEffect::Named(_) | NoEffect::NoPort(_) => None,
                NoEffect::Settings(text) => Some(format!("{} {name}: {text}", was.settings.kind)),
                NoEffect::Clash(clash) => {
                    let kind = self.get(&clash.owner).map_or(Kind::Port, |one| one.settings.kind);
                    let other = Clash { owner: name.clone(), ..clash.clone() };
                    Some(format!("{kind} {}: {other}", clash.owner))
                }
            }
        };
        self.unused.iter().filter_map(refusal).collect()
    }

    /// Returns the mirrors that are wanted, by name.
    pub(crate) fn mirrors(&self) -> impl Iterator<Item = Mirror> {
        self.entries.values().filter_map(|entry| entry.settings.mirror())
    }

    /// Returns an error if a mirror cannot exist beside the other mirrors; no error for another
    /// kind.
    pub(crate) fn check_mirror(&self, settings: &Settings) -> Result<(), String> {
        let Some(mirror) = settings.mirror() else { return Ok(()) };
        let others: Vec<Mirror> =
            self.mirrors().filter(|other| other.name != mirror.name).collect();
        if others.len() >= MAX_MIRRORS {
            return Err(format!("there are {MAX_MIRRORS} mirrors already"));
        }
        let observer = self.get(&mirror.to);
        if observer.is_some_and(|entry| entry.origin.plugged_by().is_some()) {
            return Err(by_plug(&mirror.to));
        }
        conflict(&mirror, &others).map_or(Ok(()), Err)
    }

    /// Returns the name of a mirror whose copies a port of this name gets.
    pub fn mirror_to(&self, name: &str) -> Option<String> {
        self.mirrors().find(|mirror| mirror.to == name).map(|mirror| mirror.name)
    }

    /// Returns the names of the ports that have an address, at most one in each bridge and VLAN.
    pub(crate) fn owners(&self, mac: MacAddr) -> Vec<&str> {
        let is_it = |claimed: &Claimed| matches!(claimed, Claimed::Address(_, has) if *has == mac);
        let of = self.owners.iter().filter(|(claimed, _)| is_it(claimed));
        of.map(|(_, owner)| owner.as_str()).collect()
    }

    /// Gives a static address to a port, among the port's settings.
    pub(crate) fn assign(&mut self, mac: MacAddr, name: &str) -> Result<(), NotAssigned> {
        let mut settings = self.get(name).ok_or(NotAssigned::NoSuchPort)?.settings.clone();
        match self.owners.get(&Claimed::Address(settings.segment(), mac)) {
            Some(owner) if owner == name => return Ok(()),
            Some(owner) => return Err(NotAssigned::Taken(mac, owner.clone())),
            None => {}
        }
        if settings.mac.len() >= MAX_STATIC_MACS {
            return Err(NotAssigned::Many(name.to_owned()));
        }
        settings.mac.push(mac);
        self.set(settings).map_err(|clash| NotAssigned::Taken(mac, clash.owner))
    }

    /// Takes a static address from a port; false if the port does not have the address.
    pub(crate) fn unassign(&mut self, mac: MacAddr, name: &str) -> bool {
        let Some(entry) = self.get(name) else { return false };
        let mut settings = entry.settings.clone();
        settings.forget(mac);
        settings != entry.settings && self.set(settings).is_ok()
    }
}

#[cfg(test)]
mod tests;
