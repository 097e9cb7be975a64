//! Findings, and the table of their codes.

use serde::{Deserialize, Serialize};

use super::facts;
use base::stats::DropReason;
use base::words::quote;

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
    pub fn of(
        code: Code,
        port: &facts::Port,
        cause: String,
        command: impl Into<String>,
    ) -> Finding {
        Finding { port: Some(port.name.clone()), ..Finding::of_switch(code, cause, command) }
    }

    /// Makes a finding about a port that drops frames for a reason, with the advice on the reason.
    pub(crate) fn of_drops(
        code: Code,
        port: &facts::Port,
        reason: DropReason,
        cause: String,
    ) -> Finding {
        let interface = port.link.as_ref().map_or("IFNAME".to_owned(), |l| quote(&l.interface));
        let command = reason.advice().replace("IFNAME", &interface).replace("NAME", &port.name);
        Finding::of(code, port, cause, command)
    }

    /// Makes a finding about the switch as a whole.
    pub fn of_switch(code: Code, cause: String, command: impl Into<String>) -> Finding {
        let Code { name, level } = code;
        let command = command.into();
        Finding { level, code: name, port: None, with: Vec::new(), cause, command }
    }
}
