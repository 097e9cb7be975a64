//! Commands about filters, groups and connections.
//!
//! `check` finds rules that can never match and groups without addresses, in a file or in the
//! running configuration.

pub(crate) mod check;

use api::config::Kind;
use api::wire::{
    self, Connection, FilterRule, FlushConnections, GetConfig, ListConnections, ListFilters, values,
};
use base::words::counted;
use clap::Subcommand;
use serde::Serialize;

use crate::client::Client;
use crate::failure::Failure;
use crate::output::{Output, listed, rendered, silent, text};
use crate::requests::{changed, delete, new_port};
use crate::show::{self, Columns, changes, listing, maybe, pairs, words};
use crate::values::{DELETE, LIST};

#[derive(Debug, Subcommand)]
pub(crate) enum FilterCommand {
    /// List filters
    #[command(visible_alias = "ls")]
    List,
    /// Show the rules of a filter
    Show {
        #[arg(value_name = "FILTER")]
        name: String,
        /// Show the frames, bytes and connections of each rule
        #[arg(long)]
        counters: bool,
        /// Count only at this port
        #[arg(long, value_name = "NAME", requires = "counters")]
        port: Option<String>,
    },
    /// Add a filter; vioswitch.toml(5) describes the keys
    Add(New),
    /// Change a filter: rules= once for each rule; KEY= restores the default
    Set {
        #[arg(value_name = "FILTER")]
        name: String,
        /// {live keys}
        #[arg(value_name = "KEY=VALUE", required = true)]
        settings: Vec<String>,
    },
    /// Delete a filter that no port names
    #[command(visible_aliases = DELETE)]
    Del {
        #[arg(value_name = "FILTER")]
        name: String,
    },
    /// Find rules that can never match and groups without addresses; exit with status 1 if there
    /// are any
    Check {
        /// A filter, or a configuration file, whose name has a / or ends in .toml
        #[arg(value_name = "FILTER")]
        what: String,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum GroupCommand {
    /// List groups
    #[command(visible_alias = "ls")]
    List,
    /// Show a group
    Show {
        #[arg(value_name = "GROUP")]
        name: String,
    },
    /// Add a group; vioswitch.toml(5) describes the keys
    Add(New),
    /// Change a group; KEY= empties a list
    Set {
        #[arg(value_name = "GROUP")]
        name: String,
        /// {live keys}
        #[arg(value_name = "KEY=VALUE", required = true)]
        settings: Vec<String>,
    },
    /// Delete a group that no rule names
    #[command(visible_aliases = DELETE)]
    Del {
        #[arg(value_name = "GROUP")]
        name: String,
    },
}

/// A filter or group that is added.
#[derive(Debug, clap::Args)]
pub(crate) struct New {
    name: String,
    /// {keys}
    #[arg(value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Succeed if the entry exists with these settings
    #[arg(long)]
    may_exist: bool,
    /// Delete the entry at the next start of the switch
    #[arg(long)]
    transient: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConnectionsCommand {
    /// Show the connections of ports with a filter
    #[command(visible_aliases = LIST)]
    Show {
        #[arg(value_name = "NAME")]
        port: Option<String>,
    },
    /// End connections: the next packet of each meets the rules
    Flush {
        #[arg(value_name = "NAME")]
        port: Option<String>,
    },
}

/// Carries out a command about filters.
pub(crate) fn filter(client: &mut Client, command: &FilterCommand) -> Result<Output, Failure> {
    Ok(match command {
        FilterCommand::List => listed("filters", &filters(client, None, None)?, filter_table),
        FilterCommand::Show { name, counters, port } => {
            let found = filters(client, Some(name), port.clone())?.pop();
            let gone = || Failure::refused(format!("there is no filter '{name}'"));
            rendered(&found.ok_or_else(gone)?, |filter| shown(filter, *counters))
        }
        FilterCommand::Add(new) => add(client, Kind::Filter, new)?,
        FilterCommand::Set { name, settings } => set(client, Kind::Filter, name, settings)?,
        FilterCommand::Del { name } => silent(&delete(client, name, Some(Kind::Filter), false)?),
        FilterCommand::Check { what } => {
            // The filter must exist.
            filters(client, Some(what), None)?;
            let entries = client.list(&GetConfig {}, |part| part.entries)?;
            check::report(&check::settings(&entries), Some(what))
        }
    })
}

/// Carries out a command about groups.
pub(crate) fn group(client: &mut Client, command: &GroupCommand) -> Result<Output, Failure> {
    Ok(match command {
        GroupCommand::List => listed("groups", &groups(client)?, group_table),
        GroupCommand::Show { name } => {
            let found = groups(client)?.into_iter().find(|group| group.name == *name);
            let gone = || Failure::refused(format!("there is no group '{name}'"));
            rendered(&found.ok_or_else(gone)?, group_pairs)
        }
        GroupCommand::Add(new) => add(client, Kind::Group, new)?,
        GroupCommand::Set { name, settings } => set(client, Kind::Group, name, settings)?,
        GroupCommand::Del { name } => silent(&delete(client, name, Some(Kind::Group), false)?),
    })
}

/// Carries out a command about connections.
pub(crate) fn connections(
    client: &mut Client,
    command: &ConnectionsCommand,
) -> Result<Output, Failure> {
    Ok(match command {
        ConnectionsCommand::Show { port } => {
            let request = ListConnections { port: port.clone() };
            let mut all = client.list(&request, |part| part.connections)?;
            // The switch lists connections in no order.
            all.sort_by(|one, other| key(one).cmp(&key(other)));
            listed("connections", &all, connection_table)
        }
        ConnectionsCommand::Flush { port } => {
            let ended = client.call(&FlushConnections { port: port.clone() })?;
            rendered(&ended, |ended| format!("{} ended\n", counted(ended.ended, "connection")))
        }
    })
}

fn add(client: &mut Client, kind: Kind, new: &New) -> Result<Output, Failure> {
    let New { name, settings, may_exist, transient } = new;
    Ok(silent(&client.call(&new_port(kind, name, settings, *may_exist, *transient)?)?))
}

fn set(
    client: &mut Client,
    kind: Kind,
    name: &str,
    settings: &[String],
) -> Result<Output, Failure> {
    let changed = client.call(&changed(kind, name, settings)?)?;
    Ok(rendered(&changed, |answer| changes(&answer.changes)))
}

fn filters(
    client: &mut Client,
    name: Option<&String>,
    port: Option<String>,
) -> Result<Vec<wire::Filter>, Failure> {
    client.list(&ListFilters { name: name.cloned(), port }, |part| part.filters)
}

fn filter_table(all: &[wire::Filter]) -> String {
    let verdict = |verdict: &Option<String>| text(verdict.as_deref().unwrap_or("-"));
    listing(
        all,
        &[
            ("NAME", &|one| text(&one.name)),
            ("DEFAULT-IN", &|one| verdict(&one.default_in)),
            ("DEFAULT-OUT", &|one| verdict(&one.default_out)),
            ("RULES", &|one| one.rules.len().to_string()),
            ("PORTS", &|one| words(&one.ports)),
            ("ORIGIN", &|one| text(&one.origin)),
        ],
    )
}

/// Returns a filter as text: its rules, then its defaults.
fn shown(filter: &wire::Filter, counters: bool) -> String {
    let head = pairs(vec![
        ("name", text(&filter.name)),
        ("origin", text(&filter.origin)),
        ("ports", words(&filter.ports)),
    ]);
    let rules = filter.rules.iter().enumerate();
    let rules = rules.map(|(at, rule)| ((at + 1).to_string(), text(&rule.rule), rule));
    let verdicts = [("in", &filter.default_in), ("out", &filter.default_out)];
    let defaults = verdicts.into_iter().zip(&filter.defaults).map(|((way, verdict), rule)| {
        let text =
            verdict.as_ref().map_or("-".to_owned(), |verdict| text(format!("{way} {verdict}")));
        (format!("default-{way}"), text, rule)
    });
    let rows: Vec<(String, String, &FilterRule)> = rules.chain(defaults).collect();
    let columns: Columns<'_, (String, String, &FilterRule)> = &[
        ("NUMBER", &|row| row.0.clone()),
        ("RULE", &|row| row.1.clone()),
        ("FRAMES", &|row| row.2.frames.to_string()),
        ("BYTES", &|row| row.2.bytes.to_string()),
        ("CONNECTIONS", &|row| row.2.connections.to_string()),
    ];
    let columns = if counters { columns } else { &columns[..2] };
    format!("{head}\n{}", listing(&rows, columns))
}

/// A group, with the filters whose rules name the group.
#[derive(Debug, Serialize)]
struct ShownGroup {
    name: String,
    origin: String,
    addresses: Vec<String>,
    ports: Vec<String>,
    filters: Vec<String>,
}

fn groups(client: &mut Client) -> Result<Vec<ShownGroup>, Failure> {
    let mut entries = client.list(&GetConfig {}, |part| part.entries)?;
    entries.retain(|entry| entry.unused.is_none());
    let all = check::settings(&entries);
    let found = entries.iter().filter(|entry| entry.kind == Kind::Group.name());
    let shown = found.map(|group| {
        let users = all.iter().filter(|one| one.names_group(&group.name));
        ShownGroup {
            name: group.name.clone(),
            origin: group.origin.clone(),
            addresses: values(&group.keys, "addresses").to_vec(),
            ports: values(&group.keys, "ports").to_vec(),
            filters: users.map(|one| one.name.clone()).collect(),
        }
    });
    Ok(shown.collect())
}

fn group_table(all: &[ShownGroup]) -> String {
    listing(
        all,
        &[
            ("NAME", &|one| text(&one.name)),
            ("ADDRESSES", &|one| one.addresses.len().to_string()),
            ("PORTS", &|one| words(&one.ports)),
            ("FILTERS", &|one| words(&one.filters)),
            ("ORIGIN", &|one| text(&one.origin)),
        ],
    )
}

fn group_pairs(group: &ShownGroup) -> String {
    pairs(vec![
        ("name", text(&group.name)),
        ("origin", text(&group.origin)),
        ("addresses", words(&group.addresses)),
        ("ports", words(&group.ports)),
        ("filters", words(&group.filters)),
    ])
}

/// Returns what connections are sorted by.
fn key(one: &Connection) -> impl Ord + '_ {
    let Connection { port, protocol, local, local_port, remote, remote_port, id, .. } = one;
    (port, protocol, local, local_port, remote, remote_port, id)
}

/// Returns an end of a connection, such as `10.0.0.1:22`.
fn end(address: &str, port: Option<u16>) -> String {
    match port {
        None => text(address),
        Some(port) if address.contains(':') => text(format!("[{address}]:{port}")),
        Some(port) => text(format!("{address}:{port}")),
    }
}

fn connection_table(all: &[Connection]) -> String {
    let rule = |one: &Connection| match (&one.filter, one.rule) {
        (Some(filter), Some(rule)) => text(format!("{filter}:{rule}")),
        (Some(filter), None) => text(format!("{filter}:default")),
        (None, _) => "-".to_owned(),
    };
    let vlan: show::Column<'_, Connection> = ("VLAN", &|one| maybe(one.vlan));
    let mut columns: Vec<show::Column<'_, Connection>> = vec![
        ("PORT", &|one| text(&one.port)),
        ("PROTOCOL", &|one| text(&one.protocol)),
        ("LOCAL", &|one| end(&one.local, one.local_port.or(one.id))),
        ("WAY", &|one| if one.outgoing { "->" } else { "<-" }.to_owned()),
        ("REMOTE", &|one| end(&one.remote, one.remote_port)),
        ("STATE", &|one| text(&one.state)),
        ("SECONDS", &|one| one.seconds.to_string()),
        ("RULE", &rule),
    ];
    // The table leaves out a column without a word.
    columns.splice(1..1, all.iter().any(|one| one.vlan.is_some()).then_some(vlan));
    listing(all, &columns)
}
