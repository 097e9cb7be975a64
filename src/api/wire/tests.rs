//! The description of the interface, made from the declarations.

use std::collections::BTreeMap;

use serde_json::Number;
use testkit::manual::hold;

use super::methods::declared;
use super::types::{EntryKeys, GroupRole, LiveKeys, PortCounts, ShownKeys, answered, given};
use crate::config::{Effect, KEYS, Key, Kind};
use crate::diagnosis::Level;
use base::stats::{Direction, PortState as State};
use datapath::events::KINDS;

/// A type that has a name in varlink.
pub(crate) trait Varlink {
    /// The name.
    fn varlink() -> String;

    /// Returns the line of a field of this type.
    fn field(name: &str) -> String {
        format!("  {}: {},\n", name.trim_start_matches("r#"), Self::varlink())
    }
}

/// A struct, with a line for each field.
pub trait Fields {
    fn lines() -> Vec<String>;
}

/// Types that have the same name in varlink.
macro_rules! named {
    ($($type:ident)*) => {
        $(impl Varlink for $type {
            fn varlink() -> String {
                stringify!($type).to_owned()
            }
        })*
    };
}

/// The lines of the fields of a struct.
macro_rules! lines {
    ($($(#[$meta:meta])* $field:ident $(?: $may:ty)? $(: $must:ty)? $(as $word:ident)?,)*) => {
        [$({
            $(let line = <Option<$may> as Varlink>::field(stringify!($field));)?
            $(let line = <$must as Varlink>::field(stringify!($field));)?
            $(let line = line.replace("string,\n", concat!(stringify!($word), ",\n"));)?
            line
        },)*]
    };
}

pub(super) use {lines, named};

named! { Effect Direction Level State GroupRole }

macro_rules! plain {
    ($($name:literal: $($type:ty)*,)*) => {
        $($(impl Varlink for $type { fn varlink() -> String { $name.to_owned() } })*)*
    };
}

plain! {
    "int": u8 u16 u32 u64 usize i32 Number,
    "bool": bool,
    "string": String,
}

impl<T: Varlink> Varlink for Option<T> {
    fn varlink() -> String {
        format!("?{}", T::varlink())
    }
}

impl<T: Varlink> Varlink for Vec<T> {
    fn varlink() -> String {
        format!("[]{}", T::varlink())
    }
}

impl<T: Varlink> Varlink for BTreeMap<String, T> {
    fn varlink() -> String {
        format!("[string]{}", T::varlink())
    }
}

fn is_live(key: &Key) -> bool {
    let kinds = Kind::NAMED.iter().filter(|kind| **kind != Kind::Mirror);
    let mut all = kinds.flat_map(|kind| kind.live_keys());
    all.any(|live| live.name == key.name)
}

impl Varlink for PortCounts {
    fn varlink() -> String {
        "[string]int".to_owned()
    }

    fn field(_name: &str) -> String {
        Kind::PORTS.map(|kind| format!("  {}: int,\n", kind.count_name())).concat()
    }
}

/// Keys of an entry among the fields of a struct.
macro_rules! keys {
    ($($type:ident: $of:expr;)*) => {$(
        impl Varlink for $type {
            fn varlink() -> String {
                "[string]string".to_owned()
            }

            fn field(_name: &str) -> String {
                let of: fn(&&Key) -> bool = $of;
                let line = |key: &Key| {
                    let may = if key.name == "name" { "" } else { "?" };
                    format!("  {}: {may}{},\n", key.field(), key.varlink())
                };
                KEYS.iter().filter(of).map(line).collect()
            }
        }
    )*};
}

keys! {
    ShownKeys: |key| key.is_shown;
    EntryKeys: |_| true;
    LiveKeys: |key| key.name == "name" || is_live(key);
}

/// Returns fields, or words, in brackets.
pub fn body(lines: &[String]) -> String {
    let all = lines.concat();
    match all.strip_suffix(",\n") {
        Some(all) => format!("(\n{all}\n)"),
        None => "()".to_owned(),
    }
}

/// Returns an item of the description below its comment.
pub fn item(comment: &[&str], text: &str) -> String {
    let comment: String = comment.iter().map(|line| format!("#{line}\n")).collect();
    format!("{comment}{text}\n\n")
}

/// Returns a method with its parameters and its answer.
pub fn method(comment: &[&str], name: &str, takes: &[String], answers: &[String]) -> String {
    item(comment, &format!("method {name}{} -> {}", body(takes), body(answers)))
}

fn enumeration(comment: &[&str], name: &str, words: &[&str]) -> String {
    let words: Vec<String> = words.iter().map(|word| format!("  {word},\n")).collect();
    item(comment, &format!("type {name} {}", body(&words)))
}

/// Enumerations whose words stand elsewhere.
macro_rules! enumerations {
    ($($(#[doc = $doc:literal])* $name:ident = $words:expr;)*) => {
        [$(enumeration(&[$($doc),*], stringify!($name), &$words),)*].concat()
    };
}

const HEAD: &str = "\
# Shows and changes a virtual switch while it runs.
#
# Each client that can connect may call the methods that show. Methods that change the switch need
# root, the switch's user, or a member of a configured group. \"in\" is from the VM or the network
# into the switch, \"out\" is from the switch to it.
interface io.vioswitch.Switch

";

/// The interface in the language of varlink.
fn description() -> String {
    let mut kinds: Vec<&str> = KINDS.iter().map(|kind| kind.name).collect();
    kinds.dedup();
    let enumerations = enumerations! {
        /// Kind of a port: for a virtual machine, a TAP interface of the host, an interface that
        /// bypasses the host's network stack, or a process at the other end of a stream.
        Kind = Kind::PORTS.map(Kind::name);
        /// Kind of an entry: a port of a kind, a mirror, a filter, or a group of addresses.
        EntryKind = Kind::NAMED.map(Kind::name);
        /// Origin of a port: the configuration, which is files and the command line; Add, to stay
        /// or for as long as the process; or a socket in the directory of ports by plug.
        Origin = ["config", "kept", "transient", "plug"];
        /// When a change takes effect: at once; when the front-end connects again; with a new
        /// socket or interface; at the next start of the switch; for later ports.
        Effect = Effect::ALL.map(Effect::name);
        /// Kind of pages of a guest's memory: a file without a name (memfd), a file with a name,
        /// huge pages, or a file on a disk, which the switch does not map.
        Backing = ["anonymous", "file", "hugetlb", "disk", "unknown"];
        /// Direction in which a frame passes between a port and the switch.
        Direction = Direction::ALL.map(Direction::name);
        /// The kinds of events; docs/events.md describes each.
        EventKind = kinds;
        /// warn: frames pass, but more slowly or less safely than possible, or not after the next
        /// restart. fail: frames do not pass, or a configured port or service is missing.
        Level = Level::ALL.map(Level::name);
        /// Role of a port for multicast groups.
        GroupRole = GroupRole::ALL.map(GroupRole::name);
    };
    let states = State::ALL.map(|state| format!(" {state}: {}.", state.meaning()));
    let states =
        enumeration(&states.each_ref().map(String::as_str), "State", &State::ALL.map(State::name));
    let types = [enumerations, states, answered(), given()].concat();
    let all = [types, declared(), super::errors::of_switch()].concat();
    format!("{HEAD}{}\n", all.trim_end())
}

/// With UPDATE_DOCS the description is written.
#[test]
fn the_interface_is_made_of_what_is_declared() {
    hold("docs/io.vioswitch.Switch.varlink", &description());
}
