//! Facts that the diagnosis judges: the state of the switch and its ports, now and in the last
//! minutes.

use super::history::{Counts, Sender};
use base::frame::MacAddr;
use base::stats::DropReason;

/// All facts of a moment.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// The switch as a whole.
    pub condition: Condition,
    /// True if frames pass between uplinks.
    pub uplink_to_uplink: bool,
    /// Addresses in the forwarding table.
    pub addresses: usize,
    /// Ports, TAPs and streams, by their numbers.
    pub ports: Vec<Port>,
}

/// State of the switch as a whole.
#[derive(Debug, Clone, Default)]
pub struct Condition {
    /// Services and ports that the operator wants and that do not work.
    pub degraded: Vec<Degraded>,
    /// Added ports and changes that are kept and have no effect.
    pub unused: Vec<Odd>,
    /// Combinations of settings that do not do what the settings say.
    pub odd: Vec<Odd>,
    /// System calls that the sandbox refused, with counts.
    pub refused_calls: Vec<(String, u64)>,
    /// User of the switch's process. A TAP must belong to this user unless the user is root.
    pub user: u32,
}

/// Settings of a port, or a combination of settings, that do not do what the settings say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Odd {
    /// The port's name.
    pub port: String,
    /// Other ports whose settings are a part of the combination.
    pub with: Vec<String>,
    /// Description of the combination.
    pub cause: String,
    /// Command that removes the combination.
    pub command: String,
}

/// A configured port or service that is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Degraded {
    /// Name of the degradation's kind.
    pub code: &'static str,
    /// Port that is missing, if a port is missing.
    pub port: Option<String>,
    /// The reason.
    pub why: String,
}

/// A port, TAP or stream.
#[derive(Debug, Clone, Default)]
pub struct Port {
    /// Name of the port.
    pub name: String,
    /// Interface of an uplink.
    pub link: Option<Link>,
    /// Longest packet in bytes, if there is a limit.
    pub mtu: Option<u32>,
    /// Addresses of the port.
    pub addresses: Addresses,
    /// True if the port has `admin=down`.
    pub is_disabled: bool,
    /// Bridge or VLAN of the port's untagged frames; none for the default bridge without VLANs.
    pub segment: Option<Segment>,
    /// Faults of the guest and of its front-end.
    pub guest: Guest,
    /// The most frequent recent drop of frames that no healthy guest sends.
    pub refused: Option<Refused>,
    /// Frames to the port, and offloads in software, since the port began.
    pub offloads: Offloads,
    /// Counts of the last seconds and minutes.
    pub counts: Recent,
    /// Senders of frames that lately found no room at the port, the sender with most frames first.
    pub senders: Vec<Sender>,
}

/// Counts of a port over three spans of time.
#[derive(Debug, Clone, Copy, Default)]
pub struct Recent {
    /// Counts of the last [`MOMENT`] seconds.
    ///
    /// [`MOMENT`]: super::history::MOMENT
    pub moment: Counts,
    /// Counts of the last [`MINUTE`] seconds.
    ///
    /// [`MINUTE`]: super::history::MINUTE
    pub minute: Counts,
    /// Counts of the last [`LATELY`] seconds.
    ///
    /// [`LATELY`]: super::history::LATELY
    pub lately: Counts,
}

/// Addresses of a port, and the last address that another port has or had.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Addresses {
    /// Number of the port's addresses.
    pub count: usize,
    /// True if the port has learned as many addresses as the port may.
    pub is_full: bool,
    /// Last source address from the port that is static at another port, and the other port.
    pub foreign: Option<(MacAddr, String)>,
    /// Last address that moved to the port, and the address's earlier port.
    pub moved: Option<(MacAddr, String)>,
    /// Last source address from the port that flapped and was held at another port, the other port,
    /// and true if the address is held now.
    pub held: Option<(MacAddr, String, bool)>,
}

/// Faults of a guest and of its front-end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Guest {
    /// Faults of the memory that the front-end shares.
    pub memory_faults: Memory,
    /// Indices of broken rings, which the switch ignores.
    pub broken: Vec<usize>,
}

/// Faults of the memory that a front-end shares.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Memory {
    /// True if the front-end shares no memory, and the guest's driver waits.
    pub missing: bool,
    /// True if all shared memory lies in files on disks.
    pub all_on_disk: bool,
    /// Bytes of memory in files on disks, beside other memory.
    pub on_disk: u64,
    /// Frames that lately lay outside of the shared memory.
    pub outside: u64,
}

/// Frames that were dropped for one reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The reason.
    pub reason: DropReason,
    /// Number of frames.
    pub frames: u64,
    /// Sentence about the last frame that broke a rule of the guard.
    pub violation: Option<String>,
}

/// A bridge, or a VLAN of a bridge.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Segment {
    /// Name of the bridge or VLAN.
    pub name: String,
    /// True if the bridge or VLAN has another port.
    pub is_shared: bool,
    /// True if the VLAN has neither uplink nor trunk, and the bridge has an uplink.
    pub is_cut_off: bool,
}

/// The interface of an uplink.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Link {
    /// Name of the interface.
    pub interface: String,
    /// True for the interface of a TAP.
    pub is_tap: bool,
    /// State of the interface.
    pub state: LinkState,
    /// Bridge of the interface.
    pub bridge: Option<Bridge>,
}

/// State of an interface.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LinkState {
    /// Frames pass.
    #[default]
    Up,
    /// The interface was set down.
    Down,
    /// The interface was deleted.
    Gone,
}

/// A bridge of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bridge {
    /// Number of the bridge's interface.
    pub index: u32,
    /// Name of the bridge's interface.
    pub name: String,
}

/// Work that the switch does in software for a receiver without offloads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Offloads {
    /// All frames to the receiver.
    pub frames: u64,
    /// Frames whose checksum the switch finished.
    pub checksummed: u64,
    /// Frames that the switch cut into segments.
    pub segmented: u64,
    /// Segments that the frames were cut into.
    pub segments: u64,
}
