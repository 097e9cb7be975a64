//! Storm control: how much of what a port sends may be flooded, by the class of the frame.

use super::meter::Limit;
use base::frame::MacAddr;

base::words! {
    /// What is flooded, with its name in `storm=`.
    FloodClass {
        /// Frames for all stations.
        Broadcast "bcast",
        /// Frames for a group of them.
        Multicast "mcast",
        /// Frames for a station that is not known.
        Unknown "unknown",
    }
}

impl FloodClass {
    /// That of a frame that is flooded, by its destination.
    pub fn of(destination: MacAddr) -> FloodClass {
        match destination {
            MacAddr::BROADCAST => FloodClass::Broadcast,
            group if group.is_group() => FloodClass::Multicast,
            _ => FloodClass::Unknown,
        }
    }
}

/// How much of each class may be flooded, by its number.
pub type FloodLimits = [Limit; FloodClass::ALL.len()];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_that_of_the_destination() {
        let of = |first| FloodClass::of(MacAddr([first, 0, 0x5e, 0, 0, 1]));
        assert_eq!(FloodClass::of(MacAddr::BROADCAST), FloodClass::Broadcast);
        assert_eq!(
            (of(0x01), of(0x33), of(0x02)),
            (FloodClass::Multicast, FloodClass::Multicast, FloodClass::Unknown,)
        );
        for (number, class) in FloodClass::ALL.into_iter().enumerate() {
            assert_eq!(class as usize, number);
        }
    }
}
