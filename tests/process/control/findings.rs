//! A TAP's interface that goes down or away is told wherever somebody may look.

use testkit::host::{in_namespace, ip};

use super::*;

/// What `why` finds in the way, and its exit status.
fn why(lab: &Lab, from: &str, to: &str) -> Vec<String> {
    let output = lab.ctl(&["--json", "why", from, to]);
    let told: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let problems = told["problems"].as_array().expect("problems");
    assert_eq!(output.status.code(), Some(i32::from(!problems.is_empty())), "{told}");
    problems.iter().map(|one| one.as_str().expect("text").to_owned()).collect()
}

fn one_has(problems: &[String], words: &str) {
    assert!(problems.iter().any(|one| one.contains(words)), "no {words:?} in {problems:?}");
}

fn happened(lab: &Lab, kind: &str) -> bool {
    let lines = lab.done(&["--json", "events", "--since=all"]);
    let mut events = lines.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    events.any(|event| event["kind"] == kind && event["port"] == "up")
}

#[test]
fn an_interface_that_goes_down_away_and_comes_back_is_told_everywhere() {
    if !is_root() {
        return testkit::skip("network namespaces need root");
    }
    in_namespace(|| {
        ip("tuntap add t0 mode tap multi_queue vnet_hdr");
        ip("link set t0 up");
        ip("address add 10.9.1.1/24 dev t0");
        let lab = Lab::new(1, &["--tap=up,ifname=t0"]);
        let mut vm = Vm::connect(&lab.d.socket(0), VmConfig::new(0));
        let broadcast = [&[0xff; 6][..], &vm.mac(), &[0x88, 0xb5], &[0; 46]].concat();
        vm.tx[0].send_waiting(&broadcast, LOST);
        let state = || lab.json(&["port", "show", "up"])["port"]["state"].clone();
        let is = |expected: &str| wait_for(LOST, || state() == expected);
        assert!(is("attached") && lab.ctl(&["health"]).status.success(), "{}", state());

        ip("link set t0 down");
        assert!(is("down"), "{}", state());
        one_has(&why(&lab, "p0", "up"), "the interface t0 of 'up' is down");
        let output = lab.ctl(&["health"]);
        let told = String::from_utf8(output.stdout).expect("UTF-8");
        assert!(output.status.code() == Some(1) && told.contains("t0 is down"), "{told}");
        let flood = ["trace", "p0", "src=02:00:00:00:00:09", "dst=ff:ff:ff:ff:ff:ff"];
        let told = lab.done(&flood);
        assert!(told.contains("not to 'up': its interface is down"), "{told}");
        assert!(wait_for(LOST, || happened(&lab, "interface_down")), "no event");
        assert!(!happened(&lab, "interface_up"), "it did not come up yet");

        ip("link set t0 up");
        assert!(is("attached"), "{}", state());
        assert!(wait_for(LOST, || happened(&lab, "interface_up")), "no event");
        assert!(lab.ctl(&["health"]).status.success());
        assert!(!lab.done(&flood).contains("not to 'up'"));

        ip("link delete t0");
        assert!(is("gone"), "{}", state());
        assert!(wait_for(LOST, || happened(&lab, "interface_gone")), "no event");
        assert!(!happened(&lab, "interface_back"), "it is not back yet");
        ip("tuntap add t0 mode tap multi_queue vnet_hdr");
        ip("link set t0 up");
        assert!(is("attached"), "{}", state());
        assert!(wait_for(LOST, || happened(&lab, "interface_back")), "no event");
    });
}
