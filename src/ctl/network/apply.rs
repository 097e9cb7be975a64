//! Applies a network to the host, and removes a network.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use api::wire::{GetConfig, GetPort, ReloadConfig, value};
use serde_json::{Value, json};

use super::host::{self, Net};
use super::plan::{self, File, Manager, Plan};
use super::store::Store;
use super::{dnsmasq, files};
use crate::client::Client;
use crate::failure::Failure;
use crate::output::say;
use crate::output::text;
use crate::values;

/// Steps that were done or are to be done.
#[derive(Debug, Default)]
pub(crate) struct NetworkSteps {
    pub text: String,
    pub value: Value,
    /// Reason why the host would refuse the steps that `--print` prints.
    pub refused: Option<Failure>,
}

/// Longest time that systemd-networkd takes to make an interface.
const INTERFACE: Duration = Duration::from_secs(10);
const STEP: Duration = Duration::from_millis(50);

/// Returns the commands that run once the files are there, without the wait for the interface.
pub fn commands(plan: &Plan) -> Vec<String> {
    let mut commands = vec!["systemctl daemon-reload".to_owned()];
    if plan.manager == Manager::Networkd {
        commands.push("networkctl reload".to_owned());
    }
    commands.push(format!("systemctl restart {}", plan.units().join(" ")));
    commands.push("vioswitchctl config reload".to_owned());
    commands
}

/// Writes the files and, on a live host, has the services and the switch read the files.
pub fn put(
    store: &Store,
    plan: &Plan,
    files: &[File],
    live: Option<&Path>,
) -> Result<NetworkSteps, Failure> {
    let mut client = live.map(Client::connect).transpose().or_else(not_running)?;
    if live.is_some() {
        // All checks run before the first write.
        store.check(&plan.name, files)?;
        ready(plan)?;
        if let Some(client) = client.as_mut() {
            free(client, plan)?;
        }
    }
    let written = store.write(&plan.name, files)?;
    // Stops the units that an earlier form of the network had and that the plan lacks.
    if live.is_some() {
        let wanted = plan.units();
        stop(units(&plan.name).iter().filter(|unit| !wanted.contains(unit)))?;
    }
    let mut old = files::possible(&plan.name);
    old.retain(|file| files.iter().all(|wanted| wanted.path != file.path));
    let (gone, _) = store.remove(&plan.name, &old)?;
    let mut text = String::new();
    written.iter().for_each(|path| text += &format!("{}\n", path.display()));
    gone.iter().for_each(|path| text += &format!("removed {}\n", path.display()));
    if live.is_some() {
        let there = Net::look().is_some_and(|net| net.link(&plan.interface()).is_some());
        let done = start(plan, there)
            .and_then(|()| client.as_mut().map_or(Ok(()), |client| serve(client, &plan.name)));
        let again =
            format!("then run the command again, or vioswitchctl network {} --remove", plan.name);
        done.map_err(|failure| {
            failure.told_as(|why| format!("the files are written, but {why}; {again}"))
        })?;
        if client.is_none() {
            say("no switch runs; the next start adds the network");
        }
    }
    let manager = values::word(&plan.manager);
    let value = json!({"written": words(&written), "removed": words(&gone), "manager": manager});
    Ok(NetworkSteps { text, value, ..NetworkSteps::default() })
}

fn words(paths: &[PathBuf]) -> Vec<String> {
    paths.iter().map(|path| path.display().to_string()).collect()
}

/// Returns no client if no switch runs, because then only files change; other failures stay
/// failures.
fn not_running(failure: Failure) -> Result<Option<Client>, Failure> {
    if failure.is_absence() { Ok(None) } else { Err(failure) }
}

/// Refuses a host that lacks a user or a program.
fn ready(plan: &Plan) -> Result<(), Failure> {
    let refused = |text: &str| Err(Failure::refused(text.to_owned()));
    if !host::has_user() {
        return refused("there is no user vioswitch: install the package, or run systemd-sysusers");
    }
    let programs: &[&str] = match plan.manager {
        Manager::Dnsmasq => &["ip", "nft", "dnsmasq"],
        _ => &["networkctl"],
    };
    match host::missing(programs) {
        None => Ok(()),
        Some("dnsmasq") => refused("dnsmasq is missing: apt install dnsmasq-base"),
        Some("nft") => refused("nft is missing: apt install nftables"),
        Some(other) => refused(&format!("{other} is missing")),
    }
}

/// Fails if another entry of the switch has the network's name or interface.
fn free(client: &mut Client, plan: &Plan) -> Result<(), Failure> {
    for entry in client.list(&GetConfig {}, |part| part.entries)? {
        let same = value(&entry.keys, "ifname") == Some(&plan.interface());
        let (kind, name) = (text(&entry.kind), text(&entry.name));
        if same == (name == plan.name) {
            continue;
        }
        let text = match same {
            true => format!("{kind} {name} of the switch uses interface {}", plan.interface()),
            false => format!("the switch has a {kind} {name} already"),
        };
        return Err(Failure::refused(format!("{text}: choose another name for the network")));
    }
    Ok(())
}

fn start(plan: &Plan, there: bool) -> Result<(), Failure> {
    run(&["systemctl", "daemon-reload"])?;
    let interface = plan.interface();
    if plan.manager == Manager::Networkd {
        run(&["networkctl", "reload"])?;
        wait_for(&interface)?;
        if there {
            run(&["networkctl", "reconfigure", &interface])?;
        }
    }
    let units = plan.units();
    let mut words = vec!["systemctl", "restart"];
    words.extend(units.iter().map(String::as_str));
    run(&words)
}

/// Waits until networkd has made the interface, because the switch would refuse a TAP that the
/// switch would have to make.
fn wait_for(interface: &str) -> Result<(), Failure> {
    let end = Instant::now() + INTERFACE;
    let there = Path::new("/sys/class/net").join(interface);
    while !there.exists() {
        if Instant::now() >= end {
            let text =
                format!("systemd-networkd made no {interface}: journalctl -u systemd-networkd");
            return Err(Failure::refused(text));
        }
        std::thread::sleep(STEP);
    }
    Ok(())
}

fn reload(client: &mut Client) -> Result<(), Failure> {
    client.call(&ReloadConfig::default()).map(|_| ())
}

/// Has the switch reload its files, and fails if the switch did not read the network's file.
fn serve(client: &mut Client, name: &str) -> Result<(), Failure> {
    reload(client)?;
    let found = client.call(&GetPort { name: name.to_owned() });
    found.map(|_| ()).map_err(|_| {
        let file = plan::of_switch(name);
        Failure::refused(format!(
            "the switch does not read {file}: start it with --config /etc/vioswitch/vioswitch.toml"
        ))
    })
}

/// Runs a program. The first line that a failing program writes to standard error is the reason.
fn run(words: &[&str]) -> Result<(), Failure> {
    let line = words.join(" ");
    let refused = |why: &str| {
        let why: String = why.trim().chars().filter(|c| !c.is_control()).take(200).collect();
        Failure::refused(format!("\"{line}\" failed: {why}"))
    };
    let (program, arguments) = words.split_first().ok_or_else(|| refused("no program"))?;
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| refused(&error.to_string()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let first = said.lines().find(|line| !line.is_empty()).unwrap_or("see journalctl -xe");
    if output.status.success() { Ok(()) } else { Err(refused(first)) }
}

/// Removes a network: first the running parts, then the files. Until all parts have stopped, files
/// remain by which the next attempt finds the network.
pub fn remove(store: &Store, name: &str, live: Option<&Path>) -> Result<NetworkSteps, Failure> {
    let files = files::possible(name);
    let (ours, left) = store.ours(name, &files)?;
    if ours.is_empty() {
        let text = format!("there is no network {name}; vioswitchctl network lists them");
        return Err(Failure::refused(text));
    }
    let left = words(&left);
    let notes: Vec<String> =
        left.iter().map(|path| format!("{path} stays: another program wrote the file")).collect();
    notes.iter().for_each(|note| say(note));
    let mut gone = Vec::new();
    if let Some(control) = live {
        let again = |failure: Failure| {
            failure
                .told_as(|why| format!("{why}; then again: vioswitchctl network {name} --remove"))
        };
        gone = take_down(store, name, control).map_err(again)?;
    }
    gone.append(&mut store.remove(name, &files)?.0);
    if live.is_some() {
        if ours.iter().any(|path| path.to_string_lossy().contains("/etc/systemd/network/")) {
            let _ = run(&["networkctl", "reload"]);
        }
        let _ = run(&["systemctl", "daemon-reload"]);
        let _ = std::fs::remove_file(dnsmasq::leases(name));
    }
    let paths = words(&gone);
    let text = paths.iter().map(|path| format!("removed {path}\n")).collect();
    Ok(NetworkSteps {
        text,
        value: json!({"removed": paths, "left": left}),
        ..NetworkSteps::default()
    })
}

/// Returns the units that a network may have: the units for guests, and last the unit for the
/// interface.
fn units(name: &str) -> [String; 3] {
    let interface = plan::interface(name);
    [
        format!("vioswitch-dnsmasq@{name}"),
        format!("vioswitch-forward@{interface}"),
        format!("vioswitch-tap@{interface}"),
    ]
}

/// Stops units. A unit need not exist.
fn stop<'u>(units: impl IntoIterator<Item = &'u String>) -> Result<(), Failure> {
    for unit in units {
        if let Err(failure) = run(&["systemctl", "stop", unit])
            && host::is_active(unit)
        {
            return Err(failure);
        }
    }
    Ok(())
}

/// Stops the running parts of a network, and removes the switch's file, so that the switch lets go
/// of the interface. Returns the path of the removed file. Each part may be missing, or be gone
/// already.
fn take_down(store: &Store, name: &str, control: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut client = Client::connect(control).map(Some).or_else(not_running)?;
    let units = units(name);
    stop(&units[..2])?;
    let mut of_switch = files::possible(name);
    of_switch.retain(|file| file.path == Path::new(&plan::of_switch(name)));
    let (gone, _) = store.remove(name, &of_switch)?;
    client.as_mut().map_or(Ok(()), reload)?;
    stop(&units[2..])?;
    let interface = plan::interface(name);
    // The interface goes before networkd forgets the network, so that networkd removes the NAT
    // together with the address.
    if let Err(failure) = run(&["ip", "link", "delete", &interface])
        && Path::new("/sys/class/net").join(&interface).exists()
    {
        return Err(failure);
    }
    Ok(gone)
}
