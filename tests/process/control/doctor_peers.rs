//! `vioswitchctl doctor` looks at who is at the other end: a cloud-hypervisor that gives up, a veth
//! pair whose frames come unfinished.

use std::process::Command;

use serde_json::Value;
use testkit::host::{in_namespace, ip, veth_up};
use testkit::proc::wait_for;
use testkit::skip;
use testkit::vm::{Vm, VmConfig};

use super::doctor::{Codes, Process, codes, doctor, shell};
use super::{LOST, Lab};

/// A connection that a process keeps open with the words of cloud-hypervisor's command line.
const FRONT_END: &str = "import socket, sys, time
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
time.sleep(60)";

/// As client cloud-hypervisor gives a port up for good; with the port as client it listens.
#[test]
fn a_cloud_hypervisor_that_gives_up_is_found() {
    if Command::new("python3").arg("--version").output().is_err() {
        return skip("needs python3");
    }
    let lab = Lab::new(2, &[]);
    let front_end = |port: usize, mode: &str| {
        let socket = lab.d.socket(port);
        let net = format!("vhost_user=on,socket={}{mode},num_queues=2", socket.display());
        let mut command = Command::new("python3");
        Process::start(command.args(["-c", FRONT_END]).arg(&socket).args(["--net", &net]))
    };
    let all = [front_end(0, ""), front_end(1, ",vhost_mode=server")];
    let reconnects = |codes: Codes| -> Vec<String> {
        let found = codes.into_iter().filter(|(_, code)| code == "no-reconnect");
        found.map(|(port, _)| port).collect()
    };
    let found = wait_for(LOST, || reconnects(doctor(&lab)) == ["p0"]);
    assert!(found, "{}", String::from_utf8_lossy(&lab.ctl(&["doctor"]).stdout));
    let text = String::from_utf8(lab.ctl(&["doctor", "p0"]).stdout).expect("UTF-8");
    assert!(text.contains("vioswitchctl port add p0 mode=client"), "{text}");
    drop(all);
    lab.d.stop();
}

/// True if the UDP packet in a frame of IPv4 has its whole checksum.
fn is_finished(frame: &[u8]) -> bool {
    let ip = &frame[14..];
    let (header, end) =
        (usize::from(ip[0] & 15) * 4, usize::from(u16::from_be_bytes([ip[2], ip[3]])));
    let udp = &ip[header..end];
    let words = |bytes: &[u8]| -> u32 {
        let pairs = bytes.chunks(2);
        pairs.map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0))).sum()
    };
    let sum = words(&ip[12..20]) + words(udp) + 17 + udp.len() as u32;
    (sum >> 16) + (sum & 0xffff) == 0xffff
}

/// A UDP packet that the kernel sends to the guest of p0, as the guest gets it.
fn packet_of_kernel(vm: &mut Vm) -> Vec<u8> {
    let socket = std::net::UdpSocket::bind("10.9.1.1:0").expect("bind");
    socket.send_to(b"in the kernel's hands", "10.9.1.2:9").expect("send");
    let is_it = |frame: &[u8]| frame.len() > 42 && frame[12..14] == [8, 0] && frame[23] == 17;
    let frame = (0..100).find_map(|_| {
        let got = vm.rx[0].take(1, LOST);
        got.into_iter().map(|(_, frame)| frame).find(|frame| is_it(frame))
    });
    frame.expect("the packet")
}

/// The other end of an XDP uplink's veth pair leaves checksums to guests; the command that the
/// doctor prints ends that. In the same namespace, and with the other end in another one.
#[test]
fn checksums_that_nobody_finishes_are_found() {
    if testkit::skips_without_mounts() {
        return;
    }
    if Command::new("ethtool").arg("--version").output().is_err() {
        return skip("needs ethtool");
    }
    let command = |lab: &Lab| -> Option<String> {
        let output = lab.ctl(&["--json", "doctor"]);
        let told: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let findings = told["findings"].as_array().expect("findings").iter();
        let mut found = findings.filter(|one| one["code"] == "checksums-unfinished");
        found.next().map(|one| one["command"].as_str().expect("a command").to_owned())
    };
    let run = |command: &str| {
        let done = Command::new("sh").args(["-c", command]).output().expect("sh");
        assert!(done.status.success(), "{command}: {done:?}");
    };
    in_namespace(|| {
        ip("link add v0 type veth peer name v1");
        veth_up(["v0", "v1"]);
        ip("address add 10.9.1.1/24 dev v1");
        ip("neighbour add 10.9.1.2 lladdr 02:56:53:00:00:00 dev v1");
        let lab = Lab::new(1, &["--xdp=up,ifname=v0,mode=generic"]);
        let mut vm = Vm::connect(&lab.d.socket(0), VmConfig::new(0));
        assert!(!is_finished(&packet_of_kernel(&mut vm)), "the kernel finishes it itself");
        let mend = command(&lab).expect("a finding");
        assert_eq!(mend, "ethtool -K v1 tx off txvlan off");
        run(&mend);
        assert!(is_finished(&packet_of_kernel(&mut vm)));
        assert_eq!(command(&lab), None);
        drop(lab);
        let name = format!("why-{}", std::process::id());
        run(&format!("ip netns add {name}"));
        run(&format!("ip link set v1 netns {name} && ip -n {name} link set v1 up"));
        run(&format!("ip netns exec {name} ethtool -K v1 tx on txvlan on"));
        let lab = Lab::new(0, &["--xdp=up,ifname=v0,mode=generic"]);
        let mend = command(&lab);
        if let Some(mend) = &mend {
            run(mend);
        }
        let mended = command(&lab);
        run(&format!("ip netns del {name}"));
        let expected = format!("ip netns exec {name} ethtool -K v1 tx off txvlan off");
        assert_eq!((mend, mended), (Some(expected), None));
    });
}

/// In a bridge with a TAP: what guests leave unfinished gets to a program of XDP that way.
#[test]
fn checksums_that_a_program_of_xdp_gets_are_found() {
    if testkit::skips_without_mounts() {
        return;
    }
    if Command::new("ethtool").arg("--version").output().is_err() {
        return skip("needs ethtool");
    }
    in_namespace(|| {
        ip("tuntap add t0 mode tap multi_queue vnet_hdr");
        ip("link add br0 type bridge");
        ip("link add v0 type veth peer name v1");
        ip("link set t0 master br0 up");
        ip("link set v0 master br0");
        ip("link set br0 up");
        veth_up(["v0", "v1"]);
        let lab = Lab::new(0, &["--tap=up,ifname=t0"]);
        assert_eq!(doctor(&lab), Codes::new());
        let other = Lab::new(0, &["--xdp=far,ifname=v1,mode=generic"]);
        assert_eq!(doctor(&lab), codes(&[("up", "checksums-unfinished")]));
        assert_eq!(doctor(&other), codes(&[("far", "checksums-unfinished")]));
        let text = String::from_utf8(lab.ctl(&["doctor"]).stdout).expect("UTF-8");
        let mend = "ethtool -K v0 tx off txvlan off";
        assert!(text.contains(&format!("\n      {mend}\n")), "{text}");
        shell(mend);
        assert_eq!((doctor(&lab), doctor(&other)), (Codes::new(), Codes::new()));
    });
}
