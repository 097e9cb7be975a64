//! Traces a frame through the switch: each step in a sentence, and where the frame ends.
//!
//! If the client asks about one receiver, the trace lists everything that keeps the frame from the
//! receiver's port, and nothing about other ports.

mod between;
mod sample;

use std::sync::Arc;

use self::sample::Sample;
use super::methods::unknown_port;
use super::parameters::wrong;
use super::show;
use super::switch::Switch;
use api::config::limit_word;
use api::wire::{Fault, State, Trace, Traced};
use base::frame::MacAddr;
use base::frame::ethernet::TagEdit;
use base::limits::MIN_FRAME_LEN;
use base::stats::DropReason;
use base::words::counted;
use datapath::port::{Endpoint, Port, PortTable};
use switch::filter::packet::Parsed;
use switch::filter::{Cause, Direction, Preview};
use switch::mirror::Watch;
use switch::ruling::{Ground, Verdict};
use switch::{
    Decision, Flood, FloodClass, Ingress, Membership, Note, Policy, PortId, PortPolicy, Reach,
    Reserved, Ruling, Segment, Station, Tick, VlanId,
};
use sys::clock;

/// Parts of the answer about a frame.
struct Told<'a> {
    ports: &'a PortTable,
    steps: Vec<String>,
    /// Ports that the frame reaches.
    reached: Vec<PortId>,
    /// The reason why the frame reaches no port, or not all.
    reason: Option<DropReason>,
    /// True if no frames come in on the frame's port now.
    is_idle: bool,
}

impl Switch {
    /// Answers `Trace`.
    pub(super) fn trace(&self, given: &Trace) -> Result<Traced, Fault> {
        let ports = &self.view.ports.present();
        let named = |name: &String| ports.named(name).ok_or_else(|| unknown_port(ports, name));
        let port = named(&given.port)?;
        let to = given.to.as_ref().map(named).transpose()?;
        if let Some(to) = to.filter(|to| to.id == port.id) {
            return Err(wrong("to", "to must be another port".to_owned(), &to.name));
        }
        let sample = &match to {
            Some(to) => self.between(ports, (port, to), given)?,
            None => Sample::new(given)?,
        };
        let (steps, reached, reason, is_idle) = (Vec::new(), Vec::new(), None, false);
        let mut told = Told { ports, steps, reached, reason, is_idle };
        told.coming(port, to.is_some());
        let policy = Policy { fdb: &self.view.fdb, ports: &**ports, rules: self.view.rules };
        match (told.entering(port, sample), to) {
            (Some(vlan), to) => {
                told.forwarded(&policy, (port, to), Way { from: port.id, vlan, sample });
                told.mirrored_out();
            }
            (None, Some(to)) => told.behind(&policy, port, to, sample),
            (None, None) => {}
        }
        Ok(told.answer(port, to))
    }
}

impl Told<'_> {
    /// Adds a decision. True if the frame is dropped.
    fn add(&mut self, ruling: &Ruling) -> bool {
        self.steps.push(ruling.words(|port| self.name(port)));
        self.reason = ruling.reason().or(self.reason);
        ruling.reason().is_some()
    }

    fn name(&self, port: PortId) -> String {
        self.ports.get(port).map_or_else(|| "a deleted port".to_owned(), quote)
    }

    /// Adds the step whether frames come in on a port. With `strictly`, a guest that has sent no
    /// frame so far counts as silent.
    fn coming(&mut self, port: &Port, strictly: bool) {
        let is_silent = || port.as_guest().is_some() && port.traffic()[0].frames == 0;
        let silent = || "its guest has sent no frame yet: its interface is down, or has no address";
        let idle = idle(port).map(|ruling| ruling.words(|_| "it".to_owned()));
        let idle = idle.map(|why| format!("{why}; nothing comes from there now"));
        let idle = idle.or_else(|| (strictly && is_silent()).then(|| silent().to_owned()));
        self.is_idle = idle.is_some();
        let idle = idle.map_or_else(String::new, |why| format!(": {why}"));
        self.add(&Ruling::passes(port.id, Note::In).with("idle", idle));
    }

    /// Returns the VLAN in which a frame comes in; none if the frame does not come in.
    fn entering(&mut self, port: &Port, sample: &Sample) -> Option<VlanId> {
        let policy = self.ports.policy(port.id);
        if !policy.forwards {
            self.reason = Some(DropReason::AdminDown);
            return None;
        }
        let guarded = policy.guarded(port.id, &sample.headers(), sample.is_given);
        let rulings =
            self.watched(port).into_iter().chain(guarded).chain(self.snooped(port, sample));
        for ruling in rulings.collect::<Vec<_>>() {
            if self.add(&ruling) {
                return None;
            }
        }
        match policy.entry(port.id, &sample.bytes) {
            Ok((vlan, ruling)) => {
                ruling.iter().for_each(|ruling| _ = self.add(ruling));
                let way = Way { from: port.id, vlan, sample };
                let filtered = self.filtered(port, way, Direction::Out);
                let is_dropped = filtered.is_some_and(|ruling| self.add(&ruling));
                (!is_dropped).then_some(vlan)
            }
            Err(ruling) => {
                self.add(&ruling);
                None
            }
        }
    }

    /// Returns the decision that a port's filters would make about a frame from the port, or to the
    /// port; changes no connection. Returns `None` if the port has no filter, or if no rule
    /// decides, as about ARP and neighbour discovery.
    fn filtered(&self, port: &Port, way: Way<'_>, direction: Direction) -> Option<Ruling> {
        let filter = self.ports.policy(port.id).filter.as_ref()?;
        let drops = |what: &str| {
            let rule = format!("the filter of {} {what}, and", quote(port));
            Ruling::drops(port.id, DropReason::Filter).with("rule", rule)
        };
        let mut packet = match way.sample.parsed() {
            None => return Some(Ruling::passes(port.id, Note::FilterUnasked)),
            Some(Err(_)) => return Some(drops("cannot read the packet's headers")),
            Some(Ok(packet)) => packet,
        };
        if let Parsed::Packet(packet) = &mut packet
            && self.ports.policy(way.from).vlans != Membership::Opaque
        {
            packet.vlan = way.vlan;
        }
        let (seconds, nanos) = clock::coarse();
        let now = Tick::new(seconds, nanos);
        let Preview { refused, rule, is_known } =
            filter.at(port.id).preview(&packet, direction, now);
        // The first fragment's rule decides about later fragments.
        if refused == Some(Cause::Fragment) {
            return Some(drops("has passed no first fragment of the packet"));
        }
        let title = filter.rules.title(rule?);
        Some(match refused {
            None if is_known => Ruling::passes(port.id, Note::FilterKnows).with("rule", title),
            None => Ruling::passes(port.id, Note::FilterAccepts).with("rule", title),
            Some(Cause::State) => drops("knows no connection of the packet"),
            Some(_) => {
                let rule = format!("{title} at {}", quote(port));
                Ruling::drops(port.id, DropReason::Filter).with("rule", rule)
            }
        })
    }

    /// Returns the mirrors of frames from a port, or the mirror whose copies the port gets.
    fn watched(&self, port: &Port) -> Vec<Ruling> {
        if let Some(mut ruling) = observer(self.ports, port.id) {
            ruling.verdict = Verdict::Drops;
            return vec![ruling];
        }
        let copied = |watch: &Watch| {
            let ruling = Ruling::passes(port.id, Note::MirroredIn).with("mirror", &watch.name);
            ruling.with_port("to", watch.to).with("limits", limits_of(watch))
        };
        self.ports.watches().filter(|watch| watch.takes_in(port.id)).map(copied).collect()
    }

    /// Adds the mirrors of frames that leave by the ports that the frame reaches.
    fn mirrored_out(&mut self) {
        for watch in self.ports.watches().filter(|watch| watch.takes_out(watch.from)) {
            if self.reached.contains(&watch.from) {
                let ruling = Ruling::passes(watch.from, Note::MirroredOut);
                let ruling = ruling.with("mirror", &watch.name).with_port("to", watch.to);
                self.add(&ruling.with("limits", limits_of(watch)));
            }
        }
    }

    /// Returns the decision by which snooping drops a frame as a message about groups.
    fn snooped(&self, port: &Port, sample: &Sample) -> Option<Ruling> {
        self.ports.snooping()?;
        let reason = sample.message(self.ports.may_route(port.id)).err()?;
        Some(Ruling::drops(port.id, reason))
    }

    /// Adds what becomes of a frame that came in, for all ports or for port `to`.
    fn forwarded(
        &mut self,
        policy: &Policy<'_, PortTable>,
        (port, to): (&Port, Option<&Arc<Port>>),
        way: Way<'_>,
    ) {
        let Way { vlan, sample, .. } = way;
        let (source, destination) = sample.addresses();
        let ingress = ingress(port);
        let settings = self.ports.policy(port.id);
        let stations = [source, destination].map(|mac| Station::new(settings.segment(vlan), mac));
        let (seconds, nanos) = clock::coarse();
        let trace = policy.trace(ingress, stations[0], stations[1], Tick::new(seconds, nanos));
        if let Some(limit) = port.rates.input.limit() {
            self.add(&Ruling::passes(port.id, Note::RateIn).with("rate", limit_word(&limit)));
        }
        let is_new = trace.source.ground == Ground::Note(Note::Learned);
        self.add(&match is_new && sample.stands_in[0] {
            true => Ruling::passes(port.id, Note::NoSource),
            false => trace.source,
        });
        let mut decision = trace.decision;
        if let (Decision::Drop(DropReason::Reserved), Some(protocol)) =
            (decision, Reserved::of(&sample.bytes))
        {
            self.add(&reserved(port, settings, (destination, protocol), sample.is_given));
            decision = policy.decide_reserved(ingress, &sample.bytes);
        }
        match (to, decision) {
            (Some(to), _) => self.toward(policy, (port, to), (stations[1], decision), way),
            (None, Decision::Flood(flood)) => {
                let ruling = policy.destination(ingress, stations[1], decision);
                self.flood(port, (ruling, destination));
                self.flooded(policy, port, flood, way);
            }
            (None, Decision::Unicast(to)) => {
                self.add(&policy.destination(ingress, stations[1], decision));
                self.leaves(&self.ports[to], way, Vec::new());
            }
            // The source's decision is the drop.
            (None, Decision::Drop(DropReason::BadSource)) => {}
            (None, Decision::Drop(_)) => {
                self.add(&policy.destination(ingress, stations[1], decision));
            }
        }
    }

    /// Adds the decision that a frame from `port` is flooded, and the rate of these floods.
    fn flood(&mut self, port: &Port, (ruling, destination): (Ruling, MacAddr)) {
        self.add(&ruling);
        let class = FloodClass::of(destination);
        if let Some(limit) = port.rates.floods[class as usize].limit() {
            let limit = format!("{}:{}", class.name(), limit_word(&limit));
            self.add(&Ruling::passes(port.id, Note::Storm).with("limit", limit));
        }
    }

    /// Adds the ports that a flood from `port` reaches, and why the flood does not reach other
    /// ports of the VLAN.
    fn flooded(&mut self, policy: &Policy<'_, PortTable>, port: &Port, flood: Flood, way: Way<'_>) {
        let segment = self.ports.policy(port.id).segment(way.vlan);
        let limited = self.limited(segment, way.sample);
        let members = self.ports.iter().filter(|to| self.ports.policy(to.id).is_member(segment));
        for to in members.filter(|to| to.id != port.id) {
            let mut why = policy.between(ingress(port), ingress(to), Some(way.vlan));
            why.extend(self.left_out(to, flood, limited.as_ref()));
            self.leaves(to, way, why);
        }
    }

    /// Returns why a flood leaves out port `to`, by the port's own settings.
    fn left_out(&self, to: &Port, flood: Flood, limited: Option<&Limits>) -> Vec<Ruling> {
        let group = limited.filter(|(reached, _)| !reached.contains(&to.id));
        let group = group.map(|(_, note)| Ruling::avoids(to.id, Ground::Note(*note)));
        group.into_iter().chain(self.ports.policy(to.id).avoids(to.id, flood)).collect()
    }

    /// Adds the decision of snooping about a frame for a group. Returns the ports that the frame
    /// reaches, and why the frame does not reach other ports; none if snooping does not decide.
    fn limited(&mut self, segment: Segment, sample: &Sample) -> Option<Limits> {
        let snooping = self.ports.snooping()?;
        let (group, reach) = sample.reach(snooping, segment)?;
        let members = self.ports.iter().filter(|to| self.ports.policy(to.id).is_member(segment));
        let mut reached: Vec<PortId> = members.map(|to| to.id).collect();
        self.ports.keep_reached(reach, &mut reached);
        let names: Vec<String> = reached.iter().map(|id| self.name(*id)).collect();
        let (note, why) = match (group, reach) {
            (Some(_), _) => (Note::Members, Note::NoMember),
            (None, Reach::Routers) => (Note::Report, Note::NoRouter),
            (None, _) => (Note::ForAll, Note::NoMember),
        };
        // No port decides about a group.
        let ruling = Ruling::passes(0, note).with("members", names.join(", "));
        let group = group.map(|group| group.to_string()).unwrap_or_default();
        self.add(&ruling.with("group", group));
        Some((reached, why))
    }

    /// Adds whether a frame leaves by a port that the frame is for; `why` has reasons against it.
    fn leaves(&mut self, port: &Port, way: Way<'_>, mut why: Vec<Ruling>) {
        let Way { vlan, sample, .. } = way;
        let vlans = &self.ports.policy(port.id).vlans;
        let edit = vlans.edit(vlan, &sample.bytes);
        let mut found = hindrances(port, sample);
        if edit.is_none() && why.is_empty() {
            let frame = "a frame whose tag would be the tag of a VLAN there";
            let ruling = Ruling::drops(port.id, DropReason::Vlan).with("own", vlans);
            found.push(ruling.with("frame", frame));
        }
        let filtered = self.filtered(port, way, Direction::In);
        let accepted = filtered.clone().filter(|ruling| ruling.reason().is_none());
        found.extend(filtered.filter(|ruling| ruling.reason().is_some()));
        if why.is_empty() {
            self.reason = self.reason.or(found.first().and_then(Ruling::reason));
        }
        why.extend(found);
        if !why.is_empty() {
            return self.misses(port, &why);
        }
        let tag = match edit {
            None | Some(TagEdit::Keep) => "",
            Some(TagEdit::Pop) => " without its tag",
            Some(TagEdit::Push(_)) => " with a tag",
            Some(TagEdit::Rewrite(_)) => " with another tag",
        };
        accepted.iter().for_each(|ruling| _ = self.add(ruling));
        let limit = port.rates.output.limit().map(|limit| limit_word(&limit));
        let limit =
            limit.map(|limit| format!(", unless its rate-out of {limit} is used up (rate)"));
        let ruling = Ruling::passes(port.id, Note::Out).with("tag", tag);
        self.add(&ruling.with("limit", limit.unwrap_or_default()));
        self.reached.push(port.id);
    }

    /// Adds the step that a frame does not reach a port, and why.
    fn misses(&mut self, port: &Port, why: &[Ruling]) {
        let name = |id| if id == port.id { "it".to_owned() } else { self.name(id) };
        let why: Vec<String> = why.iter().map(|ruling| ruling.words(name)).collect();
        self.steps.push(format!("not to {}: {}", quote(port), why.join("; ")));
    }

    fn answer(self, port: &Port, to: Option<&Arc<Port>>) -> Traced {
        let Told { steps, reached, reason, is_idle, .. } = self;
        let mut ports: Vec<String> =
            reached.iter().map(|id| self.ports[*id].name.clone()).collect();
        if let Some(to) = to {
            ports.retain(|name| !is_idle && *name == to.name);
            let verdict = match () {
                () if is_idle => format!("nothing comes from {}", quote(port)),
                () if ports.is_empty() => format!("it does not reach {}", quote(to)),
                () => format!("it reaches {}", quote(to)),
            };
            let reason = reason.map(|reason| reason.name().to_owned());
            return Traced { steps, verdict, ports, reason };
        }
        let reason = reason.or(ports.is_empty().then_some(DropReason::NoReceiver));
        let verdict = match (&ports[..], reason) {
            ([], Some(reason)) => format!("it is dropped: {}", reason.name()),
            ([], None) => "it is dropped".to_owned(),
            ([one], _) => format!("it reaches '{one}'"),
            (all, _) => format!("it reaches {} ports", all.len()),
        };
        let reason = reason.map(|reason| reason.name().to_owned());
        Traced { steps, verdict, ports, reason }
    }
}

/// Ports that a frame for a group reaches, and the reason why it does not reach other ports.
type Limits = (Vec<PortId>, Note);

fn ingress(port: &Port) -> Ingress {
    Ingress { port: port.id, kind: port.kind() }
}

/// Returns the decision by which a port that gets a mirror's copies takes part in no forwarding.
fn observer(ports: &PortTable, port: PortId) -> Option<Ruling> {
    let watch = ports.watches().find(|watch| watch.to == port)?;
    let ruling = Ruling::avoids(port, Ground::Drop(DropReason::Observer));
    Some(ruling.with("mirror", format!("mirror '{}'", watch.name)))
}

/// Returns the decision whether a port passes the protocol of a reserved address.
fn reserved(
    port: &Port,
    settings: &PortPolicy,
    (address, protocol): (MacAddr, Reserved),
    is_given: bool,
) -> Ruling {
    let frame = match is_given {
        true => format!("this is a frame of {protocol}"),
        false => format!("taken for a frame of {protocol}, because of its address {address}"),
    };
    let note = match settings.passes.has(protocol) {
        true => Note::PassesProtocol,
        false => Note::DeniesProtocol,
    };
    Ruling::passes(port.id, note).with("frame", frame).with("protocol", protocol)
}

/// Returns the decision by which no frame crosses a port in its state; none if frames cross.
fn idle(port: &Port) -> Option<Ruling> {
    let state = show::state(port);
    let (gone, down) = match &port.endpoint {
        Endpoint::Guest(_) => (DropReason::PortDown, DropReason::PortDown),
        Endpoint::Device(device) => {
            let reasons = device.backend.reasons();
            (reasons.gone, reasons.down)
        }
    };
    let reason = match state {
        State::Attached => return None,
        State::Disabled => DropReason::AdminDown,
        State::Down => down,
        _ => gone,
    };
    let ruling = Ruling::idle(port.id, state, reason).with("its", "its");
    let pid = port.front_end().map_or(0, |who| who.pid);
    let ruling = ruling.with("who", format!("the front-end (pid {pid})"));
    let peer = if port.as_guest().is_some() { "front-end" } else { "process" };
    let ruling = ruling.with("peer", peer);
    Some(match port.interface() {
        Some(interface) => ruling.with("name", format!(" {interface}")).with("lack", "interface"),
        None => ruling.with("lack", "socket"),
    })
}

/// Returns everything that keeps a frame from leaving by its port.
fn hindrances(port: &Port, sample: &Sample) -> Vec<Ruling> {
    let (most, length) = (port.mtu.max_len(), sample.length);
    let mtu = format!("an MTU of {}", most.saturating_sub(MIN_FRAME_LEN));
    let long = Ruling::drops(port.id, DropReason::TooBig).with("mtu", mtu);
    let long = long.with("packet", format!("{length} bytes are"));
    idle(port).into_iter().chain((length > most).then_some(long)).collect()
}

/// A frame on its way out.
#[derive(Clone, Copy)]
struct Way<'a> {
    /// Port by which the frame came in.
    from: PortId,
    vlan: VlanId,
    sample: &'a Sample,
}

/// Returns the VLAN to which a mirror is limited, and the length of its copies, if limited.
fn limits_of(watch: &Watch) -> String {
    let vlan = watch.frames.vlan.map(|vlan| format!(", if it is in VLAN {vlan}"));
    let snaplen = watch.frames.snaplen.map(|bytes| format!(", {} at most", counted(bytes, "byte")));
    vlan.into_iter().chain(snaplen).collect()
}

fn quote(port: &Port) -> String {
    format!("'{}'", port.name)
}
