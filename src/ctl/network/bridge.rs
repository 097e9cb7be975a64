//! Prints a bridge with one of the host's network cards and the switch's TAP; never carries the
//! commands out.
//!
//! The card's addresses move to the bridge, and a user who came in through the card is cut off when
//! a step goes wrong. The steps are for an administrator with a console, so the printed commands
//! begin with an undo that runs by itself.

use std::fmt::Write;

use super::address::Cidr;
use super::host::Net;
use super::plan::{Content, File, Manager, interface, of_switch};
use crate::failure::Failure;

/// Command that undoes the bridge after five minutes unless the user stops the timer. The undo is a
/// script, because systemd 252 forgets the meaning of a `;` in an argument when systemd reloads its
/// files.
const UNDO: &str = "systemd-run --unit=vioswitch-undo --on-active=5min sh";

/// Plan of a bridge.
#[derive(Debug)]
pub struct Bridge {
    pub name: String,
    pub(crate) nic: String,
    pub(crate) manager: Manager,
    /// Hardware address of the card, which the bridge takes so that the network still knows the
    /// host.
    mac: String,
    /// Addresses and router of the card, if the addresses are known and not leased.
    fixed: Option<(Vec<Cidr>, Option<String>)>,
    /// True if the card has no address, so that nobody knows whether the addresses are leased.
    bare: bool,
}

impl Bridge {
    pub(crate) fn new(
        name: &str,
        nic: &str,
        manager: Manager,
        net: &Net,
    ) -> Result<Bridge, Failure> {
        let link = net.link(nic).ok_or_else(|| {
            Failure::refused(format!("there is no interface {nic}; ip link show lists them"))
        })?;
        let tap = interface(name);
        let put = |bridge: &str| {
            Failure::refused(format!(
                "bridge {bridge} exists already: put only the TAP into the bridge: \
                 systemctl enable --now vioswitch-tap@{tap}; ip link set {tap} master {bridge}; \
                 vioswitchctl tap add {name} ifname={tap}"
            ))
        };
        let system = |file: &str| std::path::Path::new("/sys/class/net").join(nic).join(file);
        if let Some(bridge) = &link.master {
            return Err(put(bridge));
        }
        if system("bridge").exists() {
            return Err(put(nic));
        }
        if link.link_type != "ether" || system("wireless").exists() {
            let text = format!("{nic} cannot be in a bridge: use --nat instead of --bridge");
            return Err(Failure::refused(text));
        }
        let leased = link.addr_info.iter().any(|info| info.dynamic);
        let addresses: Vec<Cidr> = Net::addresses(link).filter(|one| !of_link(one)).collect();
        let mut routes = net.routes.iter();
        let router = routes.find(|route| route.dev == nic && route.dst == "default");
        let router = router.and_then(|route| route.gateway.clone());
        let bare = addresses.is_empty();
        let fixed = (!leased && !bare).then_some((addresses, router));
        let (name, nic) = (name.to_owned(), nic.to_owned());
        Ok(Bridge { name, nic, manager, mac: link.address.clone(), fixed, bare })
    }

    /// Returns the interface of the bridge.
    fn bridge(&self) -> String {
        format!("br-{}", self.name)
    }

    fn file(&self, path: &str, text: &str) -> File {
        let head =
            format!("# As vioswitchctl network {} --bridge {} had it.\n", self.name, self.nic);
        File { path: path.into(), content: Content::Text(head + text) }
    }

    pub(crate) fn files(&self) -> Vec<File> {
        let (name, bridge, tap) = (&self.name, self.bridge(), interface(&self.name));
        let mut files = match self.manager {
            Manager::Networkd => self.networkd(&bridge, &tap),
            Manager::Ifupdown => {
                let path = format!("/etc/network/interfaces.d/vioswitch-{name}");
                vec![self.file(&path, &self.ifupdown(&bridge, &tap))]
            }
            _ => Vec::new(),
        };
        let switch = format!("[[tap]]\nname = \"{name}\"\nifname = \"{tap}\"\n");
        files.push(self.file(&of_switch(name), &switch));
        files.push(self.file(&self.undo_path(), &self.undo(&files)));
        files
    }

    fn networkd(&self, bridge: &str, tap: &str) -> Vec<File> {
        let path = |what: &str| format!("/etc/systemd/network/05-vioswitch-{}{what}", self.name);
        let member = |name: &str| format!("[Match]\nName={name}\n\n[Network]\nBridge={bridge}\n");
        let mut own = format!("[Match]\nName={bridge}\n\n[Network]\n");
        match &self.fixed {
            None => own += "DHCP=yes\n",
            Some((addresses, router)) => {
                for address in addresses {
                    let _ = writeln!(own, "Address={address}");
                }
                router.iter().for_each(|router| own += &format!("Gateway={router}\n"));
            }
        }
        let netdev = format!("[NetDev]\nName={bridge}\nKind=bridge\nMACAddress={}\n", self.mac);
        vec![
            self.file(&path(".netdev"), &netdev),
            self.file(&path(".network"), &own),
            self.file(&path("-nic.network"), &member(&self.nic)),
            self.file(&path("-tap.network"), &member(tap)),
        ]
    }

    fn ifupdown(&self, bridge: &str, tap: &str) -> String {
        let mut text = format!("iface {} inet manual\n\nauto {bridge}\n", self.nic);
        let ports = format!(
            "    bridge_ports {} {tap}\n    bridge_stp off\n    bridge_fd 0\n    bridge_hw {}\n",
            self.nic, self.mac
        );
        let Some((addresses, router)) = &self.fixed else {
            let _ = writeln!(text, "iface {bridge} inet dhcp");
            return text + &ports;
        };
        let mut ports = Some(ports);
        for address in addresses {
            let family = if address.is_ipv4() { "inet" } else { "inet6" };
            let _ = writeln!(text, "iface {bridge} {family} static\n    address {address}");
            // The ports and the router stand once for an interface.
            if let Some(ports) = ports.take() {
                text += &ports;
                router.iter().for_each(|router| text += &format!("    gateway {router}\n"));
            }
        }
        text
    }

    fn networkmanager(&self, bridge: &str, tap: &str) -> Vec<String> {
        let method = match &self.fixed {
            None => String::new(),
            Some((addresses, router)) => {
                let of = |ipv4: bool| {
                    let all = addresses.iter().filter(move |one| one.is_ipv4() == ipv4);
                    all.map(Cidr::to_string).collect::<Vec<_>>().join(",")
                };
                let router = router.as_ref().map(|to| format!(" ipv4.gateway {to}"));
                match of(true).as_str() {
                    "" => format!(" ipv6.method manual ipv6.addresses {}", of(false)),
                    ipv4 => format!(
                        " ipv4.method manual ipv4.addresses {ipv4}{}",
                        router.unwrap_or_default()
                    ),
                }
            }
        };
        let (nic, mac) = (&self.nic, &self.mac);
        vec![
            format!(
                "nmcli connection add type bridge con-name {bridge} ifname {bridge} bridge.stp no \
                 bridge.mac-address {mac}{method}"
            ),
            format!(
                "nmcli connection add type ethernet con-name {bridge}-nic ifname {nic} \
                 slave-type bridge master {bridge}"
            ),
            format!(
                "nmcli connection add type tun con-name {tap} ifname {tap} tun.mode tap \
                 tun.owner $(id -u vioswitch) tun.group $(id -g vioswitch) tun.multi-queue yes \
                 tun.vnet-hdr yes slave-type bridge master {bridge}"
            ),
        ]
    }

    /// Returns the commands to type once the files are there.
    pub(crate) fn commands(&self) -> Vec<String> {
        let (nic, bridge, tap) = (&self.nic, self.bridge(), interface(&self.name));
        let start = |unit: &str, instance: &str| {
            format!("systemctl enable --now vioswitch-{unit}@{instance}")
        };
        let undo = format!("{UNDO} {}", self.undo_path());
        let mut commands = match self.manager {
            Manager::Networkmanager => {
                let mut commands = vec![undo];
                commands.extend(self.networkmanager(&bridge, &tap));
                commands.push(format!("nmcli connection up {bridge}-nic"));
                commands.push(format!("nmcli connection up {tap}"));
                commands.push(format!("tc qdisc replace dev {tap} root noqueue"));
                commands
            }
            Manager::Ifupdown => vec![
                "cp /etc/network/interfaces /etc/network/interfaces.before".to_owned(),
                undo,
                format!("editor /etc/network/interfaces    # take the lines of {nic} away"),
                start("tap", &tap),
                format!("ip address flush dev {nic}; ifup {bridge}    # needs bridge-utils"),
            ],
            _ => vec![undo, start("tap", &tap), "networkctl reload".to_owned()],
        };
        commands.push(start("forward", &bridge));
        commands.push("vioswitchctl config reload".to_owned());
        commands
            .push("systemctl stop vioswitch-undo.timer    # once the host is reached".to_owned());
        commands
    }

    fn undo_path(&self) -> String {
        format!("/etc/vioswitch/undo-{}", self.name)
    }

    /// Returns the script that removes the files and the bridge, and restores the earlier state.
    fn undo(&self, files: &[File]) -> String {
        let (nic, bridge, tap) = (&self.nic, self.bridge(), interface(&self.name));
        let mut text = "rm -f".to_owned();
        files.iter().for_each(|file| text += &format!(" {}", file.path.display()));
        let _ = writeln!(text, " {}", self.undo_path());
        let delete = format!("ip link delete {bridge}\n");
        match self.manager {
            Manager::Networkmanager => {
                text += &delete;
                let _ = writeln!(text, "nmcli connection delete {bridge} {bridge}-nic {tap}");
                let _ = writeln!(text, "nmcli device connect {nic}");
            }
            Manager::Ifupdown => {
                text += &delete;
                text += "mv /etc/network/interfaces.before /etc/network/interfaces\n";
                let _ = writeln!(text, "ifdown --force {nic}\nifup {nic}");
            }
            _ => {
                // networkd must forget the bridge before the bridge goes; otherwise networkd puts
                // the card back into the bridge and gives the card up. networkd must also have seen
                // all changes before networkd configures the card anew.
                let _ = writeln!(text, "networkctl reload\n{delete}sleep 1");
                let _ = writeln!(text, "networkctl reconfigure {nic}");
            }
        }
        let _ = writeln!(
            text,
            "systemctl disable --now vioswitch-forward@{bridge} vioswitch-tap@{tap}"
        );
        text + "vioswitchctl config reload\n"
    }

    /// Returns why no file was written, and which settings are guesses.
    pub(crate) fn notes(&self) -> Vec<String> {
        let nic = &self.nic;
        let mut notes = vec![format!(
            "nothing was changed, because a mistake here cuts off sessions through {nic}: write \
             the files yourself, with a console at hand. The first command restores the old \
             state after five minutes, unless the last command cancels this"
        )];
        if self.bare {
            notes.push(format!("{nic} has no address now: the bridge will request one by DHCP"));
        }
        notes
    }
}

/// True if the address is link-local, which an interface has by itself.
fn of_link(cidr: &Cidr) -> bool {
    Cidr::parse("fe80::/10").is_some_and(|local| local.covers(*cidr))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn net(info: &Value) -> Net {
        let links = json!([
            {"ifname": "eth7", "link_type": "ether", "address": "52:54:00:00:00:07",
             "addr_info": [info, {"local": "fe80::1", "prefixlen": 64}]},
            {"ifname": "eth8", "link_type": "ether", "master": "vmbr0", "addr_info": []},
            {"ifname": "wg0", "link_type": "none", "addr_info": []},
        ]);
        let routes = json!([{"dst": "default", "dev": "eth7", "gateway": "192.0.2.1"}]);
        Net {
            links: serde_json::from_value(links).expect("links"),
            routes: serde_json::from_value(routes).expect("routes"),
        }
    }

    fn bridge(manager: Manager, dynamic: bool) -> Bridge {
        let info = json!({"local": "192.0.2.5", "prefixlen": 24, "dynamic": dynamic});
        Bridge::new("lan", "eth7", manager, &net(&info)).expect("a card")
    }

    fn all(bridge: &Bridge) -> String {
        let mut text = String::new();
        for file in bridge.files() {
            let Content::Text(content) = file.content else { panic!("a link") };
            text += &format!("{}\n{content}", file.path.display());
        }
        text + &bridge.commands().join("\n")
    }

    #[test]
    fn the_bridge_gets_what_the_card_had() {
        for (manager, leased, fixed) in [
            (Manager::Networkd, "DHCP=yes", ["Address=192.0.2.5/24", "Gateway=192.0.2.1"]),
            (Manager::Ifupdown, "br-lan inet dhcp", ["address 192.0.2.5/24", "gateway 192.0.2.1"]),
            (
                Manager::Networkmanager,
                "52:54:00:00:00:07\n",
                ["ipv4.method manual ipv4.addresses 192.0.2.5/24", "ipv4.gateway 192.0.2.1"],
            ),
        ] {
            let text = all(&bridge(manager, true));
            assert!(text.contains(leased) && text.contains("52:54:00:00:00:07"), "{text}");
            assert!(
                text.contains("ifname = \"vio-lan\"") && text.contains("/etc/vioswitch/undo-"),
                "{text}"
            );
            assert!(!text.contains("192.0.2.5") && !text.contains("fe80"), "{text}");
            let text = all(&bridge(manager, false));
            assert!(fixed.iter().all(|line| text.contains(line)), "{text}");
            assert_eq!(bridge(manager, false).notes().len(), 1);
            assert!(!text.contains("fe80") && !text.contains("DHCP=yes"), "{text}");
            // `--remove` must not treat the file as a file of vioswitchctl.
            assert!(!text.contains(&super::super::plan::mark("lan")), "{text}");
        }
    }

    #[test]
    fn what_is_no_card_is_refused() {
        let net = net(&json!({}));
        let bare = Bridge::new("lan", "eth7", Manager::Networkd, &net).expect("a card");
        assert!(bare.notes()[1].contains("DHCP"));
        let refusal = |nic| {
            let made = Bridge::new("lan", nic, Manager::Networkd, &net);
            made.expect_err("refused").text
        };
        assert!(refusal("eth8").contains("vio-lan master vmbr0"));
        assert!(refusal("eth9").contains("no interface eth9"));
        assert!(refusal("wg0").contains("--nat"));
    }
}
