//! Messages of varlink: what a call says, and what is said in answer.
//!
//! A message is an object of JSON that ends in a zero byte. A call has a `method`, `parameters` and
//! three flags; an answer has `parameters`, and `continues` where more follow, or an `error`.

use serde_json::{Map, Value, json};

use crate::config::Wrong;
use crate::limits::{MAX_CONFIG_ERRORS, MAX_QUOTED_CHARS};

/// The switch's own interface.
pub const SWITCH: &str = "io.vioswitch.Switch";
/// That of every varlink service.
pub const SERVICE: &str = "org.varlink.service";

/// Parameters of a call or an answer.
pub type Parameters = Map<String, Value>;

/// One call.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// Interface and method.
    pub method: String,
    /// What it is called with.
    pub parameters: Parameters,
    /// Several answers are understood.
    pub more: bool,
    /// None is wanted.
    pub oneway: bool,
    /// The connection is to become something else.
    pub upgrade: bool,
}

impl Call {
    /// Reads a message without its end; `None` if it is no call.
    pub fn parse(message: &[u8]) -> Option<Call> {
        let Ok(Value::Object(mut object)) = serde_json::from_slice(message) else { return None };
        let mut flag = |key| match object.remove(key) {
            None | Some(Value::Null) => Some(false),
            Some(Value::Bool(truth)) => Some(truth),
            Some(_) => None,
        };
        let (more, oneway, upgrade) = (flag("more")?, flag("oneway")?, flag("upgrade")?);
        let parameters = match object.remove("parameters") {
            None | Some(Value::Null) => Map::new(),
            Some(Value::Object(parameters)) => parameters,
            Some(_) => return None,
        };
        match object.remove("method") {
            Some(Value::String(method)) => Some(Call { method, parameters, more, oneway, upgrade }),
            _ => None,
        }
    }
}

/// An answer; `continues` if another one follows.
pub fn reply(parameters: Value, continues: bool) -> Value {
    match continues {
        true => json!({"parameters": parameters, "continues": true}),
        false => json!({"parameters": parameters}),
    }
}

/// Why a call is not carried out.
#[derive(Debug, Clone, PartialEq)]
pub struct Fault {
    interface: &'static str,
    name: &'static str,
    parameters: Value,
}

impl Fault {
    /// As an answer.
    pub fn message(self) -> Value {
        let error = format!("{}.{}", self.interface, self.name);
        json!({"error": error, "parameters": self.parameters})
    }

    fn service(name: &'static str, parameters: Value) -> Fault {
        Fault { interface: SERVICE, name, parameters }
    }

    fn switch(name: &'static str, parameters: Value) -> Fault {
        Fault { interface: SWITCH, name, parameters }
    }

    /// No such interface.
    pub fn interface_not_found(interface: &str) -> Fault {
        Fault::service("InterfaceNotFound", json!({"interface": clip(interface)}))
    }

    /// No such method.
    pub fn method_not_found(method: &str, nearest: Option<&str>) -> Fault {
        let mut parameters = json!({"method": clip(method)});
        if let Some(nearest) = nearest {
            parameters["nearest"] = nearest.into();
        }
        Fault::service("MethodNotFound", parameters)
    }

    /// No such parameter, none where one is needed, or one of another type.
    pub fn parameter(parameter: &str, nearest: Option<&str>) -> Fault {
        let mut parameters = json!({"parameter": clip(parameter)});
        if let Some(nearest) = nearest {
            parameters["nearest"] = nearest.into();
        }
        Fault::service("InvalidParameter", parameters)
    }

    /// The answer has several parts.
    pub fn expected_more() -> Fault {
        Fault::service("ExpectedMore", json!({}))
    }

    /// The name is taken.
    pub fn port_exists(name: &str, origin: &str) -> Fault {
        Fault::switch("PortExists", json!({"name": clip(name), "origin": origin}))
    }

    /// A port that has the name, or what else is wanted, is being removed.
    pub fn port_being_removed(name: &str) -> Fault {
        Fault::switch("PortBeingRemoved", json!({"name": clip(name)}))
    }

    /// The configuration has errors; nothing has changed.
    pub fn bad_config(errors: &[String]) -> Fault {
        let errors: Vec<String> = errors.iter().take(MAX_CONFIG_ERRORS + 1).cloned().collect();
        Fault::switch("BadConfig", json!({"errors": errors}))
    }

    /// Nothing has this name.
    pub fn no_such_port(name: &str, nearest: Option<&str>) -> Fault {
        let mut parameters = json!({"name": clip(name)});
        if let Some(nearest) = nearest {
            parameters["nearest"] = nearest.into();
        }
        Fault::switch("NoSuchPort", parameters)
    }

    /// A setting's value is of no use.
    pub fn invalid(Wrong { key, text }: &Wrong, value: &str) -> Fault {
        let parameters = json!({"field": clip(key), "value": clip(value), "wanted": text});
        Fault::switch("InvalidParameter", parameters)
    }

    /// What was waited for has not happened in time.
    pub fn timed_out(state: &str) -> Fault {
        Fault::switch("TimedOut", json!({"state": state}))
    }

    /// The caller may not do this.
    pub fn not_permitted(wanted: String) -> Fault {
        Fault::switch("NotPermitted", json!({"wanted": wanted}))
    }

    /// It could not be done.
    pub fn refused(reason: &str) -> Fault {
        Fault::switch("Refused", json!({"reason": reason}))
    }
}

/// What a client said, as much of it as is said back.
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
    fn a_call_is_an_object_with_a_method() {
        let call = Call::parse(br#"{"method":"a.B","more":true,"parameters":{"x":1}}"#).unwrap();
        assert_eq!((call.method.as_str(), call.more, call.oneway), ("a.B", true, false));
        assert_eq!(call.parameters["x"], 1);
        let bare = Call::parse(br#" {"method":"a.B","parameters":null,"oneway":null} "#).unwrap();
        assert!(bare.parameters.is_empty() && !bare.upgrade);
        for bad in [
            "",
            "{}",
            "[]",
            "1",
            "{\"method\":1}",
            "{\"method\":\"a\",\"more\":1}",
            "{\"method\":\"a\",\"parameters\":[]}",
            "{\"method\":\"a\"",
            "{\"method\":\"\u{fffd}\"}}",
        ] {
            assert_eq!(Call::parse(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(Call::parse(b"{\"method\":\"\xff\"}"), None);
        let deep = [b"[".repeat(60_000), b"]".repeat(60_000)].concat();
        assert_eq!(Call::parse(&deep), None, "no stack is used up");
    }

    #[test]
    fn what_is_said_back_is_short() {
        let long = "ü".repeat(10_000);
        let message = Fault::no_such_port(&long, Some("vm1")).message();
        assert_eq!(message["error"], "io.vioswitch.Switch.NoSuchPort");
        assert_eq!(message["parameters"]["nearest"], "vm1");
        assert!(message.to_string().len() < 1_000);
    }
}
