//! Messages of varlink: a call, and what is answered.
//!
//! A message is an object of JSON that ends in a zero byte. A call has a `method`, `parameters` and
//! three flags; an answer has `parameters`, and `continues` where more follow, or an `error`.

use serde::Deserialize;
use serde_json::{Value, json};

use api::wire::Parameters;

/// One call.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Call {
    /// Interface and method.
    pub method: String,
    /// Its parameters.
    pub parameters: Option<Parameters>,
    /// The client understands an answer of several parts.
    pub more: Option<bool>,
    /// The client wants no answer.
    pub oneway: Option<bool>,
    /// The connection is to become something else.
    pub upgrade: Option<bool>,
}

impl Call {
    /// Reads a message without its end; `None` if it is no call.
    pub fn parse(message: &[u8]) -> Option<Call> {
        let object: Parameters = serde_json::from_slice(message).ok()?;
        serde_json::from_value(Value::Object(object)).ok()
    }
}

/// An answer; `continues` if another one follows.
pub fn reply(parameters: Value, continues: bool) -> Value {
    match continues {
        true => json!({"parameters": parameters, "continues": true}),
        false => json!({"parameters": parameters}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_an_object_with_a_method() {
        let call = Call::parse(br#"{"method":"a.B","more":true,"parameters":{"x":1}}"#).unwrap();
        assert_eq!((call.method.as_str(), call.more, call.oneway), ("a.B", Some(true), None));
        assert_eq!(call.parameters.unwrap()["x"], 1);
        let bare = Call::parse(br#" {"method":"a.B","parameters":null,"oneway":null} "#).unwrap();
        assert!(bare.parameters.is_none() && bare.upgrade.is_none());
        for bad in [
            "",
            "{}",
            "[]",
            "1",
            "[\"a.B\",{},true,true,true]",
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
}
