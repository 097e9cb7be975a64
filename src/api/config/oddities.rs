//! Combinations of keys that are permitted, and that make a key ineffective or a port unreachable.
//!
//! `validate` refuses combinations without a meaning. The combinations here have been valid in
//! files, and harm no other port: the log reports them when settings arrive, and the switch reports
//! them as a finding (`settings-at-odds`) as long as they are in force. `between` finds
//! combinations of several ports' keys.

pub mod between;

use super::keys::{Effect, Settings};
use super::types::{AllowedMac, Guard};
use base::frame::MacAddr;

/// A combination of keys that does not do what the keys say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Oddity {
    /// Description of the combination, in a sentence.
    pub cause: String,
    /// Command that removes the oddity; the reader replaces words in capitals.
    pub command: String,
}

impl Settings {
    /// Returns the combinations of the port's keys that are permitted, but give a key no effect or
    /// leave the port unreachable. `has_snooping`: vioswitchd runs with `--multicast-snooping`.
    pub fn oddities(&self, has_snooping: bool) -> Vec<Oddity> {
        let mut found = Oddities { settings: self, found: Vec::new() };
        found.of_guard();
        found.of_rates();
        found.of_addresses();
        found.odd(
            self.multicast_router.is_some() && !has_snooping,
            "multicast-router has no effect without --multicast-snooping of vioswitchd",
            "multicast-router=",
        );
        found.odd(
            self.socket_group.is_some() && self.socket_mode & 0o020 == 0,
            "socket-group has no effect: socket-mode permits the group no access",
            "socket-mode=0660",
        );
        found.found
    }

    /// Returns the command that changes one setting of the port. A key that needs another socket or
    /// interface cannot be set while the port serves.
    fn command(&self, change: &str) -> String {
        let (kind, name) = (self.kind, &self.name);
        let key = change.split('=').next().and_then(|key| kind.key(key));
        match key.is_some_and(|key| key.effect(kind) == Effect::Reopen) {
            true => self.anew(Some(change)),
            false => format!("vioswitchctl {kind} set {name} {change}"),
        }
    }
}

/// The oddities of one port.
struct Oddities<'s> {
    settings: &'s Settings,
    found: Vec<Oddity>,
}

impl Oddities<'_> {
    /// Adds an oddity that `change`, a `KEY=VALUE`, removes.
    fn odd(&mut self, is_odd: bool, cause: &str, change: &str) {
        if is_odd {
            let command = self.settings.command(change);
            self.found.push(Oddity { cause: cause.to_owned(), command });
        }
    }

    fn of_guard(&mut self) {
        let Settings { mac, allowed_macs, allowed_ips, allow_server, guard, .. } = self.settings;
        let is_guarded = *guard != Guard::Off;
        for (key, is_empty) in [
            ("allowed-macs", allowed_macs.is_empty()),
            ("allowed-ips", allowed_ips.is_empty()),
            ("allow-server", allow_server.is_empty()),
        ] {
            let cause = format!("{key} has no effect without guard=on or guard=log");
            self.odd(!is_empty && !is_guarded, &cause, "guard=on");
        }
        let lists_own = allowed_macs.contains(&AllowedMac::Own);
        self.odd(
            is_guarded && lists_own && mac.is_empty(),
            "allowed-macs=own, and the port has no mac: no address of its own is allowed",
            "mac=ADDRESS",
        );
        let lists_mac = |mac: &MacAddr| allowed_macs.contains(&AllowedMac::One(*mac));
        self.odd(
            is_guarded
                && !allowed_macs.is_empty()
                && !mac.is_empty()
                && !lists_own
                && !mac.iter().any(lists_mac),
            "no mac of the port is in its allowed-macs: the guard drops frames from its own \
             addresses",
            "allowed-macs=own,ADDRESS",
        );
    }

    fn of_rates(&mut self) {
        let settings = self.settings;
        for (rate, burst, side) in [
            (settings.rate_in.is_some(), settings.burst_in.is_some(), "in"),
            (settings.rate_out.is_some(), settings.burst_out.is_some(), "out"),
        ] {
            let cause = format!("burst-{side} has no effect without rate-{side}");
            self.odd(burst && !rate, &cause, &format!("rate-{side}=RATE"));
        }
    }

    fn of_addresses(&mut self) {
        let settings = self.settings;
        self.odd(
            !settings.learn && settings.max_addresses.is_some(),
            "max-addresses has no effect with learn=off: the port learns no address",
            "max-addresses=",
        );
        self.odd(
            !settings.learn && !settings.flood && settings.mac.is_empty(),
            "flood=off and learn=off, and the port has no static address: no frame for a single \
             station reaches it",
            "flood=on",
        );
        let has_home = settings.vlans().untagged().is_some();
        self.odd(
            !settings.mac.is_empty() && !has_home && settings.guard == Guard::Off,
            "mac has no effect on a trunk without native: static addresses are in the VLAN of \
             frames without a tag",
            "native=VLAN",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Kind, Value};

    fn settings(keys: &str) -> Settings {
        let given = ["name=vm1", "socket=/run/vm1"].into_iter().chain(keys.split_whitespace());
        let pairs = given.map(|word| word.split_once('=').expect("KEY=VALUE"));
        let pairs = pairs.map(|(key, word)| (key.to_owned(), Value::Word(word.to_owned())));
        Settings::parse(Kind::Port, pairs.collect()).expect(keys)
    }

    fn causes(keys: &str) -> Vec<String> {
        let found = settings(keys).oddities(false).into_iter();
        found.map(|Oddity { cause, command }| format!("{cause} | {command}")).collect()
    }

    /// Each pair of keys has one oddity. The second list of keys removes the oddity.
    #[test]
    fn each_oddity_is_found_and_mended() {
        const MAC: &str = "mac=52:54:00:00:00:01";
        let own = |more: &str| format!("{MAC} guard=on allowed-macs={more}");
        for (keys, words, mended) in [
            (
                "allowed-macs=vrrp",
                "allowed-macs has no effect without guard",
                "allowed-macs=vrrp guard=on",
            ),
            ("allowed-ips=10.0.0.1", "allowed-ips has no effect", "allowed-ips=10.0.0.1 guard=log"),
            ("allow-server=ra", "allow-server has no effect", "allow-server=ra guard=on"),
            ("guard=on allowed-macs=own", "| vioswitchctl port set vm1 mac=ADDRESS", &own("own")),
            (
                &own("52:54:00:00:00:02"),
                "no mac of the port is in its allowed-macs",
                &own("own allowed-macs=52:54:00:00:00:02"),
            ),
            ("burst-in=64kib", "burst-in has no effect", "burst-in=64kib rate-in=1mbit"),
            ("burst-out=64kib", "burst-out has no effect", "burst-out=64kib rate-out=1mbit"),
            ("learn=off max-addresses=5", "vm1 max-addresses=", "learn=off"),
            (
                "learn=off flood=off",
                "no frame for a single station",
                &format!("{MAC} learn=off flood=off"),
            ),
            (
                &format!("{MAC} trunk=10"),
                "mac has no effect on a trunk",
                &format!("{MAC} trunk=10 native=0"),
            ),
            ("multicast-router=off", "without --multicast-snooping", ""),
            (
                "socket-group=65533 socket-mode=0600",
                "vioswitchctl port add vm1 socket=/run/vm1 socket-group=65533 socket-mode=0660",
                "socket-group=65533 socket-mode=0620",
            ),
        ] {
            let found = causes(keys);
            assert!(found.len() == 1 && found[0].contains(words), "{keys}: {found:?}");
            assert_eq!(causes(mended), Vec::<String>::new(), "{mended}");
        }
    }

    #[test]
    fn what_the_switch_has_beside_the_settings_counts() {
        assert_eq!(settings("multicast-router=on").oddities(true), []);
    }
}
