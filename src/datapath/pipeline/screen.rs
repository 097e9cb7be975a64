//! Whether a frame may come in by its port and leave by another, as far as their policies say so,
//! and with what VLAN tag.
//!
//! A frame is looked at in its private snapshot, so that the answer is the same as often as it is
//! asked for: what segment a frame is in is not kept for each. Frames with the same [`TagBytes`]
//! have the same answer; bursts are mostly one stream.

use crate::port::PortTable;
use crate::ring::{Burst, Frame};
use base::frame::ethernet::{TagBytes, TagEdit};
use base::stats::DropReason;
use switch::{Membership, PortId, PortPolicy, VlanId};

/// The VLAN in which a frame comes in by a port with this policy; an error if it may not.
pub fn admit(asked: &PortPolicy, frame: &Frame) -> Result<VlanId, DropReason> {
    if asked.observes {
        return Err(DropReason::Observer);
    }
    asked.vlans.classify(frame.head()).ok_or(DropReason::Vlan)
}

/// The VLANs of the ports that frames go from and to, and with what tag the last frame leaves:
/// the next one mostly has the same.
#[derive(Clone, Copy)]
pub struct Passage<'a> {
    from: &'a Membership,
    to: &'a Membership,
    last: TagBytes,
    edit: Option<TagEdit>,
}

impl<'a> Passage<'a> {
    /// From one port to another.
    pub fn new(ports: &'a PortTable, from: PortId, to: PortId) -> Passage<'a> {
        let (from, to) = (&ports.policy(from).vlans, &ports.policy(to).vlans);
        let edit = from.untagged().and_then(|vlan| to.edit(vlan, &[]));
        Passage { from, to, last: TagBytes::NONE, edit }
    }

    /// True if frames leave as they came, whatever their tags.
    pub fn is_open(&self) -> bool {
        matches!((self.from, self.to), (Membership::Opaque, Membership::Opaque))
    }

    /// True if all of these frames may leave.
    pub fn takes(&mut self, burst: &Burst, frames: &[u8]) -> bool {
        let frame = |index: &u8| &burst.frames()[usize::from(*index)];
        let asked = if burst.are_alike { &frames[..frames.len().min(1)] } else { frames };
        self.is_open() || asked.iter().all(|index| self.edit(frame(index)).is_some())
    }

    /// With what tag a frame that came in leaves; nothing if it may not leave.
    #[inline(always)]
    pub fn edit(&mut self, frame: &Frame) -> Option<TagEdit> {
        if frame.tag() != self.last {
            self.turn_to(frame);
        }
        self.edit
    }

    /// A frame with another tag than the one before.
    #[inline(never)]
    fn turn_to(&mut self, frame: &Frame) {
        let head = frame.head();
        self.last = frame.tag();
        self.edit = self.from.classify(head).and_then(|vlan| self.to.edit(vlan, head));
    }

    /// Has frames leave with the tags that they should have. All of them may leave.
    #[inline(never)]
    pub fn tag(&mut self, burst: &mut Burst, frames: &[u8]) {
        match self.is_open() {
            true => burst.keep_tags(),
            false => burst.retag(frames, |frame| self.edit(frame).unwrap_or(TagEdit::Keep)),
        }
    }
}
