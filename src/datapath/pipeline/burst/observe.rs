//! Copies of a burst's frames for observers: clients with captures, and the ports of mirrors.
//!
//! Frames are copied when the burst is delivered and not yet given back to its source. At that time
//! the received frames and the outcome of each copy are known. Frames that wait in the source's
//! ring are not part of the burst.
//!
//! Nothing waits for a copy: a client's copy is lost if the client's batch is full, or if captures
//! have used up their time; a mirrored copy is delivered in one attempt, to a ring that is free at
//! once or after a short spin.
//!
//! For a burst that no mirror wants, a mirror costs one check of the destinations.

use super::{BurstContext, Pipeline};
use crate::capture::observer::Observer;
use crate::capture::outcomes::{Outcomes, Sighting};
use crate::capture::{Capture, Packet};
use crate::pipeline::screen::{VlanTransit, admit};
use crate::port::{Port, PortTable};
use base::limits::{BURST_FRAMES, SNAPSHOT_LEN};
use base::stats::{Direction, DropReason, WorkerStats};
use switch::PortId;
use switch::mirror::Watch;
use sys::clock;

impl Pipeline {
    /// Returns the frames of a planned burst from port `from` of which observers read more than the
    /// snapshot, as bits of their indices. These frames become private, so that observers and
    /// receivers get equal bytes. Ends the recording of outcomes if no observer wants a frame.
    #[cold]
    pub(super) fn frames_for_observers(
        &self,
        ports: &PortTable,
        from: PortId,
        context: &mut BurstContext,
    ) -> u64 {
        let BurstContext { plan, outcomes, .. } = context;
        let (mut are_wanted, mut read, mut now) = (false, 0, None);
        for observer in ports.observers() {
            match observer {
                Observer::Client(capture) => {
                    are_wanted = true;
                    let captures = ports.captures().count();
                    let now = *now.get_or_insert_with(clock::monotonic_nanos);
                    if capture.may_look(self.worker, now, captures) {
                        (outcomes.may_look, read) = (true, u64::MAX);
                    }
                }
                Observer::Port(watch) => {
                    let came = if watch.takes_in(from) { u64::MAX } else { 0 };
                    let went = plan.frames_to(|port| watch.takes_out(port));
                    are_wanted |= came | went != 0;
                    let reads_all =
                        watch.frames.snaplen.is_none_or(|most| most as usize > SNAPSHOT_LEN);
                    // Removing a tag moves bytes from behind the snapshot into the frame's head.
                    let is_transparent =
                        || VlanTransit::new(ports, from, watch.from).is_transparent();
                    read |= if reads_all { came } else { 0 };
                    read |= if reads_all || !is_transparent() { went } else { 0 };
                }
            }
        }
        if !are_wanted {
            outcomes.give_up();
        }
        read
    }

    /// Gives copies of a burst that `port` sent to the observers that want copies. Copies for
    /// mirror ports count as copies of the sender.
    #[cold]
    pub(super) fn observe(
        &mut self,
        ports: &PortTable,
        port: &Port,
        context: &mut BurstContext,
        stats: &WorkerStats,
    ) {
        let mut outcomes = std::mem::take(&mut context.outcomes);
        let may_look = outcomes.may_look;
        // Captures without time count the frames that they lose, in any order.
        let sort = may_look || ports.observers().iter().any(|one| matches!(one, Observer::Port(_)));
        let frames = context.burst.frames().len();
        let (seen, lost) = outcomes.end(frames, received(context, port.id), sort);
        let (now, captures) = (clock::monotonic_nanos(), ports.captures().count());
        for observer in ports.observers() {
            match observer {
                Observer::Client(capture) => {
                    self.capture((capture, captures, now), (seen, lost, may_look), context);
                }
                Observer::Port(watch) => {
                    let wanted = seen.iter().filter(|one| observer.wants(one));
                    self.mirror(ports, port, (watch, wanted), context, stats);
                }
            }
        }
        context.burst.keep_tags();
        context.outcomes = outcomes;
    }

    /// Leaves copies of the frames that one of so many captures wants, of those `seen`, which are
    /// sorted if `may_look`. `now` is in nanoseconds.
    fn capture(
        &self,
        (capture, captures, now): (&Capture, usize, u64),
        (seen, lost, may_look): (&[Sighting], u64, bool),
        context: &mut BurstContext,
    ) {
        let mut leaving = capture.open(self.worker, now, captures);
        leaving.lose(lost);
        if !(may_look && leaving.may_look()) {
            return leaving.lose(capture.count_wanted(seen) as u64);
        }
        let wanted = seen.iter().filter(|one| capture.wants(one.port, one.dropped));
        let BurstContext { burst, room, .. } = context;
        room.beginning.resize(room.beginning.len().max(capture.reads()), 0);
        let bytes = &mut room.beginning[..capture.reads()];
        let time = clock::wall_nanos();
        // The last frame that was read, its length, the bytes read, and the filter's answer.
        let (mut frame, mut len, mut read, mut accepted) = (None, 0, 0, false);
        for &Sighting { frame: at, port, direction, dropped } in wanted {
            if frame != Some(at) {
                if !leaving.may_look() {
                    leaving.lose(1);
                    continue;
                }
                frame = Some(at);
                (len, read) = match burst.frames().get(usize::from(at)) {
                    Some(frame) => (frame.len, burst.egress(at).copy_beginning(bytes)),
                    None => (0, 0),
                };
                accepted = leaving.accepts(&bytes[..read], len);
            }
            if accepted {
                leaving.leave(Packet { time, port, direction, dropped, len }, &bytes[..read]);
            }
        }
    }

    /// Delivers copies of the `wanted` frames to the port of a mirror: received frames with the
    /// tags with which the frames came in, then sent frames with the tags with which they left.
    fn mirror<'s>(
        &mut self,
        ports: &PortTable,
        from: &Port,
        (watch, wanted): (&Watch, impl Iterator<Item = &'s Sighting> + Clone),
        context: &mut BurstContext,
        stats: &WorkerStats,
    ) {
        for direction in [Direction::In, Direction::Out] {
            let (burst, vlan, policy) =
                (&mut context.burst, watch.frames.vlan, ports.policy(from.id));
            let vlan_of = |at: u8| admit(policy, &burst.frames()[usize::from(at)]).ok();
            let is_in_vlan = |at: &u8| vlan.is_none() || vlan_of(*at) == vlan;
            let here = wanted.clone().filter(|one| one.direction == direction);
            let here = here.map(|one| one.frame).filter(is_in_vlan);
            let mut places = [0; BURST_FRAMES];
            let count = places.iter_mut().zip(here).map(|(place, at)| *place = at).count();
            let places = &places[..count];
            match direction {
                _ if places.is_empty() => continue,
                Direction::In => burst.keep_tags(),
                Direction::Out => VlanTransit::new(ports, from.id, watch.from).tag(burst, places),
            }
            self.deliver_mirrored(ports, from, (watch, places), context, stats);
        }
    }

    /// Delivers the listed frames to the port of a mirror.
    fn deliver_mirrored(
        &mut self,
        ports: &PortTable,
        from: &Port,
        (watch, mut places): (&Watch, &[u8]),
        context: &mut BurstContext,
        stats: &WorkerStats,
    ) {
        let BurstContext { burst, plan, room, wait_until, .. } = context;
        let (mut excerpts, mut burst) = (room.excerpts.take(), &*burst);
        let all: [u8; BURST_FRAMES] = std::array::from_fn(|at| at as u8);
        if let Some(most) = watch.frames.snaplen {
            let excerpt = excerpts.get_or_insert_default();
            excerpt.excerpt(burst, places, most as usize);
            (places, burst) = (&all[..excerpt.frames().len()], excerpt);
        }
        // Outcomes of mirrored copies are counted here, and hidden from other observers.
        let mut outcomes = Outcomes::default();
        let mut delivery =
            self.delivery((ports, from.id), (room, wait_until), &mut outcomes, stats);
        let copies = {
            let to = (&ports[watch.to], Some(DropReason::Mirror));
            delivery.copy_as_is(burst, places, to, plan.spare_run())
        };
        if let Some(excerpt) = &mut excerpts {
            excerpt.clear();
        }
        context.room.excerpts = excerpts;
        from.stats.copies.add_shared(copies as u64);
        let counted = &ports.mirror_stats()[watch.place];
        counted.copies.add_shared((copies as u64).saturating_sub(outcomes.drops()));
        counted.lost.add_shared(outcomes.drops());
    }
}

/// Returns the received frames and the rejected chains of a burst from port `from`. A burst that
/// continues a flood has none: its frames were seen when they came in.
fn received(context: &BurstContext, from: PortId) -> impl Iterator<Item = Sighting> {
    let BurstContext { burst, plan, flood, .. } = context;
    let mut drops = plan.drops().peekable();
    let frames = (0..burst.frames().len() as u8).map(move |at| {
        let dropped = drops.next_if(|&(place, _)| place == at);
        (at, dropped.map(|(_, reason)| reason))
    });
    let chains = burst.rejected().map(|reason| (Sighting::NO_FRAME, Some(reason)));
    let all = frames.chain(chains).filter(|_| !flood.is_continued);
    let direction = Direction::In;
    all.map(move |(frame, dropped)| Sighting { frame, port: from, direction, dropped })
}
