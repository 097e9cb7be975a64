//! Faults of a port: its interface, its rings, and frames that it does not take.

use super::facts::{Facts, Link, LinkState, Offloads, Port, Refused};
use super::finding::{
    FRAMES_REFUSED, FRAMES_TOO_LONG, Finding, Level, OFFLOADS_IN_SOFTWARE, PORT_DISABLED,
    RECEIVER_OVERLOADED, RING_BROKEN, TAP_DOWN, TAP_GONE, UPLINKS_IN_ONE_BRIDGE,
};
use super::history::Sender;
use base::stats::{DropReason, PortState};
use base::words::{counted, quote};

/// Frames with offloads in software that are more than an accident of a boot.
const MANY_FRAMES: u64 = 1_000;
/// Cost of a checksum, and of a segment that a packet is cut into, in nanoseconds:
/// docs/performance.md.
const NANOS_EACH: u64 = 100;
/// Frames without room that are more than an accident of a burst, and their least share in percent.
const MANY_DROPS: u64 = 100;
const FEW_PERCENT: u64 = 5;
/// Largest number of senders that a finding names.
const MOST_NAMED: usize = 3;

pub fn judge(facts: &Facts, found: &mut Vec<Finding>) {
    for port in &facts.ports {
        found.extend(port.link.as_ref().and_then(|link| down(port, link, facts)));
        found.extend(disabled(port));
        found.extend(broken(port));
        found.extend(overloaded(port));
        found.extend(too_long(port));
        found.extend(refused(port));
        found.extend(software(port));
    }
    bridges(facts, found);
}

fn down(port: &Port, link: &Link, facts: &Facts) -> Option<Finding> {
    let Link { interface, is_tap, state, .. } = link;
    match state {
        LinkState::Up => None,
        LinkState::Down => {
            let cause = PortState::Down.of_it(Some(interface));
            Some(Finding::of_drops(TAP_DOWN, port, DropReason::TapDown, cause))
        }
        LinkState::Gone => {
            let cause = PortState::Gone.of_it(Some(interface));
            let user = match facts.condition.user {
                0 => String::new(),
                user => format!(" user {user}"),
            };
            let dev = quote(interface);
            let command = match is_tap {
                true => format!(
                    "ip tuntap add dev {dev} mode tap multi_queue vnet_hdr{user} && ip link set \
                     {dev} up"
                ),
                false => format!("make the interface {interface} again, or delete the port"),
            };
            Some(Finding::of(TAP_GONE, port, cause, command))
        }
    }
}

fn disabled(port: &Port) -> Option<Finding> {
    let cause = PortState::Disabled.of_it(None);
    let finding = || Finding::of_drops(PORT_DISABLED, port, DropReason::AdminDown, cause);
    port.is_disabled.then(finding)
}

fn broken(port: &Port) -> Option<Finding> {
    let rings: Vec<String> = port.guest.broken.iter().map(usize::to_string).collect();
    if rings.is_empty() {
        return None;
    }
    let cause = format!("its guest's driver broke a rule on ring {}", rings.join(", "));
    let command = "restart the guest's driver or the guest; why: journalctl -u vioswitchd";
    Some(Finding::of(RING_BROKEN, port, cause, command))
}

fn overloaded(port: &Port) -> Option<Finding> {
    let (dropped, all) =
        (port.counts.moment.no_room, port.counts.moment.no_room + port.counts.moment.out);
    if dropped < MANY_DROPS || dropped * 100 <= all * FEW_PERCENT {
        return None;
    }
    let share = dropped * 100 / all.max(1);
    let cause = format!(
        "the receiver takes frames too slowly: {share} % of the frames for the port were dropped \
         in the last seconds{}",
        named(&port.senders)
    );
    let reason = if port.link.is_some() { DropReason::TapFull } else { DropReason::NoBuffer };
    Some(Finding::of_drops(RECEIVER_OVERLOADED, port, reason, cause))
}

/// Returns the senders of most dropped frames.
fn named(senders: &[Sender]) -> String {
    let all: u64 = senders.iter().map(|one| one.frames).sum();
    let share = |one: &Sender| format!("{} % from '{}'", one.frames * 100 / all.max(1), one.port);
    let told: Vec<String> = senders.iter().take(MOST_NAMED).map(share).collect();
    if told.is_empty() { String::new() } else { format!(", {}", told.join(", ")) }
}

fn too_long(port: &Port) -> Option<Finding> {
    let dropped = port.counts.lately.too_big;
    if dropped == 0 {
        return None;
    }
    let mtu = port.mtu.map_or("-".to_owned(), |mtu| mtu.to_string());
    let (frames, were) = (counted(dropped, "frame"), if dropped == 1 { "was" } else { "were" });
    let cause = format!("{frames} {were} too long for its MTU of {mtu} and {were} dropped lately");
    Some(Finding::of_drops(FRAMES_TOO_LONG, port, DropReason::TooBig, cause))
}

fn refused(port: &Port) -> Option<Finding> {
    let Refused { reason, frames, violation } = port.refused.as_ref()?;
    let last = violation.as_ref().map(|last| format!("; the last one: {last}"));
    let cause = format!(
        "the switch dropped {} lately ({}): {}{}",
        counted(frames, "frame"),
        reason.name(),
        reason.meaning(),
        last.unwrap_or_default()
    );
    Some(Finding::of_drops(FRAMES_REFUSED, port, *reason, cause))
}

/// Finds a receiver without offloads, for which a worker does the offloads.
fn software(port: &Port) -> Option<Finding> {
    let Offloads { frames: all, checksummed, segmented, segments } = port.offloads;
    let frames = checksummed + segmented;
    if frames < MANY_FRAMES || frames < all / 100 {
        return None;
    }
    let millis = (checksummed + segments) * NANOS_EACH / 1_000_000;
    let cause = format!(
        "its receiver lacks offloads: the switch cut {} into {} and finished {}, about {millis} ms \
         of a worker's time",
        counted(segmented, "packet"),
        counted(segments, "segment"),
        counted(checksummed, "checksum")
    );
    let command = match &port.link {
        Some(link) if !link.is_tap => {
            "a TAP in its place, which has offloads: vioswitchctl tap add NAME ifname=IFNAME"
        }
        Some(_) => "offload=on for the TAP, and a kernel with TSO and USO for TAPs",
        None => "in the guest: ethtool -K eth0 rx on gro on lro on; offload=on for the port",
    };
    Some(Finding::of(OFFLOADS_IN_SOFTWARE, port, cause, command))
}

/// Finds uplinks in one bridge. A guest's broadcast leaves by each of the uplinks, and the bridge
/// returns each copy by the others.
fn bridges(facts: &Facts, found: &mut Vec<Finding>) {
    let inside = |port: &Port| {
        let link = port.link.as_ref().filter(|link| link.state == LinkState::Up)?;
        Some((link.bridge.clone()?, link.interface.clone()))
    };
    let all: Vec<_> = facts.ports.iter().filter_map(|port| Some((port, inside(port)?))).collect();
    for (at, (port, (bridge, interface))) in all.iter().enumerate() {
        let same = |other: &&(&Port, (super::facts::Bridge, String))| other.1.0 == *bridge;
        if all[..at].iter().any(|other| same(&other)) {
            continue;
        }
        let others: Vec<_> = all[at + 1..].iter().filter(same).collect();
        let Some((_, (_, other))) = others.first() else { continue };
        let many = if others.len() > 1 { " and more" } else { "" };
        let (level, harm) = match facts.uplink_to_uplink {
            true => (Level::Fail, "frames circulate, because uplink-to-uplink is on"),
            false => (Level::Warn, "each broadcast arrives several times, and addresses move"),
        };
        let bridge = &bridge.name;
        let cause = format!("{interface} and {other}{many} are in one bridge, {bridge}: {harm}");
        let dev = quote(other);
        let command = format!("ip link set {dev} nomaster, or vioswitchctl tap del NAME");
        let with = others.iter().map(|(port, _)| port.name.clone()).collect();
        let finding = Finding::of(UPLINKS_IN_ONE_BRIDGE, port, cause, command);
        found.push(Finding { level, with, ..finding });
    }
}
