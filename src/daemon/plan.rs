//! Plans the actions that turn the present ports into the ports that are wanted.
//!
//! [`plan`] reads nothing but its arguments. A port whose socket, interface or kind changes stops,
//! and is made again when the stopped port is gone; every other change is made at the port that
//! runs.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::desired::Desired;
use api::config::{Claimed, Effect, Entry};
use base::frame::MacAddr;

/// One step, with the name of its port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// The port stops, and is gone some time later.
    Stop(String),
    /// A static address leaves the port.
    Release(String, MacAddr),
    /// The port's settings or origin change.
    Change(Entry),
    /// A static address comes to the port.
    Assign(String, MacAddr),
    /// The port is made. The port needs its socket or interface, so the caller decides when.
    Create(Entry),
}

impl Action {
    /// Returns the name of the step's port.
    pub(crate) fn name(&self) -> &str {
        match self {
            Action::Stop(name) | Action::Release(name, _) | Action::Assign(name, _) => name,
            Action::Change(entry) | Action::Create(entry) => &entry.settings.name,
        }
    }
}

/// A port that runs.
#[derive(Debug, Clone, Copy)]
pub struct Running<'a> {
    /// The entry that the port was last made or changed with.
    pub(crate) entry: &'a Entry,
    /// Static addresses of the port.
    pub(crate) addresses: &'a BTreeSet<MacAddr>,
}

/// The present ports.
#[derive(Debug, Default)]
pub(crate) struct Actual<'a> {
    /// Ports that run.
    pub(crate) running: BTreeMap<&'a str, Running<'a>>,
    /// Ports that have been stopped and are not gone.
    pub(crate) stopping: Vec<&'a Entry>,
}

/// Returns the steps in the order in which they are done: ports and addresses go first, so that
/// names, sockets and addresses are free. There is no [`Action::Create`] for an entry that needs a
/// name, socket or interface of a stopping port; once the port is gone, the next plan has the
/// action.
pub fn plan(desired: &Desired, actual: &Actual<'_>) -> Vec<Action> {
    let (addresses, none) = (desired.addresses(), BTreeSet::new());
    let [mut stop, mut release, mut change, mut assign, mut create] = [const { Vec::new() }; 5];
    let mut held = Held::default();
    actual.stopping.iter().for_each(|entry| held.add(entry));
    for (name, running) in &actual.running {
        let wanted = desired.get(name).filter(|entry| !reopens(running.entry, entry));
        let Some(entry) = wanted else {
            held.add(running.entry);
            stop.push(Action::Stop((*name).to_owned()));
            continue;
        };
        let wanted = addresses.get(name).unwrap_or(&none);
        // An address in another bridge or VLAN is another address.
        let stays = running.entry.settings.segment() == entry.settings.segment();
        let kept = |mac: &&MacAddr| stays && running.addresses.contains(*mac);
        let old = running.addresses.iter().filter(|mac| !stays || !wanted.contains(*mac));
        release.extend(old.map(|mac| Action::Release((*name).to_owned(), *mac)));
        if entry != running.entry {
            change.push(Action::Change(entry.clone()));
        }
        let new = wanted.iter().filter(|mac| !kept(mac));
        assign.extend(new.map(|mac| Action::Assign((*name).to_owned(), *mac)));
    }
    for (name, entry) in desired.entries() {
        let is_port = entry.settings.kind.is_port();
        if is_port && !actual.running.contains_key(name.as_str()) && !held.has_any_of(entry) {
            create.push(Action::Create(entry.clone()));
        }
    }
    [stop, release, change, assign, create].into_iter().flatten().collect()
}

/// True if a change needs another socket or interface.
fn reopens(from: &Entry, to: &Entry) -> bool {
    let (from, to) = (&from.settings, &to.settings);
    from != to
        && (from.kind != to.kind
            || from.differences(to).iter().any(|change| change.effect == Effect::Reopen))
}

/// Names, sockets and interfaces of ports that stop. The addresses of these ports are free at once.
#[derive(Default)]
struct Held<'a> {
    names: HashSet<&'a str>,
    claims: HashSet<Claimed>,
}

impl<'a> Held<'a> {
    fn add(&mut self, entry: &'a Entry) {
        self.names.insert(&entry.settings.name);
        self.claims.extend(exclusive(entry));
    }

    fn has_any_of(&self, entry: &Entry) -> bool {
        self.names.contains(entry.settings.name.as_str())
            || !self.claims.is_empty() && exclusive(entry).any(|claim| self.claims.contains(&claim))
    }
}

/// True if `entry` cannot be made before the port `stopping` is gone.
pub fn waits_for(entry: &Entry, stopping: &Entry) -> bool {
    let mut held = Held::default();
    held.add(stopping);
    held.has_any_of(entry)
}

fn exclusive(entry: &Entry) -> impl Iterator<Item = Claimed> {
    entry.claims().into_iter().filter(|claimed| !matches!(claimed, Claimed::Address(..)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::config::Kind;
    use api::config::{Origin, Settings, Value};

    /// A sequence that looks random and is equal in each run (splitmix64: Steele et al. 2014).
    struct Random(u64);

    impl Random {
        fn below(&mut self, n: usize) -> usize {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((z ^ (z >> 31)) % n as u64) as usize
        }
    }

    const NAMES: [&str; 4] = ["a", "b", "c", "d"];
    const SOCKETS: [&str; 4] = ["/w", "/x", "/y", "/z"];
    const MTUS: [&str; 2] = ["1500", "9000"];

    fn mac(number: usize) -> MacAddr {
        MacAddr([2, 0, 0, 0, 0, number as u8])
    }

    fn entry(name: &str, socket: &str, mtu: &str, macs: &[usize]) -> Entry {
        let mut given = vec![("name", name.to_owned()), ("socket", socket.to_owned())];
        given.push(("mtu", mtu.to_owned()));
        given.extend(macs.iter().map(|number| ("mac", mac(*number).to_string())));
        let given = given.into_iter().map(|(key, word)| (key.to_owned(), Value::Word(word)));
        Entry::new(Settings::parse(Kind::Port, given.collect()).unwrap(), Origin::Kept)
    }

    /// Returns every entry that a history may want. The entries are made once: reading settings
    /// takes longer than a plan.
    fn entries() -> Vec<Entry> {
        let mut all = Vec::new();
        for name in NAMES {
            for socket in SOCKETS {
                for mtu in MTUS {
                    for macs in [&[][..], &[1], &[2], &[1, 3]] {
                        all.push(entry(name, socket, mtu, macs));
                    }
                }
            }
        }
        all
    }

    /// The present ports, as plain data.
    #[derive(Default)]
    struct World {
        running: BTreeMap<String, (Entry, BTreeSet<MacAddr>)>,
        stopping: Vec<Entry>,
    }

    impl World {
        fn plan(&self, desired: &Desired) -> Vec<Action> {
            let running = self
                .running
                .iter()
                .map(|(name, (entry, addresses))| (name.as_str(), Running { entry, addresses }));
            plan(
                desired,
                &Actual { running: running.collect(), stopping: self.stopping.iter().collect() },
            )
        }

        /// Does one step; panics unless the step is possible and called for.
        fn act(&mut self, action: Action, desired: &Desired) {
            match action {
                Action::Stop(name) => {
                    let (entry, _) = self.running.remove(&name).expect("runs");
                    let wanted = desired.get(&name);
                    let same = wanted.is_some_and(|e| e.settings.socket == entry.settings.socket);
                    assert!(!same, "{name} stops for nothing");
                    self.stopping.push(entry);
                }
                Action::Release(name, mac) => {
                    assert!(self.running.get_mut(&name).expect("runs").1.remove(&mac));
                }
                Action::Change(to) => {
                    let (entry, _) = self.running.get_mut(&to.settings.name).expect("runs");
                    assert_eq!(entry.settings.socket, to.settings.socket);
                    *entry = to;
                }
                Action::Assign(name, mac) => {
                    let taken = self.running.values().any(|(_, macs)| macs.contains(&mac));
                    assert!(!taken, "{mac} has a port");
                    self.running.get_mut(&name).expect("runs").1.insert(mac);
                }
                Action::Create(entry) => self.create(entry, desired),
            }
        }

        fn create(&mut self, entry: Entry, desired: &Desired) {
            let name = entry.settings.name.clone();
            let running = self.running.values().map(|(entry, _)| entry);
            for other in running.chain(&self.stopping) {
                assert_ne!(other.settings.name, name);
                assert_ne!(other.settings.socket, entry.settings.socket);
            }
            let macs = desired.addresses().remove(name.as_str()).unwrap_or_default();
            let all = || self.running.values().flat_map(|(_, macs)| macs);
            assert!(all().all(|mac| !macs.contains(mac)), "an address of {name} has a port");
            self.running.insert(name, (entry, macs));
        }

        /// True if the model has the ports that are wanted, and no others.
        fn is_as(&self, desired: &Desired) -> bool {
            let addresses = desired.addresses();
            let same = |(name, (entry, macs)): (&String, &(Entry, BTreeSet<MacAddr>))| {
                desired.get(name) == Some(entry) && addresses.get(name.as_str()) == Some(macs)
            };
            self.running.len() == desired.entries().len() && self.running.iter().all(same)
        }
    }

    /// Makes one edit, as a client or a reload makes it: the edit takes no value of another entry.
    fn edit(desired: &mut Desired, random: &mut Random, all: &[Entry]) {
        let name = NAMES[random.below(NAMES.len())];
        match random.below(8) {
            0 | 1 => {
                desired.delete(name);
            }
            2 => _ = desired.assign(mac(random.below(5)), name),
            3 => _ = desired.unassign(mac(random.below(5)), name),
            _ => {
                let _ = desired.enter(all[random.below(all.len())].clone());
            }
        }
    }

    /// Makes any number of edits before each plan, and carries out any part of each plan before the
    /// next edit; stopped ports are gone at any time.
    fn history(seed: u64, all: &[Entry]) {
        let (mut random, mut desired, mut world) =
            (Random(seed), Desired::default(), World::default());
        for _ in 0..4 + random.below(8) {
            (0..1 + random.below(3)).for_each(|_| edit(&mut desired, &mut random, all));
            let plan = world.plan(&desired);
            let part = if random.below(4) == 0 { random.below(plan.len() + 1) } else { plan.len() };
            plan.into_iter().take(part).for_each(|action| world.act(action, &desired));
            world.stopping.retain(|_| random.below(2) == 0);
        }
        // In the end, when all stopped ports are gone, two plans suffice.
        for _ in 0..2 {
            world.plan(&desired).into_iter().for_each(|action| world.act(action, &desired));
            world.stopping.clear();
        }
        assert!(world.is_as(&desired), "seed {seed}: {:?} is not {:?}", world.running, desired);
        assert_eq!(world.plan(&desired), [], "seed {seed}: nothing is left to do");
    }

    #[test]
    fn any_history_of_edits_ends_in_the_ports_that_are_wanted() {
        let all = entries();
        (0..100_000).for_each(|seed| history(seed, &all));
    }

    #[test]
    fn a_port_goes_before_another_has_its_socket_and_its_address_at_once() {
        let (mut desired, mut world) = (Desired::default(), World::default());
        desired.insert(entry("a", "/w", "1500", &[1]));
        desired.insert(entry("b", "/x", "1500", &[]));
        world.plan(&desired).into_iter().for_each(|action| world.act(action, &desired));
        desired.remove("a");
        let (b, c) = (entry("b", "/x", "9000", &[1]), entry("c", "/w", "1500", &[]));
        desired.insert(b.clone());
        desired.insert(c.clone());
        let plan = world.plan(&desired);
        let steps = [
            Action::Stop("a".to_owned()),
            Action::Change(b),
            Action::Assign("b".to_owned(), mac(1)),
        ];
        assert_eq!(plan, steps);
        plan.into_iter().for_each(|action| world.act(action, &desired));
        assert_eq!(world.plan(&desired), []);
        world.stopping.clear();
        assert_eq!(world.plan(&desired), [Action::Create(c)]);
    }
}
