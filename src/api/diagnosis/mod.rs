//! Finds faults that the switch can see itself: facts in, findings out.
//!
//! * [`facts`] what is judged;
//! * [`history`] what a port counted in the last minutes;
//! * `of_switch`, `of_ports`, `of_memory`, `of_addresses`, `of_vlans` what is wrong with that.
//!
//! A client that asks for the health of the switch gets these findings: `vioswitchctl doctor`,
//! `health` and `why`, and the metrics. What can be seen on the host alone, `doctor` adds.
//!
//! Rules: nothing is read here, and time is an argument. A code stays the same in later versions,
//! and docs/doctor.md has it. Cause and command are for people.

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
    /// How bad a finding is.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    Level {
        /// Frames pass, and not as well as they could, or not after the next restart.
        Warn "warn",
        /// Frames do not pass, or something that was asked for is not there.
        Fail "fail",
    }
}

/// A kind of finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Code {
    /// The name, as clients get the code.
    pub name: &'static str,
    /// How bad it is, as a rule.
    pub level: Level,
}

macro_rules! codes {
    ($($code:ident $name:literal $level:ident;)*) => {
        $(#[doc = concat!("The finding `", $name, "`.")]
        pub const $code: Code = Code { name: $name, level: Level::$level };)*

        /// All kinds.
        pub const CODES: &[Code] = &[$($code,)*];
    };
}

codes! {
    DEGRADED "degraded" Fail;
    NOT_KEPT "not-kept" Warn;
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

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub level: Level,
    /// The kind's name.
    pub code: &'static str,
    /// A port, TAP or stream; none for the switch as a whole.
    pub port: Option<String>,
    /// Other ports that it is about as much; of the switch as a whole those that it names.
    pub with: Vec<String>,
    /// The fault, in a sentence.
    pub cause: String,
    /// The command that mends the fault; the reader fills in words in capitals.
    pub command: String,
}

impl Finding {
    /// One of a port.
    fn of(code: Code, port: &facts::Port, cause: String, command: impl Into<String>) -> Finding {
        Finding { port: Some(port.name.clone()), ..Finding::of_switch(code, cause, command) }
    }

    /// One of the switch as a whole.
    fn of_switch(code: Code, cause: String, command: impl Into<String>) -> Finding {
        let Code { name, level } = code;
        let command = command.into();
        Finding { level, code: name, port: None, with: Vec::new(), cause, command }
    }
}

/// Returns the findings, the worst first, [`FINDINGS_TOLD`] at most.
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
