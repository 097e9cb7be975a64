//! Finds the other ends of veth pairs, and which end finishes the checksums of passing frames.
//!
//! A veth pair carries frames between stacks of one kernel, which leave checksums to the receiver.
//! An XDP program gets the frames with unfinished checksums. The sending end can finish the
//! checksums.

use std::collections::BTreeSet;
use std::fs;

use serde::Deserialize;

use super::facts::{Facts, Peer};
use super::proc::Reader;
use crate::links::{self, Link};

/// Directory in which ip(8) keeps named namespaces.
const NAMED: &str = "/run/netns";
/// Most network namespaces that the doctor searches for the other end of a pair.
const MAX_NAMESPACES: usize = 64;

/// Features of an interface, as `ethtool --json -k` prints them.
#[derive(Debug, Deserialize)]
struct Features {
    #[serde(rename = "tx-checksumming")]
    sums: Feature,
}

#[derive(Debug, Deserialize)]
struct Feature {
    active: bool,
}

/// Looks at the veth pairs of uplinks past the host's network stack, and at the veth pairs that
/// share a bridge with a TAP. `namespace` runs a program in the switch's network.
pub fn look(namespace: &[String], facts: &mut Facts) {
    let mut wanted: Vec<Link> = Vec::new();
    for port in facts.ports.iter().filter(|port| port.is_uplink()) {
        let name = port.shown().interface.as_deref().unwrap_or_default();
        let Some(link) = facts.host.link(name) else { continue };
        match link.master.as_deref().filter(|_| port.is_tap()) {
            Some(bridge) => wanted.extend(facts.host.members(bridge).cloned()),
            None => wanted.push(link.clone()),
        }
    }
    let (mut others, mut answers) = (None, true);
    for link in wanted.into_iter().filter(|link| link.linkinfo.info_kind == "veth") {
        let here = link.link_netnsid.is_none().then_some(link.link.as_deref()).flatten();
        let found = match here.and_then(|name| facts.host.link(name)) {
            Some(peer) => Some((namespace.to_vec(), peer.clone())),
            None => elsewhere(&link, others.get_or_insert_with(|| namespaces(namespace))),
        };
        let Some((at, peer)) = found else { continue };
        let sums =
            [(namespace, &link), (&at[..], &peer)].map(|(at, of)| leaves_sums(at, &of.ifname));
        answers &= sums[0].is_some() && sums[1].is_some();
        let [leaves_sums, peer_leaves_sums] = sums.map(|sums| sums.unwrap_or(false));
        facts.host.peers.insert(
            link.ifname.clone(),
            Peer {
                enter: namespace.to_vec(),
                leaves_sums,
                peer: peer.ifname,
                enter_peer: at,
                peer_leaves_sums,
                peer_has_program: peer.xdp.is_some(),
            },
        );
    }
    if !answers {
        facts.skipped.push("checksums of veth pairs: ethtool(8) does not answer".to_owned());
    }
}

/// Returns whether an interface gets and passes on frames whose checksums are not finished; `None`
/// if ethtool(8) does not answer.
fn leaves_sums(namespace: &[String], name: &str) -> Option<bool> {
    let mut words: Vec<&str> = namespace.iter().map(String::as_str).collect();
    words.extend(["ethtool", "--json", "-k", name]);
    Some(links::ask::<Features>(&words)?.first()?.sums.active)
}

/// Returns the other end of a pair in another network namespace, with the command that enters the
/// namespace.
fn elsewhere(link: &Link, namespaces: &[Vec<String>]) -> Option<(Vec<String>, Link)> {
    let index = link.link_index?;
    namespaces.iter().find_map(|enter| {
        let mut words: Vec<&str> = enter.iter().map(String::as_str).collect();
        words.extend(["ip", "-json", "-details", "link", "show"]);
        let all: Vec<Link> = links::ask(&words)?;
        let is_end =
            |other: &Link| other.ifindex == index && other.link_index == Some(link.ifindex);
        let end = all.into_iter().find(|one| one.linkinfo.info_kind == "veth" && is_end(one))?;
        Some((enter.clone(), end))
    })
}

/// Returns the commands that enter each network namespace other than the switch's.
fn namespaces(switch: &[String]) -> Vec<Vec<String>> {
    let mut all = Vec::new();
    // An empty command stands for this program's own namespace, if the switch has another
    // namespace.
    if !switch.is_empty() {
        all.push(Vec::new());
    }
    let named = fs::read_dir(NAMED).into_iter().flatten().flatten();
    let named = named.filter_map(|entry| entry.file_name().into_string().ok());
    let exec = |name: &str| ["ip", "netns", "exec", name].map(str::to_owned).to_vec();
    all.extend(named.filter(|name| !name.starts_with('-')).map(|name| exec(&name)));
    let network = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/net")).ok();
    let mut seen: BTreeSet<_> = network("self").into_iter().collect();
    for pid in Reader::new().processes() {
        if network(&pid.to_string()).is_some_and(|network| seen.insert(network)) {
            all.push(vec!["nsenter".to_owned(), format!("--net=/proc/{pid}/ns/net")]);
        }
    }
    all.truncate(MAX_NAMESPACES);
    all
}
