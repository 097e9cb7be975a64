//! Sends copies of frames to a client that looks at them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use super::methods::unknown_port;
use super::parameters::{number, wrong};
use super::parts::Part;
use crate::View;
use api::wire::{self, Capture, Fault, Packet, Packets};
use base::limits::{
    CAPTURE_BYTES_A_REPLY, CAPTURE_FILTER_INSTRUCTIONS, CAPTURE_PACKETS_A_REPLY, CAPTURE_SNAPLEN,
    CAPTURE_STEP, MAX_CAPTURES, MAX_PORTS,
};
use datapath::capture::filter::{Filter, Instruction};
use datapath::capture::{self, Batch, Wanted};
use datapath::port::{PortTable, Ports};
use switch::PortId;

/// A capture that a client has begun; the capture ends with its client.
#[derive(Debug)]
pub struct Frames {
    capture: Arc<capture::Capture>,
    ports: Arc<Ports>,
    /// True if ports that are added later are captured too.
    all: bool,
    /// Names of ports, also of ports that are gone.
    names: HashMap<PortId, String>,
    /// Batches with the collected frames; `order` has the places of the frames that were not sent.
    batches: Vec<Batch>,
    order: Vec<(usize, usize)>,
    begun: bool,
}

impl Frames {
    /// Begins the capture that `Capture` requests.
    pub(crate) fn new(given: Capture, view: &View) -> Result<Frames, Fault> {
        let drops_only = given.drops.unwrap_or(false);
        let most = CAPTURE_SNAPLEN as u64;
        let snaplen = number(given.snaplen, "snaplen", 1..=most)?.unwrap_or(most) as usize;
        let filter = given.filter.map(filter).transpose()?;
        let names = names(given.ports.unwrap_or_default(), &view.ports.present())?;
        let ports = names.keys().copied().collect();
        let wanted = Wanted { ports, drops_only, filter, snaplen };
        let capture = Arc::new(capture::Capture::new(wanted, view.workers.handles().len()));
        if !view.ports.begin_capture(&capture) {
            return Err(Fault::refused(&format!("there are {MAX_CAPTURES} captures already")));
        }
        let ports = Arc::clone(&view.ports);
        let (batches, order) = (Vec::new(), Vec::new());
        let all = names.is_empty();
        Ok(Frames { capture, ports, all, names, batches, order, begun: false })
    }

    /// Returns the names of the captured ports.
    pub(crate) fn ports(&self) -> String {
        let mut names: Vec<&str> = self.names.values().map(String::as_str).collect();
        names.sort_unstable();
        if names.is_empty() { "all ports".to_owned() } else { names.join(", ") }
    }

    /// Returns the next copies.
    pub(crate) fn part(&mut self, ports: &PortTable) -> Part {
        if !std::mem::replace(&mut self.begun, true) {
            return Part::reply(&Packets::default(), true);
        }
        // The check comes before the collection: copies from before the last port went are sent.
        let over = self.capture.is_over();
        if self.order.is_empty() {
            self.collect(ports);
        }
        let lost = self.capture.take_lost();
        let packets = self.packets();
        if packets.is_empty() && lost == 0 && !over {
            return Part::Later(Some(Instant::now() + CAPTURE_STEP));
        }
        let more = !over || !self.order.is_empty();
        Part::reply(&Packets { packets, lost }, more)
    }

    fn collect(&mut self, ports: &PortTable) {
        self.capture.collect(&mut self.batches);
        for port in ports.iter().filter(|_| self.all) {
            self.names.insert(port.id, port.name.clone());
        }
        let (batches, order) = (&self.batches, &mut self.order);
        let all = batches.iter().enumerate();
        order.extend(all.flat_map(|(at, batch)| (0..batch.len()).map(move |index| (at, index))));
        // Frames are taken from the end, so the latest frame is first; frames of equal time keep
        // the order in which a worker left them.
        order.reverse();
        order.sort_by_key(|&(at, index)| {
            let time = batches[at].get(index).map(|(packet, _)| packet.time);
            std::cmp::Reverse(time)
        });
    }

    fn packets(&mut self) -> Vec<Packet> {
        let (mut told, mut bytes) = (Vec::new(), 0);
        while told.len() < CAPTURE_PACKETS_A_REPLY && bytes < CAPTURE_BYTES_A_REPLY {
            let Some((at, index)) = self.order.pop() else { break };
            let Some((packet, data)) = self.batches[at].get(index) else { continue };
            let Some(name) = self.names.get(&packet.port) else { continue };
            bytes += data.len();
            told.push(show(packet, name, data));
        }
        told
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        self.ports.end_capture(&self.capture);
    }
}

fn show(packet: capture::Packet, name: &str, data: &[u8]) -> Packet {
    Packet {
        port: name.to_owned(),
        direction: packet.direction,
        time: packet.time,
        length: packet.len.into(),
        data: BASE64_STANDARD.encode(data),
        dropped: packet.dropped.map(|reason| reason.name().to_owned()),
    }
}

/// Returns the ports of these names, by their numbers.
fn names(names: Vec<String>, ports: &PortTable) -> Result<HashMap<PortId, String>, Fault> {
    if names.len() > MAX_PORTS {
        return Err(Fault::parameter("ports", None));
    }
    let find = |name: String| {
        let port = ports.named(&name).ok_or_else(|| unknown_port(ports, &name))?;
        Ok((port.id, name))
    };
    names.into_iter().map(find).collect()
}

/// Returns a program that selects frames.
fn filter(program: Vec<wire::Instruction>) -> Result<Filter, Fault> {
    if program.len() > CAPTURE_FILTER_INSTRUCTIONS {
        return Err(Fault::parameter("filter", None));
    }
    let program = program.into_iter();
    let program =
        program.map(|wire::Instruction { code, jt, jf, k }| Instruction { code, jt, jf, k });
    Filter::new(program.collect()).map_err(|error| wrong("filter", error.to_string(), ""))
}
