//! Answers that come when something has happened in the switch: a client waits for a front-end, and
//! stops waiting.

use std::time::Instant;

use super::*;

#[test]
fn a_client_waits_for_a_front_end() {
    let lab = Lab::new(1, &[]);
    let mut client = lab.client();
    let listening = client.call("WaitForPort", json!({"name": "p0", "state": "listening"}));
    assert_eq!(listening["parameters"]["port"]["state"], "listening");

    let wait = json!({"method": format!("{INTERFACE}.WaitForPort"), "parameters": {"name": "p0"}});
    client.ask(&wait);
    // Others are served meanwhile.
    assert_eq!(lab.client().count("connected"), 2);
    let vm = Vm::connect(&lab.d.socket(0), VmConfig::new(0));
    let up = client.answer().expect("an answer");
    assert_eq!(up["parameters"]["port"]["state"], "attached", "{up}");
    assert_eq!(up.get("continues"), None);
    // The word of vioswitchctl for the same state.
    let up = client.call("WaitForPort", json!({"name": "p0", "state": "up"}));
    assert_eq!(up["parameters"]["port"]["state"], "attached", "{up}");
    lab.done(&["port", "wait", "p0", "--for=up"]);
    drop(vm);
}

#[test]
fn a_wait_ends_with_its_time_or_its_port() {
    let lab = Lab::new(1, &[]);
    let mut client = lab.client();
    let began = Instant::now();
    let late = client.call("WaitForPort", json!({"name": "p0", "timeout_ms": 100}));
    assert!(began.elapsed() >= Duration::from_millis(100));
    assert_eq!(late["error"], format!("{INTERFACE}.TimedOut"));
    assert_eq!(late["parameters"]["state"], "listening");

    client
        .ask(&json!({"method": format!("{INTERFACE}.WaitForPort"), "parameters": {"name": "p0"}}));
    lab.client().call("Delete", json!({"name": "p0"}));
    assert_eq!(client.answer().expect("an answer")["error"], format!("{INTERFACE}.NoSuchPort"));

    for (parameters, error) in [
        (json!({"name": "p7"}), "NoSuchPort"),
        (json!({"name": "p0", "state": "down"}), "InvalidParameter"),
        (json!({"name": "p0", "timeout_ms": -1}), "InvalidParameter"),
    ] {
        let answer = client.call("WaitForPort", parameters);
        assert_eq!(answer["error"], format!("{INTERFACE}.{error}"));
    }
}

/// A client that waits and leaves has its place given back.
#[test]
fn who_waits_can_leave() {
    let lab = Lab::new(1, &[]);
    for _ in 0..100 {
        let mut client = lab.client();
        client.ask(&json!({
            "method": format!("{INTERFACE}.WaitForPort"), "parameters": {"name": "p0"},
        }));
    }
    let mut client = lab.client();
    assert!(client.count("accepted") > 100 - 32, "most of them had a place");
    assert!(wait_for(LOST, || client.count("connected") == 1));
}
