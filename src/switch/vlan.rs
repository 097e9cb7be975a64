//! VLANs of a port: the VLAN of an arriving frame, the VLANs that leave by the port, and their
//! tags.
//!
//! Follows IEEE Std 802.1Q-2018, clauses 6.9 (support of the EISS), 8.6.2 (ingress) and 8.6.4
//! (egress). Only tags of type 0x8100 are VLAN tags. A tag with the identifier 0 carries a priority
//! and counts as no tag.

use std::fmt;

use super::segment::VlanId;
use base::frame::ethernet::{self, TagEdit, VLAN_TAG_LEN};
use base::limits::MAX_VLAN;

/// Bits of a tag that are the VLAN identifier.
const VID_MASK: u16 = 0x0fff;

/// A set of VLANs.
#[derive(Clone, PartialEq, Eq)]
pub struct VlanSet(Box<[u64; 64]>);

impl VlanSet {
    /// Makes the empty set.
    pub fn new() -> VlanSet {
        VlanSet(Box::new([0; 64]))
    }

    /// Makes the set of the VLANs from `first` to `last`.
    pub fn of(first: VlanId, last: VlanId) -> VlanSet {
        let mut set = VlanSet::new();
        set.add(first, last);
        set
    }

    /// Makes the set of all VLANs.
    pub fn all() -> VlanSet {
        VlanSet::of(1, MAX_VLAN)
    }

    /// Adds the VLANs from `first` to `last`.
    pub fn add(&mut self, first: VlanId, last: VlanId) {
        for vlan in first..=last.min(VID_MASK) {
            self.0[usize::from(vlan / 64)] |= 1 << (vlan % 64);
        }
    }

    /// Adds the VLANs of another set.
    pub fn join(&mut self, other: &VlanSet) {
        self.0.iter_mut().zip(other.0.iter()).for_each(|(own, word)| *own |= word);
    }

    /// Returns the VLANs that are in both sets.
    pub fn common(&self, other: &VlanSet) -> VlanSet {
        let mut both = self.clone();
        both.0.iter_mut().zip(other.0.iter()).for_each(|(own, word)| *own &= word);
        both
    }

    /// True if the set has the VLAN.
    #[inline]
    pub fn has(&self, vlan: VlanId) -> bool {
        self.0[usize::from(vlan / 64) % 64] >> (vlan % 64) & 1 != 0
    }

    /// Returns the VLANs as ranges, in order, each with its first and last VLAN.
    pub fn ranges(&self) -> Vec<(VlanId, VlanId)> {
        let mut ranges: Vec<(VlanId, VlanId)> = Vec::new();
        for vlan in (0..=VID_MASK).filter(|vlan| self.has(*vlan)) {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == vlan => *last = vlan,
                _ => ranges.push((vlan, vlan)),
            }
        }
        ranges
    }
}

impl Default for VlanSet {
    fn default() -> VlanSet {
        VlanSet::new()
    }
}

/// Prints `all`, or ranges such as `10,20-29`.
impl fmt::Display for VlanSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == VlanSet::all() {
            return f.write_str("all");
        }
        for (n, (first, last)) in self.ranges().into_iter().enumerate() {
            let comma = if n > 0 { "," } else { "" };
            match first == last {
                true => write!(f, "{comma}{first}")?,
                false => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

impl fmt::Debug for VlanSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VlanSet({self})")
    }
}

/// The VLANs that a port is a member of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Membership {
    /// No VLAN. Tags are a part of the frame that the switch does not interpret.
    #[default]
    Opaque,
    /// This VLAN; the port's frames have no tag.
    Access(VlanId),
    /// Several VLANs.
    Trunk {
        /// VLANs whose frames arrive and leave with a tag.
        tagged: VlanSet,
        /// The VLAN of frames without a tag; 0 is no VLAN. `None`: frames without a tag are
        /// refused.
        native: Option<VlanId>,
    },
}

impl Membership {
    /// Returns the VLAN of an arriving frame that begins with `bytes`, at least 14; `None` if the
    /// port refuses the frame.
    pub fn classify(&self, bytes: &[u8]) -> Option<VlanId> {
        let tag = || ethernet::vlan_tag(bytes).map(|tag| tag & VID_MASK);
        match self {
            Membership::Opaque => Some(0),
            // Refuses a tag of the port's own VLAN too: a guest that tags belongs on a trunk.
            Membership::Access(own) => {
                let untagged = tag().unwrap_or(0) == 0 && !ethernet::is_service_tagged(bytes, 12);
                untagged.then_some(*own)
            }
            Membership::Trunk { native, .. } => match tag() {
                None | Some(0) => *native,
                Some(vlan) => self.is_member(vlan).then_some(vlan),
            },
        }
    }

    /// True if frames of the VLAN may leave by the port.
    #[inline]
    pub fn is_member(&self, vlan: VlanId) -> bool {
        match self {
            Membership::Opaque => vlan == 0,
            Membership::Access(own) => vlan == *own,
            Membership::Trunk { tagged, native } => {
                *native == Some(vlan) || vlan != 0 && tagged.has(vlan)
            }
        }
    }

    /// Returns all VLANs of which the port is a member; 0 is no VLAN.
    pub fn all(&self) -> VlanSet {
        match self {
            Membership::Opaque => VlanSet::of(0, 0),
            Membership::Access(own) => VlanSet::of(*own, *own),
            Membership::Trunk { tagged, native } => {
                let mut all = tagged.clone();
                native.iter().for_each(|native| all.add(*native, *native));
                all
            }
        }
    }

    /// Returns the VLAN of frames without a tag.
    pub fn untagged(&self) -> Option<VlanId> {
        match self {
            Membership::Opaque => Some(0),
            Membership::Access(own) => Some(*own),
            Membership::Trunk { native, .. } => *native,
        }
    }

    /// Returns how the tag of a frame changes when the frame leaves by the port; `None` if it may
    /// not leave. The port is a member of `vlan`; the frame begins with `bytes` and arrived where
    /// [`Membership::classify`] admitted it.
    pub fn edit(&self, vlan: VlanId, bytes: &[u8]) -> Option<TagEdit> {
        let tag = ethernet::vlan_tag(bytes);
        match self {
            Membership::Opaque => Some(TagEdit::Keep),
            Membership::Access(_) if ethernet::is_service_tagged(bytes, 12) => None,
            Membership::Trunk { native, .. } if *native != Some(vlan) => Some(match tag {
                None => TagEdit::Push(vlan),
                Some(tag) if tag & VID_MASK == vlan => TagEdit::Keep,
                Some(tag) => TagEdit::Rewrite(tag & !VID_MASK | vlan),
            }),
            // From here on the frame leaves without a tag.
            _ => match tag {
                None => Some(TagEdit::Keep),
                // Outside of the switch the frame's tag would put the frame into the tag's VLAN.
                Some(tag) if tag & VID_MASK != vlan && tag & VID_MASK != 0 => None,
                Some(_) => (!ethernet::is_tagged(bytes, 12 + VLAN_TAG_LEN)).then_some(TagEdit::Pop),
            },
        }
    }
}

/// Prints the keys of the membership, such as `trunk=10,20 native=1`.
impl fmt::Display for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Membership::Opaque => f.write_str("no vlan"),
            Membership::Access(vlan) => write!(f, "vlan={vlan}"),
            Membership::Trunk { tagged, native: None } => write!(f, "trunk={tagged} and no native"),
            Membership::Trunk { tagged, native: Some(native) } => {
                write!(f, "trunk={tagged} native={native}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::frame::ethernet::TagBytes;
    use base::limits::SNAPSHOT_LEN;

    /// Returns the first bytes of a frame with these tags.
    fn frame(tags: &[(u16, u16)]) -> Vec<u8> {
        let mut bytes = vec![2; 12];
        for (kind, tag) in tags {
            bytes.extend(kind.to_be_bytes());
            bytes.extend(tag.to_be_bytes());
        }
        bytes.extend([8, 0]);
        bytes.resize(64, 0);
        bytes
    }

    fn trunk(list: &[VlanId], native: Option<VlanId>) -> Membership {
        let mut tagged = VlanSet::new();
        list.iter().for_each(|vlan| tagged.add(*vlan, *vlan));
        Membership::Trunk { tagged, native }
    }

    const C: u16 = 0x8100;
    const S: u16 = 0x88a8;

    #[test]
    fn a_set_is_written_as_it_is_read() {
        let mut set = VlanSet::new();
        assert_eq!((set.to_string().as_str(), set.has(0)), ("", false));
        set.add(20, 29);
        set.add(10, 10);
        set.add(4094, 4094);
        assert_eq!(set.to_string(), "10,20-29,4094");
        assert!(
            set.has(25) && !set.has(30) && set.has(4094) && !set.has(4095) && !set.has(u16::MAX)
        );
        assert_eq!(VlanSet::all().to_string(), "all");
        assert!(!VlanSet::all().has(0) && !VlanSet::all().has(4095));
    }

    #[test]
    fn what_comes_in_where() {
        let plain = frame(&[]);
        let access = Membership::Access(10);
        assert_eq!(access.classify(&plain), Some(10));
        assert_eq!(access.classify(&frame(&[(C, 0xe000)])), Some(10), "a priority");
        for tags in [[(C, 10)], [(C, 20)], [(C, 4095)], [(S, 10)], [(S, 0)]] {
            assert_eq!(access.classify(&frame(&tags)), None, "{tags:x?}");
        }
        let native = trunk(&[20, 30], Some(10));
        for (tags, vlan) in [(0, 10), (10, 10), (20, 20), (0xe01e, 30)] {
            assert_eq!(native.classify(&frame(&[(C, tags)])), Some(vlan), "{tags:x}");
        }
        assert_eq!(native.classify(&plain), Some(10));
        assert_eq!(native.classify(&frame(&[(S, 20)])), Some(10), "what it carries");
        assert_eq!(native.classify(&frame(&[(C, 40)])), None);
        let none = trunk(&[20], None);
        assert_eq!((none.classify(&plain), none.classify(&frame(&[(C, 0)]))), (None, None));
        let zero = Membership::Trunk { tagged: VlanSet::all(), native: Some(0) };
        assert_eq!(
            (zero.classify(&plain), zero.classify(&frame(&[(C, 4094)]))),
            (Some(0), Some(4094))
        );
        assert_eq!(zero.classify(&frame(&[(C, 4095)])), None);
        assert_eq!(zero.classify(&frame(&[(C, 5)])[..16]), None, "half a tag");
        assert_eq!(Membership::Opaque.classify(&frame(&[(C, 5)])), Some(0));
    }

    #[test]
    fn what_leaves_how() {
        let (plain, priority) = (frame(&[]), frame(&[(C, 0x6000)]));
        let (own, other) = (frame(&[(C, 0x600a)]), frame(&[(C, 20)]));
        let keep = Some(TagEdit::Keep);
        for bytes in [&plain, &priority, &other] {
            assert_eq!(Membership::Opaque.edit(0, bytes), keep);
        }
        for untagged in [Membership::Access(10), trunk(&[20], Some(10))] {
            assert_eq!(untagged.edit(10, &plain), keep);
            assert_eq!(untagged.edit(10, &priority), Some(TagEdit::Pop));
            assert_eq!(untagged.edit(10, &own), Some(TagEdit::Pop));
            for inner in [(C, 20), (S, 20), (C, 0)] {
                let double = frame(&[(C, 10), inner]);
                assert_eq!(untagged.edit(10, &double), None, "it would pop into {inner:x?}");
            }
        }
        let tagged = trunk(&[10], Some(20));
        assert_eq!(tagged.edit(10, &plain), Some(TagEdit::Push(10)));
        assert_eq!(tagged.edit(10, &priority), Some(TagEdit::Rewrite(0x600a)));
        assert_eq!(tagged.edit(10, &own), keep);
        assert_eq!(tagged.edit(10, &frame(&[(C, 10), (C, 20)])), keep, "what it carries");
        assert_eq!(Membership::Access(10).edit(10, &frame(&[(S, 7)])), None);
        let zero = trunk(&[10], Some(0));
        assert_eq!((zero.edit(0, &plain), zero.edit(0, &priority)), (keep, Some(TagEdit::Pop)));
        assert_eq!(zero.edit(0, &own), None, "it would be one of VLAN 10 out there");
    }

    /// A worker may apply a remembered answer to the next frame with equal tag bytes.
    #[test]
    fn frames_with_the_same_tag_bytes_have_the_same_answers() {
        let ports = [
            Membership::Opaque,
            Membership::Access(10),
            trunk(&[10, 20], None),
            trunk(&[20], Some(10)),
            trunk(&[10], Some(0)),
        ];
        let (mut known, mut count) = (Vec::new(), 0);
        let kinds = [C, S, 0x0800];
        for (outer, inner) in kinds.iter().flat_map(|a| kinds.map(|b| (*a, b))) {
            for (tag, len) in [0, 0xe000, 10, 0x600a, 20, 4095]
                .into_iter()
                .flat_map(|tag| [14, 15, 16, 17, 18, 60].map(|len| (tag, len)))
            {
                let mut bytes = [len as u8; SNAPSHOT_LEN];
                for (at, word) in [(12, outer), (14, tag), (16, inner)] {
                    bytes[at..at + 2].copy_from_slice(&word.to_be_bytes());
                }
                let head = &bytes[..len];
                let answers = ports.each_ref().map(|port| {
                    (port.classify(head), [0, 10, 20].map(|vlan| port.edit(vlan, head)))
                });
                let tag = TagBytes::of(&bytes, len as u32);
                match known.iter().find(|(before, _)| *before == tag) {
                    Some((_, before)) => assert_eq!(answers, *before, "{head:x?}"),
                    None => known.push((tag, answers)),
                }
                count += 1;
            }
        }
        assert!(known.len() < count / 2 && known[0].1 != known[1].1, "{}", known.len());
    }

    #[test]
    fn who_is_a_member() {
        let zero = Membership::Trunk { tagged: VlanSet::all(), native: None };
        assert!(!zero.is_member(0) && zero.is_member(1) && zero.is_member(4094));
        assert!(Membership::Opaque.is_member(0) && !Membership::Opaque.is_member(1));
        assert!(Membership::Access(7).is_member(7) && !Membership::Access(7).is_member(0));
        assert!(trunk(&[], Some(7)).is_member(7) && trunk(&[], Some(0)).is_member(0));
    }
}
