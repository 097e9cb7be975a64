//! `vioswitchctl network`: gives the guests an interface of the host, with an address, DHCP and NAT
//! by the host's own services. The switch only gets a TAP.
//!
//! `plan` and its neighbours compute the files and look at nothing; `host` looks at the host;
//! `store` writes files; this file carries out the command. The parser of the command line has
//! checked each word in a file's content, so no word can break out of its quotes.

pub(crate) mod address;
mod apply;
mod bridge;
mod dnsmasq;
mod files;
pub(crate) mod host;
mod networkd;
mod plan;
mod store;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;

use crate::failure::Failure;
use crate::output::{self, say};
use crate::{show, values};
use address::Cidr;
use apply::NetworkSteps;
use bridge::Bridge;
use host::Net;
use plan::{Content, File, Manager, Plan};
use store::Store;

const EXAMPLES: &str = "\
Examples:
  vioswitchctl network lan --nat 10.77.0.1/24 --dhcp --print
  vioswitchctl network lan --nat 10.77.0.1/24 --dhcp
  vioswitchctl network lan --remove
  vioswitchctl network office --bridge eth0";

/// Give guests a network: addresses and NAT of the host, or a bridge with a network card
///
/// Writes and applies files for systemd-networkd, or for dnsmasq and nftables, and for the switch's
/// TAP vio-NETWORK. Without a name, network lists the networks.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Network {
    /// A name: at most 11 letters, digits, "_" and "-"
    #[arg(value_name = "NETWORK", value_parser = plan::name)]
    name: Option<String>,
    /// Address of the host in the network, such as 10.77.0.1/24, with NAT for other destinations;
    /// give the option twice for IPv4 and IPv6
    #[arg(long, value_name = "ADDR/LEN", value_parser = address::of_host, requires = "name",
          conflicts_with_all = ["bridge", "remove"])]
    nat: Vec<Cidr>,
    /// Serve DHCP to guests
    #[arg(long, requires = "nat")]
    dhcp: bool,
    /// Allow DHCP beside another network of the switch
    #[arg(long, requires = "dhcp")]
    second_dhcp: bool,
    /// DNS server for guests, by default the host's servers (repeatable)
    #[arg(long, value_name = "ADDR", requires = "nat")]
    dns: Vec<IpAddr>,
    /// Queues of the TAP; one queue for each worker is enough
    #[arg(long, value_name = "N", requires = "nat", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=64))]
    queues: u16,
    /// Print the commands that put this network card and the TAP into a bridge
    #[arg(long, value_name = "NIC", value_parser = interface, requires = "name",
          conflicts_with = "remove")]
    bridge: Option<String>,
    /// Remove the network's files and its interface
    #[arg(long, requires = "name", conflicts_with_all = ["print", "manager"])]
    remove: bool,
    /// Print files and commands; change nothing
    #[arg(long, requires = "name")]
    print: bool,
    /// Network manager; by default the manager that runs
    #[arg(long, value_name = "MANAGER", value_enum, requires = "name")]
    manager: Option<Manager>,
    /// Only write, and below this directory: for images, and for tests
    #[arg(long, value_name = "DIR", hide = true)]
    root: Option<PathBuf>,
}

/// Checks that an interface may have this name.
fn interface(text: &str) -> Result<String, String> {
    let good = |c: char| c.is_ascii_graphic() && !"/:%'\"`$\\;&|<>(){}*?[]~!#=".contains(c);
    let fits =
        (1..=15).contains(&text.len()) && text.chars().all(good) && !text.starts_with(['-', '.']);
    fits.then(|| text.to_owned()).ok_or_else(|| "the name of an interface, such as eth0".to_owned())
}

impl Network {
    /// Runs the command. Returns the answer and the exit status.
    pub fn run(&self, control: &Path) -> Result<(output::Output, u8), Failure> {
        let outcome = match &self.name {
            None => self.list(),
            Some(name) if self.remove => apply::remove(&self.store(), name, self.live(control))?,
            Some(name) => match &self.bridge {
                Some(nic) => self.bridge(name, nic)?,
                None => self.nat(name, control)?,
            },
        };
        Ok(((outcome.value, outcome.text), outcome.refused.map_or(0, |failure| failure.status)))
    }

    fn store(&self) -> Store {
        Store { root: self.root.clone().unwrap_or_else(|| "/".into()) }
    }

    /// Returns the control socket of the switch to reload; `None` if the files are for another
    /// machine.
    fn live<'a>(&self, control: &'a Path) -> Option<&'a Path> {
        self.root.is_none().then_some(control)
    }

    fn list(&self) -> NetworkSteps {
        let net = if self.root.is_none() { Net::look() } else { None };
        let (mut rows, mut all) = (Vec::new(), Vec::new());
        for (name, wanted) in self.store().networks() {
            let of = |key: &str| word_of(&wanted, key);
            let (nat, interface) = (of("nat").unwrap_or("-"), plan::interface(&name));
            let (dhcp, manager) = (of("dhcp").unwrap_or("-"), of("manager").unwrap_or("-"));
            let there = net.as_ref().map(|net| net.link(&interface).is_some());
            let state = match there {
                Some(true) => "there",
                Some(false) => "missing",
                None => "-",
            };
            let row = [&name, &interface, nat, dhcp, manager, state];
            rows.push(row.map(str::to_owned).to_vec());
            let addresses: Vec<&str> = nat.split(',').collect();
            all.push(json!({
                "name": name,
                "interface": interface,
                "nat": addresses,
                "dhcp": dhcp == "yes",
                "manager": manager,
                "interface_exists": there,
            }));
        }
        let title = ["NETWORK", "INTERFACE", "NAT", "DHCP", "MANAGER", "STATE"];
        let value = json!({"networks": all});
        NetworkSteps { text: show::table(&title, rows), value, ..NetworkSteps::default() }
    }

    fn bridge(&self, name: &str, nic: &str) -> Result<NetworkSteps, Failure> {
        let manager = self.manager.unwrap_or_else(host::bridge_manager);
        if manager == Manager::Dnsmasq {
            return Err(Failure::usage("dnsmasq manages no bridge: --manager networkd".to_owned()));
        }
        let net = Net::look().ok_or_else(no_ip)?;
        let bridge = Bridge::new(name, nic, manager, &net)?;
        Ok(printed(&bridge.files(), &bridge.commands(), &bridge.notes()))
    }

    fn nat(&self, name: &str, control: &Path) -> Result<NetworkSteps, Failure> {
        let plan = self.plan(name)?;
        let files = plan.files();
        let store = self.store();
        let before = store.wanted(name);
        let judged = self.judge(&plan, &store, before.is_some());
        if self.print {
            // With --print a refusal is a note, and the files are shown.
            let (notes, refused) = match judged {
                Ok(notes) => (notes, None),
                Err(failure) => (vec![failure.text.clone()], Some(failure)),
            };
            return Ok(NetworkSteps {
                refused,
                ..printed(&files, &apply::commands(&plan), &notes)
            });
        }
        let notes = judged?;
        let manager = format!(" manager={}", values::word(&plan.manager));
        if before.is_some_and(|words| !words.ends_with(&manager)) {
            let text =
                format!("network {name} has another manager: vioswitchctl network {name} --remove");
            return Err(Failure::refused(text + " first"));
        }
        notes.iter().for_each(|note| say(note));
        // networkd and the switch run as other users, and read the written files.
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
        apply::put(&store, &plan, &files, self.live(control))
    }

    /// Returns notes on the problems of a plan, or why the plan cannot be carried out.
    fn judge(&self, plan: &Plan, store: &Store, ours: bool) -> Result<Vec<String>, Failure> {
        let others = store.networks().into_iter().filter(|(name, _)| *name != plan.name);
        let serving = others.filter(|(_, wanted)| word_of(wanted, "dhcp") == Some("yes"));
        if let Some((other, _)) = { serving }.next().filter(|_| plan.dhcp && !self.second_dhcp) {
            return Err(Failure::refused(format!(
                "network {other} serves DHCP to the same guests, which would get addresses of \
                 either network: leave out --dhcp, or add --second-dhcp"
            )));
        }
        match self.root {
            Some(_) => Ok(Vec::new()),
            None => Net::look().ok_or_else(no_ip)?.judge(plan, ours),
        }
    }

    fn plan(&self, name: &str) -> Result<Plan, Failure> {
        let of = |ipv4: bool| self.nat.iter().filter(move |cidr| cidr.is_ipv4() == ipv4).count();
        if self.nat.is_empty() {
            let text = format!("what is network {name} to be? --nat ADDR/LEN or --bridge NIC");
            return Err(Failure::usage(text));
        }
        if of(true) > 1 || of(false) > 1 {
            return Err(Failure::usage(
                "a network has one --nat for each version of IP".to_owned(),
            ));
        }
        if self.dhcp && of(true) == 0 {
            let text = "--dhcp is for IPv4; in IPv6 guests choose their addresses themselves";
            return Err(Failure::usage(text.to_owned()));
        }
        let manager = match self.manager {
            Some(manager @ (Manager::Networkd | Manager::Dnsmasq)) => manager,
            Some(other) => {
                let other = values::word(&other);
                let text = format!("{other} is for --bridge: networkd or dnsmasq");
                return Err(Failure::usage(text));
            }
            None if self.root.is_some() => Manager::Networkd,
            None if self.print => host::manager().unwrap_or(Manager::Networkd),
            None => host::manager()?,
        };
        let dns = match self.dns.as_slice() {
            [] => host::dns(&self.store().root, manager),
            given => given.to_vec(),
        };
        Ok(Plan {
            name: name.to_owned(),
            addresses: self.nat.clone(),
            dhcp: self.dhcp,
            dns,
            queues: self.queues,
            manager,
        })
    }
}

/// Returns the value of a key in the recorded settings of a network.
fn word_of<'w>(wanted: &'w str, key: &str) -> Option<&'w str> {
    let mut pairs = wanted.split_whitespace().filter_map(|word| word.split_once('='));
    pairs.find(|(known, _)| *known == key).map(|(_, value)| value)
}

fn no_ip() -> Failure {
    Failure::refused("ip(8) does not list the host's interfaces: apt install iproute2".to_owned())
}

/// Returns each file below its path, and the commands that would run. Writes the notes to standard
/// error.
fn printed(files: &[File], commands: &[String], notes: &[String]) -> NetworkSteps {
    notes.iter().for_each(|note| say(note));
    let mut text = String::new();
    let mut all = Vec::new();
    for File { path, content } in files {
        let path = path.display().to_string();
        match content {
            Content::Text(content) => {
                let _ = writeln!(text, "==> {path}\n{content}");
                all.push(json!({"path": path, "text": content}));
            }
            Content::Link(to) => {
                let _ = writeln!(text, "==> {path} -> {to}\n");
                all.push(json!({"path": path, "link": to}));
            }
        }
    }
    let _ = writeln!(text, "==> commands");
    commands.iter().for_each(|command| text += &format!("{command}\n"));
    let value = json!({"files": all, "commands": commands, "notes": notes});
    NetworkSteps { text, value, ..NetworkSteps::default() }
}
