//! What is offered to front-ends.
//!
//! Nothing of it ever shrinks from one version to the next, nor depends on the host's kernel: a
//! guest that runs keeps the features it acknowledged, and QEMU refuses to reconnect or migrate to
//! a back-end that offers fewer ("vhost lacks feature mask"). What a release adds makes a new
//! *level*; a port can be told to offer an earlier one's, so that guests which start on an upgraded
//! host can still migrate to one that is not.

use vhost::vhost_user::message::{VhostUserProtocolFeatures as Protocol, VhostUserVirtioFeatures};
use virtio_bindings::virtio_config::{
    VIRTIO_F_ACCESS_PLATFORM, VIRTIO_F_ANY_LAYOUT, VIRTIO_F_IN_ORDER, VIRTIO_F_VERSION_1,
};
use virtio_bindings::virtio_net::{
    VIRTIO_NET_F_CSUM, VIRTIO_NET_F_CTRL_VQ, VIRTIO_NET_F_GUEST_ANNOUNCE, VIRTIO_NET_F_GUEST_CSUM,
    VIRTIO_NET_F_GUEST_ECN, VIRTIO_NET_F_GUEST_TSO4, VIRTIO_NET_F_GUEST_TSO6,
    VIRTIO_NET_F_GUEST_USO4, VIRTIO_NET_F_GUEST_USO6, VIRTIO_NET_F_HOST_ECN,
    VIRTIO_NET_F_HOST_TSO4, VIRTIO_NET_F_HOST_TSO6, VIRTIO_NET_F_HOST_USO, VIRTIO_NET_F_MQ,
    VIRTIO_NET_F_MRG_RXBUF, VIRTIO_NET_F_MTU,
};
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};

use crate::frame::Offloads;
use crate::limits::{FEATURE_LEVELS, MAX_MEM_SLOTS};

/// Bit 26: log every write to guest memory.
pub const LOG_ALL: u64 = VhostUserVirtioFeatures::LOG_ALL.bits();
/// Bit 33: the device reaches memory by the platform's own ways. Offered where it is asked for,
/// because front-ends refuse some guests without it, and never to be acknowledged: that says that
/// addresses are an IOMMU's.
pub const ACCESS_PLATFORM: u64 = bit(VIRTIO_F_ACCESS_PLATFORM);
/// Bit 30: protocol features exist, and rings start disabled.
pub const PROTOCOL_FEATURES: u64 = VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();

const fn bit(number: u32) -> u64 {
    1 << number
}

/// Virtio features offered.
///
/// CTRL_VQ and GUEST_ANNOUNCE are served by the front-end; cloud-hypervisor offers them to its
/// guest only if the back-end does. PACKED, RING_RESET, RSS, HASH_REPORT and RSC_EXT need
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

/// What is offered to one port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// Virtio features, GET_FEATURES.
    pub features: u64,
    /// GET_PROTOCOL_FEATURES.
    pub protocol: u64,
    /// GET_MAX_MEM_SLOTS.
    pub mem_slots: u64,
}

/// All that each level offers, level 1 first. Once released a line never changes.
const LEVELS: [Offer; FEATURE_LEVELS as usize] = [
    Offer { features: 0x01c0_0009_7c62_bb8b, protocol: 0x801f, mem_slots: 509 },
    // ACCESS_PLATFORM and BACKEND_REQ.
    Offer { features: 0x01c0_000b_7c62_bb8b, protocol: 0x803f, mem_slots: 509 },
];

/// What is offered to a port whose frames may ask for the offloads in `send` and which may get
/// frames with those in `receive`, with `platform` or without, at a level from 1 to
/// [`FEATURE_LEVELS`].
pub fn offer(send: Offloads, receive: Offloads, platform: bool, level: u8) -> Offer {
    let (virtio, protocol) = match platform {
        // QEMU offers the one to its guest only where it has the other.
        true => (VIRTIO | ACCESS_PLATFORM, PROTOCOL | Protocol::BACKEND_REQ.bits()),
        false => (VIRTIO, PROTOCOL),
    };
    let features = OFFLOADS.iter().fold(virtio, |features, &(offload, sends, receives)| {
        let sends = if send.has(offload) { sends } else { 0 };
        let receives = if receive.has(offload) { receives } else { 0 };
        features | sends | receives
    });
    let all = Offer { features, protocol, mem_slots: MAX_MEM_SLOTS as u64 };
    LEVELS.get(usize::from(level).wrapping_sub(1)).map_or(all, |most| all.within(most))
}

impl Offer {
    /// What both offer.
    fn within(self, most: &Offer) -> Offer {
        Offer {
            features: self.features & most.features,
            protocol: self.protocol & most.protocol,
            mem_slots: self.mem_slots.min(most.mem_slots),
        }
    }
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

/// Protocol features offered. CONFIG, STATUS and RESET_DEVICE are not: QEMU behaves better without
/// them for a network device.
const PROTOCOL: u64 = Protocol::MQ
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

/// True if the driver may use several queue pairs.
pub fn multi_queue(features: u64) -> bool {
    features & bit(VIRTIO_NET_F_MQ) != 0
}

/// True if notifications are steered by event indices.
pub fn event_idx(features: u64) -> bool {
    features & bit(VIRTIO_RING_F_EVENT_IDX) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pinned: what a level offers is in use by guests that run, and a line is only ever added.
    #[test]
    fn what_each_level_offers() {
        let sets = (0x9_7c62_8008, 0x9_7c62_800b, 0x01c0_0009_7c62_bb8b);
        // With platform=on: bits of virtio, and of the protocol, that are offered besides.
        let pinned = [(1, sets, 0x801f, 509, (0, 0)), (2, sets, 0x801f, 509, (1 << 33, 1 << 5))];
        for (level, (none, csum, all), protocol, mem_slots, (bit33, bit5)) in pinned {
            for (offloads, features) in
                [(Offloads::NONE, none), (Offloads::CSUM, csum), (Offloads::ALL, all)]
            {
                let offered = |platform| offer(offloads, offloads, platform, level);
                assert_eq!(offered(false), Offer { features, protocol, mem_slots });
                let (features, protocol) = (features | bit33, protocol | bit5);
                assert_eq!(offered(true), Offer { features, protocol, mem_slots });
            }
        }
        assert_eq!(pinned.len(), usize::from(FEATURE_LEVELS));
    }

    /// The last level is all that is there, and each offers what those before it do.
    #[test]
    fn levels_never_shrink() {
        let all = offer(Offloads::ALL, Offloads::ALL, true, 0);
        assert_eq!(LEVELS.last(), Some(&all), "what is new needs a level of its own");
        assert!(LEVELS.windows(2).all(|pair| pair[0].within(&pair[1]) == pair[0]));
    }

    #[test]
    fn an_earlier_level_takes_away_what_came_later() {
        let most = Offer { features: 1 << 32 | 1 << 60, protocol: 0x1f, mem_slots: 32 };
        let got = offer(Offloads::ALL, Offloads::ALL, true, 0).within(&most);
        assert_eq!(got, Offer { features: 1 << 32, protocol: 0x1f, mem_slots: 32 });
    }

    /// CSUM, HOST_TSO4, HOST_TSO6, HOST_ECN and HOST_USO, and nothing that a guest receives with.
    #[test]
    fn who_only_sends_with_offloads_is_offered_those_bits() {
        let [none, sends] = [Offloads::NONE, Offloads::ALL]
            .map(|send| offer(send, Offloads::NONE, false, FEATURE_LEVELS).features);
        assert_eq!(sends & !none, 1 << 0 | 1 << 11 | 1 << 12 | 1 << 13 | 1 << 56);
        assert_eq!((may_ask(sends), takes(sends)), (Offloads::ALL, Offloads::NONE));
    }

    #[test]
    fn offloads_follow_the_acknowledged_bits() {
        let all = offer(Offloads::ALL, Offloads::ALL, true, FEATURE_LEVELS).features;
        assert_eq!((may_ask(all), takes(all)), (Offloads::ALL, Offloads::ALL));
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
