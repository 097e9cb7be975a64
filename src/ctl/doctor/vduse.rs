//! Where the interfaces of VDUSE devices are. A name and a network namespace take effect when the
//! switch makes an interface. Later the configuration may change, and others may move the
//! interface.

use std::fs;
use std::path::Path;

use super::facts::{Facts, Found, Port};
use super::findings::{Findings, typed};
use super::processes::VDPA;
use crate::links::{self, Link};
use base::words::quote;

/// Directory of the named network namespaces (ip-netns(8)).
const NAMESPACES: &str = "/run/netns";
/// Most named namespaces that the doctor looks at.
const MAX_NAMESPACES: usize = 64;

/// Finds the interfaces of all VDUSE ports. `own` are the words in front of a command in the
/// switch's network namespace.
pub(crate) fn look(own: &[String], facts: &mut Facts) {
    for port in facts.ports.iter_mut().filter(|port| port.shown().kind == "vduse") {
        port.found = find(own, port);
    }
}

/// Finds the interface of a port: in the namespace of the configuration first, as a namespace may
/// have several names.
fn find(own: &[String], port: &Port) -> Option<Found> {
    let entries = |path: &Path| {
        let all = fs::read_dir(path).into_iter().flatten().flatten();
        all.map(|entry| entry.file_name().to_string_lossy().into_owned())
    };
    let device = entries(&Path::new(VDPA).join(port.name())).find(|of| of.starts_with("virtio"))?;
    let named = entries(Path::new(NAMESPACES)).take(MAX_NAMESPACES);
    let all = [wanted(port, "netns"), String::new()].into_iter().chain(named);
    all.into_iter().find_map(|netns| {
        let mut words = ip_in(&netns, own);
        words.extend(["-json", "-details", "link", "show"].map(str::to_owned));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let found =
            links::ask::<Link>(&words)?.into_iter().find(|link| link.parentdev == device)?;
        Some(Found { ifname: found.ifname, netns })
    })
}

fn wanted(port: &Port, key: &str) -> String {
    port.keys.get(key).cloned().unwrap_or_default()
}

/// Returns ip(8) for a network namespace.
fn ip_in(netns: &str, own: &[String]) -> Vec<String> {
    let mut words = match netns {
        "" => own.to_vec(),
        _ if is_process(netns) => enter(netns),
        _ => return ["ip", "-n", netns].map(str::to_owned).into(),
    };
    words.push("ip".to_owned());
    words
}

fn enter(pid: &str) -> Vec<String> {
    vec!["nsenter".to_owned(), format!("--net=/proc/{pid}/ns/net")]
}

fn is_process(netns: &str) -> bool {
    netns.bytes().all(|byte| byte.is_ascii_digit())
}

/// Reports an interface with another name, or in another namespace, than in the configuration.
pub(crate) fn judge(port: &Port, switch: u32, findings: &mut Findings) {
    let Some(found) = &port.found else { return };
    let place = Found { ifname: wanted(port, "ifname"), netns: wanted(port, "netns") };
    if *found == place {
        return;
    }
    let told = |place: &Found| match &*place.netns {
        "" => format!("{} in the switch's network namespace", place.ifname),
        netns => format!("{} in network namespace {netns}", place.ifname),
    };
    let cause = format!("its interface is {}; configured is {}", told(found), told(&place));
    let ip = typed(&ip_in(&found.netns, &[]));
    let to = match &*place.netns {
        same if same == found.netns => String::new(),
        "" => format!(" netns {switch}"),
        netns => format!(" netns {}", quote(netns)),
    };
    // The other side of the namespace chooses the name, and ip(8) may take it for an option.
    let dev = if found.ifname.starts_with('-') { "dev " } else { "" };
    let (is, set) = (quote(&found.ifname), quote(&place.ifname));
    let set = format!("{dev}{is}{to} name {set} up");
    let command = format!("{ip} link set {dev}{is} down; {ip} link set {set}");
    findings.warn("interface-elsewhere", port.name(), cause, &command);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(found: [&str; 2], wanted: [&str; 2]) -> Option<(String, String)> {
        let [ifname, netns] = found.map(str::to_owned);
        let keys =
            ["ifname", "netns"].into_iter().zip(wanted).filter(|(_, value)| !value.is_empty());
        let keys = keys.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        let port = Port { found: Some(Found { ifname, netns }), keys, ..Port::default() };
        let mut findings = Findings::default();
        judge(&port, 7, &mut findings);
        findings.0.pop().map(|finding| (finding.cause, finding.command))
    }

    #[test]
    fn an_interface_elsewhere_is_named_with_the_way_back() {
        assert_eq!(told(["eth0", "web"], ["eth0", "web"]), None);
        assert_eq!(told(["sw0", ""], ["sw0", ""]), None);
        let (cause, command) = told(["eth1", "web"], ["sw0", ""]).unwrap();
        let expected = "its interface is eth1 in network namespace web; configured is sw0 in the \
                        switch's network namespace";
        assert_eq!(cause, expected);
        let expected = "ip -n web link set eth1 down; ip -n web link set eth1 netns 7 name sw0 up";
        assert_eq!(command, expected);
        let (_, command) = told(["eth1", ""], ["eth0", "web"]).unwrap();
        assert_eq!(command, "ip link set eth1 down; ip link set eth1 netns web name eth0 up");
        let (_, command) = told(["eth1", "12"], ["eth0", "12"]).unwrap();
        let ip = "nsenter --net=/proc/12/ns/net ip link set eth1";
        assert_eq!(command, format!("{ip} down; {ip} name eth0 up"));
    }

    /// Root of a container names the interface there as he likes.
    #[test]
    fn a_name_is_never_a_command() {
        for (name, word) in [
            (";reboot;", "';reboot;'"),
            ("$(id)", "'$(id)'"),
            ("a'b", r"'a'\''b'"),
            ("-force", "dev -force"),
        ] {
            let (_, command) = told([name, "12"], ["eth0", "web"]).unwrap();
            let ip = "nsenter --net=/proc/12/ns/net ip link set";
            let expected = format!("{ip} {word} down; {ip} {word} netns web name eth0 up");
            assert_eq!(command, expected);
        }
        let (_, command) = told(["eth1", "a b"], ["e;0", "$x"]).unwrap();
        let expected = "ip -n 'a b' link set eth1 down; ip -n 'a b' link set eth1 netns '$x' name \
                        'e;0' up";
        assert_eq!(command, expected);
    }
}
