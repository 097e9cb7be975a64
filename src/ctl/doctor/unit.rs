//! Reads the switch's unit from systemd and the journal.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::facts::{Ended, Unit};
use crate::tool;

/// The packaged unit.
const NAME: &str = "vioswitchd.service";
/// Where units are that packages install.
const PACKAGED: [&str; 2] = ["/usr/lib/systemd/", "/lib/systemd/"];
/// The drop-ins that docs/network.md has people install, who need them: to take one away would cut
/// the host off.
const MAKE_TAPS: &str = include_str!("../../../scripts/systemd/make-taps.conf");
const XDP: &str = include_str!("../../../scripts/systemd/xdp.conf");
/// Last lines of the journal that are shown.
const LINES: &str = "--lines=5";

/// Properties of a unit; none if systemd does not answer.
fn properties(name: &str, wanted: &[&str]) -> Option<BTreeMap<String, String>> {
    let wanted: Vec<String> = wanted.iter().map(|key| format!("--property={key}")).collect();
    let mut words = vec!["systemctl", "show", name];
    words.extend(wanted.iter().map(String::as_str));
    let said = tool::output(&words)?;
    let pairs = said.lines().filter_map(|line| line.split_once('='));
    Some(pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
}

/// The unit that a process belongs to, and what was made of it.
pub fn of(pid: i64) -> Option<Unit> {
    let cgroup = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let name = cgroup.trim_end().rsplit('/').next()?;
    if !name.ends_with(".service") {
        return None;
    }
    let told = properties(name, &["FragmentPath", "DropInPaths", "NeedDaemonReload", "MainPID"])?;
    let value = |key: &str| told.get(key).map(String::as_str).unwrap_or_default();
    // One who was started by a service is not the service.
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

/// A drop-in with the settings in which it differs from the installed unit, if there are any. What
/// that does not set is the site's.
fn of_drop_in(path: &str, installed: &str) -> Option<String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let keys = changed(&text, installed);
    (!keys.is_empty()).then(|| format!("{path} changes {}", keys.join(", ")))
}

/// The settings of a text, without its comments and sections.
fn settings(text: &str) -> Vec<(&str, &str)> {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';', '[']));
    let pairs = lines.filter_map(|line| line.split_once('='));
    pairs.map(|(key, value)| (key.trim(), value.trim())).collect()
}

/// The keys that are set in an installed unit, and otherwise in a drop-in; none for the documented
/// ones.
fn changed<'t>(drop_in: &'t str, installed: &str) -> Vec<&'t str> {
    let (own, installed) = (settings(drop_in), settings(installed));
    let documented = [settings(MAKE_TAPS), settings(XDP)].concat();
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

/// The state of the installed unit, and what it said last, where no switch answers.
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
            (by_hand, &[]),
            ("", &[]),
            // The site's own business, and what is installed anyway.
            ("[Service]\nCPUAffinity=2 3\nUser=vioswitch\n# User=root\n", &[]),
            ("[Service]\nUser=root\nUser = root\nLimitNOFILE=5\n", &["User", "LimitNOFILE"]),
            ("[Service]\nAmbientCapabilities=CAP_SYS_ADMIN\n", &["AmbientCapabilities"]),
            ("[Service]\nExecStart=\nExecStart=/x\n", &["ExecStart"]),
        ] {
            assert_eq!(changed(drop_in, UNIT), keys, "{drop_in}");
        }
    }
}
