//! Command lines of the programs that make a user's network.
//!
//! ```text
//!  VMs -- vioswitchd -- lan0 (TAP) | kernel: router, NAT | outside (TAP) -- pasta -- the host
//!                              dnsmasq: DHCP, DNS
//! ```
//!
//! lan0 and outside are in a network namespace of the user. pasta runs outside of the namespace and
//! carries connections over with sockets of the user.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::Command;

use super::place::Place;
use crate::network::address::Cidr;

/// Script that makes the network in a new namespace.
const SET_UP: &str = include_str!("namespace.sh");

/// Directories of programs that an ordinary user's PATH may lack.
const MORE_PATHS: &str = "/usr/sbin:/sbin:/usr/local/sbin";

/// Programs, each with the package of Debian that has the program.
pub(super) const NEEDED: [(&str, &str); 5] = [
    ("pasta", "passt"),
    ("dnsmasq", "dnsmasq-base"),
    ("nft", "nftables"),
    ("ip", "iproute2"),
    ("nsenter", "util-linux"),
];

/// Interface of the virtual machines' network in the namespace: the switch's TAP.
const INNER: &str = "lan0";
/// Interface that pasta makes in the namespace.
pub(super) const OUTER: &str = "outside";
/// Addresses between the namespace and pasta; no network of the host has such addresses.
const OUTER_ADDRESS: &str = "169.254.78.2";
const OUTER_GATEWAY: &str = "169.254.78.1";
/// Address at which pasta answers for the host's name server.
const OUTER_DNS: &str = "169.254.78.3";
/// Address of the namespace in the virtual machines' IPv6 network.
const INNER_IPV6: &str = "fd78::1/64";
/// MTU of pasta's interface. Longer packets cost less: pasta makes a system call for each packet.
const MTU: &str = "65520";

/// Time of a lease: longer than a weekend's sleep of the host. The clocks of the sleeping guests
/// stand still, and the guests renew their leases hours after the host's clock has ended them.
const LEASE: &str = "72h";

/// Network between the namespace and pasta, whose addresses guests cannot have.
pub(super) const OUTER_NETWORK: Cidr =
    Cidr { address: IpAddr::V4(Ipv4Addr::new(169, 254, 78, 0)), len: 24 };

/// The network as the user wants it: options of `vioswitchctl lan`, and the host's name server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) nat: Cidr,
    pub(super) host_loopback: bool,
    /// True if the host asks a name server of its own, which the namespace does not reach.
    pub(super) has_own_dns: bool,
}

/// Returns the command of these words, a program and its arguments. The program does not report to
/// the service manager of the keeper.
pub(super) fn command(program: &str, arguments: &[String]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).env("PATH", paths()).env_remove("NOTIFY_SOCKET");
    command
}

/// Returns the directories in which programs are sought.
pub(super) fn paths() -> String {
    let own = std::env::var("PATH").unwrap_or_default();
    if own.is_empty() { MORE_PATHS.to_owned() } else { format!("{own}:{MORE_PATHS}") }
}

/// Script that runs a command until standard input ends without a line. The kernel could end the
/// command with the caller (PR_SET_PDEATHSIG), but not a command that AppArmor or SELinux confines,
/// such as Debian's pasta.
const BOUND: &str = "exec 3<&0; (read -r _ <&3 || kill -KILL $$) >/dev/null 2>&1 & \
                     exec \"$@\" </dev/null 3<&-";

/// Returns the words that run a command in the namespaces of the process `holder`, as for `bound`.
pub(super) fn inside(holder: u32, command: Vec<String>) -> Vec<String> {
    let enter = ["nsenter", "--user", "--net", "--preserve-credentials", "--target"];
    let mut words = owned(&enter);
    words.push(holder.to_string());
    words.extend(command);
    bound(words)
}

/// Returns the words that run a command which is killed when standard input ends without a line, as
/// when the caller is killed.
pub(super) fn bound(command: Vec<String>) -> Vec<String> {
    let mut words = owned(&["sh", "-c", BOUND, "sh"]);
    words.extend(command);
    words
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// Returns the words that make the namespace and wait in the namespace until standard input ends.
/// Prints "namespace" in the namespace, and "ready" once the interfaces, the addresses and the
/// rules are there.
pub(super) fn holder(wanted: &Wanted) -> Vec<String> {
    let mut words =
        owned(&["unshare", "--user", "--map-root-user", "--net", "sh", "-c", SET_UP, "sh"]);
    words.extend(owned(&[INNER, OUTER, &wanted.nat.to_string(), INNER_IPV6, MTU]));
    words
}

/// Returns the words of the switch.
pub(super) fn switch(program: &Path, place: &Place) -> Vec<String> {
    vec![
        program.display().to_string(),
        "--control".to_owned(),
        place.control().display().to_string(),
        "--state-dir".to_owned(),
        place.state().display().to_string(),
        "--tap".to_owned(),
        format!("lan,ifname={INNER}"),
    ]
}

/// Returns the words of pasta, which connects the namespaces of the process `holder` with the host.
pub(super) fn pasta(holder: u32, wanted: &Wanted) -> Vec<String> {
    let mut words = owned(&["pasta", "--foreground", "--stderr", "--quiet", "--config-net"]);
    words.extend(owned(&["--ns-ifname", OUTER, "--address", OUTER_ADDRESS, "--netmask", "24"]));
    words.extend(owned(&["--gateway", OUTER_GATEWAY]));
    words.extend(owned(&["--no-dhcp", "--no-dhcpv6", "--no-ra"]));
    words.extend(owned(&["-t", "none", "-u", "none", "-T", "none", "-U", "none"]));
    if wanted.has_own_dns {
        // Without need the option is harmful: pasta would change answers of other servers.
        words.extend(owned(&["--dns-forward", OUTER_DNS]));
    }
    if !wanted.host_loopback {
        words.push("--no-map-gw".to_owned());
    }
    words.push(holder.to_string());
    words
}

/// Returns the words of dnsmasq.
pub(super) fn dnsmasq(wanted: &Wanted, place: &Place) -> Vec<String> {
    let (first, last) = wanted.nat.hosts();
    let network = wanted.nat.network();
    let mut words = owned(&["dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null"]);
    // The only user of the namespace, and no group: the kernel forbids setgroups(2) there.
    words.extend(owned(&["--user=", "--group=", "--pid-file=", "--log-facility=-"]));
    words.extend(owned(&["--quiet-dhcp", "--quiet-dhcp6", "--quiet-ra", "--no-hosts"]));
    words.push(format!("--interface={INNER}"));
    words.extend(owned(&["--except-interface=lo", "--bind-interfaces"]));
    words.extend(owned(&["--domain=lan", "--local=/lan/", "--dhcp-authoritative"]));
    // A guest must not take the name of another machine: names come from `hosts` alone.
    words.push("--dhcp-ignore-names".to_owned());
    words.push(format!("--dhcp-range={first},{last},{},{LEASE}", network.mask()));
    words.push(format!("--dhcp-option=option:mtu,{MTU}"));
    words.extend(owned(&["--enable-ra", "--dhcp-range=fd78::,ra-names,64"]));
    words.push(format!("--dhcp-leasefile={}", place.leases().display()));
    words.push(format!("--dhcp-hostsdir={}", place.hosts().display()));
    if wanted.host_loopback {
        words.push(format!("--host-record=host.lan,{OUTER_GATEWAY}"));
    }
    match wanted.has_own_dns {
        // pasta asks the server on the host, which is the same after each change of the network.
        true => words.extend(["--no-resolv".to_owned(), format!("--server={OUTER_DNS}")]),
        // dnsmasq watches the file.
        false => words.push("--resolv-file=/etc/resolv.conf".to_owned()),
    }
    words
}

/// Returns true if the host asks a name server of its own at present; `None` if the host has no
/// name server, as while a program writes the file.
pub(super) fn has_own_dns() -> Option<bool> {
    has_own_server(&fs::read_to_string("/etc/resolv.conf").unwrap_or_default())
}

/// Returns true if the file of the host's name servers names a server on the host itself.
fn has_own_server(resolv_conf: &str) -> Option<bool> {
    let servers = resolv_conf.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
    let addresses = servers.map(|rest| rest.trim().parse::<IpAddr>());
    let are_own = addresses.map(|address| address.is_ok_and(|address| address.is_loopback()));
    are_own.reduce(|one, other| one || other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(host_loopback: bool, has_own_dns: bool) -> Wanted {
        let nat = crate::network::address::of_host("10.78.0.1/24").unwrap();
        Wanted { nat, host_loopback, has_own_dns }
    }

    #[test]
    fn name_servers_of_the_host_itself_are_asked_by_pasta() {
        let place = Place { directory: "/run/user/7/vioswitch-lan".into() };
        let (with, without) = (wanted(false, true), wanted(false, false));
        let dns = dnsmasq(&with, &place).join(" ");
        assert!(dns.contains("--no-resolv --server=169.254.78.3"), "{dns}");
        assert!(dns.contains("--dhcp-range=10.78.0.1,10.78.0.254,255.255.255.0,72h"), "{dns}");
        assert!(pasta(7, &with).join(" ").contains("--dns-forward 169.254.78.3"));
        assert!(dnsmasq(&without, &place).join(" ").contains("--resolv-file=/etc/resolv.conf"));
        assert!(!pasta(7, &without).join(" ").contains("--dns-forward"));
        for (text, has_own) in [
            ("# x\nnameserver 127.0.0.53\noptions edns0\n", Some(true)),
            ("nameserver 192.0.2.53\nnameserver ::1\n", Some(true)),
            ("nameserver 192.0.2.53\n", Some(false)),
            ("nameserver fe80::1%eth0\n", Some(false)),
            ("", None),
        ] {
            assert_eq!(has_own_server(text), has_own, "{text}");
        }
    }

    /// A guest has the name that `lan run` noted, not the name that the guest asks for.
    #[test]
    fn guests_do_not_name_themselves() {
        let place = Place { directory: "/run/user/7/vioswitch-lan".into() };
        let words = dnsmasq(&wanted(false, false), &place);
        assert!(words.iter().any(|word| word == "--dhcp-ignore-names"), "{words:?}");
    }

    /// Guests reach services of the host's loopback interface only if the user says so.
    #[test]
    fn the_hosts_own_services_are_closed() {
        let words = |host_loopback| pasta(7, &wanted(host_loopback, false)).join(" ");
        assert!(words(false).contains("--no-map-gw") && !words(true).contains("--no-map-gw"));
    }
}
