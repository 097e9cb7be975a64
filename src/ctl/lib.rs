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
mod links;
mod look;
#[cfg(test)]
mod manual;
mod network;
mod overview;
mod pcapng;
mod qemu;
#[cfg(test)]
mod quoted;
mod run;
mod show;
mod slips;
mod span;
mod tool;
mod top;
mod why;

use std::ffi::OsString;
use std::io::Write;
use std::net::IpAddr;
use std::process::ExitCode;

use api::config::{KEYS, Key, Kind};
use api::wire::{
    self, Add, AddAddress, ConfigEntries, ConfirmConfig, Delete, DeleteAddress, Deleted,
    DiffConfig, EntryKeys, FlushAddresses, GetConfig, GetStatus, ListAddresses, ListGroups,
    ListMirrors, LiveKeys, Parameters, ReloadConfig, Reset, Set, Trace,
};
use base::limits::RELOAD_REMOVE_TIMEOUT;
use serde::Serialize;
use serde_json::{Value, json};

use args::{Command, Config, Fdb, Mdb, Mirror, Options, Port, Shown};
use client::Client;
use failure::Failure;
use filters::{Filter, check};

// testkit sets signals, umask and environment as the tests need.
#[cfg(test)]
use testkit as _;

/// Runs vioswitchctl with the arguments of the process.
pub fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().collect();
    let as_json = args::wants_json(&args);
    let options = match args::parse(&args, std::env::var_os("VIOSWITCH_CONTROL")) {
        Ok(options) => options,
        Err(args::Outcome::Print(text)) => return print(&text),
        Err(args::Outcome::Usage(line)) => return give_up(&Failure::usage(line), as_json),
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

/// An answer for programs, and the answer as people read it.
type Told = (Value, String);

fn told<T: Serialize>(answer: &T, text: impl FnOnce(&T) -> String) -> Told {
    (wire::json(answer), text(answer))
}

/// Returns an answer without a text for people.
fn done<T: Serialize>(answer: &T) -> Told {
    told(answer, |_| String::new())
}

/// Returns a list as an answer, in which the list has the name `key`.
fn listed<T: Serialize>(key: &str, items: &[T], text: impl FnOnce(&[T]) -> String) -> Told {
    (json!({key: items}), text(items))
}

/// Carries out a command. Returns the text to print, and the exit status.
fn run(options: &Options) -> Result<(String, u8), Failure> {
    let (control, as_json) = (&options.control, options.json);
    let (told, status) = match &options.command {
        Command::Complete { words } => return Ok((complete::run(words, control), 0)),
        Command::Top { every } => (top::run(control, *every).map(|()| None)?, 0),
        Command::Run(run) => (None, run.run(control)?),
        Command::Network(network) => network.run(control).map(|(told, n)| (Some(told), n))?,
        Command::Doctor(doctor) => doctor.run(control, as_json)?,
        Command::Filter(Filter::Check { what }) if check::is_file(what) => {
            let told = check::told(&check::of_file(what)?, None);
            let status = status(&told);
            (Some(told), status)
        }
        command => ask(&mut Client::connect(control)?, command, as_json)?,
    };
    let text = told.map(|(answer, text)| if as_json { format!("{answer:#}\n") } else { text });
    Ok((text.unwrap_or_default(), status))
}

/// Carries out a command that a switch answers. Returns the exit status, and the answer unless the
/// answer was printed as it came.
fn ask(
    client: &mut Client,
    command: &Command,
    as_json: bool,
) -> Result<(Option<Told>, u8), Failure> {
    let printed = |()| (None, 0);
    let told = match command {
        Command::Complete { .. } | Command::Top { .. } | Command::Run(_) => return Ok(printed(())),
        Command::Network(_) | Command::Doctor(_) => return Ok(printed(())),
        Command::Stats { watch: Some(every) } => {
            return look::watch(client, *every, as_json).map(printed);
        }
        Command::Events { since, follow } => {
            return events::run(client, *since, *follow, as_json).map(printed);
        }
        Command::Why { port, other } => {
            return why::run(client, [port, other]).map(|(told, status)| (Some(told), status));
        }
        Command::Capture(capture) => return capture.run(client, as_json).map(printed),
        Command::Attach(attach) => attach.run(client, as_json)?,
        Command::Metrics => told(&look::metrics(client)?, |metrics| metrics.text.clone()),
        Command::Health => told(&look::health(client)?, show::health),
        Command::Drops { port } => told(&look::drops(client, port.as_deref())?, show::dropped),
        Command::Worker { rate } => {
            let (cycles, workers) = look::workers(client, *rate)?;
            (json!({"cycles_per_second": cycles, "workers": workers}), show::workers(&workers))
        }
        Command::Version => version(client)?,
        Command::Trace { port, frame } => told(&trace(client, port, frame)?, why::trace),
        Command::Status => told(&client.call(&GetStatus {})?, show::status),
        Command::Stats { watch: None } => told(&look::stats(client)?, show::stats),
        Command::Port(command) | Command::OfPort(command) => port(client, None, command)?,
        Command::Mirror(command) => mirror(client, command)?,
        Command::Filter(command) => filters::filter(client, command)?,
        Command::Group(command) => filters::group(client, command)?,
        Command::Connections(command) => filters::connections(client, command)?,
        Command::Mdb(command) => mdb(client, command)?,
        Command::Config(command) => configuration(client, command)?,
        Command::Fdb(command) => fdb(client, command)?,
        Command::Tap(command) => port(client, Some(Kind::Tap), command)?,
        Command::Xdp(command) => port(client, Some(Kind::Xdp), command)?,
        Command::Stream(command) => port(client, Some(Kind::Stream), command)?,
    };
    let status = status(&told);
    Ok((Some(told), status))
}

/// Returns the exit status of an answer: 1 for a degraded switch and for faults of filters.
fn status(told: &Told) -> u8 {
    let has_faults = told.0["faults"].as_array().is_some_and(|faults| !faults.is_empty());
    u8::from(has_faults || told.0["health"] == "degraded")
}

/// Returns the versions of the client and the switch, for `version`.
fn version(client: &mut Client) -> Result<Told, Failure> {
    let (own, switch) = (env!("CARGO_PKG_VERSION"), client.call(&GetStatus {})?.version);
    if own != switch {
        say("the switch is of another version");
    }
    let text = show::pairs(vec![("client", own.to_owned()), ("switch", show::text(&switch))]);
    Ok((json!({"client": own, "switch": switch}), text))
}

/// Carries out a command about ports of a kind. Without a kind the command is about ports of any
/// kind, and adds and sets ports of virtual machines.
fn port(client: &mut Client, kind: Option<Kind>, command: &Port) -> Result<Told, Failure> {
    let new = kind.unwrap_or(Kind::Port);
    Ok(match command {
        Port::List { names } => {
            let table = if *names { show::names } else { show::ports };
            listed("ports", &look::of_kind(client, kind)?, table)
        }
        Port::Show(Shown { name: Some(name), rate }) => {
            told(&look::port(client, name, *rate)?, details::show)
        }
        Port::Show(Shown { name: None, .. }) => {
            told(&overview::look(client, kind)?, overview::show)
        }
        Port::Wait { name, state, timeout } => done(&look::wait(client, name, *state, *timeout)?),
        Port::Add { name, settings, may_exist, transient, wait, timeout } => {
            let add = new_port(new, name, settings, *may_exist, *transient)?;
            let added = client.call(&add)?;
            let mut answer = wire::json(&added);
            if let Some(state) = wait {
                answer["port"] = wire::json(&look::wait(client, name, *state, *timeout)?.port);
            }
            (answer, added.socket.map_or_else(String::new, |path| show::text(path) + "\n"))
        }
        Port::Set { name, settings } => {
            let changed = client.call(&changed(new, name, settings)?)?;
            told(&changed, |answer| show::changes(&answer.changes))
        }
        Port::Reset { name } => {
            let reset = client.call(&Reset { name: name.clone() })?;
            told(&reset, |answer| show::changes(&answer.changes))
        }
        Port::Del(one) => {
            let deleted = delete(client, &one.name, kind, one.if_exists)?;
            told(&deleted, |answer| match answer.in_progress {
                Some(true) => {
                    "the removal continues: what served the port has not ended yet\n".into()
                }
                _ => String::new(),
            })
        }
    })
}

/// Carries out a command about mirrors.
fn mirror(client: &mut Client, command: &Mirror) -> Result<Told, Failure> {
    Ok(match command {
        Mirror::List => listed("mirrors", &client.call(&ListMirrors {})?.mirrors, details::mirrors),
        Mirror::Add { name, settings, may_exist, transient } => {
            // from=PORT,vlan=N is two keys: no value has a comma.
            let parts = settings.iter().flat_map(|one| one.split(',')).map(str::to_owned);
            let parts: Vec<String> = parts.collect();
            done(&client.call(&new_port(Kind::Mirror, name, &parts, *may_exist, *transient)?)?)
        }
        Mirror::Del { name } => done(&delete(client, name, Some(Kind::Mirror), false)?),
    })
}

/// Carries out a command about the configuration.
fn configuration(client: &mut Client, command: &Config) -> Result<Told, Failure> {
    Ok(match command {
        Config::Show => {
            let mut all = ConfigEntries::default();
            client.parts(&GetConfig {}, |mut part: ConfigEntries| {
                all.entries.append(&mut part.entries);
                all.switch = all.switch.take().or(part.switch);
                all.template = all.template.take().or(part.template);
                true
            })?;
            told(&all, config::running)
        }
        Config::Diff => {
            listed("steps", &client.list(&DiffConfig {}, |part| part.steps)?, config::steps)
        }
        Config::Reload { confirm } => {
            client.wait_for(RELOAD_REMOVE_TIMEOUT)?;
            let confirm_seconds = confirm.map(Into::into);
            told(&client.call(&ReloadConfig { confirm_seconds })?, config::reloaded)
        }
        Config::Confirm => done(&client.call(&ConfirmConfig {})?),
    })
}

/// Carries out a command about multicast groups.
fn mdb(client: &mut Client, Mdb::Show(of): &Mdb) -> Result<Told, Failure> {
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
fn fdb(client: &mut Client, command: &Fdb) -> Result<Told, Failure> {
    Ok(match command {
        Fdb::Add { mac, port } => {
            done(&client.call(&AddAddress { mac: mac.clone(), port: port.clone() })?)
        }
        Fdb::Del { mac, port } => {
            done(&client.call(&DeleteAddress { mac: mac.clone(), port: port.clone() })?)
        }
        Fdb::Show(of) => {
            let (port, bridge, vlan) = of.place();
            let all = client.list(&ListAddresses { port, bridge, vlan }, |part| part.addresses)?;
            listed("addresses", &all, show::addresses)
        }
        Fdb::Flush(of) => {
            let (port, bridge, vlan) = of.place();
            told(&client.call(&FlushAddresses { port, bridge, vlan })?, show::flushed)
        }
    })
}

/// Deletes the entry of this name, if the entry is of this kind; `None` stands for any kind.
fn delete(
    client: &mut Client,
    name: &str,
    kind: Option<Kind>,
    if_exists: bool,
) -> Result<Deleted, Failure> {
    let (name, kind) = (name.to_owned(), kind.map(|kind| kind.word().to_owned()));
    match client.call(&Delete { name, kind }) {
        Err(failure) if if_exists && failure.is("NoSuchPort") => Ok(Deleted::default()),
        answer => answer,
    }
}

/// Returns the answer for `trace PORT src=MAC dst=MAC vlan=VLAN ip=IP len=BYTES`, or for `trace
/// PORT frame=BASE64`.
fn trace(client: &mut Client, port: &str, settings: &[String]) -> Result<wire::Traced, Failure> {
    let frame: Result<Trace, _> = wire::read(parameters(("port", port), settings)?);
    client.call(&frame.map_err(|fault| Failure::answered(fault.message()))?)
}

/// Returns the request to add a port.
fn new_port(
    kind: Kind,
    name: &str,
    settings: &[String],
    may_exist: bool,
    transient: bool,
) -> Result<Add, Failure> {
    let keys = EntryKeys(parameters(("name", name), settings)?);
    let (kind, may_exist) = (Some(kind.word().to_owned()), Some(may_exist));
    Ok(Add { kind, may_exist, transient: transient.then_some(true), keys })
}

/// Returns the request to change a port: a key without a value gets its default.
fn changed(kind: Kind, name: &str, settings: &[String]) -> Result<Set, Failure> {
    let is_unset = |setting: &&String| setting.len() > 1 && setting.ends_with('=');
    let (unset, given): (Vec<&String>, Vec<&String>) = settings.iter().partition(is_unset);
    let unset = unset.iter().map(|setting| setting.trim_end_matches('=').to_owned()).collect();
    let keys = LiveKeys(parameters(("name", name), given)?);
    Ok(Set { kind: Some(kind.word().to_owned()), unset: Some(unset), keys })
}

/// Returns `KEY=VALUE …` as parameters of varlink: a key has `_` for each `-`, an integer key has a
/// number, and a repeatable key has a list.
fn parameters<'s>(
    (first, name): (&str, &str),
    settings: impl IntoIterator<Item = &'s String>,
) -> Result<Parameters, Failure> {
    let mut parameters = Parameters::new();
    parameters.insert(first.to_owned(), name.into());
    for setting in settings {
        let Some((key, word)) = setting.split_once('=') else {
            let text = format!("{setting:?} is not KEY=VALUE, see vioswitchctl port add --help");
            return Err(Failure::usage(text));
        };
        let key = key.replace('-', "_");
        let known = KEYS.iter().find(|known| known.field() == key);
        let value = match (known.map(Key::varlink), word.parse::<i64>()) {
            // A key that no port has, such as a frame's length, may be a number.
            (Some("int") | None, Ok(number)) => number.into(),
            (Some("[]string"), _) => json!([word]),
            _ => word.into(),
        };
        match (parameters.get_mut(&key), value) {
            (Some(Value::Array(all)), Value::Array(mut more)) => all.append(&mut more),
            (Some(_), _) => return Err(Failure::usage(format!("{key} is given twice"))),
            (None, value) => drop(parameters.insert(key, value)),
        }
    }
    Ok(parameters)
}

/// Writes a line for people to standard error. A failure to write the line does not end the
/// command.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "vioswitchctl: {line}");
}
