//! Reads and formats parts of QEMU's command line, as users write the options and as libvirt does
//! with JSON.

use std::collections::BTreeMap;
use std::fmt;

use api::config::split_commas;
use serde_json::Value;

use crate::tool;

/// First version in which MSI-X of a vhost-user network card under TCG does not end QEMU.
const MSIX_WITHOUT_KVM: Version = Version { major: 8, minor: 0 };
/// First version that has `reconnect-ms`; QEMU 10.2 has no `reconnect`.
const RECONNECT_MS: Version = Version { major: 9, minor: 2 };

/// A version of QEMU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    pub(crate) major: u32,
    pub(crate) minor: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl Version {
    /// Reads a version such as `7.2` or `7.2.22`.
    pub(crate) fn parse(text: &str) -> Option<Version> {
        let mut numbers = text.split('.');
        let major = numbers.next()?.parse().ok()?;
        let minor = numbers.next().map_or(Some(0), |minor| {
            let end = minor.find(|c: char| !c.is_ascii_digit()).unwrap_or(minor.len());
            minor[..end].parse().ok()
        })?;
        Some(Version { major, minor })
    }

    /// Returns the version that `PROGRAM --version` prints, if the program is a QEMU.
    pub(crate) fn of(program: &str) -> Option<Version> {
        let said = tool::output(&[program, "--version"])?;
        Version::parse(said.split_once("QEMU emulator version ")?.1.split_whitespace().next()?)
    }

    /// Returns the version of the installed QEMU.
    pub(crate) fn installed() -> Option<Version> {
        let native = format!("qemu-system-{}", std::env::consts::ARCH);
        [native.as_str(), "kvm", "/usr/libexec/qemu-kvm"].into_iter().find_map(Version::of)
    }

    /// Returns the key by which a character device connects again.
    pub(crate) fn reconnect(self) -> &'static str {
        if self >= RECONNECT_MS { "reconnect-ms=200" } else { "reconnect=1" }
    }

    /// True if a network card must do without MSI-X when QEMU runs without KVM.
    pub(crate) fn fears_msix(self) -> bool {
        self < MSIX_WITHOUT_KVM
    }
}

/// Returns a value as a list of options has the value, with each comma doubled.
pub fn escaped(value: &str) -> String {
    value.replace(',', ",,")
}

/// An option with the values of its keys: `-netdev vhost-user,id=net` or
/// `-netdev {"type":"vhost-user","id":"net"}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// The option without its dashes.
    pub(crate) option: String,
    /// Values by their keys; the first value, which needs no key, has the empty key.
    keys: BTreeMap<String, String>,
    /// Whole value of the option.
    pub(crate) value: String,
}

/// Keys by which a command line may give the first value.
const FIRST: [&str; 5] = ["type", "backend", "driver", "qom-type", "size"];

impl Item {
    /// Returns an option with this value.
    pub(crate) fn new(option: &str, value: &str) -> Item {
        Item { option: option.to_owned(), keys: keys(value), value: value.to_owned() }
    }

    /// Returns the value of a key.
    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        self.keys.get(key).map(String::as_str)
    }

    /// Returns the kind: the type of a back-end, the driver of a device.
    pub(crate) fn kind(&self) -> &str {
        let named = FIRST.iter().find_map(|key| self.get(key));
        self.get("").or(named).unwrap_or_default()
    }

    /// True if the value of the key is `on` or a word of equal meaning.
    pub(crate) fn is_on(&self, key: &str) -> bool {
        matches!(self.get(key), Some("on" | "yes" | "true" | "y"))
    }
}

/// Returns the options of a command line.
pub fn items(words: &[String]) -> Vec<Item> {
    let mut found = Vec::new();
    let mut words = words.iter().peekable();
    while let Some(word) = words.next() {
        let Some(option) = word.strip_prefix('-') else { continue };
        let option = option.strip_prefix('-').unwrap_or(option).to_owned();
        let value = match words.peek() {
            Some(next) if !next.starts_with('-') => words.next().cloned().unwrap_or_default(),
            _ => String::new(),
        };
        found.push(Item::new(&option, &value));
    }
    found
}

fn keys(value: &str) -> BTreeMap<String, String> {
    if value.starts_with('{') {
        let mut keys = BTreeMap::new();
        // A later key replaces an earlier key of one name, at any depth.
        if let Ok(value) = serde_json::from_str::<Value>(value) {
            flatten(&value, &mut keys);
        }
        return keys;
    }
    let mut keys = BTreeMap::new();
    for (at, part) in split_commas(value).into_iter().enumerate() {
        match part.split_once('=') {
            Some((key, word)) => keys.insert(key.to_owned(), word.to_owned()),
            None if at == 0 => keys.insert(String::new(), part),
            // A key without a value is a switch.
            None => keys.insert(part, "on".to_owned()),
        };
    }
    keys
}

fn flatten(value: &Value, keys: &mut BTreeMap<String, String>) {
    for (key, value) in value.as_object().into_iter().flatten() {
        match value {
            Value::Object(_) => flatten(value, keys),
            Value::String(text) => drop(keys.insert(key.clone(), text.clone())),
            other => drop(keys.insert(key.clone(), other.to_string())),
        }
    }
}

/// Options of a command line that connect QEMU with a port's socket.
pub(crate) struct Card<'a> {
    pub(crate) chardev: &'a Item,
    pub(crate) netdev: Option<&'a Item>,
    pub(crate) device: Option<&'a Item>,
}

/// Returns the network card behind the socket at `path`, if the command line has the card.
pub fn card<'a>(items: &'a [Item], path: &str) -> Option<Card<'a>> {
    let option = |names: &'static [&str]| {
        items.iter().filter(move |item| names.contains(&item.option.as_str()))
    };
    let chardev = option(&["chardev"]).find(|item| item.get("path") == Some(path))?;
    let id = chardev.get("id")?;
    // -nic is -netdev and -device in one.
    let netdev = option(&["netdev", "nic"]).find(|item| item.get("chardev") == Some(id));
    let device = netdev.and_then(|netdev| match netdev.option.as_str() {
        "nic" => Some(netdev),
        _ => option(&["device"]).find(|item| item.get("netdev") == netdev.get("id")),
    });
    Some(Card { chardev, netdev, device })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn versions_are_read_and_compared() {
        let version = |text| Version::parse(text).map(|version| version.to_string());
        assert_eq!(version("7.2.22").as_deref(), Some("7.2"));
        assert_eq!(version("10").as_deref(), Some("10.0"));
        assert_eq!(version("9.2-rc1").as_deref(), Some("9.2"));
        assert_eq!(version("x.2"), None);
        for (text, reconnect) in
            [("7.2", "reconnect=1"), ("9.1", "reconnect=1"), ("9.2", "reconnect-ms=200")]
        {
            assert_eq!(Version::parse(text).unwrap().reconnect(), reconnect);
        }
    }

    #[test]
    fn options_are_read_as_qemu_reads_them() {
        let json = r#"{"driver":"virtio-net-pci","netdev":"n","mq":true,"vectors":10}"#;
        let items = items(&words(&format!(
            "qemu -m 1G --netdev vhost-user,id=n,chardev=c -chardev \
             socket,path=/a,,b,id=c,server -S -device {json}"
        )));
        assert_eq!(items.len(), 5);
        assert_eq!((items[0].option.as_str(), items[0].kind()), ("m", "1G"));
        let card = card(&items, "/a,b").expect("a card");
        assert!(card.chardev.is_on("server") && card.chardev.kind() == "socket");
        let device = card.device.expect("a device");
        assert!(device.is_on("mq") && device.get("vectors") == Some("10"));
        assert_eq!(device.kind(), "virtio-net-pci");
        assert!(super::card(&items, "/a").is_none());
    }

    #[test]
    fn a_nic_is_netdev_and_device_in_one() {
        let line = "-chardev socket,id=c,path=/s -nic vhost-user,chardev=c,model=virtio-net-pci";
        let items = items(&words(line));
        let card = card(&items, "/s").expect("a card");
        assert_eq!(card.device.map(Item::kind), Some("vhost-user"));
    }
}
