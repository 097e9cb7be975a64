//! The story of one frame: may it come in, who sent it, where does it go.
//!
//! In the order of IEEE Std 802.1Q-2018, clause 8.6: the source is admitted and learned, then the
//! reserved addresses are filtered, the destination is resolved, and what may leave by the
//! resolved port is forwarded; what no port is known for is flooded.
//!
//! Everything here is a function of its arguments and the table. The caller counts drops and
//! refused learning from the answers; it calls [`Policy::admit_source`] and [`Policy::decide`]
//! where what it remembers of a burst (`memo.rs`) does not answer.

use super::fdb::{Fdb, Learn, PortId, Tick};
use super::port_security::PortSecurity;
use super::reserved::{Reserved, ReservedSet};
use super::segment::{Bridge, Segment, Station, VlanId};
use super::vlan::Membership;

/// What stands behind a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortKind {
    /// A VM.
    Guest,
    /// A network of unknown size, usually a TAP in a bridge.
    Uplink,
}

/// The caller's table of ports, as far as a decision needs it.
pub trait PortView {
    /// The kind of a port, or `None` if there is no such port (any more).
    fn kind(&self, port: PortId) -> Option<PortKind>;

    /// Whether frames of a segment leave by a port.
    fn is_member(&self, port: PortId, segment: Segment) -> bool;

    /// Whether the sources of a port's frames are learned.
    fn learns(&self, port: PortId) -> bool;

    /// Whether a port is one of those that do not reach each other.
    fn is_isolated(&self, port: PortId) -> bool;

    /// The protocols between neighbours that pass from a port.
    fn passes(&self, port: PortId) -> ReservedSet;
}

/// Ports by number, without settings of their own.
impl PortView for [Option<PortKind>] {
    fn kind(&self, port: PortId) -> Option<PortKind> {
        self.get(usize::from(port)).copied().flatten()
    }

    fn is_member(&self, _: PortId, segment: Segment) -> bool {
        segment == Segment::DEFAULT
    }

    fn learns(&self, _: PortId) -> bool {
        true
    }

    fn is_isolated(&self, _: PortId) -> bool {
        false
    }

    fn passes(&self, _: PortId) -> ReservedSet {
        ReservedSet::NONE
    }
}

/// The port a frame came in on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ingress {
    /// Its number.
    pub port: PortId,
    /// Its kind.
    pub kind: PortKind,
}

/// What the administrator asks of a port beyond forwarding. Of a table of ports that asks for
/// nothing a burst pays nothing for it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortPolicy {
    /// Frames for addresses that no port is known for go there too.
    pub flood_unknown: bool,
    /// Frames pass; otherwise none does, in either direction.
    pub forwards: bool,
    /// The sources of its frames are learned.
    pub learns: bool,
    /// It does not reach the other ports of which this is asked, nor they it.
    pub isolated: bool,
    /// Only so much of what it sends is flooded.
    pub limits_floods: bool,
    /// The protocols between neighbours that pass from it and to it.
    pub passes: ReservedSet,
    /// The bridge that it is a port of.
    pub bridge: Bridge,
    /// The VLANs of that bridge that it is a member of.
    pub vlans: Membership,
    /// What it may send; none if that is anything.
    pub security: Option<PortSecurity>,
    /// Whether multicast routers and queriers may be behind it; if not given, behind uplinks.
    pub multicast_router: Option<bool>,
    /// It gets the copies of a mirror, and takes part in no forwarding.
    pub observes: bool,
}

impl PortPolicy {
    /// Nothing is asked.
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
    };

    /// Whether such floods go there.
    pub fn takes(&self, flood: Flood) -> bool {
        let asked = match flood {
            Flood::Group => true,
            Flood::Unknown => self.flood_unknown,
            Flood::Reserved(protocol) => self.passes.has(protocol),
        };
        self.forwards && asked
    }

    /// Whether frames go from here to a port of which this is asked, as far as isolation says.
    pub fn reaches(&self, other: &PortPolicy) -> bool {
        !(self.isolated && other.isolated)
    }

    /// Whether multicast routers and queriers may be behind a port of this kind.
    pub fn may_route(&self, kind: PortKind) -> bool {
        self.multicast_router.unwrap_or(kind == PortKind::Uplink)
    }

    /// Whether frames from there are looked at one by one.
    #[inline(always)]
    pub fn screens(&self) -> bool {
        self.vlans != Membership::Opaque || self.security.is_some() || self.observes
    }

    /// A VLAN of its bridge.
    #[inline(always)]
    pub fn segment(&self, vlan: VlanId) -> Segment {
        Segment::new(self.bridge.number(), vlan)
    }

    /// Where its frames without a tag are, and its static addresses.
    pub fn untagged(&self) -> Option<Segment> {
        self.vlans.untagged().map(|vlan| self.segment(vlan))
    }

    /// Whether frames of a segment leave by it.
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
    /// It is for all stations, or for a group.
    Group,
    /// No port is known to have its destination address.
    Unknown,
    /// It is for a reserved address, and its port passes this protocol.
    Reserved(Reserved),
}

impl Flood {
    /// So many bits has [`Flood::number`].
    pub const BITS: u32 = 3;

    /// Another number for each.
    pub fn number(self) -> u32 {
        match self {
            Flood::Group => 0,
            Flood::Unknown => 1,
            Flood::Reserved(protocol) => 2 + protocol as u32,
        }
    }
}

/// What the administrator allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rules {
    /// Forward from uplink to uplink. Off by default: two TAPs in one bridge are a loop.
    pub uplink_to_uplink: bool,
}

/// Where a frame goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decision {
    /// To this port alone.
    Unicast(PortId),
    /// To every port that [`Rules::flood_reaches`] and that takes such floods.
    Flood(Flood),
    /// Nowhere.
    Drop(DropCause),
}

/// Why a frame goes nowhere. A drop is an outcome, not an error: the caller counts it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DropCause {
    /// The destination is one a bridge must not forward (01:80:c2:00:00:00 to 0f), and the frame of
    /// no protocol that its port passes.
    ReservedAddress,
    /// The source is zero or a group address: no station sends that, and answers to it flood.
    BadSource,
    /// The destination is on the port the frame came from.
    Hairpin,
    /// From one uplink to another, which the rules do not allow.
    UplinkToUplink,
    /// From one isolated port to another.
    Isolated,
    /// One of its ports does not forward ([`PortPolicy`]).
    AdminDown,
}

impl Rules {
    /// Whether a flood from `ingress` goes out of `egress`: never back where it came from, and
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

/// What decisions are made from: the table, the ports and the rules of one moment.
pub struct Policy<'a, P: PortView + ?Sized> {
    /// Where addresses live.
    pub fdb: &'a Fdb,
    /// What the ports are.
    pub ports: &'a P,
    /// What is allowed.
    pub rules: Rules,
}

impl<P: PortView + ?Sized> Policy<'_, P> {
    /// Refuses a frame whose source no station can have; learns the source otherwise.
    ///
    /// A source that is not learned, because the table is full, because it is configured for
    /// another port, or because the port does not learn, is no reason to drop the frame: answers to
    /// it go elsewhere or flood.
    #[inline]
    pub fn admit_source(
        &self,
        ingress: Ingress,
        source: Station,
        now: impl Into<Tick>,
    ) -> Result<Learn, DropCause> {
        if !source.mac.is_station() {
            return Err(DropCause::BadSource);
        }
        match self.ports.learns(ingress.port) {
            true => Ok(self.fdb.learn(source, ingress.port, now)),
            false => Ok(self.fdb.recognise(source, ingress.port)),
        }
    }

    /// Where a frame goes that begins with `bytes` and is for a reserved address. The address alone
    /// does not say: several protocols share one.
    pub fn decide_reserved(&self, ingress: Ingress, bytes: &[u8]) -> Decision {
        match Reserved::of(bytes) {
            Some(protocol) if self.ports.passes(ingress.port).has(protocol) => {
                Decision::Flood(Flood::Reserved(protocol))
            }
            _ => Decision::Drop(DropCause::ReservedAddress),
        }
    }

    /// Where a frame with this destination goes, its source being admitted; for a reserved address
    /// if its port passes nothing.
    #[inline]
    pub fn decide(&self, ingress: Ingress, destination: Station) -> Decision {
        if destination.mac.is_group() {
            return match destination.mac.is_bridge_reserved() {
                true => Decision::Drop(DropCause::ReservedAddress),
                false => Decision::Flood(Flood::Group),
            };
        }
        let Some(egress) = self.fdb.lookup(destination) else {
            return Decision::Flood(Flood::Unknown);
        };
        if egress == ingress.port {
            return Decision::Drop(DropCause::Hairpin);
        }
        match self.ports.kind(egress) {
            // The port is gone and its addresses are about to be flushed: none is known.
            None => Decision::Flood(Flood::Unknown),
            // It has left the segment since it was learned there.
            Some(_) if !self.ports.is_member(egress, destination.segment) => {
                Decision::Flood(Flood::Unknown)
            }
            Some(kind) if !self.rules.allow(ingress.kind, kind) => {
                Decision::Drop(DropCause::UplinkToUplink)
            }
            Some(_) if self.ports.is_isolated(ingress.port) && self.ports.is_isolated(egress) => {
                Decision::Drop(DropCause::Isolated)
            }
            Some(_) => Decision::Unicast(egress),
        }
    }
}

#[cfg(test)]
mod tests;
