//! Packets of IP as a forger writes them, and the ends that they name.

pub const FIN: u8 = 0x11;
pub const SYN: u8 = 0x02;
pub const RST: u8 = 0x04;
pub const ACK: u8 = 0x10;
pub const SYN_ACK: u8 = 0x12;

/// Word of an IPv4 header: more fragments follow.
pub const MORE: u16 = 0x2000;

/// Address and port.
pub type End = ([u8; 4], u16);

/// Returns the end of a guest.
pub fn at(guest: u8, port: u16) -> End {
    ([10, 8, 0, guest], port)
}

/// Makes an IPv4 packet, or with `word` (flags and offset) a fragment of packet `id`.
pub fn ip(from: End, to: End, protocol: u8, [id, word]: [u16; 2], body: &[u8]) -> Vec<u8> {
    let [total, id, word] = [20 + body.len() as u16, id, word].map(u16::to_be_bytes);
    let head = [&[0x45, 0][..], &total, &id, &word, &[64, protocol, 0, 0]].concat();
    [&head[..], &from.0, &to.0, body].concat()
}

/// Makes the header of UDP in front of eight bytes.
pub fn datagram(from: u16, to: u16) -> Vec<u8> {
    [&from.to_be_bytes()[..], &to.to_be_bytes(), &[0, 16, 0, 0], &[0; 8]].concat()
}

pub fn udp(from: End, to: End) -> Vec<u8> {
    ip(from, to, 17, [1, 0], &datagram(from.1, to.1))
}

pub fn tcp(from: End, to: End, flags: u8) -> Vec<u8> {
    segment(from, to, flags, &[])
}

/// Makes a segment with an ACK and data.
pub fn data(from: End, to: End) -> Vec<u8> {
    segment(from, to, ACK, &[0xda; 4])
}

fn segment(from: End, to: End, flags: u8, data: &[u8]) -> Vec<u8> {
    let [source, target] = [from.1, to.1].map(u16::to_be_bytes);
    let rest = [0, 0, 0, 1, 0, 0, 0, 1, 0x50, flags, 0xff, 0xff, 0, 0, 0, 0];
    ip(from, to, 6, [1, 0], &[&source[..], &target, &rest, data].concat())
}

/// Makes an echo request (kind 8) or reply (kind 0) with identifier 7.
pub fn ping(from: End, to: End, kind: u8) -> Vec<u8> {
    ip(from, to, 1, [1, 0], &[kind, 0, 0, 0, 0, 7, 0, 1])
}

/// Makes an error "port unreachable" that quotes a packet.
pub fn error(from: End, to: End, quoted: &[u8]) -> Vec<u8> {
    ip(from, to, 1, [1, 0], &[&[3, 3, 0, 0, 0, 0, 0, 0], quoted].concat())
}

/// Makes a fragment of IPv6 to `guest`, of packet `id`; the first one has options in front of a
/// header of UDP. `word`: the offset, and 1 if more fragments follow.
pub fn fragment6(guest: u8, id: u16, word: u16, body: &[u8]) -> Vec<u8> {
    let [high, low] = word.to_be_bytes();
    let part = [&[60, 0, high, low, 0, 0][..], &id.to_be_bytes(), body].concat();
    let mut addresses = [0; 32];
    (addresses[0], addresses[15], addresses[16], addresses[31]) = (0xfd, 9, 0xfd, guest);
    [&[0x60, 0, 0, 0, 0, part.len() as u8, 44, 64][..], &addresses, &part].concat()
}

/// Makes a frame with a packet; its last two bytes, behind the packet, are `number`.
pub fn framed([to, from]: [[u8; 6]; 2], packet: &[u8], number: u16) -> Vec<u8> {
    let ethertype = if packet[0] >> 4 == 6 { [0x86, 0xdd] } else { [8, 0] };
    let mut frame = [&to[..], &from, &ethertype, packet].concat();
    frame.resize(frame.len().max(60), 0);
    frame.extend(number.to_be_bytes());
    frame
}

/// Returns the number of a frame.
pub fn number_of(frame: &[u8]) -> u16 {
    frame.last_chunk().map_or(0, |number| u16::from_be_bytes(*number))
}
