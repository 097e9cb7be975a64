//! Static addresses that change at run time: they outlive the process and the settings of their
//! port, go with the port, and a file that names one wins.

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
fn they_outlive_the_process_and_the_settings_of_their_port() {
    let mut kept = Kept::new(2, &[]);
    kept.lab.done(&["port", "add", "r1"]);
    kept.lab.done(&["port", "add", "r2", "mac=02:00:00:00:00:03", "mac=02:00:00:00:00:04"]);
    for (last, port) in [(1, "p0"), (2, "r1"), (5, "r2")] {
        kept.lab.done(&["fdb", "add", &mac(last), port]);
    }
    // One of the settings is a setting: without it these are others.
    kept.lab.done(&["fdb", "del", &mac(4)]);
    let expected = tied(&[
        (1, "p0", "runtime"),
        (2, "r1", "runtime"),
        (3, "r2", "runtime"),
        (5, "r2", "runtime"),
    ]);
    assert_eq!(statics(&kept.lab), expected);
    kept.crash();
    assert_eq!((statics(&kept.lab), kept.degraded()), (expected.clone(), "[]".to_owned()));
    kept.stop_and_start();
    assert_eq!((statics(&kept.lab), kept.degraded()), (expected, "[]".to_owned()));
    let shown = kept.lab.done(&["config", "show"]);
    assert!(shown.contains("# origin runtime: mac = \"02:00:00:00:00:01\"\n"), "{shown}");
    // Other settings leave them alone, and other ports cannot have them.
    kept.lab.done(&["port", "set", "r2", "mtu=1400", "mac="]);
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
    let expected = tied(&[(5, "r2", "runtime")]);
    assert_eq!(statics(&kept.lab), expected);
    kept.crash();
    assert_eq!((statics(&kept.lab), kept.degraded()), (expected, "[]".to_owned()));
    kept.lab.d.stop();
}

#[test]
fn a_reload_leaves_them_alone_and_a_file_wins() {
    let filed = Filed::new(1, &[("f1", ""), ("f2", ""), ("old", "")], &[]);
    let lab = &filed.lab;
    for (last, port) in [(1, "f1"), (2, "f2"), (3, "old"), (4, "p0"), (5, "f1")] {
        lab.done(&["fdb", "add", &mac(last), port]);
    }
    assert_eq!(lab.done(&["config", "diff"]), "");
    // One gets other settings, one another socket; one goes, and one address is another port's.
    let own = "mtu = 9000\nmac = \"02:00:00:00:00:05\"";
    let taken = "mac = \"02:00:00:00:00:01\"";
    filed.write(&[("f1", own), ("f2", "socket-mode = \"0600\""), ("f3", taken)]);
    let diff = lab.done(&["config", "diff"]);
    let line = "~ address 02:00:00:00:00:01  port f1 -> f3";
    assert!(diff.lines().any(|told| told.starts_with(line) && told.ends_with("  now")), "{diff}");
    lab.done(&["config", "reload"]);
    let expected =
        tied(&[(1, "f3", "file"), (2, "f2", "runtime"), (4, "p0", "runtime"), (5, "f1", "file")]);
    assert_eq!(statics(lab), expected);
    assert_eq!(lab.done(&["config", "diff"]), "");
    // What cannot be done as a whole gives back what it took.
    let taken = "mac = [\"02:00:00:00:00:02\", \"02:00:00:00:00:04\"]";
    let busy = std::os::unix::net::UnixListener::bind(filed.etc.path().join("busy"));
    filed.write(&[("f1", own), ("busy", ""), ("f3", taken)]);
    let (_, line) = lab.fails(&["config", "reload"]);
    assert!(line.contains("is in use by "), "{line}");
    assert_eq!(statics(lab), expected);
    drop(busy);
    // So does what nobody confirms.
    filed.write(&[("f1", own), ("f2", ""), ("f3", taken)]);
    lab.done(&["config", "reload", "--confirm=1"]);
    assert!(wait_for(LOST, || statics(lab) == expected), "{:?}\n{}", statics(lab), lab.d.log());
}

#[test]
fn a_file_wins_at_a_start_too() {
    let state = Dir::new();
    let dir = format!("--state-dir={}", state.path().display());
    let mut filed = Filed::new(1, &[("f1", ""), ("f2", ""), ("f3", "")], &[&dir]);
    for (last, port) in [(1, "f1"), (2, "f2"), (3, "f3")] {
        filed.lab.done(&["fdb", "add", &mac(last), port]);
    }
    filed.lab.d.kill();
    filed.write(&[("f1", "mac = \"02:00:00:00:00:01\""), ("f3", "mac = \"02:00:00:00:00:02\"")]);
    filed.lab.d.restart();
    let up = wait_for(LOST, || filed.lab.ctl(&["status"]).status.success());
    assert!(up, "{}", filed.lab.d.log());
    let expected = tied(&[(1, "f1", "file"), (2, "f3", "file"), (3, "f3", "runtime")]);
    assert_eq!(statics(&filed.lab), expected);
    let degraded = filed.degraded();
    let told = "address 02:00:00:00:00:02 of port f2 is left out: there is no such port";
    assert!(degraded.contains(told) && !degraded.contains(":01"), "{degraded}");
}
