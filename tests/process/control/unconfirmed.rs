//! A reload that waits to be confirmed when the process ends is undone by the next one.

use serde_json::json;
use testkit::proc::{Dir, wait_for};

use super::LOST;
use super::addresses::{mac, statics, tied};
use super::reload::Filed;

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

fn crash(filed: &mut Filed) {
    filed.lab.d.kill();
    start(filed);
}

fn mtu(filed: &Filed, name: &str) -> serde_json::Value {
    filed.lab.json(&["port", "show", name])["port"]["mtu"].clone()
}

const BACK: &str = "the configuration was reloaded and not confirmed, and the one before it runs";

#[test]
fn the_next_process_goes_back() {
    let (mut filed, _state) = filed(&[("f1", "mtu = 1500"), ("f2", ""), ("f3", "")]);
    filed.lab.done(&["port", "set", "f3", "mtu=1300"]);
    filed.lab.done(&["port", "add", "gone"]);
    for (last, port) in [(1, "f1"), (2, "p0"), (3, "gone"), (4, "f2")] {
        filed.lab.done(&["fdb", "add", &mac(last), port]);
    }
    let taken = "mtu = 9000\nmac = \"02:00:00:00:00:02\"";
    filed.write(&[("f1", taken), ("new", ""), ("f3", "mtu = 2000")]);
    filed.lab.done(&["config", "reload", WAITS]);
    assert_eq!(filed.names(), ["f1", "f3", "gone", "new", "p0"]);
    // What else is changed meanwhile stays changed.
    filed.lab.done(&["port", "add", "r1", "mtu=1200"]);
    filed.lab.done(&["port", "del", "gone"]);
    filed.lab.done(&["fdb", "add", &mac(5), "p0"]);
    filed.lab.done(&["fdb", "del", &mac(1)]);
    let left = [(2, "p0", "runtime"), (4, "f2", "runtime"), (5, "p0", "runtime")];
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
