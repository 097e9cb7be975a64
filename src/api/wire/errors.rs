//! Errors of calls: the errors of the interface and of varlink itself.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::interface::errors;
#[cfg(test)]
use super::tests::{Varlink, body, item, lines};
use super::{SERVICE, SWITCH, State};
use crate::config::InvalidSetting;
use base::limits::{MAX_CONFIG_ERRORS, MAX_QUOTED_CHARS};

errors! { _of_service
    /// Errors of every varlink service.
    ServiceError
    /// No such interface.
    InterfaceNotFound { interface: String }
    /// No such method; the nearest method.
    MethodNotFound { method: String, nearest?: String }
    /// A parameter has an invalid value; the valid values.
    InvalidParameter { parameter: String, nearest?: String }
    /// The answer has several parts.
    ExpectedMore {}
}

errors! { of_switch
    /// Errors of the switch.
    SwitchError
    /// The configuration has errors, or could not be put into service, and the old configuration
    /// runs; all errors, with file and line where known.
    BadConfig { errors: Vec<String> }
    /// A port of this name exists; the port's origin.
    PortExists { name: String, origin: String as Origin }
    /// The port is being removed: its name, socket, interface and addresses are not free yet.
    PortBeingRemoved { name: String }
    /// No port has this name; the nearest name.
    NoSuchPort { name: String, nearest?: String }
    /// A parameter has an invalid value; the valid values.
    InvalidParameter { field: String, value: String, wanted: String }
    /// The port did not reach the state in time; the port's present state.
    TimedOut { state: State }
    /// The caller lacks the right to call the method; the callers that have the right.
    NotPermitted { wanted: String }
    /// The switch could not carry out the call, and changed nothing; the reason.
    Refused { reason: String }
}

/// Reason why a call is not carried out.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{self:?}")]
pub enum Fault {
    /// Error by the rules of varlink.
    Service(ServiceError),
    /// Error of the switch.
    Switch(SwitchError),
}

impl Fault {
    /// Returns the error as an answer.
    pub fn message(&self) -> Value {
        let (interface, message) = match self {
            Fault::Service(error) => (SERVICE, serde_json::to_value(error)),
            Fault::Switch(error) => (SWITCH, serde_json::to_value(error)),
        };
        let mut message = message.unwrap_or_default();
        message["error"] =
            format!("{interface}.{}", message["error"].as_str().unwrap_or("")).into();
        message
    }

    /// Reads an answer; returns none if the answer is no known error.
    pub fn read(mut message: Value) -> Option<Fault> {
        let (interface, name) = message["error"].as_str()?.rsplit_once('.')?;
        let is_service = interface == SERVICE;
        message["error"] = name.into();
        match is_service {
            true => serde_json::from_value(message).ok().map(Fault::Service),
            false => serde_json::from_value(message).ok().map(Fault::Switch),
        }
    }

    /// No such interface.
    pub fn interface_not_found(interface: &str) -> Fault {
        Fault::Service(ServiceError::InterfaceNotFound { interface: clip(interface) })
    }

    /// No such method.
    pub fn method_not_found(method: &str, nearest: Option<&str>) -> Fault {
        let (method, nearest) = (clip(method), nearest.map(str::to_owned));
        Fault::Service(ServiceError::MethodNotFound { method, nearest })
    }

    /// A parameter is unknown, missing or of another type.
    pub fn parameter(parameter: &str, nearest: Option<&str>) -> Fault {
        let (parameter, nearest) = (clip(parameter), nearest.map(str::to_owned));
        Fault::Service(ServiceError::InvalidParameter { parameter, nearest })
    }

    /// A port has this name.
    pub fn port_exists(name: &str, origin: &str) -> Fault {
        Fault::Switch(SwitchError::PortExists { name: clip(name), origin: origin.to_owned() })
    }

    /// A port with the wanted name, socket, interface or address is being removed.
    pub fn port_being_removed(name: &str) -> Fault {
        Fault::Switch(SwitchError::PortBeingRemoved { name: clip(name) })
    }

    /// The configuration has errors; nothing has changed.
    pub fn bad_config(errors: &[String]) -> Fault {
        let errors = errors.iter().take(MAX_CONFIG_ERRORS + 1).cloned().collect();
        Fault::Switch(SwitchError::BadConfig { errors })
    }

    /// No port has this name.
    pub fn no_such_port(name: &str, nearest: Option<&str>) -> Fault {
        let (name, nearest) = (clip(name), nearest.map(str::to_owned));
        Fault::Switch(SwitchError::NoSuchPort { name, nearest })
    }

    /// A setting has an invalid value.
    pub fn invalid(InvalidSetting { key, text }: &InvalidSetting, value: &str) -> Fault {
        let (field, value, wanted) = (clip(key), clip(value), text.clone());
        Fault::Switch(SwitchError::InvalidParameter { field, value, wanted })
    }

    /// The call could not be carried out.
    pub fn refused(reason: &str) -> Fault {
        Fault::Switch(SwitchError::Refused { reason: reason.to_owned() })
    }
}

/// Returns a text of a client, cut to the length that an answer repeats.
pub fn clip(text: &str) -> String {
    match text.char_indices().nth(MAX_QUOTED_CHARS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_back_is_short() {
        let long = "ü".repeat(10_000);
        let message = Fault::no_such_port(&long, Some("vm1")).message();
        assert_eq!(message["error"], "io.vioswitch.Switch.NoSuchPort");
        assert_eq!(message["parameters"]["nearest"], "vm1");
        assert!(message.to_string().len() < 1_000);
    }

    #[test]
    fn an_error_is_read_as_it_was_written() {
        for fault in [
            Fault::parameter("x", None),
            Fault::port_exists("vm1", "file"),
            Fault::Service(ServiceError::ExpectedMore {}),
            Fault::Switch(SwitchError::TimedOut { state: State::LeftOut }),
        ] {
            assert_eq!(Fault::read(fault.message()), Some(fault));
        }
        assert_eq!(Fault::read(serde_json::json!({"error": "a.B", "parameters": {}})), None);
    }
}
