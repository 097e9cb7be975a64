//! Configuration, findings and control messages: everything that an operator or a client exchanges
//! with the switch.
//!
//! | module | room for |
//! |---|---|
//! | [`wire`] | requests and answers of the control socket, as its clients have them too |
//! | [`config`] | arguments and TOML to one validated value |
//! | [`diagnosis`] | what is wrong: facts of the switch and its ports to findings |

#![forbid(unsafe_code)]

// Sets signals, umask and environment as tests rely on them.
#[cfg(test)]
use testkit as _;

pub mod config;
pub mod diagnosis;
pub mod wire;
