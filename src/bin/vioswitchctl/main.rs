//! vioswitchctl: shows and changes a switch while it runs, by its control socket.
//!
//! Exit status: 0 done, 1 refused, 2 usage, 3 no switch, 4 not permitted. A failure is one line
//! that says what to do next. Tables are for people; `--json` is what the switch said, for
//! programs.

mod args;
mod client;
mod events;
mod failure;
mod frames;
mod pcapng;
mod show;
mod why;

use std::io::Write;
use std::process::ExitCode;

use serde_json::{Map, Value, json};

use args::{Command, Fdb, Options, Port, Tap};
use client::Client;
use failure::Failure;

const SWITCH: &str = "io.vioswitch.Switch";

fn main() -> ExitCode {
    let options = match args::parse(std::env::args_os()) {
        Ok(options) => options,
        Err(args::Outcome::Print(text)) => return print(&text),
        Err(args::Outcome::Usage(line)) => return give_up(&Failure::usage(line)),
    };
    match run(&options) {
        Ok(text) => print(&text),
        Err(failure) => give_up(&failure),
    }
}

fn print(text: &str) -> ExitCode {
    // A closed pipe (`| head`) is the reader's choice, not an error.
    let _ = std::io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}

fn give_up(failure: &Failure) -> ExitCode {
    if !failure.text.is_empty() {
        let _ = writeln!(std::io::stderr(), "vioswitchctl: {}", failure.text);
    }
    ExitCode::from(failure.status)
}

/// Carries a command out; what is to be printed.
fn run(options: &Options) -> Result<String, Failure> {
    let mut client = Client::connect(&options.control)?;
    let ask = |client: &mut Client, method: &str, parameters: Value| {
        client.call(&format!("{SWITCH}.{method}"), parameters)
    };
    let (answer, table): (Value, fn(&Value) -> String) = match &options.command {
        Command::Events { since, follow } => {
            events::run(&mut client, SWITCH, *since, *follow, options.json)?;
            return Ok(String::new());
        }
        Command::Trace { port, frame } => {
            let frame = frame_of(port, frame)?;
            (ask(&mut client, "Trace", frame)?, why::trace)
        }
        Command::Why { port, other } => {
            let names = [port.as_str(), other.as_str()];
            let report = why::run(&mut client, SWITCH, names)?;
            let text = match options.json {
                true => format!("{:#}\n", report.json()),
                false => report.lines(names),
            };
            print(&text);
            return if report.is_clear() { Ok(String::new()) } else { Err(Failure::told()) };
        }
        Command::Capture(capture) => {
            capture.run(&mut client, options.json, SWITCH)?;
            return Ok(String::new());
        }
        Command::Status => (ask(&mut client, "GetStatus", json!({}))?, show::status),
        Command::Stats => {
            let mut all = list(&mut client, "ListPorts", "ports", json!({}))?;
            let workers = ask(&mut client, "GetWorkers", json!({}))?;
            all["cycles_per_second"] = workers["cycles_per_second"].clone();
            all["workers"] = workers["workers"].clone();
            (all, show::stats)
        }
        Command::Port { command: Port::List } => {
            (list(&mut client, "ListPorts", "ports", json!({}))?, show::ports)
        }
        Command::Port { command: Port::Show { name } } => {
            (ask(&mut client, "GetPort", json!({"name": name}))?, show::port)
        }
        Command::Port { command: Port::Add { name, settings, may_exist } } => {
            let wanted = new_port(name, settings, *may_exist)?;
            (ask(&mut client, "AddPort", wanted)?, show::nothing)
        }
        Command::Tap { command: Tap::Add { name, settings, may_exist } } => {
            let wanted = new_port(name, settings, *may_exist)?;
            (ask(&mut client, "AddTap", wanted)?, show::nothing)
        }
        Command::Port { command: Port::Del { name, if_exists } }
        | Command::Tap { command: Tap::Del { name, if_exists } } => {
            let deleted = ask(&mut client, "DeletePort", json!({"name": name}));
            (accept(deleted, *if_exists, "NoSuchPort")?, show::nothing)
        }
        Command::Fdb { command: Fdb::Show { port } } => {
            let port = port.as_ref().map_or(json!({}), |port| json!({"port": port}));
            (list(&mut client, "ListAddresses", "addresses", port)?, show::addresses)
        }
        Command::Fdb { command: Fdb::Flush { port } } => {
            let port = port.as_ref().map_or(json!({}), |port| json!({"port": port}));
            (ask(&mut client, "FlushAddresses", port)?, show::flushed)
        }
    };
    Ok(if options.json { format!("{answer:#}\n") } else { table(&answer) })
}

/// `src=MAC dst=MAC len=BYTES` as parameters.
fn frame_of(port: &str, settings: &[String]) -> Result<Value, Failure> {
    let mut parameters = json!({"port": port});
    for setting in settings {
        let usage = || {
            let text = format!("{setting:?}: a frame is src=MAC dst=MAC, and maybe len=BYTES");
            Failure::usage(text)
        };
        let (key, word) = setting.split_once('=').ok_or_else(usage)?;
        let (key, value) = match key {
            "src" => ("source", word.into()),
            "dst" => ("destination", word.into()),
            "len" => ("length", word.parse::<u64>().map_err(|_| usage())?.into()),
            _ => return Err(usage()),
        };
        parameters[key] = value;
    }
    Ok(parameters)
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

/// Takes an error that says that all is as it should be for done.
fn accept(answer: Result<Value, Failure>, may: bool, name: &str) -> Result<Value, Failure> {
    match answer {
        Err(failure) if may && failure.is(SWITCH, name) => Ok(json!({})),
        answer => answer,
    }
}

/// What is to be added.
fn new_port(name: &str, settings: &[String], may_exist: bool) -> Result<Value, Failure> {
    let mut parameters = parameters(name, settings)?;
    if may_exist {
        parameters["may_exist"] = true.into();
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
        let number = word.parse::<i64>().ok().map(Value::from);
        let number = number.filter(|_| ["queues", "mtu", "feature_level"].contains(&key.as_str()));
        match (key.as_str(), parameters.get_mut(&key)) {
            ("mac", Some(Value::Array(all))) => all.push(word.into()),
            ("mac", _) => {
                parameters.insert(key, json!([word]));
            }
            (_, Some(_)) => return Err(Failure::usage(format!("{key} is given twice"))),
            (_, None) => {
                parameters.insert(key, number.unwrap_or_else(|| word.into()));
            }
        }
    }
    Ok(Value::Object(parameters))
}
