//! What is wrong with an uplink: its TAP, the bridge that this is in, and what queues and filters
//! there.
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
//! - `mq` and `mqprio` have no lock but one child per transmit queue, each with its own. tun
//!   chooses the queue by flow, not by CPU, so several CPUs still meet at one child. A NIC
//!   chooses it by CPU (XPS), so there children hardly see more than one.
//! - RPS is on where a receive queue's `rps_cpus` is not zero. Frames that came in through one
//!   port of a bridge leave through another, so the uplink's neighbours in its bridge count too.

use serde_json::Value;

use super::Findings;
use super::facts::{Facts, Host, Port};
use crate::show::items;

pub fn judge(port: &Port, facts: &Facts, findings: &mut Findings) {
    let interface = port.interface();
    if port.state() == "gone" {
        return;
    }
    // What has its name may be another's.
    if port.state() == "left_out" {
        return;
    }
    // Renamed, or not to be had.
    let Some(link) = facts.host.link(interface) else { return };
    chain(port, link, facts, findings);
    queues(port, link, &facts.host, findings);
    filter(port, link, &facts.host, findings);
}

fn text<'a>(link: &'a Value, key: &str) -> &'a str {
    link[key].as_str().unwrap_or_default()
}

fn has(link: &Value, flag: &str) -> bool {
    items(link, "flags").iter().any(|one| one == flag)
}

fn mtu(link: &Value) -> u64 {
    link["mtu"].as_u64().unwrap_or(0)
}

/// The interface, its bridge, what is beside it there, and the guests before it.
fn chain(port: &Port, link: &Value, facts: &Facts, findings: &mut Findings) {
    let (name, interface, bridge) = (port.name(), port.interface(), text(link, "master"));
    // The kernel gives each interface that is up an address of its own.
    let reached = items(link, "addr_info").iter().any(|address| address["scope"] != "link");
    if bridge.is_empty() && !reached {
        let cause = format!("its interface {interface} is in no bridge and has no address");
        let command = format!(
            "ip link set {interface} master BRIDGE, or ip address add ADDRESS dev {interface}"
        );
        findings.warn("tap-alone", name, cause, &command);
    }
    if let Some(bridge) = facts.host.link(bridge).filter(|bridge| !has(bridge, "UP")) {
        let bridge = text(bridge, "ifname");
        let cause = format!("the bridge {bridge} of its interface {interface} is down");
        findings.fail("bridge-down", name, cause, &format!("ip link set {bridge} up"));
    }
    let own = mtu(link);
    let beside = facts.host.link(bridge).into_iter().chain(facts.host.members(bridge));
    let shorter = beside.filter(|other| !bridge.is_empty() && mtu(other) < own);
    let guests = facts.ports.iter().filter(|other| !other.is_tap());
    let longer = guests.filter_map(|other| Some((other.name(), other.number("mtu")?)));
    let mut causes: Vec<String> =
        shorter.map(|other| format!("{} has {}", text(other, "ifname"), mtu(other))).collect();
    let longer = longer.filter(|(_, mtu)| *mtu > own);
    causes.extend(longer.map(|(guest, mtu)| format!("port {guest} has {mtu}")));
    if !causes.is_empty() {
        let causes = causes.join(", ");
        let cause = format!(
            "MTUs differ along the way: {interface} has {own}, {causes}; longer frames are lost"
        );
        let command = format!("ip link set {interface} mtu NUMBER, and the same for the others");
        findings.warn("mtu-differs", name, cause, &command);
    }
}

fn queues(port: &Port, link: &Value, host: &Host, findings: &mut Findings) {
    let (name, interface) = (port.name(), port.interface());
    let tc = |interface: &str| format!("tc qdisc replace dev {interface} root noqueue");
    let kind = text(link, "qdisc");
    if !matches!(kind, "noqueue" | "noop" | "") {
        let cause = format!("{interface} queues for its guests ({kind})");
        findings.warn("tap-queues", name, cause, &tc(interface));
    }
    let bridge = text(link, "master");
    let beside =
        host.members(bridge).filter(|other| !bridge.is_empty() && other["ifname"] != interface);
    let all: Vec<&str> =
        std::iter::once(interface).chain(beside.map(|other| text(other, "ifname"))).collect();
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

/// The locking queueing discipline of an interface, if it has one: the root, or for an uplink a
/// child of `mq`.
fn locking(qdiscs: &[Value], children: bool) -> Option<&str> {
    let root = qdiscs.iter().find(|qdisc| qdisc["root"] == true)?;
    let kind = text(root, "kind");
    if !(matches!(kind, "mq" | "mqprio") && children) {
        return locks(kind).then_some(kind);
    }
    // "8001:", and "" for those that the kernel attached by itself, which are number 0.
    let major = |number: &str| number.split(':').next().unwrap_or_default().to_owned();
    let number = Some(major(text(root, "handle"))).filter(|major| major != "0").unwrap_or_default();
    let inside = |qdisc: &&Value| {
        let parent = qdisc["parent"].as_str().map(major);
        parent.is_some_and(|parent| parent == number || parent == "0" && number.is_empty())
    };
    qdiscs.iter().filter(inside).map(|qdisc| text(qdisc, "kind")).find(|kind| locks(kind))
}

/// Whether senders take a lock of this kind of queueing discipline.
fn locks(kind: &str) -> bool {
    !matches!(kind, "" | "noqueue" | "noop" | "pfifo_fast" | "mq" | "mqprio")
}

fn filter(port: &Port, link: &Value, host: &Host, findings: &mut Findings) {
    let bridge = text(link, "master");
    let Some(forward) = host.forward.as_ref().filter(|_| !bridge.is_empty()) else { return };
    if host.bridge_filtered && forward.stops(bridge) {
        let docker = if forward.docker { ", as Docker wants it" } else { "" };
        let cause = format!(
            "the host's firewall drops what is forwarded{docker}, and br_netfilter shows it the \
             frames that pass {bridge}"
        );
        let chain = if forward.docker { "DOCKER-USER" } else { "FORWARD" };
        // The unit is there after a restart of the host, and of Docker, too.
        let command = format!(
            "systemctl enable --now vioswitch-forward@{bridge}, or without that unit iptables -I \
             {chain} -i {bridge} -o {bridge} -j ACCEPT"
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
        let root = json!({"kind": "mq", "handle": "8001:", "root": true});
        let child = |kind: &str, parent: &str| json!({"kind": kind, "parent": parent});
        let mut all = vec![root, child("pfifo_fast", "8001:1")];
        assert_eq!(locking(&all, true), None);
        // A grandchild is behind its parent's lock and says nothing; ingress is no sender's.
        all.push(child("ingress", "ffff:fff1"));
        assert_eq!(locking(&all, true), None);
        all.push(child("fq_codel", "8001:2"));
        assert_eq!(locking(&all, true), Some("fq_codel"));
        assert_eq!(locking(&all, false), None);
        let default = [json!({"kind": "mq", "handle": "0:", "root": true}), child("pfifo", ":1")];
        assert_eq!(locking(&default, true), Some("pfifo"));
        let alone = [json!({"kind": "pfifo", "handle": "1:", "root": true})];
        assert_eq!(locking(&alone, false), Some("pfifo"));
    }
}
