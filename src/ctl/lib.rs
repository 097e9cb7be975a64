//! vioswitchctl: shows and changes a running switch through the switch's control socket.
//!
//! Exit status: 0 done, 1 refused, 2 usage, 3 no switch, 4 not permitted. A failure is one line
//! that says what to do next. Tables are for people. With `--json` programs get the switch's
//! answer, and a failure as an object on standard error.

#![forbid(unsafe_code)]

mod args;
mod attach;
mod client;
mod complete;
mod config;
mod details;
mod doctor;
mod events;
mod failure;
mod files;
mod filters;
mod foreign;
mod frames;
mod lan;
mod links;
mod look;
#[cfg(test)]
mod manual;
mod network;
mod output;
mod overview;
mod parse;
mod pcapng;
mod qemu;
#[cfg(test)]
mod quoted;
mod requests;
mod run;
mod show;
mod slips;
mod span;
mod stats;
mod tool;
mod top;
mod values;
mod why;

use std::ffi::OsString;
use std::io::Write;
use std::net::IpAddr;
use std::process::ExitCode;

use api::config::Kind;
use api::wire::{
    self, AddAddress, ConfigEntries, ConfirmConfig, DeleteAddress, DiffConfig, FlushAddresses,
    GetConfig, GetStatus, ListAddresses, ListGroups, ListMirrors, ReloadConfig, Reset,
};
use base::limits::RELOAD_REMOVE_TIMEOUT;
use serde_json::json;

use args::{
    ConfigCommand, FdbCommand, MdbCommand, MirrorCommand, Options, PortCommand, Shown,
    SwitchCommand,
};
use client::Client;
use failure::Failure;
use filters::{FilterCommand, check};
use output::{Output, listed, rendered, say, silent, text};
use requests::{changed, delete, new_port, trace};

// testkit sets signals, umask and environment as the tests need.
#[cfg(test)]
use testkit as _;

/// Runs vioswitchctl with the arguments of the process.
pub fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().collect();
    let as_json = parse::wants_json(&args);
    let options = match parse::parse(&args, std::env::var_os("VIOSWITCH_CONTROL")) {
        Ok(options) => options,
        Err(parse::Outcome::Print(text)) => return print(&text),
        Err(parse::Outcome::Usage(line)) => return give_up(&Failure::usage(line), as_json),
    };
    match run(&options) {
        Ok((text, status)) => {
            print(&text);
            ExitCode::from(status)
        }
        Err(failure) => give_up(&failure, as_json),
    }
}

fn print(text: &str) -> ExitCode {
    // A closed pipe (`| head`) is the reader's choice, not an error.
    let _ = std::io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}

fn give_up(failure: &Failure, as_json: bool) -> ExitCode {
    if !failure.text.is_empty() {
        let mut to = std::io::stderr();
        let _ = match as_json {
            true => writeln!(to, "{}", failure.json()),
            false => writeln!(to, "vioswitchctl: {}", failure.text),
        };
    }
    ExitCode::from(failure.status)
}

/// Carries out a command. Returns the text to print, and the exit status.
fn run(options: &Options) -> Result<(String, u8), Failure> {
    let (control, as_json) = (&options.control, options.json);
    let (output, status) = match &options.command {
        SwitchCommand::Complete { words } => return Ok((complete::run(words, control), 0)),
        SwitchCommand::Top { every } => (top::run(control, *every).map(|()| None)?, 0),
        SwitchCommand::Run(run) => (None, run.run(control)?),
        SwitchCommand::Lan(lan) => lan.run()?,
        SwitchCommand::Network(network) => {
            network.run(control).map(|(output, n)| (Some(output), n))?
        }
        SwitchCommand::Doctor(doctor) => doctor.run(control, as_json)?,
        SwitchCommand::Filter(FilterCommand::Check { what }) if check::is_file(what) => {
            let output = check::report(&check::of_file(what)?, None);
            let status = status(&output);
            (Some(output), status)
        }
        command => ask(&mut Client::connect(control)?, command, as_json)?,
    };
    let text = output.map(|(answer, text)| if as_json { format!("{answer:#}\n") } else { text });
    Ok((text.unwrap_or_default(), status))
}

/// Carries out a command that a switch answers. Returns the exit status, and the answer unless the
/// answer was printed as it came.
fn ask(
    client: &mut Client,
    command: &SwitchCommand,
    as_json: bool,
) -> Result<(Option<Output>, u8), Failure> {
    let printed = |()| (None, 0);
    let output = match command {
        SwitchCommand::Complete { .. } | SwitchCommand::Top { .. } | SwitchCommand::Run(_) => {
            return Ok(printed(()));
        }
        SwitchCommand::Lan(_) | SwitchCommand::Network(_) | SwitchCommand::Doctor(_) => {
            return Ok(printed(()));
        }
        SwitchCommand::Stats { watch: Some(every) } => {
            return stats::watch(client, *every, as_json).map(printed);
        }
        SwitchCommand::Events { since, follow } => {
            return events::run(client, *since, *follow, as_json).map(printed);
        }
        SwitchCommand::Why { port, other } => {
            return why::run(client, [port, other]).map(|(output, status)| (Some(output), status));
        }
        SwitchCommand::Capture(capture) => return capture.run(client, as_json).map(printed),
        SwitchCommand::Attach(attach) => attach.run(client, as_json)?,
        SwitchCommand::Metrics => rendered(&look::metrics(client)?, |metrics| metrics.text.clone()),
        SwitchCommand::Health => rendered(&look::health(client)?, show::health),
        SwitchCommand::Drops { port } => {
            rendered(&look::drops(client, port.as_deref())?, show::dropped)
        }
        SwitchCommand::Worker { rate } => {
            let (cycles, workers) = look::workers(client, *rate)?;
            (json!({"cycles_per_second": cycles, "workers": workers}), show::workers(&workers))
        }
        SwitchCommand::Version => version(client)?,
        SwitchCommand::Trace { port, frame } => rendered(&trace(client, port, frame)?, why::trace),
        SwitchCommand::Status => rendered(&client.call(&GetStatus {})?, show::status),
        SwitchCommand::Stats { watch: None } => rendered(&look::stats(client)?, show::stats),
        SwitchCommand::Port(command) | SwitchCommand::OfPort(command) => {
            port(client, None, command)?
        }
        SwitchCommand::Mirror(command) => mirror(client, command)?,
        SwitchCommand::Filter(command) => filters::filter(client, command)?,
        SwitchCommand::Group(command) => filters::group(client, command)?,
        SwitchCommand::Connections(command) => filters::connections(client, command)?,
        SwitchCommand::Mdb(command) => mdb(client, command)?,
        SwitchCommand::Config(command) => configuration(client, command)?,
        SwitchCommand::Fdb(command) => fdb(client, command)?,
        SwitchCommand::Tap(command) => port(client, Some(Kind::Tap), command)?,
        SwitchCommand::Xdp(command) => port(client, Some(Kind::Xdp), command)?,
        SwitchCommand::Stream(command) => port(client, Some(Kind::Stream), command)?,
        SwitchCommand::Vduse(command) => port(client, Some(Kind::Vduse), command)?,
    };
    let status = status(&output);
    Ok((Some(output), status))
}

/// Returns the exit status of an answer: 1 for a degraded switch and for faults of filters.
fn status(output: &Output) -> u8 {
    let has_faults = output.0["faults"].as_array().is_some_and(|faults| !faults.is_empty());
    u8::from(has_faults || output.0["health"] == "degraded")
}

/// Returns the versions of the client and the switch, for `version`.
fn version(client: &mut Client) -> Result<Output, Failure> {
    let (own, switch) = (env!("CARGO_PKG_VERSION"), client.call(&GetStatus {})?.version);
    if own != switch {
        say("this program and the switch have different versions");
    }
    let text = show::pairs(vec![("client", own.to_owned()), ("switch", text(&switch))]);
    Ok((json!({"client": own, "switch": switch}), text))
}

/// Carries out a command about ports of a kind. Without a kind the command is about ports of any
/// kind, and adds and sets ports of virtual machines.
fn port(client: &mut Client, kind: Option<Kind>, command: &PortCommand) -> Result<Output, Failure> {
    let new = kind.unwrap_or(Kind::Port);
    Ok(match command {
        PortCommand::List { names } => {
            let table = if *names { show::names } else { show::ports };
            listed("ports", &look::of_kind(client, kind)?, table)
        }
        PortCommand::Show(Shown { name: Some(name), rate }) => {
            rendered(&look::port(client, name, *rate)?, details::show)
        }
        PortCommand::Show(Shown { name: None, .. }) => {
            rendered(&overview::look(client, kind)?, overview::show)
        }
        PortCommand::Wait { name, state, timeout } => {
            silent(&look::wait(client, name, *state, *timeout)?)
        }
        PortCommand::Add { name, settings, may_exist, transient, wait, timeout } => {
            let add = new_port(new, name, settings, *may_exist, *transient)?;
            let added = client.call(&add)?;
            let mut answer = wire::json(&added);
            if let Some(state) = wait {
                answer["port"] = wire::json(&look::wait(client, name, *state, *timeout)?.port);
            }
            (answer, added.socket.map_or_else(String::new, |path| text(path) + "\n"))
        }
        PortCommand::Set { name, settings } => {
            let changed = client.call(&changed(new, name, settings)?)?;
            rendered(&changed, |answer| show::changes(&answer.changes))
        }
        PortCommand::Reset { name } => {
            let reset = client.call(&Reset { name: name.clone() })?;
            rendered(&reset, |answer| show::changes(&answer.changes))
        }
        PortCommand::Del(one) => {
            let deleted = delete(client, &one.name, kind, one.if_exists)?;
            rendered(&deleted, |answer| match answer.in_progress {
                Some(true) => "the removal continues: the port's thread has not ended yet\n".into(),
                _ => String::new(),
            })
        }
    })
}

/// Carries out a command about mirrors.
fn mirror(client: &mut Client, command: &MirrorCommand) -> Result<Output, Failure> {
    Ok(match command {
        MirrorCommand::List => {
            listed("mirrors", &client.call(&ListMirrors {})?.mirrors, details::mirrors)
        }
        MirrorCommand::Add { name, settings, may_exist, transient } => {
            // from=PORT,vlan=N is two keys: no value has a comma.
            let parts = settings.iter().flat_map(|one| one.split(',')).map(str::to_owned);
            let parts: Vec<String> = parts.collect();
            silent(&client.call(&new_port(Kind::Mirror, name, &parts, *may_exist, *transient)?)?)
        }
        MirrorCommand::Del { name } => silent(&delete(client, name, Some(Kind::Mirror), false)?),
    })
}

/// Carries out a command about the configuration.
fn configuration(client: &mut Client, command: &ConfigCommand) -> Result<Output, Failure> {
    Ok(match command {
        ConfigCommand::Show => {
            let mut all = ConfigEntries::default();
            client.parts(&GetConfig {}, |mut part: ConfigEntries| {
                all.entries.append(&mut part.entries);
                all.switch = all.switch.take().or(part.switch);
                all.template = all.template.take().or(part.template);
                true
            })?;
            rendered(&all, config::running)
        }
        ConfigCommand::Diff => {
            listed("steps", &client.list(&DiffConfig {}, |part| part.steps)?, config::steps)
        }
        ConfigCommand::Reload { confirm } => {
            client.wait_for(RELOAD_REMOVE_TIMEOUT)?;
            let confirm_seconds = confirm.map(Into::into);
            rendered(&client.call(&ReloadConfig { confirm_seconds })?, config::reloaded)
        }
        ConfigCommand::Confirm => silent(&client.call(&ConfirmConfig {})?),
    })
}

/// Carries out a command about multicast groups.
fn mdb(client: &mut Client, MdbCommand::Show(of): &MdbCommand) -> Result<Output, Failure> {
    let (port, bridge, vlan) = of.place();
    let mut all = client.list(&ListGroups { port, bridge, vlan }, |part| part.groups)?;
    // The switch lists members in no order, behind all other entries.
    all.sort_by_cached_key(|one| {
        let group = one.group.as_ref().map(|group| group.parse::<IpAddr>().ok());
        group.map(|group| (one.bridge.clone(), one.vlan, group, one.port.clone()))
    });
    Ok(listed("groups", &all, show::groups))
}

/// Carries out a command about addresses.
fn fdb(client: &mut Client, command: &FdbCommand) -> Result<Output, Failure> {
    Ok(match command {
        FdbCommand::Add { mac, port } => {
            silent(&client.call(&AddAddress { mac: mac.clone(), port: port.clone() })?)
        }
        FdbCommand::Del { mac, port } => {
            silent(&client.call(&DeleteAddress { mac: mac.clone(), port: port.clone() })?)
        }
        FdbCommand::Show(of) => {
            let (port, bridge, vlan) = of.place();
            let all = client.list(&ListAddresses { port, bridge, vlan }, |part| part.addresses)?;
            listed("addresses", &all, show::addresses)
        }
        FdbCommand::Flush(of) => {
            let (port, bridge, vlan) = of.place();
            rendered(&client.call(&FlushAddresses { port, bridge, vlan })?, show::flushed)
        }
    })
}
