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
pub mod history;
mod of_addresses;
mod of_memory;
mod of_ports;
mod of_switch;
mod of_vlans;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use base::limits::FINDINGS_TOLD;
use facts::Facts;

base::words! {
    /// Level of a finding.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    Level {
        /// Frames pass, but more slowly or less safely than possible, or not after the next
        /// restart.
        Warn "warn",
        /// Frames do not pass, or a configured port or service is missing.
        Fail "fail",
    }
}

/// A kind of finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Code {
    /// Name of the code for clients.
    pub name: &'static str,
    /// Usual level of the finding.
    pub level: Level,
}

macro_rules! codes {
    ($($code:ident $name:literal $level:ident;)*) => {
        $(#[doc = concat!("The finding `", $name, "`.")]
        pub const $code: Code = Code { name: $name, level: Level::$level };)*

        /// All kinds of findings.
        pub const CODES: &[Code] = &[$($code,)*];
    };
}

codes! {
    DEGRADED "degraded" Fail;
    KEPT_WITHOUT_EFFECT "kept-without-effect" Warn;
    SANDBOX_REFUSED "sandbox-refused" Warn;
    SETTINGS_AT_ODDS "settings-at-odds" Warn;
    PORT_DISABLED "port-disabled" Warn;
    RING_BROKEN "ring-broken" Fail;
    MEMORY_NOT_SHARED "memory-not-shared" Fail;
    MEMORY_ON_DISK "memory-on-disk" Warn;
    MEMORY_PARTLY_SHARED "memory-partly-shared" Warn;
    FRAMES_REFUSED "frames-refused" Warn;
    RECEIVER_OVERLOADED "receiver-overloaded" Warn;
    FRAMES_TOO_LONG "frames-too-long" Warn;
    OFFLOADS_IN_SOFTWARE "offloads-in-software" Warn;
    FDB_FULL "fdb-full" Warn;
    ADDRESS_OF_ANOTHER "address-of-another" Warn;
    ADDRESS_MOVING "address-moving" Warn;
    PORT_ALONE "port-alone" Warn;
    VLAN_WITHOUT_UPLINK "vlan-without-uplink" Warn;
    TAP_GONE "tap-gone" Fail;
    TAP_DOWN "tap-down" Fail;
    UPLINKS_IN_ONE_BRIDGE "uplinks-in-one-bridge" Warn;
}

/// A fault that the diagnosis found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Level of the finding.
    pub level: Level,
    /// Name of the finding's kind.
    pub code: &'static str,
    /// Port, TAP or stream of the fault; none for the switch as a whole.
    pub port: Option<String>,
    /// Other ports with a part in the fault; for the switch as a whole the ports that the cause
    /// names.
    pub with: Vec<String>,
    /// Description of the fault, in a sentence.
    pub cause: String,
    /// Command that removes the fault; the reader replaces words in capitals.
    pub command: String,
}

impl Finding {
    /// Makes a finding about a port.
    fn of(code: Code, port: &facts::Port, cause: String, command: impl Into<String>) -> Finding {
        Finding { port: Some(port.name.clone()), ..Finding::of_switch(code, cause, command) }
    }

    /// Makes a finding about the switch as a whole.
    fn of_switch(code: Code, cause: String, command: impl Into<String>) -> Finding {
        let Code { name, level } = code;
        let command = command.into();
        Finding { level, code: name, port: None, with: Vec::new(), cause, command }
    }
}

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
