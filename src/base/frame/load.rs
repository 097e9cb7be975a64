//! The load of frames on a wire, in packets and bytes, which rates count.

use super::VnetHdr;

/// Packets and bytes on a wire.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Load {
    /// Number of packets.
    pub packets: u64,
    /// Bytes of all packets, each from the destination address to the end of the payload.
    pub bytes: u64,
}

impl Load {
    /// No load.
    pub const NONE: Load = Load { packets: 0, bytes: 0 };

    /// The load of a descriptor chain without a frame: a packet of the shortest length on a wire,
    /// without frame check sequence.
    pub const NO_FRAME: Load = Load { packets: 1, bytes: 60 };

    /// Returns the load of a frame of `len` bytes with this header: one packet, or the number of
    /// segments of the frame, each of which repeats the headers.
    #[inline]
    pub fn of(header: VnetHdr, len: u32) -> Load {
        if header.gso_type == 0 { Load { packets: 1, bytes: len.into() } } else { cut(header, len) }
    }
}

/// Returns the load of a frame to be segmented. The header need not match the frame.
fn cut(header: VnetHdr, len: u32) -> Load {
    let headers = u32::from(u16::from_le_bytes(header.hdr_len)).min(len);
    let size = u32::from(u16::from_le_bytes(header.gso_size)).max(1);
    let packets = u64::from((len - headers).div_ceil(size).max(1));
    Load { packets, bytes: u64::from(len) + (packets - 1) * u64::from(headers) }
}

impl std::ops::AddAssign for Load {
    fn add_assign(&mut self, other: Load) {
        self.packets = self.packets.saturating_add(other.packets);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

impl std::iter::Sum for Load {
    fn sum<I: Iterator<Item = Load>>(all: I) -> Load {
        all.fold(Load::NONE, |mut sum, one| {
            sum += one;
            sum
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::samples::{asking, check_whole, tcp};
    use crate::frame::{Offloads, Segmenter, offload};

    #[test]
    fn a_frame_counts_as_it_is() {
        for len in [14, 60, 1514, 65_557] {
            let load = Load { packets: 1, bytes: len.into() };
            assert_eq!(Load::of(VnetHdr::plain(1), len), load);
            let partial = VnetHdr { flags: 1, ..VnetHdr::plain(1) };
            assert_eq!(Load::of(partial, len), load);
        }
    }

    /// Compares the load with the segments of [`Segmenter`].
    #[test]
    fn what_is_to_be_cut_counts_as_its_segments() {
        for (v6, size, payload) in
            [(false, 1448, 60_000), (true, 1428, 1429), (false, 1000, 3000), (true, 536, 537)]
        {
            let frame = tcp(v6, payload);
            let len = frame.len() as u32;
            let request = offload::check(asking(v6, size), &frame, len, Offloads::ALL).unwrap();
            let headers = &frame[..request.headers_len()];
            let mut made = Segmenter::new(&request, headers, len).unwrap();
            let mut wire = Load::NONE;
            for index in 0..made.segments() {
                let (offset, of) = made.payload(index);
                let part = &frame[offset as usize..(offset + of) as usize];
                let whole = [made.complete(index, crate::frame::Sum::of(part)), part].concat();
                check_whole(&whole, v6);
                wire += Load { packets: 1, bytes: whole.len() as u64 };
            }
            assert_eq!(Load::of(request.header, len), wire, "{v6} {size} {payload}");
        }
    }

    #[test]
    fn nonsense_counts_as_something() {
        let header = |hdr_len: u16, gso_size: u16| VnetHdr {
            gso_type: 1,
            hdr_len: hdr_len.to_le_bytes(),
            gso_size: gso_size.to_le_bytes(),
            ..VnetHdr::plain(0)
        };
        for (hdr_len, gso_size) in [(0, 0), (u16::MAX, 0), (u16::MAX, u16::MAX), (1, 1)] {
            for len in [0, 1, 65_557] {
                let Load { packets, bytes } = Load::of(header(hdr_len, gso_size), len);
                assert!(packets >= 1 && bytes >= len.into(), "{hdr_len} {gso_size} {len}");
            }
        }
    }
}
