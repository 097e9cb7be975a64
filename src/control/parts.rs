//! Answers of several parts. A part is made when its client has room for it, one in each turn.

use std::time::Instant;

use serde::Serialize;
use serde_json::Value;

use super::adding::AddWait;
use super::connection::{Closed, Connection, Idle};
use super::details::DetailsWait;
use super::events::EventStream;
use super::frames::Frames;
use super::groups::GroupList;
use super::message;
use super::methods::Switch;
use super::reload::{DiffWait, List, ReloadWait};
use super::show;
use super::wait::PortWait;
use crate::limits::{CONTROL_ADDRESSES_A_REPLY, CONTROL_PORTS_A_REPLY, METRICS_PART_BYTES};
use crate::metrics::Scrape;
use crate::switch::{Entry, PortId};
use crate::wire::{
    self, Addresses, ConfigEntries, ConfigEntry, Fault, Finding, Findings, Metrics, Ports,
    RuntimeChange, RuntimeChanges,
};

/// An answer of several parts.
#[derive(Debug)]
pub enum Stream {
    /// Ports from this number on. The table is the present one for each part.
    Ports(PortId),
    /// Addresses, as they were when they were asked for.
    Addresses(Vec<Entry>),
    /// Queriers, routers, and members of groups.
    Groups(Box<GroupList>),
    /// One reply, when a port is as far as is wanted.
    Wait(PortWait),
    /// What is wrong, as it was when it was asked for.
    Findings(List<Finding>),
    /// What is in force, as it was when it was asked for.
    Config(List<ConfigEntry>),
    /// How what is in force differs from what the configuration says.
    Changes(List<RuntimeChange>),
    /// What reading the configuration again would change.
    Diff(DiffWait),
    /// One reply, when the socket of a new port is open.
    Add(Box<AddWait>),
    /// One reply, when a reload is done.
    Reload(ReloadWait),
    /// What happens, in order.
    Events(EventStream),
    /// Copies of frames, as they pass.
    Frames(Frames),
    /// One reply, when a port's session has answered.
    Details(DetailsWait),
    /// Metrics, as they were when they were asked for.
    Metrics(Box<Scrape>),
}

/// What comes next of an answer of several parts.
#[derive(Debug)]
pub enum Part {
    /// This; true if another one follows.
    Reply(Value, bool),
    /// Nothing until then, or until something that is waited for happens.
    Later(Option<Instant>),
    /// The answer ends here, with an error.
    Fault(Fault),
}

impl Part {
    /// An answer, or a part of one.
    pub fn reply(answer: &impl Serialize, more: bool) -> Part {
        Part::Reply(wire::json(answer), more)
    }

    /// The same, with others behind it.
    pub fn followed(self) -> Part {
        match self {
            Part::Reply(parameters, _) => Part::Reply(parameters, true),
            other => other,
        }
    }
}

impl Switch {
    /// Queues the next part of a client's answer, or has it wait for what the answer waits for.
    pub fn go_on(&self, client: &mut Connection) -> Result<(), Closed> {
        let Some(mut stream) = client.stream.take() else { return Ok(()) };
        match self.part(&mut stream) {
            Part::Reply(parameters, more) => {
                client.stream = more.then_some(stream);
                client.push(&message::reply(parameters, more))
            }
            Part::Later(until) => {
                client.stream = Some(stream);
                client.idle = Some(Idle { until });
                Ok(())
            }
            Part::Fault(fault) => client.push(&fault.message()),
        }
    }

    /// The next part of an answer.
    fn part(&self, stream: &mut Stream) -> Part {
        let ports = self.view.ports.present();
        match stream {
            Stream::Ports(next) => {
                let first = *next;
                let mut left = ports.iter().filter(|port| port.id >= first).peekable();
                let mut told = Vec::new();
                while let Some(port) = left.next_if(|_| told.len() < CONTROL_PORTS_A_REPLY) {
                    told.push(self.show(port));
                    *next = port.id.saturating_add(1);
                }
                Part::reply(&Ports { ports: told }, left.peek().is_some())
            }
            Stream::Addresses(entries) => {
                let rest = entries.len().saturating_sub(CONTROL_ADDRESSES_A_REPLY);
                let part = entries.split_off(rest);
                let daemon = self.daemon();
                let shown = |entry| show::address(entry, &ports, daemon.desired());
                let addresses = part.iter().rev().filter_map(shown).collect();
                Part::reply(&Addresses { addresses }, rest > 0)
            }
            Stream::Details(wait) => wait.part(self),
            Stream::Groups(list) => list.part(&ports),
            Stream::Findings(list) => list.part(|findings| Findings { findings }),
            Stream::Config(list) => list.part(|entries| ConfigEntries { entries }),
            Stream::Changes(list) => list.part(|changes| RuntimeChanges { changes }),
            Stream::Diff(wait) => wait.part(self),
            Stream::Add(wait) => wait.part(self),
            Stream::Reload(wait) => wait.part(self),
            Stream::Wait(wait) => wait.part(&ports, |port| self.show(port)),
            Stream::Metrics(scrape) => {
                let text = scrape.part(METRICS_PART_BYTES);
                Part::reply(&Metrics { text }, !scrape.is_done())
            }
            Stream::Events(events) => {
                let label = |port: &str| self.daemon().desired().get(port)?.settings.label.clone();
                events.part(&self.view.events, label)
            }
            Stream::Frames(frames) => frames.part(&ports),
        }
    }
}
