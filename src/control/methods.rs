//! What each method does. Looking takes no lock but for a moment; changing takes the daemon's.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde_json::{Value, json};

use super::activity::Activity;
use super::changes::change;
use super::connection::{Caller, Connection, Rank};
use super::details::DetailsWait;
use super::events::EventStream;
use super::frames::Frames;
use super::message::{Call, Fault, Parameters, SERVICE, SWITCH, clip};
use super::parameters::{only, required, text};
use super::parts::Stream;
use super::reload::keys;
use super::wait::PortWait;
use super::{findings, show, show_clients};
use crate::config::{self, Kind, nearest};
use crate::daemon::desired::NotAssigned;
use crate::daemon::{Daemon, PortError, Reloader, Removal, View};
use crate::guard::bucket::Bucket;
use crate::limits::{CONTROL_LOOKS, PORT_LOG_BURST, PORT_LOG_EVERY};
use crate::port::{Port, PortTable};
use crate::stats::ClientStats;
use crate::switch::{Entry, PortId};
use crate::sys::blocking::Blocking;
use crate::sys::waker::Waker;
use crate::sys::{clock, group, unix_socket};

/// Our own interface, in the language of varlink.
const DESCRIPTION: &str = include_str!("../../docs/io.vioswitch.Switch.varlink");
const SERVICE_DESCRIPTION: &str = include_str!("org.varlink.service.varlink");

/// The methods that a description has.
fn methods(description: &str) -> impl Iterator<Item = &str> {
    let lines = description.lines().filter_map(|line| line.strip_prefix("method "));
    lines.filter_map(|line| line.split('(').next())
}

/// What a call comes to.
pub enum Answer {
    /// This, and no more.
    Reply(Value),
    /// Parts, as the client reads them.
    Stream(Stream),
    /// Nothing until the port is gone.
    Removal(Removal),
}

/// The switch, as clients see it.
pub struct Switch {
    /// What changes it.
    daemon: Arc<Mutex<Daemon>>,
    pub(super) view: View,
    /// What reads the configuration again.
    pub(super) reloader: Arc<Reloader>,
    started: Instant,
    /// Where sockets are that have no path of their own.
    pub(super) directory: PathBuf,
    /// The group whose members may change it.
    admins: Option<u32>,
    /// The group whose members may look at frames.
    captors: Option<u32>,
    /// What became of clients.
    pub clients: Arc<ClientStats>,
    /// Lines about clients in the log.
    pub log: Bucket,
    /// Wakes the thread for answers that wait for something to happen.
    pub news: Arc<Waker>,
    /// When rings were last used.
    activity: Mutex<Activity>,
    /// Threads that look at sockets' files, and one that compares those of the configuration.
    pub(super) looks: Blocking,
    pub(super) diffs: Blocking,
}

impl Switch {
    /// A switch that runs; `control` says where its clients come from.
    pub fn new(
        control: &config::Control,
        daemon: &Arc<Mutex<Daemon>>,
        reloader: &Arc<Reloader>,
    ) -> Switch {
        let directory = control.path.parent().map(PathBuf::from).unwrap_or_default();
        let daemon = Arc::clone(daemon);
        let view = lock(&daemon).view();
        let (news, clients) = (Arc::clone(&view.news), Arc::clone(&view.clients));
        Switch {
            daemon,
            view,
            reloader: Arc::clone(reloader),
            started: Instant::now(),
            directory,
            admins: control.admins,
            captors: control.captors,
            clients,
            log: Bucket::new(PORT_LOG_BURST, PORT_LOG_EVERY),
            news,
            activity: Mutex::default(),
            looks: Blocking::new(CONTROL_LOOKS),
            diffs: Blocking::new(1),
        }
    }

    /// The daemon, for a thread that is held up in the place of ours.
    pub(super) fn shared_daemon(&self) -> Arc<Mutex<Daemon>> {
        Arc::clone(&self.daemon)
    }

    /// The daemon. It is held for one step of one request.
    pub fn daemon(&self) -> MutexGuard<'_, Daemon> {
        lock(&self.daemon)
    }

    /// Carries out a call. No further port is removed while `many` are.
    pub fn answer(&self, call: Call, client: &Connection, many: bool) -> Result<Answer, Fault> {
        if call.upgrade {
            return Err(Fault::parameter("upgrade", None));
        }
        let Call { method, parameters, more, .. } = call;
        let Some((interface, name)) = method.rsplit_once('.') else {
            return Err(Fault::method_not_found(&method, None));
        };
        match (interface, name) {
            (SERVICE, "GetInfo") => only(&parameters, &[]).map(|()| Answer::Reply(info())),
            (SERVICE, "GetInterfaceDescription") => describe(parameters).map(Answer::Reply),
            (SERVICE, name) => {
                Err(Fault::method_not_found(&method, nearest(name, methods(SERVICE_DESCRIPTION))))
            }
            (SWITCH, "DeletePort") if many => {
                Err(Fault::refused("too many ports are being removed: try again"))
            }
            (SWITCH, name) => self.own(name, parameters, more, client),
            (interface, _) => Err(Fault::interface_not_found(interface)),
        }
    }

    fn own(
        &self,
        name: &str,
        mut parameters: Parameters,
        more: bool,
        client: &Connection,
    ) -> Result<Answer, Fault> {
        let reply = match name {
            "GetStatus" => only(&parameters, &[]).map(|()| self.status())?,
            "ListPorts" => {
                only(&parameters, &[])?;
                return if more { Ok(Answer::Stream(Stream::Ports(0))) } else { Err(no_more()) };
            }
            "GetPort" => json!({"port": self.show(&*self.named(parameters)?)}),
            "GetPortDetails" => {
                let port = self.named(parameters)?;
                return Ok(Answer::Stream(Stream::Details(DetailsWait::new(&port, &self.news))));
            }
            "WaitForPort" => {
                return PortWait::new(parameters).map(Stream::Wait).map(Answer::Stream);
            }
            "GetMetrics" | "Events" | "GetConfig" | "DiffConfig" | "GetFindings" if !more => {
                return Err(no_more());
            }
            "GetMetrics" => return self.metrics(&parameters),
            "Events" => {
                let events = EventStream::new(parameters, &self.view.events);
                return events.map(Stream::Events).map(Answer::Stream);
            }
            "Trace" => self.trace(parameters)?,
            "GetWorkers" => only(&parameters, &[]).map(|()| self.workers())?,
            "GetDropReasons" => only(&parameters, &[]).map(|()| show::reasons())?,
            "ListAddresses" => {
                let port = self.port_or_all(&mut parameters)?;
                if !more {
                    return Err(no_more());
                }
                return Ok(Answer::Stream(Stream::Addresses(self.addresses(port))));
            }
            "GetFindings" => return self.findings(&parameters),
            "GetConfig" | "GetChanges" | "DiffConfig" if !more => return Err(no_more()),
            "GetConfig" => return self.config(&parameters),
            "GetChanges" | "DiffConfig" => {
                // They tell what files say, which the switch reads and compares for that.
                permit(client, self.admins, "control-admin-group")?;
                let is_diff = name == "DiffConfig";
                return if is_diff { self.diff(&parameters) } else { self.changed(&parameters) };
            }
            "AddPort" | "AddTap" | "AddStream" | "SetPort" | "SetTap" | "SetStream"
            | "DeletePort" | "FlushAddresses" | "AddAddress" | "DeleteAddress" | "ReloadConfig"
            | "ConfirmConfig" => {
                permit(client, self.admins, "control-admin-group")?;
                return self.change(name, parameters, client.caller);
            }
            "Capture" => {
                permit(client, self.captors, "capture-group")?;
                if !more {
                    return Err(no_more());
                }
                let frames = Frames::new(parameters, &self.view)?;
                self.tell("captures frames of", &frames.ports(), client.caller);
                return Ok(Answer::Stream(Stream::Frames(frames)));
            }
            _ => {
                let near = nearest(name, methods(DESCRIPTION));
                return Err(Fault::method_not_found(&format!("{SWITCH}.{name}"), near));
            }
        };
        Ok(Answer::Reply(reply))
    }

    /// The port that is named, and nothing else.
    fn named(&self, mut parameters: Parameters) -> Result<Arc<Port>, Fault> {
        only(&parameters, &["name"])?;
        let name = required(&mut parameters, "name")?;
        let ports = self.view.ports.present();
        ports.named(&name).cloned().ok_or_else(|| unknown_port(&ports, &name))
    }

    fn change(
        &self,
        method: &str,
        mut parameters: Parameters,
        caller: Caller,
    ) -> Result<Answer, Fault> {
        let reply = match method {
            "AddAddress" => self.add_address(parameters, caller)?,
            "DeleteAddress" => self.delete_address(parameters, caller)?,
            "ReloadConfig" => {
                self.tell("reloads", "the configuration", caller);
                return self.reload(parameters, caller);
            }
            "ConfirmConfig" => {
                only(&parameters, &[])?;
                self.tell("confirms", "the configuration", caller);
                self.confirm()?
            }
            "FlushAddresses" => {
                let port = self.port_or_all(&mut parameters)?;
                let fdb = &self.view.fdb;
                json!({"flushed": port.map_or_else(|| fdb.flush(), |id| fdb.flush_port(id))})
            }
            "DeletePort" => return self.delete(parameters, caller).map(Answer::Removal),
            _ => {
                let (verb, title) = method.split_at(3);
                let kind = Kind::PORTS.into_iter().find(|kind| kind.title() == title);
                let kind = kind.ok_or_else(|| Fault::method_not_found(method, None))?;
                match verb {
                    "Add" => return self.add(kind, parameters, caller),
                    _ => self.set(kind, parameters, caller)?,
                }
            }
        };
        Ok(Answer::Reply(reply))
    }

    /// What the daemon could not do.
    pub fn fault(&self, name: &str, error: &PortError) -> Fault {
        match error {
            PortError::Exists => {
                Fault::port_exists(name, self.daemon().desired().origin(name).name())
            }
            PortError::BeingRemoved(name) => Fault::port_being_removed(name),
            PortError::NoSuchPort | PortError::NotAssigned(NotAssigned::NoSuchPort) => {
                let ports = self.view.ports.present();
                match ports.named(name).is_some_and(|port| port.is_leaving()) {
                    true => Fault::port_being_removed(name),
                    false => unknown_port(&ports, name),
                }
            }
            error => Fault::refused(&error.to_string()),
        }
    }

    /// A port, TAP or stream, and who gave it.
    pub(super) fn show(&self, port: &Port) -> Value {
        let mut told = show::port(port, &self.view.fdb);
        let senders = self.view.samples.senders(port, clock::coarse_seconds());
        told["dropped_from"] = findings::senders(senders);
        let daemon = self.daemon();
        let origin = daemon.origin(&port.name);
        told["origin"] = origin.name().into();
        if let Some(uid) = origin.plugged_by() {
            told["owner"] = uid.into();
        }
        if let Some(entry) = daemon.desired().get(&port.name) {
            entry.settings.shown().for_each(|(key, word)| told[key.field()] = word.into());
        }
        told["pending"] = daemon.pending(&port.name).iter().map(change).collect();
        told
    }

    /// Who changes the switch stands in the log.
    pub(super) fn tell(&self, does: &str, name: &str, Caller { pid, uid, .. }: Caller) {
        if self.log.take() {
            log::info!("control: pid {pid} uid {uid} {does} {:?}", clip(name));
        }
    }

    fn status(&self) -> Value {
        let View { ports, fdb, workers, .. } = &self.view;
        let ports = ports.present();
        let count = |kind| ports.iter().filter(|port| port.kind_name() == kind).count();
        let unconfirmed = self.unconfirmed();
        let daemon = self.daemon();
        let all = daemon.degradations();
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "pid": std::process::id(),
            "uptime": self.started.elapsed().as_secs(),
            "workers": workers.handles().len(),
            "ports": count("vm"),
            "taps": count("tap"),
            "streams": count("stream"),
            "addresses": fdb.len(),
            "events": self.view.events.last(),
            "degraded": show::degraded(&all),
            "degradations": show::degradations(&all),
            "unconfirmed": unconfirmed,
            "plug": plug(&daemon),
            "config": self.config_file(),
            "state_dir": daemon.state_dir().map(|path| path.to_string_lossy()),
            "clients": show_clients(&self.clients),
        })
    }

    fn workers(&self) -> Value {
        let workers = self.view.workers.handles().iter().enumerate();
        let workers: Vec<Value> =
            workers.map(|(n, handle)| show::worker(n, &handle.stats)).collect();
        json!({"cycles_per_second": clock::cycles_per_second(), "workers": workers})
    }

    /// The number of the port that is named, if one is.
    fn port_or_all(&self, parameters: &mut Parameters) -> Result<Option<PortId>, Fault> {
        only(parameters, &["port"])?;
        let Some(name) = text(parameters, "port")? else { return Ok(None) };
        let ports = self.view.ports.present();
        let port = ports.named(&name).ok_or_else(|| unknown_port(&ports, &name))?;
        Ok(Some(port.id))
    }

    fn addresses(&self, port: Option<PortId>) -> Vec<Entry> {
        let mut entries = self.view.fdb.entries(clock::coarse_seconds());
        entries.retain(|entry| port.is_none_or(|id| entry.port == id));
        // By port and address; the parts are taken from the end.
        entries.sort_unstable_by_key(|entry| std::cmp::Reverse((entry.port, entry.mac.0)));
        entries
    }

    /// Looks which rings were used since this was called last.
    pub fn sample(&self) {
        self.activity().look_at_all(&self.view.ports.present(), Instant::now());
    }

    pub(super) fn activity(&self) -> MutexGuard<'_, Activity> {
        self.activity.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The directory of ports by plug, and what these have in common.
fn plug(daemon: &Daemon) -> Option<Value> {
    let (directory, template) = (daemon.plug_directory()?, daemon.desired().template()?);
    let common = keys(template.words());
    Some(json!({"directory": directory.to_string_lossy(), "keys": common}))
}

fn lock(daemon: &Mutex<Daemon>) -> MutexGuard<'_, Daemon> {
    // A panic under it was contained, and what it left half done is better than no switch.
    daemon.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Switch {
    /// Which of the places a client may take.
    pub(super) fn rank(&self, client: &Connection) -> Rank {
        if client.caller.uid == 0 {
            return Rank::Root;
        }
        match permit(client, self.admins, "") {
            Ok(()) => Rank::Admin,
            Err(_) => Rank::Viewer,
        }
    }
}

/// Root, the daemon's own user, and the members of `group`, which the setting `key` names.
fn permit(client: &Connection, group: Option<u32>, key: &str) -> Result<(), Fault> {
    let Caller { uid, gid, .. } = client.caller;
    let belongs = |members: u32| {
        // Who they are cannot be told: they are not.
        gid == members
            || unix_socket::peer_groups(client.as_fd()).is_ok_and(|all| all.contains(&members))
    };
    let own = group::own_user();
    if uid == 0 || uid == own || group.is_some_and(belongs) {
        return Ok(());
    }
    Err(Fault::not_permitted(match group {
        Some(members) => format!("root, user {own} or a member of group {members}"),
        None => format!("root or user {own}; {key} names a group"),
    }))
}

fn no_more() -> Fault {
    Fault::expected_more()
}

/// No port has this name.
pub fn unknown_port(ports: &PortTable, name: &str) -> Fault {
    Fault::no_such_port(name, nearest(name, ports.iter().map(|port| port.name.as_str())))
}

fn info() -> Value {
    json!({
        "vendor": "vioswitch",
        "product": "vioswitchd",
        "version": env!("CARGO_PKG_VERSION"),
        "url": "",
        "interfaces": [SERVICE, SWITCH],
    })
}

fn describe(mut parameters: Parameters) -> Result<Value, Fault> {
    only(&parameters, &["interface"])?;
    match required(&mut parameters, "interface")?.as_str() {
        SWITCH => Ok(json!({"description": DESCRIPTION})),
        SERVICE => Ok(json!({"description": SERVICE_DESCRIPTION})),
        other => Err(Fault::interface_not_found(other)),
    }
}
