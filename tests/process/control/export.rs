//! What `config export` prints is a configuration file: a switch that is started with the file has
//! what ran. Nothing that the switch or its client do writes the file.

use std::fs;

use serde_json::Value;
use testkit::host;
use testkit::proc::{Dir, wait_for};

use super::reload::Filed;
use super::{LOST, Lab};

/// All that the switch is configured with, without who gave it.
fn in_force(lab: &Lab) -> Value {
    let mut all = lab.json(&["config", "export"]);
    for entry in all["entries"].as_array_mut().expect("entries") {
        entry["origin"] = Value::Null;
        entry["overridden"] = Value::Null;
    }
    let entries = all["entries"].as_array_mut().expect("entries");
    entries.retain(|entry| entry["unused"] == Value::Null);
    all
}

/// Changes of every kind.
fn change_all(lab: &Lab, etc: &Dir) {
    let socket = |name: &str| format!("socket={}", etc.path().join(name).display());
    lab.done(&["port", "add", "vm9", &socket("vm9"), "queues=4", "mac=02:00:00:00:00:09"]);
    lab.done(&["fdb", "add", "02:00:00:00:00:19", "vm9"]);
    lab.done(&["port", "add", "vm8", &socket("vm8"), "mode=client", "label=it's \"8\" \\"]);
    lab.done(&["port", "add", "vm7", &socket("vm7"), "trunk=10,20-29", "--transient"]);
    lab.done(&["tap", "add", "up", "ifname=vsave0", "queues=2"]);
    lab.done(&["fdb", "add", "02:00:00:00:00:29", "up"]);
    lab.done(&["stream", "add", "s2", &socket("s2"), "mtu=1400"]);
    lab.done(&["mirror", "add", "m1", "from=f1", "to=vm9", "snaplen=96"]);
    lab.done(&["port", "set", "f1", "mtu=9000", "flood=off", "label=7"]);
    lab.done(&["fdb", "add", "02:00:00:00:00:11", "f1"]);
    lab.done(&["port", "set", "f2", "queues=", "mac=02:00:00:00:00:12"]);
    lab.done(&["port", "del", "old"]);
}

#[test]
fn a_switch_that_is_started_with_it_has_what_runs() {
    host::in_namespace(|| {
        let before = [("f1", "mtu = 1500"), ("f2", "queues = 2"), ("old", "")];
        let plug = Dir::new();
        let plug = format!("--plug={}", plug.path().display());
        let extra = ["--workers=2", "--age=600", "--poll=false", "--sandbox=off", plug.as_str()];
        let filed = Filed::new(0, &before, &extra);
        let (lab, etc) = (&filed.lab, &filed.etc);
        let file = etc.path().join("vioswitch.toml");
        let text = fs::read_to_string(&file).expect("read");
        change_all(lab, etc);
        let (exported, told) = (lab.done(&["config", "export"]), in_force(lab));
        assert_eq!(exported, lab.done(&["config", "show"]));
        assert_eq!(fs::read_to_string(&file).expect("read"), text);
        for part in ["workers = 2\n", "poll = false\n", "sandbox = \"off\"\n", "label = \"7\"\n"] {
            assert!(exported.contains(part), "{part}: {exported}");
        }
        // It is the configuration from now on, beside which nothing is changed.
        fs::write(&file, &exported).expect("write");
        lab.done(&["config", "reload"]);
        assert_eq!(in_force(lab), told);
        let shown = lab.json(&["config", "show"]);
        for entry in shown["entries"].as_array().expect("entries") {
            assert_eq!(entry["origin"], "config", "{entry}");
            assert_eq!(entry["overridden"], Value::Array(vec![]), "{entry}");
        }
        filed.lab.d.stop();
        let lab = Lab::new(0, &[&format!("--config={}", file.display())]);
        assert!(wait_for(LOST, || lab.ctl(&["status"]).status.success()), "{}", lab.d.log());
        // Its control socket is another one.
        let switch = |all: &Value| {
            let mut keys = all["switch"].as_array().expect("keys").clone();
            keys.retain(|key| key["key"] != "control");
            keys
        };
        let now = in_force(&lab);
        assert_eq!(switch(&now), switch(&told));
        assert_eq!(now["entries"], told["entries"], "{exported}");
        lab.d.stop();
    });
}
