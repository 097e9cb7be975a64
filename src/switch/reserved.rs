//! Protocols between neighbours. Their frames go to addresses that a bridge does not forward
//! (01:80:c2:00:00:00 to 0f), and pass between ports with `pass` only.
//!
//! Address and type together identify a protocol, as several protocols share an address. In a frame
//! with VLAN tags the type behind the tags counts. PAUSE (01) never passes: it concerns one link.

use base::frame::MacAddr;
use base::frame::ethernet::l3_offset;

base::words! {
    /// A protocol whose frames may pass, with its name in `pass=`.
    Reserved {
        /// IEEE Std 802.1AB.
        Lldp "lldp",
        /// IEEE Std 802.1AX, with the marker protocol.
        Lacp "lacp",
        /// IEEE Std 802.1D and 802.1Q: STP, RSTP and MSTP.
        Stp "stp",
    }
}

/// Last octets of LLDP's addresses: nearest customer bridge, nearest bridge other than a two-port
/// MAC relay, nearest bridge.
const LLDP: [u8; 3] = [0x00, 0x03, 0x0e];
const LACP: u8 = 0x02;
const STP: u8 = 0x00;

const ETHERTYPE_LLDP: [u8; 2] = [0x88, 0xcc];
const ETHERTYPE_SLOW: [u8; 2] = [0x88, 0x09];
/// Subtypes of slow protocols that link aggregation uses: LACP and its marker protocol.
const LACP_SUBTYPES: [u8; 2] = [1, 2];
/// The LLC header of a BPDU: two service access points and "unnumbered information".
const LLC_STP: [u8; 3] = [0x42, 0x42, 0x03];
/// First value that is a type; a smaller value is a length, followed by an LLC header.
const LEAST_TYPE: u16 = 0x0600;

impl Reserved {
    /// Returns the protocol of a frame to a reserved address; the frame begins with `bytes`.
    pub fn of(bytes: &[u8]) -> Option<Reserved> {
        let last = *bytes.get(5)?;
        let after = l3_offset(bytes);
        let (kind, rest) = (*bytes.get(after - 2..)?.first_chunk()?, bytes.get(after..)?);
        if kind == ETHERTYPE_LLDP && LLDP.contains(&last) {
            Some(Reserved::Lldp)
        } else if kind == ETHERTYPE_SLOW && last == LACP {
            rest.first().filter(|subtype| LACP_SUBTYPES.contains(subtype)).map(|_| Reserved::Lacp)
        } else {
            let is_llc = u16::from_be_bytes(kind) < LEAST_TYPE && rest.starts_with(&LLC_STP);
            (is_llc && last == STP).then_some(Reserved::Stp)
        }
    }

    /// Returns the protocol that mostly uses an address, and the bytes of such a frame behind the
    /// source address.
    pub fn usual(address: MacAddr) -> Option<(Reserved, &'static [u8])> {
        match address.0[5] {
            _ if !address.is_bridge_reserved() => None,
            STP => Some((Reserved::Stp, &[0, 38, 0x42, 0x42, 0x03])),
            LACP => Some((Reserved::Lacp, &[0x88, 0x09, 1])),
            last if LLDP.contains(&last) => Some((Reserved::Lldp, &ETHERTYPE_LLDP)),
            _ => None,
        }
    }
}

/// A set of protocols between neighbours.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct ReservedSet(u8);

impl ReservedSet {
    /// The empty set.
    pub const NONE: ReservedSet = ReservedSet(0);

    /// Adds a protocol.
    pub fn add(&mut self, protocol: Reserved) {
        self.0 |= 1 << protocol as u8;
    }

    /// True if the set has the protocol.
    pub fn has(self, protocol: Reserved) -> bool {
        self.0 >> protocol as u8 & 1 != 0
    }
}

/// Prints the names with commas between, such as `lldp,stp`.
impl std::fmt::Display for ReservedSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let all = Reserved::ALL.into_iter().filter(|protocol| self.has(*protocol));
        f.write_str(&all.map(Reserved::name).collect::<Vec<_>>().join(","))
    }
}

impl std::fmt::Debug for ReservedSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ReservedSet({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(last: u8, rest: &[u8]) -> Vec<u8> {
        [&[1, 0x80, 0xc2, 0, 0, last][..], &[2, 0, 0, 0, 0, 1], rest].concat()
    }

    /// Address and type of each standard together, and neither alone.
    #[test]
    fn a_protocol_is_known_by_address_and_type() {
        let (lldp, lacp) = (&[0x88, 0xcc, 2, 7][..], &[0x88, 0x09, 1, 1][..]);
        let (marker, oam) = (&[0x88, 0x09, 2, 1][..], &[0x88, 0x09, 3, 1][..]);
        let stp = &[0, 38, 0x42, 0x42, 3, 0, 0][..];
        for last in 0..=0x0f {
            let of = |rest| Reserved::of(&frame(last, rest));
            let lldps = [0, 3, 0x0e].contains(&last).then_some(Reserved::Lldp);
            let lacps = (last == 2).then_some(Reserved::Lacp);
            let stps = (last == 0).then_some(Reserved::Stp);
            assert_eq!([of(lldp), of(lacp), of(marker), of(stp)], [lldps, lacps, lacps, stps]);
            // PAUSE, other slow protocols, SNAP, a BPDU's LLC header behind a type.
            for rest in [
                &[0x88, 0x08, 0, 1][..],
                oam,
                &[0, 38, 0xaa, 0xaa, 3],
                &[0x88, 0xb5, 0x42, 0x42, 3],
                &[0x06, 0x00, 0x42, 0x42, 3],
            ] {
                assert_eq!(of(rest), None, "{last:x} {rest:x?}");
            }
        }
    }

    #[test]
    fn tags_do_not_hide_a_protocol() {
        let one = [&[0x81, 0, 0, 10][..], &[0x88, 0xcc]].concat();
        let two = [&[0x88, 0xa8, 0, 10, 0x81, 0, 0, 10][..], &[0, 38, 0x42, 0x42, 3]].concat();
        assert_eq!(Reserved::of(&frame(0x0e, &one)), Some(Reserved::Lldp));
        assert_eq!(Reserved::of(&frame(0, &two)), Some(Reserved::Stp));
    }

    #[test]
    fn a_frame_that_is_cut_off_anywhere_is_of_no_protocol() {
        let tag = [0x81, 0, 0, 10];
        for (last, rest) in
            [(0x0e, &[0x88, 0xcc][..]), (2, &[0x88, 9, 1]), (0, &[0, 38, 0x42, 0x42, 3])]
        {
            for tags in 0..3 {
                let whole = frame(last, &[&tag.repeat(tags), rest].concat());
                assert!(Reserved::of(&whole).is_some());
                (0..whole.len()).for_each(|len| assert_eq!(Reserved::of(&whole[..len]), None));
            }
        }
    }

    #[test]
    fn the_usual_frame_of_an_address_is_of_its_protocol() {
        let usual = |last| Reserved::usual(MacAddr([1, 0x80, 0xc2, 0, 0, last]));
        for last in 0..=0x10 {
            let known = [0, 2, 3, 0x0e].contains(&last);
            assert_eq!(usual(last).is_some(), known, "{last:x}");
            if let Some((protocol, rest)) = usual(last) {
                assert_eq!(Reserved::of(&frame(last, rest)), Some(protocol));
            }
        }
    }

    #[test]
    fn a_set_has_what_was_added() {
        let mut set = ReservedSet::NONE;
        for (number, protocol) in Reserved::ALL.into_iter().enumerate() {
            assert!(!set.has(protocol));
            set.add(protocol);
            assert_eq!(Reserved::ALL.map(|one| set.has(one)), [0, 1, 2].map(|n| n <= number));
        }
        assert_eq!(set.to_string(), "lldp,lacp,stp");
    }
}
