//! vioswitchctl: shows and changes a switch while it runs, by its control socket.
//!
//! Exit status: 0 done, 1 refused, 2 usage, 3 no switch, 4 not permitted. A failure is one line
//! that says what to do next. Tables are for people. With `--json` programs get what the switch
//! said, and a failure as an object on standard error.

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
mod frames;
mod look;
#[cfg(test)]
mod manual;
mod network;
mod pcapng;
mod qemu;
mod run;
mod save;
mod show;
mod tool;
mod top;
mod why;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use serde_json::{Map, Value, json};
use vioswitch::config::{KEYS, Key, Kind};
use vioswitch::limits::RELOAD_REMOVE_TIMEOUT;

use args::{Command, Config, Fdb, Options, Port};
use client::Client;
use failure::Failure;

// Sets signals, umask and environment as tests rely on them.
#[cfg(test)]
use testkit as _;

const SWITCH: &str = "io.vioswitch.Switch";

fn main() -> ExitCode {
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

/// Carries a command out; what is to be printed, and the exit status.
fn run(options: &Options) -> Result<(String, u8), Failure> {
    if let Command::Complete { words } = &options.command {
        return Ok((complete::run(words, &options.control), 0));
    }
    if let Command::Top { every } = &options.command {
        return top::run(&options.control, *every).map(|()| (String::new(), 0));
    }
    if let Command::Run(wanted) = &options.command {
        return wanted.run(&options.control).map(|status| (String::new(), status));
    }
    if let Command::Network(wanted) = &options.command {
        return wanted.run(&options.control, options.json);
    }
    if let Command::Doctor(doctor) = &options.command {
        return doctor.run(&options.control, options.json);
    }
    let mut client = Client::connect(&options.control)?;
    let (answer, table): Told = match &options.command {
        Command::Metrics => (look::metrics(&mut client)?, show::metrics),
        Command::Complete { .. }
        | Command::Top { .. }
        | Command::Run(_)
        | Command::Network(_)
        | Command::Doctor(_) => (json!({}), show::nothing),
        Command::Health => (look::health(&mut client)?, show::health),
        Command::Drops { port } => (look::drops(&mut client, port.as_deref())?, show::dropped),
        Command::Worker { rate } => (look::workers(&mut client, *rate)?, show::workers),
        Command::Version => (look::version(&mut client)?, show::version),
        Command::Stats { watch: Some(every) } => {
            look::watch(&mut client, *every, options.json)?;
            return Ok((String::new(), 0));
        }
        Command::Events { since, follow } => {
            events::run(&mut client, *since, *follow, options.json)?;
            return Ok((String::new(), 0));
        }
        Command::Trace { port, frame } => (trace(&mut client, port, frame)?, why::trace),
        Command::Why { port, other } => {
            let names = [port.as_str(), other.as_str()];
            let report = why::run(&mut client, SWITCH, names)?;
            let text = match options.json {
                true => format!("{:#}\n", report.json()),
                false => report.lines(names),
            };
            print(&text);
            return if report.is_clear() { Ok((String::new(), 0)) } else { Err(Failure::told()) };
        }
        Command::Attach(attach) => return Ok((attach.run(&mut client, options.json)?, 0)),
        Command::Capture(capture) => {
            capture.run(&mut client, options.json)?;
            return Ok((String::new(), 0));
        }
        Command::Config { command: Config::Save(save) } => {
            save.run(&mut client, options.json)?;
            return Ok((String::new(), 0));
        }
        Command::Status => (ask(&mut client, "GetStatus", json!({}))?, show::status),
        Command::Stats { watch: None } => (look::stats(&mut client)?, show::stats),
        Command::Port { command } | Command::OfPort(command) => port(&mut client, None, command)?,
        Command::Config { command } => configuration(&mut client, command)?,
        Command::Fdb { command } => fdb(&mut client, command)?,
        Command::Tap { command } => port(&mut client, Some(Kind::Tap), command)?,
        Command::Stream { command } => port(&mut client, Some(Kind::Stream), command)?,
    };
    let text = if options.json { format!("{answer:#}\n") } else { table(&answer) };
    let differs =
        matches!(options.command, Command::Version) && answer["client"] != answer["switch"];
    if differs {
        let _ = writeln!(std::io::stderr(), "vioswitchctl: the switch is of another version");
    }
    Ok((text, u8::from(answer["health"] == "degraded")))
}

/// An answer, and how it is told to people.
type Told = (Value, fn(&Value) -> String);

fn ask(client: &mut Client, method: &str, parameters: Value) -> Result<Value, Failure> {
    client.call(&format!("{SWITCH}.{method}"), parameters)
}

/// The commands about ports of a kind; of none, which is of any, VMs' are added and set.
fn port(client: &mut Client, kind: Option<Kind>, command: &Port) -> Result<Told, Failure> {
    let method = |verb: &str| format!("{verb}{}", kind.unwrap_or(Kind::Port).title());
    Ok(match command {
        Port::List { names } => {
            let table = if *names { show::names } else { show::ports };
            (look::of_kind(client, kind)?, table)
        }
        Port::Show(one) => (look::port(client, &one.name, one.rate)?, details::show),
        Port::Wait { name, state, timeout } => {
            (look::wait(client, name, *state, *timeout)?, show::nothing)
        }
        Port::Add { name, settings, may_exist, wait, timeout } => {
            let wanted = new_port(name, settings, *may_exist)?;
            let mut added = ask(client, &method("Add"), wanted)?;
            if let Some(state) = wait {
                let waited = look::wait(client, name, *state, *timeout)?;
                added["port"] = waited["port"].clone();
            }
            (added, show::added)
        }
        Port::Set { name, settings } => {
            (ask(client, &method("Set"), changed(name, settings)?)?, show::changes)
        }
        Port::Del(one) => {
            (delete(client, &one.name, kind.map(Kind::name), one.if_exists)?, show::deleted)
        }
    })
}

/// The commands about the configuration.
fn configuration(client: &mut Client, command: &Config) -> Result<Told, Failure> {
    Ok(match command {
        Config::Show => (list(client, "GetConfig", "entries", json!({}))?, config::entries),
        Config::Diff => (list(client, "DiffConfig", "steps", json!({}))?, config::steps),
        Config::Reload { confirm } => {
            let seconds = confirm.map_or(json!({}), |n| json!({"confirm_seconds": n}));
            client.wait_for(RELOAD_REMOVE_TIMEOUT)?;
            (ask(client, "ReloadConfig", seconds)?, config::reloaded)
        }
        Config::Confirm => (ask(client, "ConfirmConfig", json!({}))?, show::nothing),
        // It asks for several answers, and is told otherwise.
        Config::Save(_) => (json!({}), show::nothing),
    })
}

/// The commands about addresses.
fn fdb(client: &mut Client, command: &Fdb) -> Result<Told, Failure> {
    Ok(match command {
        Fdb::Add { mac, port } => {
            let wanted = json!({"mac": mac, "port": port});
            (ask(client, "AddAddress", wanted)?, show::nothing)
        }
        Fdb::Del { mac } => (ask(client, "DeleteAddress", json!({"mac": mac}))?, show::nothing),
        Fdb::Show { of } => {
            let port = json!({"port": of.port()});
            (list(client, "ListAddresses", "addresses", port)?, show::addresses)
        }
        Fdb::Flush { of } => {
            (ask(client, "FlushAddresses", json!({"port": of.port()}))?, show::flushed)
        }
    })
}

/// Deletes what has this name, if it is of this kind; `None` for any.
fn delete(
    client: &mut Client,
    name: &str,
    kind: Option<&str>,
    if_exists: bool,
) -> Result<Value, Failure> {
    let mut parameters = json!({"name": name});
    if let Some(kind) = kind {
        parameters["kind"] = kind.into();
    }
    match ask(client, "DeletePort", parameters) {
        Err(failure) if if_exists && failure.is(SWITCH, "NoSuchPort") => Ok(json!({})),
        answer => answer,
    }
}

/// `trace PORT src=MAC dst=MAC len=BYTES`. Errors name these keys, not the switch's parameters.
fn trace(client: &mut Client, port: &str, settings: &[String]) -> Result<Value, Failure> {
    const KEYS: [(&str, &str); 3] = [("src", "source"), ("dst", "destination"), ("len", "length")];
    let form = "a frame is src=MAC dst=MAC [len=BYTES]";
    let mut parameters = json!({"port": port});
    for setting in settings {
        let (key, word) = setting.split_once('=').unwrap_or((setting, ""));
        let Some((_, parameter)) = KEYS.iter().find(|(known, _)| *known == key) else {
            return Err(Failure::usage(format!("unknown key '{key}': {form}")));
        };
        parameters[parameter] = match key {
            "len" => length(word)?.into(),
            _ => word.into(),
        };
    }
    if let Some((key, _)) = KEYS[..2].iter().find(|(_, name)| parameters.get(name).is_none()) {
        return Err(Failure::usage(format!("{key} is missing: {form}")));
    }
    ask(client, "Trace", parameters).map_err(|failure| {
        failure.told_as(|text| {
            let theirs = KEYS.iter().find_map(|(key, name)| Some((key, text.strip_prefix(name)?)));
            theirs.map_or(text.to_owned(), |(key, rest)| format!("{key}{rest}"))
        })
    })
}

/// A frame's, from an Ethernet header to the longest that the switch carries.
fn length(word: &str) -> Result<u64, Failure> {
    let length = word.parse().ok().filter(|length| (14..=65_557).contains(length));
    let wanted = || format!("len must be a number from 14 to 65557, not '{word}'");
    length.ok_or_else(|| Failure::usage(wanted()))
}

/// All parts of an answer together.
fn list(client: &mut Client, method: &str, key: &str, parameters: Value) -> Result<Value, Failure> {
    let mut all = Vec::new();
    client.call_more(&format!("{SWITCH}.{method}"), parameters, |mut part| {
        if let Some(Value::Array(items)) = part.get_mut(key) {
            all.append(items);
        }
    })?;
    Ok(json!({key: all}))
}

/// What is to be added.
fn new_port(name: &str, settings: &[String], may_exist: bool) -> Result<Value, Failure> {
    let mut parameters = parameters(name, settings)?;
    if may_exist {
        parameters["may_exist"] = true.into();
    }
    Ok(parameters)
}

/// What is to be changed: a key without a value gets its default.
fn changed(name: &str, settings: &[String]) -> Result<Value, Failure> {
    let is_unset = |setting: &&String| setting.len() > 1 && setting.ends_with('=');
    let (unset, given): (Vec<&String>, Vec<&String>) = settings.iter().partition(is_unset);
    let given: Vec<String> = given.into_iter().cloned().collect();
    let mut parameters = parameters(name, &given)?;
    if !unset.is_empty() {
        let keys = unset.iter().map(|setting| setting.trim_end_matches('='));
        parameters["unset"] = keys.collect();
    }
    Ok(parameters)
}

/// `KEY=VALUE …` as parameters: varlink has `_` where the configuration has `-`, numbers where
/// these are meant, and a list where a key may be repeated.
fn parameters(name: &str, settings: &[String]) -> Result<Value, Failure> {
    let mut parameters = Map::new();
    parameters.insert("name".to_owned(), name.into());
    for setting in settings {
        let Some((key, word)) = setting.split_once('=') else {
            let text = format!("{setting:?} is not KEY=VALUE, see vioswitchctl port add --help");
            return Err(Failure::usage(text));
        };
        let key = key.replace('-', "_");
        let known = KEYS.iter().find(|known| known.field() == key);
        let value = match (known.map_or("", Key::varlink), word.parse::<i64>()) {
            ("int", Ok(number)) => number.into(),
            ("[]string", _) => json!([word]),
            _ => word.into(),
        };
        match (parameters.get_mut(&key), value) {
            (Some(Value::Array(all)), Value::Array(mut more)) => all.append(&mut more),
            (Some(_), _) => return Err(Failure::usage(format!("{key} is given twice"))),
            (None, value) => drop(parameters.insert(key, value)),
        }
    }
    Ok(Value::Object(parameters))
}
