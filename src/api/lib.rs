//! Configuration, findings and control messages: everything that an operator or a client exchanges
//! with the switch.
//!
//! | module | room for |
//! |---|---|
//! | [`wire`] | requests and answers of the control socket, for the switch and for clients |
//! | [`config`] | arguments and TOML files to one validated value |
//! | [`diagnosis`] | facts about the switch and its ports to findings |

#![forbid(unsafe_code)]

// The test kit sets the signals, umask and environment that tests need.
#[cfg(test)]
use testkit as _;

pub mod config;
pub mod diagnosis;
pub mod wire;
