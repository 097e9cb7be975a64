//! Lists the degradations of the switch: each has a code, for programs, and a text.
//!
//! A port, a service or a change that fails does not end the switch. `Daemon::degradations` returns
//! all degradations; the control socket, the metrics and the service manager report them.

use datapath::port::Port;
use sys::clock;

macro_rules! codes {
    ($($name:ident $code:literal $meaning:literal,)*) => {
        /// A kind of degradation.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Code { $(#[doc = $meaning] $name,)* }

        impl Code {
            /// All kinds of degradations.
            pub const ALL: &[Code] = &[$(Code::$name,)*];

            /// Returns the name of the code, which programs rely on and which never changes.
            pub fn name(self) -> &'static str {
                match self { $(Code::$name => $code,)* }
            }

            /// Returns the meaning of the code.
            pub fn meaning(self) -> &'static str {
                match self { $(Code::$name => $meaning,)* }
            }
        }
    };
}

codes! {
    PortLeftOut "port-left-out" "a port or stream has no socket",
    TapLeftOut "tap-left-out"
        "a TAP, XDP uplink or VDUSE device has no interface since the start",
    PortBeingRemoved "port-being-removed"
        "a port was deleted, and the removal has not ended yet",
    Metrics "metrics" "metrics are not served by HTTP",
    Plug "plug" "the switch does not watch the directory of ports by plug, or not all files",
    Latency "latency" "CPUs enter deep idle states while frames come",
    LastGoodConfiguration "last-good-configuration"
        "the files of the configuration have errors, and the last good files are in force",
    ReloadNotConfirmed "reload-not-confirmed"
        "a reload was not confirmed, and the earlier configuration runs",
    ChangesNotKept "changes-not-kept" "changes cannot be kept for the next start",
    StateFileDamaged "state-file-damaged" "a file of the state directory could not be read",
}

impl Code {
    /// Returns the code of a port that is left out.
    pub(crate) fn of(port: &Port) -> Code {
        if port.interface().is_some() { Code::TapLeftOut } else { Code::PortLeftOut }
    }

    /// True if the subject of the degradation is a port of any kind.
    pub(crate) fn is_port(self) -> bool {
        matches!(self, Code::PortLeftOut | Code::TapLeftOut | Code::PortBeingRemoved)
    }
}

/// Something that the switch is configured to have or to do, and has not or does not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Degradation {
    /// Kind of the degradation.
    pub(crate) code: Code,
    /// The port, TAP or stream of the degradation; none if the degradation concerns no port.
    pub(crate) subject: Option<String>,
    /// The reason, with the name of the subject.
    pub(crate) text: String,
    /// The time at which the degradation was found: microseconds since 1970.
    pub(crate) since: u64,
}

impl Degradation {
    /// Returns a degradation that is found now.
    pub(crate) fn new(code: Code, subject: Option<&str>, text: String) -> Degradation {
        let since = clock::wall_nanos() / 1_000;
        Degradation { code, subject: subject.map(str::to_owned), text, since }
    }
}

#[cfg(test)]
mod tests {
    use testkit::manual::hold_table;

    use super::*;

    #[test]
    fn each_code_is_on_the_page() {
        let mark = "<!-- UPDATE_DOCS: src/daemon/degraded.rs -->";
        let row = |code: &Code| format!("`{}` | {}\n", code.name(), code.meaning());
        let rows: String = Code::ALL.iter().map(row).collect();
        let table = format!("code | meaning\n---|---\n{rows}");
        hold_table("docs/events.md", mark, &table);
    }
}
