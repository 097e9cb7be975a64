//! Combinations of several ports' keys that make a key ineffective or the ports unreachable.
//!
//! The switch reports these combinations as `settings-at-odds`, like combinations of one port's
//! keys. The effort grows with the number of ports, not with the number of pairs: a client may ask
//! at any time.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::Oddity;
use crate::config::{Kind, Settings};
use switch::{Reserved, VlanSet, segment_name};

/// A combination of several ports' keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Between {
    /// Names of the ports; for a mirror the first name is the mirror's.
    pub ports: Vec<String>,
    /// The combination.
    pub oddity: Oddity,
}

impl Between {
    fn of<'s>(
        ports: impl IntoIterator<Item = &'s Settings>,
        cause: String,
        command: String,
    ) -> Between {
        let ports = ports.into_iter().map(|port| port.name.clone()).collect();
        Between { ports, oddity: Oddity { cause, command } }
    }
}

/// Returns the combinations among all ports and mirrors of a switch.
pub fn between<'s>(all: impl Iterator<Item = &'s Settings>) -> Vec<Between> {
    let (ports, others): (Vec<_>, Vec<_>) = all.partition(|one| one.kind.is_port());
    let mirrors: Vec<_> = others.into_iter().filter(|one| one.kind == Kind::Mirror).collect();
    // A mirror's destination sends nothing, and gets only copies.
    let observers: HashSet<&str> = mirrors.iter().filter_map(|one| one.to.as_deref()).collect();
    let mut bridges: BTreeMap<&str, Vec<&Settings>> = BTreeMap::new();
    for port in ports.iter().filter(|port| !observers.contains(port.name.as_str())) {
        bridges.entry(&port.bridge).or_default().push(port);
    }
    let mut found = Vec::new();
    for members in bridges.values() {
        found.extend(isolated(members));
        found.extend(passes(members));
        found.extend(trunks(members));
        found.extend(mtus(members));
    }
    let by_name = ports.iter().map(|port| (port.name.as_str(), *port)).collect();
    found.extend(mirrors.iter().filter_map(|mirror| unseen(mirror, &by_name)));
    found
}

/// Groups ports by the VLAN of their frames without a tag.
fn by_vlan<'s>(members: &[&'s Settings]) -> BTreeMap<u16, Vec<&'s Settings>> {
    let mut vlans: BTreeMap<u16, Vec<&Settings>> = BTreeMap::new();
    for port in members {
        if let Some(vlan) = port.vlans().untagged() {
            vlans.entry(vlan).or_default().push(port);
        }
    }
    vlans
}

/// Finds VLANs of which all ports are isolated.
fn isolated(members: &[&Settings]) -> Vec<Between> {
    let mut open = VlanSet::new();
    members.iter().filter(|port| !port.isolated).for_each(|port| open.join(&port.vlans().all()));
    let closed = by_vlan(members).into_iter().filter(|(vlan, _)| !open.has(*vlan));
    let found = closed.filter(|(_, ports)| ports.len() > 1).map(|(vlan, ports)| {
        let first = ports[0];
        // The other ports should reach an uplink, if there is one.
        let common = ports.iter().find(|port| port.kind != Kind::Port).unwrap_or(&first);
        let cause = format!(
            "isolated=on at all ports of {}: no frame passes between them",
            segment_name(&first.bridge, vlan)
        );
        let command = common.command("isolated=off");
        Between::of(ports, cause, command)
    });
    found.collect()
}

/// Finds link-local protocols that only one port passes.
fn passes(members: &[&Settings]) -> Vec<Between> {
    if members.len() < 2 {
        return Vec::new();
    }
    let mut alone: BTreeMap<&str, (&Settings, Vec<&str>)> = BTreeMap::new();
    for protocol in Reserved::ALL {
        let is_passed = |port: &&&Settings| port.pass.is_some_and(|set| set.has(protocol));
        let mut passing = members.iter().filter(is_passed);
        if let (Some(port), None) = (passing.next(), passing.next()) {
            let (_, protocols) = alone.entry(&port.name).or_insert((port, Vec::new()));
            protocols.push(protocol.name());
        }
    }
    let found = alone.into_values().map(|(port, protocols)| {
        let set = protocols.join(",");
        let cause =
            format!("pass={set} has no effect: no other port of bridge '{}' has it", port.bridge);
        Between::of([port], cause, format!("vioswitchctl port set NAME pass={set}"))
    });
    found.collect()
}

/// Finds trunks that share no VLAN with another port.
fn trunks(members: &[&Settings]) -> Vec<Between> {
    let (mut once, mut twice) = (VlanSet::new(), VlanSet::new());
    for port in members {
        let own = port.vlans().all();
        twice.join(&once.common(&own));
        once.join(&own);
    }
    let is_alone = |port: &&&Settings| {
        // The port's own VLAN, without a tag, has a finding of its own.
        let has_own = port.vlans().untagged().is_some_and(|vlan| vlan != 0);
        port.trunk.is_some() && !has_own && twice.common(&port.vlans().all()) == VlanSet::new()
    };
    let found = members.iter().filter(|_| members.len() > 1).filter(is_alone).map(|port| {
        let cause = format!("no other port of bridge '{}' is in a VLAN of its trunk", port.bridge);
        Between::of([*port], cause, "vioswitchctl port set NAME vlan=VLAN".to_owned())
    });
    found.collect()
}

/// Finds VLANs whose ports have different MTUs.
fn mtus(members: &[&Settings]) -> Vec<Between> {
    let found = by_vlan(members).into_iter().filter_map(|(vlan, ports)| {
        let with_mtu = || ports.iter().filter(|port| port.mtu.is_some());
        let long = with_mtu().max_by_key(|port| port.mtu)?;
        let short = with_mtu().min_by_key(|port| port.mtu)?;
        let (most, least) = (long.mtu?, short.mtu?);
        if most == least {
            return None;
        }
        let cause = format!(
            "MTUs differ in {}: longer frames from '{}', mtu={most}, are dropped at '{}', \
             mtu={least}",
            segment_name(&long.bridge, vlan),
            long.name,
            short.name
        );
        Some(Between::of([*short, *long], cause, short.command(&format!("mtu={most}"))))
    });
    found.collect()
}

/// Finds a mirror that copies only a VLAN of which the mirror's source is no member.
fn unseen(mirror: &Settings, ports: &HashMap<&str, &Settings>) -> Option<Between> {
    let vlan = mirror.vlan?;
    let source = ports.get(mirror.from.as_deref()?)?;
    if source.vlans().is_member(vlan) {
        return None;
    }
    let cause =
        format!("vlan={vlan} copies no frame: its source '{}' is not in VLAN {vlan}", source.name);
    Some(Between::of([mirror, *source], cause, mirror.anew(Some("vlan="))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Value;

    /// Returns the settings of a port, or of the kind before a colon: `mirror:name=m1 from=a to=b`.
    fn settings(words: &str) -> Settings {
        let (kind, keys) = words.split_once(':').unwrap_or(("port", words));
        let kind = Kind::NAMED.into_iter().find(|one| one.to_string() == kind).expect("a kind");
        let pairs = keys.split_whitespace().map(|word| word.split_once('=').expect("KEY=VALUE"));
        let mut pairs: Vec<(String, Value)> =
            pairs.map(|(key, word)| (key.to_owned(), Value::Word(word.to_owned()))).collect();
        if kind == Kind::Port {
            let socket = format!("/run/{}", keys.split([' ', '=']).nth(1).expect("a name"));
            pairs.push(("socket".to_owned(), Value::Word(socket)));
        }
        Settings::parse(kind, pairs).expect(words)
    }

    fn found(all: &[&str]) -> Vec<String> {
        let all: Vec<Settings> = all.iter().map(|words| settings(words)).collect();
        let found = between(all.iter()).into_iter();
        found
            .map(|one| {
                let Oddity { cause, command } = one.oddity;
                format!("{}: {cause}: {command}", one.ports.join(" "))
            })
            .collect()
    }

    #[test]
    fn each_combination_is_found_and_its_opposite_is_not() {
        let (observed, isolated_tap) = ("name=w", "tap:name=up ifname=u isolated=on");
        for (odd, words, mended) in [
            (
                &["name=a isolated=on", "name=b isolated=on", isolated_tap][..],
                "a b up: isolated=on at all ports of bridge 'default': no frame passes between \
                 them: vioswitchctl tap set up isolated=off",
                &["name=a isolated=on", "name=b isolated=on", "tap:name=up ifname=u"][..],
            ),
            (
                &["name=a isolated=on vlan=7", "name=b isolated=on vlan=7", "name=c"],
                "a b: isolated=on at all ports of VLAN 7 of bridge 'default': no frame passes \
                 between them: vioswitchctl port set a isolated=off",
                &["name=a isolated=on vlan=7", "name=b isolated=on vlan=7", "name=c trunk=7"],
            ),
            (
                &["name=a pass=lldp,stp", "name=b pass=lldp", "name=c pass=lldp bridge=blue"],
                "a: pass=stp has no effect: no other port of bridge 'default' has it: \
                 vioswitchctl port set NAME pass=stp",
                &["name=a pass=lldp,stp", "name=b pass=lldp,stp"],
            ),
            (
                &["name=a trunk=10-20", "name=b vlan=30", "name=c vlan=30"],
                "a: no other port of bridge 'default' is in a VLAN of its trunk: vioswitchctl \
                 port set NAME vlan=VLAN",
                &["name=a trunk=10-30", "name=b vlan=30", "name=c vlan=30"],
            ),
            (
                &["name=a mtu=9000", "name=b mtu=1400", "name=c mtu=1400 vlan=5"],
                "b a: MTUs differ in bridge 'default': longer frames from 'a', mtu=9000, are \
                 dropped at 'b', mtu=1400: vioswitchctl port set b mtu=9000",
                &["name=a mtu=9000", "name=b mtu=9000", "name=c mtu=1400 vlan=5"],
            ),
            (
                &["name=a vlan=10", observed, "mirror:name=m from=a to=w vlan=20"],
                "m a: vlan=20 copies no frame: its source 'a' is not in VLAN 20: vioswitchctl \
                 mirror del m && vioswitchctl mirror add m from=a to=w",
                &["name=a vlan=10", observed, "mirror:name=m from=a to=w vlan=10"],
            ),
        ] {
            assert_eq!(found(odd), [words]);
            assert_eq!(found(mended), Vec::<String>::new(), "{mended:?}");
        }
    }

    /// A port that is alone, and a mirror's destination, are not at odds with other ports.
    #[test]
    fn what_no_other_port_contradicts_is_not_found() {
        for harmless in [
            &["name=a isolated=on"][..],
            &["name=a isolated=on", "name=b"],
            &["name=a isolated=on", "name=w", "mirror:name=m from=a to=w"],
            &["name=a trunk=10"],
            &["name=a pass=lldp", "name=b bridge=blue"],
            &["name=a mtu=9000", "name=b"],
            &["mirror:name=m from=gone to=w vlan=20"],
        ] {
            assert_eq!(found(harmless), Vec::<String>::new(), "{harmless:?}");
        }
    }
}
