//! A network without systemd-networkd: the package's units make the TAP and start dnsmasq(8), and a
//! drop-in of the TAP's unit adds the addresses and the NAT.

use std::fmt::Write;

use super::plan::{File, Plan};

const DIRECTORY: &str = "/etc/vioswitch/network";

pub fn files(plan: &Plan) -> Vec<File> {
    let path = |kind: &str| format!("{DIRECTORY}/{}.{kind}", plan.name);
    let drop_in =
        format!("/etc/systemd/system/vioswitch-tap@{}.service.d/network.conf", plan.interface());
    let mut files = vec![plan.file(&path("nft"), &nft(plan)), plan.file(&drop_in, &service(plan))];
    if plan.serves() {
        files.push(plan.file(&path("dnsmasq"), &dnsmasq(plan)));
    }
    files
}

/// Returns the path of the file in which dnsmasq keeps its leases.
pub fn leases(name: &str) -> String {
    format!("/var/lib/vioswitch-network/{name}.leases")
}

/// Returns the drop-in that adds addresses, forwarding and NAT to the package's unit.
fn service(plan: &Plan) -> String {
    let (name, interface) = (&plan.name, plan.interface());
    let mut text = "[Service]\n".to_owned();
    for address in &plan.addresses {
        let _ = writeln!(text, "ExecStart=ip address replace {address} dev {interface}");
    }
    let forwarding = [
        (plan.ipv4(), "/proc/sys/net/ipv4/ip_forward"),
        (plan.ipv6(), "/proc/sys/net/ipv6/conf/all/forwarding"),
    ];
    for (_, file) in forwarding.iter().filter(|(address, _)| address.is_some()) {
        let _ = writeln!(text, "ExecStart=/bin/sh -c 'echo 1 >{file}'");
    }
    let _ = writeln!(text, "ExecStart=nft -f {DIRECTORY}/{name}.nft");
    let tables = [(plan.ipv4(), "ip"), (plan.ipv6(), "ip6")];
    for (_, family) in tables.iter().filter(|(address, _)| address.is_some()) {
        let _ = writeln!(text, "ExecStop=-nft delete table {family} vioswitch-{name}");
    }
    text
}

fn nft(plan: &Plan) -> String {
    let (name, interface) = (&plan.name, plan.interface());
    let mut text = String::new();
    for cidr in &plan.addresses {
        let family = if cidr.is_ipv4() { "ip" } else { "ip6" };
        let (table, network) = (format!("{family} vioswitch-{name}"), cidr.network());
        // Deletes the table of an earlier time, if any. nft reads the whole file before nft changes
        // a table.
        let _ = writeln!(text, "table {table}\ndelete table {table}\ntable {table} {{");
        let _ = writeln!(text, "\tchain postrouting {{");
        let _ = writeln!(text, "\t\ttype nat hook postrouting priority srcnat; policy accept;");
        let _ = writeln!(
            text,
            "\t\t{family} saddr {network} oifname != \"{interface}\" masquerade\n\t}}\n}}"
        );
    }
    text
}

fn dnsmasq(plan: &Plan) -> String {
    let interface = plan.interface();
    let mut text = format!(
        "interface={interface}\nexcept-interface=lo\nbind-dynamic\ndomain-needed\nbogus-priv\n\
         pid-file=\ndhcp-leasefile={}\n",
        leases(&plan.name)
    );
    if let Some(cidr) = plan.ipv4().filter(|_| plan.dhcp) {
        let (first, last) = cidr.hosts();
        let _ = writeln!(text, "dhcp-range={first},{last},{},1h\ndhcp-authoritative", cidr.mask());
    }
    if plan.ipv6().is_some() {
        let _ = writeln!(text, "enable-ra\ndhcp-range=::,constructor:{interface},ra-only,64");
    }
    if !plan.dns.is_empty() {
        text += "no-resolv\n";
    }
    for dns in &plan.dns {
        let _ = writeln!(text, "server={dns}");
    }
    text
}
