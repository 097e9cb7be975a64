//! Checks the values of parameters: ranges of numbers, addresses, and the keys of a port.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use serde_json::{Number, Value};

use api::config::{InvalidSetting, KEYS, Value as Given};
use api::wire::{Fault, Parameters};
use base::frame::MacAddr;
use base::limits::MAX_GROUP_ADDRESSES;

/// Returns the error about a parameter with an invalid value.
pub fn wrong(key: &str, text: String, value: &str) -> Fault {
    Fault::invalid(&InvalidSetting { key: key.to_owned(), text }, value)
}

/// Returns the MAC address of a parameter.
pub fn mac(word: &str, key: &str) -> Result<MacAddr, Fault> {
    word.parse().map_err(|_| {
        wrong(key, format!("{key} must be a MAC address, such as 52:54:00:12:34:56"), word)
    })
}

/// Returns the IP address of a parameter.
pub fn ip(word: &str, key: &str) -> Result<IpAddr, Fault> {
    let text = || format!("{key} must be an IP address, such as 10.0.0.5 or fd00::5");
    word.parse().map_err(|_| wrong(key, text(), word))
}

/// Returns the whole number of a parameter, if the parameter is given.
pub fn number(
    value: Option<Number>,
    key: &str,
    range: RangeInclusive<u64>,
) -> Result<Option<u64>, Fault> {
    let Some(value) = value else { return Ok(None) };
    match value.as_u64().filter(|number| range.contains(number)) {
        Some(number) => Ok(Some(number)),
        None => {
            let text = format!("{key} must be a number from {} to {}", range.start(), range.end());
            Err(wrong(key, text, &value.to_string()))
        }
    }
}

/// Parameters as the client gave them, for answers that refuse a parameter.
pub struct Values(Parameters);

impl Values {
    /// Returns the error about a parameter, with the value that the client gave.
    pub fn fault(&self, InvalidSetting { key, text }: InvalidSetting) -> Fault {
        let field = key.replace('-', "_");
        let value = match self.0.get(&field).or_else(|| self.0.get(&key)) {
            None => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        };
        Fault::invalid(&InvalidSetting { key: field, text }, &value)
    }
}

/// Parameters as settings of a port, the name first. Varlink has `_` where the configuration has
/// `-`, and a list where the configuration repeats a key.
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
            Value::Array(items) if is_list(&key) && items.len() <= 2 * MAX_GROUP_ADDRESSES => {
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
            None => Given::Other("a float, or an integer beyond 64 bits"),
        },
        Value::Null => Given::Other("nothing"),
        Value::Array(_) => Given::Other("a list"),
        Value::Object(_) => Given::Other("a table"),
    }
}
