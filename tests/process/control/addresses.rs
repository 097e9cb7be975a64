//! Static addresses that change at run time: each is one of its port's `mac`, outlives the process,
//! and goes with the port.

use serde_json::Value;
use testkit::proc::{Dir, wait_for};

use super::kept::Kept;
use super::reload::Filed;
use super::{LOST, Lab};

/// Port and origin of each static address, by the last byte of it.
pub(super) fn statics(lab: &Lab) -> Vec<(u8, String, String)> {
    let all = lab.json(&["fdb", "show"]);
    let all = all["addresses"].as_array().expect("addresses").iter();
    let word = |address: &Value, key: &str| address[key].as_str().expect(key).to_owned();
    let mut found: Vec<_> = all
        .filter(|address| address["static"] == true)
        .map(|address| {
            let last = u8::from_str_radix(&word(address, "mac")[15..], 16).expect("an address");
            (last, word(address, "port"), word(address, "origin"))
        })
        .collect();
    found.sort();
    found
}

pub(super) fn tied(all: &[(u8, &str, &str)]) -> Vec<(u8, String, String)> {
    all.iter().map(|(last, port, origin)| (*last, (*port).into(), (*origin).into())).collect()
}

pub(super) fn mac(last: u8) -> String {
    format!("02:00:00:00:00:{last:02x}")
}

#[test]
fn they_outlive_the_process_and_go_with_their_port() {
    let mut kept = Kept::new(2, &[]);
    kept.lab.done(&["port", "add", "r1"]);
    kept.lab.done(&["port", "add", "r2", "mac=02:00:00:00:00:03", "mac=02:00:00:00:00:04"]);
    for (last, port) in [(1, "p0"), (2, "r1"), (5, "r2")] {
        kept.lab.done(&["fdb", "add", &mac(last), port]);
    }
    kept.lab.done(&["fdb", "del", &mac(4)]);
    let expected =
        tied(&[(1, "p0", "kept"), (2, "r1", "kept"), (3, "r2", "kept"), (5, "r2", "kept")]);
    assert_eq!(statics(&kept.lab), expected);
    kept.crash();
    assert_eq!((statics(&kept.lab), kept.degraded()), (expected.clone(), "[]".to_owned()));
    kept.stop_and_start();
    assert_eq!((statics(&kept.lab), kept.degraded()), (expected, "[]".to_owned()));
    let shown = kept.lab.done(&["config", "show"]);
    let words = "# origin config; until vioswitchctl port reset p0: mac\n[[port]]\nname = \"p0\"\n";
    assert!(shown.contains(words) && shown.contains("mac = \"02:00:00:00:00:01\"\n"), "{shown}");
    // Other settings leave them alone, and other ports cannot have them.
    kept.lab.done(&["port", "set", "r2", "mtu=1400"]);
    let (status, line) = kept.lab.fails(&["port", "set", "p1", "mac=02:00:00:00:00:01"]);
    assert_eq!(
        (status, line.as_str()),
        (1, "mac 02:00:00:00:00:01 is already used by p0: see vioswitchctl port show p0")
    );
    let (_, line) = kept.lab.fails(&["fdb", "add", &mac(1), "p1"]);
    assert_eq!(line, "02:00:00:00:00:01 is a static address of port 'p0'");
    kept.lab.done(&["fdb", "del", &mac(1)]);
    kept.lab.done(&["port", "del", "r1"]);
    kept.lab.done(&["port", "add", "r1"]);
    let expected = tied(&[(3, "r2", "kept"), (5, "r2", "kept")]);
    assert_eq!(statics(&kept.lab), expected);
    kept.crash();
    assert_eq!((statics(&kept.lab), kept.degraded()), (expected, "[]".to_owned()));
    kept.lab.done(&["port", "set", "r2", "mac="]);
    assert_eq!(statics(&kept.lab), []);
    kept.lab.d.stop();
}

/// A reload leaves them alone. A file that names one is told whose it is, and changes nothing.
#[test]
fn a_reload_leaves_them_alone() {
    let filed = Filed::new(1, &[("f1", ""), ("f2", ""), ("old", "")], &[]);
    let lab = &filed.lab;
    for (last, port) in [(1, "f1"), (2, "f2"), (3, "old"), (4, "p0"), (5, "f1")] {
        lab.done(&["fdb", "add", &mac(last), port]);
    }
    assert_eq!(lab.done(&["config", "diff"]), "");
    // One gets other settings, one another socket, and one goes.
    let own = "mtu = 9000\nmac = \"02:00:00:00:00:05\"";
    filed.write(&[("f1", own), ("f2", "socket-mode = \"0600\"")]);
    lab.done(&["config", "reload"]);
    let of = "transient";
    let expected = tied(&[(1, "f1", of), (2, "f2", of), (4, "p0", of), (5, "f1", "config")]);
    assert_eq!(statics(lab), expected);
    assert_eq!(lab.done(&["config", "diff"]), "");
    assert_eq!(lab.json(&["port", "show", "f1"])["port"]["mtu"], 9000);
    // What cannot be done as a whole gives back what it took, and so does what nobody confirms.
    let busy = std::os::unix::net::UnixListener::bind(filed.etc.path().join("busy"));
    filed.write(&[("f1", own), ("busy", "")]);
    let (_, line) = lab.fails(&["config", "reload"]);
    assert!(line.contains("is in use by "), "{line}");
    assert_eq!(statics(lab), expected);
    drop(busy);
    filed.write(&[("f1", own)]);
    lab.done(&["config", "reload", "--confirm=1"]);
    assert!(wait_for(LOST, || statics(lab) == expected), "{:?}\n{}", statics(lab), lab.d.log());
}

/// The files have an address of a change: the change has no effect after a start and is not lost,
/// and a reload is refused until the change ends.
#[test]
fn a_file_wins_at_a_start_and_not_in_silence_at_a_reload() {
    let state = Dir::new();
    let dir = format!("--state-dir={}", state.path().display());
    let mut filed = Filed::new(1, &[("f1", ""), ("f2", ""), ("f3", "")], &[&dir]);
    for (last, port) in [(1, "f1"), (2, "f2"), (3, "f3")] {
        filed.lab.done(&["fdb", "add", &mac(last), port]);
    }
    let before = statics(&filed.lab);
    filed.lab.d.kill();
    let files =
        [("f1", "mac = \"02:00:00:00:00:01\""), ("f2", ""), ("f4", "mac = \"02:00:00:00:00:02\"")];
    filed.write(&files);
    filed.lab.d.restart();
    let up = wait_for(LOST, || filed.lab.ctl(&["status"]).status.success());
    assert!(up, "{}", filed.lab.d.log());
    let expected = tied(&[(1, "f1", "config"), (2, "f4", "config")]);
    assert_eq!((statics(&filed.lab), filed.degraded()), (expected.clone(), "[]".to_owned()));
    let told = filed.lab.json(&["doctor"])["findings"].to_string();
    for words in [
        "mac 02:00:00:00:00:02 is already used by f4: see vioswitchctl port show f4",
        "a change at port 'f3' is kept in ports.toml without effect: the configuration has no port",
    ] {
        assert!(told.contains(words), "{words}: {told}");
    }
    filed.write(&[("f1", ""), ("f2", ""), ("f3", "")]);
    filed.lab.done(&["config", "reload"]);
    // What the file had in the meantime is the file's, and gone with it.
    assert_eq!(statics(&filed.lab), before[1..]);
    filed.write(&files);
    let refused = filed.lab.ctl(&["config", "reload"]);
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    let owner =
        "port f4: mac 02:00:00:00:00:02 is already used by f2: see vioswitchctl port show f2";
    assert!(!refused.status.success() && told.contains(owner), "{told}");
    assert_eq!(statics(&filed.lab), before[1..]);
    filed.lab.done(&["port", "reset", "f2"]);
    filed.lab.done(&["config", "reload"]);
    assert_eq!(statics(&filed.lab), expected);
}
