//! Files that are written for a network, to the letter where a letter counts.

use super::files::possible;
use super::*;

fn plan(manager: Manager, addresses: &[&str]) -> Plan {
    Plan {
        name: "lan".to_owned(),
        addresses: addresses.iter().map(|one| address::of_host(one).expect(one)).collect(),
        dhcp: addresses.iter().any(|one| one.contains('.')),
        dns: Vec::new(),
        queues: 1,
        manager,
    }
}

/// Returns the content of the file whose path ends with `end`.
fn text(plan: &Plan, end: &str) -> String {
    let found = plan.files().into_iter().find(|file| file.path.to_string_lossy().ends_with(end));
    match found.unwrap_or_else(|| panic!("no {end}")).content {
        Content::Text(text) => text,
        Content::Link(to) => to,
    }
}

fn paths(files: &[File]) -> Vec<String> {
    files.iter().map(|file| file.path.display().to_string()).collect()
}

#[test]
fn networkd_gets_a_tap_an_address_dhcp_and_nat() {
    let plan = plan(Manager::Networkd, &["10.77.0.1/24"]);
    assert_eq!(
        paths(&plan.files()),
        [
            "/etc/systemd/network/10-vioswitch-lan.netdev",
            "/etc/systemd/network/10-vioswitch-lan.network",
            "/etc/systemd/system/multi-user.target.wants/vioswitch-forward@vio-lan.service",
            "/etc/vioswitch/conf.d/lan.toml",
        ]
    );
    assert_eq!(
        text(&plan, ".netdev"),
        "# Written by vioswitchctl network lan; --remove takes it away.\n[NetDev]\nName=vio-lan\n\
         Kind=tap\n\n[Tap]\nMultiQueue=yes\nVNetHeader=yes\nUser=vioswitch\nGroup=vioswitch\n\
         KeepCarrier=yes\n"
    );
    assert_eq!(
        text(&plan, ".network"),
        "# Written by vioswitchctl network lan; --remove takes it away.\n[Match]\nName=vio-lan\n\n\
         [Link]\nRequiredForOnline=no\n\n[Network]\nAddress=10.77.0.1/24\nIPMasquerade=ipv4\n\
         ConfigureWithoutCarrier=yes\nIPv6AcceptRA=no\nLLMNR=no\nMulticastDNS=no\nLLDP=no\n\
         LinkLocalAddressing=no\nDHCPServer=yes\n\n[DHCPServer]\nEmitDNS=yes\n"
    );
    assert_eq!(
        text(&plan, "vioswitch-forward@vio-lan.service"),
        "/usr/lib/systemd/system/vioswitch-forward@.service"
    );
    assert_eq!(
        text(&plan, "lan.toml"),
        "# Written by vioswitchctl network lan; --remove takes it away.\n\
         # network: nat=10.77.0.1/24 dhcp=yes manager=networkd\n\
         [[tap]]\nname = \"lan\"\nifname = \"vio-lan\"\n"
    );
}

#[test]
fn both_versions_of_ip_have_their_part() {
    let mut both = plan(Manager::Networkd, &["10.77.0.1/24", "fd77::1/64"]);
    both.dns = ["192.0.2.53", "2001:db8::53"].map(|one| one.parse().expect(one)).to_vec();
    let network = text(&both, ".network");
    for part in [
        "Address=10.77.0.1/24\nAddress=fd77::1/64\nIPMasquerade=both\n",
        "LinkLocalAddressing=ipv6\n",
        "DHCPServer=yes\nIPv6SendRA=yes\n",
        "[DHCPServer]\nEmitDNS=yes\nDNS=192.0.2.53\n\n",
        "[IPv6SendRA]\nEmitDNS=yes\nDNS=2001:db8::53\n\n[IPv6Prefix]\nPrefix=fd77::/64\n",
    ] {
        assert!(network.contains(part), "{part:?} in {network}");
    }
    let alone = text(&plan(Manager::Networkd, &["fd77::1/64"]), ".network");
    assert!(alone.contains("IPMasquerade=ipv6\n") && !alone.contains("DHCPServer"), "{alone}");
    both.manager = Manager::Dnsmasq;
    let nft = text(&both, ".nft");
    assert!(nft.contains("ip saddr 10.77.0.0/24 oifname != \"vio-lan\" masquerade"), "{nft}");
    assert!(nft.contains("ip6 saddr fd77::/64 oifname != \"vio-lan\" masquerade"), "{nft}");
    let dnsmasq = text(&both, "lan.dnsmasq");
    assert!(dnsmasq.contains("enable-ra\ndhcp-range=::,constructor:vio-lan,ra-only,64\n"));
    assert!(dnsmasq.contains("no-resolv\nserver=192.0.2.53\nserver=2001:db8::53\n"), "{dnsmasq}");
}

#[test]
fn without_networkd_units_do_the_same() {
    let plan = plan(Manager::Dnsmasq, &["10.77.0.1/24"]);
    let links = "/etc/systemd/system/multi-user.target.wants";
    assert_eq!(
        paths(&plan.files()),
        [
            "/etc/vioswitch/network/lan.nft".to_owned(),
            "/etc/systemd/system/vioswitch-tap@vio-lan.service.d/network.conf".to_owned(),
            "/etc/vioswitch/network/lan.dnsmasq".to_owned(),
            format!("{links}/vioswitch-tap@vio-lan.service"),
            format!("{links}/vioswitch-forward@vio-lan.service"),
            format!("{links}/vioswitch-dnsmasq@lan.service"),
            "/etc/vioswitch/conf.d/lan.toml".to_owned(),
        ]
    );
    let unit = text(&plan, "network.conf");
    for line in [
        "[Service]",
        "ExecStart=ip address replace 10.77.0.1/24 dev vio-lan",
        "ExecStart=/bin/sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward'",
        "ExecStart=nft -f /etc/vioswitch/network/lan.nft",
        "ExecStop=-nft delete table ip vioswitch-lan",
    ] {
        assert!(unit.lines().any(|one| one == line), "{line:?} in {unit}");
    }
    let dnsmasq = text(&plan, "lan.dnsmasq");
    assert!(dnsmasq.contains("dhcp-range=10.77.0.1,10.77.0.254,255.255.255.0,1h\n"), "{dnsmasq}");
    // Without DHCP no server answers the guests.
    let mut silent = plan.clone();
    silent.dhcp = false;
    assert_eq!(silent.files().len(), 5);
}

#[test]
fn all_that_may_be_written_may_be_taken_away() {
    let known = paths(&possible("lan"));
    for manager in [Manager::Networkd, Manager::Dnsmasq] {
        for addresses in [&["10.77.0.1/24"][..], &["fd77::1/64"], &["10.77.0.1/24", "fd77::1/64"]] {
            let mut plan = plan(manager, addresses);
            plan.queues = 4;
            for file in plan.files() {
                assert!(possible("lan").iter().any(|one| one.path == file.path), "{known:?}");
                let Content::Text(text) = file.content else { continue };
                assert!(text.starts_with(&plan::mark("lan")), "{text}");
            }
        }
    }
}

#[test]
fn names_are_those_of_interfaces_units_and_files() {
    for good in ["lan", "a", "lan-2_x", "12345678901"] {
        assert!(plan::name(good).is_ok(), "{good}");
    }
    for bad in ["", "123456789012", "-x", "_x", "a.b", "a b", "a/b", "..", "a\n", "ä", "a@b", "%i"]
    {
        assert!(plan::name(bad).is_err(), "{bad:?}");
    }
    for bad in ["", "eth0;reboot", "a b", "$(x)", "'", "1234567890123456", "-x", "a\n", "ü"] {
        assert!(interface(bad).is_err(), "{bad:?}");
    }
    for good in ["eth0", "enp3s0f1np1", "eth0.100", "wan@x"] {
        assert!(interface(good).is_ok(), "{good}");
    }
}
