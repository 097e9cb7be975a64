//! Requests and answers of the control socket: what the switch and its clients say to each other.
//!
//! * `interface` how types, methods and errors are declared, once, for Rust and for varlink;
//! * `types` what requests and answers consist of;
//! * `methods` the methods, with what they take and answer;
//! * `errors` why a call is not carried out;
//! * `given` parameters as a client gives them, checked against what a method takes.
//!
//! `docs/io.vioswitch.Switch.varlink` is made of these declarations.

mod errors;
mod given;
mod interface;
mod methods;
#[cfg(test)]
mod tests;
mod types;

use serde::Serialize;
use serde_json::{Map, Value};

pub use crate::diagnosis::Level;
pub use base::stats::Direction;
pub use errors::{Fault, ServiceError, SwitchError, clip};
pub use given::read;
pub use methods::*;
pub use types::*;

/// The switch's own interface.
pub const SWITCH: &str = "io.vioswitch.Switch";
/// That of every varlink service.
pub const SERVICE: &str = "org.varlink.service";

/// Parameters of a call or an answer.
pub type Parameters = Map<String, Value>;

/// A request or an answer as JSON.
pub fn json(message: &impl Serialize) -> Value {
    // All keys of its maps are texts, so that nothing can fail.
    serde_json::to_value(message).unwrap_or_default()
}

/// The interface in the language of varlink, as a test makes it of what is declared.
pub const DESCRIPTION: &str = include_str!("../../../docs/io.vioswitch.Switch.varlink");
