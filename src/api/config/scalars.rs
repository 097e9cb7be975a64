//! Settings outside of entries. Each setting is one line of a table, from which come the option,
//! the option's help, the key in files, and the rule by which the command line overrides files.

use std::path::PathBuf;

use clap::Arg;
use log::LevelFilter;

use super::claims::{Claim, Segment, Shared};
use super::configuration::Machine;
use super::cpus::cpu_list;
use super::keys::Settings;
use super::kind::Kind;
use super::latency::{Latency, latency};
use super::raw::{Location, Setting};
use super::value::{
    MetricsSocket, group, log_level, metrics, number, one_of, socket_directory, socket_path, text,
    truth, workers,
};
use base::limits;
use base::words::Words;

/// An option that is also a key of files.
pub(super) struct Scalar {
    pub(super) name: &'static str,
    /// Placeholder of the value in `--help`.
    form: &'static str,
    help: &'static str,
}

impl Scalar {
    /// Returns the option for clap.
    pub(super) fn option(&self) -> Arg {
        let arg = Arg::new(self.name).long(self.name).value_name(self.form).help(self.help);
        match self.form {
            "BOOL" => arg.num_args(0..=1).require_equals(true).default_missing_value("true"),
            "N" | "SECONDS" | "LIST" => arg.allow_hyphen_values(true),
            _ => arg,
        }
    }
}

macro_rules! scalars {
    ($($name:literal $field:ident: $type:ty = $default:expr, $form:literal, $read:expr, $word:expr,
        $help:literal;)*) => {
        /// Given settings outside of entries.
        #[derive(Debug, Clone, Default)]
        pub(super) struct Scalars {
            $(pub(super) $field: Option<$type>,)*
            /// Template with its place.
            pub(super) template: Option<(Location, Settings)>,
        }

        impl Scalars {
            /// Returns these settings, with the settings of `under` in place of missing settings.
            pub(super) fn or(self, under: Scalars) -> Scalars {
                Scalars {
                    $($field: self.$field.or(under.$field),)*
                    template: self.template.or(under.template),
                }
            }

            /// Returns all settings, with defaults in place of missing settings.
            pub(super) fn complete(self) -> Scalars {
                let Scalars { $($field,)* template } = self;
                Scalars { $($field: $field.or($default),)* template }
            }

            /// Returns the keys with the values of keys that are set.
            pub(super) fn words(&self) -> Vec<(&'static str, Option<String>)> {
                $(let $field: fn(&$type) -> String = $word;)*
                vec![$(($name, self.$field.as_ref().map($field)),)*]
            }

            /// Reads a setting; returns false for a key that is not in the table.
            pub(super) fn read(
                &mut self,
                setting: &Setting,
                machine: Machine<'_>,
            ) -> Result<bool, String> {
                match setting.key.as_str() {
                    $($name => {
                        let read: fn(&Setting, Machine<'_>) -> Result<$type, String> = $read;
                        self.$field = Some(read(setting, machine)?);
                    })*
                    _ => return Ok(false),
                }
                Ok(true)
            }
        }

        pub(super) const SCALARS: &[Scalar] =
            &[$(Scalar { name: $name, form: $form, help: $help },)*];
    };
}

// key, field: type = default, placeholder of the value, reader, writer, help
scalars! {
    "workers" workers: usize = Some(limits::DEFAULT_WORKERS), "N",
        |setting, machine| workers(setting, machine.cpus), usize::to_string,
        "Threads that forward frames: 1 to 256, or auto: one for each CPU, at most 4 \
         [default: 1]";
    "cpus" cpus: Vec<usize> = None, "LIST",
        |setting, machine| cpu_list(setting, machine.allowed), |cpus| list(cpus),
        "Bind worker i to the i-th of these CPUs, such as 0,2-3";
    "poll" poll: bool = Some(false), "BOOL", |setting, _| truth(setting), bool::to_string,
        "Spin instead of sleeping: lowest latency, and a whole CPU for each worker [default: \
         false]";
    "latency" latency: Latency = Some(Latency::Normal), "LATENCY",
        |setting, _| latency(setting), Latency::to_string,
        "Wake-up time of CPUs while frames come: low, N microseconds, or normal \
         [default: normal]";
    "age" age: u32 = Some(limits::FDB_AGE_SECONDS), "SECONDS",
        |setting, _| number(setting, 1, limits::MAX_AGE_SECONDS.into()), u32::to_string,
        "Seconds, 1 to 1000000, after which a silent address is forgotten [default: 300]";
    "control" control: Claim = None, "PATH", |setting, _| claimed_socket(setting),
        |claim| claim.value.clone(),
        "Path of the control socket, where vioswitchctl shows and changes the switch";
    "control-group" control_group: u32 = None, "GROUP", |setting, _| group(setting), u32::to_string,
        "Group of the control socket, whose members may look at the switch [default: the daemon's]";
    "control-admin-group" control_admin_group: u32 = None, "GROUP",
        |setting, _| group(setting), u32::to_string,
        "Group whose members may change the switch too, beside root and the daemon's user";
    "capture-group" capture_group: u32 = None, "GROUP", |setting, _| group(setting), u32::to_string,
        "Group whose members may capture frames too, beside root and the daemon's user";
    "metrics" metrics: MetricsSocket = None, "ADDRESS", |setting, _| metrics(setting),
        MetricsSocket::to_string,
        "Answer GET /metrics of Prometheus at IP:PORT, unix:PATH, or fd (inherited)";
    "log-level" log_level: LevelFilter = Some(LevelFilter::Info), "LEVEL",
        |setting, _| log_level(setting), LevelFilter::to_string,
        "Log level: off, error, warn, info, debug or trace; RUST_LOG has precedence \
         [default: info]";
    "uplink-to-uplink" uplink_to_uplink: bool = Some(false), "BOOL", |setting, _| truth(setting),
        bool::to_string,
        "Forward frames between uplinks; two uplinks in one bridge form a loop \
         [default: false]";
    "mac-flap-damping" mac_flap_damping: bool = Some(true), "BOOL", |setting, _| truth(setting),
        bool::to_string,
        "Hold an address that moves between ports five times in a second [default: true]";
    "multicast-snooping" multicast_snooping: bool = Some(false), "BOOL",
        |setting, _| truth(setting), bool::to_string,
        "Send group frames only to members of the group, while a querier is heard \
         [default: false]";
    "sandbox" sandbox: bool = Some(true), "on|off", |setting, _| one_of(setting, bool::WORDS),
        |on| if *on { "on" } else { "off" }.to_owned(),
        "Confine the running switch by Landlock and seccomp [default: on]";
    "plug" plug: PathBuf = None, "DIR", |setting, _| socket_directory(setting),
        |path| path.to_string_lossy().into_owned(),
        "Make a port for each listening socket in this directory (libvirt's mode='server')";
}

/// Returns all keys that may stand outside of entries.
pub(super) fn outer_keys() -> Vec<&'static str> {
    let kinds = Kind::NAMED.into_iter().map(Kind::name);
    let own = SCALARS.iter().map(|scalar| scalar.name);
    kinds.chain(own).chain(["template", "socket-path", "fd"]).collect()
}

fn list(cpus: &[usize]) -> String {
    cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

/// Reads the path of a socket, and claims the path, so that no port can have the path.
pub(super) fn claimed_socket(setting: &Setting) -> Result<Claim, String> {
    socket_path(setting)?;
    let (value, at) = (text(setting)?.to_owned(), setting.at.clone());
    Ok(Claim { what: Shared::Socket, value, segment: Segment::Everywhere, at })
}
