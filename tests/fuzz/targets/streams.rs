//! Any bytes of a stream: in any pieces they are the frames of the plainest reading, the same
//! length ends both, there is always room for what comes next, and frames sent in any pieces,
//! several together, are read again.

use base::frame::stream::{BadLength, LENGTH_LEN, Packer, Unpacker};
use base::limits::{MAX_FRAME_LEN, MAX_STREAM_FRAME_LEN};

use super::input::Input;

/// Lengths that are somebody's border.
const LENGTHS: [u32; 12] = [
    0,
    1,
    3,
    14,
    60,
    1514,
    MAX_FRAME_LEN,
    MAX_FRAME_LEN + 1,
    MAX_STREAM_FRAME_LEN,
    MAX_STREAM_FRAME_LEN + 1,
    1 << 31,
    u32::MAX,
];
/// Bytes of one input's streams: an input shall take milliseconds.
const MOST_BYTES: usize = 1 << 20;

/// The target.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    match input.flag() {
        true => any_bytes(&mut input),
        false => any_frames(&mut input),
    }
}

fn length(input: &mut Input<'_>) -> u32 {
    if input.flag() { input.choose(&LENGTHS) } else { u32::from(input.u16()) }
}

/// `len` bytes that tell where they stand, as far as a frame may reach. The zeros behind them, of
/// up to four gigabytes, take no memory and no time: nobody reads a frame that is too long.
fn filler(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let frame = &mut bytes[..len.min(MAX_STREAM_FRAME_LEN as usize)];
    frame.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at ^ (at >> 8)) as u8);
    bytes
}

fn any_bytes(input: &mut Input<'_>) {
    let mut bytes = Vec::new();
    let (mut reader, mut plain) = (Reader::default(), Plain::default());
    while !input.is_empty() && bytes.len() < MOST_BYTES {
        if input.flag() {
            let len = length(input);
            bytes.extend(len.to_be_bytes());
            // All of the frame, or less than that.
            let there = (len as usize).min(MAX_STREAM_FRAME_LEN as usize);
            let there = if input.flag() { there } else { input.below(there.clamp(1, 65_536)) };
            bytes.extend(filler(there));
        } else {
            let len = input.below(64);
            bytes.extend(input.bytes(len));
        }
        while reader.read < bytes.len() {
            let ended = reader.take(&bytes, input);
            assert_eq!(&reader.frames, plain.all(&bytes[..reader.read]));
            assert_eq!(ended, plain.bad);
            if ended.is_some() {
                return;
            }
        }
    }
    assert_eq!(reader.unpacker.is_torn(), plain.from < bytes.len());
}

/// What the switch makes of a stream.
#[derive(Default)]
struct Reader {
    unpacker: Unpacker,
    /// Bytes that it was given.
    read: usize,
    frames: Vec<Vec<u8>>,
}

impl Reader {
    /// Gives it the next piece.
    fn take(&mut self, bytes: &[u8], input: &mut Input<'_>) -> Option<BadLength> {
        let piece = input.choose(&[1, 3, 5, 100, 4_096, 65_536, usize::MAX]);
        let room = self.unpacker.room();
        assert!(!room.is_empty());
        let piece = piece.min(room.len()).min(bytes.len() - self.read);
        room[..piece].copy_from_slice(&bytes[self.read..self.read + piece]);
        self.unpacker.filled(piece);
        self.read += piece;
        loop {
            match self.unpacker.next_frame() {
                Ok(Some(frame)) => self.frames.push(frame.to_vec()),
                Ok(None) => return None,
                Err(bad) => return Some(bad),
            }
        }
    }
}

/// The same, read from all bytes so far.
#[derive(Default)]
struct Plain {
    /// Where the next length stands.
    from: usize,
    frames: Vec<Vec<u8>>,
    bad: Option<BadLength>,
}

impl Plain {
    fn all(&mut self, bytes: &[u8]) -> &Vec<Vec<u8>> {
        while self.bad.is_none() && bytes.len() - self.from >= LENGTH_LEN {
            let digits = &bytes[self.from..self.from + LENGTH_LEN];
            let len = digits.iter().fold(0, |len: u32, &digit| len << 8 | u32::from(digit));
            if len > MAX_STREAM_FRAME_LEN {
                self.bad = Some(BadLength(len));
                break;
            }
            let begin = self.from + LENGTH_LEN;
            if bytes.len() - begin < len as usize {
                break;
            }
            self.from = begin + len as usize;
            self.frames.push(bytes[begin..self.from].to_vec());
        }
        &self.frames
    }
}

fn any_frames(input: &mut Input<'_>) {
    let mut packer = Packer::default();
    let (mut wire, mut sent) = (Vec::new(), Vec::new());
    while !input.is_empty() && wire.len() < MOST_BYTES {
        let (len, empty) = (length(input) as usize, packer.is_empty());
        let fits = packer.push(&filler(len));
        assert!(!empty || fits == (len <= MAX_FRAME_LEN as usize), "{len}");
        if fits {
            sent.push(filler(len));
        }
        while !packer.is_empty() && (!fits || input.below(4) > 0) {
            let piece = input.choose(&[1, 2, 4, 1_000, usize::MAX]).min(packer.rest().len());
            wire.extend(&packer.rest()[..piece]);
            packer.sent(piece);
            // Few bytes at a time, for long, teach nothing.
            if input.is_empty() {
                break;
            }
        }
    }
    wire.extend(packer.rest());
    let mut reader = Reader::default();
    while reader.read < wire.len() {
        assert_eq!(reader.take(&wire, input), None);
    }
    assert!(!reader.unpacker.is_torn());
    assert_eq!(reader.frames, sent);
}
