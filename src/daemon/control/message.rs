//! Messages of varlink: calls and answers.
//!
//! A message is an object of JSON that ends in a zero byte. A call has a `method`, `parameters` and
//! three flags; an answer has `parameters`, and `continues` if another answer follows, or an
//! `error`.

use serde::Deserialize;
use serde_json::{Value, json};

use api::wire::Parameters;

/// A call of a client.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Call {
    /// Interface and method.
    pub(crate) method: String,
    /// Parameters of the method.
    pub(crate) parameters: Option<Parameters>,
    /// True if the client understands an answer of several parts.
    pub(crate) more: Option<bool>,
    /// True if the client wants no answer.
    pub(crate) oneway: Option<bool>,
    /// True if the client wants another protocol on the connection.
    pub(crate) upgrade: Option<bool>,
}

impl Call {
    /// Returns the call of a message without its end; `None` if the message is no call.
    pub(crate) fn parse(message: &[u8]) -> Option<Call> {
        let object: Parameters = serde_json::from_slice(message).ok()?;
        serde_json::from_value(Value::Object(object)).ok()
    }
}

/// Returns an answer; `continues` is true if another answer follows.
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
