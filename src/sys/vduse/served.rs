//! The calls by which a session serves a device.

use std::fmt::Debug;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::message::{Answer, Message};

/// The addresses of a ring that the driver has set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingPlace {
    /// Number of descriptors.
    pub size: u32,
    /// Address of the descriptors.
    pub descriptors: u64,
    /// Address of the available ring.
    pub available: u64,
    /// Address of the used ring.
    pub used: u64,
}

/// Memory of the device: from the first to the last address, at an offset of a file.
#[derive(Debug)]
pub struct Memory {
    /// First address.
    pub start: u64,
    /// Last address.
    pub last: u64,
    /// Offset of the first address in the file.
    pub offset: u64,
    /// File to map.
    pub file: OwnedFd,
}

/// A device that a session serves: [`Device`](super::Device), or a test in the kernel's place. The
/// descriptor is readable while there are messages.
pub trait Served: AsFd + Debug + Send + Sync {
    /// Returns the next message of the kernel; none if there is no message.
    fn receive(&self) -> io::Result<Option<Message>>;

    /// Answers a message. An answer too late is no error: the kernel has forgotten the message.
    fn answer(&self, message: Message, answer: Answer) -> io::Result<()>;

    /// Returns the features that the driver acknowledged.
    fn features(&self) -> io::Result<u64>;

    /// Returns the place of a ring; none if the driver has not set the ring up.
    fn ring(&self, index: u32) -> io::Result<Option<RingPlace>>;

    /// Returns the first memory at or behind an address; none if there is no more memory.
    fn memory(&self, from: u64) -> io::Result<Option<Memory>>;

    /// Has the kernel write `kick` when the driver kicks a ring.
    fn set_kick(&self, index: u32, kick: BorrowedFd<'_>) -> io::Result<()>;

    /// Interrupts the driver: a ring has used buffers. Fails with EINVAL until the kernel knows
    /// that the driver is ready.
    fn interrupt(&self, index: u32) -> io::Result<()>;

    /// Sets the link status of the interface, and tells the driver.
    fn set_link(&self, up: bool) -> io::Result<()>;
}
