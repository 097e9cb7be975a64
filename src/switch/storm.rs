//! Storm control: limits the floods of a port, by the class of the frame.

use super::meter::Limit;
use base::frame::MacAddr;

base::words! {
    /// Class of a flooded frame, with its name in `storm=`.
    FloodClass {
        /// Frames to the broadcast address.
        Broadcast "bcast",
        /// Frames to a group address.
        Multicast "mcast",
        /// Frames to a station that is not in the forwarding table.
        Unknown "unknown",
    }
}

impl FloodClass {
    /// Returns the class of a flooded frame with this destination.
    pub fn of(destination: MacAddr) -> FloodClass {
        match destination {
            MacAddr::BROADCAST => FloodClass::Broadcast,
            group if group.is_group() => FloodClass::Multicast,
            _ => FloodClass::Unknown,
        }
    }
}

/// Limits of the classes, indexed by the class's number.
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
