//! Settings to typed values: every rule about one setting or one entry.
//!
//! Nothing stops at the first error: each setting is checked, and each complaint carries the
//! place its setting was given at.

use std::collections::HashSet;
use std::path::PathBuf;

use log::LevelFilter;

use super::cpus::cpu_list;
use super::entries::{Checked, Claim, Shared};
use super::keys::{Key, Kind, Settings};
use super::raw::{Complaint, Section, Setting, Source, quote};
use super::types::Mode;
use super::value::{
    feature_level, group, inherited_socket, log_level, metrics, number, socket_directory,
    socket_path, text, truth, unknown_key, workers,
};
use super::{Machine, MetricsSocket};
use crate::limits;

/// Name of the port that `--socket-path` or `--fd` adds.
const SHORTHAND_NAME: &str = "port0";

pub(super) const SCALAR_KEYS: &[&str] = &[
    "port",
    "tap",
    "stream",
    "workers",
    "cpus",
    "poll",
    "age",
    "control",
    "control-group",
    "control-admin-group",
    "capture-group",
    "metrics",
    "feature-level",
    "log-level",
    "uplink-to-uplink",
    "plug",
    "template",
    "socket-path",
    "fd",
];

/// One place's settings, checked.
#[derive(Debug, Clone, Default)]
pub(super) struct Validated {
    pub(super) scalars: Scalars,
    pub(super) entries: Vec<Checked>,
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
    pub(super) template: Option<Settings>,
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
        let (entry, mut complaints) = entry(section);
        checked.complaints.append(&mut complaints);
        match section.kind {
            Kind::Template => checked.scalars.template = Some(entry.settings),
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
            let socket = Some(socket_path(setting)?);
            let mut entry = shorthand(setting, |settings| settings.socket = socket);
            entry.claims.push(claim(Shared::Socket, setting)?);
            checked.entries.push(entry);
        }
        "fd" => {
            let fd = Some(inherited_socket(setting)?);
            checked.entries.push(shorthand(setting, |settings| settings.fd = fd));
        }
        _ => return Err(unknown_key(setting, SCALAR_KEYS)),
    }
    Ok(())
}

/// The port that a shorthand stands for.
fn shorthand(setting: &Setting, set: impl FnOnce(&mut Settings)) -> Checked {
    let mut settings = Settings { name: SHORTHAND_NAME.to_owned(), ..Settings::new(Kind::Port) };
    set(&mut settings);
    let (at, value) = (setting.at.clone(), settings.name.clone());
    let claims = vec![Claim { what: Shared::Name, value, at: at.clone() }];
    Checked { at, settings, claims }
}

/// Claims the setting's value.
fn claim(what: Shared, setting: &Setting) -> Result<Claim, String> {
    Ok(Claim { what, value: text(setting)?.to_owned(), at: setting.at.clone() })
}

/// All settings of an entry, and what is wrong with them: each is looked at, once.
pub(super) fn entry(section: &Section) -> (Checked, Vec<Complaint>) {
    let kind = section.kind;
    let mut settings = Settings::new(kind);
    let (mut complaints, mut claims) = (Vec::new(), Vec::new());
    let mut given: HashSet<&str> = HashSet::new();
    for setting in &section.settings {
        let key = kind.key(&setting.key);
        // A file cannot repeat a key, and a list's values come one by one.
        let again = !given.insert(&setting.key) && !key.is_some_and(|key| key.is_list);
        let outcome = match key {
            _ if again => Err(format!("{} is given twice", quote(&setting.key))),
            Some(key) => (key.read)(&mut settings, setting).map(|()| {
                let words = (key.words)(&settings);
                claims.extend(
                    key.claims.zip(words.into_iter().last()).map(|(what, value)| Claim {
                        what,
                        value,
                        at: setting.at.clone(),
                    }),
                );
            }),
            None => {
                let known: Vec<&str> = kind.keys().map(|key| key.name).collect();
                Err(unknown_key(setting, &known))
            }
        };
        complaints.extend(outcome.err().map(|text| Complaint::new(&setting.at, text)));
    }
    for key in kind.keys().filter(|key| key.is_required() && !given.contains(key.name)) {
        complaints.push(Complaint::new(&section.at, format!("{} is missing", key.name)));
    }
    let of_server = |setting: &&Setting| kind.key(&setting.key).is_some_and(Key::is_of_server);
    if settings.mode == Mode::Client {
        complaints.extend(section.settings.iter().filter(of_server).map(
            |Setting { key, at, .. }| {
                Complaint::new(at, format!("{key} does not go with mode=client"))
            },
        ));
    }
    (Checked { at: section.at.clone(), settings, claims }, complaints)
}
