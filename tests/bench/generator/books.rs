//! What one port received, by sender: gaps, late frames, duplicates, and the time frames took.

/// Ranges of missing frames remembered per stream, to tell late frames from duplicates.
const GAPS_REMEMBERED: usize = 1024;

/// The frames of one sender at one receiver.
#[derive(Clone, Default)]
pub struct Stream {
    /// The sequence number that comes next if nothing goes wrong.
    pub expected: u32,
    /// Different frames received.
    pub received: u64,
    /// Frames skipped and not arrived since.
    pub missing: u64,
    /// Frames that came after a later one.
    pub late: u64,
    /// Frames that came more than once.
    pub duplicates: u64,
    /// Ranges of skipped sequence numbers, each without its end.
    gaps: Vec<(u32, u32)>,
}

impl Stream {
    #[inline(always)]
    pub fn accept(&mut self, sequence: u32) {
        if sequence == self.expected {
            self.expected = sequence.wrapping_add(1);
            self.received += 1;
        } else {
            self.out_of_turn(sequence);
        }
    }

    #[cold]
    fn out_of_turn(&mut self, sequence: u32) {
        let skipped = sequence.wrapping_sub(self.expected);
        if skipped < 1 << 31 {
            self.missing += u64::from(skipped);
            if self.gaps.len() == GAPS_REMEMBERED {
                self.gaps.remove(0);
            }
            self.gaps.push((self.expected, sequence));
            self.expected = sequence.wrapping_add(1);
            self.received += 1;
            return;
        }
        let inside = |&(from, to): &(u32, u32)| sequence.wrapping_sub(from) < to.wrapping_sub(from);
        let Some(at) = self.gaps.iter().rposition(inside) else {
            self.duplicates += 1;
            return;
        };
        let (from, to) = self.gaps.remove(at);
        for part in [(from, sequence), (sequence.wrapping_add(1), to)] {
            if part.0 != part.1 {
                self.gaps.insert(at, part);
            }
        }
        self.missing -= 1;
        self.late += 1;
        self.received += 1;
    }
}

/// All that arrived at one port.
#[derive(Clone)]
pub struct Receiver {
    pub streams: Vec<Stream>,
    /// The port heard an announcement of this sender.
    pub heard: Vec<bool>,
    pub bytes: u64,
    /// Unicast frames for another port.
    pub flooded: u64,
    pub foreign: u64,
    pub corrupt: u64,
}

impl Receiver {
    pub fn new(ports: usize) -> Receiver {
        Receiver {
            streams: vec![Stream::default(); ports],
            heard: vec![false; ports],
            bytes: 0,
            flooded: 0,
            foreign: 0,
            corrupt: 0,
        }
    }

    /// Different good frames of all senders.
    pub fn frames(&self) -> u64 {
        self.streams.iter().map(|s| s.received).sum()
    }
}

/// Sub-buckets per power of two: a value is known to 1/32.
const SUB_BITS: u32 = 5;

/// Times in ticks, in buckets whose width grows with the value.
#[derive(Clone)]
pub struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    max: u64,
}

impl Histogram {
    pub fn new() -> Histogram {
        Histogram { buckets: vec![0; 64 << SUB_BITS], count: 0, max: 0 }
    }

    #[inline(always)]
    pub fn add(&mut self, value: u64) {
        let shift = (63 - (value | (1 << SUB_BITS)).leading_zeros()) - SUB_BITS;
        let bucket = ((shift << SUB_BITS) as u64 + (value >> shift)) as usize;
        self.buckets[bucket] += 1;
        self.count += 1;
        self.max = self.max.max(value);
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    pub fn max(&self) -> u64 {
        self.max
    }

    /// The value that a share of all values does not exceed, to 1/32.
    pub fn quantile(&self, share: f64) -> u64 {
        let mut left = (self.count as f64 * share).ceil() as u64;
        for (bucket, &n) in (0u64..).zip(&self.buckets) {
            if n >= left {
                let shift = (bucket >> SUB_BITS).saturating_sub(1);
                let base = bucket - (shift << SUB_BITS);
                return (base << shift | ((1 << shift) - 1)).min(self.max);
            }
            left -= n;
        }
        self.max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_late_frames_and_duplicates_are_told_apart() {
        let mut s = Stream::default();
        for sequence in [0, 1, 5, 3, 3, 2, 6, 6, 0, 7] {
            s.accept(sequence);
        }
        // 4 never came; 3 and 2 came late; 3, 6 and 0 came twice.
        assert_eq!((s.received, s.missing, s.late, s.duplicates), (7, 1, 2, 3));
        assert_eq!(s.expected, 8);
    }

    #[test]
    fn quantiles_are_right_to_a_thirty_second() {
        let mut h = Histogram::new();
        (1..=10_000).for_each(|v| h.add(v));
        for (share, exact) in [(0.5, 5_000.0), (0.99, 9_900.0), (0.001, 10.0)] {
            let got = h.quantile(share) as f64;
            assert!(got >= exact && got <= exact * 33.0 / 32.0, "{share}: {got}");
        }
        assert_eq!((h.quantile(1.0), h.max(), h.count()), (10_000, 10_000, 10_000));
        h.add(u64::MAX);
        assert_eq!(h.quantile(1.0), u64::MAX);
    }
}
