//! A burst sorted by destination, as lists of frame indices: runs for one receive queue, floods for
//! several ports, and drops.

use base::limits::{BURST_FRAMES, MAX_PORTS};
use base::stats::DropReason;
use switch::{Flood, Ingress, PortId, Reach, Segment};

/// Frames of one burst for one queue of one port, in order.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    /// Destination port.
    pub(crate) port: PortId,
    /// Receive queue of a guest; 0 for a device.
    pub(crate) queue: u8,
    done: u8,
    len: u8,
    frames: [u8; BURST_FRAMES],
}

// Frame indices and run lengths are stored as `u8`.
const _: () = assert!(BURST_FRAMES <= 255);

impl Run {
    /// A run without frames.
    pub(crate) const EMPTY: Run =
        Run { port: 0, queue: 0, done: 0, len: 0, frames: [0; BURST_FRAMES] };

    /// Empties the run and sets another destination.
    #[inline]
    pub(crate) fn restart(&mut self, port: PortId, queue: u8) {
        (self.port, self.queue, self.done, self.len) = (port, queue, 0, 0);
    }

    /// Appends a frame; a run has room for all frames of a burst.
    #[inline(always)]
    pub(crate) fn push(&mut self, index: u8) {
        self.frames[usize::from(self.len)] = index;
        self.len += 1;
    }

    /// Returns the frames that are not settled.
    #[inline(always)]
    pub(crate) fn left(&self) -> &[u8] {
        &self.frames[usize::from(self.done)..usize::from(self.len)]
    }

    /// Returns the frames that are not settled, and a function that settles the next frames.
    #[inline(always)]
    pub(crate) fn settling(&mut self) -> (&[u8], impl FnMut(usize)) {
        let Run { frames, done, len, .. } = self;
        let left = &frames[usize::from(*done)..usize::from(*len)];
        (left, |count| *done += count as u8)
    }

    /// Returns the first index behind all settled frames.
    #[inline(always)]
    pub(crate) fn settled_end(&self) -> u8 {
        self.frames[..usize::from(self.done)].iter().max().map_or(0, |last| last + 1)
    }

    /// Settles all frames but `kept`, which are some of the frames left.
    pub(crate) fn settle_all_but(&mut self, kept: &[u8]) {
        let before = *self;
        let settled = before.left().iter().filter(|frame| !kept.contains(frame));
        let places = self.frames[usize::from(self.done)..].iter_mut();
        places.zip(settled.chain(kept)).for_each(|(place, frame)| *place = *frame);
        self.done = self.len - kept.len() as u8;
    }

    /// Settles the next `count` frames.
    #[inline(always)]
    pub(crate) fn advance(&mut self, count: usize) {
        self.done = self.len.min(self.done + count as u8);
    }

    /// Removes the frames left from index `end` on.
    pub(crate) fn truncate(&mut self, end: u8) {
        self.len = self.done + self.left().partition_point(|&frame| frame < end) as u8;
    }

    /// Returns the frames left from index `at` on.
    pub(crate) fn left_from(&self, at: u8) -> &[u8] {
        let left = self.left();
        &left[left.partition_point(|&frame| frame < at)..]
    }
}

/// The criteria that select a flood's receivers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scope {
    /// Port by which the frames came in.
    pub(crate) from: Ingress,
    /// Segment of the frames.
    pub(crate) segment: Segment,
    /// Why the frames are flooded.
    pub(crate) flood: Flood,
    /// Ports of the segment that the frames reach.
    pub(crate) reach: Reach,
}

#[cfg(test)]
impl Scope {
    /// Group frames of port 0 for all other ports.
    pub(crate) const FOR_TESTS: Scope = Scope {
        from: Ingress { port: 0, kind: switch::PortKind::Guest },
        segment: Segment::DEFAULT,
        flood: Flood::Group,
        reach: Reach::All,
    };
}

/// Frames of one burst that go to the same ports, a copy to each port.
#[derive(Debug)]
pub struct FloodGroup {
    /// Number that stands for the set of ports.
    key: u64,
    frames: [u8; BURST_FRAMES],
    count: usize,
    /// Criteria that selected the targets.
    scope: Scope,
    targets: Vec<PortId>,
    /// First port that is not served in this turn.
    next: Option<PortId>,
}

impl FloodGroup {
    fn new(scope: Scope) -> FloodGroup {
        let targets = Vec::with_capacity(MAX_PORTS);
        FloodGroup { key: 0, frames: [0; BURST_FRAMES], count: 0, scope, targets, next: None }
    }

    /// Empties the group; `find` adds the ports of `key` and `scope`.
    fn restart(&mut self, key: u64, scope: Scope, find: impl FnOnce(&mut Vec<PortId>)) {
        (self.key, self.count, self.scope, self.next) = (key, 0, scope, None);
        self.targets.clear();
        find(&mut self.targets);
    }

    /// Appends a frame.
    #[inline]
    pub(crate) fn push(&mut self, index: u8) {
        self.frames[self.count] = index;
        self.count += 1;
    }

    /// Returns the frames, in order.
    #[inline(always)]
    pub(crate) fn frames(&self) -> &[u8] {
        &self.frames[..self.count]
    }

    /// Returns the ports that are served in this turn.
    pub(crate) fn targets(&self) -> &[PortId] {
        &self.targets
    }

    /// Returns the criteria that selected the ports.
    pub(crate) fn scope(&self) -> Scope {
        self.scope
    }

    /// Keeps the first `most` ports for this turn.
    pub(crate) fn limit(&mut self, most: usize) {
        if let Some(&next) = self.targets.get(most) {
            self.targets.truncate(most);
            self.next = Some(next);
        }
    }

    /// Removes the frames from index `end` on.
    pub(crate) fn truncate(&mut self, end: u8) {
        self.count = self.frames().partition_point(|&frame| frame < end);
    }
}

/// Destinations of the frames of a burst; allocated once per worker.
#[derive(Debug)]
pub struct Plan {
    runs: Box<[Run; BURST_FRAMES]>,
    count: usize,
    last: usize,
    /// Port and queue of the last run as one number; [`Plan::NOWHERE`] without a last run.
    last_key: u32,
    /// Frame indices from the first number up to the second number that belong to the last run and
    /// are not appended yet; see [`Plan::close`].
    pending: (u8, u8),
    /// Frames that go to several ports; the first `group_count` groups are in use.
    flood_groups: Vec<FloodGroup>,
    group_count: usize,
    /// Number of settled copies of the groups' frames.
    flooded: usize,
    /// Buffer for the run of a port that is being flooded.
    flood_run: Run,
    /// Dropped frames, in order, and the reasons; the first `dropped` elements are in use.
    drops: [(u8, DropReason); BURST_FRAMES],
    dropped: usize,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan {
            runs: Box::new([Run::EMPTY; BURST_FRAMES]),
            count: 0,
            last: 0,
            last_key: Plan::NOWHERE,
            pending: (0, 0),
            flood_groups: Vec::new(),
            group_count: 0,
            flooded: 0,
            flood_run: Run::EMPTY,
            drops: [(0, DropReason::Panicked); BURST_FRAMES],
            dropped: 0,
        }
    }
}

impl Plan {
    /// No destination; keys of destinations are below 2^24.
    const NOWHERE: u32 = u32::MAX;

    /// Empties the plan except its floods.
    #[inline]
    pub(crate) fn clear_runs(&mut self) {
        self.count = 0;
        self.last_key = Plan::NOWHERE;
        self.pending = (0, 0);
        self.dropped = 0;
    }

    /// Empties the plan.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.clear_runs();
        (self.group_count, self.flooded) = (0, 0);
    }

    /// Appends frame `index` to the run of a destination when [`Plan::close`] is called. A burst
    /// has few destinations, mostly the destination of the frame before. 64 different destinations
    /// cost about 1 µs.
    #[inline(always)]
    pub(crate) fn unicast(&mut self, index: u8, port: PortId, queue: u8) {
        let key = u32::from(port) << 8 | u32::from(queue);
        if key != self.last_key || index != self.pending.1 {
            self.turn_to(index, port, queue);
            self.last_key = key;
        }
        self.pending.1 = index + 1;
    }

    /// Appends all frames up to `end` to the last run.
    #[inline(always)]
    pub(crate) fn extend_last_to(&mut self, end: u8) {
        self.pending.1 = end;
    }

    /// Makes the run of a destination the last run, with frames from `index` on.
    #[inline(never)]
    fn turn_to(&mut self, index: u8, port: PortId, queue: u8) {
        self.close();
        let matches = |run: &Run| run.port == port && run.queue == queue;
        self.last = match self.runs[..self.count].iter().position(matches) {
            Some(at) => at,
            None => {
                self.runs[self.count].restart(port, queue);
                self.count += 1;
                self.count - 1
            }
        };
        self.pending = (index, index);
    }

    /// Ends the planning of unicast frames.
    #[inline]
    pub(crate) fn close(&mut self) {
        let (start, end) = self.pending;
        if start != end {
            let run = &mut self.runs[self.last];
            let places = run.frames[usize::from(run.len)..].iter_mut();
            places.zip(start..end).for_each(|(place, index)| *place = index);
            run.len += end - start;
            self.pending.0 = end;
        }
    }

    /// Drops frame `index`.
    #[inline]
    pub(crate) fn drop(&mut self, index: u8, reason: DropReason) {
        self.drops[self.dropped] = (index, reason);
        self.dropped += 1;
    }

    /// Moves frames for which `keep` returns false from the floods to the drops.
    pub(crate) fn drop_floods(&mut self, reason: DropReason, mut keep: impl FnMut(u8) -> bool) {
        let Plan { flood_groups, group_count, drops, dropped, .. } = self;
        for group in &mut flood_groups[..*group_count] {
            let mut kept = 0;
            for n in 0..group.count {
                let frame = group.frames[n];
                if keep(frame) {
                    group.frames[kept] = frame;
                    kept += 1;
                } else {
                    drops[*dropped] = (frame, reason);
                    *dropped += 1;
                }
            }
            group.count = kept;
        }
        drops[..*dropped].sort_unstable_by_key(|(frame, _)| *frame);
    }

    /// Returns the dropped frames, in order, and the reasons.
    pub(crate) fn drops(&self) -> impl Iterator<Item = (u8, DropReason)> {
        self.drops[..self.dropped].iter().copied()
    }

    /// Returns the group for the ports of `key` in the segment of `scope`; a new group asks `find`
    /// for the ports.
    pub(crate) fn flood_group(
        &mut self,
        key: u64,
        scope: Scope,
        find: impl FnOnce(&mut Vec<PortId>),
    ) -> &mut FloodGroup {
        let is_same = |group: &FloodGroup| group.key == key && group.scope.segment == scope.segment;
        let known = self.flood_groups().iter().position(is_same);
        let at = known.unwrap_or_else(|| {
            if self.group_count == self.flood_groups.len() {
                self.flood_groups.push(FloodGroup::new(scope));
            }
            self.flood_groups[self.group_count].restart(key, scope, find);
            self.group_count += 1;
            self.group_count - 1
        });
        &mut self.flood_groups[at]
    }

    /// Returns the groups with ports that are not served yet, and the first port of each.
    pub(crate) fn unserved(&self) -> impl Iterator<Item = (&FloodGroup, PortId)> {
        self.flood_groups().iter().filter_map(|group| Some((group, group.next?)))
    }

    /// Returns the groups with frames.
    pub(crate) fn flood_groups_mut(&mut self) -> impl Iterator<Item = &mut FloodGroup> {
        self.flood_groups[..self.group_count].iter_mut().filter(|group| !group.frames().is_empty())
    }

    /// Returns the flooded frames, as bits of their indices.
    pub(crate) fn flooded_frames(&self) -> u64 {
        bits(self.flood_groups().iter().map(FloodGroup::frames))
    }

    /// Returns the number of copies that are not settled, to the ports that are served in this
    /// turn.
    pub(crate) fn flood_copies_left(&self) -> usize {
        self.flood_copies().saturating_sub(self.flooded)
    }

    fn flood_groups(&self) -> &[FloodGroup] {
        &self.flood_groups[..self.group_count]
    }

    /// True if the plan has groups, which may be empty.
    #[inline(always)]
    pub(crate) fn is_fanned(&self) -> bool {
        self.group_count > 0
    }

    /// Returns the number of copies that the classified frames ask for.
    #[inline(always)]
    pub(crate) fn copies(&self) -> usize {
        let runs: usize = self.runs[..self.count].iter().map(|run| usize::from(run.len)).sum();
        if self.is_fanned() { runs + self.flood_copies() } else { runs }
    }

    fn flood_copies(&self) -> usize {
        self.flood_groups().iter().map(|group| group.frames().len() * group.targets().len()).sum()
    }

    /// Returns the groups with frames, the buffer for the run of a port, and the number of settled
    /// copies.
    pub(crate) fn floods_left(
        &mut self,
    ) -> (impl Iterator<Item = &FloodGroup>, &mut Run, &mut usize) {
        let Plan { flood_groups, group_count, flood_run, flooded, .. } = self;
        (
            flood_groups[..*group_count].iter().filter(|group| !group.frames().is_empty()),
            flood_run,
            flooded,
        )
    }

    /// True if a frame of the burst has a destination.
    #[inline(always)]
    pub(crate) fn has_copies(&self) -> bool {
        self.count > 0 || self.is_fanned()
    }

    /// Returns the port and queue if all frames go to one queue; none with several queues or
    /// floods.
    #[inline(always)]
    pub(crate) fn only_receiver(&self) -> Option<(PortId, u8)> {
        match &self.runs[..self.count] {
            [run] if !self.is_fanned() => Some((run.port, run.queue)),
            _ => None,
        }
    }

    /// Returns the first index behind all frames that are flooded, or settled before the delivery.
    #[inline(always)]
    pub(crate) fn settled_end(&self) -> u8 {
        let mut dropped = self.drops[..self.dropped].last().map_or(0, |(last, _)| last + 1);
        if self.is_fanned() {
            dropped = dropped.max((u64::BITS - self.flooded_frames().leading_zeros()) as u8);
        }
        match &self.runs[..self.count] {
            [_] => dropped,
            runs => runs.iter().map(Run::settled_end).fold(dropped, u8::max),
        }
    }

    /// Returns the frames with copies that are not settled, as bits of their indices.
    pub(crate) fn unsettled(&self) -> u64 {
        let groups = self
            .flood_groups()
            .iter()
            .filter(|_| self.flood_copies_left() > 0)
            .map(FloodGroup::frames);
        bits(self.runs[..self.count].iter().map(Run::left).chain(groups))
    }

    /// Returns the frames that go to ports for which `is_one` returns true, as bits of their
    /// indices.
    pub(crate) fn frames_to(&self, is_one: impl Fn(PortId) -> bool) -> u64 {
        let runs = self.runs[..self.count].iter().filter(|run| is_one(run.port)).map(Run::left);
        let groups = self
            .flood_groups()
            .iter()
            .filter(|group| group.targets().iter().any(|port| is_one(*port)));
        bits(runs.chain(groups.map(FloodGroup::frames)))
    }

    /// Returns a buffer for a run outside the plan, which is free when the floods are settled.
    pub(crate) fn spare_run(&mut self) -> &mut Run {
        &mut self.flood_run
    }

    /// Returns the number of frames with nothing left to count, and the number of copies that ports
    /// have counted. Used when a panic ends the burst.
    pub(crate) fn settled(&self) -> (usize, usize) {
        let runs = &self.runs[..self.count];
        let groups = self.flood_groups().iter().map(FloodGroup::frames);
        let planned =
            bits(runs.iter().map(|run| &run.frames[..usize::from(run.len)]).chain(groups));
        let settled = (planned & !self.unsettled()).count_ones() as usize;
        let done: usize = runs.iter().map(|run| usize::from(run.done)).sum();
        (self.dropped + settled, done + self.flooded)
    }

    /// Returns the runs, in order of their first frames.
    #[inline(always)]
    pub(crate) fn runs(&mut self) -> &mut [Run] {
        debug_assert_eq!(self.pending.0, self.pending.1, "the plan is not closed");
        &mut self.runs[..self.count]
    }

    /// Removes the frames from index `end` on, none of which may be among the drops.
    pub(crate) fn truncate(&mut self, end: u8) {
        self.runs().iter_mut().for_each(|run| run.truncate(end));
        self.flood_groups[..self.group_count].iter_mut().for_each(|group| group.truncate(end));
    }
}

/// Returns the bits of all indices in `lists`.
fn bits<'f>(lists: impl Iterator<Item = &'f [u8]>) -> u64 {
    lists.flatten().fold(0, |bits, &at| bits | 1 << at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_sorted_by_destination_and_keep_their_order() {
        let mut plan = Plan::default();
        for round in 0..2 {
            plan.clear();
            for i in 0..BURST_FRAMES as u8 {
                if i % 5 == 4 {
                    plan.flood_group(0, Scope::FOR_TESTS, |targets| targets.push(7)).push(i)
                } else {
                    plan.unicast(i, u16::from(i % 3), i % 2)
                }
            }
            plan.close();
            assert_eq!(plan.runs().len(), 6, "round {round}");
            let runs = plan.runs().to_vec();
            let total: usize = runs.iter().map(|r| r.left().len()).sum();
            assert_eq!((total + BURST_FRAMES / 5, plan.copies()), (BURST_FRAMES, BURST_FRAMES));
            for run in runs {
                assert!(run.left().is_sorted());
                let here = |&i: &u8| u16::from(i % 3) == run.port && i % 2 == run.queue;
                assert!(run.left().iter().all(here));
            }
        }
    }

    #[test]
    fn frames_taken_out_of_floods_are_drops_in_their_order() {
        let mut plan = Plan::default();
        for key in [0, 1] {
            (0..8).filter(|i| i % 2 == key).for_each(|i| {
                plan.flood_group(key.into(), Scope::FOR_TESTS, |targets| targets.extend([3, 4]))
                    .push(i);
            });
        }
        plan.drop(8, DropReason::NoReceiver);
        plan.drop_floods(DropReason::Storm, |i| i % 3 != 0);
        let dropped: Vec<u8> = plan.drops().map(|(i, _)| i).collect();
        assert_eq!((dropped, plan.copies()), (vec![0, 3, 6, 8], 10));
        let left: Vec<Vec<u8>> =
            plan.flood_groups().iter().map(|group| group.frames().to_vec()).collect();
        assert_eq!(left, [vec![2, 4], vec![1, 5, 7]]);
    }

    #[test]
    fn settled_frames_are_not_offered_again() {
        let mut plan = Plan::default();
        (0..4).for_each(|i| plan.unicast(i, 0, 0));
        plan.close();
        plan.runs()[0].advance(3);
        assert_eq!(plan.runs()[0].left(), [3]);
        plan.runs()[0].advance(9);
        assert!(plan.runs()[0].left().is_empty());
    }

    #[test]
    fn a_frame_may_be_in_several_lists() {
        let mut plan = Plan::default();
        (0..4).for_each(|i| plan.unicast(i, 0, 0));
        plan.close();
        for key in [1, 2] {
            plan.flood_group(key, Scope::FOR_TESTS, |targets| targets.extend([1, 2])).push(3);
        }
        plan.flood_group(1, Scope::FOR_TESTS, |_| unreachable!("the ports are known")).push(2);
        assert_eq!((plan.copies(), plan.unsettled(), plan.settled()), (10, 0b1111, (0, 0)));
        plan.runs()[0].settle_all_but(&[1, 2, 3]);
        assert_eq!((plan.unsettled(), plan.settled()), (0b1110, (1, 1)));
        plan.runs()[0].advance(3);
        assert_eq!((plan.unsettled(), plan.settled()), (0b1100, (2, 4)));
        *plan.floods_left().2 += 6;
        assert_eq!((plan.unsettled(), plan.settled()), (0, (4, 10)));
    }
}
