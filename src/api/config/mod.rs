//! Arguments and a TOML file, turned into one validated [`Config`].
//!
//! Flow: `sources` reads the files. `args` and `file` bring arguments and files into one untyped
//! form (`raw`), so each rule exists once. `validate` types every setting and keeps the setting's
//! place. `entries` lays the command line over the files and checks the values that two entries may
//! not share. `keys` is the table of a port's keys, and `types` has their types. `parameters`
//! reads the keys of clients of the control socket by this table too. `rulebook` has the
//! filters and groups of all entries together.
//!
//! Rules: the error about a bad argument is one line that names the argument. The error about a bad
//! file has all errors of the file, each with its line, and with a replacement if one is known. No
//! code here opens a socket or a device: errors of opening appear in the daemon, and
//! `daemon::check` looks for them.

pub use amount::limit_word;
pub use args::{CliAction, first_line, split_commas};
pub use claims::{Claimed, Places, Segment, place};
pub use configuration::{
    Config, Control, Endpoint, Entry, Machine, Origin, UsageError, VduseDevice, summary,
};
pub use kept::{Kept, Keys, Override, Unread, line_text, table_text};
pub use keys::{Effect, KEYS, Key, Settings};
pub use kind::Kind;
pub use latency::Latency;
pub use nearest::nearest;
pub use oddities::Oddity;
pub use oddities::between::{Between, between};
pub use raw::{Value, shell_word};
pub use request::Request;
pub use rulebook::{Finding, PortRules, Rulebook};
pub use settings::{Difference, InvalidSetting};
pub use sources::{Text, Texts};
pub use types::{Admin, Guard, Memory, Mode, Offload, Server};
pub use value::{MetricsSocket, is_port_name};

mod amount;
mod args;
mod claims;
mod configuration;
mod cpus;
mod entries;
mod file;
mod kept;
mod keys;
mod kind;
mod latency;
mod nearest;
mod oddities;
mod parameters;
mod raw;
mod request;
mod rulebook;
mod scalars;
mod settings;
mod sources;
#[cfg(test)]
mod tests;
mod types;
mod validate;
mod value;
