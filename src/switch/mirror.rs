//! Mirrors: copies of one port's frames, delivered to another port.
//!
//! A [`Mirror`] names its ports. A [`Watch`] is a mirror whose two ports exist; a mirror without
//! one of its ports rests until the port exists. A port that gets copies takes part in no
//! forwarding, so a mirror of such a port would have nothing to copy; [`conflict`] refuses such a
//! mirror.

use super::{PortId, VlanId};

base::words! {
    /// Direction of a port's frames, seen from the switch.
    Way {
        /// Frames that the port sends.
        In "in",
        /// Frames that are delivered to the port.
        Out "out",
        /// Both directions.
        Both "both",
    }
}

/// A configured mirror.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mirror {
    /// Name of the mirror.
    pub name: String,
    /// Name of the watched port.
    pub from: String,
    /// Name of the port that gets the copies.
    pub to: String,
    /// The frames that are copied.
    pub frames: Copied,
}

/// The frames that a mirror copies, and the bytes of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copied {
    /// Direction of the frames.
    pub way: Way,
    /// Only frames of this VLAN; `None`: of all.
    pub vlan: Option<VlanId>,
    /// Bytes copied of each frame; `None`: all.
    pub snaplen: Option<u32>,
}

/// A mirror whose ports exist.
#[derive(Debug, Clone)]
pub struct Watch {
    /// Name of the mirror.
    pub name: String,
    /// Index of the mirror in the list of configured mirrors.
    pub place: usize,
    /// The watched port.
    pub from: PortId,
    /// The port that gets the copies.
    pub to: PortId,
    /// The frames that are copied.
    pub frames: Copied,
}

impl Watch {
    /// True if the mirror copies frames that come from this port.
    pub fn takes_in(&self, port: PortId) -> bool {
        self.from == port && self.frames.way != Way::Out
    }

    /// True if the mirror copies frames that are delivered to this port.
    pub fn takes_out(&self, port: PortId) -> bool {
        self.from == port && self.frames.way != Way::In
    }
}

/// Returns why a mirror cannot exist beside the others; `None` if it can.
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
