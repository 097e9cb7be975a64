//! Answers of the forwarding table.

use super::super::segment::PortId;
use crate::segment::Station;
use base::frame::MacAddr;

/// Answer about a source address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Learn {
    /// Known on this port, by learning in this tick or by configuration; nothing was stored.
    Known,
    /// Known on this port; the time stamp is now this tick.
    Refreshed,
    /// Learned as a new address.
    Inserted,
    /// Moved here; the address was learned on another port before.
    Moved {
        /// The port that the address left.
        from: PortId,
    },
    /// Refused: the address belongs to another port by configuration.
    Static,
    /// Refused: the address flaps, and stays for a while at the port that had it first, or at its
    /// present port if the first one has no room.
    Held {
        /// The port that keeps the address.
        at: PortId,
    },
    /// Refused: the table is full, and so are the entries reserved for this port and this segment.
    TableFull,
    /// Refused: the segment holds as many entries as it may.
    SegmentFull,
    /// Refused: the port holds as many entries as it may. A moving address stays where it was, so
    /// that a port at its cap cannot take its neighbours' addresses.
    PortFull,
    /// Refused: the address's bucket is full, and the port may displace none of its eight entries.
    BucketFull,
    /// Not learned: another thread held the shard's lock for longer than a worker may wait.
    Busy,
    /// Refused: no station has the zero address or a group address.
    NotStation,
    /// Refused: the port does not learn.
    Off,
}

impl Learn {
    /// True if the address is now in the table on the asking port: the answer may be remembered for
    /// this tick and generation.
    #[inline]
    pub fn is_in_table(self) -> bool {
        matches!(self, Learn::Known | Learn::Refreshed | Learn::Inserted | Learn::Moved { .. })
    }
}

/// Why a static entry was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StaticError {
    /// The address is zero or a group address.
    #[error("{0} is no station address")]
    NotStation(MacAddr),
    /// Another port has the address by configuration.
    #[error("{mac} already belongs to port {port} by configuration")]
    Taken {
        /// The address asked for.
        mac: MacAddr,
        /// The port that has the address.
        port: PortId,
    },
    /// The port's number is not below [`super::FdbConfig::ports`].
    #[error("port {0} does not exist")]
    NoSuchPort(PortId),
    /// The address's bucket holds eight static entries.
    #[error("no room in the forwarding table for {0}")]
    BucketFull(MacAddr),
}

/// An entry, as [`super::Fdb::entries`] returns it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The address and its segment.
    pub station: Station,
    /// Port of the address.
    pub port: PortId,
    /// Age of the entry.
    pub age: EntryAge,
    /// The address flapped, and is held at the port for a while.
    pub held: bool,
}

/// Age of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EntryAge {
    /// Configured: the entry never ages and never moves.
    Static,
    /// Learned, and idle for this many seconds.
    Idle(u32),
}
