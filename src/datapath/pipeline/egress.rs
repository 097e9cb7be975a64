//! Limits of an egress port: its MTU ([`crate::port::mtu`]), its VLAN tags and its `rate-out`.
//! Frames that may not leave by the port are dropped and counted.
//!
//! [`limit_runs`] checks runs of unicast frames, which may then wait for the rate
//! ([`super::rate_out`]); [`Copies::for_port`] checks copies of floods and mirrors.

use super::plan::Plan;
use super::rate_out::keep_within_rate;
use super::screen::VlanTransit;
use crate::capture::outcomes::Outcomes;
use crate::port::{Port, PortTable};
use crate::ring::{Burst, Frame};
use base::frame::VnetHdr;
use base::frame::ethernet::{Snapshot, l3_offset};
use base::limits::{BURST_FRAMES, MIN_FRAME_LEN};
use base::stats::DropReason;
use switch::PortId;

/// Removes frames that exceed the MTU of their port, or whose tag may not leave there, from the
/// runs of `plan`. Every frame of at most `least` bytes may leave. Costs 5 instructions a frame if
/// all frames may leave.
#[inline(never)]
pub(crate) fn limit_runs(
    burst: &Burst,
    plan: &mut Plan,
    (from, ports): (PortId, &PortTable),
    least: u32,
    outcomes: &mut Outcomes,
) {
    let longest = burst.frames().iter().fold(0, |longest, frame| frame.len.max(longest));
    if longest <= least {
        return;
    }
    let mut kept = [0; BURST_FRAMES];
    for run in plan.runs() {
        let port = &ports[run.port];
        let transit = Some(VlanTransit::new(ports, from, run.port));
        let copies = Copies { from, frames: run.left(), longest };
        let count = copies.that_fit(burst, (port, transit), &mut kept, outcomes).len();
        if count < run.left().len() {
            run.settle_all_but(&kept[..count]);
        }
    }
}

/// Frames of a burst that are copied to several ports, one port after another.
#[derive(Clone, Copy)]
pub struct Copies<'f> {
    from: PortId,
    frames: &'f [u8],
    longest: u32,
}

impl<'f> Copies<'f> {
    /// Copies the listed frames, which came in by port `from`.
    pub(crate) fn new(burst: &Burst, from: PortId, frames: &'f [u8]) -> Copies<'f> {
        let lengths = frames.iter().map(|&frame| burst.frames()[usize::from(frame)].len);
        Copies { from, frames, longest: lengths.max().unwrap_or(0) }
    }

    /// Returns the frames that may leave by `port` at cycle `now`; drops and counts the others.
    /// Frames leave with the tags of `transit`, or with their own tags without a transit. `kept` is
    /// a buffer for the returned frames.
    #[inline(always)]
    pub(crate) fn for_port<'k>(
        &self,
        burst: &Burst,
        (port, transit): (&Port, Option<VlanTransit<'_>>),
        now: u64,
        kept: &'k mut [u8; BURST_FRAMES],
        outcomes: &mut Outcomes,
    ) -> &'k [u8]
    where
        'f: 'k,
    {
        let frames = self.that_fit(burst, (port, transit), kept, outcomes);
        match port.rates.output.is_on() {
            true => keep_within_rate(burst, (self.from, frames), port, now, outcomes),
            false => frames,
        }
    }

    /// Returns the frames that fit the MTU of `port` and whose tags may leave there.
    #[inline(always)]
    fn that_fit<'k>(
        &self,
        burst: &Burst,
        (port, mut transit): (&Port, Option<VlanTransit<'_>>),
        kept: &'k mut [u8; BURST_FRAMES],
        outcomes: &mut Outcomes,
    ) -> &'k [u8]
    where
        'f: 'k,
    {
        let takes = |transit: &mut VlanTransit<'_>| transit.all_may_leave(burst, self.frames);
        if self.longest <= port.mtu.max_len() && transit.as_mut().is_none_or(takes) {
            return self.frames;
        }
        self.one_by_one(burst, (port, transit), kept, outcomes)
    }

    #[inline(never)]
    fn one_by_one<'k>(
        &self,
        burst: &Burst,
        (port, mut transit): (&Port, Option<VlanTransit<'_>>),
        kept: &'k mut [u8; BURST_FRAMES],
        outcomes: &mut Outcomes,
    ) -> &'k [u8] {
        let (max_len, mut count) = (port.mtu.max_len(), 0);
        for &index in self.frames {
            let frame = &burst.frames()[usize::from(index)];
            let reason = if frame.len > max_len && !fits(frame, max_len) {
                DropReason::TooBig
            } else if transit.as_mut().is_some_and(|transit| transit.edit(frame).is_none()) {
                DropReason::Vlan
            } else {
                kept[count] = index;
                count += 1;
                continue;
            };
            port.drop_copies(&port.stats.drops, (self.from, &[index][..]), reason, outcomes);
        }
        &kept[..count]
    }
}

/// True if a frame longer than `max_len` fits the MTU: without its VLAN tags, or because it will be
/// sent in segments.
#[cold]
#[inline(never)]
fn fits(frame: &Frame, max_len: u32) -> bool {
    longest_segment(frame.len, frame.header, &frame.snapshot) <= max_len
}

/// Returns the length, without tags, of the longest segment of a frame of `len` bytes.
fn longest_segment(len: u32, header: VnetHdr, snapshot: &Snapshot) -> u32 {
    let number = |bytes| u32::from(u16::from_le_bytes(bytes));
    let segment = match header.gso_type {
        0 => len,
        _ => len.min(number(header.hdr_len) + number(header.gso_size)),
    };
    let tags = l3_offset(snapshot) as u32 - MIN_FRAME_LEN;
    segment.saturating_sub(tags)
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::limits::SNAPSHOT_LEN;

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
        // A single segment, which is not full.
        assert_eq!(longest_segment(1000, gso(54, 1460), &plain), 1000);
        assert_eq!(longest_segment(65_000, gso(u16::MAX, u16::MAX), &plain), 65_000);
        let tagged = snapshot(&[0x81, 0, 0, 5, 8, 0]);
        assert_eq!(longest_segment(65_000, gso(70, 1448), &tagged), 1514);
    }
}
