//! Requests and answers of the control socket, between the switch and its clients.
//!
//! * `interface` macros that declare types, methods and errors once, for Rust and for varlink;
//! * `types` types of parameters and answers;
//! * `methods` methods with their parameters and answers;
//! * `errors` errors of calls;
//! * `given` parameters of a client, checked against the parameters of a method.
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
pub use base::stats::{Direction, PortState as State};
pub use errors::{Fault, ServiceError, SwitchError, clip};
pub use given::read;
pub use methods::*;
pub use types::*;

/// The switch's own interface.
pub const SWITCH: &str = "io.vioswitch.Switch";
/// Interface of every varlink service.
pub const SERVICE: &str = "org.varlink.service";

/// Parameters of a call or an answer.
pub type Parameters = Map<String, Value>;

/// Returns a request or an answer as JSON.
pub fn json(message: &impl Serialize) -> Value {
    // All keys of the message's maps are texts, so the conversion cannot fail.
    serde_json::to_value(message).unwrap_or_default()
}

/// The interface in the language of varlink, which a test makes from the declarations.
pub const DESCRIPTION: &str = include_str!("../../../docs/io.vioswitch.Switch.varlink");
