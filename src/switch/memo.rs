//! Answers that a worker may remember between frames.
//!
//! [`SourceMemo`], one per port, spares a stream of frames the learning of their source. Its answer
//! is "this address is in the table on this port, and its stamp is this tick", so the answer holds
//! for one tick and one generation.
//!
//! [`BurstMemo`] gives each destination of a burst one decision. Order needs this as well as speed:
//! a burst delivers unicast before floods. If the first frame of a burst were flooded and the
//! second sent to a port that another worker has just learned, the second frame would overtake the
//! first. The memo is cleared with every burst, so "no port is known for this address" is not
//! remembered longer, and the memo needs no generation.

use super::fdb::{Learn, PortId, Tick};
use super::policy::{Decision, Flood};
use super::segment::Station;
use base::limits::BURST_FRAMES;

/// Twice the number of addresses, so that probes stay short.
const INDEX_SLOTS: usize = 2 * BURST_FRAMES;
/// 2^64 divided by the golden ratio, odd: Knuth's multiplicative hash.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
/// Shift that keeps as many of the product's uppermost bits as an index number has.
const INDEX_SHIFT: u32 = 64 - INDEX_SLOTS.trailing_zeros();

// An index entry is a byte, 0 for empty. `% BURST_FRAMES` and `% INDEX_SLOTS` replace bounds
// checks.
const _: () = assert!(BURST_FRAMES.is_power_of_two() && BURST_FRAMES < 256);

/// Remembers the last source of one port.
#[derive(Clone, Copy, Debug, Default)]
pub struct SourceMemo {
    /// The zero address, which no station has, while nothing is remembered.
    source: Station,
    generation: u64,
    tick: Tick,
    port: PortId,
}

impl SourceMemo {
    /// True if `source` needs no learning: it is in the table on this port, stamped `now`.
    #[inline]
    pub fn covers(&self, source: Station, port: PortId, generation: u64, now: Tick) -> bool {
        // The zero address must reach `admit_source`, so an empty memo must not cover it.
        self.source == source
            && self.tick == now
            && self.generation == generation
            && self.port == port
            && !source.mac.is_zero()
    }

    /// Remembers the answer of [`super::Fdb::learn`], if the address is in the table. The caller
    /// reads `generation` before `learn`, so that a removal in between is noticed.
    #[inline]
    pub fn note(
        &mut self,
        source: Station,
        port: PortId,
        generation: u64,
        now: Tick,
        learn: Learn,
    ) {
        if learn.is_in_table() {
            *self = SourceMemo { source, generation, tick: now, port };
        }
    }
}

/// The destinations of one burst, and the decision about each.
///
/// The hash is not keyed: a sender whose destinations all collide spends about 30 ns more on each
/// of its own frames, and its own budget pays for the time.
pub struct BurstMemo {
    /// Index in `known` plus one, or 0.
    index: [u8; INDEX_SLOTS],
    known: [(Station, Decision); BURST_FRAMES],
    count: usize,
}

impl BurstMemo {
    /// Makes an empty memo.
    pub const fn new() -> BurstMemo {
        BurstMemo {
            index: [0; INDEX_SLOTS],
            known: [(Station::NONE, Decision::Flood(Flood::Unknown)); BURST_FRAMES],
            count: 0,
        }
    }

    /// Forgets the last burst. A burst comes from one ring, thus from one ingress port.
    #[inline]
    pub fn start_burst(&mut self) {
        self.index = [0; INDEX_SLOTS];
        self.count = 0;
    }

    /// Returns the burst's decision about `destination`: the remembered one, or the answer of
    /// `decide`, which is remembered then. Beyond [`BURST_FRAMES`] addresses nothing more is
    /// remembered.
    #[inline]
    pub fn decide(&mut self, destination: Station, decide: impl FnOnce() -> Decision) -> Decision {
        let bits = destination.mac.to_bits() ^ u64::from(destination.segment.to_bits());
        let mut probe = (bits.wrapping_mul(GOLDEN) >> INDEX_SHIFT) as usize;
        // At least half of the index is empty, so the loop ends.
        while let Some(position) = usize::from(self.index[probe]).checked_sub(1) {
            let (address, decision) = self.known[position % BURST_FRAMES];
            if address == destination {
                return decision;
            }
            probe = (probe + 1) % INDEX_SLOTS;
        }
        let decision = decide();
        if self.count < BURST_FRAMES {
            self.known[self.count] = (destination, decision);
            self.count += 1;
            self.index[probe] = self.count as u8;
        }
        decision
    }
}

impl Default for BurstMemo {
    fn default() -> BurstMemo {
        BurstMemo::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Segment;
    use base::frame::MacAddr;

    const NOW: Tick = Tick::from_bits(100);

    fn station(n: u64) -> Station {
        MacAddr::from_bits(0x5254_0000_0000 + n).into()
    }

    #[test]
    fn a_source_is_covered_for_its_tick_generation_and_port() {
        let mut memo = SourceMemo::default();
        assert!(!memo.covers(station(1), 3, 7, NOW), "an empty memo");
        memo.note(station(1), 3, 7, NOW, Learn::Inserted);
        assert!(memo.covers(station(1), 3, 7, NOW));
        assert!(!memo.covers(station(2), 3, 7, NOW), "another source");
        assert!(!memo.covers(station(1), 4, 7, NOW), "another port");
        let elsewhere = Station::new(Segment::new(0, 5), station(1).mac);
        assert!(!memo.covers(elsewhere, 3, 7, NOW), "another VLAN");
        assert!(!memo.covers(station(1), 3, 8, NOW), "something moved or went");
        assert!(!memo.covers(station(1), 3, 7, Tick::from_bits(101)), "the stamp must be renewed");
    }

    #[test]
    fn refused_learning_is_not_remembered() {
        let refusals = [
            Learn::Static,
            Learn::Held { at: 1 },
            Learn::TableFull,
            Learn::SegmentFull,
            Learn::PortFull,
            Learn::BucketFull,
            Learn::Busy,
            Learn::NotStation,
            Learn::Off,
        ];
        for refusal in refusals {
            let mut memo = SourceMemo::default();
            memo.note(station(1), 0, 0, NOW, refusal);
            assert!(!memo.covers(station(1), 0, 0, NOW), "{refusal:?}");
        }
    }

    #[test]
    fn an_empty_memo_does_not_cover_the_zero_address() {
        assert!(!SourceMemo::default().covers(Station::default(), 0, 0, NOW));
    }

    #[test]
    fn an_address_gets_one_decision_per_burst() {
        let mut memo = BurstMemo::new();
        for round in 0..3 {
            memo.start_burst();
            for pass in 0..3 {
                for n in 0..BURST_FRAMES as u64 {
                    // The table's answer at this moment; only the first pass may ask the table.
                    let now = Decision::Unicast((round * 1000 + pass * 100 + n) as PortId);
                    let first = Decision::Unicast((round * 1000 + n) as PortId);
                    assert_eq!(memo.decide(station(n), || now), first);
                    assert_eq!(memo.decide(station(n), || Decision::Flood(Flood::Unknown)), first);
                }
            }
        }
    }

    #[test]
    fn the_zero_destination_is_not_taken_for_an_empty_place() {
        let mut memo = BurstMemo::new();
        let zero = Station::default();
        assert_eq!(memo.decide(zero, || Decision::Unicast(1)), Decision::Unicast(1));
        memo.start_burst();
        assert_eq!(memo.decide(zero, || Decision::Unicast(2)), Decision::Unicast(2));
        assert_eq!(memo.decide(zero, || Decision::Flood(Flood::Unknown)), Decision::Unicast(2));
    }

    #[test]
    fn a_burst_of_too_many_addresses_is_answered_all_the_same() {
        let mut memo = BurstMemo::new();
        for n in 0..1000u64 {
            let decision = Decision::Unicast(n as PortId);
            assert_eq!(memo.decide(station(n), || decision), decision);
        }
        assert_eq!(
            memo.decide(station(5), || Decision::Flood(Flood::Unknown)),
            Decision::Unicast(5)
        );
    }
}
