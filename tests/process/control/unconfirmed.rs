//! The next process undoes an unconfirmed reload.

use std::time::Duration;

use serde_json::json;
use testkit::proc::{Dir, wait_for};

use super::addresses::{mac, statics, tied};
use super::reload::Filed;
use super::{INTERFACE, LOST, Lab};

const WAITS: &str = "--confirm=600";

/// With a state directory, which lives as long as this.
fn filed(entries: &[(&str, &str)]) -> (Filed, Dir) {
    let state = Dir::new();
    let dir = format!("--state-dir={}", state.path().display());
    (Filed::new(1, entries, &[&dir]), state)
}

fn start(filed: &mut Filed) {
    filed.lab.d.restart();
    let up = wait_for(LOST, || filed.lab.ctl(&["status"]).status.success());
    assert!(up, "{}", filed.lab.d.log());
}

pub(super) fn crash(filed: &mut Filed) {
    filed.lab.d.kill();
    start(filed);
}

fn mtu(filed: &Filed, name: &str) -> serde_json::Value {
    filed.lab.json(&["port", "show", name])["port"]["mtu"].clone()
}

const BACK: &str = "a reload was not confirmed, and the earlier configuration runs";

#[test]
fn the_next_process_goes_back() {
    let (mut filed, _state) = filed(&[("f1", "mtu = 1500"), ("f2", ""), ("f3", "")]);
    filed.lab.done(&["port", "set", "f3", "mtu=1300"]);
    filed.lab.done(&["port", "add", "gone"]);
    for (last, port) in [(1, "f1"), (2, "p0"), (3, "gone"), (4, "f2")] {
        filed.lab.done(&["fdb", "add", &mac(last), port]);
    }
    filed.write(&[("f1", "mtu = 9000"), ("new", ""), ("f3", "mtu = 2000")]);
    filed.lab.done(&["config", "reload", WAITS]);
    assert_eq!(filed.names(), ["f1", "f3", "gone", "new", "p0"]);
    // What else is changed meanwhile stays changed.
    filed.lab.done(&["port", "add", "r1", "mtu=1200"]);
    filed.lab.done(&["port", "del", "gone"]);
    filed.lab.done(&["fdb", "add", &mac(5), "p0"]);
    filed.lab.done(&["fdb", "del", &mac(1)]);
    let left = [(2, "p0", "kept"), (4, "f2", "kept"), (5, "p0", "kept")];
    for end in [libc::SIGKILL, libc::SIGTERM] {
        match end {
            libc::SIGTERM => {
                filed.lab.d.signal(end);
                assert!(filed.lab.d.exit_status(LOST).success(), "{}", filed.lab.d.log());
                start(&mut filed);
            }
            _ => crash(&mut filed),
        }
        assert_eq!(filed.names(), ["f1", "f2", "f3", "p0", "r1"]);
        // Also what was changed before the reload.
        let mtus = ["f1", "f3", "r1"].map(|name| mtu(&filed, name));
        assert_eq!(mtus, [json!(1500), json!(1300), json!(1200)]);
        assert_eq!(statics(&filed.lab), tied(&left));
        assert!(filed.degraded().contains(BACK), "{}", filed.degraded());
        let diff = filed.lab.done(&["config", "diff"]);
        assert!(diff.contains("mtu 1500 -> 9000"), "{diff}");
    }
    // It can still be had.
    filed.lab.done(&["config", "reload"]);
    let after = |filed: &Filed| {
        assert_eq!(filed.names(), ["f1", "f3", "new", "p0", "r1"]);
        assert_eq!((mtu(filed, "f1"), filed.degraded()), (json!(9000), "[]".to_owned()));
    };
    after(&filed);
    crash(&mut filed);
    after(&filed);
}

#[test]
fn what_is_confirmed_stays() {
    let (mut filed, _state) = filed(&[("f1", "mtu = 1500")]);
    filed.write(&[("f1", "mtu = 9000")]);
    filed.lab.done(&["config", "reload", WAITS]);
    filed.lab.done(&["port", "add", "r1"]);
    filed.lab.done(&["config", "confirm"]);
    crash(&mut filed);
    assert_eq!((mtu(&filed, "f1"), filed.degraded()), (json!(9000), "[]".to_owned()));
    assert_eq!(filed.names(), ["f1", "p0", "r1"]);
}

/// Who mends the file wants it, confirmed or not; and who let the time pass does not.
#[test]
fn only_the_very_files_are_passed_over() {
    let (mut filed, _state) = filed(&[("f1", "mtu = 1500")]);
    filed.write(&[("f1", "mtu = 9000")]);
    filed.lab.done(&["config", "reload", "--confirm=1"]);
    assert!(wait_for(LOST, || mtu(&filed, "f1") == 1500), "{}", filed.lab.d.log());
    crash(&mut filed);
    assert_eq!(mtu(&filed, "f1"), 1500);
    assert!(filed.degraded().contains(BACK), "{}", filed.degraded());
    filed.lab.d.kill();
    filed.write(&[("f1", "mtu = 8000")]);
    start(&mut filed);
    assert_eq!((mtu(&filed, "f1"), filed.degraded()), (json!(8000), "[]".to_owned()));
    // These are what runs if the next ones are bad.
    filed.write(&[("f1", "mtu = 1")]);
    crash(&mut filed);
    assert_eq!(mtu(&filed, "f1"), 8000);
}

/// The files are bad by the time of the next start: what runs then is the configuration that was in
/// force before, with the changes as they were to it.
#[test]
fn bad_files_beside_a_reload_that_waits_bring_back_what_was_before_it() {
    let (mut filed, _state) = filed(&[("f1", "mtu = 1500"), ("f2", "")]);
    filed.lab.done(&["port", "set", "f1", "mtu=1300"]);
    filed.write(&[("f1", "mtu = 9000"), ("f2", ""), ("new", "")]);
    filed.lab.done(&["config", "reload", WAITS]);
    filed.lab.done(&["port", "set", "f2", "mtu=1200"]);
    filed.lab.done(&["port", "set", "new", "mtu=1100"]);
    filed.write(&[("f1", "mtu = 1")]);
    for _ in 0..2 {
        crash(&mut filed);
        assert_eq!(filed.names(), ["f1", "f2", "p0"]);
        assert_eq!(mtu(&filed, "f1"), 1300);
        let degraded = filed.degraded();
        assert!(degraded.contains("the configuration has errors"), "{degraded}");
        assert!(!degraded.contains("has changed since"), "{degraded}");
    }
}

/// Signals that come while a reload to be confirmed is under way or waits do not reload for good.
#[test]
fn a_signal_does_not_take_the_place_of_a_confirmation() {
    let before: Vec<String> = (0..200).map(|n| format!("f{n:03}")).collect();
    let before: Vec<(&str, &str)> = before.iter().map(|name| (name.as_str(), "")).collect();
    let filed = Filed::new(1, &before, &[]);
    let changed: Vec<(&str, &str)> = before[..199]
        .iter()
        .map(|(name, _)| (*name, "queues = 2\nsocket-mode = \"0600\""))
        .collect();
    filed.write(&changed);
    let mut client = filed.lab.client();
    client.ask(&json!({
        "method": format!("{INTERFACE}.ReloadConfig"), "parameters": {"confirm_seconds": 1},
    }));
    // It is under way, and takes a while.
    let begun = || filed.lab.d.log().contains("port f199: removed");
    assert!(wait_for(LOST, begun), "{}", filed.lab.d.log());
    for _ in 0..5 {
        filed.lab.d.signal(libc::SIGHUP);
        std::thread::sleep(Duration::from_millis(1));
    }
    let answer = client.answer().expect("an answer");
    assert!(answer["error"].is_null(), "{answer}");
    filed.lab.d.signal(libc::SIGHUP);
    let back = || filed.lab.d.log().contains("not confirmed in 1 s");
    assert!(wait_for(LOST, back), "{}", filed.lab.d.log());
    let idle = || filed.lab.fails(&["config", "confirm"]).1 == "no reload waits to be confirmed";
    assert!(wait_for(LOST, idle));
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(filed.names().len(), 201, "{}", filed.lab.d.log());
    assert!(filed.degraded().contains(BACK), "{}", filed.degraded());
}

/// What waits is seen by whoever looks: how long, and who asked for it.
#[test]
fn who_waits_for_a_confirmation_is_told_everywhere() {
    let filed = Filed::new(1, &[("f1", "mtu = 1500")], &[]);
    let lab = &filed.lab;
    let told = |lab: &Lab| -> [String; 3] {
        let output = |args: &[&str]| {
            let said = lab.ctl(args);
            // Nothing is missing of what is to be served.
            assert_eq!(said.status.code(), Some(0), "{said:?}");
            String::from_utf8(said.stdout).expect("UTF-8")
        };
        [output(&["status"]), output(&["health"]), output(&["doctor"])]
    };
    assert!(told(lab).iter().all(|text| !text.contains("config confirm")));
    assert_eq!(lab.json(&["status"])["unconfirmed"], serde_json::Value::Null);
    filed.write(&[("f1", "mtu = 9000")]);
    let mut client = lab.client();
    let answer = client.call("ReloadConfig", json!({"confirm_seconds": 3000}));
    assert!(answer["error"].is_null(), "{answer}");
    let waits = &lab.json(&["status"])["unconfirmed"];
    let seconds = waits["seconds"].as_u64().expect("seconds");
    assert!((1..=3000).contains(&seconds), "{waits}");
    // SAFETY: takes nothing and cannot fail.
    let uid = unsafe { libc::geteuid() };
    assert_eq!((&waits["pid"], &waits["uid"]), (&json!(std::process::id()), &json!(uid)));
    let who = format!("(by pid {} uid {uid})", std::process::id());
    for text in told(lab) {
        assert!(
            text.contains("s for config confirm, then is undone") && text.contains(&who),
            "{text}"
        );
    }
    let findings = lab.json(&["doctor"])["findings"].clone();
    let codes = findings.as_array().expect("findings").iter().map(|finding| &finding["code"]);
    assert!(codes.into_iter().any(|code| code == "reload-unconfirmed"), "{findings}");
    lab.done(&["config", "confirm"]);
    assert!(told(lab).iter().all(|text| !text.contains("config confirm")));
}
