//! Reads the switch's unit from systemd and the journal.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::facts::{Ended, Unit};
use crate::tool;

/// Name of the packaged unit.
const NAME: &str = "vioswitchd.service";
/// Directories of units that packages install.
const PACKAGED: [&str; 2] = ["/usr/lib/systemd/", "/lib/systemd/"];
/// Drop-ins that docs/network.md tells people to install who need the drop-ins; removing a drop-in
/// would cut the host off.
const MAKE_TAPS: &str = include_str!("../../../scripts/systemd/make-taps.conf");
const XDP: &str = include_str!("../../../scripts/systemd/xdp.conf");
const VDUSE: &str = include_str!("../../../scripts/systemd/vduse.conf");
/// The setting of [`VDUSE`] that no other drop-in has.
const VDUSE_DEVICES: (&str, &str) = ("DeviceAllow", "char-vduse rw");
/// Option for the number of the journal's last lines that are shown.
const LINES: &str = "--lines=5";

/// Returns properties of a unit; `None` if systemd does not answer.
fn properties(name: &str, wanted: &[&str]) -> Option<BTreeMap<String, String>> {
    let wanted: Vec<String> = wanted.iter().map(|key| format!("--property={key}")).collect();
    let mut words = vec!["systemctl", "show", name];
    words.extend(wanted.iter().map(String::as_str));
    let said = tool::output(&words)?;
    let pairs = said.lines().filter_map(|line| line.split_once('='));
    Some(pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
}

/// Returns the unit whose main process is `pid`, with the files that change the unit.
pub fn of(pid: i64) -> Option<Unit> {
    let cgroup = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let name = cgroup.trim_end().rsplit('/').next()?;
    if !name.ends_with(".service") {
        return None;
    }
    let told = properties(name, &["FragmentPath", "DropInPaths", "NeedDaemonReload", "MainPID"])?;
    let value = |key: &str| told.get(key).map(String::as_str).unwrap_or_default();
    // A process that a service started is not the service.
    if value("MainPID") != pid.to_string() {
        return None;
    }
    let local = |path: &&str| !PACKAGED.iter().any(|begin| path.starts_with(begin));
    let fragment = value("FragmentPath");
    let packaged = PACKAGED.iter().map(|dir| Path::new(dir).join("system").join(name));
    let packaged = packaged.into_iter().find(|path| path.exists());
    let installed = packaged.as_deref().unwrap_or(Path::new(fragment));
    let installed = fs::read_to_string(installed).unwrap_or_default();
    let drop_ins = value("DropInPaths").split_whitespace().filter(local);
    let mut overrides: Vec<String> =
        drop_ins.filter_map(|path| of_drop_in(path, &installed)).collect();
    if !fragment.is_empty() && local(&fragment) && packaged.is_some() {
        overrides.push(format!("{fragment} instead of the installed unit"));
    }
    let stale = value("NeedDaemonReload") == "yes";
    Some(Unit { name: name.to_owned(), overrides, stale })
}

/// Returns a drop-in with the settings in which the drop-in differs from the installed unit, if
/// any. A setting that the installed unit lacks is the site's business.
fn of_drop_in(path: &str, installed: &str) -> Option<String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let keys = changed(&text, installed);
    (!keys.is_empty()).then(|| format!("{path} changes {}", keys.join(", ")))
}

/// Returns the settings of a text, without comments and sections.
fn settings(text: &str) -> Vec<(&str, &str)> {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';', '[']));
    let pairs = lines.filter_map(|line| line.split_once('='));
    pairs.map(|(key, value)| (key.trim(), value.trim())).collect()
}

/// Returns the keys that the installed unit sets and the drop-in sets to other values, without the
/// values of the documented drop-ins.
fn changed<'t>(drop_in: &'t str, installed: &str) -> Vec<&'t str> {
    let (own, installed) = (settings(drop_in), settings(installed));
    let mut documented = [settings(MAKE_TAPS), settings(XDP)].concat();
    // Only VDUSE devices are a reason for root.
    if own.contains(&VDUSE_DEVICES) {
        documented.extend(settings(VDUSE));
    }
    let mut keys = Vec::new();
    for pair in own {
        let known = installed.iter().any(|(key, _)| *key == pair.0);
        let same = installed.contains(&pair) || documented.contains(&pair);
        if known && !same && !keys.contains(&pair.0) {
            keys.push(pair.0);
        }
    }
    keys
}

/// Returns the state of the installed unit, and the last lines of the unit's log, for a switch that
/// does not answer.
pub fn ended() -> Ended {
    let wanted = ["LoadState", "ActiveState", "SubState", "Result", "ExecMainStatus"];
    let told = properties(NAME, &wanted).unwrap_or_default();
    let value = |key: &str| told.get(key).cloned().unwrap_or_default();
    if value("LoadState") != "loaded" {
        return Ended::default();
    }
    let words = ["journalctl", "--no-pager", "--output=cat", LINES, "--unit", NAME];
    let said = tool::output(&words).unwrap_or_default();
    Ended {
        unit: NAME.to_owned(),
        state: format!("{} ({})", value("ActiveState"), value("SubState")),
        result: value("Result"),
        status: value("ExecMainStatus"),
        said: said.lines().map(str::to_owned).collect(),
        others: Vec::new(),
        devices: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: &str = include_str!("../../../scripts/systemd/vioswitchd.service");

    #[test]
    fn what_a_drop_in_changes_is_named() {
        let by_hand = "[Service]\nAmbientCapabilities=CAP_NET_ADMIN\n\n\
            CapabilityBoundingSet=CAP_NET_ADMIN\n";
        for (drop_in, keys) in [
            (MAKE_TAPS, &[][..]),
            (XDP, &[]),
            (VDUSE, &[]),
            (by_hand, &[]),
            ("", &[]),
            // The settings are the site's own business, or equal the installed unit's.
            ("[Service]\nCPUAffinity=2 3\nUser=vioswitch\n# User=root\n", &[]),
            ("[Service]\nUser=root\nUser = root\nLimitNOFILE=5\n", &["User", "LimitNOFILE"]),
            ("[Service]\nAmbientCapabilities=CAP_SYS_ADMIN\n", &["AmbientCapabilities"]),
            ("[Service]\nExecStart=\nExecStart=/x\n", &["ExecStart"]),
        ] {
            assert_eq!(changed(drop_in, UNIT), keys, "{drop_in}");
        }
    }
}
