//! Features that the switch offers to front-ends.
//!
//! The offer never shrinks from one version to the next, and does not depend on the host's kernel:
//! a running guest keeps the features that it acknowledged, and QEMU refuses to reconnect or
//! migrate to a back-end that offers fewer ("vhost lacks feature mask").

use vhost::vhost_user::message::{VhostUserProtocolFeatures as Protocol, VhostUserVirtioFeatures};
use virtio_bindings::virtio_config::{
    VIRTIO_F_ACCESS_PLATFORM, VIRTIO_F_ANY_LAYOUT, VIRTIO_F_IN_ORDER, VIRTIO_F_VERSION_1,
};
use virtio_bindings::virtio_net::{
    VIRTIO_NET_F_CSUM, VIRTIO_NET_F_CTRL_VQ, VIRTIO_NET_F_GUEST_ANNOUNCE, VIRTIO_NET_F_GUEST_CSUM,
    VIRTIO_NET_F_GUEST_ECN, VIRTIO_NET_F_GUEST_TSO4, VIRTIO_NET_F_GUEST_TSO6,
    VIRTIO_NET_F_GUEST_USO4, VIRTIO_NET_F_GUEST_USO6, VIRTIO_NET_F_HOST_ECN,
    VIRTIO_NET_F_HOST_TSO4, VIRTIO_NET_F_HOST_TSO6, VIRTIO_NET_F_HOST_USO, VIRTIO_NET_F_MAC,
    VIRTIO_NET_F_MQ, VIRTIO_NET_F_MRG_RXBUF, VIRTIO_NET_F_MTU, VIRTIO_NET_F_STATUS,
};
use virtio_bindings::virtio_ring::{
    VIRTIO_RING_F_EVENT_IDX as VIRTIO_F_EVENT_IDX,
    VIRTIO_RING_F_INDIRECT_DESC as VIRTIO_F_INDIRECT_DESC,
};

use base::frame::Offloads;

/// Bit 26: log every write to guest memory.
pub const LOG_ALL: u64 = VhostUserVirtioFeatures::LOG_ALL.bits();
/// Bit 33: the device reaches memory by the platform's own means. Offered on ports with `platform`,
/// because front-ends refuse some guests without the bit. A driver that acknowledges the bit uses
/// addresses of an IOMMU, which the switch cannot translate: the session ends.
pub const ACCESS_PLATFORM: u64 = bit(VIRTIO_F_ACCESS_PLATFORM);
/// Bit 30: the back-end has protocol features, and rings start disabled.
pub const PROTOCOL_FEATURES: u64 = VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();

const fn bit(number: u32) -> u64 {
    1 << number
}

/// Virtio features offered.
///
/// The front-end itself serves CTRL_VQ and GUEST_ANNOUNCE; cloud-hypervisor offers the two to its
/// guest only if the back-end offers them. PACKED, RING_RESET, RSS, HASH_REPORT and RSC_EXT are not
/// implemented; UFO is obsolete.
const VIRTIO: u64 = bit(VIRTIO_F_VERSION_1)
    | bit(VIRTIO_F_ANY_LAYOUT)
    | bit(VIRTIO_F_IN_ORDER)
    | bit(VIRTIO_F_INDIRECT_DESC)
    | bit(VIRTIO_F_EVENT_IDX)
    | bit(VIRTIO_NET_F_MRG_RXBUF)
    | bit(VIRTIO_NET_F_MQ)
    | bit(VIRTIO_NET_F_MTU)
    | bit(VIRTIO_NET_F_GUEST_ANNOUNCE)
    | bit(VIRTIO_NET_F_CTRL_VQ)
    | LOG_ALL
    | PROTOCOL_FEATURES;

/// The feature bits of each offload: the bit of drivers whose frames may ask for the offload, and
/// the bit of drivers that take frames with the offload. USO has one sending bit for both IP
/// versions.
const OFFLOADS: [(Offloads, u64, u64); 6] = [
    (Offloads::CSUM, bit(VIRTIO_NET_F_CSUM), bit(VIRTIO_NET_F_GUEST_CSUM)),
    (Offloads::TSO4, bit(VIRTIO_NET_F_HOST_TSO4), bit(VIRTIO_NET_F_GUEST_TSO4)),
    (Offloads::TSO6, bit(VIRTIO_NET_F_HOST_TSO6), bit(VIRTIO_NET_F_GUEST_TSO6)),
    (Offloads::ECN, bit(VIRTIO_NET_F_HOST_ECN), bit(VIRTIO_NET_F_GUEST_ECN)),
    (Offloads::USO4, bit(VIRTIO_NET_F_HOST_USO), bit(VIRTIO_NET_F_GUEST_USO4)),
    (Offloads::USO6, bit(VIRTIO_NET_F_HOST_USO), bit(VIRTIO_NET_F_GUEST_USO6)),
];

/// Feature bits with their names in the specifications.
macro_rules! named {
    ($($name:ident)*) => { [$((bit($name), stringify!($name)),)*] };
}

const NAMES: [(u64, &str); 24] = named! {
    VIRTIO_NET_F_CSUM VIRTIO_NET_F_GUEST_CSUM VIRTIO_NET_F_MTU VIRTIO_NET_F_GUEST_TSO4
    VIRTIO_NET_F_GUEST_TSO6 VIRTIO_NET_F_GUEST_ECN VIRTIO_NET_F_HOST_TSO4 VIRTIO_NET_F_HOST_TSO6
    VIRTIO_NET_F_HOST_ECN VIRTIO_NET_F_MRG_RXBUF VIRTIO_NET_F_CTRL_VQ VIRTIO_NET_F_GUEST_ANNOUNCE
    VIRTIO_NET_F_MQ VIRTIO_F_ANY_LAYOUT VIRTIO_F_INDIRECT_DESC VIRTIO_F_EVENT_IDX
    VIRTIO_F_VERSION_1 VIRTIO_F_ACCESS_PLATFORM VIRTIO_F_IN_ORDER VIRTIO_NET_F_GUEST_USO4
    VIRTIO_NET_F_GUEST_USO6 VIRTIO_NET_F_HOST_USO VIRTIO_NET_F_MAC VIRTIO_NET_F_STATUS
};

/// Returns the names of the virtio features in `bits`.
pub fn names(bits: u64) -> Vec<String> {
    let others =
        [(LOG_ALL, "VHOST_F_LOG_ALL"), (PROTOCOL_FEATURES, "VHOST_USER_F_PROTOCOL_FEATURES")];
    let known = |bit: &u64| NAMES.iter().chain(&others).find(|(other, _)| other == bit);
    let set = (0..u64::BITS).map(|number| 1 << number).filter(|bit| bits & bit != 0);
    set.map(|bit: u64| match known(&bit) {
        Some((_, name)) => (*name).to_owned(),
        None => format!("bit {}", bit.trailing_zeros()),
    })
    .collect()
}

/// Returns the names of the protocol features in `bits`.
pub fn protocol_names(bits: u64) -> Vec<String> {
    let set = Protocol::from_bits_truncate(bits);
    set.iter_names().map(|(name, _)| format!("VHOST_USER_PROTOCOL_F_{name}")).collect()
}

/// The features that the switch offers to one port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// Virtio features, for GET_FEATURES.
    pub features: u64,
    /// Protocol features, for GET_PROTOCOL_FEATURES.
    pub protocol: u64,
}

/// Returns the offer to a port. `send` has the offloads that the port's frames may ask for,
/// `receive` those that frames to the port may have; `platform` adds [`ACCESS_PLATFORM`].
pub fn offer(send: Offloads, receive: Offloads, platform: bool) -> Offer {
    let (virtio, protocol) = match platform {
        // QEMU offers ACCESS_PLATFORM to its guest only to a back-end with BACKEND_REQ.
        true => (VIRTIO | ACCESS_PLATFORM, PROTOCOL | Protocol::BACKEND_REQ.bits()),
        false => (VIRTIO, PROTOCOL),
    };
    let features = OFFLOADS.iter().fold(virtio, |features, &(offload, sends, receives)| {
        let sends = if send.has(offload) { sends } else { 0 };
        let receives = if receive.has(offload) { receives } else { 0 };
        features | sends | receives
    });
    Offer { features, protocol }
}

/// Returns the features offered to the kernel's driver behind a VDUSE device. The driver refuses a
/// device without ACCESS_PLATFORM, by which the driver's addresses are those of the bounce area.
/// The kernel refuses a device with CTRL_VQ, and with CTRL_VQ several pairs.
pub fn of_vduse(send: Offloads, receive: Offloads, mtu: bool) -> u64 {
    let without = bit(VIRTIO_NET_F_MQ)
        | bit(VIRTIO_NET_F_GUEST_ANNOUNCE)
        | bit(VIRTIO_NET_F_CTRL_VQ)
        | bit(VIRTIO_NET_F_MTU)
        | LOG_ALL
        | PROTOCOL_FEATURES;
    let with = ACCESS_PLATFORM
        | bit(VIRTIO_NET_F_MAC)
        | bit(VIRTIO_NET_F_STATUS)
        | if mtu { bit(VIRTIO_NET_F_MTU) } else { 0 };
    offer(send, receive, false).features & !without | with
}

/// Returns the features of a VDUSE device that depend on the port's keys.
pub fn choosable_of_vduse() -> u64 {
    of_vduse(Offloads::ALL, Offloads::ALL, true) ^ of_vduse(Offloads::NONE, Offloads::NONE, false)
}

/// Returns the offloads that frames of a driver with these acknowledged features may ask for.
pub(crate) fn may_ask(features: u64) -> Offloads {
    acknowledged(|sends, _| features & sends != 0)
}

/// Returns the offloads that frames to a driver with these acknowledged features may have.
pub fn takes(features: u64) -> Offloads {
    acknowledged(|_, receives| features & receives != 0)
}

/// Returns the offloads for whose bits `has` is true.
fn acknowledged(has: impl Fn(u64, u64) -> bool) -> Offloads {
    let set = OFFLOADS.iter().filter(|(_, sends, receives)| has(*sends, *receives));
    set.fold(Offloads::NONE, |set, (offload, ..)| set.or(*offload))
}

/// Protocol features offered. CONFIG, STATUS and RESET_DEVICE are not offered: QEMU behaves better
/// without them for a network device.
const PROTOCOL: u64 = Protocol::MQ
    .union(Protocol::REPLY_ACK)
    .union(Protocol::LOG_SHMFD)
    .union(Protocol::RARP)
    .union(Protocol::MTU)
    .union(Protocol::CONFIGURE_MEM_SLOTS)
    .bits();

/// Returns the bytes of the virtio-net header under these acknowledged features.
pub fn header_len(features: u64) -> u8 {
    if features & (bit(VIRTIO_F_VERSION_1) | bit(VIRTIO_NET_F_MRG_RXBUF)) != 0 { 12 } else { 10 }
}

/// True if one frame may be spread over several receive buffers.
pub fn mergeable(features: u64) -> bool {
    features & bit(VIRTIO_NET_F_MRG_RXBUF) != 0
}

/// True if the driver may use several queue pairs.
pub fn multi_queue(features: u64) -> bool {
    features & bit(VIRTIO_NET_F_MQ) != 0
}

/// True if event indices suppress notifications.
pub fn event_idx(features: u64) -> bool {
    features & bit(VIRTIO_F_EVENT_IDX) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Running guests use the features they were offered: a release may add bits here and remove
    /// none.
    #[test]
    fn what_is_offered_is_pinned() {
        for (offloads, features) in [
            (Offloads::NONE, 0x9_7c62_8008),
            (Offloads::CSUM, 0x9_7c62_800b),
            (Offloads::ALL, 0x01c0_0009_7c62_bb8b),
        ] {
            let plain = Offer { features, protocol: 0x801f };
            assert_eq!(offer(offloads, offloads, false), plain);
            let platform = Offer { features: features | 1 << 33, protocol: 0x803f };
            assert_eq!(offer(offloads, offloads, true), platform);
        }
    }

    #[test]
    fn whatever_can_be_negotiated_has_a_name() {
        let all = offer(Offloads::ALL, Offloads::ALL, true);
        let told = names(all.features);
        assert!(told.len() > 20 && told.iter().all(|name| !name.starts_with("bit ")), "{told:?}");
        assert_eq!(names(1 << 15 | 1 << 63), ["VIRTIO_NET_F_MRG_RXBUF", "bit 63"]);
        assert_eq!(protocol_names(all.protocol).len(), all.protocol.count_ones() as usize);
        assert_eq!(protocol_names(1 << 1), ["VHOST_USER_PROTOCOL_F_LOG_SHMFD"]);
    }

    #[test]
    fn the_kernel_accepts_what_a_vduse_device_offers() {
        for mtu in [false, true] {
            let offer = of_vduse(Offloads::ALL, Offloads::ALL, mtu);
            let (needs, refuses) = (1 << 32 | 1 << 33, 1 << 17 | 1 << 22 | 1 << 26 | 1 << 30);
            assert_eq!((offer & needs, offer & refuses), (needs, 0), "{offer:#x}");
            assert_eq!(offer >> 3 & 1 != 0, mtu);
            assert_eq!((may_ask(offer), takes(offer)), (Offloads::ALL, Offloads::ALL));
        }
    }

    /// CSUM, HOST_TSO4, HOST_TSO6, HOST_ECN and HOST_USO, and no offload of received frames.
    #[test]
    fn who_only_sends_with_offloads_is_offered_those_bits() {
        let [none, sends] =
            [Offloads::NONE, Offloads::ALL].map(|send| offer(send, Offloads::NONE, false).features);
        assert_eq!(sends & !none, 1 << 0 | 1 << 11 | 1 << 12 | 1 << 13 | 1 << 56);
        assert_eq!((may_ask(sends), takes(sends)), (Offloads::ALL, Offloads::NONE));
    }

    #[test]
    fn offloads_follow_the_acknowledged_bits() {
        let all = offer(Offloads::ALL, Offloads::ALL, true).features;
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
