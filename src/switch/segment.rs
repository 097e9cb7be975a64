//! Segments: which stations a frame may reach at all.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use base::frame::MacAddr;
use base::limits::FDB_MAX_BRIDGES;

/// Number of a bridge; 0 is the one that ports are in which name none.
pub type BridgeId = u16;

/// A VLAN identifier: 1 to 4094, or 0 for the frames of a bridge that are in no VLAN.
pub type VlanId = u16;

/// A broadcast domain: a VLAN of a bridge. No frame leaves the one it came in on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Segment(u32);

impl Segment {
    /// No VLAN of the bridge 0: of a switch that has no others.
    pub const DEFAULT: Segment = Segment(0);

    /// Of a bridge and a VLAN.
    #[inline(always)]
    pub const fn new(bridge: BridgeId, vlan: VlanId) -> Segment {
        Segment((bridge as u32) << 12 | (vlan & 0xfff) as u32)
    }

    /// Its bridge.
    pub const fn bridge(self) -> BridgeId {
        (self.0 >> 12) as BridgeId
    }

    /// Its VLAN.
    pub const fn vlan(self) -> VlanId {
        (self.0 & 0xfff) as VlanId
    }

    /// As one number.
    #[inline(always)]
    pub const fn to_bits(self) -> u32 {
        self.0
    }

    /// From that number.
    pub const fn from_bits(bits: u32) -> Segment {
        Segment(bits)
    }
}

/// An address of a segment: the same address in another one is another station.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Station {
    /// Where it is.
    pub segment: Segment,
    /// Its address.
    pub mac: MacAddr,
}

impl Station {
    /// That of no frame.
    pub const NONE: Station = Station { segment: Segment::DEFAULT, mac: MacAddr([0; 6]) };

    /// An address of a segment.
    #[inline(always)]
    pub const fn new(segment: Segment, mac: MacAddr) -> Station {
        Station { segment, mac }
    }
}

/// A station of the default segment.
impl From<MacAddr> for Station {
    #[inline(always)]
    fn from(mac: MacAddr) -> Station {
        Station::new(Segment::DEFAULT, mac)
    }
}

/// A bridge of the switch: its ports reach each other and no others. There as long as a port names
/// it, or a worker has a table of ports with one that did.
#[derive(Clone, Debug, Default)]
pub struct Bridge(Option<Arc<Named>>);

#[derive(Debug)]
struct Named {
    name: String,
    number: BridgeId,
}

/// Bridges by their numbers, from 1.
static BRIDGES: Mutex<Vec<Weak<Named>>> = Mutex::new(Vec::new());

impl Bridge {
    /// The name of the bridge that ports are in which name none.
    pub const DEFAULT_NAME: &str = "default";
    /// That bridge.
    pub const DEFAULT: Bridge = Bridge(None);

    /// The bridge of this name; none if there are [`FDB_MAX_BRIDGES`].
    pub fn named(name: &str) -> Option<Bridge> {
        if name == Bridge::DEFAULT_NAME {
            return Some(Bridge::DEFAULT);
        }
        // Poison is no concern: a number is entered in one step.
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

    /// Its number.
    #[inline(always)]
    pub fn number(&self) -> BridgeId {
        self.0.as_ref().map_or(0, |named| named.number)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.0.as_ref().map_or(Bridge::DEFAULT_NAME, |named| &named.name)
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
