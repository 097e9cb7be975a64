//! Classification of the frames of one burst: admission, learning, destination. Nothing in this
//! module waits or makes a system call.
//!
//! The classifier asks the switch and reuses each answer while the answer holds. Most bursts are
//! one stream, so most frames cost two comparisons.
//!
//! The limits of egress ports ([`super::egress`]) are checked once for all frames of a burst, if a
//! frame goes to a port with a limit. A check beside each decision cost every frame 5 of 290
//! instructions.

use super::arrival::{Arrival, Barred};
use super::burst::BurstContext;
use super::egress;
use super::flood::{Added, Floods};
use super::multicast::Snooped;
use super::plan::{Plan, Scope};
use super::screen::{VlanTransit, admit};
use crate::port::guest::Receivers;
use crate::port::mtu::NO_LIMIT;
use crate::port::{Endpoint, Observed, Port, PortTable};
use crate::ring::Frame;
use base::frame::ethernet::{self, Addresses, TagBytes};
use base::frame::{MacAddr, flow_hash};
use base::limits::BURST_FRAMES;
use base::stats::DropReason;
use switch::{
    BurstMemo, Decision, Fdb, Flood, Ingress, Learn, PortId, PortPolicy, Reach, ReservedSet,
    Segment, Station, Tick,
};
use sys::prefetch;

/// Decides about the frames of one burst. Most bursts are one stream, so each frame is first
/// compared with the addresses of the frame before: two comparisons a frame.
struct Classifier<'a> {
    arrival: Arrival<'a>,
    ingress: Ingress,
    /// Policy of the port that sent the burst.
    rules: &'a PortPolicy,
    memo: &'a mut BurstMemo,
    /// The forwarding table's generation before the first learning, as [`BurstMemo`] demands.
    generation: u64,
    entry: Entry,
    /// Addresses of the last admitted frame; `decision` belongs to these addresses.
    last: Addresses,
    decision: Decision,
    receiver: Receiver<'a>,
    exits: Exits,
}

/// Segment and tag of the frame before.
struct Entry {
    segment: Segment,
    tag: TagBytes,
    /// Number of frames whose tag differs from the tag of the frame before.
    tag_changes: u32,
}

/// The receive queues of the port that the last decision names.
struct Receiver<'a> {
    queues: Receivers<'a>,
    /// Most frames need only `are_many` and, if false, the only queue.
    are_many: bool,
    only: u8,
    /// Flow hashes of the burst, if the hashes are known.
    hashes: Option<&'a [u32; BURST_FRAMES]>,
}

/// Common limits of all ports to which the burst's unicast frames go.
struct Exits {
    /// The smallest frame length limit of the ports.
    max_len: u32,
    /// All ports send frames with the tags with which the frames came in.
    keep_tags: bool,
    /// A port has a filter.
    are_filtered: bool,
}

impl<'a> Classifier<'a> {
    fn new(
        arrival: Arrival<'a>,
        memo: &'a mut BurstMemo,
        hashes: Option<&'a [u32; BURST_FRAMES]>,
    ) -> Classifier<'a> {
        let Arrival { policy, port, .. } = &arrival;
        let ingress = Ingress { port: port.id, kind: port.kind() };
        let (generation, rules) = (policy.fdb.generation(), policy.ports.policy(port.id));
        Classifier {
            arrival,
            ingress,
            rules,
            memo,
            generation,
            entry: Entry { segment: rules.segment(0), tag: TagBytes::UNKNOWN, tag_changes: 0 },
            last: Addresses::NONE,
            decision: Decision::Flood(Flood::Group),
            receiver: Receiver { queues: Receivers::NONE, are_many: false, only: 0, hashes },
            exits: Exits { max_len: NO_LIMIT, keep_tags: true, are_filtered: false },
        }
    }

    /// Decides about a frame. An error says why the frame may not come in.
    #[inline(always)]
    fn decide<const SCREENED: bool>(&mut self, frame: &Frame) -> Result<Decision, DropReason> {
        if SCREENED {
            let tag = frame.tag();
            if tag != self.entry.tag {
                self.enter(frame)?;
                (self.entry.tag, self.entry.tag_changes) = (tag, self.entry.tag_changes + 1);
            }
        }
        let addresses = ethernet::addresses(&frame.snapshot);
        if addresses != self.last {
            self.turn_to(addresses, frame)?;
        }
        Ok(self.decision)
    }

    /// Admits a frame whose tag differs from the tag of the frame before.
    #[inline(never)]
    fn enter(&mut self, frame: &Frame) -> Result<(), DropReason> {
        if !self.rules.forwards {
            return Err(DropReason::AdminDown);
        }
        let segment = self.rules.segment(admit(self.rules, frame)?);
        if segment != self.entry.segment {
            // Equal addresses in another segment are other stations.
            (self.entry.segment, self.last) = (segment, Addresses::NONE);
        }
        Ok(())
    }

    /// True if a frame has the addresses and the tag of the last admitted frame.
    #[inline(always)]
    fn goes_on<const SCREENED: bool>(&self, frame: &Frame) -> bool {
        ethernet::addresses(&frame.snapshot) == self.last
            && (!SCREENED || frame.tag() == self.entry.tag)
    }

    /// Decides about a frame whose addresses differ from those of the last admitted frame.
    #[inline(never)]
    fn turn_to(&mut self, addresses: Addresses, frame: &Frame) -> Result<(), DropReason> {
        if !self.rules.forwards {
            return Err(DropReason::AdminDown);
        }
        if !addresses.same_source(self.last) {
            self.admit(ethernet::source(&frame.snapshot))?;
        }
        if !addresses.same_destination(self.last) {
            self.resolve(ethernet::destination(&frame.snapshot));
        }
        self.last = addresses;
        if self.decision == Decision::Drop(DropReason::Reserved)
            && self.rules.passes != ReservedSet::NONE
        {
            // The next frame for this reserved address may be of another protocol.
            self.last = Addresses::NONE;
            self.decision = self.arrival.policy.decide_reserved(self.ingress, frame.head());
        }
        Ok(())
    }

    /// Admits and learns a source address that differs from the last source address.
    fn admit(&mut self, from: MacAddr) -> Result<(), DropReason> {
        let (id, generation) = (self.ingress.port, self.generation);
        let station = Station { segment: self.entry.segment, mac: from };
        let Arrival { policy, source, now, .. } = &mut self.arrival;
        if !source.covers(station, id, generation, *now) {
            let learn = policy.admit_source(self.ingress, station, *now)?;
            source.note(station, id, generation, *now, learn);
            self.count(from, learn);
        }
        Ok(())
    }

    /// Counts a source address that was not learned, or that moved from another port.
    fn count(&self, from: MacAddr, learn: Learn) {
        let Port { stats, observed: Observed { last_seen, .. }, .. } = self.arrival.port;
        match learn {
            Learn::Static => {
                stats.learn_static.add_shared(1);
                last_seen.note_foreign(from);
            }
            Learn::TableFull | Learn::SegmentFull | Learn::PortFull | Learn::BucketFull => {
                stats.learn_refused.add_shared(1);
            }
            Learn::Held { at } => {
                stats.learn_held.add_shared(1);
                last_seen.note_held(from, at);
            }
            Learn::Busy => stats.learn_busy.add_shared(1),
            Learn::Moved { from: before } => {
                stats.mac_moves.add_shared(1);
                last_seen.note_moved(from, before);
            }
            _ => {}
        }
    }

    /// Looks up a destination address that differs from the last destination address.
    fn resolve(&mut self, to: MacAddr) {
        let ports = self.arrival.policy.ports;
        let station = Station { segment: self.entry.segment, mac: to };
        let decide = || self.arrival.policy.decide(self.ingress, station);
        self.decision = self.memo.decide(station, decide);
        let mut queues = Receivers::NONE;
        if let Decision::Unicast(egress) = self.decision {
            if !ports.policy(egress).forwards {
                self.decision = Decision::Drop(DropReason::AdminDown);
            } else {
                if let Endpoint::Guest(guest) = &ports[egress].endpoint {
                    queues = guest.receivers();
                }
                self.exits.add(ports, self.ingress.port, egress);
            }
        }
        self.receiver.are_many = queues.are_many();
        self.receiver.only = queues.any().unwrap_or(0) as u8;
        self.receiver.queues = queues;
    }

    /// Adds a flooded frame to the plan.
    fn flood<const SNOOPED: bool>(
        &self,
        (i, frame): (usize, &Frame),
        flood: Flood,
        snooped: &mut Snooped,
        (floods, plan): (&mut Floods<'_>, &mut Plan),
    ) -> Added {
        let (Arrival { policy, now, .. }, segment) = (&self.arrival, self.entry.segment);
        let reach = match flood {
            Flood::Group if SNOOPED => {
                snooped.reach(policy.ports.snooping(), frame, i, segment, now.second())
            }
            _ => Reach::All,
        };
        let scope = Scope { from: self.ingress, segment, flood, reach };
        floods.add(policy, scope, (i as u8, frame.len as usize), plan)
    }
}

impl Receiver<'_> {
    /// Returns the receive queue for unicast frame `index` of the burst. Returns 0 for a device,
    /// and for a guest without running queues: the delivery counts the drop.
    #[inline(always)]
    fn queue(&mut self, index: usize, frame: &Frame) -> u8 {
        if self.are_many { self.choose(index, frame) } else { self.only }
    }

    #[inline(never)]
    fn choose(&mut self, index: usize, frame: &Frame) -> u8 {
        let known = self.hashes.map(|hashes| hashes[index]);
        let hash = || known.unwrap_or_else(|| flow_hash(&frame.snapshot));
        self.queues.choose(hash).unwrap_or(0) as u8
    }
}

impl Exits {
    /// Adds the limits of port `to`, to which frames of port `from` go.
    #[inline(always)]
    fn add(&mut self, ports: &PortTable, from: PortId, to: PortId) {
        self.max_len = self.max_len.min(ports[to].mtu.max_len());
        if !ports.is_plain() {
            self.keep_tags &= VlanTransit::new(ports, from, to).is_transparent();
            self.are_filtered |= ports.policy(to).filter.is_some();
        }
    }
}

impl BurstContext {
    /// Admits, learns and decides every frame of the burst, and fills the plan. The burst may
    /// become shorter. `SCREENED`: tags decide about frames, or frames are refused. `SNOOPED`:
    /// groups may be limited. Each variant compiles without the checks that it does not need. Not
    /// inlined, since the loop needs all registers: inlining cost 2 % more instructions a frame.
    #[inline(never)]
    pub(crate) fn classify<const SCREENED: bool, const SNOOPED: bool>(
        &mut self,
        arrival: Arrival<'_>,
        mut floods: Floods<'_>,
        refused: Barred,
    ) {
        let BurstContext { burst, plan, memo, flows, snooped, .. } = self;
        memo.start_burst();
        let Arrival { policy, port, now, .. } = arrival;
        let Barred { by_guard, by_filter } = refused;
        let by_snooping = if SNOOPED { snooped.find(burst, policy.ports, port) } else { 0 };
        let barred = by_guard | by_filter | by_snooping;
        let mut classifier = Classifier::new(arrival, memo, flows.take());
        if policy.fdb.is_large() && !SCREENED {
            fetch_entries(policy.fdb, burst.frames(), classifier.entry.segment);
        }
        let mut waits_from = None;
        // Following frames with the addresses of the frame before extend the last run.
        let mut stretch = false;
        for (i, frame) in burst.frames().iter().enumerate() {
            let is_barred = (SCREENED || SNOOPED) && barred >> i & 1 != 0;
            if stretch {
                if classifier.goes_on::<SCREENED>(frame) && !is_barred {
                    continue;
                }
                plan.extend_last_to(i as u8);
                stretch = false;
            }
            if is_barred {
                plan.drop(i as u8, snooped.refused(i, by_guard, by_filter));
                continue;
            }
            match classifier.decide::<SCREENED>(frame) {
                Ok(Decision::Unicast(egress)) => {
                    plan.unicast(i as u8, egress, classifier.receiver.queue(i, frame));
                    stretch = !classifier.receiver.are_many;
                }
                Ok(Decision::Flood(flood)) => {
                    let lists = (&mut floods, &mut *plan);
                    let added = classifier.flood::<SNOOPED>((i, frame), flood, snooped, lists);
                    if added == Added::Waits {
                        waits_from = Some(i);
                        break;
                    }
                }
                Ok(Decision::Drop(reason)) | Err(reason) => plan.drop(i as u8, reason),
            }
        }
        if stretch {
            plan.extend_last_to(burst.frames().len() as u8);
        }
        let Classifier { exits, entry, .. } = classifier;
        burst.are_alike = SCREENED && entry.tag_changes < 2;
        self.flood.permit = floods.permit;
        self.end_classification(policy.ports, (port.id, now), &exits, waits_from);
    }

    /// Ends the classification of a burst from port `from`; frames from `waits_from` on wait.
    #[inline(always)]
    fn end_classification(
        &mut self,
        ports: &PortTable,
        (from, now): (PortId, Tick),
        exits: &Exits,
        waits_from: Option<usize>,
    ) {
        let BurstContext { burst, plan, filters, outcomes, .. } = self;
        plan.close();
        if exits.max_len < NO_LIMIT || !exits.keep_tags {
            let max_len = if exits.keep_tags { exits.max_len } else { 0 };
            egress::limit_runs(burst, plan, (from, ports), max_len, outcomes);
        }
        if exits.are_filtered {
            filters.limit_runs(burst, plan, (from, ports), now, outcomes);
        }
        if let Some(at) = waits_from {
            self.flood.waits = at == 0;
            self.burst.give_back_from(at);
        }
        self.bytes = self.burst.bytes();
    }
}

/// Prefetches the entries of a large forwarding table that a burst needs, once for each run of
/// frames with equal addresses.
fn fetch_entries(fdb: &Fdb, burst: &[Frame], segment: Segment) {
    let mut last = Addresses::NONE;
    for frame in burst {
        let addresses = ethernet::addresses(&frame.snapshot);
        if addresses != last {
            last = addresses;
            let source = Station::new(segment, ethernet::source(&frame.snapshot));
            let destination = Station::new(segment, ethernet::destination(&frame.snapshot));
            fdb.prefetch(source, destination, prefetch::read);
        }
    }
}
