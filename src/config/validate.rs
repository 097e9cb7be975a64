//! Settings to typed values: every rule about one setting or one entry.
//!
//! Nothing stops at the first error: each setting is checked, and each complaint carries the
//! place its setting was given at.

use std::collections::HashSet;
use std::path::PathBuf;

use log::LevelFilter;

use super::cpus::cpu_list;
use super::entries::{Claim, Entry, Parsed, Shared};
use super::raw::{Complaint, Kind, Place, Section, Setting, Source, quote};
use super::value::{
    feature_level, group, inherited_socket, interface_name, is_client, is_on, is_preallocated,
    log_level, metrics, number, offloads, permissions, port_name, port_offloads, socket_directory,
    socket_path, station_address, text, truth, unknown_key, workers,
};
use super::{Endpoint, Machine, MetricsSocket, PortConfig, StreamConfig, TapConfig};
use crate::frame::MacAddr;
use crate::frame::offload::Offloads;
use crate::limits;
use crate::switch::PortPolicy;

/// Name of the port that `--socket-path` or `--fd` adds.
const SHORTHAND_NAME: &str = "port0";

pub(super) const SCALAR_KEYS: &str = "port, tap, stream, workers, cpus, poll, age, control, \
     control-group, control-admin-group, capture-group, metrics, feature-level, log-level, \
     uplink-to-uplink, plug, template, socket-path, fd";
pub(super) const PORT_KEYS: &str = "name, socket, mode, socket-mode, socket-group, queues, mac, \
     offload, platform, flood, mtu, feature-level, memory";
pub(super) const TAP_KEYS: &str = "name, ifname, queues, offload, flood, mtu";
pub(super) const STREAM_KEYS: &str =
    "name, socket, mode, socket-mode, socket-group, mac, flood, mtu";
/// Those of a port but for what its socket says of it, and for addresses, which are one's alone.
pub(super) const TEMPLATE_KEYS: &str =
    "queues, offload, platform, flood, mtu, feature-level, memory";

/// One place's settings, checked.
#[derive(Debug, Clone, Default)]
pub(super) struct Validated {
    pub(super) scalars: Scalars,
    pub(super) entries: Vec<Entry>,
    pub(super) complaints: Vec<Complaint>,
}

/// Settings outside of any entry, where given.
#[derive(Debug, Clone, Default)]
pub(super) struct Scalars {
    pub(super) workers: Option<usize>,
    pub(super) cpus: Option<Vec<usize>>,
    pub(super) poll: Option<bool>,
    pub(super) age: Option<u32>,
    pub(super) control: Option<Claim>,
    pub(super) control_group: Option<u32>,
    pub(super) control_admin_group: Option<u32>,
    pub(super) capture_group: Option<u32>,
    pub(super) metrics: Option<MetricsSocket>,
    pub(super) feature_level: Option<u8>,
    pub(super) log_level: Option<LevelFilter>,
    pub(super) uplink_to_uplink: Option<bool>,
    pub(super) plug: Option<PathBuf>,
    pub(super) template: Option<PortConfig>,
}

impl Scalars {
    /// These, and `under` where these say nothing.
    pub(super) fn or(self, under: Scalars) -> Scalars {
        Scalars {
            workers: self.workers.or(under.workers),
            cpus: self.cpus.or(under.cpus),
            poll: self.poll.or(under.poll),
            age: self.age.or(under.age),
            control: self.control.or(under.control),
            control_group: self.control_group.or(under.control_group),
            control_admin_group: self.control_admin_group.or(under.control_admin_group),
            capture_group: self.capture_group.or(under.capture_group),
            metrics: self.metrics.or(under.metrics),
            feature_level: self.feature_level.or(under.feature_level),
            log_level: self.log_level.or(under.log_level),
            uplink_to_uplink: self.uplink_to_uplink.or(under.uplink_to_uplink),
            plug: self.plug.or(under.plug),
            template: self.template.or(under.template),
        }
    }
}

/// Checks all of `source` for `machine`.
pub(super) fn source(source: &Source, machine: Machine<'_>) -> Validated {
    let mut checked = Validated::default();
    for setting in &source.scalars {
        if let Err(text) = scalar(&mut checked, setting, machine) {
            checked.complaints.push(Complaint::new(&setting.at, text));
        }
    }
    for section in &source.sections {
        let (entry, mut complaints) = match section.kind {
            Kind::Port => PortDraft::default().check(section),
            Kind::Tap => TapDraft::default().check(section),
            Kind::Stream => StreamDraft::default().check(section),
            Kind::Template => TemplateDraft::default().check(section),
        };
        checked.complaints.append(&mut complaints);
        match entry.parsed {
            Some(Parsed::Template(port)) => checked.scalars.template = Some(port),
            _ if section.kind == Kind::Template => {}
            _ => checked.entries.push(entry),
        }
    }
    checked
}

/// One setting outside of any entry.
fn scalar(checked: &mut Validated, setting: &Setting, machine: Machine<'_>) -> Result<(), String> {
    let scalars = &mut checked.scalars;
    match setting.key.as_str() {
        "workers" => scalars.workers = Some(workers(setting, machine.cpus)?),
        "cpus" => scalars.cpus = Some(cpu_list(setting, machine.allowed)?),
        "poll" => scalars.poll = Some(truth(setting)?),
        "age" => scalars.age = Some(number(setting, 1, limits::MAX_AGE_SECONDS.into())?),
        "control" => {
            socket_path(setting)?;
            scalars.control = Some(claim(Shared::Socket, setting)?);
        }
        "control-group" => scalars.control_group = Some(group(setting)?),
        "control-admin-group" => scalars.control_admin_group = Some(group(setting)?),
        "capture-group" => scalars.capture_group = Some(group(setting)?),
        "metrics" => scalars.metrics = Some(metrics(setting)?),
        "feature-level" => scalars.feature_level = Some(feature_level(setting)?),
        "log-level" => scalars.log_level = Some(log_level(setting)?),
        "uplink-to-uplink" => scalars.uplink_to_uplink = Some(truth(setting)?),
        "plug" => scalars.plug = Some(socket_directory(setting)?),
        "socket-path" => {
            let endpoint = server(socket_path(setting)?, None, None);
            let claims = vec![claim(Shared::Socket, setting)?];
            checked.entries.push(shorthand(setting, endpoint, claims));
        }
        "fd" => {
            let endpoint = Endpoint::Fd(inherited_socket(setting)?);
            checked.entries.push(shorthand(setting, endpoint, Vec::new()));
        }
        _ => return Err(unknown_key(setting, SCALAR_KEYS)),
    }
    Ok(())
}

/// The port that a shorthand stands for.
fn shorthand(setting: &Setting, endpoint: Endpoint, mut claims: Vec<Claim>) -> Entry {
    let name = SHORTHAND_NAME.to_owned();
    let at = setting.at.clone();
    claims.push(Claim { what: Shared::Name, value: name.clone(), at: at.clone() });
    let port = PortConfig::plain(&name, endpoint);
    let parsed = Some(Parsed::Port(port));
    Entry { kind: Kind::Port, at, name: Some(name), claims, parsed }
}

fn server(path: PathBuf, mode: Option<u32>, group: Option<u32>) -> Endpoint {
    Endpoint::Server { path, mode: mode.unwrap_or(limits::DEFAULT_SOCKET_MODE), group }
}

/// Claims the setting's value.
fn claim(what: Shared, setting: &Setting) -> Result<Claim, String> {
    Ok(Claim { what, value: text(setting)?.to_owned(), at: setting.at.clone() })
}

/// What all entries have in common: every setting is looked at, once.
trait Draft: Sized {
    const KIND: Kind;

    /// Takes one setting over.
    fn set(&mut self, setting: &Setting, claims: &mut Vec<Claim>) -> Result<(), String>;

    /// The name, if one was understood.
    fn name(&self) -> Option<String>;

    /// The whole, or what is missing or contradicts itself.
    fn finish(self, at: &Place) -> Result<Parsed, Vec<Complaint>>;

    /// All of `section`.
    fn check(mut self, section: &Section) -> (Entry, Vec<Complaint>) {
        let mut complaints = Vec::new();
        let mut claims = Vec::new();
        let mut given: HashSet<&str> = HashSet::new();
        for setting in &section.settings {
            // A file cannot repeat a key, and addresses come one by one.
            let again = !given.insert(&setting.key) && setting.key != "mac";
            let outcome = if again {
                Err(format!("{} is given twice", quote(&setting.key)))
            } else {
                self.set(setting, &mut claims)
            };
            if let Err(text) = outcome {
                complaints.push(Complaint::new(&setting.at, text));
            }
        }
        let name = self.name();
        let required: &[&str] = match Self::KIND {
            Kind::Port | Kind::Stream => &["name", "socket"],
            Kind::Tap => &["name", "ifname"],
            Kind::Template => &[],
        };
        for key in required.iter().filter(|key| !given.contains(*key)) {
            complaints.push(Complaint::new(&section.at, format!("{key} is missing")));
        }
        let parsed = match self.finish(&section.at) {
            Ok(parsed) if complaints.is_empty() => Some(parsed),
            Ok(_) => None,
            Err(mut more) => {
                complaints.append(&mut more);
                None
            }
        };
        let at = section.at.clone();
        (Entry { kind: Self::KIND, at, name, claims, parsed }, complaints)
    }
}

/// What has a socket and addresses of its own, while its settings come in.
#[derive(Default)]
struct SocketDraft {
    name: Option<String>,
    path: Option<PathBuf>,
    client: bool,
    mode: Option<u32>,
    group: Option<u32>,
    /// Where a setting was given that only a listening socket can have.
    server_only: Vec<(&'static str, Place)>,
    macs: Vec<MacAddr>,
    policy: PortPolicy,
    mtu: Option<u16>,
}

impl SocketDraft {
    /// Takes one setting over; `known` are the keys that there are.
    fn set(
        &mut self,
        setting: &Setting,
        claims: &mut Vec<Claim>,
        known: &str,
    ) -> Result<(), String> {
        match setting.key.as_str() {
            "name" => {
                self.name = Some(port_name(setting)?);
                claims.push(claim(Shared::Name, setting)?);
            }
            "socket" => {
                self.path = Some(socket_path(setting)?);
                claims.push(claim(Shared::Socket, setting)?);
            }
            "mode" => self.client = is_client(setting)?,
            "socket-mode" => {
                self.server_only.push(("socket-mode", setting.at.clone()));
                self.mode = Some(permissions(setting)?);
            }
            "socket-group" => {
                self.server_only.push(("socket-group", setting.at.clone()));
                self.group = Some(group(setting)?);
            }
            "mac" => {
                let mac = station_address(setting)?;
                let (value, at) = (mac.to_string(), setting.at.clone());
                claims.push(Claim { what: Shared::Mac, value, at });
                self.macs.push(mac);
            }
            "flood" => self.policy.flood_unknown = is_on(setting)?,
            "mtu" => {
                self.mtu = Some(number(setting, limits::MIN_MTU, limits::MAX_CARRIED_MTU)?);
            }
            _ => return Err(unknown_key(setting, known)),
        }
        Ok(())
    }

    /// Name and endpoint, or what contradicts itself. What is missing was complained about when it
    /// was read or looked for.
    fn finish(&mut self, at: &Place) -> Result<(String, Endpoint), Vec<Complaint>> {
        let mut complaints = Vec::new();
        if self.client {
            complaints.extend(self.server_only.iter().map(|(key, at)| {
                Complaint::new(at, format!("{key} does not go with mode=client"))
            }));
        }
        if self.macs.len() > limits::MAX_STATIC_MACS {
            let text = format!("more than {} mac addresses", limits::MAX_STATIC_MACS);
            complaints.push(Complaint::new(at, text));
        }
        match (self.name.take(), self.path.take(), complaints.is_empty()) {
            (Some(name), Some(path), true) if self.client => Ok((name, Endpoint::Client { path })),
            (Some(name), Some(path), true) => Ok((name, server(path, self.mode, self.group))),
            _ => Err(complaints),
        }
    }
}

/// A port while its settings come in.
#[derive(Default)]
struct PortDraft {
    socket: SocketDraft,
    queues: Option<u16>,
    /// What the VM may send with, and what it receives.
    offload: Option<(Offloads, Offloads)>,
    platform: bool,
    feature_level: Option<u8>,
    preallocated: bool,
}

impl Draft for PortDraft {
    const KIND: Kind = Kind::Port;

    fn set(&mut self, setting: &Setting, claims: &mut Vec<Claim>) -> Result<(), String> {
        match setting.key.as_str() {
            "queues" => self.queues = Some(number(setting, 1, limits::MAX_QUEUE_PAIRS.into())?),
            "offload" => self.offload = Some(port_offloads(setting)?),
            "platform" => self.platform = is_on(setting)?,
            "feature-level" => self.feature_level = Some(feature_level(setting)?),
            "memory" => self.preallocated = is_preallocated(setting)?,
            _ => self.socket.set(setting, claims, PORT_KEYS)?,
        }
        Ok(())
    }

    fn name(&self) -> Option<String> {
        self.socket.name.clone()
    }

    fn finish(mut self, at: &Place) -> Result<Parsed, Vec<Complaint>> {
        let (name, endpoint) = self.socket.finish(at)?;
        Ok(Parsed::Port(self.with(name, endpoint)))
    }
}

impl PortDraft {
    /// The port, with what was given.
    fn with(self, name: String, endpoint: Endpoint) -> PortConfig {
        let (send, offload) = self.offload.unwrap_or((Offloads::ALL, Offloads::ALL));
        PortConfig {
            name,
            endpoint,
            queue_pairs: self.queues.unwrap_or(limits::DEFAULT_QUEUES),
            macs: self.socket.macs,
            send,
            offload,
            platform: self.platform,
            policy: self.socket.policy,
            feature_level: self.feature_level,
            preallocated: self.preallocated,
            mtu: self.socket.mtu,
        }
    }
}

/// What ports have in common that bring their own sockets.
#[derive(Default)]
struct TemplateDraft(PortDraft);

impl Draft for TemplateDraft {
    const KIND: Kind = Kind::Template;

    fn set(&mut self, setting: &Setting, claims: &mut Vec<Claim>) -> Result<(), String> {
        if TEMPLATE_KEYS.split(", ").all(|key| key != setting.key) {
            return Err(unknown_key(setting, TEMPLATE_KEYS));
        }
        self.0.set(setting, claims)
    }

    fn name(&self) -> Option<String> {
        None
    }

    fn finish(self, _at: &Place) -> Result<Parsed, Vec<Complaint>> {
        // Both are the socket's.
        let (name, endpoint) = (String::new(), Endpoint::Client { path: PathBuf::new() });
        Ok(Parsed::Template(self.0.with(name, endpoint)))
    }
}

/// A stream while its settings come in.
#[derive(Default)]
struct StreamDraft(SocketDraft);

impl Draft for StreamDraft {
    const KIND: Kind = Kind::Stream;

    fn set(&mut self, setting: &Setting, claims: &mut Vec<Claim>) -> Result<(), String> {
        self.0.set(setting, claims, STREAM_KEYS)
    }

    fn name(&self) -> Option<String> {
        self.0.name.clone()
    }

    fn finish(mut self, at: &Place) -> Result<Parsed, Vec<Complaint>> {
        let (name, endpoint) = self.0.finish(at)?;
        let SocketDraft { macs, policy, mtu, .. } = self.0;
        Ok(Parsed::Stream(StreamConfig { name, endpoint, macs, policy, mtu }))
    }
}

/// A TAP while its settings come in.
#[derive(Default)]
struct TapDraft {
    name: Option<String>,
    ifname: Option<String>,
    queues: Option<u16>,
    offload: Option<Offloads>,
    policy: PortPolicy,
    mtu: Option<u16>,
}

impl Draft for TapDraft {
    const KIND: Kind = Kind::Tap;

    fn set(&mut self, setting: &Setting, claims: &mut Vec<Claim>) -> Result<(), String> {
        match setting.key.as_str() {
            "name" => {
                self.name = Some(port_name(setting)?);
                claims.push(claim(Shared::Name, setting)?);
            }
            "ifname" => {
                self.ifname = Some(interface_name(setting)?);
                claims.push(claim(Shared::Interface, setting)?);
            }
            "queues" => self.queues = Some(number(setting, 1, limits::MAX_TAP_QUEUES.into())?),
            "offload" => self.offload = Some(offloads(setting)?),
            "flood" => self.policy.flood_unknown = is_on(setting)?,
            "mtu" => self.mtu = Some(number(setting, limits::MIN_MTU, limits::MAX_TAP_MTU)?),
            _ => return Err(unknown_key(setting, TAP_KEYS)),
        }
        Ok(())
    }

    fn name(&self) -> Option<String> {
        self.name.clone()
    }

    fn finish(self, _at: &Place) -> Result<Parsed, Vec<Complaint>> {
        let (Some(name), Some(ifname)) = (self.name, self.ifname) else {
            return Err(Vec::new());
        };
        let queues = self.queues.unwrap_or(limits::DEFAULT_QUEUES);
        let offload = self.offload.unwrap_or(Offloads::ALL);
        let (policy, mtu) = (self.policy, self.mtu);
        Ok(Parsed::Tap(TapConfig { name, ifname, queues, offload, policy, mtu }))
    }
}
