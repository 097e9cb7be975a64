//! Frames as bytes: addresses, the virtio-net header and what it asks for, flow hashing.
//!
//! Nothing here touches guest memory or performs I/O: every function reads private bytes that
//! were already copied out of a ring.

pub mod ethernet;
pub mod mac;
pub mod offload;
pub mod rarp;
pub mod vnet;

pub use ethernet::flow_hash;
pub use mac::MacAddr;
pub use offload::Offloads;
pub use vnet::{VNET_HDR_LEN, VNET_HDR_LEN_LEGACY, VnetHdr};
