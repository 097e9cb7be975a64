//! The command line of vioswitchctl.

use std::path::PathBuf;
use std::time::Duration;

use clap::{CommandFactory, Parser, Subcommand};
use serde_json::Number;

use api::config::{Key, Kind};

use crate::attach::Attach;
use crate::doctor::Doctor;
use crate::filters::{ConnectionsCommand, FilterCommand, GroupCommand};
use crate::frames::Capture;
use crate::lan::Lan;
use crate::network::Network;
use crate::run::Run;
use crate::values::{DEFAULT_CONTROL, DELETE, LIST, State, duration};

const EXAMPLES: &str = "\
Examples:
  vioswitchctl show
  vioswitchctl port add vm3 queues=2 socket-group=kvm
  vioswitchctl port list
  vioswitchctl fdb show vm3
  vioswitchctl capture vm3 --drops --filter 'tcp port 80'
  vioswitchctl --json port show vm3 | jq .port.in.drops

The word port may be left out before add, list, show, set, reset, wait and del.

Exit status: 0 done, 1 refused, 2 usage, 3 no switch, 4 not permitted.";

/// Shows and changes vioswitchd while it runs
#[derive(Debug, Parser)]
#[command(name = "vioswitchctl", version, after_help = EXAMPLES)]
pub struct Options {
    /// Path of the switch's control socket; overrides VIOSWITCH_CONTROL in the environment
    #[arg(long, global = true, value_name = "PATH", default_value = DEFAULT_CONTROL)]
    pub(crate) control: PathBuf,

    /// Print answers and failures as JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,

    #[command(subcommand)]
    pub command: SwitchCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SwitchCommand {
    /// Show the state of the switch, and why the switch is degraded
    Status,
    /// Show and change ports
    #[command(subcommand)]
    Port(PortCommand),
    /// Show and change ports, without the word `port`
    #[command(flatten)]
    OfPort(PortCommand),
    /// Show and change TAPs, which are uplinks
    #[command(subcommand)]
    Tap(PortCommand),
    /// Show and change XDP uplinks: interfaces of the host past its network stack
    #[command(subcommand)]
    Xdp(PortCommand),
    /// Show and change streams: ports for processes that speak QEMU's -netdev stream
    #[command(subcommand)]
    Stream(PortCommand),
    /// Show and change VDUSE devices: interfaces of the host or of containers
    #[command(subcommand)]
    Vduse(PortCommand),
    /// Show and change mirrors, which copy frames of one port to another
    #[command(subcommand)]
    Mirror(MirrorCommand),
    /// Show and reload the configuration
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Show and change the forwarding table
    #[command(subcommand)]
    Fdb(FdbCommand),
    /// Show multicast groups; see --multicast-snooping of vioswitchd
    #[command(subcommand)]
    Mdb(MdbCommand),
    /// Show and change filters: rules about the packets of ports
    #[command(subcommand)]
    Filter(FilterCommand),
    /// Show and change groups: addresses that rules name
    #[command(subcommand)]
    Group(GroupCommand),
    /// Show and end connections of ports with a filter
    #[command(subcommand)]
    Connections(ConnectionsCommand),
    /// Show counters of ports, with drops by reason, and of workers
    Stats {
        /// Print rates every SECONDS seconds, by default every second
        #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1",
              value_parser = duration)]
        watch: Option<Duration>,
    },
    /// Show rates, drops and workers on a screen
    Top {
        /// Pause between two refreshes
        #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = duration)]
        every: Duration,
    },
    /// Show dropped frames: reasons, remedies, and the senders
    Drops {
        /// Only frames of this port
        #[arg(value_name = "NAME")]
        port: Option<String>,
    },
    /// Check that the switch serves all that is configured and that no finding is FAIL; otherwise
    /// exit with status 1
    Health,
    /// Show the workers, and how busy they are
    Worker {
        /// Measure for a second, and not since the start of the switch
        #[arg(long)]
        rate: bool,
    },
    /// Show the versions of this program and of the switch
    Version,
    /// Print the words that may stand next, for the shells' completion
    #[command(hide = true)]
    Complete {
        #[arg(allow_hyphen_values = true, last = true)]
        words: Vec<String>,
    },
    Attach(Attach),
    Run(Run),
    Lan(Lan),
    Doctor(Doctor),
    Network(Network),
    Capture(Capture),
    /// Explain what the switch would do with a frame; no frame is sent
    Trace {
        /// The port where the frame enters
        port: String,
        /// Keys of the frame: src (MAC), dst (MAC), vlan (of the tag), ip (the source address),
        /// dst_ip, proto (such as tcp), sport, dport, len (bytes, by default 98); or frame (the
        /// first bytes in base64, as `capture --json` prints them in `data`). The key to names the
        /// port that the frame should reach; keys that are left out get fitting values
        #[arg(value_name = "KEY=VALUE", required = true)]
        frame: Vec<String>,
    },
    /// Find out why two ports do not reach each other
    ///
    /// An address such as 52:54:00:12:34:56 stands for its port.
    Why {
        #[arg(value_name = "NAME")]
        port: String,
        #[arg(value_name = "NAME")]
        other: String,
    },
    /// Print counters and states in the text format of Prometheus
    Metrics,
    /// Show events: ports, front-ends, drops, moved addresses
    Events {
        /// Begin after the event with this number, or with the oldest event (all)
        #[arg(long, value_name = "NUMBER|all", value_parser = since)]
        since: Option<u64>,
        /// Continue with new events; without --since begin with the last ten events
        #[arg(long, short)]
        follow: bool,
    },
}

/// Returns the number of the event after which the events begin; 0, for `all`, is before the oldest
/// event that is kept.
fn since(text: &str) -> Result<u64, String> {
    let text = if text == "all" { "0" } else { text };
    text.parse().map_err(|_| "a number, or all".to_owned())
}

/// A port, TAP or stream that is shown; without a name all of them.
#[derive(Debug, clap::Args)]
pub(crate) struct Shown {
    pub(crate) name: Option<String>,
    /// Measure the port's rates for a second
    #[arg(long, requires = "name")]
    pub(crate) rate: bool,
}

/// The port that `del` deletes.
#[derive(Debug, clap::Args)]
pub struct Deleted {
    pub(crate) name: String,
    /// Succeed if no port has this name
    #[arg(long)]
    pub(crate) if_exists: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PortCommand {
    /// List ports, or the ports of a kind
    #[command(visible_alias = "ls")]
    List {
        /// Print only names
        #[arg(long)]
        names: bool,
    },
    /// Show all ports by bridge and VLAN on one screen, or one port in detail
    Show(Shown),
    /// Wait until a port reaches a state
    Wait {
        name: String,
        /// State to wait for
        #[arg(long = "for", value_name = "STATE", value_enum, default_value = "attached")]
        state: State,
        /// Longest wait, such as 500ms or 30s
        #[arg(long, value_name = "TIME", value_parser = duration, default_value = "30s")]
        timeout: Duration,
    },
    /// Add a port; vioswitch.toml(5) describes the keys
    ///
    /// Without socket=PATH the socket is NAME.sock beside the control socket.
    Add {
        name: String,
        /// {keys}
        #[arg(value_name = "KEY=VALUE")]
        settings: Vec<String>,
        /// Succeed if the port exists with these settings
        #[arg(long)]
        may_exist: bool,
        /// Delete the port at the next start of the switch
        #[arg(long)]
        transient: bool,
        /// Wait until the port reaches this state
        #[arg(long, value_name = "STATE", value_enum)]
        wait: Option<State>,
        /// Longest wait, such as 500ms or 30s
        #[arg(long, value_name = "TIME", value_parser = duration, default_value = "30s")]
        timeout: Duration,
    },
    /// Change settings of a port; KEY= restores the default
    ///
    /// Prints when each change takes effect.
    Set {
        name: String,
        /// {live keys}
        #[arg(value_name = "KEY=VALUE", required = true)]
        settings: Vec<String>,
    },
    /// Undo the changes of vioswitchctl at a port of the configuration
    ///
    /// Also forgets kept changes and entries of this name that have no effect.
    Reset { name: String },
    /// Disconnect and delete a port, and an interface that the switch made for the port
    #[command(visible_aliases = DELETE)]
    Del(Deleted),
}

#[derive(Debug, Subcommand)]
pub(crate) enum MirrorCommand {
    /// List mirrors
    #[command(visible_aliases = ["show", "ls"])]
    List,
    /// Add a mirror; vioswitch.toml(5) describes the keys
    Add {
        #[arg(value_name = "MIRROR")]
        name: String,
        /// {keys}
        #[arg(value_name = "KEY=VALUE", required = true)]
        settings: Vec<String>,
        /// Succeed if the mirror exists with these settings
        #[arg(long)]
        may_exist: bool,
        /// Delete the mirror at the next start of the switch
        #[arg(long)]
        transient: bool,
    },
    /// Delete a mirror
    #[command(visible_aliases = DELETE)]
    Del {
        #[arg(value_name = "MIRROR")]
        name: String,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print the running configuration as a file, with the origin of each entry
    #[command(visible_alias = "export")]
    Show,
    /// Show what a reload would change, and when each change takes effect
    Diff,
    /// Read the files again and apply the differences; an error changes nothing
    Reload {
        /// Undo the reload after SECONDS seconds, or at the next start, unless config confirm runs
        /// before
        #[arg(long, value_name = "SECONDS")]
        confirm: Option<u32>,
    },
    /// Keep the changes of config reload --confirm
    Confirm,
}

#[derive(Debug, Subcommand)]
pub(crate) enum FdbCommand {
    /// Show addresses and their ports
    #[command(visible_aliases = LIST)]
    Show(Of),
    /// Add a static address to the mac of a port
    Add {
        mac: String,
        #[arg(value_name = "NAME")]
        port: String,
    },
    /// Delete a static address
    #[command(visible_aliases = DELETE)]
    Del {
        mac: String,
        /// The port, if several ports have the address
        #[arg(value_name = "NAME")]
        port: Option<String>,
    },
    /// Forget learned addresses; static addresses stay
    Flush(Of),
}

#[derive(Debug, Subcommand)]
pub(crate) enum MdbCommand {
    /// Show queriers, ports with routers, and groups with their members
    #[command(visible_aliases = LIST)]
    Show(Of),
}

/// The choice of a port, bridge or VLAN; all, without any of these.
#[derive(Debug, clap::Args)]
pub struct Of {
    /// Only entries of this port
    name: Option<String>,
    /// Only entries of this port, as NAME does
    #[arg(long, value_name = "NAME", conflicts_with = "name")]
    port: Option<String>,
    /// Only entries of this bridge
    #[arg(long, value_name = "BRIDGE")]
    bridge: Option<String>,
    /// Only entries of this VLAN; 0 stands for entries in no VLAN
    #[arg(long, value_name = "VLAN", value_parser = clap::value_parser!(u16).range(..=4094))]
    vlan: Option<u16>,
}

impl Of {
    /// Returns the port, bridge and VLAN, as a request has them.
    pub(crate) fn place(&self) -> (Option<String>, Option<String>, Option<Number>) {
        let port = self.name.as_ref().or(self.port.as_ref());
        (port.cloned(), self.bridge.clone(), self.vlan.map(Into::into))
    }
}

/// Returns the command line. Commands that need no `port` before them, except `show`, stand only in
/// the list of `port`.
pub fn command() -> clap::Command {
    let ports = PortCommand::augment_subcommands(clap::Command::new("port"));
    let hidden =
        ports.get_subcommands().map(clap::Command::get_name).filter(|name| *name != "show");
    let command = hidden.fold(Options::command(), |command, name| {
        command.mut_subcommand(name, |inner| inner.hide(true))
    });
    with_keys(command, Kind::Port)
}

/// Returns the command with the keys of ports where help lists them.
fn with_keys(command: clap::Command, kind: Kind) -> clap::Command {
    let kind = Kind::named(command.get_name()).unwrap_or(kind);
    let list = |keys: &mut dyn Iterator<Item = &Key>| {
        let keys = keys.filter(|key| key.name != "name").map(|key| match key.is_list {
            true => format!("{} (repeatable)", key.name),
            false => key.name.to_owned(),
        });
        keys.collect::<Vec<_>>().join(", ")
    };
    let filled = |text: String| {
        text.replace("{keys}", &list(&mut kind.keys()))
            .replace("{live keys}", &list(&mut kind.live_keys()))
    };
    let texts = [command.get_about(), command.get_long_about()];
    let [about, long] = texts.map(|text| text.map(|text| filled(text.to_string())));
    let command = about.into_iter().fold(command, clap::Command::about);
    let command = long.into_iter().fold(command, clap::Command::long_about);
    command
        .mut_args(|arg| match arg.get_help().map(|help| filled(help.to_string())) {
            Some(help) => arg.help(help),
            None => arg,
        })
        .mut_subcommands(|inner| with_keys(inner, kind))
}
