//! The virtio-net header that precedes every frame in a ring (virtio 1.2 section 5.1.6).
//!
//! The header has twelve bytes with VERSION_1 or MRG_RXBUF; the legacy layout has ten bytes and no
//! `num_buffers`. [`VnetHdr`] keeps raw bytes, so the delivered header is the checked header.

use super::offload::NEEDS_CSUM;

/// Header length with VERSION_1 or MRG_RXBUF, and on the TAP.
pub const VNET_HDR_LEN: usize = 12;

/// Header length of a legacy driver without MRG_RXBUF.
pub const VNET_HDR_LEN_LEGACY: usize = 10;

/// `struct virtio_net_hdr_v1`, little-endian as the ring has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct VnetHdr {
    /// Bit 0 NEEDS_CSUM, bit 1 DATA_VALID.
    pub flags: u8,
    /// Segmentation type; 0 is none.
    pub gso_type: u8,
    /// Bytes of headers, a hint.
    pub hdr_len: [u8; 2],
    /// Bytes of payload per segment.
    pub gso_size: [u8; 2],
    /// Offset of the first byte that the checksum covers.
    pub csum_start: [u8; 2],
    /// Offset of the checksum field, from `csum_start`.
    pub csum_offset: [u8; 2],
    /// Number of receive buffers of this frame (device to driver only).
    pub num_buffers: [u8; 2],
}

impl VnetHdr {
    /// Returns a header without offloads, for a frame in `buffers` receive buffers.
    #[inline(always)]
    pub const fn plain(buffers: u16) -> VnetHdr {
        VnetHdr {
            flags: 0,
            gso_type: 0,
            hdr_len: [0; 2],
            gso_size: [0; 2],
            csum_start: [0; 2],
            csum_offset: [0; 2],
            num_buffers: buffers.to_le_bytes(),
        }
    }

    /// Returns the bytes of the header.
    #[inline(always)]
    pub const fn to_bytes(self) -> [u8; VNET_HDR_LEN] {
        let [a, b] = self.hdr_len;
        let [c, d] = self.gso_size;
        let [e, f] = self.csum_start;
        let [g, h] = self.csum_offset;
        let [i, j] = self.num_buffers;
        [self.flags, self.gso_type, a, b, c, d, e, f, g, h, i, j]
    }

    /// Returns the header of these bytes.
    #[inline(always)]
    pub const fn from_bytes(b: [u8; VNET_HDR_LEN]) -> VnetHdr {
        VnetHdr {
            flags: b[0],
            gso_type: b[1],
            hdr_len: [b[2], b[3]],
            gso_size: [b[4], b[5]],
            csum_start: [b[6], b[7]],
            csum_offset: [b[8], b[9]],
            num_buffers: [b[10], b[11]],
        }
    }

    /// Returns true if the frame needs no work: no checksum to finish, no segmentation. Ignores
    /// unknown flag bits, as section 5.1.6.2.1 demands of the device.
    #[inline(always)]
    pub const fn is_plain(self) -> bool {
        self.flags & NEEDS_CSUM == 0 && self.gso_type == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_is_that_of_the_specification() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
        let hdr = VnetHdr::from_bytes(bytes);
        assert_eq!(hdr.to_bytes(), bytes);
        assert_eq!(u16::from_le_bytes(hdr.csum_start), 0x0807);
        assert_eq!(std::mem::size_of::<VnetHdr>(), VNET_HDR_LEN);
    }

    #[test]
    fn only_checksum_and_segmentation_requests_are_not_plain() {
        assert!(VnetHdr::plain(1).is_plain());
        assert!(VnetHdr { flags: 2, ..VnetHdr::plain(1) }.is_plain());
        assert!(!VnetHdr { flags: 1, ..VnetHdr::plain(1) }.is_plain());
        assert!(!VnetHdr { gso_type: 1, ..VnetHdr::plain(1) }.is_plain());
    }
}
