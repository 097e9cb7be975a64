//! Frames as bytes: addresses, flow hashing, the virtio-net header, and the offloads that the
//! header requests, done in software.
//!
//! No function here accesses guest memory or performs I/O: every function reads private bytes,
//! already copied out of a ring.

pub mod checksum;
pub mod coalesce;
pub mod ethernet;
pub mod fold;
pub mod load;
pub mod mac;
pub mod multicast;
pub mod offload;
pub mod prefix;
pub mod protocol;
pub mod rarp;
#[cfg(any(test, feature = "test-utils"))]
#[path = "tests/samples.rs"]
pub mod samples;
pub mod segment;
pub mod stream;
pub mod vnet;

pub use checksum::Sum;
pub use ethernet::flow_hash;
pub use load::Load;
pub use mac::MacAddr;
pub use offload::Offloads;
pub use prefix::Prefix;
pub use segment::Segmenter;
pub use vnet::{VNET_HDR_LEN, VNET_HDR_LEN_LEGACY, VnetHdr};
