//! Layer-2 decisions: which port has an address, and where a frame goes.
//!
//! * Decisions only. No I/O, no virtio, no logging, no clock: time is an argument, the answer is a
//!   value. The caller counts refusals and delivers frames.
//! * No frame makes it panic, allocate, or wait.
//! * A port is a number, and its properties come in through [`policy::PortView`].
//!
//! `fdb` is the table, `policy` the story of one frame, `port_security` what a port may send,
//! `segment` and `vlan` where it may go at all and with what tag, `memo` what a worker may remember
//! between frames and when it must forget, `meter` which frames a rate lets pass, `storm` what of
//! floods is limited apart, `reserved` which protocols between neighbours pass, `mirror` whose
//! frames are copied to which port, `trace` what would become of a frame.

#![forbid(unsafe_code)]

pub mod fdb;
pub mod memo;
pub mod meter;
pub mod mirror;
pub mod multicast;
pub mod policy;
pub mod port_security;
pub mod reserved;
pub mod segment;
pub mod storm;
mod sync;
pub mod trace;
pub mod vlan;

pub use base::frame::MacAddr;
pub use fdb::{Entry, EntryAge, Fdb, FdbConfig, Learn, PortId, StaticError, Tick};
pub use memo::{BurstMemo, SourceMemo};
pub use meter::{Booking, Limit, Meter, Rate, Room, Size};
pub use multicast::{Known, Limited, Noted, Reach, Snooping};
pub use policy::{
    Decision, DropCause, Flood, Ingress, Policy, PortKind, PortPolicy, PortView, Rules,
};
pub use port_security::{PortSecurity, Rule, Violation};
pub use reserved::{Reserved, ReservedSet};
pub use segment::{Bridge, Segment, Station, VlanId};
pub use storm::{FloodClass, FloodLimits};
pub use trace::{Source, Trace};
pub use vlan::{Membership, VlanSet};
