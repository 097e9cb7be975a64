//! What is offered to front-ends.
//!
//! Both sets never shrink from one version to the next: a guest that runs keeps the features it
//! acknowledged, and QEMU refuses to reconnect or migrate to a back-end that offers fewer
//! ("vhost lacks feature mask").

use vhost::vhost_user::message::{VhostUserProtocolFeatures as Protocol, VhostUserVirtioFeatures};
use virtio_bindings::virtio_config::{VIRTIO_F_ANY_LAYOUT, VIRTIO_F_IN_ORDER, VIRTIO_F_VERSION_1};
use virtio_bindings::virtio_net::{
    VIRTIO_NET_F_CSUM, VIRTIO_NET_F_CTRL_VQ, VIRTIO_NET_F_GUEST_ANNOUNCE, VIRTIO_NET_F_GUEST_CSUM,
    VIRTIO_NET_F_GUEST_ECN, VIRTIO_NET_F_GUEST_TSO4, VIRTIO_NET_F_GUEST_TSO6,
    VIRTIO_NET_F_GUEST_USO4, VIRTIO_NET_F_GUEST_USO6, VIRTIO_NET_F_HOST_ECN,
    VIRTIO_NET_F_HOST_TSO4, VIRTIO_NET_F_HOST_TSO6, VIRTIO_NET_F_HOST_USO, VIRTIO_NET_F_MQ,
    VIRTIO_NET_F_MRG_RXBUF, VIRTIO_NET_F_MTU,
};
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};

use crate::frame::Offloads;

/// Bit 26: log every write to guest memory.
pub const LOG_ALL: u64 = VhostUserVirtioFeatures::LOG_ALL.bits();
/// Bit 30: protocol features exist, and rings start disabled.
pub const PROTOCOL_FEATURES: u64 = VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();

const fn bit(number: u32) -> u64 {
    1 << number
}

/// Virtio features offered.
///
/// CTRL_VQ and GUEST_ANNOUNCE are served by the front-end; cloud-hypervisor offers them to its
/// guest only if the back-end does. ACCESS_PLATFORM, PACKED, RSS, HASH_REPORT and RSC_EXT need
/// machinery that is not here and must not be offered without it, and UFO is not worth having.
const VIRTIO: u64 = bit(VIRTIO_F_VERSION_1)
    | bit(VIRTIO_F_ANY_LAYOUT)
    | bit(VIRTIO_F_IN_ORDER)
    | bit(VIRTIO_RING_F_INDIRECT_DESC)
    | bit(VIRTIO_RING_F_EVENT_IDX)
    | bit(VIRTIO_NET_F_MRG_RXBUF)
    | bit(VIRTIO_NET_F_MQ)
    | bit(VIRTIO_NET_F_MTU)
    | bit(VIRTIO_NET_F_GUEST_ANNOUNCE)
    | bit(VIRTIO_NET_F_CTRL_VQ)
    | LOG_ALL
    | PROTOCOL_FEATURES;

/// The feature bits of each offload: of senders, whose frames may ask for it, and of receivers,
/// whose frames may come with it. USO has one bit for sending over either version of IP.
const OFFLOADS: [(Offloads, u64, u64); 6] = [
    (Offloads::CSUM, bit(VIRTIO_NET_F_CSUM), bit(VIRTIO_NET_F_GUEST_CSUM)),
    (Offloads::TSO4, bit(VIRTIO_NET_F_HOST_TSO4), bit(VIRTIO_NET_F_GUEST_TSO4)),
    (Offloads::TSO6, bit(VIRTIO_NET_F_HOST_TSO6), bit(VIRTIO_NET_F_GUEST_TSO6)),
    (Offloads::ECN, bit(VIRTIO_NET_F_HOST_ECN), bit(VIRTIO_NET_F_GUEST_ECN)),
    (Offloads::USO4, bit(VIRTIO_NET_F_HOST_USO), bit(VIRTIO_NET_F_GUEST_USO4)),
    (Offloads::USO6, bit(VIRTIO_NET_F_HOST_USO), bit(VIRTIO_NET_F_GUEST_USO6)),
];

/// Virtio features offered to a port that may use `offloads`.
pub fn offered(offloads: Offloads) -> u64 {
    let used = OFFLOADS.iter().filter(|(offload, _, _)| offloads.has(*offload));
    used.fold(VIRTIO, |features, (_, send, receive)| features | send | receive)
}

/// What frames from a driver with these acknowledged features may ask for.
pub fn may_ask(features: u64) -> Offloads {
    OFFLOADS.iter().fold(
        Offloads::NONE,
        |set, &(offload, send, _)| {
            if features & send != 0 { set.or(offload) } else { set }
        },
    )
}

/// What frames may be delivered with to a driver with these acknowledged features.
pub fn takes(features: u64) -> Offloads {
    OFFLOADS.iter().fold(Offloads::NONE, |set, &(offload, _, receive)| {
        if features & receive != 0 { set.or(offload) } else { set }
    })
}

/// Protocol features offered. CONFIG, STATUS, RESET_DEVICE and BACKEND_REQ are not: QEMU behaves
/// better without them for a network device.
pub const PROTOCOL: u64 = Protocol::MQ
    .union(Protocol::REPLY_ACK)
    .union(Protocol::LOG_SHMFD)
    .union(Protocol::RARP)
    .union(Protocol::MTU)
    .union(Protocol::CONFIGURE_MEM_SLOTS)
    .bits();

/// Bytes of the virtio-net header under these acknowledged features.
pub fn header_len(features: u64) -> u8 {
    if features & (bit(VIRTIO_F_VERSION_1) | bit(VIRTIO_NET_F_MRG_RXBUF)) != 0 { 12 } else { 10 }
}

/// True if frames may be spread over several receive buffers.
pub fn mergeable(features: u64) -> bool {
    features & bit(VIRTIO_NET_F_MRG_RXBUF) != 0
}

/// True if notifications are steered by event indices.
pub fn event_idx(features: u64) -> bool {
    features & bit(VIRTIO_RING_F_EVENT_IDX) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pinned: bits may be added, never removed.
    #[test]
    fn the_offered_sets_are_these() {
        assert_eq!(offered(Offloads::NONE), 0x9_7c62_8008);
        assert_eq!(offered(Offloads::CSUM), 0x9_7c62_800b);
        assert_eq!(offered(Offloads::ALL), 0x01c0_0009_7c62_bb8b);
        assert_eq!(PROTOCOL, 0x801f);
    }

    #[test]
    fn offloads_follow_the_acknowledged_bits() {
        assert_eq!(may_ask(offered(Offloads::ALL)), Offloads::ALL);
        assert_eq!(takes(offered(Offloads::ALL)), Offloads::ALL);
        assert_eq!(may_ask(1 << 0 | 1 << 56), Offloads::CSUM.or(Offloads::USO4).or(Offloads::USO6));
        assert_eq!(takes(1 << 1 | 1 << 8), Offloads::CSUM.or(Offloads::TSO6));
        assert!(takes(1 << 0).is_empty() && may_ask(1 << 1).is_empty());
    }

    #[test]
    fn either_bit_makes_the_header_twelve_bytes() {
        assert_eq!(header_len(0), 10);
        assert_eq!(header_len(1 << 15), 12);
        assert_eq!(header_len(1 << 32), 12);
    }
}
