//! Methods of the interface. A method that looks holds locks for a moment only; a method that
//! changes takes the daemon's lock.

use std::os::fd::AsFd;
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Number, Value, json};

use super::changes::change;
use super::connection::{Caller, Closed, Connection, Idle, Rank};
use super::details::DetailsWait;
use super::events::EventStream;
use super::frames::Frames;
use super::message::Call;
use super::parameters::{number, wrong};
use super::parts::{Part, Stream, list};
use super::reload::keys;
use super::switch::Switch;
use super::wait::wait_for_port;
use super::{findings, message, show};
use crate::desired::NotAssigned;
use crate::{Daemon, PortError, Removal, View};
use api::config::{self, Kind, nearest};
use api::wire::{
    self, Fault, Flushed, OnePort, Parameters, PortCounts, Request, SERVICE, SWITCH, ServiceError,
    Status, SwitchError, Workers, clip,
};
use base::limits::{CONTROL_ADDRESSES_A_REPLY, CONTROL_PORTS_A_REPLY, MAX_VLAN};
use datapath::port::{Port, PortTable};
use switch::segment::BridgeId;
use switch::{PortId, PortPolicy, Segment, VlanId};
use sys::{clock, group, sandbox, unix_socket};

const SERVICE_DESCRIPTION: &str = include_str!("org.varlink.service.varlink");
/// The methods of the interface `org.varlink.service`.
const SERVICE_METHODS: [&str; 2] = ["GetInfo", "GetInterfaceDescription"];

/// Keys whose values are fields of a port, or of its details, by themselves.
const FIELDS: [&str; 5] = ["socket", "ifname", "queues", "io", "mtu"];

/// Answer to a call.
pub enum Answer {
    /// A single answer.
    Reply(Value),
    /// Parts, as the client reads them.
    Stream(Stream),
    /// No answer until the port of this name is gone.
    Removal(String, Removal),
}

impl Answer {
    /// Returns a single answer.
    pub(crate) fn reply(answer: &impl Serialize) -> Answer {
        Answer::Reply(wire::json(answer))
    }

    /// Returns an answer of several parts; each call of `next` makes the next part.
    pub(crate) fn parts(next: impl FnMut(&Switch) -> Result<Part, Fault> + 'static) -> Answer {
        Answer::Stream(Box::new(next))
    }
}

impl Switch {
    /// Carries out a call. While `many` is true, refuses to remove another port.
    pub(crate) fn answer(
        &self,
        call: Call,
        client: &Connection,
        many: bool,
    ) -> Result<Answer, Fault> {
        if call.upgrade == Some(true) {
            return Err(Fault::parameter("upgrade", None));
        }
        let Call { method, parameters, more, .. } = call;
        let parameters = parameters.unwrap_or_default();
        let Some((interface, name)) = method.rsplit_once('.') else {
            return Err(Fault::method_not_found(&method, None));
        };
        match (interface, name) {
            (SERVICE, _) => service(&method, name, &parameters).map(Answer::Reply),
            (SWITCH, "Delete") if many => {
                Err(Fault::refused("too many ports are being removed: try again"))
            }
            (SWITCH, name) => {
                let Some(about) = wire::all().find(|about| about.name == name) else {
                    let near = nearest(name, wire::all().map(|about| about.name));
                    return Err(Fault::method_not_found(&method, near));
                };
                if about.is_for_admins() {
                    permit(client, self.admins, "control-admin-group")?;
                }
                if about.is_for_capture() {
                    permit(client, self.capture, "capture-group")?;
                }
                let request = Request::read(about, parameters)?;
                if about.has_parts() && more != Some(true) {
                    return Err(Fault::Service(ServiceError::ExpectedMore {}));
                }
                self.own(request, client.caller)
            }
            (interface, _) => Err(Fault::interface_not_found(interface)),
        }
    }

    fn own(&self, request: Request, caller: Caller) -> Result<Answer, Fault> {
        Ok(match request {
            Request::GetStatus(_) => Answer::reply(&self.status()),
            Request::ListPorts(_) => self.list_ports(),
            Request::GetPort(given) => {
                Answer::reply(&OnePort { port: self.show(&*self.named(&given.name)?) })
            }
            Request::GetPortDetails(given) => {
                let mut wait = DetailsWait::new(&self.named(&given.name)?, &self.wakeup);
                Answer::parts(move |switch| Ok(wait.part(switch)))
            }
            Request::WaitForPort(given) => wait_for_port(given)?,
            Request::GetMetrics(_) => self.metrics(),
            Request::Events(given) => {
                let mut events = EventStream::new(given, &self.view.events)?;
                Answer::parts(move |switch| Ok(switch.events(&mut events)))
            }
            Request::Trace(given) => Answer::reply(&self.trace(&given)?),
            Request::GetWorkers(_) => Answer::reply(&self.workers()),
            Request::GetDropReasons(_) => Answer::reply(&show::reasons()),
            Request::ListAddresses(given) => {
                let of = self.place(given.port, given.bridge, given.vlan)?;
                self.addresses(&of)
            }
            Request::ListGroups(given) => {
                let of = self.place(given.port, given.bridge, given.vlan)?;
                self.groups(of)?
            }
            Request::GetFindings(_) => self.findings(),
            Request::GetConfig(_) => self.config(),
            Request::DiffConfig(_) => self.diff()?,
            Request::Capture(given) => {
                let mut frames = Frames::new(given, &self.view)?;
                self.tell("captures frames of", &frames.ports(), caller);
                Answer::parts(move |switch| Ok(frames.part(&switch.view.ports.present())))
            }
            Request::Add(given) => self.add(given, caller)?,
            Request::Set(given) => Answer::reply(&self.set(given, caller)?),
            Request::Reset(given) => self.reset(given, caller)?,
            Request::Delete(given) => self.delete(given, caller)?,
            Request::ListMirrors(_) => Answer::reply(&self.mirrors()),
            Request::ListFilters(given) => self.filters(&given)?,
            Request::ListConnections(given) => self.connections(&given)?,
            Request::FlushConnections(given) => Answer::reply(&self.flush_connections(&given)?),
            Request::AddAddress(given) => Answer::reply(&self.add_address(&given, caller)?),
            Request::DeleteAddress(given) => Answer::reply(&self.delete_address(&given, caller)?),
            Request::FlushAddresses(given) => {
                let of = self.place(given.port, given.bridge, given.vlan)?;
                let flushed = self.view.fdb.flush(|port, segment| of.has(port, segment));
                Answer::reply(&Flushed { flushed: flushed as u64 })
            }
            Request::ReloadConfig(given) => {
                self.tell("reloads", "the configuration", caller);
                self.reload(given, caller)?
            }
            Request::ConfirmConfig(_) => {
                self.tell("confirms", "the configuration", caller);
                Answer::reply(&self.confirm()?)
            }
        })
    }

    /// Returns the port of this name.
    pub(super) fn named(&self, name: &str) -> Result<Arc<Port>, Fault> {
        let ports = self.view.ports.present();
        ports.named(name).cloned().ok_or_else(|| unknown_port(&ports, name))
    }

    /// Returns the error of the interface for an error of the daemon.
    pub(crate) fn fault(&self, name: &str, error: &PortError) -> Fault {
        match error {
            PortError::Exists => {
                Fault::port_exists(name, self.daemon().desired().origin(name).name())
            }
            PortError::BeingRemoved(name) => Fault::port_being_removed(name),
            PortError::NoSuchPort | PortError::NotAssigned(NotAssigned::NoSuchPort) => {
                let ports = self.view.ports.present();
                match ports.named(name).is_some_and(|port| port.is_removing()) {
                    true => Fault::port_being_removed(name),
                    false => unknown_port(&ports, name),
                }
            }
            error => Fault::refused(&error.to_string()),
        }
    }

    /// Returns a port, TAP or stream as clients see it, with its origin.
    pub(super) fn show(&self, port: &Port) -> wire::Port {
        let senders = self.view.samples.senders(port, clock::coarse_seconds());
        let daemon = self.daemon();
        let origin = daemon.origin(&port.name);
        let settings = daemon.desired().get(&port.name).map(|entry| &entry.settings);
        let keys = settings.into_iter().flat_map(|settings| settings.shown());
        wire::Port {
            origin: origin.name().to_owned(),
            owner: origin.plugged_by(),
            keys: wire::ShownKeys(
                keys.map(|(key, word)| (key.field(), json_of(key, word))).collect(),
            ),
            pending: daemon.pending(&port.name).iter().map(change).collect(),
            dropped_from: findings::senders(senders),
            ..show::port(port, &self.view.fdb, &self.view.samples)
        }
    }

    /// Returns the settings of a port that are not their defaults and that `GetPort` does not
    /// answer: first the lists, then the others.
    pub(super) fn other_keys(&self, name: &str) -> (Vec<wire::ConfigKey>, Vec<wire::ConfigKey>) {
        let daemon = self.daemon();
        let words = daemon.desired().get(name).map(|entry| entry.settings.given());
        let is = |name: &str, of: fn(&config::Key) -> bool| {
            config::KEYS.iter().any(|key| key.name == name && of(key))
        };
        let others = words.unwrap_or_default().into_iter();
        let others =
            others.filter(|(name, _)| !is(name, |key| key.is_shown) && !FIELDS.contains(name));
        let (lists, others): (Vec<_>, Vec<_>) =
            others.partition(|(name, _)| is(name, |k| k.is_list));
        (keys(lists), keys(others))
    }

    /// Logs which process changes the switch, within the limit of log lines.
    pub(super) fn tell(&self, does: &str, name: &str, Caller { pid, uid, .. }: Caller) {
        if self.log.take() {
            log::info!("control: pid {pid} uid {uid} {does} {:?}", clip(name));
        }
    }

    fn status(&self) -> Status {
        let View { ports, fdb, workers, .. } = &self.view;
        let ports = ports.present();
        let counts = Kind::PORTS.into_iter().map(|kind| {
            let count = ports.iter().filter(|port| port.kind_name() == kind.name()).count();
            (kind.count_name().to_owned(), count.into())
        });
        let unconfirmed = self.unconfirmed();
        let daemon = self.daemon();
        let all = daemon.degradations();
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime: self.started.elapsed().as_secs(),
            workers: workers.handles().len(),
            counts: PortCounts(counts.collect()),
            addresses: fdb.len(),
            events: self.view.events.last(),
            degraded: show::degraded(&all),
            degradations: show::degradations(all),
            unconfirmed,
            plug: plug(&daemon),
            config: self.config_file(),
            state_dir: daemon.state_dir().map(|path| path.to_string_lossy().into_owned()),
            clients: show::counted(self.clients.counters()),
            latency: daemon.latency().to_string(),
            tap_writes: show::tap_writes(&ports),
            sandbox: sandbox::state().map(show::sandbox),
        }
    }

    fn workers(&self) -> Workers {
        let workers = self.view.workers.handles().iter().enumerate();
        let workers = workers
            .map(|(n, handle)| wire::Worker {
                number: n as u64,
                ..show::counted(handle.stats.counters())
            })
            .collect();
        Workers { cycles_per_second: clock::cycles_per_second(), workers }
    }

    /// Returns the place whose addresses a request concerns.
    fn place(
        &self,
        port: Option<String>,
        bridge: Option<String>,
        vlan: Option<Number>,
    ) -> Result<Selection, Fault> {
        let port = port.map(|name| self.named(&name).map(|port| port.id)).transpose()?;
        let ports = self.view.ports.present();
        let numbered = |name: String| {
            let mut policies = ports.iter().map(|port| ports.policy(port.id));
            let found = policies.find(|policy| policy.bridge.name() == name);
            let text = || format!("bridge must be one that a port names, not '{}'", clip(&name));
            found.map(|policy| policy.bridge.number()).ok_or_else(|| wrong("bridge", text(), &name))
        };
        let bridge = bridge.map(numbered).transpose()?;
        let vlan = number(vlan, "vlan", 0..=MAX_VLAN.into())?.map(|vlan| vlan as VlanId);
        Ok(Selection { port, bridge, vlan })
    }

    /// Lists the ports by their numbers; each part reads the present table.
    fn list_ports(&self) -> Answer {
        let mut next = 0;
        Answer::parts(move |switch| {
            let ports = switch.view.ports.present();
            let mut left = ports.iter().filter(|port| port.id >= next).peekable();
            let part = left.by_ref().take(CONTROL_PORTS_A_REPLY);
            let told: Vec<_> = part.map(|port| switch.show(port)).collect();
            let more = left.peek().is_some();
            next = told.last().map_or(next, |port| port.number.saturating_add(1));
            Ok(Part::reply(&wire::Ports { ports: told }, more))
        })
    }

    /// Lists the present addresses, sorted by port.
    fn addresses(&self, of: &Selection) -> Answer {
        let mut entries = self.view.fdb.entries(clock::coarse_seconds());
        entries.retain(|entry| of.has(entry.port, entry.station.segment));
        entries.sort_unstable_by_key(|entry| (entry.port, entry.station));
        Answer::Stream(list(entries, CONTROL_ADDRESSES_A_REPLY, |switch, part| {
            let (ports, daemon) = (switch.view.ports.present(), switch.daemon());
            let shown = |entry| show::address(entry, &ports, daemon.desired());
            wire::Addresses { addresses: part.iter().filter_map(shown).collect() }
        }))
    }

    /// Returns the next part of the answer to `Events`.
    fn events(&self, events: &mut EventStream) -> Part {
        let label = |port: &str| self.daemon().desired().get(port)?.settings.label.clone();
        events.part(&self.view.events, label)
    }
}

/// Returns the value of a key, as clients see it.
fn json_of(key: &config::Key, word: String) -> Value {
    let number = word.parse::<u64>().ok().filter(|_| key.varlink() == "int");
    number.map_or_else(|| word.into(), Value::from)
}

/// A port, a bridge and a VLAN; a part that is not named stands for all.
#[derive(Debug)]
pub(super) struct Selection {
    port: Option<PortId>,
    bridge: Option<BridgeId>,
    vlan: Option<VlanId>,
}

impl Selection {
    pub(super) fn has(&self, port: PortId, segment: Segment) -> bool {
        self.port.is_none_or(|one| one == port)
            && self.bridge.is_none_or(|one| one == segment.bridge())
            && self.vlan.is_none_or(|one| one == segment.vlan())
    }

    /// True if frames of the place may pass by a port.
    pub(super) fn has_port(&self, id: PortId, policy: &PortPolicy) -> bool {
        self.port.is_none_or(|one| one == id)
            && self.bridge.is_none_or(|one| one == policy.bridge.number())
            && self.vlan.is_none_or(|one| policy.is_member(policy.segment(one)))
    }
}

/// Returns the directory of ports by plug, and the settings that these ports share.
fn plug(daemon: &Daemon) -> Option<wire::Plug> {
    let (directory, template) = (daemon.plug_directory()?, daemon.desired().template()?);
    let directory = directory.to_string_lossy().into_owned();
    Some(wire::Plug { directory, keys: keys(template.words()) })
}

impl Switch {
    /// Queues the next part of a client's answer, or has the client wait until there is a next
    /// part.
    pub(crate) fn go_on(&self, client: &mut Connection) -> Result<(), Closed> {
        let Some(mut stream) = client.stream.take() else { return Ok(()) };
        match stream(self) {
            Ok(Part::Reply(parameters, more)) => {
                client.stream = more.then_some(stream);
                client.push(&message::reply(parameters, more))
            }
            Ok(Part::Later(until)) => {
                client.stream = Some(stream);
                client.idle = Some(Idle { until });
                Ok(())
            }
            Err(fault) => client.push(&fault.message()),
        }
    }

    /// Returns the rank of a client.
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

/// Permits root, the daemon's own user, and the members of `group`, which the setting `key` names.
fn permit(client: &Connection, group: Option<u32>, key: &str) -> Result<(), Fault> {
    let Caller { uid, gid, .. } = client.caller;
    let belongs = |members: u32| {
        // If the client's groups are unknown, only its first group counts.
        gid == members
            || unix_socket::peer_groups(client.as_fd()).is_ok_and(|all| all.contains(&members))
    };
    let own = group::own_user();
    if uid == 0 || uid == own || group.is_some_and(belongs) {
        return Ok(());
    }
    let wanted = match group {
        Some(members) => format!("root, user {own} or a member of group {members}"),
        None => format!("root or user {own}; {key} names a group"),
    };
    Err(Fault::Switch(SwitchError::NotPermitted { wanted }))
}

/// Returns the error that no port has this name.
pub(crate) fn unknown_port(ports: &PortTable, name: &str) -> Fault {
    Fault::no_such_port(name, nearest(name, ports.iter().map(|port| port.name.as_str())))
}

/// Answers the methods of every varlink service.
fn service(method: &str, name: &str, given: &Parameters) -> Result<Value, Fault> {
    let known: &[&str] = if name == "GetInterfaceDescription" { &["interface"] } else { &[] };
    if !SERVICE_METHODS.contains(&name) {
        return Err(Fault::method_not_found(method, nearest(name, SERVICE_METHODS.into_iter())));
    }
    if let Some(other) = given.keys().find(|key| !known.contains(&key.as_str())) {
        return Err(Fault::parameter(other, nearest(other, known.iter().copied())));
    }
    match (name, given.get("interface").and_then(Value::as_str)) {
        ("GetInfo", _) => Ok(json!({
            "vendor": "vioswitch",
            "product": "vioswitchd",
            "version": env!("CARGO_PKG_VERSION"),
            "url": "",
            "interfaces": [SERVICE, SWITCH],
        })),
        (_, Some(SWITCH)) => Ok(json!({"description": wire::DESCRIPTION})),
        (_, Some(SERVICE)) => Ok(json!({"description": SERVICE_DESCRIPTION})),
        (_, Some(other)) => Err(Fault::interface_not_found(other)),
        (_, None) => Err(Fault::parameter("interface", None)),
    }
}
