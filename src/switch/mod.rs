//! Layer-2 decisions: which port an address lives on, and where a frame goes.
//!
//! Rules of this room:
//! * Decisions only. No I/O, no virtio, no logging, no clock: time is an argument in seconds, the
//!   answer is a value. The caller counts the refusals and delivers the frames.
//! * Nothing a guest can send makes it panic, allocate, or wait: the hot verbs take no lock, and a
//!   worker that meets a locked shard gives up after a bounded spin (`fdb.rs`).
//! * It knows nothing of its users: a port is a number, and its properties come in through
//!   [`policy::PortView`].
//!
//! `fdb` is the table (what was learned), `policy` the story of one frame (what is allowed), `memo`
//! what a worker may remember between frames, and when it must forget, `trace` what
//! would become of a frame.

pub mod fdb;
pub mod memo;
pub mod policy;
pub mod trace;

pub use fdb::{Entry, EntryAge, Fdb, FdbConfig, Learn, PortId, StaticError};
pub use memo::{BurstMemo, SourceMemo};
pub use policy::{
    Decision, DropCause, Flood, Ingress, Policy, PortKind, PortPolicy, PortView, Rules,
};
pub use trace::{Source, Trace};
