//! What would become of a frame: each step in a sentence, and where it ends.

use std::net::IpAddr;

use super::methods::{Switch, unknown_port};
use super::parameters::{ip, mac, number};
use super::show;
use crate::config::limit_word;
use crate::frame::MacAddr;
use crate::frame::ethernet::TagEdit;
use crate::limits::MAX_VLAN;
use crate::limits::{MAX_FRAME_LEN, MIN_FRAME_LEN};
use crate::port::{Behind, Port, PortTable};
use crate::stats::DropReason;
use crate::switch::mirror::Watch;
use crate::switch::port_security::{self, Headers, Refused};
use crate::switch::{
    Bridge, Decision, DropCause, Flood, FloodClass, Ingress, Membership, Policy, PortId,
    PortPolicy, Reserved, ReservedSet, Segment, Source, Station, VlanId,
};
use crate::sys::clock;
use crate::wire::{Fault, State, Trace, Traced};

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
    pub(super) fn trace(&self, given: Trace) -> Result<Traced, Fault> {
        let name = given.port;
        let (source, destination) = (mac(&given.src, "src")?, mac(&given.dst, "dst")?);
        let ip = given.ip.as_deref().map(|word| ip(word, "ip")).transpose()?;
        let range = MIN_FRAME_LEN.into()..=MAX_FRAME_LEN.into();
        let length = number(given.len, "len", range)?.unwrap_or(LENGTH) as u32;
        let ports = self.view.ports.present();
        let port = ports.named(&name).ok_or_else(|| unknown_port(&ports, &name))?;
        let tag = number(given.vlan, "vlan", 0..=MAX_VLAN.into())?.map(|vlan| vlan as VlanId);
        let protocol = Reserved::usual(destination);
        let rest = protocol.map_or(&[8, 0][..], |(_, rest)| rest);
        let bytes = head(destination, source, tag, rest);
        let ingress = Ingress { port: port.id, kind: port.kind() };
        let policy = Policy { fdb: &self.view.fdb, ports: &*ports, rules: self.view.rules };
        let mut told = Told::default();
        told.coming(port);
        let asked = ports.policy(port.id);
        if !asked.forwards {
            told.reason = Some(DropReason::AdminDown);
            return Ok(told.answer());
        }
        if told.mirrored(&ports, port) || told.guard(port, asked, source, ip) {
            return Ok(told.answer());
        }
        let Some(vlan) = told.admitted(port, asked, &bytes, tag) else {
            return Ok(told.answer());
        };
        let segment = asked.segment(vlan);
        let way = Way { vlan, bytes: &bytes, length };
        let [from, to] = [source, destination].map(|mac| Station::new(segment, mac));
        let trace = policy.trace(ingress, from, to, clock::coarse_seconds());
        if let Some(limit) = port.rates.input.limit() {
            let limit = limit_word(&limit);
            told.step(format!("its rate-in is {limit}: what exceeds it waits there"));
        }
        told.source(&ports, source, trace.source);
        let mut decision = trace.decision;
        if let (Some((protocol, _)), true) = (protocol, trace.is_reserved()) {
            told.reserved(port, asked.passes, (destination, protocol));
            decision = policy.decide_reserved(ingress, &bytes);
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
        told.mirrored_out(&ports);
        Ok(told.answer())
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
        let limited = self.limited(ports, segment, destination);
        for to in ports.iter().filter(|to| ports.policy(to.id).is_member(segment)) {
            let asked = ports.policy(to.id);
            let why = if limited.as_ref().is_some_and(|reached| !reached.contains(&to.id)) {
                "it is no member of the group".to_owned()
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
    ) {
        let (port, word) = (quote(port), protocol.name());
        let does = if passes.has(protocol) { "passes" } else { "does not pass" };
        self.step(format!(
            "taken for a frame of {word}, which {address} is for: {port} {does} {word}"
        ));
    }

    /// The ports that frames of the group with this address reach, if these are limited.
    fn limited(
        &mut self,
        ports: &PortTable,
        segment: Segment,
        destination: MacAddr,
    ) -> Option<Vec<PortId>> {
        let now = clock::coarse_seconds();
        let groups = ports.snooping()?.limited_by_mac(segment, destination.0, now);
        let &(group, limited) = groups.first()?;
        let members = ports.iter().filter(|to| ports.policy(to.id).is_member(segment));
        let mut reached: Vec<PortId> = members.map(|to| to.id).collect();
        ports.keep_members(limited, &mut reached);
        let names: Vec<String> = reached.iter().map(|id| quote(&ports[*id])).collect();
        self.step(format!(
            "group {group}: members, routers, and ports not asked yet are {}",
            names.join(", ")
        ));
        Some(reached)
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
        tag: Option<VlanId>,
    ) -> Option<VlanId> {
        let vlan = vlans.classify(bytes);
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
                    None => "a frame without a tag".to_owned(),
                };
                self.step(format!("{} {is}: {frame} does not come in", quote(port)));
                self.reason = Some(DropReason::Vlan);
            }
        }
        vlan
    }

    /// What the port's guard says of a frame with these addresses; true if it drops it.
    fn guard(
        &mut self,
        port: &Port,
        asked: &PortPolicy,
        source: MacAddr,
        ip: Option<IpAddr>,
    ) -> bool {
        let Some(rules) = &asked.security else { return false };
        let bytes = headers(source, ip);
        let frame = Headers { bytes: &bytes, len: bytes.len(), sum_at: None, is_cut: false };
        let guard = if rules.enforced { "guard=on" } else { "guard=log" };
        let Err(Refused::Broken(violation)) = port_security::check(rules, &frame) else {
            let servers = rules.servers.names().join(",");
            let servers = match servers.is_empty() {
                true => String::new(),
                false => format!(", allow-server={servers}"),
            };
            self.step(format!("its source addresses are allowed ({guard}{servers})"));
            return false;
        };
        let (address, to) = (violation.address, quote(port));
        let alone = if rules.enforced { "" } else { ", which counts it alone" };
        self.step(format!("{address} is not allowed as a source address of {to} ({guard}{alone})"));
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
        let Way { vlan, bytes, length } = way;
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
        } else if length > most {
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

/// The first bytes of such a frame, of which `rest` are behind its addresses and tag.
fn head(destination: MacAddr, source: MacAddr, tag: Option<VlanId>, rest: &[u8]) -> Vec<u8> {
    let tag = tag.map(|vlan| [[0x81, 0], vlan.to_be_bytes()].concat());
    [&destination.0[..], &source.0, &tag.unwrap_or_default(), rest].concat()
}

/// A frame on its way out.
#[derive(Clone, Copy)]
struct Way<'a> {
    vlan: VlanId,
    bytes: &'a [u8],
    length: u32,
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
    let snaplen = watch.frames.snaplen.map(|bytes| format!(", {bytes} bytes at most"));
    vlan.into_iter().chain(snaplen).collect()
}

fn quote(port: &Port) -> String {
    format!("'{}'", port.name)
}
