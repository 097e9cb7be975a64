//! What would become of a frame: each step in a sentence, and where it ends.

use super::methods::{Switch, unknown_port};
use super::parameters::{mac, number};
use super::show;
use crate::config::rate_word;
use crate::frame::MacAddr;
use crate::limits::{MAX_FRAME_LEN, MIN_FRAME_LEN};
use crate::port::{Port, PortTable};
use crate::stats::DropReason;
use crate::switch::{Decision, DropCause, Flood, Ingress, Policy, PortId, Source};
use crate::wire::{Fault, State, Trace, Traced};

/// A frame of a ping has 98 bytes.
const LENGTH: u64 = 98;

/// What is told of a frame.
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
        let source = mac(&given.source, "source")?;
        let destination = mac(&given.destination, "destination")?;
        let range = MIN_FRAME_LEN.into()..=MAX_FRAME_LEN.into();
        let length = number(given.length, "length", range)?.unwrap_or(LENGTH) as u32;
        let ports = self.view.ports.present();
        let port = ports.named(&name).ok_or_else(|| unknown_port(&ports, &name))?;
        let ingress = Ingress { port: port.id, kind: port.kind() };
        let policy = Policy { fdb: &self.view.fdb, ports: &*ports, rules: self.view.rules };
        let trace = policy.trace(ingress, source, destination);
        let mut told = Told::default();
        told.coming(port);
        if !port.policy.get().forwards {
            told.reason = Some(DropReason::AdminDown);
            return Ok(told.answer());
        }
        if let Some(rate) = port.rates.input.rate() {
            told.step(format!("its rate-in is {}: what exceeds it waits there", rate_word(&rate)));
        }
        told.source(&ports, source, trace.source);
        match trace.decision {
            Decision::Unicast(to) => {
                let to = &ports[to];
                told.step(format!(
                    "{destination} is on {}: the frame is sent there alone",
                    quote(to)
                ));
                told.leaving(to, length);
            }
            Decision::Flood(flood) => {
                let why = match flood {
                    Flood::Group => "is a group's address",
                    Flood::Unknown => "is not known",
                };
                told.step(format!("{destination} {why}: it is flooded"));
                for to in ports.iter() {
                    if !policy.rules.flood_reaches(ingress, to.id, to.kind()) {
                        if to.id != port.id {
                            told.step(format!("not to {}: both are uplinks", quote(to)));
                        }
                    } else if to.policy.get().forwards && !to.policy.get().takes(flood) {
                        told.step(format!("not to {}: flood=off", quote(to)));
                    } else {
                        told.leaving(to, length);
                    }
                }
            }
            Decision::Drop(cause) => told.dropped(destination, cause),
        }
        Ok(told.answer())
    }
}

impl Told {
    fn step(&mut self, text: String) {
        self.steps.push(text);
    }

    fn coming(&mut self, port: &Port) {
        let state = show::state(port);
        let instead = match state {
            State::Attached => String::new(),
            state => format!(", which is {state}: nothing comes from there now"),
        };
        self.step(format!("in on {}{instead}", quote(port)));
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
            Source::New => format!("{mac} is new, and is learned here"),
        });
    }

    /// Whether it gets out of a port.
    fn leaving(&mut self, port: &Port, length: u32) {
        let (to, state, most) = (quote(port), show::state(port), port.mtu.max_len());
        let reason = if !port.policy.get().forwards {
            self.step(format!("not to {to}: it is administratively down (admin=down)"));
            DropReason::AdminDown
        } else if port.as_tap().is_some() && !port.is_up() {
            let why =
                if port.is_left_out() { "it has no interface" } else { "its interface is gone" };
            self.step(format!("not to {to}: {why}"));
            DropReason::TapGone
        } else if state == State::Down {
            self.step(format!("not to {to}: its interface is down"));
            DropReason::TapDown
        } else if port.is_left_out() && port.as_guest().is_some() {
            self.step(format!("not to {to}: it has no socket"));
            DropReason::PortDown
        } else if port.as_stream().is_some() && state != State::Attached {
            self.step(format!("not to {to}: no process is connected to it"));
            DropReason::StreamGone
        } else if state != State::Attached {
            self.step(format!("not to {to}: it is {state}, no driver takes frames there"));
            DropReason::PortDown
        } else if length > most {
            let most = most - MIN_FRAME_LEN;
            self.step(format!("not to {to}: {length} bytes are too long for an MTU of {most}"));
            DropReason::TooBig
        } else {
            self.step(match port.rates.output.rate().map(|rate| rate_word(&rate)) {
                Some(rate) => {
                    format!("out to {to}, unless its rate-out of {rate} is used up (rate)")
                }
                None => format!("out to {to}"),
            });
            self.ports.push(port.name.clone());
            return;
        };
        self.reason.get_or_insert(reason);
    }

    fn dropped(&mut self, destination: MacAddr, cause: DropCause) {
        let (text, reason) = match cause {
            // The step about the source has said so.
            DropCause::BadSource => {
                self.reason = Some(DropReason::BadSource);
                return;
            }
            DropCause::ReservedAddress => {
                ("is an address that a bridge keeps to itself", DropReason::Reserved)
            }
            DropCause::Hairpin => ("is on the port that it came from", DropReason::Hairpin),
            // The step about its port has said so.
            DropCause::AdminDown => {
                self.reason = Some(DropReason::AdminDown);
                return;
            }
            DropCause::UplinkToUplink => {
                ("is on another uplink, and uplink-to-uplink is off", DropReason::UplinkToUplink)
            }
        };
        self.step(format!("{destination} {text}"));
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

fn quote(port: &Port) -> String {
    format!("'{}'", port.name)
}
