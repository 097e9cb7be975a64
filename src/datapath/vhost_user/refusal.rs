//! Reasons for which the back-end does not carry out a request.

use super::descriptors::DescriptorError;
use super::message::{BadMessage, Code};
use crate::memory::{Exhausted, LogError, MapError, TableError};
use crate::ring::RingError;

/// Why a request is not carried out.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The message is malformed.
    #[error(transparent)]
    Bad(#[from] BadMessage),
    /// This back-end does not serve the request.
    #[error("{0} is not supported")]
    Unsupported(Code),
    /// The port has no ring of this index.
    #[error("ring {0} does not exist")]
    NoRing(u32),
    /// The ring cannot be set up with these values.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// The request is not allowed while the ring runs.
    #[error("ring {0} is running")]
    Running(u32),
    /// A ring's address flags have undefined bits.
    #[error("undefined flags {0:#x}")]
    Flags(u32),
    /// The file cannot be mapped.
    #[error("memory region: {0}")]
    Map(#[from] MapError),
    /// All that can be mapped is mapped, by other ports or by this one.
    #[error("memory region: {0}")]
    Exhausted(#[from] Exhausted),
    /// All of the guest's memory lies in disk files.
    #[error(
        "all of the guest's memory lies in files on a disk: give it memory-backend-memfd, or \
         hugetlbfs (libvirt: <source type='memfd'/>)"
    )]
    OnDisk,
    /// The regions do not form a memory table.
    #[error("memory table: {0}")]
    Table(#[from] TableError),
    /// The descriptor is of the wrong kind.
    #[error(transparent)]
    Descriptor(#[from] DescriptorError),
    /// The dirty log cannot be used.
    #[error("dirty log: {0}")]
    Log(#[from] LogError),
    /// The MTU is larger than a frame can carry, or too small.
    #[error("mtu {0} is out of range")]
    Mtu(u64),
    /// More announcements than a migration calls for.
    #[error("too many announcements")]
    Announcements,
    /// The data path could not watch the ring.
    #[error("cannot watch a kick descriptor: {0}")]
    Watch(#[from] std::io::Error),
}

impl Refusal {
    /// True if nothing is wrong with the request: this process ran out of a resource.
    pub(crate) fn is_resource_exhaustion(&self) -> bool {
        matches!(
            self,
            Refusal::Watch(_)
                | Refusal::Exhausted(_)
                | Refusal::Descriptor(DescriptorError::Io(_))
                | Refusal::Map(MapError::Stat(_) | MapError::Mmap(_) | MapError::Guard(_))
        )
    }
}
