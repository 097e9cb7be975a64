//! Faults of bridges and VLANs: ports that reach no other port.

use super::facts::{Facts, Port, Segment};
use super::finding::{Finding, PORT_ALONE, VLAN_WITHOUT_UPLINK};

pub fn judge(facts: &Facts, found: &mut Vec<Finding>) {
    for (at, port) in facts.ports.iter().enumerate() {
        let Some(segment) = &port.segment else {
            continue;
        };
        if !segment.is_shared {
            found.push(alone(port, segment));
        } else if segment.is_cut_off {
            found.extend(cut_off(at, port, segment, facts));
        }
    }
}

fn alone(port: &Port, segment: &Segment) -> Finding {
    let cause = format!("the port is alone in {}: its frames reach no other port", segment.name);
    let command =
        format!("vioswitchctl port show {}; give other ports the same bridge and vlan", port.name);
    Finding::of(PORT_ALONE, port, cause, command)
}

/// Finds a VLAN without uplink; one finding for each VLAN, about the VLAN's first port.
fn cut_off(at: usize, port: &Port, segment: &Segment, facts: &Facts) -> Option<Finding> {
    let is_here = |other: &&Port| other.segment.as_ref().is_some_and(|is| is.name == segment.name);
    if facts.ports[..at].iter().any(|other| is_here(&other)) {
        return None;
    }
    let others = facts.ports[at + 1..].iter().filter(is_here);
    let with = others.map(|other| other.name.clone()).collect();
    let cause = format!(
        "its bridge has an uplink, but neither the uplink nor a trunk is in {}",
        segment.name
    );
    let command = "vioswitchctl tap set NAME trunk=LIST, if the VLAN is to leave the host";
    Some(Finding { with, ..Finding::of(VLAN_WITHOUT_UPLINK, port, cause, command) })
}
