//! vioswitch: a vhost-user-net back-end for many VMs with an L2 learning switch and TAP uplinks
//! inside. This is the map of modules; `docs/architecture.md` explains how they work together.
//!
//! A module uses what stands below it, never above:
//!
//! | module | room for |
//! |---|---|
//! | [`control`] | the control socket: a switch is looked at and changed while it runs |
//! | [`wire`] | requests and answers of the control socket, as its clients have them too |
//! | [`metrics`] | counters for Prometheus, by HTTP |
//! | [`daemon`] | the parts of the process, start and stop order |
//! | [`config`] | arguments and TOML to one validated value |
//! | [`diagnosis`] | what is wrong: facts of the switch and its ports to findings |
//! | [`vhost_user`] | one front-end's session |
//! | [`worker`] | threads of the data path: when each ring is worked, and by which |
//! | [`pipeline`] | one burst, top to bottom: take, classify, plan, deliver, complete |
//! | [`port`] | what frames come from and go to: a guest's rings, an uplink |
//! | [`ring`] | split virtqueues |
//! | [`memory`] | guest memory: mapping, translation, dirty log |
//! | [`switch`] | decisions: the forwarding table and the policy |
//! | [`events`] | what happened, for clients that watch |
//! | [`capture`] | copies of frames for clients |
//! | [`stats`] | counters and the named reasons for a drop |
//! | [`guard`] | containment of front-ends: blocked writers, expensive signals, SIGBUS |
//! | [`logging`] | the log's queue, its filter, the journal |
//! | [`sys`] | system calls |
//! | [`frame`] | frames as bytes |
//! | [`budget`] | what is earned and spent |
//! | [`limits`] | every limit and default |
//! | [`words`] | enumerations with a word for each value |
#![cfg(target_os = "linux")]

// Sets signals, umask and environment as tests rely on them.
#[cfg(test)]
use testkit as _;

#[macro_use]
pub mod words;

pub mod budget;
pub mod capture;
pub mod config;
pub mod control;
pub mod daemon;
pub mod diagnosis;
pub mod events;
pub mod frame;
pub mod guard;
pub mod limits;
pub mod logging;
pub mod memory;
pub mod metrics;
pub mod pipeline;
pub mod port;
pub mod ring;
pub mod stats;
pub mod switch;
pub mod sys;
pub mod vhost_user;
pub mod wire;
pub mod worker;
