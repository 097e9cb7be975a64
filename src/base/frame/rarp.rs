//! The RARP request that announces a migrated guest (RFC 903, opcode 3).

use super::MacAddr;
use super::protocol::{ETHERTYPE_IPV4, ETHERTYPE_RARP};

/// Minimum length of an Ethernet frame without the frame check sequence.
const LEN: usize = 60;
const HARDWARE_ETHERNET: u16 = 1;
const REQUEST_REVERSE: u16 = 3;

/// Returns a broadcast frame from `mac` that asks for the protocol address of `mac`. No station
/// answers, but every switch on the way learns the new port of `mac`.
pub fn request(mac: MacAddr) -> [u8; LEN] {
    let mut frame = [0; LEN];
    let numbers =
        [ETHERTYPE_RARP, HARDWARE_ETHERNET, ETHERTYPE_IPV4].map(u16::to_be_bytes).concat();
    let (own, unknown) = (&mac.0[..], &[0; 4]);
    let operation = REQUEST_REVERSE.to_be_bytes();
    let parts = [&MacAddr::BROADCAST.0, own, &numbers, &[6, 4], &operation, own, unknown, own];
    let bytes = parts.concat();
    frame[..bytes.len()].copy_from_slice(&bytes);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_where_rfc_903_has_them() {
        let mac = MacAddr([0x52, 0x54, 0, 0x12, 0x34, 0x56]);
        let frame = request(mac);
        assert_eq!(frame[..6], [0xff; 6]);
        assert_eq!(frame[6..12], mac.0);
        assert_eq!(frame[12..22], [0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3]);
        assert_eq!(frame[22..28], mac.0);
        assert_eq!(frame[32..38], mac.0);
    }
}
