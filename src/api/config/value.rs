//! Rules about single values: types, ranges, and names that the kernel accepts.
//!
//! Each function reads one setting, and returns the value or a complaint that names the setting's
//! key.

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};

use log::LevelFilter;

use super::raw::{Setting, Value, is_unprintable, quote};
use base::frame::prefix::ParsePrefixError;
use base::frame::{MacAddr, Prefix};
use base::limits;
use base::limits::MAX_VLAN;
use switch::reserved::{Reserved, ReservedSet};
use switch::segment::VlanId;
use switch::vlan::VlanSet;

/// Socket at which metrics are served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MetricsSocket {
    /// A TCP port at an address of the host.
    Ip(SocketAddr),
    /// A socket in the file system.
    Unix(PathBuf),
    /// A socket that a service manager made, with the name `metrics`.
    Inherited,
}

impl fmt::Display for MetricsSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MetricsSocket::Ip(address) => address.fmt(f),
            MetricsSocket::Unix(path) => path.display().fmt(f),
            MetricsSocket::Inherited => f.write_str("fd"),
        }
    }
}

/// Reads a string.
pub(super) fn text(setting: &Setting) -> Result<&str, String> {
    match &setting.value {
        Value::Word(text) | Value::Text(text) => Ok(text),
        other => Err(format!("{} must be a string, not {}", setting.key, kind(other))),
    }
}

/// Reads `true` or `false`.
pub(super) fn truth(setting: &Setting) -> Result<bool, String> {
    let wrong = match &setting.value {
        Value::Boolean(truth) => return Ok(*truth),
        Value::Word(word) if word == "true" => return Ok(true),
        Value::Word(word) if word == "false" => return Ok(false),
        Value::Word(word) => quote(word),
        other => kind(other).to_owned(),
    };
    Err(format!("{} must be true or false, not {wrong}", setting.key))
}

/// Reads a whole number from `min` to `max`.
pub(super) fn number<T>(setting: &Setting, min: u64, max: u64) -> Result<T, String>
where
    T: TryFrom<u64>,
{
    let (given, shown) = match &setting.value {
        Value::Integer(number) => (u64::try_from(*number).ok(), number.to_string()),
        Value::Word(word) => (digits(word), quote(word)),
        other => (None, kind(other).to_owned()),
    };
    let rule = || match min == max {
        true => max.to_string(),
        false => format!("a number from {min} to {max}"),
    };
    given
        .filter(|number| (min..=max).contains(number))
        .and_then(|number| T::try_from(number).ok())
        .ok_or_else(|| format!("{} must be {}, not {shown}", setting.key, rule()))
}

/// Reads a decimal number; returns `None` for another text, and for a number of more than 64 bits.
fn digits(word: &str) -> Option<u64> {
    if is_decimal(word) { word.parse().ok() } else { None }
}

/// Reads `workers=`: a number, or `auto` for a machine with `cpus` CPUs.
pub(super) fn workers(setting: &Setting, cpus: usize) -> Result<usize, String> {
    if let Value::Word(word) | Value::Text(word) = &setting.value
        && word == AUTO
    {
        return Ok(cpus.clamp(1, limits::AUTO_WORKERS));
    }
    let count = number(setting, 1, limits::MAX_WORKERS as u64);
    count.map_err(|text| text.replacen("must be", "must be auto or", 1))
}

/// Reads `worker=`: a number; none for `auto`.
pub(super) fn worker(setting: &Setting) -> Result<Option<u16>, String> {
    if let Value::Word(word) | Value::Text(word) = &setting.value
        && word == AUTO
    {
        return Ok(None);
    }
    let number = number(setting, 0, limits::MAX_WORKERS as u64 - 1).map(Some);
    number.map_err(|text| text.replacen("must be", "must be auto or", 1))
}

/// Returns the value of the key `worker` as files write it: a number, or `auto`.
pub(super) fn worker_word(worker: &Option<u16>) -> String {
    worker.map_or_else(|| AUTO.to_owned(), |number| number.to_string())
}

/// Word for a value that the switch chooses.
const AUTO: &str = "auto";

/// Returns true for a text of digits only, without sign and blanks.
fn is_decimal(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns the name of a value's type.
pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Word(_) | Value::Text(_) => "a string",
        Value::Integer(_) => "a number",
        Value::Boolean(_) => "a boolean",
        Value::Other(name) => name,
    }
}

/// Reads the name of a port: letters and digits, and `.`, `_`, `-` behind the first character. The
/// name stands in log lines and counters, where blanks and quotes would need escaping.
pub(super) fn port_name(setting: &Setting) -> Result<String, String> {
    let name = text(setting)?;
    if is_port_name(name) {
        return Ok(name.to_owned());
    }
    let max = limits::MAX_NAME_LEN;
    let rule = "letters, digits, '.', '_' and '-', the first a letter or digit";
    Err(format!("{} {} must be 1 to {max} {rule}", setting.key, quote(name)))
}

/// Returns true if a port may have this name.
pub fn is_port_name(name: &str) -> bool {
    let first = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    let rest = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
    first && rest && name.len() <= limits::MAX_NAME_LEN
}

/// Reads a label, which is any text of the administrator.
pub(super) fn label(setting: &Setting) -> Result<String, String> {
    let label = text(setting)?;
    let max = limits::MAX_LABEL_CHARS;
    match (1..=max).contains(&label.chars().count()) && !label.chars().any(is_unprintable) {
        true => Ok(label.to_owned()),
        false => {
            Err(format!("{} {} must be 1 to {max} printable characters", setting.key, quote(label)))
        }
    }
}

/// Reads `all`, or a list of VLAN identifiers and ranges with commas.
pub(super) fn vlan_set(setting: &Setting) -> Result<VlanSet, String> {
    if let Value::Integer(_) = setting.value {
        let one = number(setting, 1, MAX_VLAN.into())?;
        return Ok(VlanSet::of(one, one));
    }
    let list = text(setting)?;
    if list == "all" {
        return Ok(VlanSet::all());
    }
    let mut set = VlanSet::new();
    let one = |word: &str| {
        let vlan = digits(word).and_then(|number| VlanId::try_from(number).ok())?;
        (1..=MAX_VLAN).contains(&vlan).then_some(vlan)
    };
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        match (one(first), one(last)) {
            (Some(first), Some(last)) if first <= last => set.add(first, last),
            _ => {
                let key = &setting.key;
                let rule = format!("VLANs from 1 to {MAX_VLAN} such as 10,20-29");
                return Err(format!("{key} must be all, or {rule}, not {}", quote(list)));
            }
        }
    }
    Ok(set)
}

/// Reads a list of link-local protocols with commas.
pub(super) fn protocols(setting: &Setting) -> Result<ReservedSet, String> {
    let list = text(setting)?;
    let mut set = ReservedSet::NONE;
    for word in list.split(',') {
        let Some(known) = Reserved::ALL.into_iter().find(|known| known.name() == word) else {
            let all = Reserved::ALL.map(Reserved::name).join(",");
            return Err(format!("{} must be some of {all}, not {}", setting.key, quote(list)));
        };
        set.add(known);
    }
    Ok(set)
}

/// Reads the path of a socket, within the length of `sun_path`.
pub(super) fn socket_path(setting: &Setting) -> Result<PathBuf, String> {
    let path = path_text(setting)?;
    let key = &setting.key;
    let named = Path::new(path).file_name().is_some();
    if !named || path.ends_with('/') || path.ends_with("/.") {
        return Err(format!("{key} {} names a directory, not a socket", quote(path)));
    }
    Ok(PathBuf::from(path))
}

/// Reads the path of a directory for sockets.
pub(super) fn socket_directory(setting: &Setting) -> Result<PathBuf, String> {
    Ok(path_text(setting)?.into())
}

/// Reads the path of a socket or a directory as text.
fn path_text(setting: &Setting) -> Result<&str, String> {
    let path = text(setting)?;
    let key = &setting.key;
    if path.is_empty() {
        return Err(format!("{key} is empty"));
    }
    if path.len() > limits::MAX_SOCKET_PATH {
        let (len, max) = (path.len(), limits::MAX_SOCKET_PATH);
        return Err(format!("{key} {} has {len} bytes, a socket path at most {max}", quote(path)));
    }
    if path.chars().any(is_unprintable) {
        return Err(format!("{key} {} has unprintable characters", quote(path)));
    }
    if path.starts_with('~') {
        let text = "~ is not expanded here: write the whole path, from / on";
        return Err(format!("{key} {}: {text}", quote(path)));
    }
    Ok(path)
}

/// Reads the number of a socket that the parent process left open.
pub(super) fn inherited_socket(setting: &Setting) -> Result<RawFd, String> {
    let fd: RawFd = number(setting, 0, RawFd::MAX as u64)?;
    match sys::inherited::is_socket(fd) {
        true => Ok(fd),
        false => Err(format!("{} {fd} is not an open socket", setting.key)),
    }
}

/// Reads one of several words, each of which stands for a value.
pub(super) fn one_of<T: Copy>(setting: &Setting, words: &[(&str, T)]) -> Result<T, String> {
    let key = &setting.key;
    let of = |wanted: &str| words.iter().find(|(word, _)| *word == wanted).map(|(_, value)| *value);
    if let (Ok(truth), Some(_)) = (truth(setting), of("on")) {
        let word = if truth { "on" } else { "off" };
        return Err(format!("{key} is not true or false: write {}", setting.shown(word)));
    }
    let given = text(setting)?;
    of(given).ok_or_else(|| {
        let all: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        let rule = match all.split_last() {
            Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
            _ => all.concat(),
        };
        format!("{key} must be {rule}, not {}", quote(given))
    })
}

/// Reads `metrics=`: an address with its port, the path of a socket, or `fd` for an inherited
/// socket.
pub(super) fn metrics(setting: &Setting) -> Result<MetricsSocket, String> {
    let word = text(setting)?;
    if word == "fd" {
        return Ok(MetricsSocket::Inherited);
    }
    if let Some(path) = word.strip_prefix("unix:") {
        let path = Setting { value: Value::Text(path.to_owned()), ..setting.clone() };
        return socket_path(&path).map(MetricsSocket::Unix);
    }
    word.parse().map(MetricsSocket::Ip).map_err(|_| {
        let wanted = "ADDRESS:PORT, such as 127.0.0.1:9434 or [::1]:9434, unix:PATH or fd";
        format!("{} must be {wanted}, not {}", setting.key, quote(word))
    })
}

/// Reads `log-level=`.
pub(super) fn log_level(setting: &Setting) -> Result<LevelFilter, String> {
    let word = text(setting)?;
    let known = LevelFilter::iter().find(|level| level.as_str().eq_ignore_ascii_case(word));
    known.ok_or_else(|| {
        let levels = "off, error, warn, info, debug or trace";
        format!("{} must be {levels}, not {}", setting.key, quote(word))
    })
}

/// Reads permission bits in octal. Set-id and sticky bits mean nothing on a socket.
pub(super) fn permissions(setting: &Setting) -> Result<u32, String> {
    let rule = "socket-mode must be octal digits in a string, such as \"0660\", at most 0777";
    let word = text(setting).map_err(|_| rule.to_owned())?;
    let plain = (1..=4).contains(&word.len()) && word.bytes().all(|byte| byte.is_ascii_digit());
    let bits = if plain { u32::from_str_radix(word, 8).ok() } else { None };
    bits.filter(|bits| *bits <= 0o777).ok_or_else(|| format!("{rule}, not {}", quote(word)))
}

/// Reads a group, given as a number or by name.
pub(super) fn group(setting: &Setting) -> Result<u32, String> {
    let numeric = match &setting.value {
        Value::Integer(_) => true,
        Value::Word(text) | Value::Text(text) => is_decimal(text),
        Value::Boolean(_) | Value::Other(_) => false,
    };
    if numeric {
        // The highest number makes chown(2) change nothing.
        let value = match &setting.value {
            Value::Text(text) => Value::Word(text.clone()),
            other => other.clone(),
        };
        return number(&Setting { value, ..setting.clone() }, 0, u64::from(u32::MAX) - 1);
    }
    let name = text(setting)?;
    match sys::group::gid_of(name) {
        Ok(Some(gid)) => Ok(gid),
        Ok(None) => {
            let rule = "does not exist: getent group lists the groups";
            Err(format!("{} {} {rule}", setting.key, quote(name)))
        }
        Err(error) => Err(format!("{} {} cannot be looked up: {error}", setting.key, quote(name))),
    }
}

/// Reads an address of a single station.
pub(super) fn station_address(setting: &Setting) -> Result<MacAddr, String> {
    let word = text(setting)?;
    let key = &setting.key;
    let mac: MacAddr = word.parse().map_err(|error| format!("{key} {}: {error}", quote(word)))?;
    if mac.is_group() {
        let rule = "is a group address, not a station's such as 52:54:00:12:34:56";
        return Err(format!("{key} {} {rule}", quote(word)));
    }
    if mac.is_zero() {
        return Err(format!("{key} {} is not the address of a station", quote(word)));
    }
    Ok(mac)
}

/// Reads an IP address or a prefix.
pub(super) fn prefix(setting: &Setting) -> Result<Prefix, String> {
    let word = text(setting)?;
    word.parse().map_err(|error| match error {
        ParsePrefixError::Malformed => format!("{} {}: {error}", setting.key, quote(word)),
        _ => format!("{} {} {error}", setting.key, quote(word)),
    })
}

/// Reads the name of a network interface: a name that the kernel accepts (`dev_valid_name` in
/// net/core/dev.c), without `%`, by which the kernel would choose a name.
pub(super) fn interface_name(setting: &Setting) -> Result<String, String> {
    let name = text(setting)?;
    let max = limits::MAX_IFNAME_LEN;
    if name.is_empty() || name.len() > max {
        return Err(format!("ifname {} must have 1 to {max} bytes", quote(name)));
    }
    let plain = name.bytes().all(|byte| byte.is_ascii_graphic() && !b"/:%".contains(&byte));
    if !plain || name == "." || name == ".." {
        return Err(format!("ifname {} is not an interface name", quote(name)));
    }
    Ok(name.to_owned())
}
