//! A port, a TAP or a stream as its keys and values: what can be written down, read again and
//! compared.
//!
//! One list of words serves all of that, so what is shown as a difference is what differs.

use std::path::PathBuf;

use super::entries::{Shared, place};
use super::{Endpoint, Given, PortConfig, StreamConfig, TapConfig, Wrong, port, stream, tap};
use crate::frame::MacAddr;
use crate::frame::offload::Offloads;

/// Who gave a port its settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// A configuration file.
    File,
    /// The command line.
    Cli,
    /// Somebody, while the switch ran.
    Runtime,
    /// A socket that turned up in the directory for that, of this user.
    Plug(u32),
}

impl Origin {
    /// The user whose socket a port has that came by itself.
    pub fn plugged_by(self) -> Option<u32> {
        if let Origin::Plug(uid) = self { Some(uid) } else { None }
    }

    /// As it is told and written down.
    pub fn name(self) -> &'static str {
        match self {
            Origin::File => "file",
            Origin::Cli => "cli",
            Origin::Runtime => "runtime",
            Origin::Plug(_) => "plug",
        }
    }
}

/// A port, a TAP or a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settings {
    /// A virtual machine's port.
    Port(PortConfig),
    /// An uplink.
    Tap(TapConfig),
    /// A process that speaks QEMU's `-netdev stream`.
    Stream(StreamConfig),
}

/// A key whose value differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The key.
    pub key: &'static str,
    /// Its value before, if it had one.
    pub from: Option<String>,
    /// Its value after.
    pub to: Option<String>,
}

impl Difference {
    /// `mtu 1500 -> 9000`
    pub fn arrow(&self) -> String {
        let word = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
        format!("{} {} -> {}", self.key, word(&self.from), word(&self.to))
    }
}

impl Settings {
    /// The name.
    pub fn name(&self) -> &str {
        match self {
            Settings::Port(port) => &port.name,
            Settings::Tap(tap) => &tap.name,
            Settings::Stream(stream) => &stream.name,
        }
    }

    /// `port`, `tap` or `stream`, as in the file.
    pub fn kind(&self) -> &'static str {
        match self {
            Settings::Port(_) => "port",
            Settings::Tap(_) => "tap",
            Settings::Stream(_) => "stream",
        }
    }

    /// Where a front-end or a peer is met, if one is.
    pub fn endpoint(&self) -> Option<&Endpoint> {
        match self {
            Settings::Port(port) => Some(&port.endpoint),
            Settings::Stream(stream) => Some(&stream.endpoint),
            Settings::Tap(_) => None,
        }
    }

    /// Static addresses, which a TAP has none of.
    pub fn macs(&self) -> &[MacAddr] {
        match self {
            Settings::Port(port) => &port.macs,
            Settings::Stream(stream) => &stream.macs,
            Settings::Tap(_) => &[],
        }
    }

    /// Takes a static address out.
    pub fn forget(&mut self, mac: MacAddr) {
        match self {
            Settings::Port(PortConfig { macs, .. })
            | Settings::Stream(StreamConfig { macs, .. }) => macs.retain(|other| *other != mac),
            Settings::Tap(_) => {}
        }
    }

    /// Reads a `kind` of settings that a program gives; the name is among them.
    pub fn parse(kind: &str, settings: Vec<(String, Given)>) -> Result<Settings, Wrong> {
        match kind {
            "tap" => tap(settings).map(Settings::Tap),
            "stream" => stream(settings).map(Settings::Stream),
            _ => port(settings).map(Settings::Port),
        }
    }

    /// Every key but the name, with its values: several of `mac`, none of what is not set.
    pub fn words(&self) -> Vec<(&'static str, Vec<String>)> {
        match self {
            Settings::Port(port) => port_words(port),
            Settings::Tap(tap) => vec![
                ("ifname", vec![tap.ifname.clone()]),
                ("queues", vec![tap.queues.to_string()]),
                ("offload", vec![offload(tap.offload, tap.offload).to_owned()]),
                ("flood", vec![on(tap.policy.flood_unknown)]),
                ("mtu", tap.mtu.iter().map(u16::to_string).collect()),
            ],
            Settings::Stream(stream) => stream_words(stream),
        }
    }

    /// Those of the words that have to be given: the others are so by themselves.
    pub fn given(&self) -> Vec<(&'static str, Vec<String>)> {
        let mut words = self.words();
        words.retain(|(_, values)| !values.is_empty());
        let is_place = |key: &str| key == "socket" || key == "ifname";
        let place = words.iter().filter(|(key, _)| is_place(key)).flat_map(|(key, values)| {
            values.iter().map(|value| ((*key).to_owned(), Given::Text(value.clone())))
        });
        let name = ("name".to_owned(), Given::Text(self.name().to_owned()));
        let least = [name].into_iter().chain(place).collect();
        // One on an inherited descriptor has no other place.
        let plain = Settings::parse(self.kind(), least).map_or(Vec::new(), |plain| plain.words());
        words.retain(|word| is_place(word.0) || !plain.contains(word));
        words
    }

    /// What another one of this kind has that these settings have not, and the other way round.
    pub fn differences(&self, other: &Settings) -> Vec<Difference> {
        let value = |words: &[String]| (!words.is_empty()).then(|| words.join(" "));
        let (mine, others) = (self.words(), other.words());
        let of = |all: &[(&'static str, Vec<String>)], key: &str| {
            all.iter().find(|(known, _)| *known == key).and_then(|(_, words)| value(words))
        };
        let more = others.iter().filter(|(key, _)| mine.iter().all(|(known, _)| known != key));
        let keys = mine.iter().chain(more).map(|(key, _)| *key);
        keys.map(|key| Difference { key, from: of(&mine, key), to: of(&others, key) })
            .filter(|difference| difference.from != difference.to)
            .collect()
    }

    /// What only one port may have, as it is compared: the socket's place, interface, addresses.
    pub fn claims(&self) -> Vec<(Shared, PathBuf)> {
        let of = |endpoint: &Endpoint, macs: &[MacAddr]| {
            let macs = macs.iter().map(|mac| (Shared::Mac, mac.to_string().into()));
            macs.chain(endpoint.path().map(|path| (Shared::Socket, place(path)))).collect()
        };
        match self {
            Settings::Port(port) => of(&port.endpoint, &port.macs),
            Settings::Stream(stream) => of(&stream.endpoint, &stream.macs),
            Settings::Tap(tap) => vec![(Shared::Interface, tap.ifname.clone().into())],
        }
    }
}

fn on(truth: bool) -> String {
    if truth { "on" } else { "off" }.to_owned()
}

/// `offload=` of what may be sent and received with.
fn offload(send: Offloads, receive: Offloads) -> &'static str {
    match (send, receive) {
        (Offloads::NONE, _) => "off",
        (_, Offloads::NONE) => "send",
        (Offloads::CSUM, _) => "csum",
        _ => "on",
    }
}

fn macs(macs: &[MacAddr]) -> Vec<String> {
    macs.iter().map(ToString::to_string).collect()
}

fn endpoint_words(endpoint: &Endpoint) -> Vec<(&'static str, Vec<String>)> {
    let path = |path: &PathBuf| vec![path.to_string_lossy().into_owned()];
    match endpoint {
        Endpoint::Server { path: at, mode, group } => vec![
            ("socket", path(at)),
            ("mode", vec!["server".to_owned()]),
            ("socket-mode", vec![format!("{mode:04o}")]),
            ("socket-group", group.iter().map(u32::to_string).collect()),
        ],
        Endpoint::Client { path: at } => {
            vec![("socket", path(at)), ("mode", vec!["client".to_owned()])]
        }
        Endpoint::Fd(number) => vec![("fd", vec![number.to_string()])],
    }
}

fn stream_words(stream: &StreamConfig) -> Vec<(&'static str, Vec<String>)> {
    let mut words = endpoint_words(&stream.endpoint);
    words.extend([
        ("mac", macs(&stream.macs)),
        ("flood", vec![on(stream.policy.flood_unknown)]),
        ("mtu", stream.mtu.iter().map(u16::to_string).collect()),
    ]);
    words
}

fn port_words(port: &PortConfig) -> Vec<(&'static str, Vec<String>)> {
    let mut words = endpoint_words(&port.endpoint);
    let memory = if port.preallocated { "prealloc" } else { "any" };
    words.extend([
        ("queues", vec![port.queue_pairs.to_string()]),
        ("mac", macs(&port.macs)),
        ("offload", vec![offload(port.send, port.offload).to_owned()]),
        ("platform", vec![on(port.platform)]),
        ("flood", vec![on(port.policy.flood_unknown)]),
        ("mtu", port.mtu.iter().map(u16::to_string).collect()),
        ("feature-level", port.feature_level.iter().map(u8::to_string).collect()),
        ("memory", vec![memory.to_owned()]),
    ]);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(kind: &str, words: &[(&str, &str)]) -> Settings {
        let given = |(key, word): &(&str, &str)| (key.to_string(), Given::Text(word.to_string()));
        Settings::parse(kind, words.iter().map(given).collect()).unwrap()
    }

    /// Reads again what was written down.
    fn again(settings: &Settings, words: Vec<(&'static str, Vec<String>)>) -> Settings {
        let mut given = vec![("name".to_owned(), Given::Text(settings.name().to_owned()))];
        for (key, words) in words {
            given.extend(words.into_iter().map(|word| (key.to_owned(), Given::Text(word))));
        }
        Settings::parse(settings.kind(), given).unwrap()
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
                    ("mtu", "9000"),
                    ("feature-level", "1"),
                    ("memory", "prealloc"),
                ],
            ),
            read("port", &[name, socket, ("offload", "off")]),
            read("tap", &[name, ("ifname", "t0")]),
            read("stream", &[name, socket]),
            read("stream", &[name, socket, ("mode", "client"), ("mtu", "1500")]),
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
        let arrows: Vec<String> =
            plain.differences(&read("port", &other)).iter().map(Difference::arrow).collect();
        assert_eq!(
            arrows,
            [
                "mode server -> client",
                "socket-mode 0660 -> -",
                "queues 1 -> 4",
                "mac - -> 52:54:00:00:00:01",
                "mtu 1500 -> -",
            ]
        );
        assert!(plain.differences(&plain).is_empty());
    }
}
