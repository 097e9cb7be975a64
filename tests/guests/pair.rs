//! Two guests, the switch between them, and an uplink to the host.

use std::path::{Path, PathBuf};
use std::time::Instant;

use super::lab::{HOST_IP4, HOST_IP6, Lab, TAP, port, tap};
use super::talk::pings;
use super::vm::{Attach, Qemu, SOON, Vm, VmSpec};
use super::{can_make_network, need_program, progress, skip};

/// Two guests with two ports and an uplink between them.
pub struct Pair {
    pub vm1: Vm,
    pub vm2: Vm,
    pub qemu: Qemu,
    pub lab: Lab,
    /// The daemon's arguments.
    pub args: Vec<String>,
}

/// Starts daemon and guests and waits for both; `None` (said loudly) if the machine lacks a part.
/// The second guest has `pairs` queue pairs and, if `listens`, QEMU is the socket's server.
pub fn pair(name: &str, qemu: Result<Qemu, String>, pairs: u16, listens: bool) -> Option<Pair> {
    let qemu = match can_make_network().and(need_program("iperf3")).and(qemu) {
        Ok(qemu) => qemu,
        Err(missing) => {
            skip(&missing);
            return None;
        }
    };
    let mut lab = Lab::new(name);
    let (s1, s2) = (lab.path("vm1.sock"), lab.path("vm2.sock"));
    let args = arguments([&s1, &s2], pairs, listens);
    lab.start_daemon(&args);
    lab.configure_tap();
    Some(boot(lab, qemu, args, [s1, s2], pairs, listens))
}

/// The daemon's arguments: two ports, of which the second is the client if QEMU `listens`, and an
/// uplink.
pub fn arguments(sockets: [&Path; 2], pairs: u16, listens: bool) -> Vec<String> {
    let mode = if listens { ",mode=client" } else { "" };
    let options = format!(",queues={pairs}{mode}");
    [&port("vm1", sockets[0], "")[..], &port("vm2", sockets[1], &options), &tap()].concat()
}

/// Starts two guests for a daemon that runs, and waits for both.
pub fn boot(
    lab: Lab,
    qemu: Qemu,
    args: Vec<String>,
    [s1, s2]: [PathBuf; 2],
    pairs: u16,
    listens: bool,
) -> Pair {
    let attach = if listens { Attach::Listens } else { Attach::Connects };
    let one = VmSpec {
        name: "vm1",
        number: 1,
        socket: s1,
        attach: Attach::Connects,
        pairs: 1,
        device: "",
    };
    let two = VmSpec { name: "vm2", number: 2, socket: s2, attach, pairs, device: "" };
    let start = Instant::now();
    let mut vm1 = Vm::start(&lab, &qemu, &one);
    let mut vm2 = Vm::start(&lab, &qemu, &two);
    vm1.wait_ready();
    vm2.wait_ready();
    progress(&format!("two guests up after {:.1} s", start.elapsed().as_secs_f32()));
    Pair { vm1, vm2, qemu, lab, args }
}

/// What a case has left running in the guests ends, and the books balance.
pub fn tidy(p: &mut Pair) {
    for vm in [&mut p.vm1, &mut p.vm2] {
        vm.run("killall ping iperf3; while pidof ping iperf3 >/dev/null; do sleep 0.1; done", SOON);
    }
    assert!(p.lab.daemon_runs(), "the daemon is gone");
    p.lab.counters_at_rest().assert_balanced();
}

/// Everybody reaches everybody.
pub fn all_ping(p: &mut Pair) {
    let (one, two) = (p.vm1.spec.clone(), p.vm2.spec.clone());
    for (vm, other) in [(&mut p.vm1, &two), (&mut p.vm2, &one)] {
        pings(vm, &other.ip4());
        pings(vm, &other.ip6());
        pings(vm, HOST_IP4);
        pings(vm, HOST_IP6);
        let (ip4, ip6) = (vm.spec.ip4(), vm.spec.ip6());
        p.lab.sh(&format!("ping -q -c 3 -i 0.2 -W 5 {ip4} && ping -q -c 3 -i 0.2 -W 5 {ip6}"));
    }
}

/// For a failure's report: what guests, host and daemon counted, and what they know of each other.
pub fn what_each_knows(p: &mut Pair) -> String {
    let of_guest = "ip neigh; cat /proc/net/dev /proc/net/snmp /proc/net/snmp6 /proc/net/raw \
                    /sys/class/net/eth0/carrier_changes";
    let guests = [&mut p.vm1, &mut p.vm2].map(|vm| vm.run(of_guest, SOON).1);
    let host = p.lab.sh(&format!("ip neigh; ip -s -s link show {TAP}"));
    let daemon = p.lab.daemon_runs().then(|| p.lab.counters());
    let [one, two] = guests;
    format!("first guest:\n{one}\nsecond guest:\n{two}\nhost:\n{host}\ndaemon: {daemon:#?}")
}

/// The guests go, the books must balance, and the daemon leaves in good order.
pub fn finish(p: Pair) {
    let Pair { vm1, vm2, mut lab, .. } = p;
    drop((vm1, vm2));
    assert!(lab.daemon_runs(), "the daemon is gone");
    lab.counters_at_rest().assert_balanced();
    lab.stop_daemon();
}
