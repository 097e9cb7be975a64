//! The RARP request that announces a migrated guest (RFC 903, opcode 3).

use super::MacAddr;

/// Ethernet minimum without the frame check sequence.
const LEN: usize = 60;
const ETHERTYPE_RARP: u16 = 0x8035;
const HARDWARE_ETHERNET: u16 = 1;
const PROTOCOL_IPV4: u16 = 0x0800;
const REQUEST_REVERSE: u16 = 3;

/// A broadcast frame from `mac` asking for its own protocol address; nobody answers, but every
/// switch on the way learns where `mac` lives now.
pub fn request(mac: MacAddr) -> [u8; LEN] {
    let mut frame = [0; LEN];
    let mut at = 0;
    let mut put = |bytes: &[u8]| {
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    };
    put(&MacAddr::BROADCAST.0);
    put(&mac.0);
    put(&ETHERTYPE_RARP.to_be_bytes());
    put(&HARDWARE_ETHERNET.to_be_bytes());
    put(&PROTOCOL_IPV4.to_be_bytes());
    put(&[6, 4]);
    put(&REQUEST_REVERSE.to_be_bytes());
    put(&mac.0);
    put(&[0; 4]);
    put(&mac.0);
    put(&[0; 4]);
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
