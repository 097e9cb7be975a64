//! VLAN checks: whether a frame may come in by one port and leave by another, and the tag with
//! which the frame leaves.
//!
//! Each check reads the frame's private snapshot, so repeated checks give equal results and no
//! frame needs a field for its segment. Frames with equal [`TagBytes`] give equal results; most
//! bursts are one stream.

use crate::port::PortTable;
use crate::ring::{Burst, Frame};
use base::frame::ethernet::{TagBytes, TagEdit};
use base::stats::DropReason;
use switch::{Membership, PortId, PortPolicy, VlanId};

/// Returns the VLAN of a frame that comes in by a port with this policy. An error says why the
/// frame may not come in.
pub fn admit(policy: &PortPolicy, frame: &Frame) -> Result<VlanId, DropReason> {
    if policy.observes {
        return Err(DropReason::Observer);
    }
    policy.vlans.classify(frame.head()).ok_or(DropReason::Vlan)
}

/// VLAN memberships of an ingress and an egress port, with the tag of the last frame and its edit:
/// the next frame mostly has an equal tag.
#[derive(Clone, Copy)]
pub(crate) struct VlanTransit<'a> {
    from: &'a Membership,
    to: &'a Membership,
    last: TagBytes,
    edit: Option<TagEdit>,
}

impl<'a> VlanTransit<'a> {
    /// Combines the memberships of ports `from` and `to`.
    pub(crate) fn new(ports: &'a PortTable, from: PortId, to: PortId) -> VlanTransit<'a> {
        let (from, to) = (&ports.policy(from).vlans, &ports.policy(to).vlans);
        let edit = from.untagged().and_then(|vlan| to.edit(vlan, &[]));
        VlanTransit { from, to, last: TagBytes::NONE, edit }
    }

    /// True if frames leave with the tags with which they came in, whatever the tags are.
    pub(crate) fn is_transparent(&self) -> bool {
        matches!((self.from, self.to), (Membership::Opaque, Membership::Opaque))
    }

    /// True if all listed frames may leave.
    pub(crate) fn all_may_leave(&mut self, burst: &Burst, frames: &[u8]) -> bool {
        let frame = |index: &u8| &burst.frames()[usize::from(*index)];
        let examined = if burst.are_alike { &frames[..frames.len().min(1)] } else { frames };
        self.is_transparent() || examined.iter().all(|index| self.edit(frame(index)).is_some())
    }

    /// Returns the tag change with which a frame leaves; none if the frame may not leave.
    #[inline(always)]
    pub(crate) fn edit(&mut self, frame: &Frame) -> Option<TagEdit> {
        if frame.tag() != self.last {
            self.turn_to(frame);
        }
        self.edit
    }

    /// Computes the edit of a frame whose tag differs from the last tag.
    #[inline(never)]
    fn turn_to(&mut self, frame: &Frame) {
        let head = frame.head();
        self.last = frame.tag();
        self.edit = self.from.classify(head).and_then(|vlan| self.to.edit(vlan, head));
    }

    /// Sets the tags with which the listed frames leave. All of these frames may leave.
    #[inline(never)]
    pub(crate) fn tag(&mut self, burst: &mut Burst, frames: &[u8]) {
        match self.is_transparent() {
            true => burst.keep_tags(),
            false => burst.retag(frames, |frame| self.edit(frame).unwrap_or(TagEdit::Keep)),
        }
    }
}
