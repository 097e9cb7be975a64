//! Decides about one frame: its source, and the ports that it goes to.
//!
//! The order is that of IEEE Std 802.1Q-2018, clause 8.6: the source is admitted and learned, the
//! reserved addresses are filtered, the destination is resolved, and the frame is forwarded if it
//! may leave by the resolved port. A frame to an unknown address is flooded.
//!
//! Every function depends on its arguments and the forwarding table only. The caller counts drops
//! and refused learning from the answers. The caller calls [`Policy::admit_source`] and
//! [`Policy::decide`] if the burst's memos (`memo.rs`) have no answer.

use std::sync::Arc;

use super::fdb::{Fdb, Learn, PortId, Tick};
use super::filter::PortFilter;
use super::port_security::PortSecurity;
use super::reserved::{Reserved, ReservedSet};
use super::segment::{Bridge, Segment, Station, VlanId};
use super::vlan::Membership;
use base::stats::DropReason;

/// The kind of device behind a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortKind {
    /// A VM.
    Guest,
    /// A network of unknown size; usually the port is a TAP in a bridge of the host.
    Uplink,
}

/// The caller's table of ports, reduced to the properties that a decision needs.
pub trait PortView {
    /// Returns the kind of a port; `None` if the port does not exist, or no longer exists.
    fn kind(&self, port: PortId) -> Option<PortKind>;

    /// Returns the settings of a port; [`PortPolicy::PLAIN`] if the port does not exist.
    fn policy(&self, port: PortId) -> &PortPolicy;
}

/// Ports by number, without settings.
impl PortView for [Option<PortKind>] {
    fn kind(&self, port: PortId) -> Option<PortKind> {
        self.get(usize::from(port)).copied().flatten()
    }

    fn policy(&self, _: PortId) -> &PortPolicy {
        &PortPolicy::PLAIN
    }
}

/// The port on which a frame arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ingress {
    /// Number of the port.
    pub port: PortId,
    /// Kind of the port.
    pub kind: PortKind,
}

/// The administrator's settings of a port beyond plain forwarding. In a table of ports without such
/// settings a burst pays nothing for them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortPolicy {
    /// Frames to unknown addresses are flooded to this port too.
    pub flood_unknown: bool,
    /// The port forwards; if false, no frame passes in either direction.
    pub forwards: bool,
    /// The sources of the port's frames are learned.
    pub learns: bool,
    /// The port reaches no other isolated port, and no isolated port reaches it.
    pub isolated: bool,
    /// Floods of the port's frames are limited.
    pub limits_floods: bool,
    /// Protocols between neighbours that pass from the port and to the port.
    pub passes: ReservedSet,
    /// The port's bridge.
    pub bridge: Bridge,
    /// VLANs of the bridge that the port is a member of.
    pub vlans: Membership,
    /// Rules for the addresses that the port may send; `None`: any.
    pub security: Option<PortSecurity>,
    /// Multicast routers and queriers may be behind the port; `None`: behind uplinks only.
    pub multicast_router: Option<bool>,
    /// The port gets the copies of a mirror, and takes part in no forwarding.
    pub observes: bool,
    /// Rules for the packets from the port and to the port; `None`: all pass.
    pub filter: Option<Arc<PortFilter>>,
}

impl PortPolicy {
    /// No settings.
    pub const PLAIN: PortPolicy = PortPolicy {
        flood_unknown: true,
        forwards: true,
        learns: true,
        isolated: false,
        limits_floods: false,
        passes: ReservedSet::NONE,
        bridge: Bridge::DEFAULT,
        vlans: Membership::Opaque,
        security: None,
        multicast_router: None,
        observes: false,
        filter: None,
    };

    /// True if such floods go to this port.
    pub fn takes(&self, flood: Flood) -> bool {
        let asked = match flood {
            Flood::Group => true,
            Flood::Unknown => self.flood_unknown,
            Flood::Reserved(protocol) => self.passes.has(protocol),
        };
        self.forwards && asked
    }

    /// True if isolation lets frames go from this port to `other`.
    pub fn reaches(&self, other: &PortPolicy) -> bool {
        !(self.isolated && other.isolated)
    }

    /// True if multicast routers and queriers may be behind this port, whose kind is `kind`.
    pub fn may_route(&self, kind: PortKind) -> bool {
        self.multicast_router.unwrap_or(kind == PortKind::Uplink)
    }

    /// True if each frame of the port must be permitted, by port security or a filter.
    #[inline(always)]
    pub fn checks(&self) -> bool {
        (self.security.is_some() || self.filter.is_some()) && self.forwards
    }

    /// True if the tags of the port's frames must be examined one by one.
    #[inline(always)]
    pub fn screens(&self) -> bool {
        self.vlans != Membership::Opaque || self.observes
    }

    /// Returns the segment of a VLAN of the port's bridge.
    #[inline(always)]
    pub fn segment(&self, vlan: VlanId) -> Segment {
        Segment::new(self.bridge.number(), vlan)
    }

    /// Returns the segment of the port's untagged frames and static addresses.
    pub fn untagged(&self) -> Option<Segment> {
        self.vlans.untagged().map(|vlan| self.segment(vlan))
    }

    /// True if frames of the segment leave by the port.
    pub fn is_member(&self, segment: Segment) -> bool {
        !self.observes
            && segment.bridge() == self.bridge.number()
            && self.vlans.is_member(segment.vlan())
    }
}

impl Default for PortPolicy {
    fn default() -> PortPolicy {
        PortPolicy::PLAIN
    }
}

/// Why a frame is flooded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flood {
    /// The destination is the broadcast address or a group.
    Group,
    /// No port is known to have the destination.
    Unknown,
    /// The destination is reserved, and the ingress port passes this protocol.
    Reserved(Reserved),
}

impl Flood {
    /// Bits of [`Flood::number`].
    pub const BITS: u32 = 3;

    /// Returns a number that differs for each reason.
    pub fn number(self) -> u32 {
        match self {
            Flood::Group => 0,
            Flood::Unknown => 1,
            Flood::Reserved(protocol) => 2 + protocol as u32,
        }
    }
}

/// The administrator's rules for the whole switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rules {
    /// Forward from uplink to uplink. Off by default: two TAPs in one bridge are a loop.
    pub uplink_to_uplink: bool,
}

/// The ports that a frame goes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decision {
    /// To this port alone.
    Unicast(PortId),
    /// To every port for which [`Rules::flood_reaches`] and [`PortPolicy::takes`] are true.
    Flood(Flood),
    /// Nowhere. A drop is an outcome, not an error: the caller counts the drop.
    Drop(DropReason),
}

impl Rules {
    /// True if a flood from `ingress` goes out of `egress`: never back to the ingress port, and
    /// from uplink to uplink only if allowed.
    #[inline]
    pub fn flood_reaches(self, ingress: Ingress, egress: PortId, egress_kind: PortKind) -> bool {
        egress != ingress.port && self.allow(ingress.kind, egress_kind)
    }

    #[inline]
    fn allow(self, ingress: PortKind, egress: PortKind) -> bool {
        self.uplink_to_uplink || ingress != PortKind::Uplink || egress != PortKind::Uplink
    }
}

/// The input of a decision: the forwarding table, the ports and the rules of one moment.
pub struct Policy<'a, P: PortView + ?Sized> {
    /// The forwarding table.
    pub fdb: &'a Fdb,
    /// Properties of the ports.
    pub ports: &'a P,
    /// Rules for the whole switch.
    pub rules: Rules,
}

impl<P: PortView + ?Sized> Policy<'_, P> {
    /// Learns a frame's source. Refuses a source that no station can have.
    ///
    /// A frame passes even if its source is not learned, because the table is full, the address is
    /// configured for another port, or the port does not learn: answers go elsewhere or flood.
    #[inline]
    pub fn admit_source(
        &self,
        ingress: Ingress,
        source: Station,
        now: impl Into<Tick>,
    ) -> Result<Learn, DropReason> {
        if !source.mac.is_station() {
            return Err(DropReason::BadSource);
        }
        match self.ports.policy(ingress.port).learns {
            true => Ok(self.fdb.learn(source, ingress.port, now)),
            false => Ok(self.fdb.recognise(source, ingress.port)),
        }
    }

    /// Decides about a frame to a reserved address; the frame begins with `bytes`. The address
    /// alone does not identify the protocol, since several protocols share an address.
    pub fn decide_reserved(&self, ingress: Ingress, bytes: &[u8]) -> Decision {
        match Reserved::of(bytes) {
            Some(protocol) if self.ports.policy(ingress.port).passes.has(protocol) => {
                Decision::Flood(Flood::Reserved(protocol))
            }
            _ => Decision::Drop(DropReason::Reserved),
        }
    }

    /// Decides about a frame with this destination, whose source is admitted. A frame to a reserved
    /// address is dropped here; [`Policy::decide_reserved`] is for ports that pass protocols.
    #[inline]
    pub fn decide(&self, ingress: Ingress, destination: Station) -> Decision {
        if destination.mac.is_group() {
            return match destination.mac.is_bridge_reserved() {
                true => Decision::Drop(DropReason::Reserved),
                false => Decision::Flood(Flood::Group),
            };
        }
        let Some(egress) = self.fdb.lookup(destination) else {
            return Decision::Flood(Flood::Unknown);
        };
        if egress == ingress.port {
            return Decision::Drop(DropReason::Hairpin);
        }
        match self.ports.kind(egress) {
            // The port is gone and its addresses are about to be flushed, so the address counts as
            // unknown.
            None => Decision::Flood(Flood::Unknown),
            // The port has left the segment since the address was learned there.
            Some(_) if !self.ports.policy(egress).is_member(destination.segment) => {
                Decision::Flood(Flood::Unknown)
            }
            Some(kind) if !self.rules.allow(ingress.kind, kind) => {
                Decision::Drop(DropReason::UplinkToUplink)
            }
            Some(_) if !self.ports.policy(ingress.port).reaches(self.ports.policy(egress)) => {
                Decision::Drop(DropReason::Isolated)
            }
            Some(_) => Decision::Unicast(egress),
        }
    }
}

#[cfg(test)]
mod tests;
