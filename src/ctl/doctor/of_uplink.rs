//! Faults of an uplink: its TAP, the TAP's bridge, and queues and filters there.
//!
//! A host should not queue for its guests: a queue in front of the TAP adds delay, hides the
//! receiver's back-pressure, and most kinds put one lock around all senders. With receive packet
//! steering (RPS) or several hardware receive queues (RSS), frames for the guests come from many
//! CPUs at once and meet at that lock.
//!
//! Kernel facts (`net/core/dev.c`, `net/sched`):
//! - `noqueue` has no enqueue function: `__dev_queue_xmit` calls the driver at once, and tun is
//!   lockless itself (LLTX).
//! - `pfifo_fast` is lockless (TCQ_F_NOLOCK) since Linux 4.16. Every other kind is entered under
//!   the lock of its root.
//! - `mq` and `mqprio` have no lock but one child per transmit queue, each child with its own lock.
//!   tun chooses the queue by flow, not by CPU, so several CPUs still meet at one child. A NIC
//!   chooses the queue by CPU (XPS), so a child of a NIC hardly sees more than one CPU.
//! - RPS is on where a receive queue's `rps_cpus` is not zero. Frames that came in through one
//!   port of a bridge leave through another, so the uplink's neighbours in its bridge count too.

use api::wire::State;

use super::facts::{Facts, Host, Port};
use super::findings::{Findings, typed};
use crate::links::{Link, Qdisc};
use base::words::quote;

/// Code of the finding that frames come with unfinished checksums to a receiver that cannot finish
/// them.
const UNFINISHED: &str = "checksums-unfinished";

pub fn judge(port: &Port, facts: &Facts, findings: &mut Findings) {
    // An interface of the name may belong to another owner meanwhile.
    if matches!(port.shown().state, State::Gone | State::LeftOut) {
        return;
    }
    // The interface may be renamed, or not be found.
    let interface = port.shown().interface.as_deref().unwrap_or_default();
    let Some(link) = facts.host.link(interface) else { return };
    chain(port, link, facts, findings);
    queues(port, link, &facts.host, findings);
    filter(port, link, &facts.host, findings);
    unfinished_there(port, link, &facts.host, findings);
}

/// Finds faults of an uplink past the host's network stack: the other end of a veth pair may leave
/// checksums to the uplink.
pub(crate) fn judge_xdp(port: &Port, facts: &Facts, findings: &mut Findings) {
    let interface = port.shown().interface.as_deref().unwrap_or_default();
    let Some(ends) = facts.host.peers.get(interface) else { return };
    // Frames that another program sends by XDP have finished checksums.
    if ends.peer_leaves_sums && !ends.peer_has_program {
        let cause = format!(
            "the other end of its veth pair, {}, leaves checksums and segmentation to the \
             receiver: guests drop such frames of its host",
            ends.peer
        );
        findings.warn(UNFINISHED, port.name(), cause, &finish(&ends.enter_peer, &ends.peer));
    }
}

/// Finds an interface beside a TAP in its bridge that passes unfinished frames of guests to an XDP
/// program.
fn unfinished_there(port: &Port, link: &Link, host: &Host, findings: &mut Findings) {
    let Some(bridge) = link.master.as_deref() else { return };
    for member in host.members(bridge) {
        let Some(ends) = host.peers.get(&member.ifname) else { continue };
        if ends.leaves_sums && ends.peer_has_program {
            let (own, peer) = (&member.ifname, &ends.peer);
            let cause = format!(
                "{own} in its bridge {bridge} passes guests' checksums and segments on \
                 unfinished, and an XDP program takes the frames at the other end, {peer}"
            );
            findings.warn(UNFINISHED, port.name(), cause, &finish(&ends.enter, own));
        }
    }
}

/// Returns the command that has an interface finish checksums and segments.
fn finish(enter: &[String], interface: &str) -> String {
    let words = ["ethtool", "-K", interface, "tx", "off", "txvlan", "off"];
    let words: Vec<&str> = enter.iter().map(String::as_str).chain(words).collect();
    typed(&words)
}

/// Checks the interface, its bridge, the other interfaces of the bridge, and the guests' MTUs.
fn chain(port: &Port, link: &Link, facts: &Facts, findings: &mut Findings) {
    let (name, interface) = (port.name(), &link.ifname);
    let bridge = link.master.as_deref().unwrap_or_default();
    // The kernel gives each interface that is up an address of its own.
    let reached = link.addr_info.iter().any(|address| address.scope != "link");
    if bridge.is_empty() && !reached {
        let cause = format!("its interface {interface} is in no bridge and has no address");
        let dev = quote(interface);
        let command =
            format!("ip link set {dev} master BRIDGE, or ip address add ADDRESS dev {dev}");
        findings.warn("tap-alone", name, cause, &command);
    }
    let is_up = |link: &&Link| link.flags.iter().any(|flag| flag == "UP");
    if facts.host.link(bridge).is_some_and(|bridge| !is_up(&bridge)) {
        let cause = format!("the bridge {bridge} of its interface {interface} is down");
        findings.fail("bridge-down", name, cause, &format!("ip link set {} up", quote(bridge)));
    }
    let own = link.mtu;
    let beside = facts.host.link(bridge).into_iter().chain(facts.host.members(bridge));
    let shorter = beside.filter(|other| !bridge.is_empty() && other.mtu < own);
    let guests = facts.ports.iter().filter(|other| !other.is_uplink());
    let longer = guests.filter_map(|other| Some((other.name(), other.number("mtu")?)));
    let mut causes: Vec<String> =
        shorter.map(|other| format!("{} has {}", other.ifname, other.mtu)).collect();
    let longer = longer.filter(|(_, mtu)| *mtu > own);
    causes.extend(longer.map(|(guest, mtu)| format!("port {guest} has {mtu}")));
    if !causes.is_empty() {
        let causes = causes.join(", ");
        let cause = format!(
            "MTUs differ along the way: {interface} has {own}, {causes}; longer frames are lost"
        );
        let dev = quote(interface);
        let command = format!("ip link set {dev} mtu NUMBER, and the same for the others");
        findings.warn("mtu-differs", name, cause, &command);
    }
}

fn queues(port: &Port, link: &Link, host: &Host, findings: &mut Findings) {
    let (name, interface) = (port.name(), link.ifname.as_str());
    let tc = |dev: &str| format!("tc qdisc replace dev {} root noqueue", quote(dev));
    let kind = link.qdisc.as_str();
    if !matches!(kind, "noqueue" | "noop" | "") {
        let cause = format!("{interface} queues for its guests ({kind})");
        findings.warn("tap-queues", name, cause, &tc(interface));
    }
    let bridge = link.master.as_deref().unwrap_or_default();
    let beside =
        host.members(bridge).filter(|other| !bridge.is_empty() && other.ifname != interface);
    let all: Vec<&str> =
        std::iter::once(interface).chain(beside.map(|other| other.ifname.as_str())).collect();
    let spread = all.iter().find_map(|from| Some((from, host.spread.get(*from)?)));
    let Some((from, spread)) = spread else { return };
    for (at, other) in all.iter().enumerate() {
        let qdiscs = host.qdiscs.get(*other).map_or(&[][..], Vec::as_slice);
        if let Some(kind) = locking(qdiscs, at == 0) {
            let cause = format!(
                "{spread} on {from} spreads frames over CPUs that then contend for the lock of \
                 {kind} on {other}"
            );
            findings.warn("tap-lock", name, cause, &tc(other));
        }
    }
}

/// Returns the locking queueing discipline of an interface, if any: the root, or with `children` a
/// child of `mq`.
fn locking(qdiscs: &[Qdisc], children: bool) -> Option<&str> {
    let root = qdiscs.iter().find(|qdisc| qdisc.root)?;
    let kind = root.kind.as_str();
    if !(matches!(kind, "mq" | "mqprio") && children) {
        return locks(kind).then_some(kind);
    }
    // Returns the part before the colon: "8001" of "8001:", and "" for a discipline that the kernel
    // attached by itself, whose number is 0.
    let major = |number: &str| number.split(':').next().unwrap_or_default().to_owned();
    let number = Some(major(&root.handle)).filter(|major| major != "0").unwrap_or_default();
    let inside = |qdisc: &&Qdisc| {
        let parent = qdisc.parent.as_deref().map(major);
        parent.is_some_and(|parent| parent == number || parent == "0" && number.is_empty())
    };
    qdiscs.iter().filter(inside).map(|qdisc| qdisc.kind.as_str()).find(|kind| locks(kind))
}

/// True if senders take a lock of this kind of queueing discipline.
fn locks(kind: &str) -> bool {
    !matches!(kind, "" | "noqueue" | "noop" | "pfifo_fast" | "mq" | "mqprio")
}

fn filter(port: &Port, link: &Link, host: &Host, findings: &mut Findings) {
    let bridge = link.master.as_deref().unwrap_or_default();
    let Some(forward) = host.forward.as_ref().filter(|_| !bridge.is_empty()) else { return };
    if host.bridge_filtered && forward.stops(bridge) {
        let docker = if forward.docker { ", as Docker wants it" } else { "" };
        let cause = format!(
            "the host's firewall drops forwarded frames{docker}, and br_netfilter passes the \
             firewall the frames of {bridge}"
        );
        let chain = if forward.docker { "DOCKER-USER" } else { "FORWARD" };
        let unit = quote(&format!("vioswitch-forward@{bridge}"));
        let bridge = quote(bridge);
        // The unit still works after a restart of the host, and of Docker.
        let command = format!(
            "systemctl enable --now {unit}, or without this unit: iptables -I {chain} -i {bridge} \
             -o {bridge} -j ACCEPT"
        );
        findings.fail("forward-drop", port.name(), cause, &command);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn children_of_a_multi_queue_root_are_looked_at() {
        let qdisc = |value| -> Qdisc { serde_json::from_value(value).expect("a qdisc") };
        let root = qdisc(json!({"kind": "mq", "handle": "8001:", "root": true}));
        let child = |kind: &str, parent: &str| qdisc(json!({"kind": kind, "parent": parent}));
        let mut all = vec![root, child("pfifo_fast", "8001:1")];
        assert_eq!(locking(&all, true), None);
        // A grandchild is behind its parent's lock and does not count; senders do not use ingress.
        all.push(child("ingress", "ffff:fff1"));
        assert_eq!(locking(&all, true), None);
        all.push(child("fq_codel", "8001:2"));
        assert_eq!(locking(&all, true), Some("fq_codel"));
        assert_eq!(locking(&all, false), None);
        let default =
            [qdisc(json!({"kind": "mq", "handle": "0:", "root": true})), child("pfifo", ":1")];
        assert_eq!(locking(&default, true), Some("pfifo"));
        let alone = [qdisc(json!({"kind": "pfifo", "handle": "1:", "root": true}))];
        assert_eq!(locking(&alone, false), Some("pfifo"));
    }
}
