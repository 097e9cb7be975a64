//! `vioswitchctl lan`: a network for the virtual machines of one user, without root.
//!
//! Programs of the host do the work: pasta gives the user's network namespace a way out, the kernel
//! routes and translates addresses there, dnsmasq serves DHCP and DNS, and the switch has a TAP
//! there. Virtual machines run outside of the namespace and need only sockets of the switch. One
//! process, the keeper, runs these programs; commands find the keeper in the user's directory.

mod forward;
mod keeper;
mod leases;
mod lines;
mod namespaces;
mod place;
mod programs;
mod protocol;
mod relay;
mod routes;
mod service;
mod start;
mod status;

use std::fs;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use serde_json::json;

use crate::failure::Failure;
use crate::files::Replacement;
use crate::network::address::{self, Cidr};
use crate::output::{Output, say};
use crate::run::Run;
use crate::values::DELETE;
use forward::PortForward;
use place::Place;
use programs::OUTER_NETWORK;
use protocol::{KeeperCall, NetworkState, ask};
use relay::Relay;

const EXAMPLES: &str = "\
Examples:
  vioswitchctl lan
  vioswitchctl lan run vm1 -- qemu-system-x86_64 -enable-kvm -m 2G vm1.qcow2
  vioswitchctl lan forward 8080:vm1:80
  vioswitchctl lan status
  vioswitchctl lan stop";

/// Longest wait for a switch that restarts.
const SWITCH: Duration = Duration::from_secs(10);
/// Longest wait for the keeper to end.
const STOP: Duration = Duration::from_secs(15);

/// Give an ordinary user's virtual machines a network, without root
///
/// Starts this user's switch with DHCP, DNS and NAT, or finds the running switch. Virtual machines
/// reach each other by name (vm1.lan), and reach what the user reaches. Needs passt, dnsmasq and
/// nftables.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub struct Lan {
    #[command(flatten)]
    options: StartOptions,
    /// Keep the network until this program ends, as for a unit of systemd --user
    #[arg(long)]
    foreground: bool,
    #[command(subcommand)]
    command: Option<LanCommand>,
}

/// Options of the start.
#[derive(Debug, Clone, Args)]
pub(crate) struct StartOptions {
    /// The network's own address [default: 10.78.0.1/24]
    #[arg(long, value_name = "ADDR/LEN", value_parser = ipv4)]
    nat: Option<Cidr>,
    /// Let virtual machines reach services of the host's loopback interface, as host.lan
    #[arg(long)]
    host_loopback: bool,
}

#[derive(Debug, Subcommand)]
enum LanCommand {
    /// Run QEMU with a port of this user's switch; starts the switch if none runs
    Run(Run),
    Forward(ForwardArgs),
    /// Show virtual machines, addresses, forwards and traffic
    Status,
    /// Stop the network, and remove its files
    Stop {
        /// Also while virtual machines use the network
        #[arg(long)]
        force: bool,
    },
    #[command(hide = true)]
    Serve(StartOptions),
    #[command(hide = true)]
    Relay(Relay),
}

/// Forward ports of this host to a virtual machine
///
/// [ADDR:]PORT:VM:PORT, with /udp behind for UDP; a port may be a range. Without ADDR the host
/// listens at 127.0.0.1 and ::1.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
struct ForwardArgs {
    /// Ports of the host, the virtual machine, and its ports, such as 8080:vm1:80
    #[arg(required = true)]
    forward: Option<PortForward>,
    #[command(subcommand)]
    command: Option<ForwardCommand>,
}

#[derive(Debug, Subcommand)]
enum ForwardCommand {
    /// Add a forward
    Add {
        /// Ports of the host, the virtual machine, and its ports, such as 8080:vm1:80
        forward: PortForward,
    },
    /// Delete a forward
    #[command(visible_aliases = DELETE)]
    Del {
        /// The forward, as lan status shows it
        forward: PortForward,
    },
}

fn ipv4(text: &str) -> Result<Cidr, String> {
    let cidr = address::of_host(text).ok().filter(|cidr| cidr.is_ipv4() && cidr.len <= 29);
    cidr.filter(|cidr| !cidr.overlaps(OUTER_NETWORK)).ok_or_else(|| {
        format!(
            "the network's own IPv4 address such as 10.78.0.1/24, with a length of 16 to 29, \
             outside of {OUTER_NETWORK}"
        )
    })
}

impl Lan {
    /// Runs the command. Returns the answer and the exit status.
    pub(crate) fn run(&self) -> Result<(Option<Output>, u8), Failure> {
        let place = Place::of_user();
        match &self.command {
            None if self.foreground => start::foreground(place, &self.options)?,
            None => {
                let answer = start::ensure(&place, &self.options)?;
                return Ok((Some(status::look(&place, answer)?), 0));
            }
            Some(LanCommand::Serve(options)) => start::serve(place, options)?,
            Some(LanCommand::Relay(relay)) => relay.run()?,
            Some(LanCommand::Run(run)) => return machine(&place, run).map(|status| (None, status)),
            Some(LanCommand::Status) => {
                let answer = ask(&place, &KeeperCall::Status)?.ok_or_else(none)?;
                return Ok((Some(status::look(&place, answer)?), 0));
            }
            Some(LanCommand::Stop { force }) => stop(&place, *force)?,
            Some(LanCommand::Forward(args)) => {
                let answer = forward(&place, args)?;
                return Ok((Some((json!({"forwards": answer.forwards}), String::new())), 0));
            }
        }
        Ok((None, 0))
    }
}

fn none() -> Failure {
    Failure::no_switch("you have no network here: vioswitchctl lan".to_owned())
}

/// Runs a virtual machine in the network, with its name in DNS.
fn machine(place: &Place, run: &Run) -> Result<u8, Failure> {
    let name = run.name();
    if !forward::is_machine_name(name) {
        let text = "a name of letters, digits and \"-\", such as vm1";
        return Err(Failure::usage(format!("'{name}' is no name of a machine here: {text}")));
    }
    start::ensure(place, &StartOptions { nat: None, host_loopback: false })?;
    wait_for_switch(place)?;
    let _lock = place.lock_name(name)?;
    run.run_kept(&place.control(), &|mac| note(place, name, mac))
}

fn wait_for_switch(place: &Place) -> Result<(), Failure> {
    let end = Instant::now() + SWITCH;
    while !keeper::answers(&place.control()) {
        if Instant::now() >= end {
            let log = place.log();
            let text = format!("the switch of the network restarts; see {}", log.display());
            return Err(Failure::refused(text));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// Notes the name of a machine for dnsmasq. An earlier name of the card's address goes.
fn note(place: &Place, name: &str, mac: &str) -> Result<(), Failure> {
    let (directory, prefix) = (place.hosts(), format!("{mac},"));
    let cannot = |error| Failure::users_file("write", &directory.join(name), &error);
    let mut forgets = false;
    for entry in fs::read_dir(&directory).map_err(cannot)?.flatten() {
        let noted = fs::read_to_string(entry.path()).unwrap_or_default();
        if entry.file_name() != name && noted.starts_with(&prefix) {
            forgets |= fs::remove_file(entry.path()).is_ok();
        }
    }
    let line = format!("{mac},{name}\n");
    let written = Replacement::prepare(&directory.join(name), &line, None);
    written.and_then(Replacement::commit).map_err(cannot)?;
    if forgets {
        ask(place, &KeeperCall::ForgetNames)?;
    }
    Ok(())
}

fn forward(place: &Place, args: &ForwardArgs) -> Result<NetworkState, Failure> {
    let (forward, deletes) = match (&args.command, &args.forward) {
        (Some(ForwardCommand::Add { forward }), _) | (None, Some(forward)) => (forward, false),
        (Some(ForwardCommand::Del { forward }), _) => (forward, true),
        (None, None) => return Err(Failure::usage("which forward?".to_owned())),
    };
    let text = forward.to_string();
    if deletes {
        return ask(place, &KeeperCall::DeleteForward { forward: text })?.ok_or_else(none);
    }
    let answer = ask(place, &KeeperCall::AddForward { forward: text })?.ok_or_else(none)?;
    if leases::address_of(&forward.vm, &place.leases()).is_none() {
        say(&format!("'{}' has no address yet; the forward waits for it", forward.vm));
    }
    Ok(answer)
}

/// Stops the network. Removes what a killed keeper has left behind.
fn stop(place: &Place, force: bool) -> Result<(), Failure> {
    if ask(place, &KeeperCall::Status)?.is_none() {
        if !place.directory.exists() {
            return Ok(());
        }
        return match place.lock()? {
            Some(_lock) => place.remove(),
            None => Err(Failure::refused("the network is starting: try again".to_owned())),
        };
    }
    if !force {
        let unknown = |failure: Failure| {
            let (text, reason) = ("virtual machines may use the network", failure.text);
            Failure::refused(format!("{text} ({reason}): try again, or --force"))
        };
        let users = status::attached(place).map_err(unknown)?;
        if !users.is_empty() {
            let text = format!("in use by {}: end these virtual machines first", users.join(", "));
            return Err(Failure::refused(text + ", or --force"));
        }
    }
    ask(place, &KeeperCall::Stop)?;
    let end = Instant::now() + STOP;
    while !has_ended(place)? && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(10));
    }
    match has_ended(place)? {
        true => Ok(()),
        false => {
            let (directory, log) = (place.directory.display(), place.log());
            let text = format!("the network does not end, and {directory} stays");
            Err(Failure::refused(format!("{text}; see {}", log.display())))
        }
    }
}

/// True if no keeper runs, and no file is left but the socket of a service manager.
fn has_ended(place: &Place) -> Result<bool, Failure> {
    if !place.directory.exists() {
        return Ok(true);
    }
    Ok(place.keeper().exists() && place.lock()?.is_some())
}
