//! What becomes of the frames of one burst: admitted or not, learned, and where to. Nothing here
//! waits, or makes a system call.
//!
//! Asks the switch and remembers its answers as long as they hold. Bursts are mostly one stream, so
//! most frames cost two comparisons.
//!
//! Whether frames may leave by the ports that they go to ([`super::egress`]) is asked once for all
//! frames of a burst, if any goes to a port with a limit. A comparison beside each decision cost
//! every frame 5 of 290 instructions.

use super::burst::{BurstContext, bytes_of};
use super::egress;
use super::flood::{Added, Floods};
use super::plan::Scope;
use super::screen::{Passage, admit};
use crate::port::guest::Receivers;
use crate::port::mtu::NO_LIMIT;
use crate::port::{Endpoint, Port, PortTable};
use crate::ring::Frame;
use base::frame::ethernet::{self, Addresses, TagBytes};
use base::frame::{MacAddr, flow_hash};
use base::limits::BURST_FRAMES;
use base::stats::DropReason;
use switch::{
    BurstMemo, Decision, DropCause, Fdb, Flood, Ingress, Learn, Policy, PortPolicy, Reach,
    ReservedSet, Segment, SourceMemo, Station, Tick,
};
use sys::prefetch;

/// Decides about the frames of one burst. Bursts are mostly one stream, so what the frame before
/// came to is tried first: two comparisons of addresses a frame.
struct Classifier<'a> {
    policy: &'a Policy<'a, PortTable>,
    port: &'a Port,
    ingress: Ingress,
    source: &'a mut SourceMemo,
    memo: &'a mut BurstMemo,
    now: Tick,
    /// What is asked of the port, and where the frame before came in.
    asked: &'a PortPolicy,
    segment: Segment,
    /// The tag of the last frame that came in there, and how many came in with another one than
    /// the frame before.
    tag: TagBytes,
    turns: u32,
    /// Read before the first learning, as the memo's rule demands.
    generation: u64,
    /// Addresses of the last frame that was admitted, and what was decided about it.
    last: Addresses,
    decision: Decision,
    /// Receive queues that the decision's port can take frames on.
    receivers: Receivers<'a>,
    /// Whether there are several, and the only one if not: all that most frames ask.
    choice: bool,
    only: u8,
    /// Flow hashes of the burst, if they are known.
    hashes: Option<&'a [u32; BURST_FRAMES]>,
    /// The shortest of the longest frames that the ports decided on take.
    least: u32,
    /// All of these send frames on with the tags with which they came.
    keeps_tags: bool,
}

impl<'a> Classifier<'a> {
    /// For a burst from `port`; `now` is the present tick.
    fn new(
        policy: &'a Policy<'a, PortTable>,
        port: &'a Port,
        ingress: Ingress,
        source: &'a mut SourceMemo,
        memo: &'a mut BurstMemo,
        now: Tick,
    ) -> Classifier<'a> {
        let generation = policy.fdb.generation();
        let asked = policy.ports.policy(ingress.port);
        Classifier {
            policy,
            port,
            ingress,
            source,
            memo,
            now,
            asked,
            segment: asked.segment(0),
            tag: TagBytes::UNKNOWN,
            turns: 0,
            generation,
            last: Addresses::NONE,
            decision: Decision::Flood(Flood::Group),
            receivers: Receivers::NONE,
            choice: false,
            only: 0,
            hashes: None,
            least: NO_LIMIT,
            keeps_tags: true,
        }
    }

    /// Where a frame goes; an error if it may not come in.
    #[inline(always)]
    fn decide<const SCREENED: bool>(&mut self, frame: &Frame) -> Result<Decision, DropReason> {
        if SCREENED {
            let tag = frame.tag();
            if tag != self.tag {
                self.enter(frame)?;
                (self.tag, self.turns) = (tag, self.turns + 1);
            }
        }
        let addresses = ethernet::addresses(&frame.snapshot);
        if addresses != self.last {
            self.turn_to(addresses, frame)?;
        }
        Ok(self.decision)
    }

    /// A frame with another tag than the one before, in a VLAN of its own.
    #[inline(never)]
    fn enter(&mut self, frame: &Frame) -> Result<(), DropReason> {
        if !self.asked.forwards {
            return Err(DropReason::AdminDown);
        }
        let segment = self.asked.segment(admit(self.asked, frame)?);
        if segment != self.segment {
            // The same addresses are others there.
            (self.segment, self.last) = (segment, Addresses::NONE);
        }
        Ok(())
    }

    /// True if a frame is of the same stream as the one before, which was admitted.
    #[inline(always)]
    fn goes_on<const SCREENED: bool>(&self, frame: &Frame) -> bool {
        ethernet::addresses(&frame.snapshot) == self.last && (!SCREENED || frame.tag() == self.tag)
    }

    /// A frame of another stream than the one before.
    #[inline(never)]
    fn turn_to(&mut self, addresses: Addresses, frame: &Frame) -> Result<(), DropReason> {
        if !self.asked.forwards {
            return Err(DropReason::AdminDown);
        }
        if !addresses.same_source(self.last) {
            self.admit(ethernet::source(&frame.snapshot))?;
        }
        if !addresses.same_destination(self.last) {
            self.resolve(ethernet::destination(&frame.snapshot));
        }
        self.last = addresses;
        if self.decision == Decision::Drop(DropCause::ReservedAddress)
            && self.asked.passes != ReservedSet::NONE
        {
            // The next frame for this address may be of another protocol.
            self.last = Addresses::NONE;
            self.decision = self.policy.decide_reserved(self.ingress, frame.head());
        }
        Ok(())
    }

    /// Admits and learns a source that is not that of the frame before.
    fn admit(&mut self, from: MacAddr) -> Result<(), DropReason> {
        let (id, generation) = (self.ingress.port, self.generation);
        let station = Station::new(self.segment, from);
        if !self.source.covers(station, id, generation, self.now) {
            let learn =
                self.policy.admit_source(self.ingress, station, self.now).map_err(reason)?;
            self.source.note(station, id, generation, self.now, learn);
            self.count(from, learn);
        }
        Ok(())
    }

    /// Counts a source that was not learned, or that came from another port.
    fn count(&self, from: MacAddr, learn: Learn) {
        let Port { stats, last_seen, .. } = self.port;
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

    /// Looks up a destination that is not that of the frame before.
    fn resolve(&mut self, to: MacAddr) {
        let Classifier { policy, ingress, .. } = self;
        let station = Station::new(self.segment, to);
        self.decision = self.memo.decide(station, || policy.decide(*ingress, station));
        if let Decision::Unicast(egress) = self.decision
            && !policy.ports.policy(egress).forwards
        {
            self.decision = Decision::Drop(DropCause::AdminDown);
        }
        self.receivers = match self.decision {
            Decision::Unicast(egress) => match &self.policy.ports[egress].endpoint {
                Endpoint::Guest(guest) => guest.receivers(),
                Endpoint::Device(_) => Receivers::NONE,
            },
            _ => Receivers::NONE,
        };
        if let Decision::Unicast(egress) = self.decision {
            let ports = self.policy.ports;
            self.least = self.least.min(ports[egress].mtu.max_len());
            let passage = || Passage::new(ports, self.ingress.port, egress);
            self.keeps_tags &= ports.is_plain() || passage().is_open();
        }
        self.choice = self.receivers.are_many();
        self.only = self.receivers.any().unwrap_or(0) as u8;
    }

    /// The receive queue for unicast frame `index` of the burst; 0 for a TAP, and where nothing can
    /// take it, which the delivery then finds and counts.
    #[inline(always)]
    fn queue(&mut self, index: usize, frame: &Frame) -> u8 {
        if self.choice { self.choose(index, frame) } else { self.only }
    }

    #[inline(never)]
    fn choose(&mut self, index: usize, frame: &Frame) -> u8 {
        let known = self.hashes.map(|hashes| hashes[index]);
        let hash = || known.unwrap_or_else(|| flow_hash(&frame.snapshot));
        self.receivers.choose(hash).unwrap_or(0) as u8
    }
}

impl BurstContext {
    /// Admits, learns and decides every frame of the burst; fills the plan. May cut the burst. Its
    /// loop has all registers to itself: inlined it took 2 % more instructions a frame. `SCREENED`
    /// for a port whose frames are looked at one by one, `SNOOPED` where groups may be limited:
    /// what is not needed costs nothing.
    #[inline(never)]
    pub fn classify<const SCREENED: bool, const SNOOPED: bool>(
        &mut self,
        policy: &Policy<'_, PortTable>,
        port: &Port,
        ingress: Ingress,
        source: &mut SourceMemo,
        mut floods: Floods<'_>,
        now: Tick,
    ) {
        let BurstContext { burst, plan, memo, flows, outcomes, violations, snooped, .. } = self;
        memo.start_burst();
        let asked = policy.ports.policy(ingress.port);
        // Before anything is learned from them.
        let refused = match &asked.security {
            Some(rules) if SCREENED && asked.forwards => violations.find(burst, rules, port, now),
            _ => 0,
        };
        let barred = refused | if SNOOPED { snooped.find(burst, policy.ports, port) } else { 0 };
        let mut classifier = Classifier::new(policy, port, ingress, source, memo, now);
        if policy.fdb.is_large() && !SCREENED {
            fetch_entries(policy.fdb, burst.frames(), classifier.segment);
        }
        classifier.hashes = flows.take();
        let mut cut = None;
        // The frame before may go on as a stretch: frames with its addresses go where it does.
        let mut stretch = false;
        for (i, frame) in burst.frames().iter().enumerate() {
            if stretch {
                let is_barred = (SCREENED || SNOOPED) && barred >> i & 1 != 0;
                if classifier.goes_on::<SCREENED>(frame) && !is_barred {
                    continue;
                }
                plan.stretch(i as u8);
                stretch = false;
            }
            if (SCREENED || SNOOPED) && barred >> i & 1 != 0 {
                plan.drop(i as u8, snooped.refused(i, refused));
                continue;
            }
            match classifier.decide::<SCREENED>(frame) {
                Ok(Decision::Unicast(egress)) => {
                    plan.unicast(i as u8, egress, classifier.queue(i, frame));
                    stretch = !classifier.choice;
                }
                Ok(Decision::Flood(flood)) => {
                    let segment = classifier.segment;
                    let reach = match flood {
                        Flood::Group if SNOOPED => {
                            snooped.reach(policy.ports.snooping(), frame, i, segment, now.second())
                        }
                        _ => Reach::All,
                    };
                    let scope = Scope { from: ingress, segment, flood, reach };
                    let frame = (i as u8, frame.len as usize);
                    if floods.add(policy, scope, frame, plan) == Added::Waits {
                        cut = Some(i);
                        break;
                    }
                }
                Ok(Decision::Drop(cause)) => plan.drop(i as u8, reason(cause)),
                Err(reason) => plan.drop(i as u8, reason),
            }
        }
        if stretch {
            plan.stretch(burst.frames().len() as u8);
        }
        plan.close();
        let Classifier { least, keeps_tags, turns, .. } = classifier;
        burst.are_alike = SCREENED && turns < 2;
        if least < NO_LIMIT || !keeps_tags {
            let least = if keeps_tags { least } else { 0 };
            egress::limit_runs(burst, plan, (ingress.port, policy.ports), least, outcomes);
        }
        self.permit = floods.permit;
        if let Some(at) = cut {
            self.waits_for_flood = at == 0;
            self.burst.cut(at);
        }
        self.bytes = bytes_of(&self.burst);
    }
}

/// Prefetches what deciding about a burst will read of a large forwarding table, once for each run
/// of frames of one stream.
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

/// The counter that a decision's cause belongs to.
fn reason(cause: DropCause) -> DropReason {
    match cause {
        DropCause::ReservedAddress => DropReason::Reserved,
        DropCause::BadSource => DropReason::BadSource,
        DropCause::Hairpin => DropReason::Hairpin,
        DropCause::UplinkToUplink => DropReason::UplinkToUplink,
        DropCause::Isolated => DropReason::Isolated,
        DropCause::AdminDown => DropReason::AdminDown,
    }
}
