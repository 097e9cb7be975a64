//! Parameters of a call: those that are known, with the type they must have.

use std::ops::RangeInclusive;

use serde_json::Value;

use super::message::{Fault, Parameters};
use crate::config::{KEYS, Value as Given, Wrong, nearest};
use crate::frame::MacAddr;
use crate::limits::MAX_STATIC_MACS;

/// An error if there are other parameters than the known ones.
pub fn only(parameters: &Parameters, known: &[&str]) -> Result<(), Fault> {
    match parameters.keys().find(|key| !known.contains(&key.as_str())) {
        Some(other) => Err(Fault::parameter(other, nearest(other, known.iter().copied()))),
        None => Ok(()),
    }
}

/// A text, if it is given.
pub fn text(parameters: &mut Parameters, key: &str) -> Result<Option<String>, Fault> {
    match parameters.remove(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(Fault::parameter(key, None)),
    }
}

/// A text that must be given.
pub fn required(parameters: &mut Parameters, key: &str) -> Result<String, Fault> {
    text(parameters, key)?.ok_or_else(|| Fault::parameter(key, None))
}

/// A MAC address that must be given.
pub fn mac(parameters: &mut Parameters, key: &str) -> Result<MacAddr, Fault> {
    let word = required(parameters, key)?;
    word.parse().map_err(|_| {
        let text = format!("{key} must be a MAC address, such as 52:54:00:12:34:56");
        Fault::invalid(&Wrong { key: key.to_owned(), text }, &word)
    })
}

/// Yes or no, if it is given.
pub fn flag(parameters: &mut Parameters, key: &str) -> Result<Option<bool>, Fault> {
    match parameters.remove(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Bool(truth)) => Ok(Some(truth)),
        Some(_) => Err(Fault::parameter(key, None)),
    }
}

/// A whole number, if it is given.
pub fn number(
    parameters: &mut Parameters,
    key: &str,
    range: RangeInclusive<u64>,
) -> Result<Option<u64>, Fault> {
    let value = match parameters.remove(key) {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Number(value)) => value,
        Some(_) => return Err(Fault::parameter(key, None)),
    };
    match value.as_u64().filter(|number| range.contains(number)) {
        Some(number) => Ok(Some(number)),
        None => {
            let text = format!("{key} must be a number from {} to {}", range.start(), range.end());
            Err(Fault::invalid(&Wrong { key: key.to_owned(), text }, &value.to_string()))
        }
    }
}

/// What was given, for the answer about what is wrong with it.
pub struct Values(Parameters);

impl Values {
    /// The error that says so.
    pub fn fault(&self, Wrong { key, text }: Wrong) -> Fault {
        let field = key.replace('-', "_");
        let value = match self.0.get(&field).or_else(|| self.0.get(&key)) {
            None => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        };
        Fault::invalid(&Wrong { key: field, text }, &value)
    }
}

/// Parameters as settings of a port: varlink has `_` where the configuration has `-`, and a list
/// where that repeats a key. The name comes first.
pub type Settings = Vec<(String, Given)>;

pub fn settings(parameters: Parameters) -> Result<(String, Settings, Values), Fault> {
    let name = match parameters.get("name") {
        Some(Value::String(name)) => name.clone(),
        _ => return Err(Fault::parameter("name", None)),
    };
    let is_list = |key: &str| KEYS.iter().any(|known| known.is_list && known.name == key);
    let mut settings = vec![("name".to_owned(), Given::Word(name.clone()))];
    for (key, value) in parameters.iter().filter(|(key, _)| *key != "name") {
        let key = key.replace('_', "-");
        match value {
            Value::Null => {}
            Value::Array(items) if is_list(&key) && items.len() <= 2 * MAX_STATIC_MACS => {
                settings.extend(items.iter().map(|item| (key.clone(), given(item))));
            }
            value => settings.push((key, given(value))),
        }
    }
    Ok((name, settings, Values(parameters)))
}

fn given(value: &Value) -> Given {
    match value {
        Value::String(text) => Given::Word(text.clone()),
        Value::Bool(truth) => Given::Boolean(*truth),
        Value::Number(number) => match number.as_i64() {
            Some(number) => Given::Integer(number),
            None => Given::Other("a fraction, or beyond 64 bits"),
        },
        Value::Null => Given::Other("nothing"),
        Value::Array(_) => Given::Other("a list"),
        Value::Object(_) => Given::Other("a table"),
    }
}
