//! A port's settings as keys and values, which can be saved, read again and compared.

use std::path::PathBuf;

use super::claims::{Segment, Shared};
use super::configuration::{Endpoint, VduseDevice};
use super::keys::{Effect, KEYS, Key, Settings};
use super::kind::Kind;
use super::raw::shell_word;
use super::types::{Admin, AllowedMac, Guard, Mode, Server, SocketType};
use base::frame::MacAddr;
use switch::filter::Filter;
use switch::filter::rule::Address;
use switch::mirror::{Copied, Mirror};
use switch::port_security::{AllowedIps, AllowedMacs};
use switch::{Bridge, FloodLimits, Limit, Membership, PortPolicy, PortSecurity, Rate, Size};

/// A key whose value changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Name of the key.
    pub key: &'static str,
    /// Value before the change, if the key was set.
    pub from: Option<String>,
    /// Value after the change, if the key is set.
    pub to: Option<String>,
    /// Time when the change takes effect.
    pub effect: Effect,
}

/// A setting that is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct InvalidSetting {
    /// Key of the setting.
    pub key: String,
    /// Fault and expected value, in one line.
    pub text: String,
}

impl Settings {
    /// Returns the endpoint for the front-end or peer, if the entry has one.
    pub fn endpoint(&self) -> Option<Endpoint> {
        if let Some(number) = self.fd {
            return Some(Endpoint::Fd(number));
        }
        if self.kind == Kind::Vduse {
            return Some(Endpoint::Vduse(Box::new(self.vduse())));
        }
        let path = self.socket.clone()?;
        if self.socket_type == SocketType::Dgram {
            let server = (self.socket_mode, self.socket_group);
            let server = (self.mode == Mode::Server).then_some(server);
            return Some(Endpoint::Datagrams { path, server });
        }
        Some(match self.mode {
            Mode::Server => {
                Endpoint::Server { path, mode: self.socket_mode, group: self.socket_group }
            }
            Mode::Client | Mode::Xdp(_) => Endpoint::Client { path },
        })
    }

    fn vduse(&self) -> VduseDevice {
        VduseDevice {
            name: self.name.clone(),
            ifname: self.ifname.clone().unwrap_or_default(),
            netns: self.netns.clone(),
            ring_size: self.ring_size,
            offload: self.offload,
            mac: self.mac.first().copied(),
            mtu: self.mtu,
        }
    }

    /// Returns the scope in which a value of this kind belongs to the port alone: for an interface
    /// its network namespace.
    pub(super) fn scope(&self, what: Shared) -> Segment {
        let namespace = || self.netns.as_deref().map(|name| Segment::Namespace(name.into()));
        match what {
            Shared::Mac => self.segment(),
            Shared::Interface => namespace().unwrap_or(Segment::Everywhere),
            Shared::Name | Shared::Socket => Segment::Everywhere,
        }
    }

    /// Returns the port's policy of forwarding.
    pub fn policy(&self) -> PortPolicy {
        // A bridge without a number: its frames must not enter another bridge.
        let bridge = Bridge::named(&self.bridge);
        PortPolicy {
            flood_unknown: self.flood,
            forwards: self.admin == Admin::Up && bridge.is_some(),
            learns: self.learn,
            isolated: self.isolated,
            limits_floods: self.storm.is_some(),
            passes: self.pass.unwrap_or_default(),
            bridge: bridge.unwrap_or_default(),
            vlans: self.vlans(),
            security: (self.guard != Guard::Off).then(|| self.security()),
            multicast_router: self.multicast_router,
            observes: false,
            // The table of ports has the compiled filters, by the names of ports.
            filter: None,
        }
    }

    /// Returns the filter, if the settings are of a filter.
    pub fn filter(&self) -> Option<Filter> {
        (self.kind == Kind::Filter).then(|| Filter {
            name: self.name.clone(),
            default_in: self.default_in,
            default_out: self.default_out,
            rules: self.rules.clone(),
        })
    }

    /// True if the settings are of a filter with these defaults and rules.
    pub(super) fn has_rules_of(&self, filter: &Filter) -> bool {
        self.default_in == filter.default_in
            && self.default_out == filter.default_out
            && self.rules == filter.rules
    }

    /// True if a rule of the filter names a group.
    pub fn names_group(&self, name: &str) -> bool {
        let ends = self.rules.iter().flat_map(|rule| [&rule.from, &rule.to]);
        let mut addresses = ends.flat_map(|end| &end.addresses);
        addresses.any(|address| matches!(address, Address::Group(group) if group == name))
    }

    /// Returns the names of the port's filters, in order.
    pub fn filter_names(&self) -> &[String] {
        self.filter.as_ref().map_or(&[], |names| &names.0)
    }

    /// Returns the names of the filters whose rules belong together: those of a port, or a filter
    /// itself.
    pub fn filters(&self) -> &[String] {
        match self.kind {
            Kind::Filter => std::slice::from_ref(&self.name),
            _ => self.filter_names(),
        }
    }

    /// Returns the names of filters and groups that the settings name and that must exist.
    pub fn wanted_filters(&self) -> Vec<(Kind, String)> {
        let filters = self.filter_names().iter().map(|name| (Kind::Filter, name.clone()));
        let rules = self.filter();
        let groups = rules.iter().flat_map(|filter| filter.groups());
        filters.chain(groups.map(|name| (Kind::Group, name.to_owned()))).collect()
    }

    /// Returns the port's membership of VLANs.
    pub(super) fn vlans(&self) -> Membership {
        match (self.vlan, &self.trunk, self.native) {
            (Some(vlan), ..) => Membership::Access(vlan),
            (None, None, None) => Membership::Opaque,
            (None, tagged, native) => {
                Membership::Trunk { tagged: tagged.clone().unwrap_or_default(), native }
            }
        }
    }

    /// Returns the segment in which static addresses belong to the port alone.
    pub fn segment(&self) -> Segment {
        match self.vlans().untagged() {
            Some(vlan) => Segment::Vlan(self.bridge.as_str().into(), vlan),
            None => Segment::Trunk(self.name.as_str().into()),
        }
    }

    fn security(&self) -> PortSecurity {
        PortSecurity {
            enforced: self.guard == Guard::On,
            macs: self.source_addresses(),
            ips: AllowedIps::new(&self.allowed_ips),
            servers: Server::all(&self.allow_server),
            ethertypes: self.ethertypes.iter().map(|ethertype| ethertype.0).collect(),
        }
    }

    /// Returns the allowed source addresses: without a list the addresses of `mac`, or any address
    /// without `mac`.
    fn source_addresses(&self) -> AllowedMacs {
        let given = &self.allowed_macs;
        if given.is_empty() && self.mac.is_empty() {
            return AllowedMacs::Any;
        }
        let own = given.is_empty() || given.contains(&AllowedMac::Own);
        let own = if own { &self.mac[..] } else { &[] };
        let others = given.iter().filter_map(|one| match one {
            AllowedMac::One(mac) => Some(*mac),
            _ => None,
        });
        let list = own.iter().copied().chain(others).collect();
        AllowedMacs::Only { list, vrrp: given.contains(&AllowedMac::Vrrp) }
    }

    /// Returns warnings about settings that may be a mistake, one line each, for the log.
    pub fn warnings(&self) -> Vec<String> {
        // Settings that are not known here may remove some oddities.
        let odd = self.oddities(true).into_iter().map(|oddity| oddity.cause);
        let mut said: Vec<String> = odd.collect();
        let has_v6 = self.allowed_ips.iter().any(|prefix| prefix.v6().is_some());
        if self.guard != Guard::Off && !self.allowed_ips.is_empty() && !has_v6 {
            let text = "allowed-ips has no address of IPv6: no frame of IPv6 is allowed";
            said.push(text.to_owned());
        }
        said.into_iter().map(|text| format!("port {}: {text}", self.name)).collect()
    }

    /// Refuses a `worker` that does not exist among `workers` workers.
    pub fn check_worker(&self, workers: usize) -> Result<(), InvalidSetting> {
        match self.worker.filter(|number| usize::from(*number) >= workers) {
            None => Ok(()),
            Some(number) => {
                let text =
                    format!("worker must be auto or below workers ({workers}), not {number}");
                Err(InvalidSetting { key: "worker".to_owned(), text })
            }
        }
    }

    /// Returns the mirror, if the settings are of a mirror.
    pub fn mirror(&self) -> Option<Mirror> {
        let (from, to) = self.from.clone().zip(self.to.clone())?;
        let frames = Copied { way: self.dir, vlan: self.vlan, snaplen: self.snaplen };
        (self.kind == Kind::Mirror).then(|| Mirror { name: self.name.clone(), from, to, frames })
    }

    /// Returns the limits of frames from the port, and to the port.
    pub fn limits(&self) -> [Limit; 2] {
        let limit = |rate: Option<Rate>, burst: Option<Size>| Limit {
            rate: rate.unwrap_or_default(),
            burst: burst.unwrap_or_default(),
        };
        [limit(self.rate_in, self.burst_in), limit(self.rate_out, self.burst_out)]
    }

    /// Returns the limits of floods from the port.
    pub fn flood_limits(&self) -> FloodLimits {
        let rates = self.storm.unwrap_or_default();
        rates.map(|rate| Limit { rate, ..Limit::default() })
    }

    /// Returns the settings of the port that this template makes of the socket at `path`.
    pub fn plugged(&self, name: &str, path: PathBuf) -> Settings {
        let (name, socket, mode) = (name.to_owned(), Some(path), Mode::Client);
        Settings { kind: Kind::Port, name, socket, mode, ..self.clone() }
    }

    /// Returns the keys that lists and details show, with values of keys that are set.
    pub fn shown(&self) -> impl Iterator<Item = (&'static Key, String)> {
        let keys = self.kind.keys().filter(|key| key.is_shown);
        keys.flat_map(|key| (key.format)(self).into_iter().map(move |word| (key, word)))
    }

    /// Takes over the settings of `wanted` that take effect at once.
    pub fn take_now(&mut self, wanted: &Settings) {
        let kind = self.kind;
        let now = kind.keys().filter(|key| key.effect(kind) == Effect::Now);
        now.for_each(|key| (key.copy)(self, wanted));
    }

    /// Removes a static address.
    pub fn forget(&mut self, mac: MacAddr) {
        self.mac.retain(|other| *other != mac);
    }

    /// Returns every key except the name, with its values: several for a list, none for a key that
    /// is not set.
    pub fn words(&self) -> Vec<(&'static str, Vec<String>)> {
        let is_client = self.mode == Mode::Client;
        let has = |key: &Key| match key.name {
            "name" => false,
            "fd" => self.fd.is_some(),
            "mode" if self.fd.is_some() => false,
            _ if key.is_of_server() && (is_client || self.fd.is_some()) => false,
            _ => key.kinds.contains(&self.kind),
        };
        KEYS.iter().filter(|key| has(key)).map(|key| (key.name, (key.format)(self))).collect()
    }

    /// Returns the keys whose values are not the defaults, with these values.
    pub fn given(&self) -> Vec<(&'static str, Vec<String>)> {
        let plain = Settings::new(self.kind).words();
        let mut words = self.words();
        words.retain(|word| !word.1.is_empty() && !plain.contains(word));
        words
    }

    /// Returns the commands that delete the port and add the port again with its settings.
    /// `change`, a `KEY=VALUE`, replaces the setting of its key; without a value there is no such
    /// setting.
    pub fn anew(&self, change: Option<&str>) -> String {
        let Settings { kind, name, .. } = self;
        let changed = change.and_then(|change| change.split('=').next());
        let given = self.given().into_iter().filter(|(key, _)| changed != Some(key));
        let given = given.flat_map(|(key, words)| {
            words.into_iter().map(move |word| format!(" {}", shell_word(&format!("{key}={word}"))))
        });
        let change = change.filter(|change| !change.ends_with('='));
        let given: String = given.chain(change.map(|change| format!(" {change}"))).collect();
        format!("vioswitchctl {kind} del {name} && vioswitchctl {kind} add {name}{given}")
    }

    /// Returns the keys whose values differ from the values of `other`.
    pub fn differences(&self, other: &Settings) -> Vec<Difference> {
        let (mine, others) = (self.words(), other.words());
        let of = |all: &[(&str, Vec<String>)], key: &Key| {
            let words = &all.iter().find(|(known, _)| *known == key.name)?.1;
            // Rules have blanks and commas.
            let between = if key.is_list && key.has_commas { "; " } else { " " };
            (!words.is_empty()).then(|| words.join(between))
        };
        let all = KEYS.iter().map(|key| {
            let (from, to) = (of(&mine, key), of(&others, key));
            let is_anew = self.kind != other.kind || self.is_of_the_device(other, key.name);
            let effect = if is_anew { Effect::Reopen } else { key.effect(other.kind) };
            Difference { key: key.name, from, to, effect }
        });
        all.filter(|difference| difference.from != difference.to).collect()
    }

    /// True if the value of a key is in the configuration of a VDUSE device, which cannot change,
    /// and differs from the value of `other`. The first address is that of the interface.
    fn is_of_the_device(&self, other: &Settings, key: &str) -> bool {
        self.kind == Kind::Vduse
            && match key {
                "mac" => self.mac.first() != other.mac.first(),
                "mtu" => self.mtu != other.mtu,
                _ => false,
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Value;

    fn given(pairs: &[(&str, &str)]) -> Vec<(String, Value)> {
        let text = |(key, word): &(&str, &str)| (key.to_string(), Value::Word(word.to_string()));
        pairs.iter().map(text).collect()
    }

    fn read(kind: &str, words: &[(&str, &str)]) -> Settings {
        Settings::parse(Kind::named(kind).unwrap(), given(words)).unwrap()
    }

    /// Reads saved settings again.
    fn again(settings: &Settings, words: Vec<(&'static str, Vec<String>)>) -> Settings {
        let mut given = vec![("name".to_owned(), Value::Word(settings.name.clone()))];
        for (key, words) in words {
            given.extend(words.into_iter().map(|word| (key.to_owned(), Value::Word(word))));
        }
        Settings::parse(settings.kind, given).unwrap()
    }

    #[test]
    fn what_is_written_down_reads_the_same() {
        let (name, socket) = (("name", "a"), ("socket", "/run/a,b"));
        for settings in [
            read("port", &[name, socket]),
            read("port", &[name, socket, ("mode", "client"), ("offload", "send")]),
            read(
                "port",
                &[
                    name,
                    socket,
                    ("socket-mode", "0600"),
                    ("socket-group", "65533"),
                    ("queues", "16"),
                    ("mac", "52:54:00:00:00:01"),
                    ("mac", "52:54:00:00:00:02"),
                    ("offload", "csum"),
                    ("platform", "on"),
                    ("flood", "off"),
                    ("isolated", "on"),
                    ("storm", "bcast:1kpps,unknown:10mbit"),
                    ("pass", "lldp,stp"),
                    ("learn", "off"),
                    ("max-addresses", "5"),
                    ("mtu", "9000"),
                    ("rate-in", "10mbit,5kpps"),
                    ("burst-in", "64kib"),
                    ("rate-out", "1001kbit"),
                    ("burst-out", "100kb,20pkt"),
                    ("memory", "prealloc"),
                    ("guard", "log"),
                    ("allowed-macs", "own"),
                    ("allowed-macs", "vrrp"),
                    ("allowed-macs", "52:54:00:00:00:03"),
                    ("allowed-ips", "10.0.0.5"),
                    ("allowed-ips", "fd00::/64"),
                    ("allow-server", "dhcp"),
                    ("allow-server", "ra"),
                    ("ethertypes", "llc"),
                    ("ethertypes", "0x88b5"),
                ],
            ),
            read("port", &[name, socket, ("offload", "off")]),
            read("tap", &[name, ("ifname", "t0")]),
            read("stream", &[name, socket]),
            read("stream", &[name, socket, ("mode", "client"), ("mtu", "1500")]),
            read("stream", &[name, socket, ("type", "dgram")]),
            read(
                "stream",
                &[
                    name,
                    socket,
                    ("socket-mode", "0600"),
                    ("socket-group", "65533"),
                    ("mac", "52:54:00:00:00:01"),
                    ("mac", "52:54:00:00:00:02"),
                    ("flood", "off"),
                ],
            ),
            read("tap", &[name, ("ifname", "t0"), ("queues", "4"), ("offload", "csum")]),
            read("tap", &[name, ("ifname", "t0"), ("flood", "off"), ("mtu", "1400")]),
        ] {
            assert_eq!(again(&settings, settings.words()), settings);
            assert_eq!(again(&settings, settings.given()), settings);
        }
    }

    #[test]
    fn a_vduse_device_is_written_down_whole() {
        let keys = [("name", "a"), ("ifname", "eth0"), ("netns", "web"), ("ring-size", "512")];
        let settings = read("vduse", &keys);
        assert_eq!(again(&settings, settings.words()), settings);
        assert_eq!(again(&settings, settings.given()), settings);
        let Some(Endpoint::Vduse(device)) = settings.endpoint() else { panic!("no device") };
        assert_eq!((device.netns.as_deref(), device.ring_size), (Some("web"), 512));
        assert_eq!(settings.scope(Shared::Interface), Segment::Namespace("web".into()));
    }

    #[test]
    fn what_is_so_by_itself_need_not_be_given() {
        for (kind, words) in [
            ("port", &[("name", "a"), ("socket", "/a")][..]),
            ("port", &[("name", "a"), ("socket", "/a"), ("mode", "client"), ("mtu", "1500")]),
            ("tap", &[("name", "a"), ("ifname", "t0"), ("queues", "2")]),
            ("stream", &[("name", "a"), ("socket", "/a"), ("flood", "off")]),
        ] {
            let given = read(kind, words).given().into_iter();
            let given: Vec<(&str, String)> = given.map(|(key, all)| (key, all.join(" "))).collect();
            let words: Vec<(&str, String)> =
                words[1..].iter().map(|(key, word)| (*key, (*word).to_owned())).collect();
            assert_eq!(given, words);
        }
    }

    #[test]
    fn differences_are_told_key_by_key() {
        let plain = read("port", &[("name", "a"), ("socket", "/a"), ("mtu", "1500")]);
        let mac = ("mac", "52:54:00:00:00:01");
        let other = [("name", "a"), ("socket", "/a"), ("queues", "4"), ("mode", "client"), mac];
        let word = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
        let arrow = |one: &Difference| {
            let effect = one.effect.name();
            format!("{} {} -> {} {effect}", one.key, word(&one.from), word(&one.to))
        };
        let arrows: Vec<String> =
            plain.differences(&read("port", &other)).iter().map(arrow).collect();
        assert_eq!(
            arrows,
            [
                "mode server -> client reopen",
                "socket-mode 0660 -> - reopen",
                "queues 1 -> 4 reconnect",
                "mac - -> 52:54:00:00:00:01 now",
                "mtu 1500 -> - now",
            ]
        );
        assert!(plain.differences(&plain).is_empty());
    }

    #[test]
    fn a_vduse_device_is_made_anew_for_another_address_or_mtu() {
        let (one, two) = (("mac", "52:54:00:00:00:01"), ("mac", "52:54:00:00:00:02"));
        let known = [("name", "a"), ("ifname", "sw0")];
        let read = |more: &[(&str, &str)]| read("vduse", &[&known[..], more].concat());
        let effect = |from: &Settings, to: &Settings| from.differences(to)[0].effect;
        let plain = read(&[one]);
        assert_eq!(effect(&plain, &read(&[two])), Effect::Reopen);
        assert_eq!(effect(&plain, &read(&[one, ("mtu", "9000")])), Effect::Reopen);
        assert_eq!(effect(&plain, &read(&[one, two])), Effect::Now);
        assert_eq!(effect(&plain, &read(&[one, ("flood", "off")])), Effect::Now);
    }

    #[test]
    fn the_ring_of_a_vduse_device_has_a_power_of_two_of_descriptors() {
        let given = given(&[("name", "a"), ("ifname", "sw0"), ("ring-size", "300")]);
        let error = Settings::parse(Kind::Vduse, given).unwrap_err().to_string();
        assert!(error.contains("ring-size must be a power of two from 64 to 1024"), "{error}");
    }

    #[test]
    fn a_port_reads_as_on_the_command_line() {
        let mut settings = given(&[("name", "vm1"), ("socket", "/run/a,b"), ("mtu", "9000")]);
        settings.push(("queues".to_owned(), Value::Integer(4)));
        settings.extend(given(&[("mac", "52:54:00:00:00:01"), ("mac", "52:54:00:00:00:02")]));
        let port = Settings::parse(Kind::Port, settings).unwrap();
        assert_eq!((port.queues, port.mtu, port.mac.len()), (4, Some(9000), 2));
        assert!(port.socket.is_some_and(|path| path.ends_with("a,b")));
        let tap = read("tap", &[("name", "up"), ("ifname", "tap0"), ("queues", "2")]);
        assert_eq!((tap.ifname.as_deref(), tap.queues), (Some("tap0"), 2));
    }

    #[test]
    fn what_is_wrong_is_told_with_its_key() {
        let whole = [("name", "a"), ("socket", "/a")];
        for (more, key, words) in [
            (("queues", "17"), "queues", "must be a number from 1 to 16, not '17'"),
            (("queue", "1"), "queue", "unknown key 'queue': write queues=1"),
            (("socket-mode", "9"), "socket-mode", "must be octal digits"),
            (("socket", "/b"), "socket", "'socket' is given twice"),
            (("mac", "01:00:00:00:00:00"), "mac", "is a group address"),
        ] {
            let error =
                Settings::parse(Kind::Port, given(&[whole[0], whole[1], more])).unwrap_err();
            assert_eq!(error.key, key);
            assert!(error.text.contains(words), "{error}");
        }
        let error = Settings::parse(Kind::Port, given(&[("name", "a")])).unwrap_err();
        assert_eq!(
            (error.key.as_str(), error.text.as_str()),
            ("socket", "socket is missing: write socket=PATH")
        );
        let mut settings = given(&whole);
        settings.push(("offload".to_owned(), Value::Boolean(false)));
        assert!(Settings::parse(Kind::Port, settings).unwrap_err().text.contains("write offload"));
        let error = Settings::parse(Kind::Tap, vec![("name".to_owned(), Value::Other("a list"))])
            .unwrap_err();
        assert_eq!(error.key, "name");
    }
}
