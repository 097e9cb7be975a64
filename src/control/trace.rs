//! What would become of a frame: each step in a sentence, and where it ends.

use std::net::IpAddr;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use super::methods::{Switch, unknown_port};
use super::parameters::{ip, mac, number, wrong};
use super::show;
use crate::config::limit_word;
use crate::frame::ethernet::{self, Snapshot, TagEdit};
use crate::frame::{MacAddr, multicast};
use crate::limits::{MAX_FRAME_LEN, MAX_HEADERS_LEN, MAX_VLAN, MIN_FRAME_LEN, SNAPSHOT_LEN};
use crate::port::{Behind, Port, PortTable};
use crate::stats::DropReason;
use crate::switch::mirror::Watch;
use crate::switch::port_security::{self, Headers, Refused};
use crate::switch::{
    Bridge, Decision, DropCause, Flood, FloodClass, Ingress, Membership, Policy, PortId,
    PortPolicy, Reach, Reserved, ReservedSet, Rule, Segment, Snooping, Source, Station, VlanId,
};
use crate::sys::clock;
use crate::wire::{Fault, State, Trace, Traced};
use crate::words::counted;

/// A frame of a ping has 98 bytes.
const LENGTH: u64 = 98;

/// What the answer has of a frame.
#[derive(Default)]
struct Told {
    steps: Vec<String>,
    /// Ports it reaches.
    ports: Vec<String>,
    /// Why it reaches none, or not all.
    reason: Option<DropReason>,
}

impl Switch {
    /// `Trace`.
    pub(super) fn trace(&self, given: &Trace) -> Result<Traced, Fault> {
        let sample = &Sample::new(given)?;
        let ports = self.view.ports.present();
        let port = ports.named(&given.port).ok_or_else(|| unknown_port(&ports, &given.port))?;
        let mut told = Told::default();
        told.coming(port);
        let asked = ports.policy(port.id);
        if !asked.forwards {
            told.reason = Some(DropReason::AdminDown);
            return Ok(told.answer());
        }
        if told.mirrored(&ports, port) || told.guard(port, asked, sample) {
            return Ok(told.answer());
        }
        let Some(vlan) = told.admitted(port, asked, &sample.bytes) else {
            return Ok(told.answer());
        };
        self.forwarded(&mut told, &ports, port, Way { vlan, sample });
        told.mirrored_out(&ports);
        Ok(told.answer())
    }

    /// What becomes of a frame that came in.
    fn forwarded(&self, told: &mut Told, ports: &PortTable, port: &Port, way: Way<'_>) {
        let Way { vlan, sample } = way;
        let (source, destination) = sample.addresses();
        let ingress = Ingress { port: port.id, kind: port.kind() };
        let policy = Policy { fdb: &self.view.fdb, ports, rules: self.view.rules };
        let asked = ports.policy(port.id);
        let segment = asked.segment(vlan);
        let [from, to] = [source, destination].map(|mac| Station::new(segment, mac));
        let trace = policy.trace(ingress, from, to, clock::coarse_seconds());
        if let Some(limit) = port.rates.input.limit() {
            let limit = limit_word(&limit);
            told.step(format!("its rate-in is {limit}: what exceeds it waits there"));
        }
        told.source(ports, source, trace.source);
        let mut decision = trace.decision;
        if let (Some(protocol), true) = (Reserved::of(&sample.bytes), trace.is_reserved()) {
            told.reserved(port, asked.passes, (destination, protocol), sample.is_given);
            decision = policy.decide_reserved(ingress, &sample.bytes);
        }
        match decision {
            Decision::Unicast(to) => {
                let to = &ports[to];
                told.step(format!(
                    "{destination} is on {}: the frame is sent there alone",
                    quote(to)
                ));
                told.leaving(to, ports.policy(to.id), way);
            }
            Decision::Flood(flood) => {
                let why = match flood {
                    Flood::Group => "is a group's address: it is flooded",
                    Flood::Unknown => "is not known: it is flooded",
                    Flood::Reserved(_) => "is flooded to the ports that pass it",
                };
                told.step(format!("{destination} {why}"));
                told.flooded(&policy, port, (destination, flood), way);
            }
            Decision::Drop(cause) => told.dropped(destination, cause),
        }
    }
}

impl Told {
    fn step(&mut self, text: String) {
        self.steps.push(text);
    }

    /// The ports that a flood from `port` reaches, and why not the others of its VLAN.
    fn flooded(
        &mut self,
        policy: &Policy<'_, PortTable>,
        port: &Port,
        (destination, flood): (MacAddr, Flood),
        way: Way<'_>,
    ) {
        let class = FloodClass::of(destination);
        if let Some(limit) = port.rates.floods[class as usize].limit() {
            let (class, rate) = (class.name(), limit_word(&limit));
            self.step(format!("its storm limit is {class}:{rate}: what exceeds it is dropped"));
        }
        let (ports, from) = (policy.ports, policy.ports.policy(port.id));
        let ingress = Ingress { port: port.id, kind: port.kind() };
        let segment = from.segment(way.vlan);
        let limited = self.limited(ports, (port, segment), way.sample);
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
                self.leaving(to, asked, way);
                continue;
            };
            if to.id != port.id {
                self.step(format!("not to {}: {why}", quote(to)));
            }
        }
    }

    /// Whether a port passes the protocol of a reserved address.
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

    /// The ports that a frame for a group reaches, if not all do, and why the others do not.
    fn limited(
        &mut self,
        ports: &PortTable,
        (port, segment): (&Port, Segment),
        sample: &Sample,
    ) -> Option<(Vec<PortId>, &'static str)> {
        let snooping = ports.snooping()?;
        let (group, reach) = sample.reach(snooping, segment, ports.may_route(port.id))?;
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
            (None, Reach::All) => ("it is a message of IGMP or MLD, which is for all".into(), ""),
            (None, _) => (
                format!("it is a query, and {} has multicast-router=off", quote(port)),
                "the query does not count",
            ),
        };
        self.step(what);
        Some((reached, why))
    }

    fn coming(&mut self, port: &Port) {
        let state = show::state(port);
        let instead = match state {
            State::Attached => String::new(),
            state => format!(", which is {state}: nothing comes from there now"),
        };
        self.step(format!("in on {}{instead}", quote(port)));
    }

    /// What mirrors do with what comes from a port; true if it gets copies itself.
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

    /// What mirrors do with what reaches ports.
    fn mirrored_out(&mut self, ports: &PortTable) {
        for watch in ports.watches().iter().filter(|watch| watch.takes_out(watch.from)) {
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

    /// The VLAN that a frame with this tag comes in on, if it does.
    fn admitted(
        &mut self,
        port: &Port,
        PortPolicy { bridge, vlans, .. }: &PortPolicy,
        bytes: &[u8],
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

    /// What the port's guard says of a frame; true if it drops it.
    fn guard(&mut self, port: &Port, asked: &PortPolicy, sample: &Sample) -> bool {
        let Some(rules) = &asked.security else { return false };
        let bytes = &sample.guarded[..sample.guarded.len().min(MAX_HEADERS_LEN)];
        let len = if sample.is_given { sample.length as usize } else { bytes.len() };
        let frame = Headers { bytes, len, sum_at: None, is_cut: false };
        let guard = if rules.enforced { "guard=on" } else { "guard=log" };
        let violation = match port_security::check(rules, &frame) {
            Err(Refused::Broken(violation)) => violation,
            Err(Refused::Short) => {
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
            Rule::Server => format!("it is from a server, which {to} may not have"),
            Rule::Headers => "its headers are not allowed, as they cannot be followed".to_owned(),
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

    /// Whether it gets out of a port.
    fn leaving(&mut self, port: &Port, asked: &PortPolicy, way: Way<'_>) {
        let Way { vlan, sample: Sample { bytes, length, .. } } = way;
        let (to, state, most) = (quote(port), show::state(port), port.mtu.max_len());
        let edit = asked.vlans.edit(vlan, bytes);
        let alone = |why: &str, reason| (why.to_owned(), reason);
        let uplink = port.as_uplink();
        let is_xdp = uplink.is_some_and(|(device, _)| matches!(device.behind, Behind::Xdp(..)));
        let (why, reason) = if !asked.forwards {
            alone("it is administratively down (admin=down)", DropReason::AdminDown)
        } else if uplink.is_some() && !port.is_up() {
            let left_out = port.is_left_out();
            let why = if left_out { "it has no interface" } else { "its interface is gone" };
            alone(why, if is_xdp { DropReason::XdpGone } else { DropReason::TapGone })
        } else if state == State::Down {
            let reason = if is_xdp { DropReason::XdpDown } else { DropReason::TapDown };
            alone("its interface is down", reason)
        } else if port.is_left_out() && port.as_guest().is_some() {
            alone("it has no socket", DropReason::PortDown)
        } else if port.as_stream().is_some() && state != State::Attached {
            alone("no process is connected to it", DropReason::StreamGone)
        } else if state != State::Attached {
            (format!("it is {state}, no driver takes frames there"), DropReason::PortDown)
        } else if *length > most {
            let most = most - MIN_FRAME_LEN;
            let why = format!("{length} bytes are too long for an MTU of {most}");
            (why, DropReason::TooBig)
        } else if let Some(edit) = edit {
            let tag = match edit {
                TagEdit::Keep => "",
                TagEdit::Pop => " without its tag",
                TagEdit::Push(_) => " with a tag",
                TagEdit::Rewrite(_) => " with another tag",
            };
            let limit = port.rates.output.limit().map(|limit| limit_word(&limit));
            let rate =
                limit.map(|limit| format!(", unless its rate-out of {limit} is used up (rate)"));
            self.step(format!("out to {to}{tag}{}", rate.unwrap_or_default()));
            self.ports.push(port.name.clone());
            return;
        } else {
            alone("its tag would be that of a VLAN there", DropReason::Vlan)
        };
        self.step(format!("not to {to}: {why}"));
        self.reason.get_or_insert(reason);
    }

    fn dropped(&mut self, destination: MacAddr, cause: DropCause) {
        let (text, reason) = match cause {
            // The steps about the source and the ports have said so.
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

    fn answer(self) -> Traced {
        let Told { steps, ports, reason } = self;
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

/// The frame that is traced.
struct Sample {
    /// Its first bytes.
    bytes: Vec<u8>,
    /// The first bytes of one that a guard looks at.
    guarded: Vec<u8>,
    length: u32,
    /// It was given, and not made of what was given.
    is_given: bool,
}

impl Sample {
    fn new(given: &Trace) -> Result<Sample, Fault> {
        let Some(frame) = &given.frame else { return Sample::made(given) };
        let parts = [("src", &given.src), ("dst", &given.dst), ("ip", &given.ip)];
        let beside = parts.iter().find(|part| part.1.is_some()).map(|part| part.0);
        if let Some(key) = beside.or(given.vlan.as_ref().map(|_| "vlan")) {
            return Err(wrong(key, format!("{key} is part of frame"), ""));
        }
        let bytes = BASE64_STANDARD.decode(frame).unwrap_or_default();
        let (least, most) = (u64::from(MIN_FRAME_LEN), u64::from(MAX_FRAME_LEN));
        let known = bytes.len() as u64;
        if !(least..=most).contains(&known) {
            let text = format!("frame must be {least} to {most} bytes in base64");
            return Err(wrong("frame", text, frame));
        }
        let length = number(given.len.clone(), "len", known..=most)?.unwrap_or(known) as u32;
        Ok(Sample { guarded: bytes.clone(), bytes, length, is_given: true })
    }

    /// Of addresses, tag and length.
    fn made(given: &Trace) -> Result<Sample, Fault> {
        let address = |word: &Option<String>, key| match word {
            Some(word) => mac(word, key),
            None => Err(Fault::parameter(key, None)),
        };
        let (source, to) = (address(&given.src, "src")?, address(&given.dst, "dst")?);
        let ip = given.ip.as_deref().map(|word| ip(word, "ip")).transpose()?;
        let range = MIN_FRAME_LEN.into()..=MAX_FRAME_LEN.into();
        let length = number(given.len.clone(), "len", range)?.unwrap_or(LENGTH) as u32;
        let tag = number(given.vlan.clone(), "vlan", 0..=MAX_VLAN.into())?;
        let tag = tag.map(|vlan| [[0x81, 0], (vlan as VlanId).to_be_bytes()].concat());
        let rest = Reserved::usual(to).map_or(&[8, 0][..], |(_, rest)| rest);
        let bytes = [&to.0[..], &source.0, &tag.unwrap_or_default(), rest].concat();
        Ok(Sample { bytes, guarded: headers(source, ip), length, is_given: false })
    }

    /// Its source and its destination.
    fn addresses(&self) -> (MacAddr, MacAddr) {
        let snapshot = self.snapshot();
        (ethernet::source(&snapshot), ethernet::destination(&snapshot))
    }

    fn snapshot(&self) -> Snapshot {
        let mut snapshot = [0; SNAPSHOT_LEN];
        snapshot.iter_mut().zip(&self.bytes).for_each(|(to, byte)| *to = *byte);
        snapshot
    }

    /// The ports that it reaches of those of its segment, if not all, as it is for a group or a
    /// message about groups.
    fn reach(
        &self,
        snooping: &Snooping,
        segment: Segment,
        may_query: bool,
    ) -> Option<(Option<IpAddr>, Reach)> {
        let (now, snapshot) = (clock::coarse_seconds(), self.snapshot());
        let (_, to) = self.addresses();
        if !self.is_given {
            let groups = snooping.limited_by_mac(segment, to.0, now);
            let &(group, limited) = groups.first()?;
            return Some((Some(group), Reach::Members(limited)));
        }
        if !to.is_group() || !multicast::is_of_vlan(&snapshot, segment.vlan()) {
            return None;
        }
        if multicast::may_be_message(&snapshot) {
            let message = (&self.bytes[..], multicast::parse(&self.bytes, true));
            if let Some(reach) = snooping.reach(segment, message, may_query, now) {
                return Some((None, reach));
            }
        }
        let group = multicast::group(&snapshot, self.length)?;
        let limited = snooping.limited(segment, group, now)?;
        Some((Some(group), Reach::Members(limited)))
    }
}

/// A frame on its way out.
#[derive(Clone, Copy)]
struct Way<'a> {
    vlan: VlanId,
    sample: &'a Sample,
}

/// The first bytes of a frame from there, of TCP if it is one of IP.
fn headers(source: MacAddr, ip: Option<IpAddr>) -> Vec<u8> {
    let mut bytes = [[0; 6], source.0].concat();
    match ip {
        None => bytes.extend([0x88, 0xb5]),
        Some(IpAddr::V4(ip)) => {
            bytes.extend([8, 0, 0x45, 0, 0, 20, 0, 0, 0, 0, 64, 6, 0, 0]);
            bytes.extend(ip.octets());
            bytes.extend([0; 4]);
        }
        Some(IpAddr::V6(ip)) => {
            bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, 6, 64]);
            bytes.extend(ip.octets());
            bytes.extend([0; 16]);
        }
    }
    bytes
}

/// Of which frames alone a mirror is, and how much of each it copies, if that is not all.
fn limits_of(watch: &Watch) -> String {
    let vlan = watch.frames.vlan.map(|vlan| format!(", if it is in VLAN {vlan}"));
    let snaplen = watch.frames.snaplen.map(|bytes| format!(", {} at most", counted(bytes, "byte")));
    vlan.into_iter().chain(snaplen).collect()
}

fn quote(port: &Port) -> String {
    format!("'{}'", port.name)
}
