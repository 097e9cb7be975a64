//! Frames in a byte stream, in the format of QEMU's `-netdev stream`, passt and gvproxy: a length
//! of four bytes, most significant first, then the frame.
//!
//! Each direction has a buffer of fixed size: [`Unpacker`] keeps a partly received frame, and
//! [`Packer`] keeps frames until they are sent.

use crate::limits::{MAX_FRAME_LEN, MAX_STREAM_FRAME_LEN, STREAM_BUFFER_BYTES};

/// Bytes of the length in front of a frame.
pub const LENGTH_LEN: usize = 4;

/// A length that exceeds every frame: the frames behind the length cannot be found any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a frame of {0} bytes is announced, and {MAX_STREAM_FRAME_LEN} is the most")]
pub struct BadLength(pub u32);

/// Splits received bytes into frames.
#[derive(Debug)]
pub struct Unpacker {
    bytes: Box<[u8]>,
    /// Start of the bytes that were not returned yet.
    from: usize,
    to: usize,
}

impl Default for Unpacker {
    fn default() -> Unpacker {
        Unpacker { bytes: vec![0; STREAM_BUFFER_BYTES].into_boxed_slice(), from: 0, to: 0 }
    }
}

impl Unpacker {
    /// Returns the next whole frame, which may be empty; `None` if no whole frame is there.
    pub fn next_frame(&mut self) -> Result<Option<&[u8]>, BadLength> {
        let Some((length, rest)) = self.bytes[self.from..self.to].split_first_chunk() else {
            return Ok(None);
        };
        let length = u32::from_be_bytes(*length);
        if length > MAX_STREAM_FRAME_LEN {
            return Err(BadLength(length));
        }
        let frame = rest.get(..length as usize);
        self.from += frame.map_or(0, |frame| LENGTH_LEN + frame.len());
        Ok(frame)
    }

    /// Returns the buffer for the next bytes; never empty after [`Unpacker::next_frame`] returned
    /// `None`.
    pub fn room(&mut self) -> &mut [u8] {
        // The remaining bytes are part of one frame.
        self.bytes.copy_within(self.from..self.to, 0);
        (self.from, self.to) = (0, self.to - self.from);
        &mut self.bytes[self.to..]
    }

    /// Notes that `bytes` bytes were received into [`Unpacker::room`].
    pub fn filled(&mut self, bytes: usize) {
        self.to = (self.to + bytes).min(self.bytes.len());
    }

    /// Returns true if part of a frame was received.
    pub fn is_torn(&self) -> bool {
        self.from < self.to
    }
}

/// Frames to be sent: one frame of the greatest length, or several shorter frames.
#[derive(Debug)]
pub struct Packer {
    bytes: Box<[u8]>,
    /// Start of the unsent bytes.
    from: usize,
    to: usize,
}

impl Default for Packer {
    fn default() -> Packer {
        let bytes = vec![0; LENGTH_LEN + MAX_FRAME_LEN as usize].into_boxed_slice();
        Packer { bytes, from: 0, to: 0 }
    }
}

impl Packer {
    /// Appends a frame. Returns false without room; if the packer is empty, the frame exceeds the
    /// greatest length.
    pub fn push(&mut self, frame: &[u8]) -> bool {
        if self.is_empty() {
            (self.from, self.to) = (0, 0);
        }
        let room = self.bytes[self.to..].split_first_chunk_mut();
        let Some((length, room)) =
            room.and_then(|(length, room)| Some((length, room.get_mut(..frame.len())?)))
        else {
            return false;
        };
        room.copy_from_slice(frame);
        *length = (frame.len() as u32).to_be_bytes();
        self.to += LENGTH_LEN + frame.len();
        true
    }

    /// Returns true if all bytes were sent.
    pub fn is_empty(&self) -> bool {
        self.from == self.to
    }

    /// Returns the unsent bytes.
    pub fn rest(&self) -> &[u8] {
        &self.bytes[self.from..self.to]
    }

    /// Marks `bytes` bytes as sent.
    pub fn sent(&mut self, bytes: usize) {
        self.from = self.from.saturating_add(bytes).min(self.to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(frames: &[Vec<u8>]) -> Vec<u8> {
        let each = frames.iter().map(|frame| {
            let mut bytes = (frame.len() as u32).to_be_bytes().to_vec();
            bytes.extend(frame);
            bytes
        });
        each.collect::<Vec<_>>().concat()
    }

    /// Takes all whole frames.
    fn take(unpacker: &mut Unpacker) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| unpacker.next_frame().unwrap().map(<[u8]>::to_vec)).collect()
    }

    fn put(unpacker: &mut Unpacker, bytes: &[u8]) {
        unpacker.room()[..bytes.len()].copy_from_slice(bytes);
        unpacker.filled(bytes.len());
    }

    fn frames() -> Vec<Vec<u8>> {
        [14, 0, 60, 1, 15].iter().map(|&len| (0..len).map(|n| n as u8 ^ 0x5a).collect()).collect()
    }

    #[test]
    fn every_split_gives_the_same_frames() {
        let bytes = packed(&frames());
        for first in 0..=bytes.len() {
            for second in first..=bytes.len() {
                let mut unpacker = Unpacker::default();
                let mut found = Vec::new();
                for part in [&bytes[..first], &bytes[first..second], &bytes[second..]] {
                    put(&mut unpacker, part);
                    found.extend(take(&mut unpacker));
                }
                assert_eq!(found, frames(), "split at {first} and {second}");
                assert!(!unpacker.is_torn());
            }
        }
    }

    #[test]
    fn bytes_come_one_by_one() {
        let (bytes, mut unpacker) = (packed(&frames()), Unpacker::default());
        let mut found = Vec::new();
        for byte in bytes {
            put(&mut unpacker, &[byte]);
            found.extend(take(&mut unpacker));
        }
        assert_eq!(found, frames());
    }

    #[test]
    fn the_longest_frames_pass_again_and_again() {
        let mut unpacker = Unpacker::default();
        let longest = vec![7; MAX_STREAM_FRAME_LEN as usize];
        let bytes = packed(&[longest.clone(), longest.clone(), longest.clone()]);
        let (mut left, mut found) = (&bytes[..], 0);
        while !left.is_empty() {
            let room = unpacker.room();
            assert!(!room.is_empty());
            let n = room.len().min(left.len());
            room[..n].copy_from_slice(&left[..n]);
            unpacker.filled(n);
            left = &left[n..];
            for frame in take(&mut unpacker) {
                assert!(frame == longest);
                found += 1;
            }
        }
        assert_eq!(found, 3);
    }

    #[test]
    fn an_impossible_length_is_told_and_stays() {
        for length in [MAX_STREAM_FRAME_LEN + 1, 1 << 31, u32::MAX] {
            let mut unpacker = Unpacker::default();
            put(&mut unpacker, &packed(&[vec![1; 20]]));
            put(&mut unpacker, &length.to_be_bytes()[..3]);
            assert_eq!(take(&mut unpacker).len(), 1);
            put(&mut unpacker, &length.to_be_bytes()[3..]);
            for _ in 0..2 {
                assert_eq!(unpacker.next_frame(), Err(BadLength(length)));
            }
        }
    }

    #[test]
    fn frames_go_in_any_parts() {
        let frames = frames();
        let all = packed(&frames);
        for first in 0..=all.len() {
            let mut packer = Packer::default();
            for frame in &frames {
                assert!(packer.push(frame));
            }
            let mut gone = packer.rest()[..first].to_vec();
            packer.sent(first);
            gone.extend(packer.rest());
            assert_eq!(gone, all);
            packer.sent(1000);
            assert!(packer.is_empty() && packer.rest().is_empty());
        }
    }

    #[test]
    fn there_is_room_for_the_longest_frame_or_many_short_ones() {
        let (mut packer, longest) = (Packer::default(), MAX_FRAME_LEN as usize);
        let bytes = vec![7; longest + 1];
        for _ in 0..2 {
            assert!(!packer.push(&bytes));
            assert!(packer.push(&bytes[..longest]));
            assert!(!packer.push(&[]));
            packer.sent(1);
            assert!(!packer.push(&[]), "in the middle of a frame");
            packer.sent(longest + LENGTH_LEN);
            let mut short = 0;
            while packer.push(&bytes[..60]) {
                short += 1;
            }
            assert_eq!(short, (longest + LENGTH_LEN) / (60 + LENGTH_LEN));
            packer.sent(usize::MAX);
        }
    }
}
