//! Real clients between two guests with filters that let in what they name and answers: SSH, HTTP,
//! DNS, pings, NFS, and large packets to a network behind a router that has a smaller MTU, whose
//! errors must come back. The data connections of passive FTP are refused. A hundred streams go on
//! through restarts of the daemon, and wait no more often for a
//! retransmission than without filters.
//!
//! Needs curl, dropbear and dnsmasq, and systemd for the restarts.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::lab::{HOST_IP4, HOST_IP6, Lab, hold_namespace, port, tap};
use crate::service::{self, Service};
use crate::talk::{answers, pings};
use crate::vm::{Attach, BOOT_LIMIT, Qemu, Vm, VmSpec};
use crate::{alone, beside_another, can_make_network, need_program, progress, skip, wait_for};

const PROGRAMS: [&str; 5] = ["curl", "dropbear", "dropbearkey", "dbclient", "dnsmasq"];
const LONG: Duration = Duration::from_secs(120);
/// The programs need some.
const MEMORY_KIB: u32 = 384 << 10;
const FILTERS: &str = r#"
[[filter]]
name = "server"
default-in = "drop"
rules = [
  "in accept tcp to port 21,22,80,2049,5201",
  "in accept udp to port 53",
  "in accept icmp:8,icmp6:128",
]

[[filter]]
name = "client"
default-in = "drop"
"#;

/// A server for FTP that has one file, on standard input and output: a script for busybox.
const FTP: &str = r#"printf "220 ready\r\n"; while read -r word rest; do case $word in \
USER*) printf "331 go on\r\n";; PASS*) printf "230 welcome\r\n";; \
PASV*) nc -l -p 5000 </www/file >/dev/null & sleep 1; printf "227 here (10,99,0,1,19,136)\r\n";; \
SIZE*) printf "550 unknown\r\n";; RETR*) printf "150 here\r\n226 done\r\n";; \
*) printf "200 fine\r\n";; esac; done"#;

fn vms(lab: &Lab, qemu: &Qemu, socket: impl Fn(&str) -> std::path::PathBuf) -> [Vm; 2] {
    let start = |(name, number)| {
        let (socket, attach) = (socket(name), Attach::Connects);
        let spec = VmSpec { name, number, socket, attach, pairs: 1, device: "" };
        Vm::start_with(MEMORY_KIB, lab, qemu, &spec)
    };
    let mut vms = [("vm1", 1), ("vm2", 2)].map(start);
    for vm in &mut vms {
        vm.wait_ready();
        vm.ok("mkdir -p /root /var/run && echo root:x:0:0:root:/root:/bin/sh >/etc/passwd && \
               echo root:x:0: >/etc/group");
    }
    vms
}

fn http_and_dns(server: &mut Vm, client: &mut Vm) {
    let [ip4, ip6] = [server.spec.ip4(), server.spec.ip6()];
    let sum = "mkdir /www && head -c 3000000 /dev/urandom >/www/file && httpd -h /www && \
               sha256sum </www/file";
    let sum = server.ok(sum);
    for host in [ip4.clone(), format!("[{ip6}]")] {
        let got = client.ok_within(&format!("curl -s http://{host}/file | sha256sum"), LONG);
        assert_eq!(got, sum, "{host}");
    }
    server.ok("dnsmasq -u root -x /tmp/dns.pid -R -h --address=/www.test/10.99.0.77");
    let said = client.ok(&format!("nslookup -type=a www.test {ip4}"));
    assert!(said.contains("10.99.0.77"), "{said}");
}

fn ssh(server: &mut Vm, client: &mut Vm) {
    client.ok("dropbearkey -t ed25519 -f /tmp/key");
    let key = client.ok("dropbearkey -y -f /tmp/key | grep ^ssh-");
    server.ok(&format!("mkdir /root/.ssh && echo '{}' >/root/.ssh/authorized_keys", key.trim()));
    server.ok("dropbearkey -t ed25519 -f /tmp/host && dropbear -r /tmp/host");
    let command = format!("dbclient -y -i /tmp/key root@{} 'cat /proc/net/dev'", server.spec.ip4());
    let said = client.ok_within(&command, LONG);
    assert!(said.contains("eth0:"), "{said}");
}

/// A client in the server gets the file, and a client behind the filter does not: the switch does
/// not read which port the server has named for the data.
fn ftp(server: &mut Vm, client: &mut Vm) {
    let script = FTP.replace("\\\n", "");
    server
        .ok(&format!("echo '{script}' >/tmp/ftpd && (nc -ll -p 21 -e sh /tmp/ftpd &) && sleep 1"));
    let get = |host: &str| format!("timeout 20 ftpget -v -u me -p me {host} /tmp/got file");
    server.ok(&format!("{} && cmp /tmp/got /www/file", get("127.0.0.1")));
    let (status, said) = client.run(&get(&server.spec.ip4()), LONG);
    assert!(status != 0 && said.contains("cmd PASV"), "{status} {said}");
}

/// The commands of a server of NFS 4. Version 3 would need `rpcbind`. No `mountd` answers the
/// kernel, so that the export is written into the kernel's tables: options 9234 are insecure,
/// async, no_subtree_check and fsid=0.
const NFSD: &str = r#"mkdir -p /srv /var/lib/nfs/v4recovery && mount -t tmpfs srv /srv && \
head -c 3000000 /dev/urandom >/srv/file && mount -t nfsd nfsd /proc/fs/nfsd && cd /proc/fs/nfsd && \
echo '-3 +4.2' >versions && echo 'tcp 2049' >portlist && echo 2 >threads && \
echo Y >v4_end_grace && cd /proc/net/rpc && \
echo "nfsd CLIENT 4000000000 all" >auth.unix.ip/channel && \
echo 'all /srv 4000000000 9234 65534 65534 0' >nfsd.export/channel && \
printf 'all 1 \\x00000000 4000000000 /srv\n' >nfsd.fh/channel"#;

/// The client reads and writes files of the server. From version 4.1 on the server calls the client
/// back through the client's connection.
fn nfs(server: &mut Vm, client: &mut Vm) {
    for vm in [&mut *server, &mut *client] {
        vm.ok_within("for name in $(cat /mod/nfs); do insmod /mod/$name.ko || exit 1; done", LONG);
    }
    let [own, peer] = [client.spec.ip4(), server.spec.ip4()];
    server.ok_within(&NFSD.replace("\\\n", "").replace("CLIENT", &own), LONG);
    let options = format!("vers=4.2,sec=sys,addr={peer},clientaddr={own}");
    let mount = format!("mkdir -p /mnt && mount -t nfs4 -o {options} {peer}:/ /mnt");
    client.ok_within(&mount, LONG);
    let sum = server.ok("sha256sum </srv/file");
    assert_eq!(client.ok_within("sha256sum </mnt/file", LONG), sum, "read");
    let write = "head -c 2000000 /dev/urandom >/tmp/more && cp /tmp/more /mnt/more && \
                 umount /mnt && sha256sum </tmp/more";
    assert_eq!(client.ok_within(write, LONG), server.ok("sha256sum </srv/more"), "written");
}

/// Counts of ICMP errors about packets that were too large.
fn too_large(vm: &mut Vm) -> [u64; 2] {
    let words = ["InDestUnreachs", "Icmp6InPktTooBigs"];
    let said = vm.ok("cat /proc/net/snmp /proc/net/snmp6");
    let lines: Vec<Vec<&str>> =
        said.lines().map(|line| line.split_whitespace().collect()).collect();
    let heads = lines.iter().position(|line| line.first() == Some(&"Icmp:")).expect("ICMP");
    let at = lines[heads].iter().position(|word| *word == words[0]).expect("a name");
    let v6 = lines.iter().find(|line| line.first() == Some(&words[1])).expect("ICMPv6");
    [lines[heads + 1][at], v6[1]].map(|number| number.parse().expect("a number"))
}

/// A network behind the host has an MTU of 1,300 on the way, and 1,500 at its end.
fn path_mtu(lab: &Lab, client: &mut Vm) {
    let far = hold_namespace();
    let far_id = far.id();
    let inside = format!("nsenter --net --target {far_id}");
    lab.sh(&format!(
        "ip link add far0 type veth peer name far1 && ip link set far1 netns {far_id} && \
         ip link set far0 mtu 1300 up && ip addr add 10.98.0.1/24 dev far0 && \
         ip -6 addr add fd00:98::1/64 dev far0 nodad && \
         sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 && \
         {inside} ip link set far1 up && {inside} ip addr add 10.98.0.2/24 dev far1 && \
         {inside} ip -6 addr add fd00:98::2/64 dev far1 nodad && \
         {inside} ip route add default via 10.98.0.1 && \
         {inside} ip -6 route add default via fd00:98::1 && \
         {inside} timeout 200 iperf3 -s -D"
    ));
    client.ok(&format!(
        "ip route add 10.98.0.0/24 via {HOST_IP4} && ip -6 route add fd00:98::/64 via {HOST_IP6}"
    ));
    let before = too_large(client);
    for (address, options) in [("10.98.0.2", ""), ("fd00:98::2", "-6")] {
        pings(client, address);
        client.ok_within(&format!("iperf3 {options} -c {address} -n 2M"), LONG);
    }
    let after = too_large(client);
    assert!(after[0] > before[0] && after[1] > before[1], "no error: {before:?} {after:?}");
    drop(far);
}

fn clients(name: &str, qemu: Result<Qemu, String>) {
    let _beside = beside_another();
    let programs = PROGRAMS.iter().try_for_each(|program| need_program(program));
    let qemu = match can_make_network().and(need_program("iperf3")).and(programs).and(qemu) {
        Ok(qemu) => qemu,
        Err(missing) => return skip(&missing),
    };
    let mut lab = Lab::new(name);
    let config = lab.path("filters.toml");
    std::fs::write(&config, FILTERS).expect("a file");
    let at = |name: &str, filter: &str| {
        port(name, &lab.path(&format!("{name}.sock")), &format!(",filter={filter}"))
    };
    let ports = [at("vm1", "server"), at("vm2", "client"), tap()].concat();
    lab.start_daemon(&[&ports[..], &[format!("--config={}", config.display())]].concat());
    lab.configure_tap();
    let qemu = qemu.with_programs(&lab, &PROGRAMS).with_nfs(&lab);
    let [mut server, mut client] = vms(&lab, &qemu, |name| lab.path(&format!("{name}.sock")));
    for address in [server.spec.ip4(), server.spec.ip6()] {
        pings(&mut client, &address);
    }
    assert!(!answers(&mut server, &client.spec.ip4()), "the client lets nothing in");
    http_and_dns(&mut server, &mut client);
    progress("HTTP and DNS");
    ssh(&mut server, &mut client);
    progress("SSH");
    ftp(&mut server, &mut client);
    progress("FTP");
    nfs(&mut server, &mut client);
    progress("NFS");
    path_mtu(&lab, &mut client);
    progress("path MTU");
    drop((server, client));
    lab.counters_at_rest().assert_balanced();
    lab.stop_daemon();
}

#[test]
#[ignore = "full"]
fn clients_qemu_7() {
    clients("clients7", Qemu::system());
}

#[test]
#[ignore = "full"]
fn clients_qemu_10() {
    clients("clients10", Qemu::backported());
}

const STREAMS: usize = 100;
const CONFIG: &str = "/run/filters.toml";

/// The file of the service; `filters` are the keys of both ports.
fn file(filters: [&str; 2]) -> String {
    let port = |(number, filter): (usize, &str)| {
        let socket = format!("/run/vioswitch/vm{number}.sock");
        format!("[[port]]\nname = \"vm{number}\"\nsocket = \"{socket}\"\n{filter}\n")
    };
    let ports = (1..).zip(filters).map(port);
    ports.chain([FILTERS.to_owned()]).collect::<Vec<_>>().join("\n")
}

/// Local ends of the guest's established connections to iperf3's server.
fn established(vm: &mut Vm) -> BTreeSet<String> {
    let command = r#"awk '$3 ~ /:1451$/ && $4 == "01" {print $2}' /proc/net/tcp"#;
    vm.ok_within(command, LONG).split_whitespace().map(str::to_owned).collect()
}

/// Time-outs of the guest's retransmission timers so far.
fn timeouts(vm: &mut Vm) -> u64 {
    let said = vm.ok_within("grep ^TcpExt: /proc/net/netstat", LONG);
    let mut lines = said.lines().map(str::split_whitespace);
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    let count = names.zip(values).find(|(name, _)| *name == "TCPTimeouts").expect("a count");
    count.1.parse().expect("a number")
}

/// How many streams moved in the last whole interval that iperf3 has reported.
fn moving(vm: &mut Vm) -> usize {
    let script = r#"/^\[ *[0-9]+\].*bits\/sec/ { sub(/^\[ *[0-9]+\] */, ""); all[$1]++; \
        if ($5 > 0) moved[$1]++; if (all[$1] == 100) last = moved[$1] } END { print last + 0 }"#;
    let script = script.replace("\\\n", "");
    let said = vm.ok_within(&format!("awk '{script}' /tmp/iperf"), LONG);
    said.trim().parse().expect("a number")
}

/// A hundred streams through restarts; the time-outs of their sender.
fn through_restarts(service: &Service, [server, client]: &mut [Vm; 2], rounds: u64) -> u64 {
    let address = server.spec.ip4();
    server.ok_within("killall iperf3; true", LONG);
    server.serve();
    client.ok(&format!(
        "iperf3 -c {address} -P {STREAMS} -t 86400 -i 5 -f k --forceflush >/tmp/iperf 2>&1 & \
         echo $! >/tmp/pid"
    ));
    // The connection for control is one more.
    wait_for("the streams", LONG, || (established(client).len() == STREAMS + 1).then_some(()));
    // On a busy machine a guest's program leaves one of them alone for seconds.
    let most = wait_for("the streams to move", LONG, || {
        Some(moving(client)).filter(|count| *count > STREAMS * 9 / 10)
    });
    let (streams, before) = (established(client), timeouts(client));
    for _ in 0..rounds {
        service.systemctl(&["restart", "vioswitchd"]);
        wait_for("an answer", LONG, || answers(client, &address).then_some(()));
        std::thread::sleep(Duration::from_secs(3));
    }
    std::thread::sleep(Duration::from_secs(10));
    wait_for("the streams to move again", LONG, || (moving(client) >= most).then_some(()));
    let count = timeouts(client) - before;
    assert_eq!(established(client), streams, "connections ended");
    client.ok_within("kill -0 $(cat /tmp/pid) && killall iperf3", LONG);
    count
}

fn restarts(name: &str, qemu: Result<Qemu, String>) {
    let _alone = alone();
    let ready = can_make_network().and(need_program("iperf3")).and(service::can_run()).and(qemu);
    let qemu = match ready {
        Ok(qemu) => qemu,
        Err(missing) => return skip(&missing),
    };
    let lab = Lab::new(name);
    let files = lab.path("files");
    std::fs::create_dir_all(&files).expect("a directory");
    std::fs::write(files.join("filters.toml"), file(["", ""])).expect("a file");
    let service = Service::start(&lab, &[format!("--config={CONFIG}")]);
    let mut vms = vms(&lab, &qemu, |name| service.socket(&format!("{name}.sock")));
    let rounds = testkit::rounds(1, 2, 20);
    let [_, client] = &mut vms;
    wait_for("an answer", BOOT_LIMIT, || answers(client, "10.99.0.1").then_some(()));
    let without = through_restarts(&service, &mut vms, rounds);
    let filters = ["filter = \"server\"", "filter = \"client\""];
    std::fs::write(service.socket("../filters.toml"), file(filters)).expect("a file");
    service.systemctl(&["restart", "vioswitchd"]);
    let [server, client] = &mut vms;
    wait_for("an answer", BOOT_LIMIT, || answers(client, "10.99.0.1").then_some(()));
    assert!(!answers(server, "10.99.0.2"), "the client lets nothing in");
    let with = through_restarts(&service, &mut vms, rounds);
    progress(&format!("{rounds} restarts: {without} time-outs without filters, {with} with"));
    // One more for each stream and restart is the noise of a busy machine.
    let noise = STREAMS as u64 * rounds;
    assert!(with <= 2 * without + noise, "{with} time-outs, {without} without filters");
    drop(vms);
    service.systemctl(&["stop", "vioswitchd"]);
}

#[test]
#[ignore = "full"]
fn streams_restarted_qemu_7() {
    restarts("filtered7", Qemu::system());
}

#[test]
#[ignore = "full"]
fn streams_restarted_qemu_10() {
    restarts("filtered10", Qemu::backported());
}
