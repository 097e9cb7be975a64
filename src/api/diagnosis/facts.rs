//! Facts that the diagnosis judges: the switch and its ports, now and lately.

use super::history::Counts;
use base::frame::MacAddr;

/// All that is known at a moment.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// The switch as a whole.
    pub condition: Condition,
    /// Frames pass between uplinks.
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
    /// Changes made while the switch runs, which the next start undoes.
    pub not_kept: Vec<NotKept>,
    /// The file that the switch was started with, if there was one.
    pub file: Option<String>,
    /// Combinations of settings that do not do what the settings say.
    pub odd: Vec<Odd>,
    /// System calls that the sandbox refused, and how often.
    pub refused_calls: Vec<(String, u64)>,
    /// The user of the switch's process, to whom a TAP must belong unless that is root.
    pub user: u32,
}

/// A combination of settings of ports that does not do what the settings say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Odd {
    /// The port's name.
    pub port: String,
    /// Other ports whose settings are a part of the combination.
    pub with: Vec<String>,
    /// Description of the combination.
    pub cause: String,
    /// The command that mends the combination.
    pub command: String,
}

/// A change of a port that the next start undoes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotKept {
    /// The port's name.
    pub port: String,
    /// The port's name and its change: `vm3 added`.
    pub what: String,
    /// The command line has the port: no file can keep the change.
    pub is_argument: bool,
}

/// Something that was asked for and is not there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Degraded {
    /// The kind's name.
    pub code: &'static str,
    /// The port that it is about, if it is about one.
    pub port: Option<String>,
    /// The reason.
    pub why: String,
}

/// A port, TAP or stream.
#[derive(Debug, Clone, Default)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// The interface of a TAP.
    pub link: Option<Link>,
    /// Longest packet in bytes, if there is a limit.
    pub mtu: Option<u32>,
    /// Addresses that live there.
    pub addresses: usize,
    /// It has learned as many of them as it may.
    pub has_all_addresses: bool,
    /// The administrator has it forward nothing.
    pub is_disabled: bool,
    /// Where its untagged frames are, but for the default bridge without VLANs.
    pub segment: Option<Segment>,
    /// Faults of the guest's memory.
    pub guest_memory: Memory,
    /// The most frequent recent drop of frames that no healthy guest sends.
    pub refused: Option<Refused>,
    /// Rings that are left alone, by their index.
    pub broken: Vec<usize>,
    /// Frames that went out, and what was done for some of them, since the port began.
    pub offloads: Offloads,
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
    /// Whose frames found no room here lately, the most first.
    pub senders: Vec<Sender>,
    /// The last source address from here that is tied to another port, and that port.
    pub foreign: Option<(MacAddr, String)>,
    /// The last address that moved here, and the port it came from.
    pub moved: Option<(MacAddr, String)>,
    /// The last source address from here that flapped and is held at another port, that port, and
    /// whether it is held there now.
    pub held: Option<(MacAddr, String, bool)>,
}

/// Faults of the memory that a front-end shares.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Memory {
    /// It shares none, and the guest's driver waits.
    pub missing: bool,
    /// All that it shares lies in files on disks.
    pub all_on_disk: bool,
    /// Bytes of such files beside other memory.
    pub on_disk: u64,
    /// Frames that lately lay in other memory than that.
    pub outside: u64,
}

/// Frames that were dropped for one reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The reason's name.
    pub reason: &'static str,
    /// Meaning of the reason.
    pub meaning: &'static str,
    /// Advice on the reason.
    pub advice: &'static str,
    /// How many.
    pub frames: u64,
    /// An address that the last one had and may not have.
    pub address: Option<String>,
}

/// A bridge, or a VLAN of one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Segment {
    /// Name of the bridge or VLAN.
    pub name: String,
    /// Another port is in it.
    pub is_shared: bool,
    /// Its bridge has an uplink, but neither an uplink nor a trunk is in it.
    pub is_cut_off: bool,
}

/// The interface of an uplink.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Link {
    /// Its name.
    pub interface: String,
    /// It is a TAP's.
    pub is_tap: bool,
    /// How it is.
    pub state: LinkState,
    /// The bridge it is in.
    pub bridge: Option<Bridge>,
}

/// How an interface is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LinkState {
    /// Frames pass.
    #[default]
    Up,
    /// It was set down.
    Down,
    /// It was deleted.
    Gone,
}

/// A bridge of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bridge {
    /// Number of its interface.
    pub index: u32,
    /// Name of that.
    pub name: String,
}

/// Work that the switch does in software for a receiver without offloads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Offloads {
    /// All frames that went there.
    pub frames: u64,
    /// Frames whose checksum the switch finished.
    pub checksummed: u64,
    /// Frames that the switch cut into segments.
    pub segmented: u64,
    /// These segments.
    pub segments: u64,
}

/// One who sends to a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sender {
    /// Name of the port that the frames came from.
    pub port: String,
    /// Frames from this sender that found no room.
    pub frames: u64,
}
