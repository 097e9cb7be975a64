//! Finds faults that the switch can see itself: facts in, findings out.
//!
//! * [`facts`] facts about the switch and its ports;
//! * [`history`] counts of a port in the last minutes;
//! * `of_switch`, `of_ports`, `of_memory`, `of_addresses`, `of_vlans` faults in these facts.
//!
//! `vioswitchctl doctor`, `health` and `why`, and the metrics, report these findings. `doctor` adds
//! faults that can be seen only on the host.
//!
//! Rules: the code here reads nothing, and time is an argument. Codes do not change in later
//! versions, and docs/doctor.md lists the codes. Cause and command are for people.

pub mod facts;
mod finding;
pub mod history;
mod of_addresses;
mod of_memory;
mod of_ports;
mod of_switch;
mod of_vlans;
#[cfg(test)]
mod tests;

use base::limits::FINDINGS_TOLD;
use facts::Facts;
pub use finding::*;

/// Returns at most [`FINDINGS_TOLD`] findings, the worst first.
pub fn judge(facts: &Facts) -> Vec<Finding> {
    let mut found = Vec::new();
    of_switch::judge(facts, &mut found);
    of_ports::judge(facts, &mut found);
    of_memory::judge(facts, &mut found);
    of_addresses::judge(facts, &mut found);
    of_vlans::judge(facts, &mut found);
    found.sort_by_key(|finding| std::cmp::Reverse(finding.level));
    found.truncate(FINDINGS_TOLD);
    found
}
