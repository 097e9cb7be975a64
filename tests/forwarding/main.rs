//! What becomes of frames: between guests, to and from the host through a TAP, with offloads, on
//! several queue pairs; and all of it against a naive model.

mod coalescing;
mod datagrams;
mod differential;
mod filter_oracle;
mod filters;
mod flood;
mod guard_clients;
mod guard_leases;
mod host_oracle;
mod isolation;
mod learning;
mod mirror;
mod model;
mod mtu;
mod multiqueue;
mod offloads;
mod ovn_oracle;
mod reserved;
mod rfc2889;
mod segmentation;
mod snooping;
mod snooping_hidden;
mod storm;
mod stream;
mod switching;
mod uplink;
mod vlan;
mod vlan_oracle;
