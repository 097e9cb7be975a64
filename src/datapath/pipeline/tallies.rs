//! Counts and logs of the rules that decide about the frames of a burst.
//!
//! A burst may be given back to its ring, in part, and taken again; filters then judge its frames
//! again. The rules therefore count and log a burst's frames when the burst is complete, and the
//! frames that went back do not count.

use crate::port::PortTable;
use crate::ring::Burst;
use base::limits::BURST_FRAMES;
use switch::filter::LoggedPacket;
use switch::filter::compiled::RuleNumber;
use switch::{PortId, Tick};

/// Frames that a rule of a port has decided about.
struct Tally {
    port: PortId,
    rule: RuleNumber,
    /// Bits of the frames' indices.
    frames: u64,
}

/// A packet that a rule with `log` has decided about.
struct Logged {
    port: PortId,
    /// Index of the frame.
    frame: u8,
    packet: LoggedPacket,
}

/// The decisions of rules about the frames of a burst.
pub(crate) struct Tallies {
    tallies: Vec<Tally>,
    logged: Vec<Logged>,
}

impl Default for Tallies {
    fn default() -> Tallies {
        // The filters of the sender and of a receiver decide about each frame.
        let most = 2 * BURST_FRAMES;
        Tallies { tallies: Vec::with_capacity(most), logged: Vec::with_capacity(most) }
    }
}

impl Tallies {
    /// Adds frames, as bits of their indices, that a rule of a port has decided about.
    #[inline]
    pub(crate) fn add(&mut self, port: PortId, rule: RuleNumber, frames: u64) {
        match self.tallies.last_mut() {
            Some(last) if (last.port, last.rule) == (port, rule) => last.frames |= frames,
            _ => self.tallies.push(Tally { port, rule, frames }),
        }
    }

    /// Adds a packet that a rule with `log` has decided about; [`Tallies::add`] must follow.
    #[cold]
    pub(crate) fn log(&mut self, port: PortId, frame: u8, packet: LoggedPacket) {
        self.logged.push(Logged { port, frame, packet });
    }

    /// Counts and logs the frames of a burst that is complete, and that has so many bytes.
    pub(crate) fn settle(&mut self, ports: &PortTable, (burst, all): (&Burst, u64), now: Tick) {
        let kept = bits(0, burst.frames().len());
        let filter = |port: PortId| ports.policy(port).filter.as_ref();
        for Tally { port, rule, frames } in self.tallies.drain(..) {
            let frames = frames & kept;
            let counts = filter(port).and_then(|filter| filter.rules.counts(rule));
            if let Some(counts) = counts.filter(|_| frames != 0) {
                let bytes = if frames == kept { all } else { bytes(burst, frames) };
                counts.add(frames.count_ones().into(), bytes);
            }
        }
        for Logged { port, frame, packet } in self.logged.drain(..) {
            let log = filter(port).map(|filter| &filter.log);
            // A packet that begins a connection is known when it is judged again.
            let is_due = packet.passed || kept >> frame & 1 != 0;
            if let Some(log) = log.filter(|_| is_due) {
                log.note(packet, now);
            }
        }
    }
}

/// Returns `count` bits, from bit `first` on, as far as 64 bits hold them.
#[inline(always)]
pub(crate) fn bits(first: usize, count: usize) -> u64 {
    let bits = 1_u64.checked_shl(count as u32).map_or(u64::MAX, |end| end - 1);
    bits.checked_shl(first as u32).unwrap_or(0)
}

/// Returns the bytes of frames, which are given as bits of their indices.
fn bytes(burst: &Burst, mut frames: u64) -> u64 {
    let mut sum = 0;
    while frames != 0 {
        let first = frames.trailing_zeros() as usize;
        let count = (frames >> first).trailing_ones() as usize;
        let stretch = burst.frames().get(first..first + count).unwrap_or_default();
        sum += stretch.iter().map(|frame| u64::from(frame.len)).sum::<u64>();
        frames &= !bits(first, count);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::bits;

    #[test]
    fn bits_end_at_the_last_frame_of_a_burst() {
        assert_eq!((bits(0, 64), bits(0, 0), bits(64, 0)), (u64::MAX, 0, 0));
        assert_eq!((bits(63, 1), bits(1, 3), bits(62, 2)), (1 << 63, 0b1110, 3 << 62));
    }
}
