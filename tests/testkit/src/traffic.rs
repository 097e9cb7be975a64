//! Frames that can be traced, and the receiver's books that prove I1 to I4 from them.
//!
//! ```text
//! dst 6 | src 6 | type 2 | [IPv4 20 | UDP 8] | magic 2 | sender | queue | to | flow | len 2 |
//! seq 4 | crc 4 | body: tag 8, mix(seq, offset) 8, tag 8, …
//! ```
//! The CRC covers the whole frame with its own field as zero. Frames too short for that (14 to 29
//! bytes) carry 12 bits of the sequence number in the type field and bytes that follow from it.

use super::vm::{mac_of, tag_of};

/// IEEE 802.1 local experimental EtherType.
const ETHERTYPE: u16 = 0x88b5;
/// High nibble of the EtherType of frames too short for a trailer.
const SHORT_TYPE: u16 = 0x6000;
const MAGIC: [u8; 2] = *b"VS";
const TRACE: usize = 16;
const CRC_AT: usize = 12;
pub const ETHER: usize = 14;
/// Shortest frame with all fields.
pub const FULL_MIN: usize = ETHER + TRACE;
const IP_UDP: usize = 28;
/// Flow number that all short frames count in.
pub const SHORT_FLOW: u8 = 7;
const FLOWS: usize = 8;
const SENDERS: usize = 16;
const QUEUES: usize = 16;

/// Whom a frame is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum To {
    Vm(u8),
    Broadcast,
    Multicast,
    /// A unicast address nobody has.
    Unknown,
}

impl To {
    pub fn mac(self) -> [u8; 6] {
        match self {
            To::Vm(id) => mac_of(id),
            To::Broadcast => [0xff; 6],
            To::Multicast => [0x01, 0, 0x5e, 0, 0, 0x7b],
            To::Unknown => [0x02, 0x56, 0x53, 0xee, 0xee, 0xee],
        }
    }

    fn of_mac(mac: &[u8]) -> Option<To> {
        let known = [To::Broadcast, To::Multicast, To::Unknown];
        known.into_iter().chain((0..SENDERS as u8).map(To::Vm)).find(|t| t.mac() == mac)
    }

    fn code(self) -> u8 {
        match self {
            To::Vm(id) => id,
            To::Broadcast => 0xff,
            To::Multicast => 0xfe,
            To::Unknown => 0xfd,
        }
    }

    /// Row in the receiver's books.
    fn row(self) -> usize {
        match self {
            To::Vm(_) => 0,
            To::Broadcast => 1,
            To::Multicast => 2,
            To::Unknown => 3,
        }
    }
}

/// What order and completeness are counted by.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Stream {
    pub sender: u8,
    /// The sender's queue pair.
    pub queue: u8,
    pub to: To,
    /// 0 to 6; odd flows travel as UDP, each with its own port.
    pub flow: u8,
}

/// Builds frame number `seq` of a stream, `len` bytes long, in `out`.
pub fn build(s: &Stream, seq: u32, len: usize, out: &mut Vec<u8>) {
    assert!((ETHER..=65535).contains(&len));
    out.clear();
    out.extend_from_slice(&s.to.mac());
    out.extend_from_slice(&mac_of(s.sender));
    if len < FULL_MIN {
        out.extend_from_slice(&(SHORT_TYPE | (seq & 0xfff) as u16).to_be_bytes());
        out.extend((ETHER..len).map(|i| short_byte(s.sender, seq, i)));
        return;
    }
    let ip = s.flow % 2 == 1 && len >= FULL_MIN + IP_UDP;
    if ip {
        ip_udp(s, len, out)
    } else {
        out.extend_from_slice(&ETHERTYPE.to_be_bytes())
    }
    let at = out.len();
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&[s.sender, s.queue, s.to.code(), s.flow]);
    out.extend_from_slice(&(len as u16).to_le_bytes());
    out.extend_from_slice(&seq.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    let tag = tag_of(s.sender).to_le_bytes();
    while out.len() < len {
        out.extend_from_slice(&tag);
        out.extend_from_slice(&mix(seq, out.len()).to_le_bytes());
    }
    out.truncate(len);
    let crc = crc32(out).to_le_bytes();
    out[at + CRC_AT..at + TRACE].copy_from_slice(&crc);
}

fn short_byte(sender: u8, seq: u32, i: usize) -> u8 {
    (seq as u8).wrapping_mul(31) ^ (i as u8).wrapping_mul(7) ^ sender
}

/// Makes each 8 bytes of a body tell where they belong.
fn mix(seq: u32, off: usize) -> u64 {
    (u64::from(seq) << 32 | off as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// A plausible IPv4 and UDP header; checksums are the guests' business, not the switch's.
fn ip_udp(s: &Stream, len: usize, out: &mut Vec<u8>) {
    let total = (len - ETHER) as u16;
    out.extend_from_slice(&[0x08, 0, 0x45, 0]);
    out.extend_from_slice(&total.to_be_bytes());
    out.extend_from_slice(&[0, 0, 0x40, 0, 64, 17, 0, 0]);
    out.extend_from_slice(&[10, 0, 0, s.sender, 10, 0, 0, s.to.code()]);
    for v in [4000 + u16::from(s.flow), 5000, total - 20, 0] {
        out.extend_from_slice(&v.to_be_bytes());
    }
}

/// What a frame says of itself, after its CRC was found right.
pub fn parse(frame: &[u8]) -> Result<(Stream, u32), String> {
    let to = To::of_mac(&frame[..6]).ok_or("unknown destination")?;
    let sender = frame[11];
    if frame[6..12] != mac_of(sender) {
        return Err("unknown source".into());
    }
    let kind = u16::from_be_bytes([frame[12], frame[13]]);
    if frame.len() < FULL_MIN {
        if kind & 0xf000 != SHORT_TYPE {
            return Err(format!("short frame of type {kind:#x}"));
        }
        let seq = u32::from(kind & 0xfff);
        let ok = (ETHER..frame.len()).all(|i| frame[i] == short_byte(sender, seq, i));
        let stream = Stream { sender, queue: 0, to, flow: SHORT_FLOW };
        return if ok { Ok((stream, seq)) } else { Err("short frame's bytes".into()) };
    }
    let at = if kind == 0x0800 { ETHER + IP_UDP } else { ETHER };
    let t = &frame[at..at + TRACE];
    let crc = u32::from_le_bytes([t[12], t[13], t[14], t[15]]);
    let mut sum = Crc::new();
    sum.add(&frame[..at + CRC_AT]);
    sum.add(&[0; 4]);
    sum.add(&frame[at + TRACE..]);
    if sum.end() != crc {
        return Err("crc".into());
    }
    let len = usize::from(u16::from_le_bytes([t[6], t[7]]));
    if t[..2] != MAGIC || t[2] != sender || t[4] != to.code() || len != frame.len() {
        return Err(format!("trace {t:02x?} in {} bytes", frame.len()));
    }
    let stream = Stream { sender, queue: t[3], to, flow: t[5] };
    Ok((stream, u32::from_le_bytes([t[8], t[9], t[10], t[11]])))
}

/// One stream as its receiver saw it. Count, sum and sum of squares together tell a loss, a
/// duplicate and a swap of both apart, without a bitmap.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Tally {
    pub count: u64,
    sum: u64,
    squares: u64,
}

impl Tally {
    fn add(&mut self, seq: u64) {
        self.count += 1;
        self.sum = self.sum.wrapping_add(seq);
        self.squares = self.squares.wrapping_add(seq.wrapping_mul(seq));
    }

    /// The tally of 0, 1, … n - 1.
    pub fn of_first(n: u64) -> Tally {
        let mut t = Tally::default();
        (0..n).for_each(|i| t.add(i));
        t
    }
}

/// The books of one receiver.
pub struct Checker {
    id: u8,
    rings: usize,
    tallies: Vec<Tally>,
    /// Next sequence number that is not a step back, per stream and RX ring (I2, I3).
    next: Vec<u64>,
    pub frames: u64,
    pub bytes: u64,
}

impl Checker {
    pub fn new(id: u8, rings: usize) -> Checker {
        let streams = SENDERS * QUEUES * 4 * FLOWS;
        Checker {
            id,
            rings,
            tallies: vec![Tally::default(); streams],
            next: vec![0; streams * rings],
            frames: 0,
            bytes: 0,
        }
    }

    fn slot(&self, s: &Stream) -> usize {
        ((s.sender as usize * QUEUES + s.queue as usize) * 4 + s.to.row()) * FLOWS + s.flow as usize
    }

    /// Enters one frame of one RX ring; panics if it should not be here, now, or like this.
    pub fn accept(&mut self, ring: usize, frame: &[u8]) -> Stream {
        let me = self.id;
        let shown = &frame[..frame.len().min(64)];
        let (stream, seq) = match parse(frame) {
            Ok(parsed) => parsed,
            Err(e) => panic!("guest {me}: {e} in a frame of {} bytes: {shown:02x?}", frame.len()),
        };
        assert!(!matches!(stream.to, To::Vm(id) if id != me), "guest {me}: foreign {stream:?}");
        assert_ne!(stream.sender, me, "guest {me}: its own frame came back: {stream:?}");
        let slot = self.slot(&stream);
        let next = &mut self.next[slot * self.rings + ring];
        let seq = if stream.flow == SHORT_FLOW {
            // 12 bits travelled; a step back shows as a jump of almost 4096 ahead.
            let ahead = u64::from(seq).wrapping_sub(*next) & 0xfff;
            assert!(ahead < 2048, "guest {me}: {stream:?} {seq} after {next} (I2, I3)");
            *next + ahead
        } else {
            u64::from(seq)
        };
        assert!(seq >= *next, "guest {me}: {stream:?} ring {ring}: {seq} after {next} (I2, I3)");
        *next = seq + 1;
        self.tallies[slot].add(seq);
        self.frames += 1;
        self.bytes += frame.len() as u64;
        stream
    }

    pub fn tally(&self, s: &Stream) -> Tally {
        self.tallies[self.slot(s)]
    }

    /// Panics unless exactly the first `n` frames of a stream came (I1, I3).
    pub fn complete(&self, s: &Stream, n: u64) {
        let (got, want) = (self.tally(s), Tally::of_first(n));
        assert_eq!(got, want, "guest {}: {s:?}: {} of {n} frames (I1)", self.id, got.count);
    }
}

/// CRC-32 (IEEE 802.3), one table.
pub struct Crc(u32);

const CRC_TABLE: [u32; 256] = crc_table();

const fn crc_table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let mut c = i as u32;
        let mut bit = 0;
        while bit < 8 {
            c = if c & 1 == 1 { 0xedb8_8320 ^ (c >> 1) } else { c >> 1 };
            bit += 1;
        }
        table[i] = c;
        i += 1;
    }
    table
}

impl Crc {
    pub fn new() -> Crc {
        Crc(!0)
    }

    pub fn add(&mut self, bytes: &[u8]) {
        for &b in bytes {
            self.0 = CRC_TABLE[((self.0 ^ u32::from(b)) & 0xff) as usize] ^ (self.0 >> 8);
        }
    }

    pub fn end(self) -> u32 {
        !self.0
    }
}

pub fn crc32(bytes: &[u8]) -> u32 {
    let mut c = Crc::new();
    c.add(bytes);
    c.end()
}
