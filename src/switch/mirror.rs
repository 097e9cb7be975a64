//! Mirrors: whose frames are copied to which port.
//!
//! A mirror names its ports, and is a [`Watch`] while they are there: it rests while one of them is
//! not, and goes on when it is. A port that gets copies is no port of the
//! switch otherwise, so that a mirror of it, of which there is none ([`conflict`]), would have
//! nothing to copy.

use super::{PortId, VlanId};

base::words! {
    /// Which frames of a port, seen from the switch.
    Way {
        /// Those that come from it.
        In "in",
        /// Those that were delivered to it.
        Out "out",
        /// All.
        Both "both",
    }
}

/// A mirror that is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mirror {
    /// Its name.
    pub name: String,
    /// The port that is watched.
    pub from: String,
    /// The port that gets the copies.
    pub to: String,
    /// What is copied.
    pub frames: Copied,
}

/// Which frames are copied, and how much of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copied {
    /// Those in this direction.
    pub way: Way,
    /// Only those of this VLAN.
    pub vlan: Option<VlanId>,
    /// So many bytes; all if there is no such number.
    pub snaplen: Option<u32>,
}

/// A mirror whose ports are there.
#[derive(Debug, Clone)]
pub struct Watch {
    /// Its name.
    pub name: String,
    /// Its place among the mirrors that are wanted.
    pub place: usize,
    /// The port that is watched.
    pub from: PortId,
    /// The port that gets the copies.
    pub to: PortId,
    /// What is copied.
    pub frames: Copied,
}

impl Watch {
    /// Whether frames are copied that come from a port.
    pub fn takes_in(&self, port: PortId) -> bool {
        self.from == port && self.frames.way != Way::Out
    }

    /// Whether frames are copied that are delivered to a port.
    pub fn takes_out(&self, port: PortId) -> bool {
        self.from == port && self.frames.way != Way::In
    }
}

/// Why a mirror cannot be beside others, if that is so.
pub fn conflict<'m>(
    mirror: &Mirror,
    others: impl IntoIterator<Item = &'m Mirror>,
) -> Option<String> {
    let Mirror { name, from, to, .. } = mirror;
    if from == to {
        return Some(format!(
            "port '{to}' cannot get copies of its own frames: name another port in to="
        ));
    }
    others.into_iter().filter(|other| other.name != *name).find_map(|other| {
        let by = &other.name;
        if other.to == *from {
            Some(format!("port '{from}' gets the copies of mirror '{by}': it has no frames itself"))
        } else if other.from == *to {
            Some(format!("port '{to}' is watched by mirror '{by}': it cannot get copies"))
        } else {
            None
        }
    })
}
