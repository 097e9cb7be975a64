//! Answers of commands, for programs and for people.

use std::fmt::Display;
use std::io::Write;

use api::wire;
use serde::Serialize;
use serde_json::{Value, json};

/// An answer for programs, and the answer as people read it.
pub type Output = (Value, String);

/// Returns an answer with the text for people that `text` makes of the answer.
pub fn rendered<T: Serialize>(answer: &T, text: impl FnOnce(&T) -> String) -> Output {
    (wire::json(answer), text(answer))
}

/// Returns an answer without a text for people.
pub fn silent<T: Serialize>(answer: &T) -> Output {
    rendered(answer, |_| String::new())
}

/// Returns a list as an answer, in which the list has the name `key`.
pub fn listed<T: Serialize>(key: &str, items: &[T], text: impl FnOnce(&[T]) -> String) -> Output {
    (json!({key: items}), text(items))
}

/// Returns a text of an answer without the control characters, which could steer a terminal.
pub fn text(text: impl Display) -> String {
    text.to_string().chars().filter(|c| !c.is_control()).collect()
}

/// Writes a line for people to standard error. A failure to write the line does not end the
/// command.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "vioswitchctl: {line}");
}
