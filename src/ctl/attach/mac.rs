//! Checks for `attach --mac` whether frames from the address pass at the port.

use api::wire::{ConfigEntry, ConfigKey, value, values};
use base::frame::MacAddr;

/// Source addresses of virtual routers (RFC 9568), which `allowed-macs=vrrp` stands for.
const VRRP: [&str; 2] = ["00:00:5e:00:01:", "00:00:5e:00:02:"];

/// Reads an address that one station can have.
pub fn station(word: &str) -> Result<MacAddr, String> {
    let mac: MacAddr = word.parse().map_err(|error| format!("{error}"))?;
    match mac.is_group() || mac.is_zero() {
        true => Err("an address that one station can have, such as 52:54:00:12:34:56".to_owned()),
        false => Ok(mac),
    }
}

/// Returns a note for the user about an address at the port `name`, or why frames from the address
/// would be lost.
pub fn check(
    mac: MacAddr,
    name: &str,
    keys: &[ConfigKey],
    all: &[ConfigEntry],
) -> Result<Option<String>, String> {
    let has = |words: &[String]| {
        words.iter().any(|word| word.parse().is_ok_and(|one: MacAddr| one == mac))
    };
    let place = |keys: &[ConfigKey]| {
        let word = |key: &str, default: &str| value(keys, key).unwrap_or(default).to_owned();
        [word("bridge", "default"), word("vlan", word("native", "0").as_str())]
    };
    let other = all.iter().find(|entry| {
        entry.name != name && has(values(&entry.keys, "mac")) && place(&entry.keys) == place(keys)
    });
    if let Some(other) = other {
        return Err(format!("{mac} is a static address of port '{}'", other.name));
    }
    let (own, allowed) = (values(keys, "mac"), values(keys, "allowed-macs"));
    let is_allowed = match (allowed, own) {
        ([], []) => true,
        ([], own) => has(own),
        (allowed, own) => allowed.iter().any(|word| match word.as_str() {
            "own" => has(own),
            "vrrp" => VRRP.iter().any(|start| mac.to_string().starts_with(start)),
            word => word.parse().is_ok_and(|one: MacAddr| one == mac),
        }),
    };
    let remedy = format!("vioswitchctl port set {name} mac={mac}");
    match (is_allowed, value(keys, "guard")) {
        (true, _) => Ok(None),
        (false, Some("on")) => {
            Err(format!("port '{name}' has guard=on, which drops frames from {mac}: {remedy}"))
        }
        (false, _) => {
            let list = if allowed.is_empty() { "mac" } else { "allowed-macs" };
            let listed = if allowed.is_empty() { own } else { allowed }.join(",");
            Ok(Some(format!(
                "the port has {list}={listed}, and {mac} is not in that list: {remedy}"
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(words: &str) -> Vec<ConfigKey> {
        let mut keys: Vec<ConfigKey> = Vec::new();
        for (key, value) in words.split_whitespace().filter_map(|word| word.split_once('=')) {
            let values = value.split(',').map(str::to_owned).collect();
            keys.push(ConfigKey { key: key.to_owned(), values });
        }
        keys
    }

    #[test]
    fn an_address_that_the_port_would_drop_is_refused() {
        let mac = station("52:54:00:00:00:07").expect("an address");
        let other = |words: &str| ConfigEntry {
            name: "other".to_owned(),
            keys: keys(words),
            ..ConfigEntry::default()
        };
        for (words, others, wanted) in [
            ("", "", Ok(false)),
            ("guard=on", "", Ok(false)),
            ("guard=on mac=52:54:00:00:00:07", "", Ok(false)),
            ("guard=on mac=52:54:00:00:00:06,52:54:00:00:00:07", "", Ok(false)),
            ("guard=on mac=52:54:00:00:00:06", "", Err("guard=on")),
            ("guard=log mac=52:54:00:00:00:06", "", Ok(true)),
            ("mac=52:54:00:00:00:06", "", Ok(true)),
            ("guard=on allowed-macs=vrrp", "", Err("guard=on")),
            ("guard=on mac=52:54:00:00:00:06 allowed-macs=own,52:54:00:00:00:07", "", Ok(false)),
            ("allowed-macs=own mac=52:54:00:00:00:06", "", Ok(true)),
            ("", "mac=52:54:00:00:00:07", Err("static address of port 'other'")),
            ("vlan=10", "mac=52:54:00:00:00:07", Ok(false)),
            ("vlan=10", "mac=52:54:00:00:00:07 vlan=10", Err("static address")),
            ("vlan=10", "mac=52:54:00:00:00:07 vlan=10 bridge=red", Ok(false)),
        ] {
            let told = check(mac, "vm1", &keys(words), &[other(others)]);
            match (&told, wanted) {
                (Ok(note), Ok(has_note)) => {
                    assert_eq!(note.is_some(), has_note, "{words} {told:?}")
                }
                (Err(why), Err(part)) => assert!(why.contains(part), "{words}: {why}"),
                _ => panic!("{words}: {told:?}"),
            }
        }
        let vrrp = station("00:00:5e:00:01:0a").expect("an address");
        assert_eq!(check(vrrp, "vm1", &keys("guard=on allowed-macs=vrrp"), &[]), Ok(None));
        for wrong in ["", "x", "52:54:00:00:00", "01:00:5e:00:00:01", "00:00:00:00:00:00"] {
            assert!(station(wrong).is_err(), "{wrong}");
        }
    }
}
