//! The word that another one may stand for: a mistyped one, or one of another program.

/// Letters of a longer word are not compared.
const MAX_CHARS: usize = 64;
/// Fewer letters are the beginning of too many words.
const MIN_BEGINNING: usize = 3;

/// Keys as Open vSwitch, ip(8), bridge(8), libvirt, QEMU and people name them, each before our key.
const HABITS: &str = "\
    tag vlan, pvid native, pvid vlan, vlans trunk, trunks trunk, network bridge, br bridge, ip \
    allowed-ips, address mac, hwaddr mac, macaddr mac, dev ifname, device ifname, iface ifname, \
    interface ifname, path socket, chardev socket, server mode, group socket-group, perm \
    socket-mode, rate rate-in, bandwidth rate-in, inbound rate-in, outbound rate-out, burst \
    burst-in, isolate isolated, limit max-addresses, state admin, up admin, comment label, \
    description label, alias label, cpu worker, cpu cpus, threads workers, ageing age, igmp \
    multicast-snooping, src from, source from, dst to, target to";

fn habits() -> impl Iterator<Item = (&'static str, &'static str)> {
    HABITS.split(", ").filter_map(|pair| pair.split_once(' '))
}

/// The known word for what another program calls `word`.
pub fn habitual<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let ours = habits().filter(|(other, _)| other.eq_ignore_ascii_case(word));
    ours.into_iter().find_map(|(_, our)| known.iter().find(|known| **known == our).copied())
}

/// The known word that takes the fewest letters to be changed, put in, left out or swapped with the
/// next one; none if that is more than a third of them. Else the shortest one that begins with all
/// of `word`.
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
    use crate::config::scalars::SCALAR_KEYS;

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

    /// Each stands for a key that there is.
    #[test]
    fn words_of_other_programs_stand_for_keys() {
        let keys: Vec<&str> = KEYS.iter().map(|key| key.name).chain(SCALAR_KEYS.to_vec()).collect();
        assert!(habits().count() > 30);
        for (word, ours) in habits() {
            assert!(!keys.contains(&word) && keys.contains(&ours), "{word} {ours}");
        }
        assert_eq!(habitual("Tag", &["name", "vlan"]), Some("vlan"));
        assert_eq!(habitual("tag", &["name", "socket"]), None);
    }
}
