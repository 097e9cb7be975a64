//! From a packet to the key of its connection.

use super::{Content, Packet, Part, Quoted};
use crate::PortId;
use crate::filter::Direction;
use crate::filter::connections::{Event, Key, Parts, Place};

impl Packet {
    /// Returns the key of the packet's connection at a port, and what the packet does to the
    /// connection's state; `None` if such packets belong to no connection.
    #[inline]
    pub fn key(&self, port: PortId, direction: Direction) -> Option<(Key, Event)> {
        if matches!(self.part, Part::Later { .. }) {
            return None;
        }
        let (mut ports, mut asks) = ((0, 0), false);
        let event = match self.content {
            Content::Tcp(ends, segment) => {
                ports = (ends.from, ends.to);
                Event::Tcp(segment)
            }
            Content::Udp(ends) => {
                ports = (ends.from, ends.to);
                Event::Datagram
            }
            Content::Sctp(ends, chunk) => {
                ports = (ends.from, ends.to);
                Event::Sctp(chunk)
            }
            Content::Query { request, message, id } => {
                let is_request = message.kind == request.kind;
                asks = is_request == (direction == Direction::Out);
                ports = query_ports(id, request.ports().first, direction);
                if is_request { Event::Request } else { Event::Reply }
            }
            Content::Other => Event::Datagram,
            Content::Error(..) | Content::Message(_) => return None,
        };
        let from = Place { address: self.from, port: ports.0 };
        let to = Place { address: self.to, port: ports.1 };
        Some((self.key_of(port, direction, self.protocol, (from, to), asks), event))
    }

    /// Returns the key of a connection of which this ICMP error quotes a packet. The packet went
    /// the other way, and its sender gets the error: otherwise there is none.
    pub fn quoted_key(&self, port: PortId, direction: Direction) -> Option<Key> {
        let Content::Error(_, Some(quoted)) = self.content else { return None };
        let Quoted { protocol, from, to, ends, request } = quoted;
        if from != self.to {
            return None;
        }
        let went = direction.opposite();
        let is_query = self.protocol == protocol;
        let ports = match is_query {
            true => query_ports(ends.from, ends.to, went),
            false => (ends.from, ends.to),
        };
        let asks = is_query && request == (went == Direction::Out);
        let from = Place { address: from, port: ports.0 };
        let to = Place { address: to, port: ports.1 };
        Some(self.key_of(port, went, protocol, (from, to), asks))
    }

    /// Returns the key of a packet from one place to another in this packet's VLAN.
    #[inline(always)]
    fn key_of(
        &self,
        port: PortId,
        direction: Direction,
        protocol: u8,
        (from, to): (Place, Place),
        asks: bool,
    ) -> Key {
        let (local, remote) = match direction {
            Direction::In => (to, from),
            Direction::Out => (from, to),
        };
        let Packet { v6, vlan, .. } = *self;
        Key::new(&Parts { port, vlan, v6, protocol, asks, local, remote })
    }
}

/// Returns the ports of source and destination that stand for a query: the identifier at the local
/// end, type and code of the request at the other.
fn query_ports(id: u16, request: u16, direction: Direction) -> (u16, u16) {
    match direction {
        Direction::Out => (id, request),
        Direction::In => (request, id),
    }
}
