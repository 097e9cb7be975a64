//! What is offered to front-ends.
//!
//! Both sets never shrink from one version to the next: a guest that runs keeps the features it
//! acknowledged, and QEMU refuses to reconnect or migrate to a back-end that offers fewer
//! ("vhost lacks feature mask").

use vhost::vhost_user::message::{VhostUserProtocolFeatures as Protocol, VhostUserVirtioFeatures};
use virtio_bindings::virtio_config::{VIRTIO_F_ANY_LAYOUT, VIRTIO_F_IN_ORDER, VIRTIO_F_VERSION_1};
use virtio_bindings::virtio_net::{
    VIRTIO_NET_F_CTRL_VQ, VIRTIO_NET_F_GUEST_ANNOUNCE, VIRTIO_NET_F_MQ, VIRTIO_NET_F_MRG_RXBUF,
    VIRTIO_NET_F_MTU,
};
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};

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
/// machinery that is not here and must not be offered without it. Checksum and segmentation
/// offloads are not offered as long as receivers without them have no fallback.
pub const VIRTIO: u64 = bit(VIRTIO_F_VERSION_1)
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
        assert_eq!(VIRTIO, 0x9_7c62_8008);
        assert_eq!(PROTOCOL, 0x801f);
    }

    #[test]
    fn either_bit_makes_the_header_twelve_bytes() {
        assert_eq!(header_len(0), 10);
        assert_eq!(header_len(1 << 15), 12);
        assert_eq!(header_len(1 << 32), 12);
    }
}
