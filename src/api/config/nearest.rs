//! Finds the known word for a mistyped word, or for a word of another program.

/// Longest word that is compared.
const MAX_CHARS: usize = 64;
/// Shortest beginning of a word that is completed: fewer letters begin too many words.
const MIN_BEGINNING: usize = 3;

/// Pairs of words: a name that Open vSwitch, ip(8), bridge(8), libvirt, QEMU or people use for a
/// key, and the name of the key here.
const HABITS: &str = "\
    tag vlan, pvid native, pvid vlan, vlans trunk, trunks trunk, network bridge, br bridge, ip \
    allowed-ips, address mac, hwaddr mac, macaddr mac, dev ifname, device ifname, iface ifname, \
    interface ifname, path socket, chardev socket, server mode, perm \
    socket-mode, rate rate-in, bandwidth rate-in, inbound rate-in, outbound rate-out, burst \
    burst-in, isolate isolated, limit max-addresses, state admin, up admin, comment label, \
    description label, alias label, cpu worker, cpu cpus, threads workers, ageing age, igmp \
    multicast-snooping, src from, source from, dst to, target to";

fn habits() -> impl Iterator<Item = (&'static str, &'static str)> {
    HABITS.split(", ").filter_map(|pair| pair.split_once(' '))
}

/// Returns the known word for the word `word` of another program.
pub(crate) fn habitual<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let ours = habits().filter(|(other, _)| other.eq_ignore_ascii_case(word));
    ours.into_iter().find_map(|(_, our)| known.iter().find(|known| **known == our).copied())
}

/// Returns the known word with the fewest letters that are changed, added, left out or swapped with
/// the next letter; at most a third of the letters. Otherwise returns the shortest known word that
/// begins with `word`.
pub fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase();
    let length = word.chars().count();
    if length > MAX_CHARS {
        return None;
    }
    let most = (length / 3).max(1);
    let known: Vec<&str> = known.collect();
    let distance = |other: &str| strsim::osa_distance(&word, &other.to_lowercase());
    let measured = known.iter().map(|other| (distance(other), *other));
    let near = measured.filter(|(distance, _)| *distance <= most).min_by_key(|(n, _)| *n);
    let begun = || {
        let all = known.iter().filter(|other| other.to_lowercase().starts_with(&word));
        all.min_by_key(|other| other.len()).filter(|_| length >= MIN_BEGINNING).copied()
    };
    near.map(|(_, word)| word).or_else(begun)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::keys::KEYS;
    use crate::config::scalars::outer_keys;

    #[test]
    fn a_slip_is_found_and_another_word_is_not() {
        let known = ["ListPorts", "GetPort", "AddPort", "DeletePort"];
        let near = |word: &str| nearest(word, known.iter().copied());
        assert_eq!(near("listports"), Some("ListPorts"));
        assert_eq!(near("AdPort"), Some("AddPort"));
        assert_eq!(near("DeletPort"), Some("DeletePort"));
        assert_eq!(near("Capture"), None);
        assert_eq!(nearest("vlna", ["vlan", "mtu"].into_iter()), Some("vlan"));
        assert_eq!((near(""), near(&"x".repeat(10_000))), (None, None));
        assert_eq!(nearest("vm2", ["vm1", "vm11"].into_iter()), Some("vm1"));
        assert_eq!(nearest("sock", ["name", "socket-mode", "socket"].into_iter()), Some("socket"));
        assert_eq!(nearest("so", ["name", "socket"].into_iter()), None);
    }

    /// Each habit stands for an existing key.
    #[test]
    fn words_of_other_programs_stand_for_keys() {
        let keys: Vec<&str> = KEYS.iter().map(|key| key.name).chain(outer_keys()).collect();
        assert!(habits().count() > 30);
        for (word, ours) in habits() {
            assert!(!keys.contains(&word) && keys.contains(&ours), "{word} {ours}");
        }
        assert_eq!(habitual("Tag", &["name", "vlan"]), Some("vlan"));
        assert_eq!(habitual("tag", &["name", "socket"]), None);
    }
}
