//! Real clients behind a guard, and spoofers with the same programs: DHCP and DHCPv6, SLAAC with
//! duplicate address detection, multicast listener reports, ARP probes and announcements, VRRP.
//! Each client is a Linux network stack behind a stream with `guard=on`; a TAP leads to the server.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use testkit::host::{in_namespace, ip};
use testkit::proc::{Daemon, Dir, wait_for};
use testkit::relay::{INTERFACE, Stack};
use testkit::skip;

/// A client retries after some seconds.
const SOON: Duration = Duration::from_secs(40);
const MACS: [&str; 2] = ["52:54:00:77:00:01", "52:54:00:77:00:02"];
const OTHER_MAC: &str = "52:54:00:77:00:99";
const UPLINK: &str = "vio0";
/// The virtual router's.
const SHARED: &str = "10.77.0.200";

/// What dhclient has done to an interface.
const SCRIPT: &str = "#!/bin/sh
case $reason in
BOUND | RENEW | REBIND | REBOOT) ip address replace $new_ip_address/24 dev $interface ;;
BOUND6 | RENEW6 | REBIND6) ip address replace $new_ip6_address/64 dev $interface ;;
esac
";

/// A program that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A switch with guarded streams `c0` and `c1`, and what a host has behind its TAP.
struct Lab {
    d: Daemon,
    dir: Dir,
}

impl Lab {
    /// One whose ports have more keys.
    fn new(more: &str) -> Lab {
        let dir = Dir::new();
        let streams = MACS.iter().enumerate().map(|(n, mac)| {
            let socket = dir.path().join(format!("c{n}"));
            format!(
                "--stream=c{n},socket={},mac={mac},guard=on,\
                 allowed-ips=10.77.0.5{n},{SHARED},fd77::/64{more}",
                socket.display()
            )
        });
        let args: Vec<String> = streams.chain([format!("--tap=up,ifname={UPLINK}")]).collect();
        let d = Daemon::with(0, &args.iter().map(String::as_str).collect::<Vec<_>>());
        // An interface has its number before it has IPv6.
        let ipv6 = format!("/proc/sys/net/ipv6/conf/{UPLINK}/disable_ipv6");
        assert!(wait_for(SOON, || fs::write(&ipv6, "0").is_ok()), "{}", d.log());
        ip(&format!("address add 10.77.0.1/24 dev {UPLINK}"));
        ip(&format!("address add fd77::1/64 dev {UPLINK} nodad"));
        ip(&format!("link set {UPLINK} up"));
        Lab { d, dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A client, which sends what a kernel sends when its interface comes up.
    fn client(&self, n: usize) -> Stack {
        let stack = Stack::attach(&self.path(&format!("c{n}")), MACS[n]);
        stack.sh(&format!("ip link set lo up; ip link set {INTERFACE} up"));
        stack
    }

    /// A program whose output is in a file of its name.
    fn start(&self, mut command: Command, name: &str) -> Running {
        let log = File::create(self.path(name)).expect("a log");
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a log")).stderr(log);
        Running(command.spawn().expect("start a program"))
    }

    fn said(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// dnsmasq on an interface, with these ranges.
    fn serve(&self, mut command: Command, interface: &str, ranges: &[&str], name: &str) -> Running {
        command.args(["--no-daemon", "--conf-file=/dev/null", "--port=0", "--user=root"]);
        command.args(["--bind-dynamic", "--enable-ra", "--log-dhcp", "--dhcp-authoritative"]);
        command.arg(format!("--interface={interface}"));
        command.arg(format!("--dhcp-leasefile={}", self.path(&format!("{name}.leases")).display()));
        command.args(ranges.iter().map(|range| format!("--dhcp-range={range}")));
        for (n, mac) in MACS.iter().enumerate() {
            command.arg(format!("--dhcp-host={mac},10.77.0.5{n},[fd77::5{n}]"));
        }
        self.start(command, name)
    }

    /// That of the host.
    fn serve_here(&self) -> Running {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "dnsmasq"]);
        let ranges = ["10.77.0.50,10.77.0.60,2m", "fd77::50,fd77::60,slaac,64,2m"];
        self.serve(command, UPLINK, &ranges, "server")
    }

    /// A client of DHCP (`-4`) or DHCPv6 (`-6`), which goes on asking.
    fn dhclient(&self, stack: &Stack, family: &str) -> Running {
        let script = self.path("script");
        if !script.exists() {
            fs::write(&script, SCRIPT).expect("a script");
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            fs::set_permissions(&script, mode).expect("a script that runs");
        }
        let mut command = stack.command("dhclient");
        command.args([family, "-d", "-v", "-sf"]).arg(script);
        command.arg("-lf").arg(self.path(&format!("lease{family}")));
        command.arg("-pf").arg(self.path(&format!("pid{family}"))).arg(INTERFACE);
        self.start(command, &format!("dhclient{family}"))
    }

    /// Frames of a client that broke a rule, by rule.
    fn broken(&self, client: &str) -> Vec<(String, u64)> {
        let counters = self.d.counters();
        let own = counters.each().filter(|(port, _, name, value)| {
            *port == client && name.starts_with("guard.") && *value > 0
        });
        own.map(|(_, _, name, value)| (name.to_owned(), value)).collect()
    }

    fn broke(&self, client: &str, rule: &str) -> bool {
        self.broken(client).iter().any(|(name, _)| name == rule)
    }
}

/// Runs a test in a namespace if these programs are there.
fn with(programs: &[&str], test: impl FnOnce(Lab) + Send) {
    with_keys("", programs, test);
}

/// Runs a test with more keys for the guarded ports.
fn with_keys(keys: &str, programs: &[&str], test: impl FnOnce(Lab) + Send) {
    for program in programs {
        let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
        if !found.is_ok_and(|output| output.status.success()) {
            return skip(&format!("needs {program}"));
        }
    }
    in_namespace(|| test(Lab::new(keys)));
}

/// Waits until addresses that contain these words are usable.
fn has_addresses(stack: &Stack, words: &[&str]) -> bool {
    wait_for(SOON, || {
        let shown = stack.sh(&format!("ip -o address show dev {INTERFACE}"));
        words.iter().all(|word| {
            let mut lines = shown.lines();
            lines.any(|line| line.contains(word) && !line.contains("tentative"))
        })
    })
}

fn pings(stack: &Stack, address: &str) -> bool {
    stack.try_sh(&format!("ping -n -c 1 -W 2 {address}")).status.success()
}

#[test]
#[ignore = "full"]
fn clients_get_addresses_and_use_them() {
    with(&["dhclient", "dnsmasq", "ping"], |lab| {
        let _server = lab.serve_here();
        let client = lab.client(0);
        // dhclient uses the link-local address, once that is known to be unique.
        assert!(has_addresses(&client, &["inet6 fe80::"]));
        let _dhcp = [lab.dhclient(&client, "-4"), lab.dhclient(&client, "-6")];
        // The last one is made of the prefix that the router advertises and the hardware address.
        let own = ["inet 10.77.0.50/", "inet6 fd77::50/", "inet6 fd77::5054:ff:fe77:1/"];
        let all = || {
            let shown = client.sh("ip address; cat /proc/net/igmp6");
            let said = ["server", "dhclient-4", "dhclient-6"].map(|name| lab.said(name)).concat();
            format!("{shown}\n{said}\n{:?}", lab.broken("c0"))
        };
        assert!(has_addresses(&client, &own), "{}", all());
        let shown = client.sh(&format!("ip address show dev {INTERFACE}"));
        assert!(!shown.contains("dadfailed"), "{shown}");
        for address in ["10.77.0.1", "fd77::1"] {
            assert!(pings(&client, address), "{address}: {}", all());
        }
        assert_eq!(lab.broken("c0"), [], "{}", all());
        // What only a kernel that sent multicast listener reports gets counted for.
        assert!(lab.d.counters().get("c0", "in frames") > 10);
    });
}

#[test]
#[ignore = "full"]
fn a_spoofer_gets_nothing_and_serves_none() {
    with(&["dhclient", "dnsmasq", "ping", "arping"], |lab| {
        let [client, spoofer] = [0, 1].map(|n| lab.client(n));
        client.sh(&format!("ip address add 10.77.0.50/24 dev {INTERFACE}"));
        assert!(pings(&client, "10.77.0.1") && lab.broken("c0").is_empty());

        // A server of its own, and no other one: what it offers is not heard.
        spoofer.sh(&format!("ip address add 10.77.0.51/24 dev {INTERFACE}"));
        let command = spoofer.command("dnsmasq");
        let rogue = lab.serve(command, INTERFACE, &["10.77.0.50,10.77.0.60,2m"], "rogue");
        let dhcp = lab.dhclient(&client, "-4");
        let offered = || lab.said("rogue").contains("DHCPOFFER") && lab.broke("c1", "guard.server");
        assert!(wait_for(SOON, offered), "{} {:?}", lab.said("rogue"), lab.broken("c1"));
        assert!(!lab.said("dhclient-4").contains("OFFER"), "{}", lab.said("dhclient-4"));
        drop((rogue, dhcp));

        // Its neighbour's address, by ARP and by IP.
        spoofer.sh(&format!(
            "ip address flush dev {INTERFACE}; ip address add 10.77.0.50/24 dev {INTERFACE}"
        ));
        assert!(!pings(&spoofer, "10.77.0.1"));
        assert!(lab.broke("c1", "guard.arp"), "{:?}", lab.broken("c1"));
        spoofer.sh(&format!("ip neighbour replace 10.77.0.1 lladdr {OTHER_MAC} dev {INTERFACE}"));
        assert!(!pings(&spoofer, "10.77.0.1"));
        assert!(lab.broke("c1", "guard.ip"), "{:?}", lab.broken("c1"));
        // Another hardware address.
        spoofer.sh(&format!("ip link set {INTERFACE} address {OTHER_MAC}"));
        assert!(!pings(&spoofer, "10.77.0.1"));
        assert!(lab.broke("c1", "guard.mac"), "{:?}", lab.broken("c1"));
        assert!(pings(&client, "10.77.0.1") && lab.broken("c0").is_empty());
    });
}

#[test]
#[ignore = "full"]
fn probes_and_announcements_of_own_addresses_pass() {
    with(&["arping", "ping"], |lab| {
        let client = lab.client(0);
        let arping = |words: &str| {
            let output = client.try_sh(&format!("arping -c 2 -w 4 -I {INTERFACE} {words}"));
            output.status.success()
        };
        let sent = || lab.d.counters().get("c0", "in frames");
        // Nobody has it: RFC 5227, 2.1.1.
        let before = sent();
        assert!(arping("-D 10.77.0.50") && sent() >= before + 2);
        client.sh(&format!("ip address add 10.77.0.50/24 dev {INTERFACE}"));
        for kind in ["-U", "-A"] {
            let before = sent();
            let _ = arping(&format!("{kind} 10.77.0.50"));
            assert!(sent() >= before + 2, "{kind}");
        }
        assert_eq!(lab.broken("c0"), []);
        let _ = arping("-D 10.77.0.1");
        assert!(lab.broke("c0", "guard.arp"), "an address that is not its own");
    });
}

#[test]
#[ignore = "full"]
fn virtual_routers_take_over_from_each_other() {
    with_keys(",allow-server=vrrp", &["keepalived", "ping"], |lab| {
        let clients = [0, 1].map(|n| lab.client(n));
        let start = |n: usize| {
            clients[n].sh(&format!("ip address replace 10.77.0.5{n}/24 dev {INTERFACE}"));
            let config = format!(
                "vrrp_instance one {{\n state BACKUP\n interface {INTERFACE}\n \
                 virtual_router_id 51\n priority {}\n advert_int 0.2\n version 3\n \
                 virtual_ipaddress {{\n {SHARED}/24\n }}\n}}\n",
                150 - 50 * n
            );
            let command = clients[n].keepalived(lab.dir.path(), n, &config);
            lab.start(command, &format!("keepalived{n}"))
        };
        let has_it =
            |n: usize| clients[n].sh(&format!("ip address show {INTERFACE}")).contains(SHARED);
        let answers = || {
            let ping = Command::new("ping").args(["-n", "-c", "1", "-W", "1", SHARED]).output();
            ping.is_ok_and(|output| output.status.success())
        };
        let said = || [0, 1].map(|n| lab.said(&format!("keepalived{n}"))).concat();
        let mut first = start(0);
        assert!(wait_for(SOON, || has_it(0) && answers()), "{}", said());
        let _second = start(1);
        std::thread::sleep(Duration::from_secs(2));
        assert!(has_it(0) && !has_it(1), "the second one heard the first one\n{}", said());
        // It goes without a word.
        let _ = first.0.kill();
        clients[0].sh(&format!("ip link set {INTERFACE} down"));
        assert!(wait_for(SOON, || has_it(1) && answers()), "{}", said());
        for n in [0, 1] {
            assert_eq!(lab.broken(&format!("c{n}")), [], "{}", said());
        }
    });
}
