//! Settings to typed values: every rule about one setting or one entry.
//!
//! The check does not stop at the first error: each setting is checked, and each complaint has the
//! setting's place.

use std::borrow::Cow;
use std::collections::HashSet;

use super::claims::{Claim, Segment, Shared};
use super::configuration::Machine;
use super::keys::{KEYS, Key, Settings};
use super::kind::Kind;
use super::nearest::{habitual, nearest};
use super::raw::{Complaint, Location, Section, Setting, Source, Value, quote};
use super::scalars::{Scalars, claimed_socket, outer_keys};
use super::types::Mode;
use super::value::inherited_socket;
use base::limits::MAX_FILTER_BYTES;

/// Name of the port that `--socket-path` or `--fd` adds.
const SHORTHAND_NAME: &str = "port0";

/// An entry, with the settings that could be read.
#[derive(Debug, Clone)]
pub(super) struct Checked {
    pub(super) at: Location,
    pub(super) settings: Settings,
    /// Claims of the entry, also of an entry with errors, so that conflicts are reported together
    /// with the errors.
    pub(super) claims: Vec<Claim>,
}

/// Checked settings of one source.
#[derive(Debug, Clone, Default)]
pub(super) struct Validated {
    pub(super) scalars: Scalars,
    pub(super) entries: Vec<Checked>,
    pub(super) complaints: Vec<Complaint>,
}

/// Checks all settings of `source` for `machine`.
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
            Kind::Template => checked.scalars.template = Some((entry.at, entry.settings)),
            _ => checked.entries.push(entry),
        }
    }
    checked
}

/// Checks one setting outside of entries.
fn scalar(checked: &mut Validated, setting: &Setting, machine: Machine<'_>) -> Result<(), String> {
    match setting.key.as_str() {
        "socket-path" => {
            let claim = claimed_socket(setting)?;
            let socket = Some(claim.value.clone().into());
            let mut entry = shorthand(setting, |settings| settings.socket = socket);
            entry.claims.push(claim);
            checked.entries.push(entry);
        }
        "fd" => {
            let fd = Some(inherited_socket(setting)?);
            checked.entries.push(shorthand(setting, |settings| settings.fd = fd));
        }
        _ if checked.scalars.read(setting, machine)? => {}
        _ => return Err(unknown_key(setting, &outer_keys(), None)),
    }
    Ok(())
}

/// Returns the port of `--socket-path` or `--fd`.
fn shorthand(setting: &Setting, set: impl FnOnce(&mut Settings)) -> Checked {
    let mut settings = Settings { name: SHORTHAND_NAME.to_owned(), ..Settings::new(Kind::Port) };
    set(&mut settings);
    let (at, value) = (setting.at.clone(), settings.name.clone());
    let segment = Segment::Everywhere;
    let claims = vec![Claim { what: Shared::Name, value, segment, at: at.clone() }];
    Checked { at, settings, claims }
}

/// Splits a list of the command line, which is one word with commas, into settings; a file has
/// arrays.
fn one_by_one(kind: Kind, setting: &Setting) -> Vec<Cow<'_, Setting>> {
    match &setting.value {
        Value::Word(all)
            if kind.key(&setting.key).is_some_and(|key| key.is_list && !key.has_commas) =>
        {
            let parts = all.split(',').map(|part| Value::Word(part.to_owned()));
            parts.map(|value| Cow::Owned(Setting { value, ..setting.clone() })).collect()
        }
        _ => vec![Cow::Borrowed(setting)],
    }
}

/// Returns the complaint about a missing key of an entry, with the form of the key at this place.
fn missing(key: &Key, Section { kind, at, .. }: &Section) -> String {
    let (name, form) = (key.name, key.form(*kind));
    match at {
        Location::Line(..) => format!("{name} is missing: write {name} = \"{form}\""),
        _ => format!("{name} is missing: write {name}={form}"),
    }
}

/// Checks all settings of an entry, each once. Returns the settings and the complaints.
pub(super) fn entry(section: &Section) -> (Checked, Vec<Complaint>) {
    let kind = section.kind;
    let mut settings = Settings::new(kind);
    let (mut complaints, mut claims) = (Vec::new(), Vec::new());
    let all: Vec<Cow<'_, Setting>> =
        section.settings.iter().flat_map(|setting| one_by_one(kind, setting)).collect();
    let mut given: HashSet<&str> = HashSet::new();
    for setting in &all {
        let key = kind.key(&setting.key);
        // A file cannot repeat a key, and the values of a list are separate settings.
        let again = !given.insert(&setting.key) && !key.is_some_and(|key| key.is_list);
        let outcome = match key {
            _ if again => Err(format!("{} is given twice", quote(&setting.key))),
            Some(key) => (key.read)(&mut settings, setting).map(|()| {
                let words = (key.format)(&settings);
                claims.extend(key.claims.zip(words.into_iter().last()).map(|(what, value)| {
                    Claim { what, value, segment: Segment::Everywhere, at: setting.at.clone() }
                }));
            }),
            None => {
                let known: Vec<&str> = kind.keys().map(|key| key.name).collect();
                Err(unknown_key(setting, &known, Some(kind)))
            }
        };
        complaints.extend(outcome.err().map(|text| Complaint::new(&setting.at, text)));
    }
    for key in kind.keys().filter(|key| key.is_required() && !given.contains(key.name)) {
        complaints.push(Complaint::new(&section.at, missing(key, section)));
    }
    for claim in &mut claims {
        claim.segment = settings.scope(claim.what);
    }
    let trunk = ["trunk", "native"].into_iter().find(|key| given.contains(key));
    for setting in section.settings.iter().filter(|setting| setting.key == "vlan") {
        complaints.extend(trunk.map(|other| {
            let text = format!(
                "vlan does not go with {other}: leave one of them out, or set it to nothing \
                     (vlan=, {other}=); on a trunk native= is the VLAN of untagged frames"
            );
            Complaint::new(&setting.at, text)
        }));
    }
    complaints.extend(native_alone(section));
    let bytes: usize = settings.rules.iter().map(|rule| rule.to_string().len()).sum();
    if bytes > MAX_FILTER_BYTES {
        let text = format!("rules have {bytes} bytes, and at most {MAX_FILTER_BYTES}: use groups");
        complaints.push(Complaint::new(&section.at, text));
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

/// Returns the complaint about `native` without `trunk`: the port would be only in this VLAN, as
/// with `vlan`, and cut off from ports in no VLAN.
fn native_alone(Section { settings, .. }: &Section) -> Option<Complaint> {
    let given = |name: &str| settings.iter().find(|setting| setting.key == name);
    let native = given("native").filter(|_| given("trunk").is_none() && given("vlan").is_none())?;
    let told = match &native.value {
        Value::Integer(number) => number.to_string(),
        Value::Word(word) => word.clone(),
        _ => return None,
    };
    let instead = match told.as_str() {
        "0" => "leave it out: a port without vlan and trunk is in no VLAN".to_owned(),
        vlan => format!("for an access port of VLAN {vlan} write vlan={vlan}"),
    };
    let text = format!("native is of a trunk, and trunk is missing; {instead}");
    Some(Complaint::new(&native.at, text))
}

/// Returns the complaint about an unknown key. `known` lists the possible keys: the keys of `kind`,
/// or the keys outside of entries. The complaint has a suggestion first, and then the place of the
/// list.
fn unknown_key(setting: &Setting, known: &[&str], kind: Option<Kind>) -> String {
    let plain = |word: &str| word.trim_end_matches('s').replace('_', "-").to_lowercase();
    let meant = known.iter().find(|word| plain(word) == plain(&setting.key));
    let list = match (&setting.at, kind) {
        (Location::Parameter(_), Some(kind)) => format!("vioswitchctl {kind} add --help"),
        _ => "vioswitchd --help".to_owned(),
    };
    let near = || nearest(&setting.key, known.iter().copied());
    let elsewhere =
        kind.and_then(|kind| KEYS.iter().find(|k| k.name == setting.key).zip(Some(kind)));
    if let Some((key, kind)) = elsewhere {
        let kinds = key.kinds.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(", ");
        let key = quote(&setting.key);
        return format!("{key} is a key of {kinds}, not of {kind}; {list} lists its keys");
    }
    let hint = match meant {
        Some(word) if Kind::named(word).is_some() => format!(": write [[{word}]]"),
        Some(word) => format!(": write {}", setting.renamed(word)),
        None => match habitual(&setting.key, known).or_else(near) {
            Some(word) => {
                format!(", did you mean {}? {list} lists the keys", setting.renamed(word))
            }
            None => format!("; {list} lists the keys"),
        },
    };
    format!("unknown key {}{hint}", quote(&setting.key))
}
