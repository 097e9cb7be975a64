//! Bursts that are copied to private memory before they are delivered.

use super::*;
use crate::ring::{Burst, RxScratch, Segmentation};
use base::frame::VnetHdr;

/// Frames of a sender: the bytes of each frame, and the sizes of the pieces behind the virtio-net
/// header.
const SHAPES: &[(usize, &[usize])] = &[
    (14, &[14]),
    (60, &[60]),
    (64, &[10, 54]),
    (65, &[65]),
    (200, &[200]),
    (300, &[1, 63, 1, 200, 35]),
    (1514, &[54, 1460]),
    (1514, &[1514]),
    (30_000, &[66, 4096, 4096, 20_000, 1742]),
];

#[test]
fn what_was_staged_is_delivered_whatever_the_sender_does() {
    for staged in [false, true] {
        let (sender, receiver) = (Guest::new(), Guest::new());
        let (from, to) = (sender.queue(), receiver.queue());
        let (mut tx, mut rx) = (sender.start(&from), receiver.start(&to));
        let (mut at, mut next, mut heads) = (DATA, 0, Vec::new());
        let mut sent = Vec::new();
        for (seed, &(len, pieces)) in SHAPES.iter().enumerate() {
            let bytes = frame(seed as u8, len);
            heads.push(next);
            let header = VnetHdr::plain(0).to_bytes();
            let mut left = [&header[..], &bytes].concat();
            let mut sizes = pieces.to_vec();
            sizes[0] += header.len();
            for (i, &size) in sizes.iter().enumerate() {
                let more = if i + 1 < sizes.len() { NEXT } else { 0 };
                let rest = left.split_off(size);
                sender.write(at, &left);
                describe(&from, next, &[desc(at, size as u32, more, next + 1)]);
                left = rest;
                // The pieces are not contiguous.
                at += size as u64 + 64;
                next += 1;
            }
            sent.push(bytes);
        }
        offer(&from, &heads);
        let buffers: Vec<u64> = (0..SHAPES.len() as u64).map(|i| DATA + i * 40_000).collect();
        for (i, &at) in buffers.iter().enumerate() {
            describe(&to, i as u16, &[desc(at, 40_000, WRITE, 0)]);
        }
        offer(&to, &(0..SHAPES.len() as u16).collect::<Vec<_>>());

        let mut burst = Burst::default();
        assert_eq!(tx.take(&mut burst, 64), Ok(SHAPES.len()));
        assert_eq!(burst.frames().len(), SHAPES.len());
        if staged {
            burst.stage(u64::MAX);
        }
        sender.write(DATA, &vec![0xee; (at - DATA) as usize]);
        let run: Vec<u8> = (0..SHAPES.len() as u8).collect();
        let mut scratch = RxScratch::default();
        let done = rx.deliver(&burst, &run, &mut scratch, Segmentation::Whole);
        assert_eq!((done.settled, done.frames), (SHAPES.len(), SHAPES.len() as u64));
        let same = sent
            .iter()
            .zip(&buffers)
            .all(|(bytes, &at)| receiver.read(at + 12, bytes.len()) == *bytes);
        assert_eq!(same, staged, "what is behind the first 64 bytes is the sender's, but staged");
    }
}
