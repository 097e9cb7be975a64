//! What the forwarding table answers.

use super::PortId;
use crate::segment::Station;
use base::frame::MacAddr;

/// What became of a source address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Learn {
    /// Known on this port, by learning in this second or by configuration; nothing was stored.
    Known,
    /// Known on this port; its time stamp is now this second.
    Refreshed,
    /// New.
    Inserted,
    /// It was learned on another port before.
    Moved {
        /// The port it left.
        from: PortId,
    },
    /// Refused: it belongs to another port by configuration.
    Static,
    /// Refused: it flaps, and stays for a while at the port that had it first, or where it is if
    /// that one has no room.
    Held {
        /// The port.
        at: PortId,
    },
    /// Refused: the table is full, and so is what is reserved for this port and this segment.
    TableFull,
    /// Refused: the segment holds as many as it may.
    SegmentFull,
    /// Refused: the port holds as many as it may. A moving address stays where it was, so that a
    /// port at its cap cannot take its neighbours' addresses.
    PortFull,
    /// Refused: eight others share its bucket, none of them this port's own learned ones.
    BucketFull,
    /// Not now: another thread held the shard for longer than a worker may wait.
    Busy,
    /// Refused: zero or a group address is no station.
    NotStation,
    /// Refused: the port does not learn.
    Off,
}

impl Learn {
    /// True if the address now is in the table on the asking port: the answer may be remembered
    /// for this second and generation.
    #[inline]
    pub fn is_in_table(self) -> bool {
        matches!(self, Learn::Known | Learn::Refreshed | Learn::Inserted | Learn::Moved { .. })
    }
}

/// Why a static entry was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StaticError {
    /// Zero or a group address.
    #[error("{0} is no station address")]
    NotStation(MacAddr),
    /// Another port has it by configuration.
    #[error("{mac} already belongs to port {port} by configuration")]
    Taken {
        /// The address asked for.
        mac: MacAddr,
        /// Its owner.
        port: PortId,
    },
    /// The port's number is not below [`super::FdbConfig::ports`].
    #[error("port {0} does not exist")]
    NoSuchPort(PortId),
    /// Its bucket holds eight static entries.
    #[error("no room in the forwarding table for {0}")]
    BucketFull(MacAddr),
}

/// One entry of [`super::Fdb::entries`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The address and its segment.
    pub station: Station,
    /// Where it lives.
    pub port: PortId,
    /// How long it was silent.
    pub age: EntryAge,
    /// It flapped, and stays there for a while.
    pub held: bool,
}

/// Age of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EntryAge {
    /// Configured: never ages, never moves.
    Static,
    /// Learned, and idle for this many seconds.
    Idle(u32),
}
