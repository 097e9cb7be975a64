//! Segments: broadcast domains, the stations that a frame may reach.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use base::frame::MacAddr;
use base::limits::FDB_MAX_BRIDGES;

/// Number of a port in the switch, below [`FDB_MAX_PORTS`](base::limits::FDB_MAX_PORTS).
pub type PortId = u16;

/// Number of a bridge; 0 is the default bridge, for ports that name no bridge.
pub type BridgeId = u16;

/// A VLAN identifier: 1 to 4094, or 0 for frames in no VLAN.
pub type VlanId = u16;

/// A broadcast domain: a VLAN of a bridge. No frame leaves the segment on which it arrived.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Segment(u32);

impl Segment {
    /// The default bridge without a VLAN: the only segment of a switch without bridges and VLANs.
    pub const DEFAULT: Segment = Segment(0);

    /// Makes the segment of a bridge and a VLAN.
    #[inline(always)]
    pub const fn new(bridge: BridgeId, vlan: VlanId) -> Segment {
        Segment((bridge as u32) << 12 | (vlan & 0xfff) as u32)
    }

    /// Returns the segment's bridge.
    pub const fn bridge(self) -> BridgeId {
        (self.0 >> 12) as BridgeId
    }

    /// Returns the segment's VLAN.
    pub const fn vlan(self) -> VlanId {
        (self.0 & 0xfff) as VlanId
    }

    /// Returns the segment as a number, for [`Segment::from_bits`].
    #[inline(always)]
    pub const fn to_bits(self) -> u32 {
        self.0
    }

    /// Makes a segment from the number that [`Segment::to_bits`] returned.
    pub(crate) const fn from_bits(bits: u32) -> Segment {
        Segment(bits)
    }
}

/// An address in a segment. An equal address in another segment belongs to another station.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Station {
    /// Segment of the station.
    pub segment: Segment,
    /// Link-layer address of the station.
    pub mac: MacAddr,
}

impl Station {
    /// The zero address in the default segment, which no frame has as its source.
    pub(crate) const NONE: Station = Station { segment: Segment::DEFAULT, mac: MacAddr([0; 6]) };

    /// Makes a station of a segment and an address.
    #[inline(always)]
    pub const fn new(segment: Segment, mac: MacAddr) -> Station {
        Station { segment, mac }
    }
}

/// Makes a station of the default segment.
impl From<MacAddr> for Station {
    #[inline(always)]
    fn from(mac: MacAddr) -> Station {
        Station::new(Segment::DEFAULT, mac)
    }
}

/// A bridge of the switch: its ports reach each other and no others. A bridge exists as long as a
/// port names it, or a worker's table of ports has a port that did.
#[derive(Clone, Debug, Default)]
pub struct Bridge(Option<Arc<Named>>);

#[derive(Debug)]
struct Named {
    name: String,
    number: BridgeId,
}

/// Named bridges by their numbers, from 1.
static BRIDGES: Mutex<Vec<Weak<Named>>> = Mutex::new(Vec::new());

impl Bridge {
    /// Name of the default bridge.
    pub const DEFAULT_NAME: &str = "default";
    /// The bridge of ports that name no bridge.
    pub(crate) const DEFAULT: Bridge = Bridge(None);

    /// Returns the bridge of this name, and makes the bridge if it does not exist; `None` if there
    /// are [`FDB_MAX_BRIDGES`] bridges.
    pub fn named(name: &str) -> Option<Bridge> {
        if name == Bridge::DEFAULT_NAME {
            return Some(Bridge::DEFAULT);
        }
        // A poisoned lock is usable: each entry of the list is whole at any moment.
        let mut all = BRIDGES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.iter().filter_map(Weak::upgrade).find(|known| known.name == name) {
            return Some(Bridge(Some(known)));
        }
        let at = all.iter().position(|known| known.strong_count() == 0).unwrap_or(all.len());
        let number = at + 1;
        if number >= FDB_MAX_BRIDGES {
            return None;
        }
        let new = Arc::new(Named { name: name.to_owned(), number: number as BridgeId });
        let len = all.len().max(number);
        all.resize(len, Weak::new());
        all[at] = Arc::downgrade(&new);
        Some(Bridge(Some(new)))
    }

    /// Returns the bridge's number.
    #[inline(always)]
    pub fn number(&self) -> BridgeId {
        self.0.as_ref().map_or(0, |named| named.number)
    }

    /// Returns the bridge's name.
    pub fn name(&self) -> &str {
        self.0.as_ref().map_or(Bridge::DEFAULT_NAME, |named| &named.name)
    }
}

/// Returns the name of a VLAN of a bridge, for people; VLAN 0 stands for the frames without a VLAN.
pub fn segment_name(bridge: &str, vlan: VlanId) -> String {
    match vlan {
        0 => format!("bridge '{bridge}'"),
        vlan => format!("VLAN {vlan} of bridge '{bridge}'"),
    }
}

impl PartialEq for Bridge {
    fn eq(&self, other: &Bridge) -> bool {
        self.number() == other.number()
    }
}

impl Eq for Bridge {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_gives_back_what_it_was_made_of() {
        for (bridge, vlan) in [(0, 0), (0, 1), (1, 0), (7, 4094), (4095, 4095)] {
            let segment = Segment::new(bridge, vlan);
            assert_eq!((segment.bridge(), segment.vlan()), (bridge, vlan));
            assert_eq!(Segment::from_bits(segment.to_bits()), segment);
        }
        assert_eq!(Segment::new(0, 0), Segment::DEFAULT);
    }

    #[test]
    fn a_bridge_has_its_number_while_a_port_names_it() {
        let named = |name| Bridge::named(name).expect("a number");
        let (a, b) = (named("segment-test-a"), named("segment-test-b"));
        assert!(a.number() != b.number() && a.number() != 0 && a.name() == "segment-test-a");
        assert_eq!(named("segment-test-a"), a);
        assert_eq!(named(Bridge::DEFAULT_NAME), Bridge::DEFAULT);
        let number = a.number();
        let copy = a.clone();
        drop(a);
        assert_ne!(named("segment-test-c").number(), number);
        drop(copy);
        let unused = BRIDGES.lock().unwrap()[usize::from(number) - 1].strong_count() == 0;
        assert!(unused, "a number that can be used again");
    }
}
