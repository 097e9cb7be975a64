//! A frame's path from a guest's kick to another guest's signal. Each module uses those below it:
//!
//! | module | room for |
//! |---|---|
//! | [`vduse`] | the session with the kernel's driver behind a VDUSE device |
//! | [`vhost_user`] | one front-end's session |
//! | [`worker`] | threads of the data path: when each ring is worked, and by which |
//! | [`pipeline`] | one burst, top to bottom: take, classify, plan, deliver, complete |
//! | [`stalls`] | waits for a guest's memory: reserve threads, suspended ports |
//! | [`port`] | what frames come from and go to: a guest's rings, an uplink |
//! | [`ring`] | split virtqueues |
//! | [`memory`] | guest memory: mapping, translation, dirty log |
//! | [`capture`] | copies of frames for clients |
//! | [`events`] | what happened, for clients that watch |
//! | [`guard`] | containment of front-ends: blocked writers, expensive signals, SIGBUS |

// Sets signals, umask and environment as tests rely on them.
#[cfg(test)]
use testkit as _;

pub mod capture;
pub mod events;
pub mod guard;
pub mod memory;
pub mod pipeline;
pub mod port;
pub mod ring;
pub mod stalls;
pub mod vduse;
pub mod vhost_user;
pub mod worker;
