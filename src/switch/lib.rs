//! Layer-2 decisions: which port has an address, and which ports a frame goes to.
//!
//! * Decisions only. No I/O, no virtio, no logging, no clock: time is an argument, the answer is a
//!   value. The caller counts refusals and delivers frames.
//! * No frame makes this crate panic, allocate, or wait.
//! * A port is a number; [`policy::PortView`] has the properties of ports.
//!
//! `fdb` is the forwarding table and `policy` decides about one frame. `port_security` checks the
//! addresses that a port sends; `filter` has rules about packets and the connections of ports;
//! `segment` and `vlan` have the broadcast domains and the tags; `memo` has the answers that a
//! worker may remember between frames; `meter` limits rates and `storm` limits floods; `reserved`
//! has the protocols between neighbours; `mirror` has the ports whose frames are copied; `trace`
//! tells the fate of a frame without forwarding it, and `ruling` words the decisions.

#![forbid(unsafe_code)]

pub mod fdb;
pub mod filter;
pub mod memo;
pub mod meter;
pub mod mirror;
pub mod multicast;
pub mod policy;
pub mod port_security;
pub mod reserved;
pub mod ruling;
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
pub use policy::{Decision, Flood, Ingress, Policy, PortKind, PortPolicy, PortView, Rules};
pub use port_security::{PortSecurity, Rule, Violation};
pub use reserved::{Reserved, ReservedSet};
pub use ruling::{Note, Ruling};
pub use segment::{Bridge, Segment, Station, VlanId, segment_name};
pub use storm::{FloodClass, FloodLimits};
pub use trace::Trace;
pub use vlan::{Membership, VlanSet};
