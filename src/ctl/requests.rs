//! Requests made of `KEY=VALUE` words.

use api::config::{KEYS, Key, Kind};
use api::wire::{self, Add, Delete, Deleted, EntryKeys, LiveKeys, Parameters, Set, Trace};
use serde_json::{Value, json};

use crate::client::Client;
use crate::failure::Failure;

/// Deletes the entry of this name, if the entry is of this kind; `None` stands for any kind.
pub fn delete(
    client: &mut Client,
    name: &str,
    kind: Option<Kind>,
    if_exists: bool,
) -> Result<Deleted, Failure> {
    let (name, kind) = (name.to_owned(), kind.map(|kind| kind.name().to_owned()));
    match client.call(&Delete { name, kind }) {
        Err(failure) if if_exists && failure.is("NoSuchPort") => Ok(Deleted::default()),
        answer => answer,
    }
}

/// Returns the answer for `trace PORT src=MAC dst=MAC vlan=VLAN ip=IP len=BYTES`, or for `trace
/// PORT frame=BASE64`.
pub fn trace(
    client: &mut Client,
    port: &str,
    settings: &[String],
) -> Result<wire::Traced, Failure> {
    let frame: Result<Trace, _> = wire::read(parameters(("port", port), settings)?);
    client.call(&frame.map_err(|fault| Failure::answered(fault.message()))?)
}

/// Returns the request to add a port.
pub(crate) fn new_port(
    kind: Kind,
    name: &str,
    settings: &[String],
    may_exist: bool,
    transient: bool,
) -> Result<Add, Failure> {
    let keys = EntryKeys(parameters(("name", name), settings)?);
    let (kind, may_exist) = (Some(kind.name().to_owned()), Some(may_exist));
    Ok(Add { kind, may_exist, transient: transient.then_some(true), keys })
}

/// Returns the request to change a port: a key without a value gets its default.
pub fn changed(kind: Kind, name: &str, settings: &[String]) -> Result<Set, Failure> {
    let is_unset = |setting: &&String| setting.len() > 1 && setting.ends_with('=');
    let (unset, given): (Vec<&String>, Vec<&String>) = settings.iter().partition(is_unset);
    let unset = unset.iter().map(|setting| setting.trim_end_matches('=').to_owned()).collect();
    let keys = LiveKeys(parameters(("name", name), given)?);
    Ok(Set { kind: Some(kind.name().to_owned()), unset: Some(unset), keys })
}

/// Returns `KEY=VALUE …` as parameters of varlink: a key has `_` for each `-`, an integer key has a
/// number, and a repeatable key has a list.
pub fn parameters<'s>(
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
