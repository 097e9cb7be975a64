//! A network for which systemd-networkd provides the interface, addresses, DHCP and NAT.
//!
//! networkd keeps the TAP open (`KeepCarrier=`), so that the TAP has a carrier before the switch
//! runs. The queue of networkd is detached, so that no frame goes to networkd.

use std::fmt::Write;

use super::plan::{File, Plan};

const DIRECTORY: &str = "/etc/systemd/network";

pub fn files(plan: &Plan) -> Vec<File> {
    let path = |kind: &str| format!("{DIRECTORY}/10-vioswitch-{}.{kind}", plan.name);
    vec![
        plan.file(&path("netdev"), &netdev(&plan.interface())),
        plan.file(&path("network"), &network(plan)),
    ]
}

/// Returns the definition of a persistent TAP that the switch attaches to without a capability.
pub fn netdev(interface: &str) -> String {
    format!(
        "[NetDev]\nName={interface}\nKind=tap\n\n[Tap]\nMultiQueue=yes\nVNetHeader=yes\n\
         User=vioswitch\nGroup=vioswitch\nKeepCarrier=yes\n"
    )
}

fn network(plan: &Plan) -> String {
    let mut text = format!(
        "[Match]\nName={}\n\n[Link]\nRequiredForOnline=no\n\n[Network]\n",
        plan.interface()
    );
    for address in &plan.addresses {
        let _ = writeln!(text, "Address={address}");
    }
    let (ipv4, ipv6) = (plan.ipv4().is_some(), plan.ipv6());
    let masquerade = match (ipv4, ipv6) {
        (true, None) => "ipv4",
        (false, Some(_)) => "ipv6",
        _ => "both",
    };
    let _ = writeln!(text, "IPMasquerade={masquerade}\nConfigureWithoutCarrier=yes");
    // Guests must not tell the host where its router is, nor reach more of the host than needed.
    text += "IPv6AcceptRA=no\nLLMNR=no\nMulticastDNS=no\nLLDP=no\n";
    text += if ipv6.is_some() { "LinkLocalAddressing=ipv6\n" } else { "LinkLocalAddressing=no\n" };
    if plan.dhcp {
        text += "DHCPServer=yes\n";
    }
    if ipv6.is_some() {
        text += "IPv6SendRA=yes\n";
    }
    let dns = |ipv4: bool| plan.dns.iter().filter(move |dns| dns.is_ipv4() == ipv4);
    if plan.dhcp {
        text += "\n[DHCPServer]\nEmitDNS=yes\n";
        dns(true).for_each(|dns| text += &format!("DNS={dns}\n"));
    }
    if let Some(cidr) = ipv6 {
        text += "\n[IPv6SendRA]\nEmitDNS=yes\n";
        dns(false).for_each(|dns| text += &format!("DNS={dns}\n"));
        let _ = write!(text, "\n[IPv6Prefix]\nPrefix={}\n", cidr.network());
    }
    text
}
