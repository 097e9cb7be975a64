//! Frames too big for where they go ([`crate::port::mtu`]) become counted drops.
//!
//! Asked once for all frames of a burst, if any goes to a port with a limit, and mostly answered by
//! a look at their lengths: 5 instructions a frame then, and none without a limit. A comparison
//! beside each decision cost every frame 5 of 290.

use super::plan::Plan;
use crate::capture::outcomes::Outcomes;
use crate::frame::VnetHdr;
use crate::frame::ethernet::{Snapshot, l3_offset};
use crate::limits::{BURST_FRAMES, MIN_FRAME_LEN};
use crate::port::{Port, PortTable};
use crate::ring::{Burst, Frame};
use crate::stats::DropReason;
use crate::switch::PortId;

/// Takes the frames that are too big for their ports out of the runs of `plan`. `least` is the
/// smallest limit of all these ports.
#[inline(never)]
pub fn drop_too_big(
    burst: &Burst,
    plan: &mut Plan,
    (from, ports): (PortId, &PortTable),
    least: u32,
    outcomes: &mut Outcomes,
) {
    if burst.frames().iter().fold(0, |longest, frame| frame.len.max(longest)) <= least {
        return;
    }
    let mut kept = [0; BURST_FRAMES];
    for run in plan.runs() {
        let port = &ports[run.port];
        let frames = keep_fitting(burst, (from, run.left()), port, &mut kept, outcomes);
        run.settle_all_but(frames);
    }
}

/// True if a frame longer than `max_len` may pass all the same: because its VLAN tags do not count,
/// or because it arrives in segments.
#[cold]
#[inline(never)]
fn fits(frame: &Frame, max_len: u32) -> bool {
    longest_segment(frame.len, frame.header, &frame.snapshot) <= max_len
}

/// Length without tags of the longest frame that comes of one of `len` bytes.
fn longest_segment(len: u32, header: VnetHdr, snapshot: &Snapshot) -> u32 {
    let number = |bytes| u32::from(u16::from_le_bytes(bytes));
    let segment = match header.gso_type {
        0 => len,
        _ => len.min(number(header.hdr_len) + number(header.gso_size)),
    };
    let tags = l3_offset(snapshot) as u32 - MIN_FRAME_LEN;
    segment.saturating_sub(tags)
}

/// Length of the longest of the listed frames of `burst`.
pub fn longest(burst: &Burst, frames: &[u8]) -> u32 {
    frames.iter().map(|&frame| burst.frames()[usize::from(frame)].len).max().unwrap_or(0)
}

/// Those of the listed frames that `port` takes; the others are counted. Written to `kept`.
#[inline(never)]
pub fn keep_fitting<'k>(
    burst: &Burst,
    (from, frames): (PortId, &[u8]),
    port: &Port,
    kept: &'k mut [u8; BURST_FRAMES],
    outcomes: &mut Outcomes,
) -> &'k [u8] {
    let (max_len, mut count) = (port.mtu.max_len(), 0);
    for &index in frames {
        let frame = &burst.frames()[usize::from(index)];
        if frame.len <= max_len || fits(frame, max_len) {
            kept[count] = index;
            count += 1;
        } else {
            let dropped = (from, &[index][..]);
            port.drop_copies(&port.stats.drops, dropped, DropReason::TooBig, outcomes);
        }
    }
    &kept[..count]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::SNAPSHOT_LEN;

    fn snapshot(types: &[u8]) -> Snapshot {
        let mut bytes = [0; SNAPSHOT_LEN];
        bytes[12..12 + types.len()].copy_from_slice(types);
        bytes
    }

    #[test]
    fn up_to_two_tags_do_not_count() {
        let plain = VnetHdr::plain(1);
        let len = |types: &[u8]| longest_segment(1522, plain, &snapshot(types));
        assert_eq!(len(&[8, 0]), 1522);
        assert_eq!(len(&[0x81, 0, 0, 5, 8, 0]), 1518);
        assert_eq!(len(&[0x88, 0xa8, 0, 5, 0x81, 0, 0, 6, 8, 0]), 1514);
        let three = [0x88, 0xa8, 0, 5, 0x81, 0, 0, 6, 0x81, 0, 0, 7, 8, 0];
        assert_eq!(len(&three), 1514, "a third one is payload");
    }

    #[test]
    fn what_is_to_be_segmented_counts_by_its_segments() {
        let gso = |hdr_len: u16, gso_size: u16| VnetHdr {
            flags: 1,
            gso_type: 1,
            hdr_len: hdr_len.to_le_bytes(),
            gso_size: gso_size.to_le_bytes(),
            ..VnetHdr::plain(1)
        };
        let plain = snapshot(&[8, 0]);
        assert_eq!(longest_segment(65_000, gso(66, 1448), &plain), 1514);
        assert_eq!(longest_segment(65_000, gso(66, 1449), &plain), 1515);
        // One segment, and that not a full one.
        assert_eq!(longest_segment(1000, gso(54, 1460), &plain), 1000);
        assert_eq!(longest_segment(65_000, gso(u16::MAX, u16::MAX), &plain), 65_000);
        let tagged = snapshot(&[0x81, 0, 0, 5, 8, 0]);
        assert_eq!(longest_segment(65_000, gso(70, 1448), &tagged), 1514);
    }
}
