//! Streams with what they are for: a guest of QEMU's `-netdev stream`, without shared memory, and
//! passt, which has the host's network, DHCP and DNS for a guest, gives it an address and is
//! started again.
//!
//! Needs passt.

use std::process::Stdio;
use std::time::Duration;

use crate::lab::{Lab, port};
use crate::talk::{iperf, pings};
use crate::vm::{Attach, Qemu, Vm, VmSpec};
use crate::{beside_another, can_make_network, need_program, progress, skip, wait_for};

/// The address that passt takes for the one of the host, and so gives to guests.
const ADDRESS: &str = "192.0.2.2";
/// Of the namespace's own network card, which leads nowhere.
const ROUTER: &str = "192.0.2.1";
const SOON: Duration = Duration::from_secs(20);

/// Two guests, one of which has neither vhost-user nor shared memory, talk; the other one has its
/// address from passt, and reaches the host through it.
fn streams(name: &str, qemu: Result<Qemu, String>) {
    let _beside = beside_another();
    let qemu = match can_make_network().and_then(|()| need_program("passt")).and(qemu) {
        Ok(qemu) => qemu,
        Err(missing) => return skip(&missing),
    };
    let mut lab = Lab::new(name);
    let (s1, s2, net) = (lab.path("vm1.sock"), lab.path("vm2.sock"), lab.path("passt.sock"));
    lab.sh(&format!(
        "ip tuntap add mode tap name ext0 && ip addr add {ADDRESS}/24 dev ext0 && \
         ip link set ext0 up && ip route add default via {ROUTER}"
    ));
    let mut args = port("vm1", &s1, "").to_vec();
    let stream = |name: &str, socket: &std::path::Path, more: &str| {
        ["--stream".into(), format!("{name},socket={}{more}", socket.display())]
    };
    args.extend(stream("vm2", &s2, ""));
    args.extend(stream("net", &net, ",mode=client"));
    lab.start_daemon(&args);
    // passt runs as a user of its own, which is to make its socket here.
    lab.sh(&format!("chmod 777 {}", lab.path("").display()));
    let passt = || {
        let mut passt = lab.in_netns("passt");
        passt.args(["--foreground", "--socket"]).arg(&net);
        passt.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        passt.spawn().expect("start passt")
    };
    let vm = |name, number, socket: &std::path::Path, attach| {
        let socket = socket.to_owned();
        Vm::start(&lab, &qemu, &VmSpec { name, number, socket, attach, pairs: 1, device: "" })
    };
    let mut vms = [vm("vm1", 1, &s1, Attach::Connects), vm("vm2", 2, &s2, Attach::Stream)];
    vms.iter_mut().for_each(Vm::wait_ready);
    let [vm1, vm2] = &mut vms;
    pings(vm1, &vm2.spec.ip4());
    pings(vm2, &vm1.spec.ip6());
    vm1.ok("iperf3 -s -D");
    let there = iperf(vm2, &vm1.spec.ip4(), "-t 1").rate;
    let back = iperf(vm2, &vm1.spec.ip4(), "-t 1 -R").rate;
    progress(&format!("over a stream: TCP {there:.0}, reverse {back:.0} kbit/s"));
    assert!(there > 1000.0 && back > 1000.0, "TCP crawls");
    // It answers for every address of IPv4, so the guests no longer talk to each other then.
    let mut first = passt();
    wait_for("an offer of passt", SOON, || offered(vm1).then_some(()));
    vm1.ok(&format!("ip addr add {ADDRESS}/24 dev eth0 && ip route add default via {ROUTER}"));
    let _server = lab.in_netns("iperf3").args(["-s", "-1", "-D"]).status().expect("iperf3 -s");
    let out = iperf(vm1, ROUTER, "-t 1").rate;
    progress(&format!("through passt to the host: TCP {out:.0} kbit/s"));
    assert!(out > 1000.0, "TCP crawls through passt");
    // passt is started again, and the stream comes back to it.
    first.kill().expect("kill passt");
    first.wait().expect("wait for passt");
    let _ = std::fs::remove_file(&net);
    let mut second = passt();
    wait_for("an offer of the new passt", SOON, || offered(vm1).then_some(()));
    drop(vms);
    second.kill().expect("kill passt");
    second.wait().expect("wait for passt");
    assert!(lab.daemon_runs(), "the daemon is gone");
    lab.counters_at_rest().assert_balanced();
    lab.stop_daemon();
}

/// Whether the guest is offered the address by DHCP.
fn offered(vm: &mut Vm) -> bool {
    let (_, said) = vm.run("udhcpc -i eth0 -n -q -t 1 -T 1 -s /bin/true -f 2>&1", SOON);
    said.contains(ADDRESS)
}

#[test]
#[ignore = "full"]
fn qemu_7_2_and_passt() {
    streams("streams-72", Qemu::system());
}

#[test]
#[ignore = "full"]
fn qemu_10_0_and_passt() {
    streams("streams-100", Qemu::backported());
}
