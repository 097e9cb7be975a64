//! Reads the host: the manager of the network, and the addresses and routes.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use super::address::Cidr;
use super::plan::{Manager, Plan};
use crate::failure::Failure;
use crate::links::{self, Link, Route};
use crate::output::text;
use crate::tool;

/// Returns the manager for a network behind NAT on this host.
pub fn manager() -> Result<Manager, Failure> {
    if is_active("systemd-networkd") {
        return Ok(Manager::Networkd);
    }
    match missing(&["dnsmasq", "nft", "ip"]) {
        None => Ok(Manager::Dnsmasq),
        Some(_) => Err(Failure::refused(
            "systemd-networkd does not run, and without it dnsmasq and nft are needed: apt install \
             dnsmasq-base nftables, or systemctl enable --now systemd-networkd"
                .to_owned(),
        )),
    }
}

/// Returns the manager of the host's network card.
pub(crate) fn bridge_manager() -> Manager {
    if is_active("NetworkManager") {
        Manager::Networkmanager
    } else if is_active("systemd-networkd") || !Path::new("/etc/network/interfaces").exists() {
        Manager::Networkd
    } else {
        Manager::Ifupdown
    }
}

/// True if a unit is active.
pub(crate) fn is_active(unit: &str) -> bool {
    tool::output(&["systemctl", "is-active", unit]).is_some()
}

/// Returns the first of the programs that is not installed.
pub fn missing<'a>(programs: &[&'a str]) -> Option<&'a str> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Services search these directories, which a user's PATH may lack.
    let system = ["/usr/local/sbin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];
    let places: Vec<_> = std::env::split_paths(&path).chain(system.map(Into::into)).collect();
    let there = |program: &&str| places.iter().any(|place| place.join(program).is_file());
    programs.iter().find(|program| !there(program)).copied()
}

/// True if the user exists to whom the TAP is to belong.
pub(crate) fn has_user() -> bool {
    tool::output(&["id", "-u", "vioswitch"]).is_some()
}

/// Returns name servers for guests if the server of the guests' addresses knows no name servers:
/// networkd asks systemd-resolved, which may not run.
pub fn dns(root: &Path, manager: Manager) -> Vec<IpAddr> {
    let resolved = root.join("run/systemd/resolve/resolv.conf").exists();
    if manager != Manager::Networkd || resolved {
        return Vec::new();
    }
    let text = fs::read_to_string(root.join("etc/resolv.conf")).unwrap_or_default();
    servers(&text)
}

/// Returns the name servers of a file that other hosts can ask too, at most three.
fn servers(resolv_conf: &str) -> Vec<IpAddr> {
    let named = resolv_conf.lines().filter_map(|line| line.strip_prefix("nameserver"));
    let all = named.filter_map(|rest| rest.trim().parse::<IpAddr>().ok());
    all.filter(|server| !server.is_loopback()).take(3).collect()
}

/// Interfaces and routes, as `ip -json` lists them.
#[derive(Debug, Default)]
pub struct Net {
    pub(crate) links: Vec<Link>,
    pub(crate) routes: Vec<Route>,
}

impl Net {
    /// Returns the host's network; `None` if ip(8) does not answer.
    pub(crate) fn look() -> Option<Net> {
        let links = links::ask(&["ip", "-json", "address", "show"])?;
        let mut routes: Vec<Route> = links::ask(&["ip", "-json", "-4", "route", "show"])?;
        routes.extend(links::ask(&["ip", "-json", "-6", "route", "show"]).unwrap_or_default());
        Some(Net { links, routes })
    }

    pub(crate) fn link(&self, name: &str) -> Option<&Link> {
        links::named(&self.links, name)
    }

    /// Returns the addresses of a link.
    pub(crate) fn addresses(link: &Link) -> impl Iterator<Item = Cidr> {
        let texts = link.addr_info.iter().map(|info| format!("{}/{}", info.local, info.prefixlen));
        texts.filter_map(|text| Cidr::parse(&text))
    }

    /// Returns notes on the problems of a plan, or why the plan cannot be carried out. `ours` is
    /// true if the network exists already, and its interface too.
    pub(crate) fn judge(&self, plan: &Plan, ours: bool) -> Result<Vec<String>, Failure> {
        let interface = plan.interface();
        if !ours && self.link(&interface).is_some() {
            return Err(Failure::refused(format!(
                "interface {interface} exists, but network '{}' does not: choose another name, \
                 or ip link delete {interface}",
                plan.name
            )));
        }
        let mut notes = Vec::new();
        for wanted in &plan.addresses {
            notes.append(&mut self.judge_address(*wanted, &interface)?);
        }
        Ok(notes)
    }

    /// Returns notes on the problems of a network with this address at an interface, or why the
    /// host cannot have the network.
    pub(crate) fn judge_address(
        &self,
        wanted: Cidr,
        interface: &str,
    ) -> Result<Vec<String>, Failure> {
        for link in self.links.iter().filter(|link| link.ifname != interface) {
            if let Some(theirs) = Net::addresses(link).find(|theirs| theirs.overlaps(wanted)) {
                let name = text(&link.ifname);
                return Err(Failure::refused(format!(
                    "{wanted} overlaps {theirs} of interface {name}: choose another network"
                )));
            }
        }
        let mut notes = Vec::new();
        self.judge_routes(wanted, interface, &mut notes)?;
        if !wanted.is_private() {
            notes.push(format!("{wanted} is not a private network: guests cannot reach its owner"));
        }
        Ok(notes)
    }

    fn judge_routes(
        &self,
        wanted: Cidr,
        interface: &str,
        notes: &mut Vec<String>,
    ) -> Result<(), Failure> {
        for route in self.routes.iter().filter(|route| route.dev != interface) {
            let to = &route.dst;
            let bits = if wanted.is_ipv4() { 32 } else { 128 };
            // A route to a single host has no prefix. The default route is in no network's way.
            let parsed = Cidr::parse(to).or_else(|| Cidr::parse(&format!("{to}/{bits}")));
            let Some(to) = parsed.filter(|to| to.overlaps(wanted)) else { continue };
            let via = text(&route.dev);
            if wanted.covers(to) {
                return Err(Failure::refused(format!(
                    "{wanted} replaces the route to {to} by {via}: choose another network"
                )));
            }
            notes.push(format!("{wanted} hides a part of the route to {to} by {via}"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn net() -> Net {
        let inet = |local: &str, len: u8| json!({"local": local, "prefixlen": len});
        let links = json!([
            {"ifname": "lo", "addr_info": [inet("127.0.0.1", 8), inet("::1", 128)]},
            {"ifname": "eth0", "addr_info": [inet("192.168.1.5", 24), inet("fe80::1", 64)]},
            {"ifname": "vio-lan", "addr_info": [inet("10.77.0.1", 24)]},
        ]);
        let routes = json!([
            {"dst": "default", "dev": "eth0"},
            {"dst": "192.168.1.0/24", "dev": "eth0"},
            {"dst": "10.77.0.0/24", "dev": "vio-lan"},
            {"dst": "10.0.0.0/8", "dev": "tun0"},
            {"dst": "172.20.3.4", "dev": "tun0"},
        ]);
        Net {
            links: serde_json::from_value(links).expect("links"),
            routes: serde_json::from_value(routes).expect("routes"),
        }
    }

    fn plan(name: &str, address: &str) -> Plan {
        Plan {
            name: name.to_owned(),
            addresses: vec![Cidr::parse(address).expect("address")],
            dhcp: true,
            dns: Vec::new(),
            queues: 1,
            manager: Manager::Networkd,
        }
    }

    #[test]
    fn networks_that_the_host_has_are_refused() {
        let refusal = |plan: &Plan, ours| net().judge(plan, ours).expect_err("refused").text;
        assert!(refusal(&plan("x", "192.168.1.1/24"), false).contains("interface eth0"));
        assert!(refusal(&plan("x", "192.168.0.1/16"), false).contains("interface eth0"));
        assert!(refusal(&plan("x", "10.77.0.9/24"), false).contains("interface vio-lan"));
        assert!(refusal(&plan("x", "172.20.0.1/16"), false).contains("172.20.3.4/32 by tun0"));
        assert!(refusal(&plan("lan", "10.78.0.1/24"), false).contains("ip link delete vio-lan"));
    }

    #[test]
    fn others_are_taken_with_a_word_where_one_is_due() {
        let notes = |plan: &Plan, ours| net().judge(plan, ours).expect("taken");
        assert!(notes(&plan("x", "172.21.0.1/24"), false).is_empty());
        // The network's own addresses and routes are in no plan's way; the wider route gets a note.
        for address in ["10.77.0.1/24", "10.78.0.1/24"] {
            let notes = notes(&plan("lan", address), true);
            assert!(notes.len() == 1 && notes[0].contains("10.0.0.0/8 by tun0"), "{notes:?}");
        }
        assert!(notes(&plan("x", "8.8.8.1/24"), false)[0].contains("not a private network"));
    }

    #[test]
    fn only_servers_that_guests_reach_are_told_to_them() {
        let text = "# x\nnameserver 127.0.0.53\nnameserver 192.0.2.1\nnameserver ::1\nsearch a\n\
                    nameserver fd00::1\n";
        let told: Vec<String> = servers(text).iter().map(ToString::to_string).collect();
        assert_eq!(told, ["192.0.2.1", "fd00::1"]);
        assert_eq!(missing(&["sh", "no-such-program"]), Some("no-such-program"));
    }
}
