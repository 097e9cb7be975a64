//! Traces a frame through the switch: each step in a sentence, and where the frame ends.
//!
//! If the client asks about one receiver, the trace lists everything that keeps the frame from the
//! receiver's port, and nothing about other ports.

mod between;
mod sample;

use std::sync::Arc;

use self::sample::Sample;
use super::methods::{Switch, unknown_port};
use super::parameters::wrong;
use super::show;
use api::config::limit_word;
use api::wire::{Fault, State, Trace, Traced};
use base::frame::MacAddr;
use base::frame::ethernet::{self, TagEdit};
use base::limits::{MAX_HEADERS_LEN, MIN_FRAME_LEN};
use base::stats::DropReason;
use base::words::counted;
use datapath::port::{Behind, Port, PortTable};
use switch::mirror::Watch;
use switch::multicast::Barred;
use switch::port_security::{self, Address, Headers, Refused};
use switch::{
    Bridge, Decision, DropCause, Flood, FloodClass, Ingress, Membership, Policy, PortId,
    PortPolicy, Reach, Reserved, ReservedSet, Rule, Segment, Source, Station, Tick, VlanId,
};
use sys::clock;

/// Parts of the answer about a frame.
#[derive(Default)]
struct Told {
    steps: Vec<String>,
    /// Ports that the frame reaches.
    ports: Vec<String>,
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
        let mut told = Told::default();
        told.coming(port, to.is_some());
        match (told.entering(ports, port, sample), to) {
            (Some(vlan), _) => {
                self.forwarded(&mut told, ports, (port, to), Way { vlan, sample });
                told.mirrored_out(ports);
            }
            (None, Some(to)) => told.behind(ports, port, to, sample),
            (None, None) => {}
        }
        Ok(told.answer(port, to))
    }

    /// Traces a frame that came in.
    fn forwarded(
        &self,
        told: &mut Told,
        ports: &PortTable,
        (port, to): (&Port, Option<&Arc<Port>>),
        way: Way<'_>,
    ) {
        let Way { vlan, sample } = way;
        let (source, destination) = sample.addresses();
        let ingress = Ingress { port: port.id, kind: port.kind() };
        let policy = Policy { fdb: &self.view.fdb, ports, rules: self.view.rules };
        let asked = ports.policy(port.id);
        let segment = asked.segment(vlan);
        let stations = [source, destination].map(|mac| Station::new(segment, mac));
        let (seconds, nanos) = clock::coarse();
        let trace = policy.trace(ingress, stations[0], stations[1], Tick::new(seconds, nanos));
        if let Some(limit) = port.rates.input.limit() {
            let limit = limit_word(&limit);
            told.step(format!("its rate-in is {limit}: what exceeds it waits there"));
        }
        match trace.source {
            Source::New if sample.stands_in[0] => {
                told.step(format!("no address is known behind {}", quote(port)));
            }
            source_is => told.source(ports, source, source_is),
        }
        let mut decision = trace.decision;
        if let (Some(protocol), true) = (Reserved::of(&sample.bytes), trace.is_reserved()) {
            told.reserved(port, asked.passes, (destination, protocol), sample.is_given);
            decision = policy.decide_reserved(ingress, &sample.bytes);
        }
        if let Some(to) = to {
            return told.toward(&policy, (port, to), (destination, decision), way);
        }
        match decision {
            Decision::Unicast(to) => {
                let to = &ports[to];
                told.step(format!(
                    "{destination} is on {}: the frame is sent there alone",
                    quote(to)
                ));
                told.leaves(to, ports.policy(to.id), way, Vec::new());
            }
            Decision::Flood(flood) => {
                told.flood(port, (destination, flood, None));
                told.flooded(&policy, port, flood, way);
            }
            Decision::Drop(cause) => told.dropped(destination, cause),
        }
    }
}

impl Told {
    fn step(&mut self, text: String) {
        self.steps.push(text);
    }

    /// Adds the step that a frame is flooded, and why; `unknown` is the port without a known
    /// address.
    fn flood(
        &mut self,
        port: &Port,
        (destination, flood, unknown): (MacAddr, Flood, Option<&Port>),
    ) {
        self.step(match (flood, unknown) {
            (Flood::Unknown, Some(to)) => {
                format!("no address is known behind {}: frames for it are flooded", quote(to))
            }
            (Flood::Unknown, None) => format!("{destination} is not known: it is flooded"),
            (Flood::Group, _) => format!("{destination} is a group's address: it is flooded"),
            (Flood::Reserved(_), _) => {
                format!("{destination} is flooded to the ports that pass it")
            }
        });
        let class = FloodClass::of(destination);
        if let Some(limit) = port.rates.floods[class as usize].limit() {
            let (class, rate) = (class.name(), limit_word(&limit));
            self.step(format!("its storm limit is {class}:{rate}: what exceeds it is dropped"));
        }
    }

    /// Adds the ports that a flood from `port` reaches, and why the flood does not reach other
    /// ports of the VLAN.
    fn flooded(&mut self, policy: &Policy<'_, PortTable>, port: &Port, flood: Flood, way: Way<'_>) {
        let (ports, from) = (policy.ports, policy.ports.policy(port.id));
        let ingress = Ingress { port: port.id, kind: port.kind() };
        let segment = from.segment(way.vlan);
        let limited = self.limited(ports, segment, way.sample);
        for to in ports.iter().filter(|to| ports.policy(to.id).is_member(segment)) {
            let asked = ports.policy(to.id);
            let why = if limited.as_ref().is_some_and(|(reached, _)| !reached.contains(&to.id)) {
                limited.as_ref().map_or("", |(_, why)| why).to_owned()
            } else if !policy.rules.flood_reaches(ingress, to.id, to.kind()) {
                "both are uplinks".to_owned()
            } else if !from.reaches(asked) {
                "both are isolated".to_owned()
            } else if asked.forwards && !asked.takes(flood) {
                match flood {
                    Flood::Reserved(protocol) => format!("it does not pass {protocol}"),
                    _ => "flood=off".to_owned(),
                }
            } else {
                self.leaves(to, asked, way, Vec::new());
                continue;
            };
            if to.id != port.id {
                self.step(format!("not to {}: {why}", quote(to)));
            }
        }
    }

    /// Adds the step whether a port passes the protocol of a reserved address.
    fn reserved(
        &mut self,
        port: &Port,
        passes: ReservedSet,
        (address, protocol): (MacAddr, Reserved),
        is_given: bool,
    ) {
        let (port, word) = (quote(port), protocol.name());
        let does = if passes.has(protocol) { "passes" } else { "does not pass" };
        let taken = match is_given {
            true => format!("it is a frame of {word}"),
            false => format!("taken for a frame of {word}, which {address} is for"),
        };
        self.step(format!("{taken}: {port} {does} {word}"));
    }

    /// Returns the ports that a frame for a group reaches, and why the frame does not reach other
    /// ports; none if snooping does not decide about the frame.
    fn limited(
        &mut self,
        ports: &PortTable,
        segment: Segment,
        sample: &Sample,
    ) -> Option<(Vec<PortId>, &'static str)> {
        let snooping = ports.snooping()?;
        let (group, reach) = sample.reach(snooping, segment)?;
        let members = ports.iter().filter(|to| ports.policy(to.id).is_member(segment));
        let mut reached: Vec<PortId> = members.map(|to| to.id).collect();
        ports.keep_reached(reach, &mut reached);
        let (what, why) = match (group, reach) {
            (Some(group), _) => {
                let names: Vec<String> = reached.iter().map(|id| quote(&ports[*id])).collect();
                let names = names.join(", ");
                let what = format!("group {group}: members, routers, and ports not asked yet are ");
                (what + &names, "it is no member of the group")
            }
            (None, Reach::Routers) => (
                "it is a report of IGMP or MLD, which is for multicast routers".to_owned(),
                "no multicast router is there",
            ),
            (None, _) => ("it is a message of IGMP or MLD, which is for all".into(), ""),
        };
        self.step(what);
        Some((reached, why))
    }

    /// Adds the step whether frames come in on a port. With `strictly`, a guest that has sent no
    /// frame so far counts as silent.
    fn coming(&mut self, port: &Port, strictly: bool) {
        let is_silent = || port.as_guest().is_some() && port.traffic()[0].frames == 0;
        let idle = idle(port).map(|(why, _)| format!("{why}, nothing comes from there now"));
        let silent = || "its guest has sent no frame yet: its interface is down, or has no address";
        let idle = idle.or_else(|| (strictly && is_silent()).then(|| silent().to_owned()));
        self.is_idle = idle.is_some();
        let idle = idle.map_or_else(String::new, |why| format!(": {why}"));
        self.step(format!("in on {}{idle}", quote(port)));
    }

    /// Returns the VLAN in which a frame comes in; none if the frame does not come in.
    fn entering(&mut self, ports: &PortTable, port: &Port, sample: &Sample) -> Option<VlanId> {
        let asked = ports.policy(port.id);
        if !asked.forwards {
            self.reason = Some(DropReason::AdminDown);
            return None;
        }
        if self.mirrored(ports, port)
            || self.guard(port, asked, sample)
            || self.snooped(ports, port, sample)
        {
            return None;
        }
        self.admitted(port, asked, sample)
    }

    /// Adds the step that snooping drops a frame as a message about groups; true if so.
    fn snooped(&mut self, ports: &PortTable, port: &Port, sample: &Sample) -> bool {
        let may_query = ports.may_route(port.id);
        let message = ports.snooping().map_or(Ok(None), |_| sample.message(may_query));
        let (text, reason) = match message {
            Ok(_) => return false,
            Err(Barred::NoQuerier) => {
                let port = quote(port);
                (format!("it is a query, and {port} has multicast-router=off"), DropReason::Querier)
            }
            Err(Barred::Malformed) => (
                "it is a message of IGMP or MLD that is not whole and canonical".to_owned(),
                DropReason::Membership,
            ),
        };
        self.step(text);
        self.reason = Some(reason);
        true
    }

    /// Adds the mirrors of frames from a port; true if the port gets copies itself.
    fn mirrored(&mut self, ports: &PortTable, port: &Port) -> bool {
        let name = |id: PortId| ports.get(id).map_or_else(String::new, quote);
        for watch in ports.watches() {
            if watch.to == port.id {
                self.step(format!(
                    "{} gets the copies of mirror '{}': nothing passes from it",
                    quote(port),
                    watch.name
                ));
                self.reason = Some(DropReason::Observer);
                return true;
            }
            if watch.takes_in(port.id) {
                let (mirror, to, which) = (&watch.name, name(watch.to), limits_of(watch));
                self.step(format!("mirror '{mirror}' copies it to {to}{which}"));
            }
        }
        false
    }

    /// Adds the mirrors of frames that leave by the ports that the frame reaches.
    fn mirrored_out(&mut self, ports: &PortTable) {
        for watch in ports.watches().filter(|watch| watch.takes_out(watch.from)) {
            let (Some(from), Some(to)) = (ports.get(watch.from), ports.get(watch.to)) else {
                continue;
            };
            if self.ports.contains(&from.name) {
                let (mirror, which) = (&watch.name, limits_of(watch));
                let (from, to) = (quote(from), quote(to));
                self.step(format!("mirror '{mirror}' copies what leaves by {from} to {to}{which}"));
            }
        }
    }

    /// Returns the VLAN in which a frame with this tag comes in; none if the frame does not come
    /// in.
    fn admitted(
        &mut self,
        port: &Port,
        PortPolicy { bridge, vlans, .. }: &PortPolicy,
        Sample { bytes, .. }: &Sample,
    ) -> Option<VlanId> {
        let vlan = vlans.classify(bytes);
        let tag = ethernet::vlan_tag(bytes).map(|tag| tag & 0xfff);
        match (vlan, bridge.name()) {
            (Some(0), Bridge::DEFAULT_NAME) => {}
            (Some(0), bridge) => self.step(format!("it is in bridge {bridge}")),
            (Some(vlan), Bridge::DEFAULT_NAME) => self.step(format!("it is in VLAN {vlan}")),
            (Some(vlan), bridge) => {
                self.step(format!("it is in VLAN {vlan} of bridge {bridge}"));
            }
            (None, _) => {
                let is = match vlans {
                    Membership::Access(own) => format!("is an access port of VLAN {own}"),
                    _ if tag.unwrap_or(0) == 0 => "is a trunk without native".to_owned(),
                    _ => "is a trunk of other VLANs".to_owned(),
                };
                let frame = match tag {
                    Some(tag) => format!("a frame with the tag of VLAN {tag}"),
                    None if ethernet::is_service_tagged(bytes, 12) => {
                        "a frame with a provider's tag".to_owned()
                    }
                    None => "a frame without a tag".to_owned(),
                };
                self.step(format!("{} {is}: {frame} does not come in", quote(port)));
                self.reason = Some(DropReason::Vlan);
            }
        }
        vlan
    }

    /// Adds the verdict of the port's guard; true if the guard drops the frame.
    fn guard(&mut self, port: &Port, asked: &PortPolicy, sample: &Sample) -> bool {
        let Some(rules) = &asked.security else { return false };
        let whole = &sample.guarded[..];
        let bytes = &whole[..whole.len().min(MAX_HEADERS_LEN)];
        let len = if sample.is_given { sample.length as usize } else { bytes.len() };
        let frame = Headers { bytes, whole, len, sum_at: None, is_cut: false };
        let guard = if rules.enforced { "guard=on" } else { "guard=log" };
        // The traced frame is not sent, so it adds no DHCP client to the port.
        let violation = match port_security::check(rules, &frame, &|_| true) {
            Err(Refused::Broken(violation)) => violation,
            Err(Refused::Short | Refused::Whole) => {
                self.step(format!("{guard} needs more of its bytes to say whether it is allowed"));
                return false;
            }
            Ok(()) => {
                let servers = rules.servers.names().join(",");
                let servers = match servers.is_empty() {
                    true => String::new(),
                    false => format!(", allow-server={servers}"),
                };
                let what = if sample.is_given { "it is" } else { "its source addresses are" };
                self.step(format!("{what} allowed ({guard}{servers})"));
                return false;
            }
        };
        let (address, to) = (violation.address, quote(port));
        let alone = if rules.enforced { "" } else { ", which counts it alone" };
        let what = match violation.rule {
            Rule::Mac | Rule::Ip => {
                format!("{address} is not allowed as a source address of {to}")
            }
            Rule::Server => format!("a server or router sends it, which {to} may not have"),
            Rule::Headers => "its headers are not allowed, as they cannot be followed".to_owned(),
            Rule::Ethertype => format!("its type is not in the ethertypes of {to}"),
            Rule::Version => {
                format!("{to} has no address of the IP version of {address} in allowed-ips")
            }
            Rule::Dhcp if address == Address::None => {
                format!("{to} has had too many DHCP clients")
            }
            rule => {
                let rule = rule.name().to_uppercase();
                format!("{address} is not allowed inside {rule} from {to}")
            }
        };
        self.step(format!("{what} ({guard}{alone})"));
        self.reason = rules.enforced.then_some(DropReason::Guard);
        rules.enforced
    }

    fn source(&mut self, ports: &PortTable, mac: MacAddr, source: Source) {
        let name = |id: PortId| ports.get(id).map_or_else(|| "a port that is gone".into(), quote);
        self.step(match source {
            Source::Bad => format!("{mac} is no address of a station"),
            Source::Here(true) => format!("{mac} is configured here"),
            Source::Here(false) => format!("{mac} is known here"),
            Source::Moves(from) => format!("{mac} was seen on {}, and moves here", name(from)),
            Source::Static(on) => {
                format!(
                    "{mac} is configured on {}: not learned here, so answers go there",
                    name(on)
                )
            }
            Source::Held(at) => format!(
                "{mac} flaps between ports, and is held on {} for a while: not learned here, so \
                 answers go there",
                name(at)
            ),
            Source::New => format!("{mac} is new, and is learned here"),
            Source::Full => {
                format!("{mac} is not learned here: the port has as many as it may (max-addresses)")
            }
            Source::Off => format!("{mac} is not learned here (learn=off)"),
        });
    }

    /// Adds whether a frame leaves by a port that the frame is for; `why` has reasons against it.
    fn leaves(&mut self, port: &Port, asked: &PortPolicy, way: Way<'_>, mut why: Vec<String>) {
        let Way { vlan, sample } = way;
        let edit = asked.vlans.edit(vlan, &sample.bytes);
        let mut found = hindrances(port, sample);
        if edit.is_none() && why.is_empty() {
            found.push(("its tag would be that of a VLAN there".to_owned(), DropReason::Vlan));
        }
        if let (Some((_, reason)), true) = (found.first(), why.is_empty()) {
            self.reason.get_or_insert(*reason);
        }
        why.extend(found.into_iter().map(|(text, _)| text));
        if !why.is_empty() {
            self.step(format!("not to {}: {}", quote(port), why.join("; ")));
            return;
        }
        let tag = match edit {
            None | Some(TagEdit::Keep) => "",
            Some(TagEdit::Pop) => " without its tag",
            Some(TagEdit::Push(_)) => " with a tag",
            Some(TagEdit::Rewrite(_)) => " with another tag",
        };
        let limit = port.rates.output.limit().map(|limit| limit_word(&limit));
        let rate = limit.map(|limit| format!(", unless its rate-out of {limit} is used up (rate)"));
        self.step(format!("out to {}{tag}{}", quote(port), rate.unwrap_or_default()));
        self.ports.push(port.name.clone());
    }

    fn dropped(&mut self, destination: MacAddr, cause: DropCause) {
        let (text, reason) = match cause {
            // The steps about the source and the ports have given the reason.
            DropCause::BadSource => ("", DropReason::BadSource),
            DropCause::AdminDown => ("", DropReason::AdminDown),
            DropCause::ReservedAddress => {
                ("is an address that a bridge keeps to itself", DropReason::Reserved)
            }
            DropCause::Hairpin => ("is on the port that it came from", DropReason::Hairpin),
            DropCause::UplinkToUplink => {
                ("is on another uplink, and uplink-to-uplink is off", DropReason::UplinkToUplink)
            }
            DropCause::Isolated => {
                ("is on another port with isolated=on, as this one is", DropReason::Isolated)
            }
        };
        if !text.is_empty() {
            self.step(format!("{destination} {text}"));
        }
        self.reason = Some(reason);
    }

    fn answer(self, port: &Port, to: Option<&Arc<Port>>) -> Traced {
        let Told { steps, mut ports, reason, is_idle } = self;
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

/// Returns why no frame crosses a port, and the drop reason at the port; none if frames cross.
fn idle(port: &Port) -> Option<(String, DropReason)> {
    let (state, guest) = (show::state(port), port.as_guest());
    let device = |tap, xdp| match port.as_uplink().map(|(device, _)| &device.behind) {
        Some(Behind::Xdp(..)) => xdp,
        Some(_) => tap,
        None => DropReason::StreamGone,
    };
    let gone = if guest.is_some() {
        DropReason::PortDown
    } else {
        device(DropReason::TapGone, DropReason::XdpGone)
    };
    let (why, reason) = match state {
        State::Attached => return None,
        State::Removing => ("it is being removed", gone),
        State::LeftOut if port.as_uplink().is_some() => ("it has no interface", gone),
        State::LeftOut => ("it has no socket", gone),
        State::Disabled => ("it is administratively down (admin=down)", DropReason::AdminDown),
        State::Down => ("its interface is down", device(DropReason::TapDown, DropReason::XdpDown)),
        State::Gone => ("its interface is gone", gone),
        State::Listening if guest.is_some() => ("no front-end is connected to it", gone),
        State::Listening => ("no process is connected to it", gone),
        State::Negotiating => {
            let pid = port.front_end().map_or(0, |who| who.pid);
            let why = format!(
                "its front-end (pid {pid}) is connected, and its guest's driver takes no frames"
            );
            return Some((why, gone));
        }
    };
    Some((why.to_owned(), reason))
}

/// Returns everything that keeps a frame from leaving by its port, with the reasons of the drop.
fn hindrances(port: &Port, sample: &Sample) -> Vec<(String, DropReason)> {
    let mut found: Vec<_> = idle(port).into_iter().collect();
    let (most, length) = (port.mtu.max_len(), sample.length);
    if length > most {
        let most = most - MIN_FRAME_LEN;
        let why = format!("{length} bytes are too long for an MTU of {most}");
        found.push((why, DropReason::TooBig));
    }
    found
}

/// A frame on its way out.
#[derive(Clone, Copy)]
struct Way<'a> {
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
