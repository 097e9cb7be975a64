//! Linux guests join and leave groups, with `--multicast-snooping` and the kernel's bridge as the
//! querier: frames of a group reach its members, of IPv4 and IPv6, and no other guest; what all of
//! a link hear reaches all, and neighbours find each other.

use std::time::{Duration, Instant};

use crate::lab::{HOST_IP4, HOST_IP6, Lab, TAP, port, tap};
use crate::pair::{Pair, boot, finish};
use crate::talk::pings;
use crate::vm::{Qemu, SOON, Vm};
use crate::{beside_another, can_make_network, or_skip, progress, wait_for};

const GROUPS: [&str; 2] = ["239.1.1.1", "ff05::102:304"];
/// Of mDNS.
const OF_LINK: [&str; 2] = ["224.0.0.251", "ff02::fb"];
/// Frames sent to a group; queries and the like that pass meanwhile are far fewer.
const FRAMES: u64 = 40;
const FEW: u64 = FRAMES / 2;
/// The querier asks each five seconds, and answers take two; an emulated guest may be slow.
const LIMIT: Duration = Duration::from_secs(60);
/// A query about a group has four seconds.
const PRUNED: Duration = Duration::from_secs(12);
/// Times to leave: one that reported in the second of the query about its group has answered it.
const TRIES: usize = 5;
const BRIDGE: &str = "type bridge mcast_snooping 1 mcast_querier 1 mcast_query_interval 500 \
                      mcast_startup_query_interval 500 mcast_query_response_interval 100";

fn start(name: &str, qemu: Result<Qemu, String>) -> Option<Pair> {
    let qemu = or_skip(can_make_network().and(qemu))?;
    let mut lab = Lab::new(name);
    let sockets = [lab.path("vm1.sock"), lab.path("vm2.sock")];
    let ports = [port("vm1", &sockets[0], ""), port("vm2", &sockets[1], ""), tap()].concat();
    let args = [&ports[..], &["--multicast-snooping".to_owned()]].concat();
    lab.start_daemon(&args);
    lab.wait_tap(TAP);
    lab.sh(&format!(
        "ip link add br0 {BRIDGE} && ip link set {TAP} master br0 && ip link set {TAP} up && \
         ip link set br0 up && ip addr add {HOST_IP4}/24 dev br0 && \
         ip -6 addr add {HOST_IP6}/64 dev br0 nodad"
    ));
    Some(boot(lab, qemu, args, sockets, 1, false))
}

fn join(vm: &mut Vm) {
    for group in GROUPS {
        vm.ok(&format!("datagrams join {group} eth0 >/dev/null 2>&1 & echo $! >>/tmp/members"));
    }
}

/// Echo requests to a group: how many frames each guest got meanwhile, and how many answers came.
fn send(p: &mut Pair, group: &str) -> ([u64; 2], u64) {
    let frames = |lab: &mut Lab| {
        let counters = lab.counters_at_rest();
        ["vm1", "vm2"].map(|port| counters.get(port, "out frames"))
    };
    let before = frames(&mut p.lab);
    let said = p.lab.sh(&format!("ping -q -c {FRAMES} -i 0.02 -W 1 -I br0 {group} || true"));
    let after = frames(&mut p.lab);
    let answers = said.lines().find_map(|line| line.split(", ").nth(1)?.strip_suffix(" received"));
    let answers = answers.and_then(|count| count.parse().ok());
    ([0, 1].map(|at| after[at] - before[at]), answers.unwrap_or_else(|| panic!("{said}")))
}

/// Whether each group reaches these guests and no other one.
fn is_limited(p: &mut Pair, members: [bool; 2]) -> bool {
    GROUPS.iter().all(|group| {
        let (got, answers) = send(p, group);
        progress(&format!("{group}: frames for the guests {got:?}, answers {answers}"));
        let as_it_should = |at: usize| match members[at] {
            true => got[at] >= FRAMES,
            false => got[at] < FEW,
        };
        [0, 1].into_iter().all(as_it_should) && answers > FEW
    })
}

fn reach(p: &mut Pair, members: [bool; 2]) {
    let what = format!("the groups to reach {members:?}");
    wait_for(&what, LIMIT, || is_limited(p, members).then_some(()));
}

/// The first guest leaves, and joins again if it is taken for a member still.
fn leave(p: &mut Pair) -> bool {
    (0..TRIES).any(|_| {
        p.vm1.ok("kill $(cat /tmp/members); rm /tmp/members");
        let end = Instant::now() + PRUNED;
        while Instant::now() < end {
            if is_limited(p, [false, true]) {
                return true;
            }
        }
        join(&mut p.vm1);
        false
    })
}

fn groups(name: &str, qemu: Result<Qemu, String>) {
    let _beside = beside_another();
    let Some(mut p) = start(name, qemu) else { return };
    for vm in [&mut p.vm1, &mut p.vm2] {
        vm.ok("echo 0 >/proc/sys/net/ipv4/icmp_echo_ignore_broadcasts");
    }
    join(&mut p.vm1);
    reach(&mut p, [true, false]);
    join(&mut p.vm2);
    reach(&mut p, [true, true]);
    assert!(leave(&mut p), "a guest that leaves is a member still");

    // Sent by a guest: Linux's bridge limits groups of a link itself.
    for group in OF_LINK {
        let before = p.lab.counters_at_rest().get("vm2", "out frames");
        p.vm1.run(&format!("ping -q -c {FRAMES} -i 0.1 -W 1 -I eth0 {group}"), LIMIT);
        let frames = p.lab.counters_at_rest().get("vm2", "out frames") - before;
        assert!(frames >= FRAMES, "{group}: {frames}");
    }
    let (ip4, ip6) = (p.vm2.spec.ip4(), p.vm2.spec.ip6());
    for vm in [&mut p.vm1, &mut p.vm2] {
        vm.run("ip neigh flush dev eth0; ip -6 neigh flush dev eth0", SOON);
    }
    pings(&mut p.vm1, &ip4);
    pings(&mut p.vm1, &ip6);
    pings(&mut p.vm2, HOST_IP6);
    p.vm2.ok("kill $(cat /tmp/members)");
    finish(p);
}

#[test]
#[ignore = "full"]
fn guests_join_and_leave_groups_qemu_7() {
    groups("groups7", Qemu::system());
}

#[test]
#[ignore = "full"]
fn guests_join_and_leave_groups_qemu_10() {
    groups("groups10", Qemu::backported());
}
