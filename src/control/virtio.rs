//! Names of feature bits, as the specifications have them.

/// virtio 1.2 sections 6 and 5.1.3, and those of vhost-user between them: what is offered.
const FEATURES: [(u32, &str); 24] = [
    (0, "VIRTIO_NET_F_CSUM"),
    (1, "VIRTIO_NET_F_GUEST_CSUM"),
    (3, "VIRTIO_NET_F_MTU"),
    (7, "VIRTIO_NET_F_GUEST_TSO4"),
    (8, "VIRTIO_NET_F_GUEST_TSO6"),
    (9, "VIRTIO_NET_F_GUEST_ECN"),
    (11, "VIRTIO_NET_F_HOST_TSO4"),
    (12, "VIRTIO_NET_F_HOST_TSO6"),
    (13, "VIRTIO_NET_F_HOST_ECN"),
    (15, "VIRTIO_NET_F_MRG_RXBUF"),
    (17, "VIRTIO_NET_F_CTRL_VQ"),
    (21, "VIRTIO_NET_F_GUEST_ANNOUNCE"),
    (22, "VIRTIO_NET_F_MQ"),
    (26, "VHOST_F_LOG_ALL"),
    (27, "VIRTIO_F_ANY_LAYOUT"),
    (28, "VIRTIO_F_INDIRECT_DESC"),
    (29, "VIRTIO_F_EVENT_IDX"),
    (30, "VHOST_USER_F_PROTOCOL_FEATURES"),
    (32, "VIRTIO_F_VERSION_1"),
    (33, "VIRTIO_F_ACCESS_PLATFORM"),
    (35, "VIRTIO_F_IN_ORDER"),
    (54, "VIRTIO_NET_F_GUEST_USO4"),
    (55, "VIRTIO_NET_F_GUEST_USO6"),
    (56, "VIRTIO_NET_F_HOST_USO"),
];

/// docs/interop/vhost-user.rst of QEMU.
const PROTOCOL_FEATURES: [(u32, &str); 7] = [
    (0, "VHOST_USER_PROTOCOL_F_MQ"),
    (1, "VHOST_USER_PROTOCOL_F_LOG_SHMFD"),
    (2, "VHOST_USER_PROTOCOL_F_RARP"),
    (3, "VHOST_USER_PROTOCOL_F_REPLY_ACK"),
    (4, "VHOST_USER_PROTOCOL_F_MTU"),
    (5, "VHOST_USER_PROTOCOL_F_BACKEND_REQ"),
    (15, "VHOST_USER_PROTOCOL_F_CONFIGURE_MEM_SLOTS"),
];

/// Virtio features by name.
pub fn features(bits: u64) -> Vec<String> {
    names(bits, &FEATURES)
}

/// Features of the vhost-user protocol by name.
pub fn protocol_features(bits: u64) -> Vec<String> {
    names(bits, &PROTOCOL_FEATURES)
}

fn names(bits: u64, known: &[(u32, &str)]) -> Vec<String> {
    let set = (0..u64::BITS).filter(|bit| bits >> bit & 1 != 0);
    set.map(|bit| match known.iter().find(|(other, _)| *other == bit) {
        Some((_, name)) => (*name).to_owned(),
        None => format!("bit {bit}"),
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::offload::Offloads;
    use crate::vhost_user::features::offer;

    #[test]
    fn whatever_can_be_negotiated_has_a_name() {
        let all = offer(Offloads::ALL, Offloads::ALL, true);
        let told = [features(all.features), protocol_features(all.protocol)].concat();
        assert!(told.len() > 25 && told.iter().all(|name| !name.starts_with("bit ")), "{told:?}");
        assert_eq!(features(1 << 15 | 1 << 63), ["VIRTIO_NET_F_MRG_RXBUF", "bit 63"]);
    }
}
